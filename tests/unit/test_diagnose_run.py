"""`diagnose` of a run as its hosts tell of it, over a relay of a few lines."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from fake_relay import A_RUN, Dialer, Relay, part_of

from orchestrator.diagnosis.rendering import hide_secrets, render_text
from orchestrator.hosts.fleet import Fleet
from orchestrator.hosts.node_program import NodeProgram
from orchestrator.inventory.model import parse
from orchestrator.node.serve import wire
from orchestrator.output.finding import Finding
from orchestrator.output.lines import LINE_LIMIT
from orchestrator.output.mask import Mask
from orchestrator.output.span import Span
from orchestrator.runs import diagnose

HOSTS = {host.name: host for host in parse("hosts: [a, b]", "inventory.yaml").hosts}
FAILURE = {"at": 5.0, "what": "rank 0: exit code 3", "rank": 0, "exit_code": 3, "signal": None, "pid": 4711}
VERDICT = {"state": "failed", "first_failure": {**FAILURE, "host": "a", "node": 0}, "stopped_by": None}
FAILED = {**A_RUN, "state": "failed", "verdict": VERDICT}


def test_a_failed_run_with_an_idle_spare_is_diagnosed() -> None:
    spare = {**FAILED, "node": 1, "host": "b", "node_rank": None, "first_rank": None}

    def answer(relay: Relay, request: dict[str, Any]) -> None:
        known = {"failures": [FAILURE], "kernel": [], "oom_kills": 0, "dumps": []}
        relay.result(request, known if request["op"] == "evidence" else {"run": None})

    parts = {"a": part_of(**FAILED), "b": part_of(**spare)}
    fleet = Fleet(Dialer(a=answer, b=answer), NodeProgram("0" * 64, b""), 8, lambda: "NONCE")  # type: ignore[arg-type]
    found = diagnose.gather_and_diagnose(FAILED["run_id"], parts, {"a": 0, "b": 1}, HOSTS, fleet, Mask())
    fleet.close()
    assert [(finding.hosts, finding.rank) for finding in found.findings] == [(("a",), 0)]


def test_a_run_without_any_guard_is_lost_although_no_host_has_recorded_a_failure() -> None:
    lost = {**A_RUN, "state": "lost", "pid": None}
    parts = {"a": part_of(**lost), "b": part_of(**{**lost, "node": 1, "host": "b"})}
    fleet = Fleet(Dialer(), NodeProgram("0" * 64, b""), 8, lambda: "NONCE")  # type: ignore[arg-type]
    found = diagnose.gather_and_diagnose(A_RUN["run_id"], parts, {"a": 0, "b": 1}, HOSTS, fleet, Mask())
    assert [(finding.code, finding.hosts) for finding in found.findings] == [("host-lost", ("a", "b"))]
    del parts["b"]
    found = diagnose.gather_and_diagnose(A_RUN["run_id"], parts, {"a": 0, "b": 1}, HOSTS, fleet, Mask())
    assert found.findings == ()


@pytest.mark.parametrize(
    ("span", "codes"),
    [
        (Span(), ["worker-segfault"]),
        (Span(since=4.0), ["worker-segfault"]),
        (Span(until=4.0), []),
        (Span(since=6.0), []),
    ],
)
def test_a_failure_outside_of_the_time_that_was_asked_for_is_left_out(span: Span, codes: list[str]) -> None:
    failure = {**FAILURE, "what": "rank 0: killed by SIGSEGV", "exit_code": None, "signal": "SIGSEGV"}
    verdict = {**VERDICT, "first_failure": {**failure, "host": "a", "node": 0}}

    def answer(relay: Relay, request: dict[str, Any]) -> None:
        known = {"failures": [failure], "kernel": [], "oom_kills": 0, "dumps": []}
        relay.result(request, known if request["op"] == "evidence" else {"run": None})

    fleet = Fleet(Dialer(a=answer), NodeProgram("0" * 64, b""), 8, lambda: "NONCE")  # type: ignore[arg-type]
    parts = {"a": part_of(**{**FAILED, "verdict": verdict})}
    found = diagnose.gather_and_diagnose(FAILED["run_id"], parts, {"a": 0}, HOSTS, fleet, Mask(), span)
    fleet.close()
    assert [finding.code for finding in found.findings] == codes


def test_a_secret_at_the_end_of_what_is_shown_of_a_long_line_is_in_one_piece() -> None:
    secret = "open ValueError: sesame"
    line = "x" * (LINE_LIMIT - len("open ")) + f"{secret}\n"

    def answer(relay: Relay, request: dict[str, Any]) -> None:
        if request["op"] == "evidence":
            relay.result(request, {"failures": [FAILURE], "kernel": [], "oom_kills": 0, "dumps": []})
        else:
            relay.data(request, line.encode())
            relay.result(request, {"run": None})

    def evidence(mask: Mask) -> str:
        fleet = Fleet(Dialer(a=answer), NodeProgram("0" * 64, b""), 8, lambda: "NONCE")  # type: ignore[arg-type]
        found = diagnose.gather_and_diagnose(FAILED["run_id"], {"a": part_of(**FAILED)}, {"a": 0}, HOSTS, fleet, mask)
        fleet.close()
        return str(hide_secrets(found, mask))

    assert "sesame" in evidence(Mask(["another secret"])), "the line is evidence"
    assert "sesame" not in evidence(Mask([secret]))


IN_USE = "RuntimeError: The server socket has failed to listen on any local network address. port: 8008, EADDRINUSE\n"
OTHER_RUN = {**A_RUN, "run_id": "20261122-080000-0001", "name": "sweep", "state": "running"}


@pytest.mark.parametrize(
    ("runs", "others", "named"),
    [
        ([FAILED, OTHER_RUN], [], "sweep"),
        ([FAILED], [{"run_id": "20261122-080000-0002", "user": "bob"}], "20261122-080000-0002 of user bob"),
        ([FAILED, {**OTHER_RUN, "state": "succeeded"}], [], None),
    ],
)
def test_of_a_port_in_use_another_run_on_the_host_is_named(
    runs: list[dict[str, Any]], others: list[dict[str, Any]], named: str | None
) -> None:
    asked = []

    def answer(relay: Relay, request: dict[str, Any]) -> None:
        asked.append(request["op"])
        if request["op"] == "evidence":
            relay.result(request, {"failures": [FAILURE], "kernel": [], "oom_kills": 0, "dumps": []})
        elif request["op"] == "list":
            relay.result(request, {"runs": runs, "others": others})
        else:
            relay.data(request, IN_USE.encode())
            relay.result(request, {"run": None})

    fleet = Fleet(Dialer(a=answer), NodeProgram("0" * 64, b""), 8, lambda: "NONCE")  # type: ignore[arg-type]
    found = diagnose.gather_and_diagnose(FAILED["run_id"], {"a": part_of(**FAILED)}, {"a": 0}, HOSTS, fleet, Mask())
    fleet.close()
    first = found.findings[0]
    assert (first.code, "list" in asked, "$MASTER_PORT" in first.fix) == ("port-in-use", True, True)
    assert ("--queue" in first.fix, "sport = :8008" in first.fix) == (named is not None, named is None)
    assert named is None or named in first.fix


def test_earlier_attempts_of_a_run_that_succeeded_are_diagnosed() -> None:
    succeeded = {**A_RUN, "state": "succeeded", "attempt": 2, "nprocs": [1], "team": 1, "ranks": 1, "hosts": ["a"]}
    succeeded["verdict"] = {"state": "succeeded", "first_failure": None, "stopped_by": None}

    def answer(relay: Relay, request: dict[str, Any]) -> None:
        if request["op"] == "evidence":
            failures = [{**FAILURE, "attempt": 1}]
            relay.result(request, {"failures": failures, "kernel": [], "oom_kills": 0, "dumps": []})
        else:
            relay.data(request, b"ValueError: the number is 7\n")
            relay.result(request, {"run": None})

    fleet = Fleet(Dialer(a=answer), NodeProgram("0" * 64, b""), 8, lambda: "NONCE")  # type: ignore[arg-type]
    found = diagnose.gather_and_diagnose(
        succeeded["run_id"], {"a": part_of(**succeeded)}, {"a": 0}, HOSTS, fleet, Mask()
    )
    fleet.close()
    assert found.findings == ()
    assert [(attempt, finding.rank) for attempt, finding in found.earlier] == [(1, 0)]


def test_an_attempt_that_ended_because_a_host_was_drained_has_not_failed() -> None:
    running = {**A_RUN, "state": "running", "attempt": 2, "nprocs": [1], "team": 1, "ranks": 1, "hosts": ["a"]}

    def earlier(what_follows: str) -> tuple[tuple[int, Finding], ...]:
        drain = f"ddp-orch: draining b: requested by ann@laptop; {what_follows}"

        def answer(relay: Relay, request: dict[str, Any]) -> None:
            if request["op"] == "evidence":
                failures = [{**FAILURE, "attempt": 1}]  # the rank that SIGTERM ended with exit code 3
                relay.result(request, {"failures": failures, "kernel": [], "oom_kills": 0, "dumps": []})
            else:
                said = f"{drain}\nReceived 15 death signal, shutting down workers\n".encode()
                header = {"id": request["id"], "streams": ["1.run.err"], "parts": [[0, 0, len(said), 4 * 10**9]]}
                relay.say(wire.DATA, header, said)
                relay.result(request, {"run": None})

        fleet = Fleet(Dialer(a=answer), NodeProgram("0" * 64, b""), 8, lambda: "NONCE")  # type: ignore[arg-type]
        parts = {"a": part_of(**running)}
        found = diagnose.gather_and_diagnose(A_RUN["run_id"], parts, {"a": 0}, HOSTS, fleet, Mask())
        fleet.close()
        return found.earlier

    assert [attempt for attempt, _ in earlier("it is not used any more")] == [1], "a spare was drained"
    assert earlier("stopping all nodes, to continue without it") == ()


SIGTERM = {**FAILURE, "attempt": 1, "what": "rank 0: killed by SIGTERM", "exit_code": None, "signal": "SIGTERM"}
LEAVES = "c leaves the run, and leads no longer; the hosts that are left elect another head"
STARTED = [
    {"event": "PortFound", "fields": {"at": 1.0}},
    {"event": "Started", "fields": {"at": 2.0, "node": 1, "attempt": 1}},
]
DRAINED = {"event": "Drain", "fields": {"at": 3.0, "node": 1, "by": "ann@laptop"}}
GONE = {"event": "Lost", "fields": {"at": 2.5, "node": 1}}


@pytest.mark.parametrize(
    ("line", "events", "failed"),
    [
        ("node 1 is slow", [], [1]),
        (LEAVES, [], []),
        ("the head c has left the lead; a leads now", [], []),
        ("node 1 is slow", [*STARTED, DRAINED], []),
        ("node 1 is slow", [*STARTED, GONE, DRAINED], [1]),
        ("node 1 is slow", [STARTED[0], DRAINED], [1]),
    ],
)
def test_a_drain_is_known_although_the_host_that_was_asked_for_it_is_off(
    line: str, events: list[dict[str, Any]], failed: list[int]
) -> None:
    running = {**A_RUN, "state": "running", "attempt": 2, "nprocs": [1], "team": 1, "ranks": 1, "hosts": ["a"]}

    def answer(relay: Relay, request: dict[str, Any]) -> None:
        if request["op"] == "evidence":
            relay.result(request, {"failures": [SIGTERM], "kernel": [], "oom_kills": 0, "dumps": []})
        elif request["op"] == "record":
            relay.result(request, {"run": None, "spec": None, "exit": None, "events": events, "samples": []})
        else:
            said = f"ddp-orch: {line}\nReceived 15 death signal, shutting down workers\n".encode()
            header = {"id": request["id"], "streams": ["1.run.err"], "parts": [[0, 0, len(said), 4 * 10**9]]}
            relay.say(wire.DATA, header, said)
            relay.result(request, {"run": None})

    fleet = Fleet(Dialer(a=answer), NodeProgram("0" * 64, b""), 8, lambda: "NONCE")  # type: ignore[arg-type]
    found = diagnose.gather_and_diagnose(A_RUN["run_id"], {"a": part_of(**running)}, {"a": 0}, HOSTS, fleet, Mask())
    fleet.close()
    assert [number for number, _ in found.earlier] == failed


HEARD_BEFORE = {"event": "Lost", "fields": {"at": 6.0, "node": 1, "heard_at": 2.5}}
HEARD_SINCE = {"event": "Lost", "fields": {"at": 6.0, "node": 1, "heard_at": 5.5}}
OTHER_FAILED = {"event": "Failed", "fields": {"at": 5.0, "node": 0, "failure": SIGTERM}}
HANGUP = {**SIGTERM, "what": "rank 1: killed by SIGHUP", "signal": "SIGHUP", "rank": 1, "requested": True, "at": 4.0}
SIGNALLED = {"event": "Failed", "fields": {"at": 4.0, "node": 1, "failure": HANGUP}}
REBOOTED = {"event": "Restarted", "fields": {"at": 3.0, "node": 1}}


@pytest.mark.parametrize(
    ("events", "code", "hosts"),
    [
        ([*STARTED, GONE, OTHER_FAILED], "host-lost", ("b",)),
        ([*STARTED, REBOOTED], "host-lost", ("b",)),
        ([*STARTED, OTHER_FAILED, HEARD_BEFORE], "host-lost", ("b",)),
        ([*STARTED, OTHER_FAILED, HEARD_SINCE], "sigterm-preempted", ("a",)),
        ([*STARTED, SIGNALLED, HEARD_SINCE], "user-interrupt", ("b",)),
        ([*STARTED, STARTED[0], GONE], "sigterm-preempted", ("a",)),
        ([STARTED[0], GONE], "sigterm-preempted", ("a",)),
    ],
)
def test_a_host_that_was_lost_first_is_known_although_the_head_of_that_time_is_off(
    events: list[dict[str, Any]], code: str, hosts: tuple[str, ...]
) -> None:
    running = {**A_RUN, "state": "running", "attempt": 2, "hosts": ["a", "b"], "nprocs": [1, 1], "team": 2, "ranks": 2}

    def answer(relay: Relay, request: dict[str, Any]) -> None:
        if request["op"] == "evidence":
            relay.result(request, {"failures": [SIGTERM], "kernel": [], "oom_kills": 0, "dumps": []})
        elif request["op"] == "record":
            relay.result(request, {"run": None, "spec": None, "exit": None, "events": events, "samples": []})
        else:
            said = b"Received 15 death signal, shutting down workers\n"
            header = {"id": request["id"], "streams": ["1.run.err"], "parts": [[0, 0, len(said), 4 * 10**9]]}
            relay.say(wire.DATA, header, said)
            relay.result(request, {"run": None})

    fleet = Fleet(Dialer(a=answer), NodeProgram("0" * 64, b""), 8, lambda: "NONCE")  # type: ignore[arg-type]
    found = diagnose.gather_and_diagnose(A_RUN["run_id"], {"a": part_of(**running)}, {"a": 0}, HOSTS, fleet, Mask())
    fleet.close()
    assert [(number, finding.code, finding.hosts) for number, finding in found.earlier] == [(1, code, hosts)]


def test_a_full_disk_is_named_although_its_host_could_not_record_the_failure() -> None:
    of_run = {"state": "waiting", "hosts": ["a", "b"], "nprocs": [1, 1], "team": 2, "ranks": 2}
    exited = {**FAILURE, "what": "rank 1: exit code 1", "exit_code": 1, "rank": 1, "at": 4.0}
    events = [*STARTED, {"event": "Failed", "fields": {"at": 4.0, "node": 1, "failure": exited}}]
    texts = [
        b"ddp-orch: b: the disk of /x has only 0 MiB left [disk-full]; not used until this is fixed\n",
        b'Traceback (most recent call last):\n  File "t.py", line 1, in <module>\n'
        b"RuntimeError: Connection closed by peer [10.0.0.2]:1234\n",
    ]

    def answer(relay: Relay, request: dict[str, Any]) -> None:
        known: dict[str, Any] = {"run": None}
        if request["op"] == "evidence":
            known = {"failures": [], "kernel": [], "oom_kills": 0, "dumps": []}
        elif request["op"] == "record":
            known = {"run": None, "spec": None, "exit": None, "events": events, "samples": []}
        relay.result(request, known)

    def answer_with_log(relay: Relay, request: dict[str, Any]) -> None:
        if request["op"] not in ("evidence", "record"):
            parts = [[0, 0, len(texts[0]), 5 * 10**9], [1, 0, len(texts[1]), 5 * 10**9]]
            header = {"id": request["id"], "streams": ["1.run.err", "1.0.err"], "parts": parts}
            relay.say(wire.DATA, header, b"".join(texts))
        answer(relay, request)

    dialer = Dialer(a=answer_with_log, b=answer)
    fleet = Fleet(dialer, NodeProgram("0" * 64, b""), 8, lambda: "NONCE")  # type: ignore[arg-type]
    decoded = {host: part_of(**of_run, node=node, host=host, first_rank=node) for node, host in enumerate("ab")}
    found = diagnose.gather_and_diagnose(A_RUN["run_id"], decoded, {"a": 0, "b": 1}, HOSTS, fleet, Mask())
    fleet.close()
    assert [(number, one.code, one.hosts) for number, one in found.earlier] == [(1, "disk-full", ("b",))]


def test_a_cause_is_less_sure_while_the_head_has_told_nothing_of_what_came_before() -> None:
    def answer(relay: Relay, request: dict[str, Any]) -> None:
        if request["op"] == "evidence":
            failures = [{**FAILURE, "rank": 1, "attempt": 1}]
            relay.result(request, {"failures": failures, "kernel": [], "oom_kills": 0, "dumps": []})
        else:
            said = b"Traceback (most recent call last):\n  File \"train.py\", line 1, in <module>\nKeyError: 'x'\n"
            header = {"id": request["id"], "streams": ["1.1.err"], "parts": [[0, 0, len(said), 4 * 10**9]]}
            relay.say(wire.DATA, header, said)
            relay.result(request, {"run": None})

    fleet = Fleet(Dialer(a=answer, b=answer), NodeProgram("0" * 64, b""), 8, lambda: "NONCE")  # type: ignore[arg-type]
    first = {**FAILURE, "host": "b", "node": 1, "rank": 1}
    head = {**FAILED, "verdict": {**VERDICT, "first_failure": first}}
    other = {**head, "node": 1, "host": "b", "node_rank": 1, "first_rank": 1}

    def sure(**parts: dict[str, Any]) -> tuple[str, str]:
        decoded = {host: part_of(**part) for host, part in parts.items()}
        nodes = {host: part.node for host, part in decoded.items()}
        cause = diagnose.gather_and_diagnose(FAILED["run_id"], decoded, nodes, HOSTS, fleet, Mask()).findings[0]
        return cause.confidence, cause.message

    certain, plain = sure(a=head, b=other)
    doubtful, qualified = sure(b=other)
    assert (certain, doubtful) == ("high", "medium")
    assert re.search(r"\ba\b", qualified.replace(plain, "")) and plain in qualified
    fleet.close()


def test_the_last_line_of_a_rank_whose_host_is_silent_is_evidence() -> None:
    """The head knows it from the failure itself, not from what our recorder wrote into a log."""

    def answer(relay: Relay, request: dict[str, Any]) -> None:
        nothing = {"failures": [], "kernel": [], "oom_kills": 0, "dumps": []}
        relay.result(request, nothing if request["op"] == "evidence" else {"run": None})

    said = "ModuleNotFoundError: No module named 'einops'"
    first = {**FAILURE, "rank": 1, "said": said, "host": "b", "node": 1}
    head = part_of(**{**FAILED, "verdict": {**VERDICT, "first_failure": first}})
    fleet = Fleet(Dialer(a=answer), NodeProgram("0" * 64, b""), 8, lambda: "NONCE")  # type: ignore[arg-type]
    cause = diagnose.gather_and_diagnose(FAILED["run_id"], {"a": head}, {"a": 0}, HOSTS, fleet, Mask()).findings[0]
    fleet.close()
    assert (cause.code, cause.hosts, cause.rank, cause.confidence) == ("script-import-error", ("b",), 1, "medium")
    assert first["said"] in cause.evidence


TRACEBACK = """\
Traceback (most recent call last):
  File "train.py", line 4, in <module>
    scale = table["lr"]
KeyError: 'lr'
"""
STEPS = "".join(f"step {step} loss 2.0\n" for step in range(4))


@pytest.mark.parametrize(
    ("err", "is_likely"),
    [
        (STEPS + TRACEBACK, True),
        (TRACEBACK + "[rank0]:[W1125 23:00:00.000001 a.cpp:1] destroy_process_group waits\nclosing files\n", True),
        (TRACEBACK + STEPS, False),
        (TRACEBACK + "no table, so the default is used\n" * 20, False),
        (STEPS, False),
    ],
)
def test_a_rank_that_hangs_after_a_traceback_is_named_while_the_run_runs(err: str, is_likely: bool) -> None:
    def answer(relay: Relay, request: dict[str, Any]) -> None:
        if request["op"] == "evidence":
            relay.result(request, {"failures": [], "kernel": [], "oom_kills": 0, "dumps": []})
            return
        header = {"id": request["id"], "streams": ["1.0.err"], "parts": [[0, 0, len(err), 4 * 10**9]]}
        relay.say(wire.DATA, header, err.encode())
        relay.result(request, {"run": None})

    fleet = Fleet(Dialer(a=answer), NodeProgram("0" * 64, b""), 8, lambda: "NONCE")  # type: ignore[arg-type]
    part = part_of(hosts=["a"], nprocs=[1], team=1, ranks=1)
    found = diagnose.gather_and_diagnose(A_RUN["run_id"], {"a": part}, {"a": 0}, HOSTS, fleet, Mask())
    fleet.close()
    assert [(finding.hosts, finding.rank, finding.severity) for finding in found.findings] == (
        [(("a",), 0, "warning")] if is_likely else []
    )
    if is_likely:
        headline, message, *_ = render_text(hide_secrets(found, Mask()))
        assert "likely" in headline and "still running" in message
        assert "KeyError: 'lr'" in found.findings[0].evidence


PEER_LOST = """\
Traceback (most recent call last):
  File "train.py", line 9, in <module>
    loss.backward()
RuntimeError: [/p/gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.77.0.1]:34205
"""


def test_hosts_that_began_anew_are_the_cause_although_the_outputs_of_all_hosts_are_copied() -> None:
    """The script saves its snapshot elsewhere, so only the host of rank 0 has it."""
    failure = {**FAILURE, "rank": 1, "what": "rank 1: exit code 1", "exit_code": 1, "attempt": 2, "at": 50.0}
    verdict = {**VERDICT, "first_failure": {**failure, "host": "b", "node": 1}}
    printed = {"a": {"2.0.out": "".join(f"epoch {epoch} loss 1.0\n" for epoch in range(5, 8))}}
    printed["b"] = {"2.1.out": "epoch 0 loss 1.0\nepoch 1 loss 1.0\n", "2.1.err": PEER_LOST}

    def answer_of(host: str) -> Callable[[Relay, dict[str, Any]], None]:
        def answer(relay: Relay, request: dict[str, Any]) -> None:
            if request["op"] != "evidence":
                for stream, text in printed[host].items():
                    parts = [[0, 0, len(text), 40 * 10**9]]
                    relay.say(wire.DATA, {"id": request["id"], "streams": [stream], "parts": parts}, text.encode())
                relay.result(request, {"run": None})
                return
            known: dict[str, Any] = {"failures": [], "kernel": [], "oom_kills": 0, "dumps": []}
            known |= {"failures": [failure]} if host == "b" else {"finished": [{"rank": 0, "attempt": 2, "at": 49.0}]}
            relay.result(request, known)

        return answer

    told = {**FAILED, "verdict": verdict, "attempt": 2, "resume": "head"}
    parts = {"a": part_of(**told), "b": part_of(**{**told, "node": 1, "host": "b", "node_rank": 1, "first_rank": 1})}
    fleet = Fleet(Dialer(a=answer_of("a"), b=answer_of("b")), NodeProgram("0" * 64, b""), 8, lambda: "NONCE")  # type: ignore[arg-type]
    found = diagnose.gather_and_diagnose(A_RUN["run_id"], parts, {"a": 0, "b": 1}, HOSTS, fleet, Mask()).findings
    fleet.close()
    assert [(finding.code, finding.hosts) for finding in found] == [
        ("file-missing-on-host", ("b",)),
        ("uneven-inputs", ("b",)),
    ]
    assert "run.resume is head" in found[0].fix


def test_the_last_failure_of_a_run_that_is_to_be_restarted_is_explained_as_that_of_one_that_has_ended() -> None:
    """Rank 0 had resumed at the end, and had nothing left to do; the head has recorded the failure of the other."""
    failure = {**FAILURE, "rank": 1, "what": "rank 1: exit code 1", "exit_code": 1, "attempt": 2, "at": 50.0}
    texts = {"a": {"2.0.out": "resumed from epoch 30\n"}, "b": {"2.1.out": "epoch 0 loss 1.0\n", "2.1.err": PEER_LOST}}
    started = {"event": "Started", "fields": {"at": 31.0, "node": 1, "attempt": 2}}
    failed = {"event": "Failed", "fields": {"at": 50.0, "node": 1, "failure": failure}}
    events = [*STARTED, GONE, STARTED[0], started, failed]

    def answer_of(host: str) -> Callable[[Relay, dict[str, Any]], None]:
        def answer(relay: Relay, request: dict[str, Any]) -> None:
            known: dict[str, Any] = {"run": None}
            if request["op"] == "evidence":
                known = {"failures": [], "kernel": [], "oom_kills": 0, "dumps": []}
                known["failures"] = [failure] if host == "b" else []
            elif request["op"] == "record":
                known = {"run": None, "spec": None, "exit": None, "events": events, "samples": []}
            else:
                for stream, text in texts[host].items():
                    parts = [[0, 0, len(text), 40 * 10**9]]
                    relay.say(wire.DATA, {"id": request["id"], "streams": [stream], "parts": parts}, text.encode())
            relay.result(request, known)

        return answer

    of_run = {"state": "restarting", "attempt": 2, "hosts": ["a", "b"], "nprocs": [1, 1], "team": 2, "ranks": 2}
    parts = {host: part_of(**of_run, node=node, host=host, first_rank=node) for node, host in enumerate("ab")}
    fleet = Fleet(Dialer(a=answer_of("a"), b=answer_of("b")), NodeProgram("0" * 64, b""), 8, lambda: "NONCE")  # type: ignore[arg-type]
    found = diagnose.gather_and_diagnose(A_RUN["run_id"], parts, {"a": 0, "b": 1}, HOSTS, fleet, Mask())
    fleet.close()
    (last,) = [cause for attempt, cause in found.earlier if attempt == 2]
    assert (last.code, last.hosts) == ("file-missing-on-host", ("b",))
