"""Judges the network as it was tried: who is cut off, which path drops large packets, which host is slow. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from statistics import median

from ..answers.facts import Facts
from ..checks.findings import Findings, shell_word
from ..output.finding import Finding
from ..plan.plan import Plan
from .mesh import Network, Pair

SLOW = 100e6 / 8  # bytes a second: below this any training waits for its network
SLOWER = 4  # times less than the others' median
LATENCY_HIGH, LATENCY_TIMES = 0.005, 10  # s; times the others' median
REFUSED = ("refused", "No route", "unreachable", "prohibited")

NFT_CHAIN = re.compile(r"nft ([A-Za-z0-9_.-]+( [A-Za-z0-9_.-]+){2})")
"""A chain that admits packets, as the facts of a host name it: family, table, chain."""


def judge(plan: Plan, network: Network, facts: Mapping[str, Facts]) -> tuple[Finding, ...]:
    """Errors first."""
    found = Findings()
    _head(plan, network, facts, found)
    _ports(plan, network, facts, found)
    _large_packets(network, facts, found)
    _mtus(network, facts, found)
    _speed(plan, network, facts, found)
    _lookups(network, found)
    for host, failure in network.failed.items():
        found.add("error", str(getattr(failure, "code", "unknown")), host, str(failure), "try again", "")
    return found.all()


def _head(plan: Plan, network: Network, facts: Mapping[str, Facts], found: Findings) -> None:
    """Who does not reach the head's port, on any address or on the one that most reach."""
    if not network.offered:
        if len(plan.nodes) > 1 and network.head not in network.failed:
            message = "has no address that other hosts can reach: only the loopback interface is up"
            found.add("error", "nccl-wrong-nic", network.head, message, "cluster_address of the head", "ip -br addr")
        return
    others = len(facts) - 1
    everybody = len(network.unreachable) == others and others > 1
    for host, answers in network.unreachable.items():
        seen = "; ".join(f"connect to {address}: {why}" for address, why in answers.items())
        whys = [why for why in answers.values() if why]
        if whys and all("no route" in why for why in whys):
            message = f"has no route to the head, {network.head} ({', '.join(answers)})"
            fix = "check `ip route` there, or set cluster_address of the head to an address that all hosts reach"
            found.add("error", "no-route", host, message, fix, seen)
        elif any(why is None for why in answers.values()):
            good = next(address for address, why in answers.items() if why is None)
            message = f"reaches the head only at {good}, where other hosts do not reach it"
            fix = f"set cluster_address of {network.head} to an address that all hosts reach; see `ip -br addr` there"
            found.add("error", "nccl-wrong-nic", host, message, fix, seen)
        elif any("assign requested" in why for why in whys):
            message = "its cluster_address is not an address of this host"
            found.add("error", "nccl-wrong-nic", host, message, "correct it, or leave it out", seen)
        else:
            guilty = network.head if everybody else host
            low, high = plan.inventory.run.ports
            who = "no other host reaches" if everybody else "does not reach"
            message = f"{who} the head's port for the rendezvous, on {', '.join(answers)}"
            fix = _open(facts[network.head], _sources(network, facts), f"{low}-{high}", network.head)
            found.add("error", _code_of_head(network, facts), guilty, message, fix, seen)


def _code_of_head(network: Network, facts: Mapping[str, Facts]) -> str:
    """Where only an address of a bridge, such as docker0, was offered, it is the wrong interface and no firewall."""
    bridges = {one.address for one in facts[network.head].interfaces if one.bridge}
    return "nccl-wrong-nic" if set(network.offered) <= bridges else "rdzv-port-blocked"


def _sources(network: Network, facts: Mapping[str, Facts]) -> list[str]:
    known = [address for name, address in network.addresses.items() if name != network.head]
    for host in network.unreachable:
        known += [
            one.address
            for one in facts[host].interfaces
            if one.up and not one.loopback and not one.bridge and ":" not in one.address
        ]
    return sorted(set(known))


def _ports(plan: Plan, network: Network, facts: Mapping[str, Facts], found: Findings) -> None:
    low, high = plan.inventory.run.ports
    run = [pair for pair in network.pairs if pair.run_port[1] is not None]
    for host, pairs in _guilty(run, network).items():
        to_head = any(pair.target == network.head for pair in pairs)
        if to_head or all(why is None for pair in pairs for _, why in pair.random_ports):
            severity = "error" if to_head else "note"
            message = (
                f"port {pairs[0].run_port[0]} of the run's ports ({low}-{high}) is {_manner(pairs[0].run_port[1])}"
            )
            fix = _open(facts[host], _peers(network, host), f"{low}-{high}", host)
            if severity == "error":
                found.add("error", "rdzv-port-blocked", host, message, fix, _seen(pairs))
            else:  # only the head's is needed
                found.add("note", "rdzv-port-blocked", host, message, fix, _seen(pairs))
    blocked = [pair for pair in network.pairs if any(why is not None for _, why in pair.random_ports)]
    for host, pairs in _guilty(blocked, network).items():
        first, last = facts[host].port_range
        port, why = next(one for one in pairs[0].random_ports if one[1] is not None)
        message = (
            f"port {port} is {_manner(why)} from {_names(pairs, host)}: NCCL and gloo use random ports ({first}-{last})"
        )
        fix = _open(facts[host], _peers(network, host), f"{first}-{last}", host)
        found.add("error", "ephemeral-ports-blocked", host, message, fix, _seen(pairs))


def _guilty(pairs: list[Pair], network: Network) -> dict[str, list[Pair]]:
    """Bad pairs by the host to look at: the sender that reaches nobody while others do, else each target."""
    left = list(pairs)
    guilty: dict[str, list[Pair]] = {}
    if len(network.addresses) > 2:
        for name in network.addresses:
            tried = [pair for pair in network.pairs if pair.source == name]
            bad = [pair for pair in left if pair.source == name]
            victims = {pair.target for pair in bad}
            elsewhere = {pair.target for pair in left if pair.source != name}
            if len(bad) == len(tried) and not victims & elsewhere:
                guilty[name] = bad
                left = [pair for pair in left if pair.source != name]
    for pair in left:
        guilty.setdefault(pair.target, []).append(pair)
    return guilty


def _manner(why: str | None) -> str:
    if why and any(word in why for word in REFUSED):
        return f"rejected ({why})"
    return f"blocked ({why})"


def _seen(pairs: list[Pair]) -> str:
    pair = pairs[0]
    port, why = next(one for one in (*pair.random_ports, pair.run_port) if one[1] is not None)
    more = f", and {len(pairs) - 1} more" if len(pairs) > 1 else ""
    return f"{pair.source} connects to {pair.address}:{port} ({pair.target}): {why}{more}"


def _names(pairs: list[Pair], host: str) -> str:
    from ..output.console import fold

    return fold(pair.source if pair.target == host else pair.target for pair in pairs)


def _peers(network: Network, host: str) -> list[str]:
    return sorted(address for name, address in network.addresses.items() if name != host)


def _open(fact: Facts, addresses: list[str], ports: str, host: str) -> str:
    """What opens exactly these ports to exactly these addresses, in the words of the firewall that is seen there."""
    where = f"ssh {host} sudo"
    if "ufw" in fact.firewalls:
        return "\n".join(
            f"{where} ufw allow from {one} to any port {ports.replace('-', ':')} proto tcp" for one in addresses
        )
    if "firewalld" in fact.firewalls:
        rules = [
            f'{where} firewall-cmd --permanent --add-rich-rule=\'rule family="{"ipv6" if ":" in one else "ipv4"}" '
            f'source address="{one}" port port="{ports}" protocol="tcp" accept\''
            for one in addresses
        ]
        return "\n".join([*rules, f"{where} firewall-cmd --reload"])
    if "iptables" in fact.firewalls:
        return "\n".join(
            f"{where} {'ip6tables' if ':' in one else 'iptables'} -I INPUT -s {one} "
            f"-p tcp --dport {ports.replace('-', ':')} -j ACCEPT"
            for one in addresses
        )
    # a host names its chains; what is no name goes into no command
    known = [match[1] for one in fact.firewalls if (match := NFT_CHAIN.fullmatch(one))]
    chains = known or ["inet filter input"]
    family = "ip6" if any(":" in one for one in addresses) else "ip"
    rule = f"{family} saddr {{ {', '.join(addresses)} }} tcp dport {ports} accept"
    return "\n".join(f"{where} nft \"'insert rule {chain} {rule}'\"" for chain in chains)


def _large_packets(network: Network, facts: Mapping[str, Facts], found: Findings) -> None:
    stalled = [pair for pair in network.pairs if pair.stalled]
    if not stalled:
        return
    counts = {name: sum(name in (pair.source, pair.target) for pair in stalled) for name in network.addresses}
    most = max(counts.values())
    guilty = [name for name, count in counts.items() if count == most]
    targets = {pair.target for pair in stalled}
    if len(guilty) > 1 and len(targets) == 1:
        guilty = list(targets)
    for host in guilty:
        mtu = _mtu(network, host, facts)
        peer = next(pair for pair in stalled if host in (pair.source, pair.target))
        other = peer.target if peer.source == host else peer.source
        message = f"large packets (MTU {mtu}) are lost, small ones arrive"
        fix = (
            f"set the same MTU on all hosts and switches; until then: ssh {host} sudo ip link set "
            f"{shell_word(network.interfaces[host])} mtu 1400"
        )
        ping = f"ping -M do -s {(mtu or 1500) - 28} {network.addresses[other]}"
        seen = f"192 KiB from {peer.source} to {peer.target}: no answer; see {ping}"
        found.add("error", "mtu-mismatch", host, message, fix, seen)


def _mtu(network: Network, host: str, facts: Mapping[str, Facts]) -> int | None:
    return next((one.mtu for one in facts[host].interfaces if one.name == network.interfaces[host]), None)


def _mtus(network: Network, facts: Mapping[str, Facts], found: Findings) -> None:
    mtus = {name: str(_mtu(network, name, facts)) for name in network.addresses}
    fix = "sudo ip link set DEV mtu N, with the same N on all hosts and switches"
    found.differ("warning", "mtu-mismatch", "MTU", mtus, network.head, fix, "ip link show")


def _speed(plan: Plan, network: Network, facts: Mapping[str, Facts], found: Findings) -> None:
    """A host is judged by its best path, as a bad one may be the other host's. Usual: the median of the best."""
    rates = _best(network, lambda pair: pair.bandwidth, max)
    delays = _best(network, lambda pair: pair.latency, min)
    usual = median(rates.values()) if rates else 0.0
    delay = median(delays.values()) if delays else 0.0
    late = {
        host: latency
        for host, latency in delays.items()
        if latency > LATENCY_HIGH and (latency > LATENCY_TIMES * delay or len(delays) == 2)
    }
    for host, latency in late.items():
        which, fix = _which_network(plan, network, facts, host)
        message = f"its network ({which}) is late: {latency * 1e3:.1f} ms for its best round trip"
        seen = f"TCP to and from the others; usual here: {delay * 1e3:.2f} ms"
        found.add("warning", "network-slow", host, message, fix, seen)
    for host, rate in rates.items():
        if host not in late and (rate < SLOW or (rate * SLOWER < usual and rate < 10 * SLOW)):
            which, fix = _which_network(plan, network, facts, host)
            message = f"its network ({which}) is slow: {rate * 8 / 1e6:.0f} Mbit/s on its best path"
            seen = f"TCP to and from the others; usual here: {usual * 8 / 1e6:.0f} Mbit/s"
            found.add("warning", "network-slow", host, message, fix, seen)


def _which_network(plan: Plan, network: Network, facts: Mapping[str, Facts], host: str) -> tuple[str, str]:
    """Which network was measured of those that there are, and what to do when it is slow."""
    interface = network.interfaces[host]
    fix = f"`ethtool {shell_word(interface)}` there shows speed, duplex and errors; then check cable and switch port"
    if network.subnets:
        return f"{interface}, the fastest of {len(network.subnets)} that all hosts share", fix
    head = plan.nodes[0].host
    key = "cluster_address" if head.cluster_address else "interface"
    others = [
        one
        for one in facts[head.name].interfaces
        if one.up and not one.loopback and not one.bridge and one.address not in network.offered
    ]
    if (head.cluster_address or head.interface != "auto") and others:
        return (
            f"{interface}, by the head's {key}",
            f"remove {key} for {head.name}: the fastest network is then measured",
        )
    return interface, fix


def _lookups(network: Network, found: Findings) -> None:
    """Others' names: ours need none of them, as all that we give to torch are addresses."""
    for host, answers in network.names.items():
        slow = [asked for asked, answer in answers.items() if answer.seconds is None]
        if slow:
            message = "looking up the other hosts takes more than a second; ranks get RES_OPTIONS against it"
            fix = "fix the name servers in /etc/resolv.conf, or add all hosts to /etc/hosts"
            found.add("warning", "dns-slow", host, message, fix, f"getent hosts {slow[0]}: no answer")
        addresses = set(network.addresses.values())
        unknown = [asked for asked, answer in answers.items() if answer.error and asked not in addresses | set(slow)]
        if unknown:
            names = ", ".join(unknown[:3])
            message = f"cannot resolve the names of other hosts: {names}; runs still work, because of --local-addr"
            fix = "add all hosts to /etc/hosts, or to DNS"
            seen = f"getent hosts {unknown[0]}: {answers[unknown[0]].error}"
            found.add("note", "hostname-unresolvable", host, message, fix, seen)


def _best(
    network: Network, value: Callable[[Pair], float | None], best: Callable[[list[float]], float]
) -> dict[str, float]:
    """Each host's best value of all pairs that it is in."""
    found = {}
    for name in network.addresses:
        known = [one for pair in network.pairs if name in (pair.source, pair.target) for one in [value(pair)] if one]
        if known:
            found[name] = best(known)
    return found
