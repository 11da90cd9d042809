"""Join this terminal to a command on a host: input, output, window size. Restores the terminal whatever happens."""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import sys
import termios
import threading
import tty
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from ..answers.shell import SHELL, ShellData, ShellOutput, ShellStarted, ShellTaken
from ..errors import Interrupted, OutputError
from ..hosts.session import Send, Session, SessionLost

WINDOW = 64 * 1024  # bytes of input that a host has got and its command has not taken
CHUNK = 16 * 1024  # bytes


def has_terminal() -> bool:
    """Whether a person is at both ends, so that the command should get a terminal."""
    return sys.stdin.isatty() and sys.stdout.isatty()


def run(
    session: Session,
    run_id: str,
    command: Sequence[str],
    *,
    terminal: bool,
    on_start: Callable[[Sequence[str]], None],
) -> int:
    """Run a command (none: a shell) in the environment of a run until it ends. Returns its exit code.

    `on_start` gets the names of secrets that the host does not have. Raises SessionLost, Refused or Interrupted.
    """
    feeder = _Feeder()
    setting = contextlib.ExitStack()
    closed: list[BrokenPipeError | OutputError] = []

    def on_data(header: ShellData, payload: bytes) -> None:
        match header:
            case ShellStarted(missing_secrets):
                on_start(missing_secrets)
                if terminal:  # only now: until here, Ctrl-C is for this program
                    setting.enter_context(_raw_mode())
            case ShellOutput(stream):
                try:
                    _write(stream, payload)
                except (BrokenPipeError, OutputError) as error:
                    closed.append(error)
                    raise
            case ShellTaken(taken):
                feeder.make_room(taken)
            case _:
                pass

    size = {**_size(), "name": os.environ.get("TERM", "dumb")} if terminal else None
    arguments = {"run_id": run_id, "command": list(command), "terminal": size}
    with setting, _following_size(feeder.resize, terminal):
        try:
            return session.converse(SHELL, arguments, on_data, lambda send: feeder.start(send, session.close)).exit_code
        except SessionLost:
            if feeder.left:
                raise Interrupted("left the shell") from None
            if closed:
                raise closed[0] from None
            raise
        finally:
            feeder.stop()


class _Feeder:
    """A thread that sends stdin to the command, as fast as the command takes it."""

    def __init__(self) -> None:
        self.left = False
        """The user has typed the escape."""
        self._woken, self._wake = os.pipe()
        self._room = WINDOW
        self._counting = threading.Lock()  # of `_room`
        self._resized = False
        self._stopped = False
        self._thread: threading.Thread | None = None

    def start(self, send: Send, leave: Callable[[], None]) -> None:
        self._thread = threading.Thread(target=self._run, args=(send, leave), name="stdin", daemon=True)
        self._thread.start()

    def make_room(self, count: int) -> None:
        with self._counting:
            self._room += count
        self._notify()

    def resize(self) -> None:
        self._resized = True
        self._notify()

    def stop(self) -> None:
        self._stopped = True
        self._notify()
        if self._thread is not None:
            self._thread.join(1.0)

    def _notify(self) -> None:
        os.write(self._wake, b".")

    def _run(self, send: Send, leave: Callable[[], None]) -> None:
        with contextlib.suppress(OSError):  # the session has ended
            handle = sys.stdin.fileno()
            escape, ended = _Escape(), False
            while not self._stopped:
                waits_for = [self._woken, *([handle] if self._room > 0 and not ended else [])]
                ready = select.select(waits_for, [], [])[0]
                if self._woken in ready:
                    os.read(self._woken, CHUNK)
                if self._resized:
                    self._resized = False
                    send(_size(), b"")
                if handle not in ready:
                    continue
                data = os.read(handle, min(CHUNK, self._room))
                ended = not data
                if os.isatty(handle) and escape.is_typed(data):
                    self.left = True
                    return leave()
                with self._counting:
                    self._room -= len(data)
                send({"end": True} if ended else {}, data)


class _Escape:
    """Finds `~.` at the beginning of a line, which leaves a shell that does not answer, as in ssh."""

    def __init__(self) -> None:
        self._line = b""

    def is_typed(self, data: bytes) -> bool:
        self._line = (self._line + data).replace(b"\n", b"\r").rpartition(b"\r")[2][:3]
        return self._line.startswith(b"~.")


@contextlib.contextmanager
def _raw_mode() -> Iterator[None]:
    before = termios.tcgetattr(sys.stdin)
    try:
        tty.setraw(sys.stdin)
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


@contextlib.contextmanager
def _following_size(resize: Callable[[], None], terminal: bool) -> Iterator[None]:
    if not terminal:
        yield
        return
    before = signal.signal(signal.SIGWINCH, lambda *_: resize())
    try:
        yield
    finally:
        signal.signal(signal.SIGWINCH, before)


def _size() -> Mapping[str, Any]:
    columns, rows = shutil.get_terminal_size()
    with contextlib.suppress(OSError):
        columns, rows = os.get_terminal_size(sys.stdin.fileno())  # COLUMNS may be older
    return {"rows": rows, "columns": columns}


def _write(stream: str, data: bytes) -> None:
    """Raises BrokenPipeError or OutputError."""
    handle = (sys.stderr if stream == "stderr" else sys.stdout).fileno()
    rest = memoryview(data)
    while rest:
        try:
            rest = rest[os.write(handle, rest) :]
        except BlockingIOError:  # another program has made the terminal non-blocking
            select.select([], [handle], [])
        except BrokenPipeError:
            raise
        except OSError as error:
            raise OutputError(f"cannot write to {stream}: {error.strerror}") from error
