"""`any 2 of [gpu1, gpu2, gpu3]`: a number of hosts, to be chosen of some when a run starts. No IO."""

from __future__ import annotations

import re

FORM = "any N of [HOST, ...]"


def parse(text: str) -> tuple[int, str] | None:
    """`any 2 of [a, b]` -> 2 and `[a, b]`; `any 2` -> 2 and "". None if the text is something else."""
    match = re.fullmatch(r"\s*any\s+([0-9]{1,5})(?:\s+of\s+(.+?))?\s*", text, re.DOTALL)
    return (int(match[1]), match[2] or "") if match else None


def names(text: str) -> tuple[str, ...]:
    """`[a, gpu[1,3]]` -> `a` and `gpu[1,3]`. Raises ValueError."""
    inner = text[1:-1] if text.startswith("[") and text.endswith("]") else text
    found = tuple(word.strip() for word in re.split(r",(?![^\[]*\])", inner))
    if not all(found):
        raise ValueError(f"expected {FORM}")
    return found


def check(count: int, hosts: int) -> None:
    """Raises ValueError if `count` hosts cannot be chosen of so many."""
    if not 1 <= count <= hosts:
        raise ValueError(f"any {count} of {hosts} hosts: expected a number from 1 to {hosts}")
