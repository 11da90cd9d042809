"""Read the journals of a run into one queue, with one thread per host. After a lost connection, reading resumes."""

from __future__ import annotations

import queue
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from ..answers.attach import ATTACH, Attached, Live, Pieces
from ..answers.decode import MalformedAnswer
from ..answers.operation import Arguments
from ..errors import OrchError, UnreachableError
from ..hosts.fleet import Fleet, wrap_unexpected
from ..hosts.session import Refused, Session
from ..inventory.model import Host
from ..ssh.pipe import ConnectFailure

# s between two tries to connect to a host again; at most so many, as a host that is booted waits for its reader
MIN_RECONNECT, MAX_RECONNECT = 0.5, 6.0
# These three limit the memory: a line of some 70 bytes in the journal takes half a KiB.
MAX_FRAMES = 64  # frames in the queue, each of at most 256 KiB
MAX_TAKEN = 2 << 20  # bytes of them that become lines at a time
MAX_HELD = 200_000  # lines of all hosts that wait for earlier lines of slower hosts
MAX_STREAMS = 20_000  # per host: two per rank and attempt
# The limit for all hosts together if the caller keeps the lines, and the least share of a host
KEPT_BYTES, KEPT_LINES = 128 << 20, 1_000_000
MIN_KEPT_BYTES, MIN_KEPT_LINES = 16 << 20, 100_000
LOOK_FOR_GUARD = 2.0  # s between two looks for a guard on a host that has none
_PUT_EVERY = 0.05  # s between two tries to put a frame into a full queue

# A login that was refused is refused again, and repeated tries may lock the account.
PERMANENT = {"ssh-auth-denied", "ssh-key-permissions", "ssh-host-key-changed", "ssh-host-key-unknown"}


# --- the events of a host


@dataclass(frozen=True)
class Data:
    """Pieces of streams, as the host sent them."""

    pieces: Pieces
    payload: bytes


@dataclass(frozen=True)
class Clock:
    """The clock of a host that was not reachable at first."""

    ahead: float
    """Seconds ahead of the first host's clock."""


@dataclass(frozen=True)
class CaughtUp:
    """The journal was read to its end. From now on, lines come as they are written."""


@dataclass(frozen=True)
class Away:
    """The connection broke, or connecting again failed. The reader keeps trying."""

    error: OrchError


@dataclass(frozen=True)
class Back:
    """The host is connected again."""


@dataclass(frozen=True)
class WithoutGuard:
    """The run is not over on the host, and has no guard there. The reader looks again, as one may be started."""


@dataclass(frozen=True)
class Ended:
    """The last event of a host."""

    outcome: Attached | None = None
    failure: OrchError | None = None


Event = Data | Clock | CaughtUp | Away | Back | WithoutGuard | Ended


class Consumer(Protocol):
    """What the readers need from the view that they read for. They call it from their threads; see `follow.View`."""

    def question(self, host: Host, offsets: Mapping[str, int], live: bool) -> Arguments: ...

    def held(self, name: str) -> int: ...

    def compare_clock(self, host: Host, session: Session) -> float: ...

    def revive(self, host: Host) -> None: ...


class Readers:
    """The threads that read from the hosts, and the queue that they fill."""

    def __init__(
        self,
        consumer: Consumer,
        hosts: Sequence[Host],
        fleet: Fleet,
        warn: Callable[[str], None],
        note: Callable[[str], None],
        late: Collection[str],
        *,
        follow: bool,
        kept: bool,
    ) -> None:
        """`late`: hosts that may not belong to the run. `kept`: the caller keeps all lines, so there is a limit."""
        self.consumer = consumer
        self.hosts = list(hosts)
        self.fleet = fleet
        self.warn = warn
        self.note = note
        self.late = set(late)
        self.follow = follow
        self.kept = kept
        self.stopped = threading.Event()
        self.run_ended = threading.Event()  # hosts that are away need not be waited for
        self._events: queue.Queue[tuple[str, Event]] = queue.Queue(MAX_FRAMES)
        self._received: Counter[str] = Counter()  # frames per host, counted by the thread of the host
        self._taken: Counter[str] = Counter()  # frames per host that `take` has returned

    def start(self) -> None:
        for host in self.hosts:
            self._start_for(host)

    def add(self, host: Host) -> None:
        """Read from one more host, after `start`."""
        self.hosts.append(host)
        self.late.add(host.name)
        self._start_for(host)

    def _start_for(self, host: Host) -> None:
        threading.Thread(target=_Reader(self, host).run, name=f"view-{host.name}", daemon=True).start()

    def stop(self) -> None:
        self.stopped.set()
        self.run_ended.set()

    def on_its_way(self, host: str) -> bool:
        """Whether there is data from the host that `take` has not returned yet."""
        return self._received[host] != self._taken[host]

    def take(self, timeout: float) -> list[tuple[str, Event]]:
        """The events so far, at least one unless none comes within `timeout` seconds."""
        taken: list[tuple[str, Event]] = []
        size = 0
        try:
            taken.append(self._events.get(timeout=timeout))
            while len(taken) < MAX_FRAMES and size < MAX_TAKEN:
                taken.append(self._events.get_nowait())
                event = taken[-1][1]
                size += len(event.payload) if isinstance(event, Data) else 0
        except queue.Empty:
            pass
        self._taken.update(host for host, event in taken if isinstance(event, Data))
        return taken

    def put(self, host: str, event: Event) -> None:
        """Add an event. Waits while the queue is full, as it is when the user pauses the terminal, or while too many
        lines of this host wait for earlier lines of others. The slowest host waits for no other, so this ends.
        """
        if isinstance(event, Data):
            self._received[host] += 1
        while not self.stopped.is_set():
            if self.consumer.held(host) > MAX_HELD / len(self.hosts):
                time.sleep(_PUT_EVERY)
                continue
            try:
                self._events.put((host, event), timeout=_PUT_EVERY)
                return
            except queue.Full:
                pass


class _Reader:
    """Follows one host in a thread."""

    def __init__(self, readers: Readers, host: Host) -> None:
        self._readers = readers
        self._host = host
        self._allowance = _Allowance(host.name, len(readers.hosts)) if readers.kept else None
        self._offsets: dict[str, int] = {}
        self._live = False
        self._needs_clock = host.name in readers.late
        self._is_away = False
        self._without_guard = 0  # looks in a row that found no guard
        self._wait = MIN_RECONNECT

    def run(self) -> None:
        try:
            ended = self._follow()
        except BaseException as error:  # noqa: BLE001  without Ended, the view would wait for this host for ever
            ended = Ended(failure=wrap_unexpected(self._host.name, error))
        self._readers.put(self._host.name, ended)

    def _follow(self) -> Ended:
        """Read until the end. If the connection breaks, connect again while the run may be running."""
        is_last = False
        while not self._readers.stopped.is_set():
            try:
                ended = self._attach()
                if is_last or not self._misses_guard(ended):
                    return ended
                is_last = self._wait_for_guard()
            except Refused as error:
                has_no_part = self._host.name in self._readers.late and error.code == "no-such-run"
                return Ended(failure=None if has_no_part else error)
            except UnreachableError as error:
                if self._readers.stopped.is_set():
                    break  # the controller closed the connection
                if not self._may_try_again(error) or is_last:
                    return Ended(failure=error)
                self._note_away(error)
                # once the run has ended on another host, one more try
                is_last = self._readers.run_ended.wait(random.uniform(0.2, self._wait))  # noqa: S311
                self._wait = min(MAX_RECONNECT, self._wait * 2)
        return Ended()

    def _attach(self) -> Ended:
        readers, host = self._readers, self._host
        session = readers.fleet.session(host)
        if self._needs_clock:
            readers.put(host.name, Clock(readers.consumer.compare_clock(host, session)))
            self._needs_clock = False
        if self._is_away:
            readers.note(f"{host.name}: connected again")
            readers.put(host.name, Back())
            self._is_away, self._wait = False, MIN_RECONNECT
        question = readers.consumer.question(host, self._offsets, self._live)
        outcome = session.follow(ATTACH, question, self._take)
        if outcome.run is not None and outcome.run.verdict is not None and not outcome.run.has_left:
            readers.run_ended.set()
        return Ended(outcome)

    def _misses_guard(self, ended: Ended) -> bool:
        run = ended.outcome.run if ended.outcome else None
        self._without_guard = self._without_guard + 1 if run is not None and run.lacks_guard else 0
        return self._readers.follow and self._without_guard > 0

    def _wait_for_guard(self) -> bool:
        """Returns whether the run has ended on another host."""
        self._readers.put(self._host.name, WithoutGuard())
        if self._without_guard > 1:  # not at once: a recorder whose guard was killed starts another one by itself
            self._readers.consumer.revive(self._host)
        return self._readers.run_ended.wait(LOOK_FOR_GUARD)

    def _may_try_again(self, error: UnreachableError) -> bool:
        if isinstance(error, ConnectFailure) and error.code in PERMANENT:
            if self._readers.follow:
                self._readers.warn(f"{error}; its later lines are not shown")
            return False
        return self._readers.follow

    def _note_away(self, error: UnreachableError) -> None:
        if not self._is_away:
            ended = self._readers.run_ended.is_set()
            tries = "once more, as the run has ended" if ended else "again; the run does not need this connection"
            self._readers.warn(f"{error}; trying to connect {tries}")
        self._is_away = True
        self._readers.put(self._host.name, Away(error))

    def _take(self, header: Pieces | Live, payload: bytes) -> None:
        """Called for each DATA frame, from the thread of the session."""
        if isinstance(header, Live):
            self._offsets.update(header.offsets)
        else:
            for index, offset, length, _ in header.parts:
                self._offsets[header.streams[index]] = offset + length
        if len(self._offsets) > MAX_STREAMS:
            raise MalformedAnswer(f"attach: more than {MAX_STREAMS} streams")
        if isinstance(header, Live):
            self._live = True
            self._readers.put(self._host.name, CaughtUp())
            return
        if self._allowance is not None:
            self._allowance.take(payload)
        self._readers.put(self._host.name, Data(header, payload))


class _Allowance:
    """How much one host may send if the caller keeps all lines: a host need not respect `tail` and `grep`."""

    def __init__(self, host: str, hosts: int) -> None:
        self._host = host
        self._bytes = max(MIN_KEPT_BYTES, KEPT_BYTES // hosts)
        self._lines = max(MIN_KEPT_LINES, KEPT_LINES // hosts)

    def take(self, payload: bytes) -> None:
        """Raises Refused."""
        self._bytes -= len(payload)
        self._lines -= payload.count(b"\n") + payload.count(b"\r")
        if min(self._bytes, self._lines) < 0:
            raise Refused("unknown", f"{self._host}: sent too many lines to keep; the later ones are missing")
