"""Where the nodes of a run can be reached: each node tells the head, and the head tells all. Pure."""

from typing import Any, Dict, List, NamedTuple, Optional, Tuple


class Contact(NamedTuple):
    """Of one node. `sshd`: address and port of its SSH server, as its controller reached it; None: without SSH."""

    addresses: Tuple[str, ...]
    port: Optional[int]  # of the link; None: the node could not open one
    sshd: Optional[Tuple[str, int]] = None


class Contacts:
    """What is known of all nodes, in the order in which it became known."""

    def __init__(self) -> None:
        self._known: Dict[int, Contact] = {}
        self._learned: List[int] = []

    def get(self, node: int) -> Optional[Contact]:
        return self._known.get(node)

    def learn(self, node: int, contact: Contact) -> bool:
        """Returns whether it is new."""
        if self._known.get(node) == contact:
            return False
        self._known[node] = contact
        self._learned.append(node)
        return True

    @property
    def position(self) -> int:
        return len(self._learned)

    def since(self, position: int) -> Dict[str, Any]:
        """Those that were learned from a position on, as a message for other nodes."""
        return {str(node): self._known[node]._asdict() for node in self._learned[position:]}
