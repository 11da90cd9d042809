"""The wires between hosts and networks: cut, loss, rate and delay. Knows ports and interfaces, not hosts."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from .waiting import wait_until

SSH, CLUSTER = NETWORKS = ("ssh", "cluster")  # also the names of the two bridges


class Runner(Protocol):
    """Runs a command as root in one network namespace; raises CalledProcessError when it fails."""

    def __call__(self, argv: list[str], input: str | None = None) -> object: ...


@dataclass
class Link:
    """One host's wire to one network; `port` is the bridge's end, `interface` the host's."""

    network: str
    port: str
    interface: str
    cut: bool = False
    loss: int = 0  # percent, of each direction
    rate: str | None = None
    relay: subprocess.Popen[str] | None = None  # holds the frames of a delayed link

    @property
    def relay_port(self) -> str:
        """The port that stands in the bridge for `port` while the link is delayed."""
        return f"{self.port}-relay"


def apply_cut_and_loss(links: Iterable[Link], cut_paths: Iterable[tuple[str, str]], in_lab: Runner) -> None:
    """Make the kernel's filter say what the links and paths say. `cut_paths`: pairs of addresses.

    On the bridge, so that no host sees an error, only silence.

    Who-has questions (ARP) pass, as if the hosts were behind a router: without an answer to them a host would turn
    silence into "no route to host" after a second or three, and for as long after the link was healed.
    """
    rules: list[str] = []
    for link in links:
        for port in (link.port, link.relay_port):
            if link.cut:
                rules.append(f'NAME "{port}" ether type != arp drop')
            elif link.loss:
                rules.append(f'NAME "{port}" ether type != arp numgen random mod 100 < {link.loss} drop')
    for source, target in cut_paths:
        for one, other in ((source, target), (target, source)):
            rules.append(f"ip saddr {one} ip daddr {other} drop")
    chains = [
        f"chain {name} {{ type filter hook {hook} priority 0; "
        + "".join(rule.replace("NAME", match) + "; " for rule in rules)
        + "}"
        for name, hook, match in (("from_hosts", "prerouting", "iifname"), ("to_hosts", "postrouting", "oifname"))
    ]
    # One transaction: there is no moment without the old or the new rules.
    table = "table bridge links"
    in_lab(["nft", "-f", "-"], input=f"{table}\ndelete {table}\n{table} {{\n" + "\n".join(chains) + "\n}\n")


def set_rate(link: Link, rate: str | None, in_lab: Runner, in_host: Runner) -> None:
    """Limit each direction at its sender, as a slow wire does; `rate` in tc's words, None for no limit."""
    if rate == link.rate:
        return
    link.rate = rate
    discipline = ["noqueue"] if rate is None else ["tbf", "rate", rate, "burst", "32k", "latency", "200ms"]
    for run, device in ((in_lab, link.port), (in_host, link.interface)):
        run(["tc", "qdisc", "replace", "dev", device, "root", *discipline])


def start_delay(link: Link, milliseconds: float, popen: Callable[[list[str]], subprocess.Popen[str]]) -> None:
    """Hold every frame, in each direction, for so long: the round trip grows by twice that."""
    script = str(Path(__file__).with_name("relay.py"))
    link.relay = popen([sys.executable, "-I", script, link.port, link.relay_port, link.network, str(milliseconds)])
    assert link.relay.stdout is not None
    if link.relay.stdout.readline() != "ready\n":
        raise RuntimeError(f"the relay of {link.port} did not start: {link.relay.communicate()[1]}")


def end_delay(link: Link, in_lab: Runner) -> None:
    if link.relay is None:
        return
    link.relay.kill()
    link.relay.communicate()
    link.relay = None
    wait_until(lambda: not _exists(link.relay_port, in_lab), 5, f"{link.relay_port} is gone")
    in_lab(["ip", "link", "set", link.port, "master", link.network])


def _exists(device: str, in_lab: Runner) -> bool:
    try:
        in_lab(["ip", "link", "show", device])
    except subprocess.CalledProcessError:
        return False
    return True
