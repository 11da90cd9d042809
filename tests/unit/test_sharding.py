"""A script that wraps its model for DDP, but gives each rank all of the data: recognised, if that is sure."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.inventory import model
from orchestrator.plan import entrypoint, sharding

SCRIPT = """
import os, torch, torch.nn as nn, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader
from data import Images
def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    device = torch.device(f"cuda:{local_rank}")
    data = Images("train")
    loader = DataLoader(data, batch_size=32, shuffle=True)
    model = DDP(nn.Linear(10, 1).to(local_rank), device_ids=[local_rank])
    for epoch in range(3):
        for a, b in loader:
            model(a)
        if rank == 0:
            print(f"rank {rank} epoch {epoch}")
            torch.save(model.module.state_dict(), "checkpoint.pt")
    dist.destroy_process_group()
if __name__ == "__main__":
    main()
"""
DATA = "class Images: pass"


def gives_all(folder: Path, text: str, data: str = DATA) -> bool:
    (folder / "train.py").write_text(text)
    (folder / "data.py").write_text(data)
    return sharding.gives_all_data(folder / "train.py", folder)


def test_a_loader_of_all_data_is_recognised(tmp_path: Path) -> None:
    assert gives_all(tmp_path, SCRIPT)


@pytest.mark.parametrize(
    "line",
    [
        "data = Images('train')[rank::2]",
        "data = Images(f'part-{rank}')",
        "data = Images(rank)",
        "data = Images('train'); torch.manual_seed(1 + rank)",
        "me = dist.get_rank(); data = Images(me)",
        "data = [one for number, one in enumerate(Images('train')) if number % 2 == rank]",
        "data = Images('a') if rank == 0 else Images('b')",
        "data = Images(os.environ['RANK'])",
        "data = Images(torch.randn(9))",
        "data = datasets.distributed.split_dataset_by_node(Images('train'))",
        "import datasets; data = datasets.load()",
    ],
)
def test_a_script_that_may_choose_its_data_is_left_alone(tmp_path: Path, line: str) -> None:
    assert not gives_all(tmp_path, SCRIPT.replace('data = Images("train")', line))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("shuffle=True", "sampler=DistributedSampler(data)"),
        ("DataLoader(data,", "batches(data,"),
        ("DistributedDataParallel as DDP", "DataParallel as DDP"),
        ("import os,", "import lightning, os,"),
        ("        if rank == 0:", "        if rank == 0:\n            data = None\n        else:"),
    ],
)
def test_other_scripts_are_left_alone(tmp_path: Path, old: str, new: str) -> None:
    assert not gives_all(tmp_path, SCRIPT.replace(old, new))


@pytest.mark.parametrize("data", ["class Images(torch.utils.data.IterableDataset): pass", "x = os.environ['RANK'] * 2"])
def test_a_module_of_the_script_may_choose_too(tmp_path: Path, data: str) -> None:
    assert not gives_all(tmp_path, SCRIPT, data)


def test_up_warns_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert gives_all(tmp_path, SCRIPT)
    for hosts, is_told in (("[a, b]", True), ("[{name: a, nproc_per_node: 1}]", False)):
        snapshot = entrypoint.find(model.parse(f"hosts: {hosts}\n", "i"), ("train.py",))[1]
        assert snapshot is not None
        assert any("DistributedSampler" in warning for warning in snapshot.warnings) == is_told
