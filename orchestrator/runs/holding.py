"""Hold a run that belongs to a job of a batch system: while `up` asks for it, the hosts let the run continue."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from ..answers.signaled import HOLD
from ..hosts.fleet import Fleet
from ..plan.plan import Plan

LIMIT = 30.0
"""Seconds without a request after which the head stops the run."""
INTERVAL = 5.0  # s
HELPERS = 3  # hosts that are asked: each passes it on to the head


@contextlib.contextmanager
def hold(plan: Plan, fleet: Fleet) -> Iterator[None]:
    """Hold the run of a resolved plan, if it has a `tie`."""
    if plan.tie is None:
        yield
        return
    hosts = [node.host for node in plan.nodes[:HELPERS]]
    left = threading.Event()

    def ask() -> None:
        while not left.wait(INTERVAL):
            fleet.each(
                hosts,
                lambda _, session: session.request(HOLD, {"run_id": plan.run_id}),
                enough=lambda results: bool(results.done),
            )

    thread = threading.Thread(target=ask, name="hold", daemon=True)  # a request may hang
    thread.start()
    try:
        yield
    finally:
        left.set()
