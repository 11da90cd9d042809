"""Sample what this host is doing during a run, for `report`. A few hundred KiB at most."""

import json
import os
import threading
import time
from typing import Any, Dict, List

from ..host import machine
from ..host.small_files import open_private

EVERY = 10.0  # s between the first samples
MOST = 1000  # samples; when there are as many, every other is dropped, and they are taken half as often

NAME = "samples.jsonl"


class History:
    """Appends samples to a run's file, for as long as the process lives. A full disk is no error."""

    def __init__(self, folder: str) -> None:
        self._path = os.path.join(folder, NAME)
        known = read(folder)
        self._count = len(known)
        gaps = sorted(known[number]["at"] - known[number - 1]["at"] for number in range(1, self._count))
        # the median: a gap is longer while no recorder runs, and shorter when one is restarted at once
        self._every = max(EVERY, gaps[len(gaps) // 2]) if gaps else EVERY

    def start(self) -> None:
        """Sample in a thread: a driver may take seconds to answer, or never answer, and the journal must not wait."""
        try:
            threading.Thread(target=self._run, name="history", daemon=True).start()
        except RuntimeError:
            pass  # the ranks have used up the user's processes; nothing depends on it

    def _run(self) -> None:
        while True:
            self.take()
            time.sleep(self._every)

    def take(self) -> None:
        try:
            with open(self._path, "a", opener=open_private) as file:
                file.write(json.dumps(dict(machine.usage(), at=time.time())) + "\n")
            self._count += 1
            if self._count >= MOST:
                self._thin()
        except OSError:
            pass  # nothing depends on it

    def _thin(self) -> None:
        kept = read(os.path.dirname(self._path))[::2]
        aside = self._path + ".new"
        with open(aside, "w", opener=open_private) as file:
            file.writelines(json.dumps(sample) + "\n" for sample in kept)
        os.rename(aside, self._path)
        self._count = len(kept)
        self._every *= 2


def read(folder: str) -> List[Dict[str, Any]]:
    """The samples of a run, the oldest first; [] where there are none."""
    samples = []
    try:
        with open(os.path.join(folder, NAME), encoding="ascii") as file:
            for line in file:
                try:
                    samples.append(json.loads(line))
                except ValueError:
                    pass  # one that was cut short
    except (OSError, UnicodeDecodeError):
        pass
    return samples
