"""Tell people of changes in the state of the gang: in the log of the run, and by notifications. On the head."""

from typing import Any, Callable, Dict, Optional

from ..gang.gang_state import Phase, State
from ..link.peers import RecorderApi
from ..recorder import notify
from . import narration
from .narration import News


class Teller:
    def __init__(self, recorder: RecorderApi, attempt: Callable[[], int], has_met: Callable[[], bool]) -> None:
        """`attempt`: the current one. `has_met`: whether another host has been met since this one was booted."""
        self._recorder, self._attempt, self._has_met = recorder, attempt, has_met
        self._notes: Optional[int] = None  # so many notes the gang had when the last attempt ended, if that is known

    def tell(self, before: State, after: State) -> None:
        for line in narration.lines(before, after):
            self._recorder.say(line)
        if after.phase is Phase.RESTARTING and before.phase is not Phase.RESTARTING:
            self._notes = len(before.notes)
        news = narration.news(before, after, () if self._notes is None else before.notes[self._notes :])
        if news is not None:
            revives = news.state == "waiting" and narration.lost_hosts(after)
            advice = notify.advise_reviving(self._recorder.spec) if revives else ""
            self._notify(news._replace(more=news.more + advice))
        if before.verdict is None:
            self.tell_of_end(after)

    def tell_of_end(self, state: State) -> None:
        if state.verdict is not None:
            self.notify(state.verdict["state"], state.verdict["first_failure"])

    def notify(self, label: str, failure: Optional[Dict[str, Any]] = None) -> None:
        """`label`: a state of notify.py."""
        self._notify(News(label, self._attempt(), failure))

    def _notify(self, news: News) -> None:
        if news.state in ("waiting", "lost") and self._recorder.reported["restarted"] and not self._has_met():
            return  # this host was booted, and the others may have ended the run meanwhile
        message = notify.message(self._recorder.spec, *news)
        notify.tell(self._recorder.spec["program"], self._recorder.notify, message, self._recorder.folder)
