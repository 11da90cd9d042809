"""Watch a run: the journals of all hosts as one stream of lines. Goes on where a broken connection left off."""

from __future__ import annotations

import math
import queue
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..answers.attach import ATTACH, Attached, Live, Pieces
from ..answers.decode import MalformedAnswer
from ..answers.hello import CLOCK
from ..answers.operation import Arguments
from ..errors import OrchError, UnreachableError
from ..hosts.claims import Ranks
from ..hosts.fleet import Fleet, unexpected
from ..hosts.session import Refused, Session
from ..inventory.model import Host
from ..output.lines import Line, LineAssembler, Mask, Merger
from ..ssh.pipe import ConnectFailure

RECONNECT_MOST = 30.0  # s between tries to reach a host again
SHOW_EVERY = 0.05  # s
# These three bound the memory: half a KiB a line, of some 70 bytes in the journal.
QUEUE = 64  # frames, of at most 256 KiB each, that wait to be shown
TAKE_MOST = 2 << 20  # bytes of them that become lines at a time
HELD_MOST = 200_000  # lines of fast hosts that wait for those of slower ones, all hosts together
STREAMS_MOST = 20_000  # of one host: two a rank and attempt
# What a view whose lines are kept takes of all hosts together, and of each host at least
KEPT_BYTES, KEPT_LINES = 128 << 20, 1_000_000
KEPT_BYTES_LEAST, KEPT_LINES_LEAST = 16 << 20, 100_000
AWAY_PATIENCE = 5.0  # s that a host which is away keeps us once the run is over elsewhere
# s of silence until an unfinished line (a prompt, a progress bar) is shown; to a file or a pipe, where lines are to be
# whole and a rank that waits for a busy host has no reason to look as if it had asked something, later
IDLE_SHOW, IDLE_SHOW_ELSEWHERE = 0.5, 5.0
CLOCK_TRIES = 3
CLOCK_LEAST = 0.02  # s: hosts that keep their clocks by NTP differ by less, and their times are shown as they are

# No login becomes possible by trying it again, and trying locks accounts.
PERMANENT = {"ssh-auth-denied", "ssh-key-permissions", "ssh-host-key-changed", "ssh-host-key-unknown"}


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
        self._mask = mask
        self._run_id = run_id
        self._hosts = hosts
        self._choice = choice
        self._fleet = fleet
        self._warn = warn
        self._ranks = ranks
        self._warned: set[str] = set()  # of hosts that send lines of other hosts' ranks
        self._idle_show = IDLE_SHOW if on_terminal else IDLE_SHOW_ELSEWHERE
        self._kept = kept
        self._late = late
        self._events: queue.Queue[tuple[str, str, Any]] = queue.Queue(QUEUE)
        self._assemblers: dict[tuple[str, str], LineAssembler] = {}
        self._expected: dict[tuple[str, str], int] = {}  # the offset behind what a stream has been fed
        self._unfinished: dict[tuple[str, str], float] = {}  # where a line may be, and the time of its last piece
        self._newest: dict[str, float] = {}  # the time of a host's last piece
        self._heard: dict[str, float] = {}  # when it came
        self._came: Counter[str] = Counter()  # frames of a host: each counted by its own thread
        self._taken: Counter[str] = Counter()  # those of them that were fed
        self._first_ahead = 0.0  # s that the first host's clock is ahead of ours
        self._ahead: dict[str, float] = {}  # s that a host's clock is ahead of the first one's
        self._merger = Merger(())
        self._stopped = threading.Event()
        self._over = threading.Event()  # nobody needs to wait for a host that is away
        self._over_at = math.inf
        self._away: dict[str, OrchError] = {}  # hosts whose connection broke and is not there again, and why
        self.outcomes: dict[str, Attached] = {}
        self.failed: dict[str, OrchError] = {}

    @property
    def ahead(self) -> Mapping[str, float]:
        """Seconds that a host's clock is ahead of the first one's; known once `run` has begun."""
        return self._ahead

    def run(self, show: Callable[[list[Line]], None]) -> None:
        """Show lines until every source has ended; at least every SHOW_EVERY `show` is called, if with none."""
        self._compare_clocks()
        readers = [threading.Thread(target=self._read, args=(host,), daemon=True) for host in self._hosts]
        for reader in readers:
            reader.start()
        open_sources = {host.name for host in self._hosts}
        try:
            while open_sources:
                for host, kind, value in self._take():
                    match kind:
                        case "data":
                            self._feed(host, value)
                        case "live":
                            self._merger.live(host)
                        case "clock":
                            self._merger.set_offset(host, value)
                        case _:  # "end"
                            self._merger.live(host)
                            open_sources.discard(host)
                now = time.monotonic()
                open_sources -= self._given_up(now)
                self._show_unfinished(now)
                show(self._merger.ready(now))
        finally:
            self._stopped.set()
            self._over.set()
        for (host, name), assembler in self._assemblers.items():
            outcome = self.outcomes.get(host)
            if outcome is None or name not in outcome.cut:  # else the line goes on, after the time wanted
                self._merger.add(host, assembler.flush(), time.monotonic())
        show(self._merger.flush())

    def _given_up(self, now: float) -> set[str]:
        """Hosts that are waited for no longer: a host that is dead is not found by dialling it once more."""
        if self._over.is_set():
            self._over_at = min(self._over_at, now)
        if now - self._over_at < AWAY_PATIENCE:
            return set()
        for name, error in list(self._away.items()):
            self.failed[name] = error
            self._merger.live(name)
        return set(self._away)

    def _compare_clocks(self) -> None:
        hosts = [host for host in self._hosts if host.name not in self._late]
        found = self._fleet.each(hosts, lambda _, session: clock_ahead(session)).done
        self._first_ahead = next(iter(found.values()), 0.0)
        self._ahead = {host: ahead - self._first_ahead for host, ahead in found.items()}
        self._merger = Merger((host.name for host in hosts), self._ahead)

    def _take(self) -> list[tuple[str, str, Any]]:
        """What has come in, after at most a moment."""
        taken, size = [], 0
        try:
            taken.append(self._events.get(timeout=SHOW_EVERY))
            while len(taken) < QUEUE and size < TAKE_MOST:
                taken.append(self._events.get_nowait())
                size += len(taken[-1][2][1]) if taken[-1][1] == "data" else 0
        except queue.Empty:
            pass
        return taken

    def _show_unfinished(self, now: float) -> None:
        """Lines of which no more has come for a moment: nothing at all from their host, or only later pieces.

        What is on its way is no silence: frames wait in `_put`, and we may be late ourselves.
        """
        for (host, name), at in list(self._unfinished.items()):
            silent = self._came[host] == self._taken[host] and now - self._heard[host] >= self._idle_show
            if silent or self._newest[host] - at >= self._idle_show:
                del self._unfinished[host, name]
                lines = self._assemblers[host, name].idle()
                if lines:
                    self._merger.add(host, lines, now)

    def _feed(self, host: str, value: tuple[Pieces, bytes]) -> None:
        header, payload = value
        position = 0
        now = self._heard[host] = time.monotonic()
        self._taken[host] += 1
        for index, offset, length, at in header.parts:
            if not length:  # a search has come so far
                self._merger.passed(host, at / 1e9)
                continue
            key = host, header.streams[index]
            assembler = self._assemblers.get(key)
            if assembler is None:
                if not self._belongs(*key):
                    position += length
                    continue
                assembler = self._assemblers[key] = _assembler(*key, self._mask)
            lines = [] if self._expected.get(key, offset) == offset else assembler.flush()  # what lay between is lost
            self._expected[key] = offset + length
            self._unfinished[key] = self._newest[host] = at / 1e9
            lines += assembler.feed(payload[position : position + length], at / 1e9)
            position += length
            if lines:
                self._merger.add(host, lines, now)

    def _belongs(self, host: str, name: str) -> bool:
        attempt, origin, _ = name.split(".")
        if self._ranks is None or not origin.isdigit() or self._ranks.belongs(int(attempt), int(origin), host):
            return True
        if host not in self._warned:
            self._warned.add(host)
            self._warn(f"{host}: dropped lines of rank {origin}, which is not on this host in attempt {attempt}")
        return False

    # one thread a host

    def _put(self, host: Host, kind: str, value: Any = None) -> None:
        """Waits while the queue is full: whoever shows may be a paused terminal. Not for ever, though.

        It waits as well while too many of the host's lines are held for those of other hosts. The host that all wait
        for has none that are held, so this ends.
        """
        while not self._stopped.is_set():
            if self._merger.held(host.name) > HELD_MOST / len(self._hosts):
                time.sleep(SHOW_EVERY)
                continue
            try:
                self._events.put((host.name, kind, value), timeout=SHOW_EVERY)
                return
            except queue.Full:
                pass

    def _read(self, host: Host) -> None:
        try:
            self._follow(host)
        except BaseException as error:  # noqa: BLE001  `run` would wait for this host for ever
            self.failed[host.name] = unexpected(host.name, error)
        self._put(host, "end")

    def _follow(self, host: Host) -> None:
        """Read until the end; again from where it broke off, as long as the run may go on."""
        offsets: dict[str, int] = {}
        wait = 0.5
        told = last = live = False
        share = _Share(host.name, len(self._hosts))

        def on_data(header: Pieces | Live, payload: bytes) -> None:
            nonlocal live
            if isinstance(header, Live):
                live = True
                offsets.update(header.offsets)
            else:
                for index, offset, length, _ in header.parts:
                    offsets[header.streams[index]] = offset + length
            if len(offsets) > STREAMS_MOST:
                raise MalformedAnswer(f"attach: more than {STREAMS_MOST} streams")
            if isinstance(header, Live):
                self._put(host, "live")
                return
            if self._kept:
                share.take(payload)
            self._came[host.name] += 1
            self._put(host, "data", (header, payload))

        while not self._stopped.is_set():
            try:
                session = self._fleet.session(host)
                self._away.pop(host.name, None)
                if host.name in self._late and host.name not in self._ahead:
                    self._ahead[host.name] = clock_ahead(session) - self._first_ahead
                    self._put(host, "clock", self._ahead[host.name])
                if told:
                    self._warn(f"{host.name}: connected again")
                    told, wait = False, 0.5
                outcome = session.follow(ATTACH, self._question(host, offsets, live), on_data)
                self.outcomes[host.name] = outcome
                if outcome.run is not None and outcome.run.verdict is not None:
                    self._over.set()
                return
            except Refused as error:
                if host.name not in self._late or error.code != "no-such-run":  # nobody knew whether it has a part
                    self.failed[host.name] = error
                return
            except UnreachableError as error:
                if self._stopped.is_set():
                    return  # we have closed it ourselves
                denied = isinstance(error, ConnectFailure) and error.code in PERMANENT
                if last or denied or not self._choice.follow:
                    if denied and self._choice.follow:
                        self._warn(f"{error}; its lines are missing from here on")
                    self.failed[host.name] = error
                    return
                if not told:
                    over = self._over.is_set()
                    then = "once more, as the run is over" if over else "again; the run does not wait for that"
                    self._warn(f"{error}; trying to reach it {then}")
                    told = True
                    self._put(host, "live")  # the others' lines do not wait for it
                self._away[host.name] = error
                # once the run is over elsewhere: one more try
                last = self._over.wait(random.uniform(0.2, wait))  # noqa: S311
                wait = min(RECONNECT_MOST, wait * 2)

    def _question(self, host: Host, offsets: Mapping[str, int], live: bool) -> Arguments:
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


class _Share:
    """What one host may send to a view whose lines are kept: `tail` and `grep` are only wishes."""

    def __init__(self, host: str, hosts: int) -> None:
        self._host = host
        self._bytes = max(KEPT_BYTES_LEAST, KEPT_BYTES // hosts)
        self._lines = max(KEPT_LINES_LEAST, KEPT_LINES // hosts)

    def take(self, payload: bytes) -> None:
        """Raises Refused."""
        self._bytes -= len(payload)
        self._lines -= payload.count(b"\n") + payload.count(b"\r")
        if min(self._bytes, self._lines) < 0:
            raise Refused("unknown", f"{self._host}: it sends more lines than can be kept; the later ones are left out")


def _ns(at: float | None, ahead: float) -> int | None:
    """The time on the clock of a host, as its journal keeps it."""
    return None if at is None else int((at + ahead) * 1e9)


def _assembler(host: str, name: str, mask: Mask | None) -> LineAssembler:
    attempt, origin, channel = name.split(".")
    if origin.isdigit():
        return LineAssembler(host, int(origin), {"out": "stdout", "err": "stderr"}[channel], int(attempt), mask)
    return LineAssembler(host, None, "agent", int(attempt), mask)
