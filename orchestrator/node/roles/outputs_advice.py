"""Notes once, at a restart, that what rank 0 has saved stays on its host. For the head.

A run that continues another one has been restarted before its first attempt.
"""

import threading
from typing import Any, Callable, Dict, List, Optional, Tuple

from ..gang import team
from ..gang.gang_events import Noted
from ..gang.gang_state import Phase, State
from ..host import beside_code, state

LONGEST = 600  # characters of a note


class OutputsAdvice:
    """Looks in a thread: the disk may be slow or hang, and the other hosts must hear the head meanwhile."""

    def __init__(self, folder: str, spec: Dict[str, Any], happens: Callable[[Any], None]) -> None:
        """`folder`: of the run. `happens` gives the gang an event."""
        self._folder, self._spec, self._happens = folder, spec, happens
        self._is_done = False
        self._thread: Optional[threading.Thread] = None
        self._found = ""
        self._at_restart = False
        self._notes: List[str] = []  # those that may not be events of the gang yet

    def begin_continued(self, current: State) -> None:
        """Before the first attempt."""
        if self._spec.get("note"):
            self._note(self._spec["note"])
        if self._spec.get("continues") is not None:
            self._begin(current, current.team, at_restart=False)

    def begin(self, current: State) -> None:
        """At a restart."""
        members = team.next_team(current) or current.team
        copies = self._brings_its_snapshots or not self._copies_nothing or self._spec.get("memory_limit") is not None
        if members[0] != current.team[0] and not copies:
            old, new = (current.nodes[number].host for number in (current.team[0], members[0]))
            self._note(
                "rank 0 ran on %s, and now runs on %s: what it saved on the disk of %s stays there, so the ranks may "
                "begin at the first step; save snapshots to a disk that all hosts share (run.output), or on every host "
                "with run.resume: newest" % (old, new, old)
            )
        self._begin(current, members, at_restart=True)

    def _begin(self, current: State, members: Tuple[int, ...], at_restart: bool) -> None:
        if self._is_done or self._thread is not None or len(current.nodes) == 1 or self._brings_its_snapshots:
            return
        here = self._spec["node"]
        earlier = [current.nodes[number].host for number in current.led if number in members and number != here]
        self._at_restart = at_restart
        self._thread = threading.Thread(target=self._look, args=(current.nodes[here].host, earlier), daemon=True)
        try:
            self._thread.start()
        except RuntimeError:  # the ranks have used up the user's processes
            self._thread = None

    @property
    def _copies_nothing(self) -> bool:
        return self._spec.get("resume", "none") == "none" and not self._spec.get("shared_output")

    @property
    def _brings_its_snapshots(self) -> bool:
        """To all hosts."""
        return bool(self._spec["command"][2:4] == ["-m", "trainer"])

    def advance(self, current: State, at: float) -> None:
        """Note what the thread has found. If nothing, it looks again at the next restart."""
        if self._thread is not None and not self._thread.is_alive():
            self._thread = None
            if self._found:
                self._is_done = True
                self._note(self._found)
        if current.phase is not Phase.OVER:
            self._notes = [note for note in self._notes if note not in current.notes]  # a head may lack the authority
            for note in self._notes:
                self._happens(Noted(note, at))

    def _note(self, what: str) -> None:
        self._notes.append(" ".join(what.split())[:LONGEST])

    def _look(self, host: str, earlier: List[str]) -> None:
        """`earlier`: other hosts of the next attempt on which rank 0 has run."""
        snapshots = beside_code.snapshots(self._folder, self._spec)
        if snapshots:
            continued = self._spec.get("continues")
            file = snapshots[0] if continued is None else "%s of run %s" % (snapshots[0], continued)
            what = "%s has %s beside the code, and the other hosts do not get it" % (host, file)
            if earlier:
                what += " (%s, where rank 0 ran before, may have an older one)" % ", ".join(earlier)
            advice = "save it in $DDP_ORCH_OUTPUT_DIR%s" % (", with run.resume: head" if self._copies_nothing else "")
        elif self._at_restart and self._copies_nothing and state.has_files(self._output_folder):
            what = "the output folder of %s has files, and run.resume is none, so they stay there" % host
            advice = "set run.resume: head"
        else:
            return
        self._found = "%s; if all ranks load a snapshot that rank 0 has saved, %s" % (what, advice)

    @property
    def _output_folder(self) -> str:
        return state.output_folder(self._folder, self._spec)
