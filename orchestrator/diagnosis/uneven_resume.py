"""A run whose hosts did not resume at one step, because only some have the snapshot. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from types import MappingProxyType

from ..node.serve.figures import figures
from ..output.console import fold
from ..output.finding import Finding
from ..output.lines import Line
from .missing import advise_resume

BEGUN = 1
"""The greatest first step or epoch of a rank that begins anew."""
RESUMED = {"step": 10, "epoch": 3}
"""The least first one that shows that a rank has loaded a snapshot: some scripts print only every few steps."""
STAYS = re.compile(
    r"ddp-orch: (?:(?P<host>\S+) has (?P<file>.+?)(?P<kept> of run \S+)? beside the code, and the other hosts do not "
    r"get it"
    r"|the output folder of (?P<other>\S+) has files, and run\.resume is none)"
)
"""As node/roles/outputs_advice.py says it."""
_RESUMES = re.compile(r"\bresum\w*\b.{0,80}?\b(?P<unit>step|epoch)s?\b\D{0,4}(?P<number>\d+)", re.IGNORECASE)
_EPOCH = re.compile(r"\bepoch[ :=#]*(\d+)", re.IGNORECASE)


NOT_KNOWN: Mapping[str, bool] = MappingProxyType({})
CONSEQUENCES = (
    "uneven-inputs",
    "process-group-not-destroyed",
    "barrier-deadlock",
    "gloo-peer-lost",
    "gloo-recv-timeout",
    "collective-timeout",
    "straggler",
    "rdzv-store-lost",
)
"""What it looks like when ranks that began at different steps end at different times."""


def with_uneven_resume(
    findings: Sequence[Finding], uneven: Finding | None, *, restarted: bool = True
) -> tuple[Finding, ...]:
    """The findings, the first cause first, with what `find_uneven_resume` found.

    `restarted`: whether an attempt was before. Ranks of a first one may resume the run before of the same name.
    """
    if uneven is None:
        return tuple(findings)
    if findings and findings[0].code in CONSEQUENCES:
        return (replace(uneven, severity=findings[0].severity, confidence="medium"), *findings)
    return (*findings, uneven) if restarted and uneven.confidence != "low" else tuple(findings)


def find_uneven_resume(
    lines: Sequence[Line],
    attempt: int,
    whole: int,
    empty: Collection[str] = (),
    resume: str = "none",
    at_start: Mapping[str, bool] = NOT_KNOWN,
) -> Finding | None:
    """`whole`: streams with fewer lines in the attempt are complete. Of others, the first step is unknown. `empty`:
    hosts whose output folders are empty: if they print no steps, they count as hosts that began anew. `resume`:
    run.resume; `at_start`: by host with ranks, whether its output folder had files before the first attempt.
    """
    known = at_start if attempt == 1 and resume == "none" and len(set(at_start.values())) == 2 else NOT_KNOWN
    place = _find_places(lines, attempt, whole, empty, known)
    if place is None:
        return _find_told(lines, attempt, resume) or _find_unlike(lines, attempt, whole, known)
    where, resumed, lacking = place
    return Finding(
        "warning",
        "file-missing-on-host",
        tuple(lacking),
        f"Attempt {attempt} began {where} on {fold(resumed)}: {fold(lacking)} may not have the snapshot.",
        advise_resume(resume, saves_elsewhere=set(resumed) <= set(empty)),
        confidence="medium",
    )


def _find_told(lines: Sequence[Line], attempt: int, resume: str) -> Finding | None:
    """What the head said at a restart, if ranks of only one host print steps. It counts if something else fits."""
    of_ranks = [line for line in lines if line.attempt == attempt and line.rank is not None]
    if len({line.host for line in of_ranks if any(_number(line.text, unit) is not None for unit in RESUMED)}) > 1:
        return None
    for line in lines:
        told = STAYS.match(line.text) if line.rank is None else None
        if told is None or (line.attempt >= attempt and not told["kept"]):
            continue
        host = told["host"] or told["other"]
        others = tuple(dict.fromkeys(each.host for each in lines if each.attempt == attempt and each.host != host))
        if others:
            what = f"{host} has {told['file'] or 'a snapshot'}, which {fold(others)} did not get at the restart."
            advice = advise_resume(resume, saves_elsewhere=told["file"] is not None)
            return Finding("warning", "file-missing-on-host", others, what, advice, confidence="low")
    return None


def _find_unlike(lines: Sequence[Line], attempt: int, whole: int, at_start: Mapping[str, bool]) -> Finding | None:
    """The hosts without outputs at the start, where no other host prints that it began anew."""
    having, lacking = ([host for host, had in at_start.items() if had is which] for which in (True, False))
    of_ranks = [line for line in lines if line.attempt == attempt and line.rank is not None]
    took_part = {line.host for line in of_ranks}  # a spare may have joined later
    lacking = [host for host in lacking if host in took_part] or lacking
    lengths = Counter((line.rank, line.stream) for line in of_ranks)
    first: dict[str, tuple[str, int]] = {}
    for unit in ("epoch", "step"):  # steps may be counted anew in each epoch
        for line in of_ranks:
            number = _number(line.text, unit)
            if number is not None and lengths[line.rank, line.stream] < whole:
                first.setdefault(line.host, (unit, number))
    if not having or len(first) > 1:
        return None
    for host, (unit, number) in first.items():
        has_begun = number <= (0 if unit == "epoch" else BEGUN)  # epoch 1 may be the second one
        if has_begun if at_start.get(host) else number > BEGUN:
            return None
    what = f"{fold(having)} had outputs of an earlier run of this name at the start, and {fold(lacking)} had none"
    message = f"{what}: only {fold(having)} may have resumed."
    fix = advise_resume("none", saves_elsewhere=False)
    return Finding("warning", "file-missing-on-host", tuple(lacking), message, fix, confidence="low")


def _find_places(
    lines: Sequence[Line], attempt: int, whole: int, empty: Collection[str], at_start: Mapping[str, bool]
) -> tuple[str, Sequence[str], Sequence[str]] | None:
    """Where the hosts began, in words; those that resumed; those that began anew."""
    of_attempt = [line for line in lines if line.attempt == attempt and line.rank is not None]
    lengths = Counter((line.rank, line.stream) for line in of_attempt)
    complete = [line for line in of_attempt if lengths[line.rank, line.stream] < whole]
    if said := _find_said(of_attempt):
        return said
    complete = [line for line in complete if not _RESUMES.search(line.text)]  # it may count otherwise than the others
    hosts = dict.fromkeys(line.host for line in of_attempt)
    for unit in RESUMED:
        numbers: dict[str, list[int]] = {}
        for line in complete:
            number = _number(line.text, unit)
            if number is not None:
                numbers.setdefault(line.host, []).append(number)
        first = {host: own[0] for host, own in numbers.items()}
        begun = [host for host, number in first.items() if number <= BEGUN]
        resumed = _resumed(unit, numbers, attempt)
        if unit == "epoch" and not resumed:
            least_epoch = min(first.values(), default=0)
            resumed = [host for host, number in first.items() if at_start.get(host) and number > least_epoch]
        begun = [host for host in begun if host not in resumed]
        least = min((first[host] for host in resumed), default=0)
        if begun and resumed:
            return f"at the first {unit} on {fold(begun)}, but at {unit} {least}", resumed, begun
        silent = [host for host in hosts if host in empty and host not in numbers]
        if attempt == 1 and silent and resumed and set(resumed) == set(numbers) and not set(resumed) & set(empty):
            return f"at {unit} {least}", resumed, silent
    return None


def _find_said(lines: Sequence[Line]) -> tuple[str, Sequence[str], Sequence[str]] | None:
    """The same, where ranks say at which step they resume, as `resumed at step 60`, and the hosts differ."""
    said: dict[str, tuple[str, int]] = {}
    for line in lines:
        if found := _RESUMES.search(line.text):
            said.setdefault(line.host, (found["unit"].lower(), int(found["number"])))
    unit, most = max(said.values(), default=("", 0), key=lambda one: one[1])
    if not said or any(other != unit for other, _ in said.values()):
        return None
    if len({one for _, one in said.values()}) == 1:
        return _find_behind(lines, unit, most, said)
    least = min(number for _, number in said.values())
    behind = [host for host, (_, number) in said.items() if number < most]
    return f"at {unit} {least} on {fold(behind)}, but at {unit} {most}", sorted(set(said) - set(behind)), behind


def _find_behind(
    lines: Sequence[Line], unit: str, said: int, resumed: Collection[str]
) -> tuple[str, Sequence[str], Sequence[str]] | None:
    """The same, where only some hosts say that they resume, at step or epoch `said`, and others print a smaller one."""
    first: dict[str, int] = {}
    for line in lines:
        number = None if _RESUMES.search(line.text) else _number(line.text, unit)
        if number is not None:
            first.setdefault(line.host, number)
    own = [first[host] for host in resumed if host in first]
    if any(number < said for number in own):
        return None  # what they print is counted otherwise
    # ranks that had nothing left to do print none; then only those that began anew are sure to be behind
    behind = [host for host, number in first.items() if number < said and (own or number <= BEGUN)]
    if not behind:
        return None
    least = min(first[host] for host in behind)
    begun = f"the first {unit}" if least <= BEGUN else f"{unit} {least}"
    return f"at {begun} on {fold(behind)}, but at {unit} {said}", sorted(resumed), behind


def _resumed(unit: str, numbers: Mapping[str, Sequence[int]], attempt: int) -> list[str]:
    """The hosts whose ranks did not begin anew. `numbers`: the steps or epochs that those of each host printed."""
    first = {host: own[0] for host, own in numbers.items()}
    if attempt > 1:  # after a restart, hosts that begin at different epochs are enough
        least = min(first.values(), default=0) + 1 if unit == "epoch" else RESUMED[unit]
        return [host for host, number in first.items() if number >= least]
    # some scripts print only every few steps, and number the first of them as the others
    resumed = [host for host, own in numbers.items() if own[0] > max(BEGUN, _spacing(unit, own))]
    if resumed or unit != "epoch" or not first:
        return resumed
    behind = numbers[min(first, key=lambda host: first[host])]
    return [host for host, own in numbers.items() if _is_ahead(own, behind)]


def _is_ahead(epochs: Sequence[int], others: Sequence[int]) -> bool:
    """Whether two hosts print every epoch, and one was ahead of the other from its first to its last one."""
    ahead, behind = sorted(set(epochs)), sorted(set(others))
    in_step = all(len(own) > 1 and own[-1] - own[0] == len(own) - 1 for own in (ahead, behind))
    return in_step and ahead[0] > behind[0] and ahead[-1] > behind[-1]


def _spacing(unit: str, numbers: Sequence[int]) -> int:
    """The usual difference of the steps that are printed; of an epoch, as of steps if there is only one, a guess."""
    steps = Counter(later - number for number, later in pairwise(numbers) if later > number)
    return steps.most_common(1)[0][0] if steps else RESUMED[unit] - 1


def _number(text: str, unit: str) -> int | None:
    if unit == "epoch":
        found = _EPOCH.search(text)
        return int(found[1]) if found else None
    step = figures(text).get("step")
    return None if step is None else int(step)
