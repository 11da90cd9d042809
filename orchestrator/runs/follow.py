"""Watch a run: the journals of all hosts as one stream of lines, and how the run stands on each host at the end."""

from __future__ import annotations

import math
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
from ..output.mask import Mask
from ..output.pipeline import Pipeline, Stage
from .readers import Away, Back, CaughtUp, Clock, Data, Ended, Event, Readers

SHOW_LEAST, SHOW_MOST = 0.02, 1.0  # s from one turn to the next
AWAY_PATIENCE = 5.0  # s that a host which is away keeps us once the run is over elsewhere
# s of silence until an unfinished line (a prompt, a progress bar) is shown; to a file or a pipe, where lines are to be
# whole and a rank that waits for a busy host has no reason to look as if it had asked something, later
IDLE_SHOW, IDLE_SHOW_ELSEWHERE = 0.5, 5.0
CLOCK_TRIES = 3
CLOCK_LEAST = 0.02  # s: hosts that keep their clocks by NTP differ by less, and their times are shown as they are


@dataclass(frozen=True)
class LogFilter:
    """Which lines are wanted. Times are Unix seconds by the clock of the run's first host."""

    follow: bool
    tail: int | None = None
    ranks: frozenset[int] | None = None
    attempt: int | None = None
    stream: str | None = None
    since: float | None = None
    until: float | None = None
    grep: str | None = None


def clock_ahead(session: Session) -> float:
    """Seconds the host's clock is ahead of ours; 0 where the difference is too small to be told for sure."""
    best_way, best = float("inf"), 0.0
    for _ in range(CLOCK_TRIES):
        asked, began = time.time(), time.monotonic()
        clock = session.request(CLOCK, {}).clock
        way = time.monotonic() - began
        if way < best_way:
            best_way, best = way, clock - (asked + way / 2)
    return best if abs(best) > max(CLOCK_LEAST, best_way / 2) else 0.0


# --- what is known of one host


@dataclass(frozen=True)
class HostView:
    """What is known of one host of a view."""

    is_open: bool = True  # more may come from it
    away: OrchError | None = None  # why its connection broke, while it is not there again
    outcome: Attached | None = None  # its answer to `attach`
    failure: OrchError | None = None


def update(host: HostView, event: Event) -> HostView:
    match event:
        case Data() | CaughtUp() | Clock():
            return host
        case Away(error):
            return replace(host, away=error)
        case Back():
            return replace(host, away=None)
        case Ended(outcome, failure):
            return HostView(False, None, outcome or host.outcome, failure or host.failure)


def give_up(host: HostView) -> HostView:
    """Wait no longer for a host that is away: one that is dead is not found by dialling it once more."""
    return host if host.away is None else replace(host, is_open=False, failure=host.away)


# --- all of them


class View:
    """`run` shows lines until all sources have ended; then `outcomes` says how the run stands on each host."""

    def __init__(
        self,
        run_id: str,
        hosts: Sequence[Host],
        choice: LogFilter,
        fleet: Fleet,
        warn: Callable[[str], None],
        on_terminal: bool = True,
        ranks: Ranks | None = None,
        *,
        kept: bool = False,
        late: Collection[str] = (),
        mask: Mask | None = None,
    ) -> None:
        """`kept`: the lines are all kept in memory, so a host may send only so many. `late`: hosts that are silent so
        far; nothing waits for them, and their lines are shown when they come. No line is cut within what `mask` hides.
        """
        self._run_id = run_id
        self._hosts = hosts
        self._choice = choice
        self._fleet = fleet
        self._known = {host.name: HostView() for host in hosts}
        self._late = late
        self._first_ahead = 0.0  # s that the first host's clock is ahead of ours
        self._ahead: dict[str, float] = {}
        self._readers = Readers(self, hosts, fleet, warn, late, follow=choice.follow, kept=kept)
        idle_after = IDLE_SHOW if on_terminal else IDLE_SHOW_ELSEWHERE
        names = [host.name for host in hosts]
        self._intake = Intake(names, late, idle_after, _Owners(ranks, warn).has, self._readers.on_its_way, mask)

    @property
    def ahead(self) -> Mapping[str, float]:
        """Seconds that a host's clock is ahead of the first one's; known once `run` has begun."""
        return self._ahead

    @property
    def outcomes(self) -> Mapping[str, Attached]:
        return {name: host.outcome for name, host in self._known.items() if host.outcome is not None}

    @property
    def failed(self) -> Mapping[str, OrchError]:
        return {name: host.failure for name, host in self._known.items() if host.failure is not None}

    def run(self, output: Stage) -> None:
        """Send lines through `output` until every source has ended, and at its end flush it."""
        self._compare_clocks()
        pipeline = Pipeline((self._intake, output))
        patient_until = wake_at = math.inf
        self._readers.start()
        try:
            while any(host.is_open for host in self._known.values()):
                events = self._readers.take(min(SHOW_MOST, max(SHOW_LEAST, wake_at - time.monotonic())))
                now = time.monotonic()
                for name, event in events:
                    self._note(name, event, now)
                if self._readers.over.is_set():
                    patient_until = min(patient_until, now + AWAY_PATIENCE)
                if now >= patient_until:
                    self._give_up()
                pipeline.push((), now)
                wake_at = min(pipeline.wake_at, patient_until if now < patient_until else math.inf)
        finally:
            self._readers.stop()
        for name, outcome in self.outcomes.items():
            self._intake.forget(name, outcome.cut)  # the line goes on, after the time wanted
        pipeline.flush(time.monotonic())

    def _compare_clocks(self) -> None:
        hosts = [host for host in self._hosts if host.name not in self._late]
        clocks = self._fleet.each(hosts, lambda _, session: clock_ahead(session)).done
        self._first_ahead = next(iter(clocks.values()), 0.0)
        for name, ahead in clocks.items():
            self._ahead[name] = ahead - self._first_ahead
            self._intake.set_clock(name, self._ahead[name])

    def _note(self, name: str, event: Event, now: float) -> None:
        self._known[name] = update(self._known[name], event)
        match event:
            case Data(pieces, payload):
                self._intake.feed(name, pieces.streams, pieces.parts, payload, now)
            case Clock(ahead):
                self._intake.set_clock(name, ahead)
            case CaughtUp() | Away() | Ended():
                self._intake.live(name)  # the others' lines do not wait for it
            case Back():
                pass

    def _give_up(self) -> None:
        for name, host in self._known.items():
            if host.away is not None:
                self._known[name] = give_up(host)
                self._intake.live(name)

    # for the readers, in their threads

    def held(self, name: str) -> int:
        """How many lines of the host wait for those of others."""
        return self._intake.held(name)

    def compare_clock(self, host: Host, session: Session) -> float:
        """Of a host that was silent before: s that its clock is ahead of the first one's."""
        self._ahead[host.name] = clock_ahead(session) - self._first_ahead
        return self._ahead[host.name]

    def question(self, host: Host, offsets: Mapping[str, int], live: bool) -> Arguments:
        """The arguments of `attach`. `live`: the journal has been read to its end before."""
        choice = self._choice
        ahead = self._ahead.get(host.name, 0.0)
        return {
            "run_id": self._run_id,
            "offsets": dict(offsets),
            "follow": choice.follow,
            # a stream that began while we were away is wanted from its beginning
            "tail": None if live else choice.tail,
            "since": None if live else _ns(choice.since, ahead),
            "until": _ns(choice.until, ahead),
            "sources": None if choice.ranks is None else [str(rank) for rank in sorted(choice.ranks)],
            "stream": choice.stream,
            "attempt": choice.attempt,
            "grep": choice.grep,
        }


class _Owners:
    """Which host may send the lines of a rank. Warns once of a host that sends those of another one's."""

    def __init__(self, ranks: Ranks | None, warn: Callable[[str], None]) -> None:
        self._ranks = ranks
        self._warn = warn
        self._warned: set[str] = set()

    def has(self, host: str, stream: str) -> bool:
        attempt, origin, _ = stream.split(".")
        if self._ranks is None or not origin.isdigit() or self._ranks.belongs(int(attempt), int(origin), host):
            return True
        if host not in self._warned:
            self._warned.add(host)
            self._warn(f"{host}: dropped lines of rank {origin}, which is not on this host in attempt {attempt}")
        return False


def _ns(at: float | None, ahead: float) -> int | None:
    """The time on the clock of a host, as its journal keeps it."""
    return None if at is None else int((at + ahead) * 1e9)
