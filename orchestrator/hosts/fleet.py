"""All hosts at once: sessions to them, and one thing done on each. That some fail is a result, never an exception."""

from __future__ import annotations

import logging
import math
import threading
import time
import traceback
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from ..errors import FindingsError, HeldError, OrchError, UnreachableError
from ..inventory.model import Host
from ..output.console import fold_messages
from ..ssh.dialer import Dialer
from ..ssh.pipe import ConnectFailure, OtherKey, Pipe, with_hosts
from ..ui.progress import Silent
from .node_program import NodeProgram
from .session import Refused, Session


class Named(Protocol):
    @property
    def name(self) -> str: ...


T = TypeVar("T")
N = TypeVar("N", bound=Named)
EXEC_START_WINDOW = 30.0  # s for a host to start a command
OUTPUT_MOST = 16 << 20  # bytes of a command's stdout that are kept
EXEC_STATUS_WINDOW = 5.0  # s for its exit status, once its output has ended
CLOSE_WINDOW = 3.0  # s to say goodbye to all hosts
LOOK_EVERY = 0.1  # s between two looks at what has come, where somebody wants to see it
SILENT = Silent()
UNEXPECTED_MOST = 300  # characters of an exception that are shown
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Results(Generic[T]):
    """What each host gave: a value, or why there is none."""

    done: Mapping[str, T]
    failed: Mapping[str, OrchError]
    late: frozenset[str] = frozenset()
    """Hosts among the failed whose result nobody waited for any longer."""


class Late(UnreachableError):
    """A host whose result nobody waited for any longer."""


def unexpected(host: str, error: BaseException) -> Refused:
    """The failure of one host for an exception that nobody foresaw: it must not cost the results of the others."""
    _log.info("%s: unexpected exception", host, exc_info=error)
    source = error.__cause__ or error
    last = traceback.extract_tb(source.__traceback__)[-1:]
    where = "".join(f" at {Path(frame.filename).name}:{frame.lineno}" for frame in last)
    what = " ".join(f"{type(source).__name__}: {source}".split())[:UNEXPECTED_MOST]
    return Refused("bug", f"{host}: unexpected {what}{where}; please report this")


def each(
    hosts: Iterable[N],
    work: Callable[[N], T],
    parallel: int,
    progress: Silent = SILENT,
    doing: str = "",
    *,
    enough: Callable[[Results[T]], bool] | None = None,
) -> Results[T]:
    """Run `work` for every host, at most `parallel` at a time. Any exception in `work` is that host's failure.

    `progress` shows what each host is at; `doing` names the work, until `work` itself says something else. An interrupt
    comes through at once: nothing new is begun, and nobody waits for what has been. `enough`: see `Work.wait`; nothing
    new is begun once it has returned True.
    """
    begun = Work(hosts, work, parallel, progress, doing)
    try:
        return begun.wait(enough)
    finally:
        begun.end()


class Work(Generic[N, T]):
    """One thing done on many hosts, in threads that go on while nobody waits for them; see `each`."""

    def __init__(
        self, hosts: Iterable[N], work: Callable[[N], T], parallel: int, progress: Silent = SILENT, doing: str = ""
    ) -> None:
        """Nothing is begun before `start` or `wait`."""
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
        """What all hosts gave. `enough` sees what has come, now and then and at an interrupt; where it returns True,
        the hosts that have no result yet fail with `Late`. They are still worked on: wait again for the rest.
        """
        late = self.results().late
        try:
            with self._progress.of([host.name for host in self._hosts if host.name in late]):
                if self._started:
                    for name in late:
                        self._progress.at(name, self._doing)
                self.start()
                for thread in self._threads:
                    while thread.is_alive():
                        pause = self._progress.tick()
                        thread.join(pause if enough is None else min(LOOK_EVERY, pause or LOOK_EVERY))
                        if enough is not None and enough(self.results()):
                            return self.results()
        except KeyboardInterrupt:
            self.end()
            if enough is not None:
                enough(self.results())
            raise
        return self.results()

    def results(self) -> Results[T]:
        """What has come so far."""
        came, lost = self._done.copy(), self._failed.copy()
        order = [host.name for host in self._hosts]
        late = [name for name in order if name not in came and name not in lost]
        lost |= {name: Late(f"{name}: no answer yet") for name in late}
        return Results(
            {name: came[name] for name in order if name in came},
            {name: lost[name] for name in order if name in lost},
            frozenset(late),
        )

    def end(self) -> None:
        """Begin nothing new."""
        self._waiting.clear()

    def _run(self) -> None:
        while True:
            try:
                host = self._waiting.popleft()
            except IndexError:
                return
            self._progress.at(host.name, self._doing)
            try:
                self._done[host.name] = self._work(host)
                self._progress.ended(host.name)
            except OrchError as error:
                self._failed[host.name] = error
                self._progress.ended(host.name, _reason(host.name, error))
            except BaseException as error:  # noqa: BLE001  answers of other people's machines lead here
                self._failed[host.name] = unexpected(host.name, error)
                self._progress.ended(host.name, _reason(host.name, self._failed[host.name]))


@dataclass(frozen=True)
class Output:
    """What a command on a host gave."""

    status: int
    stdout: str
    stderr: str
    left_out: int = 0
    """Bytes of stdout that came after the first OUTPUT_MOST."""


@dataclass
class _Command:
    """A command line at work on a host, or about to be."""

    name: str
    """The host's."""
    busy: threading.Lock = field(default_factory=threading.Lock)
    """Held while it is started, while it is ended, and while its connection is closed."""
    pipe: Pipe | None = None


def _output(name: str, pipe: Pipe) -> Output:
    """Raises UnreachableError."""
    kept = bytearray()
    size = 0
    while data := pipe.recv(1 << 16, None):
        size += len(data)
        kept += data[: OUTPUT_MOST - len(kept)]
    status = pipe.exit_status(EXEC_STATUS_WINDOW)
    if status is None:
        raise UnreachableError(f"{name}: the connection was lost, or a signal ended the command")
    return Output(status, _text(bytes(kept)), _text(pipe.stderr()), size - len(kept))


def _text(data: bytes) -> str:
    return data.decode("utf-8", "backslashreplace")


class Fleet:
    """The sessions of one invocation: one a host, opened when first needed and again when it broke."""

    def __init__(
        self, dialer: Dialer, program: NodeProgram, parallel: int, nonce: Callable[[], str], progress: Silent = SILENT
    ) -> None:
        self._dialer = dialer
        self._program = program
        self._nonce = nonce
        self._sessions: dict[str, Session] = {}
        self._opening: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)
        self._failures: dict[str, tuple[float, OrchError]] = {}  # of the last try to open, and when it ended
        self._lock = threading.Lock()
        self._closed = False
        self._commands: list[_Command] = []
        self._interrupted = False
        self.parallel = parallel
        self.progress = progress

    def prepare(self, hosts: Iterable[Host]) -> None:
        """Before the first connection: pass phrases are asked for here, once."""
        self._dialer.prepare(hosts)

    def take_other_keys(self) -> dict[str, OtherKey]:
        """Hosts that refused the key which the inventory names, and accepted another one: each is told once."""
        return self._dialer.take_other_keys()

    def forget_refusals(self) -> None:
        """Hosts that refused the login are tried again."""
        self._dialer.forget_refusals()

    def session(self, host: Host) -> Session:
        """The session to a host. Raises ConnectFailure, SessionLost or Refused."""
        with self._lock:
            opening = self._opening[host.name]
        asked = time.monotonic()
        with opening:  # who comes second gets what the first one opens, or why it could not
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
        self.progress.reaching(host.name, "starting python")
        try:
            session = Session(host.name, connection, host.python, self._program, self._nonce())
        except BaseException:
            connection.close()
            raise
        finally:
            self.progress.reaching(host.name, "")
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
        """Do `work` with the session of every host, opened if need be, all at the same time.

        Progress is shown where `doing` names the work: while nobody else writes to the terminal. `enough`: see `each`.
        """
        progress = self.progress if doing else SILENT
        return each(hosts, lambda host: work(host, self.session(host)), self.parallel, progress, doing, enough=enough)

    def begin(self, hosts: Iterable[Host], work: Callable[[Host, Session], T], doing: str = "") -> Work[Host, T]:
        """As `each`, to be started and waited for."""
        progress = self.progress if doing else SILENT
        return Work(hosts, lambda host: work(host, self.session(host)), self.parallel, progress, doing)

    def run(self, hosts: Iterable[Host], command: Callable[[Host], str], doing: str = "") -> Results[Output]:
        """Run a command line on every host over a bare channel: without the node program."""
        progress = self.progress if doing else SILENT
        return each(hosts, lambda host: self.run_on(host, command(host)), self.parallel, progress, doing)

    def run_on(self, host: Host, command: str) -> Output:
        """As `run`, on one host, over a connection of its own. Raises UnreachableError."""
        connection = self._dialer.connect(host)
        started = _Command(host.name)
        try:
            with started.busy:
                with self._lock:
                    if self._interrupted:
                        raise UnreachableError(f"{host.name}: interrupted")
                    self._commands.append(started)
                started.pipe = pipe = connection.open(command, EXEC_START_WINDOW)
            pipe.close_write()
            return _output(host.name, pipe)
        finally:
            with started.busy:
                connection.close()
                started.pipe = None

    def end_commands(self) -> frozenset[str]:
        """End what `run_on` still runs, on all hosts at once, and let it start nothing more.

        Returns the hosts where something may still run.
        """

        def end(command: _Command) -> bool:
            with command.busy:
                return command.pipe is None or command.pipe.end()

        with self._lock:
            self._interrupted = True
            commands = list(self._commands)
        ended = each(commands, end, self.parallel).done
        return frozenset(command.name for command in commands if not ended.get(command.name))

    def close(self) -> None:
        """Close all sessions, and end what `run_on` still runs."""
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


def folded(failed: Mapping[str, OrchError]) -> list[str]:
    """Why hosts failed, one line for those that failed alike, although each has an address and a key of its own."""
    alike = {name: error.alike for name, error in failed.items() if isinstance(error, ConnectFailure)}
    said = reasons(failed)
    for text in set(alike.values()):
        names = [name for name, one in alike.items() if one == text]
        if len({said[name] for name in names}) > 1:
            said.update(dict.fromkeys(names, with_hosts(text, (failed[name] for name in names))))
    return fold_messages(said)


def worst(failed: Iterable[OrchError], text: str) -> OrchError:
    """One error for all: a host not reached (4) counts over one held by somebody (5), that over a finding (3)."""
    errors = list(failed)
    if any(isinstance(error, UnreachableError) for error in errors):
        return UnreachableError(text)
    codes = {error.code for error in errors if isinstance(error, Refused)}
    if "held" in codes:
        return HeldError(text)
    return OrchError(text) if "bug" in codes else FindingsError(text)
