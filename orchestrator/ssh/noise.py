"""Find the marker with which a command begins, after what the login shell prints before it."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Literal

NOISE_LIMIT = 64 * 1024  # bytes before the marker
CHUNK = 1 << 16


class NoMarker(Exception):
    """The marker has not come. `seen`: what has come instead."""

    def __init__(self, why: Literal["ended", "late", "noise"], seen: bytes) -> None:
        super().__init__(why)
        self.why = why
        self.seen = seen


def read_marker(
    receive: Callable[[int, float], bytes], marker: re.Pattern[bytes], deadline: float, seen: bytes = b""
) -> tuple[re.Match[bytes], bytes]:
    """Receive until `marker` is found. Returns its match, and the bytes after it.

    `receive`: as `Pipe.recv`. `deadline`: of the monotonic clock, also if bytes come one by one. `seen`: bytes that
    were received before. Raises NoMarker.
    """
    while not (found := marker.search(seen)):
        if len(seen) > NOISE_LIMIT:
            raise NoMarker("noise", seen)
        left = deadline - time.monotonic()
        try:
            data = receive(CHUNK, left) if left > 0 else None
        except TimeoutError:
            data = None
        if not data:
            raise NoMarker("late" if data is None else "ended", seen)
        seen += data
    return found, seen[found.end() :]
