"""Turn the output of ranks into lines for people and programs: assemble, merge, mask, tag. Reads and prints nothing.

It must handle a million lines per second, so it does nothing per character, and little per line.
"""

from __future__ import annotations

import codecs
import json
import math
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import datetime, timezone
from functools import lru_cache
from operator import itemgetter
from typing import NamedTuple

from ..errors import UsageError
from .mask import SHORTEST_SECRET as SHORTEST_SECRET
from .mask import Mask as Mask
from .terminal import RESET, tame

LINE_LIMIT = 64 * 1024  # characters; a longer line is split
_WORD_LIMIT = 4 * 1024  # characters before the limit in which a space is preferred as the place to split
REWRITE_INTERVAL = 0.5  # seconds between two states of a progress bar that are shown
REORDER_WINDOW = 0.1  # seconds that a live line waits for earlier lines of other hosts
_LAST_SECOND = 253402300799.0  # of the year 9999, the last that RFC 3339 and datetime know

# Twelve of the 256 colours with a contrast of 3.5 or more on black and on white. No red, which looks like an error.
PALETTE = (32, 130, 28, 164, 30, 100, 98, 166, 67, 64, 132, 94)


class Line(NamedTuple):
    """One line of one stream. A named tuple, because a dataclass takes six times as long to create."""

    at: float  # seconds, Unix time of the host
    host: str
    rank: int | None  # None: lines of the agent (torchrun) and of ddp-orch
    stream: str  # stdout | stderr | agent
    attempt: int
    text: str  # as written: not masked, not tamed
    partial: bool = False  # continues in the next line of this stream
    tag: str = ""  # of a folded line: the ranks that printed it, such as [0-63]
    redrawn: str = ""  # of a line that is drawn again and again, as progress bars are: a `state`, or the `last` one


class LineAssembler:
    """Takes the bytes of one stream, and gives lines. Keeps the incomplete line.

    `\\r\\n` ends a line, as `\\n` does. A `\\r` alone restarts the line, as progress bars do. Of the states of such a
    line, the last one becomes a line, and before that at most one per REWRITE_INTERVAL. Bytes that are not UTF-8 are
    shown as `\\xff`. A line longer than LINE_LIMIT is split, after a space if there is one. It is never split inside a
    secret of `mask`: the start of a secret waits for the rest.
    """

    def __init__(self, host: str, rank: int | None, stream: str, attempt: int, mask: Mask | None = None) -> None:
        self._origin = (host, rank, stream, attempt)
        self._mask = mask or Mask()
        self._decoder = codecs.getincrementaldecoder("utf-8")("backslashreplace")
        self._rest = ""  # after the last newline and the last \r; a \r at its end may become a \r\n
        self._continues = False  # the start of the line was given out as a partial line
        self._rewriting = False  # the line has contained a \r
        self._hidden = ""  # newest state that was not shown
        self._shown = ""  # newest state that was shown
        self._shown_at = -math.inf
        self._fed_at = -math.inf

    def feed(self, data: bytes, at: float) -> list[Line]:
        """The lines that `data`, written at about `at`, completes."""
        self._fed_at = at
        text = self._rest + self._decoder.decode(data)
        if "\r" in text:
            text = text.replace("\r\n", "\n")
        texts = text.split("\n")
        long = len(text) > LINE_LIMIT and max(map(len, texts)) > LINE_LIMIT
        self._rest = texts.pop()
        if long or self._rewriting or self._continues or "\r" in text:
            return [line for ended in texts for line in self._finish(ended)] + self._shorten_rest()
        new, (host, rank, stream, attempt) = tuple.__new__, self._origin  # twice as fast as Line(...)
        return [new(Line, (at, host, rank, stream, attempt, ended, False, "", "")) for ended in texts]

    def idle(self) -> list[Line]:
        """For a silent stream: its unfinished line, such as a prompt or the newest state of a progress bar."""
        if self._rewriting or "\r" in self._rest:
            self._rewriting = True
            state = _newest(self._rest.split("\r")) or self._hidden
            return self._show(state[: self._mask.cut(state, len(state))])
        end = self._mask.cut(self._rest, len(self._rest))
        rest, self._rest = self._rest[:end], self._rest[end:]
        self._continues = self._continues or bool(rest)
        return self._give(rest, partial=True) if rest else []

    def flush(self) -> list[Line]:
        """At the end of the stream: its last line, if it has no newline."""
        text = self._rest + self._decoder.decode(b"", final=True)
        self._rest = ""
        return self._finish(text) if text or self._hidden else []

    def _finish(self, text: str) -> list[Line]:
        """Finish a line at its newline. `text` starts at the start of the line, or at its last state given out."""
        continued = self._continues or self._rewriting or "\r" in text
        redrawn = "last" if self._rewriting else ""
        if self._rewriting or "\r" in text:
            text = _newest(text.split("\r")) or self._hidden
            if text == self._shown:
                text = ""
        self._continues, self._rewriting, self._hidden, self._shown = False, False, "", ""
        lines = self._give(text) if text or not continued else []
        return [line._replace(redrawn=redrawn) for line in lines] if redrawn else lines

    def _shorten_rest(self) -> list[Line]:
        """Give out parts of the unfinished line that need not be kept: old states, and parts of a long line."""
        lines = []
        *states, rest = self._rest.rstrip("\r").split("\r")
        if states:
            self._rewriting = True
            self._hidden = _newest(states) or self._hidden
            if self._fed_at - self._shown_at >= REWRITE_INTERVAL:
                lines += self._show(self._hidden)
        *parts, rest = self._parts(rest)
        if parts:
            self._continues = True
            lines += [Line(self._fed_at, *self._origin, part, partial=True) for part in parts]
        self._rest = rest + "\r" if self._rest.endswith("\r") else rest
        return lines

    def _show(self, state: str) -> list[Line]:
        self._hidden = ""
        if not state or state == self._shown:
            return []
        self._shown, self._shown_at = state, self._fed_at
        return [line._replace(redrawn="state") for line in self._give(state)]

    def _give(self, text: str, partial: bool = False) -> list[Line]:
        *parts, last = self._parts(text)
        lines = [Line(self._fed_at, *self._origin, part, partial=True) for part in parts]
        return [*lines, Line(self._fed_at, *self._origin, last, partial)]

    def _parts(self, text: str) -> list[str]:
        parts, start = [], 0
        while len(text) - start > LINE_LIMIT:
            limit = start + LINE_LIMIT
            end = text.rfind(" ", limit - _WORD_LIMIT, limit) + 1 or limit
            place = self._mask.cut(text, end)
            end = place if place > start else end  # no secret is that long
            parts.append(text[start:end])
            start = end
        return [*parts, text[start:]]


def _newest(states: list[str]) -> str:
    """The last state with visible text. Programs clear a bar with spaces or escape sequences before drawing it."""
    return next((state for state in reversed(states) if tame(state, colour=False).strip()), "")


def presentable(text: str, colour: bool, mask: Mask) -> str:
    """`text` tamed and masked. A text with a secret loses its colour, whose sequences may be inside the secret."""
    if not mask:
        return tame(text, colour)
    plain = tame(text, colour=False)
    hidden = mask.hide(plain)
    return tame(text, colour) if colour and hidden == plain else hidden


class Painter:
    """Formats lines for people: `node-0:3     | text`, with `!` for stderr; `node-0:agent | text` for the agent.

    Every line starts with a tag of the same width, so a rank cannot forge one.
    """

    def __init__(self, hosts: Iterable[str], colour: bool, timestamps: bool = False, mask: Mask | None = None) -> None:
        self._colour = colour
        self._timestamps = timestamps
        self._mask = mask or Mask()
        self._masked = bool(mask)
        self._width = max(map(len, hosts), default=0) + len(":agent")
        self._tags: dict[tuple[str, int | None, str], str] = {}

    def paint(self, line: Line) -> str:
        """The tagged line, without a newline at its end. If its text has newlines, each of its lines is tagged."""
        text = line.text
        if self._masked or not text.isprintable():
            text = presentable(text, self._colour, self._mask)
        key = line[1:4]  # host, rank, stream
        return self._tagged(line.at, self._tags.get(key) or self._make_tag(*key), text)

    def paint_folded(self, line: Line) -> str:
        """A folded line, whose `tag` names its ranks."""
        tag = self._framed(line.tag, line.rank, line.stream)
        return self._tagged(line.at, tag, presentable(line.text, self._colour, self._mask))

    def _tagged(self, at: float, tag: str, text: str) -> str:
        if self._timestamps:
            tag = f"{rfc3339(at)} {tag}"
        return tag + (text if "\n" not in text else text.replace("\n", "\n" + tag))

    def _make_tag(self, host: str, rank: int | None, stream: str) -> str:
        tag = self._framed(f"{host}:{'agent' if rank is None else rank}", rank, stream)
        self._tags[host, rank, stream] = tag
        return tag

    def _framed(self, name: str, rank: int | None, stream: str) -> str:
        tag, mark = f"{tame(name, colour=False).ljust(self._width)} ", "!" if stream == "stderr" else "|"
        if not self._colour:
            return f"{tag}{mark} "
        style = "2" if rank is None else f"38;5;{PALETTE[rank % len(PALETTE)]}"
        if mark == "|":
            return f"\x1b[{style}m{tag}| {RESET}"
        return f"\x1b[{style}m{tag}\x1b[0;31m! {RESET}"


def to_json(line: Line, mask: Mask) -> str:
    """The line as a JSON object in ASCII, without a newline. The text is masked and tamed.

    `"partial": true` is present only if the line continues in the next one.
    """
    # what json.dumps calls for a string
    text = json.encoder.encode_basestring_ascii(presentable(line.text, False, mask))
    more = ', "partial": true' if line.partial else ""
    return f'{{"at": "{rfc3339(line.at)}", {_json_origin(*line[1:5])}, "text": {text}{more}}}'


@lru_cache(maxsize=4096)
def _json_origin(host: str, rank: int | None, stream: str, attempt: int) -> str:
    origin = {"host": tame(host, colour=False), "rank": rank, "stream": stream, "attempt": attempt}
    return json.dumps(origin)[1:-1]


@lru_cache(maxsize=256)  # lines of one chunk have the same time
def rfc3339(at: float) -> str:
    """Unix seconds as RFC 3339, UTC, with microseconds."""
    at = min(max(0.0, at), _LAST_SECOND)  # a host may claim any time, or none (nan)
    seconds, microseconds = divmod(round(at * 1_000_000), 1_000_000)
    whole = datetime.fromtimestamp(seconds, timezone.utc)
    return f"{whole:%Y-%m-%dT%H:%M:%S}.{microseconds:06d}Z"


def whole_seconds(time: str) -> str:
    """A time of `rfc3339` for people, who do not need its microseconds."""
    return time[:19] + "Z" if len(time) > 19 else time


class Merger:
    """Merges the lines of several hosts by time. Never changes the order within a stream.

    A host sends its lines in the order of time. At first it is behind, because it sends what is in its journal: a line
    is given out once all hosts that are behind have passed its time. Later the host is live, and no line waits for it.
    Then lines are held for REORDER_WINDOW, because earlier ones of other hosts may arrive.
    """

    def __init__(self, hosts: Iterable[str], offsets: Mapping[str, float] | None = None) -> None:
        self._behind = dict.fromkeys(hosts, -math.inf)  # host -> the time that it has passed
        self._offsets = dict(offsets or {})  # host -> seconds its clock is ahead of ours
        self._waiting: list[tuple[float, Line]] = []
        self._sorted = True
        self._stream_at: dict[tuple[str, int | None, str, int], float] = {}
        # (when these lines have been held long enough, the latest time of any line so far)
        self._due: list[tuple[float, float]] = []
        self._held: Counter[str] = Counter()

    def held(self, host: str) -> int:
        """Number of lines of a host that wait for other hosts."""
        return self._held[host]

    def add(self, host: str, lines: list[Line], now: float) -> None:
        """`now` is a monotonic clock, as in `ready`. Lines leave with the host's offset subtracted from their `at`."""
        latest = self._due[-1][1] if self._due else -math.inf
        for line in lines:
            offset = self._offsets.get(line.host)
            if offset:
                line = line._replace(at=line.at - offset)
            stream = line[1:5]
            # a clock that is set back must not change the order of a stream
            at = self._stream_at[stream] = max(line.at, self._stream_at.get(stream, -math.inf))
            self._waiting.append((at, line))
            latest = max(latest, at)
            if host in self._behind:
                self._behind[host] = max(self._behind[host], at)
        self._held[host] += len(lines)
        self._sorted = False
        self._due.append((now + REORDER_WINDOW, latest))

    def set_offset(self, host: str, offset: float) -> None:
        """`offset`: seconds that the clock of the host is ahead of ours. Call this before its first line."""
        self._offsets[host] = offset

    def passed(self, host: str, at: float) -> None:
        """The host will send no more lines from before `at`, by its own clock."""
        if host in self._behind:
            self._behind[host] = max(self._behind[host], at - self._offsets.get(host, 0.0))

    def live(self, host: str) -> None:
        """The host has sent everything that existed, or is gone: do not wait for it any more."""
        self._behind.pop(host, None)

    def ready(self, now: float) -> list[Line]:
        """The lines that may be given out by now, in order."""
        passed = bisect_right(self._due, (now, math.inf))
        if self._behind:
            limit = min(self._behind.values())
        elif passed:
            limit = self._due[passed - 1][1]
        else:
            return []
        if passed:
            del self._due[: passed - 1]  # the last of them has the limit for the next call
        return self._take(limit)

    @property
    def wake_at(self) -> float:
        """When `ready` has more to give out, if nothing is added by then."""
        if not self._waiting or self._behind:
            return math.inf
        earliest = self._waiting[0][0] if self._sorted else -math.inf
        return next((at for at, latest in self._due if latest >= earliest), math.inf)

    def flush(self) -> list[Line]:
        """All lines that are still held, in order."""
        return self._take(math.inf)

    def _take(self, limit: float) -> list[Line]:
        if not self._sorted:
            self._waiting.sort(key=itemgetter(0))  # stable: lines with the same time keep their order
            self._sorted = True
        count = bisect_right(self._waiting, limit, key=itemgetter(0))
        lines = [line for _, line in self._waiting[:count]]
        del self._waiting[:count]
        self._held.subtract(map(itemgetter(1), lines))  # by host
        return lines


_DURATION = re.compile("".join(rf"(?:(\d{{1,9}}(?:\.\d{{1,9}})?){unit})?" for unit in "dhms"))
_TIME = re.compile(r"(\d{4}-\d\d-\d\d)[Tt ](\d\d:\d\d)(:\d\d)?(\.\d{1,9})?([Zz]|[+-]\d\d:\d\d)")


def parse_duration(text: str) -> float:
    """`90s`, `5m`, `1h30m`, `2d` in seconds; a bare number is seconds. Raises UsageError."""
    match = _DURATION.fullmatch(text + "s" if text[-1:].isdigit() else text)
    if not text or match is None:
        raise UsageError(f"{text!r} is not a duration; write it like 90s, 5m, 1h30m or 2d")
    return sum(float(number) * unit for number, unit in zip(match.groups("0"), (86400, 3600, 60, 1), strict=True))


def parse_time(text: str, now: float) -> float:
    """Unix seconds of `5m` (before `now`) or of a time in RFC 3339, as `logs` prints it. Raises UsageError."""
    match = _TIME.fullmatch(text)
    if match is None:
        try:
            return now - parse_duration(text)
        except UsageError:
            raise UsageError(f"{text!r} is not a time; write it like 5m (ago), 1h30m or 2026-01-31T12:00:00Z") from None
    date, minute, second, fraction, zone = match.groups()
    zone = "+00:00" if zone in "Zz" else zone  # Python 3.10 reads neither Z nor fractions of any length
    try:
        whole = datetime.fromisoformat(f"{date}T{minute}{second or ':00'}{zone}").timestamp()
    except ValueError as exc:
        raise UsageError(f"{text!r} is not a time: {exc}") from exc
    return whole + float(fraction or 0)


def parse_ranks(text: str) -> frozenset[int]:
    """`0,4-7` -> 0, 4, 5, 6, 7. Raises UsageError."""
    ranks: set[int] = set()
    for part in text.split(","):
        match = re.fullmatch(r"(\d{1,6})(?:-(\d{1,6}))?", part.strip(), re.ASCII)
        if match is None or int(match[1]) > int(match[2] or match[1]):
            raise UsageError(f"{text!r} is not a list of ranks; write it like 0,4-7")
        ranks.update(range(int(match[1]), int(match[2] or match[1]) + 1))
    return frozenset(ranks)
