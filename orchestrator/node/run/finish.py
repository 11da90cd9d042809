"""End a run with a snapshot, before run.walltime or when somebody asks for it: when to signal and to stop. Pure.

For the head. Times are in seconds, by the clock of the gang's events.
"""

import enum
from typing import NamedTuple, Optional

LEAST_LEAD = 60.0  # s that a script has for its snapshot before it is stopped, and at least
LEAD_SHARE = 0.05  # of walltime
REQUEST_WINDOW = 600.0  # s to wait for the snapshot that somebody asked for


class Step(enum.Enum):
    SIGNAL = "signal"  # all ranks, to save a snapshot
    STOP = "stop"


class Request(NamedTuple):
    by: str
    until: float  # when the run is stopped even without a snapshot


class Finish:
    def __init__(self, walltime: Optional[float], grace: float) -> None:
        self.request: Optional[Request] = None
        self._walltime = walltime
        self._grace = grace
        self._begins_at = self._stops_at = float("inf")
        self._signaled = 0  # the attempt whose ranks were signaled

    def begin(self, at: float) -> None:
        """The run has started: run.walltime counts from here."""
        if self._walltime is None or self._begins_at < float("inf"):
            return
        half = self._walltime / 2  # of a short walltime, the script should have a part too
        self._stops_at = at + self._walltime - min(self._grace, half)
        self._begins_at = self._stops_at - min(half, max(LEAST_LEAD, LEAD_SHARE * self._walltime))

    def ask(self, by: str, at: float, *, can_save: bool) -> None:
        """Somebody wants it now. `can_save`: the ranks have a handler for the signal."""
        if self.request is None:
            self.request = Request(by, min(self._stops_at, at + REQUEST_WINDOW) if can_save else at)

    def step(self, now: float, attempt: Optional[int], is_saved: bool) -> Optional[Step]:
        """What is due. `attempt`: the one that is running, None if there is none. `is_saved`: since the signal."""
        if self.request is None and now >= self._begins_at:
            self.request = Request("run.walltime", self._stops_at)
        if self.request is None:
            return None
        if attempt is None or now >= self.request.until:
            return Step.STOP
        if self._signaled != attempt:
            self._signaled = attempt
            return Step.SIGNAL
        return Step.STOP if is_saved else None
