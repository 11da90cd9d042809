"""List the files of the user's code below a folder: those that git would track, or all. Hashes nothing."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path, PurePath

from ..errors import UsageError
from ..inventory.run_ids import RUN_ID
from ..output import report_file
from . import git

INSTEAD = (
    "add files that are not code to .gitignore, or list what the script needs in run.sync: [paths], "
    "or set workdir to a folder on a disk that all hosts share"
)

_RESULTS = b"# made by ddp-orch: results of a run\n*\n"  # the .gitignore of a folder for downloaded results
_REPORT = re.compile(RUN_ID.pattern + r"\.(html|json)|ddp-orch-doctor-[0-9-]+\.tar\.gz")  # of `report` and `doctor`
_SLURM_OUTPUT = re.compile(r"slurm-[0-9]+(_[0-9]+)?\.out")  # by default in the folder of the job script


def list_code(top: Path, warnings: list[str]) -> Iterator[str]:
    """The files of `top` that are code, as paths below it. Adds the warnings of git to `warnings`."""
    try:
        paths = _git_files(top, warnings)
    except git.GitMissing:
        yield from _walk(top, ".", without_git=True)
        return
    skipped: dict[str, bool] = {}
    for path in paths:
        if not _is_skipped(top, path.rpartition("/")[0], skipped):
            yield path


def _git_files(top: Path, warnings: list[str]) -> list[str]:
    """The files of `top` that git tracks or would track, with those of submodules and nested repositories."""
    try:
        listed, complaints = git.files(top)
    except git.GitMissing:
        raise
    except git.GitError as error:
        advice = "fix that, or list what the script needs in run.sync: [paths]"
        raise UsageError(f"{shown(top)}: git could not list its files: {error}; {advice}") from error
    warnings += [f"{shown(top)}: git: {line}" for line in complaints]
    paths = []
    for path in listed:
        inner = top / path
        if not inner.is_dir() or inner.is_symlink():
            paths.append(path)
        elif not lies_in(top, path.rstrip("/")):
            continue
        elif git.has_repository(inner):
            paths += [f"{path.rstrip('/')}/{name}" for name in _git_files(inner, warnings)]
        else:
            warnings.append(
                f"{shown(inner)}: the files of this submodule are missing; run: git submodule update --init"
            )
    return paths


def list_all(root: Path, path: Path) -> Iterator[str]:
    """The files of a path that run.sync names, relative to the root."""
    relative = os.path.relpath(path, root)
    if path.is_dir() and not path.is_symlink():
        yield from _walk(root, relative)
    else:
        yield relative


def _walk(root: Path, start: str, *, without_git: bool = False) -> Iterator[str]:
    """The files below root/start, as paths below the root. `without_git`: raises UsageError for a .gitignore."""
    pending = ["" if start == "." else f"{start}/"]
    while pending:
        prefix = pending.pop()
        folder = root / prefix
        try:
            with os.scandir(folder) as listing:
                children = sorted(listing, key=lambda child: child.name, reverse=True)
        except OSError as exc:
            raise UsageError(f"{shown(folder)}: cannot be listed: {exc.strerror}; {INSTEAD}") from exc
        names = {child.name for child in children}
        if "pyvenv.cfg" in names or (".gitignore" in names and _has_results(folder)):
            continue
        if without_git and ".gitignore" in names:
            raise UsageError(
                f"{shown(folder / '.gitignore')}: only git can apply it, and git is not installed here; "
                "install git, or list what the script needs in run.sync: [paths]"
            )
        for child in children:
            if never_sent(child.name):
                continue
            if child.is_dir(follow_symlinks=False):
                pending.append(f"{prefix}{child.name}/")
            else:
                yield prefix + child.name


def list_excluded(top: Path, workdir: Path, sent: set[str], root: Path) -> Iterator[str]:
    """The excluded files that a script may need: those below the folder in which the run starts, relative to it.

    Without folders of which run.sync sends some files: those that the script needs.
    """
    sent = sent | {str(parent) for path in sent for parent in PurePath(path).parents}
    try:
        paths = git.excluded(top)
    except git.GitError:
        return  # only a note is lost; listing the code itself has worked
    skipped: dict[str, bool] = {}
    for path in paths:
        full = top / path
        name = os.path.relpath(full, workdir) + ("/" if path.endswith("/") else "")
        if name.startswith("../") or any(part.startswith(".") or never_sent(part) for part in name.split("/")):
            continue
        if path.endswith("/") and (_is_skipped(top, path[:-1], skipped) or not _has_files(full)):
            continue
        if os.path.relpath(full, root) not in sent and not _is_skipped(top, path.rpartition("/")[0], skipped):
            yield shown(name)


def _is_skipped(top: Path, folder: str, skipped: dict[str, bool]) -> bool:
    """Whether `folder` is in a virtual environment, which does not work elsewhere, or in a folder of results."""
    if folder not in skipped:
        skipped[folder] = bool(folder) and (
            _is_skipped(top, folder.rpartition("/")[0], skipped)
            or os.path.lexists(top / folder / "pyvenv.cfg")
            or _has_results(top / folder)
        )
    return skipped[folder]


def _has_files(folder: Path) -> bool:
    try:
        return not all(map(never_sent, os.listdir(folder)))
    except OSError:
        return False


def _has_results(folder: Path) -> bool:
    with contextlib.suppress(OSError), (folder / ".gitignore").open("rb") as file:
        return file.read(len(_RESULTS) + 1) == _RESULTS
    return False


def make_results_folder(folder: Path) -> None:
    """Create a folder for downloaded results, unless it exists. Git and snapshots ignore it: otherwise the outputs of
    one run would be sent with the code of the next. Raises OSError.
    """
    if not folder.exists():
        folder.mkdir(parents=True)
        (folder / ".gitignore").write_bytes(_RESULTS)


def never_sent(name: str) -> bool:
    if name in (".git", "__pycache__") or name.endswith(".pyc"):
        return True
    return _REPORT.fullmatch(name) is not None or _SLURM_OUTPUT.fullmatch(name) is not None


def is_report(path: Path) -> bool:
    """Whether `report` has written this file, whatever its name is."""
    if path.suffix.lower() not in report_file.SUFFIXES or path.is_symlink() or not path.is_file():
        return False
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            return report_file.is_report(file.read(report_file.LONGEST))
    except OSError:
        return False


def lies_in(top: Path, path: str) -> bool:
    """Whether the folder of `path` is below `top` and no part of it is a link. A git index may contain any path."""
    folder = top / path.rpartition("/")[0]
    return not path.startswith("/") and os.path.realpath(folder) == str(folder)


def shown(path: str | Path) -> str:
    """The path for messages: bytes that are not UTF-8 are escaped."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")
