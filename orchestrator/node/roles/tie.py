"""A run that ends with the `ddp-orch up` that started it, because both belong to a job of a batch system. Pure.

Or because `up` reaches its hosts with srun: what Slurm does when `up` is killed depends on how srun ends.

SSH logins do not belong to the job, so the batch system ends `up` and leaves the run. Therefore `up` asks the guards of
some hosts every few seconds to hold the run. Each counts these requests, and the head stops the run when no count has
changed for a while. A node that joins again or has a new guard only makes the run live a little longer.
"""

from typing import Dict, Optional

STOPPED_BY = "the end of `ddp-orch up`, or of its job"
GRACE = 10.0  # s at most: other jobs may get the hosts


class Tie:
    """`limit`: seconds without a request; None: the run is not tied."""

    def __init__(self, limit: Optional[float]) -> None:
        self._limit = limit
        self._counts: Dict[int, int] = {}
        self._ends_at: Optional[float] = None

    def hear(self, node: int, count: int, now: float) -> None:
        """How many requests a node has counted."""
        if self._limit is not None and self._counts.get(node) != count:
            self._counts[node] = count
            self._ends_at = now + self._limit

    def has_lapsed(self, now: float) -> bool:
        """Call it only after the run has been started: `up` asks from then on."""
        if self._limit is None:
            return False
        if self._ends_at is None:
            self._ends_at = now + self._limit
        return now >= self._ends_at
