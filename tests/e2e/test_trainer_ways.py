"""The ways to train: each flag that changes how, on real data with real ranks, against the plain way."""

from __future__ import annotations

import json
import re
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: pip install 'ddp-orch[trainer]'")

from .trainer_ranks import environment, losses, outputs_of, started, trainings, values  # noqa: E402

PLAIN = ("--epochs=3", "--log-every=2", "--track=none")

# flags, and how far from the plain way's loss any step's may be
WAYS = {
    "in pieces": (("--grad-accum-steps=3",), 1e-3),
    "channels last": (("--channels-last",), 1e-3),
    "small buckets": (("--bucket-mb=1",), 1e-3),
    "the same graph": (("--static-graph",), 1e-3),
    "fp16 sent": (("--compress=fp16",), 0.02),
    "bf16 sent": (("--compress=bf16",), 0.1),
    "PowerSGD": (("--compress=powersgd", "--compress-rank=2"), 0.4),
    "local SGD": (("--local-sgd=4",), 0.4),
    "bf16": (("--precision=bf16",), 0.1),
    "fp16": (("--precision=fp16",), 0.02),
}


OWN = ("--data=noisy:datasets", "--workers=1", "--batch-size=16", "--schedule=constant", "--ema=0.5", "--log-every=1")
# random numbers of the data and of the model, both drawn by the rank itself
AUGMENTED = ("--model=wide:dropping", "--augment", "--grad-accum-steps=2", "--schedule=constant", "--log-every=1")
OTHERS = {
    "plain": PLAIN,
    "adamw": (*PLAIN, "--optimizer=adamw", "--lr=0.003", "--grad-clip=1", "--label-smoothing=0.1", "--log-ranks=all"),
    "text": ("--model=gpt-tiny", "--data=text", "--data-path=text", "--context=32", "--batch-size=32", "--epochs=3",
             "--optimizer=adamw", "--lr=0.003", "--log-every=5", "--sample-tokens=70"),
    "many buckets": ("--model=wide:wide", "--compress=powersgd", "--bucket-mb=1", "--compress-after=2", "--epochs=2",
                     "--lr=0.02"),
    "by steps": ("--max-steps=7", "--eval-every=3", "--save-every=2", "--keep=9", "--log-every=1",
                 "--schedule=constant", "--warmup-steps=4"),
    "own data": (*OWN, "--max-steps=9", "--out=own"),
    "own data, begun": (*OWN, "--max-steps=4", "--out=resumed"),
    "own data, resumed": (*OWN, "--max-steps=9", "--out=resumed", "--profile-steps=6:7"),
    "evaluated": (*OWN, "--eval-only", "--out=own"),
    "augmented": (*AUGMENTED, "--max-steps=6", "--out=augmented"),
    "augmented, begun": (*AUGMENTED, "--max-steps=3", "--out=augmented-resumed"),
    "augmented, resumed": (*AUGMENTED, "--max-steps=6", "--out=augmented-resumed"),
    "fine-tuned": (*OWN, "--max-steps=1", "--init-from=resumed/weights.pt", "--out=fine-tuned"),
    "nothing to evaluate": ("--eval-only",),
    "no data": ("--data=csv", "--data-path=nowhere.csv"),
    "bench": ("--bench", "--bench-seconds=0.05"),
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("ways")


@pytest.fixture(scope="module")
def said(folder: Path) -> dict[str, str]:
    """What the first of two ranks said, by way: the same two do all of them, in turn."""
    torch.manual_seed(0)
    draws = torch.randint(4, (3000,)).tolist()
    (folder / "text").write_text("".join("abcd"[draw] + " folw!" for draw in draws))
    (folder / "wide.py").write_text(WIDE)
    (folder / "noisy.py").write_text(NOISY)
    ways = OTHERS | {way: (*PLAIN, *flags) for way, (flags, _) in WAYS.items()}
    argvs = [(f"--out={way.replace(' ', '-')}.out", *flags) for way, flags in ways.items()]
    outputs = trainings(2, folder, *argvs, PYTHONPATH=f"{folder}:{environment()['PYTHONPATH']}")
    return dict(zip(ways, outputs, strict=True))


NOISY = """
import shutil
from pathlib import Path
import torch

class Noisy(torch.utils.data.Dataset):
    classes = ["dark", "bright"]

    def __len__(self):
        return 100

    def __getitem__(self, index):
        return torch.randn(1, 8, 8) + 2 * (index % 2), index % 2

def datasets(config):
    if config.init_from:
        shutil.copy(max(Path("resumed").glob("step-*.pt")), config.init_from)
    return Noisy(), Noisy()
"""

WIDE = """
from torch import nn

def wide(classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(192, 2000), nn.ReLU(), nn.Linear(2000, 500), nn.Linear(500, classes))

def dropping(classes):
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.Dropout(0.3), nn.Flatten(), nn.Linear(4 * 6 * 6, classes))
"""


@pytest.mark.parametrize("way", WAYS)
def test_every_way_learns_as_the_plain_one_does(said: dict[str, str], way: str) -> None:
    if way == "bf16 sent" and "refused: exit code 2" in said[way]:
        pytest.skip("this torch's gloo cannot add up bf16, and the trainer says so")
    plain, other = losses(said["plain"]), losses(said[way])
    assert len(plain) == len(other) == 17
    assert max(abs(one - two) for one, two in zip(plain, other, strict=True)) <= WAYS[way][1]
    assert float(values(said[way], "done")["test_acc"]) >= 0.9


def test_a_way_that_computes_otherwise_does_not_give_the_very_same_numbers(said: dict[str, str]) -> None:
    """Else the flag did nothing."""
    for way in ("fp16 sent", "PowerSGD", "local SGD", "bf16", "fp16"):
        assert losses(said[way]) != losses(said["plain"]), way


def test_powersgd_of_many_buckets_learns(said: dict[str, str]) -> None:
    """Of two buckets on their way at once, gloo would take the one for the other."""
    assert float(values(said["many buckets"], "done")["test_acc"]) >= 0.7


def test_adamw_learns_too(said: dict[str, str]) -> None:
    assert float(values(said["adamw"], "done")["test_acc"]) >= 0.9


def test_a_run_can_be_measured_in_steps(said: dict[str, str], folder: Path) -> None:
    output = said["by steps"]
    assert re.findall(r"(?m)^epoch:1 step:(\d+) test_loss:", output) == ["3", "6"]
    rates = re.findall(r"(?m)^epoch:1 step:\d+ loss.* lr:(\S+)", output)
    assert [float(rate) for rate in rates] == [0.025, 0.05, 0.075, 0.1, 0.1, 0.1, 0.1]
    assert values(output, "done")["step"] == "7"
    assert [int(path.name.split("-")[1]) for path in sorted((folder / "by-steps.out").glob("step-*"))] == [2, 4, 6, 7]


def test_a_run_on_own_data_resumes_bit_for_bit(said: dict[str, str], folder: Path) -> None:
    """Random augmentation and the moving average of the weights are those of the undisturbed run."""
    assert values(said["own data, resumed"], "resumed")["step"] == "4"
    one, other = (newest(folder / name) for name in ("own", "resumed"))
    for part in ("model", "ema"):
        assert all(torch.equal(one[part][name], other[part][name]) for name in one[part]), part
    assert not all(
        torch.equal(mean, weight) for mean, weight in zip(one["ema"].values(), one["model"].values(), strict=True)
    )
    assert losses(said["own data"])[4:] == losses(said["own data, resumed"])
    assert values(said["own data"], "done")["test_loss"] == values(said["own data, resumed"], "done")["test_loss"]
    for rank in (0, 1):
        trace = json.loads((folder / f"resumed/trace-rank{rank}.json").read_text())
        assert any("backward" in event["name"] for event in trace["traceEvents"])


def test_a_run_with_augmentation_and_dropout_resumes_bit_for_bit(said: dict[str, str], folder: Path) -> None:
    assert values(said["augmented, resumed"], "resumed")["step"] == "3"
    assert losses(said["augmented"])[3:] == losses(said["augmented, resumed"])
    one, other = (newest(folder / name)["model"] for name in ("augmented", "augmented-resumed"))
    assert all(torch.equal(one[name], other[name]) for name in one)


def newest(folder: Path) -> Any:
    return torch.load(max(folder.glob("step-*.pt")), weights_only=True)


def test_a_snapshot_can_be_tested_without_training(said: dict[str, str]) -> None:
    done, evaluated = values(said["own data"], "done"), values(said["evaluated"], "evaluated")
    assert {key: done[key] for key in evaluated} == evaluated
    assert "--eval-only: " in said["nothing to evaluate"] and "refused: exit code 2" in said["nothing to evaluate"]


def test_a_run_starts_from_the_weights_of_another(said: dict[str, str]) -> None:
    assert values(said["fine-tuned"], "init from")["loaded"] == "6"
    assert values(said["fine-tuned"], "done")["step"] == "1"
    assert losses(said["fine-tuned"])[0] < 0.5 * losses(said["own data"])[0]


def test_every_rank_can_tell_its_own_steps(said: dict[str, str]) -> None:
    line = values(said["adamw"], "rank:0 epoch:1 step:2 ")
    assert list(line) == ["rank", "epoch", "step", "loss", "acc", "data", "forward", "backward", "comm", "optimizer"]


@pytest.mark.full
def test_one_and_four_ranks_see_the_same_losses_as_two(said: dict[str, str], tmp_path: Path) -> None:
    for ranks in (1, 4):
        (output,) = trainings(ranks, tmp_path, (*PLAIN, f"--out={ranks}"))
        assert losses(output) == pytest.approx(losses(said["plain"]), abs=2e-4)


def test_a_text_is_learned_to_what_cannot_be_known(said: dict[str, str], folder: Path) -> None:
    """Of seven letters six follow from those before them, and one is any of four: ln(4)/7 is left to say."""
    assert float(values(said["text"], "done")["test_loss"]) == pytest.approx(1.386294 / 7, abs=0.02)
    assert "tokens/s:" in said["text"]
    last = [line for line in said["text"].splitlines() if line.startswith("sample ")][-1]
    text = json.loads(last.partition(" text:")[2])
    assert len(text) == 70 and text.count(" folw!") >= 8
    kept = [json.loads(line) for line in (folder / "text.out/metrics.jsonl").read_text().splitlines()]
    steps = [line["step"] for line in kept if "loss" in line]
    assert steps[:3] == [1, 5, 10] and steps == sorted(steps)


def test_a_missing_data_path_ends_all_ranks(said: dict[str, str]) -> None:
    lines = said["no data"].splitlines()
    assert "--data-path nowhere.csv: " in lines[-2]
    assert lines[-1] == "refused: exit code 2"


def test_bench_tells_what_limits(said: dict[str, str], folder: Path) -> None:
    (line,) = [line for line in said["bench"].splitlines() if line.startswith("bench ")]
    measured = json.loads(line.removeprefix("bench "))
    assert measured == json.loads((folder / "bench.out/bench.json").read_text())
    assert measured["world_size"] == 2 and measured["limit"] in ("compute", "data", "allreduce")
    assert measured["allreduce_bytes"] == 4 * 29066
    seconds = measured["seconds_per_step"]
    assert seconds["together"] > 0 and measured["samples_per_second"]["together"] == 128 / seconds["together"]
    assert list((folder / "bench.out").iterdir()) == [folder / "bench.out/bench.json"]


NOTING = """
import os
from torch import nn

class Noting(nn.Module):
    # notes what it is trained on: an image is four pixels that tell which it is
    def __init__(self, classes):
        super().__init__()
        self.layer = nn.Linear(4, classes)
        self.file = open(f"seen-{os.getpid()}", "w")

    def forward(self, images):
        if self.training:
            print(*(round(image * 10000) for image in images[:, 0, 0, 0].tolist()), file=self.file, flush=True)
        return self.layer(images[:, 0].flatten(1))
"""


def test_an_epoch_that_goes_on_with_more_ranks_sees_every_sample_exactly_once(tmp_path: Path) -> None:
    (tmp_path / "noting.py").write_text(NOTING)
    (tmp_path / "numbers.csv").write_text("".join(f"{n},{n},{n},{n},{n % 2}\n" for n in range(4000)))
    flags = ("--model=noting:Noting", "--data=csv", "--data-path=numbers.csv", "--epochs=1", "--batch-size=10",
             "--log-every=1", "--lr=0.001")  # fmt: skip
    path = f"{tmp_path}:{environment()['PYTHONPATH']}"
    with started(2, tmp_path, "-m", "trainer", *flags, PYTHONPATH=path) as ranks:
        assert ranks[0].stdout
        for line in ranks[0].stdout:
            if "step:20 " in line:
                ranks[1].send_signal(signal.SIGUSR1)
            if line.startswith("saved "):
                ranks[1].send_signal(signal.SIGTERM)
        outputs_of(ranks)
    assert [rank.returncode for rank in ranks] == [0, 0]
    stopped = int(max((tmp_path / "out").glob("step-*.pt")).name.split("-")[1])
    assert 20 < stopped < 320

    with started(3, tmp_path, "-m", "trainer", *flags, PYTHONPATH=path) as ranks:
        outputs = outputs_of(ranks)
    assert [rank.returncode for rank in ranks] == [0, 0, 0], outputs
    assert values(outputs[0], "resumed")["step"] == str(stopped)
    assert values(outputs[0], "resumed")["ranks_before"] == "2"

    seen = Counter[str]()
    for file in tmp_path.glob("seen-*"):
        _, *lines = file.read_text().splitlines()  # the first is for DDP's layout, and teaches nothing
        seen.update(" ".join(lines).split())
    assert len(seen) == 3200 and set(seen.values()) == {1}


def test_a_loss_that_is_not_finite_ends_the_run_and_names_step_rank_and_samples(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("".join(f"{n},1,2,3,{n % 2}\n" for n in range(100)))
    (tmp_path / "poisoned.py").write_text(POISONED)
    flags = ("--model=poisoned:model", "--data=csv", "--data-path=rows.csv", "--batch-size=20", "--log-every=3")
    path = f"{tmp_path}:{environment()['PYTHONPATH']}"
    with started(2, tmp_path, "-m", "trainer", *flags, PYTHONPATH=path) as ranks:
        outputs = outputs_of(ranks)
    assert [rank.returncode for rank in ranks] == [1, 1]
    (line,) = [line for line in "".join(outputs).splitlines() if line.startswith("trainer: ")]
    found = re.search(r" step:3 rank:1 samples:([\d,]+);", line)
    assert found and len(found[1].split(",")) == 10, line
    assert not list((tmp_path / "out").glob("step-*"))


POISONED = """
import os, torch
from torch import nn

class Poisoned(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.layer, self.calls = nn.Linear(4, classes), 0

    def forward(self, images):
        self.calls += 1  # the first call is for DDP's layout
        bad = os.environ["RANK"] == "1" and self.calls == 4
        return self.layer(images[:, 0].flatten(1)) * (torch.nan if bad else 1)

def model(classes):
    return Poisoned(classes)
"""
