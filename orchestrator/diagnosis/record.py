"""What the hosts of a run know of its end beyond its output. Data only."""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .dumps import Dump
from .exits import Exit


@dataclass(frozen=True)
class Command:
    """How the run was started, as far as this matters for a fix."""

    shell: tuple[str, ...] = ()
    """The shell and the script that it runs, such as `bash run.sh`; empty: no shell script, or unknown."""
    is_traced: bool = False
    """The shell prints its commands (`-x`)."""
    debug: bool = False
    """With `up --debug`."""


UNKNOWN_COMMAND = Command()


@dataclass(frozen=True)
class RunRecord:
    exits: Sequence[Exit] = ()
    hosts: Sequence[str] = ()
    """Hosts that have answered with what they know of the run."""
    ranks: Mapping[int, str] | None = None
    oom_hosts: Sequence[str] = ()
    """Where the cgroup counted a kill for lack of memory."""
    dumps: Sequence[Dump] = ()
    """Flight-recorder dumps (node/serve/flight.py)."""
    lost: str | None = None
    """The host that became unreachable, where that was the first failure."""
    lost_at: float | None = None
    """When the others found that; None: unknown."""
    without_guard: Sequence[str] = ()
    """Hosts that were restarted, or whose guard was killed, before the run was over."""
    stopped_by: str | None = None
    """Who stopped the run, where it did not fail."""
    failed_at: float | None = None
    first_rank: int | None = None
    """The rank that failed first, as the head saw it."""
    finished: Mapping[int, float] | None = None
    """When ranks ended with exit code 0."""
    stalled: bool = False
    """No rank had printed a line for run.stall_timeout: the hosts showed the stacks of all ranks and stopped them."""
    same_code: bool = False
    """ddp-orch sent the code, so all hosts have the same."""
    command: Command = UNKNOWN_COMMAND

    @property
    def were_aborted(self) -> bool:
        """Whether a person sent SIGABRT to ranks, to see their stacks."""
        return any(each.requested and each.signal == signal.SIGABRT for each in self.exits)
