"""Which processes are ours, on disk: a sweep after a killed guard finds them without their mark too."""

import time
from typing import Any, List, Tuple

from ..host import processes, state
from ..host.small_files import text_of
from ..ranks.tree import Tree

Ranks = List[Tuple[int, int]]  # pid and rank

EVERY = 2.0  # s between looks at the processes, or longer where looking is expensive
SHARE = 4000  # looking at the processes may take 0.025 % of a core


class ProcessRecord:
    def __init__(self, path: str) -> None:
        self._path = path
        self.due_at = 0.0  # when to call `update`
        self._written: Any = None
        self._looked_at: Tuple[str, Ranks] = ("", [])  # the newest process of this host, and the ranks
        self._every = EVERY

    def update(self, tree: Tree) -> None:
        """Write the processes of the tree, unless no process of this host was started since the last look."""
        newest = text_of("/proc/loadavg").rpartition(" ")[2]
        ranks = [(process.pid, rank) for rank, process in tree.ranks()]
        if newest in ("", "0") or (newest, ranks) != self._looked_at:  # gVisor tells 0
            self._looked_at = newest, ranks
            begun = time.thread_time()  # what it costs us, not what others take meanwhile
            self._write(sorted(tree.members()), ranks)
            self._every = max(EVERY, (time.thread_time() - begun) * SHARE)
        self.due_at = time.monotonic() + self._every

    def _write(self, members: List[processes.Process], ranks: Ranks) -> None:
        if (members, ranks) == self._written:
            return
        try:  # it is of no use after a power loss, so nobody waits for the disk
            state.replace(self._path, {"boot_id": state.boot_id(), "processes": members, "ranks": ranks})
            self._written = members, ranks
        except OSError:
            self._looked_at = "", []  # a full disk; the mark still finds them, and the next try may succeed
