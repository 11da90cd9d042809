"""Slurm's compressed lists: `n[001,007-015],m2` of nodes and `4(x3),2` of tasks. No IO, and no `scontrol`."""

from __future__ import annotations

import re
from itertools import product

from ..hostnames import MAX_HOSTS, quoted

_PART = re.compile(r"\[([^][]*)\]|([^][,\s]+)")


def expand_nodes(nodelist: str) -> tuple[str, ...]:
    """The nodes of a list such as `n[001,007-015]-ib,rack[0-1]n[0-3],login`, in its order. Raises ValueError."""
    names: list[str] = []
    for word in re.split(r",(?![^\[]*\])", nodelist.strip()):
        names += _expand_word(word, MAX_HOSTS - len(names))
    return tuple(names)


def _expand_word(word: str, most: int) -> list[str]:
    parts = _PART.findall(word)
    if not word or "".join(f"[{inside}]" if inside else text for inside, text in parts) != word:
        raise ValueError(f"{quoted(word)} is not a node or a range of nodes; was the list cut off?")
    choices = [_expand_ranges(inside, most) if inside else [text] for inside, text in parts]
    count = 1
    for choice in choices:
        count *= len(choice)
        if count > most:
            raise ValueError(f"more than {MAX_HOSTS:,} nodes")
    return ["".join(texts) for texts in product(*choices)]


def _expand_ranges(inside: str, most: int) -> list[str]:
    numbers: list[str] = []
    for part in inside.split(","):
        match = re.fullmatch(r"([0-9]{1,9})(?:-([0-9]{1,9}))?", part)
        if match is None or int(match[1]) > int(match[2] or match[1]):
            raise ValueError(f"{quoted(part)} is not a number or a range such as 007-015")
        low, high = int(match[1]), int(match[2] or match[1])
        if len(numbers) + high - low >= most:
            raise ValueError(f"more than {MAX_HOSTS:,} nodes")
        numbers += [f"{number:0{len(match[1])}}" for number in range(low, high + 1)]
    return numbers


def expand_counts(counts: str, nodes: int) -> tuple[int, ...]:
    """The numbers of a list such as `4(x3),2`, one for each of so many nodes. Raises ValueError."""
    numbers: list[int] = []
    for part in counts.split(","):
        match = re.fullmatch(r"([0-9]{1,6})(?:\(x([0-9]{1,6})\))?", part)
        if match is None:
            raise ValueError(f"{quoted(counts)}: expected numbers such as 4(x3),2")
        if len(numbers) + int(match[2] or 1) > nodes:
            raise ValueError(f"{quoted(counts)} has numbers for more than {nodes} nodes")
        numbers += [int(match[1])] * int(match[2] or 1)
    if len(numbers) < nodes:
        raise ValueError(f"{quoted(counts)} has numbers for {len(numbers)} nodes, not {nodes}")
    return tuple(numbers)
