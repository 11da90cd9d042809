"""Logs of any launcher -> who said which line, when. Pure.

Known are the ways in which torchrun, srun, mpirun, pdsh, docker compose, kubectl, Ray, and this program tag the lines
of several processes, and the times that torch, NCCL, the kernel and loggers write before them.
"""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import PurePath


@dataclass(frozen=True)
class Said:
    """One line, without its tags."""

    number: int  # the order in which it was read
    source: str  # the file, or the host, that it came from
    host: str | None
    rank: int | None
    at: float | None  # seconds, Unix time; None where neither the line nor one near it has a time
    text: str
    local_rank: int | None = None
    agent: bool = False  # known to be of the launcher and not of a rank
    attempt: int = 1
    stream: str | None = None  # stdout or stderr, where they were recorded apart: their order is not told then


ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b\][^\x07]*\x07")
MOST_OF_A_LINE = 4000  # characters

# tags at the beginning of a line; each may be followed by another
TAGS = tuple(
    re.compile(pattern)
    for pattern in (
        r"\[rank[:=]?\s?(?P<rank>\d+)\]:? ?(?:\|\| )?",  # torch >= 2.4, Lightning, Determined
        r"\[(?:default|trainer|worker|[a-z_]+)(?P<local>\d+)\]: ?",  # torchrun --tee: role and local rank
        r"\[(?:\d+,)?(?P<rank>\d+)\]<(?:stdout|stderr|stddiag)>: ?",  # mpirun --tag-output
        r"\((?:[\w.]+ )?pid=\d+(?:, ip=(?P<host>[\w.:]+))?\) ?",  # Ray
        r"\[pod/(?P<host>[\w.-]+)/[\w.-]+\](?: |$)",  # kubectl logs --prefix
        r"(?P<host>[A-Za-z][\w.-]*|\d+(?:\.\d+){3}):(?:(?P<rank>\d+)|(?P<agent>agent)) *[|!](?: |$)",  # ddp-orch logs
        r"(?P<host>[A-Za-z][\w.-]*) *\|(?: |$)",  # docker compose
        r"\[(?:rank|RANK|Rank) ?(?P<rank>\d+)\] ?:? ?",
        r"<(?:rank )?(?P<rank>\d+)>: ?",
    )
)
SRUN = re.compile(r"\s*(?P<rank>\d+): ?")
PDSH = re.compile(
    r"(?P<host>(?!\w*(?:Error|Exception|Warning|INFO|DEBUG|ERROR|WARN))[A-Za-z][\w.-]*|\d+(?:\.\d+){3})"
    r":(?: (?!error)|$)"
)

GLUED = re.compile(r"(?<=[st]\])(?=\[(?:rank\d+\]:|[EWIF][ \d]))")  # a progress bar ends without a newline
QUOTED = re.compile(r"^ {0,3}(?:>|#|//) ?")
NUMBERED = re.compile(r"^ *\d+(?:\t| {2})")  # as `cat -n` does
LEFT_OUT = re.compile(r"^[\s.…]*$")  # lines that say nothing, or that others were cut there
LAUNCHERS = re.compile(r"srun|slurmstepd|mpirun|pdsh@|ssh:")  # they speak between the lines of others

MONTHS = {
    name: number
    for number, name in enumerate(
        ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"], 1
    )
}
ISO = re.compile(
    r"\[?(?P<date>\d{4}[-/]\d\d[-/]\d\d)[T _,-]+(?P<time>\d\d:\d\d:\d\d)(?P<part>[.,]\d+)?"
    r"(?P<zone>Z|[+-]\d\d:?\d\d)?\]?[:|]?\s*(?:[-|] )?"
)
AMERICAN = re.compile(r"\[?(?P<m>\d\d)/(?P<d>\d\d)/(?P<y>\d{4}|\d\d) (?P<time>\d\d:\d\d:\d\d)(?P<part>[.,]\d+)?\]?\s*")
CTIME = re.compile(
    r"\[?(?:[A-Z][a-z]{2} )?(?P<mon>[A-Z][a-z]{2}) +(?P<d>\d{1,2}) (?P<time>\d\d:\d\d:\d\d)(?P<part>\.\d+)?"
    r"(?: (?P<y>\d{4}))?\]?:? "
)
GLOG = re.compile(r"\[?[IWEF](?P<md>\d{3,4}) (?P<time>\d\d:\d\d:\d\d)(?P<part>\.\d+)? ")
TORCH_LOG = re.compile(r"[IWEF]\d{4} \d\d:\d\d:\d\d\.\d+ (?:\d+ )?(?P<path>\S+\.py):\d+\] ?")
BRACKETED_ISO = re.compile(r"\[(?P<date>\d{4}-\d\d-\d\d)[ T](?P<time>\d\d:\d\d:\d\d)(?P<part>[.,]\d+)?\]")

RANK_IN_TEXT = re.compile(r"\[(?:PG [^\]]*?)?[Rr]ank:? ?(\d+)\]|\[rank(\d+)\]:|\brank=(\d+)\b")
NCCL = re.compile(r"(?P<host>[\w.-]+):\d+:\d+ \[(?P<dev>\d+)\] (?:\S+ )?NCCL ")


def read(texts: Iterable[tuple[str, str]]) -> tuple[Said, ...]:
    """Lines of named texts (the path or the host of each, and what is in it), in the order given."""
    said: list[Said] = []
    for name, text in texts:
        said += _dated(list(_lines(name, text, len(said))))
    return _with_year(said)


def origin(line: Said, number: int) -> Said:
    """A line whose host and rank are known already: only torch's own tags are taken off."""
    text = ESCAPES.sub("", line.text.rsplit("\r", 1)[-1])[:MOST_OF_A_LINE]
    if match := TAGS[0].match(text):
        text = text[match.end() :]
    return _from_text(replace(line, number=number, text=text))


def _lines(name: str, text: str, number: int) -> Iterator[Said]:
    lines = _bare([line.rstrip() for line in text.replace("\r\n", "\n").split("\n")])
    everywhere = [tag for tag in (SRUN, PDSH) if _tags_all(tag, lines)]
    for line in lines:
        # what a progress bar has overwritten is not the end of the line
        for part in (piece for shown in line.split("\r") for piece in GLUED.split(shown)):
            stripped = ESCAPES.sub("", part)[:MOST_OF_A_LINE]
            if stripped.strip():
                yield _untagged(Said(number, name, None, None, None, stripped), everywhere)
                number += 1


def _bare(lines: list[str]) -> list[str]:
    """Without what quoting or numbering a log put before every line of it."""
    full = [line for line in lines if not LEFT_OUT.match(line)]
    for mark in (QUOTED, NUMBERED):
        if len(full) > 2 and sum(mark.match(line) is not None for line in full) >= 0.9 * len(full):
            lines = [mark.sub("", line, count=1) for line in lines]
    return textwrap.dedent("\n".join(lines)).split("\n")


def _tags_all(tag: re.Pattern[str], lines: Sequence[str]) -> bool:
    """Whether a tag that could as well be text begins nearly every line, with few values."""
    full = [line for line in lines if line.strip() and not LAUNCHERS.match(line)]
    found = [match[1] for line in full if (match := tag.match(line))]
    return len(found) > 2 and len(found) >= 0.8 * len(full) and len(set(found)) <= max(1, len(found) / 2)


def _untagged(line: Said, everywhere: Sequence[re.Pattern[str]]) -> Said:
    if line.text.startswith('{"at"'):
        return _of_json(line)
    for _ in range(5):
        before = line.text
        at, rest = time_of(before)
        if at is not None:
            line = replace(line, at=line.at if line.at is not None else at, text=rest)
        for tag in (*TAGS, *everywhere):
            match = tag.match(line.text)
            if match:
                line = _tagged(line, match)
                if tag in everywhere:
                    everywhere = [one for one in everywhere if one is not tag]
                break
        if line.text == before:
            break
    return _from_text(line)


def _of_json(line: Said) -> Said:
    """As `ddp-orch logs --json` writes it."""
    try:
        told = json.loads(line.text)
        at = datetime.fromisoformat(told["at"].replace("Z", "+00:00")).timestamp()
        agent = told["stream"] == "agent"
        host, rank, text, attempt = told["host"], told["rank"], str(told["text"]), int(told["attempt"])
        stream = None if agent else str(told["stream"])
    except (ValueError, KeyError, TypeError, AttributeError):
        return line
    return _from_text(
        replace(line, at=at, host=host, rank=rank, agent=agent, text=text, attempt=attempt, stream=stream)
    )


def _tagged(line: Said, match: re.Match[str]) -> Said:
    found = match.groupdict()
    return replace(
        line,
        text=line.text[match.end() :],
        host=found.get("host") or line.host,
        rank=int(found["rank"]) if found.get("rank") else line.rank,
        local_rank=int(found["local"]) if found.get("local") else line.local_rank,
        agent=line.agent or bool(found.get("agent")),
    )


def _from_text(line: Said) -> Said:
    """What a line says of its origin in itself."""
    nccl = NCCL.search(line.text)
    if nccl:
        return replace(
            line,
            host=line.host or nccl["host"],
            local_rank=int(nccl["dev"]) if line.local_rank is None else line.local_rank,
        )
    glog = GLOG.search(line.text)
    if line.at is None and glog:
        line = replace(line, at=_seconds(None, glog["md"].zfill(4), glog["time"], glog["part"]))
    if python := TORCH_LOG.match(line.text):
        agent = line.agent or "torch/distributed/elastic" in python["path"]
        line = replace(line, text=line.text[python.end() :], agent=agent)
    if line.at is None and (iso := BRACKETED_ISO.search(line.text)):
        line = replace(line, at=_seconds(iso["date"][:4], iso["date"][5:].replace("-", ""), iso["time"], iso["part"]))
    if line.rank is None and (glog or "ProcessGroup" in line.text) and (rank := RANK_IN_TEXT.search(line.text)):
        line = replace(line, rank=int(next(filter(None, rank.groups()))))
    return line


def time_of(text: str) -> tuple[float | None, str]:
    """The time at the beginning of a line, and the rest of it."""
    if match := ISO.match(text):
        year, month_day = match["date"][:4], match["date"][5:].replace("-", "").replace("/", "")
        return _seconds(year, month_day, match["time"], match["part"], match["zone"]), text[match.end() :]
    if match := CTIME.match(text):
        if match["mon"] in MONTHS:
            month_day = f"{MONTHS[match['mon']]:02}{int(match['d']):02}"
            return _seconds(match["y"], month_day, match["time"], match["part"]), text[match.end() :]
    elif match := AMERICAN.match(text):
        year = match["y"] if len(match["y"]) == 4 else f"20{match['y']}"
        return _seconds(year, match["m"] + match["d"], match["time"], match["part"]), text[match.end() :]
    return None, text


NO_YEAR = 1972  # a leap year, long before any log


def _seconds(year: str | None, month_day: str, time: str, part: str | None, zone: str | None = None) -> float | None:
    offset = "+00:00" if zone in (None, "Z") else zone if ":" in zone else f"{zone[:3]}:{zone[3:]}"
    stamp = f"{year or NO_YEAR}-{month_day[:2]}-{month_day[2:]}T{time}{offset}"
    try:
        seconds = datetime.fromisoformat(stamp).timestamp()
    except ValueError:
        return None
    return seconds + (float("0." + part[1:]) if part else 0.0)


def _dated(lines: list[Said]) -> list[Said]:
    """A line without a time gets that of the next one with a time: a traceback comes before torchrun tells of it."""
    later: float | None = None
    dated = []
    for line in reversed(lines):
        later = line.at if line.at is not None else later
        dated.append(line if line.at is not None else replace(line, at=later))
    dated.reverse()
    earlier: float | None = None
    for number, line in enumerate(dated):
        earlier = line.at if line.at is not None else earlier
        if line.at is None:
            dated[number] = replace(line, at=earlier)
    return dated


YEAR = re.compile(r"\b(20\d\d)-\d\d-\d\d[_T ]\d\d:\d\d")


def _with_year(lines: list[Said]) -> tuple[Said, ...]:
    """Times without a year (torch's own) get the year of those that have one."""
    old = datetime(NO_YEAR + 1, 1, 1, tzinfo=timezone.utc).timestamp()
    years = [line.at for line in lines if line.at is not None and line.at > old]
    written = next((found[1] for line in lines if (found := YEAR.search(line.text))), None)
    if not years and written is None:
        return tuple(lines)
    year = datetime.fromtimestamp(years[-1], timezone.utc).year if years else int(written or 0)
    shift = (datetime(year, 3, 1, tzinfo=timezone.utc) - datetime(NO_YEAR, 3, 1, tzinfo=timezone.utc)).total_seconds()
    return tuple(replace(line, at=line.at + shift) if line.at is not None and line.at < old else line for line in lines)


GENERIC = re.compile(
    r"(?i)(?:log|logs|out|err|output|outputs|stdout|stderr|train(?:ing)?|run|job|error|console|input|all|merged|nohup|"
    r"slurm|text|case|failure|case[-_]?\d+|test|sample|torchrun|combined|events?|tmp\w*|\d+|-|unknown)"
    r"(?:[-_.]?(?:\d+|log|out|err|output))*"
)


def host_of_file(path: str) -> str | None:
    """The host that a file's name may mean; None for `train.log` and the like."""
    name = PurePath(path).name
    stem = re.sub(r"\.(?:log|txt|out|err|stderr|stdout|json|jsonl|gz)$", "", name)
    return None if GENERIC.fullmatch(stem) or not re.fullmatch(r"[A-Za-z][\w.-]{0,60}", stem) else stem
