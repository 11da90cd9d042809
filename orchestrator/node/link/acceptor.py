"""Accept connections on the link port of this node, and authenticate them. Strangers get few resources, and briefly."""

import socket
import time
from typing import Any, Dict, List, NamedTuple, Optional

from ..host import network
from .link import HANDSHAKE_WINDOW, Link, LinkClosed

MOST_STRANGERS = 256  # connections that are not authenticated yet: they must not use up our descriptors


class Accepted(NamedTuple):
    link: Link
    messages: List[Dict[str, Any]]  # those that came with the end of the handshake


class Acceptor:
    def __init__(self, listeners: List[socket.socket], run_key: bytes, node: int) -> None:
        """`node`: our number."""
        self._listeners = listeners
        self._run_key = run_key
        self._node = node
        self._strangers: Dict[int, Link] = {}  # by descriptor
        for listener in listeners:
            listener.setblocking(False)

    def links(self) -> List[Link]:
        return list(self._strangers.values())

    def listening(self) -> List[socket.socket]:
        return self._listeners

    def keep_only(self, addresses: List[str]) -> None:
        """Close the listeners on all other addresses."""
        self._listeners = network.keep_only(self._listeners, addresses)

    def owns(self, handle: int) -> bool:
        return handle in self._strangers or any(listener.fileno() == handle for listener in self._listeners)

    def on_readable(self, handle: int) -> Optional[Accepted]:
        """Accept, or continue a handshake. Returns a connection once it is authenticated, and forgets it."""
        link = self._strangers.get(handle)
        if link is None:
            self._accept(next(listener for listener in self._listeners if listener.fileno() == handle))
            return None
        try:
            link.flush()
            messages = link.receive()
        except LinkClosed:
            self._drop(link)
            return None
        if not link.ready:
            return None
        del self._strangers[handle]
        return Accepted(link, messages)

    def _accept(self, listener: socket.socket) -> None:
        try:
            connection, _ = listener.accept()
        except OSError:
            return
        link = Link(connection, self._run_key, self._node)
        self._strangers[link.fileno()] = link
        if len(self._strangers) > MOST_STRANGERS:
            self._drop(min(self._strangers.values(), key=lambda stranger: stranger.opened_at))

    def expire(self) -> None:
        """Close what has not authenticated itself in time."""
        now = time.monotonic()
        for link in self.links():
            if now - link.opened_at > HANDSHAKE_WINDOW:
                self._drop(link)

    def _drop(self, link: Link) -> None:
        del self._strangers[link.fileno()]
        link.close()
