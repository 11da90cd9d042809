"""Explain a missing file or module of a run if it exists on this machine: why it was not sent, or is not found there.

Changes nothing.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path

from ..diagnosis.engine import Diagnosis
from ..diagnosis.shell_errors import missing_path
from ..output.finding import Finding
from ..plan import import_roots, snapshot
from . import recent, unsent_modules

CODES = ("dataset-missing", "file-missing-on-host")
IMPORT_CODES = ("missing-module-on-host", "script-import-error")
LOOKED_AT = 2_000  # files here, to find one of a similar name
SENT = "{path} is of this machine, and was sent with the code. On the hosts, use `{relative}`"
_QUOTED = re.compile(r"'([^']+)'|\"([^\"]+)\"")
_IN_CODE = re.compile(r"/.*/runs/[^/]+/code/(.+)")  # a path on a host, in the run's copy of the code

_NO_MODULE = re.compile(r"No module named '(?P<module>[\w.]+)'")
_OTHER_COPY = re.compile(r"cannot import name '[^']*' from '(?P<module>[\w.]+)' \(/.*(?:site|dist)-packages/")
_FRAME = re.compile(r'File "/.*/runs/[^/]+/code/(?P<path>.+)", line \d+')


def explain(diagnosis: Diagnosis, run_id: str) -> Diagnosis:
    """The diagnosis of a run, with the reason if a missing file is in the code's folder on this machine."""
    started = recent.started(run_id)
    if started is None or not started.code:
        return diagnosis
    folder, sync_base = Path(started.code), Path(started.folder or Path(started.inventory).parent)

    def explain_finding(finding: Finding) -> Finding:
        if finding.code in CODES:
            for path in _paths(finding, folder):
                if why := snapshot.why_not_sent(folder, path, sync_base):
                    return replace(finding, code="dataset-missing", confidence="high", fix=why)
                if relative := snapshot.where_sent(folder, path):
                    return replace(finding, fix=SENT.format(path=path, relative=relative))
                if finding.code == "dataset-missing" and (near := _sent_like(folder, path)):
                    return replace(finding, fix=f"{near} was sent with the code: do you mean that? {finding.fix}")
        if finding.code in IMPORT_CODES:
            return _explain_import(finding, folder, sync_base, _script_words(run_id))
        return finding

    return replace(diagnosis, findings=tuple(map(explain_finding, diagnosis.findings)))


def _sent_like(folder: Path, path: str) -> str | None:
    """A file or folder that was sent, whose path is much like this relative one, which does not exist here."""
    if Path(path).is_absolute() or "\0" in path or os.path.lexists(folder / path):
        return None
    here: list[str] = []
    for parent, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        here += [os.path.relpath(Path(parent, name), folder) for name in (*folders, *names)]
        if len(here) > LOOKED_AT:
            break
    near = get_close_matches(os.path.normpath(path), here[:LOOKED_AT], 1, cutoff=0.8)
    return near[0] if near and snapshot.where_sent(folder, str(folder / near[0])) else None


def _paths(finding: Finding, folder: Path) -> Iterator[str]:
    """The paths in a finding, relative to the folder in which the run starts, but for those of its frames."""
    for line in (*finding.evidence, finding.message):
        if line.startswith('File "'):
            continue
        of_command = missing_path(line)
        for path in [of_command] if of_command else [match[1] or match[2] for match in _QUOTED.finditer(line)]:
            inner = _IN_CODE.fullmatch(path)
            if inner is None:
                yield path
                continue
            for root in (folder, *folder.parents):  # the root of the code is this folder or one above it
                yield os.path.relpath(root / inner[1], folder)


def _explain_import(finding: Finding, folder: Path, sync_base: Path, words: Sequence[str]) -> Finding:
    """Say so if the module is in the sent code, in a folder where Python does not look. `words`: of the command."""
    matches = (pattern.search(text) for text in finding.evidence for pattern in (_NO_MODULE, _OTHER_COPY))
    module = next((match["module"] for match in matches if match), None)
    root = import_roots.find_root(module, folder) if module is not None else None
    frame = next((match["path"] for match in map(_FRAME.match, finding.evidence) if match), None)
    file = _file_here(frame, folder) if frame is not None else None
    if module is None or root is None or file is None:
        return finding
    if why := _why_not_sent(module, folder / root, folder, sync_base):
        return replace(finding, code="script-import-error", confidence="high", fix=why)
    if file.parent == Path(os.path.normpath(folder / root)):
        return finding
    script = os.path.relpath(file, folder)
    installed = " Some hosts have another copy of it among those." if finding.code == "missing-module-on-host" else ""
    message = (
        f"{module} is in the code that was sent, but Python looks for it only beside the script, in "
        f"{Path(script).parent}/, and among the installed packages.{installed}"
    )
    fix = import_roots.advise(root, script if script in map(os.path.normpath, words) else None)
    return replace(finding, code="script-import-error", confidence="high", message=message, fix=fix)


def _why_not_sent(module: str, root: Path, folder: Path, sync_base: Path) -> str | None:
    """Of the package, or of the module in it: a rule may exclude only some files."""
    *packages, last = module.split(".")
    if packages and (why := snapshot.why_not_sent(folder, os.path.relpath(root / packages[0], folder), sync_base)):
        return why
    return unsent_modules.why_not_sent(last, root.joinpath(*packages), folder, sync_base)


def _script_words(run_id: str) -> Sequence[str]:
    command = recent.command_of(run_id)
    words = command.options.get("script") if command is not None else None
    return words if isinstance(words, tuple) else ()


def _file_here(path: str, folder: Path) -> Path | None:
    """The file here of a path in the sent code, whose root is `folder` or one above it."""
    return next((root / path for root in (folder, *folder.parents) if (root / path).is_file()), None)
