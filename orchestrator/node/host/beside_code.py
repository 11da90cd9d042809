"""The files that a run has written to relative paths: new or changed files in its copy of the code."""

import filecmp
import os
import re
import shutil
import stat
from typing import Any, Dict, Iterable, Iterator, List, Optional, Tuple

from . import state

Code = Tuple[str, str]  # the run's copy of its code, and the snapshot that it was made from
LOOKED_AT = 5_000  # files, while other hosts wait
SNAPSHOT = re.compile(r"(?i)\.(?:pt|pth|ckpt|bin|safetensors|distcp)$|ckpt|checkpoint|snapshot")


def find(folder: str, spec: Optional[Dict[str, Any]]) -> Optional[Code]:
    """None for a run that works in a folder of the user's. `folder`: of the run."""
    if spec is None or spec.get("workdir") is not None or not spec.get("code"):
        return None
    return os.path.join(folder, "code"), os.path.join(state.home_of(folder), "code", spec["code"]["sha256"])


def written(code: Code, most: Optional[int] = None) -> Iterator[str]:
    """The regular files of the copy that are new or changed, in any order. `most`: files to look at."""
    copy, sent = code
    looked_at = 0
    for parent, _, names in os.walk(copy):  # what cannot be looked at is left out
        for name in names:
            looked_at += 1
            if most is not None and looked_at > most:
                return
            path = os.path.join(parent, name)
            if not name.endswith(".pyc") and _is_new(path, os.path.join(sent, os.path.relpath(path, copy))):
                yield os.path.relpath(path, copy)


def carry_over(old: Code, new: Code) -> List[str]:
    """Give a new run what an old one has written beside its code. Returns the paths.

    They are hard links where the file system has them: snapshots are large. Files of the new code stay as they are.
    """
    carried = []
    for path in written(old):
        target = os.path.join(new[0], path)
        if os.path.lexists(os.path.join(old[1], path)) or os.path.lexists(target):
            continue
        try:
            os.makedirs(os.path.dirname(target), exist_ok=True)
        except (FileExistsError, NotADirectoryError):  # the new code has a file there
            continue
        try:
            os.link(os.path.join(old[0], path), target, follow_symlinks=False)
        except OSError:
            shutil.copy2(os.path.join(old[0], path), target, follow_symlinks=False)
        carried.append(path)
    return sorted(carried)


def snapshots(folder: str, spec: Dict[str, Any]) -> List[str]:
    """Those that are named like snapshots."""
    code = find(folder, spec)
    return named_like_snapshots(written(code, LOOKED_AT)) if code is not None else []


def named_like_snapshots(paths: Iterable[str]) -> List[str]:
    return sorted(filter(SNAPSHOT.search, paths))


def _is_new(path: str, sent: str) -> bool:
    try:
        if not stat.S_ISREG(os.lstat(path).st_mode):
            return False
        # content is compared only where times differ
        return not stat.S_ISREG(os.lstat(sent).st_mode) or not filecmp.cmp(path, sent)
    except OSError:
        return os.path.lexists(path)
