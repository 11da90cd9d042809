"""`fetch`: bring the outputs of a run here, each host's into a folder of its own."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..answers.files import FETCHED, OUTPUTS
from ..answers.operation import Arguments
from ..errors import OrchError, RunFailed, UnreachableError, UsageError
from ..hosts.fleet import Fleet, Results, combine, fold_failures
from ..hosts.session import Session
from ..inventory.model import Host, Inventory
from ..inventory.run_ids import RUN_NAME
from ..output.console import Console, fold, fold_messages, number_of
from ..output.console import size as console_size
from ..output.terminal import one_line
from ..plan.code_files import make_results_folder
from ..runs import registry
from ..runs.receiving import Listed, Source, bring, checked, refuse, size_of, totals
from .context import (
    load_inventory_of_run,
    open_fleet,
    stderr_console,
    warn_of_doubts,
    warn_of_failures,
    warn_of_unasked_hosts,
)

SHARED = "shared"
"""The folder, beside those of the hosts, for outputs on a disk that they share."""


@dataclass(frozen=True)
class RunOutputs:
    """A folder of outputs on some hosts: that of a run they know, or one of that name whose run they know no more."""

    run: str
    folder: str
    """The name of the folder that they are brought to, if nobody gives another."""
    hosts: frozenset[str]
    key: Mapping[str, str]
    """As the hosts are asked for it: `run_id` or `name`."""
    incomplete: bool
    """A host that could not be asked may have some, too."""
    goes_on: bool = False
    reader: str | None = None
    """Where the outputs are on a disk that the hosts share: the one that is asked for them."""

    def sources(self, host: str, folder: Path) -> list[Source]:
        if self.reader is None:
            return [Source(folder / host)]
        shared = [Source(folder / SHARED, ("output",))] if host == self.reader else []
        return [*shared, Source(folder / host, ("code",))]

    def asked(self, **more: Any) -> Arguments:
        return {**self.key, **more}


def fetch(wanted: str | None, pattern: str | None, output: str | None, given: str | None, hosts: str | None) -> int:
    if wanted is not None and pattern is None and re.search(r"[*?]", wanted):
        raise UsageError(f"{wanted!r} is a PATTERN; the RUN comes before it: ddp-orch fetch RUN '{wanted}'")
    if pattern is not None and (pattern.startswith("/") or ".." in pattern.split("/")):
        raise UsageError(f"{pattern!r}: a PATTERN is relative to the run's output folder, such as '**/*.pt'")
    console = stderr_console()
    inventory = load_inventory_of_run(given, hosts, wanted)
    with open_fleet(inventory, short_timeout=True) as fleet:
        what = _outputs_of(fleet, inventory, wanted, console)
        folder = Path(output or what.folder)
        if output is None and folder.is_symlink():
            raise UsageError(f"{folder} is a link, and its name comes from the hosts; give -o DIR")
        of_run = [host for host in inventory.hosts if host.name in what.hosts]
        found = _look(fleet, of_run, what, folder, pattern or "")
        if pattern and not found:
            hint = ""
            if _matches(fleet, of_run, what, f"code/{pattern}"):
                hint = f"; files that the run wrote to relative paths are in code/: 'code/{pattern}'"
            raise UsageError(f"no output of {what.run} matches {pattern!r}{hint}")
        same_note = f"; {found.same} unchanged" if found.same else ""
        console.step(f"{number_of(found.count, 'file')} to fetch, {console_size(found.size)}{same_note}")
        if found.count:
            _make(folder)
        brought = _bring_all(fleet, of_run, what, found, confirm=not pattern)
    if not found:
        asked = f"{fold(host.name for host in of_run)}: " if what.incomplete else ""
        console.note(
            f"{asked}run {what.run} wrote no file to $DDP_ORCH_OUTPUT_DIR or next to its code, where `fetch` looks"
        )
    if found.count:
        console.note(f"outputs of {what.run} are in {folder}")
    return _conclude(what, {**found.failed, **brought.failed}, brought.done, console)


@dataclass(frozen=True)
class _Found:
    """What the hosts have, and what of it is to be brought."""

    listed: Mapping[str, list[Listed]]
    missing: Mapping[str, list[Listed]]
    """What is not here yet, of hosts whose files can be taken."""
    failed: Mapping[str, OrchError]
    same: int
    """Files that are here."""

    @property
    def count(self) -> int:
        return totals(self.missing)[0]

    @property
    def size(self) -> int:
        return totals(self.missing)[1]

    def __bool__(self) -> bool:
        """False where the hosts have nothing, and all of them have said so."""
        return bool(self.count or self.same or self.failed)


def _look(fleet: Fleet, hosts: Sequence[Host], what: RunOutputs, folder: Path, pattern: str) -> _Found:
    asked = what.asked(pattern=pattern)
    listed = fleet.each(hosts, lambda host, session: _list(session, asked, what.sources(host.name, folder)))
    missing = {host: [each.missing() for each in of_host] for host, of_host in listed.done.items()}
    same = totals(listed.done)[0] - totals(missing)[0]
    refused = refuse(folder, missing)
    kept = {host: of_host for host, of_host in missing.items() if host not in refused}
    return _Found(listed.done, kept, {**listed.failed, **refused}, same)


def _bring_all(
    fleet: Fleet, hosts: Sequence[Host], what: RunOutputs, found: _Found, *, confirm: bool
) -> Results[list[str]]:
    """Gives what went wrong with single files. `confirm`: hosts that list all they have learn that it is here."""

    def bring_those_of(host: Host, session: Session) -> list[str]:
        whole = console_size(sum(map(size_of, found.missing[host.name])))
        come = 0
        problems = []
        for listed in found.missing[host.name]:

            def show(done: int, before: int = come) -> None:
                fleet.progress.come(host.name, f"{console_size(before + done)} of {whole}")

            problems += bring(session, what.key, listed, show)
            come += size_of(listed)
        return problems

    having = [host for host in hosts if any(listed.files for listed in found.missing.get(host.name, ()))]
    brought = fleet.each(having, bring_those_of, "fetching")
    if confirm:
        whole = [host for host in hosts if host.name in found.missing and not _is_partial(host.name, brought)]
        fleet.each(whole, lambda host, session: _confirm(session, what, found.listed[host.name]))
    return brought


def _conclude(
    what: RunOutputs, failed: Mapping[str, OrchError], done: Mapping[str, list[str]], console: Console
) -> int:
    """Say what is missing; the exit code."""
    if what.goes_on:
        console.note(f"run {what.run} is still running; fetch again for newer files")
    for line in fold_failures(failed):
        console.error(line)
    problems = {host: one_line("; ".join(of_host)) for host, of_host in done.items() if of_host}
    for line in fold_messages(problems):
        console.warning(line)
    if what.incomplete:
        return UnreachableError.exit_code
    if failed:
        return combine(failed.values(), "").exit_code
    return RunFailed.exit_code if problems else 0


def _make(folder: Path) -> None:
    try:
        make_results_folder(folder)
    except OSError as error:
        raise UsageError(f"-o {folder}: {error.strerror}") from error


def _outputs_of(fleet: Fleet, inventory: Inventory, wanted: str | None, console: Console) -> RunOutputs:
    """Raises as `registry.choose` does."""
    listing = registry.find(fleet, inventory.hosts)
    warn_of_failures(listing.failed, console)
    warn_of_doubts(listing, console)
    incomplete = bool(listing.failed)
    try:
        run = registry.choose(listing, wanted, inventory.path)
    except (UsageError, UnreachableError):  # its record may have been removed (`run.keep`); outputs stay
        if wanted is None or not RUN_NAME.fullmatch(wanted):
            raise
        asked = {"name": wanted, "pattern": ""}
        listed = fleet.each(inventory.hosts, lambda _, session: _list(session, asked, [Source(Path())]))
        having = frozenset(host for host, (found,) in listed.done.items() if found.files)
        if not having:
            raise
        return RunOutputs(wanted, wanted, having, {"name": wanted}, incomplete)
    warn_of_unasked_hosts(run, listing, console)
    first = next(iter(run.nodes or run.parts))
    reader = first if run.parts[first].shared_output else None
    hosts, key = frozenset(run.parts), {"run_id": run.run_id}
    return RunOutputs(run.run_id, _default_folder(run), hosts, key, incomplete, run.unfinished, reader)


def _list(session: Session, asked: Arguments, sources: list[Source]) -> list[Listed]:
    found = []
    for source in sources:
        listing = session.request(OUTPUTS, {**asked, "parts": list(source.parts)})
        found.append(Listed(source, checked(listing), listing.written))
    return found


def _matches(fleet: Fleet, hosts: Iterable[Host], what: RunOutputs, pattern: str) -> bool:
    asked = what.asked(pattern=pattern)
    listed = fleet.each(hosts, lambda host, session: _list(session, asked, what.sources(host.name, Path())))
    return totals(listed.done)[0] > 0


def _is_partial(host: str, brought: Results[list[str]]) -> bool:
    """Whether a file of this host is missing here."""
    return host in brought.failed or bool(brought.done.get(host))


def _confirm(session: Session, what: RunOutputs, listed: list[Listed]) -> None:
    """Tell a host that we have all it listed: from then on it may remove the run's record."""
    for found in listed:
        if found.written is not None and "code" in found.source.parts:
            session.request(FETCHED, what.asked(written=found.written))


def _default_folder(run: registry.Run) -> str:
    name = run.name if RUN_NAME.fullmatch(run.name) else run.run_id  # both are what a host says
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name):
        raise UnreachableError(f"the name that a host gave the run is no folder name: {name!r}; give -o DIR")
    return name
