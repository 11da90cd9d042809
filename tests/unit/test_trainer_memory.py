"""Host memory that the trainer takes, seen by the kernel."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="torch is not installed: pip install 'ddp-orch[trainer]'")

ROOT = Path(__file__).parents[2]
RESUME = r"""
import re, sys
from pathlib import Path

import torch
from torch import nn

from trainer import checkpoint
from trainer.config import Config
from trainer.dist import joined
from trainer.optim import make_optimizer
from trainer.place import Place



def peak():  # of this program: ru_maxrss is at least what the process that started it had at that time
    return 1024 * int(re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())[1])


CPU, PART = torch.device("cpu"), 4 * 4096 * 4096  # bytes of the weights
folder, config = Path(sys.argv[1]), Config(optimizer="adamw")


def make():
    model = nn.Linear(4096, 4096, bias=False)
    return model, make_optimizer(config, model, CPU)


with joined("cpu", Place(0, 0, 1, 1, "none")) as world:
    model, optimizer = make()
    if sys.argv[2] == "save":
        model(torch.ones(1, 4096)).sum().backward()
        optimizer.step()
        state = {"step": 1, "config": {}, **checkpoint.tensors_of(model, optimizer, None)}
        checkpoint.write(folder, state, keep=1)
    else:
        optimizer_of_another_model = make_optimizer(config, nn.Linear(1, 1), CPU)  # imports what an optimizer needs
        before = peak()
        state = checkpoint.load_newest(folder, world)
        checkpoint.restore(state, model, optimizer, None)
        print("parts", (peak() - before) / PART, optimizer.state[model.weight]["exp_avg"].shape[0])
"""


@pytest.mark.full
def test_resuming_has_only_a_part_of_the_snapshot_in_memory_twice(tmp_path: Path) -> None:
    """The file has three parts of one size: the weights, which have their memory already, and Adam's two moments."""
    for task in ("save", "resume"):
        argv = [sys.executable, "-c", RESUME, str(tmp_path), task]
        ended = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=240, check=False)
        assert ended.returncode == 0, ended.stderr
    name, parts, rows = ended.stdout.splitlines()[-1].split()
    # two parts for the moments, and the two of the file that they are read from; not the weights as well
    assert (name, rows) == ("parts", "4096") and 2 < float(parts) < 4.5
