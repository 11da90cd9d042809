"""Logs of any launcher -> their lines, each with host, rank and time, without tags. Pure.

It knows how torchrun, srun, mpirun, pdsh, docker compose, kubectl, Ray and ddp-orch tag the lines of several processes.
"""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import PurePath

from . import times


@dataclass(frozen=True)
class LogLine:
    """One line, without its tags."""

    number: int  # its place in all logs together
    source: str  # the file, or the host, that it came from
    host: str | None
    rank: int | None
    at: float | None  # Unix time in seconds; None where neither the line nor one near it has a time
    text: str
    local_rank: int | None = None
    agent: bool = False  # written by the launcher, not by a rank
    attempt: int = 1
    stream: str | None = None  # stdout or stderr; known only if they were recorded apart, and then their order is not
    is_local: bool = False  # `at` is a time without a zone, taken as UTC


ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b\][^\x07]*\x07")
MAX_LINE_LENGTH = 4000  # characters
MAX_TAGS = 5  # of one line

# tags at the beginning of a line; each may be followed by another
RANK_TAG = re.compile(r"\[rank[:=]?\s?(?P<rank>\d+)\]:? ?(?:\|\| )?")  # torch >= 2.4, Lightning, Determined
TAGS = (
    RANK_TAG,
    *(
        re.compile(pattern)
        for pattern in (
            r"\[(?:default|trainer|worker|[a-z_]+)(?P<local>\d+)\]: ?",  # torchrun --tee: role and local rank
            r"\[(?:\d+,)?(?P<rank>\d+)\]<(?:stdout|stderr|stddiag)>: ?",  # mpirun --tag-output
            r"\((?:[\w.]+ )?pid=\d+(?:, ip=(?P<host>[\w.:]+))?\) ?",  # Ray
            r"\[pod/(?P<host>[\w.-]+)/[\w.-]+\](?: |$)",  # kubectl logs --prefix
            # ddp-orch logs
            r"(?P<host>[A-Za-z][\w.-]*|\d+(?:\.\d+){3}):(?:(?P<rank>\d+)|(?P<agent>agent)) *[|!](?: |$)",
            r"(?P<host>[A-Za-z][\w.-]*) *\|(?: |$)",  # docker compose
            r"\[(?:rank|RANK|Rank) ?(?P<rank>\d+)\] ?:? ?",
            r"<(?:rank )?(?P<rank>\d+)>: ?",
        )
    ),
)
SRUN = re.compile(r"\s*(?P<rank>\d+): ?")
PDSH = re.compile(
    r"(?P<host>(?!\w*(?:Error|Exception|Warning|INFO|DEBUG|ERROR|WARN))[A-Za-z][\w.-]*|\d+(?:\.\d+){3})"
    r":(?: (?!error)|$)"
)
LAUNCHERS = re.compile(r"srun|slurmstepd|mpirun|pdsh@|ssh:")  # they write between the lines of others

JOINED = re.compile(r"(?<=[st]\])(?=\[(?:rank\d+\]:|[EWIF][ \d]))")  # a progress bar ends without a newline
QUOTED = re.compile(r"^ {0,3}(?:>|#|//) ?")
NUMBERED = re.compile(r"^ *\d+(?:\t| {2})")  # as `cat -n` does
EMPTY = re.compile(r"^[\s.…]*$")  # also lines that show that others were cut there

TORCH_LOG = re.compile(r"[IWEF]\d{4} \d\d:\d\d:\d\d\.\d+ (?:\d+ )?(?P<path>\S+\.py):\d+\] ?")
RANK_IN_TEXT = re.compile(r"\[(?:PG [^\]]*?)?[Rr]ank:? ?(\d+)\]|\[rank(\d+)\]:|\brank=(\d+)\b")
NCCL = re.compile(r"(?P<host>[\w.-]+):\d+:\d+ \[(?P<dev>\d+)\] (?:\S+ )?NCCL ")


def parse_logs(texts: Iterable[tuple[str, str]]) -> tuple[LogLine, ...]:
    """Lines of named texts (the path or the host of each, and its content), in the order given."""
    lines: list[LogLine] = []
    for name, text in texts:
        own = list(_parse_log(name, text, len(lines)))
        known = times.fill_gaps([None if line.at is None else (line.at, line.is_local) for line in own])
        for line, time in zip(own, known, strict=True):
            lines.append(line if time is None else replace(line, at=time[0], is_local=time[1]))
    return _add_year(lines)


def strip_torch_tags(line: LogLine, number: int) -> LogLine:
    """The line of a run that ddp-orch recorded: its host and rank are known, only torch has tagged it."""
    text = ESCAPES.sub("", line.text.rsplit("\r", 1)[-1])[:MAX_LINE_LENGTH]
    if match := RANK_TAG.match(text):
        text = text[match.end() :]
    return _add_origin_in_text(replace(line, number=number, text=text))


def _parse_log(name: str, text: str, first_number: int) -> Iterator[LogLine]:
    lines = _strip_quoting([line.rstrip() for line in text.replace("\r\n", "\n").split("\n")])
    launcher_tags = [tag for tag in (SRUN, PDSH) if _tags_most_lines(tag, lines)]
    number = first_number
    for line in lines:
        # a progress bar overwrites what stands before a carriage return
        for part in (part for overwritten in line.split("\r") for part in JOINED.split(overwritten)):
            plain = ESCAPES.sub("", part)[:MAX_LINE_LENGTH]
            if plain.strip():
                yield _strip_tags(LogLine(number, name, None, None, None, plain), launcher_tags)
                number += 1


def _strip_quoting(lines: list[str]) -> list[str]:
    """Without the marks or numbers that quoting a log puts before each of its lines."""
    full = [line for line in lines if not EMPTY.match(line)]
    for mark in (QUOTED, NUMBERED):
        if len(full) > 2 and sum(mark.match(line) is not None for line in full) >= 0.9 * len(full):
            lines = [mark.sub("", line, count=1) for line in lines]
    return textwrap.dedent("\n".join(lines)).split("\n")


def _tags_most_lines(tag: re.Pattern[str], lines: Sequence[str]) -> bool:
    """Whether a tag that could as well be text begins nearly every line, with few values."""
    full = [line for line in lines if line.strip() and not LAUNCHERS.match(line)]
    values = [match[1] for line in full if (match := tag.match(line))]
    return len(values) > 2 and len(values) >= 0.8 * len(full) and len(set(values)) <= max(1, len(values) / 2)


def _strip_tags(line: LogLine, launcher_tags: Sequence[re.Pattern[str]]) -> LogLine:
    """`launcher_tags`: those that begin most lines of this log; each of them comes once in a line."""
    if line.text.startswith('{"at"'):
        return _parse_json(line)
    for _ in range(MAX_TAGS):
        before = line.text
        at, rest = times.parse_time(before)
        if at is not None:
            line = replace(line, text=rest)
            if line.at is None:
                line = replace(line, at=at, is_local=not times.has_zone(before))
        for tag in (*TAGS, *launcher_tags):
            if match := tag.match(line.text):
                line = _strip_tag(line, match)
                launcher_tags = [other for other in launcher_tags if other is not tag]
                break
        if line.text == before:
            break
    return _add_origin_in_text(line)


def _parse_json(line: LogLine) -> LogLine:
    """A line as `ddp-orch logs --json` writes it."""
    try:
        record = json.loads(line.text)
        at = datetime.fromisoformat(record["at"].replace("Z", "+00:00")).timestamp()
        agent = record["stream"] == "agent"
        parsed = replace(
            line,
            at=at,
            host=record["host"],
            rank=record["rank"],
            agent=agent,
            text=str(record["text"]),
            attempt=int(record["attempt"]),
            stream=None if agent else str(record["stream"]),
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        return line
    return _add_origin_in_text(parsed)


def _strip_tag(line: LogLine, match: re.Match[str]) -> LogLine:
    values = match.groupdict()
    return replace(
        line,
        text=line.text[match.end() :],
        host=values.get("host") or line.host,
        rank=int(values["rank"]) if values.get("rank") else line.rank,
        local_rank=int(values["local"]) if values.get("local") else line.local_rank,
        agent=line.agent or bool(values.get("agent")),
    )


def _add_origin_in_text(line: LogLine) -> LogLine:
    """With the host, the rank and the time that the message itself names."""
    if nccl := NCCL.search(line.text):
        local_rank = int(nccl["dev"]) if line.local_rank is None else line.local_rank
        return replace(line, host=line.host or nccl["host"], local_rank=local_rank)
    has_glog_time = times.GLOG.search(line.text) is not None
    if line.at is None:
        line = replace(line, at=times.find_time(line.text), is_local=True)
    if python := TORCH_LOG.match(line.text):
        agent = line.agent or "torch/distributed/elastic" in python["path"]
        line = replace(line, text=line.text[python.end() :], agent=agent)
    names_rank = line.rank is None and (has_glog_time or "ProcessGroup" in line.text)
    if names_rank and (rank := RANK_IN_TEXT.search(line.text)):
        line = replace(line, rank=int(next(filter(None, rank.groups()))))
    return line


def _add_year(lines: list[LogLine]) -> tuple[LogLine, ...]:
    """Times without a year (torch's own) get the year of those that have one."""
    year = times.guess_year([line.at for line in lines], [line.text for line in lines])
    if year is None:
        return tuple(lines)
    shift = times.seconds_to_year(year)
    return tuple(
        replace(line, at=line.at + shift) if line.at is not None and times.lacks_year(line.at) else line
        for line in lines
    )


GENERIC_NAME = re.compile(
    r"(?i)(?:log|logs|out|err|output|outputs|stdout|stderr|train(?:ing)?|run|job|error|console|input|all|merged|nohup|"
    r"slurm|text|case|failure|case[-_]?\d+|test|sample|torchrun|combined|events?|tmp\w*|\d+|-|unknown)"
    r"(?:[-_.]?(?:\d+|log|out|err|output))*"
)


def guess_host(path: str) -> str | None:
    """The host that a file's name may mean; None for `train.log` and the like."""
    name = PurePath(path).name
    stem = re.sub(r"\.(?:log|txt|out|err|stderr|stdout|json|jsonl|gz)$", "", name)
    return None if GENERIC_NAME.fullmatch(stem) or not re.fullmatch(r"[A-Za-z][\w.-]{0,60}", stem) else stem
