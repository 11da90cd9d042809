"""Read the blocks with commands and code of README.md and docs/, and what the line above each says about its test."""

from __future__ import annotations

import re
import textwrap
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
FENCE = re.compile(r" *```(\w*)")
MARK = re.compile(r" *<!-- (not run|dry run|tested by): (.+) -->")


@dataclass(frozen=True)
class Block:
    page: str
    line: int
    """Of the opening fence."""
    language: str
    text: str
    mark: str | None
    """`not run` or `dry run`, with the reason in `note`; `tested by`, with the files of the tests. None: it is run."""
    note: str

    @property
    def is_shell(self) -> bool:
        return self.language in ("console", "bash", "sh")

    @property
    def commands(self) -> tuple[str, ...]:
        """The commands without their prompts and output; those of a bash file are its lines."""
        joined = re.sub(r"\\\n\s*", "", self.text)
        if self.language == "console":
            return tuple(line[2:] for line in joined.splitlines() if line.startswith("$ "))
        return tuple(line for line in joined.splitlines() if line.strip() and not line.startswith("#"))

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


@cache
def blocks() -> tuple[Block, ...]:
    """Every block, in the order of the pages."""
    pages = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
    return tuple(block for page in pages for block in parse(page.read_text(), str(page.relative_to(ROOT))))


def parse(text: str, page: str) -> list[Block]:
    lines = text.splitlines()
    found: list[Block] = []
    start: int | None = None
    for number, line in enumerate(lines):
        if not (fence := FENCE.match(line)):
            continue
        if start is None:
            start, language = number, fence[1]
            mark = MARK.fullmatch(lines[number - 1]) if number else None
        else:
            body = textwrap.dedent("\n".join(lines[start + 1 : number]))
            found.append(Block(page, start + 1, language, body, mark and mark[1], mark[2] if mark else ""))
            start = None
    return found
