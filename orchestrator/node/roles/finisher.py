"""Carry out Finish on the head: signal the ranks, look for the line of the snapshot, stop the run."""

from typing import Any, Callable, Dict

from ..gang.finish import WALLTIME, Finish, Step
from ..gang.gang_state import NodePhase, Phase, State
from ..link.peers import RecorderApi
from ..recorder import saved_line, snapshot_time
from .tie import GRACE, STOPPED_BY, Tie

LOOK_EVERY = 10.0  # s between looks for a snapshot that somebody asked for


class Finisher:
    def __init__(
        self,
        recorder: RecorderApi,
        signal_others: Callable[[int], None],
        stop: Callable[[str, float], None],
        notify: Callable[[str], None],
    ) -> None:
        """`signal_others`: the ranks of all other nodes. `stop`: by whom it was asked, and the grace in seconds.

        `notify`: of a state, such as `ending`.
        """
        spec = recorder.spec
        self._recorder = recorder
        self._signal_others = signal_others
        self._stop = stop
        self._notify = notify
        self._grace = float(spec["grace"])
        self._finish = Finish(spec.get("walltime"), self._grace)
        self._number = saved_line.signal_number(spec)
        self._watch = saved_line.Watch(recorder.folder)
        self._saved_elsewhere = 0  # the attempt of which another node has said that it is saved
        self._folder = recorder.folder
        self._has_walltime = spec.get("walltime") is not None
        self._earlier = snapshot_time.of_earlier_run(self._folder, spec["name"]) if self._has_walltime else None
        self._look_at = 0.0
        self._tie = Tie(spec.get("tie"))

    def begin(self, at: float) -> None:
        self._finish.begin(at)

    def ask(self, request: Dict[str, Any], at: float) -> None:
        """`request`: as `messages.status` gives it."""
        self._finish.ask(request["by"], at, can_save=request["can_save"])

    @property
    def is_at_work(self) -> bool:
        """Whether the run is to stop, and waits for its snapshot."""
        return self._finish.request is not None

    def hear_holds(self, node: int, count: int, at: float) -> None:
        """How many requests to hold the run a node has counted."""
        self._tie.hear(node, count, at)

    def hear_saved(self, attempt: int) -> None:
        """A rank of another node has said that its snapshot is saved. It counts if that may be rank 0."""
        if not self._recorder.spec["rank_0_on_head"]:
            self._saved_elsewhere = attempt

    def on_tick(self, now: float, state: State) -> None:
        if state.phase not in (Phase.RUNNING, Phase.RESTARTING):
            return
        if self._tie.has_lapsed(now):
            self._stop(STOPPED_BY, min(GRACE, self._grace))
            return
        if any(node.phase is NodePhase.JOINED for node in state.members):
            return  # its ranks are being started
        if self._has_walltime and now >= self._look_at:
            self._look_at = now + LOOK_EVERY
            seconds = snapshot_time.last(self._folder)
            self._finish.last_snapshot = self._earlier if seconds is None else seconds
        attempt = state.attempt if state.phase is Phase.RUNNING else None
        is_saved = self._watch.look() or 0 < self._watch.attempt == self._saved_elsewhere
        step = self._finish.step(now, attempt, is_saved)
        by = self._finish.request.by if self._finish.request is not None else ""
        if step is Step.SIGNAL:
            self._recorder.say("asking the ranks for a snapshot, to stop the run: requested by %s" % by)
            self._watch.begin(state.attempt)
            snapshot_time.begin(self._folder)
            self._recorder.command({"do": "signal", "signal": self._number})
            self._signal_others(self._number)
            if by == WALLTIME:
                self._notify("ending")
        elif step is Step.STOP:
            if is_saved:
                snapshot_time.end(self._folder)
            else:
                self._recorder.say(
                    "no rank here has printed a line that begins with `saved` since then: a snapshot may be missing"
                )
            self._stop(by, self._grace)
