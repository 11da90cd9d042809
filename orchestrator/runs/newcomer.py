"""Add a host to a run that is running: probe it, send it the code, have the head count it, start its guard."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterator
from typing import BinaryIO

from ..answers.add import ADD, BLUEPRINT, CODE, Blueprint
from ..answers.drain import DRAIN
from ..answers.prepare import PREPARE_NODE, UNPACK
from ..answers.rejoin import TICKET
from ..checks.findings import render_line
from ..errors import FindingsError, OrchError, UsageError
from ..hosts.fleet import Fleet
from ..hosts.node_program import node_program
from ..hosts.session import Session
from ..inventory import advice
from ..inventory.model import Host, Inventory
from ..inventory.recovery import MIN_VOTERS, elects
from ..output.console import fold
from ..output.finding import Finding
from ..plan import newcomer
from ..plan import plan as planning
from ..ssh.config import by_hand
from . import probe as preflight
from .registry import Run

CHUNK = 256 * 1024  # bytes sent at a time
PROGRAM_NAME = 16  # characters of its hash in the name of the node program


def add(
    run: Run, host: Host, head: Host, inventory: Inventory, fleet: Fleet, *, by: str, warn: Callable[[str], None]
) -> None:
    """Raises OrchError; then the run continues without the host."""
    at_head = fleet.session(head)
    blueprint = at_head.request(BLUEPRINT, {"run_id": run.run_id})
    _check_run(run, host, inventory, blueprint)
    plan = newcomer.make(inventory, host, run.run_id, blueprint)
    here = fleet.session(host)
    probed = preflight.ask(here, preflight.question(plan, plan.nodes[0], None))
    findings = preflight.check_hosts(plan, {host.name: probed})
    errors = [_render(finding, host, inventory) for finding in findings if finding.severity == "error"]
    if errors:
        raise FindingsError("\n  ".join([f"{host.name} cannot take part; the run continues without it", *errors]))
    for finding in findings:
        if finding.severity == "warning":
            warn(_render(finding, host, inventory))
    if plan.code is not None and host.workdir is None and plan.code.sha256 not in here.codes:
        _copy_code(plan.code.sha256, at_head, here)
    resolved = planning.resolve(plan, {host.name: probed.facts})
    nproc = planning.processes(resolved, resolved.nodes[0])
    number = at_head.request(ADD, {"run_id": run.run_id, "host": host.name, "nproc": nproc, "by": by}).node
    if number is None:
        raise UsageError(f"run {run.run_id} takes no hosts now, as it is stopping, or has been told to")
    known = list(zip(run.hosts, run.nprocs, strict=True))[:number]
    if len(known) < number:
        raise UsageError(f"another host is being added to run {run.run_id}; try again")
    spec = newcomer.spec_of(plan, probed.facts, blueprint, number, known, run.head)
    private = at_head.request(TICKET, {"run_id": run.run_id}).private.as_arguments(may_notify=True)
    addresses, port = list(blueprint.start.link_addresses), blueprint.spec.contact.port
    endpoints = {"addresses": addresses, "link_port": port, "rdzv_port": None}
    try:
        here.request(PREPARE_NODE, {"spec": spec, "private": private, "head": endpoints, "prefer": None})
    except BaseException:
        with contextlib.suppress(OrchError):
            at_head.request(DRAIN, {"run_id": run.run_id, "node": number, "by": by})
        raise
    for before in (_describe_no_election(run, host, head, inventory, blueprint), _describe_lost_voters(run, inventory)):
        if before:
            warn(before)


def _render(finding: Finding, host: Host, inventory: Inventory) -> str:
    """As a line whose commands can be pasted."""
    return advice.complete_commands(by_hand(render_line(finding), [host]), inventory.path)


def _describe_lost_voters(run: Run, inventory: Inventory) -> str:
    """If hosts that are lost count for the majority that elects a head; "" otherwise."""
    if not any(part.epoch for part in run.parts.values()) or not run.missing_hosts:
        return ""
    lost = run.missing_hosts
    drains = "; ".join(advice.command("drain", run.run_id, name, inventory=inventory.path) for name in lost)
    return (
        f"{fold(lost)} gave no answer about run {run.run_id}, and still counts for the majority that elects a head. "
        f"If it is gone for good, take it out of the run: {drains}"
    )


def _describe_no_election(run: Run, host: Host, head: Host, inventory: Inventory, blueprint: Blueprint) -> str:
    """If the run has enough hosts for an election only now, which is too late for it; "" otherwise."""
    at_start = [node for node in blueprint.spec.nodes if not node.added]
    members = _members(run, host, inventory)
    if blueprint.spec.head_lost == "elect" or elects(inventory, len(at_start)) or not elects(inventory, len(members)):
        return ""
    restart = advice.command("restart", run.run_id, "--hosts", fold(members), inventory=inventory.path)
    return (
        f"run {run.run_id} elects no head, because it began on fewer than {MIN_VOTERS} hosts: if {head.name}, its "
        f"head, is lost, the run waits for it. To elect one, start the run again: {restart}"
    )


def _members(run: Run, host: Host, inventory: Inventory) -> list[str]:
    """The hosts on which the run could be started again with a new one. Others are away, or not in the inventory."""
    known = {machine.name for machine in inventory.machines} - set(run.missing_hosts)
    return [*(name for name in run.hosts if name in known and name not in run.left), host.name]


def _check_run(run: Run, host: Host, inventory: Inventory, blueprint: Blueprint) -> None:
    """Raises UsageError if no host can be added to the run."""
    if not blueprint.spec.program.endswith(node_program().sha256[:PROGRAM_NAME]):
        raise UsageError(f"run {run.run_id} was started by another version of ddp-orch; add hosts with that version")
    launcher = blueprint.spec.launcher
    restart = ("restart", run.run_id)
    if launcher.scope == "host":
        raise UsageError(
            f"run {run.run_id} uses run.launcher {launcher.name}, which is started once on each host. Such runs take "
            f"no host later. Start it again with {host.name}: "
            f"{advice.command(*restart, '--hosts', fold(_members(run, host, inventory)), inventory=inventory.path)}"
        )
    if blueprint.spec.contact.port is None:
        raise UsageError(
            f"run {run.run_id} began on one host, where nothing listens for others. Start it again with {host.name}: "
            f"{advice.command(*restart, inventory=inventory.path)}"
        )


def _copy_code(sha256: str, source: Session, target: Session) -> None:
    """Send the code of the run from one host to another, through this machine."""
    with tempfile.TemporaryFile() as file:

        def take(_: None, payload: bytes) -> None:
            file.write(payload)

        source.follow(CODE, {"sha256": sha256}, take)
        file.seek(0)
        target.request(UNPACK, {"sha256": sha256}, upload=_chunks(file))


def _chunks(file: BinaryIO) -> Iterator[bytes]:
    while chunk := file.read(CHUNK):
        yield chunk
