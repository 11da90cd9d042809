"""The bundled trainer under the real torchrun: real gloo on the loopback device, nothing of the orchestrator."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from subprocess import PIPE

import pytest
from golden_files import assert_message

torch = pytest.importorskip("torch", reason="torch is not installed: pip install 'ddp-orch[trainer]'")

from .trainer_ranks import ROOT, ended, environment, outputs_of, started, values  # noqa: E402


def torchrun(ranks: int, *what: str) -> list[str]:
    return [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}", *what]


def run(command: list[str], cwd: Path, **extra: str) -> subprocess.CompletedProcess[str]:
    process = subprocess.Popen(command, cwd=cwd, env=environment(**extra), text=True, stdout=PIPE, stderr=PIPE)
    with ended(process):
        output, errors = process.communicate()
    return subprocess.CompletedProcess(command, process.returncode, output, errors)


def newest(folder: Path) -> dict[str, object]:
    state: dict[str, object] = torch.load(max(folder.glob("step-*.pt")), weights_only=True)
    return state


def assert_same_weights(one: Path, other: Path) -> None:
    first, second = newest(one), newest(other)
    assert first["step"] == second["step"]
    for part in ("model", "optimizer"):
        left, right = dict(tensors(first[part])), dict(tensors(second[part]))
        assert left.keys() == right.keys() and left
        assert all(torch.equal(left[name], right[name]) for name in left)


def tensors(tree: object, name: str = "") -> Iterator[tuple[str, object]]:
    if isinstance(tree, torch.Tensor):
        yield name, tree
    elif isinstance(tree, Mapping):
        for key, value in tree.items():
            yield from tensors(value, f"{name}.{key}")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The default training with two ranks: its folder, its output."""
    folder = tmp_path_factory.mktemp("finished")
    done = run(torchrun(2, "-m", "trainer"), cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder / "out", done.stdout


def test_two_ranks_learn_the_digits(finished: tuple[Path, str]) -> None:
    _, output = finished
    assert float(values(output, "done")["test_acc"]) >= 0.97


def test_every_rank_says_once_who_it_is(finished: tuple[Path, str]) -> None:
    _, output = finished
    starts = [line for line in output.splitlines() if line.startswith("start ")]
    assert sorted(re.findall(r"rank:(\d) world_size:(\d) ", "\n".join(starts))) == [("0", "2"), ("1", "2")]
    assert all(f"host:{socket.gethostname()} " in line and f"torch:{torch.__version__} " in line for line in starts)


def test_every_step_line_has_the_documented_form(finished: tuple[Path, str]) -> None:
    _, output = finished
    keys = "data forward backward comm optimizer"
    form = (
        r"epoch:\d+ step:\d+ loss:\d+\.\d{4} acc:[01]\.\d{4} samples/s:\d+ step_time:\d+\.\d{4} lr:\d\.\d{6} "
        r"grad_norm:\d+\.\d{4} " + "".join(rf"{key}:\d+\.\d{{4}} " for key in keys.split())
        + r"slowest_rank:[01] slowest_time:\d+\.\d{4}"
    )  # fmt: skip
    lines = [line for line in output.splitlines() if " loss:" in line]
    assert len(lines) == 17 and all(re.fullmatch(form, line) for line in lines)


def test_a_single_process_needs_no_torchrun_and_evaluates_as_two_uneven_ranks_did(
    finished: tuple[Path, str], tmp_path: Path
) -> None:
    folder, before = finished
    shutil.copytree(folder, tmp_path / "out")
    again = run([sys.executable, "-m", "trainer"], cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    assert "resumed epoch:15 step:165 " in again.stdout
    two, one = values(before, "done"), values(again.stdout, "done")
    # 359 test images in parts of 180 and 179: one counted twice or left out would show.
    assert (one["test_acc"], one["test_loss"]) == (two["test_acc"], two["test_loss"])


@pytest.mark.full
def test_a_run_stopped_by_sigterm_and_resumed_ends_bit_for_bit_like_an_undisturbed_one(tmp_path: Path) -> None:
    # Three ranks: with two, the order in which gradients are added up does not matter.
    command = torchrun(3, "-m", "trainer", "--epochs=8", "--log-every=1")
    undisturbed = run([*command, "--out=undisturbed"], cwd=tmp_path)
    assert undisturbed.returncode == 0, undisturbed.stderr

    stopped = subprocess.Popen([*command, "--out=stopped"], cwd=tmp_path, env=environment(), stdout=PIPE, text=True)
    output = ""
    with ended(stopped):
        assert stopped.stdout is not None
        for line in stopped.stdout:
            output += line
            if "step:15 " in line:  # in the middle of the second epoch
                os.kill(int(values(output, "start rank:2 ")["pid"]), signal.SIGTERM)  # to one rank: all have to stop
        stopped.wait()
    assert stopped.returncode == 0
    step = int(values(output, "stopped")["step"])
    assert 15 < step < 88 and newest(tmp_path / "stopped")["step"] == step

    resumed = run([*command, "--out=stopped"], cwd=tmp_path)
    assert f" step:{step} " in next(line for line in resumed.stdout.splitlines() if line.startswith("resumed"))
    assert values(resumed.stdout, "done")["test_loss"] == values(undisturbed.stdout, "done")["test_loss"]
    assert_same_weights(tmp_path / "undisturbed", tmp_path / "stopped")


@pytest.mark.full
def test_snapshots_in_memory_lose_few_steps_of_killed_ranks_and_change_no_bit(
    finished: tuple[Path, str], tmp_path: Path
) -> None:
    memory = tmp_path / "memory"
    memory.mkdir()
    flags = ("-m", "trainer", "--log-every=1", "--save-every=1000", "--save-memory-every=5", "--out=out")
    with started(2, tmp_path, *flags, DDP_ORCH_MEMORY_DIR=str(memory)) as ranks:
        assert ranks[0].stdout is not None
        for line in ranks[0].stdout:
            if re.search(r" step:(22|23|24|25|26|27) loss:", line) and list(memory.glob("step-000000020-*")):
                ranks[1].kill()
                break
        outputs_of(ranks)
    saved = sorted(memory.glob("step-*"))
    with started(2, tmp_path, *flags, DDP_ORCH_MEMORY_DIR=str(memory)) as ranks:
        outputs = outputs_of(ranks)
    assert [rank.returncode for rank in ranks] == [0, 0], outputs
    assert len(saved) == 2 and values(outputs[0], "resumed")["from"] == str(memory)
    assert int(values(outputs[0], "resumed")["step"]) >= 20
    assert_same_weights(finished[0], tmp_path / "out")


HEAVY = """
import torch
from torch import nn

class Heavy(nn.Module):
    # a snapshot of it takes many times as long as a step
    def __init__(self, classes):
        super().__init__()
        self.layer, self.calls = nn.Linear(192, classes), 0
        self.ballast = nn.Parameter(torch.zeros(40_000_000), requires_grad=False)

    def forward(self, images):
        self.calls += self.training
        if self.calls == 5:  # that is step 4, as the first call is for DDP's layout
            BAD
        return self.layer(images.flatten(1))
"""


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        ("images = images * torch.nan", "not finite at step:4 "),
        pytest.param("raise ValueError('a bad image')", "a bad image", marks=pytest.mark.full),
    ],
)
def test_a_snapshot_that_is_being_written_is_kept_when_the_next_step_fails(
    tmp_path: Path, bad: str, reason: str
) -> None:
    (tmp_path / "heavy.py").write_text(HEAVY.replace("BAD", bad))
    flags = ("--model=heavy:Heavy", "--max-steps=9", "--log-every=1", "--save-every=3", "--batch-size=16")
    failed = run(torchrun(2, "-m", "trainer", *flags), cwd=tmp_path, PYTHONPATH=f"{tmp_path}:{ROOT}")
    assert failed.returncode == 1 and reason in failed.stderr, failed.stderr
    assert [path.name[:15] for path in (tmp_path / "out").iterdir() if path.suffix != ".jsonl"] == ["step-000000003-"]


def test_memory_that_nobody_has_made_is_said_in_one_line(tmp_path: Path) -> None:
    done = run([sys.executable, "-m", "trainer", "--save-memory-every=5"], cwd=tmp_path)
    assert done.returncode == 2 and "run.memory_limit" in done.stderr and len(done.stderr.splitlines()) == 1


def test_hosts_without_a_shared_disk_go_on_from_the_newest_undamaged_snapshot_that_any_of_them_has(
    finished: tuple[Path, str], tmp_path: Path
) -> None:
    for host in ("empty", "damaged", "new"):
        (tmp_path / host).mkdir()
    for path in finished[0].glob("step-*"):
        shutil.copy(path, tmp_path / "damaged")
    before_last, last = sorted((tmp_path / "damaged").iterdir())
    os.truncate(last, last.stat().st_size // 2)
    size = before_last.stat().st_size

    with started(3, tmp_path, "-m", "trainer", out=("empty", "damaged", "new")) as ranks:
        outputs = outputs_of(ranks)
    assert [process.returncode for process in ranks] == [0, 0, 0]
    assert "resumed epoch:14 step:154 " in outputs[0]
    assert re.search(
        rf"^DAMAGED .*\b{socket.gethostname()}\b.* damaged/{last.name}\.damaged$", outputs[1], re.MULTILINE
    )
    assert (tmp_path / "damaged" / f"{last.name}.damaged").exists()
    assert {(tmp_path / host / before_last.name).stat().st_size for host in ("empty", "new")} == {size}
    for host in ("damaged", "new"):
        assert_same_weights(tmp_path / "empty", tmp_path / host)
    assert newest(tmp_path / "empty")["step"] == 165


COPY = """
import datetime, os, sys
from pathlib import Path
from trainer import dist, transfer
from trainer.place import find

dist.FIRST_STEP_TIMEOUT = datetime.timedelta(seconds=20)
with dist.joined("cpu", find(os.environ)) as world:
    transfer.copy_to_all_nodes(Path(f"host-{world.rank}") / "snapshot", world)
"""


@pytest.mark.parametrize("unreadable", ["a folder", "shorter"])
def test_a_snapshot_that_its_host_cannot_read_ends_all_hosts_and_is_published_on_none(
    tmp_path: Path, unreadable: str
) -> None:
    for rank in range(3):
        (tmp_path / f"host-{rank}").mkdir()
    snapshot = tmp_path / "host-1/snapshot"
    if unreadable == "a folder":
        snapshot.mkdir()
    else:
        snapshot.symlink_to("/sys/kernel/uevent_seqnum")  # sysfs says 4096 bytes, and has a few
    with started(3, tmp_path, "-c", COPY) as ranks:
        outputs = outputs_of(ranks)
    assert [process.returncode for process in ranks] == [2, 2, 2], "\n".join(outputs)
    assert ["trainer: " in output for output in outputs] == [False, True, False]
    assert not [*(tmp_path / "host-0").iterdir(), *(tmp_path / "host-2").iterdir()]


def test_missing_torchvision_is_said_in_one_line_by_one_rank(tmp_path: Path) -> None:
    broken = tmp_path / "torchvision"
    broken.mkdir()
    (broken / "__init__.py").write_text("raise ImportError('no torchvision\\nand more')")
    failed = run(torchrun(2, "-m", "trainer", "--model=resnet18"), cwd=tmp_path, PYTHONPATH=f"{tmp_path}:{ROOT}")
    assert failed.returncode == 1  # torchrun's own
    (said,) = [line for line in failed.stderr.splitlines() if line.startswith("trainer: ")]
    assert "--model resnet18 needs torchvision" in said and "(no torchvision)" in said
    assert re.search(r"exitcode\s*: 2 ", failed.stderr), failed.stderr


def test_a_wrong_flag_is_said_in_one_line_by_one_rank(tmp_path: Path) -> None:
    failed = run(torchrun(2, "-m", "trainer", "--batchsize=3"), cwd=tmp_path)
    (said,) = [line for line in failed.stderr.splitlines() if line.startswith("trainer: ")]
    assert_message("trainer-unknown-flag", said)
