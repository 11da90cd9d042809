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

    They are hard links where the file system has them: snapshots are large. Files that the user has changed since the
    old run stay as they are.
    """
    carried = []
    for path in written(old):
        if is_of_user(path, old, new):
            continue
        target = os.path.join(new[0], path)
        try:
            os.makedirs(os.path.dirname(target), exist_ok=True)
        except (FileExistsError, NotADirectoryError):  # the new code has a file there
            continue
        _replace(os.path.join(old[0], path), target)
        carried.append(path)
    return sorted(carried)


def is_of_user(path: str, old: Code, new: Code) -> bool:
    """Whether the new code has a file there that is not the one that was sent with the old code."""
    ours = os.path.join(new[0], path)
    return os.path.lexists(ours) and not _are_equal(os.path.join(old[1], path), ours)


def is_same(path: str, old: Code, new: Code) -> bool:
    """Whether the new run has what the old one has written there: the user has fetched it, say."""
    return _are_equal(os.path.join(old[0], path), os.path.join(new[0], path))


def _are_equal(one: str, other: str) -> bool:
    try:
        both_are_files = stat.S_ISREG(os.lstat(one).st_mode) and stat.S_ISREG(os.lstat(other).st_mode)
        return both_are_files and filecmp.cmp(one, other, shallow=False)  # times say nothing about files that were sent
    except OSError:
        return False


def _replace(source: str, target: str) -> None:
    new = target + ".ddp-orch-new"
    try:
        os.link(source, new, follow_symlinks=False)
    except OSError:
        shutil.copy2(source, new, follow_symlinks=False)
    os.replace(new, target)


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
