"""Sessions to all hosts, and one task done on each in parallel. The failure of some hosts is a result, not an error."""

from __future__ import annotations

import logging
import math
import threading
import time
import traceback
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from ..errors import FindingsError, HeldError, OrchError, UnreachableError
from ..inventory.model import Host
from ..output.console import fold_messages
from ..ssh.dialer import Dialer
from ..ssh.pipe import ConnectFailure, Connection, OtherKey, fill_in_members
from ..ui.progress import NoProgress
from .host_command import START_WINDOW, Listener, Output, StartedCommand, read_output
from .node_program import NodeProgram
from .session import Refused, Session


class Named(Protocol):
    @property
    def name(self) -> str: ...


T = TypeVar("T")
N = TypeVar("N", bound=Named)
CLOSE_WINDOW = 3.0  # s to end the sessions of all hosts
CHECK_EVERY = 0.1  # s between two calls of `enough`
NO_PROGRESS = NoProgress()
MAX_BUG_TEXT = 300  # characters of an exception that are shown
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Results(Generic[T]):
    """The result of each host: a value, or why there is none."""

    done: Mapping[str, T]
    failed: Mapping[str, OrchError]
    late: frozenset[str] = frozenset()
    """The failed hosts that had no result when the wait ended."""


class Late(UnreachableError):
    """A host that had no result when the wait ended."""


def wrap_unexpected(host: str, error: BaseException) -> Refused:
    """Turn an unexpected exception into the failure of one host, so that the results of the others are kept."""
    _log.info("%s: unexpected exception", host, exc_info=error)
    source = error.__cause__ or error
    frames = traceback.extract_tb(source.__traceback__)[-1:]
    where = "".join(f" at {Path(frame.filename).name}:{frame.lineno}" for frame in frames)
    text = " ".join(f"{type(source).__name__}: {source}".split())[:MAX_BUG_TEXT]
    return Refused("bug", f"{host}: unexpected {text}{where}; please report this")


def each(
    hosts: Iterable[N],
    work: Callable[[N], T],
    parallel: int,
    progress: NoProgress = NO_PROGRESS,
    doing: str = "",
    *,
    enough: Callable[[Results[T]], bool] | None = None,
) -> Results[T]:
    """Run `work` for every host, at most `parallel` at a time. Any exception in `work` is that host's failure.

    `progress` shows the phase of each host; `doing` is its name until `work` sets another. An interrupt is raised at
    once: no more hosts are started, and running ones are not waited for. `enough`: see `Work.wait`; once it has
    returned True, no more hosts are started.
    """
    task = Work(hosts, work, parallel, progress, doing)
    try:
        return task.wait(enough)
    finally:
        task.end()


class Work(Generic[N, T]):
    """One task on many hosts, in threads that continue after a wait has ended; see `each`."""

    def __init__(
        self,
        hosts: Iterable[N],
        work: Callable[[N], T],
        parallel: int,
        progress: NoProgress = NO_PROGRESS,
        doing: str = "",
    ) -> None:
        """Starts nothing; `start` and `wait` do."""
        self._hosts = list(hosts)
        self._work = work
        self._progress = progress
        self._doing = doing
        self._waiting = deque(self._hosts)
        self._done: dict[str, T] = {}
        self._failed: dict[str, OrchError] = {}
        # daemons, not a ThreadPoolExecutor: Python would wait for its threads before it ends, and a host may hang
        count = min(parallel, len(self._hosts))
        self._threads = [threading.Thread(target=self._run, name="fleet", daemon=True) for _ in range(count)]
        self._started = False

    def start(self) -> None:
        if not self._started:
            self._started = True
            for thread in self._threads:
                thread.start()

    def wait(self, enough: Callable[[Results[T]], bool] | None = None) -> Results[T]:
        """The results of all hosts. `enough` gets the results so far from time to time, and at an interrupt. If it
        returns True, hosts without a result fail with `Late`. Their work continues: wait again for the rest.
        """
        late = self.results().late
        try:
            with self._progress.track([host.name for host in self._hosts if host.name in late]):
                if self._started:
                    for name in late:
                        self._progress.set_phase(name, self._doing)
                self.start()
                for thread in self._threads:
                    while thread.is_alive():
                        pause = self._progress.tick()
                        thread.join(pause if enough is None else min(CHECK_EVERY, pause or CHECK_EVERY))
                        if enough is not None and enough(self.results()):
                            return self.results()
        except KeyboardInterrupt:
            self.end()
            if enough is not None:
                enough(self.results())
            raise
        return self.results()

    def results(self) -> Results[T]:
        """The results so far."""
        done, failed = self._done.copy(), self._failed.copy()
        order = [host.name for host in self._hosts]
        late = [name for name in order if name not in done and name not in failed]
        failed |= {name: Late(f"{name}: no answer yet") for name in late}
        return Results(
            {name: done[name] for name in order if name in done},
            {name: failed[name] for name in order if name in failed},
            frozenset(late),
        )

    def end(self) -> None:
        """Start no more hosts."""
        self._waiting.clear()

    def _run(self) -> None:
        while True:
            try:
                host = self._waiting.popleft()
            except IndexError:
                return
            self._progress.set_phase(host.name, self._doing)
            try:
                self._done[host.name] = self._work(host)
                self._progress.finish(host.name)
            except OrchError as error:
                self._failed[host.name] = error
                self._progress.finish(host.name, _reason(host.name, error))
            except BaseException as error:  # noqa: BLE001  a bad answer of a host may raise anything
                self._failed[host.name] = wrap_unexpected(host.name, error)
                self._progress.finish(host.name, _reason(host.name, self._failed[host.name]))


class Fleet:
    """The sessions of one invocation: one per host, opened when first needed and again after it was lost."""

    def __init__(
        self,
        dialer: Dialer,
        program: NodeProgram,
        parallel: int,
        nonce: Callable[[], str],
        progress: NoProgress = NO_PROGRESS,
    ) -> None:
        self._dialer = dialer
        self._program = program
        self._nonce = nonce
        self._sessions: dict[str, Session] = {}
        self._opening: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)
        self._failures: dict[
            str, tuple[float, OrchError]
        ] = {}  # of the last attempt to open a session, and when it ended
        self._lock = threading.Lock()
        self._closed = False
        self._commands: list[StartedCommand] = []
        self._interrupted = False
        self.parallel = parallel
        self.progress = progress

    def prepare(self, hosts: Iterable[Host]) -> None:
        """Read the ssh_config of the hosts and ask for pass phrases, before the first connection."""
        self._dialer.prepare(hosts)

    def take_other_keys(self) -> dict[str, OtherKey]:
        """Hosts that refused the key set in the inventory and accepted another one. Each is returned once."""
        return self._dialer.take_other_keys()

    def forget_refusals(self) -> None:
        """Try hosts that refused the login again."""
        self._dialer.forget_refusals()

    def session(self, host: Host) -> Session:
        """The session to a host. Raises ConnectFailure, SessionLost or Refused."""
        with self._lock:
            opening = self._opening[host.name]
        asked = time.monotonic()
        with opening:  # the second thread gets the session of the first, or its failure
            known = self._sessions.get(host.name)
            if known is not None and not known.lost:
                return known
            failed_at, failure = self._failures.get(host.name, (-math.inf, None))
            if failure is not None and failed_at >= asked:
                raise failure
            if known is not None:
                known.close()
            try:
                return self._open(host)
            except OrchError as error:
                self._failures[host.name] = time.monotonic(), error
                raise

    def _open(self, host: Host) -> Session:
        connection = self._dialer.connect(host)
        self.progress.set_connection_phase(host.name, "starting python")
        try:
            session = Session(host.name, connection, host.python, self._program, self._nonce(), host.state_dir)
        except BaseException:
            connection.close()
            raise
        finally:
            self.progress.set_connection_phase(host.name, "")
        with self._lock:
            self._sessions[host.name] = session
            closed = self._closed
        if closed:
            session.close()
        return session

    def each(
        self,
        hosts: Iterable[Host],
        work: Callable[[Host, Session], T],
        doing: str = "",
        *,
        enough: Callable[[Results[T]], bool] | None = None,
    ) -> Results[T]:
        """Do `work` with the session of every host in parallel. Missing sessions are opened.

        With `doing`, progress is shown, so nothing else may write to the terminal. `enough`: see `each`.
        """
        progress = self.progress if doing else NO_PROGRESS
        return each(hosts, lambda host: work(host, self.session(host)), self.parallel, progress, doing, enough=enough)

    def begin(self, hosts: Iterable[Host], work: Callable[[Host, Session], T], doing: str = "") -> Work[Host, T]:
        """As `each`, but the caller starts the work and waits for it."""
        progress = self.progress if doing else NO_PROGRESS
        return Work(hosts, lambda host: work(host, self.session(host)), self.parallel, progress, doing)

    def run(self, hosts: Iterable[Host], command: Callable[[Host], str], doing: str = "") -> Results[Output]:
        """Run a command line on every host over a bare channel: without the node program."""
        progress = self.progress if doing else NO_PROGRESS
        return each(hosts, lambda host: self.run_on(host, command(host)), self.parallel, progress, doing)

    def run_on(self, host: Host, command: str, listener: Listener | None = None) -> Output:
        """As `run`, on one host, over a connection of its own. Raises UnreachableError.

        `listener`: gets all output as it comes.
        """
        connection = self._dialer.connect(host)
        started = StartedCommand(host.name)
        try:
            with started.busy:
                with self._lock:
                    if self._interrupted:
                        raise UnreachableError(f"{host.name}: interrupted")
                    self._commands.append(started)
                started.pipe = pipe = connection.open(command, START_WINDOW)
            pipe.close_write()
            return read_output(host.name, pipe, listener)
        finally:
            with started.busy:
                connection.close()
                started.pipe = None

    def connect(self, host: Host) -> Connection:
        """A new connection of its own, which the caller closes. Raises UnreachableError."""
        return self._dialer.connect(host)

    def end_commands(self) -> frozenset[str]:
        """Stop the commands of `run_on` on all hosts in parallel, and let it start no more.

        Returns the hosts where something may still run.
        """

        def end(command: StartedCommand) -> bool:
            with command.busy:
                return command.pipe is None or command.pipe.end()

        with self._lock:
            self._interrupted = True
            commands = list(self._commands)
        ended = each(commands, end, self.parallel).done
        return frozenset(command.name for command in commands if not ended.get(command.name))

    def close(self) -> None:
        """Close all sessions, and stop the commands of `run_on`."""
        if self._commands:  # also one that is being started: it has no pipe yet
            self.end_commands()
        with self._lock:
            self._closed = True
            sessions = list(self._sessions.values())
        threads = [threading.Thread(target=session.close, daemon=True) for session in sessions]
        for thread in threads:
            thread.start()
        deadline = time.monotonic() + CLOSE_WINDOW
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        self._dialer.close()


def reasons(failed: Mapping[str, OrchError]) -> dict[str, str]:
    """Why each host failed, without its name, so that equal reasons can be folded."""
    return {name: _reason(name, error) for name, error in failed.items()}


def _reason(name: str, error: OrchError) -> str:
    return str(error).removeprefix(f"{name}: ")


def fold_failures(failed: Mapping[str, OrchError]) -> list[str]:
    """Why hosts failed: one line for all hosts that failed the same way, even if each has its own address and key."""
    groups = {name: error.group_message for name, error in failed.items() if isinstance(error, ConnectFailure)}
    messages = reasons(failed)
    for group in set(groups.values()):
        names = [name for name, message in groups.items() if message == group]
        if len({messages[name] for name in names}) > 1:
            messages.update(dict.fromkeys(names, fill_in_members(group, (failed[name] for name in names))))
    return fold_messages(messages)


def combine(failed: Iterable[OrchError], text: str) -> OrchError:
    """One error for all: an unreachable host (4) takes precedence over one in use (5), and that over a finding (3)."""
    errors = list(failed)
    if any(isinstance(error, UnreachableError) for error in errors):
        return UnreachableError(text)
    codes = {error.code for error in errors if isinstance(error, Refused)}
    if codes & {"held", "port-in-use"}:
        return HeldError(text)
    return OrchError(text) if "bug" in codes else FindingsError(text)
