"""Make text that a host or a rank wrote safe to show on a terminal. Nothing passes but text and, if asked for, colour.

A log line can retitle the window, write the clipboard, move the cursor over our own tags or ask the terminal to type
an answer. Neither `print` nor rich stops that, so whatever comes from a host goes through `tame` before it is shown.
"""

from __future__ import annotations

import re
from functools import lru_cache

RESET = "\x1b[0m"

# All that a string sequence holds, up to its end; one that never ends hides 4 KiB at most.
_STRING = r"[^\x00-\x1f\x7f-\x9f]{0,4096} (?: \x07 | \x1b\\ | \x9c )?"

# It begins with one set of characters, which makes the search for it fast. Nothing that may follow can begin again
# inside of itself, so each character is looked at a few times at most, however sequences are nested or left unfinished.
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
    """`text` without anything a terminal would obey but tabs, newlines and, with `colour`, SGR up to the line's end.

    Characters that change the reading direction, Unicode's own line ends and lone surrogates are shown as `\\u202e`.
    Takes linear time.
    """
    if text.isprintable():  # nearly every line; no control, format or surrogate character is printable
        return text
    if not colour:
        return _UNSAFE.sub(_without_colour, text)
    return "\n".join([_coloured(line) for line in text.split("\n")])


def one_line(text: str) -> str:
    """`text` tamed and without colour, its line ends and tabs as spaces: what a host says cannot pose as our lines."""
    return tame(text, colour=False).replace("\n", " ").replace("\t", " ")


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
    """The SGR sequence without conceal. `8` is conceal by itself but a colour in `38;5;8`: the list has to be read."""
    if len(parameters) > 64:
        return ""  # terminals disagree on where they stop reading
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
            break  # the underline's colour: a terminal that does not know it reads its 58;5;8 as blink and conceal
        elif number != 8:
            kept.append(number)
    return f"\x1b[{';'.join(map(str, kept))}m" if kept else ""
