"""Give a run its hosts back that were restarted: start their guards again. Never starts or ends a run."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ..answers.rejoin import REJOIN, TICKET, Private
from ..answers.runs import LIST, Part
from ..errors import OrchError, UsageError
from ..hosts.fleet import Fleet, wrap_unexpected
from ..hosts.session import Refused, Session
from ..inventory import via
from ..inventory.advice import AboutRun
from ..inventory.hostnames import pick
from ..inventory.model import Host, Inventory
from ..output.console import fold
from . import recent
from .registry import Run

NOTIFIERS = (0, 1)  # the head, and who reports its loss
NO_NEWS = ("guarded", "held", "no-guard", "over")  # someone else starts the guard, or the run has just ended


def fetch_private(run_id: str, hosts: Sequence[Host], fleet: Fleet) -> Private:
    """What a new guard needs, from the first of these hosts that has a guard. Raises the last error if none has.

    A witness does not have the secrets.
    """
    failure: OrchError = OrchError(f"run {run_id}: no host has a guard")
    for host in (host for host in hosts if not host.witness):
        try:
            return fleet.session(host).request(TICKET, {"run_id": run_id}).private
        except OrchError as error:
            failure = error
    raise failure


def check_outlives(host: Host) -> None:
    """Raises UsageError if a guard on that host would end together with this program."""
    if via.bound_hosts([host]):
        raise UsageError(
            f"{host.name}: ddp-orch reaches it with srun, so Slurm would end its guard together with this command. "
            "`up` brings the host back while it is attached; for other commands, set ssh.via: openssh"
        )


def rejoin(run_id: str, host: Host, node: int, session: Session, private: Private) -> None:
    """Start the guard of a node again. Raises Refused."""
    of_host = replace(private, secrets={}) if host.witness else private
    arguments = {"run_id": run_id, "private": of_host.as_arguments(may_notify=node in NOTIFIERS)}
    session.request(REJOIN, arguments)


def was_drained(run_id: str, host: str, others: Sequence[Host], fleet: Fleet) -> bool:
    """Whether the run goes on without that host, on request, as the head says. Without the head, any other host."""
    for other in others:
        try:
            runs = fleet.session(other).request(LIST, {"members": False}).runs
        except OrchError:
            continue
        part = next((part for part in runs if part.run_id == run_id and part.unfinished), None)
        if part is not None and (host in part.drained or part.node == part.head):
            return host in part.drained
    return False


def describe_drained(run: Run, hosts: Sequence[str], inventory: Inventory, about: AboutRun) -> str:
    """That these hosts have left the run for good, with the command that starts it again with them."""
    members = [name for name in run.all_nodes if name not in run.drained and name != run.witness]
    words = () if _has_all(run.run_id, hosts, inventory) else ("--hosts", fold([*members, *hosts]))
    return (
        f"{fold(hosts)} has left run {run.run_id}, and cannot come back to it. To use {fold(hosts)} again, start "
        f"the run again: {about.command('restart', *words)}"
    )


def _has_all(run_id: str, hosts: Sequence[str], inventory: Inventory) -> bool:
    """Whether `restart` of the run uses these hosts, as far as this machine knows its command."""
    command = recent.command_of(run_id)
    pattern = command.options.get("hosts") if command else None
    if command is None or (pattern is None and not command.any_of):
        return True
    if command.any_of:
        return False
    try:
        return set(hosts) <= set(pick([host.name for host in inventory.hosts], str(pattern)))
    except UsageError:
        return False


@dataclass(frozen=True)
class Revived:
    """The result of `revive`."""

    hosts: tuple[str, ...] = ()
    """Where a guard was started."""
    failed: Mapping[str, OrchError] = field(default_factory=dict)


def revive(
    run_id: str, nodes: Mapping[str, int], parts: Mapping[str, Part], hosts: Sequence[Host], fleet: Fleet
) -> Revived:
    """Start the guards that are missing on the hosts of an unfinished run. Raises OrchError if no guard is left.

    `nodes`: the node number of each host of the run. `parts`: what the hosts answered.
    """
    missing = [host for host in hosts if host.name in nodes and host.name in parts and parts[host.name].lacks_guard]
    if not missing:
        return Revived()
    alive = [host for host in hosts if host.name in nodes and host.name in parts and parts[host.name].unfinished]
    private = fetch_private(run_id, alive, fleet)

    def start(host: Host, session: Session) -> bool:
        check_outlives(host)
        try:
            rejoin(run_id, host, nodes[host.name], session, private)
        except Refused as error:
            if error.code != "guarded":
                raise
            return False
        return True

    results = fleet.each(missing, start, "starting guards")
    return Revived(tuple(host for host, started in results.done.items() if started), results.failed)


class Reviver:
    """Revives hosts of a run while somebody follows it. Called from threads, one a host; an error is a warning.

    `check`: raises OrchError for a host that this program cannot revive.
    """

    def __init__(
        self,
        run_id: str,
        nodes: Mapping[str, int],
        hosts: Sequence[Host],
        fleet: Fleet,
        note: Callable[[str], None],
        warn: Callable[[str], None],
        check: Callable[[Host], None] = check_outlives,
    ) -> None:
        self._run_id = run_id
        self._nodes = nodes
        self._hosts = hosts
        self._fleet = fleet
        self._note = note
        self._warn = warn
        self._check = check
        self._warned: set[str] = set()
        self._drained: set[str] = set()
        self._lock = threading.Lock()

    def revive(self, host: Host) -> None:
        node = self._nodes.get(host.name, len(self._nodes))  # a host that was added later is none of NOTIFIERS
        try:
            self._check(host)
            others = [other for other in self._hosts if other.name != host.name]
            if self._leave_out(host, others):
                return
            private = fetch_private(self._run_id, others, self._fleet)
            rejoin(self._run_id, host, node, self._fleet.session(host), private)
        except Refused as error:
            if error.code not in NO_NEWS:
                self._warn_once(host, error)
        except OrchError as error:
            self._warn_once(host, error)
        except Exception as error:  # noqa: BLE001  the run must go on being shown
            self._warn_once(host, wrap_unexpected(host.name, error))
        else:
            self._note(f"{host.name} is back and takes part in the run again")

    def _leave_out(self, host: Host, others: Sequence[Host]) -> bool:
        """Whether the host was drained while it was off."""
        with self._lock:
            if host.name in self._drained:
                return True
        if not was_drained(self._run_id, host.name, others, self._fleet):
            return False
        with self._lock:
            self._drained.add(host.name)
        self._note(f"{host.name} is back, but was drained from the run, which continues without it")
        return True

    def _warn_once(self, host: Host, error: OrchError) -> None:
        text = f"{host.name} is back, but cannot take part in the run again: {error}"
        with self._lock:
            is_new = text not in self._warned
            self._warned.add(text)
        if is_new:
            self._warn(text)
