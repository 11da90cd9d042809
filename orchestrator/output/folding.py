"""Show equal lines of many ranks once: `[0-63] step:120 loss:3.21..3.25`. Pure.

Lines that differ in numbers alone are equal, and their numbers are shown as a range: ranks seldom print the very same.
A line of a rank joins the earliest line like it that this rank has not joined yet, so a line that is printed again and
again is counted again and again. What not all ranks have said within the window is shown as said by those that have.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from .console import fold
from .lines import Line

WINDOW = 1.0  # s that a line waits for those of other ranks

# An address (10.1.2.3) is a name and no number.
_NUMBER = re.compile(
    r"(?P<name>\d+(?:\.\d+){2,}) | 0[xX][0-9a-fA-F]+ | (?:(?<![\w.)\]-])[-+])? \d+ (?:\.\d+)? (?:[eE][-+]?\d+)?",
    re.VERBOSE,
)


@dataclass
class _Group:
    """Lines that are shown as one."""

    first: Line
    since: float  # when the first came, by the clock of `add`
    pieces: list[str]  # of the text, around the numbers
    lowest: list[str]
    highest: list[str]
    members: set[int | str] = field(default_factory=set)  # ranks, or hosts of agents

    def add(self, member: int | str, numbers: Sequence[str]) -> None:
        self.members.add(member)
        for place, number in enumerate(numbers):
            if _value(number) < _value(self.lowest[place]):
                self.lowest[place] = number
            elif _value(number) > _value(self.highest[place]):
                self.highest[place] = number

    def shown(self) -> tuple[Line, str]:
        """The line, and the name of those that have said it."""
        text = self.pieces[0]
        for low, high, piece in zip(self.lowest, self.highest, self.pieces[1:], strict=True):
            text += (low if low == high else f"{low}..{high}") + piece
        ranks = sorted(member for member in self.members if isinstance(member, int))
        name = f"[{ranges(ranks)}]" if ranks else fold(str(member) for member in self.members) + ":agent"
        return self.first._replace(text=text), name


class Folder:
    """Lines in, in the order of time; lines that stand for many out, each with the name of those that have said it."""

    def __init__(self, ranks: int) -> None:
        """`ranks`: how many there are; a line that all of them have said waits no longer."""
        self._ranks = ranks
        self._groups: deque[_Group] = deque()
        self._open: dict[tuple[str, int, bool, str], list[_Group]] = {}

    def add(self, lines: Iterable[Line], now: float) -> list[tuple[Line, str]]:
        """`now` is a monotonic clock. Returns what can be shown by now."""
        for line in lines:
            self._join(line, now)
        shown = []
        while self._groups and (self._complete(self._groups[0]) or now - self._groups[0].since >= WINDOW):
            shown.append(self._close(self._groups.popleft()))
        return shown

    def flush(self) -> list[tuple[Line, str]]:
        shown = [self._close(group) for group in self._groups]
        self._groups.clear()
        return shown

    def _join(self, line: Line, now: float) -> None:
        pieces, numbers = _split(line.text)
        key = line.stream, line.attempt, line.rank is None, "\0".join(pieces)
        member = line.host if line.rank is None else line.rank
        alike = self._open.setdefault(key, [])
        group = next((one for one in alike if member not in one.members), None)
        if group is None:
            group = _Group(line, now, pieces, list(numbers), list(numbers))
            alike.append(group)
            self._groups.append(group)
        group.add(member, numbers)

    def _complete(self, group: _Group) -> bool:
        return group.first.rank is not None and len(group.members) >= self._ranks

    def _close(self, group: _Group) -> tuple[Line, str]:
        line = group.first
        key = line.stream, line.attempt, line.rank is None, "\0".join(group.pieces)
        self._open[key].remove(group)
        if not self._open[key]:
            del self._open[key]
        return group.shown()


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
    """`0,4-7` for 0, 4, 5, 6, 7, which are sorted."""
    found: list[list[int]] = []
    for rank in ranks:
        if found and rank == found[-1][1] + 1:
            found[-1][1] = rank
        else:
            found.append([rank, rank])
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in found)
