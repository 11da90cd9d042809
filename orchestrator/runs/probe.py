"""Ask hosts for their facts, and have them judged: what `up` and `check` do first. The rules are in checks/."""

from __future__ import annotations

import ipaddress
import re
import shlex
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from ..answers.facts import PROBE, Facts
from ..answers.hello import Hello
from ..answers.operation import Arguments
from ..checks import hosts
from ..hosts.session import Session
from ..inventory.model import Notify
from ..output.finding import Finding
from ..plan.plan import Node, Plan
from ..plan.snapshot import Snapshot

MAX_SOURCE = 1 << 20  # bytes of a script that is sent to be compiled


def script_of(snapshot: Snapshot | None) -> Arguments | None:
    """The script of a snapshot, as `probe` wants it: its text, and the names that are imported from beside it."""
    if snapshot is None:
        return None
    path = snapshot.root / snapshot.script
    folder = Path(snapshot.script).parent
    local = set()
    for entry in snapshot.files:
        for base in {folder, Path(snapshot.workdir)}:
            if base == Path() or entry.path.startswith(f"{base}/"):
                local.add(Path(entry.path).relative_to(base).parts[0].partition(".")[0])
    try:
        source = path.read_bytes()[:MAX_SOURCE].decode()
    except (OSError, UnicodeDecodeError):
        return None  # sending it will tell, or a declared encoding: python reads that by itself
    return {"path": snapshot.script, "source": source, "local": sorted(local)}


def question(plan: Plan, node: Node, script: Arguments | None) -> Arguments:
    """The arguments of `probe` for one host."""
    host = node.host
    if host.workdir:
        *_, name = node.command[:3]
        script = None if name == "-m" else {"path": name, "source": None, "local": []}
    port = plan.inventory.run.rdzv.port
    return {
        "setup": list(host.setup),
        "python": host.python,
        "env": {name: node.env[name] for name in ("PYTHONPATH", "LD_LIBRARY_PATH", "PATH") if name in node.env},
        "workdir": host.workdir,
        "script": script,
        "gpus": "none" if host.gpus == "none" else "auto",
        "ports": [] if port == "auto" else [port],
        "paths": sorted({*hosts.path_arguments(plan), *filter(None, [plan.inventory.run.output])}),
        "notify": _notify(plan.inventory.notify) if node is plan.nodes[0] else None,
        "names": [],
        # of one peer the reverse look-up: torch makes one for each, and what matters is whether it is answered
        "addresses": [address for address in _addresses(plan.nodes[0]) if node is not plan.nodes[0]],
    }


def _notify(notify: Notify) -> Arguments | None:
    """What the head is to look for. The path of a webhook may be a secret, and stays here."""
    place = urlsplit(notify.webhook) if notify.webhook else None
    webhook = None
    if place is not None and place.hostname:
        port = place.port or {"http": 80, "https": 443}[place.scheme]
        webhook = {"scheme": place.scheme, "host": place.hostname, "port": port}
    program = _program(notify.command) if notify.command else None
    return {"webhook": webhook, "program": program} if webhook or program else None


def _program(command: str) -> str | None:
    """What a shell would run first; None where that takes a shell to know."""
    try:
        words = shlex.split(command)
    except ValueError:
        return None
    word = next((word for word in words if not re.match(r"[A-Za-z_][A-Za-z0-9_]*=", word)), "")
    return word if re.fullmatch(r"[A-Za-z0-9_./~+][A-Za-z0-9_./~+@:,-]*", word) else None


def _addresses(head: Node) -> list[str]:
    address = head.host.cluster_address or head.host.address
    try:
        return [str(ipaddress.ip_address(address))]
    except ValueError:
        return []


@dataclass(frozen=True)
class Probed:
    """What is known of a host before a run."""

    facts: Facts
    hello: Hello
    clock_ahead: tuple[float, float]
    """Seconds: the least and the most by which its clock is ahead of ours."""


def ask(session: Session, question: Arguments) -> Probed:
    """A host's facts."""
    asked = time.time()
    facts = session.request(PROBE, question)
    answered = time.time()
    return Probed(facts, session.hello, (facts.clock - answered, facts.clock - asked))


def judge(plan: Plan, probed: Mapping[str, Probed]) -> tuple[Finding, ...]:
    """What would break the run, by the facts of the hosts that were reached."""
    return hosts.judge(
        plan,
        {name: host.facts for name, host in probed.items()},
        {name: host.hello for name, host in probed.items()},
        {name: host.clock_ahead for name, host in probed.items()},
    )
