"""The job of a batch system that ddp-orch runs in: its name, its time limit, how to requeue it. No IO."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from .reference import MARK

REQUEUE_EXIT_CODES = {"sge": 99}
"""By scheduler: the exit code with which a job script queues its own job again."""

_DURATION = re.compile(r"(?:(?:([0-9]+)-)?([0-9]+):)?([0-9]+):([0-9]{2})")
_UNLIMITED = ("UNLIMITED", "NOT_SET", "-", "")


@dataclass(frozen=True)
class BatchJob:
    """The job that the hosts come from."""

    scheduler: str
    number: str
    """Its id; for a part of an array, as the commands of the scheduler take it."""

    @property
    def name(self) -> str:
        """A name for its run, the same after a requeue."""
        return f"{self.scheduler}-{re.sub('[^A-Za-z0-9_-]+', '-', self.number).strip('-')}"[:63]

    @property
    def time_command(self) -> tuple[str, ...]:
        """Prints how long the job may still run, for `parse_time_left`; empty: the scheduler cannot tell."""
        match self.scheduler:
            case "slurm":
                return ("squeue", "--noheader", "--jobs", self.number, "--format", "%L")
            case "pbs":
                return ("qstat", "-f", self.number)
            case "lsf":
                return ("bjobs", "-noheader", "-o", "time_left", self.number)
            case _:
                return ()

    @property
    def state_command(self) -> tuple[str, ...]:
        """Prints `RUNNING` unless the job is being ended; empty: `requeue_command` refuses jobs that are."""
        return ("squeue", "--noheader", "--jobs", self.number, "--format", "%T") if self.scheduler == "slurm" else ()

    @property
    def requeue_command(self) -> tuple[str, ...]:
        """Ends the job and queues it again; empty: its exit code does (REQUEUE_EXIT_CODES)."""
        commands = {"slurm": ("scontrol", "requeue"), "pbs": ("qrerun",), "lsf": ("brequeue",)}
        return (*commands[self.scheduler], self.number) if self.scheduler in commands else ()


def job_of(source: str | None, variables: Mapping[str, str]) -> BatchJob | None:
    """The job that `source` takes its hosts from; None: it is no job."""
    scheduler = (source or "").removeprefix(MARK)
    number = {
        "slurm": variables.get("SLURM_JOB_ID"),  # a part of an array has an id of its own
        "pbs": variables.get("PBS_JOBID"),
        "lsf": _with_index(variables.get("LSB_JOBID"), variables.get("LSB_JOBINDEX", "0"), "{}[{}]"),
        "sge": _with_index(variables.get("JOB_ID"), variables.get("SGE_TASK_ID", "undefined"), "{}.{}"),
    }.get(scheduler)
    return BatchJob(scheduler, number) if number else None


def _with_index(number: str | None, index: str, form: str) -> str | None:
    return number if number is None or index in ("0", "undefined") else form.format(number, index)


def parse_time_left(scheduler: str, text: str, now: datetime) -> float | None:
    """Seconds for which the job may still run; None: without limit. `now`: local time. Raises ValueError."""
    if scheduler == "pbs":
        return _parse_qstat(text, now)
    word = (text.split() or [""])[0]
    if word in _UNLIMITED:
        return None
    return _seconds(word if scheduler == "slurm" else f"{word}:00")  # LSF: hours and minutes, as in `3:57 L`


def _parse_qstat(text: str, now: datetime) -> float | None:
    """PBS: `qstat -f` of one job. Torque prints the remaining time, OpenPBS the limit and the start."""
    values = dict(re.findall(r"^\s*([A-Za-z_.]+) = (.*?)\s*$", text, re.MULTILINE))
    if remaining := values.get("Walltime.Remaining"):
        return float(remaining)
    limit = values.get("Resource_List.walltime")
    if limit is None:
        return None
    if start := values.get("stime"):
        used = (now - datetime.strptime(start, "%a %b %d %H:%M:%S %Y")).total_seconds()
    else:
        used = _seconds(values.get("resources_used.walltime", "00:00:00"))
    return _seconds(limit) - used


def _seconds(text: str) -> float:
    """`[[days-]hours:]minutes:seconds`"""
    match = _DURATION.fullmatch(text)
    if match is None:
        raise ValueError(f"{text[:40]!r} is no duration")
    days, hours, minutes, seconds = (int(group or 0) for group in match.groups())
    return float(((days * 24 + hours) * 60 + minutes) * 60 + seconds)
