"""Have all hosts try the network to each other, and choose the addresses that a run would use. Judges nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ..answers.facts import Facts, Lookup
from ..answers.network import DIAL, LISTEN, Dialled, DialReport, Listening
from ..errors import OrchError
from ..hosts.fleet import Fleet, Results
from ..hosts.session import InvalidAnswer, Session
from ..inventory.model import Host
from ..plan.plan import Plan
from .bandwidths import fastest

FULL = 32  # hosts up to which every pair is tried
SAMPLE = 8  # hosts that measure the networks they share with the head, at the same time
ROUNDS = 2  # times that each of them is measured: whatever else the network carries only ever lowers the figure


@dataclass(frozen=True)
class Target:
    """An address of another host that a host is to dial."""

    host: str
    address: str
    ports: tuple[int, ...]
    token: str
    """By which the other one knows that it is meant."""


@dataclass(frozen=True)
class Pair:
    """What one host saw of another."""

    source: str
    target: str
    address: str
    """Of the target."""
    run_port: tuple[int, str | None]
    """The port, and why it was not reached."""
    random_ports: tuple[tuple[int, str | None], ...]
    latency: float | None
    """s"""
    stalled: bool
    """Small packets came through and large ones did not."""
    bandwidth: float | None
    """bytes a second"""


@dataclass(frozen=True)
class Subnet:
    """An address of the head that all hosts reach."""

    address: str
    interface: str
    """Of the head."""
    bandwidths: Mapping[str, float]
    """bytes a second, from each host that measured it; 0: small packets came through and large ones did not"""

    @property
    def bandwidth(self) -> float:
        """Of its slowest host, as collectives wait for that one."""
        return min(self.bandwidths.values(), default=0.0)


@dataclass(frozen=True)
class Network:
    """The network as it was tried."""

    head: str
    addresses: Mapping[str, str]
    """The one of each host that a run would use; hosts that do not reach the head have none."""
    interfaces: Mapping[str, str]
    offered: tuple[str, ...]
    """The addresses of the head that were tried."""
    unreachable: Mapping[str, Mapping[str, str | None]]
    """Hosts that reach none of the head's addresses (or not the one that most do): {host: {address: why}}."""
    pairs: tuple[Pair, ...]
    names: Mapping[str, Mapping[str, Lookup]]
    """What each host gets for the others' names and addresses."""
    failed: Mapping[str, OrchError]
    """Hosts that could not be asked."""
    subnets: tuple[Subnet, ...] = ()
    """Where the hosts share several: all of them, in the order of the head's addresses."""


def explore(plan: Plan, facts: Mapping[str, Facts], fleet: Fleet, token: str) -> Network:
    """Try it between the hosts that facts are given of. The head must be among them. `token`: random, of this check."""
    hosts = {node.host.name: node.host for node in plan.nodes if node.host.name in facts}
    head = hosts[plan.nodes[0].host.name]
    ports = plan.inventory.run.ports
    wanted = plan.inventory.run.rdzv.port

    def start(host: Host, session: Session) -> Listening:
        fact = facts[host.name]
        free = wanted != "auto" and str(wanted) not in fact.listeners and wanted >= fact.first_port
        asked = {"token": token + host.name, "run_port": wanted if free else None, "ports": list(ports)}
        answer = session.request(LISTEN, asked)
        if not answer.ports:
            raise _nonsense(host.name, "listen")
        return answer

    listening = fleet.each(hosts.values(), start, "listening")
    failed = dict(listening.failed)
    if head.name in failed:
        return Network(head.name, {}, {}, (), {}, (), {}, failed)
    offered = _offered(head.cluster_address, head.interface, facts[head.name], listening.done[head.name].addresses)
    others = [host for name, host in hosts.items() if name in listening.done and host is not head]
    run_port = listening.done[head.name].ports[0]
    to_head = {address: Target(head.name, address, (run_port,), token + head.name) for address in offered}
    sources = {host.name: _source(host, facts[host.name]) for host in others}
    reached = fleet.each(
        others,
        lambda host, session: _dial(session, list(to_head.values()), sources[host.name]),
        "trying to reach the head",
    )
    common, unreachable = _common(offered, reached)
    subnets: tuple[Subnet, ...] = ()
    shared = _shared(offered, reached, facts[head.name])
    if len(shared) > 1:
        measured = fleet.each(
            [host for host in others if host.name in reached.done][:SAMPLE],
            lambda host, session: _dial(
                session, [to_head[address] for address in shared] * ROUNDS, sources[host.name], bulk=True
            ),
            "comparing networks",
        )
        subnets = _subnets(shared, measured, facts[head.name])
        common = fastest({subnet.address: subnet.bandwidth for subnet in subnets})
    addresses, interfaces = {head.name: common}, {head.name: _interface_of(common, facts[head.name])}
    for name, answer in reached.done.items():
        for one in answer.results:
            if one.address == common and name not in unreachable and one.source and one.interface:
                addresses[name], interfaces[name] = one.source, one.interface
    targets = {name: Target(name, addresses[name], listening.done[name].ports, token + name) for name in addresses}
    dialled = _try_others([hosts[name] for name in addresses], targets, facts, fleet)
    pairs = tuple(
        _pair(name, result, listening.done[result.host].ports[0])
        for name, answer in dialled.done.items()
        for result in answer.results
    )
    failed |= {**reached.failed, **dialled.failed}
    known = {name: answer.names for name, answer in dialled.done.items()}
    return Network(head.name, addresses, interfaces, tuple(offered), unreachable, pairs, known, failed, subnets)


def _try_others(
    hosts: Sequence[Host], targets: Mapping[str, Target], facts: Mapping[str, Facts], fleet: Fleet
) -> Results[DialReport]:
    """Have each host dial the others, and look up their names."""
    names = [host.name for host in hosts]

    def dial(host: Host, session: Session) -> DialReport:
        others = _targets(names, host.name)
        own = targets[host.name].address
        return _dial(
            session, [targets[name] for name in others], own, [facts[name].hostname for name in others], bulk=True
        )

    return fleet.each(hosts, dial, "trying to reach the others")


def _dial(
    session: Session, targets: Sequence[Target], source: str | None, names: Sequence[str] = (), *, bulk: bool = False
) -> DialReport:
    """Dial, and be told of exactly what was dialled. `bulk`: with large packets and bandwidth. Raises InvalidAnswer."""
    wanted = {"targets": [asdict(target) for target in targets], "source": source, "bulk": bulk, "names": list(names)}
    answer = session.request(DIAL, wanted)
    asked = [(target.host, target.address, set(map(str, target.ports))) for target in targets]
    if [(one.host, one.address, set(one.ports)) for one in answer.results] != asked:
        raise _nonsense(session.host, "dial")
    return answer


def _source(host: Host, fact: Facts) -> str | None:
    """The address that the inventory has a host use; None: by route."""
    if host.cluster_address or host.interface == "auto":
        return host.cluster_address
    return next((one.address for one in fact.interfaces if one.name == host.interface), None)


def _nonsense(host: str, operation: str) -> InvalidAnswer:
    return InvalidAnswer(host, f"{operation}: not what was asked for")


def _offered(cluster_address: str | None, interface: str, fact: Facts, candidates: Sequence[str]) -> list[str]:
    """The head's addresses to try: those that node/serve/prepare.py offers."""
    if cluster_address:
        return [cluster_address]
    if interface != "auto":
        return [one.address for one in fact.interfaces if one.name == interface][:1]
    return list(candidates)


def _interface_of(address: str, fact: Facts) -> str:
    return next((one.name for one in fact.interfaces if one.address == address), "")


def _common(offered: list[str], reached: Results[DialReport]) -> tuple[str, dict[str, dict[str, str | None]]]:
    """The first address that all reach, or the one that most do; and who does not reach it."""
    answers = {
        name: {one.address: next(iter(one.ports.values())) for one in answer.results}
        for name, answer in reached.done.items()
    }
    if not offered:
        return "", {name: {} for name in answers}
    common = max(offered, key=lambda address: sum(answer[address] is None for answer in answers.values()))
    return common, {name: answer for name, answer in answers.items() if answer[common] is not None}


def _shared(offered: list[str], reached: Results[DialReport], fact: Facts) -> list[str]:
    """The addresses of the head that all hosts reach; of several on one interface, the first."""
    blocked = {
        one.address
        for answer in reached.done.values()
        for one in answer.results
        if any(why is not None for why in one.ports.values())
    }
    by_interface: dict[str, str] = {}
    for address in offered:
        if reached.done and address not in blocked:
            by_interface.setdefault(_interface_of(address, fact), address)
    return list(by_interface.values())


def _subnets(shared: list[str], measured: Results[DialReport], fact: Facts) -> tuple[Subnet, ...]:
    best: dict[str, dict[str, float]] = {address: {} for address in shared}
    for name, answer in measured.done.items():
        for one in answer.results:
            known = best[one.address]
            known[name] = max(known.get(name, 0.0), one.bandwidth or 0.0)
    return tuple(Subnet(address, _interface_of(address, fact), best[address]) for address in shared)


def _targets(names: list[str], name: str) -> list[str]:
    """All others, each host beginning with its neighbour; of many, those at 1, 2, 4, 8, ... in the ring."""
    at = names.index(name)
    around = names[at + 1 :] + names[:at]
    if len(names) <= FULL:
        return around
    return [around[(1 << power) - 1] for power in range(len(names).bit_length()) if (1 << power) <= len(around)]


def _pair(source: str, result: Dialled, run_port: int) -> Pair:
    ports = {int(port): why for port, why in result.ports.items()}
    return Pair(
        source=source,
        target=result.host,
        address=result.address,
        run_port=(run_port, ports.pop(run_port)),
        random_ports=tuple(sorted(ports.items())),
        latency=result.latency,
        stalled=result.stalled,
        bandwidth=result.bandwidth,
    )


def as_dict(network: Network) -> dict[str, Any]:
    return {
        "addresses": dict(network.addresses),
        "interfaces": dict(network.interfaces),
        "subnets": [
            {
                "head_address": subnet.address,
                "head_interface": subnet.interface,
                "bandwidth_bytes_per_s": subnet.bandwidth,
                "chosen": subnet.address == network.addresses.get(network.head),
            }
            for subnet in network.subnets
        ],
        "pairs": [
            {
                "from": pair.source,
                "to": pair.target,
                "latency_s": pair.latency,
                "bandwidth_bytes_per_s": pair.bandwidth,
                "blocked": [port for port, why in (pair.run_port, *pair.random_ports) if why is not None],
                "stalled": pair.stalled,
            }
            for pair in network.pairs
        ],
    }


def render(network: Network) -> str:
    """The matrix: from each host (row) to each other: bandwidth over latency. Empty for one host."""
    names = list(network.addresses)
    if not network.pairs:
        return ""
    cells = {(pair.source, pair.target): _cell(pair) for pair in network.pairs}
    wide = max(len(name) for name in names)
    if len(names) > 12:  # a wider one is not read: the worst of each host
        lines = [f"{name:{wide}}  slowest {_slowest(network, name)}" for name in names]
        return "\n".join(["from each host to the others, Gbit/s and ms:", *lines]) + "\n"
    columns = [max(len(name), 10) for name in names]
    header = "  ".join([" " * wide, *(f"{name:>{width}}" for name, width in zip(names, columns, strict=True))])
    lines = [
        "  ".join(
            [f"{row:{wide}}"]
            + [f"{cells.get((row, name), '-'):>{width}}" for name, width in zip(names, columns, strict=True)]
        )
        for row in names
    ]
    return "\n".join(["Gbit/s and ms, from (row) to (column):", header, *lines]) + "\n"


def _cell(pair: Pair) -> str:
    if pair.latency is None:
        return "blocked"
    if pair.stalled:
        return "stalled"
    bandwidth = "-" if pair.bandwidth is None else f"{pair.bandwidth * 8 / 1e9:.2g}"
    return f"{bandwidth} {pair.latency * 1e3:.2f}"


def _slowest(network: Network, name: str) -> str:
    known = [pair for pair in network.pairs if pair.source == name]
    worst = min(known, key=lambda pair: (pair.latency is not None, pair.bandwidth or 0.0), default=None)
    return f"{_cell(worst)} to {worst.target}" if worst else "-"
