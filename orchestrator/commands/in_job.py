"""What `up` does differently in a job of a batch system: the time limit, the end of the run with the job, requeue."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Literal

from ..errors import RunStopped, UsageError
from ..inventory import run_ids, via
from ..inventory.model import Host, Inventory
from ..inventory.sources.batch_job import REQUEUE_EXIT_CODES, BatchJob, job_of
from ..inventory.sources.schedulers import current_scheduler
from ..output.console import Console, fold
from ..runs import batch_system

PREDECESSOR_WINDOW = 70.0
"""Seconds in which a run of a job ends whose `up` was killed: 30 for the hosts to notice, 10 of grace, a reserve."""


def find_job(inventory: Inventory, *, detach: bool, requeue: bool) -> BatchJob | None:
    """The job that the hosts come from. Raises UsageError if `requeue` or `detach` is impossible."""
    bound = via.bound_hosts(inventory.hosts)
    if bound and detach:
        raise UsageError(
            f"--detach: ddp-orch reaches {fold(bound)} with srun, so Slurm ends the run together with ddp-orch. Leave "
            "--detach out, or set ssh.via: openssh"
        )
    job = job_of(inventory.source, os.environ)
    if requeue and job is None:
        raise UsageError("--requeue needs the hosts of a job: ddp-orch up @slurm, @pbs, @lsf or @sge, in a job script")
    if requeue and detach:
        raise UsageError("--requeue and --detach cannot be combined: ddp-orch must wait until the run has stopped")
    return job


def describe_predecessor(obstacle: str, again: str) -> str:
    """That `up` waits for the run of a job that was killed. `obstacle`: why it cannot start yet."""
    if run := run_ids.RUN_ID.search(obstacle):
        what = f"run {run[0]}, which may be of a job that was killed: its hosts stop it then"
        return f"waiting up to {PREDECESSOR_WINDOW:.0f} s for {what}; {again}"
    return f"{obstacle}\n  {again} for {PREDECESSOR_WINDOW:.0f} s"


def describe_closing(hosts: Iterable[Host], environment: Mapping[str, str], follow: str) -> str:
    """What happens to a run if the terminal of `up` is closed. `follow`: the command that follows the run again."""
    if scheduler := current_scheduler(environment):
        return (
            f"this is a {scheduler} job: closing this terminal stops the run, and so does Ctrl-C. Closing it saves "
            f"a snapshot if the script can. To follow the run elsewhere: {follow}"
        )
    if bound := via.bound_hosts(hosts):
        return (
            f"closing this terminal ends the run, as Ctrl-C does: ddp-orch reaches {fold(bound)} with srun, so Slurm "
            "ends the run together with ddp-orch"
        )
    return f"closing this terminal does not stop the run; Ctrl-C does. To follow it again: {follow}"


def describe_detached(hosts: Iterable[Host], tie: float | None, follow: str) -> str:
    """What happens to a run that `up` follows no longer. `tie`: see `Plan`."""
    if bound := via.bound_hosts(hosts):
        return f"the run ends with ddp-orch, which reaches {fold(bound)} with srun. See how it ended with: {follow}"
    until = "continues" if tie is None else f"stops in {tie:.0f} s, as hosts of a job stop runs that no `up` follows"
    return f"detached; the run {until}. Follow it with: {follow}"


@contextlib.contextmanager
def note_at_end(note: str, console: Console) -> Iterator[None]:
    """Print this if SIGTERM or SIGHUP end ddp-orch, which they do as before."""

    def end(number: int, _: object) -> None:
        signal.signal(number, signal.SIG_DFL)
        with contextlib.suppress(OSError, RuntimeError):  # the terminal is lost, or another message is being written
            console.note(note)
        signal.raise_signal(number)

    # one that is ignored, as by nohup, stays so
    numbers = [each for each in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(each) == signal.SIG_DFL]
    for number in numbers:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number in numbers:
            signal.signal(number, signal.SIG_DFL)


def find_end(job: BatchJob, inventory: Inventory, *, tied: bool, console: Console) -> float | None:
    """When the batch system ends the job, by the monotonic clock; None: unknown, or never. Shows it to the user.

    Raises UsageError if the job has ended.
    """
    what = f"{job.scheduler} job {job.number}"
    left = None
    if inventory.run.walltime is not None:
        try:
            left = batch_system.time_left(job, os.environ, time.time())
        except batch_system.JobOverError as error:
            raise UsageError(
                f"{what} has ended, so its hosts may belong to others now ({error}). Leave this shell (exit), and "
                "start in a new job"
            ) from error
        except batch_system.BatchSystemError as error:
            _tell_unknown_limit(what, inventory.run.walltime, f"{error}", console)
        if not job.time_command:
            _tell_unknown_limit(what, inventory.run.walltime, f"{job.scheduler} does not tell it", console)
    if tied:
        end = "" if left is None else f", in {_show_time(left)} at the latest"
        console.step(f"{what}: the run ends with it{end}")
    else:
        console.warning(f"{what}: with -d, the run continues if the job ends early. Without -d, it ends with the job")
    return None if left is None else time.monotonic() + left


def _tell_unknown_limit(what: str, walltime: float | Literal["auto"], why: str, console: Console) -> None:
    if walltime == "auto":
        console.warning(f"{what}: its time limit is unknown; set run.walltime. {why}")
    else:
        console.note(f"{what}: its time limit is unknown, so only run.walltime counts ({_show_time(walltime)}). {why}")


def _show_time(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    if minutes >= 10 or not rest:
        return f"{minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


def requeue(job: BatchJob, code: int, console: Console, resume: str, *, is_ending: bool) -> int:
    """Queue the job again if the run was stopped to be resumed. `code`: its exit code. Returns that of `up`.

    `resume`: the command that resumes the run in another job. `is_ending`: the batch system has ended the job before
    its time limit, as `qdel` does.
    """
    if code != RunStopped.exit_code:
        return code
    if job.scheduler in REQUEUE_EXIT_CODES and not is_ending:
        console.note(f"exit code {REQUEUE_EXIT_CODES[job.scheduler]}: {job.scheduler} queues job {job.number} again")
        return REQUEUE_EXIT_CODES[job.scheduler]
    try:
        batch_system.requeue(job, is_ending=is_ending)
        console.note(f"{job.scheduler} job {job.number} is queued again")
    except batch_system.JobEndsError as error:
        console.note(f"the job is ending ({error}), so it is not queued again. To resume in another job: {resume}")
    except batch_system.BatchSystemError as error:
        console.warning(f"the job was not queued again: {error}\n  to resume in another job: {resume}")
    return code
