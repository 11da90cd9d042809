"""Suspects -> the ones that count, the first cause first. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from .confidence import SAME_TIME
from .suspects import DECISIVE, ENDING, FALLBACK, SPECIFIC, Suspect, Suspects

LEVELS = ((DECISIVE, 1000), (SPECIFIC, DECISIVE), (ENDING, SPECIFIC), (FALLBACK, ENDING))
SAME_PLACE = 3  # lines of one file that count as one: a traceback's own parts


def rank_suspects(suspects: Suspects, roots: Sequence[int | None] = (), first_rank: int | None = None) -> Suspects:
    """One for each code, of the highest level that has any. `roots`: ranks that a launcher saw fail first.

    `first_rank`: the one that the head saw first; of ranks with the same error, it is the one that is named.
    """
    candidates = [suspect for suspect in suspects if suspect.level >= FALLBACK]
    ranked: list[Suspect] = []
    for low, high in LEVELS:
        group = [suspect for suspect in candidates if low <= suspect.level < high]
        proofs = [suspect for suspect in group if not suspect.hint]
        # where there is no proof, warnings of a higher level say more than what others print
        ranked = _rank_group(proofs or (group if low >= ENDING else []), roots, first_rank, by_time=low >= ENDING)
        if ranked:
            break
    causes = [suspect for suspect in candidates if ranked and ranked[0].code in suspect.explains]
    return (*causes[:1], *ranked)


def _rank_group(
    group: list[Suspect], roots: Sequence[int | None], first_rank: int | None, *, by_time: bool
) -> list[Suspect]:
    ranked: list[Suspect] = []
    while group:
        first = _choose_first(group, roots) if by_time else max(group, key=lambda each: (each.level, -each.line.number))
        same = [each for each in group if (each.code, each.line.text) == (first.code, first.line.text)]
        first = next((each for each in same if each.rank is not None and each.rank == first_rank), first)
        hosts = {suspect.host for suspect in group if suspect.code == first.code and suspect.host}
        ranked.append(replace(first, also=tuple(sorted(hosts))))
        # another rank has printed the same line for the same reason
        group = [each for each in group if each.code != first.code and each.line.text != first.line.text]
    return ranked


def _choose_first(group: list[Suspect], roots: Sequence[int | None]) -> Suspect:
    """The earliest suspect; of about equally early ones the highest level, then the end that the launcher saw first."""
    earliest = min((suspect.line.at for suspect in group if suspect.line.at is not None), default=None)
    if earliest is not None:
        group = [each for each in group if each.line.at is None or each.line.at <= earliest + SAME_TIME]
    if len({suspect.line.source for suspect in group}) == 1:  # in one file the order of the lines shows more
        first = min(suspect.line.number for suspect in group)
        group = [suspect for suspect in group if suspect.line.number <= first + SAME_PLACE]
    best = max(suspect.level for suspect in group)
    group = [suspect for suspect in group if suspect.level == best]
    return min(group, key=lambda suspect: (suspect.rank not in roots, suspect.line.number))
