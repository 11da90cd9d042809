"""The recorder's side of the cluster link: HeadLink (head.py) on the head, WorkerLink (follower.py) on other nodes.

Each knows the recorder by `RecorderApi` alone; daemon.py puts them together.
"""

import socket
from typing import Any, Dict, List, Optional, Protocol

from ..gang import gang_events
from .link import Link

TICK = 0.5  # s


class RecorderApi(Protocol):
    """What a ClusterLink may read and call of its recorder."""

    folder: str  # of the run on this host
    spec: Dict[str, Any]
    key: bytes  # of the run
    notify: Dict[str, Any]

    @property
    def reported(self) -> Dict[str, Any]:
        """The status that the guard reported last."""

    def silence(self) -> Dict[str, Any]:
        """For how long the ranks of this node have been silent, and which of them a signal has stopped."""

    def say(self, text: str) -> None:
        """Write a line of our own into the journal."""

    def command(self, message: Dict[str, Any]) -> None:
        """Send a message to the guard."""

    def permit(self, seconds: float) -> None:
        """Allow the ranks here to run for so many seconds from now. When that has passed, the guard stops them."""

    def obey(self, order: gang_events.Order, until: Optional[float] = None) -> None:
        """Pass an order of the gang to the guard. An order to run may begin until then only, by `permit.clock`."""


class ClusterLink:
    """What a recorder calls of its side of the link. `leads`: whether this node is the head."""

    leads = False

    def links(self) -> List[Link]:
        raise NotImplementedError

    def listening(self) -> List[socket.socket]:
        return []

    def pipes(self) -> List[int]:
        """Descriptors of processes that the link has started, to be read as its links are."""
        return []

    def due(self) -> float:
        """Seconds until `on_tick` has to be called."""
        return TICK

    def on_readable(self, handle: int) -> None:
        """A link, a listener or a pipe, known by its descriptor, has something to read or can be written to again."""
        raise NotImplementedError

    def on_tick(self) -> None:
        raise NotImplementedError

    def own_address(self) -> Optional[str]:
        """The address of this host towards the other nodes. None if there are none, or if it has lost its address."""
        raise NotImplementedError

    def on_checked(self, attempt: int, problems: List[Dict[str, str]]) -> None:
        """The health check that an order asked for is done."""
        raise NotImplementedError

    def on_status(self, status: Dict[str, Any]) -> None:
        """The guard has reported its status."""
        raise NotImplementedError
