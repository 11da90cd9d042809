"""Choose the network interface of gloo where the host's own name leads nowhere.

Gloo listens on the address of the host's name. On Debian and Ubuntu, /etc/hosts says that this is 127.0.1.1, which
other hosts cannot reach. Then the interface toward another host is the right one.
"""

from __future__ import annotations

import contextlib
import fcntl
import ipaddress
import os
import socket
import struct
from pathlib import Path
from typing import Protocol

SIOCGIFADDR = 0x8915  # netdevice(7): the IPv4 address of an interface
DISCARD = 9  # any port: connecting a UDP socket sends nothing


class Store(Protocol):
    def set(self, key: str, value: str) -> None: ...
    def get(self, key: str) -> bytes: ...


def choose_for_gloo(store: Store, rank: int, world_size: int) -> None:
    """Set GLOO_SOCKET_IFNAME if it is needed and unset. All ranks must call."""
    address = address_toward(os.environ.get("MASTER_ADDR", ""))
    store.set(f"address/{rank}", address)
    if "GLOO_SOCKET_IFNAME" in os.environ or not is_loopback(address_of(socket.gethostname())):
        return
    for other in range(world_size):
        if not is_loopback(address):
            break
        # This is the host of MASTER_ADDR, whose name leads nowhere too: look toward the hosts that came to it.
        peer = store.get(f"address/{other}").decode()
        address = address if is_loopback(peer) else address_toward(peer)
    if name := interface_of(address):
        os.environ["GLOO_SOCKET_IFNAME"] = name


def is_loopback(address: str) -> bool:
    return not address or ipaddress.ip_address(address).is_loopback


def address_of(host: str) -> str:
    """Empty if the name is unknown."""
    with contextlib.suppress(OSError):
        return str(socket.getaddrinfo(host, DISCARD, type=socket.SOCK_DGRAM)[0][4][0]).partition("%")[0]
    return ""


def address_toward(host: str) -> str:
    """The address of this host that packets to `host` come from; empty if there is no way."""
    with contextlib.suppress(OSError):
        family, kind, _, _, target = socket.getaddrinfo(host, DISCARD, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(target)
            return str(probe.getsockname()[0]).partition("%")[0]
    return ""


def interface_of(address: str) -> str | None:
    if is_loopback(address):
        return None
    if ":" in address:
        packed = ipaddress.ip_address(address).packed.hex()
        lines = Path("/proc/net/if_inet6").read_text().splitlines()
        return next((line.split()[-1] for line in lines if line.startswith(packed)), None)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):  # it has no IPv4 address
                request = struct.pack("256s", name.encode()[:15])
                if socket.inet_ntoa(fcntl.ioctl(probe, SIOCGIFADDR, request)[20:24]) == address:
                    return name
    return None
