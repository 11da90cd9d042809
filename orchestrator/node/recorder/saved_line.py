"""Find the line in which a script says that it has saved a snapshot: it begins with `saved`, on stdout or stderr."""

import os
import signal
from typing import Any, Dict, List, NamedTuple, Optional

from . import journal

LONGEST = 1 << 20  # bytes that are looked at in one turn
PREFIX = b"saved"


class SavedLine(NamedTuple):
    rank: int
    text: str


class Watch:
    """Looks for that line in the journal of a run, since `begin`. `attempt`: which one was signaled; 0: none yet."""

    def __init__(self, folder: str) -> None:
        """`folder`: of the run."""
        self._log = os.path.join(folder, "log")
        self._offsets: Dict[str, int] = {}
        self._has_saved = False
        self.attempt = 0

    def begin(self, attempt: int) -> None:
        """The ranks are about to be signaled."""
        self.attempt, self._has_saved = attempt, False
        self._offsets = ends(self._log)

    def look(self) -> bool:
        """Whether a rank of this host has said so by now."""
        if self.attempt and not self._has_saved:
            self._has_saved = find(self._log, self._offsets) is not None
        return self._has_saved


def signal_number(spec: Dict[str, Any]) -> int:
    """The number of the signal that makes the script save a snapshot."""
    return int(getattr(signal, "SIG" + spec.get("snapshot_signal", "USR1")))


def ends(folder: str) -> Dict[str, int]:
    """Where each stream of a rank ends now, for `find` to begin at. `folder`: of the journal."""
    return {str(stream): _end(parts) for stream, parts in _streams(folder).items()}


def find(folder: str, offsets: Dict[str, int]) -> Optional[SavedLine]:
    """The first such line after these offsets, which are moved on. A stream without an offset is new."""
    for stream, parts in _streams(folder).items():
        offset = offsets.get(str(stream), 0)
        segment = parts[-1]
        try:
            with open(segment.path + ".seg", "rb") as file:
                data = os.pread(file.fileno(), LONGEST, max(0, offset - segment.start))
        except OSError:
            continue
        lines = data[: data.rfind(b"\n") + 1].splitlines(keepends=True)
        for line in lines:
            if line.startswith(PREFIX) and not line[len(PREFIX) : len(PREFIX) + 1].isalnum():
                return SavedLine(int(stream.source), line.decode("utf-8", "replace").strip()[:300])
        read = sum(map(len, lines)) or (len(data) if len(data) == LONGEST else 0)
        offsets[str(stream)] = max(offset, segment.start) + read
    return None


def _streams(folder: str) -> Dict[journal.Stream, List[journal.Segment]]:
    streams = journal.segments(folder)
    newest = max((stream.attempt for stream in streams if stream.source.isdigit()), default=0)
    return {
        stream: parts
        for stream, parts in sorted(streams.items())
        if stream.source.isdigit() and stream.attempt == newest and parts
    }


def _end(parts: List[journal.Segment]) -> int:
    try:
        return parts[-1].start + os.stat(parts[-1].path + ".seg").st_size
    except OSError:
        return parts[-1].start
