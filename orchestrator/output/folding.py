"""Show equal lines of many ranks once: `[0-63] step:120 loss:3.21..3.25`. Pure.

Lines that differ only in numbers count as equal, and their numbers are shown as a range. A line joins the earliest
equal line that follows all lines of its stream, so repeated lines stay apart and each stream's lines stay in order
(between stdout and stderr of a rank there is no order to keep). If some ranks have not printed a line within the
window, it is shown with the ranks that have. `FirstLinesFolder` does so only until the ranks print lines of their own.
"""

from __future__ import annotations

import math
import re
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from .console import fold
from .lines import Line
from .pipeline import Stage

WINDOW = 1.0  # s that a line waits for those of other ranks
START_WINDOW = 0.5  # s, the same for the first lines of a rank
START_LINES = 20  # of each rank and attempt

# An address (10.1.2.3) is a name, not a number.
_NUMBER = re.compile(
    r"(?P<name>\d+(?:\.\d+){2,}) | 0[xX][0-9a-fA-F]+ | (?:(?<![\w.)\]-])[-+])? \d+ (?:\.\d+)? (?:[eE][-+]?\d+)?",
    re.VERBOSE,
)


@dataclass
class _Group:
    """Lines that are shown as one."""

    first: Line
    since: float  # when the first came
    pieces: list[str]  # of the text, around the numbers
    lowest: list[str]
    highest: list[str]
    members: set[int | str] = field(default_factory=set)  # ranks, or hosts of agents
    number: int = 0  # counts the groups
    is_single: bool = False  # waits for no other ranks

    def add(self, member: int | str, numbers: Sequence[str]) -> None:
        self.members.add(member)
        for place, number in enumerate(numbers):
            if _value(number) < _value(self.lowest[place]):
                self.lowest[place] = number
            elif _value(number) > _value(self.highest[place]):
                self.highest[place] = number

    def as_line(self) -> Line:
        text = self.pieces[0]
        for low, high, piece in zip(self.lowest, self.highest, self.pieces[1:], strict=True):
            text += (low if low == high else f"{low}..{high}") + piece
        ranks = sorted(member for member in self.members if isinstance(member, int))
        name = f"[{ranges(ranks)}]" if ranks else fold(str(member) for member in self.members) + ":agent"
        return self.first._replace(text=text, tag=name)


class Folder(Stage):
    """Takes lines in the order of time, and gives folded lines, each with a `tag` that names its ranks."""

    def __init__(self, ranks: int, window: float = WINDOW) -> None:
        """`ranks`: the number of ranks. A line that all of them have printed does not wait for `window` seconds."""
        self._ranks = ranks
        self._window = window
        self._groups: deque[_Group] = deque()
        self._open: dict[tuple[str, int, bool, str], list[_Group]] = {}
        self._count = 0
        self._newest: dict[tuple[int | str, str], int] = {}  # of each member's stream, the number of its newest group

    def push(self, lines: Sequence[Line], now: float) -> Sequence[Line]:
        for line in lines:
            self._join(line, now)
        lines_out = []
        while self._groups and (self._is_complete(self._groups[0]) or now >= self.wake_at):
            lines_out.append(self._close(self._groups.popleft()))
        return lines_out

    @property
    def wake_at(self) -> float:
        return self._groups[0].since + self._window if self._groups else math.inf

    def flush(self, now: float) -> Sequence[Line]:
        lines_out = [self._close(group) for group in self._groups]
        self._groups.clear()
        return lines_out

    def _join(self, line: Line, now: float) -> None:
        pieces, numbers = _split(line.text)
        key = line.stream, line.attempt, line.rank is None, "\0".join(pieces)
        member = line.host if line.rank is None else line.rank
        groups = self._open.setdefault(key, [])
        newest = self._newest.get((member, line.stream), 0)
        group = next((group for group in groups if group.number > newest), None)
        if group is None:
            self._count += 1
            group = _Group(line, now, pieces, list(numbers), list(numbers), number=self._count)
            groups.append(group)
            self._groups.append(group)
        group.add(member, numbers)
        self._newest[member, line.stream] = group.number

    def _is_complete(self, group: _Group) -> bool:
        return group.is_single or (group.first.rank is not None and len(group.members) >= self._ranks)

    def _close(self, group: _Group) -> Line:
        line = group.first
        key = line.stream, line.attempt, line.rank is None, "\0".join(group.pieces)
        self._open[key].remove(group)
        if not self._open[key]:
            del self._open[key]
        return group.as_line()


class FirstLinesFolder(Folder):
    """Folds only the first lines of each rank in an attempt, and gives all later lines as they are.

    It stops for a rank at the first line that no other rank has printed in time, and at a traceback.
    """

    def __init__(self, ranks: int) -> None:
        super().__init__(ranks, START_WINDOW)
        self._attempt = 0
        self._counts: Counter[int] = Counter()  # folded lines of each rank
        self._settled: set[int] = set()  # ranks whose lines are not folded any more

    def push(self, lines: Sequence[Line], now: float) -> Sequence[Line]:
        if not self._groups and all(self._is_settled(line) for line in lines):
            return lines
        return super().push(lines, now)

    def _is_complete(self, group: _Group) -> bool:
        return super()._is_complete(group) or all(member in self._settled for member in group.members)

    def _is_settled(self, line: Line) -> bool:
        return line.rank is None or line.attempt < self._attempt or line.rank in self._settled

    def _join(self, line: Line, now: float) -> None:
        if line.attempt > self._attempt:
            self._attempt = line.attempt
            self._counts.clear()
            self._settled.clear()
        if self._is_settled(line) or line.partial or line.text.startswith("Traceback (most recent call last)"):
            if line.rank is not None:
                self._settled.add(line.rank)
            self._groups.append(_Group(line, now, [], [], [], is_single=True))
            return
        assert line.rank is not None  # an agent's lines are never folded
        self._counts[line.rank] += 1
        if self._counts[line.rank] >= START_LINES:
            self._settled.add(line.rank)
        super()._join(line, now)

    def _close(self, group: _Group) -> Line:
        if group.is_single:
            return group.first
        line = super()._close(group)
        if len(group.members) > 1:
            return line
        if line.attempt == self._attempt and line.rank is not None:
            self._settled.add(line.rank)
        return group.first


def _split(text: str) -> tuple[list[str], list[str]]:
    """The text around the numbers, and the numbers."""
    pieces, numbers, position = [""], [], 0
    for match in _NUMBER.finditer(text):
        pieces[-1] += text[position : match.start()]
        position = match.end()
        if match["name"]:
            pieces[-1] += match[0]
        else:
            numbers.append(match[0])
            pieces.append("")
    pieces[-1] += text[position:]
    return pieces, numbers


def _value(number: str) -> float:
    try:
        return int(number, 16) if number[:2] in ("0x", "0X") else float(number)
    except OverflowError:
        return float("inf")


def ranges(ranks: Sequence[int]) -> str:
    """`0,4-7` for the sorted ranks 0, 4, 5, 6, 7."""
    spans: list[list[int]] = []
    for rank in ranks:
        if spans and rank == spans[-1][1] + 1:
            spans[-1][1] = rank
        else:
            spans.append([rank, rank])
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in spans)


def name_ranks(ranks: Sequence[int]) -> str:
    """`rank 3`, or `ranks 0,4-7`. Sorted."""
    return f"rank{'s' if len(ranks) > 1 else ''} {ranges(ranks)}"
