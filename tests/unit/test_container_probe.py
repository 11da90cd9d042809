"""What a host finds out about container engines, here from programs in PATH that answer as the real ones do."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator.node.serve import container_probe
from orchestrator.node.serve.container_probe import GpuWay, look

# as nvidia-ctk cdi generate writes it
CDI = 'cdiVersion: 0.5.0\ncontainerEdits:\n    env:\n        - A=b\ndevices:\n    - name: "0"\nkind: nvidia.com/gpu\n'
AMD = 'cdiVersion: 0.6.0\nkind: amd.com/gpu\ndevices:\n    - name: "0"\n'

Program = Callable[[str, str], None]


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Program:
    """Put a shell script into an otherwise empty PATH."""
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))

    def write(name: str, text: str) -> None:
        (tmp_path / "bin").mkdir(exist_ok=True)
        (tmp_path / "bin" / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / "bin" / name).chmod(0o755)

    return write


def docker_answers(program: Program, **info: object) -> None:
    program("docker", f"printf '%s' '{json.dumps(info)}'")


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("nvidia.yaml", CDI, True),
        ("gpu.json", '{"cdiVersion":"0.5.0","kind":"nvidia.com/gpu","devices":[]}', True),
        ("nvidia-imex.yaml", CDI.replace("com/gpu", "com/imex-channel"), False),  # of the toolkit, but no GPU
        ("nvidia.yaml", AMD, False),
        ("nvidia.yaml.bak", CDI, False),
    ],
)
def test_podman_gives_gpus_if_a_cdi_file_is_of_nvidias_gpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, text: str, *, expected: bool
) -> None:
    (tmp_path / name).write_text(text)
    monkeypatch.setattr(container_probe, "CDI_FOLDERS", (str(tmp_path / "missing"), str(tmp_path)))
    assert container_probe.GPU_CHECKS["cdi"]() == GpuWay(expected, expected)


def test_docker_gives_gpus_by_its_runtime_its_hook_or_cdi(program: Program, tmp_path: Path) -> None:
    check = container_probe.GPU_CHECKS["docker"]
    runc = {"runc": {"path": "runc"}}
    (tmp_path / "cdi").mkdir()

    docker_answers(program, ServerVersion="20.10.24", Runtimes=runc)
    assert check() == GpuWay(works=False)
    docker_answers(program, ServerVersion="25.0.5", Runtimes=runc, CDISpecDirs=[str(tmp_path / "cdi")])
    assert check() == GpuWay(works=False)
    (tmp_path / "cdi" / "nvidia.yaml").write_text(CDI)
    assert check() == GpuWay(works=True, cdi=True)
    docker_answers(program, ServerVersion="25.0.5", Runtimes=runc, CDISpecDirs=None)
    assert check() == GpuWay(works=False)  # CDI is off, as it is before Docker 28
    program("nvidia-container-runtime-hook", "")
    assert check() == GpuWay(works=True)
    (tmp_path / "bin" / "nvidia-container-runtime-hook").unlink()
    runtimes = {**runc, "nvidia": {"path": "nvidia-container-runtime"}}
    docker_answers(program, Runtimes=runtimes)
    assert check() == GpuWay(works=True)
    # of the package nvidia-container-toolkit-base, which has no hook, so that --gpus fails
    docker_answers(program, ServerVersion="28.2.2", Runtimes=runtimes, CDISpecDirs=[str(tmp_path / "cdi")])
    assert check() == GpuWay(works=True, cdi=True)
    program("docker", "echo Cannot connect to the Docker daemon >&2; exit 1")
    assert check() == GpuWay(works=False)


def test_enroot_gives_gpus_by_nvidias_program(program: Program) -> None:
    assert not container_probe.GPU_CHECKS["nvidia-container-cli"]().works
    program("nvidia-container-cli", "")
    assert container_probe.GPU_CHECKS["nvidia-container-cli"]().works


def found_by(folder: Path, image: str, *engines: str) -> dict[str, Any]:
    container = {"engines": list(engines), "image": image, "mounts": [], "options": []}
    return look(container, str(folder / "question.json"))


def test_the_first_engine_that_has_the_image_is_used(program: Program, tmp_path: Path) -> None:
    found = found_by(tmp_path, "x:1", "podman", "docker", "enroot")
    assert found["code"] == "container-engine-missing"
    assert all(engine in found["error"] for engine in ("podman", "docker", "enroot"))
    program("podman", "[ $1 = info ]")
    # its default is a folder that only a login session has
    program("enroot", '[ -n "$ENROOT_RUNTIME_PATH" ] || exit 1; [ $1 = list ] && echo x:1; exit 0')
    found = found_by(tmp_path, "x:1", "podman", "docker", "enroot")
    assert (found["engine"], found["image"], found["code"]) == ("enroot", ["x:1"], None)
    found = found_by(tmp_path, "y:1", "podman", "enroot")
    assert (found["engine"], found["code"]) == ("podman", "container-image-missing")


def test_images_that_are_files_are_compared_by_their_ends(program: Program, tmp_path: Path) -> None:
    program("apptainer", "")
    ids = []
    middle = b"m" * 3 * container_probe.SAMPLE
    for name, content in (
        ("a", b"1" + middle),
        ("b", b"1" + middle),
        ("c", b"2" + middle),
        ("d", b"1" + middle + b"m"),
    ):
        path = tmp_path / f"{name}.sif"
        path.write_bytes(content)
        (identity,) = found_by(tmp_path, str(path), "apptainer")["image"]
        ids.append(identity)
    assert ids[0] == ids[1] and len(set(ids)) == 3
    found = found_by(tmp_path, str(tmp_path / "e.sif"), "apptainer")
    assert (found["code"], found["error"]) == ("container-image-missing", f"{tmp_path}/e.sif does not exist")
