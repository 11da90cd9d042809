"""Lay a diagnosis out as text for people. Decides nothing. Pure."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import replace

from ..inventory.advice import AboutRun
from ..output.console import fold
from ..output.finding import MIN_TIME, Finding, SourceCode, find_nothing
from ..output.lines import Mask, presentable, rfc3339
from ..output.terminal import RESET
from .engine import Diagnosis, shorten

WIDTH = 100  # the most columns
MAX_LINES = 12
MAX_PARAGRAPH = 2  # lines of the message, and of the fix where there is no more room
MAX_FIX = 4  # lines
LEAST_EVIDENCE = 2  # lines that a long fix leaves for the evidence
MAX_EARLIER = 2  # attempts before the last
MAX_WRAPPED = 4  # lines of one text of the evidence
_BOLD_RED, _BOLD = "\x1b[1;31m", "\x1b[1m"


def render_text(
    diagnosis: Diagnosis,
    columns: int = WIDTH,
    read_more: str = "",
    *,
    colour: bool = False,
    find_source: Callable[[str], SourceCode | None] = find_nothing,
    whole: bool = False,
) -> list[str]:
    """At most 12 lines for people, and the source code. `read_more`: the line that says where there is more.

    `find_source`: takes `File "/path", line 12, in load` of a host. `whole`: neither the message nor the fix is cut, so
    that there may be more lines.
    """
    earlier = [(f"attempt {attempt} failed", finding) for attempt, finding in reversed(diagnosis.earlier)]
    title = "likely first cause" if diagnosis.is_running else "first cause"
    causes = [(title, finding) for finding in diagnosis.findings[:1]] + earlier
    if not causes:
        return []
    _, first = causes[0]
    message = _wrap(first.message, columns, "  ", None if whole else MAX_PARAGRAPH)
    headline = _headline(*causes[0])
    above = [f"{_BOLD_RED}{headline}{RESET}" if colour else headline, *message]
    below = [read_more] if read_more else []
    below += [_headline("perhaps also", finding) for finding in diagnosis.findings[1:2]]
    before = causes[1:]  # the newest first; what the run began to fail with is shown always
    shown = before if len(before) <= MAX_EARLIER else [*before[: MAX_EARLIER - 1], before[-1]]
    below += [_headline(*cause) for cause in shown]
    if len(before) > len(shown):
        below += [f"{len(before) - len(shown)} more of its attempts failed; diagnose --json shows them"]
    below += _summarise_consequences(diagnosis.consequences, first)
    for_fix = MAX_LINES - len(above) - len(below) - LEAST_EVIDENCE
    most = None if whole else max(MAX_PARAGRAPH, min(MAX_FIX, for_fix))
    below = _wrap(first.fix, columns, "  fix: ", most) + below
    room = max(LEAST_EVIDENCE if whole else 0, MAX_LINES - len(above) - len(below))
    source = next((found for text in first.evidence if (found := find_source(text))), None)
    if source is None:
        return above + _render_evidence(first.evidence, columns, room) + below
    others = tuple(text for text in first.evidence if find_source(text) is None)
    return (
        above + _render_evidence(others, columns, room, bold=colour) + _render_source(source, columns, colour) + below
    )


def _wrap(text: str, columns: int, indent: str, most: int | None) -> list[str]:
    """At most so many lines; ` ...` stands for the rest. None: all."""
    following = " " * len(indent)
    return textwrap.wrap(
        text, columns, initial_indent=indent, subsequent_indent=following, max_lines=most, placeholder=" ..."
    )


def _render_source(source: SourceCode, columns: int, colour: bool) -> list[str]:
    width = len(str(source.lines[-1][0]))
    lines = [f"  | {source.place}"[:columns]]
    for number, text in source.lines:
        failed = number == source.number
        line = f"  | {'>' if failed else ' '} {number:{width}}  {text}"[:columns]
        lines.append(f"{_BOLD}{line}{RESET}" if failed and colour else line)
    return lines


def _headline(title: str, finding: Finding) -> str:
    of_rank = finding.rank is not None  # its host is the first; others show the same
    where = [fold(finding.hosts[:1] if of_rank else finding.hosts)] if finding.hosts else []
    where += [f"rank {finding.rank}"] if of_rank else []
    where += [f"also {fold(finding.hosts[1:])}"] if of_rank and finding.hosts[1:] else []
    where += [f"at {rfc3339(finding.at)[11:19]}Z"] if finding.at is not None and finding.at >= MIN_TIME else []
    return f"{title}: {finding.code}{', ' if where else ''}{', '.join(where)} ({finding.confidence} confidence)"


def _render_evidence(texts: Sequence[str], columns: int, room: int, *, bold: bool = False) -> list[str]:
    """The place, and as much of the message as fits."""
    lines: list[str] = []
    for text in texts:
        if text.startswith('File "'):
            lines.append(f"  | {_shorten_frame(text, columns - 4)}")
        else:
            text = shorten(text, min(MAX_WRAPPED, max(1, room - len(lines))) * (columns - 16))
            lines += textwrap.wrap(text, columns, initial_indent="  | ", subsequent_indent="  |   ")
    return [f"{_BOLD}{line}{RESET}" if bold else line for line in lines[:room]]


def _shorten_frame(text: str, width: int) -> str:
    """Cut the beginning of the path: its end and the line number are more useful."""
    frame = re.match(r'File "(.+)(", line \d+.*)', text)
    if frame and len(text) > width and (left := width - len('File "...') - len(frame[2])) > 0:
        return f'File "...{frame[1][-left:]}{frame[2]}'
    return text[:width]


def _summarise_consequences(consequences: Sequence[Finding], first: Finding) -> list[str]:
    """Without those of hosts that the first cause names too: they may not be consequences of what its rank did."""
    also = set(first.hosts[1:])
    consequences = [finding for finding in consequences if not (finding.hosts and also.issuperset(finding.hosts))]
    if not consequences:
        return []
    ranks = {str(finding.rank) for finding in consequences if finding.rank is not None}
    hosts = {host for finding in consequences for host in finding.hosts}
    on_hosts = f" on {fold(hosts)}" if hosts else ""
    sources = f"rank{'s' if len(ranks) > 1 else ''} {fold(ranks)}" if ranks else f"the launchers{on_hosts}"
    return [f"the errors of {sources} are consequences; diagnose --json shows them"]


def where_to_read_more(diagnosis: Diagnosis, about: AboutRun | None) -> str:
    """The line with the command that shows all output of the first cause's rank; "" for logs of other launchers."""
    findings = [*diagnosis.findings, *(finding for _, finding in reversed(diagnosis.earlier))]
    if about is None or not findings:
        return ""
    rank = findings[0].rank
    only = () if rank is None else ("--rank", str(rank))
    return f"  full log: {about.command('logs', *only)}"


def hide_secrets(diagnosis: Diagnosis, mask: Mask) -> Diagnosis:
    """With secrets masked and escape sequences tamed in all that came from hosts."""

    def hide(finding: Finding) -> Finding:
        evidence = tuple(presentable(text, False, mask) for text in finding.evidence)
        return replace(finding, message=presentable(finding.message, False, mask), evidence=evidence)

    earlier = tuple((attempt, hide(finding)) for attempt, finding in diagnosis.earlier)
    findings, consequences = tuple(map(hide, diagnosis.findings)), tuple(map(hide, diagnosis.consequences))
    return replace(diagnosis, findings=findings, consequences=consequences, earlier=earlier)
