"""Quote arguments for the login shell of a host. Runs nothing."""

from __future__ import annotations

import re
from collections.abc import Sequence


def quote(argv: Sequence[str]) -> str:
    """One command line that passes exactly these arguments in any login shell (sh, bash, zsh, fish, csh).

    Backslashes, quotes and `!` are outside the quotes, where all of these shells treat `\\` alike. csh cannot take a
    newline in an argument, and no shell a NUL (ValueError).
    """
    return " ".join(_quote(argument) for argument in argv)


def _quote(argument: str) -> str:
    if "\0" in argument:
        raise ValueError("an argument cannot contain NUL")
    if re.fullmatch(r"[A-Za-z0-9_./:-]+", argument):
        return argument
    parts = re.findall(r"[\\'!]|[^\\'!]+", argument)
    return "".join(f"\\{part}" if part in "\\'!" else f"'{part}'" for part in parts) or "''"
