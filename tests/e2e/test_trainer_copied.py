"""trainer/train.py and trainer/dist.py, copied into a folder without anything else of this project."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="torch is not installed: pip install 'ddp-orch[trainer]'")

from .trainer_ranks import ROOT, losses, outputs_of, started, values

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


def test_a_wrong_flag_ends_all_ranks_with_one_line(folder: Path) -> None:
    flags = ("train.py", "--batch-size=1", "--device=cpu")
    with started(2, folder, *flags, out=("a", "b"), PYTHONPATH=str(folder)) as processes:
        outputs = outputs_of(processes)
    assert [process.returncode for process in processes] == [2, 2], "\n".join(outputs)
    assert len(re.findall(r"(?m)^trainer: .*--batch-size 1\b", "\n".join(outputs))) == 1
