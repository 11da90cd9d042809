"""What people ask of a running training by a signal: SIGTERM stops it, SIGUSR1 wants a snapshot."""

from __future__ import annotations

import signal
from types import FrameType

import torch
import torch.distributed as dist

from trainer.world import World

NOTHING, SAVE, STOP = 0, 1, 2  # the greater one wins
APART, MOST_APART = 0.1, 16  # seconds, and steps, between two votes


class Requests:
    """A signal to any rank counts for all ranks at the same step.

    A rank that stopped by itself would leave its peers waiting in a collective, so they vote at every step boundary.
    The vote travels while the next step is computed and is read at the boundary after it, when it has long arrived.
    Where steps take milliseconds, a vote is felt all the same: then they vote only at some of the boundaries.
    """

    def __init__(self, world: World) -> None:
        self._group = world.control
        self._asked = NOTHING
        self._boundaries = 0
        self._every = 1
        self._vote = torch.zeros(1, dtype=torch.int32)
        self._travelling: dist.Work | None = None
        signal.signal(signal.SIGTERM, self._on_signal)
        signal.signal(signal.SIGUSR1, self._on_signal)

    def agreed(self) -> int:
        """For all ranks to call at every step boundary; returns the same on all of them."""
        self._boundaries += 1
        if self._boundaries % self._every:
            return NOTHING
        agreed = NOTHING
        if self._travelling is not None:
            self._travelling.wait()
            agreed = int(self._vote.item())
        self._vote = torch.tensor([self._asked], dtype=torch.int32)
        if self._asked == SAVE:
            self._asked = NOTHING
        self._travelling = dist.all_reduce(self._vote, op=dist.ReduceOp.MAX, group=self._group, async_op=True)
        return agreed

    def pace(self, step_time: float) -> None:
        """Vote so rarely that it is not felt, and so often that nobody waits. `step_time`: seconds, the same on all."""
        self._every = max(1, min(MOST_APART, int(APART / max(step_time, 0.001))))

    def _on_signal(self, signum: int, frame: FrameType | None) -> None:
        self._asked = max(self._asked, STOP if signum == signal.SIGTERM else SAVE)
