"""Stop runs on their hosts, remove what runs have left there, and collect the proof. Chooses no run."""

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

MAX_PARALLEL_STOPS = 16  # runs of one host; each may take its whole grace
Answers = list[Ending]  # the answers of one host to `stop`, `force` and `stale`


@dataclass(frozen=True)
class KillProof:
    """What the hosts answered to a kill: what ended, and what is left."""

    run_id: str | None
    """None if it was not about exactly one run."""
    endings: Sequence[tuple[str, Ending]]
    """(host, answer); a host has an answer to each request."""
    failed: Mapping[str, OrchError]
    """Hosts that did not answer."""
    left_queue: Sequence[str] = ()
    """The ids of runs that waited for their turn."""

    @property
    def killed(self) -> list[tuple[str, ends.Killed]]:
        """(host, process); the properties below have the host first, too."""
        return [(host, process) for host, ending in self.endings for process in ending.killed]

    @property
    def remaining(self) -> list[tuple[str, ends.Remaining]]:
        return [(host, process) for host, ending in self.endings for process in ending.remaining]

    @property
    def autostart_removed(self) -> list[str]:
        """Hosts that would have started a run again when they are booted."""
        return sorted({host for host, ending in self.endings if ending.autostart_removed})

    @property
    def memory_freed(self) -> list[tuple[str, str]]:
        """Segments of shared memory."""
        return [(host, file) for host, ending in self._leftovers for file in ending.memory_freed]

    @property
    def holders(self) -> list[tuple[str, ends.Holder]]:
        """Processes that ddp-orch did not start, on ports and GPUs that a run needs."""
        return [(host, holder) for host, ending in self._leftovers for holder in ending.holders]

    @property
    def _leftovers(self) -> list[tuple[str, LeftoversEnding]]:
        return [(host, ending) for host, ending in self.endings if isinstance(ending, LeftoversEnding)]

    def as_dict(self) -> dict[str, Any]:
        """The document of `kill --json`."""
        remaining = [(host, process.pid, process.owner, process.why) for host, process in self.remaining]
        remaining += [
            (host, holder.pid, holder.owner, f"not started by ddp-orch; holds {holder.what}")
            for host, holder in self.holders
        ]
        containers = [
            {"host": host, "engine": container.engine, "id": container.id}
            for host, ending in self.endings
            for container in ending.containers
        ]
        return {
            "run_id": self.run_id,
            "killed": [{"host": host, "pid": process.pid, "cmd": process.cmd} for host, process in self.killed],
            "ports_freed": [
                {"host": host, "port": port} for host, ending in self.endings for port in ending.ports_freed
            ],
            "gpus_freed": [{"host": host, "gpu": gpu} for host, ending in self.endings for gpu in ending.gpus_freed],
            "remaining": [dict(zip(("host", "pid", "owner", "why"), row, strict=True)) for row in remaining],
            "unreachable": sorted(self.failed),
            **({"containers_removed": containers} if containers else {}),
            **({"autostart_removed": self.autostart_removed} if self.autostart_removed else {}),
            **({"left_queue": list(self.left_queue)} if self.left_queue else {}),
        }


@dataclass(frozen=True, kw_only=True)
class KillTargets:
    """What to kill."""

    runs: tuple[str, ...] = ()
    """Run ids."""
    members: Mapping[str, Mapping[str, Sequence[Member]]] = field(default_factory=dict)
    """The processes of these runs that were listed before: run id -> host -> processes."""
    stale: bool = False
    """Also remove everything that finished runs have left."""
    warm: bool = False
    """With `stale`: also end the processes that `run.warm` keeps."""
    ports: tuple[int, ...] = ()
    """With `stale`: report the processes that hold these ports."""
    force: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Pids by host to kill, whoever started them."""
    run_grace: float = 0.0
    """Seconds between TERM and KILL if the kill itself sets no grace."""
    lease: float = 0.0
    """The longest of the runs, in seconds: a host that is cut off from the head ends its part after a lease."""


@dataclass(frozen=True)
class _StopTask:
    """A run to stop, for `fleet.each`, which runs a task for everything that has a name."""

    name: str
    """The run id."""


def kill(
    fleet: Fleet, hosts: Sequence[Host], targets: KillTargets, *, grace: float | None, by: str, doing: str = ""
) -> KillProof:
    """Kill the targets, and wait for all hosts. See `begin`."""
    work = begin(fleet, hosts, targets, grace=grace, by=by, doing=doing)
    return collect_proof(targets.runs, [work.wait()])


def begin(
    fleet: Fleet, hosts: Sequence[Host], targets: KillTargets, *, grace: float | None, by: str, doing: str = ""
) -> Work[Host, Answers]:
    """The work of killing the targets on all hosts in parallel; the caller starts it, or waits for it.

    It asks every host, because the record of the run may be damaged and not name all of them. `grace`: seconds between
    TERM and KILL; None: `run_grace`. With `doing`, progress is shown, so nothing else may write to the terminal.
    """

    def end(host: Host, session: Session) -> Answers:
        seconds = targets.run_grace if grace is None else grace

        def stop(run: _StopTask) -> Ending:
            members = targets.members.get(run.name, {}).get(host.name, ())
            question = {"run_id": run.name, "grace": grace, "by": by, "members": members}
            return session.request(STOP, question, extra_time=seconds + targets.lease)

        # no ThreadPoolExecutor: after an interrupt, Python would wait for a host that hangs
        stopped = each(map(_StopTask, targets.runs), stop, MAX_PARALLEL_STOPS)
        for error in stopped.failed.values():
            raise error
        answers: Answers = list(stopped.done.values())
        if host.name in targets.force:
            answers.append(session.request(FORCE, {"pids": list(targets.force[host.name])}))
        if targets.stale:
            answers.append(session.request(STALE, {"ports": list(targets.ports), "warm": targets.warm}))
        return answers

    return fleet.begin(hosts, end, doing)


def collect_proof(run_ids: Sequence[str], results: Sequence[Results[Answers]]) -> KillProof:
    """The answers of several kills as one proof."""
    endings = [(host, ending) for result in results for host, endings in result.done.items() for ending in endings]
    run_id = run_ids[0] if len(run_ids) == 1 else None
    failed = {host: error for result in results for host, error in result.failed.items()}
    return KillProof(run_id, endings, failed)
