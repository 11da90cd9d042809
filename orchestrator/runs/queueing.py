"""Wait for the turn of a run on its hosts (`up --queue`). Then launch it.

The rules of the queue are in node/serve/run_queue.py; why no two runs wait for each other:
docs/adr/0032-queued-runs-agree-on-one-order.md.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from ..answers.queued import CANCEL_QUEUED, LEAVE_QUEUE, QUEUE, Turn
from ..answers.runs import LIST
from ..errors import HeldError, Interrupted
from ..hosts.fleet import Fleet, Results, fold_failures
from ..hosts.session import Session, SessionLost
from ..inventory import advice
from ..inventory.model import Host
from ..output.console import fold, number_of
from ..output.terminal import one_line
from ..plan import plan as planning
from ..plan.plan import Plan
from ..plan.snapshot import Snapshot
from . import examination, kept_hosts
from . import probe as preflight
from .launch import LaunchContext
from .probe import Probed
from .queue_hosts import AllHosts, AnyHosts
from .queued_runs import QueuedRun, still_waiting

LOOK_INTERVAL = 2.0  # s between two looks at the queues of the hosts
FIRST = 0  # the number of a ticket that is before all others
CANCEL_WINDOW = 20.0  # s for the controller of a cancelled run to look again: longer than RETRY_INTERVAL
RETRY_INTERVAL = 10.0  # s until the next try, if something else than a queued run holds what the run needs
WHAT_FOLLOWS = ". It starts with the code as it is now. Until then, this command waits; Ctrl-C leaves the queue"


@dataclass(frozen=True)
class Asking:
    """Whose turn we ask the hosts for."""

    run_id: str
    name: str
    by: str
    command: tuple[str, ...]
    launcher: Mapping[str, Any]
    queued_at: float

    @classmethod
    def of(cls, plan: Plan, by: str) -> Asking:
        """`by`: who starts the run."""
        return cls(plan.run_id, plan.name, by, plan.nodes[0].command, plan.launcher.as_spec(), time.time())


class Queue:
    """The tickets of a run on its hosts. They end with the sessions of the fleet."""

    def __init__(
        self,
        asking: Asking,
        fleet: Fleet,
        find_gpus: Callable[[Host, Session], Sequence[int]],
        *,
        join: bool,
        first: bool = False,
    ) -> None:
        """`find_gpus`: those that the run uses on a host. `join`: take tickets. Otherwise only look.

        `first`: before all others.
        """
        self._asking = asking
        self._fleet = fleet
        self._find_gpus = find_gpus
        self._gpu_ids: dict[str, list[int]] = {}
        self._join = join
        self._number: int | None = FIRST if first else None

    def ask(self, hosts: Sequence[Host], needed: Sequence[str] = ()) -> Results[Turn]:
        """Whether it is our turn on each host. Takes the tickets at first, and again where one was lost.

        `needed`: hosts that do not answer, and without which the run cannot start. Our tickets let others pass then.
        """
        if self._join and self._number is None:
            proposals = self._ask(hosts, needed)
            self._number = max((turn.number or 0 for turn in proposals.done.values()), default=None)
            if self._number is None:
                return proposals
        turns = self._ask(hosts, needed)
        # a connection that has just broken does not show that the host is off, and the run may start without it
        broken = [host for host in hosts if isinstance(turns.failed.get(host.name), SessionLost)]
        if not broken:
            return turns
        again = self._ask(broken, needed)
        failed = {name: error for name, error in turns.failed.items() if name not in again.done}
        return Results({**turns.done, **again.done}, {**failed, **again.failed})

    def _ask(self, hosts: Sequence[Host], needed: Sequence[str]) -> Results[Turn]:
        asking, number, join = self._asking, self._number, self._join

        def ask(host: Host, session: Session) -> Turn:
            if host.witness:  # runs share it
                return Turn(number, (), ())
            if host.name not in self._gpu_ids:
                self._gpu_ids[host.name] = list(self._find_gpus(host, session))
            question = {
                "run_id": asking.run_id,
                "name": asking.name,
                "by": asking.by,
                "command": list(asking.command),
                "launcher": dict(asking.launcher),
                "queued_at": asking.queued_at,
                "gpu_ids": self._gpu_ids[host.name],
                "number": number,
                "join": join,
                "waits_for": list(needed),
            }
            return session.request(QUEUE, question)

        return self._fleet.each(hosts, ask, enough=lambda results: _cancelled_by(results) is not None)

    def uses_gpus(self, host: str) -> bool:
        """Whether the run uses GPUs of a host that has answered."""
        return bool(self._gpu_ids.get(host))

    def leave(self, hosts: Sequence[Host], turns: Results[Turn]) -> None:
        """Give the tickets back on those of these hosts that answer."""
        answering = [host for host in hosts if host.name in turns.done and not host.witness]
        if self._join and answering:
            self._fleet.each(
                answering, lambda _, session: session.request(LEAVE_QUEUE, {"run_id": self._asking.run_id})
            )


def launch_in_turn(
    plan: Plan,
    snapshot: Snapshot | None,
    fleet: Fleet,
    context: LaunchContext,
    note: Callable[[str], None],
    *,
    wait: bool,
    first: bool = False,
) -> Plan:
    """As `launch.launch`, on the hosts that the plan's inventory leaves to choose, or all. `wait`: queue for them.

    `first`: before all others; somebody else has the tickets for that.
    Raises HeldError if they are in use, unless `wait`, and Interrupted if `cancel` was called; other errors as
    `launch`.
    """
    context.timing.begin()
    probed = examination.examine(plan, snapshot, fleet, context.timing)
    choice: AllHosts | AnyHosts  # checks the run: a mistake must not be found after hours
    if plan.inventory.any_of is None:
        choice = AllHosts(plan, probed, snapshot, fleet, context)
    else:
        choice = AnyHosts(plan, probed, snapshot, fleet, context, plan.inventory.any_of)
    asking = Asking.of(plan, context.by)
    queue = Queue(asking, fleet, partial(find_gpus, plan, probed), join=wait and not first, first=first)
    hosts = choice.hosts
    needed: tuple[str, ...] = ()
    reported: object = None
    while True:
        turns = kept_hosts.keep(queue.ask(hosts, needed), plan.inventory, fleet)
        if _cancelled_by(turns) is not None:
            queue.leave(hosts, turns)
        check_not_cancelled(turns)
        asked = hosts, needed
        choice.look(turns)
        hosts, needed = choice.hosts, choice.find_needed(turns)
        queue.leave([host for host in asked[0] if host not in hosts], turns)
        try:
            resolved = choice.launch(turns) if (hosts, needed) == asked and not needed else None
        except HeldError as error:
            if not wait:
                raise
            message, pause = f"{error}\n  still queued; trying again every {RETRY_INTERVAL:.0f} s", RETRY_INTERVAL
        else:
            if resolved is not None:
                queue.leave(hosts, turns)
                return resolved
            if not wait:
                why = describe(turns, "in use by")
                raise HeldError(f"too few hosts are free: {why}\n  to wait for your turn, add: --queue")
            message, pause = _describe_wait(turns, choice, plan), LOOK_INTERVAL
        subject = needed or message  # why a host does not answer may change at each look
        if subject != reported:
            is_first = reported is None and pause == LOOK_INTERVAL and not needed
            note(message + WHAT_FOLLOWS if is_first else message)
        reported = subject
        time.sleep(pause)


def cancel(runs: Sequence[QueuedRun], hosts: Sequence[Host], fleet: Fleet, by: str) -> tuple[QueuedRun, ...]:
    """Have the controllers of queued runs give their tickets back, and wait for it. Returns those that have not yet.

    A controller that was starting its run meanwhile gives its ticket back as well, so look for the run afterwards.
    """

    def ask(host: Host, session: Session) -> None:
        for run in runs:
            if host.name in run.hosts:
                session.request(CANCEL_QUEUED, {"run_id": run.run_id, "by": by})

    with_tickets = [host for host in hosts if any(host.name in run.hosts for run in runs)]
    fleet.each(with_tickets, ask)
    deadline = time.monotonic() + CANCEL_WINDOW
    while True:
        listed = fleet.each(with_tickets, lambda _, session: session.request(LIST, {"members": False}))
        left = still_waiting(runs, {host: answer.queued for host, answer in listed.done.items()})
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(LOOK_INTERVAL / 4)


def find_gpus(plan: Plan, probed: Results[Probed], host: Host, session: Session) -> Sequence[int]:
    """The GPUs that the run uses on a host. None: it uses the CPUs there."""
    node = planning.make_node(host, plan.template, plan.name)
    if node.gpu_ids != "auto":
        return node.gpu_ids
    known = probed.done.get(host.name) or preflight.ask(session, preflight.question(plan, node, None))
    return [gpu.index for gpu in known.facts.gpus]


def check_not_cancelled(turns: Results[Turn]) -> None:
    """Raises Interrupted if somebody has called `cancel`."""
    if cancelled_by := _cancelled_by(turns):
        raise Interrupted(f"{one_line(cancelled_by)} took the run out of the queue; nothing was started")


def _cancelled_by(turns: Results[Turn]) -> str | None:
    return next((turn.cancelled_by for turn in turns.done.values() if turn.cancelled_by is not None), None)


def _describe_wait(turns: Results[Turn], choice: AllHosts | AnyHosts, plan: Plan) -> str:
    if choice.find_needed(turns):
        kill = advice.command("kill", plan.run_id, inventory=plan.inventory.path)
        return f"queued: {choice.describe_needed(turns)}\n  to leave the queue: Ctrl-C, or: {kill}"
    message = describe(Results(turns.done, {}))
    if turns.failed:
        them = "it" if len(turns.failed) == 1 else "them"
        message += f"; {fold(turns.failed)} does not answer, so the run starts without {them} if that does not change"
    return f"queued: {message}"


def describe(turns: Results[Turn], why: str = "waiting for") -> str:
    """What the run waits for: `waiting for run 2026... (mine, of ann@laptop) on gpu[1-2]; 1 run is ahead`."""
    running: dict[str, list[str]] = {}
    kept: dict[str, list[str]] = {}
    ahead = {}
    for host, turn in turns.done.items():
        for run in turn.kept_for:
            kept.setdefault(_name(run.run_id, run.name, run.by), []).append(host)
        for run in turn.running:
            running.setdefault(_name(run.run_id, run.name, run.by), []).append(host)
        for run in turn.ahead:
            ahead[run.run_id] = _name(run.run_id, run.name, run.by)
    for run_id in {run.run_id for turn in turns.done.values() for run in turn.running}:
        ahead.pop(run_id, None)  # it has just started, and has its ticket still
    parts = [f"{why} {name} on {fold(hosts)}" for name, hosts in running.items()]
    for name, hosts in kept.items():
        are, them = ("is", "it") if len(hosts) == 1 else ("are", "them")
        parts.append(f"{fold(hosts)} {are} kept for {name}, which waits for {them}")
    if ahead:
        are = "is" if len(ahead) == 1 else "are"
        parts.append(f"{number_of(len(ahead), 'run')} {are} ahead: {', '.join(ahead.values())}")
    return "; ".join(parts + fold_failures(turns.failed)) or "waiting for free hosts"


def _name(run_id: str, name: str, by: str) -> str:
    named = f"{name}, of " if name != run_id else "of "
    return f"run {run_id} ({named}{one_line(by)})"
