"""What broke on a host since an earlier measurement, with a real library in the place of NVML and real disks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fake_nvml
import pytest
from fake_nvml import uuid

from orchestrator.node.host import health

ROOT = Path(__file__).parents[2]

Measure = Callable[..., dict[str, Any]]


@pytest.fixture(scope="module")
def nvml(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a library with NVML's functions."""
    return fake_nvml.build(tmp_path_factory.mktemp("nvml")).parent


@pytest.fixture
def measure(nvml: Path, tmp_path: Path) -> Measure:
    """Measure by the verb, as a recorder does, with these GPUs in the host."""

    def run(*gpus: str, answers: str = "", **request: Any) -> dict[str, Any]:
        (tmp_path / "gpus").write_text(answers or fake_nvml.answers(*gpus))
        env = {**os.environ, "LD_LIBRARY_PATH": str(nvml), "FAKE_NVML": str(tmp_path / "gpus")}
        argv = [sys.executable, "-m", "orchestrator.node", "health"]
        done = subprocess.run(
            argv,
            input=json.dumps({**REQUEST, **request}),
            env=env,
            cwd=ROOT,
            text=True,
            capture_output=True,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr
        answer: dict[str, Any] = json.loads(done.stdout)
        return answer

    return run


REQUEST: dict[str, Any] = {"gpu_ids": [0, 1], "disks": {"state": "/"}, "interfaces": ["lo"]}
CALM: dict[str, Any] = {
    "gpus": [],
    "xids": [],
    "disks": {"state": [1 << 40, None]},
    "links": {"lo": [True, -1]},
    "rdma": {"mlx5_0/1": "ACTIVE", "mlx5_1/1": "DOWN"},
    "clock": 1000.0,
    "hung": [],
}


def codes(before: dict[str, Any], now: dict[str, Any], **request: Any) -> list[str]:
    return [problem["code"] for problem in health.problems({**REQUEST, **request}, before, now)]


@pytest.mark.parametrize(
    ("gpus", "code", "names"),
    [
        (("0 fine", "3 fine"), [], []),
        (("0 fine", "3 lost"), ["gpu-lost"], ["GPU 1"]),
        (("0 fine",), ["gpu-lost"], ["GPU 1"]),
        (("0 fine", "5 fine"), ["gpu-ecc-error"], ["GPU 1", "2 "]),
        (("0 pending", "3 fine"), ["gpu-ecc-error"], ["GPU 0", "pending"]),
        (("0 pending", "4 fine"), ["gpu-ecc-error"] * 2, ["GPU 0", "GPU 1"]),
    ],
)
def test_a_gpu_that_is_worse_than_before_is_named(
    measure: Measure, gpus: tuple[str, ...], code: list[str], names: list[str]
) -> None:
    before, now = measure("0 fine", "3 fine"), measure(*gpus)
    assert before["gpus"][1] == [uuid(1), False, 3, None]
    found = health.problems(REQUEST, before, now)
    assert [problem["code"] for problem in found] == code
    assert all(name in " ".join(problem["text"] for problem in found) for name in names)


def test_gpus_that_the_run_does_not_use_do_not_count(measure: Measure) -> None:
    before, now = measure("0 fine", "0 fine"), measure("0 fine", "0 lost")
    assert codes(before, now, gpu_ids=[0]) == []
    assert measure("0 fine", gpu_ids=[])["gpus"] == []


def test_a_gpu_that_is_gone_is_not_mistaken_for_the_one_that_took_its_number(measure: Measure) -> None:
    before = measure("0 fine", "0 fine")
    now = measure(answers=f"{uuid(1)} 0 fine\n")
    (problem,) = health.problems(REQUEST, before, now)
    assert problem["code"] == "gpu-lost" and uuid(0) in problem["text"]


def test_a_driver_that_hangs_is_a_problem_of_its_own_and_hides_no_other(measure: Measure) -> None:
    before = measure("0 fine", "0 fine")
    now = measure(answers="hang\n")
    assert now["hung"] == ["gpus"] and now["disks"]["state"]
    full = {**now, "disks": {"state": [0, None]}}
    assert codes(before, full) == ["gpu-lost", "disk-full"]


def test_a_host_without_a_driver_has_no_problem() -> None:
    now = health.measure({**REQUEST, "gpu_ids": [0]})
    assert codes(now, now) == []


def test_a_full_disk_and_one_without_room_for_files(tmp_path: Path) -> None:
    limit = health.SPACE_LEAST
    for space, code in (([limit, None], []), ([limit - 1, None], ["disk-full"]), ([limit, 3], ["disk-full"])):
        assert codes(CALM, {**CALM, "disks": {"state": space}}) == code
    little = {**CALM, "disks": {"state": [limit - 1, None]}}
    assert codes(little, little) == []  # the run began with it
    measured = health.measure({**REQUEST, "disks": {"output": str(tmp_path / "not" / "made")}})
    assert measured["disks"]["output"][0] > 0


def test_links_that_were_up_and_are_down() -> None:
    assert codes(CALM, {**CALM, "links": {"lo": [False, -1]}}) == ["gloo-ifname-no-match"]
    assert codes(CALM, {**CALM, "links": {}}) == ["gloo-ifname-no-match"]
    assert codes({**CALM, "links": {"lo": [False, -1]}}, {**CALM, "links": {"lo": [False, -1]}}) == []
    assert codes(CALM, {**CALM, "rdma": {"mlx5_0/1": "DOWN", "mlx5_1/1": "DOWN"}}) == ["nccl-ib-link-fault"]
    assert codes(CALM, {**CALM, "rdma": {}}) == ["nccl-ib-link-fault"]


def test_a_clock_is_compared_with_that_of_the_head() -> None:
    for clock, code in ((1050.0, []), (1061.0, ["clock-skew"]), (939.0, ["clock-skew"])):
        assert codes(CALM, {**CALM, "clock": clock}, head_clock=1000.0) == code
        assert codes(CALM, {**CALM, "clock": clock}) == []


def test_faults_in_the_log_of_the_kernel_are_new_ones(tmp_path: Path) -> None:
    log = tmp_path / "kmsg"
    line = "3,1,2,-;NVRM: Xid (PCI:0000:02:00): {}, pid=811, name=python, Ch 00000008\n"
    log.write_text(line.format(119) + "6,2,3,-;eth0: link up\n" + line.format(13))
    assert health.xids(str(log)) == [["0000:02:00", 119], ["0000:02:00", 13]]
    assert health.xids(str(tmp_path / "none")) == []
    before = {**CALM, "xids": health.xids(str(log))}
    assert codes(before, before) == []
    for number, code in ((119, "gpu-xid-fault"), (79, "gpu-lost"), (94, "gpu-ecc-error")):
        assert codes(before, {**CALM, "xids": [*before["xids"], ["0000:02:00", number]]}) == [code]
    assert codes(before, {**CALM, "xids": [*before["xids"], ["0000:02:00", 13]]}) == []  # a fault of the program


def test_a_disk_that_does_not_answer_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    now = {**CALM, "hung": ["disk state"], "disks": {"state": None}}
    (problem,) = health.problems({**REQUEST, "disks": {"state": "/nfs/home"}}, CALM, now)
    assert problem["code"] == "filesystem-hung" and "/nfs/home" in problem["text"]
