"""Messages that the run waits. One that could not be sent in time is dropped, one that was wrong is taken back.

Each message of a host has a number. A process that sends that the run waits may try for a minute: it gives up when
there is a later message, or when the wait is over. Another one takes a report back, where it may have arrived.
"""

import contextlib
import fcntl
import os
from typing import Any, Dict, Iterator, List, Optional

from ..host import state

NAME = "wait-news.json"  # `number` of the newest message; `since`: of the first report that may have to be taken back
SENT = "wait-sent"  # `NUMBER TARGET` of what may have arrived; a process that sends that the run waits holds its lock


class Outdated(Exception):
    """The message does not apply any more."""


def supersede(folder: str) -> int:
    """Drop what is not sent yet. Returns the number of the next message. Only by the recorder."""
    known = _read(folder)
    number = int(known.get("number", 0)) + 1
    _write(folder, dict(known, number=number))
    return number


def begin_report(folder: str) -> int:
    """A report follows. Returns the number of the first one since the last that was taken back."""
    known = _read(folder)
    since = int(known.get("since") or known.get("number", 0) + 1)
    _write(folder, dict(known, since=since))
    return since


def reported_since(folder: str) -> Optional[int]:
    """As `begin_report` has returned it; None: there is no report, or it was taken back."""
    since = _read(folder).get("since")
    return None if since is None else int(since)


def close_report(folder: str) -> None:
    """It need not be taken back: another message says what follows."""
    known = _read(folder)
    known.pop("since", None)
    _write(folder, dict(known, number=int(known.get("number", 0)) + 1))


class WaitMessage:
    """A message that the run waits, in the process that sends it."""

    def __init__(self, folder: str, number: int) -> None:
        self._folder, self._number = folder, number

    def check(self) -> None:
        """Raises Outdated."""
        if int(_read(self._folder).get("number", self._number)) > self._number:
            raise Outdated

    def note(self, target: str) -> None:
        """It is about to arrive there."""
        with open(os.path.join(self._folder, SENT), "a", encoding="ascii") as file:
            file.write("%d %s\n" % (self._number, target))


@contextlib.contextmanager
def one_at_a_time(folder: str) -> Iterator[None]:
    """Wait until no other process of this run sends that the run waits, or takes that back."""
    file = os.open(os.path.join(folder, SENT), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
    finally:
        os.close(file)


def sent_since(folder: str, since: int) -> List[str]:
    """Where a message of that number or a later one may have arrived: `webhook`, `mail`, `command`."""
    with open(os.path.join(folder, SENT), encoding="ascii") as file:
        lines = [line.split() for line in file]
    return sorted({target for number, target in lines if int(number) >= since})


def _read(folder: str) -> Dict[str, Any]:
    return state.read(os.path.join(folder, NAME)) or {}


def _write(folder: str, record: Dict[str, Any]) -> None:
    with contextlib.suppress(OSError):  # a full disk: then nothing is dropped
        state.replace(os.path.join(folder, NAME), record)
