"""Start a run: connect to all hosts, probe and check them, send the code, prepare the run on each, start it.

What can fail fails before anything is started, and a failure leaves nothing on any host. The commit point is the START
request to the head's guard: from then on the run belongs to its hosts, and ddp-orch may exit.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from ..answers.facts import Facts
from ..answers.operation import Arguments, Operation
from ..answers.prepare import ABORT, PREPARE_HEAD, PREPARE_NODE, START, Prepared
from ..checks import auto_env
from ..checks.auto_env import AutoEnv
from ..checks.findings import render_line
from ..errors import FindingsError, HeldError, Interrupted, OrchError, UnreachableError, UsageError
from ..hosts.fleet import Fleet, Results, combine, each, fold_failures
from ..hosts.session import Refused, Session
from ..inventory import advice
from ..inventory.advice import complete_commands
from ..inventory.model import Host
from ..inventory.selection import select
from ..output.console import all_but, fold, fold_messages, number_of, size
from ..output.finding import Finding
from ..output.lines import rfc3339
from ..plan import description, job_limit, losses, node_spec
from ..plan import plan as planning
from ..plan.entrypoint import TRAINER
from ..plan.plan import Code, Plan
from ..plan.snapshot import Snapshot
from ..ssh.config import by_hand
from . import bandwidths, ending, examination, inheritance, out_of_reach, pruning, rendezvous, stand_ins
from . import probe as preflight
from .out_of_reach import OutOfReach
from .probe import Probed
from .rendezvous import Rendezvous
from .timing import Timing

P = TypeVar("P", bound=Prepared)
LARGE = 10_000_000  # bytes of code; from this size on, the largest files are listed
HELD_CODES = frozenset(
    {"port-in-use", "gpu-memory-held-by-others"}
)  # somebody else holds what the run needs: exit code 5


@dataclass(frozen=True)
class LaunchContext:
    """What a launch needs besides the plan."""

    by: str
    """Who starts the run: user@machine of the controller."""
    secrets: Mapping[str, str]
    """Values by variable name."""
    run_key: bytes
    """32 random bytes that authenticate the connections between the run's nodes."""
    skip_check: bool
    """Findings of severity error do not prevent the start."""
    step: Callable[[str], None]
    """Shows progress to the user."""
    warn: Callable[[str], None]
    command_without: Callable[[Sequence[str]], str]
    """The command line that starts the same run without these hosts; "" if the launch did not come from one."""
    command_to_continue: Callable[[str], str]
    """The command line that continues the run with this id, on the hosts of this launch."""
    continues: str | None = None
    """The run whose files beside the code this one gets too."""
    is_measurement: bool = False
    """Nothing of other runs is deleted, whatever run.keep says."""
    job_ends_at: float | None = None
    """When the job that the hosts belong to ends, by the monotonic clock; None: never."""
    timing: Timing = field(default_factory=Timing)
    """How long each phase takes."""
    sources: dict[str, Host] = field(default_factory=dict)
    """By name: hosts that may be the `source` of the plan, if it does not use them."""


@dataclass(frozen=True)
class Earlier:
    """What the hosts know of the earlier runs of the name."""

    note: str | None
    """What the head notes of it when the first attempt begins."""
    had_outputs: Sequence[str]
    """The hosts whose output folder has files."""


def launch(
    plan: Plan,
    snapshot: Snapshot | None,
    fleet: Fleet,
    context: LaunchContext,
    probed: Results[Probed] | None = None,
) -> Plan:
    """Start the run and return the resolved plan. `probed`: the answer of `examine`, if it has just been called.

    Raises one error that lists the problems of all hosts, with the exit code of the most severe one.
    """
    if probed is None:
        context.timing.begin()
        probed = examination.examine(plan, snapshot, fleet, context.timing)
        plan, probed = stand_ins.take(
            plan, probed, snapshot, fleet, context.timing, context.step, skip_check=context.skip_check
        )
    plan = check(plan, probed, fleet, context)
    plan, probed = add_source(plan, probed, snapshot, fleet, context)
    lost = warn_of_lost_files(plan, probed, context)
    facts = {name: host.facts for name, host in probed.done.items()}
    auto = auto_env.choose({name: fact for name, fact in facts.items() if name != plan.witness})
    resolved = planning.resolve(plan, facts, {variable.variable: variable.value for variable in auto})
    planning.check_ranks(resolved)
    _show_start(resolved, auto, context)
    if context.job_ends_at is not None:
        resolved = job_limit.end_with_job(resolved, context.job_ends_at - time.monotonic())
    hosts = [node.host for node in resolved.nodes]
    if context.is_measurement:
        resolved = planning.keep_all(resolved)
    else:
        pruning.delete_due_runs(hosts, probed.done, fleet, resolved.inventory.path, context.step, context.warn)
    known = Earlier(str(lost) if lost else None, inheritance.hosts_with_outputs(facts))
    _prepare_and_start(resolved, facts, fleet, context, known)
    return resolved


def check(
    plan: Plan, probed: Results[Probed], fleet: Fleet, context: LaunchContext, ignore: Collection[str] = ()
) -> Plan:
    """The plan without the hosts that are unreachable and not needed. `ignore`: codes of findings.

    Raises one error that lists the problems of all hosts.
    """
    if probed.failed:
        plan = drop_unreachable(plan, probed, context)
    for line in fold_messages({host: str(key) for host, key in fleet.take_other_keys().items()}):
        context.warn(line)
    findings = preflight.check_hosts(plan, probed.done)
    _raise_or_warn(tuple(finding for finding in findings if finding.code not in ignore), plan, context)
    return plan


def add_source(
    plan: Plan,
    probed: Results[Probed],
    snapshot: Snapshot | None,
    fleet: Fleet,
    context: LaunchContext,
    ignore: Collection[str] = (),
) -> tuple[Plan, Results[Probed]]:
    """The plan with the host where rank 0 of an earlier run saved, if it has none and run.resume copies outputs.

    It may be one of `context.sources` on which the checks find no error; and its answer. `ignore`: codes of findings.
    """
    run = plan.inventory.run
    lost = out_of_reach.find([node.host.name for node in plan.nodes], probed.done)
    if lost is None or lost.host not in context.sources or run.resume == "none":
        return plan, probed
    larger = planning.with_source(plan, context.sources[lost.host])
    added = [node for node in larger.nodes if node.host.name == lost.host]
    answer = examination.examine(larger, snapshot, fleet, context.timing, added)
    findings = preflight.check_hosts(replace(larger, nodes=tuple(added)), answer.done)
    if answer.failed or any(each.severity == "error" and each.code not in ignore for each in findings):
        return plan, probed
    return larger, replace(probed, done={**probed.done, **answer.done})


def warn_of_lost_files(plan: Plan, probed: Results[Probed], context: LaunchContext) -> OutOfReach | None:
    """Warn if rank 0 of an earlier run saved on a host that this plan does not have."""
    lost = out_of_reach.find([node.host.name for node in plan.nodes], probed.done, plan.inventory.run.resume)
    if lost:
        copy = ", or add --set run.resume=head to copy it to the others"
        is_offered = lost.host in context.sources and plan.inventory.run.resume == "none"
        context.warn(f"{lost}. {lost.advice}{copy if is_offered else ''}")
    return lost


def _show_start(resolved: Plan, auto: Sequence[AutoEnv], context: LaunchContext) -> None:
    """Show the code, the hosts and the variables of the run."""
    if resolved.code is not None and resolved.code.files and not all(node.host.workdir for node in resolved.nodes):
        _show_code(resolved.code, context)
    names = [node.host.name for node in (*resolved.team, *resolved.spares)]
    ranks = number_of(planning.world_size(resolved), "rank")
    spares = fold(node.host.name for node in resolved.spares)
    context.step(
        f"{number_of(len(names), 'host')} ready: {fold(names)}; {ranks}"
        + (f"; spare: {spares}" if spares else "")
        + (f"; {resolved.source} only gives them its files, and leaves then" if resolved.source else "")
        + (f"; witness: {resolved.witness}" if resolved.witness else "")
        + f" ({context.timing.summarize('connect', 'check', 'send')})"
    )
    auto = [choice for choice in auto if not all(choice.variable in node.env for node in resolved.nodes)]
    if auto:
        context.step("chosen: " + ", ".join(f"{choice.variable}={choice.value} ({choice.why})" for choice in auto))


def _show_code(code: Code, context: LaunchContext) -> None:
    folder = "the bundled trainer" if code.root == str(TRAINER.parent) else code.root
    line = f"code: {number_of(code.files, 'file')}, {size(code.size)}, of {folder}"
    if code.size >= LARGE:
        line += "; largest: " + ", ".join(f"{name} {size(count)}" for name, count in code.largest)
    if credentials := description.credentials_left_out(code):
        line += f"; {credentials}"
    context.step(line)
    if excluded := description.excluded(code):
        context.step(excluded)


def drop_unreachable(plan: Plan, probed: Results[Any], context: LaunchContext) -> Plan:
    """The plan without the hosts that are unreachable. Raises if spares and run.nnodes do not make up for them."""
    smaller = planning.without(plan, probed.failed)
    if smaller is None or not all(isinstance(error, UnreachableError) for error in probed.failed.values()):
        headline = f"{_count_unable(probed, plan)}{_blame_head(plan, probed)}"
        hint = advise_start_without(plan, probed, context)
        if hint and (lost := out_of_reach.find(probed.done, probed.done, plan.inventory.run.resume)):
            hint += f"\n  Then {lost}. {lost.advice}"
        raise _launch_error(probed, headline, plan, hint)
    for line in fold_failures(probed.failed):
        context.warn(f"starting without {line}")
    for warning in losses.warn_of_fewer(plan, smaller):
        context.warn(warning)
    return smaller


def _blame_head(plan: Plan, probed: Results[Any]) -> str:
    """If enough other hosts answer."""
    head = plan.nodes[0].host.name
    left = sum(node.host.name not in probed.failed for node in (*plan.team, *plan.spares))
    is_enough = head in probed.failed and left >= plan.min_nodes
    return f": {head} is the head, which no host replaces at a start" if is_enough else ""


def advise_start_without(plan: Plan, probed: Results[Any], context: LaunchContext, first: str = "") -> str:
    """How to start the run without the unreachable hosts; "" if the run needs them or a reachable host failed too.

    `first`: what to do before.
    """
    unreachable = [name for name, error in probed.failed.items() if isinstance(error, UnreachableError)]
    if len(unreachable) < len(probed.failed) or len(unreachable) == len(plan.nodes):
        return ""
    if plan.witness in unreachable:
        return f"to start without the witness, {first}add: --set run.witness=null --set run.head_lost=stop"
    head = plan.nodes[0].host.name
    for without in (unreachable, [head]) if head in unreachable else (unreachable,):  # spares replace all but the head
        try:
            selected = select(plan.inventory, all_but(without))
        except UsageError:  # run.nnodes asks for more hosts than are left
            continue
        left = sum(host.name not in unreachable for host in selected.hosts)
        nnodes = selected.run.nnodes
        if left >= (sum(host.in_team for host in selected.hosts) if nnodes == "auto" else nnodes[0]):
            command = context.command_without(without)
            hosts = fold(without) if without != unreachable else "that host" if len(without) == 1 else "those hosts"
            return f"to start without {hosts}, {first}run: {command}" if command else ""
    return ""


def _count_unable(results: Results[Any], plan: Plan) -> str:
    hosts = f"{len(results.failed)} of {len(plan.nodes)} hosts" if len(plan.nodes) > 1 else "the host"
    return f"{hosts} cannot take part; nothing was started"


def _launch_error(results: Results[Any], headline: str, plan: Plan, hint: str = "") -> OrchError:
    if {getattr(error, "code", "") for error in results.failed.values()} == {"held"}:
        headline = "nothing was started"  # the hosts are well; the message of each tells who holds what
    failures = [complete_commands(line, plan.inventory.path) for line in fold_failures(results.failed)]
    lines = [headline, *failures, *([hint] if hint else [])]
    return combine(results.failed.values(), "\n  ".join(lines))


def _raise_or_warn(findings: tuple[Finding, ...], plan: Plan, context: LaunchContext) -> None:
    """Raises FindingsError or HeldError if there are findings of severity error; warns of the others."""
    hosts = [node.host for node in plan.nodes]

    def render(finding: Finding) -> str:
        return complete_commands(by_hand(render_line(finding), hosts), plan.inventory.path)

    errors = [finding for finding in findings if finding.severity == "error"]
    for finding in findings:
        if finding.severity == "warning" or (finding.severity == "error" and context.skip_check):
            context.warn(render(finding))
    if errors and not context.skip_check:
        raise error_of(errors, "\n  ".join(["the run would fail; nothing was started", *map(render, errors)]))


def error_of(findings: Sequence[Finding], text: str) -> OrchError:
    """The error for these findings of severity error."""
    return HeldError(text) if any(finding.code in HELD_CODES for finding in findings) else FindingsError(text)


def _prepare_and_start(
    resolved: Plan, facts: Mapping[str, Facts], fleet: Fleet, context: LaunchContext, earlier: Earlier
) -> None:
    """Prepare the head, then the others, then start the run. If that fails, abort it wherever it was prepared."""
    head, *others = [node.host for node in resolved.nodes]
    numbers = {node.host.name: number for number, node in enumerate(resolved.nodes)}
    started_at = rfc3339(time.time())  # not of the command, which may have waited in a queue
    fastest_first = bandwidths.prefer(head, others)
    sessions: dict[str, Session] = {}  # a prepared guard obeys only the session that prepared it, and ends with it
    given_up = threading.Event()

    def prepare(host: Host, session: Session, operation: Operation[P], head_endpoints: Arguments | None) -> P:
        spec = node_spec.spec(resolved, numbers[host.name], facts, created_at=started_at, by=context.by)
        spec.update(continues=context.continues, note=earlier.note, had_outputs=earlier.had_outputs)
        private = node_spec.private(resolved, numbers[host.name], run_key=context.run_key, secrets=context.secrets)
        sessions[host.name] = session
        if given_up.is_set():
            raise UnreachableError(f"{host.name}: interrupted")
        if host.witness:  # it takes no part in the rendezvous
            head_endpoints = {**(head_endpoints or {}), "rdzv_port": None}
        question = {"spec": spec, "private": private, "head": head_endpoints, "prefer": fastest_first}
        with context.timing.measure("prepare", host.name):
            return session.request(operation, question)

    def abort(host: Host) -> str | None:
        """Returns who stopped the run on this host in the meantime."""
        session = sessions.get(host.name)
        if session is None or session.lost:
            return None
        return session.request(ABORT, {"run_id": resolved.run_id}).stopped_by

    try:
        head_results = fleet.each([head], lambda host, session: prepare(host, session, PREPARE_HEAD, None), "preparing")
        if head_results.failed:
            raise _launch_error(head_results, "the head cannot take part; nothing was started", resolved)
        answer = head_results.done[head.name]
        endpoints = {"addresses": answer.addresses, "rdzv_port": answer.rdzv_port, "link_port": answer.link_port}
        results = fleet.each(others, lambda host, session: prepare(host, session, PREPARE_NODE, endpoints), "preparing")
        if results.failed:
            raise _launch_error(results, _count_unable(results, resolved), resolved)
        _show_prepared({**head_results.done, **results.done}, resolved, context)
        meeting = rendezvous.choose(answer, results.done, resolved.witness)
        if len(others) > (resolved.witness is not None):
            context.step(rendezvous.describe(meeting, resolved, facts))
        if not fastest_first and (networks := rendezvous.indistinct_networks(meeting, facts[head.name])):
            names = ", ".join(networks)
            measure = advice.command("check", inventory=resolved.inventory.path)
            context.step(f"the hosts share several networks ({names}): `{measure}` measures which is fastest")
        _check_alive(sessions)
    except BaseException as error:
        given_up.set()
        aborted = each([head, *others], abort, fleet.parallel)
        stopped_by = next((name for name in aborted.done.values() if name), None)
        if stopped_by is not None and isinstance(error, OrchError):  # the error is a consequence of the stop
            raise Interrupted(f"run {resolved.run_id} was stopped by {stopped_by} before it started") from error
        raise
    _commit(sessions[head.name], meeting, resolved, fleet, context)


def _commit(head: Session, meeting: Rendezvous, resolved: Plan, fleet: Fleet, context: LaunchContext) -> None:
    """Tell the head to start: from then on the run belongs to its hosts."""
    start = {
        "master_addr": meeting.master_addr,
        "master_port": meeting.master_port,
        "link_addresses": list(meeting.link_addresses),
    }
    try:
        with context.timing.measure("start", "head"):
            head.request(START, {"run_id": resolved.run_id, "start": start})
        context.timing.started()
    except UnreachableError as error:
        # If the head got the request, the run starts. If not, the other guards end when the head does not connect.
        ps = advice.command("ps", inventory=resolved.inventory.path)
        raise UnreachableError(
            f"{error}; the run may have started: `{ps}` shows whether run {resolved.run_id} is running"
        ) from error
    except (Refused, KeyboardInterrupt) as error:
        # the head's guard may have started all the same; after that it obeys a kill, but no abort
        hosts = [node.host for node in resolved.nodes]
        ending.kill(fleet, hosts, ending.KillTargets(runs=(resolved.run_id,)), grace=0.0, by=context.by)
        if isinstance(error, Refused):
            raise combine([error], str(error)) from error
        raise


def _show_prepared(answers: Mapping[str, Prepared], resolved: Plan, context: LaunchContext) -> None:
    inventory = resolved.inventory.path
    neighbours: dict[str, list[str]] = {}
    for host, answer in answers.items():
        for run_id in answer.beside:
            neighbours.setdefault(run_id, []).append(host)
    # a run locks its GPUs, but not its CPUs
    for run_id, hosts in neighbours.items():
        kill = advice.command("kill", run_id, inventory=inventory)
        context.warn(f"{fold(hosts)}: run {run_id} is using the same CPUs; stop it with: {kill}")
    for line in inheritance.describe(answers, resolved, context.continues):
        context.step(line)
    for line in inheritance.warn(answers, resolved, context.command_to_continue):
        context.warn(line)


def _check_alive(sessions: Mapping[str, Session]) -> None:
    """Check every connection once more before the commit point: a host that is gone would not take part."""
    lost = [name for name, session in sessions.items() if session.lost]
    if lost:
        raise UnreachableError(f"{fold(lost)}: the connection was lost during the launch; nothing was started")
