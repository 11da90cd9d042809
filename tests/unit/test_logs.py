from __future__ import annotations

import base64
import json
import math
import random
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.errors import UsageError
from orchestrator.output.lines import (
    LINE_LIMIT,
    PALETTE,
    REORDER_WINDOW,
    REWRITE_INTERVAL,
    Line,
    LineAssembler,
    Mask,
    Merger,
    Painter,
    parse_duration,
    parse_ranks,
    parse_time,
    rfc3339,
    to_json,
)

GOLDEN = Path(__file__).parents[1] / "golden" / "logs"
NOTHING = Mask()


def assembler() -> LineAssembler:
    return LineAssembler("node-0", 3, "stdout", 0)


def texts(lines: Iterable[Line]) -> list[str]:
    return [line.text for line in lines]


def line(text: str, at: float = 0.0, host: str = "node-0", rank: int | None = 3, stream: str = "stdout") -> Line:
    return Line(at, host, rank, stream, 0, text)


def fed(*chunks: bytes, every: float = 10.0) -> list[str]:
    """The lines of chunks that come `every` seconds, and of the end of the stream."""
    stream = assembler()
    lines = [line for number, chunk in enumerate(chunks) for line in stream.feed(chunk, number * every)]
    return texts([*lines, *stream.flush()])


# --- lines


def test_a_line_says_where_it_comes_from_and_when_it_was_complete() -> None:
    stream = LineAssembler("node-0", 3, "stderr", 2)
    assert stream.feed(b"half a ", 1.0) == []
    assert stream.feed(b"line\nnext", 2.0) == [Line(2.0, "node-0", 3, "stderr", 2, "half a line")]
    assert stream.flush() == [Line(2.0, "node-0", 3, "stderr", 2, "next")]
    assert stream.flush() == []


def test_empty_lines_are_lines() -> None:
    assert fed(b"\n\na\n\n") == ["", "", "a", ""]


def test_nothing_is_no_line() -> None:
    assert fed() == fed(b"") == []


@settings(deadline=None)
@given(
    st.lists(st.text(st.characters(exclude_characters="\r\n", exclude_categories=["Cs"]))), st.randoms(), st.booleans()
)
def test_lines_come_out_the_same_wherever_the_stream_is_cut(written: list[str], rng: random.Random, crlf: bool) -> None:
    data = "".join(text + ("\r\n" if crlf else "\n") for text in written).encode()
    cuts = sorted(rng.randrange(len(data) + 1) for _ in range(rng.randrange(6)))
    assert fed(*(data[start:end] for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True))) == written


@settings(deadline=None)
@given(st.binary(), st.integers(1, 5))
def test_bytes_that_are_not_utf8_are_shown_and_lost_nowhere(data: bytes, size: int) -> None:
    data = data.replace(b"\r", b"").replace(b"\n", b"")
    chunks = [data[start : start + size] for start in range(0, len(data), size)]
    assert "".join(fed(*chunks)) == data.decode(errors="backslashreplace")


def test_a_character_cut_in_two_is_put_together() -> None:
    assert fed(b"caf\xc3", b"\xa9\n\xff\xe6\xbc\n") == ["café", "\\xff\\xe6\\xbc"]


# --- long lines


def test_a_long_line_comes_in_parts_that_say_so() -> None:
    stream = assembler()
    lines = stream.feed(b"x" * (2 * LINE_LIMIT + 5) + b"\nshort\n", 0.0)
    assert [(len(line.text), line.partial) for line in lines] == [
        (LINE_LIMIT, True),
        (LINE_LIMIT, True),
        (5, False),
        (5, False),
    ]


def test_an_endless_line_is_given_out_and_not_kept() -> None:
    stream = assembler()
    given_out = sum(len(line.text) for _ in range(1000) for line in stream.feed(b"x" * 10_000, 0.0))
    assert 10_000_000 - given_out <= LINE_LIMIT
    last = stream.feed(b"\n", 0.0)
    assert given_out + len(last[0].text) == 10_000_000
    assert not last[0].partial


def test_a_newline_behind_a_part_ends_the_line_and_is_no_empty_line() -> None:
    stream = assembler()
    stream.feed(b"prompt> ", 0.0)
    assert texts(stream.idle()) == ["prompt> "]
    assert stream.feed(b"\n", 1.0) == []
    assert texts(stream.feed(b"\n", 1.0)) == [""]


def test_a_long_line_is_cut_behind_a_space_so_that_secrets_stay_whole() -> None:
    secret = "correct-horse-battery"
    data = ("x" * (LINE_LIMIT - 10) + " " + secret + "\n").encode()
    lines = assembler().feed(data, 0.0)
    assert len(lines) == 2
    painter = Painter(["node-0"], colour=False, mask=Mask([secret]))
    assert "correct" not in "".join(map(painter.paint, lines))


def test_lines_of_a_big_chunk_are_not_taken_for_long_ones() -> None:
    data = b"0123456789\n" * 20_000
    assert fed(data) == ["0123456789"] * 20_000


# --- progress bars and prompts


def test_a_progress_bar_is_shown_twice_a_second_and_at_its_end() -> None:
    stream = assembler()
    lines = [line for tick in range(1001) for line in stream.feed(f"\r{tick / 10:5.1f}%".encode(), tick / 100)]
    lines += stream.feed(b"\n", 10.01)
    assert texts(lines)[-1] == "100.0%"
    assert 18 <= len(lines) <= 10 / REWRITE_INTERVAL + 2
    shown_at = [line.at for line in lines[:-1]]
    assert all(later - earlier >= REWRITE_INTERVAL for earlier, later in pairwise(shown_at))


def test_the_last_state_is_shown_once_however_the_bar_ends() -> None:
    assert fed(b"\r1%\r2%\r100%\n") == ["100%"]
    assert fed(b"1%\r2%\r100%\r\n") == ["100%"]
    assert fed(b"\r1%\r100%") == ["1%", "100%"]
    assert fed(b"1%\r100%\r") == ["1%", "100%"]
    assert fed(b"1%\r", b"100%\r", b"\n") == ["1%", "100%"]
    assert fed(b"1%\r", b"100%\r", b"\n", every=0.1) == ["1%", "100%"]


def test_wiping_the_line_is_no_state() -> None:
    assert fed(b"\r99%\r      \rdone\n") == ["done"]
    assert fed(b"\r99%\r      \r\n") == ["99%"]
    assert fed(b"\r99%\r\x1b[2K\n") == ["99%"]
    assert fed(b"1%\r2%\r", b"99%\r  \r", b"  \r", b"\n", every=0.1) == ["1%", "99%"]


def test_a_carriage_return_at_the_end_of_a_chunk_waits_for_its_newline() -> None:
    assert fed(b"a\r", b"\nb\r", b"\n") == ["a", "b"]
    assert fed(b"a\r\r\n") == ["a"]


def test_what_was_there_before_the_bar_and_comes_behind_it_is_kept() -> None:
    assert fed(b"before\n\r1%\r2%\nafter\n") == ["before", "2%", "after"]


def test_when_idle_the_newest_state_is_shown_and_not_again_at_the_end() -> None:
    stream = assembler()
    assert texts(stream.feed(b"\r1%\r2%", 0.0)) == ["1%"]
    assert texts(stream.idle()) == ["2%"]
    assert stream.idle() == []
    assert stream.feed(b"\n", 60.0) == []


def test_when_idle_a_prompt_is_shown_as_a_part() -> None:
    stream = assembler()
    assert stream.idle() == []
    stream.feed(b"Continue? [y/N] ", 5.0)
    assert stream.idle() == [Line(5.0, "node-0", 3, "stdout", 0, "Continue? [y/N] ", partial=True)]
    assert stream.idle() == []
    assert stream.feed(b"y\n", 6.0) == [Line(6.0, "node-0", 3, "stdout", 0, "y")]


@settings(deadline=None)
@given(st.lists(st.sampled_from([b"\r", b"\n", b"a", b"b", b" ", b"\xff"]), max_size=40), st.randoms())
def test_no_text_of_a_last_state_is_lost_whatever_the_mixture(pieces: list[bytes], rng: random.Random) -> None:
    data = b"".join(pieces)
    cuts = sorted(rng.randrange(len(data) + 1) for _ in range(4))
    stream = assembler()
    lines: list[Line] = []
    for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True):
        lines += stream.feed(data[start:end], 0.0)
        if rng.random() < 0.2:
            lines += stream.idle()
    shown = "\n".join(texts([*lines, *stream.flush()]))
    for written in data.decode(errors="backslashreplace").split("\n"):
        states = [state for state in written.split("\r") if state.strip()]
        # the last state is there, in one piece or, where the stream paused, in several
        position = 0
        for character in states[-1].rstrip() if states else "":  # what is blank is not worth a line
            position = shown.index(character, position) + 1


# --- secrets

SECRET = "s3cr3t/tok+n=äö?"


@pytest.mark.parametrize(
    "written",
    [
        SECRET,
        base64.b64encode(SECRET.encode()).decode(),
        base64.urlsafe_b64encode(SECRET.encode()).decode(),
        base64.b64encode(SECRET.encode()).decode().rstrip("="),
        quote(SECRET),
        quote(SECRET, safe=""),
        quote_plus(SECRET),
        json.dumps(SECRET)[1:-1],
    ],
)
def test_a_secret_is_hidden_however_it_is_written(written: str) -> None:
    assert Mask([SECRET, "another one"]).hide(f"token: {written}, ok") == "token: ***, ok"


@pytest.mark.parametrize("value", [SECRET, "it's-a-s3cr3t", 'say-"s3cr3t"', "both'\"s3cr3t", "back\\slash\t-s3cr3t"])
@pytest.mark.parametrize("around", ["", "'", '"', "'\"", "\x07ü"])
def test_a_secret_is_hidden_in_a_literal_of_python(value: str, around: str) -> None:
    text = f"{around}{value}"
    for literal in (repr(text), ascii(text), repr(text.encode()), repr([text]), repr({"token": text.encode()})):
        assert "s3cr3t" not in Mask([value]).hide(literal)


def shown_by(mask: Mask, lines: Iterable[Line]) -> str:
    return "".join(map(mask.hide, texts(lines)))


@pytest.mark.parametrize("written", [SECRET, base64.b64encode(SECRET.encode()).decode(), repr(SECRET.encode())[2:-1]])
def test_a_secret_is_hidden_wherever_a_long_line_is_cut(written: str) -> None:
    mask = Mask([SECRET, "another secret", "s3cr3t/tok"])
    for before in range(LINE_LIMIT - len(written) - 1, LINE_LIMIT + 2):
        stream = LineAssembler("node-0", 3, "stdout", 0, mask)
        data = f"{'x' * before}{written}{'y' * LINE_LIMIT}\n".encode()
        lines = [*stream.feed(data[:LINE_LIMIT], 1.0), *stream.feed(data[LINE_LIMIT:], 2.0)]
        assert shown_by(mask, lines) == f"{'x' * before}***{'y' * LINE_LIMIT}"
        assert "".join(texts(lines)).encode() == data[:-1]


@pytest.mark.parametrize("cut", range(1, len(SECRET.encode())))
@pytest.mark.parametrize("bar", ["", "\r 50%\r"])
def test_a_secret_whose_halves_come_far_apart_is_hidden(cut: int, bar: str) -> None:
    mask = Mask([SECRET])
    stream = LineAssembler("node-0", 3, "stdout", 0, mask)
    written = SECRET.encode()
    lines = stream.feed(f"{bar}token: ".encode() + written[:cut], 1.0)
    lines += stream.idle()
    lines += stream.feed(written[cut:], 20.0)
    lines += stream.idle()
    lines += stream.feed(b", ok\n", 40.0)
    shown = shown_by(mask, lines)
    assert shown.endswith("token: ***, ok") and SECRET[:2] not in shown


def test_what_only_began_like_a_secret_is_shown_when_the_line_ends() -> None:
    stream = LineAssembler("node-0", 3, "stdout", 0, Mask(["s3cr3t-value"]))
    lines = [*stream.feed(b"s3cr", 1.0), *stream.idle()]
    assert lines == []
    lines = [*stream.feed(b"apbook ", 2.0), *stream.idle(), *stream.feed(b"s3c", 3.0), *stream.idle(), *stream.flush()]
    assert texts(lines) == ["s3crapbook ", "s3c"]


HIDDEN = st.text("abc", min_size=7, max_size=10).map(lambda text: f"<{text}")  # no two of them overlap


@given(st.text("abc <", max_size=60), st.lists(HIDDEN, min_size=1, max_size=3), st.data())
def test_no_cut_goes_through_what_is_hidden(text: str, secrets: list[str], data: st.DataObject) -> None:
    text += data.draw(st.sampled_from(secrets)) + data.draw(st.sampled_from(["", *secrets]))
    mask = Mask(secrets)
    end = data.draw(st.integers(0, len(text)))
    place = mask.cut(text, end)
    assert 0 <= place <= end
    for secret in secrets:
        assert not any(text.startswith(secret, start) for start in range(max(0, place - len(secret) + 1), place))
        assert not any(
            text[start:end] == secret[: end - start] for start in range(max(0, end - len(secret) + 1), place)
        )


@pytest.mark.parametrize("user", ["a", "ab", "abc"])
def test_a_secret_is_hidden_inside_of_a_basic_authorization(user: str) -> None:
    header = base64.b64encode(f"{user}:correct-horse-battery".encode()).decode()
    hidden = Mask(["correct-horse-battery"]).hide(header)
    assert "***" in hidden
    assert len(hidden) <= len(base64.b64encode(f"{user}:".encode())) + 6


def test_each_line_of_a_secret_with_several_is_hidden() -> None:
    mask = Mask(["-----BEGIN KEY-----\nMIIEvQIBADANBg\nshort\n-----END KEY-----\n"])
    assert mask.hide("MIIEvQIBADANBg") == "***"
    assert mask.hide("-----END KEY-----") == "***"
    assert mask.hide("short") == "short"


def test_short_values_are_left_alone() -> None:
    mask = Mask(["1234567", ""])
    assert not mask
    assert mask.hide("1234567") == "1234567"


def test_of_two_secrets_the_longer_leaves_no_rest() -> None:
    assert Mask(["password", "password-of-ann"]).hide("password-of-ann") == "***"


def test_colour_inside_a_secret_does_not_let_it_through() -> None:
    painter = Painter(["n"], colour=True, mask=Mask(["wandb-0123456789"]))
    painted = painter.paint(line("\x1b[32mkey\x1b[0m wandb-\x1b[1;36m0123456789\x1b[0m", host="n"))
    assert painted.endswith("key ***")
    assert "\x1b[32m" in painter.paint(line("\x1b[32mkey\x1b[0m", host="n"))


# --- tags


def test_a_line_is_tagged_with_host_and_rank_in_a_column_of_fixed_width() -> None:
    painter = Painter(["node-0", "hopper-10"], colour=False)
    assert [painter.paint(one) for one in (
        line("text"),
        line("text", host="hopper-10", rank=12),
        line("text", stream="stderr"),
        line("text", rank=None, stream="agent"),
    )] == [
        "node-0:3        | text",
        "hopper-10:12    | text",
        "node-0:3        ! text",
        "node-0:agent    | text",
    ]  # fmt: skip


def test_a_rank_cannot_forge_a_tag() -> None:
    painter = Painter(["a"], colour=False)
    forged = "\x1b[2K\x1b[1Ga:1     | rank 1\nb:2     | rank 2"
    assert painter.paint(line(forged, host="a", rank=0)) == "a:0     | a:1     | rank 1\na:0     | b:2     | rank 2"


def test_a_hosts_name_cannot_command_the_terminal() -> None:
    assert "\x1b" not in Painter(["a"], colour=False).paint(line("x", host="\x1b[2Ja"))


def test_on_a_terminal_each_rank_has_its_colour_and_the_text_keeps_its_own() -> None:
    painter = Painter(["a"], colour=True)
    assert painter.paint(line("\x1b[31mred", host="a", rank=0)) == "\x1b[38;5;32ma:0     | \x1b[0m\x1b[31mred\x1b[0m"
    assert painter.paint(line("x", host="a", rank=1)).startswith("\x1b[38;5;130m")
    assert painter.paint(line("x", host="a", rank=None)).startswith("\x1b[2m")


def test_the_mark_of_stderr_is_red_on_a_terminal() -> None:
    complaint = Line(0.0, "a", 0, "stderr", 1, "oh")
    assert Painter(["a"], colour=True).paint(complaint) == "\x1b[38;5;32ma:0     \x1b[0;31m! \x1b[0moh"
    assert Painter(["a"], colour=False).paint(complaint) == "a:0     ! oh"


def test_timestamps_stand_before_the_tag() -> None:
    painter = Painter(["a"], colour=False, timestamps=True)
    assert painter.paint(line("x", at=1_700_000_000.25, host="a", rank=0)) == "2023-11-14T22:13:20.250000Z a:0     | x"


def test_each_colour_reads_on_black_and_on_white() -> None:
    def brightness(colour: int) -> float:  # WCAG 2 relative luminance of one of the 6x6x6 colours
        steps = (0, 95, 135, 175, 215, 255)
        channels = (steps[(colour - 16) // 36], steps[(colour - 16) // 6 % 6], steps[(colour - 16) % 6])
        red, green, blue = (
            (value / 255 / 12.92 if value <= 10 else ((value / 255 + 0.055) / 1.055) ** 2.4) for value in channels
        )
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    for colour in PALETTE:
        assert min((brightness(colour) + 0.05) / 0.05, 1.05 / (brightness(colour) + 0.05)) >= 3.5, colour
    assert len(set(PALETTE)) == len(PALETTE)


# --- JSON


def test_json_is_one_object_with_the_fields_of_the_contract() -> None:
    written = to_json(Line(1_700_000_000.000001, "node-0", None, "agent", 1, 'say "hi" \x1b[31mred\x1b[0m é'), NOTHING)
    assert "\n" not in written
    assert list(json.loads(written).items()) == [
        ("at", "2023-11-14T22:13:20.000001Z"),
        ("host", "node-0"),
        ("rank", None),
        ("stream", "agent"),
        ("attempt", 1),
        ("text", 'say "hi" red é'),
    ]


def test_json_hides_secrets_and_says_when_a_line_goes_on() -> None:
    written = json.loads(to_json(line("key correct-horse")._replace(partial=True), Mask(["correct-horse"])))
    assert (written["text"], written["partial"]) == ("key ***", True)


@settings(deadline=None)
@given(st.text())
def test_any_text_is_one_line_of_ascii_json(text: str) -> None:
    written = to_json(line(text), NOTHING)
    assert written.isascii() and "\n" not in written
    assert isinstance(json.loads(written)["text"], str)


# --- all together, on what programs really write


@pytest.mark.parametrize("case", sorted(path.stem for path in GOLDEN.glob("*.raw")))
def test_golden(case: str) -> None:
    """CASE.raw as written by a program, and how it has to look in a pipe, on a terminal and as JSON."""
    stream = LineAssembler("node-0", 3, "stderr", 0)
    raw = (GOLDEN / f"{case}.raw").read_bytes()
    lines: list[Line] = []
    for number, start in enumerate(range(0, len(raw), 64)):  # 64 bytes every tenth of a second
        lines += stream.feed(raw[start : start + 64], 1_700_000_000 + number / 10)
    lines += stream.flush()
    mask = Mask(["wandb-0123456789abcdef"])
    shown = {
        "plain": [Painter(["node-0"], colour=False, mask=mask).paint(line) for line in lines],
        "colour": [Painter(["node-0"], colour=True, timestamps=True, mask=mask).paint(line) for line in lines],
        "jsonl": [to_json(line, mask) for line in lines],
    }
    for kind, painted in shown.items():
        assert "\n".join([*painted, ""]).encode() == (GOLDEN / f"{case}.{kind}").read_bytes(), kind


# --- merging


def test_history_is_merged_by_time_when_all_sources_have_come_past_it() -> None:
    merger = Merger(["a", "b"])
    merger.add("a", [line("1", 1.0), line("3", 3.0)], now=0.0)
    assert merger.ready(100.0) == []  # b may still have something from before
    merger.add("b", [line("2", 2.0, "b"), line("4", 4.0, "b")], now=0.0)
    assert texts(merger.ready(0.0)) == ["1", "2", "3"]
    merger.live("a")
    assert texts(merger.ready(0.0)) == ["4"]
    merger.live("b")
    merger.add("a", [line("5", 5.0)], now=0.0)
    assert texts(merger.flush()) == ["5"]


def test_a_live_line_waits_for_the_window_and_lets_earlier_ones_past() -> None:
    merger = Merger([])
    merger.add("a", [line("late", 2.0)], now=10.0)
    assert merger.ready(10.0 + REORDER_WINDOW / 2) == []
    merger.add("b", [line("early", 1.0, "b"), line("later still", 3.0, "b")], now=10.0 + REORDER_WINDOW / 2)
    assert texts(merger.ready(10.0 + REORDER_WINDOW)) == ["early", "late"]
    assert texts(merger.ready(10.0 + 2 * REORDER_WINDOW)) == ["later still"]


def test_a_line_that_comes_too_late_is_given_out_and_not_held() -> None:
    merger = Merger([])
    merger.add("a", [line("now", 100.0)], now=0.0)
    assert texts(merger.ready(1.0)) == ["now"]
    merger.add("b", [line("an hour ago", 50.0, "b")], now=1.0)
    assert texts(merger.ready(1.0)) == ["an hour ago"]


def test_offsets_of_clocks_are_taken_off() -> None:
    merger = Merger([], {"ahead": 3600.0})
    merger.add("ahead", [line("first", 3601.0, "ahead")], now=0.0)
    merger.add("right", [line("second", 2.0, "right")], now=0.0)
    assert [(one.text, one.at) for one in merger.flush()] == [("first", 1.0), ("second", 2.0)]


def test_a_clock_set_back_does_not_reorder_a_stream() -> None:
    merger = Merger([])
    merger.add("a", [line("1", 100.0), line("2", 40.0), line("3", 41.0)], now=0.0)
    merger.add("b", [line("b", 50.0, "b")], now=0.0)
    assert texts(merger.flush()) == ["b", "1", "2", "3"]


@settings(deadline=None, max_examples=100)
@given(st.data())
def test_nothing_is_lost_doubled_or_reordered_within_a_stream(data: st.DataObject) -> None:
    hosts = ["a", "b", "c"]
    merger = Merger(hosts, {"b": 2.5})
    fed_in: dict[str, list[str]] = {host: [] for host in hosts}
    out: list[Line] = []
    now = 0.0
    for number in range(data.draw(st.integers(0, 25))):
        host = data.draw(st.sampled_from(hosts))
        now += data.draw(st.floats(0, 0.3))
        times = data.draw(st.lists(st.floats(0, 50), max_size=4))
        lines = [line(f"{host}{number}.{place}", at, host) for place, at in enumerate(times)]
        fed_in[host] += texts(lines)
        merger.add(host, lines, now)
        if data.draw(st.booleans()):
            merger.live(host)
        out += merger.ready(now)
    out += merger.flush()
    assert {host: [one.text for one in out if one.host == host] for host in hosts} == fed_in


# --- what people type


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90), ("5m", 300), ("1h30m", 5400), ("2d", 172800), ("1.5h", 5400), ("30", 30), ("1m30", 90)],
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "m", "5 m", "5x", "-5m", "5s3m", "1e9", "٣m½", "9" * 4000, "nan", "inf"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="duration"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("5m", 700.0),
        ("1970-01-01T00:00:01Z", 1.0),
        ("1970-01-01T01:00:01.5+01:00", 1.5),
        ("1970-01-01 00:00:01.123456789Z", 1.123456789),
        ("1970-01-01T00:01Z", 60.0),
    ],
)
def test_points_in_time(text: str, at: float) -> None:
    assert parse_time(text, now=1000.0) == pytest.approx(at)


@pytest.mark.parametrize(
    "text", ["yesterday", "1970-01-01", "1970-13-01T00:00:00Z", "1970-01-01T00:00:00", "1970-01-01T00:00:00+99:00"]
)
def test_what_is_no_point_in_time_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="time"):
        parse_time(text, now=0.0)


@given(st.integers(0, 4_000_000_000_000_000))
def test_times_as_we_print_them_are_read_again(microseconds: int) -> None:
    assert parse_time(rfc3339(microseconds / 1e6), now=0.0) == pytest.approx(microseconds / 1e6, abs=2e-6)


@pytest.mark.parametrize("at", [math.nan, math.inf, -math.inf, 1e300, -1.0])
def test_a_host_may_claim_any_time(at: float) -> None:
    assert rfc3339(at).endswith("Z")


@pytest.mark.parametrize(("text", "ranks"), [("0", {0}), ("0,4-7", {0, 4, 5, 6, 7}), (" 1 , 1-2", {1, 2})])
def test_ranks(text: str, ranks: set[int]) -> None:
    assert parse_ranks(text) == ranks


@pytest.mark.parametrize("text", ["", "a", "-1", "3-1", "1,", "0-9999999", "1--2", "²"])
def test_what_is_no_list_of_ranks_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="ranks"):
        parse_ranks(text)
