"""`fetch`: download the outputs of a run, those of each host to a folder of its own."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..answers.files import FETCHED, OUTPUTS
from ..answers.finished import FINISHED
from ..answers.operation import Arguments
from ..errors import OrchError, RunFailed, UnreachableError, UsageError
from ..hosts.fleet import Fleet, Results, combine, fold_failures
from ..hosts.session import Session
from ..inventory.advice import command
from ..inventory.model import Host, Inventory
from ..inventory.run_ids import RUN_NAME
from ..output.console import Console, duration, fold, fold_messages, number_of
from ..output.console import size as console_size
from ..output.terminal import one_line
from ..plan.code_files import make_results_folder
from ..runs import choice, code_places, file_versions, recent, registry
from ..runs.receiving import RemoteFile, Source, SourceListing, check_listing, download_files, refuse, size_of, totals
from . import same_name
from .context import (
    load_inventory_of_run,
    open_fleet,
    stderr_console,
    warn_of_doubts,
    warn_of_failures,
    warn_of_unasked_hosts,
)

SHARED = "shared"
"""Name of the local folder for outputs on a disk that the hosts share."""

CODE = ("code",)
MOST_NAMED = 3  # files that a warning names


@dataclass(frozen=True)
class RunOutputs:
    """The output folder of a run on its hosts. The record of the run may have been pruned."""

    run: str
    folder: str
    """Default name of the local folder."""
    hosts: frozenset[str]
    key: Mapping[str, str]
    """`run_id`, or `name` if the record of the run was pruned: how to ask the hosts for it."""
    unreachable: tuple[str, ...]
    """An unreachable host may have outputs too."""
    is_running: bool = False
    reader: str | None = None
    """If the hosts share the output folder: the host that sends it."""
    earlier: tuple[str, ...] = ()
    """Earlier runs of the same name, the newest first."""

    def sources(self, host: str, folder: Path) -> list[Source]:
        if self.reader is not None:
            outputs = [Source(folder / SHARED, ("output",))] if host == self.reader else []
        else:
            outputs = [Source(folder / host, ("output",))]
        return [*outputs, Source(folder / host, CODE)]

    def arguments(self, **more: Any) -> Arguments:
        return {**self.key, **more}


def fetch(
    run_name: str | None, pattern: str | None, output: str | None, inventory_path: str | None, hosts: str | None
) -> int:
    if run_name is not None and pattern is None and re.search(r"[*?]", run_name):
        raise UsageError(f"{run_name!r} is a PATTERN, which comes after RUN: ddp-orch fetch RUN '{run_name}'")
    if pattern is not None and (pattern.startswith("/") or ".." in pattern.split("/")):
        raise UsageError(f"{pattern!r}: a PATTERN is relative to the run's output folder, such as '**/*.pt'")
    console = stderr_console()
    inventory = load_inventory_of_run(inventory_path, hosts, run_name)
    with open_fleet(inventory, short_timeout=True) as fleet:
        outputs = _find_outputs(fleet, inventory, run_name, console)
        folder = Path(output or outputs.folder)
        if output is None and folder.is_symlink():
            raise UsageError(f"{folder} is a link. Give -o DIR to download there anyway, or to another folder.")
        of_run = [host for host in inventory.hosts if host.name in outputs.hosts]
        file_lists = _list_files(fleet, of_run, outputs, folder, pattern or "")
        if pattern and not file_lists:
            hints = {
                f"code/{pattern}": "Files that the run wrote to relative paths are in code/",
                f"**/{pattern}": "To match files in all folders",
            }
            found = next((other for other in hints if _matches(fleet, of_run, outputs, other)), None)
            hint = f". {hints[found]}: {found!r}" if found else ""
            raise UsageError(f"no output of {outputs.run} matches {pattern!r}{hint}")
        unchanged = f"; {file_lists.same} unchanged" if file_lists.same else ""
        console.step(f"{number_of(file_lists.count, 'file')} to fetch, {console_size(file_lists.size)}{unchanged}")
        if file_lists.count:
            _make_folder(folder, file_lists.owners_of_code, outputs.run)
        downloads = _download_all(fleet, of_run, outputs, file_lists, confirm=not pattern)
        earlier = None if file_lists else _find_earlier(fleet, of_run, outputs, inventory)
    if not file_lists:
        prefix = f"{fold(host.name for host in of_run)}: " if outputs.unreachable else ""
        console.note(
            f"{prefix}nothing to fetch: run {outputs.run} wrote no file to $DDP_ORCH_OUTPUT_DIR or next to its code"
        )
    if earlier:
        console.note(
            f"an earlier run of this name did, beside its code: {command('fetch', earlier, inventory=inventory.path)}"
        )
    if file_lists.count:
        console.note(f"outputs of {outputs.run} are in {folder}")
        _note_newest(file_lists.outputs, console)
    _note_code_apart(outputs, file_lists, folder, console)
    _warn_of_newer_here(file_lists.newer_here, console)
    code = _conclude(outputs, {**file_lists.failed, **downloads.failed}, downloads.done, console)
    return code or (RunFailed.exit_code if file_lists.newer_here else 0)


@dataclass(frozen=True)
class FileLists:
    """The files on the hosts, and those of them to download."""

    listed: Mapping[str, list[SourceListing]]
    missing: Mapping[str, list[SourceListing]]
    """Files to download, without those of hosts whose files were refused."""
    failed: Mapping[str, OrchError]
    newer_here: Mapping[str, list[Path]]
    """Files here that are newer than those on the hosts, and stay as they are."""

    @property
    def same(self) -> int:
        """Number of files that were downloaded before and have not changed."""
        kept = sum(map(len, self.newer_here.values()))
        refused = {host: listings for host, listings in self.listed.items() if host in self.failed}
        return totals(self.listed)[0] - totals(refused)[0] - self.count - kept

    @property
    def owners_of_code(self) -> list[str]:
        """Hosts whose folder `code` here has the files of this run."""
        return [host for host, files in self._code.items() if not files[0].target]

    @property
    def with_code_apart(self) -> list[str]:
        """Hosts whose folder `code` here has the files of another run."""
        return [host for host, files in self._code.items() if files[0].target]

    @property
    def _code(self) -> Mapping[str, list[RemoteFile]]:
        return {
            host: listing.files
            for host, listings in self.listed.items()
            for listing in listings
            if listing.source.parts == CODE and listing.files and host not in self.failed
        }

    @property
    def outputs(self) -> Mapping[str, list[RemoteFile]]:
        """The files in the output folder of each host."""
        return {
            host: [file for listing in listings if listing.source.parts != CODE for file in listing.files]
            for host, listings in self.listed.items()
            if host not in self.failed
        }

    @property
    def count(self) -> int:
        return totals(self.missing)[0]

    @property
    def size(self) -> int:
        return totals(self.missing)[1]

    def __bool__(self) -> bool:
        """False if all hosts have answered and none has a file."""
        return bool(self.count or self.same or self.failed or self.newer_here)


def _list_files(fleet: Fleet, hosts: Sequence[Host], outputs: RunOutputs, folder: Path, pattern: str) -> FileLists:
    arguments = outputs.arguments(pattern=pattern)
    answers = fleet.each(
        hosts,
        lambda host, session: _place(
            _list_sources(session, arguments, outputs.sources(host.name, folder)), host.name, outputs.run, folder
        ),
        "listing files",
    )
    missing = {host: [listing.missing() for listing in listings] for host, listings in answers.done.items()}
    errors = refuse(folder, missing)
    accepted = {host: listings for host, listings in missing.items() if host not in errors}
    newer = {host: [path for one in answers.done[host] for path in one.newer_here()] for host in accepted}
    newer = {host: paths for host, paths in newer.items() if paths}
    return FileLists(answers.done, accepted, {**answers.failed, **errors}, newer)


def _place(listings: list[SourceListing], host: str, run_id: str, folder: Path) -> list[SourceListing]:
    """Keep files beside the code apart from those of another run."""
    return [
        replace(one, files=code_places.place(folder, host, run_id, one.files)) if one.source.parts == CODE else one
        for one in listings
    ]


def _download_all(
    fleet: Fleet, hosts: Sequence[Host], outputs: RunOutputs, file_lists: FileLists, *, confirm: bool
) -> Results[list[str]]:
    """Download the missing files. Gives the problems with single files of each host.

    `confirm`: tell each host whose files are complete here, so that it may delete them.
    """

    def download(host: Host, session: Session) -> list[str]:
        total = console_size(sum(map(size_of, file_lists.missing[host.name])))
        received = 0
        problems = []
        for listed in file_lists.missing[host.name]:

            def show(sent: int, before: int = received) -> None:
                fleet.progress.set_amount(host.name, f"{console_size(before + sent)} of {total}")

            problems += download_files(session, outputs.key, listed, show)
            received += size_of(listed)
        return problems

    sources = [host for host in hosts if any(listed.files for listed in file_lists.missing.get(host.name, ()))]
    downloads = fleet.each(sources, download, "fetching")
    if confirm:
        complete = [
            host
            for host in hosts
            if host.name in file_lists.missing
            and not any(listed.newer_here() for listed in file_lists.listed[host.name] if listed.source.parts == CODE)
            and not _is_partial(host.name, downloads)
        ]
        fleet.each(complete, lambda host, session: _confirm(session, outputs, file_lists.listed[host.name]))
    return downloads


def _conclude(
    outputs: RunOutputs, failed: Mapping[str, OrchError], problems: Mapping[str, list[str]], console: Console
) -> int:
    """Report what could not be downloaded, and return the exit code."""
    if outputs.is_running:
        console.note(f"run {outputs.run} is still running; fetch again for newer files")
    for line in fold_failures(failed):
        console.error(line)
    problem_lines = {host: one_line("; ".join(lines)) for host, lines in problems.items() if lines}
    for line in fold_messages(problem_lines):
        console.warning(line)
    if outputs.unreachable:
        console.warning(f"files of {fold(outputs.unreachable)} may be missing; fetch again when all hosts answer")
        return UnreachableError.exit_code
    if failed:
        return combine(failed.values(), "").exit_code
    return RunFailed.exit_code if problem_lines else 0


def _note_code_apart(outputs: RunOutputs, file_lists: FileLists, folder: Path, console: Console) -> None:
    others: dict[str, list[str]] = {}
    for host in file_lists.with_code_apart:
        others.setdefault(code_places.owner(folder, host) or "another run", []).append(host)
    for other, hosts in others.items():
        console.note(
            f"{fold(hosts)}: files that {outputs.run} wrote beside its code are in {folder}/HOST/code-{outputs.run}, "
            f"because {folder}/HOST/code has those of {other}"
        )


def _note_newest(files: Mapping[str, list[RemoteFile]], console: Console) -> None:
    for each in file_versions.compare(files):
        has = "has" if len(each.newest) == 1 else "have"
        console.note(
            f"{fold(each.newest)} {has} the newest {_name(each.paths)}; "
            f"on {fold(each.older)}, it is at least {duration(each.lag)} older"
        )


def _name(paths: Sequence[str | Path]) -> str:
    more = f" and {len(paths) - MOST_NAMED} more" if len(paths) > MOST_NAMED else ""
    return one_line(", ".join(map(str, paths[:MOST_NAMED]))) + more


def _warn_of_newer_here(newer: Mapping[str, list[Path]], console: Console) -> None:
    for host, paths in sorted(newer.items()):
        console.warning(
            f"{host}: not downloaded, because the file here is newer: {_name(paths)}. To get the host's, rename it "
            "here, or give another folder with -o DIR"
        )


def _make_folder(folder: Path, owners_of_code: Iterable[str], run_id: str) -> None:
    try:
        make_results_folder(folder)
        code_places.remember(folder, owners_of_code, run_id)
    except OSError as error:
        raise UsageError(f"cannot create the folder {folder}: {error.strerror}; choose another with -o") from error


def _find_outputs(fleet: Fleet, inventory: Inventory, run_name: str | None, console: Console) -> RunOutputs:
    """Find the run and its outputs on the hosts. Raises as `choice.choose`."""
    listing = registry.find(fleet, inventory.hosts, run_name=run_name)
    warn_of_failures(listing.failed, console)
    warn_of_doubts(listing, console)
    unreachable = tuple(sorted(listing.failed))
    try:
        run = choice.choose(listing, run_name, inventory.path)
    except (UsageError, UnreachableError):  # its record may have been pruned; outputs are kept
        if run_name is None or not RUN_NAME.fullmatch(run_name) or choice.find_of_others(listing, run_name):
            raise
        arguments = {"name": run_name, "pattern": ""}
        answers = fleet.each(
            inventory.hosts, lambda _, session: _list_sources(session, arguments, [Source(Path())]), "listing files"
        )
        if not answers.done:
            raise
        hosts_with_files = frozenset(host for host, (listing,) in answers.done.items() if listing.files)
        if not hosts_with_files:
            if not choice.was_deleted(run_name, inventory.path):
                raise
            raise _nothing_left(run_name, inventory.path, unreachable) from None
        return RunOutputs(run_name, run_name, hosts_with_files, {"name": run_name}, unreachable)
    if run_name is not None:
        same_name.note_choice(run, listing, run_name, inventory, console)
    answered = listing.answered | {host for host in run.hosts if host == run.witness}  # it has no outputs
    warn_of_unasked_hosts(run, replace(listing, answered=answered), console)
    if forgetful := listing.forgetful(run):
        revive = command("revive", run.run_id, inventory=inventory.path)
        missing = f"answers without a record of run {run.run_id}, so its files are missing"
        console.warning(
            f"{fold(forgetful)} {missing}. If its disk is a new one, they are gone. Otherwise, see: {revive}"
        )
    first = next(iter(run.nodes or run.parts))
    reader = first if run.parts[first].shared_output else None
    hosts, key = frozenset(run.parts), {"run_id": run.run_id}
    earlier = [each.run_id for each in listing.runs if each.name == run.name and each.started_at < run.started_at]
    return RunOutputs(
        run.run_id, _default_folder(run), hosts, key, unreachable, run.unfinished, reader, tuple(reversed(earlier))
    )


def _find_earlier(fleet: Fleet, hosts: Sequence[Host], outputs: RunOutputs, inventory: Inventory) -> str | None:
    """The newest earlier run of the same name with files beside its code that were not fetched."""
    question = {"keep": inventory.run.keep.on_hosts(), "only": list(outputs.earlier)}
    answers = fleet.each(hosts, lambda _, session: session.request(FINISHED, question)).done if outputs.earlier else {}
    with_files = {run.run_id for answer in answers.values() for run in answer.due if run.unfetched is not None}
    return next((run_id for run_id in outputs.earlier if run_id in with_files), None)


def _nothing_left(run_name: str, inventory: str, unreachable: Sequence[str]) -> OrchError:
    """The error for a run that was deleted, without outputs under this name."""
    text = f"nothing to fetch: the hosts have no record of run {run_name}, and no outputs under this name"
    text += ". If state_dir (on the hosts: $DDP_ORCH_STATE_DIR) was another folder when it started, set it again"
    started = recent.find(run_name, inventory)
    if started is not None and started.name != run_name:
        text += (
            f". To fetch what the runs named {started.name} left: {command('fetch', started.name, inventory=inventory)}"
        )
    return UnreachableError(f"{text}; {fold(unreachable)} could not be asked") if unreachable else UsageError(text)


def _list_sources(session: Session, arguments: Arguments, sources: list[Source]) -> list[SourceListing]:
    listings = []
    for source in sources:
        listing = session.request(OUTPUTS, {**arguments, "parts": list(source.parts)})
        listings.append(SourceListing(source, check_listing(listing), listing.written))
    return listings


def _matches(fleet: Fleet, hosts: Iterable[Host], outputs: RunOutputs, pattern: str) -> bool:
    arguments = outputs.arguments(pattern=pattern)
    results = fleet.each(
        hosts,
        lambda host, session: _list_sources(session, arguments, outputs.sources(host.name, Path())),
        "listing files",
    )
    return totals(results.done)[0] > 0


def _is_partial(host: str, downloads: Results[list[str]]) -> bool:
    """Whether some file of this host was not downloaded."""
    return host in downloads.failed or bool(downloads.done.get(host))


def _confirm(session: Session, outputs: RunOutputs, listed: list[SourceListing]) -> None:
    """Tell a host that all its files were downloaded. From then on, it may prune the run."""
    for listing in listed:
        if listing.written is not None and "code" in listing.source.parts:
            session.request(FETCHED, outputs.arguments(written=listing.written))


def _default_folder(run: registry.Run) -> str:
    name = run.name if RUN_NAME.fullmatch(run.name) else run.run_id  # hosts have sent both
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name):
        raise UnreachableError(f"a host sent a run name that is not a valid folder name: {name!r}. Give -o DIR.")
    return name
