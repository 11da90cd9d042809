"""What is known of failures, read from knowledge/*.yaml: signatures, meaning, fix, precedence. See docs/diagnose.md."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal, TypedDict, cast

import yaml

from ..output.harmless import is_harmless

Where = Literal["line", "exception", "differs", "same", "last"]
WHERES: tuple[Where, ...] = ("line", "exception", "differs", "same", "last")


@dataclass(frozen=True)
class Signature:
    """How a cause shows. `level` is its precedence (docs/diagnose.md)."""

    level: int
    where: Where
    pattern: re.Pattern[str]
    needs: re.Pattern[str] | None = None  # must be somewhere in the logs
    unless: re.Pattern[str] | None = None  # must not be in the line
    spread: Literal["some"] | None = None  # on some hosts, while others got further
    hint: bool = False  # a warning: explains a failure, proves none
    explains: tuple[str, ...] = ()  # for a hint: codes that it explains if one of them is the first cause
    confidence: Literal["high", "medium"] = "high"
    late: bool = False  # only after steps of training
    within: re.Pattern[str] | None = None  # of an exception: must be among the last places of its traceback
    outside: re.Pattern[str] | None = None  # of an exception: must be nowhere in its traceback


@dataclass(frozen=True)
class Cause:
    code: str
    meaning: str
    fix: str
    signatures: tuple[Signature, ...]
    exits: Mapping[int, int]
    """Level by the signal that ended a process."""


@dataclass(frozen=True)
class Knowledge:
    causes: Mapping[str, Cause]
    consequences: re.Pattern[str]
    peers: re.Pattern[str]
    """Places in the code where an error only shows that another process has gone."""
    noise: re.Pattern[str]

    def is_noise(self, text: str) -> bool:
        """Whether healthy runs print this line too."""
        return self.noise.search(text) is not None or is_harmless(text)


class _SignatureItem(TypedDict, total=False):
    level: int
    exit: Sequence[int]
    line: str
    exception: str
    differs: str
    same: str
    last: str
    needs: str
    unless: str
    spread: Literal["some"]
    hint: bool
    explains: Sequence[str]
    confidence: Literal["high", "medium"]
    late: bool
    within: str
    outside: str


class _CauseFile(TypedDict, total=False):
    """One of knowledge/CODE.yaml; a test reads all of them."""

    code: str
    meaning: str
    fix: str
    signatures: Sequence[_SignatureItem]


class _PatternFile(TypedDict, total=False):
    """consequences.yaml or noise.yaml."""

    signatures: Sequence[str]
    within: Sequence[str]


@cache
def load_knowledge() -> Knowledge:
    folder = Path(__file__).parent / "knowledge"
    causes = {}
    for path in sorted(folder.glob("*.yaml")):
        if path.stem not in ("consequences", "noise"):
            cause = _parse_cause(cast(_CauseFile, _load_yaml(path)))
            causes[cause.code] = cause
    consequences = cast(_PatternFile, _load_yaml(folder / "consequences.yaml"))
    noise = cast(_PatternFile, _load_yaml(folder / "noise.yaml"))
    return Knowledge(
        causes, _any_of(consequences["signatures"]), _any_of(consequences["within"]), _any_of(noise["signatures"])
    )


def table() -> str:
    """The generated part of docs/findings.md."""
    causes = load_knowledge().causes.values()
    rows = (f"| `{cause.code}` | {_escape(cause.meaning)} | {_escape(cause.fix)} |\n" for cause in causes)
    return "| code | meaning | fix |\n|---|---|---|\n" + "".join(rows)


def _escape(text: str) -> str:
    """Text for a cell of a table, with code spans as they are."""
    parts = text.split("`")
    parts[::2] = [re.sub(r"([<*])", r"\\\1", part) for part in parts[::2]]
    return "`".join(parts).replace("|", "\\|")


def _load_yaml(path: Path) -> object:
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return yaml.load(path.read_text(encoding="utf-8"), loader)  # noqa: S506  both are safe ones


def _any_of(patterns: Sequence[str]) -> re.Pattern[str]:
    return re.compile("|".join(f"(?:{pattern})" for pattern in patterns))


def _parse_cause(content: _CauseFile) -> Cause:
    items = content.get("signatures", ())
    exits = {number: item["level"] for item in items for number in item.get("exit", ())}
    signatures = tuple(_parse_signature(item) for item in items if "exit" not in item)
    return Cause(content["code"], content["meaning"], content["fix"], signatures, exits)


def _parse_signature(item: _SignatureItem) -> Signature:
    where, pattern = next((where, item[where]) for where in WHERES if where in item)
    return Signature(
        item["level"],
        where,
        re.compile(pattern),
        needs=_compile(item.get("needs")),
        unless=_compile(item.get("unless")),
        spread=item.get("spread"),
        hint=item.get("hint", False),
        explains=tuple(item.get("explains", ())),
        confidence=item.get("confidence", "high"),
        late=item.get("late", False),
        within=_compile(item.get("within")),
        outside=_compile(item.get("outside")),
    )


def _compile(pattern: str | None) -> re.Pattern[str] | None:
    return None if pattern is None else re.compile(pattern)
