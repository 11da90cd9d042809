"""A restarted run whose hosts did not resume at one step, because only some have the snapshot. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from ..node.serve.figures import figures
from ..output.console import fold
from ..output.finding import Finding
from ..output.lines import Line
from .missing import SET_RESUME

RESUMED = 10
"""The least first step that shows that a rank has loaded a snapshot: some scripts print only every few steps."""


CONSEQUENCES = ("uneven-inputs", "process-group-not-destroyed")
"""What it looks like when ranks that began at different steps end at different times."""


def with_uneven_resume(findings: Sequence[Finding], uneven: Finding | None) -> tuple[Finding, ...]:
    """The findings, the first cause first, with what `find_uneven_resume` found."""
    if uneven is None:
        return tuple(findings)
    if findings and findings[0].code in CONSEQUENCES:
        return (replace(uneven, severity=findings[0].severity), *findings)
    return (*findings, uneven)


def find_uneven_resume(lines: Sequence[Line], attempt: int, whole: int) -> Finding | None:
    """`whole`: streams with fewer lines in the attempt are complete. Of others, the first step is unknown."""
    of_attempt = [line for line in lines if line.attempt == attempt and line.rank is not None]
    lengths = Counter((line.rank, line.stream) for line in of_attempt)
    first: dict[str, int] = {}
    for line in of_attempt:
        if line.host not in first and lengths[line.rank, line.stream] < whole:
            step = figures(line.text).get("step")
            if step is not None:
                first[line.host] = int(step)
    begun = [host for host, step in first.items() if step <= 1]
    resumed = [host for host, step in first.items() if step >= RESUMED]
    if attempt < 2 or not begun or not resumed:
        return None
    step = min(first[host] for host in resumed)
    return Finding(
        "warning",
        "file-missing-on-host",
        tuple(begun),
        f"Attempt {attempt} began at the first step on {fold(begun)}, but at step {step} on {fold(resumed)}: "
        f"{fold(begun)} may not have the snapshot.",
        SET_RESUME,
        confidence="medium",
    )
