"""What is known of failures, read from knowledge/*.yaml: signatures, meaning, fix, precedence. See docs/diagnose.md."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

import yaml

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
    explains: tuple[str, ...] = ()  # of a hint: codes that it stands behind where they would be first
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
    """Places of the code where an error only says that another process has gone."""
    noise: re.Pattern[str]


@cache
def load() -> Knowledge:
    folder = Path(__file__).parent / "knowledge"
    causes = {}
    for path in sorted(folder.glob("*.yaml")):
        if path.stem not in ("consequences", "noise"):
            cause = _cause(_yaml(path))
            causes[cause.code] = cause
    consequences = folder / "consequences.yaml"
    return Knowledge(causes, _any(consequences), _any(consequences, "within"), _any(folder / "noise.yaml"))


def _yaml(path: Path) -> dict[str, Any]:
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    read: dict[str, Any] = yaml.load(path.read_text(encoding="utf-8"), loader)  # noqa: S506  both are safe ones
    return read


def _any(path: Path, key: str = "signatures") -> re.Pattern[str]:
    return re.compile("|".join(f"(?:{pattern})" for pattern in _yaml(path)[key]))


def _cause(read: dict[str, Any]) -> Cause:
    exits: dict[int, int] = {}
    signatures = []
    for item in read.get("signatures", ()):
        if "exit" in item:
            exits |= dict.fromkeys(item["exit"], item["level"])
            continue
        where = next(where for where in WHERES if where in item)
        signatures.append(
            Signature(
                item["level"],
                where,
                re.compile(item[where]),
                needs=re.compile(item["needs"]) if "needs" in item else None,
                unless=re.compile(item["unless"]) if "unless" in item else None,
                spread=item.get("spread"),
                hint=item.get("hint", False),
                explains=tuple(item.get("explains", ())),
                confidence=item.get("confidence", "high"),
                late=item.get("late", False),
                within=re.compile(item["within"]) if "within" in item else None,
                outside=re.compile(item["outside"]) if "outside" in item else None,
            )
        )
    return Cause(read["code"], read["meaning"], read["fix"], tuple(signatures), exits)
