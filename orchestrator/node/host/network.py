"""This host's addresses and interfaces, as the kernel tells them to ordinary users. Sends no packet."""

import array
import errno
import fcntl
import glob
import ipaddress
import os
import random
import socket
import struct
from typing import Dict, Iterator, List, NamedTuple, Optional, Tuple

from .small_files import text_of

SIOCGIFCONF, SIOCGIFFLAGS, SIOCGIFNETMASK = 0x8912, 0x8913, 0x891B
ENTRY = 40  # sizeof(struct ifreq) where pointers have 64 bits
MAX_TRIES = 64
IFF_UP, IFF_LOOPBACK, IFF_RUNNING = 0x1, 0x8, 0x40


class Interface(NamedTuple):
    name: str
    address: str
    speed: int  # Mbit/s, -1 unknown
    bridge: bool
    loopback: bool
    up: bool


def interfaces() -> List[Interface]:
    """Every address of every interface, IPv4 before IPv6."""
    result = []
    for name, address in _ipv4() + _ipv6():
        flags = _flags(name)
        bridge = os.path.isdir("/sys/class/net/%s/bridge" % name)
        up = link_state(name).up
        result.append(Interface(name, address, _speed(name), bridge, bool(flags & IFF_LOOPBACK), up))
    return result


def candidates() -> List[str]:
    """Addresses at which other hosts may reach this one, the likeliest first: bridges last, then by speed.

    docker0 has the same address everywhere, but a host for virtual machines may have its own address on a bridge.
    """
    usable = [interface for interface in interfaces() if interface.up and not interface.loopback]
    return [
        interface.address for interface in sorted(usable, key=lambda interface: (interface.bridge, -interface.speed))
    ]


def source_address(target: str) -> str:
    """The local address that packets to `target` leave from, by the routing table."""
    family = socket.AF_INET6 if ":" in target else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect((target, 9))  # a datagram socket's connect sends nothing
        return str(probe.getsockname()[0])


def interface_of(address: str) -> str:
    for interface in interfaces():
        if interface.address == address:
            return interface.name
    return "lo" if address.startswith("127.") else ""


def address_of(interface: str) -> Optional[str]:
    for candidate in interfaces():
        if candidate.name == interface:
            return candidate.address
    return None


def subnet_of(address: str) -> Optional[ipaddress.IPv4Network]:
    """The IPv4 subnet of an address of this host, None if it is of no interface."""
    if ":" in address:
        return None
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            request = struct.pack("256s", interface_of(address).encode()[:15])
            mask = fcntl.ioctl(probe, SIOCGIFNETMASK, request)[20:24]
        except OSError:
            return None
    return ipaddress.IPv4Network("%s/%s" % (address, socket.inet_ntoa(mask)), strict=False)


def is_in(address: str, subnet: ipaddress.IPv4Network) -> bool:
    return ":" not in address and ipaddress.IPv4Address(address) in subnet


def nccl_name(interface: str) -> str:
    """For NCCL_SOCKET_IFNAME, which matches by prefix: `=eth1` where there is an eth10 too."""
    others = [name for _, name in socket.if_nameindex() if name != interface and name.startswith(interface)]
    return "=" + interface if others else interface


def _ipv4() -> List[Tuple[str, str]]:
    """SIOCGIFCONF: the only call that also returns an interface's further addresses (as `eth0:1`)."""
    table = array.array("B", bytes(ENTRY * 512))
    address, length = table.buffer_info()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        answer = fcntl.ioctl(probe, SIOCGIFCONF, struct.pack("iL", length, address))
    raw = table.tobytes()[: struct.unpack_from("i", answer)[0]]
    addresses = []
    for start in range(0, len(raw), ENTRY):
        label = raw[start : start + 16].split(b"\0")[0].decode("utf-8", "replace")
        addresses.append((label.partition(":")[0], socket.inet_ntoa(raw[start + 20 : start + 24])))
    return addresses


def _ipv6() -> List[Tuple[str, str]]:
    """Global IPv6 addresses: link-local ones (scope 20) are useless without their interface's name."""
    addresses = []
    try:
        with open("/proc/net/if_inet6", encoding="ascii") as lines:
            for line in lines:
                raw, _, _, scope, _, name = line.split()
                if scope == "00":
                    addresses.append((name, socket.inet_ntop(socket.AF_INET6, bytes.fromhex(raw))))
    except OSError:
        pass  # a kernel without IPv6
    return addresses


def _flags(name: str) -> int:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            answer = fcntl.ioctl(probe, SIOCGIFFLAGS, struct.pack("256s", name.encode()[:15]))
        except OSError:
            return 0  # it has just gone
    return int(struct.unpack_from("H", answer, 16)[0])


def _speed(name: str) -> int:
    try:
        with open("/sys/class/net/%s/speed" % name, encoding="ascii") as file:
            return int(file.read())
    except (OSError, ValueError):
        return -1  # a virtual interface has none


class LinkState(NamedTuple):
    up: bool  # set up, and its cable carries a signal
    speed: int  # Mbit/s, -1 unknown


def link_state(name: str) -> LinkState:
    """The state of an interface. An interface that is gone is not up."""
    flags = _flags(name)
    return LinkState(flags & (IFF_UP | IFF_RUNNING) == (IFF_UP | IFF_RUNNING), _speed(name))


def rdma_ports(root: str = "/sys/class/infiniband") -> List[Dict[str, str]]:
    """InfiniBand, RoCE, EFA: device, port, state (`ACTIVE`), layer (`InfiniBand`, `Ethernet`), driver."""
    devices = []
    for port in sorted(glob.glob(root + "/*/ports/*")):
        device = port.split("/")[-3]
        devices.append(
            {
                "device": device,
                "port": os.path.basename(port),
                "state": text_of(port + "/state").partition(": ")[2],
                "layer": text_of(port + "/link_layer"),
                "driver": os.path.basename(os.path.realpath("%s/%s/device/driver" % (root, device))),
            }
        )
    return devices


def random_ports(low: int, high: int) -> List[int]:
    """Ports to try, from `low` to `high`, in a random order."""
    return random.sample(range(low, high + 1), min(MAX_TRIES, high + 1 - low))


def listen_on(addresses: List[str], ports: List[int]) -> List[socket.socket]:
    """Listen on the first of `ports` that is free on all of `addresses`: a socket for each. OSError if none is.

    An address that cannot be bound at the moment (an IPv6 one that is still tentative) is left out.
    """
    last: OSError = OSError("no address that can be bound")
    for port in ports:
        bound: List[socket.socket] = []
        try:
            for address in addresses:
                try:
                    bound.append(_listen(address, port))
                except OSError as error:
                    last = error
                    if error.errno != errno.EADDRNOTAVAIL:
                        raise
        except OSError:
            for listener in bound:
                listener.close()
            continue
        if bound:
            return bound
    raise last


def endpoint(address: str, port: int) -> str:
    """`ADDRESS:PORT`, an IPv6 address in brackets."""
    return "%s:%d" % ("[%s]" % address if ":" in address else address, port)


def keep_only(listeners: List[socket.socket], addresses: List[str]) -> List[socket.socket]:
    """Close the listeners on all other addresses."""
    for listener in listeners:
        if listener.getsockname()[0] not in addresses:
            listener.close()
    return [listener for listener in listeners if listener.fileno() >= 0]


def free_for_torch(ports: List[int]) -> List[int]:
    """Those of `ports` that torch's store can listen on. OSError if there are none.

    It listens on all addresses, whatever the rendezvous address is: on `::`, which includes IPv4, or on 0.0.0.0.
    """
    free = []
    last: OSError = OSError("no port")
    for port in ports:
        for address in ("::", "0.0.0.0"):  # noqa: S104  to find out only
            try:
                _listen(address, port).close()
                free.append(port)
                break
            except OSError as error:
                last = error
    if not free:
        raise last
    return free


def _listen(address: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if address == "::":
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        listener.bind((address, port))
        listener.listen(128)
    except OSError:
        listener.close()
        raise
    return listener


def listeners(ports: List[int]) -> Dict[int, int]:
    """{port: inode} of the TCP sockets that listen on these ports."""
    return {port: inode for port, _, inode in _listening() if port in ports}


def listening_user(port: int) -> Optional[int]:
    """The id of the user who listens on this TCP port; None if nobody does."""
    for listening_port, user, _ in _listening():
        if listening_port == port:
            return user
    return None


def _listening() -> Iterator[Tuple[int, int, int]]:
    """(port, user id, inode) of each TCP socket that listens."""
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            with open(table, encoding="ascii") as lines:
                next(lines)
                for line in lines:
                    fields = line.split()
                    if fields[3] == "0A":
                        yield int(fields[1].rpartition(":")[2], 16), int(fields[7]), int(fields[9])
        except OSError:
            continue


def holder(inode: int) -> Optional[int]:
    """The pid that has the socket open; None when it is another user's."""
    target = "socket:[%d]" % inode
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            for handle in os.listdir("/proc/%s/fd" % name):
                if os.readlink("/proc/%s/fd/%s" % (name, handle)) == target:
                    return int(name)
        except OSError:
            continue
    return None


def accept_and_close(listener: socket.socket) -> None:
    """Another node tries whether it can reach the port. Unaccepted connections would fill the queue."""
    try:
        listener.accept()[0].close()
    except OSError:
        pass  # it has gone already
