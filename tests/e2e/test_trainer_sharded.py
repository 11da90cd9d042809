"""`--parallel fsdp`: the same training as with DDP, with every rank holding a part of the model."""

from __future__ import annotations

import random
import re
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: pip install 'ddp-orch[trainer]'")
if not hasattr(pytest.importorskip("torch.distributed.fsdp"), "fully_shard"):
    pytest.skip("FSDP2 is public since torch 2.6", allow_module_level=True)

from torch.distributed.checkpoint.format_utils import dcp_to_torch_save  # noqa: E402

from .trainer_ranks import environment, losses, outputs_of, started, trainings, values  # noqa: E402

GPT = ("--model=gpt-tiny", "--data=text", "--data-path=text", "--context=16", "--batch-size=8", "--optimizer=adamw",
       "--lr=0.003", "--schedule=constant", "--grad-clip=1", "--ema=0.9", "--log-every=1", "--track=none")  # fmt: skip
FSDP = (*GPT, "--parallel=fsdp")

# prints how many bytes of tensors live after the last step
HELD = """
import gc, os, sys
import torch
from trainer import loop, metrics
from trainer.config import parse
from trainer.dist import joined
from trainer.place import find

config = parse(sys.argv[1:])
with joined("cpu", find(os.environ)) as world:
    training = loop.setup(config, world, None)
    loop.train(training, metrics.Log(config, world, training.data, training.wrapped, None), None)
    gc.collect()
    tensors = [each for each in gc.get_objects() if type(each) in (torch.Tensor, torch.nn.Parameter)]
    storages = [each.untyped_storage() for each in tensors if each.device.type == "cpu"]
    print(f"held bytes:{sum({each.data_ptr(): each.nbytes() for each in storages}.values())}", flush=True)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sharded")
    torch.manual_seed(0)
    (folder / "text").write_bytes(bytes(torch.randint(97, 123, (2000,)).tolist()))
    return folder


@pytest.fixture(scope="module")
def two(folder: Path) -> list[str]:
    """What rank 0 of two said: with DDP, with FSDP, and in the first steps of a run that others resume."""
    ways = {
        "ddp": (*GPT, "--max-steps=9", "--out=ddp"),
        "fsdp": (*FSDP, "--max-steps=9", "--out=fsdp"),
        "pieces": (*FSDP, "--max-steps=2", "--out=pieces", "--grad-accum-steps=2", "--activation-checkpointing"),
        "bf16": (*FSDP, "--max-steps=3", "--out=bf16", "--precision=bf16", "--no-reshard-after-forward"),
    }
    return trainings(2, folder, *ways.values())


def test_every_loss_is_that_of_ddp(two: list[str]) -> None:
    ddp, fsdp, pieces, bf16 = two
    assert losses(fsdp) == pytest.approx(losses(ddp), abs=2e-4) and len(losses(ddp)) == 9
    assert losses(pieces) == pytest.approx(losses(ddp)[:2], abs=2e-4)
    assert losses(bf16) == pytest.approx(losses(ddp)[:3], abs=0.05) and losses(bf16) != losses(fsdp)[:3]
    done = [float(values(output, "done")["test_loss"]) for output in (ddp, fsdp)]
    assert done[0] == pytest.approx(done[1], abs=2e-4)


@pytest.mark.full
def test_a_run_killed_with_two_then_four_ranks_ends_with_three_as_if_undisturbed(two: list[str], folder: Path) -> None:
    dice = random.Random("2 -> 4 -> 3")
    undisturbed = losses(two[1])
    done, said = 0, ""
    for ranks, last in ((2, 4), (4, 7), (3, 9)):
        moment = dice.randint(done + 1, last) if last < 9 else 10
        print(f"{ranks} ranks until step {moment}")
        with started(ranks, folder, "-m", "trainer", *FSDP, "--max-steps=9", "--save-every=1", "--out=moving") as all:
            said, first = "", done
            assert all[0].stdout
            for line in all[0].stdout:
                said += line
                if f" step:{moment} loss:" in line:
                    dice.choice(all[1:]).kill()
            outputs_of(all)
        if first:
            resumed = values(said, "resumed")
            assert resumed["ranks_before"] == str({4: 2, 3: 4}[ranks]) and int(resumed["step"]) <= first
            first = int(resumed["step"])
        assert losses(said) == pytest.approx(undisturbed[first : first + len(losses(said))], abs=2e-4)
        done = first + len(losses(said))
        if ranks == 4:
            parts = [path.stat().st_size for path in max((folder / "moving").glob("step-*")).glob("__*.distcp")]
            assert len(parts) == 4 and max(parts) <= 0.3 * sum(parts)
    assert done == 9 and [rank.returncode for rank in all] == [0, 0, 0], said
    ends = [float(values(output, "done")["test_loss"]) for output in (said, two[1])]
    assert ends[0] == pytest.approx(ends[1], abs=2e-4)


@pytest.mark.full
def test_four_ranks_resume_exactly(folder: Path) -> None:
    undisturbed, _, resumed = trainings(
        4,
        folder,
        (*FSDP, "--max-steps=5", "--save-every=9", "--out=four"),
        (*FSDP, "--max-steps=3", "--save-every=9", "--out=four-resumed"),
        (*FSDP, "--max-steps=5", "--save-every=9", "--out=four-resumed"),
    )
    assert values(resumed, "resumed")["step"] == "3"
    assert losses(resumed) == losses(undisturbed)[3:] and len(losses(undisturbed)) == 5
    assert values(resumed, "done")["test_loss"] == values(undisturbed, "done")["test_loss"]


@pytest.mark.full
def test_a_rank_of_four_holds_little_more_than_a_quarter_of_the_model(folder: Path) -> None:
    """Between steps: weights, gradients, Adam's moments, the moving average, and what torch keeps to send them."""
    held = {}
    for way in ("ddp", "fsdp"):
        flags = (*GPT, f"--parallel={way}", "--max-steps=2", f"--out=held-{way}")
        with started(4, folder, "-c", HELD, *flags) as ranks:
            outputs = outputs_of(ranks)
        assert [rank.returncode for rank in ranks] == [0] * 4, "\n".join(outputs)
        held[way] = [int(values(output, "held")["bytes"]) for output in outputs]
    assert max(held["fsdp"]) <= 0.3 * min(held["ddp"]), held


@pytest.mark.full
def test_hosts_without_a_shared_disk_copy_the_parts_that_they_lack(
    two: list[str], folder: Path, tmp_path: Path
) -> None:
    (tmp_path / "text").write_bytes((folder / "text").read_bytes())
    for steps, hosts in ((4, ("a", "b")), (9, ("b", "new"))):
        with started(2, tmp_path, "-m", "trainer", *FSDP, f"--max-steps={steps}", out=hosts) as ranks:
            if steps == 4:
                outputs = outputs_of(ranks)
                assert [rank.returncode for rank in ranks] == [0, 0], outputs
                names = [{path.name for path in (tmp_path / host).glob("*/__*")} for host in hosts]
                assert names == [{"__0_0.distcp"}, {"__1_0.distcp"}]
                # Host a is lost, but its files were on a third one.
                (tmp_path / "new").mkdir()
                (tmp_path / "a/step-000000004-sharded").rename(tmp_path / "new/step-000000004-sharded")
            else:
                outputs = outputs_of(ranks)
    assert [rank.returncode for rank in ranks] == [0, 0], outputs
    assert values(outputs[0], "resumed")["step"] == "4"
    assert losses(outputs[0]) == losses(two[1])[4:]
    assert values(outputs[0], "done")["test_loss"] == values(two[1], "done")["test_loss"]
    for host in ("b", "new"):
        shutil.copytree(tmp_path / host / "step-000000009-sharded", tmp_path / "all", dirs_exist_ok=True)
    assert_same(tensors_in(tmp_path / "all"), tensors_in(folder / "fsdp/step-000000009-sharded"))


def tensors_in(snapshot: Path) -> dict[str, object]:
    """The model, the optimizer and the moving average, put together from the parts of all ranks."""
    with tempfile.NamedTemporaryFile() as file:  # beside the snapshot, it would be taken for one
        dcp_to_torch_save(snapshot, file.name)
        state: dict[str, object] = torch.load(file.name, weights_only=True)
    return state


def assert_same(one: object, other: object) -> None:
    """Bit for bit."""
    if isinstance(one, torch.Tensor):
        assert torch.equal(one, other)
        return
    assert type(one) is type(other)
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        for key in one:
            assert_same(one[key], other[key])
    elif isinstance(one, list):
        for left, right in zip(one, other, strict=True):
            assert_same(left, right)
    else:
        assert one == other


@pytest.mark.full
def test_the_parts_in_memory_count_where_they_are_newer(two: list[str], folder: Path, tmp_path: Path) -> None:
    memory, flags = tmp_path / "memory", (*FSDP, "--save-every=4", "--save-memory-every=3", "--out=out")
    (tmp_path / "text").write_bytes((folder / "text").read_bytes())
    memory.mkdir()
    trainings(2, tmp_path, (*flags, "--max-steps=8"), DDP_ORCH_MEMORY_DIR=str(memory))
    (tmp_path / "out/step-000000008-sharded").rename(tmp_path / "lost")
    (output,) = trainings(2, tmp_path, (*flags, "--max-steps=9"), DDP_ORCH_MEMORY_DIR=str(memory))
    resumed = values(output, "resumed")
    assert (resumed["step"], resumed["from"]) == ("6", str(memory))
    assert losses(output) == losses(two[1])[6:]


@pytest.mark.full
def test_a_snapshot_that_lacks_a_part_is_not_used(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "text").write_bytes((folder / "text").read_bytes())
    trainings(2, tmp_path, (*FSDP, "--max-steps=4", "--save-every=2", "--out=out"))
    newest, part = tmp_path / "out/step-000000004-sharded", "__1_0.distcp"
    (newest / part).write_bytes((newest / part).read_bytes()[:-1])
    (output,) = trainings(2, tmp_path, (*FSDP, "--max-steps=4", "--out=out"))
    assert re.search(rf"^DAMAGED .*step-000000004-sharded.*{re.escape(part)}$", output, re.MULTILINE)
    assert values(output, "resumed")["step"] == "2" and len(losses(output)) == 2
    assert (newest / part).stat().st_size > 0 and not list((tmp_path / "out").glob(".*"))


def test_a_request_and_a_stop_at_a_saved_step_end_well(folder: Path, tmp_path: Path) -> None:
    """With a snapshot after every step, both are agreed on where one was just saved."""
    (tmp_path / "text").write_bytes((folder / "text").read_bytes())
    with started(2, tmp_path, "-m", "trainer", *FSDP, "--save-every=1", "--max-steps=2000", "--out=out") as ranks:
        assert ranks[0].stdout
        for line in ranks[0].stdout:
            if " step:2 " in line:
                ranks[1].send_signal(signal.SIGUSR1)
            elif line.startswith("saved "):
                ranks[1].send_signal(signal.SIGTERM)
        outputs_of(ranks)
    assert [rank.returncode for rank in ranks] == [0, 0]
    names = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert len(names) == 2 and not [name for name in names if name.startswith(".")], names


@pytest.mark.full
@pytest.mark.lab  # it mounts a file system
def test_a_full_disk_is_not_kept_full_and_the_training_goes_on(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "text").write_bytes((folder / "text").read_bytes())
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=32m", "tmpfs", disk], check=True)  # a snapshot takes 7 MB
    try:
        (disk / "ballast").write_bytes(bytes(28 << 20))
        flags = (*FSDP, "--save-every=10", "--max-steps=60", "--out=disk")
        with started(2, tmp_path, "-m", "trainer", *flags) as ranks:
            assert ranks[0].stdout
            output = ""
            for line in ranks[0].stdout:
                output += line
                if line.startswith("FAILED snapshot ") and (disk / "ballast").exists():
                    (disk / "ballast").unlink()
                    assert not (disk / ".step-000000010-sharded.tmp").exists()
            outputs_of(ranks)
        assert [rank.returncode for rank in ranks] == [0, 0], output
        assert re.search(r"(?m)^FAILED snapshot on \S+ step:10 error:.*No space left on device$", output), output
        assert (disk / "step-000000060-sharded/info.json").exists() and not list(disk.glob(".*"))

        (disk / "ballast").write_bytes(bytes(17 << 20))
        with started(2, tmp_path, "-m", "trainer", *flags, "--max-steps=63") as ranks:
            outputs = outputs_of(ranks)
        assert [rank.returncode for rank in ranks] == [1, 1], outputs
        assert not list(disk.glob(".*"))
    finally:
        subprocess.run(["umount", disk], check=True)


HEAVY = """
import torch
from torch import nn

class Ballast(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(60_000_000), requires_grad=False)

class Heavy(nn.Module):
    # a snapshot of it takes many times as long as a step, which gathers no ballast
    def __init__(self, classes):
        super().__init__()
        self.layer, self.calls = nn.Linear(192, classes), 0
        self.ballast = nn.ModuleList([Ballast()])

    def forward(self, images):
        self.calls += self.training
        # the first call is not of a step
        return self.layer(images.flatten(1)) * (torch.nan if self.calls == 5 else 1)
"""


def test_a_snapshot_that_is_being_written_is_kept_when_the_next_loss_is_not_finite(tmp_path: Path) -> None:
    (tmp_path / "heavy.py").write_text(HEAVY)
    flags = ("--model=heavy:Heavy", "--parallel=fsdp", "--max-steps=9", "--log-every=1", "--save-every=3", "--out=out",
             "--batch-size=16", "--track=none")  # fmt: skip
    path = f"{tmp_path}:{environment()['PYTHONPATH']}"
    with started(2, tmp_path, "-m", "trainer", *flags, PYTHONPATH=path) as ranks:
        outputs = outputs_of(ranks)
    assert [rank.returncode for rank in ranks] == [1, 1] and "not finite at step:4 " in "".join(outputs), outputs
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["step-000000003-sharded"]


LOST = """
import datetime, os
from pathlib import Path
import torch
from trainer import dist, sharded
from trainer.place import find

dist.FIRST_STEP_TIMEOUT = sharded.TIMEOUT = datetime.timedelta(seconds=60)
with dist.joined("cpu", find(os.environ)) as world:
    writer = sharded.make_writer(Path("out"), 2, world)
    for step in 1, 2:
        writer.save({"step": step, "model": {str(world.rank): torch.zeros(20_000_000)}})
        if world.rank == 1:
            os._exit(9)
"""


@pytest.mark.full
def test_ranks_end_when_one_is_lost_while_they_save(tmp_path: Path) -> None:
    """Some have lost its message, and others wait for one of theirs."""
    with started(4, tmp_path, "-c", LOST) as ranks:
        outputs = outputs_of(ranks)
    assert [rank.returncode for rank in ranks] == [1, 9, 1, 1], outputs
    assert not re.search("[Tt]imed out", "".join(outputs)), outputs


def test_snapshots_of_ddp_are_not_those_of_fsdp(two: list[str], folder: Path) -> None:
    """A run that finds only the others does not start from scratch."""
    outputs = trainings(2, folder, (*GPT, "--out=fsdp"), (*FSDP, "--out=ddp"))
    assert all(output.endswith("refused: exit code 2\n") for output in outputs), outputs
    assert [re.findall(r"trainer: .*(--parallel \w+)", output)[0] for output in outputs] == [
        "--parallel fsdp", "--parallel ddp",
    ]  # fmt: skip
