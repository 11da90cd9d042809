"""What a rank printed -> whether it was at work elsewhere while the others waited for it. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

from .transcript import LogLine

FINISHED = re.compile(
    r"(?i)\b(?:finished|done|complete[d]?|end of (?:epoch|training)|exhausted|no more (?:data|batches)|stopiteration|"
    r"training (?:is )?over|max_(?:epochs|steps)\S* reached|evaluat|validat|epoch \d+ (?:took|summary|end))"
)
WORKS = re.compile(
    r"(?i)tokeniz|preprocess|pre-process|indexing|building|caching|download|saving|saved|writing|evaluat|validat|"
    r"generating|loading|converting|extracting|shard|merging|preparing|computing|exporting|upload|\d+%\||"
    r"\b(?:eval|val|test|inference)\b.{0,12}?(?:\b(?:batch|step|it|iter\w*)\b|\d+ ?/ ?\d+)"
)
IN_PROGRESS = re.compile(r"(?i)(?<!train)ing\b|\.\.\.\W*$|…\W*$|\b(?:start|begin)")
DONE = re.compile(r"(?i)\b(?:saved|done|finished|completed?|took|wrote|written|succeeded|end of)\b|\b100%\|")
CHATTER = re.compile(r"NCCL|Watchdog|ProcessGroup|Error|site-packages|frame #")
STEP = re.compile(r"(?i)\b(?:step|iter(?:ation)?|epoch|batch|it)\b\W{0,4}(?P<number>\d+)")
NUMBER = re.compile(r"[-+]?\d[\d.]*(?:e[-+]?\d+)?|\b(?:nan|inf)\b")
WORK_LINES = 12  # of a rank that show it at work
LINES_AFTER = 30  # after the first time-out, in a log without ranks


def find_work(
    own: Sequence[LogLine], lines: Sequence[LogLine], first: LogLine, *, is_rank_0: bool, in_barrier: bool
) -> LogLine | None:
    """The line that shows that one rank was at work while the others waited. `own`: its lines; `first`: the line that
    reports the first time-out.

    Rank 0 evaluates for all. If another rank evaluates while others train, it had fewer batches than they.
    """
    last = _last_before(own, first)
    if last is not None and _is_of_work(last) and (is_rank_0 or in_barrier or not FINISHED.search(last.text)):
        return last
    if not (is_rank_0 or in_barrier or not own):
        return None
    return _last_line_of_work(own[-WORK_LINES:]) or _find_untagged_work(lines, first)


def is_at_work(own: Sequence[LogLine], first: LogLine) -> bool:
    """Whether the last line of a rank before the first time-out says that work has begun."""
    last = _last_before(own, first)
    return last is not None and _is_of_work(last)


def _last_before(own: Sequence[LogLine], first: LogLine) -> LogLine | None:
    return next((line for line in reversed(own) if line.number < first.number), None)


def _is_of_work(line: LogLine) -> bool:
    """Whether a line says that work has begun, and not that it has ended."""
    return bool(WORKS.search(line.text)) and bool(IN_PROGRESS.search(line.text)) and not DONE.search(line.text)


def has_left_its_loop(own: Sequence[LogLine]) -> bool:
    """Whether the steps that a rank prints look different from a certain line on: they are of another loop."""
    kinds = [NUMBER.sub("0", line.text) for line in own if STEP.search(line.text)]
    if not kinds or kinds[0] == kinds[-1]:
        return False
    begun = kinds.index(kinds[-1])
    return begun > 1 and set(kinds[begun:]) == {kinds[-1]}


def _last_line_of_work(lines: Sequence[LogLine]) -> LogLine | None:
    """The last of at least two lines of work."""
    work = [line for line in lines if WORKS.search(line.text)]
    return work[-1] if len(work) >= 2 else None


def _find_untagged_work(lines: Sequence[LogLine], first: LogLine) -> LogLine | None:
    """The same in a log without ranks: lines just before and after the first time-out, by no rank that waited."""
    own = [
        line
        for line in lines
        if line.source == first.source
        and not (CHATTER.search(line.text) or "Traceback" in line.text or line.text.startswith((" ", "File ")))
    ]
    before = [line for line in own if line.number < first.number][-WORK_LINES:]
    by_none = [line for line in before if line.rank is None and not line.agent]
    if by_none and _is_of_work(by_none[-1]):
        return by_none[-1]
    after = [line for line in own if first.number <= line.number <= first.number + LINES_AFTER]
    return _last_line_of_work([*before, *after])
