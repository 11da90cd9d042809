"""Open the link port of a node other than the head, and describe where this node can be reached."""

import os
import socket
from typing import Any, Dict, List, Optional, Sequence, Tuple

from ..host import network
from ..link.link import elects


def listen(spec: Dict[str, Any], here: List[str]) -> List[socket.socket]:
    """Listeners on the addresses of this node.

    Without a free port there are none: the run works, but the others cannot find out whether a silent node is alive. A
    run that elects its head needs one: raises OSError.
    """
    low, high = spec["ports"]
    try:
        return network.listen_on(here, network.random_ports(low, high))
    except OSError:
        if elects(spec):
            raise
        return []


def addresses(spec: Dict[str, Any], head_address: str) -> List[str]:
    """Where other nodes may reach this one: the address on the way to the head comes first."""
    if spec["cluster_address"]:
        return [spec["cluster_address"]]
    source = network.source_address(head_address)
    if spec["interface"] != "auto":
        return [network.address_of(spec["interface"]) or source]
    # a bridge has the same address on many hosts (docker0)
    others = [
        interface.address
        for interface in network.interfaces()
        if interface.up and not interface.loopback and not interface.bridge and interface.address != source
    ]
    return [source, *others]


def contact(listeners: List[socket.socket], otherwise: Sequence[str]) -> Dict[str, Any]:
    """As in link/contacts.py. `otherwise`: the addresses of a node that could not listen."""
    names = [listener.getsockname() for listener in listeners]
    return {
        "addresses": [name[0] for name in names] or list(otherwise),
        "port": names[0][1] if names else None,
        "sshd": _sshd(os.environ.get("SSH_CONNECTION", "")),
    }


def _sshd(connection: str) -> Optional[Tuple[str, int]]:
    """From SSH_CONNECTION, which sshd sets: addresses and ports of the client and the server."""
    words = connection.split()
    return (words[2], int(words[3])) if len(words) == 4 and words[3].isdigit() else None
