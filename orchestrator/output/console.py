"""Print messages for people on stderr: errors, warnings, notes, steps. Prints no data: commands write it to stdout."""

from __future__ import annotations

import os
import re
import shutil
import weakref
from collections.abc import Iterable, Mapping
from typing import TextIO

from ..errors import OutputError
from .terminal import RESET, cut, one_line, tame

_BOLD_RED, _YELLOW, _DIM, _GREEN = "\x1b[1;31m", "\x1b[33m", "\x1b[2m", "\x1b[32m"

# Other characters would be operators, ranges or groups in a NodeSet.
_FOLDABLE = re.compile(r"[A-Za-z0-9._-]+")

_WITH_STATUS: weakref.WeakSet[TextIO] = weakref.WeakSet()  # streams with a status line, of whichever Console


def columns_of(stream: TextIO) -> int:
    """The width of the terminal that a stream is. Stdout may be another one, or a file."""
    try:
        columns = os.get_terminal_size(stream.fileno()).columns
    except (OSError, ValueError):
        columns = 0
    return columns or shutil.get_terminal_size().columns


class Console:
    """Writes whole lines to one stream. If its reader has gone away, or its disk is full, messages are discarded."""

    def __init__(self, stream: TextIO, colour: bool) -> None:
        self._stream = stream
        self._colour = colour

    def error(self, message: str) -> None:
        self._say("error: ", message, _BOLD_RED)

    def warning(self, message: str) -> None:
        self._say("warning: ", message, _YELLOW)

    def note(self, message: str) -> None:
        self._say("", message, "")

    def success(self, message: str) -> None:
        self._say(message, "", _GREEN)

    def step(self, message: str) -> None:
        """A phase that has begun or ended: `prepared 8 hosts in 1.2 s`."""
        self._say("- ", message, _DIM)

    def status(self, message: str) -> None:
        """On a terminal, show a status line until the next message or status. `""` removes it."""
        if self._stream.isatty() and os.environ.get("TERM") != "dumb":
            width = columns_of(self._stream) - 1
            if message or self._stream in _WITH_STATUS:
                text = cut(one_line(message), width)
                self._write(f"\r\x1b[K{_DIM}{text}{RESET}\r" if self._colour and text else f"\r\x1b[K{text}\r")
            self._note_status(bool(message))

    def ring(self) -> None:
        """Ring the bell of the terminal, if the stream is one."""
        if self._stream.isatty():
            self._write("\a")

    def _say(self, label: str, message: str, style: str) -> None:
        label, message = tame(label, colour=False), tame(message, colour=False)
        if self._colour and style:
            label = f"{style}{label}{RESET}"
        before = "\r\x1b[K" if self._stream in _WITH_STATUS else ""
        self._note_status(False)
        self._write(f"{before}{label}{message}\n")

    def _note_status(self, is_shown: bool) -> None:
        if is_shown:
            _WITH_STATUS.add(self._stream)
        else:
            _WITH_STATUS.discard(self._stream)

    def _write(self, text: str) -> None:
        try:
            self._stream.write(text)
            self._stream.flush()
        except BrokenPipeError:
            hush(self._stream)
        except (OSError, OutputError):
            pass  # such as a full disk: a message that cannot be shown must not end a command


def wants_colour(stream: TextIO, environ: Mapping[str, str]) -> bool:
    """Whether to print colour. NO_COLOR (no-color.org) wins over FORCE_COLOR, then TERM=dumb, then isatty."""
    if environ.get("NO_COLOR"):
        return False
    if environ.get("FORCE_COLOR", "0") not in ("", "0"):
        return True
    return environ.get("TERM") != "dumb" and stream.isatty()


def hush(stream: TextIO) -> None:
    """Discard further output after a BrokenPipeError. Else the flush at exit fails and changes the exit code."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


def fold(hosts: Iterable[str]) -> str:
    """Fold names into ranges: `gpu-[01-03],lovelace`."""
    names = sorted(set(hosts))
    foldable = [name for name in names if _FOLDABLE.fullmatch(name)]
    others = [tame(name, colour=False) for name in names if not _FOLDABLE.fullmatch(name)]
    if len(foldable) < 2:
        return ",".join(foldable + others)
    from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet  # slow to import, and rarely needed

    return ",".join([str(NodeSet.fromlist(foldable, resolver=RESOLVER_NOGROUP)), *others])


def number_of(count: int, noun: str, plural: str = "") -> str:
    """`1 host`, `3 hosts`."""
    return f"{count} {noun if count == 1 else plural or noun + 's'}"


def size(count: int) -> str:
    """Bytes, for people: `1.5 GB`, `12.3 MB`, `4.1 kB`, `9 bytes`."""
    if count < 1000:
        return f"{count} bytes"
    for least, unit, unit_bytes in ((10**12, "TB", 1e12), (10**9, "GB", 1e9), (100_000, "MB", 1e6)):
        if count >= least:
            return f"{count / unit_bytes:.1f} {unit}"
    return f"{count / 1e3:.1f} kB"


def duration(seconds: float) -> str:
    """`90 s`, `35 min`, `7 h`, `3 days`."""
    units = (("s", 1, 120), ("min", 60, 7200), ("h", 3600, 172800))
    text = next((f"{seconds / unit:.0f} {name}" for name, unit, most in units if seconds < most), None)
    return text or f"{seconds / 86400:.0f} days"


def all_but(hosts: Iterable[str]) -> str:
    """The pattern for `--hosts` that excludes these: `!gpu-[01-03]!lovelace`."""
    return "".join(f"!{part}" for part in re.split(r",(?![^\[]*\])", fold(hosts)))  # the comma in gpu[1,3] stays


def fold_messages(messages: Mapping[str, str]) -> list[str]:
    """A line per different message, with its hosts: `gpu-[03-05]: connection refused (3 hosts)`."""
    hosts: dict[str, list[str]] = {}
    for host, message in messages.items():
        hosts.setdefault(message, []).append(host)
    return sorted(
        f"{fold(names)}: {message}" + (f" ({len(names)} hosts)" if len(names) > 1 else "")
        for message, names in hosts.items()
    )
