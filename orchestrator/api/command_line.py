"""Run `ddp-orch` in a process of its own, and turn its exit code into an exception. Knows no command.

Why in a process: docs/adr/0030-the-python-interface-runs-the-command-line.md.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

from ..errors import (
    FindingsError,
    HeldError,
    Interrupted,
    OrchError,
    OutputError,
    RunFailed,
    RunStopped,
    UnreachableError,
    UsageError,
)

logger = logging.getLogger("orchestrator")
"""Gets what the commands print for people: warnings as WARNING, everything else as INFO."""

STOP_TIMEOUT = 30.0
"""Seconds for a command to end after SIGINT: `up` removes what it has prepared on the hosts."""

KEPT_MESSAGES = 200  # lines

_MAIN = "import sys; sys.path[:] = [*filter(None, sys.path), {!r}]; from orchestrator.cli import main; main()"
_ERRORS: dict[int, type[OrchError]] = {
    error.exit_code: error
    for error in (
        FindingsError,
        HeldError,
        Interrupted,
        OutputError,
        RunFailed,
        RunStopped,
        UnreachableError,
        UsageError,
    )
}


class Command:
    """A running command. Its stdout is for the caller; its stderr goes to the logger."""

    def __init__(self, words: Sequence[str]) -> None:
        package_folder = str(Path(__file__).parents[2])
        # -c puts "" on sys.path, where a module of the user may have the name of one of ours
        self._process = subprocess.Popen(
            [sys.executable, "-c", _MAIN.format(package_folder), *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            errors="backslashreplace",
            env={**os.environ, "PYTHONIOENCODING": "utf-8", "NO_COLOR": "1"},
            start_new_session=True,  # Ctrl-C reaches it once, from `stop`
        )
        self._messages: deque[str] = deque(maxlen=KEPT_MESSAGES)
        stderr, self._process.stderr = self._process.stderr, None  # `communicate` must not read it, too
        assert stderr is not None
        self._reader = threading.Thread(target=self._read_messages, args=(stderr,), daemon=True)
        self._reader.start()

    @property
    def stdout(self) -> IO[str]:
        assert self._process.stdout is not None
        return self._process.stdout

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def wait(self, timeout: float | None = None) -> int:
        """The exit code. Raises TimeoutError after `timeout` seconds; the command continues then."""
        try:
            code = self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise TimeoutError from None
        self._reader.join()
        return code

    def stop(self) -> None:
        """Interrupt the command as Ctrl-C does, and wait until it has ended."""
        if self.is_running:
            self._process.send_signal(signal.SIGINT)
        try:
            self._process.communicate(timeout=STOP_TIMEOUT)  # reads stdout: a full pipe would block the command
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()
        self._reader.join()

    def error(self, code: int) -> OrchError:
        """The exception for an exit code, with what the command printed last."""
        messages = list(self._messages)
        starts = [number for number, line in enumerate(messages) if line.startswith("error: ")]
        last = messages[starts[-1] :] if starts else messages[-1:]
        text = "\n".join(last).removeprefix("error: ") or f"ddp-orch ended with exit code {code}"
        return _ERRORS.get(code, OrchError)(text)

    def _read_messages(self, stderr: IO[str]) -> None:
        for line in stderr:
            text = line.rstrip("\n")
            self._messages.append(text)
            if text.startswith("warning: "):
                logger.warning("%s", text.removeprefix("warning: "))
            else:
                logger.info("%s", text)
        stderr.close()


def call(words: Sequence[str], accepted: Sequence[int] = (0,)) -> tuple[str, int]:
    """Run a command to its end. Returns its stdout and its exit code. Raises OrchError for other exit codes.

    If the caller is interrupted, the command is too, and cleans up.
    """
    command = Command(words)
    try:
        output = command.stdout.read()
        code = command.wait()
    except BaseException:
        command.stop()
        raise
    if code not in accepted:
        raise command.error(code)
    return output, code


def call_json(words: Sequence[str], accepted: Sequence[int] = (0,)) -> Any:
    """As `call`: the JSON document that the command prints."""
    return json.loads(call([*words, "--json"], accepted)[0])


def stream(words: Sequence[str], outcomes: Sequence[int]) -> Iterator[dict[str, Any]]:
    """The JSON objects that a command prints, as they come. Closing the iterator ends the command.

    Raises OrchError for exit codes that are not in `outcomes`.
    """
    command = Command([*words, "--json"])
    try:
        for line in command.stdout:
            yield json.loads(line)
        code = command.wait()
        if code not in outcomes:
            raise command.error(code)
    finally:
        command.stop()
