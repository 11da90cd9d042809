"""Jobs of batch systems: their names, their time limits, and when a run ends with its job."""

from __future__ import annotations

from datetime import datetime

import pytest

from orchestrator.inventory.sources.batch_job import BatchJob, job_of, parse_time_left
from orchestrator.node.roles.tie import Tie
from orchestrator.runs import batch_system

NOW = datetime(2013, 4, 9, 15, 31, 47)
OPENPBS = """\
Job Id: 68350.mycluster
    Job_Name = cell
    job_state = R
    Resource_List.ncpus = 240
    Resource_List.walltime = 01:00:00
    stime = Tue Apr  9 15:01:47 2013
    Variable_List = PBS_O_SYSTEM=Linux,PBS_O_SHELL=/bin/bash,
\tPBS_O_HOME=/home/ann
"""


@pytest.mark.parametrize(
    ("source", "variables", "name"),
    [
        ("@slurm", {"SLURM_JOB_ID": "17"}, "slurm-17"),
        ("@pbs", {"PBS_JOBID": "1234[7].server.site"}, "pbs-1234-7-server-site"),
        ("@lsf", {"LSB_JOBID": "99", "LSB_JOBINDEX": "0"}, "lsf-99"),
        ("@lsf", {"LSB_JOBID": "99", "LSB_JOBINDEX": "3"}, "lsf-99-3"),
        ("@sge", {"JOB_ID": "5", "SGE_TASK_ID": "undefined"}, "sge-5"),
    ],
)
def test_a_run_has_the_same_name_whenever_its_job_runs(source: str, variables: dict[str, str], name: str) -> None:
    job = job_of(source, variables)
    assert job is not None and job.name == name


@pytest.mark.parametrize("source", [None, "@hostfile:hosts", "@env", "@pbs"])
def test_hosts_of_another_source_are_of_no_job(source: str | None) -> None:
    assert job_of(source, {"SLURM_JOB_ID": "17"}) is None


@pytest.mark.parametrize(
    ("scheduler", "text", "seconds"),
    [
        ("slurm", "5:00\n", 300),
        ("slurm", "3:59:07\n", 4 * 3600 - 53),
        ("slurm", "2-00:00:01\n", 2 * 86400 + 1),
        ("slurm", "UNLIMITED\n", None),
        ("slurm", "NOT_SET\n", None),
        ("lsf", "3:57 L\n", 3 * 3600 + 57 * 60),
        ("lsf", "-\n", None),
        ("pbs", OPENPBS, 1800),
        ("pbs", OPENPBS.replace("stime", "ctime"), 3600),
        ("pbs", OPENPBS + "    Walltime.Remaining = 1200\n", 1200),
        ("pbs", "Job Id: 1\n    job_state = R\n", None),
    ],
)
def test_the_time_left_is_read_as_its_scheduler_prints_it(scheduler: str, text: str, seconds: float | None) -> None:
    assert parse_time_left(scheduler, text, NOW) == seconds


@pytest.mark.parametrize(
    ("scheduler", "text"), [("slurm", "INVALID"), ("lsf", "soon"), ("pbs", "stime = x\n" + OPENPBS)]
)
def test_what_is_no_time_is_an_error(scheduler: str, text: str) -> None:
    with pytest.raises(ValueError):
        parse_time_left(scheduler, text.replace("Tue Apr  9", "Di. 9. Apr"), NOW)


def test_each_scheduler_is_asked_in_its_own_way() -> None:
    assert BatchJob("slurm", "17").requeue_command == ("scontrol", "requeue", "17")
    assert BatchJob("pbs", "17.s").time_command == ("qstat", "-f", "17.s")
    assert BatchJob("sge", "5").time_command == BatchJob("sge", "5").requeue_command == ()


def test_a_run_ends_when_no_node_has_counted_a_request_for_the_limit() -> None:
    tie = Tie(30.0)
    assert not tie.has_lapsed(100.0) and not tie.has_lapsed(129.0)
    tie.hear(0, 1, 125.0)
    tie.hear(1, 4, 128.0)
    tie.hear(1, 4, 150.0)  # its status has other news
    assert not tie.has_lapsed(157.0)
    assert tie.has_lapsed(158.0)


def test_a_run_without_a_job_never_ends_by_itself() -> None:
    tie = Tie(None)
    tie.hear(0, 1, 0.0)
    assert not tie.has_lapsed(1e9)


def test_slurms_variable_has_the_end_where_squeue_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    assert batch_system.time_left(BatchJob("slurm", "7"), {"SLURM_JOB_END_TIME": "1700000600"}, 1.7e9) == 600
    for job, environ in ((BatchJob("slurm", "7"), {}), (BatchJob("lsf", "7"), {"SLURM_JOB_END_TIME": "1700000600"})):
        with pytest.raises(batch_system.BatchSystemError):
            batch_system.time_left(job, environ, 1.7e9)
