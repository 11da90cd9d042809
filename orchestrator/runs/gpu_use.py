"""Ask the hosts of a run from time to time how busy their GPUs are, for the status line."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence

from ..answers.recorded import SAMPLE
from ..hosts.fleet import Fleet
from ..inventory.model import Host

INTERVAL = 10.0  # s between two questions
MAX_HOSTS = 16  # hosts that are asked; of larger runs, these show how the others do


@contextlib.contextmanager
def watch(run_id: str, hosts: Sequence[Host], fleet: Fleet, show: Callable[[float], object] | None) -> Iterator[None]:
    """`show`: gets the average of all GPUs in percent; None: nobody looks. Hosts that fail are left out."""
    if show is None:
        yield
        return
    stopped = threading.Event()
    step = -(-len(hosts) // MAX_HOSTS)
    thread = threading.Thread(target=_ask, args=(run_id, hosts[::step], fleet, show, stopped), daemon=True)
    thread.start()
    try:
        yield
    finally:
        stopped.set()


def _ask(
    run_id: str, hosts: Sequence[Host], fleet: Fleet, show: Callable[[float], object], stopped: threading.Event
) -> None:
    while not stopped.wait(INTERVAL):
        answers = fleet.each(hosts, lambda _, session: session.request(SAMPLE, {"run_id": run_id})).done
        busy = [gpu.busy for answer in answers.values() for gpu in answer.gpus if gpu.busy is not None]
        if answers and not busy:
            return  # without GPUs, or without a driver that reports how busy they are
        if busy:
            show(sum(busy) / len(busy))
