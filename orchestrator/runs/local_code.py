"""Find the line of the user's own file that a traceback of a host names. Reads files only."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from ..output.finding import SourceCode, find_nothing
from ..output.terminal import one_line

NEIGHBOURS = 1  # lines shown before and after
MAX_SIZE = 4 << 20  # bytes of a file
_FRAME = re.compile(r'File "(?P<path>[^"]+)", line (?P<line>\d+)(?:, in (?P<name>\S+))?')


def finder(run_id: str, code: str | None, before: float | None) -> Callable[[str], SourceCode | None]:
    """`code`: the folder whose content was sent for the run, or the one below it in which the script runs.

    `before`: Unix time; a file that was changed later may be another one now, so it is not shown. Clocks of hosts may
    differ by some seconds from the clock of this machine.
    """
    if not code:
        return find_nothing
    folders = [Path(code), *Path(code).parents]

    def find(frame: str) -> SourceCode | None:
        match = _FRAME.match(frame)
        if match is None or f"/runs/{run_id}/code/" not in match["path"]:
            return None
        relative = Path(match["path"].split(f"/runs/{run_id}/code/", 1)[1])
        if ".." in relative.parts:
            return None
        for folder in folders[: len(relative.parts)]:
            if source := _read(folder / relative, int(match["line"]), match["name"] or "", before):
                return source
        return None

    return find


def _read(path: Path, number: int, name: str, before: float | None) -> SourceCode | None:
    try:
        status = path.stat()
        if status.st_size > MAX_SIZE or (before is not None and status.st_mtime > before):
            return None
        texts = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    if not 1 <= number <= len(texts):
        return None
    first, last = max(1, number - NEIGHBOURS), min(len(texts), number + NEIGHBOURS)
    lines = tuple((line, one_line(texts[line - 1].expandtabs(4)).rstrip()) for line in range(first, last + 1))
    return SourceCode(f"{_from_here(path)}:{number}{f' in {one_line(name)}' if name else ''}", number, lines)


def _from_here(path: Path) -> str:
    here = Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)
