"""Plan which snapshot in memory the ranks of an attempt get, and which host fetches which part from which one. Pure.

A snapshot is a file or folder `step-NUMBER...` in $DDP_ORCH_MEMORY_DIR. If its name ends with `-sharded`, each host has
its part of it, and it counts when the parts of all hosts are there. Else what any one host has is the whole snapshot.
"""

import re
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

from .copies import size_of

_NAME = re.compile(r"step-(\d{1,15})(?!\d)")


def step_of(name: str) -> Optional[int]:
    """The step of a snapshot with that name; None: it is no snapshot."""
    match = _NAME.match(name)
    return int(match.group(1)) if match else None


class Label(NamedTuple):
    """Who saved: a host of an attempt. `layout`: the ranks of each host of its team, by node rank."""

    attempt: int
    node_rank: int
    layout: Tuple[int, ...]


class Saved(NamedTuple):
    """A snapshot, or one host's part of it, in the memory of some host."""

    folder: str  # that it is in, below the memory folder
    name: str
    files: Tuple[Tuple[str, int], ...]  # below `folder`, with their sizes
    label: Label

    @property
    def step(self) -> int:
        return step_of(self.name) or 0

    @property
    def is_sharded(self) -> bool:
        return self.name.endswith("-sharded")

    @property
    def size(self) -> int:
        return sum(size for _, size in self.files)


def encode(saved: Saved) -> Dict[str, Any]:
    return dict(saved._asdict(), label=saved.label._asdict())


def decode(message: Any) -> Saved:
    """Raises KeyError, TypeError or ValueError."""
    label = message["label"]
    layout = tuple(int(ranks) for ranks in label["layout"])
    files = tuple((str(path), int(size)) for path, size in message["files"])
    checked = Label(int(label["attempt"]), int(label["node_rank"]), layout)
    return Saved(str(message["folder"]), str(message["name"]), files, checked)


Part = Tuple[int, Saved]  # and the node that has it


class Choice(NamedTuple):
    """`parts`: what each node of the team needs."""

    name: str
    step: int
    parts: Dict[int, List[Part]]


def choose(
    holdings: Dict[int, Sequence[Saved]], team: Sequence[int], layout: Tuple[int, ...], limit: int
) -> Tuple[Optional[Choice], List[str]]:
    """The newest snapshot that all nodes of the team can have, and why newer ones were not chosen.

    `holdings`: what each node has. `limit`: bytes that a host may have. The newest attempt comes first: what a host
    has that was away since is of a run that continued without it.
    """
    found: Dict[Tuple[int, int, str], List[Part]] = {}
    for node in sorted(holdings):
        for saved in holdings[node]:
            found.setdefault((saved.label.attempt, saved.step, saved.name), []).append((node, saved))
    reasons = []
    for (_, step, name), held in sorted(found.items(), reverse=True):
        by_rank: Dict[int, List[Part]] = {}
        for part in held:
            by_rank.setdefault(part[1].label.node_rank if part[1].is_sharded else 0, []).append(part)
        of_attempt = held[0][1]
        lacking = set(range(len(of_attempt.label.layout))) - set(by_rank) if of_attempt.is_sharded else set()
        if lacking:
            reasons.append("%s lacks the part of %d of %d hosts" % (name, len(lacking), len(of_attempt.label.layout)))
            continue
        parts = {
            node: [_nearest(by_rank[rank], node) for rank in _needed(of_attempt, sorted(by_rank), node_rank, layout)]
            for node_rank, node in enumerate(team)
        }
        largest = max(sum(saved.size for _, saved in needed) for needed in parts.values())
        if largest > limit:
            reasons.append(
                "a host needs %s of %s, and run.memory_limit is %s" % (size_of(largest), name, size_of(limit))
            )
            continue
        return Choice(name, step, parts), reasons
    return None, reasons


def _needed(saved: Saved, ranks: List[int], node_rank: int, layout: Tuple[int, ...]) -> List[int]:
    """The parts that a host needs: its own, or all if the ranks are not on the same hosts as when it was saved."""
    return [node_rank] if saved.is_sharded and saved.label.layout == layout else ranks


def _nearest(held: List[Part], node: int) -> Part:
    """From the host itself if it has it, else from one of the others, so that they share the work."""
    own = [part for part in held if part[0] == node]
    return own[0] if own else held[node % len(held)]
