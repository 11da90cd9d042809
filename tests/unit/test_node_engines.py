"""The command lines of container engines."""

from __future__ import annotations

import shlex

import pytest

from orchestrator.node.host.engines import Here, Inside, run_argv

ANN = Here(uid=2001, gid=2002, message_queues=True, may_lock_memory=False, infiniband=False)
ROOT = Here(uid=0, gid=0, message_queues=True, may_lock_memory=True, infiniband=True)
INSIDE = Inside(folder="/s/runs/r1", cwd="/s/runs/r1/code", mounts=["/s/runs/r1"], variables=["A", "B"], gpus=[])
PLAIN = {"engine": "podman", "image": "pytorch:2", "mounts": [], "options": []}

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
            {**PLAIN, "engine": "docker"},
            f"{START.replace('podman', 'docker')} {LABEL} --user=2001:2002 --ipc=host --device=/dev/infiniband"
            f" --ulimit=memlock=-1:-1 '--gpus=\"device=0,3\"' --volume=/s/runs/r1:/s/runs/r1 {END} pytorch:2",
        ),
    ],
    ids=["user", "root with GPUs and InfiniBand", "no run, no message queues", "docker"],
)
def test_the_command_line_of_an_engine(here: Here, inside: Inside, container: dict[str, object], expected: str) -> None:
    assert run_argv(container, here, inside, ["python3", "x y"]) == [*shlex.split(expected), "python3", "x y"]
