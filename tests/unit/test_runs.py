"""Runs as their hosts tell of them: put together, chosen, described."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, cast

import pytest
from fake_relay import part_of

from orchestrator.answers import ends
from orchestrator.answers.ends import Ending, LeftoversEnding
from orchestrator.answers.runs import Part, RunList
from orchestrator.errors import UnreachableError, UsageError
from orchestrator.hosts.fleet import Fleet, Work
from orchestrator.inventory.model import parse
from orchestrator.runs.choice import choose
from orchestrator.runs.ending import KillProof, KillTargets, kill
from orchestrator.runs.registry import Listing, Run, find


def part(node: int, state: str = "running", hosts: tuple[str, ...] = ("a", "b")) -> Part:
    return part_of(
        node=node,
        host=hosts[node],
        state=state,
        pid=100 + node,
        hosts=list(hosts),
        node_rank=node,
        first_rank=2 * node,
        nproc=2,
        ranks=6,
    )


def run(run_id: str, name: str = "", state: str = "running", **parts: Part) -> Run:
    return Run(run_id, name or run_id, state, 1, f"{run_id}Z", parts or {"a": part(0, state), "b": part(1, state)})


RUNS = (run("20260101-a1", "exp"), run("20260102-b1", "other", "failed"), run("20260102-b2", "exp"))
LISTING = Listing(RUNS, {})


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        (None, 2),
        ("20260101-a1", 0),
        ("20260101", 0),
        ("exp", 2),
        ("other", 1),
        ("20260102-b1", 1),
    ],
)
def test_a_run_is_chosen_by_id_name_or_prefix_and_else_it_is_the_newest(wanted: str | None, found: int) -> None:
    assert choose(LISTING, wanted, "inventory.yaml") is RUNS[found]


class Answering(Fleet):
    """Hosts that list these parts of runs."""

    def __init__(self, **parts: Part) -> None:
        self._parts = parts

    def prepare(self, hosts: Any) -> None:
        pass

    def begin(self, hosts: Any, work: Any, doing: str = "") -> Any:
        return Work(hosts, lambda host: (RunList((self._parts[host.name],)), ""), 2)


@pytest.mark.parametrize(
    ("head", "other", "state"),
    [
        ("lost", "stopping", "waiting"),
        ("lost", "lost", "lost"),
        ("waiting", "lost", "waiting"),
        ("running", "lost", "running"),
    ],
)
def test_a_run_whose_head_was_restarted_is_unfinished_while_others_wait(head: str, other: str, state: str) -> None:
    hosts = parse("hosts: [a, b]", "inventory.yaml").hosts
    (found,) = find(Answering(a=part(0, head), b=part(1, other)), hosts).runs
    assert found.state == state and found.unfinished == (state != "lost")


def test_a_prefix_of_several_is_refused_with_all_of_them() -> None:
    with pytest.raises(UsageError, match="20260102-b1, 20260102-b2"):
        choose(LISTING, "20260102", "inventory.yaml")


@pytest.mark.parametrize("wanted", [None, "nosuch"])
def test_a_run_that_is_not_there_is_a_mistake_but_not_when_a_host_could_not_be_asked(wanted: str | None) -> None:
    runs = () if wanted is None else RUNS
    with pytest.raises(UsageError):
        choose(Listing(runs, {}), wanted, "inventory.yaml")
    with pytest.raises(UnreachableError, match=r"\bc\b"):
        choose(Listing(runs, {"c": UnreachableError("c: refused")}), wanted, "inventory.yaml")


@pytest.mark.parametrize(
    ("wanted", "meant"), [("ohter", "other"), ("20260102-b9", "20260102-b[12]"), ("nightly", "20260102-b2")]
)
def test_a_mistyped_run_is_answered_with_the_one_that_is_alike(wanted: str, meant: str) -> None:
    with pytest.raises(UsageError, match=rf"\b{meant}\b"):
        choose(LISTING, wanted, "inventory.yaml")


def test_hosts_that_told_nothing_are_named() -> None:
    assert run("x").missing_hosts == ()
    assert run("x", a=part(0, hosts=("a", "b", "c")), b=part(2, hosts=("a", "b", "c"))).missing_hosts == ("b",)


def test_a_run_that_is_over_is_broken_while_a_part_of_it_goes_on() -> None:
    assert not run("x").broken
    assert not run("x", state="failed").broken
    assert run("x", state="lost", a=part(0, "lost"), b=part(1, "running")).broken


def test_ps_has_the_keys_it_promises_and_no_pid_of_what_is_over() -> None:
    told = run("x", state="running", b=part(1, "failed"), a=part(0)).as_dict()
    assert list(told) == ["run_id", "name", "state", "attempt", "started_at", "waits", "suspects", "rejoining", "nodes"]
    assert told["nodes"] == [
        {
            "host": "a",
            "role": "head",
            "node_rank": 0,
            "witness": False,
            "state": "running",
            "exit_code": None,
            "signal": None,
            "pid": 100,
            "unfit": None,
        },
        {
            "host": "b",
            "role": "team",
            "node_rank": 1,
            "witness": False,
            "state": "failed",
            "exit_code": None,
            "signal": None,
            "pid": None,
            "unfit": None,
        },
    ]


def test_kill_has_the_keys_it_promises() -> None:
    left = ends.Remaining(1, "ann", "python", "stuck")
    holder = ends.Holder(811, "bob", "redis", "port 29500")
    gone = ends.Container("podman", "7174ba")
    ending = LeftoversEnding((ends.Killed(9, "train"),), (29400,), (0,), (left,), (), (holder,), containers=(gone,))
    told = KillProof("x", [("a", ending)], {"b": UnreachableError("b: refused")}).as_dict()
    assert "port 29500" in told["remaining"][1].pop("why")
    assert told == {
        "run_id": "x",
        "containers_removed": [{"host": "a", "engine": "podman", "id": "7174ba"}],
        "killed": [{"host": "a", "pid": 9, "cmd": "train"}],
        "ports_freed": [{"host": "a", "port": 29400}],
        "gpus_freed": [{"host": "a", "gpu": 0}],
        "remaining": [
            {"host": "a", "pid": 1, "owner": "ann", "why": "stuck"},
            {"host": "a", "pid": 811, "owner": "bob"},
        ],
        "unreachable": ["b"],
    }


def test_several_runs_of_a_host_are_stopped_at_once() -> None:
    """Each may take its whole grace: one after the other, the last would be stopped after the sum of them."""
    together = threading.Barrier(3, timeout=20)

    class Host:
        name = "a"

        def request(self, operation: object, arguments: dict[str, Any], extra_time: float = 0.0) -> Ending:
            together.wait()
            return Ending((ends.Killed(7, arguments["run_id"]),), (), (), ())

        def begin(self, hosts: Sequence[Any], work: Callable[[Any, Any], Any], doing: str) -> Work[Any, Any]:
            return Work(hosts, lambda host: work(host, host), 1)

    host: Any = Host()
    killed = kill(cast(Fleet, host), [host], KillTargets(runs=("x", "y", "z")), grace=30.0, by="ann")
    assert [process.cmd for _, process in killed.killed] == ["x", "y", "z"]


def test_a_host_that_is_cut_off_has_its_lease_to_end_its_part() -> None:
    """Without the head, a host ends its part when the lease is over; `run.lease` may be 10 minutes."""
    limits = []

    class Host:
        name = "a"

        def request(self, operation: object, arguments: dict[str, Any], extra_time: float = 0.0) -> Ending:
            limits.append(extra_time)
            return Ending((), (), (), ())

        def begin(self, hosts: Sequence[Any], work: Callable[[Any, Any], Any], doing: str) -> Work[Any, Any]:
            return Work(hosts, lambda host: work(host, host), 1)

    host: Any = Host()
    targets = KillTargets(runs=("x",), run_grace=30.0, lease=600.0)
    kill(cast(Fleet, host), [host], targets, grace=None, by="ann")
    kill(cast(Fleet, host), [host], targets, grace=0.0, by="ann")
    assert limits == [630.0, 600.0]
