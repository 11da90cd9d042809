"""Ask git which files of a folder belong to the code, and which rule excludes a file.

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

TIMEOUT = 60  # seconds; listing takes milliseconds, unless the folder is somebody's whole home

# core.fsmonitor names a program that `ls-files` would run
_COMMAND = ("git", "-c", "core.fsmonitor=false")
# not GIT_*: a hook or an outer git may have set where its own repository is
_INHERITED = ("HOME", "XDG_CONFIG_HOME", "PATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")
_ENVIRONMENT = {
    # the index of a partial clone may need objects that are not here; fetching them would run what the remote's URL,
    # core.sshCommand and the like name. GIT_NO_LAZY_FETCH needs git 2.45, the empty list of protocols any git.
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_ALLOW_PROTOCOL": "",
    "GIT_OPTIONAL_LOCKS": "0",
    "LC_ALL": "C",
}

Done = subprocess.CompletedProcess[bytes]


class GitError(Exception):
    """git failed; the text says why."""


class GitMissing(GitError):
    """git is not installed on this machine."""


@dataclass(frozen=True)
class Exclusion:
    """Why git ignores a file."""

    file: str
    """The ignore file, relative to the work tree if it is in there."""
    line: int
    pattern: str


def has_repository(folder: Path) -> bool:
    return os.path.lexists(folder / ".git")


def files(top: Path) -> tuple[list[str], list[str]]:
    """The files below `top` that git tracks or would, and git's warnings. Nested repositories are paths to folders.

    `top` is the top of a work tree, or a folder outside of all repositories. Raises GitError.
    """
    done = _run(top, "ls-files", "--cached", "--others", "--exclude-standard", "-z")
    return _paths(done), done.stderr.decode(errors="backslashreplace").splitlines()


def excluded(top: Path) -> list[str]:
    """What .gitignore files keep back below `top`, sorted; a folder that is excluded as a whole once, with `/`.

    Raises GitError.
    """
    names: list[str] = []
    for path in sorted(
        _paths(_run(top, "ls-files", "--others", "--ignored", "--exclude-standard", "--directory", "-z"))
    ):
        # some versions of git name a folder and then what is in it
        if not names or not names[-1].endswith("/") or not path.startswith(names[-1]):
            names.append(path)
    return names


def exclusion(top: Path, path: str) -> Exclusion | None:
    """The rule that excludes `path`, which is relative to `top`; None if no rule does, or git cannot tell."""
    try:
        done = _run(top, "check-ignore", "--verbose", "-z", "--stdin", stdin=os.fsencode(path), accepted=(0, 1))
    except GitError:
        return None  # such as for a path in a submodule
    match _paths(done):
        case [file, line, pattern, _] if not pattern.startswith("!"):
            return Exclusion(file, int(line), pattern)
    return None


def _paths(done: Done) -> list[str]:
    return [os.fsdecode(path) for path in done.stdout.split(b"\0") if path]


def _run(top: Path, *arguments: str, stdin: bytes = b"", accepted: tuple[int, ...] = (0,)) -> Done:
    with _repository(top) as options:
        done = _git(top, *options, *arguments, stdin=stdin)
    if done.returncode not in accepted:
        raise GitError(done.stderr.decode(errors="backslashreplace").strip() or f"exit code {done.returncode}")
    return done


@contextmanager
def _repository(top: Path) -> Iterator[tuple[str, ...]]:
    """Options that make `top` a work tree: none for one, an empty repository elsewhere for any other folder."""
    if has_repository(top):
        yield ()
        return
    with tempfile.TemporaryDirectory(prefix="ddp-orch-git-") as empty:
        created = _git(Path(empty), "init", "--quiet", "--template=")
        if created.returncode != 0:
            raise GitError(created.stderr.decode(errors="backslashreplace").strip())
        yield f"--git-dir={empty}/.git", f"--work-tree={top}"


def _git(folder: Path, *arguments: str, stdin: bytes = b"") -> Done:
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
