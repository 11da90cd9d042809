"""Choose the address of the head where the nodes of a run meet. No IO."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..answers.facts import Facts
from ..answers.prepare import PreparedHead, PreparedNode
from ..errors import FindingsError
from ..output.console import fold, fold_messages
from ..plan.plan import Plan


@dataclass(frozen=True)
class Rendezvous:
    """Where the nodes of a run meet: addresses and ports of the head, and the interfaces towards it."""

    master_addr: str
    master_port: int
    link_addresses: tuple[str, ...]
    """Addresses of the head that any other node reaches, on all networks; its link listens on these only."""
    candidates: tuple[str, ...]
    """All addresses of the head, the preferred one first."""
    reachable: Mapping[str, Sequence[str]]
    """By host, without the head: those of the candidates that it reaches, the one it connects to first."""
    interfaces: Mapping[str, str]
    """By host, without the head: the interface towards the head."""


def choose(head: PreparedHead, others: Mapping[str, PreparedNode], witness: str | None = None) -> Rendezvous:
    """`witness`: that of `others` which only has to reach the link of the head.

    Raises FindingsError if no address of the head is reachable from all others.
    """
    reachable = {name: answer.reachable for name, answer in others.items() if name != witness}
    master_addr = _common_address(head.addresses, reachable)
    return Rendezvous(
        master_addr,
        head.rdzv_port,
        tuple(sorted({master_addr, *(address for answer in others.values() for address in answer.reachable)})),
        head.addresses,
        reachable,
        {name: str(others[name].interface) for name in reachable},
    )


def _common_address(candidates: Sequence[str], reachable: Mapping[str, Sequence[str]]) -> str:
    """The first of the head's addresses that all other nodes reach."""
    for address in candidates:
        if all(address in addresses for addresses in reachable.values()):
            return address
    lines = fold_messages({name: f"reaches {', '.join(addresses)}" for name, addresses in reachable.items()})
    headline = "no address of the head is reachable from all hosts; set cluster_address of the head"
    raise FindingsError("\n  ".join([headline, *lines]))


def describe(rendezvous: Rendezvous, resolved: Plan, facts: Mapping[str, Facts]) -> str:
    """The rendezvous and the interface of each host, as one line; `interface` in the inventory wins over the choice."""
    head = resolved.nodes[0].host.name
    at_head = [interface.name for interface in facts[head].interfaces if interface.address == rendezvous.master_addr]
    interfaces = {head: at_head[0] if at_head else "?", **rendezvous.interfaces}
    for node in (*resolved.team, *resolved.spares):
        if node.host.interface != "auto":
            interfaces[node.host.name] = node.host.interface
    hosts_by_interface: dict[str, list[str]] = {}
    for host, interface in interfaces.items():
        hosts_by_interface.setdefault(interface, []).append(host)
    places = "; ".join(f"{interface} on {fold(hosts)}" for interface, hosts in hosts_by_interface.items())
    return f"rendezvous at {rendezvous.master_addr} port {rendezvous.master_port}; interface {places}"


def indistinct_networks(rendezvous: Rendezvous, head: Facts) -> tuple[str, ...]:
    """The head's interfaces to several shared networks, if their link speeds do not show which is the fastest."""
    reachable = rendezvous.reachable.values()
    shared = [address for address in rendezvous.candidates if all(address in addresses for addresses in reachable)]
    by_address = {interface.address: interface for interface in head.interfaces}
    interfaces = [by_address[address] for address in shared if address in by_address]
    names = tuple(dict.fromkeys(interface.name for interface in interfaces))
    if rendezvous.reachable and len(names) > 1 and interfaces[0].speed <= interfaces[1].speed:
        return names
    return ()
