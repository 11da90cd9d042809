"""A restarted run whose hosts did not resume at one step, because only some have the snapshot. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from ..node.serve.figures import figures
from ..output.console import fold
from ..output.finding import Finding
from ..output.lines import Line
from .missing import SET_RESUME

BEGUN = 1
"""The greatest first step or epoch of a rank that begins anew."""
RESUMED = {"step": 10, "epoch": 3}
"""The least first one that shows that a rank has loaded a snapshot: some scripts print only every few steps."""
_EPOCH = re.compile(r"\bepoch[ :=#]*(\d+)", re.IGNORECASE)


CONSEQUENCES = ("uneven-inputs", "process-group-not-destroyed")
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
        return (replace(uneven, severity=findings[0].severity), *findings)
    return (*findings, uneven) if restarted else tuple(findings)


def find_uneven_resume(lines: Sequence[Line], attempt: int, whole: int) -> Finding | None:
    """`whole`: streams with fewer lines in the attempt are complete. Of others, the first step is unknown."""
    of_attempt = [line for line in lines if line.attempt == attempt and line.rank is not None]
    lengths = Counter((line.rank, line.stream) for line in of_attempt)
    complete = [line for line in of_attempt if lengths[line.rank, line.stream] < whole]
    for unit, least in RESUMED.items():
        first: dict[str, int] = {}
        for line in complete:
            number = _number(line.text, unit)
            if number is not None:
                first.setdefault(line.host, number)
        start = min(first.values(), default=0)
        # after a restart, hosts that begin at different epochs are enough
        least = start + 1 if unit == "epoch" and attempt > 1 else least
        begun = [host for host, number in first.items() if number <= BEGUN and number < least]
        resumed = [host for host, number in first.items() if number >= least]
        if begun and resumed:
            return Finding(
                "warning",
                "file-missing-on-host",
                tuple(begun),
                f"Attempt {attempt} began at the first {unit} on {fold(begun)}, but at {unit} "
                f"{min(first[host] for host in resumed)} on {fold(resumed)}: {fold(begun)} may not have the snapshot.",
                SET_RESUME,
                confidence="medium",
            )
    return None


def _number(text: str, unit: str) -> int | None:
    if unit == "epoch":
        found = _EPOCH.search(text)
        return int(found[1]) if found else None
    step = figures(text).get("step")
    return None if step is None else int(step)
