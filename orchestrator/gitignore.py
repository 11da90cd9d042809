"""What a .gitignore file says, read as git reads it (gitignore(5), git's wildmatch.c). Touches no files.

For folders that are in no repository. The common idiom `*`, `!*/`, `!*.py` is where libraries for this differ from git.
"""

from __future__ import annotations

import os
import re
from typing import NamedTuple

# The letters of a [[:class:]], as in the C locale.
_CLASSES = {
    "alnum": "0-9A-Za-z", "alpha": "A-Za-z", "blank": " \\t", "cntrl": "\\x00-\\x1f\\x7f",
    "digit": "0-9", "graph": "!-~", "lower": "a-z", "print": " -~",
    "punct": "!-/:-@\\[-`{-~", "space": " \\t-\\r", "upper": "A-Z", "xdigit": "0-9A-Fa-f",
}  # fmt: skip


class _Rule(NamedTuple):
    pattern: re.Pattern[str]
    excludes: bool
    only_folders: bool


class Gitignore:
    """The rules of one file. They speak of paths below the folder that the file lies in."""

    def __init__(self, content: bytes) -> None:
        # latin-1: a character a byte, which is what git compares
        lines = content.removeprefix(b"\xef\xbb\xbf").decode("latin-1").split("\n")
        rules = [rule for line in lines if (rule := _parse(line.removesuffix("\r"))) is not None]
        self._rules = tuple(reversed(rules))

    def excludes(self, path: str) -> bool | None:
        """Whether `path` itself is excluded, None where no rule speaks of it. A folder's path ends with `/`.

        What lies in an excluded folder is excluded, whatever the rules say of it: do not ask, do not go in.
        """
        text = os.fsencode(path).decode("latin-1")
        is_folder = text.endswith("/")
        text = text.rstrip("/")
        for rule in self._rules:  # the last one decides
            if (is_folder or not rule.only_folders) and rule.pattern.fullmatch(text):
                return rule.excludes
        return None


def _parse(line: str) -> _Rule | None:
    if line.startswith("#"):
        return None
    line = re.sub(r"(?<!\\) +\Z", "", line)
    excludes = not line.startswith("!")
    glob = line if excludes else line[1:]
    only_folders = glob.endswith("/")
    glob = glob.removesuffix("/")
    if not glob:
        return None
    # with a slash it is for a path from here, without one for a name at any depth
    anywhere = "" if "/" in glob else "(?:.*/)?"
    translated = _translate(glob.removeprefix("/"))
    return None if translated is None else _Rule(re.compile(anywhere + translated, re.DOTALL), excludes, only_folders)


def _translate(glob: str) -> str | None:
    """The glob as a regular expression; None for one that matches nothing."""
    out, place = "", 0
    first = len(re.split(r"[*?\[\\]", glob, maxsplit=1)[0])  # the place of the first wildcard
    while place < len(glob):
        if stars := re.compile(r"\*+").match(glob, place):
            # git compares what stands before the first wildcard by itself, so for it `a**/b` begins with `**/` too
            begins = place == first or glob[place - 1] == "/"
            place = stars.end()
            if len(stars[0]) == 1 or not begins or glob[place : place + 1] not in ("", "/"):
                out += "[^/]*"
            elif place == len(glob):
                out += ".*"
            else:
                out += "(?:.*/)?"  # `**/`: any folders, or none
                place += 1
        elif glob[place] == "?":
            out, place = out + "[^/]", place + 1
        elif glob[place] == "[":
            letters, place = _letters(glob, place + 1)
            if letters is None:
                return None
            out += f"(?!/){letters}"
        else:
            place += glob[place] == "\\"
            if place == len(glob):
                return None
            out, place = out + re.escape(glob[place]), place + 1
    return out


def _letters(glob: str, place: int) -> tuple[str | None, int]:
    """A bracket expression from behind its `[` as one of `re`, and the place behind it; None for one without an end."""
    negated = glob[place : place + 1] in ("!", "^")
    place += negated
    inside, first = "", place
    while place < len(glob) and (glob[place] != "]" or place == first):
        if named := re.compile(r"\[:(\w*):\]").match(glob, place):
            if named[1] not in _CLASSES:
                return None, place
            inside, place = inside + _CLASSES[named[1]], named.end()
            continue
        low, place = _letter(glob, place)
        high = low
        if glob[place : place + 1] == "-" and glob[place + 1 : place + 2] not in ("", "]"):
            high, place = _letter(glob, place + 1)
        if low <= high:
            inside += f"{re.escape(low)}-{re.escape(high)}"
    if place >= len(glob):
        return None, place
    if not inside:  # empty ranges only
        return ("." if negated else "(?!)"), place + 1
    return f"[{'^' if negated else ''}{inside}]", place + 1


def _letter(glob: str, place: int) -> tuple[str, int]:
    place += glob[place] == "\\" and place + 1 < len(glob)
    return glob[place], place + 1
