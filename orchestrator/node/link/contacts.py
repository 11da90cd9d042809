"""Where the nodes of a run can be reached: each node tells the head, and the head tells all. Pure."""

from typing import Any, Dict, NamedTuple, Optional, Tuple


class Contact(NamedTuple):
    """The contact of one node. `sshd`: address and port of its SSH server, as its controller reached it, or None."""

    addresses: Tuple[str, ...]
    port: Optional[int]  # of the link; None: the node could not open one
    sshd: Optional[Tuple[str, int]] = None


class Contacts:
    """The contact of each node, and in which order they changed."""

    def __init__(self) -> None:
        self._by_node: Dict[int, Tuple[Contact, int]] = {}  # with the number of its change; the newest change is last
        self._changes = 0

    def get(self, node: int) -> Optional[Contact]:
        return self._by_node[node][0] if node in self._by_node else None

    def learn(self, node: int, contact: Contact) -> bool:
        """Returns whether it is new."""
        if self.get(node) == contact:
            return False
        self._changes += 1
        self._by_node.pop(node, None)
        self._by_node[node] = contact, self._changes
        return True

    @property
    def position(self) -> int:
        """The number of changes so far."""
        return self._changes

    def since(self, position: int) -> Dict[str, Any]:
        """The contacts that changed after a position, as a message for other nodes."""
        news: Dict[str, Any] = {}
        for node in reversed(self._by_node):
            contact, change = self._by_node[node]
            if change <= position:
                break
            news[str(node)] = contact._asdict()
        return news
