"""Turn the pieces of streams that hosts send into lines of all hosts, ordered by time. Reads nothing itself."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Sequence

from .bars import is_turn
from .lines import Line, LineAssembler, Merger
from .mask import Mask
from .pipeline import Stage


class Intake(Stage):
    """The first stage of a pipeline. Gets its input as pieces of streams, through `feed`.

    An unfinished line is given out after `idle_after` seconds: if its host has sent nothing for that long, or only
    output that was written that much later.
    """

    def __init__(
        self,
        hosts: Sequence[str],
        late: Collection[str],
        idle_after: float,
        belongs: Callable[[str, str], bool],
        on_its_way: Callable[[str], bool],
        mask: Mask | None = None,
    ) -> None:
        """`late`: hosts that the lines of other hosts do not wait for.

        `belongs(host, stream)`: whether the host may send this stream. `on_its_way(host)`: whether pieces of the host
        have arrived that `feed` has not been given; then the host is not silent. No line is cut inside a secret of
        `mask`.
        """
        self._idle_after = idle_after
        self._belongs = belongs
        self._on_its_way = on_its_way
        self._mask = mask
        self._merger = Merger(host for host in hosts if host not in late)
        self._assemblers: dict[tuple[str, str], LineAssembler] = {}
        self._expected: dict[tuple[str, str], int] = {}  # stream -> offset of its next piece
        # streams that may have an unfinished line: host -> stream -> time of its last piece
        self._unfinished: dict[str, dict[str, float]] = {host: {} for host in hosts}
        self._newest: dict[str, float] = {}  # the time of a host's last piece
        self._fed_at: dict[str, float] = {}  # host -> when its last piece arrived

    def add_host(self, host: str) -> None:
        """From now on, take pieces of one more host. The lines of the others do not wait for its lines."""
        self._unfinished.setdefault(host, {})

    def set_clock(self, host: str, ahead: float) -> None:
        """`ahead`: seconds that the clock of the host is ahead of ours. Call this before its first line."""
        self._merger.set_offset(host, ahead)

    def feed(
        self, host: str, streams: Sequence[str], parts: Iterable[tuple[int, int, int, int]], payload: bytes, now: float
    ) -> None:
        """`parts` of the payload: index of the stream, offset in the stream, length, time in ns since 1970."""
        position = 0
        self._fed_at[host] = now
        for index, offset, length, at in parts:
            if not length:  # a search has reached this time without a match
                self._merger.passed(host, at / 1e9)
                continue
            name = streams[index]
            lines = self._assemble(host, name, offset, payload[position : position + length], at / 1e9)
            position += length
            if lines:
                self._merger.add(host, lines, now)

    def _assemble(self, host: str, name: str, offset: int, data: bytes, at: float) -> list[Line]:
        key = host, name
        assembler = self._assemblers.get(key)
        if assembler is None:
            if not self._belongs(host, name):
                return []
            assembler = self._assemblers[key] = _assembler(host, name, self._mask)
        lines = [] if self._expected.get(key, offset) == offset else assembler.flush()  # the bytes in between are lost
        self._expected[key] = offset + len(data)
        self._unfinished[host][name] = self._newest[host] = at
        lines = lines + assembler.feed(data, at) if lines else assembler.feed(data, at)
        return self._unfinished_before(host, name) + lines if any(map(is_turn, lines)) else lines

    def _unfinished_before(self, host: str, name: str) -> list[Line]:
        """The unfinished lines of the host's other streams."""
        others = [other for other in self._unfinished[host] if other != name]
        return [line for other in others for line in self._assemblers[host, other].idle()]

    def live(self, host: str) -> None:
        """Do not wait for lines of this host any more: it has sent everything that existed, or is gone."""
        self._merger.live(host)

    def forget(self, host: str, names: Sequence[str]) -> None:
        """Discard the unfinished lines of these streams."""
        for name in names:
            self._assemblers.pop((host, name), None)

    def held(self, host: str) -> int:
        """Number of lines of a host that wait for lines of other hosts. Thread-safe."""
        return self._merger.held(host)

    @property
    def wake_at(self) -> float:
        waiting = [host for host, names in self._unfinished.items() if names and not self._on_its_way(host)]
        idle_at = min((self._fed_at[host] + self._idle_after for host in waiting), default=math.inf)
        return min(idle_at, self._merger.wake_at)

    def push(self, lines: Sequence[Line], now: float) -> Sequence[Line]:
        for host, names in self._unfinished.items():
            if names:
                self._give_unfinished(host, names, now)
        return self._merger.ready(now)

    def _give_unfinished(self, host: str, names: dict[str, float], now: float) -> None:
        silent = now >= self._fed_at[host] + self._idle_after and not self._on_its_way(host)
        newest = self._newest[host]
        for name in [name for name, at in names.items() if silent or newest - at >= self._idle_after]:
            del names[name]
            lines = self._assemblers[host, name].idle()
            if lines:
                self._merger.add(host, lines, now)

    def flush(self, now: float) -> Sequence[Line]:
        for (host, _), assembler in self._assemblers.items():
            self._merger.add(host, assembler.flush(), now)
        return self._merger.flush()


def _assembler(host: str, name: str, mask: Mask | None) -> LineAssembler:
    attempt, origin, channel = name.split(".")
    if origin.isdigit():
        return LineAssembler(host, int(origin), {"out": "stdout", "err": "stderr"}[channel], int(attempt), mask)
    return LineAssembler(host, None, "agent", int(attempt), mask)
