"""`up --watch`: restart a run when the code that it was started with changes."""

from __future__ import annotations

import contextlib
import hashlib
import os
import threading
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from ..answers.signaled import FINISH
from ..errors import Interrupted, OrchError, RunStopped, UsageError
from ..hosts.fleet import Fleet, fold_failures
from ..inventory.model import Host
from ..inventory.sources.schedulers import current_scheduler
from ..output.console import Console
from ..plan.snapshot import FileEntry, Snapshot
from ..runs import registry
from .context import stderr_console
from .up import BeforeStart, Watch, up
from .up_options import UpOptions

LOOK_INTERVAL = 0.5  # s; a change counts when nothing has changed for one more interval
LEAVE_WINDOW = 5.0  # s; it may be waiting for a host that does not answer
MAX_NAMES = 3  # changed files that are named
MAX_COMPILED = 500  # files, to know whether they compile

_Stamp = tuple[int, int, int] | None
"""Of a file: mtime in ns, size, inode. None: there is no such file."""
UNKNOWN: _Stamp = (0, 0, 0)  # that of no file


def watch(options: UpOptions, before_start: BeforeStart | None = None) -> int:
    """Returns the exit code of the last run, when Ctrl-C ends it or the wait for a change, or the job ends.

    `before_start`: as in `up`, before the first run.
    """
    if options.detach or options.dry_run or options.requeue:
        raise UsageError("--watch cannot be combined with --detach, --dry-run or --requeue")
    console = stderr_console()
    watching = CodeWatch(console)
    code = up(options, watch=watching, before_start=before_start)
    while True:
        if not watching.has_changed:
            if code == Interrupted.exit_code:  # by Ctrl-C, or by a `kill` from somewhere else
                return code
            if code == RunStopped.exit_code and current_scheduler(
                os.environ
            ):  # the job ends, or its terminal is closed
                return code
            console.note("waiting for a change of the code; Ctrl-C exits")
            try:
                watching.wait()
            except KeyboardInterrupt:
                return code
        # the new run gets the outputs of the last one; the GPUs of that one may be free a moment later
        again = replace(options, name=watching.run_name, wait=True, continues=watching.run_id)
        watching.has_changed = False
        watching.look_again()  # before: if this code cannot be started, any later change counts
        try:
            code = up(again, watch=watching)
        except OrchError as error:
            if isinstance(error, Interrupted):
                raise
            console.error(str(error))
            code = error.exit_code


class CodeWatch(Watch):
    """Looks at the files of a snapshot. New files count when a file changes that the run already has."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._snapshot: Snapshot | None = None
        self._stamps: dict[str, _Stamp] = {}
        self.run_name = ""
        self.run_id: str | None = None  # of the last run that has started
        self.has_changed = False

    def begin(self, snapshot: Snapshot | None, run_name: str) -> None:
        if snapshot is None or not snapshot.files:
            why = "no word of the command is a file" if snapshot else "run.sync is none, or every host has a workdir"
            raise UsageError(f"--watch needs code that ddp-orch sends: {why}")
        self.run_name = run_name
        self._snapshot = snapshot
        self._stamps = _stamps(snapshot)

    @contextlib.contextmanager
    def stop_run_on_change(self, run_id: str, hosts: Sequence[Host], fleet: Fleet) -> Iterator[None]:
        over = threading.Event()
        self.run_id = run_id

        def look() -> None:
            if self._wait(over, self._compiling()):
                question = {"run_id": run_id, "by": registry.WATCH}
                results = fleet.each(hosts, lambda _, session: session.request(FINISH, question))
                if not over.is_set():  # afterwards the requests fail because the run has ended
                    for line in fold_failures(results.failed):
                        self._console.warning(f"could not stop the run: {line}")

        thread = threading.Thread(target=look, daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join(LEAVE_WINDOW)

    def wait(self) -> None:
        """Wait for a change."""
        self._wait(threading.Event())

    def look_again(self) -> None:
        """From now on, wait for a change of the code as it is now."""
        if self._snapshot is not None:
            self._snapshot = replace(self._snapshot, files=tuple(map(self._read_again, self._snapshot.files)))
            self._stamps = _stamps(self._snapshot)

    def _read_again(self, entry: FileEntry) -> FileEntry:
        assert self._snapshot is not None
        data = _read(self._snapshot, entry)
        if data is None:
            return replace(entry, sha256="missing", target=None)
        if entry.target is not None:
            return replace(entry, target=os.fsdecode(data))
        return replace(entry, sha256=hashlib.sha256(data).hexdigest(), size=len(data))

    def _compiling(self) -> frozenset[str]:
        """Python files that compile with the Python here, which may be older than that of the hosts."""
        assert self._snapshot is not None
        sources = [entry for entry in self._snapshot.files if entry.path.endswith(".py")][:MAX_COMPILED]
        return frozenset(entry.path for entry in sources if not _syntax_error(self._snapshot, entry.path))

    def _wait(self, over: threading.Event, compiling: frozenset[str] = frozenset()) -> bool:
        """Whether the code has changed before `over`. Those of `compiling` do not count while they do not compile."""
        assert self._snapshot is not None
        broken: Mapping[str, str] = {}  # the error by path
        while not over.wait(LOOK_INTERVAL):
            stamps = _stamps(self._snapshot)
            if broken and stamps != self._stamps:  # compare all files with the code of the run: an edit may be undone
                self._stamps = dict.fromkeys(stamps, UNKNOWN)
            changed = _changed(self._snapshot, self._stamps, stamps)
            # a log next to the code may grow all the time
            while changed and not over.wait(LOOK_INTERVAL):
                before, stamps = stamps, _stamps(self._snapshot)
                changed = _changed(self._snapshot, self._stamps, stamps)
                if all(stamps[path] == before[path] for path in changed):
                    break  # else an editor or git is still writing
            suspects = sorted(compiling & {*changed, *broken})
            if changed and (
                broken := {path: error for path in suspects if (error := _syntax_error(self._snapshot, path))}
            ):
                self._console.warning(f"{next(iter(broken.values()))}; the run continues with the code that it has")
                self._stamps = stamps
            elif changed:
                names = ", ".join(changed[:MAX_NAMES]) + (", ..." if len(changed) > MAX_NAMES else "")
                self._console.note(f"{names} changed at {time.strftime('%H:%M:%S')}; restarting")
                self.has_changed = True
                return True
            elif stamps != self._stamps:
                self._stamps, broken = stamps, {}
        return False


def _syntax_error(snapshot: Snapshot, path: str) -> str:
    """Where and why a Python file does not compile; "": it compiles, or cannot be read."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compile((snapshot.root / path).read_bytes(), path, "exec", dont_inherit=True)
    except SyntaxError as error:
        return f"{path} line {error.lineno}: {error.msg}"
    except (OSError, ValueError):
        pass
    return ""


def _stamps(snapshot: Snapshot) -> dict[str, _Stamp]:
    return {entry.path: _stamp(snapshot, entry) for entry in snapshot.files}


def _stamp(snapshot: Snapshot, entry: FileEntry) -> _Stamp:
    try:
        status = os.lstat(snapshot.root / entry.path)
    except OSError:
        return None
    return (status.st_mtime_ns, status.st_size, status.st_ino)


def _changed(snapshot: Snapshot, before: Mapping[str, _Stamp], after: Mapping[str, _Stamp]) -> list[str]:
    """The files with other contents. A mere `touch`, or saving the same text again, does not count."""
    return [
        entry.path
        for entry in snapshot.files
        if before[entry.path] != after[entry.path] and _has_other_contents(snapshot, entry)
    ]


def _has_other_contents(snapshot: Snapshot, entry: FileEntry) -> bool:
    # `up --watch | tee train.log` writes to a log that is next to the code
    data = _read(snapshot, entry, -1 if entry.path.endswith(".py") else entry.size)
    if data is None:
        return True
    return hashlib.sha256(data).hexdigest() != _digest(entry)


def _digest(entry: FileEntry) -> str:
    return entry.sha256 if entry.target is None else hashlib.sha256(os.fsencode(entry.target)).hexdigest()


def _read(snapshot: Snapshot, entry: FileEntry, most: int = -1) -> bytes | None:
    """The first `most` bytes (-1: all) of that file now, or the target of the link. None: it is missing."""
    path = snapshot.root / entry.path
    try:
        if entry.target is not None:
            return os.fsencode(path.readlink())
        with path.open("rb") as file:
            return file.read(most)
    except OSError:
        return None
