"""The trainer's parts that need neither torchrun nor a second process."""

from __future__ import annotations

import contextlib
import gc
import itertools
import json
import math
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from pickle import PicklingError
from types import FrameType
from typing import Any

import pytest
from golden_files import assert_message

torch = pytest.importorskip("torch", reason="torch is not installed: pip install 'ddp-orch[trainer]'")

from trainer import checkpoint  # noqa: E402
from trainer.config import Config, ConfigError, parse  # noqa: E402
from trainer.data import Batch, Data, Sampling, TensorSplit, shift_images  # noqa: E402
from trainer.datasets import load  # noqa: E402
from trainer.dist import SAVE, STOP, Requests, World, choose_device, joined  # noqa: E402
from trainer.extras.bench import bench  # noqa: E402
from trainer.extras.ema import EMA  # noqa: E402
from trainer.extras.mixing import make_mix  # noqa: E402
from trainer.loop import evaluate, run, setup  # noqa: E402
from trainer.metrics import Tracker, flops_of, meta_copy, peak_of, wandb_id  # noqa: E402
from trainer.model import build, checkpoint_blocks  # noqa: E402
from trainer.optim import learning_rate, make_optimizer, peak_learning_rate, with_momentum  # noqa: E402
from trainer.parallel import full, wrap  # noqa: E402
from trainer.place import Place  # noqa: E402

CPU = torch.device("cpu")


@pytest.fixture
def world() -> Iterator[World]:
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGUSR1)}
    with joined("cpu", Place(0, 0, 1, 1, "none")) as alone:
        yield alone
    for number, handler in handlers.items():  # those of a training hold its process group
        signal.signal(number, handler)


def test_a_wrong_flag_is_refused_in_one_line() -> None:
    refusals = []
    for argv in (
        ["--epochs=many"],
        ["--epochs=-1"],
        ["--lr=nan"],
        ["--data=imagenet"],
        ["--data=folder"],
        ["--track=csv"],
        ["--label-smoothing=1"],
        ["--betas=0.9"],
        ["--schedule=step"],
        ["--profile-steps=13:10"],
        ["--randaugment"],
        ["--parallel=fsdp", "--precision=fp16"],
        ["--parallel=fsdp", "--compress=fp16"],
        ["--parallel=fsdp", "--keep=1"],
        ["--local-sgd=4", "--ema=0.9"],
        ["--local-sgd=4", "--compress=fp16"],
        ["--static-graph", "--grad-accum-steps=2"],
        ["--device=tpu"],
        ["--seed=2147483648"],
        ["--epoch=3"],
    ):
        with pytest.raises(ConfigError) as refused:
            parse(argv)
        assert argv[0].partition("=")[0] in str(refused.value) and "\n" not in str(refused.value)
        refusals.append(f"{' '.join(argv)}\n  {refused.value}")
    assert_message("trainer-flags", "\n".join(refusals))


def test_outputs_go_where_the_flag_says_else_where_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DDP_ORCH_OUTPUT_DIR", raising=False)
    assert parse([]).out == "out"
    monkeypatch.setenv("DDP_ORCH_OUTPUT_DIR", "/data/run")
    assert parse([]).out == "/data/run"
    assert parse(["--out=here"]).out == "here"


def test_flags_are_checked_before_torch_is_imported() -> None:
    code = "import sys, trainer.__main__; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[2], timeout=30).returncode == 0


def test_a_rank_that_fails_ends_without_the_teardown_of_python() -> None:
    code = (
        "import atexit, sys, trainer.__main__ as main\n"
        "atexit.register(print, 'torn down')\n"
        "main.start = lambda config, place: {}['a bug']\n"
        "main.main()\n"
    )
    argv = [sys.executable, "-c", code]
    done = subprocess.run(argv, cwd=Path(__file__).parents[2], timeout=120, capture_output=True, text=True)
    assert done.returncode == 1 and done.stdout == ""
    assert done.stderr.endswith("KeyError: 'a bug'\n") and ", in main" in done.stderr


def test_digits_are_all_there_and_never_in_both_parts() -> None:
    data = load(Config(), CPU)
    assert (data.train.size, data.test.size, data.classes, data.channels) == (1438, 359, 10, 1)
    everything = torch.cat([data.train.inputs, data.test.inputs]).flatten(1)
    assert len(everything.unique(dim=0)) == 1797
    assert abs(float(everything.mean())) < 0.01 and abs(float(everything.std()) - 1) < 0.01


def test_the_split_of_the_digits_does_not_depend_on_the_seed() -> None:
    assert torch.equal(load(Config(seed=1), CPU).test.inputs, load(Config(seed=2), CPU).test.inputs)


def test_synthetic_images_have_the_size_asked_for_and_repeat_beyond_the_pool() -> None:
    data = load(Config(data="synthetic", image_size=512, samples=100, classes=7), CPU)
    made = len(data.train.inputs)
    assert data.train.inputs.shape == (made, 3, 512, 512) and made < data.train.size == 100
    ((images, labels),) = data.train.batches([(0, torch.tensor([0, made]))])
    assert torch.equal(images[0], images[1]) and labels.max() < 7


@pytest.mark.parametrize("size", [8, 9, 64])
def test_the_digits_model_takes_images_of_any_size(size: int) -> None:
    assert build("digits-cnn", images_of(10), 1)(torch.zeros(2, 3, size, size)).shape == (2, 10)


def test_the_learning_rate_rises_then_falls_to_nearly_nothing() -> None:
    rates = [learning_rate(Config(lr=0.1, warmup_fraction=0.05), step, 100) for step in range(100)]
    top = rates.index(max(rates))
    assert rates[top] == 0.1 and top == 4
    assert rates[:5] == sorted(rates[:5]) and rates[5:] == sorted(rates[5:], reverse=True) and 0 < rates[-1] < 0.001


@pytest.mark.parametrize(("schedule", "middle"), [("cosine", 0.55), ("linear", 0.55), ("constant", 1.0)])
def test_a_schedule_goes_from_lr_to_min_lr_after_its_warmup_steps(schedule: str, middle: float) -> None:
    config = Config(lr=1.0, min_lr=0.1, schedule=schedule, warmup_steps=10)
    assert [learning_rate(config, step, 110) for step in (0, 9, 10)] == pytest.approx([0.1, 1, 1])
    assert learning_rate(config, 60, 110) == pytest.approx(middle)
    assert learning_rate(config, 110, 110) == pytest.approx(1.0 if schedule == "constant" else 0.1)


def test_without_warmup_a_schedule_begins_at_the_first_step() -> None:
    config = Config(lr=1.0, warmup_fraction=0.0)
    assert [learning_rate(config, step, 100) for step in (0, 50, 100)] == pytest.approx([1, 0.5, 0])


@pytest.mark.parametrize("name", ["sgd", "adamw"])
def test_biases_and_norms_do_not_decay(name: str) -> None:
    model = torch.nn.Sequential(torch.nn.Conv2d(1, 2, 3), torch.nn.BatchNorm2d(2), torch.nn.Linear(2, 3))
    optimizer = make_optimizer(Config(optimizer=name, weight_decay=0.1, momentum=0.8, betas="0.5,0.6"), model, CPU)
    decay = {id(each): group["weight_decay"] for group in optimizer.param_groups for each in group["params"]}
    assert {name: decay[id(each)] for name, each in model.named_parameters()} == {
        "0.weight": 0.1, "0.bias": 0.0, "1.weight": 0.0, "1.bias": 0.0, "2.weight": 0.1, "2.bias": 0.0,
    }  # fmt: skip
    (group, _) = optimizer.param_groups
    assert group["momentum"] == 0.8 if name == "sgd" else group["betas"] == (0.5, 0.6)


def save(folder: Path, step: int, weight: torch.Tensor) -> None:
    checkpoint.write(folder, {"step": step, "model": {"weight": weight}}, keep=2)


def test_a_snapshot_comes_back_as_it_was_and_only_the_newest_two_are_kept(world: World, tmp_path: Path) -> None:
    (tmp_path / ".gone-1.tmp").touch()
    assert checkpoint.load_newest(tmp_path, world) is None
    for step in (5, 10, 15):
        save(tmp_path, step, torch.full((3,), step))
    state = checkpoint.load_newest(tmp_path, world)
    assert state is not None and state["step"] == 15 and state["model"]["weight"].tolist() == [15, 15, 15]
    assert [path.name[:15] for path in sorted(tmp_path.iterdir())] == ["step-000000010-", "step-000000015-"]


@pytest.mark.parametrize("newer", ["disk", "memory"])
def test_the_newest_snapshot_counts_whether_it_is_on_disk_or_in_memory(
    world: World, tmp_path: Path, newer: str
) -> None:
    disk, memory = tmp_path / "disk", tmp_path / "memory"
    for folder in (disk, memory):
        folder.mkdir()
        save(folder, 10 if folder.name == newer else 5, torch.zeros(3))
    (memory / ".gone-1.tmp").touch()
    state = checkpoint.load_newest(disk, world, memory)
    assert state is not None and (state["step"], state["folder"]) == (10, tmp_path / newer)
    assert not (memory / ".gone-1.tmp").exists()


def test_a_damaged_snapshot_in_memory_is_not_used(world: World, tmp_path: Path) -> None:
    disk, memory = tmp_path / "disk", tmp_path / "memory"
    for step, folder in ((5, disk), (10, memory)):
        folder.mkdir()
        save(folder, step, torch.zeros(3))
    (damaged,) = memory.iterdir()
    damaged.write_bytes(damaged.read_bytes()[:-1])
    state = checkpoint.load_newest(disk, world, memory)
    assert state is not None and state["step"] == 5


def test_what_changes_after_a_snapshot_was_taken_is_not_in_it(world: World, tmp_path: Path) -> None:
    writer = checkpoint.FileWriter(tmp_path, keep=2)
    weight = torch.zeros(1000)
    for step in range(1, 8):
        weight.fill_(step)
        writer.save({"step": step, "model": [{"weight": weight, "name": "w"}]})
        weight.fill_(-1)
    assert writer.close() is None
    state = checkpoint.load_newest(tmp_path, world)
    assert state is not None and state["step"] == 7 and state["model"][0]["name"] == "w"
    assert torch.equal(state["model"][0]["weight"], torch.full((1000,), 7.0))


def test_the_training_goes_on_when_the_disk_is_full_but_does_not_end_well(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "not there"
    writer = checkpoint.FileWriter(folder, keep=2)
    writer.save({"step": 1})
    assert isinstance(writer.close(), FileNotFoundError)
    assert re.search(rf"\b{socket.gethostname()} step:1 error:", capsys.readouterr().out)

    full = Path("/dev/full")
    if full.exists():
        with full.open("wb", buffering=0) as file, pytest.raises(OSError, match="No space left"):
            checkpoint.Digesting(file).write(b"x")


def test_a_snapshot_is_announced_when_it_or_a_newer_one_is_on_disk(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "late"
    writer = checkpoint.FileWriter(folder, keep=2)
    writer.save({"step": 1}, "saved step:1")
    output = ""
    deadline = time.monotonic() + 30
    while "FAILED snapshot" not in output and time.monotonic() < deadline:
        output += capsys.readouterr().out
        time.sleep(0.01)
    folder.mkdir()
    writer.save({"step": 2})
    while "saved step:1\n" not in output and time.monotonic() < deadline:
        output += capsys.readouterr().out
        time.sleep(0.01)
    assert output.index("FAILED snapshot") < output.index("saved step:1\n")
    assert [path.name[:14] for path in folder.iterdir()] == ["step-000000002"]
    assert writer.close() is None
    assert "saved" not in capsys.readouterr().out


def test_a_snapshot_that_cannot_be_pickled_keeps_later_ones_from_nothing(
    world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    writer = checkpoint.FileWriter(tmp_path, keep=2)
    writer.save({"step": 1, "model": lambda: None})
    deadline = time.monotonic() + 30
    said = ""
    while "step:1 error:" not in said and time.monotonic() < deadline:
        said += capsys.readouterr().out
        time.sleep(0.01)
    assert re.search(rf"\b{socket.gethostname()} step:1 error:", said)
    writer.save({"step": 2})
    assert writer.close() is None
    state = checkpoint.load_newest(tmp_path, world)
    assert state is not None and state["step"] == 2
    assert [path.name[:14] for path in tmp_path.iterdir()] == ["step-000000002"]


def test_a_training_whose_last_snapshot_cannot_be_pickled_does_not_end_well(tmp_path: Path) -> None:
    writer = checkpoint.FileWriter(tmp_path, keep=2)
    writer.save({"step": 1, "model": lambda: None})
    assert isinstance(writer.close(), (AttributeError, PicklingError))


@pytest.mark.parametrize("damage", ["cut short", "one bit", "empty"])
def test_a_damaged_newest_snapshot_is_not_used_and_said_loudly(
    world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str], damage: str
) -> None:
    for step in (5, 10):
        save(tmp_path, step, torch.zeros(1000))
    newest = max(tmp_path.iterdir())
    content = bytearray(newest.read_bytes())
    content[len(content) // 2] ^= 1
    newest.write_bytes({"cut short": content[:-1], "one bit": content, "empty": b""}[damage])
    state = checkpoint.load_newest(tmp_path, world)
    assert state is not None and state["step"] == 5
    assert f"DAMAGED snapshot on {socket.gethostname()}" in capsys.readouterr().out
    assert max(tmp_path.iterdir()).name == newest.name + ".damaged"


def test_what_is_handed_round_in_chunks_arrives_whole(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainer.dist.BROADCAST_CHUNK", 7)
    assert world.broadcast(bytes(range(100)), source=0) == bytes(range(100))


@pytest.mark.parametrize("asked_before", [False, True])
@pytest.mark.parametrize(("number", "request_of_it"), [(signal.SIGUSR1, SAVE), (signal.SIGTERM, STOP)])
def test_a_signal_at_any_moment_of_a_vote_counts(
    world: World, asked_before: bool, number: signal.Signals, request_of_it: int
) -> None:
    for moment in itertools.count():
        requests = Requests(world)
        if asked_before:
            signal.raise_signal(signal.SIGUSR1)
        with raised_at_opcode(moment, Requests.agreed, number) as raised:
            requests.agreed()
        if not raised:
            break
        assert request_of_it in [requests.agreed() for _ in range(2)], moment
    assert moment > 20


@contextlib.contextmanager
def raised_at_opcode(moment: int, function: Any, number: signal.Signals) -> Iterator[list[int]]:
    """Sends this process a signal before the opcode of this number in `function`. The list has it once it is sent."""
    opcodes, raised = itertools.count(), list[int]()

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        if frame.f_code is not function.__code__:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode" and next(opcodes) == moment:
            raised.append(number)
            signal.raise_signal(number)
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield raised
    finally:
        sys.settrace(before)


# --- weights to start from, and their moving average


def test_weights_of_a_snapshot_or_a_state_dict_are_loaded_but_those_of_another_shape(tmp_path: Path) -> None:
    torch.manual_seed(1)
    source, target = build("digits-cnn", images_of(10), 1), build("digits-cnn", images_of(7), 1)
    last = target[7].weight.clone()
    torch.save({"step": 3, "model": source.state_dict()}, tmp_path / "snapshot.pt")
    torch.save({f"module._orig_mod.{name}": value for name, value in source.state_dict().items()}, tmp_path / "ddp.pt")
    for name in ("snapshot.pt", "ddp.pt"):
        line = checkpoint.load_weights(str(tmp_path / name), target)
        assert line.endswith(" loaded:4 not_loaded:7.bias,7.weight")
        assert torch.equal(target[0].weight, source[0].weight) and torch.equal(target[7].weight, last)


@pytest.mark.parametrize("content", ["nothing", "text", "another model", "a folder"])
def test_weights_that_cannot_be_used_are_refused_in_one_line(tmp_path: Path, content: str) -> None:
    file = tmp_path / "weights.pt"
    if content == "text":
        file.write_text("not a file of torch")
    elif content == "a folder":
        file.mkdir()
    elif content == "another model":
        torch.save({"elsewhere": torch.zeros(3)}, file)
    with pytest.raises(ConfigError) as refused:
        checkpoint.load_weights(str(file), build("digits-cnn", images_of(10), 1))
    assert str(refused.value).startswith(f"--init-from {file}") and "\n" not in str(refused.value)


def test_the_moving_average_follows_the_weights_and_takes_their_place_for_a_while() -> None:
    layer = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.constant_(layer.weight, 1.0)
    ema = EMA(layer, 0.75)
    torch.nn.init.constant_(layer.weight, 5.0)
    ema.update()
    with ema.swapped_in():
        assert layer.weight.item() == 2.0
    assert layer.weight.item() == 5.0
    again = EMA(layer, 0.75)
    again.load_state_dict(ema.state_dict())
    with again.swapped_in():
        assert layer.weight.item() == 2.0


def test_a_run_in_weights_and_biases_keeps_its_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WANDB_RUN_ID", raising=False)
    monkeypatch.setenv("DDP_ORCH_RUN_ID", "first")
    assert wandb_id(tmp_path) == "first"
    monkeypatch.setenv("DDP_ORCH_RUN_ID", "second")
    assert wandb_id(tmp_path) == "first"
    monkeypatch.setenv("WANDB_RUN_ID", "mine")
    assert wandb_id(tmp_path) == "mine"


A_GPT = ("--model=gpt-tiny", "--data=synthetic-tokens", "--context=8", "--samples=64", "--batch-size=4", "--track=none")


@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_a_moving_average_that_begins_at_a_resume_begins_with_the_weights(
    world: World, tmp_path: Path, parallel: str
) -> None:
    if parallel == "fsdp" and not hasattr(pytest.importorskip("torch.distributed.fsdp"), "fully_shard"):
        pytest.skip("FSDP2 is public since torch 2.6")
    flags = (*A_GPT, f"--parallel={parallel}", "--max-steps=2", f"--out={tmp_path}")
    run(parse(flags), world)
    training = setup(parse([*flags, "--ema=0.9"]), world, tmp_path)
    assert training.first_step == 2 and training.ema
    with training.ema.swapped_in():
        averages = [full(each.detach()).clone() for each in training.model.parameters()]
    weights = [full(each.detach()) for each in training.model.parameters()]
    assert all(torch.equal(one, other) for one, other in zip(averages, weights, strict=True))


# At the first loss scale, fp16 cannot hold its gradients.
STEEP = """
from torch import nn

class Steep(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.linear = nn.Linear(3 * 8 * 8, classes)

    def forward(self, images):
        return self.linear(images.flatten(1)) * 3000
"""


def test_a_resumed_run_continues_with_the_loss_scale_that_fp16_has_found(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "steep.py").write_text(STEEP)
    monkeypatch.syspath_prepend(tmp_path)
    flags = ("--model=steep:Steep", "--precision=fp16", "--max-steps=2", f"--out={tmp_path}")
    run(parse(flags), world)
    first = json.loads((tmp_path / "metrics.jsonl").read_text().splitlines()[0], parse_constant=pytest.fail)
    assert first["grad_norm"] is None
    assert setup(parse(flags), world, tmp_path).scaler.get_scale() < 65536


@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_weights_that_are_named_are_tested_although_there_is_a_snapshot(
    world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str], parallel: str
) -> None:
    if parallel == "fsdp" and not hasattr(pytest.importorskip("torch.distributed.fsdp"), "fully_shard"):
        pytest.skip("FSDP2 is public since torch 2.6")
    run(parse((*A_GPT, f"--parallel={parallel}", "--max-steps=2", f"--out={tmp_path / 'out'}")), world)
    torch.save(build("gpt-tiny", tokens_of(50304), 8).state_dict(), tmp_path / "weights.pt")
    capsys.readouterr()
    flags = (*A_GPT, "--eval-only", f"--init-from={tmp_path / 'weights.pt'}")
    for out in ("out", "empty"):
        run(parse((*flags, f"--out={tmp_path / out}")), world)
    output = capsys.readouterr().out
    evaluated = [line for line in output.splitlines() if line.startswith("evaluated ")]
    assert "resumed " not in output and len(evaluated) == 2
    assert evaluated[0] == evaluated[1] and evaluated[0].startswith("evaluated epoch:0 step:0 ")


@pytest.mark.full
def test_the_blocks_of_a_sharded_model_are_compiled(
    world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the parts of torch.compile that need no C++ compiler: its quickest backend that traces backward too."""
    if not hasattr(pytest.importorskip("torch.distributed.fsdp"), "fully_shard"):
        pytest.skip("FSDP2 is public since torch 2.6")
    compiled = []

    def compile_block(block: torch.nn.Module) -> None:
        compiled.append(type(block).__name__)
        with_backend(block, backend="aot_eager")

    with_backend = torch.nn.Module.compile
    monkeypatch.setattr(torch.nn.Module, "compile", compile_block)
    flags = (*A_GPT, "--parallel=fsdp", "--max-steps=3", "--log-every=1", "--optimizer=adamw", "--lr=0.001")
    said = []
    for way in ((), ("--compile",)):
        run(parse([*flags, *way, f"--out={tmp_path / str(len(way))}"]), world)
        said.append([float(loss) for loss in re.findall(r"(?m)^epoch:1 step:\d+ loss:(\S+)", capsys.readouterr().out)])
    assert compiled == ["Block", "Block"]
    assert said[1] == pytest.approx(said[0], abs=1e-3) and len(said[0]) == 3


class FakeBoard:
    """torch.utils.tensorboard's writer, and W&B: writes down what it is asked for."""

    def __init__(self, calls: list[tuple[object, ...]]) -> None:
        self._calls = calls

    def SummaryWriter(self, folder: str, purge_step: int | None) -> FakeBoard:
        self._calls.append(("writer", folder, purge_step))
        return self

    def add_scalar(self, name: str, value: float, step: int) -> None:
        self._calls.append((name, value, step))

    def init(self, **options: object) -> FakeBoard:
        self._calls.append(("init", options["id"], options["resume"], options["mode"], options["dir"]))
        return self

    def define_metric(self, name: str, step_metric: str) -> None:
        self._calls.append(("metric", name, step_metric))

    def log(self, figures: dict[str, float]) -> None:
        self._calls.append(("log", figures))

    def close(self) -> None:
        self._calls.append(("close",))

    finish = close


def test_tensorboard_and_wandb_continue_where_a_run_resumes(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    board: list[tuple[object, ...]] = []
    wandb: list[tuple[object, ...]] = []
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", FakeBoard(board))
    monkeypatch.setitem(sys.modules, "wandb", FakeBoard(wandb))
    for name in ("WANDB_RUN_ID", "WANDB_API_KEY", "WANDB_MODE"):
        monkeypatch.delenv(name, raising=False)
    out = str(tmp_path)
    flags = ("--track=tensorboard,wandb", "--batch-size=64", "--save-every=2", "--log-every=1", f"--out={out}")
    for attempt, last_step in (("first", 3), ("second", 5)):
        monkeypatch.setenv("DDP_ORCH_RUN_ID", attempt)
        run(parse([*flags, f"--max-steps={last_step}"]), world)
    assert [call for call in board if call[0] == "writer"] == [
        ("writer", f"{out}/tensorboard", None), ("writer", f"{out}/tensorboard", 4),
    ]  # fmt: skip
    assert [call[2] for call in board if call[0] == "loss"] == [1, 2, 3, 4, 5]
    assert [call[2] for call in board if call[0] == "test_loss"] == [3, 5]
    inits = [call for call in wandb if call[0] == "init"]
    assert inits == 2 * [("init", "first", "allow", "offline", out)]
    assert ("metric", "*", "step") in wandb
    steps = [call[1]["step"] for call in wandb if call[0] == "log" and "loss" in call[1]]  # type: ignore[index,operator]
    assert steps == [1, 2, 3, 4, 5]
    assert board.count(("close",)) == wandb.count(("close",)) == 2


def test_figures_that_are_not_finite_are_null_in_json(tmp_path: Path) -> None:
    """As the norm of the gradients where --precision fp16 finds its first loss scale. Infinity is not JSON."""
    tracker = Tracker(Config(track="jsonl"), tmp_path, 0)
    tracker.write(1, {"loss": 2.5, "grad_norm": math.inf, "slowest_rank": 0})
    tracker.write(2, {"test_loss": math.nan, "test_acc": 0.0})
    tracker.close()
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    one, two = (json.loads(line, parse_constant=pytest.fail) for line in lines)
    assert (one["step"], one["loss"], one["grad_norm"], one["slowest_rank"]) == (1, 2.5, None, 0)
    assert (two["step"], two["test_loss"], two["test_acc"]) == (2, None, 0.0)


@pytest.mark.torchvision
@pytest.mark.parametrize("flags", [{"mixup": 0.4}, {"cutmix": 1.0}, {"mixup": 0.4, "cutmix": 1.0}])
def test_images_and_their_labels_are_mixed_in_the_same_shares(flags: dict[str, float]) -> None:
    try:
        mix = make_mix(Config(**flags), images_of(3))  # type: ignore[arg-type]
    except ConfigError as error:
        pytest.skip(str(error))
    assert mix is not None
    labels = torch.tensor([0, 1, 2, 1])
    batch = Batch(labels.float().view(4, 1, 1, 1).expand(4, 3, 8, 8), labels)
    torch.manual_seed(3)
    inputs, targets = mix(batch)
    assert targets.shape == (4, 3) and torch.allclose(targets.sum(dim=1), torch.ones(4))
    assert torch.allclose(inputs.mean(dim=(1, 2, 3)), targets @ torch.tensor([0.0, 1.0, 2.0]), atol=1e-5)
    torch.manual_seed(3)
    assert torch.equal(mix(batch).targets, targets)
    with pytest.raises(ConfigError, match="images"):
        make_mix(Config(mixup=0.4), tokens_of(10))


def images_of(classes: int) -> Data:
    none = TensorSplit(torch.zeros(0, 3, 8, 8), torch.zeros(0, dtype=torch.int64), 0)
    return Data(none, none, classes, channels=3)


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
        evaluate(model, TensorSplit(numbers, numbers % 2, 1797), Config(batch_size=100), World(rank, rank, ranks, CPU))
    assert sorted(model.seen) == list(range(1797))


def test_evaluation_gives_the_mean_over_all_images(world: World) -> None:
    numbers = torch.arange(1797)
    split = TensorSplit(numbers, (numbers % 3 == 0).long(), 1797)
    loss, accuracy = evaluate(Noting(), split, Config(batch_size=100), world)
    assert accuracy == 1198 / 1797
    assert loss == pytest.approx((1198 * 0.3132617 + 599 * 1.3132617) / 1797)


def test_evaluation_uses_the_loss_and_the_measure_of_the_training(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But without label smoothing, so that runs with and without it can be compared."""
    asked = []

    def loss_of(config: Config) -> object:
        asked.append(config.label_smoothing)
        return lambda logits, targets: 2.0 * targets.sum()

    monkeypatch.setattr("trainer.loop.make_loss", loss_of)
    monkeypatch.setattr("trainer.loop.count_correct", lambda logits, targets: (targets == 3).sum())
    numbers = torch.arange(10)
    split = TensorSplit(numbers, numbers, 10)
    assert evaluate(Noting(), split, Config(batch_size=4, label_smoothing=0.1), world) == (9.0, 0.1)
    assert asked == [0.0]


def test_steps_are_profiled_also_where_a_run_resumes_or_ends_inside_of_them(
    world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ("--batch-size=64", "--track=none", "--save-every=100", f"--out={tmp_path}")
    for window, last_step, profiled in (("2:9", 3, ["2:3"]), ("1:4", 6, ["4:4"]), ("5:6", 7, [])):
        run(parse([*flags, f"--profile-steps={window}", f"--max-steps={last_step}"]), world)
        said = capsys.readouterr()
        assert re.findall(r"(?m)^profiled steps:(\S+) trace:\S+$", said.out) == profiled
        assert said.err.count("--profile-steps") == (0 if profiled else 1), said.err
        assert (tmp_path / "trace-rank0.json").exists()


# --- which samples


@pytest.mark.parametrize("pieces", [1, 3])
@pytest.mark.parametrize("ranks", [1, 2, 3, 7])
def test_ranks_and_pieces_share_out_every_step_without_overlap(ranks: int, pieces: int) -> None:
    alone = Sampling(100, 32, 5, 0, 1, 1)
    parts = [list(Sampling(100, 32, 5, rank, ranks, pieces).steps(0, 6)) for rank in range(ranks)]
    for step in range(6):
        taken = torch.cat([ids for part in parts for at, ids in part if at == step])
        assert sorted(taken.tolist()) == sorted(alone.batch(step).tolist()) and len(set(taken.tolist())) == 32


def test_an_epoch_of_many_steps_is_cut_piece_by_piece() -> None:
    """A tensor for each of its steps takes more memory than the samples."""
    sampling = Sampling(200_000, 2, 5, 0, 1, 1)
    steps = sampling.steps(0, 10**9)
    next(steps)
    assert sum(type(each) is torch.Tensor for each in gc.get_objects()) < 50_000
    parts = [ids for _, ids in sampling.steps(900, 2100)]
    assert torch.equal(torch.cat(parts), torch.cat([sampling.batch(step) for step in range(900, 2100)]))


def test_bench_does_not_run_out_of_a_large_data_set(world: World, tmp_path: Path) -> None:
    of_large_data = ("--data=synthetic", "--image-size=8", "--samples=8000000", "--classes=10", "--batch-size=2")
    bench(parse(["--bench", "--bench-seconds=0.05", *of_large_data, f"--out={tmp_path}"]), world)
    assert json.loads((tmp_path / "bench.json").read_text())["seconds_per_step"]["data"] > 0


def test_a_run_that_goes_on_with_other_ranks_takes_exactly_the_samples_left() -> None:
    """Steps 0 to 3 of 6 with two ranks, the others with three: an epoch without one twice, and none missed."""
    taken = [ids for rank in range(2) for _, ids in Sampling(97, 16, 1, rank, 2, 2).steps(0, 4)]
    taken += [ids for rank in range(3) for _, ids in Sampling(97, 16, 1, rank, 3, 1).steps(4, 6)]
    epoch = torch.cat(taken).tolist()
    assert len(epoch) == len(set(epoch)) == 96
    assert set(epoch) < set(range(97))


def test_another_epoch_and_another_seed_have_another_order() -> None:
    orders = {tuple(Sampling(64, 64, seed, 0, 1, 1).batch(step).tolist()) for seed in (0, 1) for step in (0, 1)}
    assert len(orders) == 4


def test_images_are_flipped_and_moved_whole() -> None:
    image = torch.arange(64.0).view(1, 1, 8, 8) + 1
    torch.manual_seed(0)
    shapes = {tuple(each.flatten().int().tolist()) for each in shift_images(image.expand(200, 1, 8, 8), 1, flips=True)}
    assert len(shapes) == 18  # nine places, two ways round
    assert len({each.sum().item() for each in shift_images(image.expand(200, 1, 8, 8), 1, flips=False)}) <= 9
    assert tuple(image.flatten().int().tolist()) in shapes and tuple(image.flip(3).flatten().int().tolist()) in shapes


def test_the_learning_rate_grows_with_the_batch() -> None:
    assert peak_learning_rate(Config(lr=0.1, batch_size=1024)) == 0.1
    assert peak_learning_rate(Config(lr=0.1, batch_size=1024, lr_batch=256)) == 0.4


# --- models


def tokens_of(classes: int) -> Data:
    none = TensorSplit(torch.zeros(0, 8), torch.zeros(0, 8), 0)
    return Data(none, none, classes, targets=8)


def test_gpt2_is_as_large_as_openais() -> None:
    with torch.device("meta"):
        model = build("gpt2", tokens_of(50257), 1024)
    biases = 12 * (3 + 1 + 4 + 1 + 2) * 768 + 768  # which we leave out
    assert sum(each.numel() for each in model.parameters()) == 124_439_808 - biases


def test_gpt_says_a_token_from_those_before_it_only() -> None:
    torch.manual_seed(0)
    model = build("gpt-tiny", tokens_of(50), 16)
    tokens = torch.randint(50, (1, 16))
    changed = tokens.clone()
    changed[0, 9] = (changed[0, 9] + 1) % 50
    one, other = model(tokens), model(changed)
    assert torch.equal(one[:, :9], other[:, :9]) and not torch.allclose(one[:, 9:], other[:, 9:])


def test_blocks_that_are_computed_again_give_the_same_gradients() -> None:
    tokens = torch.randint(50, (2, 16))
    gradients = []
    for again in (False, True):
        torch.manual_seed(0)
        model = build("gpt-tiny", tokens_of(50), 16)
        names = set(model.state_dict())
        if again:
            checkpoint_blocks(model, "gpt-tiny")
            assert set(model.state_dict()) == names
        model(tokens).sum().backward()
        gradients.append([each.grad for each in model.parameters()])
    assert all(torch.equal(one, other) for one, other in zip(*gradients, strict=True))
    with pytest.raises(ConfigError, match="digits-cnn"):
        checkpoint_blocks(build("digits-cnn", images_of(10), 1), "digits-cnn")


class Inner(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.calls = torch.nn.Linear(4, 4), 0

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return self.layer(inputs).relu()


class Outer(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(Inner(), torch.nn.Linear(4, 4))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return inputs + self.layers(inputs)


def test_a_block_inside_a_block_is_computed_again_once() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Sequential(Outer(), Outer()), Inner())
    checkpoint_blocks(model, "mine:model")
    model(torch.ones(2, 3)).sum().backward()
    assert [each.calls for each in model.modules() if isinstance(each, Inner)] == [2, 2, 2]


def test_a_model_with_blocks_inside_of_blocks_is_sharded(world: World) -> None:
    if not hasattr(pytest.importorskip("torch.distributed.fsdp"), "fully_shard"):
        pytest.skip("FSDP2 is public since torch 2.6")
    torch.manual_seed(0)
    shared = Inner()
    model = torch.nn.Sequential(Outer(), Outer(), torch.nn.Sequential(shared), torch.nn.Sequential(shared))
    before = model(torch.ones(2, 4))
    wrapped = wrap(model, Config(parallel="fsdp"), world, 0)
    assert torch.equal(wrapped(torch.ones(2, 4)), before)


def test_a_model_that_cannot_be_is_refused_in_one_line() -> None:
    refusals = []
    for model, data in (
        ("gpt-tiny", images_of(10)),
        ("digits-cnn", tokens_of(10)),
        ("no_such_module:model", images_of(10)),
        ("math:nothing", images_of(10)),
        ("math:sqrt", images_of(10)),
    ):
        with pytest.raises(ConfigError) as refused:
            build(model, data, 8)
        assert str(refused.value).startswith(f"--model {model}") and "\n" not in str(refused.value)
        refusals.append(str(refused.value))
    assert_message("trainer-models", "\n".join(refusals))


def test_operations_are_counted_as_in_the_formula() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(100, 50, bias=False), torch.nn.ReLU(), torch.nn.Linear(50, 10))
    # a product and a sum for each weight, forward, and twice backward; the first layer owes its input no gradient
    assert flops_of(meta_copy(model), torch.zeros(4, 100)) == 2 * (2 * 100 * 50 + 3 * 50 * 10)


@pytest.mark.parametrize("flags", [["--activation-checkpointing"], ["--parallel=fsdp"], ["--compile"]])
def test_how_a_model_computes_does_not_change_its_operations(world: World, flags: list[str]) -> None:
    """Or MFU would count what activation checkpointing computes again."""
    if "--parallel=fsdp" in flags and not hasattr(pytest.importorskip("torch.distributed.fsdp"), "fully_shard"):
        pytest.skip("FSDP2 is public since torch 2.6")
    of_a_gpt = ["--model=gpt-tiny", "--data=synthetic-tokens", "--context=8", "--samples=64", "--batch-size=4"]
    counted = []
    for ways in ([], flags):
        training = setup(parse([*of_a_gpt, *ways]), world, None)
        counted.append(flops_of(training.on_meta, next(training.data.train.batches([(0, torch.arange(2))])).inputs))
    assert counted[0] and counted[1] == counted[0]


def test_a_compiled_model_is_cut_at_the_buckets_of_ddp(monkeypatch: pytest.MonkeyPatch, world: World) -> None:
    """So the first gradients can be sent early. `nn.Sequential` too, which its own `compile` would not compile."""
    graphs = []

    def record(graph: torch.fx.GraphModule, inputs: object) -> object:
        graphs.append(graph)
        return graph.forward

    with_backend = torch.compile
    monkeypatch.setattr(torch, "compile", lambda function: with_backend(function, backend=record))
    layer = torch.nn.Linear(600, 600)  # 1.4 MB
    model = torch.nn.Sequential(layer, torch.nn.ReLU(), torch.nn.Linear(600, 600))
    wrapped = wrap(model, Config(compile=True, bucket_mb=1), world, 0)
    wrapped(torch.ones(2, 600)).sum().backward()
    assert layer.weight.grad is not None and len(graphs) == 2


def test_what_cannot_be_counted_ends_no_training() -> None:
    class OnlyOnGpus(torch.nn.Module):  # as SyncBatchNorm is among several ranks
        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            if inputs.is_meta:
                raise ValueError("expected input tensor to be on GPU")
            return inputs

    class Uncopyable(torch.nn.Module):
        def __deepcopy__(self, memo: dict[int, object]) -> object:
            raise TypeError("cannot pickle a lock")

    model = torch.nn.Sequential(torch.nn.Linear(100, 10), OnlyOnGpus())
    assert flops_of(meta_copy(model), torch.zeros(4, 100)) is None
    model.append(Uncopyable())
    assert meta_copy(model) is None and flops_of(None, torch.zeros(4, 100)) is None


@pytest.mark.parametrize(
    ("name", "tera"),
    [
        ("NVIDIA H100 80GB HBM3", 989),
        ("NVIDIA H100 PCIe", 756),
        ("NVIDIA H200", 989),
        ("NVIDIA GB200", 2500),
        ("NVIDIA A100-SXM4-40GB", 312),
        ("NVIDIA A10G", 70),
        ("NVIDIA L40S", 362),
        ("NVIDIA L4", 121),
        ("Tesla T4", 65),
        ("NVIDIA GeForce RTX 4090", 165.2),
        ("NVIDIA RTX A4000", None),
        ("NVIDIA T400", None),
    ],
)
def test_a_gpu_s_peak_is_found_by_a_word_of_its_name(name: str, tera: float | None) -> None:
    assert peak_of(name) == (None if tera is None else tera * 1e12)


def test_a_first_step_that_is_left_out_leaves_no_momentum() -> None:
    """As on a GPU with fp16: the first gradients overflow, and the fused kernel leaves all as it is."""
    weight = torch.nn.Parameter(torch.ones(1000))
    optimizer = with_momentum(torch.optim.SGD([weight], lr=0.1, momentum=0.9, fused=True))
    for gradient, overflown in ((float("inf"), 1.0), (1.0, 0.0), (1.0, 0.0)):
        weight.grad = torch.full_like(weight, gradient)
        optimizer.found_inf, optimizer.grad_scale = torch.tensor(overflown), None  # type: ignore[attr-defined]
        optimizer.step()
    assert torch.allclose(weight, torch.full_like(weight, 1 - 0.1 - 0.1 * 1.9))


def test_a_rank_that_slurm_gave_a_gpu_of_its_own_takes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    second = Place(1, 1, 2, 2, "srun")
    with pytest.raises(ConfigError, match=r"\b2 ranks\b.* 1 GPUs?\b"):
        choose_device("auto", second)
    monkeypatch.setenv("SLURM_GPUS_PER_TASK", "1")
    assert choose_device("auto", second) == torch.device("cuda", 0)
