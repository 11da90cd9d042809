"""Ask the ranks of an attempt for a snapshot: by a signal, as soon as they have a handler for it."""

from typing import Optional, Set

from ..ranks.tree import Tree

LOOK_EVERY = 1.0  # s between looks at ranks that are still loading, or that torchrun has not started yet


class SnapshotRequest:
    def __init__(self, number: int, attempt: int, nproc: int) -> None:
        """`number`: of the signal. `nproc`: the number of ranks on this host."""
        self._number = number
        self._attempt = attempt
        self._nproc = nproc
        self._signaled: Set[int] = set()
        self.due_at = 0.0  # when to look again, by the monotonic clock

    def advance(self, now: float, tree: Optional[Tree]) -> None:
        """Signal those that have not been, if none of them would be ended by it. `tree`: the newest attempt."""
        if now < self.due_at:
            return
        if tree is None or tree.outcome is not None or tree.attempt != self._attempt:
            self.due_at = float("inf")
            return
        rest = [rank for rank, _ in tree.ranks() if rank not in self._signaled]
        if rest:
            self._signaled.update(tree.signal_ranks(self._number, rest, only_if_caught=True, dry=False)["signaled"])
        self.due_at = float("inf") if len(self._signaled) >= self._nproc else now + LOOK_EVERY
