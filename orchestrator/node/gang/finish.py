"""End a run with a snapshot, before run.walltime or when somebody asks for it: when to signal and to stop. Pure.

For the head. Times are in seconds, by the clock of the gang's events.
"""

import enum
from typing import NamedTuple, Optional

WALLTIME = "run.walltime"  # asks for the end, if nobody else does
# s that a script has for its snapshot before it is stopped: LEAST_LEAD and at least LEAD_SHARE of the walltime, or,
# if it has saved one before, STEP_LEAD for the end of the step and LEAD_FACTOR times what the last one took
LEAST_LEAD, LEAD_SHARE = 60.0, 0.05
STEP_LEAD, LEAD_FACTOR = 30.0, 2.0
REQUEST_WINDOW = 600.0  # s to wait for the snapshot that somebody asked for
OTHERS_WINDOW = 2.0  # s for a host to say that its ranks can save one, after another has said that its own cannot


class Step(enum.Enum):
    SIGNAL = "signal"  # all ranks, to save a snapshot
    STOP = "stop"


class Request(NamedTuple):
    by: str
    until: float  # when the run is stopped even without a snapshot


class Finish:
    def __init__(self, walltime: Optional[float], grace: float) -> None:
        self.request: Optional[Request] = None
        self.last_snapshot: Optional[float] = None  # s that it took; None: unknown
        self._walltime = walltime
        self._grace = grace
        self._stops_at = float("inf")
        self._can_save = False  # a host has said so
        self._signaled = 0  # the attempt whose ranks were signaled

    def begin(self, at: float) -> None:
        """The run has started: run.walltime counts from here."""
        if self._walltime is not None and self._stops_at == float("inf"):
            self._stops_at = at + self._walltime - min(self._grace, self._walltime / 2)

    def _lead(self) -> float:
        walltime = self._walltime or 0.0
        if self.last_snapshot is None:
            lead = max(LEAST_LEAD, LEAD_SHARE * walltime)
        else:
            lead = STEP_LEAD + LEAD_FACTOR * self.last_snapshot
        return min(lead, walltime / 2)  # of a short walltime, the script should have a part too

    def ask(self, by: str, at: float, *, can_save: bool) -> None:
        """Somebody wants it now, as each host says. `can_save`: it has ranks, which have a handler for the signal."""
        if self.request is None:
            self.request = Request(by, min(self._stops_at, at + OTHERS_WINDOW))
        if can_save and not self._can_save:
            self._can_save = True
            self.request = self.request._replace(until=min(self._stops_at, at + REQUEST_WINDOW))

    def step(self, now: float, attempt: Optional[int], is_saved: bool) -> Optional[Step]:
        """What is due. `attempt`: the one that is running, None if there is none. `is_saved`: since the signal."""
        if self.request is None and now >= self._stops_at - self._lead():
            self.request = Request(WALLTIME, self._stops_at)
        if self.request is None:
            return None
        if attempt is None or now >= self.request.until:
            return Step.STOP
        if self._signaled != attempt:
            self._signaled = attempt
            return Step.SIGNAL
        return Step.STOP if is_saved else None
