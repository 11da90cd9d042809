"""The first process in a container, here without a container: it passes on statuses and signals, and ends the rest."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator.node.host import processes
from orchestrator.node.ranks import contained
from orchestrator.node.ranks.container_engine import ContainerEngine, status_of_command
from orchestrator.node.ranks.launch import Job, Paths

ROOT = Path(__file__).parents[2]
SLEEPS = ["sh", "-c", "echo begun; exec sleep 60"]
HANDLES = ["sh", "-c", "trap 'exit 7' USR1; echo begun; while :; do sleep 0.05; done"]
DECODES = """
import json, os
from orchestrator.node.ranks.contained import decode_environment
decode_environment()
print(json.dumps(os.environ.get("LD_LIBRARY_PATH")))
"""


class Contained:
    """The process, and the end of the FIFO in which it and its command register."""

    def __init__(self, folder: Path, argv: list[str], run_id: str) -> None:
        (folder / "fifo").mkdir()
        register = str(folder / "fifo" / "register")
        os.mkfifo(register)
        self.register = os.open(register, os.O_RDWR)
        self.lock = os.open(folder / "run.lock", os.O_RDWR | os.O_CREAT)
        fcntl.flock(self.lock, fcntl.LOCK_EX)
        job = {"argv": argv, "cwd": "/", "env": {}, "stdout": "/dev/stdout", "stderr": "/dev/stderr", "first_rank": 4}
        job.update(label="1", folder=str(folder), register=register, pid_namespace=processes.pid_namespace())
        (folder / "job.json").write_text(json.dumps(job))
        variables = {processes.MARK: run_id, f"{contained.VARIABLE}WORD": base64.b64encode(b"it's").decode()}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "orchestrator.node", "contained", str(folder / "job.json")],
            cwd=ROOT,
            env={**os.environ, **variables},
            stdout=subprocess.PIPE,
            text=True,
        )

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def wait(self) -> int:
        return self.process.wait(20)


def test_the_status_is_that_of_the_command(tmp_path: Path) -> None:
    inside = Contained(tmp_path, ["sh", "-c", "echo $WORD; exit 7"], "20260101-000000-aaa1")
    assert (inside.line(), inside.wait()) == ("it's", 7)
    first, rank = map(json.loads, os.read(inside.register, 4096).splitlines())
    assert (first["contained"], first["pid"]) == ("1", inside.process.pid)
    assert (rank["rank"], rank["local_rank"]) == (5, 1)


def test_a_signal_is_passed_on(tmp_path: Path) -> None:
    inside = Contained(tmp_path, HANDLES, "20260101-000000-aaa2")
    assert inside.line() == "begun"
    inside.process.send_signal(signal.SIGUSR1)
    assert inside.wait() == 7


@pytest.mark.parametrize(
    ("given", "of_the_run", "expected"),
    [
        ("/image:/.singularity.d/libs", "/run", "/run:/.singularity.d/libs"),
        ("/.singularity.d/libs", "", "/.singularity.d/libs"),
        ("/.singularity.d/libs", "/.singularity.d/libs:/run", "/.singularity.d/libs:/run"),
        ("/image:/.singularity.d/libs", None, "/image:/.singularity.d/libs"),
        ("/image", "/run", "/run"),
        (None, None, None),
    ],
)
def test_the_libraries_of_the_driver_stay_in_reach_under_apptainer(
    given: str | None, of_the_run: str | None, expected: str | None
) -> None:
    variables = {} if of_the_run is None else contained.encode({"LD_LIBRARY_PATH": of_the_run})
    variables.update({} if given is None else {"LD_LIBRARY_PATH": given})
    done = subprocess.run(
        [sys.executable, "-c", DECODES],
        cwd=ROOT,
        env={**{name: value for name, value in os.environ.items() if name != "LD_LIBRARY_PATH"}, **variables},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    assert json.loads(done.stdout) == expected


def test_without_a_guard_the_command_is_killed(tmp_path: Path) -> None:
    inside = Contained(tmp_path, SLEEPS, "20260101-000000-aaa3")
    assert inside.line() == "begun"
    os.close(inside.lock)
    assert inside.wait() == 128 + signal.SIGKILL
    assert "20260101-000000-aaa3" not in processes.marks().values()


@pytest.mark.parametrize(
    ("status", "expected"), [(0, 0), (7 << 8, 7 << 8), (137 << 8, 9), (9, 9), (255 << 8, 255 << 8)]
)
def test_an_engine_tells_signals_as_a_shell_does(status: int, expected: int) -> None:
    assert status_of_command(status) == expected


@pytest.mark.parametrize(("engine", "status"), [("podman", 125), ("docker", 125), ("apptainer", 255), ("enroot", 1)])
def test_a_status_of_the_engine_counts_only_before_the_container_has_begun(engine: str, status: int) -> None:
    container = ContainerEngine(engine, "20260101-000000-aaa4", lambda: True)
    assert container.could_not_start(status, has_begun=False)
    assert not container.could_not_start(status, has_begun=True)
    assert not container.could_not_start(7, has_begun=False)


@pytest.mark.parametrize(
    ("engine", "words", "numbers"),
    [
        ("podman", ["--device=nvidia.com/gpu=1", "--device=nvidia.com/gpu=3"], None),
        ("docker", ["--device=nvidia.com/gpu=1", "--device=nvidia.com/gpu=3"], None),
        ("docker without CDI", ['--gpus="device=1,3"'], None),
        ("apptainer", ["--nv"], "1,3"),
        ("singularity", ["--nv"], "1,3"),
        (
            "enroot",
            ["--env=NVIDIA_VISIBLE_DEVICES=all", "--env=NVIDIA_DRIVER_CAPABILITIES=compute,utility,video"],
            "1,3",
        ),
    ],
)
def test_ranks_in_a_container_have_the_gpus_of_the_run_by_the_numbers_that_count_there(
    tmp_path: Path, engine: str, words: list[str], numbers: str | None
) -> None:
    """A container with two GPUs of four has the numbers 0 and 1. One with all needs CUDA_VISIBLE_DEVICES."""
    name, _, without_cdi = engine.partition(" ")
    container = {"engine": name, "image": "x", "mounts": [], "options": [], "cdi": not without_cdi}
    spec = {"container": container, "gpu_ids": [1, 3], "env": {}, "run_id": "20260101-000000-aaa6"}
    spec.update(python="python3", program="/p", workdir=None)
    run = tmp_path / "runs" / "r"
    run.mkdir(parents=True)
    job = Job("0", {"env": {"CUDA_VISIBLE_DEVICES": "1,3", "A": "b"}, "stdout": "out", "stderr": "err"})
    outer = contained.wrap(spec, job, Paths(str(run), "fifo", "log", "/", str(tmp_path))).description
    assert [word for word in outer["argv"] if word in words] == words

    prefix = {"apptainer": "APPTAINERENV_", "singularity": "SINGULARITYENV_"}.get(name, "") + contained.VARIABLE
    inside = {
        key[len(prefix) :]: base64.b64decode(value).decode()
        for key, value in outer["env"].items()
        if key.startswith(prefix)
    }
    assert (inside["A"], inside.get("CUDA_VISIBLE_DEVICES")) == ("b", numbers)


def test_only_engines_with_records_have_containers_to_remove() -> None:
    asked = []

    def remove() -> bool:
        asked.append(True)
        return False

    assert [ContainerEngine(each, "20260101-000000-aaa5", remove).remove() for each in ("enroot", "apptainer")] == [
        True,
        True,
    ]
    assert not ContainerEngine("podman", "20260101-000000-aaa5", remove).remove() and len(asked) == 1
