"""Have the hosts connect to each other, and choose the addresses that a run would use. reach.py checks the result."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from ..answers.facts import Facts, Lookup
from ..answers.network import DIAL, LISTEN, Dialled, DialReport, Listening
from ..errors import OrchError
from ..hosts.fleet import Fleet, Results
from ..hosts.session import InvalidAnswer, Session
from ..inventory.model import Host, RunOptions
from ..plan.plan import Plan
from .bandwidths import fastest

MAX_ALL_PAIRS = 32  # hosts; up to this number, every pair is tried
MAX_MEASURING = 8  # hosts that measure shared networks at the same time
MIN_CELL = 10  # columns of a number in the matrix
MAX_SLOWEST = 12  # hosts whose slowest path is shown
ROUNDS = 2  # measurements per network; the best one counts, because other traffic only lowers a result


@dataclass(frozen=True)
class DialTarget:
    """An address of another host to connect to."""

    host: str
    address: str
    ports: tuple[int, ...]
    token: str
    """The secret that the listener on that host expects; another host at the same address does not know it."""


@dataclass(frozen=True)
class Pair:
    """What one host measured when it connected to another."""

    source: str
    target: str
    address: str
    """The address of the target."""
    run_port: tuple[int, str | None]
    """A port of `run.ports`, and why connecting to it failed; None: it did not."""
    random_ports: tuple[tuple[int, str | None], ...]
    """The same for ports that the kernel chose, as NCCL and gloo use them."""
    latency: float | None
    """The time of a round trip, seconds; None if no port was reached."""
    stalled: bool
    """Small packets arrived and large ones did not."""
    bandwidth: float | None
    """Bytes per second; None if it was not measured."""


@dataclass(frozen=True)
class Subnet:
    """A network that all hosts share, by the head's address in it."""

    address: str
    interface: str
    """The interface of the head."""
    bandwidths: Mapping[str, float]
    """Bytes per second by host, for the hosts that measured; 0: small packets arrived and large ones did not."""

    @property
    def bandwidth(self) -> float:
        """That of the slowest host, because collectives wait for it."""
        return min(self.bandwidths.values(), default=0.0)


@dataclass(frozen=True)
class Network:
    """What the hosts measured, and the addresses that a run would use."""

    head: str
    addresses: Mapping[str, str]
    """The address that a run would use, by host; hosts that do not reach the head have none."""
    interfaces: Mapping[str, str]
    """The interface with that address, by host."""
    head_addresses: tuple[str, ...]
    """The addresses of the head that were tried, the preferred one first."""
    unreachable: Mapping[str, Mapping[str, str | None]]
    """For each host that does not reach the head at the chosen address: {address: why not, or None if it does}."""
    pairs: tuple[Pair, ...]
    names: Mapping[str, Mapping[str, Lookup]]
    """By host: what it resolves the names and addresses of other hosts to."""
    failed: Mapping[str, OrchError]
    """Hosts that did not answer."""
    subnets: tuple[Subnet, ...] = ()
    """All shared networks, in the order of the head's addresses, if there are several."""
    not_reached: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """By address of the head: the hosts that do not reach it there."""


def measure(plan: Plan, facts: Mapping[str, Facts], fleet: Fleet, token: str) -> Network:
    """Have the hosts of `facts`, the head among them, connect to each other. `token`: random, new for each call."""
    hosts = {node.host.name: node.host for node in plan.nodes if node.host.name in facts}
    head = hosts[plan.nodes[0].host.name]
    listening = _listen(hosts.values(), plan.inventory.run, facts, fleet, token)
    failed = dict(listening.failed)
    if head.name in failed:
        return Network(head.name, {}, {}, (), {}, (), {}, failed)
    head_addresses = _addresses_to_try(
        head.cluster_address, head.interface, facts[head.name], listening.done[head.name].addresses
    )
    others = [host for name, host in hosts.items() if name in listening.done and host is not head]
    run_port = listening.done[head.name].ports[0]
    to_head = {address: DialTarget(head.name, address, (run_port,), token + head.name) for address in head_addresses}
    sources = {host.name: _source(host, facts[host.name]) for host in others}
    head_reports = fleet.each(
        others,
        lambda host, session: _dial(session, list(to_head.values()), sources[host.name]),
        "connecting to the head",
    )
    common, unreachable = _choose_address(head_addresses, head_reports)
    subnets: tuple[Subnet, ...] = ()
    shared = _shared_addresses(head_addresses, head_reports, facts[head.name])
    if len(shared) > 1:
        measuring = [host for host in others if host.name in head_reports.done][:MAX_MEASURING]
        measured = _measure_networks(measuring, [to_head[address] for address in shared], sources, fleet)
        subnets = _subnets(shared, measured, facts[head.name])
        common = fastest({subnet.address: subnet.bandwidth for subnet in subnets})
    addresses, interfaces = {head.name: common}, {head.name: _interface_of(common, facts[head.name])}
    for name, (address, interface) in _own_addresses(common, head_reports).items():
        if name not in unreachable:
            addresses[name], interfaces[name] = address, interface
    targets = {name: DialTarget(name, addresses[name], listening.done[name].ports, token + name) for name in addresses}
    reports = _dial_others([hosts[name] for name in addresses], targets, facts, fleet)
    pairs = tuple(
        _pair(name, result, listening.done[result.host].ports[0])
        for name, report in reports.done.items()
        for result in report.results
    )
    failed |= {**head_reports.failed, **reports.failed}
    lookups = {name: report.names for name, report in reports.done.items()}
    not_reached = _not_reached(head_addresses, head_reports)
    return Network(
        head.name,
        addresses,
        interfaces,
        tuple(head_addresses),
        unreachable,
        pairs,
        lookups,
        failed,
        subnets,
        not_reached,
    )


def _listen(
    hosts: Iterable[Host], options: RunOptions, facts: Mapping[str, Facts], fleet: Fleet, token: str
) -> Results[Listening]:
    """Have each host listen, also on `run.rdzv.port` if that is set and free."""
    rdzv_port = options.rdzv.port

    def listen(host: Host, session: Session) -> Listening:
        fact = facts[host.name]
        free = rdzv_port != "auto" and str(rdzv_port) not in fact.listeners and rdzv_port >= fact.first_port
        question = {"token": token + host.name, "run_port": rdzv_port if free else None, "ports": list(options.ports)}
        answer = session.request(LISTEN, question)
        if not answer.ports:
            raise _mismatch(host.name, "listen")
        return answer

    return fleet.each(hosts, listen, "listening")


def _measure_networks(
    hosts: Sequence[Host], targets: Sequence[DialTarget], sources: Mapping[str, str | None], fleet: Fleet
) -> Results[DialReport]:
    """Have hosts measure the bandwidth to addresses of the head, at the same time."""
    return fleet.each(
        hosts,
        lambda host, session: _dial(session, [*targets] * ROUNDS, sources[host.name], bulk=True),
        "comparing networks",
    )


def _own_addresses(head_address: str, reports: Results[DialReport]) -> dict[str, tuple[str, str]]:
    """By host: the address and the interface from which it connected to this address of the head."""
    return {
        name: (dialled.source, dialled.interface)
        for name, report in reports.done.items()
        for dialled in report.results
        if dialled.address == head_address and dialled.source and dialled.interface
    }


def _dial_others(
    hosts: Sequence[Host], targets: Mapping[str, DialTarget], facts: Mapping[str, Facts], fleet: Fleet
) -> Results[DialReport]:
    """Have each host connect to the others, and look up their names."""
    names = [host.name for host in hosts]

    def dial(host: Host, session: Session) -> DialReport:
        others = _targets(names, host.name)
        own = targets[host.name].address
        return _dial(
            session, [targets[name] for name in others], own, [facts[name].hostname for name in others], bulk=True
        )

    return fleet.each(hosts, dial, "connecting to the others")


def _dial(
    session: Session,
    targets: Sequence[DialTarget],
    source: str | None,
    names: Sequence[str] = (),
    *,
    bulk: bool = False,
) -> DialReport:
    """Have a host connect to the targets. `bulk`: test large packets and measure the bandwidth, too.

    Raises InvalidAnswer if the report is not about exactly these targets.
    """
    question = {"targets": [asdict(target) for target in targets], "source": source, "bulk": bulk, "names": list(names)}
    report = session.request(DIAL, question)
    expected = [(target.host, target.address, set(map(str, target.ports))) for target in targets]
    if [(dialled.host, dialled.address, set(dialled.ports)) for dialled in report.results] != expected:
        raise _mismatch(session.host, "dial")
    return report


def _source(host: Host, fact: Facts) -> str | None:
    """The address from which a host connects, if the inventory sets it; None: the kernel chooses by route."""
    if host.cluster_address or host.interface == "auto":
        return host.cluster_address
    return next((interface.address for interface in fact.interfaces if interface.name == host.interface), None)


def _mismatch(host: str, operation: str) -> InvalidAnswer:
    return InvalidAnswer(host, f"{operation}: does not match the request")


def _addresses_to_try(cluster_address: str | None, interface: str, fact: Facts, candidates: Sequence[str]) -> list[str]:
    """The head's addresses to try: the same that node/serve/prepare.py returns."""
    if cluster_address:
        return [cluster_address]
    if interface != "auto":
        return [each.address for each in fact.interfaces if each.name == interface][:1]
    return list(candidates)


def _interface_of(address: str, fact: Facts) -> str:
    return next((each.name for each in fact.interfaces if each.address == address), "")


def _choose_address(
    head_addresses: list[str], reports: Results[DialReport]
) -> tuple[str, dict[str, dict[str, str | None]]]:
    """The first address that all hosts reach, or the one that most do; and for the hosts that do not reach it, why."""
    problems = {
        name: {dialled.address: next(iter(dialled.ports.values())) for dialled in report.results}
        for name, report in reports.done.items()
    }
    if not head_addresses:
        return "", {name: {} for name in problems}
    chosen = max(head_addresses, key=lambda address: sum(why[address] is None for why in problems.values()))
    return chosen, {name: why for name, why in problems.items() if why[chosen] is not None}


def _not_reached(head_addresses: list[str], reports: Results[DialReport]) -> dict[str, tuple[str, ...]]:
    by_address: dict[str, list[str]] = {address: [] for address in head_addresses}
    for name, report in reports.done.items():
        for dialled in report.results:
            if any(why is not None for why in dialled.ports.values()):
                by_address[dialled.address].append(name)
    return {address: tuple(names) for address, names in by_address.items() if names}


def _shared_addresses(head_addresses: list[str], reports: Results[DialReport], fact: Facts) -> list[str]:
    """The addresses of the head that all hosts reach, one per interface."""
    blocked = _not_reached(head_addresses, reports)
    by_interface: dict[str, str] = {}
    for address in head_addresses:
        if reports.done and address not in blocked:
            by_interface.setdefault(_interface_of(address, fact), address)
    return list(by_interface.values())


def _subnets(shared: list[str], measured: Results[DialReport], fact: Facts) -> tuple[Subnet, ...]:
    best: dict[str, dict[str, float]] = {address: {} for address in shared}
    for name, report in measured.done.items():
        for dialled in report.results:
            bandwidths = best[dialled.address]
            bandwidths[name] = max(bandwidths.get(name, 0.0), dialled.bandwidth or 0.0)
    return tuple(Subnet(address, _interface_of(address, fact), best[address]) for address in shared)


def _targets(names: list[str], name: str) -> list[str]:
    """The hosts that a host connects to: all others, or in large runs those at distance 1, 2, 4, 8, ... in the ring.

    Each host starts with its neighbour, so that they do not all connect to the same host at once.
    """
    index = names.index(name)
    ring = names[index + 1 :] + names[:index]
    if len(names) <= MAX_ALL_PAIRS:
        return ring
    return [ring[(1 << power) - 1] for power in range(len(names).bit_length()) if (1 << power) <= len(ring)]


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


def render(network: Network, width: int = 100) -> str:
    """The matrix of bandwidths and latencies between hosts; "" for one host. `width`: of the terminal."""
    names = list(network.addresses)
    if not network.pairs:
        return ""
    cells = {(pair.source, pair.target): _cell(pair) for pair in network.pairs}
    first = max(len(name) for name in names)
    columns = [max(len(name), MIN_CELL) for name in names]
    if first + sum(column + 2 for column in columns) > width:
        return _render_slowest(network, first)
    header = "  ".join([" " * first, *(f"{name:>{column}}" for name, column in zip(names, columns, strict=True))])
    lines = [
        "  ".join(
            [f"{row:{first}}"]
            + [f"{cells.get((row, name), '-'):>{column}}" for name, column in zip(names, columns, strict=True)]
        )
        for row in names
    ]
    return "\n".join(["Gbit/s and ms, from (row) to (column):", header, *lines]) + "\n"


def _render_slowest(network: Network, width: int) -> str:
    """The slowest path of each host, where a matrix does not fit; of many hosts, only the slowest."""
    paths = {name: path for name in network.addresses if (path := _slowest(network, name))}
    names = sorted(paths, key=lambda name: _speed(paths[name]))[:MAX_SLOWEST]
    shown = [name for name in paths if name in names] if len(paths) <= MAX_SLOWEST else names
    lines = [f"{name:{width}}  {_cell(paths[name]):>{MIN_CELL}}  to {paths[name].target}" for name in shown]
    of = "from each host" if len(paths) <= MAX_SLOWEST else f"from the {MAX_SLOWEST} slowest of {len(paths)} hosts"
    return "\n".join([f"Gbit/s and ms of the slowest path, {of}:", *lines]) + "\n"


def _cell(pair: Pair) -> str:
    if pair.latency is None:
        return "blocked"
    if pair.stalled:
        return "stalled"
    bandwidth = "-" if pair.bandwidth is None else f"{pair.bandwidth * 8 / 1e9:.2g}"
    return f"{bandwidth} {pair.latency * 1e3:.2f}"


def _slowest(network: Network, name: str) -> Pair | None:
    return min((pair for pair in network.pairs if pair.source == name), key=_speed, default=None)


def _speed(pair: Pair) -> tuple[bool, float, float]:
    return pair.latency is not None, pair.bandwidth or 0.0, -(pair.latency or 0.0)
