"""All hosts at once: sessions to them, and one thing done on each. That some fail is a result, never an exception."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Generic, TypeVar

from .errors import FindingsError, HeldError, OrchError, UnreachableError
from .inventory import Host
from .session import Refused, Session
from .ship import NodeProgram
from .ssh import Dialer

T = TypeVar("T")
EXEC_START_WINDOW = 30.0  # s for a host to start a command, and to tell its exit status


@dataclass(frozen=True)
class Results(Generic[T]):
    """What each host gave: a value, or why there is none."""

    done: Mapping[str, T]
    failed: Mapping[str, OrchError]


def each(hosts: Iterable[Host], work: Callable[[Host], T], parallel: int) -> Results[T]:
    """Run `work` for every host, at most `parallel` at a time. A bug in `work` is raised; an OrchError is a result."""
    done: dict[str, T] = {}
    failed: dict[str, OrchError] = {}

    def one(host: Host) -> None:
        try:
            done[host.name] = work(host)
        except OrchError as error:
            failed[host.name] = error

    hosts = list(hosts)
    with ThreadPoolExecutor(max_workers=max(1, min(parallel, len(hosts))), thread_name_prefix="fleet") as pool:
        for future in [pool.submit(one, host) for host in hosts]:
            future.result()
    order = [host.name for host in hosts]
    return Results(
        {name: done[name] for name in order if name in done}, {name: failed[name] for name in order if name in failed}
    )


@dataclass(frozen=True)
class Output:
    """What a command on a host gave."""

    status: int
    stdout: bytes
    stderr: bytes

    def text(self) -> str:
        return (self.stdout + self.stderr).decode("utf-8", "backslashreplace")

    def as_dict(self) -> dict[str, str | int]:
        return {
            "exit_code": self.status,
            "stdout": self.stdout.decode("utf-8", "backslashreplace"),
            "stderr": self.stderr.decode("utf-8", "backslashreplace"),
        }


def _run(dialer: Dialer, host: Host, command: str) -> Output:
    connection = dialer.connect(host)
    try:
        pipe = connection.open(command, EXEC_START_WINDOW)
        pipe.close_write()
        chunks = []
        while data := pipe.recv(1 << 16, None):
            chunks.append(data)
        status = pipe.exit_status(EXEC_START_WINDOW)
        if status is None:
            raise UnreachableError(
                f"{host.name}: the connection was lost before the command had ended, or a signal ended it"
            )
        return Output(status, b"".join(chunks), pipe.stderr())
    finally:
        connection.close()


class Fleet:
    """The sessions of one invocation: one a host, opened when first needed and again when it broke."""

    def __init__(self, dialer: Dialer, program: NodeProgram, parallel: int, nonce: Callable[[], str]) -> None:
        self._dialer = dialer
        self._program = program
        self._nonce = nonce
        self._sessions: dict[str, Session] = {}
        self._lock = threading.Lock()
        self._closed = False
        self.parallel = parallel

    def prepare(self, hosts: Iterable[Host]) -> None:
        """Before the first connection: pass phrases are asked for here, once."""
        self._dialer.prepare(hosts)

    def session(self, host: Host) -> Session:
        """The session to a host. Raises ConnectFailure, SessionLost or Refused."""
        with self._lock:
            known = self._sessions.get(host.name)
        if known is not None and not known.lost:
            return known
        connection = self._dialer.connect(host)
        try:
            session = Session(host.name, connection, host.python, self._program, self._nonce())
        except BaseException:
            connection.close()
            raise
        with self._lock:
            if self._closed:
                session.close()
            self._sessions[host.name] = session
        return session

    def each(self, hosts: Iterable[Host], work: Callable[[Host, Session], T]) -> Results[T]:
        """Do `work` with the session of every host, opened if need be, all at the same time."""
        return each(hosts, lambda host: work(host, self.session(host)), self.parallel)

    def run(self, hosts: Iterable[Host], command: Callable[[Host], str]) -> Results[Output]:
        """Run a command line on every host over a bare channel: without the node program."""
        return each(hosts, lambda host: _run(self._dialer, host, command(host)), self.parallel)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            sessions = list(self._sessions.values())
        threads = [threading.Thread(target=session.close, daemon=True) for session in sessions]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(3.0)
        self._dialer.close()


def reasons(failed: Mapping[str, OrchError]) -> dict[str, str]:
    """Why each host failed, without its name, so that equal reasons can be folded."""
    return {name: str(error).removeprefix(f"{name}: ") for name, error in failed.items()}


def worst(failed: Iterable[OrchError], text: str) -> OrchError:
    """One error for all: a host not reached (4) counts over one held by somebody (5), that over a finding (3)."""
    errors = list(failed)
    if any(isinstance(error, UnreachableError) for error in errors):
        return UnreachableError(text)
    if any(isinstance(error, Refused) and error.code == "held" for error in errors):
        return HeldError(text)
    return FindingsError(text)
