"""Lay a diagnosis out as text for people. Decides nothing. Pure."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence
from dataclasses import replace

from ..inventory.advice import AboutRun
from ..output.console import fold
from ..output.finding import FIRST_TIME, Finding
from ..output.lines import Mask, presentable, rfc3339
from .engine import Diagnosis, shorten

WIDTH = 100  # the most columns
MOST_SHOWN = 12  # lines
MOST_EARLIER = 2  # attempts before the last
MOST_WRAPPED = 4  # lines of one message


def as_text(found: Diagnosis, columns: int = WIDTH, where: str = "") -> list[str]:
    """At most 12 lines for people. `where`: the line that tells where there is more."""
    earlier = [(f"attempt {attempt} failed", finding) for attempt, finding in reversed(found.earlier)]
    causes = [("first cause", finding) for finding in found.findings[:1]] + earlier
    if not causes:
        return []
    word, first = causes[0]
    lines = [_head(word, first)]
    lines += textwrap.wrap(first.message, columns, initial_indent="  ", subsequent_indent="  ")[:2]
    fix = textwrap.wrap(first.fix, columns, initial_indent="  fix: ", subsequent_indent="       ")[:2]
    after = [where] if where else []
    after += [_head("perhaps also", one) for one in found.findings[1:2]]
    after += [_head(*one) for one in causes[1 : 1 + MOST_EARLIER]]
    after += _of_consequences(found.consequences)
    room = MOST_SHOWN - len(lines) - len(fix) - len(after)
    return lines + _evidence(first.evidence, columns, room) + fix + after


def _evidence(texts: Sequence[str], columns: int, room: int) -> list[str]:
    """The place, and the message whole where there is room for it."""
    shown: list[str] = []
    for text in texts:
        if text.startswith('File "'):
            shown.append(f"  | {_cut(text, columns - 4)}")
        else:
            text = shorten(text, min(MOST_WRAPPED, max(1, room - len(shown))) * (columns - 16))
            shown += textwrap.wrap(text, columns, initial_indent="  | ", subsequent_indent="  |   ")
    return shown[:room]


def _cut(text: str, most: int) -> str:
    """Of a frame the beginning of the path goes, as its end and the line number say more."""
    frame = re.match(r'File "(.+)(", line \d+.*)', text)
    if frame and len(text) > most and (left := most - len('File "...') - len(frame[2])) > 0:
        return f'File "...{frame[1][-left:]}{frame[2]}'
    return text[:most]


def _head(word: str, finding: Finding) -> str:
    of_rank = finding.rank is not None  # its host is the first; others show the same
    where = [fold(finding.hosts[:1] if of_rank else finding.hosts)] if finding.hosts else []
    where += [f"rank {finding.rank}"] if of_rank else []
    where += [f"also {fold(finding.hosts[1:])}"] if of_rank and finding.hosts[1:] else []
    where += [f"at {rfc3339(finding.at)[11:19]}Z"] if finding.at is not None and finding.at >= FIRST_TIME else []
    return f"{word}: {finding.code}{', ' if where else ''}{', '.join(where)} ({finding.confidence} confidence)"


def _of_consequences(consequences: Sequence[Finding]) -> list[str]:
    if not consequences:
        return []
    ranks = {str(one.rank) for one in consequences if one.rank is not None}
    who = f"rank{'s' if len(ranks) > 1 else ''} {fold(ranks)}" if ranks else "the launchers"
    return [f"the errors of {who} are consequences; diagnose --json shows them"]


def where_more(found: Diagnosis, about: AboutRun | None) -> str:
    """The line that says how to see all that the first cause's rank printed; "" for logs that are no run of ours."""
    shown = [*found.findings, *(finding for _, finding in reversed(found.earlier))]
    if about is None or not shown:
        return ""
    rank = shown[0].rank
    only = () if rank is None else ("--rank", str(rank))
    return f"  full log: {about.command('logs', *only)}"


def masked(found: Diagnosis, mask: Mask) -> Diagnosis:
    """Hide secrets and tame escape sequences in all that came from hosts."""

    def hide(one: Finding) -> Finding:
        evidence = tuple(presentable(text, False, mask) for text in one.evidence)
        return replace(one, message=presentable(one.message, False, mask), evidence=evidence)

    earlier = tuple((attempt, hide(finding)) for attempt, finding in found.earlier)
    return Diagnosis(tuple(map(hide, found.findings)), tuple(map(hide, found.consequences)), earlier)
