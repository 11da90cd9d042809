"""The head's side of the link. It runs the gang: statuses of nodes become events, the gang's actions become orders."""

import socket
import time
from typing import Any, Dict, List, Optional, Set, Tuple

from ..gang import agreement, drain, gang_events, gang_orders, gate, team
from ..gang.gang_state import GONE, UNREACHABLE, NodePhase, Phase, State
from ..guard import team_requests
from ..host import network
from ..link import messages
from ..link.attempt_phase import AttemptPhase
from ..link.link import Link, LinkClosed, beat, lease
from ..link.peers import TICK, ClusterLink, RecorderApi
from . import narration, shown_state
from .all_hosts import AllHosts
from .detour import Received
from .finisher import Finisher
from .gang_log import EventLog, GangLog, first_state
from .loss_watch import LossWatch
from .network_watch import NetworkWatch
from .node_watch import NodeWatch
from .rank_silence import RankSilence, ranks_of
from .resumption import Resumption
from .server_probes import ServerProbes
from .teller import Teller
from .transport import Transport

RESTART_TICK = 0.1  # s: nobody trains meanwhile
EARLY = 0.9  # of the time until the next tick: what wakes the recorder anyway may bring the tick with it
CHECKS = 4  # new nodes dialled per second, each once: a refusal proves something only after an accepted connection


class HeadLink(ClusterLink):
    """Has a link to every node. A node that is silent for a lease is lost."""

    leads = True

    def __init__(self, recorder: RecorderApi, transport: Transport) -> None:
        self._recorder, self._spec = recorder, recorder.spec
        self._here, self._lease = int(self._spec["node"]), lease(self._spec)
        self._transport = transport
        self._acceptor, self._contacts, self._detours = transport.acceptor, transport.contacts, transport.detours
        self._contacts.learn(self._here, messages.contact(self._spec["contact"]))
        self._nodes: Dict[int, Link] = {}
        self._all_hosts = AllHosts(self._spec, self._contacts)
        self._informed: Dict[int, int] = {}  # how many of the contacts each node has
        self._clocks: Dict[int, float] = {}  # each node's own time of its newest message
        self._unchecked: List[int] = []  # nodes that were never dialled
        self._told: Set[int] = set()  # nodes that have the verdict, and do not come back for it
        self._hosts: List[str] = [node["host"] for node in self._spec["nodes"]]
        nodes_wait = self._spec.get("rejoin_timeout", 0.0) > 0
        self._watch = NodeWatch(self._hosts, self._lease, nodes_wait, recorder.say, ServerProbes(self._contacts))
        self._resumption = Resumption(recorder, transport.outputs, transport.addresses, self._tell, self._step)
        self._teller = Teller(recorder, lambda: self._log.committed.attempt, lambda: self._has_met)
        self._finisher = Finisher(recorder, self._signal_nodes, self._stop_resumably, self._teller.notify)
        self._shown: Tuple[Any, ...] = ()
        self._tick_at = self._beat_at = 0.0
        self._answered = False
        self._has_met = len(self._spec["nodes"]) == 1  # whether another node has joined, if there are others
        self._team_requests: Set[str] = set()  # requests that the gang has decided on
        self._silence = RankSilence(self._spec, recorder.say, self._teller.notify)
        self._networks = NetworkWatch(self._hosts, self._lease, recorder.say)
        self._losses = LossWatch(recorder.folder, recorder.notify, self._teller.notify)
        self._log: EventLog = self._open_log()
        if self._log.started_at is not None:
            self._finisher.begin(self._log.started_at)
        self._teller.tell_of_end(self._log.committed)  # our predecessor may have been killed before it did
        self._show()
        for number, node in enumerate(self._state.nodes):
            if number != self._here and node.phase not in UNREACHABLE:
                self._watch.join(number, time.monotonic())

    def _open_log(self) -> EventLog:
        return GangLog(self._recorder.folder, first_state(self._spec), self._apply)

    @property
    def _state(self) -> State:
        return self._log.state

    def _now(self) -> float:
        """Seconds since 1970 by a clock that is never set back, the same for all recorders of this run."""
        return float(self._spec["epoch"]) + time.monotonic()

    def links(self) -> List[Link]:
        return self._transport.links() + list(self._nodes.values())

    def listening(self) -> List[socket.socket]:
        return self._acceptor.listening()

    def pipes(self) -> List[int]:
        return self._resumption.pipes()

    def due(self) -> float:
        restarts = self._state.phase is Phase.RESTARTING and not team.waits_for_nodes(self._state)
        return min(RESTART_TICK if restarts else TICK, beat(self._lease))

    def on_readable(self, handle: int) -> None:
        if self._acceptor.owns(handle):
            accepted = self._acceptor.on_readable(handle)
            if accepted is not None:
                self.join(accepted.link, accepted.messages)
            return
        if handle in self._resumption.pipes():
            self._resumption.on_readable(handle, self._state, self._now())
            return
        if self._detours.owns(handle):
            for received in self._detours.on_readable(handle):
                self.on_detour_message(received)
            return
        for link in list(self._nodes.values()):
            if link.fileno() == handle:
                self._exchange(link)
                return

    def join(self, link: Link, received: List[Dict[str, Any]]) -> None:
        """A node has connected. A new link of a node replaces the old one."""
        number = link.peer if link.peer is not None else -1
        if not 0 <= number < len(self._state.nodes) or number == self._here:
            link.close()
            return
        old = self._nodes.pop(number, None)
        if old is not None:
            old.close()
        self._nodes[number] = link
        self._has_met = True
        self._told.discard(number)
        self._informed[number] = 0
        self._watch.join(number, link.heard_at)
        self._clocks.pop(number, None)  # its host may have been booted since
        self._detours.refusals.discard(number)
        self._step(gang_events.Joined(number, self._now()))
        self._resumption.on_joined(number, self._now())
        self._on_messages(link, number, received)

    def _exchange(self, link: Link) -> None:
        try:
            link.flush()
            received = link.receive()
        except LinkClosed:
            self._drop(link)
            return
        if link.peer is not None:
            self._on_messages(link, link.peer, received)

    def _on_messages(self, link: Link, number: int, received: List[Dict[str, Any]]) -> None:
        try:
            for message in received:
                self._on_message(number, message)
                self._on_direct_message(link, number, message)
                if "envelope" in message:
                    envelope = messages.envelope(message["envelope"], len(self._state.nodes))
                    self.on_detour_message(Received(envelope, link))
        except messages.Malformed:
            self._drop(link)

    def _on_direct_message(self, link: Link, number: int, message: Dict[str, Any]) -> None:
        """Note on its link that a node was heard. Raises messages.Malformed."""
        self._watch.hear(number, link.heard_at)
        if "clock" in message:
            self._watch.hear_unheard(number, link.heard_at, messages.seconds(message.get("unheard")))
            self._send(link, dict(self._news(number), echo=self._clocks[number]))

    def _on_message(self, number: int, message: Dict[str, Any]) -> None:
        """Raises messages.Malformed."""
        if "clock" in message:
            self._clocks[number] = max(self._clocks.get(number, 0.0), messages.clock(message["clock"]))
        if "contact" in message and self._contacts.learn(number, messages.contact(message["contact"])):
            self._unchecked.append(number)
        if "status" in message:
            self._on_node_status(number, messages.status(message["status"]))
        if "checked" in message:
            self._step(gang_events.Checked(number, at=self._now(), **messages.checked(message["checked"])))
        if "resume" in message:
            self._resumption.on_server(number, messages.output_server(message["resume"]))
        if "silence" in message:
            self._silence.hear(number, messages.silence(message["silence"]))
            self._networks.hear(number, messages.reach(message), self._now())
        if message.get("told") is True:
            self._told.add(number)
        if "saved" in message:
            self._finisher.hear_saved(messages.integer(message["saved"]))

    def on_detour_message(self, received: Received) -> None:
        """A node has answered by a detour. One that was lost, or has not joined yet, has to join on a link."""
        envelope, link = received
        number, clock = envelope.sender, envelope.message.get("clock")
        if number not in self._watch.known() or self._state.nodes[number].phase in GONE or link.peer is None:
            return
        try:
            if clock is None or messages.clock(clock) < self._clocks.get(number, 0.0):
                return  # it was overtaken
            self._hear_by_detour(number, link.peer, envelope.message)
            self._on_message(number, envelope.message)
        except messages.Malformed:
            return  # of the sender or of its helper

    def _hear_by_detour(self, number: int, helper: int, message: Dict[str, Any]) -> None:
        self._watch.hear_by_detour(number, helper, time.monotonic())

    def _drop(self, link: Link) -> None:
        number = link.peer
        if number is not None and self._nodes.get(number) is link:
            del self._nodes[number]
            if number in self._told:
                self._step(gang_events.Disconnected(number, self._now()))
            elif self._detours.has_reached(number):
                self._detours.try_to_reach(number)  # if it refuses, its guard and recorder have ended
        link.close()

    def own_address(self) -> Optional[str]:
        start = self._recorder.reported["start"]
        return start["link_addresses"][0] if start is not None and len(self._spec["nodes"]) > 1 else None

    def on_checked(self, attempt: int, problems: List[Dict[str, str]]) -> None:
        self._step(gang_events.Checked(self._here, attempt, problems, self._now()))

    def on_status(self, status: Dict[str, Any]) -> None:
        now = self._now()
        if self._state.nodes[self._here].phase is NodePhase.ABSENT or not self._answered:
            self._answered = True
            self._step(gang_events.Joined(self._here, now))
            self._recorder.command({"do": "prepared", "ready": {}})
        if status["start"] is not None:
            self._acceptor.keep_only(status["start"]["link_addresses"])
        if status["start"] is not None and self._state.phase is Phase.WAITING:
            self._step(gang_events.StartRequested(status["start"]["master_addr"], status["start"]["master_port"], now))
            self._finisher.begin(now)
        for request in status["team_requests"]:
            self._take_request(request)
        self._on_node_status(self._here, messages.status(status))

    def _take_request(self, request: Dict[str, Any]) -> None:
        """A request is in every status until the guard has its answer."""
        if request["id"] not in self._team_requests:
            self._team_requests.add(request["id"])
            self._step(team_requests.event_of(request, self._spec["grace"], self._now()))
            answer = team_requests.answer_of(request, self._state)
            self._recorder.command({"do": "team answer", "id": request["id"], "answer": answer})

    def _on_node_status(self, number: int, status: Dict[str, Any]) -> None:
        """A status is always complete; what is new in it becomes an event."""
        now = self._now()
        host = self._state.nodes[number].host
        if status["stop"] is not None:
            self._step(gang_events.StopRequested(status["stop"]["by"], status["stop"]["grace"], now))
        if status["finish"] is not None:
            self._finisher.ask(status["finish"], now)
        self._finisher.hear_holds(number, status["holds"], now)
        if status["restarted"] and status["phase"] is AttemptPhase.PREPARED:
            self._step(gang_events.HostRestarted(number, now, status["begun"]))
        if status["phase"] is AttemptPhase.RUNNING:
            self._step(gang_events.Started(number, status["attempt"], now))
        for failure in status["failures"]:
            if failure["rank"] not in ranks_of(self._state, number):  # a node reports its own ranks only
                failure["rank"] = None
            if failure["attempt"] == self._state.attempt:
                self._losses.hear(failure["attempt"], failure["said"])
            self._step(gang_events.Failed(number, failure["attempt"], dict(failure, host=host, node=number), now))
        if status["phase"] is AttemptPhase.EXITED:
            self._step(gang_events.Exited(number, status["attempt"], status["outcome"]["ok"], now, status["fenced"]))

    def on_tick(self) -> None:
        now = time.monotonic()
        if now < self._tick_at:
            return  # this is called after every line of output
        self._tick_at = now + EARLY * self.due()
        self._transport.expire()
        nodes = self._expected()
        if now >= self._beat_at:
            self._beat_at = now + beat(self._lease)
            self._beat(nodes, now)
        for number in nodes:
            if self._watch.silent(number, now) > self._lease and number in self._nodes:
                self._exchange(self._nodes[number])  # this process may be late itself: read what has arrived
        self._decide()
        self._show()

    def _beat(self, nodes: List[int], now: float) -> None:
        """What is done once a second, or more often where the lease is short."""
        self._silence.hear(self._here, self._recorder.silence())
        stall = self._silence.look(self._state)
        if stall is not None:
            self._step(gang_events.Stalled(self._state.attempt, stall.quiet, stall.frozen, self._now()))
        cut = self._networks.look(self._state, self._silence.quiet(self._state), self._now())
        if cut is not None:
            self._step(gang_events.Failed(cut["node"], self._state.attempt, cut, self._now()))
        if self._state.phase is Phase.RUNNING:
            self._losses.look(self._state.attempt, now)
        self._reach(nodes, now)

    def _decide(self) -> None:
        """What follows from time alone."""
        leaving = drain.leaving(self._state)
        for loss in self._watch.judge(self._expected(), self._detours.refusals, time.monotonic(), leaving):
            self._lose(loss.node, loss.silent)
        self._resumption.advance(self._state, self._now())
        if agreement.restart_is_due(self._state, self._now()):
            self._find_port()
        self._finisher.on_tick(self._now(), self._state)
        self._step(gang_events.Tick(self._now()))

    def _signal_nodes(self, number: int) -> None:
        for node in list(self._nodes):
            self._tell(node, {"signal": number})

    def _tell(self, number: int, message: Dict[str, Any]) -> None:
        if number in self._nodes:
            self._send(self._nodes[number], message)

    def _stop_resumably(self, by: str, grace: float) -> None:
        self._step(gang_events.StopRequested(by, grace, self._now(), resumable=True))

    def _expected(self) -> List[int]:
        """The nodes that should answer."""
        return [number for number in self._watch.known() if self._state.nodes[number].phase not in GONE]

    def _reach(self, nodes: List[int], now: float) -> None:
        """Send what a silent node needs by detours. Try each new node once, a few at a time."""
        for number in self._watch.without_link(nodes, now):
            envelope = messages.Envelope(self._here, number, self._detour_message(number))
            self._detours.send(number, envelope)
            for helper in self._watch.helpers(nodes, number, now):
                if helper in self._nodes:
                    self._send(self._nodes[helper], {"envelope": envelope})
        for number in self._unchecked[:CHECKS]:
            self._detours.try_to_reach(number)
        del self._unchecked[:CHECKS]

    def _detour_message(self, number: int) -> Dict[str, Any]:
        """What a silent node needs."""
        order = self._all_hosts.order_of(self._state, number)
        message: Dict[str, Any] = {"order": order_message(order)} if order is not None else {}
        if number in self._clocks:
            message["echo"] = self._clocks[number]
        return message

    def _lose(self, number: int, silent: float) -> None:
        self._step(gang_events.Lost(number, self._now(), self._now() - silent))
        link = self._nodes.get(number)
        if link is not None and self._state.rejoin_timeout:
            self._drop(link)  # a node that is heard again on this link would not join

    def _news(self, number: int) -> Dict[str, Any]:
        """The contacts that a node does not know yet. Few messages have all of them when all nodes join at once."""
        contacts = self._contacts.since(self._informed.get(number, 0))
        self._informed[number] = self._contacts.position
        return {"contacts": contacts} if contacts else {}

    def _find_port(self) -> None:
        """Find a port for the next attempt's rendezvous. If a stranger takes it in between, only that attempt fails."""
        port = self._spec["rdzv_port"]
        try:
            port = network.free_for_torch(network.random_ports(*self._spec["ports"]) if port == "auto" else [port])[0]
        except OSError:
            return  # all are taken at the moment; the next tick tries again
        self._step(gang_events.PortFound(port, self._now(), self._new_master_addr()))

    def _new_master_addr(self) -> str:
        """Where the nodes of the next attempt meet; "": as in the attempt before."""
        return ""

    def _send(self, link: Link, message: Dict[str, Any]) -> None:
        try:
            link.send(message)
        except LinkClosed:
            self._drop(link)

    def _step(self, event: gang_events.Event) -> None:
        self._log.add(event)

    def _apply(self, before: State, after: State, actions: Tuple[gang_events.Action, ...]) -> None:
        """Carry out what an event has changed."""
        if after != before:
            self._tell_people(before, after)
            self._show()
            self._tick_at = 0.0 if after.phase is Phase.RESTARTING else self._tick_at  # the next attempt may be due
        for action in actions:
            self._send_order(action.node, self._all_hosts.complete(action.order, after))

    def _send_order(self, number: int, order: gang_events.Order) -> None:
        if number == self._here:
            self._recorder.obey(order)
        elif number in self._nodes:
            self._send(self._nodes[number], {"order": order_message(order)})

    def _show(self) -> None:
        label = gang_orders.label(self._state)
        suspects = (self._watch.suspects | self._networks.cut_off).intersection(self._state.team)
        suspected = [self._state.nodes[number].host for number in sorted(suspects)] if label == "running" else []
        label = "suspect" if suspected else label
        nodes, waits, unfit = self._state.nodes, None, gate.unfit(self._state)
        drained = drain.left_hosts(self._state)
        if label == "waiting":
            until = self._state.since + self._state.rejoin_timeout
            waits = shown_state.waiting(team.missing(self._state), until)
        if (label, len(nodes), waits, suspected, unfit, drained) == self._shown:
            return
        self._shown = label, len(nodes), waits, suspected, unfit, drained
        self._hosts.extend(node.host for node in nodes[len(self._hosts) :])
        added = shown_state.added(nodes, self._spec)
        shown_state.show(self._recorder.folder, label, self._leadership(), added, waits, suspected, unfit, drained)

    def _leadership(self) -> Dict[str, int]:
        """Who leads, in a run that can elect another head."""
        return {}

    def _tell_people(self, before: State, after: State) -> None:
        if after.attempt != before.attempt:
            self._silence.clear()
            self._networks.clear()
        self._teller.tell(before, after)
        if narration.plans_restart(before, after):
            self._resumption.warn_of_outputs(after)
        if before.attempt == 0 < after.attempt:
            self._resumption.warn_of_kept_files(after)


def order_message(order: gang_events.Order) -> List[Any]:
    return [type(order).__name__, order._asdict()]
