"""The connections that a node keeps whatever its role is: its listeners, the contacts of all nodes, the detours.

And the server of its output folder, which the head may ask for.
"""

import socket
from typing import List

from ..link import messages
from ..link.acceptor import Acceptor
from ..link.contacts import Contacts
from ..link.link import Link
from ..link.peers import RecorderApi
from .detour import Detours
from .output_server import OutputServer
from .rank_network import RankNetwork


class Transport:
    def __init__(self, recorder: RecorderApi, listeners: List[socket.socket]) -> None:
        node = recorder.spec["node"]
        self.acceptor = Acceptor(listeners, recorder.key, node)
        self.contacts = Contacts()
        self.detours = Detours(recorder.key, node, messages.MOST_NODES, self.contacts)
        self.outputs = OutputServer(recorder)
        self.rank_network = RankNetwork(recorder.spec)

    def links(self) -> List[Link]:
        return self.acceptor.links() + self.detours.links()

    def addresses(self) -> List[str]:
        """Where this node listens."""
        return [listener.getsockname()[0] for listener in self.acceptor.listening()]

    def expire(self) -> None:
        """Close connections that were not authenticated in time, or that nobody uses."""
        self.acceptor.expire()
        self.detours.expire()
