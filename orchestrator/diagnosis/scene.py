"""All that logs and hosts show together: lines, exceptions, exits, and which rank was on which host. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from .exits import Exit, find_exits
from .record import RunRecord
from .stacks import Stack
from .tracebacks import LoggedException, find_exceptions
from .transcript import NCCL, LogLine, guess_host

STEPS = re.compile(r"(?i)\b(?:step|iter(?:ation)?|epoch|batch|it)\b\W{0,4}\d+|\d+%\|.*it/s")
# how launchers report the end of others
ENDED = re.compile(
    r"closing signal|exitcode|local_rank: \d|ChildFailedError|torch[./]distributed[./]elastic|srun: error|slurmstepd|"
    r"attempts? left|[Rr]estarting|^={9,}$|^-{9,}$|error_file|launch\.py"
)
STREAM_SKEW = 2.0  # s by which the stdout and stderr of a rank may be out of order
STEPS_OF_TRAINING = 3  # lines with steps that show that training is under way
LAST_WORDS = 6  # lines
NOISE = re.compile(r"^\*+$|OMP_NUM_THREADS")
TROUBLE = re.compile(
    r"(?i)error|exception|traceback|fail|killed|abort|signal|fault|timed? ?out|unable|cannot|can't|could not|denied|"
    r"refused|\bxid\b|no such|not found|warn|invalid|mismatch|out of memory|oom|nan\b|\binf\b|exit"
)
WORLD_SIZE = re.compile(
    r"nranks (\d+)|world[_ ]size[=: ]+(\d+)|WORLD_SIZE[=: ]+(\d+)|Num processes:? (\d+)|across all (\d+) ranks"
)
MAX_RANKS = 4096
NO_RECORD = RunRecord()


@dataclass(frozen=True)
class Scene:
    lines: tuple[LogLine, ...]
    exceptions: tuple[LoggedException, ...]
    exits: tuple[Exit, ...]
    ranks: Mapping[int, str | None]
    """All known ranks, and their hosts."""
    failed_rank: Mapping[str, int]
    """{source: the one rank in it that failed by itself}; a source with several has no entry."""
    record: RunRecord = NO_RECORD
    recorder_lines: tuple[LogLine, ...] = ()
    stacks: tuple[Stack, ...] = ()
    """What ranks were doing when the hosts stopped a run that printed nothing."""

    @cached_property
    def hosts(self) -> tuple[str, ...]:
        """Every host (or source) that printed anything, and the known hosts of the run."""
        return tuple(dict.fromkeys([*self.record.hosts, *map(host_or_source, self.lines)]))

    @cached_property
    def text(self) -> str:
        return "\n".join(line.text for line in self.lines)

    @cached_property
    def first_step(self) -> int | None:
        """The number of the third line that reports training steps."""
        numbers = [line.number for line in self.lines if STEPS.search(line.text)]
        return numbers[STEPS_OF_TRAINING - 1] if len(numbers) >= STEPS_OF_TRAINING else None

    def host_of(self, line: LogLine) -> str | None:
        if line.host is not None:
            return line.host
        return self.ranks.get(line.rank) if line.rank is not None else None

    def continues_after(self, exception: LoggedException) -> bool:
        """Whether the rank continued to train after an exception: it was caught, or ended nothing."""
        if exception.ignored:
            return True
        line = exception.line
        if line.rank is not None and self.failed_rank.get(line.source) == line.rank and not self._is_tagged(line):
            line = replace(line, rank=None)  # concluded from the launcher's report, not written in the lines
        later = [other for other in self.lines if other.number > line.number and is_surely_later(other, line)]
        if line.rank is None:  # the lines of all ranks, until the launcher reports an end
            later = later[: next((place for place, other in enumerate(later) if ENDED.search(other.text)), None)]
        steps = [other for other in later if STEPS.search(other.text) and not TROUBLE.search(other.text)]
        return len(steps) >= STEPS_OF_TRAINING

    def _is_tagged(self, line: LogLine) -> bool:
        return any(other.source == line.source and other.rank == line.rank for other in self.lines)

    @cached_property
    def last_words(self) -> tuple[LogLine, ...]:
        """The last few lines of each source before its launcher reported an end."""
        sources = dict.fromkeys(line.source for line in self.lines)
        return tuple(line for source in sources for line in self._words_before_end(source)[-LAST_WORDS:])

    def last_words_of(self, source: str, rank: int | None) -> tuple[LogLine, ...]:
        """The same of one source, without the lines that are surely of another rank."""
        words = [line for line in self._words_before_end(source) if line.rank in (None, rank)]
        return tuple(words[-LAST_WORDS:])

    def _words_before_end(self, source: str) -> list[LogLine]:
        own = [line for line in self.lines if line.source == source]
        end = next((place for place, line in enumerate(own) if line.agent or ENDED.search(line.text)), None)
        return [line for line in own[:end] if not NOISE.search(line.text)]

    @cached_property
    def last_lines(self) -> Mapping[tuple[object, ...], LogLine]:
        """The last line of each stream before others reported its end."""
        last: dict[tuple[object, ...], LogLine] = {}
        ended: set[str] = set()
        for line in self.lines:
            if line.agent or ENDED.search(line.text):
                ended.add(line.source)
            elif line.rank is not None or line.source not in ended:
                last[line.source, line.host, line.rank, line.stream] = line
        return last


def host_or_source(line: LogLine) -> str:
    return line.host or line.source


def is_surely_later(other: LogLine, line: LogLine) -> bool:
    """Whether the same rank wrote a line after another: in the same stream, or long after it."""
    if other.source != line.source or other.host != line.host or other.attempt != line.attempt:
        return False
    if other.rank != line.rank or other.local_rank != line.local_rank:
        return False
    return other.stream == line.stream or (other.at or 0.0) > (line.at or 0.0) + STREAM_SKEW


LocalRanks = Mapping[tuple[str | None, int | None], int | None]
"""{(host, local rank): rank}"""


def build_scene(
    lines: Sequence[LogLine],
    record: RunRecord = NO_RECORD,
    recorder_lines: Sequence[LogLine] = (),
    stacks: Sequence[Stack] = (),
) -> Scene:
    """`lines`: those of ranks and launchers; the recorder's own and the stacks come apart."""
    exits = [*record.exits, *find_exits(lines)]
    named = _hosts_of_sources(lines, exits)
    lines = [line if line.host else replace(line, host=named.get(line.source)) for line in lines]
    local_ranks: LocalRanks = {
        (exit_.host, exit_.local_rank): exit_.rank
        for exit_ in exits
        if exit_.rank is not None and exit_.local_rank is not None
    }
    lines = [_add_rank(line, local_ranks) for line in lines]
    exits = [_add_host_and_rank(exit_, named, local_ranks) for exit_ in exits]
    failed_rank = _failed_ranks(exits)
    exceptions = tuple(_add_failed_rank(exception, failed_rank) for exception in find_exceptions(lines))
    ranks = _known_ranks(record, exits, lines)
    return Scene(
        tuple(lines), exceptions, tuple(exits), ranks, failed_rank, record, tuple(recorder_lines), tuple(stacks)
    )


def _hosts_of_sources(lines: Sequence[LogLine], exits: Sequence[Exit]) -> dict[str, str]:
    """The host that a file is of: torchrun's report or NCCL's lines name it, else the file's name may."""
    named: dict[str, set[str]] = {}
    for exit_ in exits:
        if exit_.line is not None and exit_.host:
            named.setdefault(exit_.line.source, set()).add(exit_.host)
    for line in lines:
        if match := NCCL.search(line.text):
            named.setdefault(line.source, set()).add(match["host"])
    hosts = {}
    for source in dict.fromkeys(line.source for line in lines):
        names = named.get(source, set()) - {"localhost"}  # every host is called that
        host = next(iter(names)) if len(names) == 1 else guess_host(source) if not names else None
        host = host or ("localhost" if named.get(source) == {"localhost"} else None)
        if host:
            hosts[source] = host
    return hosts


def _add_rank(line: LogLine, local_ranks: LocalRanks) -> LogLine:
    if line.rank is not None or line.local_rank is None:
        return line
    rank = local_ranks.get((line.host, line.local_rank))
    return line if rank is None else replace(line, rank=rank)


def _add_host_and_rank(exit_: Exit, named: Mapping[str, str], local_ranks: LocalRanks) -> Exit:
    host = exit_.host or (named.get(exit_.line.source) if exit_.line is not None else None)
    if exit_.rank is not None or exit_.local_rank is None:
        return replace(exit_, host=host)
    return replace(exit_, host=host, rank=local_ranks.get((host, exit_.local_rank)))


def _failed_ranks(exits: Sequence[Exit]) -> dict[str, int]:
    by_source: dict[str, list[Exit]] = {}
    for exit_ in exits:
        if exit_.rank is not None and exit_.line is not None and not exit_.agent:
            by_source.setdefault(exit_.line.source, []).append(exit_)
    return {source: rank for source, own in by_source.items() if (rank := _only_failed(own)) is not None}


def _only_failed(exits: Sequence[Exit]) -> int | None:
    """The one rank with an exit status of its own; of several the one that its launcher saw first."""
    ranks = {exit_.rank for exit_ in exits if exit_.code != -15}
    if len(ranks) != 1:
        ranks = {exit_.rank for exit_ in exits if exit_.root and exit_.code != -15}
    return ranks.pop() if len(ranks) == 1 else None


def _add_failed_rank(exception: LoggedException, failed_rank: Mapping[str, int]) -> LoggedException:
    line = exception.line
    if line.rank is not None or exception.agent or exception.thread:
        return exception
    return replace(exception, line=replace(line, rank=failed_rank.get(line.source)))


def _known_ranks(record: RunRecord, exits: Sequence[Exit], lines: Sequence[LogLine]) -> dict[int, str | None]:
    """Every rank that anything shows, also the size of the world or lines such as `rank 3 step 7`."""
    ranks: dict[int, str | None] = dict(record.ranks or {})
    for exit_ in exits:
        if exit_.rank is not None:
            ranks[exit_.rank] = exit_.host or ranks.get(exit_.rank)
    for line in lines:
        if line.rank is not None and ranks.get(line.rank) is None:
            ranks[line.rank] = line.host
    size = 0
    for line in lines:
        if match := WORLD_SIZE.search(line.text):
            size = max(size, int(next(filter(None, match.groups()))))
        elif (named := re.match(r"(?i)\[?rank[\s:=#]*(\d+)\b", line.text)) and int(named[1]) < MAX_RANKS:
            ranks.setdefault(int(named[1]), line.host)
    size = max([size, *(rank + 1 for rank in ranks)])
    if 0 < size <= MAX_RANKS:
        for rank in range(size):
            ranks.setdefault(rank, None)
    return dict(sorted(ranks.items()))
