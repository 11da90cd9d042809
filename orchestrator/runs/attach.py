"""Follow a run for a user: show its lines, stop it on Ctrl-C, print how it ended. Starts nothing."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

from ..answers.attach import StrayOutputs
from ..answers.runs import Part, Verdict
from ..answers.signaled import FINISH
from ..errors import Interrupted, OrchError, OutputError, RunFailed, RunStopped, UnreachableError
from ..hosts import claims
from ..hosts.fleet import Fleet, fold_failures
from ..inventory import model
from ..inventory.advice import AboutRun
from ..inventory.model import Host
from ..inventory.sources.schedulers import current_scheduler
from ..output.console import Console, fold, hush, wants_colour
from ..output.finding import SourceCode
from ..output.lines import Line, Mask
from ..output.pipeline import Pipeline, Stage
from ..output.terminal import one_line
from ..plan.plan import Plan, processes
from . import desktop, ending, holding, local_code, registry
from .bad_loss import BadLoss
from .follow import LogFilter, View
from .revive import Reviver
from .silence import Silence

FINISH_SIGNALS = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGXCPU, signal.SIGURG)
"""By which batch systems announce the end of a job. SIGURG is that of LSF's documentation (`bsub -wa URG`)."""
STOP_WINDOW = 10.0  # s for the stop request to reach all hosts when nobody reads the output any more
MAX_COMMAND = 60  # columns before the purpose of a command
MAX_COLUMNS = 1000  # where the output is no terminal
OUTCOMES = {
    "succeeded": 0,
    "failed": RunFailed.exit_code,
    "lost": UnreachableError.exit_code,
    "stopped": RunStopped.exit_code,
    "killed": Interrupted.exit_code,
}


class Bell(Stage):
    """Ring the terminal's bell, or show a message on the desktop, when the run restarts and when it ends.

    `enabled`: `notify.bell` of the inventory. `desktop`: the name of the run for the message; "": none.
    """

    def __init__(self, enabled: bool, console: Console, desktop: str = "") -> None:
        self._enabled = enabled
        self._console = console
        self._desktop = desktop
        self._attempt: int | None = None

    def push(self, lines: Sequence[Line], now: float) -> Sequence[Line]:
        # the first lines may be of a restart that happened before; only a later change of the attempt rings
        newest = max((line.attempt for line in lines), default=0)
        if self._attempt is not None and newest > self._attempt:
            self._alert(f"restarts: attempt {newest}")
        if lines:
            self._attempt = max(newest, self._attempt or 0)
        return lines

    def ring(self) -> None:
        """The run has ended."""
        self._alert("has ended")

    def _alert(self, what: str) -> None:
        if self._enabled:
            self._console.ring()
        if self._desktop:
            desktop.show(f"run {self._desktop} {what}")


def attend(
    resolved: Plan,
    fleet: Fleet,
    printer: Stage,
    mask: Mask,
    console: Console,
    *,
    resume: str,
    show_outputs: bool = True,
    tell_silence: bool = False,
) -> int:
    """Show the lines of a run until it ends, and return its exit code. Ctrl-C stops the run, a second Ctrl-C kills it,
    a third one exits without waiting. The `finish_signals` save a snapshot and stop it.

    `resume`: the command that starts a run which resumes from the outputs of this one. `show_outputs`: print how to
    download them. `tell_silence`: print a note if all ranks cease to print.
    """
    about = AboutRun(resolved.name, resolved.inventory.source or resolved.inventory.path)
    hosts = [node.host for node in resolved.nodes]
    nodes = {host.name: node for node, host in enumerate(hosts)}
    view = _make_view(resolved, hosts, nodes, fleet, mask, console)
    began, started_at = time.monotonic(), time.time()
    notify = resolved.inventory.notify
    bell = Bell(notify.bell, console, resolved.name if notify.desktop else "")
    losses = BadLoss()
    stages: list[Stage] = [bell, losses, printer]
    if tell_silence:
        count = sum(processes(resolved, node) for node in resolved.team)
        stages.insert(0, Silence(count, about, console.note, view.is_cut_off))

    settings = resolved.inventory.run
    targets = ending.KillTargets(runs=(resolved.run_id,), run_grace=settings.grace, lease=settings.lease)
    with (
        holding.hold(resolved, fleet),
        _stop_on_interrupt(targets, hosts, fleet, console),
        _finish_on_signal(resolved.run_id, hosts, fleet, console),
    ):
        view.run(Pipeline(stages))
    bell.ring()
    took = f" after {time.monotonic() - began:.1f} s"
    find_source = local_code.finder(resolved.run_id, resolved.code.root if resolved.code else None, started_at)
    return conclude(
        resolved.run_id,
        about,
        nodes,
        view,
        console,
        took,
        resume=resume,
        show_outputs=show_outputs,
        doubt=one_line(mask.hide(losses.describe())),
        explain=lambda: _diagnose(resolved.run_id, about, hosts, nodes, view, fleet, mask, console, find_source),
    )


def _make_view(
    resolved: Plan, hosts: Sequence[Host], nodes: Mapping[str, int], fleet: Fleet, mask: Mask, console: Console
) -> View:
    ranks = claims.ranks_of_plan(resolved)
    reviver = Reviver(resolved.run_id, nodes, hosts, fleet, console.note, console.warning, check=may_revive)
    return View(
        resolved.run_id,
        hosts,
        LogFilter(follow=True),
        fleet,
        console.warning,
        sys.stdout.isatty(),
        ranks,
        mask=mask,
        revive=reviver.revive,
        note=console.note,
        find_host=lambda name: model.find_new_host(resolved.inventory, name, os.environ),
    )


def may_revive(_: Host) -> None:
    """`up` may revive all hosts, over srun too: the other guards of the run end together with it as well."""


def _diagnose(
    run_id: str,
    about: AboutRun,
    hosts: Sequence[Host],
    nodes: Mapping[str, int],
    view: View,
    fleet: Fleet,
    mask: Mask,
    console: Console,
    find_source: Callable[[str], SourceCode | None],
) -> bool:
    """Print the diagnosis. Returns whether some hosts lack the snapshot that others resumed from."""
    from ..diagnosis import missing, rendering
    from . import diagnose  # imported late: only a failed run needs them

    parts = {host: outcome.run for host, outcome in view.outcomes.items() if outcome.run}
    try:
        diagnosis = diagnose.gather_and_diagnose(run_id, parts, nodes, {host.name: host for host in hosts}, fleet, mask)
    except OrchError as error:
        console.warning(f"no diagnosis: {error}")
        return False
    columns = min(rendering.WIDTH, shutil.get_terminal_size((rendering.WIDTH, 24)).columns)
    read_more = rendering.where_to_read_more(diagnosis, about)
    colour = wants_colour(sys.stderr, os.environ)
    diagnosis = rendering.hide_secrets(diagnosis, mask)
    for line in rendering.render_text(diagnosis, columns, read_more, colour=colour, find_source=find_source):
        sys.stderr.write(line + "\n")
    sys.stderr.flush()
    return missing.advises_resume(diagnosis.findings)


@contextlib.contextmanager
def _stop_on_interrupt(
    targets: ending.KillTargets, hosts: Sequence[Host], fleet: Fleet, console: Console
) -> Iterator[None]:
    requests: list[threading.Thread] = []
    left = threading.Event()

    def stop(grace: float | None, note: str) -> None:
        console.note(note)
        result = ending.kill(fleet, hosts, targets, grace=grace, by="Ctrl-C")
        if not left.is_set():  # afterwards the requests fail because ddp-orch closes its sessions
            for line in fold_failures(result.failed):
                console.warning(f"could not stop the run: {line}")

    def interrupt(*_: object) -> None:
        grace: float | None = None
        note = "stopping the run gracefully; Ctrl-C again kills it"
        if requests:
            signal.signal(signal.SIGINT, before)
            grace, note = 0.0, "killing the run; Ctrl-C again exits without waiting for it"
        # in a thread, because the view continues to show what the ranks print while they stop
        requests.append(threading.Thread(target=stop, args=(grace, note), daemon=True))
        requests[-1].start()

    before = signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    except (BrokenPipeError, OutputError):  # Ctrl-C also ended the `tee` of `ddp-orch up | tee`
        if not requests:
            raise
        hush(sys.stdout)
        requests[-1].join(STOP_WINDOW)
        raise Interrupted("the reader of the output has ended; the run was asked to stop") from None
    finally:
        left.set()
        signal.signal(signal.SIGINT, before)


def finish_signals(environment: Mapping[str, str]) -> tuple[signal.Signals, ...]:
    """The signals that save a snapshot and stop the run. Why SIGTERM is one of them only in a job: docs/adr/0015."""
    return (*FINISH_SIGNALS, signal.SIGTERM) if current_scheduler(environment) else FINISH_SIGNALS


@contextlib.contextmanager
def _finish_on_signal(run_id: str, hosts: Sequence[Host], fleet: Fleet, console: Console) -> Iterator[None]:
    """Save a snapshot and stop the run at a signal of a batch system."""
    requested = threading.Event()

    def finish(name: str) -> None:
        console.note(f"{name}: saving a snapshot, then stopping the run")
        results = fleet.each(
            hosts, lambda _, session: session.request(FINISH, {"run_id": run_id, "by": f"{name} to ddp-orch"})
        )
        if not all(answer.can_save for answer in results.done.values()):
            console.warning("the script does not handle run.snapshot_signal: the run stops without a snapshot")
        if not results.done:
            requested.clear()
            for line in fold_failures(results.failed):
                console.warning(f"could not stop the run: {line}")

    def on_signal(number: int, _: object) -> None:
        if not requested.is_set():
            requested.set()
            # in a thread, because the view continues to show what the ranks print
            threading.Thread(target=finish, args=(signal.Signals(number).name,), daemon=True).start()

    before = {number: signal.signal(number, on_signal) for number in finish_signals(os.environ)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def conclude(
    run_id: str,
    about: AboutRun,
    nodes: Mapping[str, int],
    view: View,
    console: Console,
    took: str = "",
    *,
    resume: str,
    show_outputs: bool = True,
    is_replaced: bool = False,
    doubt: str = "",
    explain: Callable[[], bool] = lambda: False,
    without_record: Collection[str] = (),
) -> int:
    """Print how the run ended and what to do next, and return the exit code for that.

    `nodes`: the node number of each host; `resume` and `show_outputs`: see `attend`; `is_replaced`: there is a newer
    run of this name; `doubt`: a warning after a success; `explain`: prints why it failed, and returns whether some
    hosts lack the snapshot of others. `without_record`: see `claims.verdict_of`.
    """
    for line in fold_failures(view.failed):
        console.warning(line)
    nodes = {**nodes, **_added(nodes, view)}
    parts = {host: part for host in nodes if host in view.outcomes and (part := view.outcomes[host].run)}
    verdict = claims.verdict_of(parts, nodes, without_record)
    if verdict is None:
        return _conclude_without_verdict(run_id, about, parts, nodes, console, resume, without_record)
    match verdict.state:
        case "succeeded":
            console.success(f"run {run_id} succeeded{took}")
            if doubt:
                console.warning(doubt)
        case "stopped":
            by = f" by {one_line(verdict.stopped_by)}" if verdict.stopped_by else ""
            console.note(f"run {run_id} was stopped{by}, to be resumed")
        case "killed":
            console.note(
                f"run {run_id} was stopped by {one_line(verdict.stopped_by or 'an unknown user')} (state: killed)"
            )
        case "lost":
            console.error(
                f"run {run_id} was lost: {_first_failure(verdict)}{advise_after_lost_head(verdict, parts, resume)}"
            )
        case _:
            console.error(f"run {run_id} failed: {_first_failure(verdict)}")
    stray = {host: files for host, outcome in view.outcomes.items() if (files := outcome.stray_outputs)}
    if stray:
        console.warning(_describe_stray_outputs(stray))
    if verdict.state in ("failed", "lost") and explain():
        resume = _with_snapshot_of_head(resume)
    if show_outputs:
        offered = "" if is_replaced or _starts_again(verdict) else resume
        _advise(about, verdict, parts.values(), console, has_stray=bool(stray), resume=offered)
    elif verdict.state in ("failed", "lost"):
        console.note(f"why: {about.command('diagnose')}")
    return OUTCOMES[verdict.state]


def _starts_again(verdict: Verdict) -> bool:
    """Whether the command that stopped the run starts the next one."""
    by = verdict.stopped_by or ""
    return by == registry.WATCH or by.endswith(registry.RESTART)


def _added(nodes: Mapping[str, int], view: View) -> dict[str, int]:
    """The hosts that were added to the run while it was followed. None can claim a number that another host has."""
    parts = {host: part for host in view.added if host in view.outcomes and (part := view.outcomes[host].run)}
    return {host: part.node for host, part in parts.items() if part.node not in nodes.values()}


def _conclude_without_verdict(
    run_id: str,
    about: AboutRun,
    parts: Mapping[str, Part],
    nodes: Mapping[str, int],
    console: Console,
    resume: str,
    without_record: Collection[str],
) -> int:
    if any(len(part.hosts) > len(nodes) for part in parts.values()):
        follow = about.command("logs", "-f")
        console.error(f"run {run_id}: it may go on on hosts that were added to it. To follow it there: {follow}")
        return UnreachableError.exit_code
    if claims.is_abandoned(parts, nodes):
        advice = f". To start a run that resumes from its outputs: {resume}" if resume else ""
        console.error(f"run {run_id} was lost: {claims.ABANDONED}{advice}")
        return OUTCOMES["lost"]
    silent = fold(set(nodes) - set(parts) - set(without_record))
    if without_record and not silent:
        console.error(f"run {run_id}: its final state is unknown: {fold(without_record)} has deleted its record of it")
        return UnreachableError.exit_code
    why = f"there is no answer from {silent}" if silent else "its head has not recorded it"
    console.error(f"run {run_id}: its final state is unknown, because {why}. Run `{about.of_all('ps', '--all')}` later")
    return UnreachableError.exit_code


def _advise(
    about: AboutRun, verdict: Verdict, parts: Collection[Part], console: Console, *, has_stray: bool, resume: str
) -> None:
    """The next commands, each on a line of its own so that it can be copied."""
    has_outputs = any(part.outputs for part in parts)
    commands = {about.command("report"): "curves, events and logs on one page"}
    if has_outputs or has_stray:
        shared = next((path for part in parts if (path := part.shared_output)), None)
        commands[about.command("fetch")] = f"download the outputs{f', in {shared} on its hosts' if shared else ''}"
    if has_outputs and resume and verdict.state != "succeeded":
        commands[resume] = "resume, after a fix" if verdict.state == "failed" else "resume"
    console.note("\n".join(["next:", *with_purposes(commands, shutil.get_terminal_size((MAX_COLUMNS, 24)).columns)]))


def with_purposes(commands: Mapping[str, str], columns: int) -> list[str]:
    """Each command with its purpose behind it, or above it where a line would be wider than the terminal."""
    width = min(MAX_COMMAND, max(map(len, commands)))
    lines = [f"  {command:{width}}  # {purpose}" for command, purpose in commands.items()]
    if max(map(len, lines)) <= columns:
        return lines
    return [line for command, purpose in commands.items() for line in (f"  # {purpose}", f"  {command}")]


def _describe_stray_outputs(files_by_host: Mapping[str, StrayOutputs]) -> str:
    """The warning about files that the script wrote to relative paths."""
    host, files = min(files_by_host.items(), key=lambda item: item[0])
    names = ", ".join(files.files) + (", ..." if files.count > len(files.files) else "")
    others = f" (and some on {fold(set(files_by_host) - {host})})" if len(files_by_host) > 1 else ""
    return (
        f"the script wrote files outside $DDP_ORCH_OUTPUT_DIR: {names} on {host}{others}\n  in {files.folder}\n"
        "  A new run of the same name will not find them. Write to $DDP_ORCH_OUTPUT_DIR; in an argument, {output} "
        "is that folder: --out '{output}'"
    )


def advise_after_lost_head(verdict: Verdict, parts: Mapping[str, Part], resume: str) -> str:
    """How to resume after the head was lost; "" if another host was."""
    first = verdict.first_failure
    if first is None or first.node != 0:
        return ""
    others = {name: part for name, part in parts.items() if name != first.host and not part.is_witness}
    with_outputs = [name for name, part in others.items() if part.outputs or part.shared_output]
    if with_outputs:
        return (
            f"\n  to resume from the newest snapshot of the others, remove {first.host} from the inventory or set "
            f"another `head` (such as {with_outputs[0]}), then run: {resume}"
        )
    if not any(part.resume != "none" for part in parts.values()):  # all ranks shall load it
        resume = _with_snapshot_of_head(resume)
    if first.host in parts:  # it is up again
        return f"\n  {first.host} answers again. To resume from its outputs, run: {resume}"
    of_team = {host for part in others.values() for host in part.hosts if host != part.witness}
    silent = sorted(of_team - set(others) - {first.host})
    what = f"{fold(silent)} did not answer. Of the others, only" if silent else "the others have no outputs, so only"
    return (
        f"\n  {what} {first.host} can have a snapshot. To resume from it when {first.host} is up again, run: {resume}"
    )


def _with_snapshot_of_head(resume: str) -> str:
    """The same command, with what makes all ranks load the snapshot of the head."""
    command, words, arguments = resume.partition(" -- ")
    return f"{command} --set run.resume=head{words}{arguments}"


def _first_failure(verdict: Verdict) -> str:
    first = verdict.first_failure
    if first is None:
        return "reason unknown"
    note = "" if first.stalled else " (first failure; later errors are likely consequences)"
    return f"{one_line(first.host)}: {one_line(first.what)}{note}"
