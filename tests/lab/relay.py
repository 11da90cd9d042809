"""Hold every Ethernet frame between a host's port and its bridge for some milliseconds. Never looks into a frame.

A stand-in for tc's netem, which not every kernel has:  host === port  <this program>  tap === bridge
"""

from __future__ import annotations

import collections
import fcntl
import os
import select
import socket
import struct
import subprocess
import sys
import time

# linux/if_tun.h, linux/if_packet.h, linux/if_ether.h
TUNSETIFF, TUNSETOFFLOAD = 0x400454CA, 0x400454D0
IFF_TAP, IFF_NO_PI, IFF_VNET_HDR = 0x0002, 0x1000, 0x4000
TUN_F_CSUM, TUN_F_TSO4, TUN_F_TSO6 = 1, 2, 4
SOL_PACKET, PACKET_VNET_HDR, PACKET_IGNORE_OUTGOING = 263, 15, 23
ETH_P_ALL = 3
LARGEST_FRAME = 10 + 65536 + 18  # virtio header, a frame the sender left whole for its card to cut, Ethernet header


def main(port: str, tap: str, bridge: str, milliseconds: str) -> None:
    """Relay until killed; prints `ready` when the wire is complete."""
    wire = open_wire(port)
    bridge_side = open_tap(tap)
    commands = f"link set {port} nomaster\nlink set {tap} master {bridge}\nlink set {tap} up\n"
    subprocess.run(["ip", "-batch", "-"], input=commands, text=True, check=True)
    print("ready", flush=True)
    relay(wire.fileno(), bridge_side, float(milliseconds) / 1000)


def relay(one: int, other: int, delay: float) -> None:
    """Move frames between two non-blocking descriptors, each `delay` seconds after it came. Order is kept."""
    held: collections.deque[tuple[float, int, bytes]] = collections.deque()
    opposite = {one: other, other: one}
    while True:
        timeout = max(0.0, held[0][0] - time.monotonic()) if held else None
        readable, _, _ = select.select([one, other], [], [], timeout)
        for source in readable:
            for frame in frames(source):
                held.append((time.monotonic() + delay, opposite[source], frame))
        while held and held[0][0] <= time.monotonic():
            _, target, frame = held.popleft()
            try:
                os.write(target, frame)
            except OSError:
                pass  # a full or absent card drops frames; so do we


def frames(source: int) -> list[bytes]:
    """What has come; at most 64 frames, so that those that are due do not wait."""
    found: list[bytes] = []
    while len(found) < 64:
        try:
            found.append(os.read(source, LARGEST_FRAME))
        except BlockingIOError:
            break
    return found


def open_wire(port: str) -> socket.socket:
    wire = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
    # The virtio header carries what the sender left to its card (checksums, cutting), from one side to the other.
    wire.setsockopt(SOL_PACKET, PACKET_VNET_HDR, 1)
    wire.setsockopt(SOL_PACKET, PACKET_IGNORE_OUTGOING, 1)
    wire.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8 << 20)
    wire.bind((port, ETH_P_ALL))
    wire.setblocking(False)
    return wire


def open_tap(name: str) -> int:
    tap = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(tap, TUNSETIFF, struct.pack("16sH22x", name.encode(), IFF_TAP | IFF_NO_PI | IFF_VNET_HDR))
    fcntl.ioctl(tap, TUNSETOFFLOAD, TUN_F_CSUM | TUN_F_TSO4 | TUN_F_TSO6)
    return tap


if __name__ == "__main__":
    main(*sys.argv[1:])
