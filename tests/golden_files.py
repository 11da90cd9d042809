"""Texts that people read, whole, in tests/golden: a change of words changes a file there and no test.

With UPDATE_GOLDEN=1 in the environment the files are written anew; the diff is to be read.
"""

from __future__ import annotations

import os
from pathlib import Path

GOLDEN = Path(__file__).parent / "golden"


def same_as(path: Path, text: str) -> None:
    """For a text that has a file of its own beside its input."""
    if os.environ.get("UPDATE_GOLDEN"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


def assert_message(name: str, message: object, **changing: object) -> None:
    """Compare with golden/messages/NAME.txt. `changing`: what is another time another one, by the word in its place."""
    text = str(message)
    for word, value in changing.items():
        text = text.replace(str(value), word)
    same_as(GOLDEN / "messages" / f"{name}.txt", text.rstrip("\n") + "\n")
