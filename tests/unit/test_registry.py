"""What the listing of runs says of hosts that were drained, and of runs that wait in a queue."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fake_relay import part_of

from orchestrator.answers.queued import WaitingRun
from orchestrator.answers.runs import OtherUsersRun, RunList
from orchestrator.commands import kill, same_name
from orchestrator.errors import UnreachableError, UsageError
from orchestrator.hosts.fleet import Results
from orchestrator.inventory import advice, model
from orchestrator.output.console import Console
from orchestrator.runs import choice, queued_runs, recent, registry
from orchestrator.runs.registry import Listing, Run

RUN_ID = "20260101-120000-0001"
STARTED = "2026-01-01T12:00:00.000000Z"
QUEUED_ID = "20260101-130000-0002"
VERDICT = {"state": "stopped", "first_failure": None, "stopped_by": "ann@laptop"}
STOPPED = {"state": "stopped", "verdict": VERDICT}
DRAINED = {"state": "stopped", "verdict": {**VERDICT, "left": True}}


def of_two(of_run: str = "running", **second: Any) -> Run:
    known = {"state": of_run, "hosts": ["a", "b"], "nprocs": [1, 1], "team": 2, "ranks": 2}
    idle = {"node": 1, "host": "b", "node_rank": None, "first_rank": None}
    parts = {"a": part_of(**known), "b": part_of(**{**known, **idle, **second})}
    return Run(RUN_ID, "exp", of_run, 2, STARTED, parts)


@pytest.mark.parametrize("state", ["running", "succeeded", "stopped"])
def test_a_drained_host_is_no_spare_of_the_run(state: str) -> None:
    run = of_two(state, **DRAINED)
    assert list(run.left) == ["b"]
    assert [node["role"] for node in run.as_dict()["nodes"]] == ["head", "left"]


@pytest.mark.parametrize("state", ["running", "stopped"])
def test_hosts_that_were_not_drained_have_not_left(state: str) -> None:
    second = {} if state == "running" else STOPPED
    run = of_two(state, **second)
    assert not run.left
    assert [node["role"] for node in run.as_dict()["nodes"]] == ["head", "spare"]


def listed(**answers: dict[str, Any]) -> Listing:
    """What hosts answer about a run of a, b and c. Other hosts of it are off."""
    known = {"hosts": ["a", "b", "c"], "nprocs": [1, 1, 1], "team": 3, "ranks": 3, "state": "running"}
    done = {
        host: (RunList((part_of(**{**known, "node": "abc".index(host), "host": host, **answer}),)), "")
        for host, answer in answers.items()
    }
    return registry._listing(Results(done, {host: UnreachableError("off") for host in "abc" if host not in done}))


def test_a_host_that_was_drained_while_it_was_off_has_left() -> None:
    (run,) = listed(a={"drained": ["c"]}, b={}, c={"state": "lost"}).runs
    assert list(run.left) == ["c"] and not run.without_guard
    assert [node["role"] for node in run.as_dict()["nodes"]] == ["head", "team", "left"]
    (run,) = listed(
        a={}, b={}, c={"state": "lost", "drained": ["c"]}
    ).runs  # of itself, a host without a guard knows nothing
    assert not run.left and run.without_guard == ("c",)


def test_nobody_misses_a_host_that_was_drained_and_is_off() -> None:
    listing = listed(a={"drained": ["c"]}, b={})
    (run,) = listing.runs
    assert not run.missing_hosts and not listing.missing_hosts(run)
    assert run.drained == {"c"} and run.all_nodes["c"] == 2


def waiting(failed: dict[str, Any] | None = None) -> Listing:
    ticket = WaitingRun(QUEUED_ID, "next", "ann@laptop", 3)
    queued = queued_runs.gather({"a": [ticket], "b": [ticket]}, frozenset())
    return Listing((of_two(),), failed or {}, frozenset({"a", "b"}), queued=queued)


@pytest.mark.parametrize("name", ["next", QUEUED_ID, "20260101-13", "0-0002"])
def test_a_run_that_waits_in_the_queue_is_not_called_unknown(name: str) -> None:
    with pytest.raises(UsageError) as error:
        choice.choose(waiting(), name, "inventory.yaml")
    assert {"queued", QUEUED_ID, "ann@laptop", "a,b"} <= set(str(error.value).replace("(", " ").split())
    assert "pruned" not in str(error.value)


def test_other_names_are_unknown_though_a_run_waits() -> None:
    with pytest.raises(UsageError) as error:
        choice.choose(waiting(), "other", "inventory.yaml")
    assert QUEUED_ID not in str(error.value)
    with pytest.raises(UsageError, match="next"):
        choice.choose(waiting(), "nxet", "inventory.yaml")
    with pytest.raises(UnreachableError):
        choice.choose(waiting({"c": UnreachableError("c: silent")}), "other", "inventory.yaml")


def test_a_run_has_left_the_queue_only_if_one_of_its_hosts_says_so() -> None:
    (run,) = waiting().queued
    ticket = WaitingRun(QUEUED_ID, "next", "ann@laptop", 3)
    assert queued_runs.still_waiting([run], {"a": [], "b": [ticket]}) == (run,)
    assert queued_runs.still_waiting([run], {}) == (run,)
    assert queued_runs.still_waiting([run], {"a": []}) == ()


@pytest.mark.parametrize("part", [slice(None), slice(12), slice(-4, None)], ids=str)
def test_the_owner_of_a_run_of_another_user_is_named(part: slice) -> None:
    of_bob = (OtherUsersRun(QUEUED_ID, "bob"),)
    listing = Listing((of_two(),), {}, others={"a": of_bob, "b": of_bob})
    with pytest.raises(UsageError, match=r"\ba,b\b.*\bbob\b"):
        choice.choose(listing, QUEUED_ID[part], "inventory.yaml")


def named(number: int, state: str) -> Run:
    run_id = f"20260101-12000{number}-000{number}"
    started = f"2026-01-01T12:00:0{number}.000000Z"
    return Run(run_id, "exp", state, 1, started, {"a": part_of(run_id=run_id, state=state)})


def test_an_id_that_a_later_run_has_as_its_name_means_its_own_run_once_both_are_over() -> None:
    for state, chosen in (("running", 1), ("failed", 0)):
        first = named(0, "stopped")
        runs = [replace(first, name=first.run_id), replace(named(1, state), name=first.run_id)]
        listing = Listing(tuple(runs), {}, frozenset({"a"}))
        assert choice.choose(listing, first.run_id, "inventory.yaml") == runs[chosen]
        said = noted(runs[chosen], listing)
        assert (runs[1].run_id in said) is (chosen == 0)
        assert advice.about(runs[1], runs, "inventory.yaml").run == runs[1].run_id


@pytest.mark.parametrize(
    ("states", "chosen", "named_too"),
    [
        (["running", "succeeded"], 0, 1),
        (["running", "running"], 1, 0),
        (["failed", "succeeded"], 1, None),
        (["failed", "waiting"], 1, None),
    ],
)
def test_a_name_means_the_newest_run_that_is_not_over(states: list[str], chosen: int, named_too: int | None) -> None:
    runs = [named(number, state) for number, state in enumerate(states)]
    listing = Listing(tuple(runs), {}, frozenset({"a"}))
    assert choice.choose(listing, "exp", "inventory.yaml") == runs[chosen]
    assert choice.choose(listing, runs[1].run_id, "inventory.yaml") == runs[1]
    said = noted(runs[chosen], listing)
    assert (runs[named_too].run_id in said) if named_too is not None else not said


def test_kill_of_a_name_knows_the_other_runs_that_have_it() -> None:
    ended, older, newest = named(0, "failed"), named(1, "running"), named(2, "running")
    listing = Listing((ended, older, newest), {}, frozenset({"a"}))
    assert kill._same_name([newest], "exp", listing) == [older]
    assert kill._same_name([newest], newest.run_id, listing) == []


def noted(run: Run, listing: Listing, path: str = "no such inventory.yaml") -> str:
    out = io.StringIO()
    same_name.note_choice(run, listing, run.name, model.parse("hosts: [a]", path), Console(out, False))
    return out.getvalue()


def test_a_newer_run_of_the_name_that_was_deleted_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    inventory = tmp_path / "inventory.yaml"
    inventory.touch()
    old, deleted, other = (named(number, "failed") for number in range(3))
    recent.remember(str(inventory), deleted.run_id, "exp")
    recent.remember(str(inventory), other.run_id, "another")
    assert deleted.run_id in noted(old, Listing((old,), {}, frozenset("a")), str(inventory))
    for listing in (Listing((old, deleted), {}, frozenset("a")), Listing((old,), {"a": UnreachableError("a: silent")})):
        assert not noted(old, listing, str(inventory))
    assert not noted(other, Listing((other,), {}, frozenset("a")), str(inventory))


def test_a_name_that_no_host_knows_any_more_is_not_taken_for_a_typing_mistake(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    inventory = tmp_path / "i.yaml"
    inventory.write_text("hosts: [a]")
    recent.remember(str(inventory), "20251231-120000-0009", "expo")

    def unknown(name: str, failed: dict[str, Any] | None = None, path: Path = inventory) -> str:
        with pytest.raises((UsageError, UnreachableError)) as error:
            choice.choose(Listing((of_two(),), failed or {}, frozenset({"a"})), name, str(path))
        return str(error.value)

    for name in ("expo", "20251231-120000-0009"):
        assert "20251231-120000-0009" in unknown(name) and "deleted" in unknown(name)
    assert "did you mean exp?" in unknown("expp")
    # a host that did not answer may know it
    assert "deleted" not in unknown("expo", {"b": UnreachableError("b: silent")})
    assert "deleted" not in unknown("expo", path=tmp_path / "other.yaml")


REJOINS: dict[str, Any] = {"state": "lost", "autostart": "cron", "rejoins": True}


def test_a_run_that_no_host_has_is_not_over_while_a_host_rejoins_it() -> None:
    assert of_two("lost", **REJOINS).rejoining == ("b",) and not of_two("lost", **REJOINS).is_over
    assert of_two("lost").is_over
    assert of_two("running", **REJOINS).rejoining == ()


def test_a_run_is_over_though_a_host_that_was_off_at_its_end_would_rejoin_it() -> None:
    ended = part_of(**STOPPED, hosts=["a", "b"], nprocs=[1, 1], team=2, ranks=2)
    run = of_two("lost", **REJOINS)
    assert Run(RUN_ID, "exp", "stopped", 2, STARTED, {"a": ended, "b": run.parts["b"]}).is_over


@pytest.mark.parametrize(("flag", "stops"), [("", True), ("everything", True), ("leftovers", False)])
def test_kill_takes_a_run_that_a_host_rejoins_for_unfinished(flag: str, stops: bool) -> None:
    inventory = model.parse("hosts: [a, b]", "i.yaml")
    options = kill.KillOptions(None, inventory, flag == "leftovers", flag == "everything", {}, None)
    listing = Listing((of_two("lost", **REJOINS),), {}, frozenset("ab"))
    runs = kill._runs_to_stop(options, listing, Console(io.StringIO(), False))
    assert [run.run_id for run in runs] == [RUN_ID] * stops
