"""Watch a run for a person: show its lines, turn Ctrl-C into a stop, say how it ended. Starts nothing."""

from __future__ import annotations

import contextlib
import shutil
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence

from ..answers.attach import StrayOutputs
from ..answers.runs import Part, Verdict
from ..errors import Interrupted, OrchError, RunFailed, UnreachableError
from ..hosts import claims
from ..hosts.fleet import Fleet, folded
from ..inventory.advice import AboutRun
from ..inventory.model import Host
from ..output.console import Console, fold, hush
from ..output.lines import Line, Mask
from ..output.pipeline import Pipeline, Stage
from ..output.terminal import one_line
from ..plan.plan import Plan
from . import ending
from .follow import LogFilter, View

STOP_WINDOW = 10.0  # s for all hosts to hear that the run is to stop, when nobody waits for its end
OUTCOMES = {
    "succeeded": 0,
    "failed": RunFailed.exit_code,
    "lost": UnreachableError.exit_code,
    "killed": Interrupted.exit_code,
}


class Bell(Stage):
    """Rings when the run is started again, and when it has ended. `wanted`: inventory `notify.bell`."""

    def __init__(self, wanted: bool, console: Console) -> None:
        self._ring = console.ring if wanted else lambda: None
        self._attempt: int | None = None

    def push(self, lines: Sequence[Line], now: float) -> Sequence[Line]:
        """The first lines do not ring: what they show has been so before."""
        newest = max((line.attempt for line in lines), default=0)
        if self._attempt is not None and newest > self._attempt:
            self._ring()
        if lines:
            self._attempt = max(newest, self._attempt or 0)
        return lines

    def over(self) -> None:
        self._ring()


def attend(
    resolved: Plan,
    fleet: Fleet,
    printer: Stage,
    mask: Mask,
    console: Console,
    *,
    resume: str,
    tell_outputs: bool = True,
) -> int:
    """Attached `up`: show the lines; Ctrl-C stops the run, a second one kills it, a third one only leaves.

    `resume`: the command that starts a run which resumes from the outputs of this one.
    """
    about = AboutRun(resolved.name, resolved.inventory.path)
    hosts = [node.host for node in resolved.nodes]
    nodes = {host.name: node for node, host in enumerate(hosts)}
    ranks = claims.ranks_of_plan(resolved)
    choice = LogFilter(follow=True)
    view = View(resolved.run_id, hosts, choice, fleet, console.warning, sys.stdout.isatty(), ranks, mask=mask)
    began = time.monotonic()
    bell = Bell(resolved.inventory.notify.bell, console)

    targets = ending.KillTargets(runs=(resolved.run_id,), run_grace=resolved.inventory.run.grace)
    with _stopping_on_interrupt(targets, hosts, fleet, console):
        view.run(Pipeline((bell, printer)))
    bell.over()
    took = f" after {time.monotonic() - began:.1f} s"
    code = conclude(resolved.run_id, about, nodes, view, console, took, resume=resume, tell_outputs=tell_outputs)
    if code in (RunFailed.exit_code, OUTCOMES["lost"]):
        _diagnose(resolved.run_id, about, hosts, nodes, view, fleet, mask, console)
    return code


def _diagnose(
    run_id: str,
    about: AboutRun,
    hosts: Sequence[Host],
    nodes: Mapping[str, int],
    view: View,
    fleet: Fleet,
    mask: Mask,
    console: Console,
) -> None:
    from ..diagnosis import rendering
    from . import diagnose  # only a failed run needs them

    parts = {host: outcome.run for host, outcome in view.outcomes.items() if outcome.run}
    try:
        diagnosis = diagnose.gather_and_diagnose(run_id, parts, nodes, {host.name: host for host in hosts}, fleet, mask)
    except OrchError as error:
        console.warning(f"no diagnosis: {error}")
        return
    columns = min(rendering.WIDTH, shutil.get_terminal_size((rendering.WIDTH, 24)).columns)
    read_more = rendering.where_to_read_more(diagnosis, about)
    for line in rendering.render_text(rendering.hide_secrets(diagnosis, mask), columns, read_more):
        sys.stderr.write(line + "\n")
    sys.stderr.flush()


@contextlib.contextmanager
def _stopping_on_interrupt(
    targets: ending.KillTargets, hosts: Sequence[Host], fleet: Fleet, console: Console
) -> Iterator[None]:
    asked: list[threading.Thread] = []
    over = threading.Event()

    def stop(grace: float | None, note: str) -> None:
        console.note(note)
        result = ending.kill(fleet, hosts, targets, grace=grace, by="Ctrl-C")
        if not over.is_set():  # else it is we who have closed the sessions
            for line in folded(result.failed):
                console.warning(f"could not stop the run: {line}")

    def interrupted(*_: object) -> None:
        grace: float | None = None
        note = "stopping the run gracefully; Ctrl-C again kills it"
        if asked:
            signal.signal(signal.SIGINT, before)
            grace, note = 0.0, "killing the run; Ctrl-C again leaves without waiting for it"
        # a thread of its own: the view goes on showing what the ranks say while they are being stopped
        asked.append(threading.Thread(target=stop, args=(grace, note), daemon=True))
        asked[-1].start()

    before = signal.signal(signal.SIGINT, interrupted)
    try:
        yield
    except BrokenPipeError:  # Ctrl-C has ended a `| tee` too
        if not asked:
            raise
        hush(sys.stdout)
        asked[-1].join(STOP_WINDOW)
        raise Interrupted("nobody reads the output any more; the run has been told to stop") from None
    finally:
        over.set()
        signal.signal(signal.SIGINT, before)


def conclude(
    run_id: str,
    about: AboutRun,
    nodes: Mapping[str, int],
    view: View,
    console: Console,
    took: str = "",
    *,
    resume: str,
    tell_outputs: bool = True,
) -> int:
    """Say how the run ended; its exit code is the run's outcome. `nodes`: the node that each host is; `resume`: see
    `attend`."""
    for line in folded(view.failed):
        console.warning(line)
    of_run = {host: part for host in nodes if host in view.outcomes and (part := view.outcomes[host].run)}
    parts = list(of_run.values())
    verdict = claims.verdict_of(of_run, nodes)
    if verdict is None:
        console.error(
            f"run {run_id}: final state unknown, no host could be reached; see `{about.of_all('ps', '--all')}`"
        )
        return UnreachableError.exit_code
    match verdict.state:
        case "succeeded":
            console.note(f"run {run_id} succeeded{took}")
        case "killed":
            console.note(f"run {run_id} was stopped by {one_line(verdict.stopped_by or 'somebody')}")
        case "lost":
            console.error(f"run {run_id} was lost: {_first_failure(verdict)}{_without_head(verdict, parts[0], resume)}")
        case _:
            console.error(f"run {run_id} failed: {_first_failure(verdict)}")
    stray = {host: found for host, outcome in view.outcomes.items() if (found := outcome.stray_outputs)}
    if stray:
        console.warning(_stray_outputs(stray))
    if tell_outputs and (stray or any(part.outputs for part in parts)):
        resumes = verdict.state != "succeeded" and any(part.outputs for part in parts)
        again = f"; resume with: {resume}" if resumes else ""
        shared = next((path for part in parts if (path := part.shared_output)), None)
        place = f"in {shared} on its hosts" if shared else "on its hosts"
        console.note(f"outputs are {place}; download them with: {about.command('fetch')}{again}")
    return OUTCOMES[verdict.state]


def _stray_outputs(having: Mapping[str, StrayOutputs]) -> str:
    """What scripts write to relative paths: no later run finds it there."""
    host, found = min(having.items(), key=lambda item: item[0])
    names = ", ".join(found.files) + (", ..." if found.count > len(found.files) else "")
    others = f", and on {fold(set(having) - {host})}" if len(having) > 1 else ""
    return (
        f"the script wrote files outside $DDP_ORCH_OUTPUT_DIR: {names} on {host}{others}\n  in {found.folder}\n"
        "  A new run of the same name will not find them there. Use {output} in an argument for that folder"
    )


def _without_head(verdict: Verdict, part: Part, resume: str) -> str:
    """How to resume when the head was lost: a person chooses another one."""
    if verdict.first_failure is None or verdict.first_failure.node != 0:
        return ""
    return (
        f"\n  to resume from the newest snapshot, remove {part.hosts[0]} from the inventory or set another `head` "
        f"(such as {part.host}), then run: {resume}"
    )


def _first_failure(verdict: Verdict) -> str:
    first = verdict.first_failure
    if first is None:
        return "reason unknown"
    last = "" if first.stalled else " (first failure; later errors are likely consequences)"
    return f"{one_line(first.host)}: {one_line(first.what)}{last}"
