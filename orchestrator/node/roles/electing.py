"""A node of a run that elects its head: votes, and is the head or follows the one that is elected."""

import contextlib
import os
import time
from typing import Any, Dict, List, Optional, Union

from ..gang.election_state import FIRST_EPOCH, Ack, Beat, Message, Permit, Send
from ..gang.election_state import State as ElectionState
from ..guard.permit import clock
from ..host import state
from ..link import messages
from ..link.acceptor import Accepted
from ..link.link import HANDSHAKE_WINDOW, Link, LinkClosed, elects
from ..link.messages import Envelope
from ..link.peers import ClusterLink, RecorderApi
from . import shown_state
from .elected_follower import ElectedFollower
from .elected_head import ElectedHead
from .election_messages import decode, encode
from .follower import WorkerLink
from .gang_log import first_state
from .head import HeadLink
from .replicated_log import CommittedGang
from .transport import Transport
from .voter import Outgoing, Voter

CONTACTS = "contacts.json"  # where the other nodes are, for a host that is restarted


def cluster_link(recorder: RecorderApi, transport: Transport) -> ClusterLink:
    """This node's side of the link."""
    if elects(recorder.spec):
        return ElectingLink(recorder, transport)
    return HeadLink(recorder, transport) if recorder.spec["node"] == 0 else WorkerLink(recorder, transport)


class ElectingLink(ClusterLink):
    """Beats and their answers go on the head's links, all else of the election on connections of their own."""

    def __init__(self, recorder: RecorderApi, transport: Transport) -> None:
        self._recorder = recorder
        self._here = int(recorder.spec["node"])
        self._transport = transport
        self._voter = Voter(recorder.folder, recorder.spec)
        self._gang = CommittedGang(self._voter, first_state(recorder.spec))
        self._silent: Dict[int, Link] = {}  # accepted, and nothing has come yet that shows what the connection is for
        self._load_contacts()
        self._known = self._transport.contacts.position
        self._settled: Optional[ElectionState] = None  # what `_settle` has seen last
        self._role: Union[ElectedHead, ElectedFollower] = self._new_role()

    @property
    def leads(self) -> bool:  # type: ignore[override]
        return isinstance(self._role, ElectedHead)

    # the role of this node

    def _new_role(self) -> Union[ElectedHead, ElectedFollower]:
        if self._voter.leads:
            return ElectedHead(self._recorder, self._transport, self._voter, self._receive, self._propose, self._admit)
        head = self._voter.state.head
        if head is None:
            known = state.read(self._path(shown_state.NAME)) or {}
            first = self._recorder.spec.get("head", 0)  # another one if the run had elected it when this host was added
            head = known.get("head", first) if self._voter.epoch > FIRST_EPOCH else first
        return ElectedFollower(self._recorder, self._transport, self._voter, self._receive, self._gang.state, head)

    def _settle(self) -> None:
        """Change the role if the election has. Never while the role is at work."""
        if self._voter.state is not self._settled:  # this is called several times for each message
            self._settled = self._voter.state
            self._follow_election(self._voter.state.head)
        self._keep()

    def _follow_election(self, head: Optional[int]) -> None:
        if self._voter.leads != self.leads:
            self._role.close()
            self._role = self._new_role()
        elif isinstance(self._role, ElectedFollower) and head is not None:
            self._role.follow(head)
        if isinstance(self._role, ElectedHead):
            self._role.on_election_step()

    # the election

    def _receive(self, sender: int, fields: Dict[str, Any]) -> Optional[Message]:
        """Take a message of the election, and where its sender can be reached."""
        try:
            message = decode(fields.get("election"))
            if "contact" in fields:
                self._transport.contacts.learn(sender, messages.contact(fields["contact"]))
        except messages.Malformed:
            return None  # of its sender or of a helper
        self._carry_out(self._voter.receive(sender, message))
        return message

    def _propose(self, *texts: str) -> None:
        self._carry_out(self._voter.propose(*texts))

    def _admit(self, node: int) -> None:
        self._carry_out(self._voter.admit(node))

    def _carry_out(self, outgoing: List[Outgoing]) -> None:
        for action in outgoing:
            if isinstance(action, Permit):
                self._permit(action.until)
            else:
                self._send(action)

    def _permit(self, until: float) -> None:
        if until <= clock():
            return
        if isinstance(self._role, ElectedFollower):
            self._role.on_permit(until)
        else:
            self._recorder.permit(until - clock())

    def _send(self, action: Send) -> None:
        message: Dict[str, Any] = {"election": encode(action.message)}
        is_of_head = isinstance(action.message, (Ack, Beat))
        # on a link that was cut, TCP sends again so late that a permit might lapse: then by another connection too
        if not (is_of_head and self._role.deliver(action.node, message)):
            envelope = Envelope(self._here, action.node, dict(message, contact=self._recorder.spec["contact"]))
            self._transport.detours.send(action.node, envelope, self._voter.state.config.round_length)

    # connections

    def links(self) -> List[Link]:
        return self._role.links() + list(self._silent.values())

    def pipes(self) -> List[int]:
        return self._role.pipes()

    def listening(self) -> List[Any]:
        return self._role.listening()

    def due(self) -> float:
        return min(self._role.due(), self._voter.due())

    def on_readable(self, handle: int) -> None:
        acceptor = self._transport.acceptor
        if acceptor.owns(handle):
            accepted = acceptor.on_readable(handle)
            if accepted is not None:
                self._silent[accepted.link.fileno()] = accepted.link
                self._sort(accepted)
        elif handle in self._silent:
            self._read_first(self._silent[handle])
        else:
            self._role.on_readable(handle)
        self._settle()

    def _read_first(self, link: Link) -> None:
        try:
            link.flush()
            self._sort(Accepted(link, link.receive()))
        except LinkClosed:
            self._forget(link)
            link.close()

    def _sort(self, accepted: Accepted) -> None:
        """A node joins with its contact. Everything else comes in envelopes."""
        link, received = accepted
        if not received:
            return
        self._forget(link)
        if "envelope" in received[0]:
            for one in self._transport.detours.accept(accepted):
                self._role.on_detour_message(one)
        elif isinstance(self._role, ElectedHead):
            self._role.join(link, received)
        else:
            link.close()  # it will learn who is the head

    def _forget(self, link: Link) -> None:
        self._silent = {handle: other for handle, other in self._silent.items() if other is not link}

    def on_tick(self) -> None:
        now = time.monotonic()
        for link in list(self._silent.values()):
            if now - link.opened_at > 2 * HANDSHAKE_WINDOW:
                self._forget(link)
                link.close()
        self._carry_out(self._voter.tick())
        self._settle()
        self._role.on_tick()
        self._settle()

    # what the recorder reports

    def own_address(self) -> Optional[str]:
        return self._role.own_address()

    def on_checked(self, attempt: int, problems: List[Dict[str, str]]) -> None:
        self._role.on_checked(attempt, problems)

    def on_status(self, status: Dict[str, Any]) -> None:
        self._role.on_status(status)
        self._settle()

    # what this node remembers when it is restarted

    def _load_contacts(self) -> None:
        contacts = self._transport.contacts
        kept = state.read(self._path(CONTACTS)) or {}
        for node, contact in messages.contacts(kept, messages.MOST_NODES).items():
            contacts.learn(node, contact)
        contacts.learn(self._here, messages.contact(self._recorder.spec["contact"]))

    def _keep(self) -> None:
        """Nothing of this is needed for safety: it says where to look for the others."""
        contacts = self._transport.contacts
        if contacts.position == self._known:
            return
        self._known = contacts.position
        with contextlib.suppress(OSError):  # a full disk
            state.replace(self._path(CONTACTS), contacts.since(0))

    def _path(self, name: str) -> str:
        return os.path.join(self._recorder.folder, name)
