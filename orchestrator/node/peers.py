"""What a recorder asks of its side of the link; the head has one (head.py), every other node another (follower.py)."""

import socket
from typing import Any, Dict, List

from .link import Link

TICK = 0.5  # s


class Peers:
    def links(self) -> List[Link]:
        raise NotImplementedError

    def listening(self) -> List[socket.socket]:
        return []

    def due(self) -> float:
        return TICK

    def ready(self, handle: int) -> None:
        raise NotImplementedError

    def tick(self) -> None:
        raise NotImplementedError

    def status(self, status: Dict[str, Any]) -> None:
        raise NotImplementedError
