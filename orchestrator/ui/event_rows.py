"""Shorten the events of a run for people: the hosts of a large team end an attempt in as many events. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from ..output.console import fold


def fold_ends(events: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """With one event, at the time of the last, for hosts that ended an attempt alike, one after the other.

    `events`: as `events --json` has them; `what` of the end of an attempt on a host begins with `HOST: `.
    """
    folded: list[dict[str, Any]] = []
    for (kind, rest), same in groupby(events, lambda event: (event["kind"], _split(event)[1])):
        alike = list(same)
        if kind == "end" and rest:
            hosts = fold(_split(event)[0] for event in alike)
            folded.append({**alike[-1], "what": f"{hosts}: {rest}"})
        else:
            folded += [dict(event) for event in alike]
    return folded


def _split(event: Mapping[str, Any]) -> tuple[str, str]:
    host, _, rest = str(event["what"]).partition(": ")
    return host, rest
