"""How a run ends on this host: the stop request, the verdict, the recorder's last bytes, the exit record.

For the guard. attempts.py knows whether processes still run.
"""

import os
import shutil
import time
from typing import Any, Callable, Dict, List, Optional

from ..host import login_session, memory_folder, state
from . import exit_record
from .child import RecorderChild

LEAVE_GRACE = 10.0  # s at most for the ranks of a host that shuts down
DRAIN_WINDOW = 15.0  # s for the recorder to write what the FIFOs still hold


class Shutdown:
    """`stop`: the stop request. `verdict`: of the run, by the gang. `finished`: the guard has nothing left to do."""

    def __init__(self, folder: str, recorder: RecorderChild, send_status: Callable[[], None]) -> None:
        self.stop: Optional[Dict[str, Any]] = None
        self.verdict: Optional[Dict[str, Any]] = None
        self.leaves = False  # the host shuts down: this guard ends without a verdict, and another may follow at boot
        self.finished = False
        self._folder = folder
        self._recorder = recorder
        self._send_status = send_status
        self._drain_by: Optional[float] = None

    @property
    def is_draining(self) -> bool:
        return self._drain_by is not None

    @property
    def is_due(self) -> bool:
        """Whether the guard ends as soon as no process is left."""
        return self.leaves or self.verdict is not None

    def due_at(self) -> float:
        waiting = self._drain_by is not None and self._recorder.pid > 0
        return self._drain_by if self._drain_by is not None and waiting else float("inf")

    def request_stop(self, by: str, grace: float) -> None:
        """A later request counts only if its grace is shorter."""
        if self.stop is None or grace < self.stop["grace"]:
            self.stop = {"by": by, "grace": grace, "at": time.time()}

    def leave_with_host(self, spec: Dict[str, Any]) -> bool:
        """Whether SIGTERM came because the host shuts down, so that it may come back to the run. The
        init sends it to all processes then. It must not stop the run on the other hosts.
        """
        may_come_back = bool(spec.get("max_restarts") and spec.get("rejoin_timeout"))
        self.leaves = self.leaves or (may_come_back and login_session.host_shuts_down())
        return self.leaves

    def advance(self, now: float) -> None:
        """There is a verdict, and no process is left: have the recorder write the rest, then end."""
        if self.verdict is None:
            self._recorder.kill()  # or it would start another guard
            self.finished = True
        elif self._drain_by is None:
            self._drain_by = now + DRAIN_WINDOW
            self._send_status()
        elif now > self._drain_by and self._recorder.pid > 0:
            self._recorder.kill()
            self.finished = True

    def on_recorder_exit(self, status: int) -> None:
        """`status`: as wait() gives it. 0 while it drains: it has written everything."""
        if self._drain_by is not None and status == 0:
            self._recorder.due = None
            self.finished = True

    def abort(self) -> None:
        """The run was never committed: remove everything as if it had not been prepared."""
        if self._recorder.pid > 0:
            self._recorder.kill()
            os.waitpid(self._recorder.pid, 0)
        memory_folder.remove(state.read(os.path.join(self._folder, "spec.json")) or {})
        shutil.rmtree(self._folder, ignore_errors=True)
        self.finished = True

    def write_record(
        self, spec: Dict[str, Any], outcome: Optional[Dict[str, Any]], failures: List[Dict[str, Any]]
    ) -> None:
        """Write exit.json and remove the FIFOs; nothing where there is no verdict."""
        if self.verdict is None:
            return
        exit_record.write(self._folder, spec, self.verdict, outcome, failures)
        fifos = os.path.join(self._folder, "fifo")
        for name in os.listdir(fifos):
            os.unlink(os.path.join(fifos, name))
