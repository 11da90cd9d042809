"""Hosts that ssh_config cannot tell apart: what `ssh -G` says of one of them, it says of all. Starts nothing.

`ssh -G` takes 5 ms of computing a host, of hundreds of hosts more than their logins. What it says depends on the host's
name by `Host` patterns and a few other ways only. Where a configuration has one of the others, every host is asked for.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterable
from pathlib import Path

Settings = dict[str, list[str]]
"""What `ssh -G` prints: every keyword in lower case, with its values in order."""

_LINE = re.compile(r"\s*([A-Za-z]+)[\s=]+(.*)")
_PRINTED_AS_WRITTEN = {"proxycommand", "identityfile", "controlpath"}
"""Keywords whose %-tokens `ssh -G` leaves for later; we fill them in."""


class Answers:
    """What ssh has said so far. Safe to use from many threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._patterns: tuple[re.Pattern[str], ...] | None = None
        self._by_kind: dict[object, Settings] = {}

    def learn(self, options: tuple[str, ...], address: str, settings: Settings, said: str) -> None:
        """Note what `ssh -v -G OPTIONS ADDRESS` printed: its settings, and on stderr the files that it has read."""
        if "OpenSSH_" not in said:
            return  # whatever that is, it does not say which files count
        with self._lock:
            if self._patterns is None:
                self._patterns = host_patterns(re.findall(r"(?m)^debug1: Reading configuration data (.*?)\r?$", said))
            if self._patterns is not None and settings.get("hostname") == [address.lower()]:
                self._by_kind.setdefault(self._kind(options, address), settings)

    def of(self, options: tuple[str, ...], address: str) -> Settings | None:
        """What ssh would say of a host; None where it must be asked."""
        with self._lock:
            if self._patterns is None:
                return None
            settings = self._by_kind.get(self._kind(options, address))
        if settings is None:
            return None
        own = {"hostname": [address.lower()], "host": [address]}
        return {**settings, **{keyword: value for keyword, value in own.items() if keyword in settings}}

    def _kind(self, options: tuple[str, ...], address: str) -> object:
        assert self._patterns is not None
        return options, tuple(bool(pattern.fullmatch(address)) for pattern in self._patterns)


def host_patterns(files: Iterable[str]) -> tuple[re.Pattern[str], ...] | None:
    """All patterns that a host's name is matched against; None where its name may count in another way."""
    found: dict[tuple[str, int], re.Pattern[str]] = {}
    for file in files:
        try:
            text = Path(file).read_text(errors="surrogateescape")
        except OSError:
            return None
        for line in text.splitlines():
            match = _LINE.match(line)
            if match is None:
                continue
            keyword, value = match[1].lower(), match[2].strip()
            if keyword == "host" and '"' not in value:
                for word in value.split():
                    written = "".join({"*": ".*", "?": "."}.get(one, re.escape(one)) for one in word.lstrip("!"))
                    # with and without case, as not all versions agree: at worst two hosts alike are both asked for
                    found |= {(written, flags): re.compile(written, flags) for flags in (0, int(re.IGNORECASE))}
            elif (
                keyword == "host"
                or keyword.startswith("canonical")
                or (keyword == "match" and value.lower() != "all")
                or ("%" in value and keyword not in _PRINTED_AS_WRITTEN)
            ):
                return None
    return tuple(found.values())
