"""Whether a rank has printed a loss that is not finite. Looks only where `notify.events` has `loss`. On the head."""

import os
import re
from typing import Any, Callable, Dict, Mapping

from ..recorder import journal

LOOK_EVERY = 10.0  # s
TAIL = 16 * 1024  # bytes of a stream that are looked at: once a loss is not finite, all that follow are not either
BAD_LOSS = re.compile(
    rb"(?<![a-z0-9_])(?<!best )(?:train_)?loss['\"]?(?:\s*[:=]|\s+is)?\s*[('\"]*"
    rb"(?:tensor\()?(?:-?(?:nan|inf)\b|not finite)",
    re.IGNORECASE,
)


class LossWatch:
    def __init__(self, folder: str, targets: Mapping[str, Any], notify: Callable[[str], None]) -> None:
        """`folder`: of the run. `targets`: as in `notify.tell`. `notify`: of a state; once per attempt."""
        self._log = os.path.join(folder, "log")
        self._is_wanted = "loss" in targets.get("events", ())
        self._notify = notify
        self._sizes: Dict[str, int] = {}  # of the segments, at the last look
        self._look_at = 0.0
        self._told = 0  # the newest attempt of which it was told

    def hear(self, attempt: int, last_line: str) -> None:
        """`last_line`: of a rank that has failed, on any host."""
        self._judge(attempt, last_line.encode("utf-8", "replace"))

    def look(self, attempt: int, now: float) -> None:
        """At what the ranks of this host print in the attempt that is running."""
        if not self._is_wanted or attempt <= self._told or now < self._look_at:
            return
        self._look_at = now + LOOK_EVERY
        for stream, parts in journal.segments(self._log).items():
            if stream.attempt == attempt and stream.source.isdigit() and parts:
                self._judge(attempt, self._newest(parts[-1].path + ".seg"))

    def _newest(self, path: str) -> bytes:
        """The end of a segment, if it has grown."""
        try:
            with open(path, "rb") as file:
                size = os.fstat(file.fileno()).st_size
                if size == self._sizes.get(path):
                    return b""
                self._sizes[path] = size
                return os.pread(file.fileno(), TAIL, max(0, size - TAIL))
        except OSError:
            return b""

    def _judge(self, attempt: int, text: bytes) -> None:
        if self._is_wanted and attempt > self._told and BAD_LOSS.search(text):
            self._told = attempt
            self._notify("non-finite-loss")
