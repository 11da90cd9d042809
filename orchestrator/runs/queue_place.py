"""The place of a run that `restart` starts again, before all queued runs, while the old run still has the hosts."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from ..answers.queued import Turn
from ..errors import HeldError
from ..hosts.fleet import Fleet, Results
from ..plan.plan import Plan
from . import queueing
from .probe import Probed
from .queueing import Asking, Queue


class Place:
    """Tickets on all hosts of the new run. They end with the sessions of the fleet."""

    def __init__(self, plan: Plan, probed: Results[Probed], fleet: Fleet, by: str) -> None:
        """`probed`: what hosts have answered. `by`: who restarts the run."""
        self._hosts = [node.host for node in plan.nodes]
        find_gpus = partial(queueing.find_gpus, plan, probed)
        self._queue = Queue(Asking.of(plan, by), fleet, find_gpus, join=True, first=True)

    def take(self, old_run: str) -> Results[Turn]:
        """Returns the hosts that others than the old run use, and by whom; those without GPUs can be shared."""
        turns = self._queue.ask(self._hosts)
        queueing.check_not_cancelled(turns)
        others = {
            host: tuple(run for run in turn.running if run.run_id != old_run) for host, turn in turns.done.items()
        }
        return Results(
            {
                host: replace(turns.done[host], running=runs, ahead=())
                for host, runs in others.items()
                if runs and self._queue.uses_gpus(host)
            },
            {},
        )


def check_free(busy: Results[Turn]) -> None:
    """Raises HeldError if others use any of the hosts. `busy`: see `Place.take`."""
    if busy.done:
        raise HeldError(f"too few hosts are free: {queueing.describe(busy, 'in use by')}")
