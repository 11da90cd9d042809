"""End runs on their hosts, and what runs have left there; gather what proves it. Chooses no run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..errors import OrchError
from ..hosts.fleet import Fleet, Results, Work, each
from ..hosts.session import Session
from ..inventory.model import Host

STOPS_AT_ONCE = 16  # runs of one host; each may take its whole grace
Answers = list[dict[str, Any]]  # of one host, to `stop`, `force` and `stale`


@dataclass(frozen=True)
class Killed:
    """The proof of a kill (contract: `kill --json`)."""

    run_id: str | None
    killed: tuple[dict[str, Any], ...]
    ports_freed: tuple[dict[str, Any], ...]
    gpus_freed: tuple[dict[str, Any], ...]
    remaining: tuple[dict[str, Any], ...]
    memory_freed: tuple[dict[str, Any], ...]
    """Segments of shared memory."""
    holders: tuple[dict[str, Any], ...]
    """Strangers' processes on the ports and GPUs that a run would want: host, what, pid, owner, cmd."""
    failed: Mapping[str, OrchError]

    def as_dict(self) -> dict[str, Any]:
        remaining = [*self.remaining, *(dict(one, why=f"not ours: holds {one['what']}") for one in self.holders)]
        return {
            "run_id": self.run_id,
            "killed": list(self.killed),
            "ports_freed": list(self.ports_freed),
            "gpus_freed": list(self.gpus_freed),
            "remaining": [{key: one[key] for key in ("host", "pid", "owner", "why")} for one in remaining],
            "unreachable": sorted(self.failed),
        }


@dataclass(frozen=True, kw_only=True)
class Victims:
    """What a kill shall end."""

    runs: tuple[str, ...] = ()
    members: Mapping[str, Mapping[str, Sequence[Any]]] = field(default_factory=dict)
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
    fleet: Fleet, hosts: Sequence[Host], victims: Victims, *, grace: float | None, by: str, doing: str = ""
) -> Killed:
    """`begin`, and wait for all hosts."""
    begun = begin(fleet, hosts, victims, grace=grace, by=by, doing=doing)
    return proof(victims.runs, [begun.wait()])


def begin(
    fleet: Fleet, hosts: Sequence[Host], victims: Victims, *, grace: float | None, by: str, doing: str = ""
) -> Work[Host, Answers]:
    """End the victims on all hosts at once, and all runs of a host at once; sweep, verify. To be started or waited for.

    Every host is asked, also those that a record does not name: the record may be what is broken. `doing` names it
    where its progress shall be shown, which is where nobody else writes to the terminal.
    """

    def end(host: Host, session: Session) -> Answers:
        more = victims.run_grace if grace is None else grace

        def stop(run: _Named) -> dict[str, Any]:
            members = victims.members.get(run.name, {}).get(host.name, ())
            asked = {"run_id": run.name, "grace": grace, "by": by, "members": members}
            return session.request("stop", asked, more=more)

        # not a ThreadPoolExecutor: after an interrupt, Python would wait for a host that hangs
        stopped = each(map(_Named, victims.runs), stop, STOPS_AT_ONCE)
        for error in stopped.failed.values():
            raise error
        answers = list(stopped.done.values())
        if host.name in victims.force:
            answers.append(session.request("force", {"pids": list(victims.force[host.name])}))
        if victims.stale:
            answers.append(session.request("stale", {"ports": list(victims.ports)}))
        return answers

    return fleet.begin(hosts, end, doing)


def proof(run_ids: Sequence[str], results: Sequence[Results[Answers]]) -> Killed:
    """What the hosts answered, some perhaps more than once."""

    def gather(key: str) -> tuple[dict[str, Any], ...]:
        found = []
        for host, answers in (one for result in results for one in result.done.items()):
            for answer in answers:
                if key not in answer:
                    continue
                found += [{"host": host, **(item if isinstance(item, dict) else {key: item})} for item in answer[key]]
        return tuple(found)

    ports = tuple({"host": item["host"], "port": item["ports_freed"]} for item in gather("ports_freed"))
    gpus = tuple({"host": item["host"], "gpu": item["gpus_freed"]} for item in gather("gpus_freed"))
    memory = tuple({"host": item["host"], "file": item["memory_freed"]} for item in gather("memory_freed"))
    run_id = run_ids[0] if len(run_ids) == 1 else None
    failed = {host: error for result in results for host, error in result.failed.items()}
    return Killed(run_id, gather("killed"), ports, gpus, gather("remaining"), memory, gather("holders"), failed)
