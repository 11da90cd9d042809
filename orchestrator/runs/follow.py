"""Follow a run: the journals of all hosts as one stream of lines, and the state of the run on each host at the end."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from ..answers.attach import Attached
from ..answers.hello import CLOCK
from ..answers.operation import Arguments
from ..errors import OrchError
from ..hosts.claims import Ranks
from ..hosts.fleet import Fleet
from ..hosts.session import Session
from ..inventory.model import Host
from ..output.intake import Intake
from ..output.lines import Line
from ..output.mask import Mask
from ..output.pipeline import Pipeline, Stage
from ..output.span import ALL, Span
from ..output.span import parse as parse_span
from . import registry
from .readers import Away, Back, CaughtUp, Clock, Data, Ended, Event, Readers, WithoutGuard

MIN_PAUSE, MAX_PAUSE = 0.02, 1.0  # s between two turns of the loop that shows lines
GUARD_PATIENCE = 5.0  # s to wait for a guard, once no host of the run has one
AWAY_PATIENCE = 5.0  # s to wait for a host that is away, once the run has ended on another
UNAWARE_PATIENCE = 5.0  # s to wait for a host to end its part, once the run has ended on another, before all are asked
# s of silence after which an unfinished line, such as a prompt or a progress bar, is shown. Longer in a file or pipe:
# nobody answers a prompt there, and a line that a slow rank is still writing shall stay whole.
IDLE_AFTER, IDLE_AFTER_PIPED = 0.5, 5.0
CLOCK_TRIES = 3
ADDED = re.compile(r"ddp-orch: (?P<host>\S+) was added; it is a spare\b")
MIN_CLOCK_DIFFERENCE = 0.02  # s; the clocks of hosts that use NTP differ by less, so their times are not corrected


@dataclass(frozen=True)
class LogFilter:
    """Which lines to show. `None` means all."""

    follow: bool
    """Wait for more lines until the run ends."""
    tail: int | None = None
    """The last lines of each stream."""
    ranks: frozenset[int] | None = None
    attempt: int | None = None
    stream: str | None = None
    """stdout, stderr or agent."""
    since: float | None = None
    """Unix time, seconds, by the clock of the run's first host; `until` too."""
    until: float | None = None
    grep: str | None = None
    """A regular expression, searched on the hosts."""


def clock_ahead(session: Session) -> float:
    """Seconds by which the host's clock is ahead of the controller's; 0 if that is too little to be measured.

    The answer with the shortest round trip is the most precise: off by half of the round trip at most.
    """
    shortest, ahead = math.inf, 0.0
    for _ in range(CLOCK_TRIES):
        asked_at, began = time.time(), time.monotonic()
        clock = session.request(CLOCK, {}).clock
        round_trip = time.monotonic() - began
        if round_trip < shortest:
            shortest, ahead = round_trip, clock - (asked_at + round_trip / 2)
    return ahead if abs(ahead) > max(MIN_CLOCK_DIFFERENCE, shortest / 2) else 0.0


def span_by_clock_of(hosts: Sequence[Host], since: str | None, until: str | None, fleet: Fleet) -> Span:
    """The span of both options by the clock of the first host: `5m` is relative to now, even if that clock is wrong.

    Raises UsageError.
    """
    if since is None and until is None:
        return ALL
    ahead = fleet.each(hosts[:1], lambda _, session: clock_ahead(session)).done
    return parse_span(since, until, time.time() + next(iter(ahead.values()), 0.0))


# --- one host


@dataclass(frozen=True)
class FollowedHost:
    """What a view knows about one host."""

    is_open: bool = True
    """More events may come from it."""
    away: OrchError | None = None
    """Why its connection broke, until it is connected again."""
    has_guard: bool = True
    outcome: Attached | None = None
    """Its final answer to `attach`."""
    failure: OrchError | None = None
    """Why there is no such answer."""
    is_unaware: bool = False
    """The run has ended, and this host waits for the others, because it was cut off when they ended."""


def update(host: FollowedHost, event: Event) -> FollowedHost:
    match event:
        case Data() | Clock():
            return host
        case CaughtUp():
            return replace(host, has_guard=True)
        case WithoutGuard():
            return replace(host, has_guard=False)
        case Away(error):
            return replace(host, away=error)
        case Back():
            return replace(host, away=None)
        case Ended(outcome, failure):
            return FollowedHost(False, None, host.has_guard, outcome or host.outcome, failure or host.failure)


def give_up(host: FollowedHost) -> FollowedHost:
    """Wait no longer for a host that is away."""
    return host if host.away is None else replace(host, is_open=False, failure=host.away)


# --- all hosts


class View:
    """Shows the lines of all hosts with `run`. Afterwards `outcomes` has the state of the run on each host."""

    def __init__(
        self,
        run_id: str,
        hosts: Sequence[Host],
        log_filter: LogFilter,
        fleet: Fleet,
        warn: Callable[[str], None],
        on_terminal: bool = True,
        ranks: Ranks | None = None,
        *,
        kept: bool = False,
        late: Collection[str] = (),
        mask: Mask | None = None,
        revive: Callable[[Host], None] | None = None,
        note: Callable[[str], None] | None = None,
        find_host: Callable[[str], Host | None] = lambda _: None,
    ) -> None:
        """`kept`: the caller keeps all lines in memory, so their number is limited. `late`: hosts that did not answer
        yet; the lines of the others do not wait for theirs. `mask`: no line is cut inside of a secret.
        `revive`: called, in threads, for a host that has no guard while the run is not over there. `note`: prints good
        news; None: `warn` does. `find_host`: finds a host that was added to the run, by its name, to follow it as well.
        """
        self._run_id = run_id
        self._hosts = hosts
        self._filter = log_filter
        self._revive = revive
        self._fleet = fleet
        self._find_host = find_host
        self.added: list[str] = []  # the hosts that were added to the run since it is followed
        self._followed = {host.name: FollowedHost() for host in hosts}
        self._late = late
        self._first_ahead = 0.0  # s by which the first host's clock is ahead of the controller's
        self._ahead: dict[str, float] = {}
        self._readers = Readers(self, hosts, fleet, warn, note or warn, late, follow=log_filter.follow, kept=kept)
        idle_after = IDLE_AFTER if on_terminal else IDLE_AFTER_PIPED
        names = [host.name for host in hosts]
        self._intake = Intake(names, late, idle_after, _RankFilter(ranks, warn).allows, self._readers.on_its_way, mask)

    @property
    def ahead(self) -> Mapping[str, float]:
        """Seconds by which each host's clock is ahead of the first host's; empty until `run` starts."""
        return self._ahead

    @property
    def outcomes(self) -> Mapping[str, Attached]:
        return {name: host.outcome for name, host in self._followed.items() if host.outcome is not None}

    @property
    def failed(self) -> Mapping[str, OrchError]:
        return {name: host.failure for name, host in self._followed.items() if host.failure is not None}

    @property
    def unaware(self) -> Collection[str]:
        """The hosts that do not know that the run has ended."""
        return [name for name, host in self._followed.items() if host.is_unaware]

    def is_cut_off(self) -> bool:
        """Whether the connection to a host is broken, so that its lines are missing."""
        return any(host.away is not None for host in self._followed.values())

    def run(self, output: Stage) -> None:
        """Send lines through `output` until no host can send more, then flush it."""
        self._compare_clocks()
        pipeline = Pipeline((self._intake, _Newcomers(self._add), output))
        patient_until = wake_at = guarded_until = ask_at = math.inf
        self._readers.start()
        try:
            while any(host.is_open for host in self._followed.values()):
                events = self._readers.take(min(MAX_PAUSE, max(MIN_PAUSE, wake_at - time.monotonic())))
                now = time.monotonic()
                for name, event in events:
                    self._note(name, event, now)
                guarded_until = min(guarded_until, now + GUARD_PATIENCE) if self._no_guard_is_left() else math.inf
                if now >= guarded_until:
                    self._readers.run_ended.set()
                if self._readers.run_ended.is_set():
                    patient_until = min(patient_until, now + AWAY_PATIENCE)
                    ask_at = min(ask_at, now + UNAWARE_PATIENCE)
                if now >= patient_until:
                    self._give_up()
                if now >= ask_at:
                    self._leave_unaware()
                    ask_at = time.monotonic() + UNAWARE_PATIENCE
                pipeline.push((), now)
                wake_at = min(pipeline.wake_at, patient_until if now < patient_until else math.inf)
        finally:
            self._readers.stop()
        for name, outcome in self.outcomes.items():
            self._intake.forget(name, outcome.cut)  # the rest of these lines was written after `until`
        pipeline.flush(time.monotonic())

    def _add(self, name: str) -> None:
        """Follow a host that was added to the run."""
        if name in self._followed or not self._filter.follow:
            return
        host = self._find_host(name)
        if host is not None:
            self.added.append(name)
            self._hosts = [*self._hosts, host]
            self._followed[name] = FollowedHost()
            self._intake.add_host(name)
            self._readers.add(host)

    def _compare_clocks(self) -> None:
        hosts = [host for host in self._hosts if host.name not in self._late]
        clocks = self._fleet.each(hosts, lambda _, session: clock_ahead(session)).done
        self._first_ahead = next(iter(clocks.values()), 0.0)
        for name, ahead in clocks.items():
            self._ahead[name] = ahead - self._first_ahead
            self._intake.set_clock(name, self._ahead[name])

    def _note(self, name: str, event: Event, now: float) -> None:
        self._followed[name] = update(self._followed[name], event)
        match event:
            case Data(pieces, payload):
                self._intake.feed(name, pieces.streams, pieces.parts, payload, now)
            case Clock(ahead):
                self._intake.set_clock(name, ahead)
            case CaughtUp() | Away() | WithoutGuard() | Ended():
                self._intake.live(name)  # the lines of the other hosts need not wait for it
            case Back():
                pass

    def _give_up(self) -> None:
        for name, host in self._followed.items():
            if host.away is not None:
                self._followed[name] = give_up(host)
                self._intake.live(name)

    def _leave_unaware(self) -> None:
        """Ask all hosts how the run has ended: the one that says so may have been cut off from the others."""
        asked = [host for host in self._hosts if self._followed[host.name].away is None]
        run = next((run for run in registry.find(self._fleet, asked).runs if run.run_id == self._run_id), None)
        for name, part in run.parts.items() if run is not None and run.broken else ():
            if part.unfinished and self._followed[name].is_open:
                self._followed[name] = replace(self._followed[name], is_open=False, is_unaware=True)
                self._intake.live(name)

    def _no_guard_is_left(self) -> bool:
        is_open = [host for host in self._followed.values() if host.is_open]
        return bool(is_open) and not any(host.has_guard or host.away for host in is_open)

    # what the readers call from their threads

    def revive(self, host: Host) -> None:
        if self._revive is not None:
            self._revive(host)

    def held(self, name: str) -> int:
        """The number of the host's lines that wait for earlier lines of other hosts."""
        return self._intake.held(name)

    def compare_clock(self, host: Host, session: Session) -> float:
        """Compare the clock of a host that was not reachable before: seconds ahead of the first host's."""
        self._ahead[host.name] = clock_ahead(session) - self._first_ahead
        return self._ahead[host.name]

    def question(self, host: Host, offsets: Mapping[str, int], live: bool) -> Arguments:
        """The arguments of `attach`. `live`: the journal was read up to its end before the connection broke."""
        log_filter = self._filter
        ahead = self._ahead.get(host.name, 0.0)
        return {
            "run_id": self._run_id,
            "offsets": dict(offsets),
            "follow": log_filter.follow,
            # read streams that began while the connection was broken from their beginning
            "tail": None if live else log_filter.tail,
            "since": None if live else _ns(log_filter.since, ahead),
            "until": _ns(log_filter.until, ahead),
            "sources": None if log_filter.ranks is None else [str(rank) for rank in sorted(log_filter.ranks)],
            "stream": log_filter.stream,
            "attempt": log_filter.attempt,
            "grep": log_filter.grep,
        }


class _Newcomers(Stage):
    """Calls a function with the name of each host that the log reports as added to the run."""

    def __init__(self, add: Callable[[str], None]) -> None:
        self._add = add

    def push(self, lines: Sequence[Line], now: float) -> Sequence[Line]:
        for line in lines:
            if line.rank is None and (match := ADDED.match(line.text)):
                self._add(match["host"])
        return lines


class _RankFilter:
    """Drop lines of ranks that are not on the host which sends them, and warn once per host."""

    def __init__(self, ranks: Ranks | None, warn: Callable[[str], None]) -> None:
        self._ranks = ranks
        self._warn = warn
        self._warned: set[str] = set()

    def allows(self, host: str, stream: str) -> bool:
        attempt, origin, _ = stream.split(".")
        if self._ranks is None or not origin.isdigit() or self._ranks.belongs(int(attempt), int(origin), host):
            return True
        if host not in self._warned:
            self._warned.add(host)
            self._warn(f"{host}: dropped lines of rank {origin}, which is not on this host in attempt {attempt}")
        return False


def _ns(at: float | None, ahead: float) -> int | None:
    """Unix time in nanoseconds by the clock of a host, as in its journal."""
    return None if at is None else int((at + ahead) * 1e9)
