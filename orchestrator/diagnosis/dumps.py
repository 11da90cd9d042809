"""Flight-recorder dumps of all ranks -> which ranks never joined a collective, or called another one. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Judged:
    code: str
    rank: int | None
    why: str
    evidence: tuple[str, ...]


def judge(dumps: Sequence[Mapping[str, Any]]) -> Judged | None:
    """`dumps`: summaries as node/flight.py makes them. The first group with a rank that stands out."""
    ranks = {one["rank"]: {group["group"]: group for group in one["groups"]} for one in dumps}
    names = dict.fromkeys(name for groups in ranks.values() for name in groups)
    for name in names:
        here = {rank: groups[name] for rank, groups in ranks.items() if name in groups}
        found = _of_group(name, here)
        if found is not None:
            return found
    return None


def _of_group(name: str, here: Mapping[Any, Mapping[str, Any]]) -> Judged | None:
    waiting = {rank: group["waits"] for rank, group in here.items() if group["waits"]}
    if not waiting or len(here) < 2:
        return None
    seq = min(wait["seq"] for wait in waiting.values())
    same = {rank: wait for rank, wait in waiting.items() if wait["seq"] == seq}
    kinds = Counter((wait["op"], wait["sizes"], wait["types"]) for wait in same.values())
    if len(kinds) > 1:
        odd = min(kinds, key=lambda kind: kinds[kind])
        rank = next(one for one, wait in same.items() if (wait["op"], wait["sizes"], wait["types"]) == odd)
        why = f"group {name}, collective {seq}: " + " against ".join(f"{op} {sizes}" for op, sizes, _ in kinds)
        return Judged("collective-mismatch", rank, why, _lines(same))
    absent = [rank for rank, group in here.items() if group["enqueued"] < seq]
    if absent:
        op = next(iter(same.values()))["op"]
        who = ", ".join(map(str, absent[:8]))
        why = f"group {name}: rank {who} never joined collective {seq} ({op}), in which the others wait"
        return Judged("collective-timeout", absent[0], why, _lines(same))
    return None


def _lines(waiting: Mapping[Any, Mapping[str, Any]]) -> tuple[str, ...]:
    lines = []
    for rank, wait in list(waiting.items())[:4]:
        place = f" at {wait['frames'][0]}" if wait["frames"] else ""
        lines.append(f"rank {rank}: {wait['op']} {wait['sizes']} {wait['state']}{place}")
    return tuple(lines)
