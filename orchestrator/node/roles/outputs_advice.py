"""Says once, at a restart, that what rank 0 has saved stays on its host. For the head.

A run that continues another one has been restarted before its first attempt.
"""

import threading
from typing import Any, Callable, Dict, Optional

from ..gang.gang_state import State
from ..host import beside_code, state


class OutputsAdvice:
    """Looks in a thread: the disk may be slow or hang, and the other hosts must hear the head meanwhile."""

    def __init__(self, folder: str, spec: Dict[str, Any], say: Callable[[str], None]) -> None:
        """`folder`: of the run."""
        self._folder, self._spec, self._say = folder, spec, say
        self._is_done = False
        self._thread: Optional[threading.Thread] = None
        self._found = ""
        self._at_restart = False

    def begin_continued(self, current: State) -> None:
        """Before the first attempt."""
        if self._spec.get("continues") is not None:
            self._begin(current, at_restart=False)

    def begin(self, current: State) -> None:
        self._begin(current, at_restart=True)

    def _begin(self, current: State, at_restart: bool) -> None:
        if self._is_done or self._thread is not None or len(current.nodes) == 1:
            return
        if self._spec["command"][2:4] == ["-m", "trainer"]:  # it brings its snapshots to all hosts
            return
        self._at_restart = at_restart
        self._thread = threading.Thread(target=self._look, args=(current.nodes[self._spec["node"]].host,), daemon=True)
        try:
            self._thread.start()
        except RuntimeError:  # the ranks have used up the user's processes
            self._thread = None

    def advance(self) -> None:
        """Say what the thread has found. If nothing, it looks again at the next restart."""
        if self._thread is None or self._thread.is_alive():
            return
        self._thread = None
        if self._found:
            self._is_done = True
            self._say(self._found)

    def _look(self, host: str) -> None:
        copies_nothing = self._spec.get("resume", "none") == "none" and not self._spec.get("shared_output")
        snapshots = beside_code.snapshots(self._folder, self._spec)
        if snapshots:
            continued = self._spec.get("continues")
            file = snapshots[0] if continued is None else "%s of run %s" % (snapshots[0], continued)
            what = "%s has %s beside the code, and the other hosts do not get it" % (host, file)
            advice = "save it in $DDP_ORCH_OUTPUT_DIR%s" % (", with run.resume: head" if copies_nothing else "")
        elif self._at_restart and copies_nothing and state.has_files(state.output_folder(self._folder, self._spec)):
            what = "the output folder of %s has files, and run.resume is none, so they stay there" % host
            advice = "set run.resume: head"
        else:
            return
        self._found = "%s; if all ranks load a snapshot that rank 0 has saved, %s" % (what, advice)
