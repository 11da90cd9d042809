"""What the logs of all hosts show together: lines, exceptions, exits, who is which rank on which host. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from . import exits as ends
from . import tracebacks
from .exits import Exit
from .tracebacks import Raised
from .transcript import NCCL, Said, host_of_file

STEPS = re.compile(r"(?i)\b(?:step|iter(?:ation)?|epoch|batch|it)\b\W{0,4}\d+|\d+%\|.*it/s")
# how launchers speak of the end of others
ENDED = re.compile(
    r"closing signal|exitcode|local_rank: \d|ChildFailedError|torch[./]distributed[./]elastic|srun: error|slurmstepd|"
    r"attempts? left|[Rr]estarting|^={9,}$|^-{9,}$|error_file|launch\.py"
)
APART = 2.0  # s that stdout and stderr of a rank may be out of order by
LAST_WORDS = 6  # lines
NOISE = re.compile(r"^\*+$|OMP_NUM_THREADS")
TROUBLE = re.compile(
    r"(?i)error|exception|traceback|fail|killed|abort|signal|fault|timed? ?out|unable|cannot|can't|could not|denied|"
    r"refused|\bxid\b|no such|not found|warn|invalid|mismatch|out of memory|oom|nan\b|\binf\b|exit"
)
NRANKS = re.compile(
    r"nranks (\d+)|world[_ ]size[=: ]+(\d+)|WORLD_SIZE[=: ]+(\d+)|Num processes:? (\d+)|across all (\d+) ranks"
)


@dataclass(frozen=True)
class Scene:
    lines: tuple[Said, ...]
    raised: tuple[Raised, ...]
    exits: tuple[Exit, ...]
    ranks: Mapping[int, str | None]
    """All ranks that are known, and their hosts."""
    lone: Mapping[str, int]
    """The rank that failed by itself in a file, where there is but one."""
    told_hosts: tuple[str, ...] = ()
    """All hosts of the run, where they are known."""

    @cached_property
    def hosts(self) -> tuple[str, ...]:
        """Whoever printed anything, and the hosts told."""
        return tuple(dict.fromkeys([*self.told_hosts, *(line.host or line.source for line in self.lines)]))

    @cached_property
    def text(self) -> str:
        return "\n".join(line.text for line in self.lines)

    @cached_property
    def first_step(self) -> int | None:
        """The number of the third line that tells of training steps."""
        found = [line.number for line in self.lines if STEPS.search(line.text)]
        return found[2] if len(found) > 2 else None

    def host(self, line: Said) -> str | None:
        if line.host is not None:
            return line.host
        return self.ranks.get(line.rank) if line.rank is not None else None

    def goes_on(self, raised: Raised) -> bool:
        """Whether the rank went on training after an exception: it was caught, or ended nothing."""
        if raised.ignored:
            return True
        line = raised.line
        if line.rank is not None and self.lone.get(line.source) == line.rank and not self._tagged(line):
            line = replace(line, rank=None)  # concluded from the launcher's report, not written in the lines
        after = [one for one in self.lines if one.number > line.number and _after(one, line)]
        if line.rank is None:  # of a file without ranks: all of them, until the launcher speaks of an end
            after = after[: next((place for place, one in enumerate(after) if ENDED.search(one.text)), None)]
        return sum(1 for one in after if STEPS.search(one.text) and not TROUBLE.search(one.text)) >= 3

    def _tagged(self, line: Said) -> bool:
        return any(one.source == line.source and one.rank == line.rank for one in self.lines)

    @cached_property
    def last_words(self) -> tuple[Said, ...]:
        """The last few lines of each source before its launcher spoke of an end."""
        found: list[Said] = []
        for source in dict.fromkeys(line.source for line in self.lines):
            of_source = [line for line in self.lines if line.source == source]
            end = next((place for place, line in enumerate(of_source) if line.agent or ENDED.search(line.text)), None)
            found += [line for line in of_source[:end] if not NOISE.search(line.text)][-LAST_WORDS:]
        return tuple(found)

    @cached_property
    def last_said(self) -> Mapping[tuple[object, ...], Said]:
        """The last line of each stream before others spoke of its end."""
        found: dict[tuple[object, ...], Said] = {}
        over: set[str] = set()
        for line in self.lines:
            if line.agent or ENDED.search(line.text):
                over.add(line.source)
            elif line.rank is not None or line.source not in over:
                found[line.source, line.host, line.rank, line.stream] = line
        return found


def _after(one: Said, line: Said) -> bool:
    """Whether the same rank said it after the line: in the same stream, or surely later."""
    if not _same_stream(one, line):
        return False
    return one.stream == line.stream or (one.at or 0.0) > (line.at or 0.0) + APART


def _same_stream(one: Said, other: Said) -> bool:
    if one.source != other.source or one.host != other.host or one.attempt != other.attempt:
        return False
    return one.rank == other.rank and one.local_rank == other.local_rank


def make(
    lines: Sequence[Said],
    known_exits: Sequence[Exit] = (),
    hosts: Sequence[str] = (),
    known_ranks: Mapping[int, str] | None = None,
) -> Scene:
    found = [*known_exits, *ends.find(lines)]
    named = _hosts_of_sources(lines, found)
    lines = [line if line.host else replace(line, host=named.get(line.source)) for line in lines]
    by_local: dict[tuple[str | None, int | None], int | None] = {
        (one.host, one.local_rank): one.rank for one in found if one.rank is not None and one.local_rank is not None
    }
    lines = [_ranked(line, by_local) for line in lines]
    found = [_exit_ranked(one, named, by_local) for one in found]
    raised = tracebacks.find(lines)
    failing: dict[str, list[Exit]] = {}
    for one in found:
        if one.rank is not None and one.line is not None and not one.agent:
            failing.setdefault(one.line.source, []).append(one)
    lone = {source: rank for source, failed in failing.items() if (rank := _lone(failed)) is not None}
    raised = tuple(
        replace(one, line=replace(one.line, rank=lone.get(one.line.source)))
        if one.line.rank is None and not one.agent and not one.thread
        else one
        for one in raised
    )
    ranks: dict[int, str | None] = dict(known_ranks or {})
    for one in found:
        if one.rank is not None:
            ranks[one.rank] = one.host or ranks.get(one.rank)
    for line in lines:
        if line.rank is not None and (line.rank not in ranks or ranks[line.rank] is None):
            ranks[line.rank] = line.host
    return Scene(tuple(lines), raised, tuple(found), _filled(ranks, lines), lone, tuple(hosts))


def _filled(ranks: dict[int, str | None], lines: Sequence[Said]) -> dict[int, str | None]:
    """With ranks that only the size of the world tells of, or lines such as `rank 3 step 7`."""
    size = 0
    for line in lines:
        if match := NRANKS.search(line.text):
            size = max(size, int(next(filter(None, match.groups()))))
        elif (spoken := re.match(r"(?i)\[?rank[\s:=#]*(\d+)\b", line.text)) and int(spoken[1]) < 4096:
            ranks.setdefault(int(spoken[1]), line.host)
    size = max([size, *(rank + 1 for rank in ranks)])
    if 0 < size <= 4096:
        for rank in range(size):
            ranks.setdefault(rank, None)
    return dict(sorted(ranks.items()))


def _hosts_of_sources(lines: Sequence[Said], found: Sequence[Exit]) -> dict[str, str]:
    """The host that a file is of: torchrun's report or NCCL's lines say it, else the file's name may."""
    named: dict[str, set[str]] = {}
    for one in found:
        if one.line is not None and one.host:
            named.setdefault(one.line.source, set()).add(one.host)
    for line in lines:
        if match := NCCL.search(line.text):
            named.setdefault(line.source, set()).add(match["host"])
    sources = dict.fromkeys(line.source for line in lines)
    hosts = {}
    for source in sources:
        told = named.get(source, set()) - {"localhost"}  # which is all, and says nothing
        host = next(iter(told)) if len(told) == 1 else host_of_file(source) if not told else None
        host = host or ("localhost" if named.get(source) == {"localhost"} else None)
        if host:
            hosts[source] = host
    return hosts


def _ranked(line: Said, by_local: Mapping[tuple[str | None, int | None], int | None]) -> Said:
    if line.rank is not None or line.local_rank is None:
        return line
    rank = by_local.get((line.host, line.local_rank))
    return line if rank is None else replace(line, rank=rank)


def _exit_ranked(
    one: Exit, named: Mapping[str, str], by_local: Mapping[tuple[str | None, int | None], int | None]
) -> Exit:
    host = one.host or (named.get(one.line.source) if one.line is not None else None)
    if one.rank is not None or one.local_rank is None:
        return replace(one, host=host)
    return replace(one, host=host, rank=by_local.get((host, one.local_rank)))


def _lone(failing: Sequence[Exit]) -> int | None:
    """The one rank with an exit status of its own; of several the one that its launcher saw first."""
    ranks = {one.rank for one in failing if one.code != -15}
    if len(ranks) != 1:
        ranks = {one.rank for one in failing if one.root and one.code != -15}
    return ranks.pop() if len(ranks) == 1 else None
