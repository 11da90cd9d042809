"""The timeline of a run: what the events of its head and the verdicts of the other hosts tell together."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from fake_relay import A_RUN, part_of

from orchestrator.answers.decode import decode
from orchestrator.answers.recorded import Event, Record, Wait
from orchestrator.commands import describe
from orchestrator.runs import timeline
from orchestrator.runs.registry import Run

HOSTS = ["a", "b", "c"]
TEAM = {"hosts": HOSTS, "nprocs": [1, 1, 1], "team": 3, "ranks": 3}


def event(name: str, at: float, **fields: Any) -> dict[str, Any]:
    return {"event": name, "fields": {"at": at, **fields}}


def started(at: float, attempt: int = 1) -> list[dict[str, Any]]:
    first = event("StartRequested" if attempt == 1 else "PortFound", at)
    return [first, *(event("Started", at, node=node, attempt=attempt) for node in range(3))]


def record(*events: dict[str, Any], **part: Any) -> Record:
    known = {"run": {**A_RUN, **TEAM, **part}, "spec": None, "exit": None, "events": list(events), "samples": []}
    return decode(Record, known, "record")


def events_of(*events: dict[str, Any]) -> tuple[Event, ...]:
    return record(*events).events


def lost_head(**head: Any) -> Run:
    """A run that has ended on `b` and `c` because its head, `a`, was lost. `head`: what that tells, if it answers."""
    failure = {"host": "a", "node": 0, "rank": None, "what": "head lost", "lost": True, "at": 1060.0}
    ended = {"state": "lost", "verdict": {"state": "lost", "first_failure": failure}, "ended_at": 1061.0}
    parts = {host: part_of(**TEAM, **ended, host=host, node=HOSTS.index(host)) for host in "bc"}
    if head:
        parts["a"] = part_of(**TEAM, host="a", **head)
    return Run("R", "mine", "lost", 1, "1970-01-01T00:16:40Z", parts)


def test_the_verdicts_of_the_others_complete_what_a_lost_head_has_recorded() -> None:
    found = timeline.history(lost_head(state="lost"), record(*started(1000.0)))
    assert [(entry.at, entry.kind) for entry in found] == [(1000.0, "attempt"), (1060.0, "failure"), (1061.0, "end")]
    assert found[1].what == "a: head lost" and "lost" in found[2].what


def test_the_verdicts_are_enough_without_the_lost_head() -> None:
    found = timeline.history(lost_head(), record())
    assert [(entry.at, entry.kind) for entry in found] == [(1000.0, "attempt"), (1060.0, "failure"), (1061.0, "end")]


def test_a_failure_that_the_head_has_recorded_is_not_repeated() -> None:
    known = record(*started(1000.0), event("Lost", 1050.0, node=1))
    kinds = [entry.kind for entry in timeline.history(lost_head(state="lost"), known)]
    assert kinds == ["attempt", "failure", "end"]


def test_a_run_that_waits_for_its_head_has_lost_it() -> None:
    waits = {"hosts": ["a"], "until": 1050.0}
    parts = {"b": part_of(**TEAM, host="b", node=1, state="waiting", waits=waits)}
    run = Run("R", "mine", "waiting", 1, "1970-01-01T00:16:40Z", parts)
    assert describe._first_failure(run, record(host="b", node=1)) == "a: head lost"
    waits["hosts"] = ["c"]
    parts["b"] = part_of(**TEAM, host="b", node=1, state="waiting", waits=waits)
    assert describe._first_failure(run, record(*started(1000.0), event("Lost", 1010.0, node=2))) == "c: host lost"


def test_a_host_that_waits_for_the_head_tells_of_its_loss_also_after_the_run_was_stopped() -> None:
    waits = [{"at": 1050.0, "hosts": ["a"], "until": 1110.0}, {"at": 1055.0, "hosts": [], "until": None}]
    spec = {"by": "", "python": "", "env": {}, "command": [], "agent_argv": None}
    spec["nodes"] = [{"host": host, "spare": host == "c"} for host in HOSTS]
    answer = {"run": {**A_RUN, **TEAM, "host": "b", "node": 1}, "spec": spec, "exit": None, "events": [], "samples": []}
    known = decode(Record, {**answer, "waits": waits}, "record")
    stopped = {"state": "killed", "verdict": {"state": "killed", "first_failure": None}, "ended_at": 1061.0}
    for ended, kinds in (({}, ["attempt", "failure"]), (stopped, ["attempt", "failure", "end"])):
        parts = {"b": part_of(**TEAM, **ended, host="b", node=1)}
        run = Run("R", "mine", ended.get("state", "waiting"), 1, "1970-01-01T00:16:40Z", parts)
        found = timeline.history(run, known)
        assert [entry.kind for entry in found] == kinds
        assert found[0].what.endswith("on a,b") and found[1].at == 1050.0
        assert found[1].what.startswith("a, the head,") and "1970-01-01T00:18:30Z" in found[1].what


def test_a_wait_of_the_head_is_told_where_it_began() -> None:
    lost = record(*started(1000.0), event("Lost", 1010.0, node=2), *started(1050.0, 2))
    known = replace(lost, waits=(Wait(1012.0, ("c",), 1110.0),))
    run = Run("R", "mine", "running", 2, "1970-01-01T00:16:40Z", {"a": part_of(**TEAM, host="a")})
    found = timeline.history(run, known)
    assert [entry.kind for entry in found] == ["attempt", "failure", "change", "attempt"]


def test_a_head_that_is_not_healthy_does_not_tell_that_it_does_not_answer() -> None:
    checked = event("Checked", 1011.0, node=0, attempt=2, problems=[{"code": "disk-full", "text": "no space"}])
    known = replace(record(*started(1000.0), checked), waits=(Wait(1012.0, ("a",), 1110.0),))
    run = Run("R", "mine", "waiting", 1, "1970-01-01T00:16:40Z", {"a": part_of(**TEAM, host="a")})
    told = [entry.what for entry in timeline.history(run, known)]
    assert not any("the head," in what for what in told) and "waits for a" in told[-1]


def test_an_attempt_counts_as_soon_as_its_event_is_known() -> None:
    run = Run("R", "mine", "starting", 0, "1970-01-01T00:16:40Z", {"a": part_of(**TEAM, host="a")})
    known = record(*started(1000.0))
    assert timeline.newest_attempt(run, timeline.history(run, known)) == 1
    assert timeline.newest_attempt(lost_head(), []) == 1


def test_the_verdict_of_a_host_that_was_cut_off_does_not_end_a_run_that_goes_on() -> None:
    parts = {**lost_head().parts, "a": part_of(**TEAM, host="a")}
    found = timeline.history(Run("R", "mine", "running", 1, "1970-01-01T00:16:40Z", parts), record(*started(1000.0)))
    assert [entry.kind for entry in found] == ["attempt"]


def test_what_the_head_notes_for_people_is_in_the_timeline() -> None:
    found = timeline.entries(events_of(*started(1000.0), event("Noted", 1010.0, note="kept on a")), HOSTS)
    assert found[-1] == timeline.Entry(1010.0, "change", "kept on a")


def test_the_loss_of_a_head_that_another_one_follows_is_a_failure() -> None:
    entry = timeline.entries(events_of(*started(1000.0), event("Elected", 1010.0, node=1)), HOSTS)[-1]
    assert entry.kind == "failure" and entry.what.startswith("a") and "lost" in entry.what


@pytest.mark.parametrize(
    ("told", "named"),
    [
        (event("Elected", 1010.0, node=0), ["a"]),
        (event("Elected", 1010.0, node=1, resigned=True, silent=[2]), ["a", "b", "(silent: c)"]),
        (event("NoMajority", 1010.0, silent=[1, 2]), ["a", "(silent: b"]),
    ],
)
def test_a_head_that_had_no_majority_for_a_while_was_not_lost(told: dict[str, Any], named: list[str]) -> None:
    entry = timeline.entries(events_of(*started(1000.0), told), HOSTS)[-1]
    assert entry.kind == "failure" and "majority" in entry.what and "lost" not in entry.what
    assert all(name in entry.what for name in named)


def test_a_host_whose_ranks_have_finished_can_be_lost_without_harm() -> None:
    finished = [event("Exited", 1010.0 + node, node=node, attempt=1, ok=True) for node in range(3)]
    for gone in (event("Lost", 1020.0, node=2), event("Elected", 1020.0, node=1)):
        known = events_of(*started(1000.0), *finished, gone)
        assert timeline.entries(known, HOSTS)[-1].kind == "change"
        assert not timeline.first_failures(known, HOSTS) and not timeline.lost_first(known, HOSTS)
    late = events_of(*started(1000.0), *finished[:2], event("Lost", 1020.0, node=2))
    assert timeline.entries(late, HOSTS)[-1].kind == "failure" and timeline.lost_first(late, HOSTS) == {
        1: timeline.Loss("c", 1020.0)
    }


FAILURE = {"host": "c", "node": 2, "rank": 2, "what": "rank 2: exit code 1", "said": "KeyError", "at": 1009.0}


CUT_HEAD = {**FAILURE, "host": "a", "node": 0, "rank": None, "lost": True}


@pytest.mark.parametrize(
    "before",
    [
        event("Checked", 1005.0, node=0, attempt=2, problems=[{"code": "disk-full", "text": "no space"}]),
        event("Failed", 1005.0, node=0, attempt=1, failure=CUT_HEAD),
    ],
)
def test_a_head_that_gives_up_the_lead_has_had_a_majority(before: dict[str, Any]) -> None:
    resigned = event("Elected", 1010.0, node=1, resigned=True)
    entry = timeline.entries(events_of(*started(1000.0), before, resigned), HOSTS)[-1]
    assert entry.kind == "change" and "a gave up" in entry.what and "majority" not in entry.what


@pytest.mark.parametrize(
    ("end", "failure"),
    [
        (event("Elected", 1010.0, node=1), "a: head lost"),
        (event("Elected", 1010.0, node=0), "a: no"),
        (event("Elected", 1010.0, node=1, resigned=True), "a: no"),
        (event("NoMajority", 1010.0, silent=[1, 2]), "a: no"),
        (event("Lost", 1010.0, node=2), "c: host lost"),
        (event("Restarted", 1010.0, node=2), "c: the host"),
        (event("Restarted", 1010.0, node=0), "a: the host"),
        (event("Failed", 1010.0, node=2, attempt=1, failure=FAILURE), "c: rank 2"),
        (event("Stalled", 1010.0, quiet=60.0), "no rank printed"),
        (event("Drain", 1010.0, node=2, by="ann"), None),
        (event("StopRequested", 1010.0, by="ann"), None),
    ],
)
def test_the_first_failure_of_an_attempt_is_known_before_the_run_ends(end: dict[str, Any], failure: str | None) -> None:
    later = event("Lost", 1020.0, node=1)
    found = timeline.first_failures(events_of(*started(1000.0), end, later), HOSTS)
    assert failure in found[1] if failure else not found
    assert 2 not in timeline.first_failures(events_of(*started(1000.0), end, *started(1030.0, 2)), HOSTS)


def test_a_host_with_a_problem_is_shown_once_with_the_problem() -> None:
    def checked(at: float, *codes: str) -> dict[str, Any]:
        return event("Checked", at, node=1, attempt=2, problems=[{"code": c, "text": f"{c} at {at}"} for c in codes])

    answers = [checked(1003.0), checked(1004.0, "disk-full"), checked(1009.0, "disk-full"), checked(1014.0)]
    shown = timeline.entries(events_of(*started(1000.0), *answers), HOSTS)[1:]
    assert [(entry.at, entry.kind) for entry in shown] == [(1004.0, "change"), (1014.0, "change")]
    assert "b is not healthy" in shown[0].what and "[disk-full]" in shown[0].what
    assert "b is healthy again" in shown[1].what


def test_the_end_says_why_no_attempt_followed() -> None:
    spec = {"by": "", "python": "", "env": {}, "command": [], "agent_argv": None, "max_restarts": 2}
    spec["nodes"] = [{"host": host, "spare": False} for host in HOSTS]
    verdict = {"state": "failed", "no_restart_reason": "run.max_restarts (2) is used up"}
    ended = {"state": "failed", "verdict": verdict, "ended_at": 1061.0}
    known = decode(
        Record, {"run": {**A_RUN, **TEAM}, "spec": spec, "exit": None, "events": [], "samples": []}, "record"
    )
    run = Run("R", "mine", "failed", 1, "1970-01-01T00:16:40Z", {"a": part_of(**TEAM, **ended, host="a")})
    assert timeline.history(run, known)[-1].what.endswith(verdict["no_restart_reason"])


def test_a_wait_for_the_head_is_told_when_it_is_back() -> None:
    for node, waited in ((0, True), (2, False)):
        restarted = event("Restarted", 1060.0, node=node)
        last = timeline.entries(events_of(*started(1000.0), restarted), HOSTS)[-1]
        assert ("waited" in last.what) is waited


GAVE_UP = {"state": "lost", "verdict": {"state": "lost"}, "ended_at": 1200.0}
KILLED = {"state": "killed", "verdict": {"state": "killed", "stopped_by": "ann@laptop"}, "ended_at": 1070.0}


@pytest.mark.parametrize("head", [{"state": "lost"}, GAVE_UP], ids=["without a guard", "that gave up"])
def test_a_head_that_boots_after_the_end_of_the_run_hides_nothing(head: dict[str, Any]) -> None:
    spares = {host: part_of(**TEAM, **KILLED, host=host, node=HOSTS.index(host), node_rank=None) for host in "bc"}
    of_head = record(*started(1000.0), **head)
    of_head = replace(of_head, waits=(Wait(1100.0, ("b", "c"), 1200.0),))  # it finds nobody
    waited = replace(record(host="b", node=1, **KILLED), waits=(Wait(1012.0, ("a", "c"), 1110.0),))
    off = Run("R", "mine", "killed", 1, "1970-01-01T00:16:40Z", spares)
    on = replace(off, parts={"a": part_of(**TEAM, host="a", **head), **spares})
    known = timeline.history(off, replace(waited, events=of_head.events))
    assert [entry.kind for entry in known] == ["attempt", "failure", "change", "request", "end"]
    assert known[1].what.startswith("a,c were lost") and "ann@laptop" in known[3].what
    assert timeline.missed_end(on) and not timeline.missed_end(off)
    also_booted = replace(record(host="c", node=2, **GAVE_UP), waits=(*of_head.waits, Wait(1150.0, ("b",), 1200.0)))
    assert timeline.history(on, timeline.complete(on, of_head, [of_head, also_booted, waited])) == known


def test_a_loss_that_the_head_has_recorded_is_not_repeated_at_the_wait_for_it() -> None:
    lost = record(*started(1000.0), event("Elected", 1005.0, node=1), event("Lost", 1010.0, node=2))
    known = replace(lost, waits=(Wait(1012.0, ("a", "c"), 1110.0),))
    run = Run("R", "mine", "waiting", 1, "1970-01-01T00:16:40Z", {"b": part_of(**TEAM, host="b", node=1, head=1)})
    assert [entry.kind for entry in timeline.history(run, known)] == ["attempt", "failure", "failure", "change"]


def test_a_head_without_a_majority_has_lost_the_hosts_that_it_waits_for() -> None:
    """It records no event of that."""
    known = replace(record(*started(1000.0)), waits=(Wait(1012.0, ("b", "c"), 1110.0),))
    run = Run("R", "mine", "waiting", 1, "1970-01-01T00:16:40Z", {"a": part_of(**TEAM, host="a")})
    found = timeline.history(run, known)
    assert [entry.kind for entry in found] == ["attempt", "failure", "change"] and "b,c" in found[1].what
