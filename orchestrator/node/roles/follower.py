"""The link of all nodes but the head: receives orders, sends statuses, waits for a head that is gone to come back."""

import socket
import time
from typing import Any, Dict, List, Optional, Sequence, Tuple

from ..gang import gang_events
from ..guard.permit import clock
from ..host import network
from ..link import messages
from ..link.link import HANDSHAKE_WINDOW, JOIN_WINDOW, Link, LinkClosed, beat, dial, lease
from ..link.messages import Envelope, OfHead
from ..link.peers import TICK, ClusterLink, RecorderApi
from ..recorder import saved_line
from . import narration, shown_state
from .detour import Received
from .reporter import Reporter
from .transport import Transport

REDIAL = 0.3  # s between tries to reach the head
# The part of the lease after which a node opens a second connection: after a cut, TCP waits about as long as the cut
# lasted before it sends again. The old connection stays, because under heavy packet loss it may recover first.
SILENT = 0.5
DETOUR_BEATS = 3  # after so many beats without a message by a detour, the head does not use it any more


class WorkerLink(ClusterLink):
    """Keeps a link to the head: sends our status, receives orders, renews the permit of the ranks here.

    After a lease without the head the permit lapses, and the guard stops the ranks. The run ends here when the head has
    not come back within run.rejoin_timeout.
    """

    def __init__(self, recorder: RecorderApi, transport: Transport) -> None:
        self._recorder = recorder
        self._spec = recorder.spec
        self._lease = lease(self._spec)
        self._rejoin_timeout = float(self._spec.get("rejoin_timeout", 0.0))
        self._transport = transport
        self._acceptor, self._contacts, self._detours = transport.acceptor, transport.contacts, transport.detours
        self._detour: Optional[Link] = None  # by which the head reached us last
        self._detour_at = 0.0
        self._head = 0  # the number of the head
        self._order: Optional[gang_events.Order] = None  # the newest
        self._dials = 0
        self._link: Optional[Link] = None
        self._next: Optional[Link] = None  # takes its place as soon as it is ready
        self._redial_at = 0.0
        self._beat_at = 0.0
        self._began = self._heard_at = time.monotonic()
        self._joined = False
        self._fenced = False  # nothing of the head for a lease
        self._reporter = Reporter(recorder)
        self._ended = False
        self._node_rank: Optional[int] = None  # in the newest attempt
        self._saved = saved_line.Watch(recorder.folder)
        self._checked: Optional[Tuple[int, List[Dict[str, str]]]] = None  # a health check that is not answered yet
        self._rank_network = transport.rank_network
        self._rank_network.leave_head()  # this node may have been the head
        self._show(None)  # without that of our predecessor

    def links(self) -> List[Link]:
        return self._transport.links() + self._to_head()

    def _to_head(self) -> List[Link]:
        return [link for link in (self._link, self._next) if link is not None]

    def listening(self) -> List[socket.socket]:
        return self._acceptor.listening()

    def pipes(self) -> List[int]:
        return self._transport.outputs.pipes()

    def due(self) -> float:
        tick = min(TICK, beat(self._lease))
        return tick if self._link is not None else max(0.0, min(tick, self._redial_at - time.monotonic()))

    def on_readable(self, handle: int) -> None:
        if self._acceptor.owns(handle):
            accepted = self._acceptor.on_readable(handle)
            for received in self._detours.accept(accepted) if accepted is not None else []:
                self.on_detour_message(received)
            return
        if handle in self.pipes():
            for contact in self._transport.outputs.on_readable():
                self._send({"resume": contact})
            return
        if self._detours.owns(handle):
            for received in self._detours.on_readable(handle):
                self.on_detour_message(received)
            return
        link = next((link for link in self._to_head() if link.fileno() == handle), None)
        if link is None:
            return
        was_ready = link.ready
        try:
            link.flush()
            received_messages = [messages.of_head(message) for message in link.receive()]
        except (LinkClosed, messages.Malformed):
            self._close(link)
            return
        if link.ready and link is self._next:
            self._close(self._link)
        if link.ready and not was_ready:
            self._on_heard(clock() - (time.monotonic() - link.opened_at))  # the head has answered to our nonce
            self._send(dict(self._dated(), contact=self._spec["contact"], status=self._recorder.reported))
            if not self._joined:
                self._joined = True
                self._recorder.command({"do": "prepared", "ready": {}})
        for message in received_messages:
            self._take(message)
            if message.order is not None:
                self._obey(message, message.order)
            if message.resume is not None:
                self._transport.outputs.serve(message.resume, self._transport.addresses() or self._own_addresses())
            if message.signal is not None:
                self._saved.begin(self._recorder.reported["attempt"])
                self._recorder.command({"do": "signal", "signal": message.signal})
            if message.envelope is not None:
                self._detours.send(message.envelope.target, message.envelope)

    def _take(self, message: OfHead) -> None:
        for node, contact in message.contacts.items():
            self._contacts.learn(node, contact)
        if message.echo is not None:
            self._on_heard(message.echo)

    def _obey(self, message: OfHead, order: gang_events.Order) -> None:
        """`order` came with `message`."""
        self._carry_out(order)

    def _carry_out(self, order: gang_events.Order, until: Optional[float] = None) -> None:
        self._order = order
        self._reporter.obey(order)
        if isinstance(order, gang_events.Run):
            self._node_rank = order.node_rank
        if isinstance(order, (gang_events.Run, gang_events.Wait)):
            self._rank_network.begin(order)
        if isinstance(order, gang_events.End):
            self._send({"told": True})
        self._recorder.obey(order, until)

    def _on_heard(self, sent_at: float) -> None:
        """The head has what we sent at that time, so it waits for us for a lease from then on at least.

        The time is ours. A message that a cut has delayed on its way here renews nothing.
        """
        age = max(0.0, clock() - sent_at)
        if age > self._lease:
            return
        self._heard_at = max(self._heard_at, time.monotonic() - age)
        self._recorder.permit(self._lease - age)
        if self._fenced and not self._ended:
            self._fenced = False
            self._reporter.hear_head()
            self._show(None)
            self._recorder.say("the head (%s) is back" % self._head_host)

    def on_detour_message(self, received: Received) -> None:
        """A message that another node carries, or asks us to carry."""
        here, envelope = self._spec["node"], received.envelope
        if envelope.target == here and envelope.sender == self._head:
            self._on_detour(envelope.message, received.link)
        elif envelope.sender != received.link.peer or envelope.target == here:
            return
        elif envelope.target == self._head:
            self._send_directly({"envelope": envelope})
        else:
            self._detours.send(envelope.target, envelope)

    def _on_detour(self, fields: Dict[str, Any], link: Link) -> None:
        """A message of the head, by a detour: it repeats its order with each of them."""
        try:
            message = messages.of_head(fields)
        except messages.Malformed:
            return
        self._detour, self._detour_at = link, time.monotonic()
        self._take(message)
        if message.order is not None and message.order != self._order:
            self._obey(message, message.order)
        self._send_by_detour(dict(self._of_ranks(), status=self._recorder.reported))

    def _close(self, link: Optional[Link]) -> None:
        """Close a link. The second one, if there is one, replaces the first."""
        if link is not None:
            link.close()
        if link is self._link:
            self._link = self._next
        self._next = None
        self._redial_at = time.monotonic() + REDIAL

    def _dial(self) -> Optional[Link]:
        """Each time the next address of the head: its networks may fail one by one."""
        addresses, port = self._endpoint()
        address = addresses[self._dials % len(addresses)]
        self._dials += 1
        try:
            return dial(address, port, self._recorder.key, self._spec["node"], self._head)
        except LinkClosed:
            self._redial_at = time.monotonic() + REDIAL
            return None

    def _endpoint(self) -> Tuple[Sequence[str], int]:
        """The addresses and the port of the head."""
        return self._spec["link_addresses"], self._spec["link_port"]

    def own_address(self) -> Optional[str]:
        try:
            return network.source_address(self._endpoint()[0][0])
        except OSError:
            return None

    def _own_addresses(self) -> List[str]:
        address = self.own_address()
        return [] if address is None else [address]

    def on_checked(self, attempt: int, problems: List[Dict[str, str]]) -> None:
        self._checked = attempt, problems
        self._answer_check()

    def _answer_check(self) -> None:
        """As soon as it is known whether the network of the ranks reaches this head."""
        self._look_at_rank_network(at_once=True)
        if self._checked is None or not self._rank_network.is_known:
            return
        attempt, problems = self._checked
        self._checked = None
        cut = self._rank_network.problem()
        self._send({"checked": {"attempt": attempt, "problems": problems + ([cut] if cut else [])}})

    def _look_at_rank_network(self, *, at_once: bool = False) -> None:
        link = self._link if self._link is not None and self._link.ready else None
        self._rank_network.look(link, *self._endpoint(), at_once=at_once)

    def on_status(self, status: Dict[str, Any]) -> None:
        self._send(dict(self._dated(), status=status))

    def _dated(self) -> Dict[str, Any]:
        """When a status was sent: an older one that comes later, by a detour, does not count."""
        now = time.monotonic()
        return {"clock": clock(), "unheard": now - self._link.heard_at if self._link is not None else 0.0}

    def _send(self, message: Dict[str, Any]) -> None:
        self._send_directly(message)
        if self._is_on_detour(time.monotonic()):
            self._send_by_detour(message)

    def _is_on_detour(self, now: float) -> bool:
        return now - self._detour_at < DETOUR_BEATS * beat(self._lease)

    def _send_by_detour(self, message: Dict[str, Any]) -> None:
        if self._detour is not None:
            self._detours.answer(self._detour, Envelope(self._spec["node"], self._head, dict(message, clock=clock())))

    def _send_directly(self, message: Dict[str, Any]) -> None:
        if self._link is None:
            return
        try:
            self._link.send(message)
        except LinkClosed:
            self._close(self._link)

    def on_tick(self) -> None:
        now = time.monotonic()
        self._transport.expire()
        for contact in self._transport.outputs.advance():
            self._send({"resume": contact})
        for link in self._to_head():
            if not link.ready and now - link.opened_at > HANDSHAKE_WINDOW:
                self._close(link)
        if self._link is None and now >= self._redial_at:
            self._link = self._dial()
        self._look_at_rank_network()
        if self._checked is not None:
            self._answer_check()
        if now >= self._beat_at:
            self._beat_at = now + beat(self._lease)
            self._beat(now - self._link.heard_at if self._link is not None else 0.0)
        if self._link is not None and now - self._heard_at > self._lease:
            self.on_readable(self._link.fileno())  # this process may be late itself: read what has arrived
        if self._link is not None and self._link.ready:
            silent = now - self._link.heard_at
            if silent > self._lease:
                self._close(self._link)
            elif silent > SILENT * self._lease and self._next is None and now >= self._redial_at:
                self._next = self._dial()
        if not self._joined and now - self._began > JOIN_WINDOW:
            self._began = now
            addresses, port = self._endpoint()
            why = "no link to the head at %s:%d" % (addresses[0], port)
            self._recorder.command({"do": "cannot", "why": why, "code": "ephemeral-ports-blocked"})
        if now - self._heard_at > self._lease and self._begun():
            self._fence(now)
        else:
            self._reporter.on_tick(self._others_run)

    def _beat(self, unheard: float) -> None:
        """`unheard`: seconds since a message of the head arrived on the link."""
        self._send_directly(dict(self._of_ranks(), clock=clock(), unheard=unheard))

    def _of_ranks(self) -> Dict[str, Any]:
        """What the head wants to know of the ranks here."""
        news: Dict[str, Any] = {"silence": self._recorder.silence()}
        if self._saved.look():
            news["saved"] = self._saved.attempt
        cut, reached = self._rank_network.cut(), self._rank_network.reached()
        if cut is not None:
            news["cut"] = cut
        elif reached is not None:
            news["reached"] = round(reached, 1)
        return news

    def _begun(self) -> bool:
        """Whether this node has had a part in the run, also with a guard before this one."""
        status = self._recorder.reported
        return bool(status["committed"])

    @property
    def _head_host(self) -> str:
        return str(self._spec["nodes"][self._head]["host"])

    def _fence(self, now: float) -> None:
        """The head is gone, or we are cut off from it: the others are stopping, and so does our guard."""
        if not self._fenced:
            self._fenced = True
            why = self._why_fenced()
            if why:
                self._recorder.say(why)
            if self._rejoin_timeout:
                self._show("waiting", self._awaited())
                self._tell_for_the_head("waiting")
        gives_up = now - self._heard_at > self._lease + self._rejoin_timeout
        if not self._ended and (gives_up or self._recorder.reported["stop"]):
            self._ended = True
            self._end()

    def _show(self, label: Optional[str], awaited: Sequence[str] = ()) -> None:
        """`awaited`: the hosts that this one waits for."""
        waits = shown_state.waiting(awaited, self._gives_up_at(), self._needs_majority)
        shown_state.show(
            self._recorder.folder, label, self._leadership(), self._added(), waits, drained=self._drained()
        )

    def _gives_up_at(self) -> float:
        """Unix time, s."""
        return time.time() + self._heard_at + self._lease + self._rejoin_timeout - time.monotonic()

    def _awaited(self) -> List[str]:
        return [self._head_host]

    def _added(self) -> List[Dict[str, Any]]:
        """The hosts that were added to the run, as far as this node knows."""
        return []

    def _drained(self) -> List[str]:
        """The hosts that have left the run, as far as this node knows."""
        return []

    @property
    def _needs_majority(self) -> bool:
        """Whether it waits for enough hosts to elect a head, and not for the head."""
        return False

    def _leadership(self) -> Dict[str, int]:
        """Who leads, in a run that can elect another head."""
        return {}

    def _why_fenced(self) -> str:
        silence = "no message from the head (%s) for %d s: stopping" % (self._head_host, self._lease)
        return silence + self._what_follows()

    def _what_follows(self) -> str:
        wait = "; waiting up to %s for it to come back" % narration.duration(self._rejoin_timeout)
        return wait if self._rejoin_timeout else ""

    def _end(self) -> None:
        status = self._recorder.reported
        by = (status["stop"] or {}).get("by")
        verdict = {
            "state": "killed" if by else "lost",
            "first_failure": None if by else self._head_lost(),
            "stopped_by": by,
            "attempt": status["attempt"],
        }
        self._reporter.end()
        if by and (self._reporter.has_told or self._tells_of_stop()):
            self._recorder.say("the run was stopped: requested by %s" % by)
            self._reporter.tell_of_stop()
        else:
            self._tell_for_the_head("lost")
        self._recorder.command({"do": "end", "verdict": verdict})

    def _head_lost(self) -> Dict[str, Any]:
        return {
            "host": self._head_host,
            "node": self._head,
            "rank": None,
            "what": "head lost",
            "lost": True,
            "at": time.time() - (time.monotonic() - self._heard_at),
        }

    def _tells(self) -> bool:
        """Only node rank 1 does: the others have no links to agree by (ADR 0004)."""
        return self._node_rank == 1

    def _tells_of_stop(self) -> bool:
        """Whether this node tells that the run was stopped, though it has told nothing before."""
        return False

    def _tell_for_the_head(self, label: str) -> None:
        """Notify in place of the head."""
        if self._tells() and not self._recorder.reported["stop"]:
            self._reporter.tell(label, self._head_lost(), self._awaited(), self._gives_up_at())

    def _others_run(self) -> bool:
        """Whether the ranks run on other hosts, while this one is a spare. The head has not said that it waits."""
        return True
