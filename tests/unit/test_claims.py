"""A host speaks for its own node only, whatever the others are called in the inventory at hand."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from fake_relay import A_FAILURE, A_RUN, Dialer, Relay, part_of

from orchestrator.answers.runs import Part, Verdict
from orchestrator.hosts import claims
from orchestrator.hosts.claims import Claims, Ranks
from orchestrator.hosts.fleet import Fleet
from orchestrator.hosts.node_program import NodeProgram
from orchestrator.inventory.model import parse
from orchestrator.runs import registry

GOOD = ["good1", "good2"]


def part(node: int, hosts: list[str], **more: Any) -> dict[str, Any]:
    host = hosts[node] if 0 <= node < len(hosts) else "nobody"
    place: dict[str, Any] = {"node": node, "host": host, "hosts": hosts, "nprocs": [1] * len(hosts), "team": len(hosts)}
    return {**A_RUN, **place, "node_rank": abs(node), "first_rank": abs(node), **more}


HONEST = {"good1": part(0, GOOD), "good2": part(1, GOOD)}


def decoded(parts: dict[str, dict[str, Any]]) -> dict[str, Part]:
    return {host: part_of(**told) for host, told in parts.items()}


def judged(unreachable: tuple[str, ...] = (), **parts: dict[str, Any]) -> tuple[set[str], set[str], set[str]]:
    """The hosts that are believed, that contradict each other, and that have no say."""
    found = claims.check_claims(decoded(parts), unreachable)
    return set(found.parts) - found.disputed, set(found.disputed), set(found.strangers)


@pytest.mark.parametrize(
    "lie",
    [
        part(0, GOOD),
        part(1, GOOD),
        part(-1, GOOD),
        part(2, GOOD),
        part(0, ["evil", *GOOD]),
        part(0, ["evil"]),
        {**part(0, GOOD), "host": "evil"},
        {**part(0, GOOD), "nprocs": [1]},
        {**part(0, GOOD), "nprocs": [9, 1]},
    ],
)
def test_a_host_that_is_not_in_a_run_has_no_say_in_it(lie: dict[str, Any]) -> None:
    assert judged(evil=lie, **HONEST) == ({"good1", "good2"}, set(), {"evil"})


def test_a_host_that_the_head_has_added_is_believed() -> None:
    """The other hosts do not know of it."""
    longer = [*GOOD, "good3"]
    head, added = {**part(0, longer), "team": 2}, {**part(2, longer), "team": 2}
    assert judged(good1=head, good2=part(1, GOOD), good3=added) == ({"good1", "good2", "good3"}, set(), set())


def test_a_host_that_an_elected_head_has_added_is_believed() -> None:
    longer = [*GOOD, "good3"]
    elected: dict[str, Any] = {"head": 1, "epoch": 2, "team": 2}
    parts = {"good2": {**part(1, longer), **elected}, "good3": {**part(2, longer), **elected}}
    parts["good1"] = {**part(0, GOOD), **elected}
    assert judged(**parts) == ({"good1", "good2", "good3"}, set(), set())
    parts["good1"] = {**part(0, GOOD), "team": 2}  # it does not know yet that another one leads
    assert judged(**parts) == ({"good1", "good2", "good3"}, set(), set())


def test_without_the_head_hosts_that_were_added_one_after_the_other_are_believed() -> None:
    hosts = ["head", "good2", "good3"]
    second, third = {**part(1, hosts[:2]), "team": 1}, {**part(2, hosts), "team": 1}
    assert judged(("head",), good2=second, good3=third) == ({"good2", "good3"}, set(), set())


def test_hosts_that_were_drained_or_rebooted_follow_nobody_any_more() -> None:
    first, elected = {"epoch": 1, "head": 0}, {"epoch": 2, "head": 2}
    rebooted = part_of(state="lost", **first)
    drained = replace(part_of(state="stopped", **first), verdict=Verdict("stopped", left=True))
    assert claims.head_of([rebooted, drained, drained, part_of(**elected), part_of(**elected)]) == 2
    assert claims.head_of([rebooted, drained]) == 0


def test_a_host_that_adds_itself_has_no_say() -> None:
    longer = [*GOOD, "evil"]
    for node in (0, 1, 2):
        lie = {**part(node, longer), "team": 2}
        assert judged(evil=lie, **HONEST) == ({"good1", "good2"}, set(), {"evil"})


@pytest.mark.parametrize("node", [-1, 0, 2, 3])
def test_a_host_of_a_run_that_claims_another_node_has_no_say(node: int) -> None:
    hosts = [*GOOD, "evil"]
    honest = {"good1": part(0, hosts), "good2": part(1, hosts)}
    believed, disputed, strangers = judged(evil=part(node, hosts), **honest)
    assert believed >= {"good1", "good2"} and not disputed
    assert strangers == (set() if node == 2 else {"evil"})


def test_a_host_does_not_speak_for_one_that_cannot_be_reached() -> None:
    assert judged(("good1",), evil=part(0, GOOD), good2=part(1, GOOD)) == ({"good2"}, set(), {"evil"})
    hosts = ["good1", "evil"]
    assert judged(("good1",), evil=part(0, hosts)) == (set(), set(), {"evil"})
    assert judged(evil=part(0, hosts)) == (set(), set(), {"evil"})  # --hosts leaves good1 out


def test_two_hosts_that_contradict_each_other_are_not_believed() -> None:
    assert judged(good1=part(0, ["good1"]), evil=part(0, ["evil"])) == (set(), {"good1", "evil"}, set())
    assert judged(x=part(0, GOOD), y=part(0, GOOD), good2=part(1, GOOD)) == ({"good2"}, {"x", "y"}, set())


@pytest.mark.parametrize(
    "names",
    [("good1", "good2"), ("a", "b"), ("good1", "b"), ("a", "good2"), ("good2", "good1"), ("good2", "x")],
    ids="-".join,
)
def test_hosts_may_have_other_names_than_in_the_inventory_that_started_the_run(names: tuple[str, str]) -> None:
    found = claims.check_claims(decoded({name: part(node, GOOD) for node, name in enumerate(names)}))
    assert found == Claims(found.parts, frozenset(), frozenset()) and set(found.parts) == set(names)


def test_one_of_two_names_of_a_host_is_enough() -> None:
    assert judged(good1=part(0, GOOD), also=part(0, GOOD), good2=part(1, GOOD)) == (set(GOOD), set(), {"also"})


# --- the state of a run, and its end


def listing(**parts: list[dict[str, Any]]) -> registry.Listing:
    def answer(said: list[dict[str, Any]]) -> Any:
        return lambda relay, request: Relay.result(relay, request, {"runs": said})

    hosts = parse(f"hosts: [{', '.join(parts)}]", "inventory.yaml").hosts
    dialer = Dialer(**{host: answer(said) for host, said in parts.items()})
    dialer.prepare = lambda hosts: None  # type: ignore[attr-defined]
    fleet = Fleet(dialer, NodeProgram("0" * 64, b""), 8, lambda: "NONCE")  # type: ignore[arg-type]
    try:
        return registry.find(fleet, hosts)
    finally:
        fleet.close()


@pytest.mark.parametrize(
    ("state", "forgetful"), [("running", ("good2",)), ("waiting", ("good2",)), ("succeeded", ()), ("starting", ())]
)
def test_a_host_that_has_lost_its_record_of_a_run_that_goes_on_is_named(state: str, forgetful: tuple[str, ...]) -> None:
    """Such as a spot machine that was made anew."""
    found = listing(good1=[part(0, GOOD, state=state)], good2=[])
    assert found.forgetful(found.runs[0]) == forgetful


def test_a_lie_changes_neither_the_state_nor_the_name_nor_the_order_of_runs() -> None:
    lie = part(0, GOOD, state="succeeded", name="x", started_at="2027-01-01T00:00:00.000000Z", attempt=9, ranks=99)
    newer = {"run_id": "20260102-000000-abcd", "started_at": "2026-01-02T00:00:00.000000Z"}
    found = listing(evil=[lie], good1=[part(0, GOOD), part(0, GOOD, **newer)], good2=[part(1, GOOD)])
    assert [(run.run_id, run.state, run.name, run.attempt, run.ranks) for run in found.runs] == [
        ("20260101-000000-abcd", "running", "mine", 1, 2),
        ("20260102-000000-abcd", "running", "mine", 1, 2),
    ]
    assert not any(run.broken or "evil" in run.parts for run in found.runs)
    (doubt,) = found.doubts
    assert doubt.startswith("evil: ") and "20260101-000000-abcd" in doubt


def test_a_run_whose_hosts_contradict_each_other_has_no_outcome() -> None:
    over = listing(good1=[part(0, ["good1"], state="failed")], evil=[part(0, ["evil"], state="succeeded")])
    assert [run.state for run in over.runs] == ["lost"] and over.runs[0].nodes == {}
    assert over.doubts[0].startswith("evil,good1: ") and over.runs[0].run_id in over.doubts[0]
    going_on = listing(good1=[part(0, ["good1"])], evil=[part(0, ["evil"], state="succeeded")])
    assert [(run.state, run.broken) for run in going_on.runs] == [("running", False)]


def test_a_host_that_lies_about_many_runs_is_named_once() -> None:
    def many(**more: Any) -> list[dict[str, Any]]:
        return [part(0, **more, run_id=f"20260101-00000{number}-abcd") for number in range(3)]

    found = listing(good1=many(hosts=["good1"]), evil=many(hosts=["evil"]))
    assert len(found.doubts) == 1 and re.search(r"20260101-000000-abcd .*\b2\b", found.doubts[0])


def test_the_head_tells_how_a_run_ended_and_nobody_else_that_it_succeeded() -> None:
    nodes = {"a": 0, "b": 1}
    failed, lost, succeeded = (part_of(verdict={"state": state}) for state in ("failed", "lost", "succeeded"))
    assert claims.verdict_of({"a": failed, "b": replace(succeeded, node=-1)}, nodes) == Verdict("failed")
    assert claims.verdict_of({"b": succeeded}, nodes) is None
    assert claims.verdict_of({"b": lost}, nodes) == Verdict("lost")
    assert claims.verdict_of({"c": lost}, nodes) is None
    assert claims.verdict_of({"a": part_of()}, nodes) is None


STOPPED = {"state": "killed", "verdict": {"state": "killed", "stopped_by": "ann@laptop"}, "ended_at": 10.0}
GAVE_UP = {"state": "lost", "verdict": {"state": "lost"}, "ended_at": 90.0}
BOOTED = {"state": "lost"}


@pytest.mark.parametrize("late", [GAVE_UP, BOOTED], ids=["that gave up", "without a guard"])
@pytest.mark.parametrize("off", [0, 1], ids=["head", "other"])
def test_a_host_that_boots_after_a_run_was_stopped_changes_nothing(off: int, late: dict[str, Any]) -> None:
    parts = {GOOD[off]: part(off, GOOD, **late), GOOD[1 - off]: part(1 - off, GOOD, **STOPPED)}
    (run,) = listing(**{host: [said] for host, said in parts.items()}).runs
    assert (run.state, run.ended_at, run.stopped_by) == ("killed", 10.0, "ann@laptop")
    verdict = claims.verdict_of(decoded(parts), {"good1": 0, "good2": 1})
    assert verdict is not None and verdict.state == "killed"


@pytest.mark.parametrize("late", [GAVE_UP, BOOTED], ids=["that gave up", "without a guard"])
@pytest.mark.parametrize("booted", [["a"], ["b"], ["a", "b"]], ids="-".join)
def test_a_run_whose_spares_were_stopped_while_they_waited_stays_stopped(
    booted: list[str], late: dict[str, Any]
) -> None:
    """A spare had no rank in any attempt, so it counts none."""
    hosts = ["a", "b", "c", "d"]
    plan = {"nprocs": [1] * 4, "team": 2}
    spare = {**STOPPED, **plan, "attempt": 0, "node_rank": None, "first_rank": None}
    parts = {host: part(hosts.index(host), hosts, **spare) for host in "cd"}
    parts.update({host: part(hosts.index(host), hosts, **late, **plan, attempt=1) for host in booted})
    (run,) = listing(**{host: [told] for host, told in parts.items()}).runs
    assert (run.state, run.attempt, run.ended_at, run.stopped_by) == ("killed", 1, 10.0, "ann@laptop")
    verdict = claims.verdict_of(decoded(parts), {host: number for number, host in enumerate(hosts)})
    assert verdict is not None and verdict.state == "killed"


def test_a_host_that_was_stopped_while_it_was_cut_off_does_not_end_the_run_of_the_others() -> None:
    cut_off = part(1, GOOD, **STOPPED)
    (run,) = listing(good1=[part(0, GOOD, attempt=2)], good2=[cut_off]).runs
    assert run.state == "running" and run.stopped_by is None
    (run,) = listing(good1=[part(0, GOOD, **GAVE_UP, attempt=2)], good2=[cut_off]).runs
    assert (run.state, run.ended_at) == ("lost", 90.0)


def test_a_host_that_is_stopped_after_the_run_was_lost_does_not_change_its_end() -> None:
    """It was cut off when the run ended, and waited for the others until somebody cleaned up."""
    parts = {"good1": part(0, GOOD, **{**GAVE_UP, "ended_at": 5.0}), "good2": part(1, GOOD, **STOPPED)}
    (run,) = listing(**{host: [said] for host, said in parts.items()}).runs
    assert (run.state, run.ended_at, run.stopped_by) == ("lost", 5.0, None)


def test_the_end_of_a_drained_host_is_not_that_of_the_run() -> None:
    nodes = {"a": 0, "b": 1, "c": 2}
    drained = replace(part_of(state="stopped"), verdict=Verdict("stopped", stopped_by="ann@laptop", left=True))
    lost = part_of(state="lost")
    assert claims.verdict_of({"b": drained, "c": part_of()}, nodes) is None
    assert claims.is_abandoned({"a": lost, "b": drained, "c": lost}, nodes)
    assert not claims.is_abandoned({"a": lost, "b": drained}, nodes)
    assert not claims.is_abandoned({"b": drained}, {"b": 1})


def test_a_run_that_another_host_has_ended_is_not_abandoned() -> None:
    """The head has stopped in good order, and the host that was lost may be up again, or not asked."""
    ended = replace(part_of(state="lost"), verdict=Verdict("lost"))
    rebooted = part_of(state="lost")
    assert not claims.is_abandoned({"a": ended}, {"a": 0})
    assert not claims.is_abandoned({"a": ended, "b": rebooted}, {"a": 0, "b": 1})


def test_only_the_culprit_has_failed() -> None:
    verdict = {"state": "failed", "first_failure": {**A_FAILURE, "node": 1}}
    states = [claims.state_of_host(part_of(**part(node, GOOD, state="failed", verdict=verdict))) for node in (0, 1)]
    assert states == ["stopped", "failed"]
    silent = {"state": "failed", "first_failure": {**A_FAILURE, "node": None}}  # all ranks of all hosts
    assert claims.state_of_host(part_of(**part(0, GOOD, state="failed", verdict=silent))) == "failed"
    assert claims.state_of_host(part_of(**part(0, GOOD))) == "running"


# --- the ranks


def owners(ranks: Ranks, attempt: int, hosts: str = "abc", count: int = 4) -> list[str]:
    """The hosts that each rank may come from."""
    return ["".join(host for host in hosts if ranks.belongs(attempt, rank, host)) for rank in range(count)]


def test_the_ranks_of_the_first_attempt_are_those_of_the_plan() -> None:
    hosts = ["a", "b", "c"]  # c is the spare
    plan = {"nprocs": [2, 1, 2], "team": 2}
    parts = {host: part(node, hosts, **plan, first_rank=2 * node) for node, host in enumerate(hosts)}
    parts["b"]["first_rank"] = 0  # b lies
    nodes = {host: node for node, host in enumerate(hosts)}
    assert owners(claims.ranks_of(decoded(parts), nodes), 1) == ["a", "a", "b", ""]
    assert claims.ranks_of({}, {}).belongs(1, 0, "a")


def test_the_ranks_of_the_newest_attempt_are_those_that_no_two_claim() -> None:
    hosts = ["a", "b", "c"]
    nodes = {host: node for node, host in enumerate(hosts)}
    plan = {"nprocs": [1, 1, 1], "team": 2, "attempt": 2}
    swapped = {"a": part(0, hosts, **plan), "b": part(1, hosts, **plan), "c": part(2, hosts, **plan, nproc=1)}
    swapped["b"].update(attempt=1)  # lost, and c in its place
    swapped["c"].update(first_rank=1)
    assert owners(claims.ranks_of(decoded(swapped), nodes), 2, count=2) == ["a", "c"]
    assert claims.newest_ranks(decoded(swapped), nodes) == {0: "a", 1: "c"}
    swapped["c"].update(first_rank=0, attempt=9_999_999)  # the rank of the head, in an attempt that it invents
    assert owners(claims.ranks_of(decoded(swapped), nodes), 2, "ac", 1) == ["a"]
    assert claims.newest_ranks(decoded(swapped), nodes)[0] == "a"


def test_in_an_attempt_that_nobody_has_told_of_a_rank_belongs_to_the_first_that_sends_it() -> None:
    ranks = Ranks({1: {"a": range(1), "b": range(1, 2)}})
    assert ranks.belongs(2, 0, "a") and ranks.belongs(2, 0, "a") and not ranks.belongs(2, 0, "b")
    assert not ranks.belongs(1, 1, "c")


def test_a_host_that_knows_only_an_older_attempt_than_the_head_has_no_rank() -> None:
    """Its disk is full, so it could not record that the newest attempt left it out."""
    hosts = ["a", "b", "c", "d"]
    newest = {"attempt": 2, "nprocs": [1] * 4}
    parts = {host: part(node, hosts, **newest) for node, host in enumerate(hosts)}
    parts["c"]["attempt"] = 1
    parts["d"].update(node_rank=2, first_rank=2)
    (run,) = listing(**{host: [told] for host, told in parts.items()}).runs
    nodes = run.as_dict()["nodes"]
    assert [(node["node_rank"], node["role"], node["state"]) for node in nodes] == [
        (0, "head", "running"),
        (1, "team", "running"),
        (None, "spare", "waiting"),
        (2, "team", "running"),
    ]
    assert run.spares == ("c",) and run.lacks_team
    (before,) = listing(**{host: [{**told, "attempt": 1}] for host, told in parts.items()}).runs
    assert before.spares == ()


def test_only_the_head_says_which_hosts_are_suspect_or_not_used() -> None:
    unfit = {"unfit": {"good2": ["disk-full"]}}
    (run,) = listing(good1=[part(0, GOOD, **unfit)], good2=[part(1, GOOD, unfit={"good1": ["gpu-lost"]})]).runs
    assert run.unfit == {"good2": ("disk-full",)}
    (run,) = listing(good1=[part(0, GOOD, state="suspect", suspects=["good2"])], good2=[part(1, GOOD)]).runs
    assert run.state == "suspect" and [node["state"] for node in run.as_dict()["nodes"]] == ["running", "suspect"]
    assert run.as_dict()["suspects"] == ["good2"]


def test_the_head_is_not_suspect_itself() -> None:
    assert claims.state_of_host(part_of(state="suspect", suspects=["b"])) == "running"
    assert claims.state_of_host(part_of(state="suspect")) == "suspect"  # of an older version
