"""Write the lines of a run to files: one per rank and stream, and one with all lines in the order of time."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from ..errors import OutputError, UsageError
from ..output.lines import LINE_LIMIT, Line, Mask, Painter, presentable
from ..plan.code_files import make_results_folder

MERGED = "merged.log"
LONG = LINE_LIMIT // 2  # characters; a shorter partial line was cut because its end was late, not because of its length
MAX_OPEN = 200  # files open at once; a run may have more ranks than a process may open files


class LogFiles:
    """`FOLDER/attempt-1/rank-03.stdout.log`, `FOLDER/attempt-1/node-0.agent.log`, ..., `FOLDER/merged.log`.

    Text is masked and tamed as on the screen, and without colour. The merged file has times and tags. Existing files
    are replaced; only the user can read the files. Raises UsageError if one cannot be opened, OutputError if it
    cannot be written.
    """

    def __init__(self, folder: Path, hosts: Sequence[str], mask: Mask) -> None:
        self.merged = folder / MERGED
        self.lines = 0
        self._folder = folder
        self._mask = mask
        self._painter = Painter(hosts, colour=False, timestamps=True, mask=mask)
        self._known: set[Path] = set()
        self._files: dict[Path, TextIO] = {}  # the open files, the one opened last at the end
        try:
            make_results_folder(folder)
        except OSError as error:
            raise UsageError(f"--output: {folder}: {error.strerror}") from error
        self._open(self.merged)

    @property
    def count(self) -> int:
        return len(self._known)

    def add(self, batch: Iterable[Line]) -> None:
        """Write lines. The parts of a long line become one line again."""
        texts: dict[Path, list[str]] = {}
        merged = []
        for line in batch:
            self.lines += not line.partial
            path = self._path(line)
            continues = line.partial and len(line.text) > LONG
            texts.setdefault(path, []).append(presentable(line.text, False, self._mask) + ("" if continues else "\n"))
            merged.append(self._painter.paint(line) + "\n")
        texts[self.merged] = merged
        for path, path_texts in texts.items():
            with _telling(path):
                self._file(path).write("".join(path_texts))

    def _path(self, line: Line) -> Path:
        name = f"{line.host}.agent" if line.rank is None else f"rank-{line.rank:02}.{line.stream}"
        return self._folder / f"attempt-{line.attempt}" / f"{name}.log"

    def _file(self, path: Path) -> TextIO:
        return self._files.get(path) or self._open(path)

    def _open(self, path: Path) -> TextIO:
        while len(self._files) >= MAX_OPEN:
            oldest = next(known for known in self._files if known != self.merged)
            with _telling(oldest):
                self._files.pop(oldest).close()
        flags = os.O_WRONLY | os.O_CREAT | (os.O_APPEND if path in self._known else os.O_TRUNC)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            file = os.fdopen(os.open(path, flags, 0o600), "w", encoding="utf-8", errors="backslashreplace")
        except OSError as error:
            what = "a file, not a folder" if self._folder.is_file() else error.strerror
            raise UsageError(f"--output: {self._folder if self._folder.is_file() else path}: {what}") from error
        self._known.add(path)
        self._files[path] = file
        return file

    def close(self) -> None:
        for path, file in self._files.items():
            with _telling(path):
                file.close()


@contextmanager
def _telling(path: Path) -> Iterator[None]:
    """Raises OutputError for a file that cannot be written, as on a full disk."""
    try:
        yield
    except OSError as error:
        raise OutputError(f"--output: {path}: {error.strerror}") from error
