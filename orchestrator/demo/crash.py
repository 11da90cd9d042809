"""Kill a rank in the middle of the demo, so that people see ddp-orch restart the run."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator, Sequence

from ..answers.recorded import SAMPLE
from ..commands.up import Watch
from ..errors import OrchError
from ..hosts.fleet import Fleet
from ..inventory.model import Host
from ..output.console import Console
from ..runs import signaling

STEP = 60  # of 165: several snapshots have been saved, and much is left to train
INTERVAL = 0.1  # s between two looks at the step; one step takes some 15 ms
RANK = 1


class Crash(Watch):
    """Kills one rank when the training has reached a step."""

    def __init__(self, console: Console) -> None:
        self._console = console

    @contextlib.contextmanager
    def stop_run_on_change(self, run_id: str, hosts: Sequence[Host], fleet: Fleet) -> Iterator[None]:
        ended = threading.Event()
        threading.Thread(target=self._kill, args=(run_id, hosts, fleet, ended), daemon=True).start()
        try:
            yield
        finally:
            ended.set()

    def _kill(self, run_id: str, hosts: Sequence[Host], fleet: Fleet, ended: threading.Event) -> None:
        """Nothing of the demo depends on it: if a host does not answer, no rank is killed."""
        with contextlib.suppress(OrchError):
            while not ended.wait(INTERVAL):
                sample = fleet.session(hosts[0]).request(SAMPLE, {"run_id": run_id})
                if any(rank.figures.get("step", 0.0) >= STEP for rank in sample.ranks):
                    break
            if not ended.is_set():
                where = f"rank {RANK} on {hosts[RANK].name}"
                self._console.step(f"the demo kills {where}, as a crash would: the run continues from a snapshot")
                signaling.send(fleet, [hosts[RANK]], run_id, signal.SIGKILL, {RANK})
