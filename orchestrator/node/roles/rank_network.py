"""Whether the network of the ranks reaches the head. A host may have another one on which the link goes on.

Ranks that use a network which is cut hang, until NCCL or gloo gives up many minutes later.
"""

import errno
import select
import socket
import time
from typing import Any, Dict, NamedTuple, Optional, Sequence, Union

from ..gang.gang_events import Run, Wait
from ..host import network, state
from ..link.link import Link
from ..recorder.health_check import named_interfaces

CODE = "nccl-wrong-nic"  # of a host that is cut off there
WINDOW = 3.0  # s for a connection
AT_ONCE = 0.02  # s to wait for it at first: in a network of hosts it takes less
LEAST = 2 * WINDOW  # s: a shorter cut may be packets that were lost
INTERVAL = 5.0  # s between two tries while the network works, and the link does not use it
LOOKS = 0.9  # s between two looks: it is called after every line of output, too
LINK_IS_HEARD = 3.0  # s: a link on the network of the ranks that was heard then shows that it works


class Path(NamedTuple):
    own: str  # addresses
    head: str


class RankNetwork:
    """The times are by the monotonic clock. `look` has to be called once a second at least."""

    def __init__(self, spec: Dict[str, Any]) -> None:
        self._spec = spec
        self._order: Optional[Union[Run, Wait]] = None
        self._to: Sequence[str] = ()  # the addresses of the head to which the path is known
        self._path: Optional[Path] = None
        self._works_at = self._looks_at = 0.0
        self._reached_at: Optional[float] = None  # when it worked last, as a message or a try has shown
        self._is_on_it = False  # this host has reached a head there
        self._is_cut = False  # the last try has failed
        self._is_presumed = False  # to be cut, until a try shows that it works
        self._is_open = False  # the last head was not reached, and no try has shown yet whether this one is
        self._probe: Optional[socket.socket] = None
        self._tries_at = 0.0  # when the next try begins; while it lasts: when it began

    def begin(self, order: Union[Run, Wait]) -> None:
        """This node takes part in an attempt, or may take part in the next one."""
        if self._order is None or _attempt_of(order) != _attempt_of(self._order):
            self._order = order
            self.leave_head()

    def leave_head(self) -> None:
        """Another node may be the head. If this one did not reach the last, a try shows which of both was cut off."""
        self._is_open = self._is_open or self.cut() is not None
        self._to, self._path = (), None
        self._reached_at = None
        self._end_try(False)

    def presume_cut(self) -> None:
        """No other node reached this one there while it was the head."""
        self._is_presumed = True

    @property
    def is_known(self) -> bool:
        """Whether `problem` can tell."""
        return not self._is_open

    def look(self, link: Optional[Link], head_addresses: Sequence[str], port: int, *, at_once: bool = False) -> None:
        """`link`: to the head, if there is one that is ready. `head_addresses`, `port`: where the head listens.

        Another head has other addresses.
        """
        now = time.monotonic()
        if now < self._looks_at and not at_once:
            return
        self._looks_at = now + LOOKS
        if self._order is None:
            return
        if tuple(head_addresses) != self._to:
            self._to = tuple(head_addresses)
            self._path = _path_of(self._spec, self._order, head_addresses)
            self._reached_at = None
            if self._is_open:
                self._tries_at = now
            else:
                is_sure = self._is_on_it or isinstance(self._order, Run)  # that it is on this network
                self._works_at, self._tries_at = now, now + INTERVAL if is_sure else now
            self._end_try(False)
        if self._path is None:
            self._is_open = False
            return
        if link is not None and now - link.heard_at < LINK_IS_HEARD and link.ends() == self._path:
            self._is_open = False
            self._end_try(False)
            self._on_works(link.heard_at)
        elif self._probe is not None:
            self._hear(self._probe, now)
        elif now >= self._tries_at:
            self._try(self._path, port, now)

    def cut(self) -> Optional[Dict[str, Any]]:
        """`seconds` since the network worked last, and the `address` of the head there; None: it works."""
        seconds = time.monotonic() - self._works_at
        if self._path is None or not self._is_cut or seconds < LEAST:
            return None
        if isinstance(self._order, Wait) and not self._is_on_it:
            return None  # it may have no such network
        return {"seconds": seconds, "address": self._path.head}

    def reached(self) -> Optional[float]:
        """The seconds since a message or a try has shown last that the network works; None: nothing has yet."""
        return None if self._reached_at is None else time.monotonic() - self._reached_at

    def problem(self) -> Optional[Dict[str, str]]:
        """For the health check."""
        cut = self.cut()
        if cut is not None:
            text = "it does not reach %s, the address of the head on the network of the ranks" % cut["address"]
        elif self._is_presumed:
            text = "no other host reached it on the network of the ranks"
        else:
            return None
        return {"code": CODE, "text": text}

    def _try(self, path: Path, port: int, now: float) -> None:
        family = socket.AF_INET6 if ":" in path.head else socket.AF_INET
        probe = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        probe.setblocking(False)
        self._probe, self._tries_at = probe, now
        try:
            probe.bind((path.own, 0))
            error = probe.connect_ex((path.head, port))
        except OSError:  # this host has lost its address
            error = errno.ENETUNREACH
        if error != errno.EINPROGRESS:
            self._conclude(error, now)
        else:
            self._hear(probe, now, AT_ONCE)

    def _hear(self, probe: socket.socket, now: float, wait: float = 0.0) -> None:
        poll = select.poll()
        poll.register(probe, select.POLLOUT)
        if poll.poll(1000 * wait):
            self._conclude(probe.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR), now)
        elif now - self._tries_at > WINDOW:
            self._conclude(errno.ETIMEDOUT, now)

    def _conclude(self, error: int, now: float) -> None:
        self._is_open = False
        works = error in (0, errno.ECONNREFUSED)  # nobody may listen there
        self._end_try(not works)
        if works:
            self._on_works(now)
            self._tries_at = now + INTERVAL

    def _on_works(self, at: float) -> None:
        self._is_presumed, self._is_on_it = False, True
        self._works_at = self._reached_at = at

    def _end_try(self, is_cut: bool) -> None:
        self._is_cut = is_cut
        if self._probe is not None:
            self._probe.close()
            self._probe = None


def _attempt_of(order: Union[Run, Wait]) -> Any:
    return order.attempt if isinstance(order, Run) else (tuple(order.team), order.master_addr)


def _path_of(spec: Dict[str, Any], order: Union[Run, Wait], head_addresses: Sequence[str]) -> Optional[Path]:
    """From this host to the head on the network that the ranks use, as far as it is known."""
    if isinstance(order, Run) and order.nnodes == 1:
        return None
    named = named_interfaces(spec) or ([] if spec["interface"] == "auto" else [spec["interface"]])
    try:
        own = spec.get("cluster_address") or network.source_address(order.master_addr)
        if named and network.interface_of(own) not in named:
            own = network.address_of(named[0]) if len(named) == 1 else None
        elif order.master_addr in head_addresses and not state.is_witness(spec):
            return Path(own, order.master_addr)  # a witness may have a way to it by a router, on another network
        subnet = network.subnet_of(own) if own is not None else None
    except OSError:
        return None
    found = (address for address in head_addresses if subnet is not None and network.is_in(address, subnet))
    return next((Path(str(own), address) for address in found), None)
