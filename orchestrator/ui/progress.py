"""Show the progress of work on many hosts: a status line, then a table on a terminal; occasional lines without one.

Worker threads only set their phase. The thread that waits for them draws. Quick work shows nothing. Only the table
imports rich.
"""

from __future__ import annotations

import contextlib
import textwrap
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TextIO

from ..output.console import Console, fold, fold_messages

if TYPE_CHECKING:
    from rich.live import Live

STATUS_AFTER, STATUS_EVERY = 0.05, 0.1
"""Seconds until a status line appears on a terminal, and between its drawings."""

TABLE_AFTER, TABLE_EVERY = 1.5, 0.25
"""Seconds until a table replaces the status line, and between its drawings."""

LINE_AFTER = 10.0
"""Seconds until a line names the hosts still working, without a terminal; the interval doubles each time."""

FAILURE_AFTER = 1.0
"""Seconds that the other hosts have to finish before a failure is printed."""

ROWS = 16
"""Maximum number of hosts with a row each. With more hosts, each phase has a row."""

NAMED = 4
"""Maximum number of hosts named per phase: those that have been in it longest."""

REASON = 100  # characters of one in a line; the command says the rest at its end
WAITING, DONE, FAILED = "waiting", "done", "failed"


@dataclass(frozen=True)
class Row:
    """One host."""

    host: str
    phase: str
    seconds: float
    """How long it has been in this phase."""
    failure: str = ""
    amount: str = ""
    """How much of its work is done, such as `3.1 MB of 20.0 MB`."""


class NoProgress:
    """Shows nothing."""

    # called by worker threads

    def set_phase(self, host: str, phase: str) -> None:
        """The host starts this part of its work."""

    def set_amount(self, host: str, amount: str) -> None:
        """How much of its work the host has done."""

    def set_connection_phase(self, host: str, phase: str) -> None:
        """The work waits for a connection, which is in this phase. `""`: it is connected."""

    def finish(self, host: str, failure: str = "") -> None:
        """The work on this host is done or has failed."""

    # called by the thread that waits for the workers

    @contextlib.contextmanager
    def track(self, hosts: Sequence[str]) -> Iterator[None]:
        """Show the progress on these hosts inside the context."""
        yield

    def tick(self) -> float | None:
        """Draw, if it is time. Returns the seconds until it is time again."""
        return None


class Progress(NoProgress):
    """Shows one piece of work on many hosts at a time; other hosts are ignored."""

    def __init__(self, console: Console, stream: TextIO, live: bool, clock: Callable[[], float] = time.monotonic):
        self._console = console
        self._stream = stream
        self._is_live = live
        self._clock = clock
        self._phases: dict[str, str] = {}
        self._connection_phases: dict[str, str] = {}
        self._amounts: dict[str, str] = {}
        self._since: dict[str, float] = {}
        self._failures: dict[str, str] = {}
        self._began = 0.0
        self._due = 0.0
        self._pause = LINE_AFTER
        self._reported = 0
        self._live: Live | None = None

    def set_phase(self, host: str, phase: str) -> None:
        if self._phases.get(host, DONE) not in (DONE, FAILED):
            self._since[host] = self._clock()
            self._phases[host] = phase

    def set_amount(self, host: str, amount: str) -> None:
        self._amounts[host] = amount

    def set_connection_phase(self, host: str, phase: str) -> None:
        if host in self._connection_phases:
            self._since[host] = self._clock()
            self._connection_phases[host] = phase

    def finish(self, host: str, failure: str = "") -> None:
        if host in self._phases:
            self._failures[host] = failure
            self._phases[host] = FAILED if failure else DONE

    @contextlib.contextmanager
    def track(self, hosts: Sequence[str]) -> Iterator[None]:
        self._began = self._clock()
        self._connection_phases = dict.fromkeys(hosts, "")
        self._amounts = {}
        self._since = dict.fromkeys(hosts, self._began)
        self._failures = {}
        self._phases = dict.fromkeys(hosts, WAITING)
        self._pause = STATUS_AFTER if self._is_live else LINE_AFTER
        self._due = self._began + self._pause
        self._reported = 0
        try:
            yield
        finally:
            self._phases, self._connection_phases = {}, {}
            self._console.status("")
            if self._live is not None:
                with contextlib.suppress(OSError):
                    self._live.stop()
                self._live = None

    def tick(self) -> float:
        now = self._clock()
        if not self._is_live and self._count_failures() > self._reported:
            self._reported = self._count_failures()
            self._due = min(self._due, now + FAILURE_AFTER)
        if now >= self._due:
            if self._is_live:
                with contextlib.suppress(OSError):  # the work continues without its terminal
                    self._due = now + self._draw(now)
            else:
                self._pause *= 2
                self._due = now + self._pause  # before the line: Ctrl-C may come as soon as it is printed
                self._console.step(line(self.rows(now), now - self._began))
        return min(self._due - now, FAILURE_AFTER)

    def _count_failures(self) -> int:
        return sum(map(bool, list(self._failures.values())))

    def rows(self, now: float) -> list[Row]:
        return [
            Row(host, phase, 0.0, self._failures.get(host, ""))
            if phase in (DONE, FAILED)
            else Row(
                host,
                self._connection_phases[host] or phase,
                now - self._since[host],
                amount=self._amounts.get(host, ""),
            )
            for host, phase in self._phases.items()
        ]

    def _draw(self, now: float) -> float:
        """Draw the status line or the table. Returns the seconds until it is time again."""
        if now - self._began < TABLE_AFTER:
            self._console.status(status(self.rows(now), now - self._began))
            return STATUS_EVERY
        self._console.status("")
        self._draw_table(now)
        return TABLE_EVERY

    def _draw_table(self, now: float) -> None:
        from rich.console import Console as Rich
        from rich.live import Live

        if self._live is None:
            rich = Rich(file=self._stream)
            # this thread refreshes it; it disappears at the end, when the results are printed
            self._live = Live(
                console=rich, auto_refresh=False, transient=True, redirect_stdout=False, redirect_stderr=False
            )
            self._live.start()
        size = self._live.console.size
        self._live.update(table(self.rows(now), now - self._began, size.height), refresh=True)


def line(rows: Sequence[Row], seconds: float) -> str:
    """`61 of 64 hosts done after 10 s; connecting: gpu-17; failed: gpu-33: connect: no answer in time`."""
    parts = [f"{_count(rows)} after {seconds:.0f} s"]
    parts += [f"{phase}: {fold(row.host for row in some)}" for phase, some in _by_phase(rows).items()]
    reasons = {row.host: textwrap.shorten(row.failure, REASON, placeholder=" ...") for row in rows if row.failure}
    if failures := fold_messages(reasons):
        parts.append(f"failed: {'; '.join(failures)}")
    return "; ".join(parts)


def status(rows: Sequence[Row], seconds: float) -> str:
    """`connecting: gpu-17, gpu-18; checking: gpu-01 (61 of 64 hosts done, 0.8 s)`."""
    phases = "; ".join(f"{phase}: {_names(some)}" for phase, some in _by_phase(rows).items())
    return f"{phases or 'waiting'} ({_count(rows)}, {seconds:.1f} s)"


def table(rows: Sequence[Row], seconds: float, height: int) -> Any:
    """A table for rich of at most `height` lines: a row per host, or per phase if there are many hosts."""
    from rich.table import Table
    from rich.text import Text

    drawn = Table(box=None, pad_edge=False, header_style="bold", title_justify="left", title_style="")
    drawn.title = f"{_count(rows)}, {seconds:.0f} s"
    room = max(1, height - 4)  # without title, header and the cursor line
    if len(rows) <= min(ROWS, room):
        columns, lines = ("HOST", "PHASE", "SECONDS", ""), [_host_cells(row) for row in rows]
    else:
        columns, lines = ("PHASE", "HOSTS", "SECONDS", ""), _group_cells(rows, room)
    for name in columns:
        # rich narrows only columns that may wrap, so only the last one; its texts have no_wrap
        drawn.add_column(name, justify="right" if name in ("HOSTS", "SECONDS") else "left", no_wrap=bool(name))
    for cells in lines:
        style = {DONE: "dim", FAILED: "red"}.get(cells[0] if columns[0] == "PHASE" else cells[1], "")
        # Text: a name is data, not markup
        drawn.add_row(*(Text(cell, no_wrap=True, overflow="ellipsis") for cell in cells), style=style)
    return drawn


def _host_cells(row: Row) -> tuple[str, ...]:
    return row.host, row.phase, _seconds(row), _one_line(row.failure) or row.amount


def _group_cells(rows: Sequence[Row], room: int) -> list[tuple[str, ...]]:
    """Running hosts by phase, the slowest first; failed ones by reason; the number that are done."""
    lines: list[tuple[str, ...]] = []
    by_phase = [(phase, sorted(some, key=lambda row: -row.seconds)) for phase, some in _by_phase(rows).items()]
    for phase, some in sorted(by_phase, key=lambda item: -item[1][0].seconds):
        lines.append((phase, str(len(some)), _seconds(some[0]), _names(some)))
    reasons: dict[str, list[Row]] = {}
    for row in rows:
        if row.failure:
            reasons.setdefault(_one_line(row.failure), []).append(row)
    for reason, some in reasons.items():
        lines.append((FAILED, str(len(some)), "", f"{_names(some)}: {reason}"))
    done = sum(row.phase == DONE for row in rows)
    lines.insert(0, (DONE, str(done), "", ""))
    if len(lines) > room:
        lines[room - 1 :] = [("...", "", "", f"{len(lines) - room + 1} more such lines")]
    return lines


def _by_phase(rows: Iterable[Row]) -> dict[str, list[Row]]:
    """Running hosts, by phase."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        if row.phase not in (DONE, FAILED):
            groups.setdefault(row.phase, []).append(row)
    return groups


def _count(rows: Sequence[Row]) -> str:
    done = sum(row.phase == DONE for row in rows)
    return f"{done} of {len(rows)} host{'' if len(rows) == 1 else 's'} done"


def _seconds(row: Row) -> str:
    return "" if row.phase in (WAITING, DONE, FAILED) else f"{row.seconds:.1f}"


def _names(rows: Sequence[Row]) -> str:
    names = ", ".join(row.host for row in rows[:NAMED])
    return names + (f" and {len(rows) - NAMED} more" if len(rows) > NAMED else "")


def _one_line(text: str) -> str:
    from ..output.terminal import tame

    return " ".join(tame(text, colour=False).split())
