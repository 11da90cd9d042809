"""Fill PORT and PID in a fix from its evidence: people paste the command. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable

PATTERNS = {
    # `port: 29400`, `port=8008`, `('0.0.0.0', 8008)`, `10.0.0.1:29400`, `localhost:29400`, `[::]:29400`
    "PORT": re.compile(
        r"\bport\b['\"]?\s{0,3}[:=]?\s{0,3}(?P<a>\d{1,5})\b"
        r"|\(\s{0,3}['\"][\w.:*-]*['\"]\s{0,3},\s{0,3}(?P<b>\d{1,5})\s{0,3}\)"
        r"|(?:\b\d{1,3}(?:\.\d{1,3}){3}|\blocalhost|\]):(?P<c>\d{1,5})\b",
        re.IGNORECASE,
    ),
    "PID": re.compile(
        r"\bpid\b['\"]?\s{0,3}[:=]?\s{0,3}(?P<a>\d{1,8})\b|\bProcess (?P<b>\d{1,8}) has\b", re.IGNORECASE
    ),
}


def fill_in(fix: str, *sources: Iterable[str]) -> str:
    """Replace each placeholder by the value in the first source that has one, and not several."""
    for source in sources:
        text = "\n".join(source)
        for name, pattern in PATTERNS.items():
            if re.search(rf"\b{name}\b", fix):
                values = {next(filter(None, match.groups())) for match in pattern.finditer(text)}
                if len(values) == 1:
                    fix = re.sub(rf"\b{name}\b", values.pop(), fix)
    return fix
