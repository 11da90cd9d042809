"""The bundled trainer on one GPU: it learns in every precision, and moves between GPU and CPU."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: pip install 'ddp-orch[trainer]'")

from e2e.trainer_ranks import losses, outputs_of, started, trainings, values  # noqa: E402

pytestmark = pytest.mark.gpu

STEADY = ("--schedule=constant", "--warmup-steps=1", "--log-every=1", "--track=none")
GPT = ("--model=gpt-tiny", "--data=text", "--data-path=text", "--context=16", "--batch-size=8", "--optimizer=adamw",
       "--lr=0.003", "--max-steps=9", *STEADY)  # fmt: skip
WAYS = {
    "plain": ("--epochs=8", "--track=none"),
    "bf16": ("--epochs=8", "--track=none", "--precision=bf16", "--channels-last"),
    "fp16": ("--epochs=8", "--track=none", "--precision=fp16", "--grad-clip=1"),
    "compiled": ("--max-steps=9", "--batch-size=64", *STEADY, "--compile"),
    "eager": ("--max-steps=9", "--batch-size=64", *STEADY),
    "overflow": ("--model=mine:steep", "--precision=fp16", "--lr=2e-6", "--max-steps=30", *STEADY),
    "ddp": GPT,
    "fsdp": (*GPT, "--parallel=fsdp"),
    "profiled": ("--max-steps=4", "--profile-steps=2:3", *STEADY),
    "bench": ("--bench", "--bench-seconds=0.1"),
}
# Its gradients are 300 times as large as those of a linear layer: at the first loss scale, fp16 cannot hold them.
STEEP = """
from torch import nn

class Steep(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.linear = nn.Linear(3 * 8 * 8, classes)
        nn.init.zeros_(self.linear.weight)

    def forward(self, images):
        return self.linear(images.flatten(1)) * 300

def steep(classes):
    return Steep(classes)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trainer")
    (folder / "mine.py").write_text(STEEP)
    torch.manual_seed(0)
    (folder / "text").write_bytes(bytes(torch.randint(97, 123, (2000,)).tolist()))
    return folder


@pytest.fixture(scope="module")
def said(folder: Path, device: str) -> dict[str, str]:
    """What the trainer printed on each way. All ways in one process, as importing torch takes seconds."""
    argvs = [(*flags, f"--out={way}") for way, flags in WAYS.items()]
    outputs = trainings(1, folder, *argvs, TRAINER_DEVICE=device, PYTHONPATH=f"{ROOT}:{folder}")
    return dict(zip(WAYS, outputs, strict=True))


ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("way", ["plain", "bf16", "fp16"])
def test_the_digits_are_learned_in_every_precision(said: dict[str, str], way: str, device: str) -> None:
    assert float(values(said[way], "done")["test_acc"]) > 0.94
    assert float(values(said[way], "summary").get("gpu_peak_gib", "1")) > 0 or device == "cpu"


def test_a_compiled_step_has_the_losses_of_an_eager_one(said: dict[str, str]) -> None:
    assert (
        losses(said["compiled"]) == pytest.approx(losses(said["eager"]), abs=2e-3) and len(losses(said["eager"])) == 9
    )


def test_after_an_overflow_at_step_1_fp16_continues_with_a_smaller_scale(said: dict[str, str], folder: Path) -> None:
    every = losses(said["overflow"])
    assert len(every) == 30 and every[-1] < 0.7 * every[0]
    newest = max((folder / "overflow").glob("step-*.pt"))
    state = torch.load(newest, weights_only=True)
    assert state["scaler"]["scale"] < 65536
    momentum = [each["momentum_buffer"] for each in state["optimizer"]["state"].values()]
    assert momentum and all(each.isfinite().all() for each in momentum)


def test_one_rank_of_fsdp_has_the_losses_of_ddp(said: dict[str, str]) -> None:
    assert losses(said["fsdp"]) == pytest.approx(losses(said["ddp"]), abs=2e-3) and len(losses(said["ddp"])) == 9


def test_the_profiler_sees_the_device(said: dict[str, str], folder: Path, device: str) -> None:
    assert values(said["profiled"], "profiled")
    trace = (folder / "profiled/trace-rank0.json").read_text()
    assert ('"kernel"' if device == "cuda" else "aten::conv2d") in trace


def test_bench_measures_the_device(said: dict[str, str], device: str) -> None:
    measured = json.loads(re.findall(r"(?m)^bench (.*)", said["bench"])[0])
    assert measured["device"] == device and measured["limit"] in ("compute", "data")


def test_a_run_moves_from_the_gpu_to_a_cpu_and_back(folder: Path, tmp_path: Path, device: str) -> None:
    flags = ("--batch-size=64", *STEADY)
    (undisturbed,) = trainings(1, tmp_path, (*flags, "--max-steps=9", "--out=cpu"))
    moved = []
    for number, where in enumerate((device, "cpu", device)):
        moved += trainings(1, tmp_path, (*flags, f"--max-steps={3 * number + 3}", "--out=moved"), TRAINER_DEVICE=where)
    assert ["resumed" in output for output in moved] == [False, True, True]
    assert [loss for output in moved for loss in losses(output)] == pytest.approx(losses(undisturbed), abs=2e-3)
    assert float(values(moved[-1], "done")["test_loss"]) == pytest.approx(
        float(values(undisturbed, "done")["test_loss"]), abs=2e-3
    )


def test_more_ranks_than_gpus_are_refused(tmp_path: Path) -> None:
    with started(1, tmp_path, "-m", "trainer", "--device=cuda", LOCAL_WORLD_SIZE="99") as ranks:
        (output,) = outputs_of(ranks)
    assert ranks[0].returncode == 2 and "99 ranks" in output and len(output.splitlines()) == 1


def test_the_trainer_says_on_which_gpu_it_runs(tmp_path: Path, device: str) -> None:
    with started(1, tmp_path, "-m", "trainer", f"--device={device}", "--max-steps=2", "--track=none") as ranks:
        (output,) = outputs_of(ranks)
    assert ranks[0].returncode == 0, output
    line = values(output, "start")
    assert line["device"] == ("cuda:0" if device == "cuda" else "cpu")
    assert device == "cpu" or {"gpu", "cuda", "nccl"} <= line.keys()
