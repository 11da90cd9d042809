"""Datasets of a user: `--data MODULE:FUNCTION`, and shards of tokens."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: pip install 'ddp-orch[trainer]'")

from trainer.config import Config, ConfigError  # noqa: E402
from trainer.datasets import load  # noqa: E402

CPU = torch.device("cpu")


class Noisy(torch.utils.data.Dataset):  # type: ignore[misc]
    """Sample i is i with noise from all three sources of random numbers that a user may take."""

    def __init__(self, classes: object = ("even", "odd")) -> None:
        self.classes = classes

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        import numpy

        noise = [random.random(), numpy.random.random(), torch.rand(1).item()]
        return torch.tensor([float(index), *noise]).view(1, 2, 2), index % 2


def datasets(config: Config) -> tuple[Noisy, Noisy]:
    return Noisy(), Noisy()


NAME = f"{__name__}:datasets"


@pytest.mark.parametrize("workers", [0, 2])
def test_a_sample_is_the_same_whoever_loads_it_and_whenever(workers: int) -> None:
    data = load(Config(data=NAME, workers=workers, seed=3), CPU)
    assert (data.train.size, data.classes, data.channels, data.targets) == (40, 2, 1, 1)
    reference = load(Config(data=NAME, workers=0, seed=3), CPU)
    steps = [(step, torch.tensor([3 * step, 39 - step])) for step in range(5)]
    for (step, samples), (images, labels) in zip(steps, data.train.batches(iter(steps)), strict=True):
        assert images[:, 0, 0, 0].tolist() == samples.tolist() and labels.tolist() == (samples % 2).tolist()
        (alone,) = reference.train.batches([(step, samples.flip(0))])
        assert torch.equal(alone.inputs.flip(0), images)
    noises = {
        tuple(images.flatten().tolist()) for images, _ in data.train.batches([(s, torch.tensor([7])) for s in (1, 2)])
    }
    assert len(noises) == 2


def test_loading_without_workers_leaves_the_random_numbers_of_the_training_alone() -> None:
    split = load(Config(data=NAME, workers=0), CPU).train
    torch.manual_seed(5)
    next(iter(split.batches([(0, torch.tensor([1]))])))
    drawn = torch.rand(3)
    torch.manual_seed(5)
    assert torch.equal(drawn, torch.rand(3))


def one_dataset(config: Config) -> object:
    return Noisy()


def without_classes(config: Config) -> object:
    return Noisy(None), Noisy(None)


def iterable(config: Config) -> object:
    return iter([1]), iter([2])


@pytest.mark.parametrize(
    ("function", "part"),
    [
        ("one_dataset", "one_dataset"),
        ("without_classes", "`classes` of Noisy"),
        ("iterable", "__len__"),
        ("missing", "missing"),
    ],
)
def test_data_that_cannot_be_used_is_refused_in_one_line(function: str, part: str) -> None:
    with pytest.raises(ConfigError) as refused:
        load(Config(data=f"{__name__}:{function}"), CPU)
    assert part in str(refused.value) and "\n" not in str(refused.value)


def test_a_module_that_does_not_exist_is_refused() -> None:
    assert "no_such_module" not in sys.modules
    with pytest.raises(ConfigError, match="no_such_module"):
        load(Config(data="no_such_module:f"), CPU)


def write_shard(path: Path, tokens: list[int], header: bool) -> None:
    content = torch.tensor(tokens, dtype=torch.int32).to(torch.int16)
    with path.open("wb") as file:
        if header:
            file.write(
                bytes(
                    torch.tensor([20240520, 1, len(tokens), *[0] * 253], dtype=torch.int32).view(torch.uint8).tolist()
                )
            )
        file.write(bytes(content.view(torch.uint8).tolist()))


@pytest.mark.parametrize("header", [False, True])
def test_shards_of_tokens_are_one_data_set_and_no_sample_crosses_them(tmp_path: Path, header: bool) -> None:
    write_shard(tmp_path / "fineweb_train_000001.bin", list(range(1000, 1600)), header)
    write_shard(tmp_path / "fineweb_train_000002.bin", [], header)
    write_shard(tmp_path / "fineweb_train_000003.bin", list(range(2000, 2700)), header)
    write_shard(tmp_path / "fineweb_val_000000.bin", list(range(600)), header)
    data = load(Config(data="tokens", data_path=str(tmp_path), context=100), CPU)
    assert (data.train.size, data.test.size) == (5 + 6, 5)
    ((inputs, targets),) = data.train.batches([(0, torch.tensor([10, 0, 4, 5]))])
    assert inputs[:, 0].tolist() == [2500, 1000, 1400, 2000] and inputs[:, -1].tolist() == [2599, 1099, 1499, 2099]
    assert torch.equal(inputs[:, 1:], targets[:, :-1])


def test_train_py_seeds_each_sample_without_the_seeds_of_all_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch.manual_seed would take most of a step: 0.2 ms a sample."""
    import numpy

    from trainer.train import Seeded

    class Random:
        def __getitem__(self, index: int) -> list[float]:
            return [index, random.random(), torch.rand(()).item(), float(numpy.random.rand())]

    def refuse(seed: int) -> None:
        raise AssertionError(f"seeds all devices with {seed}")

    monkeypatch.setattr(torch, "manual_seed", refuse)
    dataset = Seeded(Random())  # type: ignore[arg-type]
    first, other = dataset[7, 1], dataset[8, 1]
    assert dataset[7, 1] == first
    assert all(a != b for a, b in zip(first[1:], other[1:], strict=True))
