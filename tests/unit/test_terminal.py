"""Taming against pyte, a terminal in memory: it does what a terminal would do with what comes through."""

from __future__ import annotations

import re
import time

import pyte
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from orchestrator.output.terminal import tame

COLUMNS = 500  # more than any of the texts

# Pieces that mean something to a terminal, so that random text is made of near-sequences and not of letters.
PIECES = st.sampled_from(
    [
        *("\x1b" + second for second in ("", *"[]P_^X\\()#% cM78=NH")),
        *"\x9b\x9d\x90\x98\x9c\x84\x85\x07\x08\x0b\x0c\x0e\x0f\x18\x1a\x00\x7f\r\t\n\u202e\u2066\ud800",
        *"0123456789;:?><=!$\"' mhlABCHJKfsuntqrp",
        *("8", "38", "48", "58", "5;8", "2;1;2;3", "0;title", "52;c;Zm9v", "é", "漢", "e\u0301", "word", "[/bold]"),
    ]
)
HOSTILE = st.lists(st.one_of(PIECES, PIECES, PIECES, st.text(max_size=5)), max_size=60).map("".join)


def state(screen: pyte.Screen) -> dict[str, object]:
    return {
        "title": screen.title,
        "icon": screen.icon_name,
        "modes": set(screen.mode),
        "charsets": (screen.charset, screen.g0_charset, screen.g1_charset),
        "margins": screen.margins,
        "tabstops": set(screen.tabstops),
        "savepoints": list(screen.savepoints),
        "hidden cursor": screen.cursor.hidden,
        "current style": screen.cursor.attrs,
    }


class Terminal(pyte.Screen):
    """Remembers what it would have typed back."""

    def __init__(self) -> None:
        self.typed: list[str] = []
        super().__init__(COLUMNS, 100)

    def write_process_input(self, data: str) -> None:
        self.typed.append(data)


def cells(screen: pyte.Screen) -> dict[tuple[int, int], str]:
    return {(y, x): cell.data for y, line in screen.buffer.items() for x, cell in line.items() if cell.data != " "}


def shown(text: str) -> Terminal:
    screen = Terminal()
    screen.set_mode(pyte.modes.LNM)
    stream = pyte.Stream(screen)
    for character in text:  # of what it gets at once, pyte draws nothing behind a character without a width
        stream.feed(character)
    return screen


@settings(max_examples=250, deadline=None)
@given(HOSTILE)
@example("\x1b[1;38;5;8;8mred\x1b[0")
@example("\x1b]0;unfinished")
def test_nothing_changes_but_text_and_colour_whatever_the_text_is(text: str) -> None:
    plain, coloured = shown(tame(text, colour=False)), shown(tame(text, colour=True))
    fresh = shown("")
    assert state(plain) == state(fresh)
    assert state(coloured) == state(fresh)
    assert plain.typed == coloured.typed == []
    assert cells(coloured) == cells(plain)
    assert (coloured.cursor.x, coloured.cursor.y) == (plain.cursor.x, plain.cursor.y)


@settings(max_examples=250, deadline=None)
@given(HOSTILE)
def test_only_styles_without_conceal_remain_of_all_control_characters(text: str) -> None:
    assert re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", tame(text, colour=False)) is None
    coloured = tame(text, colour=True)
    without_styles = re.sub(r"\x1b\[[0-9;]*m", "", coloured)
    assert re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", without_styles) is None
    assert without_styles == tame(text, colour=False)
    coloured.encode()  # no lone surrogate is left, so it can be written


@settings(max_examples=100, deadline=None)
@given(HOSTILE, st.booleans())
def test_taming_what_is_tame_changes_nothing(text: str, colour: bool) -> None:
    once = tame(text, colour)
    assert tame(once, colour) == once


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("a\x1b]52;c;Zm9vYmFy\x07b", "ab"),  # writes the clipboard
        ("\x1b]8;;https://evil.example\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("\x1b]0;title\x07a", "a"),
        ("\x1bP$qm\x1b\\a", "a"),  # DECRQSS: the terminal types its answer
        ("\x1b[6na\x1b[cb\x1b[5n", "ab"),  # where is the cursor, what are you
        ("a\x1b]0;never ends", "a"),
        ("a\x1b]0;ends the line\nb", "a\nb"),
        ("\x1bXstring\x9ca\x1b^string\x1b\\b\x1b_string\x07c", "abc"),
        ("a\x9b2Jb\x9d0;title\x07c", "abc"),
        ("a\x1b[2Jb\x1b[10;10Hc\x1b[?1049hd\x1bce", "abcde"),
        ("\x1b(0lqk\x1b(B", "lqk"),  # line-drawing character set
        ("\x1b#8a\x1b%Gb\x1b c", "ab"),
        ("a\x00b\x07c\x08d\x0be\x0ef\x7fg", "abcdefg"),
        ("tab\tand\nnewline", "tab\tand\nnewline"),
        ("a\x1b", "a"),
        ("a\x1b[", "a"),
        ("a\x1b\x1b[31mb", "ab"),
        ("abc\u202edef\u2066", "abc\\u202edef\\u2066"),
        ("a\u200eb\u200fc\u061cd", "a\\u200eb\\u200fc\\u061cd"),
        ("one\u2028line\u2029", "one\\u2028line\\u2029"),  # Python's splitlines would make three of it
        ("byte \udcff", "byte \\udcff"),
        ("[/bold] [red]x[/] \\[x]", "[/bold] [red]x[/] \\[x]"),
        ("größe 漢字 \u200d🙂", "größe 漢字 \u200d🙂"),
    ],
)
def test_plain_text_is_what_is_left(text: str, plain: str) -> None:
    assert tame(text, colour=False) == plain


@pytest.mark.parametrize(
    ("text", "coloured"),
    [
        ("\x1b[31mred\x1b[0m plain", "\x1b[31mred\x1b[0m plain\x1b[0m"),
        ("\x1b[31mred\x1b[m", "\x1b[31mred\x1b[0m"),
        ("\x1b[31mred\nnot red", "\x1b[31mred\x1b[0m\nnot red"),
        ("\x1b[8mhidden", "hidden"),
        ("\x1b[1;8;31mhidden", "\x1b[1;31mhidden\x1b[0m"),
        ("\x1b[008mhidden", "hidden"),
        ("\x1b[38;5;8mgrey", "\x1b[38;5;8mgrey\x1b[0m"),
        ("\x1b[38;2;8;8;8;8mgrey", "\x1b[38;2;8;8;8mgrey\x1b[0m"),
        ("\x1b[38;8mhidden", "hidden"),
        ("\x1b[1;38;5mcut", "\x1b[1mcut\x1b[0m"),
        ("\x1b[58;5;8munderlined", "underlined"),
        ("\x1b[38:5:8mcolons", "colons"),
        ("\x1b[" + "1;" * 40 + "8mlong", "long"),
        ("\x1b[" + "9" * 5000 + "mhuge", "huge"),
        ("\x1b[1m\x1b[2Jx", "\x1b[1mx\x1b[0m"),
    ],
)
def test_colour_is_kept_up_to_the_end_of_its_line_but_text_is_never_concealed(text: str, coloured: str) -> None:
    assert tame(text, colour=True) == coloured


def test_an_endless_string_sequence_hides_four_kib_and_no_more() -> None:
    assert tame("\x1b]" + "a" * 4096 + "seen", colour=False) == "seen"


@pytest.mark.parametrize("colour", [False, True])
@pytest.mark.parametrize(
    "piece", ["\x1b", "\x1b[", "\x1b]", "\x9d", "\x1b[0", "\x1b[;", "\x1b ", "\x1b]a\x1b", "\x1b[1m", "\x1b[8m", "\t\r"]
)
def test_time_grows_with_the_length_only(piece: str, colour: bool) -> None:
    start = time.process_time()
    tame((piece * 200_000)[:200_000], colour)
    tame("\x1b[" + ";" * 200_000, colour)
    assert time.process_time() - start < 5  # it takes a tenth of a second; quadratic would be minutes
