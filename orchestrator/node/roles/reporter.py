"""Notify people in place of a head that is silent. If only this host was cut off, take that back. On other hosts."""

from typing import Any, Callable, Dict, Optional, Sequence

from ..gang import gang_events
from ..link.peers import RecorderApi
from ..recorder import notify, wait_news
from . import narration


class Reporter:
    def __init__(self, recorder: RecorderApi) -> None:
        self._recorder, self._spec, self._folder = recorder, recorder.spec, recorder.folder
        self._host = str(self._spec["nodes"][self._spec["node"]]["host"])
        self.has_told = False  # that the run waits, since this host heard the head last
        # the first report that may have to be taken back; also one from before this host was booted
        self._since = wait_news.reported_since(self._folder)
        self._team: Optional[Sequence[str]] = None  # the hosts of the run, if this one is a spare since its report

    def tell(self, label: str, loss: Dict[str, Any], awaited: Sequence[str], gives_up_at: float) -> None:
        """`loss`: why the head is silent. `gives_up_at`: Unix time, s."""
        more = ""
        self.has_told = True
        if label == "waiting":
            self._since, self._team = wait_news.begin_report(self._folder), None
            more = "it waits for %s %s" % (", ".join(awaited), narration.wait_until(gives_up_at))
            more += ", unless only %s is cut off%s" % (self._host, notify.advise_reviving(self._spec))
        self._notify(label, dict(loss, what="%s (reported by %s)" % (loss["what"], self._host)), more)

    def tell_of_stop(self) -> None:
        self._notify("killed")

    def hear_head(self) -> None:
        """After a silence."""
        self.has_told = False
        wait_news.supersede(self._folder)

    def obey(self, order: gang_events.Order) -> None:
        """An order of a head: it has heard this host."""
        if self._since is None:
            return
        if isinstance(order, gang_events.Run):
            # an order of the attempt before may come late, by a detour
            if order.attempt > self._recorder.reported["attempt"]:
                self._hear_restart(order.attempt)
        elif isinstance(order, gang_events.Wait):
            self._team = order.team
        elif isinstance(order, gang_events.End):
            self.hear_end(order.verdict)

    def _hear_restart(self, attempt: int) -> None:
        if "restart" in self._recorder.notify.get("events", notify.USUAL):
            self._close()  # the head tells of it
        else:
            self._take_back(
                "continues", more="attempt %d runs also on %s, which reported that it waits" % (attempt, self._host)
            )

    def on_tick(self, others_run: Callable[[], bool]) -> None:
        """`others_run`: whether the ranks run on other hosts, as far as this one knows."""
        if self._since is not None and self._team is not None and others_run():
            hosts = "it runs on %s; " % ", ".join(self._team)
            self._take_back("continues", more=hosts + self._reason("is a spare now"))

    def hear_end(self, verdict: Dict[str, Any]) -> None:
        """The run has ended meanwhile, or only this host has left it."""
        if self._since is None:
            return
        if verdict.get("left"):
            self._take_back("continues", more=self._reason("has left it"))
        elif "state" in verdict:
            self._take_back(verdict["state"], verdict.get("first_failure"))

    def end(self) -> None:
        """This host waits no longer."""
        if self._since is not None:
            self._close()

    def _reason(self, now: str) -> str:
        return "%s, which reported that it waits, could not reach them and %s" % (self._host, now)

    def _close(self) -> None:
        self._since = None
        wait_news.close_report(self._folder)

    def _take_back(self, label: str, failure: Optional[Dict[str, Any]] = None, more: str = "") -> None:
        since = self._since
        self._close()
        self._notify(label, failure, more, since)

    def _notify(
        self, label: str, failure: Optional[Dict[str, Any]] = None, more: str = "", takes_back: Optional[int] = None
    ) -> None:
        message = notify.message(self._spec, label, self._recorder.reported["attempt"], failure, more=more)
        notify.tell(self._spec["program"], self._recorder.notify, message, self._folder, takes_back)
