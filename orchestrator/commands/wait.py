"""`wait`: wait until a run has ended, or until its server answers."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from ..answers.recorded import RECORD
from ..errors import Interrupted, TimedOut, UsageError
from ..hosts.fleet import Fleet
from ..inventory import advice
from ..inventory.model import Host, Inventory
from ..output.console import Console, fold
from ..output.lines import Line, parse_duration, presentable
from ..output.pipeline import Sink
from ..runs import choice, conclusion, registry, waiting
from ..runs.follow import LogFilter
from ..runs.status_line import READY
from .context import command_to_resume, find_run_early, load_inventory_of_run, make_mask, open_fleet, stderr_console
from .logs import make_view

NEWS = re.compile(
    r"ddp-orch: (attempt (?!1 )\d+ on |waiting for |no majority of the hosts |the head \S+ was lost|"
    r"a restart follows|restart \d+ of \d+ follows)"
)
"""Lines of the hosts that tell somebody who waits what the run is doing."""
TOLD_ONCE = 30.0  # s in which several hosts may say the same
LOOK_AT_QUEUE = 2.0  # s between two looks at a run that has not started


class _Ready(Exception):
    """The server of a run answers; the text is the line that says so."""


class _Late(Exception):
    """The run has not ended in time."""


def wait(run_name: str | None, inventory_path: str | None, *, ready: bool, timeout: str | None) -> int:
    """Wait until a run has ended, and return its exit code. `ready`: until its server answers (0), or it has ended.

    Before that, wait until a queued run has started. Raises TimedOut after `timeout`, such as 90s.
    """
    console = stderr_console()
    deadline = None if timeout is None else time.monotonic() + parse_duration(timeout)
    inventory = load_inventory_of_run(inventory_path, None, run_name)
    with open_fleet(inventory, short_timeout=True) as fleet:
        run_name = _wait_for_turn(fleet, inventory, run_name, deadline, console)
        lookup = find_run_early(fleet, inventory, run_name, console, choice.is_known)
        run = lookup.run
        about = advice.about(run, lookup.listing.runs, inventory.path)
        late = [name for name in lookup.listing.late if name in run.missing_hosts]
        hosts = [host for host in inventory.machines if host.name in run.parts or host.name in late]
        mask = make_mask(inventory, run, console)
        # the agents print few lines: the hosts send next to nothing
        log_filter = LogFilter(follow=True, tail=0, stream="agent")
        if ready:
            _check_ready(fleet, run, hosts)
            log_filter = LogFilter(follow=True, stream="stdout", grep=READY.pattern)

        told: dict[str, float] = {}

        def look(lines: Sequence[Line]) -> None:
            for line in lines:
                if ready and line.attempt >= run.attempt:
                    raise _Ready(line.text)
                is_news = not ready and NEWS.match(line.text) is not None
                if is_news and line.at - told.get(line.text, 0.0) > TOLD_ONCE:
                    told[line.text] = line.at
                    console.note(f"{line.host}: {presentable(line.text.removeprefix('ddp-orch: '), False, mask)}")

        view = make_view(run, hosts, late, log_filter, inventory, fleet, mask, console)
        try:
            if run.unfinished:
                console.note(f"waiting for {'the server' if ready else 'the end'} of run {run.run_id}")
                waiting.note(run, console, about)
            with _limit(deadline):
                view.run(Sink(look))
        except _Late:
            raise TimedOut(f"run {run.run_id} has not ended within {_seconds(timeout)}; it continues") from None
        except _Ready as found:
            console.note(str(found).removeprefix("ddp-orch: "))
            return 0
        except KeyboardInterrupt:
            console.note(f"the run continues; to stop it: {about.command('kill')}")
            raise
        resume = command_to_resume(run, about)
        code = conclusion.conclude(
            run.run_id,
            about,
            run.all_nodes,
            view,
            console,
            resume=resume,
            show_outputs=False,
            is_replaced=lookup.listing.has_newer(run),
            without_record=lookup.listing.without_record(run),
        )
        return code or int(ready)


def _check_ready(fleet: Fleet, run: registry.Run, hosts: Sequence[Host]) -> None:
    """Raises UsageError if the launcher of the run has no URL by which it could tell that its server answers."""
    answers = fleet.each(hosts[:1], lambda _, session: session.request(RECORD, {"run_id": run.run_id})).done
    for record in answers.values():
        launcher = record.spec.launcher if record.spec else None
        if isinstance(launcher, dict) and not launcher.get("ready"):
            raise UsageError(
                f"run {run.run_id}: its launcher, {launcher.get('name')}, has no `ready` URL, so nobody can tell "
                "whether its server answers. To set one: docs/launchers.md"
            )


def _wait_for_turn(
    fleet: Fleet, inventory: Inventory, run_name: str | None, deadline: float | None, console: Console
) -> str | None:
    """Wait while the run is queued (`up --queue`). Returns its id if it was, or else `run_name`."""
    queued = None
    while run_name is not None:
        listing = registry.find(fleet, inventory.machines, partial(choice.is_known, run_name, inventory.path))
        found = choice.find_queued(listing, run_name)
        if found is None:
            break
        if queued is None:
            console.note(f"waiting until run {found.run_id}, which is queued on {fold(found.hosts)}, has started")
        queued, run_name = found, found.run_id
        if deadline is not None and time.monotonic() >= deadline:
            raise TimedOut(f"run {found.run_id} has not started in time; it is still queued")
        time.sleep(LOOK_AT_QUEUE)
    if queued is not None and not choice.is_found(queued.run_id, inventory.path, listing):
        raise Interrupted(f"run {queued.run_id} has left the queue without a start")
    return run_name


@contextmanager
def _limit(deadline: float | None) -> Iterator[None]:
    """Raise _Late in here at this time of the monotonic clock."""
    if deadline is None:
        yield
        return

    def raise_late(*_: object) -> None:
        raise _Late

    before = signal.signal(signal.SIGALRM, raise_late)
    signal.setitimer(signal.ITIMER_REAL, max(deadline - time.monotonic(), 0.001))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _seconds(timeout: str | None) -> str:
    return f"{timeout} s" if str(timeout).isdigit() else str(timeout)
