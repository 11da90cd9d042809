"""Check the measured network: which host is cut off, which path drops large packets, which host is slow. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from statistics import median

from ..answers.facts import Facts
from ..checks.findings import Findings, shell_word
from ..inventory.recovery import elects
from ..output.console import fold
from ..output.finding import Finding, Severity
from ..plan.plan import Plan
from .mesh import Network, Pair

SLOW = 100e6 / 8  # bytes per second; below this, any training waits for the network
SLOWER = 4  # a host is slow if the median is this many times its bandwidth
LATENCY_HIGH, LATENCY_TIMES = 0.005, 10  # a latency is high above so many s, and so many times the median
REFUSED = ("refused", "No route", "unreachable", "prohibited")

NFT_CHAIN = re.compile(r"nft(?P<is_presumed>-file)? (?P<chain>[A-Za-z0-9_.-]+( [A-Za-z0-9_.-]+){2})")
"""A chain that filters incoming packets, as in the facts of a host: family, table, chain."""


def check_connections(plan: Plan, network: Network, facts: Mapping[str, Facts]) -> tuple[Finding, ...]:
    """The findings about the network between hosts, errors first."""
    findings = Findings()
    _head(plan, network, facts, findings)
    _ports(plan, network, facts, findings)
    _large_packets(network, facts, findings)
    _mtus(network, facts, findings)
    _speed(plan, network, facts, findings)
    _lookups(network, findings)
    for host, failure in network.failed.items():
        code = str(getattr(failure, "code", "unknown"))
        fix = "set run.ports to a larger range" if code == "port-in-use" else "run `ddp-orch check INVENTORY` again"
        findings.add("error", code, host, str(failure), fix, "")
    return findings.all()


def check_chosen(network: Network, facts: Mapping[str, Facts], chosen: str | None) -> tuple[Finding, ...]:
    """Whether the hosts still share the network that an earlier `check` chose. `chosen`: address of the head in it."""
    known = [each for each in facts[network.head].interfaces if each.address == chosen]
    hosts = network.not_reached.get(str(chosen), ())
    is_lost = bool(hosts) or chosen not in network.head_addresses
    if not known or not is_lost or network.addresses.get(network.head, chosen) == chosen:
        return ()
    findings = Findings()
    used = network.interfaces[network.head]
    where = f"{network.head} at {chosen} ({known[0].name})"
    what = f"the network that `check` chose before; now a run would use {used}"
    fix = "`ip link` there; check the cable and the switch port of that network"
    evidence = f"connect to {chosen}"
    if not hosts or len(hosts) == len(facts) - 1 > 1:
        findings.add("warning", "nccl-wrong-nic", network.head, f"no other host reaches {where}, {what}", fix, evidence)
    else:
        findings.add("warning", "nccl-wrong-nic", hosts, f"does not reach {where}, {what}", fix, evidence)
    return findings.all()


def _head(plan: Plan, network: Network, facts: Mapping[str, Facts], findings: Findings) -> None:
    """Hosts that do not reach the head's rendezvous port."""
    if not network.head_addresses:
        if len(plan.nodes) > 1 and network.head not in network.failed:
            message = "has no address that other hosts can reach: only the loopback interface is up"
            findings.add("error", "nccl-wrong-nic", network.head, message, "cluster_address of the head", "ip -br addr")
        return
    others = len(facts) - 1
    no_host_reaches = len(network.unreachable) == others and others > 1
    for host, tried in network.unreachable.items():
        answers = _without_bridges(tried, network, facts)
        evidence = "; ".join(f"connect to {address}: {why}" for address, why in answers.items())
        whys = [why for why in answers.values() if why]
        if whys and all("no route" in why for why in whys):
            message = f"has no route to the head, {network.head} ({', '.join(answers)})"
            fix = "check `ip route` there, or set cluster_address of the head to an address that all hosts reach"
            findings.add("error", "no-route", host, message, fix, evidence)
        elif any(why is None for why in answers.values()):
            good = next(address for address, why in answers.items() if why is None)
            message = f"reaches the head only at {good}, where other hosts do not reach it"
            fix = f"set cluster_address of {network.head} to an address that all hosts reach; see `ip -br addr` there"
            findings.add("error", "nccl-wrong-nic", host, message, fix, evidence)
        elif any("assign requested" in why for why in whys):
            message = "its cluster_address is not an address of this host"
            findings.add("error", "nccl-wrong-nic", host, message, "correct it, or remove it", evidence)
        else:
            blocked = network.head if no_host_reaches else host
            low, high = plan.inventory.run.ports
            problem = "no other host reaches" if no_host_reaches else "does not reach"
            message = f"{problem} the head's rendezvous port at {', '.join(answers)}"
            fix = _open(facts[network.head], _sources(network, facts), f"{low}-{high}", network.head)
            if len(network.unreachable) < others and not any(map(_is_refusal, whys)):
                fix += "\n" + _let_answers_in(facts[host], host)
            findings.add("error", _head_code(network, facts), blocked, message, fix, evidence)


def _head_code(network: Network, facts: Mapping[str, Facts]) -> str:
    """If the head has only addresses of bridges, such as docker0, the interface is wrong. Else a firewall blocks."""
    return "nccl-wrong-nic" if set(network.head_addresses) <= _bridges(network, facts) else "rdzv-port-blocked"


def _without_bridges(
    answers: Mapping[str, str | None], network: Network, facts: Mapping[str, Facts]
) -> Mapping[str, str | None]:
    """Addresses of docker0 on the head are noise, unless there is no other."""
    bridges = _bridges(network, facts)
    return {address: why for address, why in answers.items() if address not in bridges} or answers


def _bridges(network: Network, facts: Mapping[str, Facts]) -> set[str]:
    return {interface.address for interface in facts[network.head].interfaces if interface.bridge}


def _let_answers_in(fact: Facts, host: str) -> str:
    """Others reach the head, and what this host sends may reach it, too."""
    low, high = fact.port_range
    look = "iptables -S INPUT" if "iptables" in fact.firewalls else "nft list ruleset"
    return (
        f"Other hosts reach that port, so {host} may drop the answers, which come to its ports {low}-{high}: "
        f"`ssh {host} sudo {look}` shows it. Accept packets of established connections there."
    )


def _sources(network: Network, facts: Mapping[str, Facts]) -> list[str]:
    known = [address for name, address in network.addresses.items() if name != network.head]
    for host in network.unreachable:
        known += [
            interface.address
            for interface in facts[host].interfaces
            if interface.up and not interface.loopback and not interface.bridge and ":" not in interface.address
        ]
    return sorted(set(known))


def _ports(plan: Plan, network: Network, facts: Mapping[str, Facts], findings: Findings) -> None:
    low, high = plan.inventory.run.ports
    run = [pair for pair in network.pairs if pair.run_port[1] is not None]
    for host, pairs in _blocking_hosts(run, network).items():
        to_head = any(pair.target == network.head for pair in pairs)
        if to_head or all(why is None for pair in pairs for _, why in pair.random_ports):
            may_lead = elects(plan.inventory, len(plan.nodes))
            severity: Severity = "error" if to_head else "warning" if may_lead else "note"  # only the head's is needed
            port, why = pairs[0].run_port
            message = f"port {port} of the run's ports ({low}-{high}) is {_describe_block(why)}"
            if may_lead and not to_head:
                message += "; if this host is elected as the head, the others cannot reach it"
            fix = _open(facts[host], _peers(network, host), f"{low}-{high}", host)
            findings.add(severity, "rdzv-port-blocked", host, message, fix, _evidence(pairs))
    blocked = [pair for pair in network.pairs if any(why is not None for _, why in pair.random_ports)]
    for host, pairs in _blocking_hosts(blocked, network).items():
        first, last = facts[host].port_range
        port, why = next((port, why) for port, why in pairs[0].random_ports if why is not None)
        peers = _fold_peers(pairs, host)
        message = f"port {port} is {_describe_block(why)} from {peers}: NCCL and gloo use random ports ({first}-{last})"
        fix = _open(facts[host], _peers(network, host), f"{first}-{last}", host)
        findings.add("error", "ephemeral-ports-blocked", host, message, fix, _evidence(pairs))


def _blocking_hosts(pairs: list[Pair], network: Network) -> dict[str, list[Pair]]:
    """The blocked pairs by the host that probably blocks them. That is the source if it reaches no host, but others
    reach the same hosts; otherwise the target.
    """
    remaining = list(pairs)
    by_host: dict[str, list[Pair]] = {}
    if len(network.addresses) > 2:
        for name in network.addresses:
            count = sum(pair.source == name for pair in network.pairs)
            blocked = [pair for pair in remaining if pair.source == name]
            targets = {pair.target for pair in blocked}
            blocked_for_others = {pair.target for pair in remaining if pair.source != name}
            if len(blocked) == count and not targets & blocked_for_others:
                by_host[name] = blocked
                remaining = [pair for pair in remaining if pair.source != name]
    for pair in remaining:
        by_host.setdefault(pair.target, []).append(pair)
    return by_host


def _describe_block(why: str | None) -> str:
    if _is_refusal(why):
        return f"rejected ({why})"
    return f"blocked ({why})"


def _is_refusal(why: str | None) -> bool:
    return why is not None and any(word in why for word in REFUSED)


def _evidence(pairs: list[Pair]) -> str:
    pair = pairs[0]
    port, why = next((port, why) for port, why in (*pair.random_ports, pair.run_port) if why is not None)
    more = f", and {len(pairs) - 1} more" if len(pairs) > 1 else ""
    return f"{pair.source} connects to {pair.address}:{port} ({pair.target}): {why}{more}"


def _fold_peers(pairs: list[Pair], host: str) -> str:
    return fold(pair.source if pair.target == host else pair.target for pair in pairs)


def _peers(network: Network, host: str) -> list[str]:
    return sorted(address for name, address in network.addresses.items() if name != host)


def _open(fact: Facts, addresses: list[str], ports: str, host: str) -> str:
    """Commands for the host's firewall that open only these ports, and only to these addresses."""
    where = f"ssh {host} sudo"
    if "ufw" in fact.firewalls:
        return "\n".join(
            f"{where} ufw allow from {address} to any port {ports.replace('-', ':')} proto tcp" for address in addresses
        )
    if "firewalld" in fact.firewalls:
        rules = [
            f'{where} firewall-cmd --permanent --add-rich-rule=\'rule family="{"ipv6" if ":" in address else "ipv4"}" '
            f'source address="{address}" port port="{ports}" protocol="tcp" accept\''
            for address in addresses
        ]
        return "\n".join([*rules, f"{where} firewall-cmd --reload"])
    if "iptables" in fact.firewalls:
        rules = [
            f"{where} {'ip6tables' if ':' in address else 'iptables'} -I INPUT -s {address} "
            f"-p tcp --dport {ports.replace('-', ':')} -j ACCEPT"
            for address in addresses
        ]
        otherwise = f"If that does not help, `{where} nft list ruleset` shows whether a chain of nftables drops them."
        return "\n".join([*rules, f"After a reboot, these rules are gone. {otherwise}"])
    return _open_nftables(fact, addresses, ports, where)


def _open_nftables(fact: Facts, addresses: list[str], ports: str, where: str) -> str:
    # the names of chains come from the host, so only well-formed ones go into a command
    matches = [match for firewall in fact.firewalls if (match := NFT_CHAIN.fullmatch(firewall))]
    family = "ip6" if any(":" in address for address in addresses) else "ip"
    rule = f"{family} saddr {{ {', '.join(addresses)} }} tcp dport {ports} accept"
    if not matches:
        return (
            f"{where} nft list ruleset\nThat shows which chain drops them: insert `{rule}` there. If none does, a "
            "firewall between the hosts does, such as a security group of the cloud: allow the same there."
        )
    rules = [f"{where} nft \"'insert rule {match['chain']} {rule}'\"" for match in matches]
    if matches[0]["is_presumed"]:
        chains = " or ".join(match["chain"] for match in matches)
        return "\n".join(
            [
                f"{where} nft list ruleset",
                f"That shows which chain drops them. If it is {chains}, as in /etc/nftables.conf:",
                *rules,
                "If it is another one, replace its name. After a reboot, the rule is gone.",
            ]
        )
    return "\n".join(
        [
            *rules,
            f"If that does not help, `{where} nft list ruleset` shows which chain drops them: insert the rule there. "
            "After a reboot, it is gone.",
        ]
    )


def _large_packets(network: Network, facts: Mapping[str, Facts], findings: Findings) -> None:
    stalled = [pair for pair in network.pairs if pair.stalled]
    if not stalled:
        return
    counts = {name: sum(name in (pair.source, pair.target) for pair in stalled) for name in network.addresses}
    suspects = [name for name, count in counts.items() if count == max(counts.values())]
    targets = {pair.target for pair in stalled}
    if len(suspects) > 1 and len(targets) == 1:
        suspects = list(targets)
    for host in suspects:
        mtu = _mtu(network, host, facts)
        pair = next(pair for pair in stalled if host in (pair.source, pair.target))
        other = pair.target if pair.source == host else pair.source
        message = f"large packets (MTU {mtu}) are lost, small packets arrive"
        fix = (
            f"set the same MTU on all hosts and switches; until then: ssh {host} sudo ip link set "
            f"{shell_word(network.interfaces[host])} mtu 1400"
        )
        ping = f"ping -M do -s {(mtu or 1500) - 28} {network.addresses[other]}"
        evidence = f"192 KiB from {pair.source} to {pair.target}: no answer; see {ping}"
        findings.add("error", "mtu-mismatch", host, message, fix, evidence)


def _mtu(network: Network, host: str, facts: Mapping[str, Facts]) -> int | None:
    return next((each.mtu for each in facts[host].interfaces if each.name == network.interfaces[host]), None)


def _mtus(network: Network, facts: Mapping[str, Facts], findings: Findings) -> None:
    mtus = {name: str(_mtu(network, name, facts)) for name in network.addresses}
    fix = "set the same MTU on all hosts and switches: sudo ip link set DEVICE mtu N"
    findings.differ("warning", "mtu-mismatch", "MTU", mtus, network.head, fix, "ip link show")


def _speed(plan: Plan, network: Network, facts: Mapping[str, Facts], findings: Findings) -> None:
    """Compares the best path of each host with the median: a slow path may be the other host's fault."""
    bandwidths = _best(network, lambda pair: pair.bandwidth, max)
    latencies = _best(network, lambda pair: pair.latency, min)
    usual_bandwidth = median(bandwidths.values()) if bandwidths else 0.0
    usual_latency = median(latencies.values()) if latencies else 0.0
    high = {
        host: latency
        for host, latency in latencies.items()
        if latency > LATENCY_HIGH and (latency > LATENCY_TIMES * usual_latency or len(latencies) == 2)
    }
    for host, latency in high.items():
        which, fix = _which_network(plan, network, facts, host)
        message = f"its network ({which}) has a high latency: {latency * 1e3:.1f} ms on its best path"
        evidence = f"TCP to and from the others; median of the hosts: {usual_latency * 1e3:.2f} ms"
        findings.add("warning", "network-slow", host, message, fix, evidence)
    for host, bandwidth in bandwidths.items():
        is_outlier = bandwidth * SLOWER < usual_bandwidth and bandwidth < 10 * SLOW
        if host not in high and (bandwidth < SLOW or is_outlier):
            which, fix = _which_network(plan, network, facts, host)
            message = f"its network ({which}) is slow: {bandwidth * 8 / 1e6:.0f} Mbit/s on its best path"
            evidence = f"TCP to and from the others; median of the hosts: {usual_bandwidth * 8 / 1e6:.0f} Mbit/s"
            findings.add("warning", "network-slow", host, message, fix, evidence)


def _which_network(plan: Plan, network: Network, facts: Mapping[str, Facts], host: str) -> tuple[str, str]:
    """Which of the host's networks was measured, and what to do if it is slow."""
    interface = network.interfaces[host]
    fix = f"`ethtool {shell_word(interface)}` there shows speed, duplex and errors; check the cable and the switch port"
    if network.subnets:
        return f"{interface}, the fastest of {len(network.subnets)} that all hosts share", fix
    head = plan.nodes[0].host
    key = "cluster_address" if head.cluster_address else "interface"
    others = [
        each
        for each in facts[head.name].interfaces
        if each.up and not each.loopback and not each.bridge and each.address not in network.head_addresses
    ]
    if (head.cluster_address or head.interface != "auto") and others:
        return (
            f"{interface}, by the head's {key}",
            f"remove {key} for {head.name}, so that ddp-orch uses the fastest network",
        )
    return interface, fix


def _lookups(network: Network, findings: Findings) -> None:
    """Look-ups of other hosts. ddp-orch gives torch only addresses, so a name that is unknown does no harm."""
    for host, answers in network.names.items():
        slow = [name for name, answer in answers.items() if answer.seconds is None]
        if slow:
            message = "looking up the other hosts takes more than a second; ddp-orch sets RES_OPTIONS for the ranks"
            fix = "fix the name servers in /etc/resolv.conf, or add all hosts to /etc/hosts"
            findings.add("warning", "dns-slow", host, message, fix, f"getent hosts {slow[0]}: no answer")
        addresses = set(network.addresses.values())
        unknown = [name for name, answer in answers.items() if answer.error and name not in addresses | set(slow)]
        if unknown:
            names = ", ".join(unknown[:3])
            message = f"cannot resolve the names of other hosts: {names}; ddp-orch does not need them"
            fix = "add all hosts to /etc/hosts, or to DNS"
            evidence = f"getent hosts {unknown[0]}: {answers[unknown[0]].error}"
            findings.add("note", "hostname-unresolvable", host, message, fix, evidence)


def _best(
    network: Network, value: Callable[[Pair], float | None], best: Callable[[list[float]], float]
) -> dict[str, float]:
    """The best value of each host over the pairs that it is part of; hosts without a value are left out."""
    best_values = {}
    for name in network.addresses:
        values = [value(pair) for pair in network.pairs if name in (pair.source, pair.target)]
        known = [number for number in values if number]
        if known:
            best_values[name] = best(known)
    return best_values
