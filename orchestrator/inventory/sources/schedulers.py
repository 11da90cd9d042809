"""The hosts that a scheduler has given to a job: its variables, and its node file -> hosts. No IO."""

from __future__ import annotations

import re
from collections.abc import Mapping

from .hostfile import parse_hostfile
from .nodelist import expand_counts, expand_nodes
from .source_host import NotInJob, SourceHost, SourceProblem, count_repeats

JOBS = {"slurm": "SLURM_JOB_ID", "pbs": "PBS_JOBID", "lsf": "LSB_JOBID", "sge": "PE_HOSTFILE"}
"""By scheduler: a variable that is set in its jobs."""
NODE_FILES = {"pbs": "PBS_NODEFILE", "sge": "PE_HOSTFILE"}
"""By scheduler: the variable with the path of its node file."""

MANY_CORES = 8  # a host for training has at least so many

Variables = Mapping[str, str]


def current_scheduler(variables: Variables) -> str | None:
    """The scheduler of the job that has these variables."""
    return next((name for name, variable in JOBS.items() if variables.get(variable)), None)


def parse_slurm(variables: Variables) -> tuple[SourceHost, ...]:
    """The nodes of a job, without `scontrol`. Raises ValueError or NotInJob.

    A node has as many slots as GPUs were requested for each, or tasks if the job has no GPUs and requested tasks.
    """
    if variables.get("SLURM_PROCID", "0") != "0":
        task = variables["SLURM_PROCID"]
        raise ValueError(
            f"SLURM_PROCID: this is task {task} of srun; start ddp-orch once, in the batch script without srun"
        )
    names: list[str] = []
    for name in _node_lists(variables):
        try:
            names += expand_nodes(variables[name])
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from error
    slots = _slurm_slots(variables, len(names))
    return count_repeats([SourceHost(name=name, slots=count) for name, count in zip(names, slots, strict=True)])


def _node_lists(variables: Variables) -> list[str]:
    """The variables with the nodes; a heterogeneous job has one for each of its parts."""
    parts = variables.get("SLURM_HET_SIZE", "")
    if re.fullmatch(r"[0-9]{1,3}", parts):
        names = [f"SLURM_JOB_NODELIST_HET_GROUP_{number}" for number in range(int(parts))]
        if all(variables.get(name) for name in names):
            return names
    known = next((name for name in ("SLURM_JOB_NODELIST", "SLURM_NODELIST") if variables.get(name)), None)
    if known is None:
        raise NotInJob("SLURM_JOB_NODELIST is not set: this shell is not in a Slurm job; use sbatch or salloc")
    return [known]


def gpus_per_node(variables: Variables) -> int | None:
    """The GPUs that a job of Slurm asked for on each node; None: none, or another number on each."""
    gpus = variables.get("SLURM_GPUS_PER_NODE")
    if gpus:  # `4`, or `a100:2,v100:2`
        return _count_gpus(gpus)
    on_this = variables.get("SLURM_GPUS_ON_NODE", "")  # of `--gres=gpu:4`; `--gpus` is a number for the whole job
    return int(on_this) if re.fullmatch(r"[1-9][0-9]{0,3}", on_this) and not variables.get("SLURM_GPUS") else None


def _count_gpus(text: str) -> int | None:
    return sum(map(int, re.findall(r"(?:^|[:,])([0-9]{1,4})(?=,|$)", text))) or None


def _slurm_slots(variables: Variables, nodes: int) -> tuple[int | None, ...]:
    gpus = variables.get("SLURM_GPUS_PER_NODE")
    if gpus:
        return (_count_gpus(gpus),) * nodes
    with_gpus = any(variables.get(name) for name in ("SLURM_GPUS_ON_NODE", "SLURM_JOB_GPUS", "SLURM_GPUS"))
    # without --ntasks, Slurm sets the number of CPUs as tasks if nodes are exclusive
    has_tasks = any(variables.get(name) for name in ("SLURM_NTASKS", "SLURM_NTASKS_PER_NODE"))
    tasks = variables.get("SLURM_TASKS_PER_NODE")
    if with_gpus or not has_tasks or not tasks or "SLURM_HET_SIZE" in variables:
        return (None,) * nodes
    try:
        counts_of_tasks = expand_counts(tasks, nodes)
    except ValueError as error:
        raise ValueError(f"SLURM_TASKS_PER_NODE: {error}") from error
    return tuple(None if set(counts_of_tasks) == {1} else count for count in counts_of_tasks)


def parse_node_file(text: str) -> tuple[SourceHost, ...]:
    """PBS_NODEFILE: a line for each process that the job requested on a node (`mpiprocs`)."""
    return parse_hostfile(text)


def parse_lsf(variables: Variables) -> tuple[SourceHost, ...]:
    """LSB_MCPU_HOSTS is `h1 4 h2 4`. Its numbers are cores, which do not tell how many ranks a host should have.

    A launch node is left out: it comes first, with one core, before hosts with many.
    """
    words = variables.get("LSB_MCPU_HOSTS", "").split()
    if words:
        pairs = list(zip(words[::2], words[1::2], strict=False))
        if len(words) % 2 or not all(re.fullmatch(r"[0-9]{1,6}", count) for _, count in pairs):
            raise ValueError("LSB_MCPU_HOSTS: expected hosts and numbers such as `h1 4 h2 4`")
        if len(pairs) > 1 and int(pairs[0][1]) == 1 and all(int(count) >= MANY_CORES for _, count in pairs[1:]):
            del pairs[0]
        return count_repeats([SourceHost(name=name) for name, _ in pairs])
    names = variables.get("LSB_HOSTS", "").split()
    if not names:
        raise NotInJob("LSB_MCPU_HOSTS is not set: this shell is not in an LSF job; use bsub")
    return count_repeats([SourceHost(name=name) for name in dict.fromkeys(names)])


def parse_sge(text: str) -> tuple[SourceHost, ...]:
    """PE_HOSTFILE: lines `host slots queue processors`. Slots are cores, as in LSF. Raises SourceProblem."""
    hosts, problems = [], []
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split()
        if not words:
            continue
        try:
            if len(words) < 2 or not re.fullmatch(r"[0-9]{1,6}", words[1]):
                raise ValueError("expected `host slots queue processors`")
            hosts.append(SourceHost(name=words[0]))
        except ValueError as error:
            problems.append((number, str(error)))
    if problems:
        raise SourceProblem(problems)
    if not hosts:
        raise ValueError("lists no hosts")
    return tuple(dict.fromkeys(hosts))
