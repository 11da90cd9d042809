"""Read the journals of a run on its hosts, a thread a host, into one queue. Continues where a connection broke off."""

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
from ..hosts.fleet import Fleet, unexpected
from ..hosts.session import Refused, Session
from ..inventory.model import Host
from ..ssh.pipe import ConnectFailure

RECONNECT_MOST = 30.0  # s between tries to reach a host again
# These three bound the memory: half a KiB a line, of some 70 bytes in the journal.
QUEUE = 64  # frames, of at most 256 KiB each, that wait to be shown
TAKE_MOST = 2 << 20  # bytes of them that become lines at a time
HELD_MOST = 200_000  # lines of fast hosts that wait for those of slower ones, all hosts together
STREAMS_MOST = 20_000  # of one host: two a rank and attempt
# What a view whose lines are kept takes of all hosts together, and of each host at least
KEPT_BYTES, KEPT_LINES = 128 << 20, 1_000_000
KEPT_BYTES_LEAST, KEPT_LINES_LEAST = 16 << 20, 100_000
_PUT_EVERY = 0.05  # s between two looks at whether a full queue has room, or is no longer read

# No login becomes possible by trying it again, and trying locks accounts.
PERMANENT = {"ssh-auth-denied", "ssh-key-permissions", "ssh-host-key-changed", "ssh-host-key-unknown"}


# --- what a reader tells of its host


@dataclass(frozen=True)
class Data:
    """Pieces of streams, as the host has sent them."""

    pieces: Pieces
    payload: bytes


@dataclass(frozen=True)
class Clock:
    """A host that was silent can be reached: seconds that its clock is ahead of the first host's."""

    ahead: float


@dataclass(frozen=True)
class CaughtUp:
    """All that the journal held has come; from now on lines come as they are written."""


@dataclass(frozen=True)
class Away:
    """The connection broke, or could not be made again; the reader keeps trying."""

    error: OrchError


@dataclass(frozen=True)
class Back:
    """The host was away and can be reached again."""


@dataclass(frozen=True)
class Ended:
    """Nothing more comes from this host."""

    outcome: Attached | None = None
    failure: OrchError | None = None


Event = Data | Clock | CaughtUp | Away | Back | Ended


class Owner(Protocol):
    """Whose readers they are. Any thread may ask it."""

    def question(self, host: Host, offsets: Mapping[str, int], live: bool) -> Arguments: ...

    def held(self, name: str) -> int: ...

    def compare_clock(self, host: Host, session: Session) -> float: ...


class Readers:
    """The threads and their queue."""

    def __init__(
        self,
        owner: Owner,
        hosts: Sequence[Host],
        fleet: Fleet,
        warn: Callable[[str], None],
        late: Collection[str],
        *,
        follow: bool,
        kept: bool,
    ) -> None:
        """`late`: hosts of which nobody knows whether they have a part. `kept`: a host may send only so much."""
        self.owner = owner
        self.hosts = hosts
        self.fleet = fleet
        self.warn = warn
        self.late = late
        self.follow = follow
        self.kept = kept
        self.stopped = threading.Event()
        self.over = threading.Event()  # nobody needs to wait for a host that is away
        self._events: queue.Queue[tuple[str, Event]] = queue.Queue(QUEUE)
        self._came: Counter[str] = Counter()  # frames of a host: each counted by its own thread
        self._taken: Counter[str] = Counter()  # those of them that `take` has returned

    def start(self) -> None:
        for host in self.hosts:
            threading.Thread(target=_Reader(self, host).run, name=f"view-{host.name}", daemon=True).start()

    def stop(self) -> None:
        self.stopped.set()
        self.over.set()

    def on_its_way(self, host: str) -> bool:
        """Whether the host has sent data that `take` has not returned yet."""
        return self._came[host] != self._taken[host]

    def take(self, timeout: float) -> list[tuple[str, Event]]:
        """What has come in, after at most `timeout` seconds."""
        taken: list[tuple[str, Event]] = []
        size = 0
        try:
            taken.append(self._events.get(timeout=timeout))
            while len(taken) < QUEUE and size < TAKE_MOST:
                taken.append(self._events.get_nowait())
                event = taken[-1][1]
                size += len(event.payload) if isinstance(event, Data) else 0
        except queue.Empty:
            pass
        self._taken.update(host for host, event in taken if isinstance(event, Data))
        return taken

    def put(self, host: str, event: Event) -> None:
        """Waits while the queue is full: whoever shows may be a paused terminal. Not for ever, though.

        It waits as well while too many of the host's lines are held for those of other hosts. The host that all wait
        for has none that are held, so this ends.
        """
        if isinstance(event, Data):
            self._came[host] += 1
        while not self.stopped.is_set():
            if self.owner.held(host) > HELD_MOST / len(self.hosts):
                time.sleep(_PUT_EVERY)
                continue
            try:
                self._events.put((host, event), timeout=_PUT_EVERY)
                return
            except queue.Full:
                pass


class _Reader:
    """Follows one host, in a thread of its own."""

    def __init__(self, readers: Readers, host: Host) -> None:
        self._readers = readers
        self._host = host
        self._share = _Share(host.name, len(readers.hosts)) if readers.kept else None
        self._offsets: dict[str, int] = {}
        self._live = False
        self._needs_clock = host.name in readers.late
        self._is_away = False
        self._wait = 0.5

    def run(self) -> None:
        try:
            ended = self._follow()
        except BaseException as error:  # noqa: BLE001  the view would wait for this host for ever
            ended = Ended(failure=unexpected(self._host.name, error))
        self._readers.put(self._host.name, ended)

    def _follow(self) -> Ended:
        """Read until the end; again from where it broke off, as long as the run may go on."""
        is_last = False
        while not self._readers.stopped.is_set():
            try:
                return self._attach()
            except Refused as error:
                has_no_part = self._host.name in self._readers.late and error.code == "no-such-run"
                return Ended(failure=None if has_no_part else error)
            except UnreachableError as error:
                if self._readers.stopped.is_set():
                    break  # we have closed it ourselves
                if not self._may_try_again(error) or is_last:
                    return Ended(failure=error)
                self._note_away(error)
                # once the run is over elsewhere: one more try
                is_last = self._readers.over.wait(random.uniform(0.2, self._wait))  # noqa: S311
                self._wait = min(RECONNECT_MOST, self._wait * 2)
        return Ended()

    def _attach(self) -> Ended:
        readers, host = self._readers, self._host
        session = readers.fleet.session(host)
        if self._needs_clock:
            readers.put(host.name, Clock(readers.owner.compare_clock(host, session)))
            self._needs_clock = False
        if self._is_away:
            readers.warn(f"{host.name}: connected again")
            readers.put(host.name, Back())
            self._is_away, self._wait = False, 0.5
        question = readers.owner.question(host, self._offsets, self._live)
        outcome = session.follow(ATTACH, question, self._take)
        if outcome.run is not None and outcome.run.verdict is not None:
            readers.over.set()
        return Ended(outcome)

    def _may_try_again(self, error: UnreachableError) -> bool:
        if isinstance(error, ConnectFailure) and error.code in PERMANENT:
            if self._readers.follow:
                self._readers.warn(f"{error}; its lines are missing from here on")
            return False
        return self._readers.follow

    def _note_away(self, error: UnreachableError) -> None:
        if not self._is_away:
            over = self._readers.over.is_set()
            then = "once more, as the run is over" if over else "again; the run does not wait for that"
            self._readers.warn(f"{error}; trying to reach it {then}")
        self._is_away = True
        self._readers.put(self._host.name, Away(error))

    def _take(self, header: Pieces | Live, payload: bytes) -> None:
        """Called with each DATA, from the thread of the session."""
        if isinstance(header, Live):
            self._offsets.update(header.offsets)
        else:
            for index, offset, length, _ in header.parts:
                self._offsets[header.streams[index]] = offset + length
        if len(self._offsets) > STREAMS_MOST:
            raise MalformedAnswer(f"attach: more than {STREAMS_MOST} streams")
        if isinstance(header, Live):
            self._live = True
            self._readers.put(self._host.name, CaughtUp())
            return
        if self._share is not None:
            self._share.take(payload)
        self._readers.put(self._host.name, Data(header, payload))


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
