"""Whether a shell script goes on after a line that has failed. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

SHELLS = ("bash", "sh", "dash", "zsh", "ksh")
_SET = re.compile(rb"^[ \t]*set[ \t]+(?:-\w+[ \t]+)*(?:-\w*e|-o[ \t]+errexit)", re.MULTILINE)
_SHEBANG = re.compile(rb"#!.*[ \t]-\w*e")
_COMMAND = re.compile(rb"^[ \t]*(?!#|export[ \t]|\w+=|\s*$)\S", re.MULTILINE)


def goes_on(words: Sequence[str], file: str, text: bytes) -> bool:
    """Whether `words` start a script of several commands, in which only the exit code of the last one counts.

    `file`: the script among the words; `text`: its content.
    """
    before = words[: words.index(file)] if file in words else ()
    if not before or Path(before[0]).name not in SHELLS or any(re.fullmatch(r"-\w*e\w*", word) for word in before):
        return False
    whole = text.replace(b"\\\n", b" ")  # a command may take several lines
    return len(_COMMAND.findall(whole)) > 1 and not _SET.search(text) and not _SHEBANG.match(text)
