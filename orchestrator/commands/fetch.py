"""`fetch`: bring the outputs of a run here, each host's into a folder of its own.

What a host says is not trusted: a path leads nowhere but below its folder, through no link; a file has not many more
bytes than it was said to have when the size was shown; and it gets its name when all of it is there.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

from ..answers.files import FETCHED, OUTPUTS, SEND, FileData, Outputs
from ..answers.operation import Arguments
from ..errors import FindingsError, OrchError, RunFailed, UnreachableError, UsageError
from ..hosts.fleet import Fleet, Results, folded, worst
from ..hosts.session import Session
from ..inventory.model import Host, Inventory
from ..inventory.run_ids import RUN_NAME
from ..output.console import Console, fold_messages
from ..output.console import size as console_size
from ..output.terminal import one_line
from ..plan.code_files import make_results_folder
from ..runs import registry
from .context import inventory_of_run, open_fleet, stderr_console, warn_of, warn_of_doubts, warn_of_unheard

GROWTH = 1024 * 1024
"""Bytes that the files of a host may have grown by since they were listed, beyond twice their size; more is for the
next time."""

LARGEST = 1 << 63
"""Bytes, and ns since 1970, that no file has."""

SHARED = "shared"
"""The folder, beside those of the hosts, for outputs on a disk that they share."""
BATCH = 1000  # files asked for at once


@dataclass(frozen=True)
class Remote:
    """A file on a host, by a path that leads nowhere else."""

    path: str
    size: int  # bytes
    mtime: int  # ns


@dataclass(frozen=True)
class Source:
    """What is brought from a host to one folder here: `output` and `code`, or one of the two."""

    folder: Path
    parts: tuple[str, ...] = ("output", "code")


@dataclass(frozen=True)
class Listed:
    """What a host has of a run."""

    source: Source
    files: list[Remote]
    written: str | None
    """Stands for the state of the files beside the code."""

    def missing(self) -> Listed:
        return replace(self, files=[one for one in self.files if not is_here(self.source.folder, one)])


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
    read = inventory_of_run(given, hosts, wanted)
    with open_fleet(read) as fleet:
        what = _outputs_of(fleet, read, wanted, console)
        folder = Path(output or what.folder)
        if output is None and folder.is_symlink():
            raise UsageError(f"{folder} is a link, and the hosts chose its name; give -o DIR")
        of_run = [host for host in read.hosts if host.name in what.hosts]
        asked = what.asked(pattern=pattern or "")
        listed = fleet.each(of_run, lambda host, session: _list(session, asked, what.sources(host.name, folder)))
        missing = {host: [found.missing() for found in of_host] for host, of_host in listed.done.items()}
        count, size = _totals(missing)
        same = _totals(listed.done)[0] - count
        refused = _refused(folder, missing)
        missing = {host: of_host for host, of_host in missing.items() if host not in refused}
        count, size = _totals(missing)
        if pattern and not count and not same and not listed.failed and not refused:
            hint = ""
            if _matches(fleet, of_run, what, f"code/{pattern}"):
                hint = f"; files that the run wrote to relative paths are in code/: 'code/{pattern}'"
            raise UsageError(f"no output of {what.run} matches {pattern!r}{hint}")
        same_note = f"; {same} unchanged" if same else ""
        console.step(f"{count} {'file' if count == 1 else 'files'} to fetch, {console_size(size)}{same_note}")

        if count:
            _make(folder)

        def bring(host: Host, session: Session) -> list[str]:
            whole = sum(map(_bytes, missing[host.name]))
            come = 0
            problems = []
            for found in missing[host.name]:

                def show(done: int, before: int = come) -> None:
                    fleet.progress.come(host.name, f"{console_size(before + done)} of {console_size(whole)}")

                problems += _bring(session, what, found, show)
                come += _bytes(found)
            return problems

        having = [host for host in of_run if any(found.files for found in missing.get(host.name, ()))]
        brought = fleet.each(having, bring, "fetching")
        if not pattern:
            arrived = listed.done.keys() - refused.keys()
            whole = [host for host in of_run if host.name in arrived and not _is_partial(host.name, brought)]
            fleet.each(whole, lambda host, session: _confirm(session, what, listed.done[host.name]))
    if not count and not same and not listed.failed and not refused:
        console.note(
            f"run {what.run} wrote no file to $DDP_ORCH_OUTPUT_DIR or beside its code, which is where `fetch` looks"
        )
    if count:
        console.note(f"outputs of {what.run} are in {folder}")
    if what.goes_on:
        console.note(f"run {what.run} goes on; what it writes from here on comes by fetching again")
    failed: dict[str, OrchError] = {**listed.failed, **refused, **brought.failed}
    for line in folded(failed):
        console.error(line)
    problems = {host: one_line("; ".join(said)) for host, said in brought.done.items() if said}
    for line in fold_messages(problems):
        console.warning(line)
    if what.incomplete:
        return UnreachableError.exit_code
    if failed:
        return worst(failed.values(), "").exit_code
    return RunFailed.exit_code if problems else 0


def _make(folder: Path) -> None:
    try:
        make_results_folder(folder)
    except OSError as error:
        raise UsageError(f"-o {folder}: {error.strerror}") from error


def _outputs_of(fleet: Fleet, read: Inventory, wanted: str | None, console: Console) -> RunOutputs:
    """Raises as `runs.choose` does."""
    listing = registry.find(fleet, read.hosts)
    warn_of(listing.failed, console)
    warn_of_doubts(listing, console)
    incomplete = bool(listing.failed)
    try:
        run = registry.choose(listing, wanted, read.path)
    except (UsageError, UnreachableError):  # its record may have been removed (`run.keep`); outputs stay
        if wanted is None or not RUN_NAME.fullmatch(wanted):
            raise
        asked = {"name": wanted, "pattern": ""}
        listed = fleet.each(read.hosts, lambda _, session: _list(session, asked, [Source(Path())]))
        having = frozenset(host for host, (found,) in listed.done.items() if found.files)
        if not having:
            raise
        return RunOutputs(wanted, wanted, having, {"name": wanted}, incomplete)
    warn_of_unheard(run, listing, console)
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
    return _totals(listed.done)[0] > 0


def _is_partial(host: str, brought: Results[list[str]]) -> bool:
    """Whether a file of this host is missing here."""
    return host in brought.failed or bool(brought.done.get(host))


def _confirm(session: Session, what: RunOutputs, listed: list[Listed]) -> None:
    """Tell a host that we have all it listed: from then on it may remove the run's record."""
    for found in listed:
        if found.written is not None and "code" in found.source.parts:
            session.request(FETCHED, what.asked(written=found.written))


def checked(listing: Outputs) -> list[Remote]:
    """The files of a listing. Raises UnreachableError where it is not what an honest host would say."""
    found = {}
    for path, size, mtime in listing.files:
        if not 0 <= size < LARGEST or not abs(mtime) < LARGEST:
            raise UnreachableError("its listing makes no sense")
        if any(part in ("", ".", "..") for part in path.split("/")) or "\0" in path or not _can_be_named(path):
            raise UnreachableError(
                f"it names a file outside of its output folder: {path!r}; nothing is fetched from it"
            )
        found[path] = Remote(path, size, mtime)
    return list(found.values())


def _can_be_named(path: str) -> bool:
    try:
        os.fsencode(path)
    except UnicodeEncodeError:
        return False
    return True


def is_here(folder: Path, remote: Remote) -> bool:
    """Whether it was fetched before and has not changed since, by size and time."""
    try:
        found = (folder / remote.path).lstat()
    except OSError:
        return False
    return (found.st_size, found.st_mtime_ns) == (remote.size, remote.mtime)


class Room:
    """The bytes that a host may send for these files, all together."""

    def __init__(self, files: Iterable[Remote]) -> None:
        self.taken = 0
        self._most = 2 * sum(one.size for one in files) + GROWTH

    def take(self, count: int) -> bool:
        """Whether there was room."""
        self.taken += count
        return self.taken <= self._most


class Receiver:
    """Takes the parts of files as they come, one file at a time. Never raises: what goes wrong is in `problems`."""

    def __init__(self, folder: Path, files: list[Remote], room: Room) -> None:
        self.problems: list[str] = []
        self._folder = folder
        self._files = files
        self._room = room
        self._next = 0
        self._out: BinaryIO | None = None
        self._left = 0
        self._broken = False

    def take(self, data: FileData, payload: bytes) -> None:
        if data.file != self._next or self._next >= len(self._files):
            return  # the rest of a file that was given up
        remote = self._files[self._next]
        try:
            if data.error is not None:
                raise OSError(None, data.error[:200])
            self._add(remote, payload)
            if data.end:
                self._finish(remote, remote.mtime if data.mtime is None else data.mtime)
        except (OSError, ValueError, OverflowError) as error:
            self.problems.append(f"{remote.path}: {getattr(error, 'strerror', None) or error}")
            self.give_up()
            self._next += 1

    def give_up(self) -> None:
        """Leave nothing of a file that is not whole."""
        if self._out is not None:
            self._out.close()
            self._out = None
        with contextlib.suppress(OSError):
            self._aside().unlink()

    @property
    def done(self) -> int:
        return self._next

    def _aside(self) -> Path:
        return self._folder / f".fetching-{os.getpid()}"

    def _add(self, remote: Remote, payload: bytes) -> None:
        if self._out is None:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._aside().unlink(missing_ok=True)
            handle = os.open(self._aside(), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
            self._out = os.fdopen(handle, "wb")
            self._left = 2 * remote.size + GROWTH
        self._left -= len(payload)
        if self._left < 0 or not self._room.take(len(payload)):
            raise ValueError("it has grown much since it was listed; fetch it again")
        self._out.write(payload)

    def _finish(self, remote: Remote, mtime: int) -> None:
        assert self._out is not None
        self._out.close()
        self._out = None
        os.utime(self._aside(), ns=(remote.mtime, mtime))
        target = self._folder / remote.path
        _make_folders(self._folder, remote.path)
        self._aside().replace(target)
        self._next += 1


def _make_folders(folder: Path, path: str) -> None:
    """The folders on the way to a file, none of them a link. Raises OSError."""
    for name in path.split("/")[:-1]:
        folder = folder / name
        if folder.is_symlink():
            raise OSError(None, f"{folder} is a link here, and nothing is written through it")
        folder.mkdir(exist_ok=True)


def _bring(session: Session, what: RunOutputs, listed: Listed, show: Callable[[int], None]) -> list[str]:
    """Fetch files of one host; gives what went wrong with single ones. `show`: told the bytes that have come."""
    folder, files = listed.source.folder, listed.files
    problems: list[str] = []
    room = Room(files)
    for start in range(0, len(files), BATCH):
        batch = files[start : start + BATCH]
        receiver = Receiver(folder, batch, room)

        def take(data: FileData, payload: bytes, receiver: Receiver = receiver) -> None:
            receiver.take(data, payload)
            show(room.taken)

        arguments = what.asked(paths=[one.path for one in batch])
        try:
            session.follow(SEND, arguments, take)
        finally:
            receiver.give_up()
        problems += receiver.problems
        problems += [f"{one.path}: it was not sent" for one in batch[receiver.done :]]
    return problems


def _totals(listed: Mapping[str, list[Listed]]) -> tuple[int, int]:
    """How many files, and their bytes."""
    every = [found for of_host in listed.values() for found in of_host]
    return sum(len(found.files) for found in every), sum(map(_bytes, every))


def _bytes(listed: Listed) -> int:
    return sum(one.size for one in listed.files)


def _default_folder(run: registry.Run) -> str:
    name = run.name if RUN_NAME.fullmatch(run.name) else run.run_id  # both are what a host says
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name):
        raise UnreachableError(f"a host calls the run {name!r}; give -o DIR")
    return name


def _refused(folder: Path, listed: Mapping[str, list[Listed]]) -> dict[str, FindingsError]:
    """Hosts whose files cannot be taken: the largest shares, where the disk does not take all, and links."""
    place = folder.absolute()
    while not place.exists():
        place = place.parent
    free = shutil.disk_usage(place).free
    refused = {}
    sizes = {host: sum(map(_bytes, of_host)) for host, of_host in listed.items()}
    for host, size in sorted(sizes.items(), key=lambda item: item[1]):
        links = [found.source.folder for found in listed[host] if found.source.folder.is_symlink()]
        if links:
            refused[host] = FindingsError(f"{host}: {links[0]} is a link here, and nothing is written through it")
        elif size > free:
            room = f"{console_size(size)} to fetch, and only {console_size(free)} are free in {place}"
            refused[host] = FindingsError(f"{host}: {room}; give -o DIR")
        else:
            free -= size
    return refused
