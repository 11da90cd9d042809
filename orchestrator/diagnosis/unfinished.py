"""Output of a run that still runs -> what has failed although no rank has ended. Pure.

A rank may print a traceback and then hang, in a thread that is no daemon or in destroy_process_group, for example.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from . import recorder_lines, times
from .engine import Diagnosis, diagnose
from .record import RunRecord
from .rules import connections
from .scene import NOISE, STEPS, Scene, build_scene, is_surely_later
from .tracebacks import LoggedException
from .transcript import LogLine

MOST_LATER = 3  # lines that a rank that hangs may print after its traceback, as functions of atexit do


def diagnose_unfinished(lines: Sequence[LogLine], ranks: Mapping[int, str], finished: Collection[int]) -> Diagnosis:
    """The exceptions after which a rank has printed nothing more, a host that is cut off on the ranks' network, and an
    address at which rank 0 cannot be.

    `lines`: of the attempt that runs; `ranks`: their hosts; `finished`: ranks that ended with exit code 0.
    """
    record = RunRecord(ranks=ranks)
    others, own = recorder_lines.split_off(lines)
    scene = build_scene(others, record)
    hanging = {exception.line.rank for exception in scene.exceptions if _is_last(exception, scene)}
    hanging |= {0} if connections.find_unserved(scene) else set()
    hanging -= {None, *finished}
    cut = recorder_lines.find_cut_ranks(own)
    if not hanging and cut is None:
        return Diagnosis((), ())
    diagnosis = diagnose(lines, record)
    findings = tuple(
        replace(
            finding,
            severity="warning",
            confidence="medium" if finding.confidence == "high" else finding.confidence,
            message=f"The run is still running. {finding.message}",
        )
        for finding in diagnosis.findings
        if finding.rank in hanging or (cut is not None and finding.code == "host-lost" and cut[0] in finding.hosts)
    )
    return replace(diagnosis, findings=findings, is_running=True) if findings else Diagnosis((), ())


def _is_last(exception: LoggedException, scene: Scene) -> bool:
    """Whether the rank has gone silent after an exception: it neither trained nor printed more than a few lines."""
    if exception.ignored or exception.agent:
        return False
    later = [
        line
        for line in scene.lines
        if line.number > exception.line.number
        and is_surely_later(line, exception.line)
        and not NOISE.search(line.text)
        and not times.GLOG.search(line.text)  # of torch's own threads, as when they wait for this rank
    ]
    rest_of_message = len(exception.lines) - 1
    return len(later) - rest_of_message <= MOST_LATER and not any(STEPS.search(line.text) for line in later)
