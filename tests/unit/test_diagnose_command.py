"""`diagnose --log`: its JSON, its text, its exit codes; what a run's hosts know beyond their output."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from orchestrator.answers.decode import decode
from orchestrator.answers.evidence import Evidence
from orchestrator.answers.runs import Verdict
from orchestrator.commands.diagnose import diagnose_files
from orchestrator.diagnosis import recorder_lines, transcript
from orchestrator.diagnosis.engine import Diagnosis, diagnose
from orchestrator.diagnosis.rendering import render_text
from orchestrator.diagnosis.rules.run_record import FROM_OUTSIDE
from orchestrator.diagnosis.transcript import LogLine
from orchestrator.output.finding import Finding
from orchestrator.output.lines import Line
from orchestrator.runs import diagnose as diagnose_run

GOLDEN = Path(__file__).parents[1] / "golden" / "diagnose"
LOGS = [str(GOLDEN / "script-exception-1" / f"node-{which}.log") for which in "ab"]
KEYS = ["severity", "code", "hosts", "rank", "at", "confidence", "message", "evidence", "fix"]


def orch(*argv: str, text: str | None = None, zone: str = "UTC") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "orchestrator.cli", "diagnose", *argv]
    return subprocess.run(
        command, input=text, capture_output=True, text=True, check=False, env={**os.environ, "TZ": zone}
    )


def test_the_json_is_the_one_promised() -> None:
    result = orch("--json", "--log", *LOGS)
    assert (result.returncode, result.stderr) == (0, "")
    told = json.loads(result.stdout)
    assert list(told) == ["findings", "consequences"]
    assert all(list(one) == KEYS for one in told["findings"] + told["consequences"])
    assert told["findings"][0]["at"].startswith("2026-11-22T00:0")
    assert {one["rank"] for one in told["consequences"]} >= {0}


def test_no_failure_is_two_empty_lists_and_0(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text("step 1 loss 2.0\nstep 2 loss 1.0\ndone\n")
    result = orch("--log", str(tmp_path / "a.log"), "--json")
    assert (result.returncode, json.loads(result.stdout)) == (0, {"findings": [], "consequences": []})


def test_a_log_may_come_on_stdin() -> None:
    result = orch("--log", "-", text="torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n")
    assert result.stdout.startswith("first cause: cuda-oom")


LATER = """\
2026-11-22 10:00:00,000 step 1 loss 2.0
2026-11-22 10:00:01,000 torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.
2026-11-22 11:00:00,000 step 1 loss 2.0
2026-11-22 11:00:01,000 RuntimeError: the size of tensor a (3) must match the size of tensor b (4)
"""


@pytest.mark.parametrize(
    ("options", "code"),
    [
        (("--until", "2026-11-22T10:30:00Z"), "cuda-oom"),
        (("--since", "2026-11-22T10:30:00Z"), "shape-mismatch"),
        (("--since", "2026-11-22T11:30:00Z"), None),
    ],
)
def test_of_a_log_only_the_time_that_was_asked_for_is_diagnosed(options: tuple[str, ...], code: str | None) -> None:
    findings = json.loads(orch("--json", *options, "--log", "-", text=LATER).stdout)["findings"]
    assert [finding["code"] for finding in findings[:1]] == ([code] if code else [])


@pytest.mark.parametrize("stamp", ["%Y-%m-%d %H:%M:%S,000", "[rank0]:W%m%d %H:%M:%S.000000 12 torch/a.py:1]"])
def test_a_time_without_a_zone_is_of_the_zone_here(stamp: str) -> None:
    """So that it can be compared with `5m` (ago), and with the times of other logs."""
    failed = datetime.now(timezone.utc).replace(microsecond=0) - timedelta(minutes=10)
    local = failed.astimezone(timezone(timedelta(hours=-5)))
    text = f"{local:{stamp}} torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"
    for options, count in ((("--since", "1h"), 1), (("--since", "5m"), 0), (("--until", "1h"), 0)):
        result = orch("--json", *options, "--log", "-", text=text, zone="XYZ+5")
        assert len(json.loads(result.stdout)["findings"]) == count, options
    text += f"{failed.isoformat()} step 1 loss 2\n"  # which also gives the year
    (finding,) = json.loads(orch("--json", "--log", "-", text=text, zone="XYZ+5").stdout)["findings"]
    assert datetime.fromisoformat(finding["at"].replace("Z", "+00:00")) == failed


def test_a_log_without_times_cannot_be_limited_to_a_time() -> None:
    result = orch("--since", "5m", "--log", "-", text="RuntimeError: no times here\n")
    assert result.returncode == 2 and "--since" in result.stderr
    turned = orch("--since", "5m", "--until", "10m", "--log", "-", text=LATER)
    assert turned.returncode == 2 and "--until 10m" in turned.stderr


def test_a_log_that_cannot_be_read_is_2(tmp_path: Path) -> None:
    result = orch("--log", str(tmp_path / "nosuch.log"))
    assert result.returncode == 2
    assert "nosuch.log: No such file" in result.stderr


@pytest.mark.parametrize(
    "data", [b"", b"\0\xff\xfe" * 5000, b"Traceback (most recent call last):\n" * 3, b"\x1b[31m" * 9]
)
def test_any_bytes_are_a_log(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "a.log").write_bytes(data)
    assert isinstance(diagnose_files([str(tmp_path / "a.log")]), Diagnosis)


@pytest.mark.parametrize("folder", sorted(GOLDEN.glob("*-1")), ids=lambda folder: folder.name)
@pytest.mark.parametrize("columns", [80, 100])
def test_people_see_at_most_twelve_lines_of_the_terminals_width(folder: Path, columns: int) -> None:
    lines = render_text(diagnose_files(sorted(map(str, folder.glob("*.log")))), columns)
    assert len(lines) <= 12
    assert all(len(line) <= max(columns, len("first cause: ") + 90) for line in lines)


def test_of_a_frame_with_a_long_path_the_file_and_the_line_number_are_shown() -> None:
    frame = f'File "/home/ann/{"deep/" * 30}code/train.py", line 16, in <module>'
    found = Finding("error", "script-exception", ("a",), "It failed.", "Fix it.", (frame, "x" * 99), 0, None, "high")
    _, _, shown, *message, _ = render_text(Diagnosis((found,), ()), 80)
    assert shown.startswith('  | File "...') and shown.endswith('/deep/code/train.py", line 16, in <module>')
    assert (len(shown), len(message[0])) == (80, 80)
    assert "".join(line[4:].strip() for line in message) == "x" * 99


def test_the_evidence_is_the_exception_and_not_the_line_that_raises_it() -> None:
    raises = '    raise RuntimeError("CUDA out of memory. Tried to allocate 20.00 GiB" + why())'
    text = ["Traceback (most recent call last):", '  File "/home/ann/train.py", line 9, in <module>', raises]
    text += ["RuntimeError: CUDA out of memory. Tried to allocate 20.00 GiB (GPU 0)"]
    first = diagnose(transcript.parse_logs([("train.log", "\n".join(text))])).findings[0]
    assert first.code == "cuda-oom"
    assert first.evidence == ('File "/home/ann/train.py", line 9, in <module>', text[-1])


@pytest.mark.parametrize("columns", [60, 80, 100])
def test_a_message_is_shown_to_its_point(columns: int) -> None:
    text = (
        "RuntimeError: setStorage: sizes [3, 4], strides [4, 1], storage offset 0, and itemsize 4 requiring a storage "
    )
    text += "size of 48 are out of bounds for storage of size 4: the product (1 * 1) does not equal 12"
    found = Finding("error", "shape-mismatch", ("a",), "It failed.", "Fix it.", (text, text + " " * 9), 0, None, "high")
    shown = [line for line in render_text(Diagnosis((found,), ()), columns) if line.startswith("  |")]
    assert "does not equal 12" in " ".join(" ".join(shown).replace("|", " ").split())
    assert all(len(line) <= columns for line in shown)
    longer = Finding("error", "unknown", (), "It failed.", "Fix it.", ("x " * 900 + "the point",), confidence="low")
    shown = render_text(Diagnosis((longer,), ()), columns)
    assert len(shown) <= 12 and any("the point" in line for line in shown)


# --- of a run


VERDICT = {"state": "failed", "stopped_by": None, "first_failure": None}
KILLED = {
    "rank": 1,
    "exit_code": None,
    "signal": "SIGKILL",
    "pid": 77,
    "what": "rank 1: killed by SIGKILL",
    "at": 100.0,
}


def answer(*failures: dict[str, object], kernel: tuple[dict[str, object], ...] = (), oom: int = 0) -> dict[str, object]:
    return {"failures": list(failures), "kernel": list(kernel), "oom_kills": oom, "dumps": []}


def evidence(answers: dict[str, dict[str, Any]]) -> dict[str, Evidence]:
    return {host: decode(Evidence, answer, "evidence") for host, answer in answers.items()}


def judge(
    lines: list[Line], verdict: dict[str, Any], answers: dict[str, Any], *arguments: Any, **options: Any
) -> Diagnosis:
    first = verdict["first_failure"] and {"node": 0, **verdict["first_failure"]}
    ended = decode(Verdict, {**verdict, "first_failure": first}, "run")
    return diagnose_run.diagnose_last_attempt(lines, ended, evidence(answers), *arguments, **options)


def judged(verdict: dict[str, object], **answers: dict[str, object]) -> tuple[str, tuple[str, ...], int | None]:
    lines = [
        Line(99.0, "a", 0, "stdout", 1, "step 1"),
        Line(100.5, "a", 0, "stderr", 1, "Connection closed by peer [x]"),
    ]
    first = judge(lines, verdict, answers, {0: "a", 1: "b"}).findings[0]
    return first.code, first.hosts, first.rank


def test_what_a_rank_said_on_stdout_neither_ends_nor_outlives_its_traceback_on_stderr() -> None:
    """They are recorded apart, and what was printed before may come after."""
    error = ["Traceback (most recent call last):", '  File "/w/train.py", line 7, in <module>', "KeyError: 'missing'"]
    said = [Line(1050.0, "b", 1, "stderr", 1, text) for text in error]
    said += [Line(1050.1, "b", 1, "stdout", 1, f"step:{step} loss:3.0") for step in range(20)]
    first = judge(said, VERDICT, {"a": answer(), "b": answer()}, {0: "a", 1: "b"}).findings[0]
    assert (first.code, first.rank, first.confidence) == ("script-exception", 1, "high")
    assert not any("loss" in text for text in first.evidence)


def test_hosts_that_have_the_same_code_from_us_do_not_differ_in_it() -> None:
    """A rank that is slower is stopped before it could refuse the same argument."""
    said = [Line(100.0, "a", 0, "stderr", 1, "train.py: error: unrecognized arguments: --detach")]
    said += [Line(100.1, "b", 1, "stdout", 1, "importing")]
    failed = {**VERDICT, "first_failure": {"host": "a", "node": 0, "rank": 0, "what": "exit 2", "at": 100.2}}
    answers = {"a": answer(), "b": answer()}
    ours = judge(said, failed, answers, {0: "a", 1: "b"}, same_code=True).findings
    assert [one.code for one in ours][:1] == ["script-bad-argument"] and len(ours) == 1
    theirs = judge(said, failed, answers, {0: "a", 1: "b"}, same_code=False).findings[0]
    assert (theirs.code, theirs.confidence) == ("code-version-skew", "medium")


def test_a_kill_is_want_of_memory_only_where_the_kernel_or_the_cgroup_says_so() -> None:
    failed = {**VERDICT, "first_failure": {**KILLED, "host": "b"}}
    assert judged(failed, a=answer(), b=answer(KILLED)) == ("worker-sigkilled", ("b",), 1)
    assert judged(failed, a=answer(), b=answer(KILLED, oom=1)) == ("cgroup-oom-killed", ("b",), 1)
    words = {"at": 100.0, "text": "Out of memory: Killed process 77 (python) total-vm:1kB"}
    assert judged(failed, a=answer(), b=answer(KILLED, kernel=(words,))) == ("host-oom-killed", ("b",), 1)


def test_a_killed_torchrun_is_blamed_and_not_the_peers_of_its_ranks() -> None:
    agent = {**KILLED, "rank": None, "what": "torchrun: killed by SIGKILL", "attempt": 1}
    rank = {**KILLED, "at": 100.01, "attempt": 1}
    verdict = {**VERDICT, "first_failure": {**agent, "host": "b"}}
    of_rank_0 = {**of_rank_1(100.5, 1), "rank": 0}
    blamed = judged(verdict, a=answer(of_rank_0), b=answer(agent, rank))
    assert blamed == ("agent-killed", ("b",), None)
    assert judged(verdict, a=answer(of_rank_0), b=answer(agent, rank, oom=1))[0] == "cgroup-oom-killed"
    peer_lost = [*RAISED[:-1], "RuntimeError: Connection closed by peer [10.0.0.2]:1234"]
    lines = [Line(100.5, "a", 0, "stderr", 1, text) for text in peer_lost]
    answers = evidence({"a": answer(of_rank_0), "b": answer(agent, rank)})
    earlier = diagnose_run.diagnose_earlier_attempt(lines, answers, 1, True)
    assert (earlier.code, earlier.hosts, earlier.confidence) == ("agent-killed", ("b",), "high")


def test_a_torchrun_that_a_signal_ended_after_a_rank_had_failed_is_not_blamed() -> None:
    agent = {**KILLED, "rank": None, "what": "torchrun: killed by SIGKILL", "attempt": 1}
    answers = {"b": answer(agent), "c": answer(of_rank_1(70.0, 1))}
    found = diagnose_run.diagnose_earlier_attempt(raised(69.9, 1), evidence(answers), 1, True)
    assert (found.code, found.hosts) == ("script-exception", ("c",))


UNFIT = Line(101.0, "a", None, "agent", 1, "ddp-orch: b: the disk of /x has only 0 MiB left [disk-full]; not used")
DROPPED = "ddp-orch: 1630 bytes of output of rank 1, attempt 1, were dropped: the disk was full"
GAP = {"attempt": 1, "writer": "rank 1", "size": 1630}
SAID_LATER = Line(120.0, "b", None, "agent", 2, DROPPED)


@pytest.mark.parametrize("said", [UNFIT, SAID_LATER])
def test_a_full_disk_explains_a_rank_whose_last_words_it_took(said: Line) -> None:
    peer_lost = [*RAISED[:-1], "RuntimeError: Connection closed by peer [10.0.0.2]:1234"]
    lines = [Line(100.5, "a", 0, "stderr", 1, text) for text in peer_lost]
    lines += [said, Line(119.0, "a", None, "agent", 2, "ddp-orch: attempt 2 on a, b, rendezvous at 10.0.0.1:20001")]
    answers = evidence({"a": answer(), "b": answer({**of_rank_1(100.0, 1), "said": None})})
    found = diagnose_run.diagnose_earlier_attempt(lines, answers, 1, True)
    assert (found.code, found.hosts, found.rank, found.confidence) == ("disk-full", ("b",), 1, "medium")
    assert found.evidence[0].startswith(said.text[:20])
    kept_back = {**answer({**of_rank_1(100.0, 1), "said": None}), "dropped": [GAP]}
    gap = diagnose_run.diagnose_earlier_attempt(lines[:3], evidence({"a": answer(), "b": kept_back}), 1, True)
    assert (gap.code, gap.rank) == ("disk-full", 1) and "1630 bytes" in gap.evidence[0]
    raising = [line._replace(host="b") for line in raised(99.9, 1)]
    assert diagnose_run.diagnose_earlier_attempt([*lines, *raising], answers, 1, True).code == "script-exception"


@pytest.mark.parametrize("name", ["SIGHUP", "SIGUSR1", "SIGKILL", "SIGTERM", "SIGINT", "SIGABRT", "SIGSEGV", "SIG40"])
def test_a_signal_that_a_person_sent_with_ddp_orch_is_the_cause(name: str) -> None:
    what = f"rank 1: killed by {name}, sent by `ddp-orch signal`"
    sent = {**KILLED, "signal": name, "what": what, "requested": True, "attempt": 1}
    verdict = {**VERDICT, "first_failure": {**sent, "host": "b"}}
    peer_lost = [*RAISED[:-1], "RuntimeError: Connection closed by peer"]
    lines = [Line(100.5, "a", 0, "stderr", 1, text) for text in peer_lost]
    last = judge(lines, verdict, {"a": answer(), "b": answer(sent)}, {0: "a", 1: "b"}).findings[0]
    earlier = diagnose_run.diagnose_earlier_attempt(lines, evidence({"b": answer(sent)}), 1, True)
    for found in (last, earlier):
        assert (found.code, found.hosts, found.rank, found.confidence) == ("user-interrupt", ("b",), 1, "high")
        assert "ddp-orch signal" in found.message and "memory" not in found.fix
        assert (name in found.message) == (name != "SIG40")


def test_the_stacks_that_a_person_asked_for_with_sigabrt_show_the_hang() -> None:
    def aborted(rank: int, *frames: str) -> list[Line]:
        texts = ["Fatal Python error: Aborted", "", "Thread 0x00007f8edf01cb80 (most recent call first):", *frames]
        return [Line(100.0, "ab"[rank], rank, "stderr", 1, text) for text in texts]

    barrier = '  File "/x/site-packages/torch/distributed/distributed_c10d.py", line 4 in barrier'
    backward = '  File "/x/site-packages/torch/autograd/graph.py", line 824 in backward'
    lines = aborted(0, barrier, '  File "/w/t.py", line 32 in <module>')
    lines += aborted(1, backward, '  File "/w/t.py", line 26 in <module>')
    sent = {**KILLED, "signal": "SIGABRT", "what": "rank 1: killed by SIGABRT", "requested": True, "attempt": 1}
    exits = {host: answer({**sent, "node": node, "rank": node}) for node, host in enumerate("ab")}
    verdict = {**VERDICT, "first_failure": {**sent, "host": "b"}}
    found = judge(lines, verdict, exits, {0: "a", 1: "b"}).findings[0]
    assert (found.code, found.rank) == ("barrier-deadlock", 0)
    assert any("t.py line 32" in text for text in found.evidence)


@pytest.mark.parametrize("steps", [0, 9])
def test_the_place_of_a_crash_is_shown_although_the_guard_has_recorded_its_signal(steps: int) -> None:
    crashed = {**KILLED, "signal": "SIGSEGV", "what": "rank 1: killed by SIGSEGV", "attempt": 1}
    stack = [
        "Fatal Python error: Segmentation fault",
        "",
        "Current thread 0x00007f8edf01cb80 (most recent call first):",
    ]
    stack += [
        '  File "/usr/lib/python3.11/ctypes/__init__.py", line 519 in string_at',
        '  File "/w/t.py", line 4 in main',
    ]
    lines = [Line(90.0 + step, "b", 1, "stdout", 1, f"step {step}") for step in range(steps)]
    lines += [Line(99.9, "b", 1, "stderr", 1, text) for text in stack]
    verdict = {**VERDICT, "first_failure": {**crashed, "host": "b"}}
    found = judge(lines, verdict, {"a": answer(), "b": answer(crashed)}, {0: "a", 1: "b"}).findings[0]
    assert (found.code, found.rank, found.confidence) == ("worker-segfault", 1, "high")
    assert "t.py line 4" in found.message and "PYTHONFAULTHANDLER" not in found.fix
    assert any(text.startswith('File "/w/t.py", line 4') for text in found.evidence)


def test_a_signal_that_a_person_sent_after_another_rank_had_failed_is_no_cause() -> None:
    sent = {**KILLED, "at": 90.0, "requested": True, "attempt": 1}
    answers = {"b": answer(sent), "c": answer(of_rank_1(70.0, 1))}
    found = diagnose_run.diagnose_earlier_attempt(raised(69.9, 1), evidence(answers), 1, True)
    assert (found.code, found.hosts) == ("script-exception", ("c",))


def test_a_killed_guard_leaves_no_process_to_be_stopped_by_hand() -> None:
    killed = {"node": 1, "rank": None, "what": "the guard was killed", "at": 100.0, "gone": True, "attempt": 1}
    said = Line(100.1, "a", None, "agent", 1, "ddp-orch: first failure: b: the guard was killed; stopping all nodes")
    verdict = {**VERDICT, "first_failure": {**killed, "host": "b"}}
    last = judge([said], verdict, {"a": answer(), "b": answer(killed)}, {0: "a", 1: "b"}).findings[0]
    earlier = diagnose_run.diagnose_earlier_attempt([said], evidence({"b": answer(killed)}), 1, True)
    for found in (last, earlier):
        assert (found.code, found.hosts, found.confidence) == ("agent-killed", ("b",), "high")
        assert "still be running" not in found.message and "remaining processes" not in found.fix


@pytest.mark.parametrize(("code", "by_itself"), [(3, True), (127, False)])
def test_a_rank_that_ended_by_itself_without_a_word_is_to_be_looked_for_in_the_script(
    code: int, by_itself: bool
) -> None:
    silent = {**of_rank_1(100.0, 1), "what": f"rank 1: exit code {code}", "said": None, "exit_code": code}
    verdict = {**VERDICT, "first_failure": {**silent, "host": "b"}}
    lines = [Line(99.0, "b", 1, "stdout", 1, "step 1")]
    found = judge(lines, verdict, {"a": answer(), "b": answer(silent)}, {0: "a", 1: "b"}).findings[0]
    assert (found.code, found.rank) == ("unknown", 1)
    assert (f"sys.exit({code})" in found.message, "in the script" in found.fix) == (by_itself, by_itself)
    assert "first error" not in found.fix


def test_of_ranks_with_the_same_error_the_one_that_the_record_names_is_blamed() -> None:
    lines = [*raised(69.9, 1), *(line._replace(at=70.0, host="a", rank=0) for line in raised(69.9, 1))]
    failures = {"a": answer({**of_rank_1(70.4, 1), "rank": 0}), "c": answer(of_rank_1(70.5, 1))}
    verdict = {**VERDICT, "first_failure": {**of_rank_1(70.4, 1), "rank": 0, "host": "a"}}
    found = judge(lines, verdict, failures, {0: "a", 1: "c"}).findings[0]
    assert (found.rank, found.hosts) == (0, ("a", "c"))
    other = [line._replace(text=line.text.replace("channel", "axis")) for line in lines[3:]]
    assert judge([*lines[:3], *other], verdict, failures, {0: "a", 1: "c"}).findings[0].rank == 1, "another error"


def test_a_host_of_which_nothing_was_heard_is_lost() -> None:
    lost = {"host": "b", "node": 1, "rank": None, "what": "host lost", "at": 100.0, "lost": True}
    assert judged({**VERDICT, "state": "lost", "first_failure": lost}, a=answer()) == ("host-lost", ("b",), None)
    said = [Line(100.0, "a", None, "agent", 1, "ddp-orch: first failure: b: host lost; stopping all nodes")]
    verdict = {**VERDICT, "state": "lost", "first_failure": lost}
    first = judge(said, verdict, {"a": answer()}, {0: "a", 1: "b"}).findings[0]
    assert (first.code, first.hosts) == ("host-lost", ("b",))  # and not a, which tells of it


RAISED = ["Traceback (most recent call last):", '  File "/w/train.py", line 7, in <module>', "ValueError: 1 channel"]
HEALED = Line(50.0, "a", None, "agent", 1, "ddp-orch: first failure, seen late: b: host lost; it went silent first")


def raised(at: float, attempt: int, text: str = RAISED[-1]) -> list[Line]:
    return [Line(at, "c", 1, "stderr", attempt, line) for line in [*RAISED[:-1], text]]


def of_rank_1(at: float, attempt: int) -> dict[str, object]:
    what = {"what": "rank 1: exit code 1", "said": "ValueError: 1 channel", "exit_code": 1, "signal": None}
    return {"rank": 1, "pid": 7, "at": at, "attempt": attempt, **what}


def test_a_loss_that_a_restart_overcame_is_not_the_cause_of_a_later_failure() -> None:
    begun = Line(60.0, "a", None, "agent", 2, "ddp-orch: attempt 2 on a, c, rendezvous at 10.0.0.1:20001")
    lines = [HEALED, begun, *raised(70.0, 2)]
    verdict = {**VERDICT, "first_failure": {**of_rank_1(70.1, 2), "host": "c", "node": 2}}
    answers = {"a": answer(), "c": answer(of_rank_1(70.1, 2))}
    found = judge(lines, verdict, answers, {0: "a", 1: "c"}, attempt=2)
    assert [(one.code, one.hosts, one.rank) for one in found.findings] == [("script-exception", ("c",), 1)]
    plain = "".join(f"{one.host}:{'agent' if one.rank is None else 1} | {one.text}\n" for one in lines)
    (first,) = diagnose(transcript.parse_logs([("run.log", plain)])).findings
    assert (first.code, first.hosts, first.rank) == ("script-exception", ("c",), 1)


def test_our_own_line_about_a_failure_is_no_evidence_on_the_head() -> None:
    text = "ModuleNotFoundError: No module named 'datasets'"
    own = f"ddp-orch: first failure: c: rank 1: exit code 1 ({text}); stopping all nodes"
    lines = [*raised(70.0, 1, text), Line(70.2, "a", None, "agent", 1, own), Line(69.0, "a", 0, "stdout", 1, "step 1")]
    verdict = {**VERDICT, "first_failure": {**of_rank_1(70.1, 1), "host": "c", "node": 1}}
    answers = {"a": answer(), "c": answer(of_rank_1(70.1, 1))}
    first = judge(lines, verdict, answers, {0: "a", 1: "c"}).findings[0]
    assert (first.code, first.hosts, first.rank) == ("missing-module-on-host", ("c",), 1)


@pytest.mark.parametrize("own", ["cannot start python3: No such file", "setup line 1 failed with status 127"])
def test_what_a_job_says_that_cannot_start_is_evidence_although_our_program_reports_it(own: str) -> None:
    lines = [Line(70.0, "a", None, "agent", 1, f"ddp-orch: {own}")]
    lines += [Line(71.0, "a", None, "agent", 1, "ddp-orch: first failure: a: torchrun: FAILED; stopping all nodes")]
    found = judge(lines, VERDICT, {"a": answer()}, {0: "a"}).findings[0]
    assert not any("first failure" in text for text in found.evidence)
    assert len(recorder_lines.split_off([LogLine(0, "a", "a", None, 1.0, lines[0].text, agent=True)])[0]) == 1


def test_the_hosts_of_our_own_logs_may_be_addresses() -> None:
    text = "10.77.0.3:4 ! ValueError: 1 channel\n10.77.0.1:agent | ddp-orch: first failure: 10.77.0.3: rank 4\n"
    one, other = transcript.parse_logs([("run.log", text)])
    assert (one.host, one.rank, one.text) == ("10.77.0.3", 4, "ValueError: 1 channel")
    assert (other.host, other.agent) == ("10.77.0.1", True)


def test_of_a_run_that_was_started_again_the_failed_attempts_are_named() -> None:
    follows = Line(59.0, "a", None, "agent", 1, "ddp-orch: attempt 2 on a, c, rendezvous at 10.0.0.1:20001")
    lines = [HEALED, follows, Line(60.0, "a", 0, "stdout", 2, "step 1 loss 2"), *raised(70.0, 2)]
    answers = {"a": answer(), "c": answer(of_rank_1(70.1, 2))}
    first, second = (
        diagnose_run.diagnose_earlier_attempt(lines, evidence(answers), attempt, True) for attempt in (1, 2)
    )
    assert (first.code, first.hosts) == ("host-lost", ("b",))
    assert (second.code, second.hosts, second.rank) == ("script-exception", ("c",), 1)
    found = Diagnosis((), (), ((1, first), (2, second)))
    text = render_text(found)
    assert re.match(r"attempt 2 .*\bscript-exception, c\b", text[0])
    assert any(re.match(r"attempt 1 .*\bhost-lost, b\b", line) for line in text)
    told = found.as_dict()["findings"]
    assert [(one["severity"], one["code"]) for one in told] == [
        ("warning", "host-lost"),
        ("warning", "script-exception"),
    ]


def test_a_rank_that_ended_with_0_before_the_others_failed_was_still_waited_for() -> None:
    """Under torchrun the others lose the store of its agent too, which is no cause."""
    gone = "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer [x]:1"
    store = "torch.distributed.elastic.rendezvous.api.RendezvousConnectionError: The connection to the C10d store has"
    lines = [Line(69.0, "b", 1, "stdout", 1, "step 20"), Line(71.0, "b", None, "agent", 1, store)]
    lines += [one._replace(host="a", rank=0) for one in raised(70.0, 1, gone)]
    failed = {**of_rank_1(70.1, 1), "rank": 0, "host": "a", "node": 0}
    answers = {"a": answer(failed), "b": {**answer(), "finished": [{"rank": 1, "attempt": 1, "at": 69.5}]}}
    judged = judge(lines, {**VERDICT, "first_failure": failed}, answers, {0: "a", 1: "b"})
    first = judged.findings[0]
    assert (first.code, first.hosts, first.rank) == ("uneven-inputs", ("a",), 0)
    assert re.search(r"\brank 1\b.*\bexit code 0\b", first.message)


def test_a_rank_that_quits_in_the_middle_of_an_epoch_is_the_first_cause() -> None:
    gone = "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer [x]:1"
    lines = [Line(60.0 + step, "ab"[rank], rank, "stdout", 1, f"step {step}") for step in range(9) for rank in (0, 1)]
    lines += [one._replace(host="a", rank=0) for one in raised(70.0, 1, gone)]
    failed = {**of_rank_1(70.1, 1), "rank": 0, "host": "a", "node": 0}
    answers = {"a": answer(failed), "b": {**answer(), "finished": [{"rank": 1, "attempt": 1, "at": 69.5}]}}
    first = judge(lines, {**VERDICT, "first_failure": failed}, answers, {0: "a", 1: "b"}).findings[0]
    assert (first.code, first.hosts, first.rank, "sys.exit" in first.fix) == ("uneven-inputs", ("b",), 1, True)


def waited(rank: int, host: str) -> list[Line]:
    texts = ["Traceback (most recent call last):", '  File "/w/train.py", line 9, in <module>', "    dist.barrier()"]
    texts += [
        '  File "/v/site-packages/torch/distributed/distributed_c10d.py", line 5356, in barrier',
        "    work.wait()",
    ]
    texts += ["RuntimeError: [/p/gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 5000ms for recv operation"]
    return [Line(70.0, host, rank, "stderr", 1, text) for text in texts]


def test_one_rank_at_work_on_another_host_keeps_all_others_in_the_barrier() -> None:
    lines = [Line(60.0 + part, "b", 1, "stdout", 1, f"downloading part {part}/14") for part in range(9)]
    lines += [*waited(0, "a"), *waited(2, "c")]
    ranks = {0: "a", 1: "b", 2: "c"}
    first = judge(lines, VERDICT, {host: answer() for host in "abc"}, ranks).findings[0]
    assert (first.code, first.hosts, first.rank) == ("rank0-work-exceeds-timeout", ("b",), 1)


def test_several_ranks_at_work_are_not_one_that_keeps_the_others_waiting() -> None:
    lines = [Line(60.0 + step, "a", rank, "stdout", 1, f"loading batch {step}") for step in range(9) for rank in (1, 2)]
    said = [*lines, *waited(0, "a"), *waited(3, "a")]
    first = judge(said, VERDICT, {"a": answer()}, dict.fromkeys(range(4), "a")).findings[0]
    assert first.code != "rank0-work-exceeds-timeout"


def test_a_launcher_within_a_rank_that_fails_by_itself_is_the_cause() -> None:
    text = (GOLDEN / "launcher-refuses-config-1" / "train.log").read_text()
    lines = [Line(70.0, "b", 1, "stderr", 1, line) for line in text.splitlines()]
    failed = {**of_rank_1(70.1, 1), "host": "b", "node": 1}
    answers = {"a": answer(), "b": answer(of_rank_1(70.1, 1))}
    first = judge(lines, {**VERDICT, "first_failure": failed}, answers, {0: "a", 1: "b"}).findings[0]
    assert (first.code, first.hosts, first.rank) == ("script-bad-argument", ("b",), 1)


def test_who_stopped_a_run_is_its_end_and_what_that_made_of_the_ranks_is_not() -> None:
    code, _, rank = judged({"state": "killed", "stopped_by": "Ctrl-C", "first_failure": None}, a=answer(), b=answer())
    assert (code, rank) == ("user-interrupt", None)


def test_a_run_that_a_signal_from_outside_stopped_may_be_the_work_of_others() -> None:
    verdict = {"state": "killed", "stopped_by": FROM_OUTSIDE, "first_failure": None}
    first = judge([], verdict, {"a": answer(), "b": answer()}, {}).findings[0]
    assert first.code == "sigterm-preempted" and "administrator" in first.message and "restart" in first.fix


def test_a_host_is_called_as_in_the_inventory_whatever_its_own_name_is() -> None:
    report = ["Root Cause (first observed failure):", "  host      : ip-10-0-0-2", "  rank      : 1 (local_rank: 0)"]
    report += ["  exitcode  : -11 (pid: 78)  (SIGSEGV)"]
    lines = [Line(100.0, "b", None, "agent", 1, text) for text in report]
    first = judge(lines, VERDICT, {"a": answer(), "b": answer()}, {0: "a", 1: "b"}).findings[0]
    assert (first.code, first.hosts, first.rank) == ("worker-segfault", ("b",), 1)


@pytest.mark.parametrize("columns", [80, 100])
@pytest.mark.parametrize("words", [20, 40, 400])
def test_a_fix_is_shown_whole_or_ends_in_dots(columns: int, words: int) -> None:
    fix = " ".join(f"word{number}" for number in range(words))
    evidence = ('File "/home/ann/train.py", line 3, in <module>', "ValueError: x")
    finding = Finding("error", "uneven-inputs", ("a",), "Ranks differ.", fix, evidence, 1, None, "medium")
    lines = render_text(Diagnosis((finding,), ()), columns, "  full log: ddp-orch logs")
    shown = " ".join(" ".join(lines).partition("fix: ")[2].partition("  full log")[0].split())
    assert shown == fix or (shown.endswith(" ...") and fix.startswith(shown[:-4]))
    assert (shown == fix) == (words < 400)
    assert len(lines) <= 12 and any("ValueError" in line for line in lines)
    lines = render_text(Diagnosis((finding,), ()), columns, "  full log: ddp-orch logs", whole=True)
    assert fix in " ".join(" ".join(lines).split()) and any("ValueError" in line for line in lines)


@pytest.mark.parametrize(("attempts", "shown"), [(1, [1]), (2, [2, 1]), (5, [5, 1])])
def test_of_many_failed_attempts_the_newest_and_the_first_are_named(attempts: int, shown: list[int]) -> None:
    def failed(number: int) -> Finding:
        return Finding("error", "host-lost" if number == 1 else "cuda-oom", ("a",), "x", "y", confidence="low")

    earlier = tuple((number, failed(number)) for number in range(1, attempts + 1))
    lines = render_text(Diagnosis((failed(attempts + 1),), (), earlier), 80)
    assert [int(found[1]) for line in lines if (found := re.match(r"attempt (\d+) failed: ", line))] == shown
