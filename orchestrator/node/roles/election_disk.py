"""What a node keeps on disk of an election: its ballot, and its copy of the log of the gang."""

import json
import os
from typing import List, Optional, Sequence, Tuple

from ..gang.election_state import Ballot, Entry
from ..host import state
from .gang_log import NAME, event_of

BALLOT = "ballot.json"


class ElectionDisk:
    """A disk that cannot be written does not stop the run: what is missing there is in memory, and is written with the
    next change.

    Only a node that restarts meanwhile forgets it.
    """

    def __init__(self, folder: str) -> None:
        self._ballot_path = os.path.join(folder, BALLOT)
        self._log_path = os.path.join(folder, NAME)
        self._lines: List[bytes] = []  # what the file should have
        self._written: Optional[int] = None  # lines that the file has; None: it has to be written as a whole

    def ballot(self) -> Optional[Ballot]:
        """None: there was none yet."""
        record = state.read(self._ballot_path)
        return None if record is None else Ballot(record["epoch"], record["vote"], record["leads"])

    def log(self) -> Tuple[Entry, ...]:
        """The entries up to the first incomplete line, which was never confirmed."""
        entries: List[Entry] = []
        try:
            with open(self._log_path, "rb") as file:
                lines = file.read().split(b"\n")
        except FileNotFoundError:
            lines = []
        for line in lines[:-1]:
            try:
                record = json.loads(line)
                epoch = int(record.pop("epoch"))
                event_of(record)
            except (ValueError, KeyError, TypeError, AttributeError):
                break
            entries.append(Entry(epoch, json.dumps(record)))
        self._lines = [_line(entry) for entry in entries]
        return tuple(entries)

    def save(self, ballot: Ballot) -> None:
        try:
            state.write(self._ballot_path, ballot._asdict())
        except OSError as error:
            if error.errno not in state.UNWRITABLE:
                raise

    def write(self, length: int, entries: Sequence[Entry]) -> None:
        """Cut the log to `length` entries, and append `entries`."""
        if self._written is None or length < self._written:
            self._written = None
        self._lines[length:] = [_line(entry) for entry in entries]
        try:
            if self._written is None:
                self._replace()
            else:
                self._append(self._written)
            self._written = len(self._lines)
        except OSError as error:
            self._written = None
            if error.errno not in state.UNWRITABLE:
                raise

    def _append(self, written: int) -> None:
        handle = os.open(self._log_path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        try:
            _write_all(handle, b"".join(self._lines[written:]))
        finally:
            os.close(handle)

    def _replace(self) -> None:
        aside = "%s.%d.new" % (self._log_path, os.getpid())
        handle = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            _write_all(handle, b"".join(self._lines))
            os.rename(aside, self._log_path)
        except OSError:
            os.unlink(aside)
            raise
        finally:
            os.close(handle)
        state.sync(os.path.dirname(self._log_path))


def _line(entry: Entry) -> bytes:
    """As in the log of a run without elections, with the epoch."""
    return (json.dumps(dict(json.loads(entry.text), epoch=entry.epoch)) + "\n").encode("ascii")


def _write_all(handle: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(handle, rest) :]
    os.fsync(handle)
