"""Find scripts that start the ranks of a host themselves, and are given the number of one host. Pure.

The ImageNet example takes `--dist-url tcp://HOST:PORT --rank 0 --world-size 2`, detectron2 `--machine-rank 0`: the
tutorials have such a line per host. With torchrun, every rank would be rank 0, and wait for the others forever.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

_PLACES = {
    "dist-url": "tcp://{master_addr}:{master_port}",
    **dict.fromkeys(("rank", "node-rank", "machine-rank"), "{node_rank}"),
    **dict.fromkeys(("world-size", "nnodes", "num-nodes", "num-machines"), "{nnodes}"),
}
_NUMBERS = ("rank", "node-rank", "machine-rank")


def correct(words: Sequence[str]) -> tuple[str, tuple[str, ...]] | None:
    """(the flag with the number of one host, the words with placeholders in place of such values); None: they are fine.

    `words`: a script and its arguments.
    """
    number, starts_ranks = None, False
    corrected: list[str] = []
    rest = list(words)
    while rest:
        word = rest.pop(0)
        flag, equals, value = word.partition("=")
        name = flag.removeprefix("--").replace("_", "-") if flag.startswith("--") else ""
        if not equals and name in _PLACES and rest:
            value = rest.pop(0)
        is_url = name == "dist-url" and value.startswith("tcp:")
        is_number = re.fullmatch(r"[0-9]+", value) is not None
        starts_ranks = starts_ranks or is_url or name == "multiprocessing-distributed"
        if name in _NUMBERS and is_number:
            number = f"{flag} {value}"
        if name in _PLACES:
            value = _PLACES[name] if is_url or is_number else value
            corrected += [f"{flag}={value}"] if equals else [flag, value]
        else:
            corrected.append(word)
    return (number, tuple(corrected)) if number is not None and starts_ranks else None
