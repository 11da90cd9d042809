"""Cache what `ssh -G` prints, for hosts that ssh_config treats alike. Starts no program.

`ssh -G` takes 5 ms of CPU time per host, which for hundreds of hosts is more than their logins. Its output depends on
the name of the host only by `Host` patterns and a few other keywords. If a configuration has one of those, the cache
stays empty and ssh is asked for every host.
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
"""Keywords whose %-tokens `ssh -G` does not expand; `config.py` does."""


class ConfigCache:
    """The outputs of `ssh -G` so far. Safe to use from many threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._patterns: tuple[re.Pattern[str], ...] | None = None
        self._by_kind: dict[object, Settings] = {}

    def add(self, options: tuple[str, ...], address: str, settings: Settings, stderr: str) -> None:
        """Add the output of `ssh -v -G OPTIONS ADDRESS`: its settings, and on stderr the files that it has read."""
        if "OpenSSH_" not in stderr:
            return  # another program than OpenSSH: it does not print the files that it reads
        with self._lock:
            if self._patterns is None:
                self._patterns = host_patterns(re.findall(r"(?m)^debug1: Reading configuration data (.*?)\r?$", stderr))
            if self._patterns is not None and settings.get("hostname") == [address.lower()]:
                self._by_kind.setdefault(self._kind(options, address), settings)

    def get(self, options: tuple[str, ...], address: str) -> Settings | None:
        """The settings of a host, or None if ssh must be asked."""
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
    """All patterns that ssh matches a host's name against; None if the name matters in another way."""
    patterns: dict[tuple[str, int], re.Pattern[str]] = {}
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
                    written = "".join({"*": ".*", "?": "."}.get(char, re.escape(char)) for char in word.lstrip("!"))
                    # with and without case, because versions of ssh differ; at worst ssh is asked twice
                    patterns |= {(written, flags): re.compile(written, flags) for flags in (0, int(re.IGNORECASE))}
            elif (
                keyword == "host"
                or keyword.startswith("canonical")
                or (keyword == "match" and value.lower() != "all")
                or ("%" in value and keyword not in _PRINTED_AS_WRITTEN)
            ):
                return None
    return tuple(patterns.values())
