"""What `kill --force` takes for a process, and what it says of one that does not exist."""

from __future__ import annotations

import io

import pytest
from golden_files import assert_message

from orchestrator.answers.ends import FORCE
from orchestrator.commands.kill import _parse_forced, _print_result
from orchestrator.errors import UsageError
from orchestrator.node.serve import leftovers
from orchestrator.output.console import Console
from orchestrator.runs.ending import KillProof

HOSTS = ["gpu-01", "gpu-02", "::1"]


def test_processes_are_named_by_host_and_pid() -> None:
    assert _parse_forced(["gpu-01:811", "gpu-02:7", "gpu-01:812", "::1:9"], HOSTS) == {
        "gpu-01": (811, 812),
        "gpu-02": (7,),
        "::1": (9,),
    }


@pytest.mark.parametrize("wrong", ["811", "gpu-01", "gpu-01:", "gpu-01:one", "gpu-01:1", "gpu-01:-5", "gpu-01:٣", ":7"])
def test_anything_else_is_refused_with_an_example(wrong: str) -> None:
    with pytest.raises(UsageError, match=r"--force"):
        _parse_forced([wrong], HOSTS)


def test_a_host_that_is_not_in_the_inventory_is_refused_with_the_nearest() -> None:
    with pytest.raises(UsageError, match=r"gpu-1:811.*gpu-01\b"):
        _parse_forced(["gpu-1:811"], HOSTS)


def test_a_process_that_does_not_exist_is_not_still_there() -> None:
    ending = FORCE.decode(leftovers.force({"pids": [99_999_999]}))
    out = io.StringIO()
    killed = KillProof(None, [("gpu-01", ending)], {})
    _print_result(killed, [], "inventory.yaml", Console(out, False))
    assert_message("kill-force-of-no-process", out.getvalue())
