"""Ask hosts for their facts, and check them: the first step of `up` and `check`. The rules are in checks/."""

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
from ..inventory.container import as_question
from ..inventory.model import Keep, Notify
from ..output.finding import Finding
from ..plan.plan import Node, Plan
from ..plan.snapshot import Snapshot, where_sent
from . import unsent_modules

MAX_SOURCE = 1 << 20  # bytes of a script that is sent to be compiled


def script_of(snapshot: Snapshot | None) -> Arguments | None:
    """The script of a snapshot as `probe` needs it: its text, and the names of the modules next to it."""
    if snapshot is None:
        return None
    if snapshot.module:
        return {"path": f"-m {snapshot.module}", "source": f"import {snapshot.module.partition('.')[0]}\n", "local": []}
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
        return None  # sending the code reports unreadable files; python reads files in other encodings by itself
    return {"path": snapshot.script, "source": source, "local": sorted(local)}


def question(plan: Plan, node: Node, script: Arguments | None, *, keep: Keep | None = None) -> Arguments:
    """The arguments of `probe` for one host. `keep`: which finished runs the host is not to delete."""
    host = node.host
    if host.workdir:
        *_, name = node.command[:3]
        script = None if name in ("-m", "-c") else {"path": name, "source": None, "local": []}
    if node.command[2] == "-c" and script is not None and not str(script["path"]).endswith(".py"):
        script = None  # the first file of a program's words need not be Python
    port = "auto" if host.witness else plan.inventory.run.rdzv.port
    if host.witness:
        script = None
    if script is not None and plan.code is not None and not host.workdir:
        folders = unsent_modules.search_path(plan.code, node.env.get("PYTHONPATH", ""))
        script = {**script, "local": sorted({*script["local"], *folders})}
    return {
        "setup": list(host.setup),
        "python": host.python,
        "env": {name: node.env[name] for name in ("PYTHONPATH", "LD_LIBRARY_PATH", "PATH") if name in node.env},
        "workdir": host.workdir,
        "script": script,
        "container": as_question(host.container),
        "gpus": "none" if host.gpus == "none" else "auto",
        "ports": [] if port == "auto" else [port],
        "paths": []
        if host.witness
        else sorted({*hosts.path_arguments(plan), *filter(None, [plan.inventory.run.output])}),
        "notify": _notify(plan.inventory.notify) if node is plan.nodes[0] else None,
        "autostart": None if plan.inventory.run.autostart == "none" else plan.inventory.run.autostart,
        "keep": keep.on_hosts() if keep else None,
        "names": [],
        "run_name": None if plan.inventory.run.output else plan.name,
        # torch looks up every peer; whether the name server answers at all shows with one of them
        "addresses": [address for address in _addresses(plan.nodes[0]) if node is not plan.nodes[0]],
    }


def _notify(notify: Notify) -> Arguments | None:
    """What the head checks for notifications. The path of a webhook may be a secret, so it is not sent."""
    url = urlsplit(notify.webhook) if notify.webhook else None
    webhook = None
    if url is not None and url.hostname:
        port = url.port or {"http": 80, "https": 443}[url.scheme]
        webhook = {"scheme": url.scheme, "host": url.hostname, "port": port}
    mail = _mail_server(notify.mail) if notify.mail else None
    program = _program(notify.command) if notify.command else None
    return {"webhook": webhook, "mail": mail, "program": program} if webhook or mail or program else None


def _mail_server(address: str) -> Arguments:
    """Without the password. No host: mail is sent by a program."""
    url = urlsplit(address)
    ports = {"smtp": 587 if url.username else 25, "smtps": 465}
    return {"host": url.hostname or "", "port": url.port or ports.get(url.scheme, 0)}


def _program(command: str) -> str | None:
    """The program that a command line starts; None if only a shell can tell."""
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
    """A host's answers before a run."""

    facts: Facts
    hello: Hello
    clock_ahead: tuple[float, float]
    """The least and the most seconds by which its clock may be ahead of the controller's."""


def ask(session: Session, question: Arguments) -> Probed:
    """Ask a host for its facts."""
    asked_at = time.time()
    facts = session.request(PROBE, question)
    answered_at = time.time()
    return Probed(facts, session.hello, (facts.clock - answered_at, facts.clock - asked_at))


def check_hosts(plan: Plan, probed: Mapping[str, Probed]) -> tuple[Finding, ...]:
    """The findings about the hosts that answered, errors first."""
    facts = {name: host.facts for name, host in probed.items()}
    return hosts.check_hosts(
        plan,
        facts,
        {name: host.hello for name, host in probed.items()},
        {name: host.clock_ahead for name, host in probed.items()},
        unsent_modules.explain(plan, facts),
        _paths_in_code(plan),
    )


def _paths_in_code(plan: Plan) -> dict[str, str]:
    """The absolute paths of this machine among the arguments that are in the code, and where ranks find them."""
    if plan.code is None or not plan.code.root:
        return {}
    folder = Path(plan.code.root) / plan.code.cwd
    found = {path: where_sent(folder, path) for path in hosts.path_arguments(plan)}
    return {path: relative for path, relative in found.items() if relative is not None}
