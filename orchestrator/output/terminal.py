"""Make text of hosts and ranks safe to show on a terminal: keep only text and, if asked for, colour.

A log line could set the window title, write to the clipboard, overwrite tags, or make the terminal type an answer.
Neither `print` nor rich prevents that, so everything that comes from a host goes through `tame` before it is shown.
"""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache

RESET = "\x1b[0m"

# The contents of a string sequence up to its end. A sequence without an end hides at most 4 KiB.
_STRING = r"[^\x00-\x1f\x7f-\x9f]{0,4096} (?: \x07 | \x1b\\ | \x9c )?"

# Each match starts with a character of one set, which makes the search fast. No alternative can match inside itself, so
# the time is linear even if sequences are nested or unfinished.
_UNSAFE = re.compile(
    rf"""
    [\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]
    (?:
      (?<=\x1b) \[ (?P<style> [0-9;]* ) m            # SGR: colour and style
    | (?<=\x1b) \[ [0-?]* [ -/]* [@-~]?             # CSI: cursor, modes, erasing, questions to the terminal
    | (?<=\x9b)    [0-?]* [ -/]* [@-~]?             # ... introduced by one character
    | (?<=\x1b) [PX^_\]] {_STRING}                  # DCS, SOS, PM, APC, OSC: a string of any content
    | (?<=[\x90\x98\x9d-\x9f]) {_STRING}
    | (?<=\x1b) [ -/]* [0-~]?                       # other escapes: character sets, reset, keypad
    )?
    """,
    re.VERBOSE,
)


def tame(text: str, colour: bool) -> str:
    """`text` without control sequences, except tabs, newlines and, with `colour`, SGR up to the end of the line.

    Characters that change the reading direction, Unicode's own line ends and lone surrogates are shown as `\\u202e`.
    Takes linear time.
    """
    if text.isprintable():  # nearly every line; no control, format or surrogate character is printable
        return text
    if not colour:
        return _UNSAFE.sub(_without_colour, text)
    return "\n".join([_coloured(line) for line in text.split("\n")])


def one_line(text: str) -> str:
    """`text` tamed, without colour, on one line: text of a host cannot look like a message of ddp-orch."""
    return tame(text, colour=False).replace("\n", " ").replace("\t", " ")


def cut(text: str, columns: int) -> str:
    """The start of `text` that fits into so many columns of a terminal. East Asian characters and emoji take two."""
    if text.isascii():
        return text[:columns]
    used = 0
    for place, character in enumerate(text):
        if not unicodedata.combining(character):
            used += 2 if unicodedata.east_asian_width(character) in "WF" else 1
        if used > columns:
            return text[:place]
    return text


def _coloured(line: str) -> str:
    line = _UNSAFE.sub(_with_colour, line)
    return line if "\x1b" not in line or line.endswith(RESET) else line + RESET


def _without_colour(match: re.Match[str]) -> str:
    first = match[0][0]
    return f"\\u{ord(first):04x}" if first > "\x9f" else ""


def _with_colour(match: re.Match[str]) -> str:
    style = match["style"]
    return _without_colour(match) if style is None else _style(style)


@lru_cache(maxsize=1024)
def _style(parameters: str) -> str:
    """The SGR sequence without conceal. `8` alone is conceal, but in `38;5;8` a colour, so the list is parsed."""
    if len(parameters) > 64:
        return ""  # terminals differ in how much of it they read
    numbers = [int(number or "0") for number in parameters.split(";")]
    kept: list[int] = []
    while numbers:
        number = numbers.pop(0)
        if number in (38, 48):  # a colour: 5;N or 2;R;G;B
            length = {5: 2, 2: 4}.get(numbers[0] if numbers else 0, 0)
            if not length or len(numbers) < length:
                break
            kept += [number, *numbers[:length]]
            del numbers[:length]
        elif number == 58:
            break  # underline colour; a terminal without it reads 58;5;8 as blink and conceal
        elif number != 8:
            kept.append(number)
    return f"\x1b[{';'.join(map(str, kept))}m" if kept else ""
