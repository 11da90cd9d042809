"""The answer to `finished`: runs that a host would delete, as run.keep says. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from .fields import HostName, NodeNumber, RunId
from .operation import Operation


@dataclass(frozen=True)
class DueRun:
    """A finished run that run.keep does not keep on this host."""

    run_id: RunId
    node: NodeNumber | None
    """The host's index in `hosts`; None: its record is incomplete."""
    hosts: tuple[HostName, ...]
    """All hosts of the run that this one knows, by node number."""
    expired: bool
    """It has ended everywhere, so long ago that it need not wait for hosts that cannot be asked."""
    unfetched: int | None
    """The bytes that it takes, if it has files next to its code that were not downloaded."""


@dataclass(frozen=True)
class Finished:
    """The answer to `finished`."""

    due: tuple[DueRun, ...]
    others: tuple[RunId, ...]
    """All other runs of the host, unfinished ones too."""

    def has_due(self, run_id: str) -> bool:
        return any(run.run_id == run_id for run in self.due)


FINISHED = Operation("finished", Finished)
