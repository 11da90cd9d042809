"""The trainer's parts that need neither torchrun nor a second process."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: pip install 'ddp-orch[trainer]'")

from trainer import snapshot  # noqa: E402
from trainer.config import Config, ConfigError, parse  # noqa: E402
from trainer.data import Split, load  # noqa: E402
from trainer.models import build  # noqa: E402
from trainer.train import evaluate, learning_rate  # noqa: E402
from trainer.world import World, joined  # noqa: E402

CPU = torch.device("cpu")


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    with joined("cpu") as alone:
        yield alone


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--epochs=many"], "argument --epochs: invalid int value: 'many'"),
        (["--epochs=-1"], "--epochs must be at least 0, not -1"),
        (["--lr=nan"], "--lr must be at least 0, not nan"),
        (["--data=imagenet"], "--data is one of digits, synthetic, not 'imagenet'"),
        (["--device=tpu"], "--device is one of auto, cuda, cpu, not 'tpu'"),
        (["--seed=2147483648"], "--seed must be below 2^31, not 2147483648"),
        (["--epoch=3"], "unrecognized arguments: --epoch=3"),
    ],
)
def test_a_wrong_flag_is_refused_in_one_line(argv: list[str], said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse(argv)
    assert str(refused.value).startswith(said) and "\n" not in str(refused.value)


def test_outputs_go_where_the_flag_says_else_where_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DDP_ORCH_OUTPUT_DIR", raising=False)
    assert parse([]).out == "out"
    monkeypatch.setenv("DDP_ORCH_OUTPUT_DIR", "/data/run")
    assert parse([]).out == "/data/run"
    assert parse(["--out=here"]).out == "here"


def test_flags_are_checked_before_torch_is_imported() -> None:
    code = "import sys, trainer.__main__; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[2], timeout=30).returncode == 0


def test_digits_are_all_there_and_never_in_both_parts() -> None:
    data = load(Config(), CPU)
    assert (data.train.size, data.test.size, data.classes, data.channels) == (1438, 359, 10, 1)
    everything = torch.cat([data.train.images, data.test.images]).flatten(1)
    assert len(everything.unique(dim=0)) == 1797
    assert abs(float(everything.mean())) < 0.01 and abs(float(everything.std()) - 1) < 0.01


def test_the_split_of_the_digits_does_not_depend_on_the_seed() -> None:
    assert torch.equal(load(Config(seed=1), CPU).test.images, load(Config(seed=2), CPU).test.images)


def test_synthetic_images_have_the_size_asked_for_and_repeat_beyond_the_pool() -> None:
    data = load(Config(data="synthetic", image_size=512, samples=100, classes=7), CPU)
    made = len(data.train.images)
    assert data.train.images.shape == (made, 3, 512, 512) and made < data.train.size == 100
    images, labels = data.train.batch(torch.tensor([0, made]))
    assert torch.equal(images[0], images[1]) and labels.max() < 7


@pytest.mark.parametrize("size", [8, 9, 64])
def test_the_digits_model_takes_images_of_any_size(size: int) -> None:
    assert build("digits-cnn", 3, 10)(torch.zeros(2, 3, size, size)).shape == (2, 10)


def test_the_learning_rate_rises_then_falls_to_nearly_nothing() -> None:
    rates = [learning_rate(0.1, step, 100) for step in range(100)]
    top = rates.index(max(rates))
    assert rates[top] == 0.1 and top == 4
    assert rates[:5] == sorted(rates[:5]) and rates[5:] == sorted(rates[5:], reverse=True) and 0 < rates[-1] < 0.001


def test_a_snapshot_comes_back_as_it_was_and_only_the_newest_two_are_kept(world: World, tmp_path: Path) -> None:
    (tmp_path / ".gone-1.tmp").touch()
    assert snapshot.load_newest(tmp_path, world) is None
    for step in (5, 10, 15):
        snapshot.save(tmp_path, {"step": step, "model": {"weight": torch.full((3,), step)}}, world)
    state = snapshot.load_newest(tmp_path, world)
    assert state is not None and state["step"] == 15 and state["model"]["weight"].tolist() == [15, 15, 15]
    assert [path.name[:15] for path in sorted(tmp_path.iterdir())] == ["step-000000010-", "step-000000015-"]


@pytest.mark.parametrize("damage", ["cut short", "one bit", "empty"])
def test_a_damaged_newest_snapshot_is_not_used_and_said_loudly(
    world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str], damage: str
) -> None:
    for step in (5, 10):
        snapshot.save(tmp_path, {"step": step, "model": {"weight": torch.zeros(1000)}}, world)
    newest = max(tmp_path.iterdir())
    content = bytearray(newest.read_bytes())
    content[len(content) // 2] ^= 1
    newest.write_bytes({"cut short": content[:-1], "one bit": content, "empty": b""}[damage])
    state = snapshot.load_newest(tmp_path, world)
    assert state is not None and state["step"] == 5
    assert f"DAMAGED snapshot on {socket.gethostname()}" in capsys.readouterr().out
    assert max(tmp_path.iterdir()).name == newest.name + ".damaged"


def test_what_is_handed_round_in_chunks_arrives_whole(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainer.world.BROADCAST_CHUNK", 7)
    assert world.broadcast(bytes(range(100)), source=0) == bytes(range(100))


class Noting(torch.nn.Module):
    """Writes down which images it has seen; says class 0 of all of them."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[int] = []

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        self.seen.extend(images.tolist())
        return torch.tensor([[1.0, 0.0]]).expand(len(images), 2)


@pytest.mark.parametrize("ranks", [1, 2, 4, 5, 2000])
def test_evaluation_gives_every_image_to_exactly_one_rank(world: World, ranks: int) -> None:
    numbers = torch.arange(1797)
    model = Noting()
    for rank in range(min(ranks, 1797)):
        evaluate(model, Split(numbers, numbers % 2, 1797), 100, World(rank, rank, ranks, CPU))
    assert sorted(model.seen) == list(range(1797))


def test_evaluation_gives_the_mean_over_all_images(world: World) -> None:
    numbers = torch.arange(1797)
    loss, accuracy = evaluate(Noting(), Split(numbers, (numbers % 3 == 0).long(), 1797), 100, world)
    assert accuracy == 1198 / 1797
    assert loss == pytest.approx((1198 * 0.3132617 + 599 * 1.3132617) / 1797)
