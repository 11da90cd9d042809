"""Hide secrets in text, in all their common encodings. Reads and prints nothing."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from itertools import zip_longest

from .terminal import tame

SHORTEST_SECRET = 8  # characters


_NAME = r"(?:[A-Za-z0-9]+[-_.])*(?:api)?(?:key|token|secret|password|passwd|passphrase|credentials?)"
_WITH_VALUE = re.compile(rf"(?<!\S)(-*{_NAME}=|-+{_NAME}\s+(?!-))\S+", re.IGNORECASE)
_NAMED = re.compile(rf"-*{_NAME}", re.IGNORECASE)
_IN_URL = re.compile(r"(://[^\s:/@\"]*:)[^\s/@\"]+(?=@)")


def hide_credentials(command: str) -> str:
    """Hide what looks like a credential in a command line of any program: `--api-key ***`, `HF_TOKEN=***`."""
    return hide_url_passwords(_WITH_VALUE.sub(r"\1***", command))


def names_credential(variable: str) -> bool:
    """Whether the name of a variable is one for credentials, such as HF_TOKEN."""
    return _NAMED.fullmatch(variable) is not None


def credentials_in(command: Sequence[str]) -> list[str]:
    """The values that `hide_credentials` hides, from the words of a command line."""
    return [value for _, value in named_credentials(command)]


def named_credentials(command: Sequence[str]) -> list[tuple[str, str]]:
    """As `credentials_in`, each with the option or variable that it is the value of."""
    found = []
    for word, following in zip_longest(command, command[1:], fillvalue=""):
        name, equals, value = word.partition("=")
        if equals and _NAMED.fullmatch(name):
            found.append((name, value))
        elif word.startswith("-") and _NAMED.fullmatch(word) and not following.startswith("-"):
            found.append((word, following))
    return found


def hide_url_passwords(text: str) -> str:
    """`scheme://user:***@host`. JSON stays valid."""
    return _IN_URL.sub(r"\1***", text)


class Mask:
    """Replaces secrets in text by `***`.

    Values of fewer than SHORTEST_SECRET characters are not hidden, because they match other text by chance. Of a value
    with several lines, each line is hidden. Encoded values are hidden too: base64 (also as a part of a longer text, as
    in `Authorization: Basic`), URL encoding, JSON, and `repr` of the text or its bytes.
    """

    def __init__(self, values: Iterable[str] = ()) -> None:
        forms = {form for value in values for part in (value, *value.splitlines()) for form in _forms(part)}
        # the longest first, so that no rest is left of a form that starts with another
        by_length = sorted(
            (form for form in forms if len(form) >= SHORTEST_SECRET), key=lambda form: (-len(form), form)
        )
        self._known = re.compile("|".join(map(re.escape, by_length))) if by_length else None
        self._forms = by_length

    def __bool__(self) -> bool:
        return self._known is not None

    def hide(self, text: str) -> str:
        return self._known.sub("***", text) if self._known else text

    def cut(self, text: str, end: int) -> int:
        """The last place up to `end` where a cut splits no secret, and leaves no start of a secret before it."""
        if self._known is None or not end:
            return end
        longest = len(self._forms[0])
        overlap = max(_overlap(text, end, form) for form in self._forms)
        place = end - overlap
        for match in self._known.finditer(text, max(0, place - longest), min(len(text), end + longest)):
            if match.start() < place < match.end():
                place = match.start()
        return place


def _overlap(text: str, end: int, form: str) -> int:
    """How many characters before `end` are the start of `form`, but not all of it."""
    longest = min(len(form) - 1, end)
    return next((size for size in range(longest, 0, -1) if text.startswith(form[:size], end - size)), 0)


def _forms(value: str) -> Iterable[str]:
    if len(value) < SHORTEST_SECRET:
        return
    from base64 import b64encode
    from urllib.parse import quote, quote_plus

    raw = value.encode("utf-8", "surrogateescape")
    yield value
    yield tame(value, colour=False)  # as it looks in a tamed line
    yield from (quote(raw), quote(raw, safe=""), quote_plus(raw))
    yield from (json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1])
    for literal in (repr(value)[1:-1], ascii(value)[1:-1], repr(raw)[2:-1]):
        plain = literal.replace("\\'", "'")  # which quotes are escaped depends on the surrounding text
        yield from (plain, plain.replace("'", "\\'"), plain.replace('"', '\\"'))
    for shift in range(3):
        # in base64 of PREFIX + value, only characters that encode bits of the value alone are always the same
        encoded = b64encode(b"\0" * shift + raw).decode()
        inner = encoded[(0, 2, 3)[shift] : (shift + len(raw)) * 8 // 6]
        for form in (inner, encoded, encoded.rstrip("=")) if shift == 0 else (inner,):
            yield from (form, form.replace("+", "-").replace("/", "_"))
