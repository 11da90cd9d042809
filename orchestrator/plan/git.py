"""Ask git which files of a folder belong to the code, which rule excludes a file, and what is checked out.

A repository may be somebody else's: no command that its configuration names is run.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

TIMEOUT = 60  # s; listing takes milliseconds, except in a whole home folder

# core.fsmonitor names a program that `ls-files` would run
_COMMAND = ("git", "-c", "core.fsmonitor=false")
# no GIT_*: if ddp-orch runs in a git hook, they name the repository of the hook
_INHERITED = ("HOME", "XDG_CONFIG_HOME", "PATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")
_ENVIRONMENT = {
    # In a partial clone, git may fetch missing objects, and for that runs what core.sshCommand or the remote's URL
    # name. GIT_NO_LAZY_FETCH needs git 2.45; an empty list of protocols works with any git.
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_ALLOW_PROTOCOL": "",
    "GIT_OPTIONAL_LOCKS": "0",
    "LC_ALL": "C",
}

Process = subprocess.CompletedProcess[bytes]


class GitError(Exception):
    """git failed; the text says why."""


class GitMissing(GitError):
    """git is not installed on this machine."""


@dataclass(frozen=True)
class Exclusion:
    """Why git ignores a file."""

    file: str
    """The ignore file; relative to the work tree if it is inside."""
    line: int
    pattern: str


def has_repository(folder: Path) -> bool:
    return os.path.lexists(folder / ".git")


def files(top: Path) -> tuple[list[str], list[str]]:
    """The files below `top` that git tracks or would track, and git's warnings. Of a nested repository: its folder.

    `top` is the top of a work tree, or a folder outside of all repositories. Raises GitError.
    """
    process = _run(top, "ls-files", "--cached", "--others", "--exclude-standard", "-z")
    return _paths(process), process.stderr.decode(errors="backslashreplace").splitlines()


def excluded(top: Path) -> list[str]:
    """The paths below `top` that .gitignore files exclude, sorted. Of an excluded folder: only its path, with `/`.

    Raises GitError.
    """
    names: list[str] = []
    for path in sorted(
        _paths(_run(top, "ls-files", "--others", "--ignored", "--exclude-standard", "--directory", "-z"))
    ):
        # some versions of git list a folder and then its files
        if not names or not names[-1].endswith("/") or not path.startswith(names[-1]):
            names.append(path)
    return names


def exclusion(top: Path, path: str) -> Exclusion | None:
    """The rule that excludes `path`, which is relative to `top`; None if there is none, or git fails."""
    try:
        process = _run(top, "check-ignore", "--verbose", "-z", "--stdin", stdin=os.fsencode(path), accepted=(0, 1))
    except GitError:
        return None  # for example for a path in a submodule
    match _paths(process):
        case [file, line, pattern, _] if not pattern.startswith("!"):
            return Exclusion(file, int(line), pattern)
    return None


def head(top: Path) -> tuple[str, dict[str, str]]:
    """The commit that is checked out, and the ids of the contents of its files, by path. Raises GitError."""
    commit = _run(top, "rev-parse", "--verify", "HEAD").stdout.decode().strip()
    entries = (entry.partition("\t") for entry in _paths(_run(top, "ls-tree", "-r", "-z", commit)))
    fields = ((described.split(" "), path) for described, _, path in entries)
    return commit, {path: id_ for (_, kind, id_), path in fields if kind == "blob"}


def _paths(process: Process) -> list[str]:
    return [os.fsdecode(path) for path in process.stdout.split(b"\0") if path]


def _run(top: Path, *arguments: str, stdin: bytes = b"", accepted: tuple[int, ...] = (0,)) -> Process:
    with _repository(top) as options:
        process = _git(top, *options, *arguments, stdin=stdin)
    if process.returncode not in accepted:
        raise GitError(process.stderr.decode(errors="backslashreplace").strip() or f"exit code {process.returncode}")
    return process


@contextmanager
def _repository(top: Path) -> Iterator[tuple[str, ...]]:
    """Options that make git take `top` as a work tree: outside of repositories, an empty temporary one is used."""
    if has_repository(top):
        yield ()
        return
    with tempfile.TemporaryDirectory(prefix="ddp-orch-git-") as empty:
        created = _git(Path(empty), "init", "--quiet", "--template=")
        if created.returncode != 0:
            raise GitError(created.stderr.decode(errors="backslashreplace").strip())
        yield f"--git-dir={empty}/.git", f"--work-tree={top}"


def _git(folder: Path, *arguments: str, stdin: bytes = b"") -> Process:
    environment = {name: os.environ[name] for name in _INHERITED if name in os.environ} | _ENVIRONMENT
    command = (*_COMMAND, *arguments)
    try:
        return subprocess.run(command, cwd=folder, env=environment, input=stdin, capture_output=True, timeout=TIMEOUT)
    except FileNotFoundError as error:
        raise GitMissing("git is not installed here") from error
    except subprocess.TimeoutExpired as error:
        raise GitError(f"no answer within {TIMEOUT} s") from error
    except OSError as error:
        raise GitError(str(error.strerror or error)) from error
