"""The nodes of a task in SkyPilot, dstack or Kubeflow: variables -> hosts. No IO."""

from __future__ import annotations

import re
from collections.abc import Mapping

from .source_host import NotInJob, SourceHost

_LISTS = {
    # list of addresses, node rank, GPUs of a node
    "SkyPilot": ("SKYPILOT_NODE_IPS", "SKYPILOT_NODE_RANK", "SKYPILOT_NUM_GPUS_PER_NODE"),
    "dstack": ("DSTACK_NODES_IPS", "DSTACK_NODE_RANK", "DSTACK_GPUS_PER_NODE"),
}
_TRAIN_JOB = re.compile(r"(?P<job>.+)-node-0-0\.(?P<service>.+)")  # Kubeflow Trainer 2
_PYTORCH_JOB = re.compile(r"(?P<job>.+)-master-0(?P<service>\..+)?")  # Kubeflow training operator 1


def parse_clouds(variables: Mapping[str, str]) -> tuple[SourceHost, ...]:
    """The nodes of this task, node 0 first. Raises ValueError, also on other nodes than node 0."""
    for platform, (addresses, rank, gpus) in _LISTS.items():
        if variables.get(addresses):
            _check_rank(platform, variables.get(rank, "0"), rank)
            return _make_hosts(variables[addresses].split(), variables.get(gpus), addresses)
    if variables.get("PET_MASTER_ADDR") or variables.get("PET_NNODES"):
        return _parse_kubeflow(variables)
    if variables.get("PRIMARY_ADDR") and variables.get("NUM_NODES"):
        message = "a RunPod cluster tells only the address of its first node (PRIMARY_ADDR); "
        raise ValueError(f"{message}list the addresses of all nodes in an inventory")
    known = ", ".join([*(names[0] for names in _LISTS.values()), "PET_MASTER_ADDR"])
    raise NotInJob(f"none of {known} is set: this is not a task of SkyPilot, dstack or Kubeflow with several nodes")


def _parse_kubeflow(variables: Mapping[str, str]) -> tuple[SourceHost, ...]:
    master = variables.get("PET_MASTER_ADDR") or variables.get("MASTER_ADDR", "")
    rank = variables.get("PET_NODE_RANK") or variables.get("RANK", "0")
    _check_rank("Kubeflow", rank, "PET_NODE_RANK")
    nodes = variables.get("PET_NNODES", "")
    if not re.fullmatch(r"[1-9][0-9]{0,3}", nodes):
        raise ValueError(f"PET_NNODES is {nodes[:40]!r}; expected a number of nodes")
    if job := _TRAIN_JOB.fullmatch(master):
        names = [f"{job['job']}-node-0-{number}.{job['service']}" for number in range(int(nodes))]
    elif job := _PYTORCH_JOB.fullmatch(master):
        service = job["service"] or ""
        names = [master, *(f"{job['job']}-worker-{number}{service}" for number in range(int(nodes) - 1))]
    else:
        message = f"PET_MASTER_ADDR is {master[:80]!r}, which does not tell the names of the other nodes; "
        raise ValueError(f"{message}list them in an inventory")
    return _make_hosts(names, variables.get("PET_NPROC_PER_NODE"), "PET_MASTER_ADDR")


def _check_rank(platform: str, rank: str, variable: str) -> None:
    if rank != "0":
        message = f"{variable} is {rank[:20]}: {platform} runs this command on every node; "
        raise ValueError(f'{message}start ddp-orch on one of them only: [ "${variable}" = 0 ] && ddp-orch up @env ...')


def _make_hosts(names: list[str], slots: str | None, variable: str) -> tuple[SourceHost, ...]:
    count = int(slots) if slots and re.fullmatch(r"[1-9][0-9]{0,3}", slots) else None
    try:
        return tuple(SourceHost(name=name, slots=count) for name in dict.fromkeys(names))
    except ValueError as error:
        raise ValueError(f"{variable}: {error}") from error
