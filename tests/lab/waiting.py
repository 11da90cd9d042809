"""Wait for a condition with a deadline. Never sleeps as a condition."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


SHARE = 3  # of a condition that takes 10 ms, the next try is 30 ms later: what is waited for needs the processors
PAUSES = 0.01, 0.5  # s


def wait_until(condition: Callable[[], T], timeout: float, what: str, pause: float = PAUSES[0]) -> T:
    """The first true value of `condition`; AssertionError naming `what` after `timeout` seconds without one.

    `pause`: the fewest seconds between two tries.
    """
    deadline = time.monotonic() + timeout
    began = time.monotonic()
    while not (value := condition()):
        now = time.monotonic()
        if now > deadline:
            raise AssertionError(f"not within {timeout:g} s: {what}")
        time.sleep(max(pause, min(SHARE * (now - began), PAUSES[1])))
        began = time.monotonic()
    return value
