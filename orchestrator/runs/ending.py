"""End runs on their hosts, and what runs have left there; gather what proves it. Chooses no run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..answers import ends
from ..answers.ends import FORCE, STALE, STOP, Ending, LeftoversEnding
from ..answers.runs import Member
from ..errors import OrchError
from ..hosts.fleet import Fleet, Results, Work, each
from ..hosts.session import Session
from ..inventory.model import Host

STOPS_AT_ONCE = 16  # runs of one host; each may take its whole grace
Answers = list[Ending]  # of one host, to `stop`, `force` and `stale`


@dataclass(frozen=True)
class Killed:
    """The proof of a kill."""

    run_id: str | None
    endings: Sequence[tuple[str, Ending]]
    """What each host has ended, by the host; a host may have been asked for several things."""
    failed: Mapping[str, OrchError]

    @property
    def killed(self) -> list[tuple[str, ends.Killed]]:
        """Each with its host, as all of these."""
        return [(host, process) for host, ending in self.endings for process in ending.killed]

    @property
    def remaining(self) -> list[tuple[str, ends.Remaining]]:
        return [(host, process) for host, ending in self.endings for process in ending.remaining]

    @property
    def memory_freed(self) -> list[tuple[str, str]]:
        """Segments of shared memory."""
        return [(host, file) for host, ending in self._leftovers for file in ending.memory_freed]

    @property
    def holders(self) -> list[tuple[str, ends.Holder]]:
        """Strangers' processes on the ports and GPUs that a run would want."""
        return [(host, holder) for host, ending in self._leftovers for holder in ending.holders]

    @property
    def _leftovers(self) -> list[tuple[str, LeftoversEnding]]:
        return [(host, ending) for host, ending in self.endings if isinstance(ending, LeftoversEnding)]

    def as_dict(self) -> dict[str, Any]:
        """As `kill --json` promises it."""
        remaining = [(host, process.pid, process.owner, process.why) for host, process in self.remaining]
        remaining += [(host, one.pid, one.owner, f"not ours: holds {one.what}") for host, one in self.holders]
        return {
            "run_id": self.run_id,
            "killed": [{"host": host, "pid": process.pid, "cmd": process.cmd} for host, process in self.killed],
            "ports_freed": [{"host": host, "port": port} for host, one in self.endings for port in one.ports_freed],
            "gpus_freed": [{"host": host, "gpu": gpu} for host, one in self.endings for gpu in one.gpus_freed],
            "remaining": [dict(zip(("host", "pid", "owner", "why"), one, strict=True)) for one in remaining],
            "unreachable": sorted(self.failed),
        }


@dataclass(frozen=True, kw_only=True)
class KillTargets:
    """What a kill shall end."""

    runs: tuple[str, ...] = ()
    members: Mapping[str, Mapping[str, Sequence[Member]]] = field(default_factory=dict)
    """What was seen of these runs: run id -> host -> its processes as `find` lists them."""
    stale: bool = False
    """Everything that runs which are over have left."""
    ports: tuple[int, ...] = ()
    """Of whose holders to tell."""
    force: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Pids by host, whoever they belong to."""
    run_grace: float = 0.0
    """Seconds that the runs give their ranks to end where the kill names no other."""


@dataclass(frozen=True)
class _Named:
    """A run to stop."""

    name: str


def kill(
    fleet: Fleet, hosts: Sequence[Host], targets: KillTargets, *, grace: float | None, by: str, doing: str = ""
) -> Killed:
    """`begin`, and wait for all hosts."""
    begun = begin(fleet, hosts, targets, grace=grace, by=by, doing=doing)
    return proof(targets.runs, [begun.wait()])


def begin(
    fleet: Fleet, hosts: Sequence[Host], targets: KillTargets, *, grace: float | None, by: str, doing: str = ""
) -> Work[Host, Answers]:
    """End the targets on all hosts at once, and all runs of a host at once; sweep, verify. To be started or waited for.

    Every host is asked, also those that a record does not name: the record may be what is broken. `doing` names it
    where its progress shall be shown, which is where nobody else writes to the terminal.
    """

    def end(host: Host, session: Session) -> Answers:
        more = targets.run_grace if grace is None else grace

        def stop(run: _Named) -> Ending:
            members = targets.members.get(run.name, {}).get(host.name, ())
            asked = {"run_id": run.name, "grace": grace, "by": by, "members": members}
            return session.request(STOP, asked, more=more)

        # not a ThreadPoolExecutor: after an interrupt, Python would wait for a host that hangs
        stopped = each(map(_Named, targets.runs), stop, STOPS_AT_ONCE)
        for error in stopped.failed.values():
            raise error
        answers: Answers = list(stopped.done.values())
        if host.name in targets.force:
            answers.append(session.request(FORCE, {"pids": list(targets.force[host.name])}))
        if targets.stale:
            answers.append(session.request(STALE, {"ports": list(targets.ports)}))
        return answers

    return fleet.begin(hosts, end, doing)


def proof(run_ids: Sequence[str], results: Sequence[Results[Answers]]) -> Killed:
    """What the hosts answered, some perhaps more than once."""

    endings = [(host, ending) for result in results for host, endings in result.done.items() for ending in endings]
    run_id = run_ids[0] if len(run_ids) == 1 else None
    failed = {host: error for result in results for host, error in result.failed.items()}
    return Killed(run_id, endings, failed)
