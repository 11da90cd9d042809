"""Decide whether logs show a failure at all. Most logs contain words such as `error`. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

from . import hangs
from .busy import FINISHED
from .scene import STEPS, TROUBLE, Scene
from .suspects import ENDING, Suspects, any_proof
from .transcript import LogLine

COMPLAINTS = re.compile(
    r"NCCL WARN|A worker died or was killed|^NCCL error|srun: error|slurmstepd: error|terminate called|core dumped"
)
FATAL = re.compile(r"(?i)^\W*(?:\w+: |\[\w+\] ?)?(?:fatal|critical|error|panic|aborted)\b(?! ?=)")
LOSS = re.compile(r"(?i)(?<![a-z])loss\S*[\s=:'\"]+\(?(?:(?P<lost>-?(?:nan|inf)\b)|-?\d)")
REPORTED_BY_OTHERS = 18  # level from which what others print about a failure is a sign of one
LAST_WORDS = 12  # lines at the end of the logs; if there is a failure, it shows there
CUT_OFF = 4  # lines at the end; a traceback that begins there is incomplete


def has_failed(scene: Scene, suspects: Suspects, consequences: Suspects) -> bool:
    """Whether the logs show a failure, and not only trouble that was overcome."""
    return _is_in_trouble(scene, suspects, consequences) and not _has_ended_well(scene, suspects)


def _is_in_trouble(scene: Scene, suspects: Suspects, consequences: Suspects) -> bool:
    if _has_ended_badly(scene, suspects) or _losses_are_invalid(scene):
        return True
    if any(suspect.code == "exit-barrier-noise" for suspect in suspects):
        return False  # agents complain at the end of every successful run
    if any_proof(suspects, REPORTED_BY_OTHERS):
        return True
    return any(COMPLAINTS.search(line.text) for line in scene.lines) or _ends_with_an_error(scene, consequences)


def _has_ended_badly(scene: Scene, suspects: Suspects) -> bool:
    return (
        any_proof(suspects, ENDING)
        or any(exit_.code != 0 and exit_.line is not None for exit_ in scene.exits)
        or _has_uncaught_exception(scene)
        or any("Traceback (most recent" in line.text for line in scene.lines[-CUT_OFF:])
    )


def _has_uncaught_exception(scene: Scene) -> bool:
    return any(
        "exit_barrier" not in "".join(exception.frames) and not scene.continues_after(exception)
        for exception in scene.exceptions
    )


def _losses_are_invalid(scene: Scene) -> bool:
    """The last losses are not numbers. The run may well continue to its end."""
    losses = [match for line in scene.lines[-LAST_WORDS:] if (match := LOSS.search(line.text))]
    return len(losses) > 1 and all(match["lost"] for match in losses[-2:])


def _ends_with_an_error(scene: Scene, consequences: Suspects) -> bool:
    """The log ends with an error, and neither with steps of training nor with words that it has finished."""
    last = scene.lines[-LAST_WORDS:]
    if any(STEPS.search(line.text) or FINISHED.search(line.text) for line in last):
        return False
    complaints = {
        consequence.line.number
        for consequence in consequences
        if consequence.exception is None or not scene.continues_after(consequence.exception)
    }
    return any(FATAL.search(line.text) or line.number in complaints for line in last)


WELL = re.compile(r"(?i)\b(?:finish(?:ed)?|complet(?:ed?|ion)|done|success(?:ful(?:ly)?)?|succeeded)\b")
NO_TROUBLE = re.compile(
    r"(?i)\b(?:errors?|failed|failures?|warnings?)\W{0,2}\s?0(?!\d)|\b(?:no|0) (?:errors?|failures?|warnings?)\b"
)
STATUS = re.compile(r"(?i)\b(?:with|code|status)\W{0,3}-?[1-9]")  # finished with 137
EXIT_0 = re.compile(r"(?i)\bexit(?:ed|s)?(?: with)?(?: status| code)?\W{0,2}\s?0$")


def _has_ended_well(scene: Scene, suspects: Suspects) -> bool:
    """Whether each file continues after its last trouble and reports a good end, and no launcher has given up.

    A good end is an exit status of 0 with lines between it and the trouble (`| tee` ends with 0 too), or a line of
    success from every known rank.
    """
    if any(exception.kind.endswith("ChildFailedError") for exception in scene.exceptions):
        return False
    last_trouble: dict[str, int] = {}
    trouble = [suspect.line for suspect in suspects if suspect.level >= ENDING and not suspect.hint]
    trouble += [exit_.line for exit_ in scene.exits if exit_.code != 0 and exit_.line is not None]
    trouble += [exception.line for exception in scene.exceptions]
    for line in trouble:
        last_trouble[line.source] = max(line.number, last_trouble.get(line.source, 0))
    return bool(last_trouble) and all(
        _reports_good_end([line for line in scene.lines if line.source == source and line.number > number], scene)
        for source, number in last_trouble.items()
    )


def _reports_good_end(later: Sequence[LogLine], scene: Scene) -> bool:
    """`later`: the lines of a source after its last trouble."""
    last = later[-LAST_WORDS:]
    good = [line for line in last if _is_good(line.text)]
    if not good:
        return False
    if any(EXIT_0.search(line.text.strip()) for line in last[-2:]):
        return True
    if not scene.ranks:  # no line names its rank: several lines, of all hosts, and the last line of all is good
        hosts = {line.host for line in scene.lines if line.source == good[0].source}
        return len(good) > 1 and hosts == {line.host for line in good} and good[-1] is last[-1]
    reporting = {rank for line in good for rank in (line.rank, hangs.rank_in_text(line)) if rank is not None}
    return reporting >= {rank for rank, host in scene.ranks.items() if host in (None, good[0].host)}


def _is_good(text: str) -> bool:
    return bool(WELL.search(text)) and not TROUBLE.search(NO_TROUBLE.sub("", text)) and not STATUS.search(text)
