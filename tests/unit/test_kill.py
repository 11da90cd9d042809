"""What `kill --force` takes for a process, and what it says of one that does not exist."""

from __future__ import annotations

import io

import pytest
from golden_files import assert_message

from orchestrator.answers.ends import FORCE
from orchestrator.commands.kill import KillOptions, _parse_forced, print_result
from orchestrator.errors import UsageError
from orchestrator.inventory import model
from orchestrator.node.serve import leftovers
from orchestrator.output.console import Console
from orchestrator.runs.ending import KillProof
from orchestrator.runs.registry import Run

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
    print_result(killed, [], "inventory.yaml", Console(out, False))
    assert_message("kill-force-of-no-process", out.getvalue())


@pytest.mark.parametrize(
    ("named", "flags", "forced", "again"),
    [
        (None, "", {}, "ddp-orch kill R1 -i i.yaml && ddp-orch kill R2 -i i.yaml"),
        ("mine", "", {}, "ddp-orch kill mine -i i.yaml"),
        (None, "everything", {}, "ddp-orch kill --all -i i.yaml"),
        (None, "leftovers", {}, "ddp-orch kill --leftovers -i i.yaml"),
        (None, "", {"gpu-01": (8, 9)}, "ddp-orch kill --force gpu-01:8 --force gpu-01:9 -i i.yaml"),
    ],
)
def test_the_command_for_a_host_that_did_not_answer_stops_the_same_and_nothing_else(
    named: str | None, flags: str, forced: dict[str, tuple[int, ...]], again: str
) -> None:
    inventory = model.parse("hosts: [a, b]", "i.yaml")
    options = KillOptions(named, inventory, flags == "leftovers", flags == "everything", forced, None)
    runs = [] if forced else [Run(run_id, "x", "running", 1, "", {}) for run_id in ("R1", "R2")]
    assert options.again(runs) == again
