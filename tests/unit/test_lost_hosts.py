"""Hosts that a run lost: who, whether the host itself went down, and what shows it. The lines are real ones."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from fake_relay import A_RUN, Dialer, Relay, part_of

from orchestrator.answers.decode import decode
from orchestrator.answers.evidence import Evidence
from orchestrator.answers.runs import Verdict
from orchestrator.diagnosis.transcript import LogLine
from orchestrator.diagnosis.uneven_resume import find_uneven_resume, with_uneven_resume
from orchestrator.diagnosis.unfinished import diagnose_unfinished
from orchestrator.hosts.fleet import Fleet
from orchestrator.hosts.node_program import NodeProgram
from orchestrator.inventory.model import parse
from orchestrator.node.serve import wire
from orchestrator.output.finding import Finding
from orchestrator.output.lines import Line
from orchestrator.output.mask import Mask
from orchestrator.runs import diagnose as diagnose_run
from orchestrator.runs import timeline

ATTEMPT = "ddp-orch: attempt 1 on node-0, node-1, node-2, rendezvous at 10.77.0.2:20001"
RESTARTED = (
    "ddp-orch: first failure: node-0: the host was restarted, or its guard and recorder were killed; stopping all nodes"
)
FENCE = "ddp-orch: no message from the head (node-0) for 8 s: stopping; the hosts that are left elect another head"
NO_MAJORITY = "ddp-orch: no majority of the hosts answers (silent: node-0, node-1): waiting up to 10 min for them"
LOST = "ddp-orch: first failure: node-2: host lost; stopping all nodes"
HARMLESS = (
    "[W1128 00:00:01.000000000 socket.cpp:755] [c10d] The hostname of the client socket cannot be retrieved. err=-3"
)
PEER_LOST = (
    "Traceback (most recent call last):",
    '  File "/w/train.py", line 9, in <module>',
    "    loss.backward()",
    "RuntimeError: [/p/gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.77.0.2]:1234",
)
NOTHING = {"failures": [], "kernel": [], "oom_kills": 0, "dumps": []}


def agent(at: float, host: str, text: str) -> Line:
    return Line(at, host, None, "agent", 1, text)


def lost_peer(at: float, host: str, rank: int) -> list[Line]:
    return [Line(at, host, rank, "stderr", 1, text) for text in PEER_LOST]


def earlier(lines: list[Line], *failures: dict[str, Any]) -> Finding:
    answers = {"node-2": decode(Evidence, {**NOTHING, "failures": list(failures)}, "evidence")}
    return diagnose_run.diagnose_earlier_attempt([agent(0.0, "node-0", ATTEMPT), *lines], answers, 1, True)


STEPS = [Line(float(step), f"node-{rank}", rank, "stdout", 1, f"step {step}") for step in range(4) for rank in range(3)]


def test_a_host_that_was_restarted_is_named_in_the_attempt_that_it_ended() -> None:
    said = agent(40.0, "node-0", RESTARTED)
    found = earlier([*STEPS, said])
    assert (found.code, found.hosts, found.confidence) == ("host-lost", ("node-0",), "high")
    assert found.evidence == (said.text,)


KILLED = {"rank": 2, "exit_code": None, "signal": "SIGKILL", "pid": 7, "what": "rank 2: killed by SIGKILL"}


@pytest.mark.parametrize("failures", [(), ({**KILLED, "at": 19.0, "attempt": 1},)])
def test_while_the_head_is_off_it_is_the_host_that_was_lost(failures: tuple[dict[str, Any], ...]) -> None:
    fenced = agent(20.0, "node-2", FENCE)
    found = earlier([*STEPS, fenced], *failures)
    assert (found.code, found.hosts, found.confidence) == ("host-lost", ("node-0",), "medium")
    assert found.evidence == (fenced.text,)


def test_a_silent_head_is_no_cause_where_a_rank_has_failed_by_itself() -> None:
    said = [Line(10.0, "node-2", 2, "stderr", 1, text) for text in (*PEER_LOST[:2], "KeyError: 'lr'")]
    assert earlier([*STEPS, *said, agent(20.0, "node-2", FENCE)]).code == "script-exception"


@pytest.mark.parametrize("lines", [[], [agent(90.0, "node-0", RESTARTED)]])
def test_of_two_hosts_that_lose_power_at_once_both_are_named(lines: list[Line]) -> None:
    followers = [agent(20.0, "node-2", FENCE), agent(21.0, "node-2", NO_MAJORITY)]
    found = earlier([*STEPS, *lost_peer(13.0, "node-2", 2), *followers, *lines])
    assert (found.code, found.hosts, found.confidence) == ("host-lost", ("node-0", "node-1"), "high")


WITHOUT_ONE = "ddp-orch: restart 1 of 5 follows, on 2 hosts, without node-1"


@pytest.mark.parametrize("spoke_at", [13.0, 41.0])
def test_a_host_that_is_silent_until_the_next_attempt_begins_without_it_is_lost_too(spoke_at: float) -> None:
    said = Line(spoke_at, "node-1", 1, "stderr", 1, "saving the last step")
    found = earlier([*STEPS, said, agent(40.0, "node-0", RESTARTED), agent(42.0, "node-0", WITHOUT_ONE)])
    assert found.hosts == (("node-0", "node-1") if spoke_at < 40 else ("node-0",))


def test_a_lost_host_is_not_blamed_on_those_that_it_did_not_hear() -> None:
    alone = [agent(19.0, "node-2", NO_MAJORITY), agent(20.0, "node-0", LOST)]
    assert earlier([*STEPS, *alone]).hosts == ("node-2",)


def of_last(lines: list[Line], without_guard: tuple[str, ...] = ()) -> Finding:
    failure = {"host": "node-0", "node": 0, "rank": None, "what": "head lost", "at": 20.0, "lost": True}
    verdict = decode(Verdict, {"state": "lost", "stopped_by": None, "first_failure": failure}, "run")
    answers = {"node-2": decode(Evidence, NOTHING, "evidence")}
    ranks = {0: "node-0", 1: "node-1", 2: "node-2"}
    found = diagnose_run.diagnose_last_attempt(lines, verdict, answers, ranks, without_guard=without_guard)
    return found.findings[0]


def test_the_last_line_of_a_lost_host_does_not_tell_when_it_was_lost() -> None:
    """It may have been printed long before."""
    assert of_last(STEPS).at == 20.0
    of_head = [agent(0.0, "node-0", ATTEMPT), *STEPS]
    for at, lost_at in ((20.0, 20.0), (None, None)):
        found = diagnose_run.diagnose_earlier_attempt(of_head, {}, 1, True, timeline.Loss("node-1", at))
        assert (found.code, found.hosts, found.at, found.evidence) == ("host-lost", ("node-1",), lost_at, ("step 3",))


def test_a_harmless_warning_is_no_evidence_of_a_loss() -> None:
    said = [*STEPS, Line(9.0, "node-0", 0, "stderr", 1, HARMLESS)]
    assert of_last(said).evidence == ("step 3",)
    fenced = agent(20.0, "node-2", FENCE)
    assert of_last([*said, fenced]).evidence == (fenced.text,)


def test_other_hosts_of_a_lost_run_that_were_restarted_are_named_too() -> None:
    assert of_last(STEPS, without_guard=("node-0", "node-1")).hosts == ("node-0", "node-1")


BACK = [agent(40.0, "node-0", "ddp-orch: node-2 is back"), agent(40.0, "node-2", "ddp-orch: the head (node-0) is back")]


@pytest.mark.parametrize("back", [[], BACK[:1], BACK[1:]])
def test_a_host_that_was_only_cut_off_did_not_go_down(back: list[Line]) -> None:
    whole = earlier([*STEPS, agent(20.0, "node-0", LOST)])
    fenced = agent(20.0, "node-2", FENCE)
    cut = earlier([*STEPS, fenced, agent(20.1, "node-0", LOST), *back])
    assert (cut.code, cut.hosts) == (whole.code, whole.hosts) == ("host-lost", ("node-2",))
    assert "BMC" in whole.fix and "BMC" not in cut.fix
    assert "network" in cut.message
    assert cut.message.endswith("It is back.") == bool(back)
    assert fenced.text in cut.evidence


FOUR = ("node-0", "node-1", "node-2", "node-3")


ON_FOUR = agent(0.0, "node-0", f"ddp-orch: attempt 1 on {', '.join(FOUR)}, rendezvous at 10.77.0.1:20001")


def fence(host: str, at: float) -> Line:
    return agent(at, host, FENCE)


def no_majority(host: str, at: float, *silent: str) -> Line:
    what = "stopping; the others may elect another head" if host == "node-0" else "waiting up to 10 min for them"
    return agent(at, host, f"ddp-orch: no majority of the hosts answers (silent: {', '.join(silent)}): {what}")


# hosts 0 and 1 of four were cut off; node-0 was the head
HEAD_ALONE = [no_majority("node-0", 14.8, *FOUR[1:]), *(fence(host, 15.5) for host in FOUR[1:])]
OTHERS_TOO = [
    *(no_majority(host, 23.0, *FOUR[:2]) for host in ("node-3", "node-2")),
    no_majority("node-1", 23.1, "node-0", "node-2", "node-3"),
    no_majority("node-2", 33.0, "node-0", "node-3"),  # while the hosts come back
]
LEADS = [agent(39.0, "node-2", "ddp-orch: node-0 is the head"), agent(39.5, "node-2", "ddp-orch: node-1 is back")]
STOPPED = agent(40.0, "node-0", "ddp-orch: first failure: node-2: was cut off from the head; stopping all nodes")


def test_a_head_that_hears_nobody_was_cut_off_and_not_those_that_it_did_not_hear() -> None:
    found = earlier([*HEAD_ALONE, STOPPED])
    assert (found.hosts, found.confidence) == (("node-0",), "medium")
    assert "BMC" not in found.fix and "perhaps other hosts" in found.message


@pytest.mark.parametrize("shuffled", [1, -1])
def test_several_hosts_that_were_cut_off_are_named_and_not_those_that_heard_each_other(shuffled: int) -> None:
    found = earlier([*HEAD_ALONE, *OTHERS_TOO[:-1][::shuffled], OTHERS_TOO[-1], *LEADS, STOPPED])
    assert (found.hosts, found.confidence) == (("node-0", "node-1"), "high")
    assert "BMC" not in found.fix and found.message.endswith("They are back.")


def test_a_host_that_was_only_the_first_to_stop_is_not_the_one_that_was_cut_off() -> None:
    failure = {"host": "node-2", "node": 2, "rank": None, "what": "was cut off from the head", "at": 40.0, "lost": True}
    verdict = decode(Verdict, {"state": "lost", "stopped_by": None, "first_failure": failure}, "run")
    answers = {host: decode(Evidence, NOTHING, "evidence") for host in FOUR}
    lines = [*HEAD_ALONE, *OTHERS_TOO, STOPPED]
    found = diagnose_run.diagnose_last_attempt(lines, verdict, answers, dict(enumerate(FOUR))).findings[0]
    assert found.hosts == ("node-0", "node-1")


def test_of_hosts_that_were_parted_no_half_is_blamed_for_sure() -> None:
    near = agent(
        15.0, "node-1", "ddp-orch: the head (node-0) reaches no majority of the hosts: stopping; others follow"
    )
    halves = [no_majority("node-0", 14.0, "node-2", "node-3"), near, fence("node-2", 15.0)]
    parted = [*halves, fence("node-3", 15.0), no_majority("node-2", 23.0, "node-0", "node-1")]
    found = earlier(parted)
    assert (found.hosts, found.confidence) == (FOUR, "medium")
    assert "BMC" not in found.fix


@pytest.mark.parametrize(("spoke_at", "went_down"), [(21.0, False), (90.0, True)])
def test_a_host_that_speaks_again_after_a_while_had_gone_down(spoke_at: float, went_down: bool) -> None:
    lines = [no_majority("node-0", 20.0, "node-2", "node-3"), *(fence(host, spoke_at) for host in FOUR[2:])]
    found = earlier([ON_FOUR, *lines])
    assert found.hosts == ("node-2", "node-3")
    assert ("BMC" in found.fix) == went_down


def test_a_recorder_that_knows_of_no_attempt_tells_nothing_of_the_first_one() -> None:
    """After a reboot of its host, its lines count as those of the first attempt."""
    late = [no_majority("node-2", 89.0, "node-0", "node-1"), fence("node-3", 90.0)]
    failed = {**KILLED, "at": 19.0, "attempt": 1}
    begun = Line(20.0, "node-0", 0, "stdout", 2, "step 0")
    assert earlier([*STEPS, *late], failed).code == "host-lost"
    assert earlier([*STEPS, begun, *late], failed).code == "worker-sigkilled"


@pytest.mark.parametrize("head", ["lost", None])
@pytest.mark.parametrize("state", ["waiting", "running"])
def test_a_run_that_waits_for_its_head_tells_why(head: str | None, state: str) -> None:
    fence = FENCE.replace("node-0", "a").encode() + b"\n"

    def reply(relay: Relay, request: dict[str, Any]) -> None:
        if request["op"] == "evidence":
            relay.result(request, NOTHING)
            return
        header = {"id": request["id"], "streams": ["1.run.out"], "parts": [[0, 0, len(fence), 4 * 10**9]]}
        relay.say(wire.DATA, header, fence)
        relay.result(request, {"run": None})

    def silent(relay: Relay, request: dict[str, Any]) -> None:
        relay.result(request, NOTHING if request["op"] == "evidence" else {"run": None})

    parts = {"b": part_of(node=1, host="b", state=state, epoch=1, head=0, node_rank=1, first_rank=1)}
    if head:
        parts["a"] = part_of(state=head, pid=None, epoch=1, head=0)
    fleet = Fleet(Dialer(a=silent, b=reply), NodeProgram("0" * 64, b""), 8, lambda: "NONCE")  # type: ignore[arg-type]
    hosts = {host.name: host for host in parse("hosts: [a, b]", "inventory.yaml").hosts}
    found = diagnose_run.gather_and_diagnose(A_RUN["run_id"], parts, {"a": 0, "b": 1}, hosts, fleet, Mask())
    fleet.close()
    if state == "waiting" or head:
        assert [(number, cause.code, cause.hosts) for number, cause in found.earlier] == [(1, "host-lost", ("a",))]
    else:
        assert found.earlier == ()


UNREACHED = (
    "ddp-orch: node-2 does not reach node-0 at 10.78.0.1, on the network of the ranks; it answers elsewhere. Ranks "
    "that hang for 30 s are stopped"
)
CUT_RANKS = (
    "ddp-orch: first failure: node-2: host lost on the network of the ranks: it does not reach node-0 at 10.78.0.1 "
    "for 31 s, though it answers elsewhere; stopping all nodes"
)


def test_a_host_that_was_cut_off_on_the_network_of_the_ranks_did_not_go_down() -> None:
    found = earlier([*STEPS, agent(20.0, "node-0", UNREACHED), agent(40.0, "node-0", CUT_RANKS)])
    assert (found.code, found.hosts, found.confidence) == ("host-lost", ("node-2",), "high")
    assert "10.78.0.1" in found.message and "ip link" in found.fix


def test_of_two_hosts_it_may_be_the_head_that_was_cut_off_on_the_network_of_the_ranks() -> None:
    doubt = " (no other host can tell whether it or node-0 is cut off)"
    line = CUT_RANKS.replace("elsewhere;", f"elsewhere{doubt};")
    found = earlier([*STEPS, agent(20.0, "node-0", UNREACHED), agent(40.0, "node-0", line)])
    assert (found.code, found.hosts, found.confidence) == ("host-lost", ("node-2",), "medium")
    assert "node-0" in found.message and "both" in found.fix


def test_a_head_that_no_other_host_reaches_is_named_while_the_ranks_hang() -> None:
    cut = agent(20.0, "node-0", UNREACHED.replace("node-2 does not reach node-0", "node-0 is reached by no other host"))
    back = agent(25.0, "node-0", "ddp-orch: node-0 is reached at 10.78.0.1 again")
    found = earlier([*STEPS, cut])
    assert (found.code, found.hosts, found.confidence) == ("host-lost", ("node-0",), "medium")
    assert earlier([*STEPS, cut, back]).code != "host-lost"


def test_ranks_that_hang_at_the_moment_are_explained_by_their_network_unless_it_is_back() -> None:
    back = agent(25.0, "node-0", "ddp-orch: node-2 reaches node-0 at 10.78.0.1 again")
    cut = agent(20.0, "node-0", UNREACHED)
    found = earlier([*STEPS, cut])
    assert (found.code, found.hosts, found.confidence) == ("host-lost", ("node-2",), "medium")
    assert earlier([*STEPS, cut, back]).code != "host-lost"


def test_a_running_run_is_told_which_host_is_cut_off_on_the_network_of_its_ranks() -> None:
    cut, back = UNREACHED, "ddp-orch: node-2 reaches node-0 at 10.78.0.1 again"

    def found(*texts: str) -> list[tuple[str, tuple[str, ...], str]]:
        lines = [LogLine(number, "node-0", "node-0", None, float(number), text) for number, text in enumerate(texts)]
        lines = [replace(line, agent=True) for line in lines]
        diagnosis = diagnose_unfinished(lines, {0: "node-0", 1: "node-1", 2: "node-2"}, ())
        return [(each.code, each.hosts, each.severity) for each in diagnosis.findings]

    assert found(ATTEMPT, cut) == [("host-lost", ("node-2",), "warning")]
    assert found(ATTEMPT, cut, back) == [] and found(ATTEMPT) == []


REPORT = (
    "E1128 21:26:40.305000 228 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: 1) "
    "local_rank: 0 (pid: 230) of binary: /v/bin/python",
    "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ",
)
FIRST_FAILURE = "ddp-orch: first failure: node-2: rank 2: exit code 1 (exitcode : 1 (pid: 230)); stopping all nodes"
EXIT_1 = {"rank": 2, "exit_code": 1, "signal": None, "pid": 7, "what": "rank 2: exit code 1", "at": 10.2, "attempt": 1}


def alone_resumed(launcher: str) -> list[Line]:
    """Rank 0 loads the snapshot of step 3 and ends at step 8. torchrun's report is the rank's, its own, or none."""
    lines = [agent(0.0, "node-0", ATTEMPT), Line(1.0, "node-0", 0, "stdout", 1, "resumed from step 3")]
    for step in range(5):
        lines += [
            Line(2.0 + step, f"node-{rank}", rank, "stdout", 1, f"step {step if rank else step + 3} loss 0.5")
            for rank in range(3)
        ]
    for rank in (1, 2):
        lines += lost_peer(10.0, f"node-{rank}", rank)
        if launcher == "skypilot":
            lines += [Line(10.1, f"node-{rank}", rank, "stderr", 1, text) for text in REPORT]
        if launcher == "torchrun":
            lines += [agent(10.1, f"node-{rank}", text) for text in REPORT]
    return [*lines, agent(10.3, "node-0", FIRST_FAILURE)]


@pytest.mark.parametrize("has_ended", [True, False])
@pytest.mark.parametrize("launcher", ["skypilot", "direct", "torchrun"])
def test_a_rank_that_ended_first_as_it_alone_had_a_snapshot_is_no_lost_host(launcher: str, has_ended: bool) -> None:
    """Its torchrun may have ended with 0, or wait for the others until the run is stopped."""
    lines = alone_resumed(launcher)
    first = {**EXIT_1, "host": "node-2", "node": 2}
    verdict = decode(Verdict, {"state": "failed", "stopped_by": None, "first_failure": first}, "run")
    known: dict[str, dict[str, Any]] = {f"node-{rank}": dict(NOTHING) for rank in range(3)}
    known["node-2"]["failures"] = [EXIT_1]
    known["node-0"]["finished"] = [{"rank": 0, "attempt": 1, "at": 9.0}] if has_ended else []
    answers = {host: decode(Evidence, answer, "evidence") for host, answer in known.items()}
    ranks = {rank: f"node-{rank}" for rank in range(3)}
    found = diagnose_run.diagnose_last_attempt(lines, verdict, answers, ranks, attempt=1, same_code=True).findings
    assert not {finding.code for finding in found} & {"host-lost", "agent-killed", "unknown"}, found
    uneven = find_uneven_resume(lines, 1, 200, (), "none", {"node-0": True, "node-1": False, "node-2": False})
    cause = with_uneven_resume(found, uneven, restarted=False)[0]
    assert (cause.code, sorted(cause.hosts)) == ("file-missing-on-host", ["node-1", "node-2"])
    assert "run.resume" in cause.fix
    for known_lines in (lines, [line for line in lines if not line.text.startswith("ddp-orch")]):
        of_earlier = diagnose_run.diagnose_earlier_attempt(known_lines, answers, 1, True)
        assert with_uneven_resume([of_earlier], uneven, restarted=False)[0].code == "file-missing-on-host"


def test_a_host_that_went_silent_and_does_not_answer_may_still_be_lost() -> None:
    lines = [line for line in alone_resumed("skypilot") if not line.text.startswith("ddp-orch")]
    answers = {f"node-{rank}": decode(Evidence, NOTHING, "evidence") for rank in (1, 2)}
    found = diagnose_run.diagnose_earlier_attempt(lines, answers, 1, True)
    assert (found.code, found.hosts, found.confidence) == ("host-lost", ("node-0",), "low")
