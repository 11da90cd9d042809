"""Wait for the turn of a run on its hosts (`up --queue`), and choose hosts (`hosts: any N of`). Then launch it.

The rules of the queue are in node/serve/run_queue.py; why no two runs wait for each other:
docs/adr/0032-queued-runs-agree-on-one-order.md.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ..answers.queued import CANCEL_QUEUED, LEAVE_QUEUE, QUEUE, Turn
from ..answers.runs import LIST
from ..errors import HeldError, Interrupted, OrchError
from ..hosts.fleet import Fleet, Results, combine, fold_failures
from ..hosts.session import Session
from ..inventory.model import Host
from ..output.console import fold, number_of
from ..output.terminal import one_line
from ..plan import plan as planning
from ..plan.plan import Plan
from ..plan.snapshot import Snapshot
from . import examination, launch
from . import probe as preflight
from .launch import HELD_CODES, LaunchContext
from .probe import Probed
from .queued_runs import QueuedRun, still_waiting

LOOK_INTERVAL = 2.0  # s between two looks at the queues of the hosts
CANCEL_WINDOW = 20.0  # s for the controller of a cancelled run to look again: longer than RETRY_INTERVAL
RETRY_INTERVAL = 10.0  # s until the next try, if something else than a queued run holds what the run needs


@dataclass(frozen=True)
class Asking:
    """Whose turn we ask the hosts for."""

    run_id: str
    name: str
    by: str
    gpu_ids: Mapping[str, Sequence[int]]
    """By host. None: the run uses the CPUs there."""


class Queue:
    """The tickets of a run on its hosts. They end with the sessions of the fleet."""

    def __init__(self, asking: Asking, fleet: Fleet, *, join: bool) -> None:
        """`join`: take tickets. Otherwise only look."""
        self._asking = asking
        self._fleet = fleet
        self._join = join
        self._number: int | None = None

    def ask(self, hosts: Sequence[Host]) -> Results[Turn]:
        """Whether it is our turn on each host. Takes the tickets at first, and again where one was lost."""
        if self._join and self._number is None:
            proposals = self._ask(hosts)
            self._number = max((turn.number or 0 for turn in proposals.done.values()), default=None)
            if self._number is None:
                return proposals
        return self._ask(hosts)

    def _ask(self, hosts: Sequence[Host]) -> Results[Turn]:
        asking, number, join = self._asking, self._number, self._join
        return self._fleet.each(
            hosts,
            lambda host, session: session.request(
                QUEUE,
                {
                    "run_id": asking.run_id,
                    "name": asking.name,
                    "by": asking.by,
                    "gpu_ids": list(asking.gpu_ids[host.name]),
                    "number": number,
                    "join": join,
                },
            ),
        )

    def leave(self, hosts: Sequence[Host]) -> None:
        if self._join:
            self._fleet.each(hosts, lambda _, session: session.request(LEAVE_QUEUE, {"run_id": self._asking.run_id}))


def launch_in_turn(
    plan: Plan,
    snapshot: Snapshot | None,
    fleet: Fleet,
    context: LaunchContext,
    note: Callable[[str], None],
    *,
    wait: bool,
) -> Plan:
    """As `launch.launch`, on the hosts that the plan's inventory leaves to choose, or all. `wait`: queue for them.

    Raises HeldError if they are in use, unless `wait`, and Interrupted if `cancel` was called; other errors as
    `launch`.
    """
    context.timing.begin()
    probed = examination.examine(plan, snapshot, fleet, context.timing)
    if plan.inventory.any_of is None:
        launch.check(plan, probed, fleet, context, ignore=HELD_CODES)  # a mistake must not be found after hours
        choice: _Choice = _All(plan, snapshot, fleet, context)
    else:
        choice = _Any(plan, snapshot, fleet, context, plan.inventory.any_of)
    hosts = choice.candidates(probed)
    asking = Asking(plan.run_id, plan.name, context.by, _gpu_ids(plan, hosts, probed))
    queue = Queue(asking, fleet, join=wait)
    reported = ""
    fresh: Results[Probed] | None = probed
    while True:
        turns = queue.ask(hosts)
        if cancelled_by := next((turn.cancelled_by for turn in turns.done.values() if turn.cancelled_by), ""):
            queue.leave(hosts)
            raise Interrupted(f"{one_line(cancelled_by)} took the run out of the queue; nothing was started")
        try:
            resolved = choice.launch([host.name for host in hosts if _is_free(turns, host)], fresh)
        except HeldError as error:
            if not wait:
                raise
            message, pause = f"{error}\n  still queued; trying again every {RETRY_INTERVAL:.0f} s", RETRY_INTERVAL
        else:
            if resolved is not None:
                queue.leave(hosts)
                return resolved
            if not wait:
                why = describe(turns, "in use by")
                raise HeldError(f"too few hosts are free: {why}\n  to wait for your turn, add: --queue")
            message, pause = describe(turns), LOOK_INTERVAL
            message = (
                f"queued: {message}. The code is sent when its turn comes. Until then, this command waits; Ctrl-C "
                "leaves the queue"
            )
        fresh = None
        if message != reported:
            note(message)
        reported = message
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


def _is_free(turns: Results[Turn], host: Host) -> bool:
    return host.name in turns.done and turns.done[host.name].free


def _gpu_ids(plan: Plan, hosts: Sequence[Host], probed: Results[Probed]) -> dict[str, list[int]]:
    ids = {}
    for node in plan.nodes:
        if node.host in hosts:
            gpus = probed.done[node.host.name].facts.gpus
            ids[node.host.name] = [gpu.index for gpu in gpus] if node.gpu_ids == "auto" else list(node.gpu_ids)
    return ids


class _All:
    """A run that needs all of its hosts."""

    def __init__(self, plan: Plan, snapshot: Snapshot | None, fleet: Fleet, context: LaunchContext) -> None:
        self._plan, self._snapshot, self._fleet, self._context = plan, snapshot, fleet, context
        self._count = 0

    def candidates(self, probed: Results[Probed]) -> list[Host]:
        """The hosts to queue for. A witness is shared by runs, and an unreachable host is not needed."""
        hosts = [node.host for node in self._plan.nodes if node.host.name in probed.done and not node.host.witness]
        self._count = len(hosts)
        return hosts

    def launch(self, free: Sequence[str], probed: Results[Probed] | None) -> Plan | None:
        """Launch the run if these hosts are enough. `probed`: facts that are still fresh. Raises as `launch.launch`."""
        if len(free) < self._count:
            return None
        if probed is None:  # `launch` would take hosts without a turn in place of those that are unreachable
            self._context.timing.begin()
            probed = examination.examine(self._plan, self._snapshot, self._fleet, self._context.timing)
        return launch.launch(self._plan, self._snapshot, self._fleet, self._context, probed)


class _Any:
    """A run that takes the first hosts of its inventory that are free."""

    def __init__(
        self, plan: Plan, snapshot: Snapshot | None, fleet: Fleet, context: LaunchContext, number: int
    ) -> None:
        self._plan, self._snapshot, self._fleet, self._context = plan, snapshot, fleet, context
        self._number = number

    def candidates(self, probed: Results[Probed]) -> list[Host]:
        """The hosts without a problem that waiting does not solve. Raises an error if they are too few."""
        problems = self._problems(probed, ignore=HELD_CODES)
        hosts = [node.host for node in self._plan.nodes if node.host.name not in problems]
        for line in fold_failures(problems):
            self._context.warn(f"not chosen: {line}")
        if len(hosts) < self._number:
            usable = f"only {number_of(len(hosts), 'host')}" if hosts else "no host"
            raise combine(
                problems.values(), f"{usable} can be used, but {self._number} are needed; nothing was started"
            )
        return hosts

    def launch(self, free: Sequence[str], probed: Results[Probed] | None) -> Plan | None:
        """As `_All.launch`."""
        if len(free) < self._number:
            return None
        if probed is None:
            self._context.timing.begin()
            candidates = planning.restrict(self._plan, free)
            probed = examination.examine(candidates, self._snapshot, self._fleet, self._context.timing)
        problems = self._problems(probed)
        chosen = [name for name in free if name in probed.done and name not in problems][: self._number]
        if len(chosen) < self._number:
            lines = "\n  ".join(fold_failures(problems))
            raise HeldError(f"too few of the free hosts can be used:\n  {lines}")
        answers = Results({name: probed.done[name] for name in chosen}, {})
        plan = planning.restrict(self._plan, chosen)
        return launch.launch(plan, self._snapshot, self._fleet, self._context, answers)

    def _problems(self, probed: Results[Probed], ignore: frozenset[str] = frozenset()) -> dict[str, OrchError]:
        """Why hosts cannot be used, each looked at alone."""
        problems = dict(probed.failed)
        for name, host in probed.done.items():
            findings = preflight.check_hosts(planning.restrict(self._plan, [name]), {name: host})
            errors = [each for each in findings if each.severity == "error" and each.code not in ignore]
            if errors and not self._context.skip_check:
                problems[name] = launch.error_of(errors, f"{name}: {errors[0].message}")
        return problems


_Choice = _All | _Any


def describe(turns: Results[Turn], why: str = "waiting for") -> str:
    """What the run waits for: `waiting for run 2026... (mine, of ann@laptop) on gpu[1-2]; 1 run is ahead`."""
    running: dict[str, list[str]] = {}
    ahead = {}
    for host, turn in turns.done.items():
        for run in turn.running:
            running.setdefault(_name(run.run_id, run.name, run.by), []).append(host)
        for run in turn.ahead:
            ahead[run.run_id] = _name(run.run_id, run.name, run.by)
    parts = [f"{why} {name} on {fold(hosts)}" for name, hosts in running.items()]
    if ahead:
        are = "is" if len(ahead) == 1 else "are"
        parts.append(f"{number_of(len(ahead), 'run')} {are} ahead: {', '.join(ahead.values())}")
    return "; ".join(parts + fold_failures(turns.failed)) or "waiting for free hosts"


def _name(run_id: str, name: str, by: str) -> str:
    named = f"{name}, of " if name != run_id else "of "
    return f"run {run_id} ({named}{one_line(by)})"
