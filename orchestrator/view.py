"""Watch a run: the journals of all hosts as one stream of lines. Goes on where a broken connection left off."""

from __future__ import annotations

import queue
import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .errors import OrchError, UnreachableError
from .fleet import Fleet
from .inventory import Host
from .logs import Line, LineAssembler, Merger
from .session import Refused

RECONNECT_MOST = 30.0  # s between tries to reach a host again
SHOW_EVERY = 0.05  # s
QUEUE = 256  # frames, of at most 256 KiB each, that wait to be shown
IDLE_SHOW = 0.5  # s of silence until an unfinished line (a prompt, a progress bar) is shown


@dataclass(frozen=True)
class Choice:
    """Which lines are wanted."""

    follow: bool
    tail: int | None = None
    ranks: frozenset[int] | None = None
    attempt: int | None = None


class View:
    """`run` shows lines until all sources have ended; then `outcomes` says how the run stands on each host."""

    def __init__(
        self, run_id: str, hosts: Sequence[Host], choice: Choice, fleet: Fleet, warn: Callable[[str], None]
    ) -> None:
        self._run_id = run_id
        self._hosts = hosts
        self._choice = choice
        self._fleet = fleet
        self._warn = warn
        self._events: queue.Queue[tuple[str, str, Any]] = queue.Queue(QUEUE)
        self._assemblers: dict[tuple[str, str], LineAssembler] = {}
        self._fed: dict[tuple[str, str], float] = {}  # when, where a line may be unfinished
        self._merger = Merger(host.name for host in hosts)
        self._stopped = threading.Event()
        self._over = threading.Event()  # nobody needs to wait for a host that is away
        self.outcomes: dict[str, Mapping[str, Any]] = {}
        self.failed: dict[str, OrchError] = {}

    def run(self, show: Callable[[list[Line]], None]) -> None:
        """Show lines until every source has ended. A bug in one of the threads is raised here."""
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
                        case "end":
                            self._merger.live(host)
                            open_sources.discard(host)
                        case _:
                            raise value
                now = time.monotonic()
                self._show_unfinished(now)
                lines = self._merger.ready(now)
                if lines:
                    show(lines)
        finally:
            self._stopped.set()
            self._over.set()
        for (host, _), assembler in self._assemblers.items():
            self._merger.add(host, assembler.flush(), time.monotonic())
        show(self._merger.flush())

    def _take(self) -> list[tuple[str, str, Any]]:
        """What has come in, after at most a moment."""
        taken = []
        try:
            taken.append(self._events.get(timeout=SHOW_EVERY))
            while len(taken) < QUEUE:
                taken.append(self._events.get_nowait())
        except queue.Empty:
            pass
        return taken

    def _show_unfinished(self, now: float) -> None:
        for key in [key for key, fed in self._fed.items() if now - fed >= IDLE_SHOW]:
            del self._fed[key]
            lines = self._assemblers[key].idle()
            if lines:
                self._merger.add(key[0], lines, now)

    def _feed(self, host: str, value: tuple[dict[str, Any], bytes]) -> None:
        header, payload = value
        position = 0
        now = time.monotonic()
        for index, _, length, at in header["parts"]:
            name = header["streams"][index]
            assembler = self._assemblers.get((host, name))
            if assembler is None:
                assembler = self._assemblers[host, name] = _assembler(host, name)
            self._fed[host, name] = now
            lines = assembler.feed(payload[position : position + length], at / 1e9)
            position += length
            if lines:
                self._merger.add(host, lines, now)

    # one thread a host

    def _put(self, host: Host, kind: str, value: Any = None) -> None:
        """Waits while the queue is full: whoever shows may be a paused terminal. Not for ever, though."""
        while not self._stopped.is_set():
            try:
                self._events.put((host.name, kind, value), timeout=SHOW_EVERY)
                return
            except queue.Full:
                pass

    def _read(self, host: Host) -> None:
        try:
            self._follow(host)
            self._put(host, "end")
        except BaseException as error:  # noqa: BLE001  raised in `run`, which else would wait for ever
            self._put(host, "bug", error)

    def _follow(self, host: Host) -> None:
        """Read until the end; again from where it broke off, as long as the run may go on."""
        offsets: dict[str, int] = {}
        wait = 0.5
        told = last = False

        def on_data(header: dict[str, Any], payload: bytes) -> None:
            if header.get("live"):
                self._put(host, "live")
                return
            for index, offset, length, _ in header["parts"]:
                offsets[header["streams"][index]] = offset + length
            self._put(host, "data", (header, payload))

        while not self._stopped.is_set():
            try:
                session = self._fleet.session(host)
                if told:
                    self._warn(f"{host.name}: connected again")
                    told, wait = False, 0.5
                outcome = session.request("attach", self._question(offsets), on_data=on_data)
                self.outcomes[host.name] = outcome
                if (outcome.get("run") or {}).get("verdict"):
                    self._over.set()
                return
            except Refused as error:
                self.failed[host.name] = error
                return
            except UnreachableError as error:
                if self._stopped.is_set():
                    return  # we have closed it ourselves
                if last or not self._choice.follow:
                    self.failed[host.name] = error
                    return
                if not told:
                    self._warn(f"{error}; the run goes on there, trying to reach it again")
                    told = True
                    self._put(host, "live")  # the others' lines do not wait for it
                # once the run is over elsewhere: one more try, and a host that is away keeps nobody any longer
                last = self._over.wait(random.uniform(0.2, wait))  # noqa: S311
                wait = min(RECONNECT_MOST, wait * 2)

    def _question(self, offsets: Mapping[str, int]) -> dict[str, Any]:
        ranks = self._choice.ranks
        return {
            "run_id": self._run_id,
            "offsets": dict(offsets),
            "follow": self._choice.follow,
            "tail": self._choice.tail,
            "sources": None if ranks is None else [str(rank) for rank in sorted(ranks)],
            "attempt": self._choice.attempt,
        }


def _assembler(host: str, name: str) -> LineAssembler:
    attempt, origin, channel = name.split(".")
    if origin.isdigit():
        return LineAssembler(host, int(origin), {"out": "stdout", "err": "stderr"}[channel], int(attempt))
    return LineAssembler(host, None, "agent", int(attempt))
