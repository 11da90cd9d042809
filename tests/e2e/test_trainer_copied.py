"""trainer/train.py and trainer/dist.py, copied into a folder without anything else of this project."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from subprocess import PIPE, STDOUT

import pytest

pytest.importorskip("torch", reason="torch is not installed: pip install 'ddp-orch[trainer]'")

from .trainer_ranks import ROOT, ended, environment, losses, outputs_of, started, values

FLAGS = ("--max-steps=9", "--save-every=4", "--log-every=1", "--eval-every=6", "--batch-size=30", "--keep=3")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Importing the project from here fails."""
    for name in ("train.py", "dist.py"):
        shutil.copy(ROOT / "trainer" / name, tmp_path)
    for package in ("trainer", "orchestrator"):
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").write_text(f"raise AssertionError('imports {package}')")
    return tmp_path


@pytest.fixture
def random_folder(folder: Path) -> Path:
    """The same, and a step uses random numbers of all kinds."""
    text = (folder / "train.py").read_text()
    for before, after in {
        "import torch\n": "import numpy as np\nimport torch\n",
        "nn.ReLU(), nn.Linear(64, 2)": "nn.ReLU(), nn.Dropout(0.3), nn.Linear(64, 2)",
        "0.01 * torch.randn(2)": "0.1 * torch.randn(2) + 0.3 * random.random() + 0.3 * np.random.rand()",
    }.items():
        assert text.count(before) == 1
        text = text.replace(before, after)
    (folder / "train.py").write_text(text)
    return folder


def run(folder: Path, ranks: int, *flags: str, out: tuple[str, ...]) -> str:
    """What rank 0 printed. Each rank is a host of its own with a folder of its own."""
    with started(ranks, folder, "train.py", *FLAGS, *flags, out=out, PYTHONPATH=str(folder)) as processes:
        outputs = outputs_of(processes)
    assert [process.returncode for process in processes] == [0] * ranks, "\n".join(outputs)
    return outputs[0]


def test_the_two_files_train_and_resume_exactly_on_hosts_without_a_shared_disk(folder: Path) -> None:
    undisturbed = run(folder, 2, "--workers=1", out=("a", "b"))
    assert len(losses(undisturbed)) == 9 and losses(undisturbed)[-1] < losses(undisturbed)[0]
    assert [path.name for path in sorted((folder / "b").iterdir())] == [
        "step-000000004.pt", "step-000000008.pt", "step-000000009.pt",
    ]  # fmt: skip

    # the first host is new: it gets the snapshot of the other
    (folder / "old").mkdir()
    (folder / "b/step-000000004.pt").rename(folder / "old/step-000000004.pt")
    resumed = run(folder, 2, "--grad-accum-steps=1", out=("new", "old"))
    assert values(resumed, "resumed")["step"] == "4"
    assert losses(resumed) == losses(undisturbed)[4:]
    assert values(resumed, "done") == values(undisturbed, "done")

    # and with another number of ranks and of micro-batches, but for rounding
    (folder / "one").mkdir()
    shutil.copy(folder / "a/step-000000004.pt", folder / "one")
    alone = run(folder, 1, "--grad-accum-steps=3", out=("one",))
    assert losses(alone) == pytest.approx(losses(undisturbed)[4:], abs=2e-5)


@pytest.mark.full
@pytest.mark.parametrize("workers", ["0", "1"])
def test_random_numbers_are_the_same_after_a_resume(random_folder: Path, workers: str) -> None:
    """Of augmentation by random, torch and NumPy, and of dropout, which has other ones on each rank."""
    flags = (f"--workers={workers}", "--grad-accum-steps=2")
    undisturbed = run(random_folder, 2, *flags, out=("a", "b"))
    (random_folder / "c").mkdir()
    shutil.copy(random_folder / "a/step-000000004.pt", random_folder / "c")
    resumed = run(random_folder, 2, *flags, out=("c", "c"))
    assert values(resumed, "resumed")["step"] == "4"
    assert losses(resumed) == losses(undisturbed)[4:]
    assert losses(run(random_folder, 2, "--seed=1", *flags, out=("d", "d"))) != losses(undisturbed)


@pytest.mark.full
def test_samples_do_not_depend_on_the_process_that_loads_them(random_folder: Path) -> None:
    one, other = (run(random_folder, 2, f"--workers={workers}", out=(workers, workers)) for workers in ("0", "2"))
    assert losses(one) == losses(other)


@pytest.mark.full
def test_signals_save_and_stop_a_run_whose_samples_are_loaded_by_workers(folder: Path) -> None:
    """torchrun sends SIGTERM to the process groups of its ranks, and so to the workers of the loader too."""
    flags = ("--max-steps=400", "--save-every=400", "--eval-every=400", "--workers=1")
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
    argv = [sys.executable, *torchrun, "train.py", *FLAGS, *flags, "--out=stopped"]
    variables = environment(PYTHONPATH=str(folder))
    process = subprocess.Popen(argv, cwd=folder, env=variables, stdout=PIPE, stderr=STDOUT, text=True)
    output = ""
    with ended(process):
        assert process.stdout
        for line in process.stdout:
            output += line
            if " step:5 " in line:
                os.killpg(int(values(output, "start rank:1 ")["pid"]), signal.SIGUSR1)
            elif line.startswith("saved "):
                process.terminate()
    stopped = int(values(output, "stopped")["step"])
    assert 5 < int(values(output, "saved")["step"]) <= stopped < 400, output
    assert (folder / "stopped" / f"step-{stopped:09d}.pt").exists()


@pytest.mark.parametrize("package", ["trainer", "mine"])
def test_the_two_files_can_be_part_of_a_package(folder: Path, package: str) -> None:
    (folder / package).mkdir(exist_ok=True)
    (folder / package / "__init__.py").write_text("")
    for name in ("train.py", "dist.py"):
        (folder / name).rename(folder / package / name)
    variables = environment(PYTHONPATH=str(folder))
    argv = [sys.executable, "-m", f"{package}.train", "--max-steps=2"]
    done = subprocess.run(argv, cwd=folder, env=variables, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and values(done.stdout, "done")["step"] == "2", done.stderr


def test_tasks_of_mpirun_and_srun_do_not_train_alone(folder: Path) -> None:
    """Each would be a world of one, and all would write the same files."""
    code = """
import dist
for rank, size in ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"), ("PMI_RANK", "PMI_SIZE"), \\
        ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"):
    assert dist.find({rank: "0", size: "1"}).launcher == "none"
    assert dist.find({rank: "0", size: "2", "RANK": "1", "WORLD_SIZE": "2"}).launcher == "torchrun"
    for number in "01":
        try:
            dist.find({rank: number, size: "2"})
        except SystemExit as end:
            print(size, number, "exit", end.code, flush=True)
"""
    argv = [sys.executable, "-c", code]
    variables = environment(PYTHONPATH=str(folder))
    done = subprocess.run(argv, cwd=folder, env=variables, capture_output=True, text=True, timeout=120)
    sizes = ["OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS"]
    assert done.stdout.splitlines() == [f"{size} {rank} exit 2" for size in sizes for rank in "01"], done.stderr
    assert re.findall(r"(?m)^trainer: (\w+) is 2\b", done.stderr) == sizes  # the first of the tasks says it


def test_train_py_is_short() -> None:
    """So that it is read from top to bottom before it is changed."""
    assert len((ROOT / "trainer/train.py").read_text().splitlines()) <= 350


@pytest.mark.lab  # it mounts a file system
def test_a_full_disk_ends_the_run_and_is_not_kept_full(folder: Path) -> None:
    disk = folder / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", disk], check=True)
    try:
        with started(1, folder, "train.py", *FLAGS, out=("disk",), PYTHONPATH=str(folder)) as processes:
            (output,) = outputs_of(processes)
        assert processes[0].returncode == 1
        assert re.search(r"(?m)\bOSError: .*No space left on device$", output) and "RuntimeError" not in output, output
        assert [path.name for path in disk.iterdir()] == ["step-000000004.pt"]  # the one that fitted
    finally:
        subprocess.run(["umount", disk], check=True)


def test_an_error_ends_the_rank_though_workers_load_samples(folder: Path) -> None:
    text = (folder / "train.py").read_text()
    before = "point = self.points[index]\n"
    assert text.count(before) == 1
    (folder / "train.py").write_text(text.replace(before, "point = self.points[index if index != 77 else 1 << 30]\n"))
    with started(1, folder, "train.py", *FLAGS, "--max-steps=300", "--workers=2", PYTHONPATH=str(folder)) as processes:
        (output,) = outputs_of(processes)
    assert processes[0].returncode == 1, output
    assert re.search(r"\bIndexError: .*1073741824", output), output


def test_a_loss_that_is_not_finite_ends_the_run_at_the_next_line(folder: Path) -> None:
    text = (folder / "train.py").read_text()
    (folder / "train.py").write_text(text.replace("point + 0.01", "point + (0.01 if index % 7 else math.nan)"))
    flags = (*FLAGS, "--save-every=9", "--log-every=2")
    with started(2, folder, "train.py", *flags, out=("a", "b"), PYTHONPATH=str(folder)) as processes:
        outputs = outputs_of(processes)
    assert [process.returncode for process in processes] == [1, 1], "\n".join(outputs)
    assert len(losses(outputs[0])) == 0 and re.search(r"(?m)^trainer: .*not finite at step:2\b", outputs[0])


@pytest.mark.parametrize("flags", [("--precision=fp8",), ("--device=gpu",)])
def test_a_wrong_value_is_refused_with_one_line_that_names_its_flag(folder: Path, flags: tuple[str, ...]) -> None:
    with started(1, folder, "train.py", *flags, PYTHONPATH=str(folder)) as processes:
        (output,) = outputs_of(processes)
    assert processes[0].returncode == 2 and "Traceback" not in output, output
    assert flags[0].partition("=")[0] in output.splitlines()[-1]


def test_help_names_each_flag_with_its_meaning_and_default(folder: Path) -> None:
    with started(1, folder, "train.py", "--help", PYTHONPATH=str(folder)) as processes:
        (output,) = outputs_of(processes)
    text = " ".join(output.split())
    assert "steps between snapshots; 0: once per epoch (default: 0)" in text
    assert "(default: fp32)" in text and "{fp32,tf32,bf16}" in text


def test_a_wrong_flag_ends_all_ranks_with_one_line(folder: Path) -> None:
    flags = ("train.py", "--batch-size=1", "--device=cpu")
    with started(2, folder, *flags, out=("a", "b"), PYTHONPATH=str(folder)) as processes:
        outputs = outputs_of(processes)
    assert [process.returncode for process in processes] == [2, 2], "\n".join(outputs)
    assert len(re.findall(r"(?m)^trainer: .*--batch-size 1\b", "\n".join(outputs))) == 1


@pytest.mark.parametrize(("exit_code", "expected"), [("0", 0), ("7", 7), ("'no room'", 1), ("", 0)])
def test_a_script_that_exits_by_itself_has_its_exit_code(folder: Path, exit_code: str, expected: int) -> None:
    text = (folder / "train.py").read_text()
    (folder / "train.py").write_text(
        text.replace("    config = parse(", f"    sys.exit({exit_code})\n    config = parse(")
    )
    with started(1, folder, "train.py", PYTHONPATH=str(folder)) as processes:
        (output,) = outputs_of(processes)
    assert processes[0].returncode == expected and ("no room" in output) == ("room" in exit_code), output
