"""Compare the outputs that the hosts have of a run: whose version of a file is the newest. No IO."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .receiving import RemoteFile

SAME_TIME = 10.0
"""Hosts that save together do so within these seconds."""


@dataclass(frozen=True)
class Newest:
    """Files of which `newest` have the newest version, and `older` an older one."""

    paths: tuple[str, ...]
    newest: tuple[str, ...]
    older: tuple[str, ...]
    lag: float
    """Seconds between the newest version and the one that comes next, of the file where these are closest."""


def compare(files: Mapping[str, Sequence[RemoteFile]]) -> list[Newest]:
    """The files that some hosts wrote clearly later than others, by their hosts. `files`: of each host."""
    times: dict[str, dict[str, float]] = {}
    for host, listed in files.items():
        for file in listed:
            times.setdefault(file.path, {})[host] = file.mtime / 1e9
    found: dict[tuple[tuple[str, ...], tuple[str, ...]], list[tuple[str, float]]] = {}
    for path, by_host in sorted(times.items()):
        last = max(by_host.values())
        lags = {host: last - time for host, time in sorted(by_host.items()) if last - time > SAME_TIME}
        if lags:
            newest = tuple(host for host in sorted(by_host) if host not in lags)
            found.setdefault((newest, tuple(lags)), []).append((path, min(lags.values())))
    return [
        Newest(tuple(path for path, _ in entries), newest, older, min(lag for _, lag in entries))
        for (newest, older), entries in found.items()
    ]
