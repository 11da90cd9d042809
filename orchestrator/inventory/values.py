"""The kinds of values in an inventory: how to read, check and write each. Knows no key. No IO."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from .yaml_source import Map, Mark, Node, Scalar, Sequence

# set by torchrun or ddp-orch for every rank; another value would connect ranks to the wrong place
RESERVED_ENV = frozenset(
    {"RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "ROLE_NAME", "MASTER_ADDR", "MASTER_PORT"}
    | {"WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE"}
)
RESERVED_ENV_PREFIXES = ("DDP_ORCH_", "TORCHELASTIC_")
MPIRUN = "DDP_ORCH_MPIRUN"  # the user's: the mpirun to start (node/mpi)


@dataclass
class Reading:
    """The state of reading one file: where each key is, and the problems so far. Problems are collected, not raised, so
    that all of them are reported at once.
    """

    marks: dict[str, Mark] = field(default_factory=dict)
    problems: dict[tuple[Mark, str, str], None] = field(default_factory=dict)  # (where, key, message), each once

    deprecated: dict[Mark, str] = field(default_factory=dict)  # old names of keys, and what to use

    def wrong(self, mark: Mark, key: str, message: str) -> None:
        self.problems[mark, key, message] = None

    def read(self, kind: Kind, node: Node, key: str, fallback: Any) -> Any:
        """The value of `node`. If it is invalid, the problem is noted and `fallback` is returned."""
        try:
            return kind.read(node, key, self)
        except ValueError as exc:
            # a string in place of a list or mapping is not shown: it may be a secret, as in `secrets: TOKEN=...`
            actual = describe(node) if kind.single or not isinstance(node, Scalar) or node.null else "a single value"
            self.wrong(node.mark, key, str(exc) or f"expected {kind.want}; got {actual}")
            return fallback

    def entries(self, node: Node, key: str) -> Iterator[tuple[str, str, Mark, Node]]:
        """(name, key, mark, value) of each item of a mapping. Keys that are not text, and duplicates, are problems."""
        if isinstance(node, Scalar) and node.null:
            return  # all its keys are commented out
        if not isinstance(node, Map):
            raise ValueError
        first: dict[str, Mark] = {}
        for name, value in node.items:
            if not isinstance(name, Scalar) or name.null:
                self.wrong(name.mark, key, f"a key must be a word; got {describe(name)}")
            elif name.text in first:
                line = first[name.text].line + 1
                self.wrong(name.mark, _join(key, name.text), f"duplicate key (first on line {line})")
            else:
                first[name.text] = name.mark
                inner = _join(key, name.text)
                self.marks[inner] = name.mark
                yield name.text, inner, name.mark, value


def _join(key: str, name: str) -> str:
    return f"{key}.{name}" if key else name


def _plain(value: Any) -> Any:
    """The value as YAML or JSON."""
    if isinstance(value, tuple):
        return list(value)
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value


@dataclass(frozen=True)
class Kind:
    """A kind of value. `read(node, key, reading)` returns the value, or raises ValueError, maybe without a message."""

    want: str  # what is expected, for messages without a text of their own
    read: Callable[[Node, str, Reading], Any]
    write: Callable[[Any], Any] = _plain
    single: bool = True  # not a list or a mapping


def describe(node: Node) -> str:
    if isinstance(node, Map):
        names = [key.text for key, _ in node.items if isinstance(key, Scalar)]
        return f'a mapping; quote it: "{{{names[0]}}}"' if names in (["output"], ["run"], ["host"]) else "a mapping"
    if isinstance(node, Sequence):
        return "a list" if node.items else "an empty list"
    if node.null:
        return "nothing"
    return shown(node.text) if node.plain else f'the string "{shown(node.text)}"'


def shown(text: str, width: int = 60) -> str:
    """Shorten text for a message: on one line, without control characters."""
    text = text if len(text) <= width else text[: width - 3] + "..."
    return "".join(char if char.isprintable() else f"\\x{ord(char):02x}" for char in text)


# One value


def _text(node: Node) -> str:
    """Strings stay strings: `no`, `022` and `22:22` are these texts, quoted or not."""
    if not isinstance(node, Scalar) or node.null:
        raise ValueError
    if "\0" in node.text:
        raise ValueError("a NUL character cannot be passed to a process")
    if any("\ud800" <= char <= "\udfff" for char in node.text):
        raise ValueError("half of a surrogate pair is not a character")
    return node.text


def text(want: str, convert: Callable[[str], Any] = str, write: Callable[[Any], Any] = _plain) -> Kind:
    """`convert` turns the text into the value, or raises ValueError."""
    return Kind(want, lambda node, key, reading: convert(_text(node)), write)


def like(want: str, pattern: str) -> Kind:
    def convert(value: str) -> str:
        if re.fullmatch(pattern, value) is None:
            raise ValueError
        return value

    return text(want, convert)


def choice(*words: str) -> Kind:
    return like(_either(words), "|".join(map(re.escape, words)))


def _either(words: Iterable[str]) -> str:
    *others, last = words
    return f"{', '.join(others)} or {last}" if others else last


def _digits(node: Node, pattern: str) -> str:
    if not isinstance(node, Scalar) or not node.plain or re.fullmatch(pattern, node.text) is None:
        raise ValueError
    return node.text


def whole(low: int, high: int) -> Kind:
    def take(node: Node, key: str, reading: Reading) -> int:
        value = int(_digits(node, "0|[1-9][0-9]{0,17}"))  # no 022, 0x16 or 1_000: YAML 1.1 and 1.2 disagree on them
        if not low <= value <= high:
            raise ValueError
        return value

    return Kind(f"a whole number from {low} to {high}", take)


_LONG_UNITS = {"d": 86_400, "h": 3_600, "m": 60, "s": 1}


def seconds(low: float, high: int) -> Kind:
    """Seconds, or one number with a unit, such as 30s or 15m."""

    def take(node: Node, key: str, reading: Reading) -> float:
        text = _digits(node, r"[0-9]{1,9}(\.[0-9]{1,3})?[dhms]?")
        number = text.rstrip("".join(_LONG_UNITS))
        value = float(number) * _LONG_UNITS.get(text[len(number) :], 1)
        if not low <= value <= high:
            raise ValueError
        return value

    return Kind(f"a number of seconds from {low:g} to {high}", take)


def duration(low: int, high: int) -> Kind:
    """Seconds, or a text such as 90m, 4h or 1h30m."""

    def take(node: Node, key: str, reading: Reading) -> float:
        parts = re.fullmatch(r"(?:(\d{1,4})d)?(?:(\d{1,5})h)?(?:(\d{1,6})m)?(?:(\d{1,8})s?)?", _text(node))
        if parts is None or not any(parts.groups()):
            raise ValueError
        value = sum(int(count or 0) * unit for count, unit in zip(parts.groups(), _LONG_UNITS.values(), strict=True))
        if not low <= value <= high:
            raise ValueError
        return float(value)

    return Kind(
        f"a duration from {write_duration(low)} to {write_duration(high)}, such as 90m or 4h", take, write_duration
    )


def write_duration(seconds: float) -> str:
    """Seconds in the largest unit without a fraction: 14400 is `4h`, 5400 is `90m`."""
    unit, size = next((unit, size) for unit, size in _LONG_UNITS.items() if seconds % size == 0)
    return f"{int(seconds) // size}{unit}"


def _truth(node: Node, key: str, reading: Reading) -> bool:
    return _digits(node, "true|false") == "true"


truth = Kind("true or false", _truth)


_UNITS = {"TiB": 1 << 40, "GiB": 1 << 30, "MiB": 1 << 20, "KiB": 1 << 10}


def _bytes(value: str) -> int:
    match = re.fullmatch(r"([1-9][0-9]{0,5})(TiB|GiB|MiB|KiB)", value)
    if match is None:
        raise ValueError
    return int(match[1]) * _UNITS[match[2]]


def _write_bytes(value: int) -> str:
    unit = next(unit for unit, size in _UNITS.items() if value % size == 0)
    return f"{value // _UNITS[unit]}{unit}"


size = text("a size such as 500MiB or 2GiB", _bytes, _write_bytes)


def _ports(value: str) -> tuple[int, int]:
    match = re.fullmatch(r"([1-9][0-9]{3,4})-([1-9][0-9]{3,4})", value)
    if match is None or not 1024 <= int(match[1]) <= int(match[2]) <= 65535:
        raise ValueError
    return int(match[1]), int(match[2])


ports = text("LOW-HIGH, two ports from 1024 to 65535", _ports, lambda value: f"{value[0]}-{value[1]}")


def _least_most(value: str) -> tuple[int, int]:
    match = re.fullmatch(r"([1-9][0-9]{0,4})(?::([1-9][0-9]{0,4}))?", value)
    if match is None or int(match[1]) > int(match[2] or match[1]):
        raise ValueError
    return int(match[1]), int(match[2] or match[1])


def _write_least_most(value: tuple[int, int]) -> int | str:
    return value[0] if value[0] == value[1] else f"{value[0]}:{value[1]}"


least_most = text("a number of hosts from 1, or MIN:MAX", _least_most, _write_least_most)


# Several values


def maybe(kind: Kind) -> Kind:
    """The same kind, or null, which becomes None."""

    def take(node: Node, key: str, reading: Reading) -> Any:
        return None if isinstance(node, Scalar) and node.null else kind.read(node, key, reading)

    return Kind(f"{kind.want}, or null", take, lambda value: None if value is None else kind.write(value))


def word_or(word: str, *kinds: Kind) -> Kind:
    """This word, or a value of the first kind that accepts it."""

    def take(node: Node, key: str, reading: Reading) -> Any:
        if isinstance(node, Scalar) and node.text == word:
            return word
        for kind in kinds:
            attempt = Reading()
            try:
                value = kind.read(node, key, attempt)
            except ValueError as exc:
                if len(kinds) == 1 and str(exc):
                    raise
                continue
            reading.problems |= attempt.problems
            reading.marks |= attempt.marks
            return value
        raise ValueError

    def write(value: Any) -> Any:
        return value if value == word else kinds[0].write(value)

    return Kind(_either([word, *(kind.want for kind in kinds)]), take, write)


def items(want: str, kind: Kind, *, unique: bool = False, least: int = 0) -> Kind:
    def take(node: Node, key: str, reading: Reading) -> tuple[Any, ...]:
        if not isinstance(node, Sequence) or len(node.items) < least:
            raise ValueError
        values: list[Any] = []
        seen: set[Any] = set()
        for number, item in enumerate(node.items):
            inner = f"{key}[{number}]"
            value = reading.read(kind, item, inner, None)
            reading.marks[inner] = item.mark
            if unique and value is not None and value in seen:
                reading.wrong(item.mark, inner, f"{shown(str(value))} is listed twice")
            seen.add(value)
            values.append(value)
        return tuple(values)

    return Kind(want, take, single=False)


def env_name(name: str) -> str:
    """The name itself. Raises ValueError if no shell could set it, or if a run sets it itself."""
    if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) is None:
        raise ValueError("a variable name has only letters, digits and _, and does not start with a digit")
    if is_reserved(name):
        raise ValueError("the launcher sets this variable for every rank; remove it")
    return name


def is_reserved(name: str) -> bool:
    """Whether a run sets the variable itself."""
    return name in RESERVED_ENV or (name.startswith(RESERVED_ENV_PREFIXES) and name != MPIRUN)


def _env(node: Node, key: str, reading: Reading) -> dict[str, str]:
    values: dict[str, str] = {}
    for name, inner, mark, value in reading.entries(node, key):
        try:
            env_name(name)
        except ValueError as exc:
            reading.wrong(mark, inner, str(exc))
        values[name] = reading.read(_ENV_VALUE, value, inner, "")
    return values


_ENV_VALUE = text('a string ("" for an empty one)')
env = Kind("a mapping of names to strings", _env, single=False)
