"""A connection over programs of this machine, such as `ssh` or `docker exec`: their standard streams are its pipes.

The program runs `sh` on the host. Commands go to the stdin of that shell, so it does not matter whether the program
passes arguments on as they are, or joins them for another shell. Nothing else is sent before the shell has answered,
because some shells read more than one line at once.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import secrets
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from .noise import NoMarker, read_marker
from .pipe import END_GRACE, END_WINDOW, ConnectFailure, LocalPipe, start_process
from .quoting import quote

CLOSE_GRACE = 0.5
"""Seconds that a program gets to end by itself when its pipe is closed, and after TERM."""

_END = (
    # the group of the command, if it is still the process that was started
    'cd /proc && stat=$(cat PID/stat) || exit 1; set -- ${stat##*) }; group=$3; [ "$group" -gt 1 ] || exit 1; '
    # ignore zombies: in some containers nothing reaps orphans
    'left() { grep -qs ") [^ZX] [0-9]* $group " [0-9]*/stat; }; '
    f"kill -s TERM -- -$group; for try in $(seq {round(10 * END_GRACE)}); do left || exit 0; sleep 0.1; done; "
    f"kill -s KILL -- -$group; for try in $(seq {round(10 * END_WINDOW)}); do left || exit 0; sleep 0.1; done; exit 1"
)
"""Shell code for a host that ends the process group of process PID; status 0 when none of it is left."""


class NoShell(Exception):
    """The program ended, or the time was over, before a shell answered."""

    def __init__(self, status: int | None, stderr: bytes, *, late: bool) -> None:
        super().__init__(f"status {status}")
        self.status, self.stderr, self.late = status, stderr, late


class ProgramConnection:
    """A `Connection` that starts `argv`, which runs `sh` on the host, for every command.

    `enter`: a command that the shell becomes, which runs another `sh`. `lost`: the exit status with which the program
    says that it lost the connection. The first program is started at
    once, which shows that the host can be reached: raises `NoShell` if not.
    """

    def __init__(
        self,
        host: str,
        argv: Sequence[str],
        env: Mapping[str, str],
        lost: int | None,
        deadline: float,
        enter: str = "",
    ) -> None:
        self._host, self._argv, self._lost = host, tuple(argv), lost
        self._enter = enter
        self._env = os.environ | env
        self._pipes: list[ProgramPipe] = []
        self._lock = threading.Lock()
        self._first: ProgramPipe | None = self._start(deadline)

    def open(self, command: str, timeout: float) -> ProgramPipe:
        deadline = time.monotonic() + timeout
        with self._lock:
            pipe, self._first = self._first, None
        try:
            pipe = pipe or self._start(deadline)
            pipe.run(command, deadline)
        except (NoShell, OSError) as error:
            late = isinstance(error, NoShell) and error.late
            reason = "no answer in time" if late else "the connection was lost"
            raise ConnectFailure(self._host, "session", reason, "ssh-session-dropped", "try again") from error
        return pipe

    def close(self) -> None:
        with self._lock:
            pipes, self._pipes = self._pipes, []
        for pipe in pipes:
            pipe.close()

    def _start(self, deadline: float) -> ProgramPipe:
        process = _SPAWNER.submit(start_process, (*_die_with_us(), *self._argv), env=self._env).result()
        pipe = ProgramPipe(process, self._lost, self._run_alone)
        with self._lock:
            self._pipes.append(pipe)
        try:
            if self._enter:
                pipe.ask(f"; exec {self._enter}", deadline)
            pipe.ask("", deadline)
        except BaseException:
            pipe.close()
            raise
        return pipe

    def _run_alone(self, command: str) -> bool:
        """Run a command over a program of its own; whether it succeeded."""
        try:
            pipe = self.open(command, END_WINDOW + END_GRACE)
        except ConnectFailure:
            return False
        return pipe.exit_status(END_GRACE + 2 * END_WINDOW) == 0


class ProgramPipe(LocalPipe):
    """A `Pipe` to a command on a host, over a process of this machine."""

    def __init__(self, process: subprocess.Popen[bytes], lost: int | None, run_alone: Callable[[str], bool]) -> None:
        super().__init__(process)
        self._lost, self._run_alone = lost, run_alone
        self._pid = 0
        self._rest = b""

    def run(self, command: str, deadline: float) -> None:
        """Replace the shell by `command`, as sshd runs it. Raises NoShell."""
        self._pid = self.ask(f"; cd 2>/dev/null || cd /; exec sh -c {quote([command])}", deadline)

    def ask(self, then: str, deadline: float) -> int:
        """Wait for the shell to answer with its pid; it reads the code `then` before it answers. Raises NoShell."""
        token = secrets.token_hex(8)
        line = f"printf '\\n%s %d\\n' {token} $${then}\n"
        with contextlib.suppress(OSError):  # what stopped it is seen below
            self.send(line.encode(errors="surrogateescape"))
        # with digits: a terminal would show the line itself
        answer = re.compile(rb"\n%s (\d+)\r?\n" % token.encode())
        try:
            found, self._rest = read_marker(super().recv, answer, deadline)
        except NoMarker as missing:
            late = missing.why == "late"
            status = None if late else super().exit_status(CLOSE_GRACE)
            raise NoShell(status, self.stderr() or missing.seen, late=late) from None
        return int(found[1])

    def recv(self, size: int, timeout: float | None) -> bytes:
        if self._rest:
            data, self._rest = self._rest[:size], self._rest[size:]
            return data
        return super().recv(size, timeout)

    def exit_status(self, timeout: float) -> int | None:
        status = super().exit_status(timeout)
        return None if status == self._lost else status

    def end(self) -> bool:
        status = self._process.poll()
        if status is not None:
            return status >= 0 and status != self._lost
        return self._run_alone(_END.replace("PID", str(self._pid)))

    def close(self) -> None:
        """Close the pipe, and see that the program ends. The command on the host gets no signal."""
        super().close()
        for number in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(CLOSE_GRACE)
                return
            with contextlib.suppress(OSError):  # it may belong to another user (sudo)
                os.killpg(self._process.pid, number)


_SPAWNER = ThreadPoolExecutor(1, "program")
"""Starts all programs: the kernel sends the signal of `_die_with_us` when the thread that started them ends."""


@functools.cache
def _die_with_us() -> tuple[str, ...]:
    """The start of a command line that the kernel kills with this process; () where there is no such program."""
    if not shutil.which("setpriv"):
        return ()
    prefix = ("setpriv", "--pdeathsig", "KILL", "--")
    works = subprocess.run((*prefix, "true"), capture_output=True, check=False).returncode == 0
    return prefix if works else ()
