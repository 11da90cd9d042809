"""How long the ranks of this host may run without a further word from the head.

The recorder grants permits when it hears the head, and passes them on before the last one lapses. The guard stops the
ranks when they lapse, so that a recorder that hangs or is dead cannot keep them running while the other hosts go on
without this one.
"""

import time
from typing import Optional

RENEWED_BELOW = 0.7  # of the lease: a recorder that is restarted has this time to renew the permit


def clock() -> float:
    """Seconds since boot, the time that a host was suspended included. Guard and recorder have the same clock."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Permit:
    """The newest permit. Without any, there is no limit.

    If no permit was valid for a moment, it has lapsed, even if the next one arrives before anybody looks.
    """

    def __init__(self) -> None:
        self._until: Optional[float] = None
        self._had_gap = False

    def grant(self, at: float, seconds: float) -> None:
        """Allow the ranks to run for `seconds` from `at`, by `clock`. A permit never shortens an earlier one."""
        if self._until is None:
            self._until = at + seconds
        else:
            self._had_gap = self._had_gap or at > self._until
            self._until = max(self._until, at + seconds)

    def begin(self, now: float) -> None:
        """An attempt begins: gaps before it do not count."""
        self._had_gap = self._until is not None and now > self._until

    def has_lapsed(self, now: float) -> bool:
        return self._had_gap or self.seconds_left(now) < 0

    def seconds_left(self, now: float) -> float:
        """Negative when it has lapsed, infinite where there never was one."""
        return float("inf") if self._until is None else self._until - now


class Renewal:
    """In the recorder: when the guard gets the newest permit. Each message wakes the guard, so it gets only some."""

    def __init__(self, lease: float) -> None:
        self._enough = RENEWED_BELOW * lease
        self._newest = self._passed_on = float("-inf")

    def grant(self, now: float, seconds: float) -> None:
        """The ranks may run for `seconds` from `now`."""
        self._newest = max(self._newest, now + seconds)

    def due(self, now: float) -> Optional[float]:
        """For how long the guard should permit the ranks to run from now on; None: nothing to be said yet."""
        if self._newest <= self._passed_on or self._passed_on - now > self._enough:
            return None
        self._passed_on = self._newest
        return self._newest - now
