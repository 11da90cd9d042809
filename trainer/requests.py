"""What people ask of a running training by a signal: SIGTERM stops it, SIGUSR1 wants a snapshot."""

from __future__ import annotations

import signal
from types import FrameType

import torch
import torch.distributed as dist

from trainer.world import World

NOTHING, SAVE, STOP = 0, 1, 2  # the greater one wins


class Requests:
    """A signal to any rank counts for all ranks at the same step.

    A rank that stopped by itself would leave its peers waiting in a collective, so they vote at every step boundary.
    The vote travels while the next step is computed and is read at the boundary after it, when it has long arrived:
    that costs one step of delay, and next to no time.
    """

    def __init__(self, world: World) -> None:
        self._group = world.control
        self._asked = NOTHING
        self._vote = torch.zeros(1, dtype=torch.int32)
        self._travelling: dist.Work | None = None
        signal.signal(signal.SIGTERM, self._on_signal)
        signal.signal(signal.SIGUSR1, self._on_signal)

    def agreed(self) -> int:
        """For all ranks to call at every step boundary; returns the same on all of them."""
        agreed = NOTHING
        if self._travelling is not None:
            self._travelling.wait()
            agreed = int(self._vote.item())
        self._vote = torch.tensor([self._asked], dtype=torch.int32)
        if self._asked == SAVE:
            self._asked = NOTHING
        self._travelling = dist.all_reduce(self._vote, op=dist.ReduceOp.MAX, group=self._group, async_op=True)
        return agreed

    def _on_signal(self, signum: int, frame: FrameType | None) -> None:
        self._asked = max(self._asked, STOP if signum == signal.SIGTERM else SAVE)
