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
IDLE_SHOW = 0.5  # s until an unfinished line (a prompt, a progress bar) is shown


@dataclass(frozen=True)
class Source:
    """One host's part of a run."""

    host: Host
    first_rank: int
    nproc: int


@dataclass(frozen=True)
class Choice:
    """Which lines are wanted."""

    follow: bool
    tail: int | None
    ranks: frozenset[int] | None
    attempt: int | None


class View:
    """`run` shows lines until all sources have ended; then `outcomes` says how the run stands on each host."""

    def __init__(
        self, run_id: str, sources: Sequence[Source], choice: Choice, fleet: Fleet, warn: Callable[[str], None]
    ) -> None:
        self._run_id = run_id
        self._sources = sources
        self._choice = choice
        self._fleet = fleet
        self._warn = warn
        self._events: queue.Queue[tuple[str, str, Any]] = queue.Queue(maxsize=4096)
        self._assemblers: dict[tuple[str, str], LineAssembler] = {}
        self._merger = Merger(source.host.name for source in sources)
        self._stopped = threading.Event()
        self.outcomes: dict[str, Mapping[str, Any]] = {}
        self.failed: dict[str, OrchError] = {}

    def run(self, show: Callable[[list[Line]], None]) -> None:
        """Show lines until every source has ended."""
        readers = [threading.Thread(target=self._read, args=(source,), daemon=True) for source in self._sources]
        for reader in readers:
            reader.start()
        open_sources = {source.host.name for source in self._sources}
        first_ranks = {source.host.name: source.first_rank for source in self._sources}
        try:
            while open_sources:
                for host, kind, value in self._take():
                    if kind == "data":
                        self._feed(host, first_ranks[host], value)
                    elif kind == "live":
                        self._merger.live(host)
                    else:
                        self._merger.live(host)
                        open_sources.discard(host)
                lines = self._merger.ready(time.monotonic())
                if lines:
                    show(lines)
        finally:
            self._stopped.set()
        for (host, _), assembler in self._assemblers.items():
            self._merger.add(host, assembler.flush(), time.monotonic())
        show(self._merger.flush())

    def _take(self) -> list[tuple[str, str, Any]]:
        """What has come in, after at most a moment."""
        taken = []
        try:
            taken.append(self._events.get(timeout=SHOW_EVERY))
            while len(taken) < 256:
                taken.append(self._events.get_nowait())
        except queue.Empty:
            if not taken:
                self._show_unfinished()
        return taken

    def _show_unfinished(self) -> None:
        for (host, _), assembler in self._assemblers.items():
            lines = assembler.idle()
            if lines:
                self._merger.add(host, lines, time.monotonic())

    def _feed(self, host: str, first_rank: int, value: tuple[dict[str, Any], bytes]) -> None:
        header, payload = value
        position = 0
        now = time.monotonic()
        for index, _, length, at in header["parts"]:
            name = header["streams"][index]
            assembler = self._assemblers.get((host, name))
            if assembler is None:
                assembler = self._assemblers[host, name] = _assembler(host, first_rank, name)
            lines = assembler.feed(payload[position : position + length], at / 1e9)
            position += length
            if lines:
                self._merger.add(host, lines, now)

    # one thread a host

    def _read(self, source: Source) -> None:
        host = source.host
        offsets: dict[str, int] = {}
        wait = 0.5

        def on_data(header: dict[str, Any], payload: bytes) -> None:
            if header.get("live"):
                self._events.put((host.name, "live", None))
                return
            for index, offset, length, _ in header["parts"]:
                offsets[header["streams"][index]] = offset + length
            self._events.put((host.name, "data", (header, payload)))

        told = False
        while not self._stopped.is_set():
            try:
                session = self._fleet.session(host)
                if told:
                    self._warn(f"{host.name}: connected again")
                    told, wait = False, 0.5
                self.outcomes[host.name] = session.request("attach", self._question(source, offsets), on_data=on_data)
                break
            except Refused as error:
                self.failed[host.name] = error
                break
            except UnreachableError as error:
                if not self._choice.follow:
                    self.failed[host.name] = error
                    break
                if not told:
                    self._warn(f"{error}; the run goes on there, trying to reach it again")
                    told = True
                    self._events.put((host.name, "live", None))  # the others' lines do not wait for it
                self._stopped.wait(random.uniform(0.2, wait))  # noqa: S311
                wait = min(RECONNECT_MOST, wait * 2)
        self._events.put((host.name, "end", None))

    def _question(self, source: Source, offsets: Mapping[str, int]) -> dict[str, Any]:
        ranks = self._choice.ranks
        wanted = None if ranks is None else [str(rank - source.first_rank) for rank in ranks]
        return {
            "run_id": self._run_id,
            "offsets": dict(offsets),
            "follow": self._choice.follow,
            "tail": self._choice.tail,
            "sources": wanted,
            "attempt": self._choice.attempt,
        }


def _assembler(host: str, first_rank: int, name: str) -> LineAssembler:
    attempt, origin, channel = name.split(".")
    if origin.isdigit():
        return LineAssembler(host, first_rank + int(origin), {"out": "stdout", "err": "stderr"}[channel], int(attempt))
    return LineAssembler(host, None, "agent", int(attempt))
