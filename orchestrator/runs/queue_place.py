"""The place of a run that `restart` starts again, before all queued runs, while the old run still has the hosts."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from functools import partial

from ..answers.queued import Turn
from ..errors import HeldError
from ..hosts.fleet import Fleet, Results
from ..inventory import advice
from ..plan.plan import Plan
from . import queueing
from .probe import Probed
from .queueing import Asking, Queue


class Place:
    """Tickets on all hosts of the new run. They end with the sessions of the fleet."""

    def __init__(self, plan: Plan, probed: Results[Probed], fleet: Fleet, by: str) -> None:
        """`probed`: what hosts have answered. `by`: who restarts the run."""
        self._plan = plan
        self._hosts = [node.host for node in plan.nodes]
        find_gpus = partial(queueing.find_gpus, plan, probed)
        self._queue = Queue(Asking.of(plan, by), fleet, find_gpus, join=True, first=True)

    def take(self, old_run: str, *, waits: bool) -> None:
        """Raises HeldError if another run than the old one has the name, or, unless `waits`, the GPUs of a host.

        Raises Interrupted if somebody has called `queueing.cancel`. Hosts without GPUs can be shared.
        """
        turns = self._ask()
        others = {host: [run for run in turn.running if run.run_id != old_run] for host, turn in turns.done.items()}
        if named := {run.run_id for runs in others.values() for run in runs if run.name == self._plan.name}:
            kills = "; ".join(advice.command("kill", run, inventory=self._plan.inventory.path) for run in sorted(named))
            raise HeldError(f"another run has the name: {self._describe(turns, named)}\n  to end it: {kills}")
        if not waits:
            on_gpus = {host: runs for host, runs in others.items() if runs and self._queue.uses_gpus(host)}
            free = len(turns.done) - len(on_gpus)
            if free < (self._plan.inventory.any_of or len(turns.done)):
                held = {run.run_id for runs in on_gpus.values() for run in runs}
                raise HeldError(f"too few hosts are free: {self._describe(turns, held)}")

    def keep(self) -> None:
        """A sign of life. Raises Interrupted as `take`."""
        self._ask()

    def _ask(self) -> Results[Turn]:
        turns = self._queue.ask(self._hosts)
        queueing.check_not_cancelled(turns)
        self._hosts = [host for host in self._hosts if host.name in turns.done]  # others cost seconds each time
        return turns

    def _describe(self, turns: Results[Turn], runs: Collection[str]) -> str:
        done = {
            host: replace(turn, running=tuple(run for run in turn.running if run.run_id in runs), ahead=())
            for host, turn in turns.done.items()
        }
        return queueing.describe(Results(done, {}), "in use by")
