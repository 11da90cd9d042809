"""What `kill --force` takes for a process."""

from __future__ import annotations

import pytest

from orchestrator.errors import UsageError
from orchestrator.kill import _forced

HOSTS = ["gpu-01", "gpu-02", "::1"]


def test_processes_are_named_by_host_and_pid() -> None:
    assert _forced(["gpu-01:811", "gpu-02:7", "gpu-01:812", "::1:9"], HOSTS) == {
        "gpu-01": (811, 812),
        "gpu-02": (7,),
        "::1": (9,),
    }


@pytest.mark.parametrize("wrong", ["811", "gpu-01", "gpu-01:", "gpu-01:one", "gpu-01:1", "gpu-01:-5", "gpu-01:٣", ":7"])
def test_anything_else_is_refused_with_an_example(wrong: str) -> None:
    with pytest.raises(UsageError, match=r"--force"):
        _forced([wrong], HOSTS)


def test_a_host_that_is_not_in_the_inventory_is_refused_with_the_nearest() -> None:
    with pytest.raises(UsageError, match="did you mean gpu-01"):
        _forced(["gpu-1:811"], HOSTS)
