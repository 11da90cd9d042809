"""The command lines of container engines."""

from __future__ import annotations

import shlex

import pytest

from orchestrator.checks.engine_advice import ADVICE
from orchestrator.inventory import container
from orchestrator.node.host.engines import ENGINES, Here, Inside, client_environment, run_argv
from orchestrator.node.serve.container_probe import GPU_CHECKS

ANN = Here(uid=2001, gid=2002, message_queues=True, may_lock_memory=False, infiniband=False)
ROOT = Here(uid=0, gid=0, message_queues=True, may_lock_memory=True, infiniband=True)
INSIDE = Inside(folder="/s/runs/r1", cwd="/s/runs/r1/code", mounts=["/s/runs/r1"], variables=["A", "B"], gpus=[])
PLAIN = {"engine": "podman", "image": "pytorch:2", "mounts": [], "options": []}
DOCKER = {**PLAIN, "engine": "docker", "cdi": False}

START = "podman run --rm --pull=never --log-driver=none --network=host --pid=host --security-opt=label=disable"
LABEL = "--label=ddp-orch.run=/s/runs/r1"
END = "--workdir=/s/runs/r1/code --env=A --env=B --entrypoint="


@pytest.mark.parametrize(
    ("here", "inside", "container", "expected"),
    [
        (
            ANN,
            INSIDE,
            PLAIN,
            f"{START} {LABEL} --user=2001:2002 --userns=keep-id --ipc=host"
            f" --volume=/s/runs/r1:/s/runs/r1 {END} pytorch:2",
        ),
        (
            ROOT,
            INSIDE._replace(gpus=[0, 3]),
            {**PLAIN, "mounts": ["/data:ro", "/a b:/b", "/c:/d:ro"], "options": ["--cap-add", "SYS_PTRACE"]},
            f"{START} {LABEL} --user=0:0 --ipc=host --device=/dev/infiniband --ulimit=memlock=-1:-1"
            " --device=nvidia.com/gpu=0 --device=nvidia.com/gpu=3 --volume=/s/runs/r1:/s/runs/r1"
            f" --volume=/data:/data:ro '--volume=/a b:/b' --volume=/c:/d:ro {END} --cap-add SYS_PTRACE pytorch:2",
        ),
        (
            ANN._replace(message_queues=False),
            Inside("", "/", [], [], []),
            PLAIN,
            f"{START} --user=2001:2002 --userns=keep-id --volume=/dev/shm:/dev/shm --workdir=/ --entrypoint= pytorch:2",
        ),
        (
            ANN._replace(infiniband=True),
            INSIDE._replace(gpus=[0, 3]),
            DOCKER,
            f"{START.replace('podman', 'docker')} {LABEL} --user=2001:2002 --ipc=host --device=/dev/infiniband"
            f" --ulimit=memlock=-1:-1 '--gpus=\"device=0,3\"' --volume=/s/runs/r1:/s/runs/r1 {END} pytorch:2",
        ),
        (
            ANN,
            INSIDE._replace(gpus=[1]),
            {**DOCKER, "cdi": True},
            f"{START.replace('podman', 'docker')} {LABEL} --user=2001:2002 --ipc=host"
            f" --device=nvidia.com/gpu=1 --volume=/s/runs/r1:/s/runs/r1 {END} pytorch:2",
        ),
        (
            ANN,
            INSIDE._replace(gpus=[1]),
            {"engine": "apptainer", "image": "/i.sif", "mounts": ["/a b:/b:ro"], "options": ["--fakeroot"]},
            "apptainer --silent exec --cleanenv --no-home --nv --bind=/s/runs/r1:/s/runs/r1 '--bind=/a b:/b:ro'"
            " --pwd /s/runs/r1/code --fakeroot /i.sif",
        ),
        (
            ROOT,
            INSIDE,
            {"engine": "singularity", "image": "/i.sif", "mounts": [], "options": []},
            "singularity --silent exec --cleanenv --no-home --bind=/s/runs/r1:/s/runs/r1 --pwd /s/runs/r1/code /i.sif",
        ),
        (
            ANN,
            INSIDE._replace(gpus=[1]),
            {"engine": "enroot", "image": "/i.sqsh", "mounts": ["/a b:/b:ro"], "options": ["--rw"]},
            "enroot start --mount=/s/runs/r1:/s/runs/r1:none:x-create=auto,rbind,rw"
            " '--mount=/a\\040b:/b:none:x-create=auto,rbind,ro' --env=NVIDIA_VISIBLE_DEVICES=all"
            " --env=NVIDIA_DRIVER_CAPABILITIES=compute,utility,video --env=A --env=B --rw /i.sqsh",
        ),
        (
            ANN,
            INSIDE._replace(mounts=[]),
            {"engine": "enroot", "image": "pytorch", "mounts": [], "options": []},
            "enroot start --env=NVIDIA_VISIBLE_DEVICES=void --env=A --env=B pytorch",
        ),
    ],
    ids=[
        "user",
        "root with GPUs and InfiniBand",
        "no run, no message queues",
        "docker",
        "docker with CDI",
        "apptainer",
        "singularity",
        "enroot",
        "enroot without GPUs",
    ],
)
def test_the_command_line_of_an_engine(here: Here, inside: Inside, container: dict[str, object], expected: str) -> None:
    assert run_argv(container, here, inside, ["python3", "x y"]) == [*shlex.split(expected), "python3", "x y"]


def test_the_inventory_the_hosts_and_the_advice_have_the_same_engines() -> None:
    assert list(container.ENGINES) == list(ENGINES) == list(ADVICE)
    assert {engine.gpus for engine in ENGINES.values()} == set(GPU_CHECKS)


@pytest.mark.parametrize(
    ("engine", "expected"),
    [
        ("podman", {"A": "1"}),
        ("docker", {"A": "1"}),
        ("apptainer", {"APPTAINERENV_A": "1", "APPTAINER_NO_EVAL": "1"}),
        ("singularity", {"SINGULARITYENV_A": "1", "SINGULARITY_NO_EVAL": "1"}),
        ("enroot", {"A": "1", "ENROOT_LOGIN_SHELL": "n", "ENROOT_RUNTIME_PATH": "/s/engine"}),
    ],
)
def test_the_values_of_variables_are_in_the_environment_of_the_engine(engine: str, expected: dict[str, str]) -> None:
    assert client_environment(engine, {"A": "1"}, "/s/engine") == expected
