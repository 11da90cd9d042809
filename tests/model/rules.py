"""What must hold in every world. A violation ends the world and names its time."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Protocol

from orchestrator.node.gang.election_state import Entry

LOST = "host lost"  # as gang.py names it
RANK_FAILED = "rank of node"  # as node.py does


class Violation(AssertionError):
    pass


class Ranks(Protocol):
    """The ranks of one node that are alive."""

    node: int
    attempt: int
    epoch: int


class Rules:
    """`attempts`: the epoch of each attempt. `heads`: of each epoch. `committed`: the longest log known to be so."""

    def __init__(self) -> None:
        self.attempts: dict[int, int] = {}
        self.attempt = 0  # the newest that the log has
        self.heads: dict[int, int] = {}
        self.committed: list[Entry] = []
        self.first_failures: dict[int, str] = {}
        self.failures_at: dict[int, tuple[int, str]] = {}  # after so many entries of the log
        self.judged = 0
        self.verdicts: dict[int, str] = {}

    def ranks_start(self, ranks: Ranks, others: Iterable[Ranks]) -> None:
        epoch = self.attempts.setdefault(ranks.attempt, ranks.epoch)
        if epoch != ranks.epoch:
            raise Violation(f"attempt {ranks.attempt} belongs to the epochs {epoch} and {ranks.epoch}")
        self.ranks_live([ranks, *others])

    def ranks_live(self, alive: list[Ranks]) -> None:
        for one, other in itertools.pairwise(alive):
            if (other.attempt, other.epoch) != (one.attempt, one.epoch):
                raise Violation(
                    f"two attempts: {one.attempt} of epoch {one.epoch} is alive on node {one.node}, and "
                    f"{other.attempt} of epoch {other.epoch} on node {other.node}"
                )

    def node_leads(self, node: int, epoch: int) -> None:
        if self.heads.setdefault(epoch, node) != node:
            raise Violation(f"two heads: {self.heads[epoch]} and {node} in epoch {epoch}")

    def node_has_committed(self, node: int, entries: tuple[Entry, ...]) -> None:
        for number, (known, entry) in enumerate(zip(self.committed, entries, strict=False)):
            if known != entry:
                raise Violation(f"entry {number} was committed as {known}, and on node {node} it is {entry}")
        self.committed += entries[len(self.committed) :]

    def attempt_fails(self, position: int, attempt: int, failure: str) -> None:
        """A host that had been silent since before may take the place of a failure that followed from it, once."""
        known = self.failures_at.setdefault(position, (attempt, failure))
        if known != (attempt, failure):
            raise Violation(f"the first failure after {position} entries: {known} became {(attempt, failure)}")
        if position <= self.judged:
            return  # another node replays the log
        self.judged = position
        first = self.first_failures.setdefault(attempt, failure)
        if first != failure and failure.endswith(LOST) and not first.endswith(LOST):
            self.first_failures[attempt] = failure
        elif first != failure:
            raise Violation(f"attempt {attempt}: {self.first_failures[attempt]!r} became {failure!r}")

    def attempt_begins(self, attempt: int, max_restarts: int, unfit: list[str]) -> None:
        """`unfit`: hosts of its team on which no attempt can succeed, as far as the gang knows."""
        self.attempt = max(self.attempt, attempt)
        failed = [number for number, what in self.first_failures.items() if number < attempt and RANK_FAILED in what]
        if len(failed) > max_restarts:
            raise Violation(f"attempt {attempt} begins after the attempts {failed} have failed, with {max_restarts=}")
        if unfit:
            raise Violation(f"attempt {attempt} begins on {unfit}")

    def node_ends(self, node: int, verdict: str) -> None:
        self.verdicts[node] = verdict
        if len(set(self.verdicts.values())) > 1:
            raise Violation(f"the nodes disagree on the verdict: {self.verdicts}")
