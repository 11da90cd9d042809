"""Lines -> how processes ended, as torchrun, srun, mpirun, Lightning, shells and containers tell it. Pure."""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass

from .transcript import Said, time_of

SIGNALS = {
    "killed": 9,
    "segmentation fault": 11,
    "aborted": 6,
    "bus error": 7,
    "illegal instruction": 4,
    "terminated": 15,
    "hangup": 1,
    "floating point exception": 8,
    "broken pipe": 13,
    "interrupt": 2,
}
WRAPPED = {241, 245, 247, 250}  # what a Python that exits with -15, -11, -9 or -6, as its child did, leaves of it


@dataclass(frozen=True)
class Exit:
    """The end of a process. `code` is negative for a signal."""

    code: int
    number: int  # of the line that told it, -1 where none did
    host: str | None = None
    rank: int | None = None
    at: float | None = None
    pid: int | None = None
    line: Said | None = None
    local_rank: int | None = None
    root: bool = False  # named as root cause by the launcher on its host
    agent: bool = False

    @property
    def signal(self) -> int | None:
        if self.code in WRAPPED:
            return 256 - self.code
        return -self.code if self.code < 0 else self.code - 128 if 128 < self.code < 160 else None


LAUNCHER = re.compile(r"torchrun|torch[./]distributed|accelerate|deepspeed|mpirun|srun|horovodrun")
FAILED = re.compile(r"failed \(exitcode: (?P<code>-?\d+)\) local_rank: (?P<local>\d+) \(pid: (?P<pid>\d+)\)")
FIELD = re.compile(r"^\s*(?P<key>time|host|rank|exitcode|error_file|traceback)\s*: ?(?P<value>.*)$")
ROOT = re.compile(r"Root Cause(?: \(first observed failure\))?:")
OTHERS = re.compile(r"^(?:Other )?Failures:")
TOLD = tuple(
    (re.compile(pattern), agent)
    for pattern, agent in (
        (r"srun: error: (?P<host>[\w.-]+): tasks? (?P<rank>\d+)[\d,-]*: (?P<word>Killed|Segmentation fault|Aborted"
         r"|Bus error|Illegal instruction|Terminated|Broken pipe)", False),
        (r"srun: error: (?P<host>[\w.-]+): tasks? (?P<rank>\d+)[\d,-]*: Exited with exit code (?P<code>\d+)", False),
        (r"rank (?P<rank>\d+) with PID (?P<pid>\d+) on node (?P<host>[\w.-]+) exited on signal (?P<signal>\d+)", False),
        (r"[Pp]rocess (?P<rank>\d+) terminated with signal (?P<word>SIG[A-Z]+)", False),
        (r"[Pp]rocess (?P<rank>\d+) terminated with exit code (?P<code>\d+)", False),
        (r"Child process with PID (?P<pid>\d+) terminated with code (?P<code>-?\d+)", False),
        (r"exits with return code = (?P<code>-?\d+)", False),
        (r"died with <Signals\.(?P<word>SIG[A-Z]+)", False),
        (r"^(?:\S+: )?(?P<shell>line) \d+: +(?P<pid>\d+) (?P<word>Killed|Segmentation fault|Aborted|Bus error"
         r"|Hangup)", True),
        (r"^(?P<word>Killed|Segmentation fault|Bus error|Illegal instruction|Aborted)(?: \(core dumped\))?\s*$", False),
        (r"(?:command terminated with exit code|[Ee]xit [Cc]ode:?|exited with code) (?P<code>1[34]\d|24[157]|250)\b",
         False),
        (r"\*\*\* (?P<word>SIG[A-Z]+) (?:received at|\(@)", False),
        (r"[Pp]rocess (?:\d+ )?got signal: (?P<signal>\d+)", True),
        (r"Received (?P<signal>\d+) death signal", True),
        (r"Received Signals\.(?P<word>SIG[A-Z]+) death signal", True),
    )
)  # fmt: skip


def find(lines: Sequence[Said]) -> tuple[Exit, ...]:
    found: list[Exit] = []
    for source in dict.fromkeys(line.source for line in lines):
        of_source = [line for line in lines if line.source == source]
        reported = _reports(of_source)
        known = {one.pid for one in reported}
        found += reported
        found += [one for line in of_source for one in _told(line) if one.pid is None or one.pid not in known]
    return tuple(sorted(found, key=lambda one: one.number))


def _told(line: Said) -> list[Exit]:
    if match := FAILED.search(line.text):
        return [
            Exit(
                int(match["code"]),
                line.number,
                line.host,
                line.rank,
                line.at,
                int(match["pid"]),
                line,
                int(match["local"]),
                True,
            )
        ]
    for pattern, agent in TOLD:
        match = pattern.search(line.text)
        if match:
            found = match.groupdict()
            if found.get("shell"):
                agent = LAUNCHER.search(line.text) is not None
            rank = int(found["rank"]) if found.get("rank") else line.rank
            host = found.get("host") or line.host
            pid = int(found["pid"]) if found.get("pid") else None
            return [Exit(_code(found), line.number, host, rank, line.at, pid or None, line, agent=agent)]
    return []


def _code(found: dict[str, str | None]) -> int:
    if word := found.get("word"):
        return -(signal.Signals[word].value if word.startswith("SIG") else SIGNALS[word.lower()])
    if number := found.get("signal"):
        return -int(number)
    return int(found["code"] or 0)


def _reports(lines: Sequence[Said]) -> list[Exit]:
    """torchrun's report at its end: one block of fields for each failed rank."""
    found: list[Exit] = []
    root = False
    fields: dict[str, tuple[str, Said]] = {}

    def close() -> None:
        if "rank" in fields and "exitcode" in fields:
            found.append(_of_block(fields, root))
        fields.clear()

    for line in lines:
        if ROOT.search(line.text):
            close()
            root = True
        elif OTHERS.search(line.text):
            close()
            root = False
        elif match := FIELD.match(line.text):
            if match["key"] in fields or match["key"] == "time":
                close()
            fields[match["key"]] = (match["value"], line)
    close()
    return found


def _of_block(fields: dict[str, tuple[str, Said]], root: bool) -> Exit:
    value, line = fields["exitcode"]
    code = re.match(r"(-?\d+)", value)
    pid = re.search(r"pid: (\d+)", value)
    rank = re.match(r"(\d+)(?: \(local_rank: (\d+)\))?", fields["rank"][0])
    at, _ = time_of(fields.get("time", ("", line))[0])
    return Exit(
        int(code[1]) if code else 1,
        line.number,
        line.host or fields.get("host", ("", line))[0].strip() or None,
        int(rank[1]) if rank else None,
        line.at if at is None else at,
        int(pid[1]) if pid else None,
        line,
        int(rank[2]) if rank and rank[2] else None,
        root,
    )
