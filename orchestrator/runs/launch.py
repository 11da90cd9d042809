"""`up`, from the plan to the commit point: connect, probe, judge, ship, prepare everywhere, start.

Everything that can fail does so before anything is started; after a failure nothing is left on any host. The commit
point is the head's guard having its start: from there on the run belongs to its hosts, and this program may go.
"""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO, TypeVar

from ..answers.facts import Facts
from ..answers.files import Unfetched
from ..answers.operation import Arguments, Operation
from ..answers.prepare import ABORT, PREPARE_HEAD, PREPARE_NODE, START, UNPACK, Prepared
from ..checks import auto_env
from ..checks.findings import render_line
from ..errors import FindingsError, HeldError, Interrupted, OrchError, UnreachableError, UsageError
from ..hosts.fleet import Fleet, Results, each, folded, worst
from ..hosts.session import Refused, Session
from ..inventory import advice
from ..inventory.advice import completed
from ..inventory.model import Host, select
from ..output.console import all_but, fold, fold_messages, number_of, size
from ..output.finding import Finding
from ..plan import description, plan
from ..plan.entrypoint import TRAINER
from ..plan.plan import Code, Plan
from ..plan.snapshot import Snapshot
from ..ssh.config import by_hand
from ..ui.progress import Silent
from . import bandwidths, ending
from . import probe as preflight
from .probe import Probed

P = TypeVar("P", bound=Prepared)
LARGE = 10_000_000  # bytes of code from which on it is said what takes the most
CHUNK = 256 * 1024  # bytes sent at a time
MOST_NAMED = 3  # runs named of many
HELD = {"port-in-use", "gpu-memory-held-by-others"}  # findings that say: by somebody else


@dataclass(frozen=True)
class LaunchContext:
    """What a launch takes from outside besides the plan."""

    created_at: str
    """RFC 3339."""
    by: str
    """user@machine of the controller."""
    secrets: Mapping[str, str]
    run_key: bytes
    """32 random bytes: authenticate the run's link."""
    skip_check: bool
    step: Callable[[str], None]
    """Says a phase to the person."""
    warn: Callable[[str], None]
    command_without: Callable[[Sequence[str]], str]
    """What a person types to start the same without these hosts; "" where that is no command line."""


class PackedSnapshot:
    """A snapshot packed once, when the first host needs it, and read by all that do."""

    def __init__(self, snapshot: Snapshot | None) -> None:
        self._snapshot = snapshot
        self._lock = threading.Lock()
        self._file: BinaryIO | None = None

    def chunks(self) -> Iterator[bytes]:
        """The packed snapshot. Raises UsageError when it cannot be packed."""
        if self._snapshot is None:
            return
        with self._lock:
            if self._file is None:
                self._file = _packed(self._snapshot)
        offset = 0
        while chunk := os.pread(self._file.fileno(), CHUNK, offset):
            yield chunk
            offset += len(chunk)


def _packed(snapshot: Snapshot) -> BinaryIO:
    try:
        file = tempfile.TemporaryFile()  # noqa: SIM115  open for as long as hosts read it
        snapshot.write_tar(file)
        file.flush()
    except OSError as error:
        raise UsageError(f"the code cannot be packed in {tempfile.gettempdir()}: {error.strerror}") from error
    return file


def launch(wanted: Plan, snapshot: Snapshot | None, fleet: Fleet, around: LaunchContext) -> Plan:
    """Start the run. Returns the plan as it was resolved. Raises the worst of what was found, and says all of it."""
    hosts = [node.host for node in wanted.nodes]
    packed = PackedSnapshot(snapshot)
    script = preflight.script_of(snapshot)
    questions = {node.host.name: preflight.question(wanted, node, script) for node in wanted.nodes}
    fleet.prepare(hosts)

    def probe(host: Host, session: Session) -> Probed:
        return _probe(host, session, questions[host.name], wanted, packed, fleet.progress)

    probed = fleet.each(hosts, probe, "checking")
    if probed.failed:
        wanted = _without(wanted, probed, around)
        hosts = [node.host for node in wanted.nodes]
    for line in fold_messages({host: str(key) for host, key in fleet.take_other_keys().items()}):
        around.warn(line)
    facts = {name: one.facts for name, one in probed.done.items()}
    _judge(preflight.judge(wanted, probed.done), wanted, around)
    chosen = auto_env.choose(facts)
    resolved = plan.resolve(wanted, facts, {choice.variable: choice.value for choice in chosen})
    ranks = plan.world_size(resolved)
    if wanted.code is not None and not all(node.host.workdir for node in wanted.nodes):
        _say_code(wanted.code, around)
    spares = fold(node.host.name for node in resolved.nodes if node.host.spare)
    around.step(
        f"{number_of(len(hosts), 'host')} ready: {fold(host.name for host in hosts)}; {number_of(ranks, 'rank')}"
        + (f"; spare: {spares}" if spares else "")
    )
    if chosen:
        around.step("chosen: " + ", ".join(f"{choice.variable}={choice.value} ({choice.why})" for choice in chosen))
    _prepare_and_start(resolved, facts, fleet, around)
    return resolved


def _say_code(code: Code, around: LaunchContext) -> None:
    files = number_of(code.files, "file")
    of = "the bundled trainer" if code.root == str(TRAINER.parent) else code.root
    line = f"code: {files}, {size(code.size)}, of {of}"
    if code.size >= LARGE:
        line += "; largest: " + ", ".join(f"{name} {size(count)}" for name, count in code.largest)
    if credentials := description.credentials_left_out(code):
        line += f"; {credentials}"
    around.step(line)
    if excluded := description.excluded(code):
        around.step(excluded)


def _without(wanted: Plan, probed: Results[Any], around: LaunchContext) -> Plan:
    """The plan without the hosts that cannot be reached, where it has spares or may do with fewer."""
    left = plan.without(wanted, probed.failed)
    if left is None or not all(isinstance(error, UnreachableError) for error in probed.failed.values()):
        headline = _cannot_take_part(probed, wanted)
        _stop_on(probed, headline, wanted, _how_to_do_without(wanted, probed, around))
        raise AssertionError("_stop_on raises")
    for line in folded(probed.failed):
        around.warn(f"starting without {line}")
    return left


def _probe(
    host: Host, session: Session, question: Arguments, wanted: Plan, packed: PackedSnapshot, progress: Silent
) -> Probed:
    """One host's facts, and the code brought there: what is there already is not sent again."""
    probed = preflight.ask(session, question)
    if wanted.code is not None and not host.workdir and wanted.code.sha256 not in session.codes:
        progress.at(host.name, f"sending the code, {size(wanted.code.size)}")
        session.request(UNPACK, {"sha256": wanted.code.sha256}, upload=packed.chunks())
        session.codes.add(wanted.code.sha256)  # `--wait` comes here again
    return probed


def _how_to_do_without(wanted: Plan, probed: Results[Any], around: LaunchContext) -> str:
    """For hosts that are down. A host that refuses to take part has to be fixed first."""
    down = [name for name, error in probed.failed.items() if isinstance(error, UnreachableError)]
    if len(down) < len(probed.failed) or len(down) == len(wanted.nodes):
        return ""
    try:
        select(wanted.inventory, all_but(down))
    except UsageError:  # run.nnodes asks for more hosts than are left, or only spares are
        return ""
    command = around.command_without(down)
    return f"to start without: {command}" if command else ""


def _cannot_take_part(results: Results[Any], wanted: Plan) -> str:
    hosts = f"{len(results.failed)} of {len(wanted.nodes)} hosts" if len(wanted.nodes) > 1 else "the host"
    return f"{hosts} cannot take part; nothing was started"


def _stop_on(results: Results[Any], headline: str, wanted: Plan, hint: str = "") -> None:
    if results.failed:
        if {getattr(error, "code", "") for error in results.failed.values()} == {"held"}:
            headline = "nothing was started"  # the hosts are well
        said = [completed(line, wanted.inventory.path) for line in folded(results.failed)]
        lines = [headline, *said, *([hint] if hint else [])]
        raise worst(results.failed.values(), "\n  ".join(lines))


def _judge(findings: tuple[Finding, ...], wanted: Plan, around: LaunchContext) -> None:
    hosts = [node.host for node in wanted.nodes]

    def told(finding: Finding) -> str:
        return completed(by_hand(render_line(finding), hosts), wanted.inventory.path)

    errors = [finding for finding in findings if finding.severity == "error"]
    for finding in findings:
        if finding.severity == "warning" or (finding.severity == "error" and around.skip_check):
            around.warn(told(finding))
    if errors and not around.skip_check:
        kind = HeldError if any(finding.code in HELD for finding in errors) else FindingsError
        raise kind("\n  ".join(["the run would fail; nothing was started", *map(told, errors)]))


def _prepare_and_start(resolved: Plan, facts: Mapping[str, Facts], fleet: Fleet, around: LaunchContext) -> None:
    """Two phases. Whoever is not started in the end is told to forget it."""
    head, *others = [node.host for node in resolved.nodes]
    numbers = {node.host.name: number for number, node in enumerate(resolved.nodes)}
    measured = bandwidths.recall(head, others)
    prefer = bandwidths.fastest(measured) if measured else None
    sessions: dict[str, Session] = {}  # a prepared guard obeys the very session that prepared it, and ends with it

    def prepare(host: Host, session: Session, operation: Operation[P], of_head: Arguments | None) -> P:
        spec = plan.spec(resolved, numbers[host.name], facts, created_at=around.created_at, by=around.by)
        private = plan.private(resolved, numbers[host.name], run_key=around.run_key, secrets=around.secrets)
        sessions[host.name] = session
        asked = {"spec": spec, "private": private, "head": of_head, "prefer": prefer}
        return session.request(operation, asked)

    def abort(host: Host) -> str | None:
        """Who has stopped the run on this host in the meantime."""
        session = sessions.get(host.name)
        if session is None or session.lost:
            return None
        return session.request(ABORT, {"run_id": resolved.run_id}).stopped_by

    try:
        first = fleet.each([head], lambda host, session: prepare(host, session, PREPARE_HEAD, None), "preparing")
        _stop_on(first, "the head cannot take part; nothing was started", resolved)
        at_head = first.done[head.name]
        of_head = {"addresses": at_head.addresses, "rdzv_port": at_head.rdzv_port, "link_port": at_head.link_port}
        rest = fleet.each(others, lambda host, session: prepare(host, session, PREPARE_NODE, of_head), "preparing")
        _stop_on(rest, _cannot_take_part(rest, resolved), resolved)
        prepared: dict[str, Prepared] = {**first.done, **rest.done}
        _say_beside(prepared, resolved, around)
        _say_unfetched(prepared, resolved.inventory.path, around)
        if resumed := [host for host, answer in prepared.items() if answer.resumes]:
            around.step(
                f"{fold(resumed)}: the output folder of {resolved.name} already has files; this run resumes from them"
            )
        reachable = {name: answer.reachable for name, answer in rest.done.items()}
        master_addr = _common_address(at_head.addresses, reachable)
        start = {
            "master_addr": master_addr,
            "master_port": at_head.rdzv_port,
            # the head listens on these alone from now on: the others dialled the first that they reach
            "link_addresses": sorted({master_addr, *(addresses[0] for addresses in reachable.values())}),
        }
        interfaces = {name: str(answer.interface) for name, answer in rest.done.items()}
        _say_network(master_addr, at_head.rdzv_port, resolved, facts, interfaces, around)
        if not measured:
            _say_unmeasured(at_head.addresses, reachable, facts[head.name], around)
        _check_alive(sessions)
    except BaseException as error:
        aborted = each([head, *others], abort, fleet.parallel)
        by = next((by for by in aborted.done.values() if by), None)
        if by is not None and isinstance(error, OrchError):  # what went wrong is the consequence of that
            raise Interrupted(f"run {resolved.run_id} was stopped by {by} before it started") from error
        raise
    _commit(sessions[head.name], start, resolved, fleet, around)


def _commit(head: Session, start: Arguments, resolved: Plan, fleet: Fleet, around: LaunchContext) -> None:
    """Tell the head to start: from then on the run belongs to its hosts."""
    try:
        head.request(START, {"run_id": resolved.run_id, "start": start})
    except UnreachableError as error:
        # the head may have heard it: then the run goes on, and else the others give up when nobody calls them
        raise UnreachableError(
            f"{error}; the run may have started: "
            f"`{advice.command('ps', inventory=resolved.inventory.path)}` shows whether run {resolved.run_id} runs"
        ) from error
    except (Refused, KeyboardInterrupt) as error:
        # the head's guard may have begun all the same, and obeys no abort then
        hosts = [node.host for node in resolved.nodes]
        ending.kill(fleet, hosts, ending.KillTargets(runs=(resolved.run_id,)), grace=0.0, by=around.by)
        if isinstance(error, Refused):
            raise worst([error], str(error)) from error
        raise


def _say_beside(answers: Mapping[str, Prepared], resolved: Plan, around: LaunchContext) -> None:
    """GPUs are held by one run at a time; CPUs are not, and two runs on them are slow for no reason to be seen."""
    hosts_of: dict[str, list[str]] = {}
    for host, answer in answers.items():
        for run_id in answer.beside:
            hosts_of.setdefault(run_id, []).append(host)
    for run_id, hosts in hosts_of.items():
        kill = advice.command("kill", run_id, inventory=resolved.inventory.path)
        around.warn(f"{fold(hosts)}: run {run_id} is using the same CPUs; stop it with: {kill}")


def _say_unfetched(answers: Mapping[str, Prepared], inventory: str, around: LaunchContext) -> None:
    kept = {host: describe_unfetched(answer, inventory) for host, answer in answers.items()}
    for line in fold_messages({host: said for host, said in kept.items() if said}):
        around.warn(line)


def describe_unfetched(answer: Unfetched, inventory: str) -> str:
    """What a host says of runs that it only keeps because their files were not fetched; "" when there are none."""
    runs = answer.unfetched
    if not runs:
        return ""
    named = ", ".join(runs[-MOST_NAMED:]) + (f" and {len(runs) - MOST_NAMED} more" if len(runs) > MOST_NAMED else "")
    kept = "a run is" if len(runs) == 1 else f"{len(runs)} runs are"
    return (
        f"{kept} kept longer than run.keep allows ({size(answer.unfetched_bytes)}), because files written outside "
        f"$DDP_ORCH_OUTPUT_DIR were not fetched: {named}. "
        f"Fetch them with `{advice.command('fetch', runs[-1], inventory=inventory)}`, or delete them with "
        f"`{advice.command('prune', '--force', inventory=inventory)}`"
    )


def _say_network(
    master_addr: str,
    port: int,
    resolved: Plan,
    facts: Mapping[str, Facts],
    interfaces: dict[str, str],
    around: LaunchContext,
) -> None:
    """What was chosen by itself; an inventory's `interface` and a user's own variables win."""
    if len(resolved.nodes) == 1:
        return
    head = resolved.nodes[0].host.name
    of_head = [one.name for one in facts[head].interfaces if one.address == master_addr]
    chosen = {head: of_head[0] if of_head else "?", **interfaces}
    for node in resolved.nodes:
        if node.host.interface != "auto":
            chosen[node.host.name] = node.host.interface
    by_name: dict[str, list[str]] = {}
    for host, interface in chosen.items():
        by_name.setdefault(interface, []).append(host)
    told = "; ".join(f"{interface} on {fold(hosts)}" for interface, hosts in by_name.items())
    around.step(f"rendezvous at {master_addr} port {port}; interface {told}")


def _say_unmeasured(
    addresses: Sequence[str],
    reachable: Mapping[str, Sequence[str]],
    of_head: Facts,
    around: LaunchContext,
) -> None:
    """Where the speeds of the links do not tell the networks apart, only a measurement does."""
    shared = [address for address in addresses if all(address in one for one in reachable.values())]
    links = {one.address: one for one in of_head.interfaces}
    known = [links[address] for address in shared if address in links]
    if reachable and len({one.name for one in known}) > 1 and known[0].speed <= known[1].speed:
        names = ", ".join(dict.fromkeys(one.name for one in known))
        around.step(f"the hosts share several networks ({names}): `ddp-orch check` measures which is the fastest")


def _check_alive(sessions: Mapping[str, Session]) -> None:
    """The last look before the commit point: a host that has gone since it was prepared will not take part."""
    lost = [name for name, session in sessions.items() if session.lost]
    if lost:
        raise UnreachableError(f"{fold(lost)}: the connection was lost during the launch; nothing was started")


def _common_address(candidates: Sequence[str], reachable: Mapping[str, Sequence[str]]) -> str:
    """The first of the head's addresses that all other nodes reach."""
    for address in candidates:
        if all(address in addresses for addresses in reachable.values()):
            return address
    seen = fold_messages({name: f"reaches {', '.join(addresses)}" for name, addresses in reachable.items()})
    raise FindingsError(
        "\n  ".join(["no address of the head is reached by all hosts; give cluster_address for it", *seen])
    )
