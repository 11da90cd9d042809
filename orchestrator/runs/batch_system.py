"""Ask a batch system how long its job may still run, and have it queue the job again."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping, Sequence
from datetime import datetime

from ..errors import OrchError
from ..inventory.sources.batch_job import BatchJob, parse_time_left

ANSWER_WINDOW = 30.0  # s; a busy slurmctld takes seconds
_IS_OVER = re.compile("Invalid job id|Unknown Job|has finished|is not found", re.IGNORECASE)  # of Slurm, PBS and LSF
MAX_MESSAGE = 300  # characters of what a command wrote


class BatchSystemError(OrchError):
    """A command of the batch system has failed."""


class JobOverError(BatchSystemError):
    """The job has ended, but a shell that it had started is still there."""


class JobEndsError(BatchSystemError):
    """The job is being ended, such as by `scancel`. It cannot be queued again."""


def time_left(job: BatchJob, environ: Mapping[str, str], now: float) -> float | None:
    """Seconds until the batch system ends the job; None: it does not. Raises JobOverError, or another BatchSystemError.

    `now`: seconds since the epoch. If `squeue` cannot be asked, Slurm's variable in `environ` counts. It has
    the end as it was when the job started, so it misses a limit that was changed later.
    """
    if not job.time_command:
        return None
    try:
        output = _call(job.time_command)
    except BatchSystemError as error:
        if _IS_OVER.search(str(error)):
            raise JobOverError(str(error)) from error
        end = environ.get("SLURM_JOB_END_TIME", "") if job.scheduler == "slurm" else ""
        if not end.isdecimal():
            raise
        return max(0.0, int(end) - now)
    if job.scheduler == "slurm" and not output.strip():  # squeue lists jobs that wait, run or are ending
        raise JobOverError(f"{' '.join(job.time_command)}: no such job")
    try:
        return parse_time_left(job.scheduler, output, datetime.now())
    except ValueError as error:
        raise BatchSystemError(f"{' '.join(job.time_command)}: {error}") from error


def requeue(job: BatchJob, *, is_ending: bool) -> None:
    """Have the job queued again. The batch system then ends it, and with it this process.

    `is_ending`: a signal has said that the job was deleted. Raises JobEndsError, or another BatchSystemError.
    """
    if job.state_command:
        if (state := _call(job.state_command).strip()) != "RUNNING":
            raise JobEndsError(state or "CANCELLED")  # Slurm would revive a job that was canceled
    elif is_ending:
        raise JobEndsError("it was deleted")
    _call(job.requeue_command)


def _call(argv: Sequence[str]) -> str:
    command = " ".join(argv)
    try:
        result = subprocess.run(argv, capture_output=True, text=True, timeout=ANSWER_WINDOW, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BatchSystemError(f"{command}: {error}") from error
    if result.returncode != 0:
        raise BatchSystemError(f"{command}: {' '.join(result.stderr.split())[:MAX_MESSAGE]}")
    return result.stdout
