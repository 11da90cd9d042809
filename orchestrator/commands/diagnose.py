"""`diagnose`: print the first cause of a run's failure, or of that in log files."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from ..diagnosis import engine, rendering, transcript
from ..diagnosis.engine import Diagnosis
from ..errors import UnreachableError, UsageError
from ..hosts.fleet import Fleet
from ..inventory import advice
from ..inventory.advice import AboutRun
from ..inventory.model import Inventory
from ..output.console import Console, fold
from ..output.lines import Mask
from ..runs import diagnose
from .context import (
    FoundRun,
    find_run_early,
    inventory_of_run,
    mask_of,
    open_fleet,
    stderr_console,
    wait_for_rest,
    warn_of_unheard,
)

MOST = 64 << 20  # bytes of one log that are read: half from its beginning, half from its end
ENDED = {"succeeded": "has succeeded", "failed": "failed", "killed": "was stopped", "lost": "was lost"}


def diagnose_run(wanted: str | None, given: str | None, hosts: str | None, as_json: bool) -> int:
    """`diagnose RUN`. Exit code 4 when a host was not reached."""
    console = stderr_console()
    read = inventory_of_run(given, hosts, wanted)
    with open_fleet(read, looking=True) as fleet:
        first = final = find_run_early(fleet, read, wanted, console)
        warn_of_unheard(first.run, first.listing, console)
        said = None
        if as_json and first.listing.late:  # one document, by all hosts
            final = wait_for_rest(first, read, wanted, console)
        found = _of_found(final, read, fleet)
        if final.listing.late:
            console.note(f"no answer yet from {fold(first.listing.late)}; the others show:")
            _show(found, final, read, as_json, console)
            sys.stdout.flush()
            said = found
            final = wait_for_rest(first, read, wanted, console)
            found = _of_found(final, read, fleet) if _is_news(first, final) else said
    if said is None:
        _show(found, final, read, as_json, console)
    elif first.listing.late & final.listing.answered:
        changes = found != said or final.run.run_id != first.run.run_id
        what = "changes the diagnosis:" if changes else "changes nothing in the diagnosis"
        console.note(f"{fold(first.listing.late & final.listing.answered)} has answered, which {what}")
        if changes:
            _show(found, final, read, as_json, console)
    return UnreachableError.exit_code if final.listing.failed else 0


def _is_news(first: FoundRun, final: FoundRun) -> bool:
    return final.run.run_id != first.run.run_id or final.run.parts.keys() != first.run.parts.keys()


def _of_found(found: FoundRun, read: Inventory, fleet: Fleet) -> Diagnosis:
    run = found.run
    return diagnose.of_run(run.run_id, run.parts, run.nodes, {host.name: host for host in read.hosts}, fleet)


def _show(diagnosis: Diagnosis, found: FoundRun, read: Inventory, as_json: bool, console: Console) -> None:
    run = found.run
    about = advice.about(run, found.listing.runs, read.path)
    _print(diagnosis, as_json, mask_of(read, run, console), about)
    if not as_json and (run.unfinished or not diagnosis.findings):
        hang = (
            f"; if it hangs: {about.command('top')} shows who is silent, and run.stall_timeout ends it with the "
            "stacks of all ranks"
        )
        console.note(f"run {run.run_id} {ENDED.get(run.state, f'is {run.state}')}" + (hang if run.unfinished else ""))


def diagnose_logs(paths: Sequence[str], as_json: bool) -> int:
    """`diagnose --log FILE...`. 0: to have found a failure is a success."""
    _print(of_logs(paths), as_json, Mask(), None)
    return 0


def of_logs(paths: Sequence[str]) -> Diagnosis:
    return engine.diagnose(transcript.parse_logs([(path, _read(path)) for path in paths]))


def _read(path: str) -> str:
    if path == "-":
        return sys.stdin.read()
    try:
        with Path(path).open("rb") as file:
            begin = file.read(MOST // 2)
            size = file.seek(0, 2)
            file.seek(max(len(begin), size - MOST // 2))
            data = begin + file.read()
    except OSError as error:
        raise UsageError(f"--log {path}: {error.strerror}") from error
    return data.decode("utf-8", errors="replace")


def _print(diagnosis: Diagnosis, as_json: bool, mask: Mask, about: AboutRun | None) -> None:
    diagnosis = rendering.masked(diagnosis, mask)
    if as_json:
        print(json.dumps(diagnosis.as_dict(), indent=2))
    elif not diagnosis.findings and not diagnosis.earlier:
        print("no failure found")
    else:
        columns = min(rendering.WIDTH, shutil.get_terminal_size((rendering.WIDTH, 24)).columns)
        print("\n".join(rendering.as_text(diagnosis, columns, rendering.where_more(diagnosis, about))))
