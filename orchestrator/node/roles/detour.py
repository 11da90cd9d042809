"""Connections between nodes beside the links to the head: made when needed, and messages by a detour through a node.

If the direct way between the head and a node is broken, a third node that reaches both carries their messages:

    head ──envelope (0, 2, message)──> node 1 ──the same envelope──> node 2, which answers the same way

A node carries only what comes from its sender itself, so no message makes more than one detour.
"""

import time
from typing import Any, Dict, List, NamedTuple, Optional, Set

from ..link import messages
from ..link.acceptor import Accepted
from ..link.contacts import Contacts
from ..link.link import HANDSHAKE_WINDOW, Link, LinkClosed, dial
from ..link.messages import Envelope

IDLE = 30.0  # s without a message after which a connection is closed
REDIAL = 0.5  # s
MOST_DIALS = 100  # in progress: more of them only to nodes that are not dialled yet
MOST_WAITING = 8  # messages for a node that is still being dialled; the oldest are out of date


class Received(NamedTuple):
    envelope: Envelope
    link: Link  # that it came by: where to answer


class Detours:
    """`refusals`: nodes that refuse connections on an address where they accepted one before: nobody listens there."""

    def __init__(self, run_key: bytes, node: int, nodes: int, contacts: Contacts) -> None:
        """`node`: our number; `nodes`: how many there are."""
        self._run_key = run_key
        self._node = node
        self._nodes = nodes
        self._contacts = contacts
        self._ready: List[Link] = []
        self._dialled: Dict[Link, str] = {}  # not ready yet, with the address
        self._waiting: Dict[int, List[Dict[str, Any]]] = {}
        self._reached: Dict[int, Set[str]] = {}  # addresses of each node where it has accepted a connection
        self.refusals: Set[int] = set()

    def links(self) -> List[Link]:
        return self._ready + list(self._dialled)

    def owns(self, handle: int) -> bool:
        return self._link(handle) is not None

    def _link(self, handle: int) -> Optional[Link]:
        return next((link for link in self.links() if link.fileno() == handle), None)

    def has_reached(self, node: int) -> bool:
        return node in self._reached

    def send(self, node: int, envelope: Envelope, fresh: float = IDLE) -> None:
        """Send an envelope to `node`, which may have to pass it on. It is lost if the node cannot be reached.

        `fresh`: seconds of silence after which it goes by another connection too, as the node may have been restarted.
        """
        link = next((link for link in reversed(self._ready) if link.peer == node), None)
        if link is not None:
            self.answer(link, envelope)
            if time.monotonic() - link.heard_at <= fresh:
                return
        waiting = self._waiting.setdefault(node, [])
        waiting.append({"envelope": envelope})
        del waiting[:-MOST_WAITING]
        self.try_to_reach(node)

    def answer(self, link: Link, envelope: Envelope) -> None:
        try:
            link.send({"envelope": envelope})
        except LinkClosed as error:
            self._close(link, error)

    def try_to_reach(self, node: int) -> None:
        """Dial all addresses of a node at once: its networks may fail one by one."""
        contact = self._contacts.get(node)
        if contact is None or contact.port is None or self._is_dialling(node):
            return
        for address in contact.addresses:
            try:
                self._dialled[dial(address, contact.port, self._run_key, self._node, node)] = address
            except LinkClosed as error:
                self._note_refusal(node, address, error)

    def _is_dialling(self, node: int) -> bool:
        """A dial that is not answered is soon repeated: TCP itself waits longer and longer, also if a cut is over."""
        dials = [link for link in self._dialled if link.peer == node]
        last = max((link.opened_at for link in dials), default=float("-inf"))
        return time.monotonic() - last < REDIAL or (bool(dials) and len(self._dialled) > MOST_DIALS)

    def accept(self, accepted: Accepted) -> List[Received]:
        """Take over a connection that another node has made."""
        self._ready.append(accepted.link)
        return self._unpack(accepted.link, accepted.messages)

    def on_readable(self, handle: int) -> List[Received]:
        link = self._link(handle)
        if link is None:
            return []
        try:
            link.flush()
            received = link.receive()
        except LinkClosed as error:
            self._close(link, error)
            return []
        if link.ready and link in self._dialled:
            self._on_ready(link)
        return self._unpack(link, received)

    def _on_ready(self, link: Link) -> None:
        """The first address of a node that answers is used."""
        node = link.peer if link.peer is not None else -1
        self._reached.setdefault(node, set()).add(self._dialled.pop(link))
        self.refusals.discard(node)
        for other in [other for other in self._dialled if other.peer == node]:
            self._close(other)
        waiting = self._waiting.pop(node, [])
        if not waiting:
            link.close()  # it was only to be reached
            return
        self._ready.append(link)
        for message in waiting:
            try:
                link.send(message)
            except LinkClosed as error:
                self._close(link, error)
                return

    def _unpack(self, link: Link, received: List[Dict[str, Any]]) -> List[Received]:
        try:
            envelopes = [messages.envelope(message["envelope"], self._nodes) for message in received if message]
        except (KeyError, messages.Malformed):
            self._close(link)
            return []
        return [Received(envelope, link) for envelope in envelopes]

    def expire(self) -> None:
        now = time.monotonic()
        for link in list(self._dialled):
            if now - link.opened_at > HANDSHAKE_WINDOW:
                self._close(link)
        for link in list(self._ready):
            if now - link.heard_at > IDLE:
                self._close(link)

    def _close(self, link: Link, error: Optional[LinkClosed] = None) -> None:
        if link in self._dialled:
            address = self._dialled.pop(link)
            if error is not None and link.peer is not None:
                self._note_refusal(link.peer, address, error)
        elif link in self._ready:
            self._ready.remove(link)
        link.close()

    def _note_refusal(self, node: int, address: str, error: LinkClosed) -> None:
        # another host may have this address too, on its own docker0, or a firewall may refuse what nobody has tried
        if isinstance(error.__cause__, ConnectionRefusedError) and address in self._reached.get(node, ()):
            self.refusals.add(node)
