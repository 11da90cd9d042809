"""Follow a run for a user: show its lines, and stop it on Ctrl-C. Starts nothing."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

from ..errors import Interrupted, OrchError, OutputError
from ..hosts import claims
from ..hosts.fleet import Fleet, fold_failures
from ..inventory import model
from ..inventory.advice import AboutRun, reference_of, reference_to
from ..inventory.model import Host
from ..output.console import Console, hush, wants_colour
from ..output.finding import SourceCode
from ..output.lines import Line, Mask
from ..output.pipeline import Pipeline, Stage
from ..output.terminal import one_line
from ..plan.plan import Plan, processes
from . import conclusion, desktop, ending, finishing, holding, local_code
from .bad_loss import BadLoss
from .follow import LogFilter, View
from .resume_command import Obstacle
from .revive import Reviver
from .silence import Silence

STOP_WINDOW = 10.0  # s for the stop request to reach all hosts when nobody reads the output any more


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
    finisher: finishing.Finisher,
    *,
    resume: str,
    is_requeued: bool = False,
    show_outputs: bool = True,
    tell_silence: bool = False,
) -> int:
    """Show the lines of a run until it ends, and return its exit code. Ctrl-C stops the run, a second Ctrl-C kills it,
    a third one exits without waiting. At the `finishing.finish_signals`, `finisher` saves a snapshot and stops it.

    `resume`: the command that starts a run which resumes from the outputs of this one. `is_requeued`: if it was stopped
    to be resumed, its job does that. `show_outputs`: print how to download them. `tell_silence`: print a
    note if all ranks cease to print.
    """
    about = AboutRun(reference_to(resolved.run_id, resolved.name), reference_of(resolved.inventory))
    hosts = [node.host for node in resolved.nodes]
    nodes = {host.name: node for node, host in enumerate(hosts)}
    view = _make_view(resolved, hosts, nodes, fleet, mask, console)
    began, started_at = time.monotonic(), time.time()
    notify = resolved.inventory.notify
    bell = Bell(notify.bell, console, resolved.name if notify.desktop else "")
    losses = BadLoss()
    stages: list[Stage] = [bell, losses, finishing.OutlivingTerminal(printer, finisher)]
    if tell_silence:
        count = sum(processes(resolved, node) for node in resolved.team)
        stages.insert(0, Silence(count, about, console.note, view.is_cut_off))

    settings = resolved.inventory.run
    targets = ending.KillTargets(runs=(resolved.run_id,), run_grace=settings.grace, lease=settings.lease)
    with (
        holding.hold(resolved, fleet),
        _stop_on_interrupt(targets, hosts, fleet, console),
        finisher.on_signals(),
    ):
        view.run(Pipeline(stages))
    bell.ring()
    took = f" after {time.monotonic() - began:.1f} s"
    find_source = local_code.finder(resolved.run_id, resolved.code.root if resolved.code else None, started_at)
    return conclusion.conclude(
        resolved.run_id,
        about,
        nodes,
        view,
        console,
        took,
        resume=resume,
        is_requeued=is_requeued,
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
) -> Obstacle:
    """Print the diagnosis. Returns what keeps the run from starting again."""
    from ..diagnosis import missing, rendering
    from . import damaged_snapshots, diagnose  # imported late: only a failed run needs them

    parts = {host: outcome.run for host, outcome in view.outcomes.items() if outcome.run}
    try:
        diagnosis = diagnose.gather_and_diagnose(run_id, parts, nodes, {host.name: host for host in hosts}, fleet, mask)
    except OrchError as error:
        console.warning(f"no diagnosis: {error}")
        return Obstacle()
    columns = min(rendering.WIDTH, shutil.get_terminal_size((rendering.WIDTH, 24)).columns)
    read_more = rendering.where_to_read_more(diagnosis, about)
    colour = wants_colour(sys.stderr, os.environ)
    diagnosis = rendering.hide_secrets(diagnosis, mask)
    for line in rendering.render_text(diagnosis, columns, read_more, colour=colour, find_source=find_source):
        sys.stderr.write(line + "\n")
    sys.stderr.flush()
    removal = damaged_snapshots.commands(diagnosis.damaged, about)
    return Obstacle(missing.advises_resume(diagnosis.findings), removal)


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
