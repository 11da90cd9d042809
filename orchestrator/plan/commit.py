"""Find the git commit of a code snapshot, and how many files differ from it. Changes nothing in the repository."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from . import git


@dataclass(frozen=True)
class Commit:
    """The commit that is checked out."""

    id: str
    changed: int
    """Files that differ from it, are new, or are missing. Files that git converts (as LFS does) count as changed."""


def blob_id(data: bytes) -> str:
    """By which git names this content."""
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()


def find(root: Path, blobs: Mapping[str, str]) -> Commit | None:
    """`blobs`: path below `root` -> `blob_id`. None if `root` is not the top of a repository with a commit.

    The contents are compared here, because `git status` would run filters that the repository configures.
    """
    if not git.has_repository(root):
        return None
    try:
        commit, tree = git.head(root)
    except git.GitError:
        return None
    if len(commit) != hashlib.sha1(usedforsecurity=False).digest_size * 2:
        return None  # a repository with SHA-256
    differing = sum(tree.get(path) != blob for path, blob in blobs.items())
    missing = sum(path not in blobs and not os.path.lexists(root / path) for path in tree)
    return Commit(commit, differing + missing)
