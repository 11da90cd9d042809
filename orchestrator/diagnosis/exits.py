"""Find how processes ended, as torchrun, srun, mpirun, Lightning, shells and containers report it. Pure."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from .times import parse_time
from .transcript import LogLine

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
WRAPPED = {241, 245, 247, 250}  # the exit status of a Python that exits with -15, -11, -9 or -6, as its child did


@dataclass(frozen=True)
class Exit:
    """The end of a process. `code` is negative for a signal."""

    code: int
    number: int  # of the line that reports it; -1: none
    host: str | None = None
    rank: int | None = None
    at: float | None = None
    pid: int | None = None
    line: LogLine | None = None
    local_rank: int | None = None
    root: bool = False  # named as root cause by the launcher on its host
    agent: bool = False
    requested: bool = False  # by a signal that a person sent with `ddp-orch signal`

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
# what launchers, shells and containers write, and whether the process is the launcher itself
REPORTS = tuple(
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


def find_exits(lines: Sequence[LogLine]) -> tuple[Exit, ...]:
    """All reported exits, in the order of their lines."""
    exits: list[Exit] = []
    for source in dict.fromkeys(line.source for line in lines):
        source_lines = [line for line in lines if line.source == source]
        reported = _parse_torchrun_report(source_lines)
        pids = {exit_.pid for exit_ in reported}
        single = [exit_ for line in source_lines if (exit_ := _parse_line(line)) is not None]
        exits += reported
        exits += [exit_ for exit_ in single if exit_.pid is None or exit_.pid not in pids]
    return tuple(sorted(exits, key=lambda exit_: exit_.number))


def _parse_line(line: LogLine) -> Exit | None:
    if match := FAILED.search(line.text):
        return Exit(
            int(match["code"]),
            line.number,
            line.host,
            line.rank,
            line.at,
            int(match["pid"]),
            line,
            int(match["local"]),
            root=True,
        )
    for pattern, agent in REPORTS:
        if match := pattern.search(line.text):
            values = match.groupdict()
            if values.get("shell"):
                agent = LAUNCHER.search(line.text) is not None
            rank = int(values["rank"]) if values.get("rank") else line.rank
            host = values.get("host") or line.host
            pid = int(values["pid"]) if values.get("pid") else None
            return Exit(_exit_code(values), line.number, host, rank, line.at, pid or None, line, agent=agent)
    return None


def _exit_code(values: dict[str, str | None]) -> int:
    if word := values.get("word"):
        return -(signal.Signals[word].value if word.startswith("SIG") else SIGNALS[word.lower()])
    if number := values.get("signal"):
        return -int(number)
    return int(values["code"] or 0)


Fields = dict[str, tuple[str, LogLine]]
"""The fields of torchrun's report about a failed rank: {key: (value, its line)}."""


def _parse_torchrun_report(lines: Sequence[LogLine]) -> list[Exit]:
    return [
        _exit_of_fields(fields, root)
        for fields, root in _report_blocks(lines)
        if "rank" in fields and "exitcode" in fields
    ]


def _report_blocks(lines: Sequence[LogLine]) -> Iterator[tuple[Fields, bool]]:
    """The block of fields of each failed rank, and whether it is named as root cause."""
    root = False
    fields: Fields = {}
    for line in lines:
        if heading := ROOT.search(line.text) or OTHERS.search(line.text):
            yield fields, root
            fields, root = {}, heading.re is ROOT
        elif match := FIELD.match(line.text):
            if match["key"] in fields or match["key"] == "time":
                yield fields, root
                fields = {}
            fields[match["key"]] = (match["value"], line)
    yield fields, root


def _exit_of_fields(fields: Fields, root: bool) -> Exit:
    value, line = fields["exitcode"]
    code = re.match(r"(-?\d+)", value)
    pid = re.search(r"pid: (\d+)", value)
    rank = re.match(r"(\d+)(?: \(local_rank: (\d+)\))?", fields["rank"][0])
    at, _ = parse_time(fields.get("time", ("", line))[0])
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
