"""The folder of a run in memory: list its snapshots, put complete ones into it, remove old ones.

host/memory_folder.py makes it.


saved/            $DDP_ORCH_MEMORY_DIR. The label says for whom of which attempt the ranks save there
copies/KEY/       snapshots of the host before this one in the ring, with its label
incoming/         what is not complete yet
label.json        in saved's parent, and in each folder of copies
"""

import os
import shutil
import threading
from typing import Callable, Dict, List, Optional

from ..host import memory_folder, state
from . import output_tree
from .copies import FILE, Entry
from .parts import Label, Part, Saved, step_of

COPIES, INCOMING, LABEL = "copies", "incoming", "label.json"
NO_LABEL = Label(0, 0, ())

Fetch = Callable[[int, str, int, output_tree.IncomingFile], None]  # node, path, size


class MemoryTree:
    def __init__(self, root: str, node: int) -> None:
        self.root = root
        self._node = node
        _remove(self.path(INCOMING))  # of a process that was killed

    def path(self, *names: str) -> str:
        return os.path.join(self.root, *names)

    # what there is

    def all(self) -> List[Saved]:
        """Everything that is complete. Raises OSError where the script removes what is being looked at."""
        return self.saved() + self.copies()

    def saved(self) -> List[Saved]:
        """What the ranks of this host have saved, or were given at the start of the attempt. The newest is last."""
        return self._snapshots(memory_folder.SAVED, self.label())

    def copies(self) -> List[Saved]:
        found: List[Saved] = []
        for key in sorted(_names(self.path(COPIES))):
            label = _read_label(self.path(COPIES, key))
            found += self._snapshots(os.path.join(COPIES, key), label) if label else []
        return found

    def label(self) -> Label:
        return _read_label(self.root) or NO_LABEL

    def _snapshots(self, folder: str, label: Label) -> List[Saved]:
        names = [(step_of(name), name) for name in _names(self.path(folder))]
        found = []
        for _, name in sorted((step, name) for step, name in names if step is not None):
            if os.path.isdir(self.path(folder, name)):
                entries = output_tree.listing(self.path(folder, name))
                files = tuple((os.path.join(name, entry.path), entry.size) for entry in entries if entry.kind == FILE)
            else:
                files = ((name, os.stat(self.path(folder, name)).st_size),)
            found.append(Saved(folder, name, files, label))
        return found

    def newest(self) -> Optional[Saved]:
        saved = self.saved()
        return saved[-1] if saved else None

    # what comes

    def assemble(self, name: str, parts: List[Part], fetch: Fetch) -> None:
        """Have this snapshot in `saved`, from these parts. No rank runs. Raises OSError, and what `fetch` raises."""
        if [(node, saved.folder) for node, saved in parts] == [(self._node, memory_folder.SAVED)]:
            return
        aside = self._bring(name, parts, fetch)
        _remove(self.path(memory_folder.SAVED, name))
        os.rename(aside, self.path(memory_folder.SAVED, name))

    def add_copy(self, source: int, saved: Saved, fetch: Fetch) -> None:
        """Have a copy of what another host has saved. Keeps the one before. Raises as `assemble`."""
        aside = self._bring(saved.name, [(source, saved)], fetch)
        key = "%d-%d" % (saved.label.attempt, saved.label.node_rank)
        os.makedirs(self.path(COPIES, key), 0o700, exist_ok=True)
        state.replace(self.path(COPIES, key, LABEL), saved.label._asdict())
        _remove(self.path(COPIES, key, saved.name))
        os.rename(aside, self.path(COPIES, key, saved.name))

    def _bring(self, name: str, parts: List[Part], fetch: Fetch) -> str:
        """Returns the path of the complete file or folder."""
        below = self.path(INCOMING, str(threading.get_native_id()))
        _remove(below)
        os.makedirs(below, 0o700)
        if not output_tree.is_safe(name) or "/" in name:
            raise OSError(0, "not the name of a snapshot", name)
        for node, saved in parts:
            for number, (path, size) in enumerate(saved.files):
                if path.split("/")[0] != name or not output_tree.is_safe(path):
                    raise OSError(0, "not a path in a snapshot", path)
                if os.path.lexists(os.path.join(below, path)):
                    continue  # several hosts have saved a file of this name, which then has the same content
                os.makedirs(os.path.dirname(os.path.join(below, path)), 0o700, exist_ok=True)
                source = os.path.join(saved.folder, path)
                if not output_tree.is_safe(source):
                    raise OSError(0, "not a path in the memory folder", source)
                if node == self._node:
                    os.link(self.path(source), os.path.join(below, path))
                    continue
                file = output_tree.IncomingFile(below, os.path.join(below, ".ddp-orch.%d" % number))
                try:
                    fetch(node, source, size, file)
                    file.finish(Entry(path, FILE, size, 0, 0o600))
                finally:
                    file.close()
        return os.path.join(below, name)

    # what goes

    def adopt(self, label: Label, name: Optional[str]) -> None:
        """An attempt is about to begin: its ranks find the snapshot `name` and no other one."""
        for other in _names(self.path(memory_folder.SAVED)):
            if other != name:
                _remove(self.path(memory_folder.SAVED, other))
        state.replace(self.path(LABEL), label._asdict())

    def trim_copies(self, most: int) -> None:
        """Keep the newest copies, so many."""
        copies = sorted(self.copies(), key=lambda saved: (saved.label.attempt, saved.step))
        for saved in copies[: max(0, len(copies) - most)]:
            _remove(self.path(saved.folder, saved.name))
        used = {os.path.basename(saved.folder) for saved in copies[max(0, len(copies) - most) :]}
        for key in _names(self.path(COPIES)):
            if key not in used:
                _remove(self.path(COPIES, key))


def _names(folder: str) -> List[str]:
    try:
        return os.listdir(folder)
    except FileNotFoundError:
        return []


def _read_label(folder: str) -> Optional[Label]:
    record: Dict[str, object] = state.read(os.path.join(folder, LABEL)) or {}
    try:
        layout = record["layout"]
        assert isinstance(layout, list)
        return Label(int(str(record["attempt"])), int(str(record["node_rank"])), tuple(map(int, layout)))
    except state.DAMAGED + (AssertionError,):
        return None


def _remove(path: str) -> None:
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path, ignore_errors=True)
    elif os.path.lexists(path):
        os.unlink(path)
