"""Whether logs show a failure at all: words of trouble are in most of them. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

from . import hangs
from .hangs import FINISHED
from .scene import STEPS, TROUBLE, Scene
from .signs import ENDING, Suspect
from .transcript import Said

COMPLAINTS = re.compile(
    r"NCCL WARN|A worker died or was killed|^NCCL error|srun: error|slurmstepd: error|terminate called|core dumped"
)
FATAL = re.compile(r"(?i)^\W*(?:\w+: |\[\w+\] ?)?(?:fatal|critical|error|panic|aborted)\b(?! ?=)")
LOSS = re.compile(r"(?i)(?<![a-z])loss\S*[\s=:'\"]+\(?(?:(?P<lost>-?(?:nan|inf)\b)|-?\d)")
SAID_BY_OTHERS = 18  # level from which what others say of a failure is a sign of one
LAST_WORDS = 12  # lines at the end of all; a failure is there, if it is anywhere
BROKEN_OFF = 4  # lines at the end; a traceback that begins there is not told to its end


def failed(seen: Scene, suspects: Sequence[Suspect], secondary: Sequence[Suspect]) -> bool:
    """Whether the logs show a failure, and not only trouble that was overcome."""
    return _in_trouble(seen, suspects, secondary) and not _ended_well(seen, suspects)


def _in_trouble(seen: Scene, suspects: Sequence[Suspect], secondary: Sequence[Suspect]) -> bool:
    if _has_ended(seen, suspects):
        return True
    if any(one.code == "exit-barrier-noise" for one in suspects):
        return False
    if any(one.level >= SAID_BY_OTHERS and not one.hint for one in suspects):
        return True
    return any(COMPLAINTS.search(line.text) for line in seen.lines) or _last_words_are_bad(seen, secondary)


def _has_ended(seen: Scene, suspects: Sequence[Suspect]) -> bool:
    """Whether anything ended badly, or goes on in vain."""
    return (
        any(one.level >= ENDING and not one.hint for one in suspects)
        or _loss_is_lost(seen)
        or any(one.code != 0 and one.line is not None for one in seen.exits)
        or any("exit_barrier" not in "".join(one.frames) and not seen.goes_on(one) for one in seen.raised)
        or any("Traceback (most recent" in line.text for line in seen.lines[-BROKEN_OFF:])
    )


def _loss_is_lost(seen: Scene) -> bool:
    """The last losses are no numbers: it may well go on to its end, in vain."""
    losses = [found for line in seen.lines[-LAST_WORDS:] if (found := LOSS.search(line.text))]
    return len(losses) > 1 and all(one["lost"] for one in losses[-2:])


def _last_words_are_bad(seen: Scene, secondary: Sequence[Suspect]) -> bool:
    """The log ends with an error, and not with steps of training or the word of an end."""
    last = seen.lines[-LAST_WORDS:]
    if any(STEPS.search(line.text) or FINISHED.search(line.text) for line in last):
        return False
    blames = {one.line.number for one in secondary if one.raised is None or not seen.goes_on(one.raised)}
    return any(FATAL.search(line.text) or line.number in blames for line in last)


WELL = re.compile(r"(?i)\b(?:finish(?:ed)?|complet(?:ed?|ion)|done|success(?:ful(?:ly)?)?|succeeded)\b")
NONE = re.compile(
    r"(?i)\b(?:errors?|failed|failures?|warnings?)\W{0,2}\s?0(?!\d)|\b(?:no|0) (?:errors?|failures?|warnings?)\b"
)
STATUS = re.compile(r"(?i)\b(?:with|code|status)\W{0,3}-?[1-9]")  # finished with 137
EXIT_0 = re.compile(r"(?i)\bexit(?:ed|s)?(?: with)?(?: status| code)?\W{0,2}\s?0$")


def _ended_well(seen: Scene, suspects: Sequence[Suspect]) -> bool:
    """Whether all that was bad was overcome: after it each file goes on, and tells of a good end.

    A good end is an exit status of 0, where something was said between that and what was bad (`| tee` has one too), or
    the word of every rank that is known. Not where a launcher has given up.
    """
    if any(one.kind.endswith("ChildFailedError") for one in seen.raised):
        return False
    last_bad: dict[str, int] = {}
    bad = [one.line for one in suspects if one.level >= ENDING and not one.hint]
    bad += [one.line for one in seen.exits if one.code != 0 and one.line is not None]
    for line in [*bad, *(one.line for one in seen.raised)]:
        last_bad[line.source] = max(line.number, last_bad.get(line.source, 0))
    return bool(last_bad) and all(
        _goes_well([line for line in seen.lines if line.source == source and line.number > number], seen)
        for source, number in last_bad.items()
    )


def _goes_well(after: Sequence[Said], seen: Scene) -> bool:
    last = after[-LAST_WORDS:]
    good = [
        line
        for line in last
        if WELL.search(line.text) and not (TROUBLE.search(NONE.sub("", line.text)) or STATUS.search(line.text))
    ]
    if not good:
        return False
    if any(EXIT_0.search(line.text.strip()) for line in last[-2:]):
        return True
    speakers = {rank for line in good for rank in (line.rank, hangs.speaker(line)) if rank is not None}
    if not seen.ranks:  # nobody says which rank he is: several say it, of all hosts, and it is the last word
        hosts = {line.host for line in seen.lines if line.source == good[0].source}
        return len(good) > 1 and hosts == {line.host for line in good} and good[-1] is last[-1]
    return speakers >= {rank for rank, host in seen.ranks.items() if host in (None, good[0].host)}
