"""Connections between hosts: who could not reach whom, and which rank or host has gone. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from ...output.finding import Confidence
from ...output.folding import name_ranks
from ..busy import FINISHED
from ..hangs import PEER_GONE, lines_of_ranks
from ..scene import STEPS, Scene, host_or_source
from ..suspects import ENDING, SPECIFIC, Suspect, Suspects, any_proof, map_code
from ..transcript import LogLine

ADDRESS = re.compile(
    r"while trying to connect to \(?(?P<host>[^,()]+), (?P<port>\d+)\)?|to host (?P<host2>[\w.:-]+):(?P<port2>\d+)"
)
UNSERVED = re.compile(
    r"failed to connect to any network address of \((?P<host>[^,()]+), (?P<port>\d+)\)"
    r"|failed to connect/validate to host (?P<host2>\S+):(?P<port2>\d+)"
)
UNSERVED_ADDRESS = (
    "Rank 0 itself cannot connect to {address}, where the ranks are to meet. Its own host must have that "
    "address, which is that of another machine, or of none."
)
LOCAL = re.compile(r"localhost|127\.[\d.]+|::1")
TIMED_OUT = re.compile(
    r"client socket has timed out|TCP client failed to connect|failed to connect to (?:any|host)|connect\(\) timed out"
)
RENDEZVOUS_DONE = re.compile(
    r"Rendezvous complete|rendezvous complete|(?:worker|local_world_size|MASTER_PORT)\S*=\S+|init_process_group"
)
CLIENTS_JOINED = re.compile(r"\d+/\d+ clients joined")
FIRST_NODE = re.compile(r"--(?:node|machine)[-_]rank[= ]0\b")
FIRST_EPHEMERAL_PORT = 32768
NO_SPECIFIC_CAUSE = 60  # the level below which a time-out of a connection is still worth naming
LOOPBACK = 67  # levels of what the rules here conclude
UNSERVED_LEVEL = 80  # the addresses that torch prints beside it may be those of no host, or of IPv6
UNREACHED = 28
ABSENT = 29
UNRESOLVED = "Unable to resolve hostname to a (local) address"
REACHED = re.compile(r"by peer \[(?:::ffff:)?127\.")  # a connection to such an address was there
AGENT = re.compile(r"closing signal|exitcode|ChildFailedError|torch[./]distributed[./]elastic|Rendezvous\w*Error")
LOST = re.compile(
    r"Connection closed by peer|Connection reset by peer|Failed to recv|keep-alive|RendezvousConnectionError"
)


def check_loopback(suspects: Suspects, scene: Scene) -> Suspects:
    """Ranks that dial 127.x where several hosts take part: a host resolves its own name to that address.

    On one host the peer may just have gone. Before `check_timeouts`, as this explains a time-out.
    """
    if (len(scene.hosts) < 2 and UNRESOLVED not in scene.text) or REACHED.search(scene.text):
        return suspects
    return tuple(
        replace(suspect, level=LOOPBACK, confidence="medium", why="a host resolves its own name to 127.x")
        if suspect.code == "gloo-loopback-address" and not suspect.hint and suspect.level < SPECIFIC
        else suspect
        for suspect in suspects
    )


def find_unserved(scene: Scene) -> LogLine | None:
    """Rank 0 could not connect to the address where the ranks meet, and has done nothing since."""
    of_rank = [line for line in scene.lines if line.rank == 0 and not line.agent]
    last = next((line for line in reversed(of_rank) if UNSERVED.search(line.text)), None)
    if last is None or any(STEPS.search(line.text) for line in of_rank if line.number > last.number):
        return None
    return last


def check_unserved(suspects: Suspects, scene: Scene) -> Suspects:
    """An address of rank 0 at which rank 0 is not. Neither a firewall nor IPv6 comes between it and its own host."""
    line = find_unserved(scene)
    match = UNSERVED.search(line.text) if line is not None else None
    if line is None or match is None:
        return suspects
    address = f"{match['host'] or match['host2']}:{match['port'] or match['port2']}"
    if LOCAL.fullmatch(address.rpartition(":")[0].strip("[]")):
        return suspects
    others = tuple(each for each in suspects if each.code not in ("ipv6-unusable", "rdzv-port-blocked"))
    meaning = UNSERVED_ADDRESS.format(address=address)
    found = Suspect("rdzv-endpoint-not-hosted", UNSERVED_LEVEL, line, 0, scene.host_of(line), meaning=meaning)
    return (*others, found)


def check_timeouts(suspects: Suspects, scene: Scene) -> Suspects:
    """Connections timed out: by who could not connect, and to which port, a firewall or a wrong endpoint.

    After `discount_overcome_trouble` and `check_loopback`, as it says nothing where a cause is known. Before all rules
    that ask whether anything else is known.
    """
    lines = [line for line in scene.lines if TIMED_OUT.search(line.text)]
    if not lines or any_proof(suspects, NO_SPECIFIC_CAUSE):
        return suspects
    # the head waited for its clients, so its store was there, and who is missing could not reach it
    waited_for = CLIENTS_JOINED.search(scene.text) is not None
    confidence: Confidence = "medium"
    port = _port_not_configured(lines, scene)
    if len(scene.hosts) > 1 and all(_dials_itself(line) for line in lines):
        code, why = "rdzv-endpoint-not-hosted", "each host dials itself: the script sets MASTER_ADDR"
    elif port is not None:
        code, why = "ephemeral-ports-blocked", f"nobody configured port {port}"
    elif waited_for:
        code, why = "rdzv-port-blocked", "the head waited for clients, and one could not connect"
        suspects = map_code(suspects, "rdzv-node-missing", lambda suspect: replace(suspect, hint=True))
    elif _everyone_waited(lines, scene):
        code, why = "rdzv-endpoint-not-hosted", "every host waited for the endpoint, also the head"
    else:
        code, why = "rdzv-port-blocked", "a firewall, or nothing listens there"
        confidence = "medium" if len(scene.hosts) > 1 else "low"
    line = lines[0]
    return (*suspects, Suspect(code, UNREACHED, line, line.rank, scene.host_of(line), confidence, why))


def _dials_itself(line: LogLine) -> bool:
    match = ADDRESS.search(line.text)
    return match is not None and LOCAL.fullmatch((match["host"] or match["host2"]).strip("[]")) is not None


def _port_not_configured(lines: Sequence[LogLine], scene: Scene) -> int | None:
    """The first port that could not be reached, if it is a random one, after the rendezvous at the configured one."""
    match = next((match for line in lines if (match := ADDRESS.search(line.text))), None)
    port = int(match["port"] or match["port2"]) if match else None
    if port is None or port < FIRST_EPHEMERAL_PORT or not RENDEZVOUS_DONE.search(scene.text):
        return None
    configured = re.search(
        rf"(?:--rdzv[-_]endpoint[= ]\S+:|--master[-_]port[= ]|MASTER_PORT[=:] ?|rdzv_endpoint\s*[:=]\s*\S+:){port}\b",
        scene.text,
    )
    return None if configured else port


def _everyone_waited(lines: Sequence[LogLine], scene: Scene) -> bool:
    if len(scene.hosts) > 1:
        return {host_or_source(line) for line in lines} >= set(scene.hosts)
    return FIRST_NODE.search(scene.text) is not None  # one log, and it is the head's


def find_silent_host(suspects: Suspects, scene: Scene) -> Suspects:
    """A host whose agent never reported, while others lost their peers or the store: it or its agent has gone.

    Only where no end is known: after `check_teardown` and the other rules about ends of processes.
    """
    if len(scene.hosts) < 2 or any_proof(suspects, ENDING):
        return suspects
    by_host: dict[str, list[LogLine]] = {}
    for line in scene.lines:
        by_host.setdefault(host_or_source(line), []).append(line)
    silent = [host for host, lines in by_host.items() if not any(map(_is_of_agent, lines))]
    has_loss = any(LOST.search(line.text) for host, lines in by_host.items() if host not in silent for line in lines)
    if len(silent) != 1 or not has_loss or "exit barrier" in scene.text:
        return suspects
    host = silent[0]
    last = by_host[host][-1]
    if _has_lived_on(host, last, scene):
        return suspects
    # its ranks lived on, and lost their peers as well
    continued = any(exception.line.host == host for exception in scene.exceptions)
    if continued or any(LOST.search(line.text) for line in by_host[host]):
        why = "its launcher reported nothing"
        return (*suspects, Suspect("agent-killed", ABSENT, last, None, host, "medium", why))
    if any(STEPS.search(line.text) for line in by_host[host]):
        return (*suspects, Suspect("host-lost", ABSENT, last, None, host, "low", "it stopped without a message"))
    return suspects


def _has_lived_on(host: str, last: LogLine, scene: Scene) -> bool:
    """Whether the host was there after its last line: its guard has its record, or its recorder wrote later lines.

    Then its ranks ended without a message, or wait in torchrun for the others, or were stopped with the run.
    """
    record = scene.record
    has_guard = host in record.hosts and host not in record.without_guard and host != record.lost
    return has_guard or any(line.host == host and line.number > last.number for line in scene.recorder_lines)


def _is_of_agent(line: LogLine) -> bool:
    return line.agent or AGENT.search(line.text) is not None


def find_missed_rendezvous(suspects: Suspects, scene: Scene) -> Suspects:
    """One host gave up waiting for the others, and another reached the store all the same: they waited apart.

    It goes by exceptions of agents alone, so its place matters only to `find_refusal`, which asks for other suspects.
    """
    agents = [exception for exception in scene.exceptions if exception.agent]
    gave_up = {host_or_source(each.line) for each in agents if each.kind.endswith("RendezvousTimeoutError")}
    others = [
        each
        for each in agents
        if each.kind.endswith(("RendezvousConnectionError", "RendezvousClosedError"))
        and host_or_source(each.line) not in gave_up
    ]
    if not gave_up or not others or len(agents) < len(scene.exceptions):
        return suspects
    line = others[0].line
    confidence: Confidence = "low"
    why = "both reached the store and did not meet: their rdzv ids or their --nnodes differ"
    # a rendezvous is reported as closed only to agents with the same id
    code = "nnodes-mismatch" if others[0].kind.endswith("RendezvousClosedError") else "rdzv-id-mismatch"
    if any("_create_tcp_store" in frame for frame in others[0].frames):
        code, confidence = "rdzv-port-blocked", "medium"
        why = "it could not connect to the store, where another host waited"
    return (*suspects, Suspect(code, ABSENT, line, None, scene.host_of(line), confidence, why))


def find_absent_peer(suspects: Suspects, scene: Scene) -> Suspects:
    """All ranks complain of a peer that has gone, but one, which ended without an error: that one is the peer.

    Only where no end is known: after the rules about ends, and before `drop_stuck_watchdog`, which takes one away.
    """
    complaining = {
        exception.line.rank
        for exception in scene.exceptions
        if not exception.agent and any(PEER_GONE.search(text) for text in exception.lines)
    }
    failed = {exit_.rank for exit_ in scene.exits if exit_.rank is not None and exit_.signal != 15}
    absent = [rank for rank in scene.ranks if rank not in complaining | failed]
    if not complaining or None in complaining or not absent or any(suspect.level >= ENDING for suspect in suspects):
        return suspects
    if all(_has_finished(rank, scene) for rank in absent):
        why = f"{name_ranks(absent)} had ended while others still waited"
        first = min(rank for rank in complaining if rank is not None)
        return map_code(suspects, "gloo-peer-lost", lambda suspect: _uneven(suspect, first, why, scene))
    if len(absent) > 1:
        return suspects
    rank = absent[0]
    why = f"only rank {rank} reports no lost peer: it ended, or left the group, without an error"
    return map_code(
        suspects,
        "gloo-peer-lost",
        lambda suspect: replace(suspect, rank=rank, host=scene.ranks[rank], why=why, confidence="medium"),
    )


def _has_finished(rank: int, scene: Scene) -> bool:
    return any(FINISHED.search(line.text) for line in lines_of_ranks(scene.lines, [rank])[-2:])


def _uneven(suspect: Suspect, rank: int, why: str, scene: Scene) -> Suspect:
    return replace(suspect, code="uneven-inputs", rank=rank, host=scene.ranks[rank], why=why, confidence="medium")
