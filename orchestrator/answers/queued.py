"""What a host answers to a run that waits for its turn there. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from .fields import HostName, RunId, RunName, UnixTime
from .operation import Nothing, Operation

TicketNumber = Annotated[int, range(1 << 53).__contains__]


@dataclass(frozen=True)
class OtherRun:
    """A run that has to go before, or to end before, this one may start."""

    run_id: RunId
    name: RunName
    by: str
    """Who started it: user@machine."""


@dataclass(frozen=True)
class WaitingRun(OtherRun):
    """A run that waits in the queue of a host."""

    number: TicketNumber
    script: str = ""
    """As of a part of a run; "": another version has written the ticket, as for the next two."""
    queued_at: UnixTime | None = None
    """By the clock of its controller."""
    waits_for: tuple[HostName, ...] = ()
    """Hosts that do not answer, and without which it cannot start."""


@dataclass(frozen=True)
class CutShort(OtherRun):
    """A run that is not over, but has no guard on this host: the host was restarted, or the guard was killed."""

    host: HostName
    """The name of this host in the run."""
    hosts: tuple[HostName, ...]
    """All hosts of the run."""


@dataclass(frozen=True)
class Turn:
    """The answer to `queue`."""

    number: TicketNumber | None
    """Of our ticket, or of our place without one; None: we have neither."""
    ahead: tuple[OtherRun, ...]
    """Waiting runs with a lower number that use the same GPUs or the same name, the next one first."""
    running: tuple[OtherRun, ...]
    """Running runs that do."""
    cancelled_by: str | None = None
    """Who has taken the run out of the queue: user@machine."""
    cut_short: tuple[CutShort, ...] = ()
    """Runs that use the same GPUs or the same name, and may wait for this host elsewhere."""
    kept_for: tuple[OtherRun, ...] = ()
    """Those of them that do, as their other hosts say."""

    @property
    def free(self) -> bool:
        return not (self.ahead or self.running or self.kept_for) and self.cancelled_by is None


QUEUE = Operation("queue", Turn)
CANCEL_QUEUED = Operation("cancel_queued", Nothing)
LEAVE_QUEUE = Operation("leave_queue", Nothing)
