"""`gpus` on this machine, whose nvidia-smi is a program of the test."""

from __future__ import annotations

import getpass
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from golden_files import assert_message

from .local import orch
from .nvidia import PROCESS, answer

RUN = "20260101-000000-abcd"
INVENTORY = "hosts: [{name: here, address: localhost}]\n"


@pytest.fixture
def processes() -> Iterator[list[int]]:
    """Of a run, and of nobody's."""
    environments = ({**os.environ, "DDP_ORCH_RUN_ID": RUN}, dict(os.environ))
    sleeping = [subprocess.Popen(["sleep", "600"], env=environment) for environment in environments]
    yield [process.pid for process in sleeping]
    for process in sleeping:
        process.kill()
        process.wait()


def nvidia_smi(folder: Path, text: str, status: int = 0) -> dict[str, str]:
    """An environment in which nvidia-smi prints this."""
    programs = folder / "programs"
    programs.mkdir()
    (programs / "answer").write_text(text)
    (programs / "nvidia-smi").write_text(f'#!/bin/sh\ncat "{programs}/answer"\nexit {status}\n')
    (programs / "nvidia-smi").chmod(0o755)
    return {"PATH": f"{programs}:{os.environ['PATH']}"}


def test_gpus_are_listed_with_whose_processes_use_them(tmp_path: Path, processes: list[int]) -> None:
    (tmp_path / "inventory.yaml").write_text(INVENTORY)
    of_run, other = processes
    text = answer(
        {"used": 62000, "busy": 98, "celsius": 63, "processes": PROCESS.format(pid=of_run, used=61000) * 2},
        {"used": 12000, "busy": 40, "processes": PROCESS.format(pid=other, used=11900)},
        {"used": 4},
        {"used": 30000},  # by a process of another container
    )
    env = nvidia_smi(tmp_path, text)
    shown = orch(tmp_path, "gpus", env=env)
    assert shown.returncode == 0, shown.stderr
    table = "\n".join(" ".join(line.split()) for line in shown.stdout.splitlines())
    assert_message("gpus", f"{table}\n{shown.stderr}", PID=other, USER=getpass.getuser())
    (host,) = json.loads(orch(tmp_path, "gpus", "--json", env=env).stdout)
    first, second, *_ = host["gpus"]
    assert (host["host"], first["use"], first["celsius"], first["memory_used"]) == ("here", 98, 63, 62000 << 20)
    assert [gpu["free"] for gpu in host["gpus"]] == [False, False, True, False]
    assert first["processes"][0]["run_id"] == RUN
    assert (second["processes"][0]["pid"], second["processes"][0]["run_id"]) == (other, None)


def test_secrets_in_command_lines_are_masked(tmp_path: Path) -> None:
    (tmp_path / "inventory.yaml").write_text(INVENTORY + "run: {secrets: [LICENCE]}\n")
    licence = "correct-horse-battery"
    argv = ["bash", "-c", "read", licence, "--api-key", "sk-live-1"]
    argv += ["x" * (190 - len(" ".join(argv))), licence]  # of which a host tells the beginning
    with subprocess.Popen(argv, stdin=subprocess.PIPE) as process:
        env = nvidia_smi(tmp_path, answer({"used": 62000, "processes": PROCESS.format(pid=process.pid, used=61000)}))
        for options in ([], ["--json"]):
            shown = orch(tmp_path, "gpus", *options, env={**env, "LICENCE": licence})
            assert shown.returncode == 0 and "bash" in shown.stdout
            assert "sk-live" not in shown.stdout and "correct" not in shown.stdout
        process.communicate()


@pytest.mark.parametrize(
    ("text", "message"), [("NVIDIA-SMI has failed because it cannot communicate", "has failed"), (None, "no GPU")]
)
def test_a_host_without_gpus_says_why(tmp_path: Path, text: str | None, message: str) -> None:
    (tmp_path / "inventory.yaml").write_text(INVENTORY)
    env = {"PATH": "/usr/bin:/bin"} if text is None else nvidia_smi(tmp_path, text, 9)
    shown = orch(tmp_path, "gpus", env=env)
    assert (shown.returncode, shown.stdout) == (0, "") and f"here: {message}" in shown.stderr.replace("NVIDIA-SMI ", "")


def test_a_host_that_cannot_be_reached_is_named(tmp_path: Path) -> None:
    (tmp_path / "inventory.yaml").write_text("hosts: [{name: gone, address: 127.0.0.1, port: 1}]\n")
    shown = orch(tmp_path, "gpus")
    assert shown.returncode == 4 and "gone" in shown.stderr
