"""The ledger: one line for each run that ended on this host. It outlives the folders of runs. Ignores a full disk.

A line: at, run_id, name, state, attempts, node (of this host in the run), failures: host, attempt, code, what, at,
outage of each failure that ended an attempt, of whichever host. A host that is lost writes none, but the others of its
run do.
"""

import fcntl
import json
import os
import re
from typing import Any, Dict, List, Optional, Tuple

from . import json_lines, state

NAME = "ledger.jsonl"
MOST = 128 * 1024  # bytes; when there are more, the older half is dropped
TEXT = 200  # characters of `what`
FAILURES = 16  # of a run
OUTAGE = 120.0  # s; hosts that lose their power together are back after different times
# What the last line of a failed process says of its host: code, pattern
SIGNS: Tuple[Tuple[str, str], ...] = (
    ("gpu-ecc-error", r"uncorrectable ECC|ECC error"),
    ("gpu-lost", r"GPU is lost|fallen off the bus|No CUDA-capable device|unable to determine the device handle"),
    ("gpu-xid-fault", r"unspecified launch failure|CUBLAS_STATUS_(?:NOT_INITIALIZED|EXECUTION_FAILED)|hardware error"),
    ("nccl-ib-link-fault", r"ibv_\w+|Got completion from peer .* with status=12"),
    ("disk-full", r"No space left on device|Disk quota exceeded"),
    ("filesystem-hung", r"Input/output error|Stale file handle"),
)
CRASHES = ("SIGSEGV", "SIGBUS", "SIGILL", "SIGFPE")


def add(run_folder: str, record: Dict[str, Any], spec: Dict[str, Any]) -> None:
    """Write down how a run ended here. `record`: as it is in exit.json."""
    verdict = record["verdict"]
    first = verdict.get("first_failure")
    failures = [*verdict.get("failures", [])[-FAILURES + 1 :], *([first] if first else [])]
    events = json_lines.read(os.path.join(run_folder, "gang.jsonl")) if any(one.get("lost") for one in failures) else []
    line = {
        "at": record["at"],
        "run_id": spec["run_id"],
        "name": spec["name"],
        "state": verdict["state"],
        "attempts": verdict["attempt"],
        "node": spec["node"],
        "failures": [_entry(failure, record, events) for failure in failures],
    }
    try:
        _append(os.path.join(state.home_of(run_folder), NAME), json.dumps(line) + "\n")
    except OSError:
        pass  # a full disk; nothing depends on it


def _entry(failure: Dict[str, Any], record: Dict[str, Any], events: List[Any]) -> Dict[str, Any]:
    attempt = failure.get("attempt") or record["verdict"]["attempt"]
    at = failure.get("at", record["at"])
    return {
        "host": str(failure.get("host", "")),
        "attempt": attempt,
        "code": code_of(failure),
        "what": str(failure.get("what", ""))[:TEXT],
        "at": at,
        "outage": bool(failure.get("lost")) and _is_outage(events, attempt, at),
    }


def _is_outage(events: List[Any], attempt: int, at: float) -> bool:
    """Whether most hosts of the attempt were lost at about the same time, as without power: it is no fault of one.

    `events`: of gang.jsonl.
    """
    team, lost = set(), set()
    for event in events:
        try:
            fields = event["fields"]
            if event["event"] == "Started" and fields["attempt"] == attempt:
                team.add(fields["node"])
            elif event["event"] in ("Lost", "Restarted") and abs(fields["at"] - at) <= OUTAGE:
                lost.add(fields["node"])
        except state.DAMAGED:
            continue
    return len(team & lost) > max(1, len(team) // 2)


def code_of(failure: Dict[str, Any]) -> str:
    """The code of a failure as far as its record shows it; `script-exception` where nothing points to the host."""
    if failure.get("code"):
        return str(failure["code"])
    if failure.get("requested"):
        return "script-exception"  # a person has sent the signal
    if failure.get("lost") and not failure.get("gone"):
        return "host-lost"
    if failure.get("gone"):
        return "agent-killed"
    if failure.get("stalled"):
        return "collective-timeout"
    for code, pattern in SIGNS:
        if re.search(pattern, failure.get("said") or ""):
            return code
    if failure.get("signal") == "SIGKILL":
        at_limit = failure.get("own_limit")
        return "cgroup-oom-killed" if at_limit else "host-oom-killed" if failure.get("oom") else "worker-sigkilled"
    if failure.get("signal") in CRASHES:
        return "worker-segfault"
    if failure.get("exit_code") is not None or failure.get("signal") == "SIGABRT":
        return "script-exception"  # its own code aborts: an exception in C++, an assertion
    has_exited = failure.get("rank") is not None and failure.get("signal") is None  # only torchrun knows the exit code
    return "script-exception" if has_exited else "unknown"


def _append(path: str, line: str) -> None:
    ledger = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(ledger, fcntl.LOCK_EX)  # two runs may end at once, and one of them drops lines
        size = os.fstat(ledger).st_size
        if size > MOST:
            kept = os.pread(ledger, MOST // 2, size - MOST // 2)
            os.ftruncate(ledger, 0)
            os.write(ledger, kept.partition(b"\n")[2])
        os.write(ledger, line.encode("ascii"))
    finally:
        os.close(ledger)


def newest(count: int) -> List[Dict[str, Any]]:
    """The lines of the runs on this host that ended last, the oldest of them first."""
    lines = [line for home in state.homes() for line in _read(os.path.join(home, NAME))]
    return sorted(lines, key=lambda line: float(line["at"]))[-count:]


def _read(path: str) -> List[Dict[str, Any]]:
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            lines = [_parse(line) for line in file]
    except OSError:
        return []
    return [line for line in lines if line is not None]


def _parse(text: str) -> Optional[Dict[str, Any]]:
    """None for a line that was cut short. Another version may have written it, so every value is checked."""
    try:
        line = json.loads(text)
        if not state.LISTED.match(line["run_id"]):
            return None
        return {
            "at": float(line["at"]),
            "run_id": str(line["run_id"]),
            "name": str(line["name"]),
            "state": str(line["state"]),
            "attempts": int(line["attempts"]),
            "node": int(line["node"]),
            "failures": [
                {
                    "host": str(failure["host"]),
                    "attempt": int(failure["attempt"]),
                    "code": str(failure["code"]),
                    "what": str(failure["what"]),
                    "at": float(failure["at"]),
                    "outage": failure.get("outage") is True,
                }
                for failure in line["failures"][:FAILURES]
            ],
        }
    except (*state.DAMAGED, OverflowError):
        return None
