"""The one seam between the orchestrator and a host: a byte pipe to one command. Knows neither SSH nor the protocol.

`Connection.open` starts one command and gives a `Pipe` to it. `LocalConnection` runs commands on
this machine; `dialer.py` opens connections over SSH. Both behave as sshd does without a terminal: the command runs in
a shell with its own session, closing the pipe sends it no signal, and a command that continues to write gets EPIPE.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from ..errors import UnreachableError

STDERR_KEPT = 64 * 1024
"""Bytes of a command's stderr that a pipe keeps; older ones are dropped."""

STALL_LIMIT = 60.0
"""Seconds that `Pipe.send` waits for the other end to take any byte."""


END_GRACE, END_WINDOW = 2.0, 1.0
"""Seconds that `Pipe.end` gives a command after TERM, and after KILL."""

STDERR_LAG = 1.0
"""Seconds that `Pipe.exit_status` waits for the end of stderr after the command has ended."""


@dataclass(frozen=True)
class OtherKey:
    """A login with another key than the one in the inventory, which the host refused."""

    named: str
    accepted: str

    def __str__(self) -> str:
        return f"the host refused identity_file {self.named}; logged in with {self.accepted}"


@dataclass(frozen=True)
class GroupMessage:
    """A failure without the details of one host, such as its address: one message for hosts that failed the same way.

    `fix` may contain HOSTS (all members) and FIRST (the first member).
    """

    reason: str
    fix: str
    member: str = ""
    """This host's name or command, as the fix needs it."""


class ConnectFailure(UnreachableError):
    """A failed connection or login: the host, the phase, the reason and the fix.

    `code` is the label of the failure (`ssh-auth-denied`, ...), so that no code tells failures apart by their text.
    """

    def __init__(
        self, host: str, phase: str, reason: str, code: str, fix: str, group: GroupMessage | None = None
    ) -> None:
        self.host, self.phase, self.reason, self.code, self.fix = host, phase, reason, code, fix
        self.group = group or GroupMessage(reason, fix)
        super().__init__(f"{host}: {self._message(reason, fix)}")

    @property
    def group_message(self) -> str:
        """The message of the group, equal for all hosts that failed the same way."""
        return self._message(self.group.reason, self.group.fix)

    def of_jump_host(self, host: str) -> ConnectFailure:
        """This failure of a jump host as the failure of a host behind it."""
        return ConnectFailure(
            host, f"jump host {self.host}: {self.phase}", self.reason, self.code, self.fix, self.group
        )

    def _message(self, reason: str, fix: str) -> str:
        return f"{self.phase}: {reason}; {fix}" if fix else f"{self.phase}: {reason}"


def fill_in_members(text: str, failures: Iterable[Exception]) -> str:
    """Replace HOSTS in the text of a group by all members, and FIRST by the first one."""
    members = list(dict.fromkeys(failure.group.member for failure in failures if isinstance(failure, ConnectFailure)))
    return text.replace("HOSTS", " ".join(members)).replace("FIRST", members[0]) if members else text


class Pipe(Protocol):
    """A byte pipe to one command. One thread may receive while another one sends."""

    def recv(self, size: int, timeout: float | None) -> bytes:
        """At most `size` bytes of the command's stdout; `b""` at its end, or when the connection is lost.

        Raises `TimeoutError` after `timeout` seconds without a byte (`None`: no limit). The end of the
        stream does not mean that the command succeeded: see `exit_status`.
        """

    def send(self, data: bytes) -> None:
        """Write all of `data` to the command's stdin.

        Raises `BrokenPipeError` or another `ConnectionError` when the command or the connection is gone, and
        `TimeoutError` when the command read nothing for `STALL_LIMIT` seconds.
        """

    def close_write(self) -> None:
        """End the command's stdin. What it still prints can be received."""

    def stderr(self) -> bytes:
        """The last `STDERR_KEPT` bytes of the command's stderr so far. It is drained even if it is never read."""

    def listen_to_stderr(self, take: Callable[[bytes], None]) -> None:
        """Have `take` called with the stderr of the command so far, and, in another thread, with all that follows.

        `take` must not raise: the thread also keeps the command from waiting for room in its stderr.
        """

    def exit_status(self, timeout: float) -> int | None:
        """The command's exit status, or `None` if it is not known within `timeout` seconds.

        Receive the output of a command to its end first, because it may wait for that. A signal N that ended the
        command is 128 + N for a local one, and not known over SSH.
        """

    def end(self) -> bool:
        """Stop the command and its process group: TERM, and KILL for what is left after `END_GRACE` seconds.

        Returns whether all of it has ended. Never raises.
        """

    def close(self) -> None:
        """Close the pipe without a signal to the command. Never raises; may be called twice."""


class Connection(Protocol):
    """A host that commands can be started on."""

    def open(self, command: str, timeout: float) -> Pipe:
        """Start `command` with the user's login shell, without a terminal, within `timeout` seconds.

        Raises `ConnectFailure` when the host does not start it or the connection is lost.
        """

    def close(self) -> None:
        """Close all pipes of this connection. Never raises; may be called twice."""


class Tail:
    """The last bytes of a stream. Safe to fill and to read from different threads."""

    def __init__(self, limit: int = STDERR_KEPT) -> None:
        self._limit = limit
        self._chunks: deque[bytes] = deque()
        self._size = 0
        self._lock = threading.Lock()
        self._take: Callable[[bytes], None] | None = None

    def listen(self, take: Callable[[bytes], None]) -> None:
        """As `Pipe.listen_to_stderr`."""
        with self._lock:
            self._take = take
            if self._chunks:
                take(b"".join(self._chunks))

    def add(self, data: bytes) -> None:
        with self._lock:
            if self._take is not None:
                self._take(data)
            self._chunks.append(data)
            self._size += len(data)
            while self._size - len(self._chunks[0]) >= self._limit:
                self._size -= len(self._chunks.popleft())

    def value(self) -> bytes:
        with self._lock:
            return b"".join(self._chunks)[-self._limit :]


_PLACE_VARIABLES = ("SLURM_", "PMI_", "PMIX_", "OMPI_")


class LocalConnection:
    """`localhost`: commands run by `/bin/sh -c` in the home directory, with the environment of this process.

    But without the variables by which Slurm and MPI tell a process its place: ranks here are as those of other hosts.
    """

    def __init__(self) -> None:
        self._pipes: list[LocalPipe] = []

    def open(self, command: str, timeout: float) -> LocalPipe:
        argv = ("/bin/sh", "-c", command)
        environment = {name: value for name, value in os.environ.items() if not name.startswith(_PLACE_VARIABLES)}
        pipe = LocalPipe(start_process(argv, cwd=_home(), env=environment))
        self._pipes.append(pipe)
        return pipe

    def close(self) -> None:
        for pipe in self._pipes:
            pipe.close()


def _home() -> Path:
    """The home folder, as sshd sets it: `/` for a user whose home does not exist."""
    try:
        home = Path.home()
    except RuntimeError:  # an unknown user without HOME
        return Path("/")
    return home if home.is_dir() else Path("/")


def start_process(
    argv: Sequence[str], *, cwd: Path | None = None, env: Mapping[str, str] | None = None
) -> subprocess.Popen[bytes]:
    """Start a process for a `LocalPipe`, in a session of its own: Ctrl-C is for this process only."""
    return subprocess.Popen(
        argv,
        bufsize=0,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        cwd=cwd,
        env=env,
    )


class LocalPipe:
    """A `Pipe` to a process on this machine, started by `start_process`."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        assert self._process.stdin and self._process.stdout and self._process.stderr
        self._stdin, self._stdout = self._process.stdin, self._process.stdout
        os.set_blocking(self._stdin.fileno(), False)
        self._tail = Tail()
        # `close` must wake waiting threads, and must not close a descriptor that a thread uses: the next file opened
        # would get its number. So all threads poll `_closing` too, and each end is closed under its own lock.
        self._closing, self._close = os.pipe()
        self._closed = False
        self._receiving, self._sending = threading.Lock(), threading.Lock()
        self._drained = threading.Event()
        # A daemon, because the command may outlive this process.
        threading.Thread(target=self._drain_stderr, name="local-stderr", daemon=True).start()

    def recv(self, size: int, timeout: float | None) -> bytes:
        with self._receiving:
            if self._closed:
                return b""
            ready = self._wait(self._stdout.fileno(), select.POLLIN, timeout)
            if not ready:
                raise TimeoutError(f"the command printed nothing for {timeout} s")
            return b"" if self._closed else os.read(self._stdout.fileno(), size)

    def send(self, data: bytes) -> None:
        with self._sending:
            rest = memoryview(data)
            while rest:
                if self._closed or self._stdin.closed:
                    raise BrokenPipeError("the pipe is closed")
                if not self._wait(self._stdin.fileno(), select.POLLOUT, STALL_LIMIT):
                    raise TimeoutError(f"the command read nothing for {STALL_LIMIT:g} s")
                try:
                    rest = rest[os.write(self._stdin.fileno(), rest) :]
                except BlockingIOError:
                    # A pipe with some room is ready, but a write of PIPE_BUF bytes or less is atomic and may not fit.
                    time.sleep(0.001)

    def close_write(self) -> None:
        with self._sending:
            self._stdin.close()

    def stderr(self) -> bytes:
        return self._tail.value()

    def listen_to_stderr(self, take: Callable[[bytes], None]) -> None:
        self._tail.listen(take)

    def exit_status(self, timeout: float) -> int | None:
        deadline = time.monotonic() + timeout
        try:
            status = self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            return None
        # so that `stderr` is complete from now on; a child of the command may keep it open
        self._drained.wait(min(STDERR_LAG, max(0.0, deadline - time.monotonic())))
        return status if status >= 0 else 128 - status

    def end(self) -> bool:
        group = self._process.pid
        deadline = time.monotonic() + END_GRACE
        try:
            os.killpg(group, signal.SIGTERM)
            while time.monotonic() < deadline:
                time.sleep(0.02)
                os.killpg(group, 0)
            os.killpg(group, signal.SIGKILL)
        except ProcessLookupError:
            return True
        except PermissionError:
            return False
        # not the group: where nothing reaps orphans, it keeps its dead members
        return self.exit_status(END_WINDOW) is not None

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        os.close(self._close)
        with self._receiving:
            self._stdout.close()
        with self._sending:
            self._stdin.close()
        self._drained.wait()
        os.close(self._closing)

    def _wait(self, descriptor: int, event: int, timeout: float | None) -> bool:
        poll = select.poll()
        poll.register(descriptor, event)
        poll.register(self._closing, select.POLLIN)
        return bool(poll.poll(None if timeout is None else max(0.0, timeout) * 1000))

    def _drain_stderr(self) -> None:
        stderr = self._process.stderr
        assert stderr
        try:
            while self._wait(stderr.fileno(), select.POLLIN, None) and not self._closed:
                data = os.read(stderr.fileno(), STDERR_KEPT)
                if not data:
                    break
                self._tail.add(data)
        finally:
            stderr.close()
            self._drained.set()
        self._process.wait()  # reap it here, so that no zombie is left if the status is never read
