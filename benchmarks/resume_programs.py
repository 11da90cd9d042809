"""Whether other people's programs resume at one common step after faults, on hosts without a shared disk.

Three lab hosts and two spares that elect their head (the default), real torchrun. One run of each program has all
faults, one after the other: a rank is killed with `kill -9`, a host is switched off and a spare takes its place, the
head is switched off. After each fault, all ranks of the next attempt must begin at the same step, and the loss must
continue. Writes results/resume.md.

    python benchmarks/resume_programs.py --programs FOLDER [NAME...]

FOLDER has nanoGPT (train.py, model.py, configurator.py) and minGPT-ddp (the files of pytorch/examples'
distributed/minGPT-ddp/mingpt). The programs are changed as CHANGES says, so that they run on CPUs. Needs transformers,
accelerate, hydra-core and numpy in this Python.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from statistics import mean
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests"), str(ROOT)]

from e2e import driver  # noqa: E402
from lab.lab import Lab  # noqa: E402
from lab.waiting import wait_until  # noqa: E402

RESULT = Path(__file__).parent / "results/resume.md"
ROWS = RESULT.with_suffix(".json")  # of the programs that were tried before
RANKS = 3
SAME = 1.1  # times the loss before; nanoGPT and minGPT-ddp take other samples after a restart
NANOGPT_CONFIG = """
import os

out_dir = os.environ["DDP_ORCH_OUTPUT_DIR"]
init_from = "resume" if os.path.exists(os.path.join(out_dir, "ckpt.pt")) else "scratch"
dataset, backend, device, compile, dropout = "text", "gloo", "cpu", False, 0.0
eval_interval, eval_iters, log_interval, always_save_checkpoint = 20, 1, 1, True
gradient_accumulation_steps, batch_size, block_size, n_layer, n_head, n_embd = 3, 8, 32, 2, 2, 32
max_iters, warmup_iters, decay_lr, learning_rate = 1_000_000, 0, False, 1e-3
"""


@dataclass(frozen=True)
class Program:
    command: tuple[str, ...]
    """After `up --`."""
    resume: str
    """run.resume, as docs/resume.md has it."""
    package: str
    """Whose version says what was tried; "": the newest commit of its repository."""
    loss: str
    """A line of rank 0: step and loss."""
    resumed: str = r"resumes at (\d+)"
    """A line of each rank: the step at which it begins."""
    folder: str = ""
    """In --programs; "": a script of ours."""
    changes: tuple[tuple[str, str, str], ...] = ()
    """In which file, what is replaced by what."""
    step: int = 30
    """The first one after which there is a snapshot."""


PROGRAMS = {
    "HF Trainer": Program(
        (
            "clm.py", "--output_dir", "{output}", "--use_cpu", "--ddp_backend", "gloo", "--max_steps", "1000000",
            "--logging_steps", "1", "--save_steps", "20", "--save_total_limit", "3",
            "--per_device_train_batch_size", "8", "--learning_rate", "1e-3", "--lr_scheduler_type", "constant",
            "--report_to", "none", "--disable_tqdm", "true",
        ),
        "union",
        "transformers",
        r"^step (\d+) loss (\S+)",
    ),
    "FSDP2 with torch.distributed.checkpoint": Program(("fsdp2.py",), "union", "torch", r"^step (\d+) loss (\S+)"),
    "nanoGPT": Program(
        ("train.py", "config.py"),
        "head",
        "",
        r"^iter (\d+): loss (\S+),",
        folder="nanoGPT",
        changes=(
            ("train.py", "    device = f'cuda:{ddp_local_rank}'\n    torch.cuda.set_device(device)\n", ""),
            ("train.py", "device_ids=[ddp_local_rank]", ""),
            (
                "train.py",
                "    checkpoint = torch.load(ckpt_path, map_location=device)\n",
                "    checkpoint = torch.load(ckpt_path, map_location=device)\n"
                "    print('resumes at', checkpoint['iter_num'], flush=True)\n",
            ),
            ("train.py", "    if iter_num > max_iters:", "    time.sleep(0.1)\n    if iter_num > max_iters:"),
        ),
    ),
    "minGPT-ddp": Program(
        (
            "main.py", "data_config.path=input.txt", "data_config.truncate=0.02", "data_config.block_size=32",
            "gpt_config.n_layer=2", "gpt_config.n_head=2", "gpt_config.n_embd=32", "trainer_config.batch_size=32",
            "trainer_config.data_loader_workers=0", "trainer_config.use_amp=False", "trainer_config.save_every=1",
            "trainer_config.max_epochs=1000000", "optimizer_config.learning_rate=0.001", "hydra.run.dir=/tmp/hydra",
            "trainer_config.snapshot_path=${oc.env:DDP_ORCH_OUTPUT_DIR}/snapshot.pt",
        ),
        "newest",
        "",
        r"Epoch (\d+) \| Iter 0 \| Train Loss (\S+)",
        r"Resuming training from snapshot at Epoch (\d+)",
        folder="minGPT-ddp",
        changes=(
            ("main.py", "return has_gpu and gpu_count >= min_gpus", "return True"),
            ("main.py", "def ddp_setup():\n", "def ddp_setup():\n    return init_process_group('gloo')\n"),
            ("trainer.py", "import boto3\n", ""),
            ("trainer.py", "        self.acc = torch.accelerator.current_accelerator()\n", ""),
            (
                "trainer.py",
                '        self.device: torch.device = torch.device(f"{self.acc}:{self.local_rank}")\n',
                '        self.device = self.acc = torch.device("cpu")\n',
            ),
            ("trainer.py", "model.to(self.local_rank)", "model"),
            ("trainer.py", "device_ids=[self.local_rank]", ""),
            ("trainer.py", "pin_memory=True", "pin_memory=False"),
            ("trainer.py", "source.to(self.local_rank)", "source"),
            ("trainer.py", "targets.to(self.local_rank)", "targets"),
            (
                "trainer.py",
                "torch.save(snapshot, self.config.snapshot_path)\n",
                "torch.save(snapshot, self.config.snapshot_path + '.new')\n"
                "            os.replace(self.config.snapshot_path + '.new', self.config.snapshot_path)\n",
            ),
        ),
        step=3,
    ),
}  # fmt: skip
CHANGES = "Changes for CPUs: gloo in place of NCCL, no devices, a pause of 0.1 s after each step"


@dataclass
class Row:
    fault: str
    before: int
    """The last step before the fault."""
    resumed: dict[str, int]
    """By rank."""
    loss_before: float
    """The mean of the first steps after the fault as they were done before it; of the last ones, if they are new."""
    loss_after: float
    first_loss: float
    seconds: float
    """From the fault to the first step."""

    @property
    def verdict(self) -> str:
        steps = set(self.resumed.values())
        if len(self.resumed) != RANKS or len(steps) != 1:
            return f"ranks at different steps: {self.resumed}"
        if not 0 < min(steps) <= self.before:
            return "began anew"
        return "resumed" if self.loss_after <= SAME * self.loss_before else "the loss jumped"


def place(lab: Lab, name: str, programs: Path) -> None:
    """Write the program into the folder of the lab's user."""
    program, folder = PROGRAMS[name], driver.code(lab)
    for path in folder.iterdir():
        if path.is_file():
            path.unlink()
    source = programs / program.folder if program.folder else Path(__file__).parent / "resume_scripts"
    for path in source.iterdir():
        if path.suffix in (".py", ".yaml"):
            (folder / path.name).write_text(path.read_text())
    for file, old, new in program.changes:
        text = (folder / file).read_text()
        if old not in text:
            sys.exit(f"{name}: {file} has no {old!r}; it is of another version")
        (folder / file).write_text(text.replace(old, new))
    text = "".join(path.read_text() for path in sorted((ROOT / "docs").glob("*.md"))).encode("ascii", "ignore")
    (folder / "input.txt").write_bytes(text)
    if name == "nanoGPT":
        write_nanogpt_data(folder, text)


def write_nanogpt_data(folder: Path, text: bytes) -> None:
    import numpy as np

    data = folder / "data/text"
    data.mkdir(parents=True, exist_ok=True)
    for part in ("train", "val"):
        np.frombuffer(text, dtype=np.uint8).astype(np.uint16).tofile(data / f"{part}.bin")
    (folder / "config.py").write_text(NANOGPT_CONFIG)


class Watched:
    """A run and what its ranks have printed."""

    def __init__(self, lab: Lab, name: str) -> None:
        self.lab, self.program = lab, PROGRAMS[name]
        hosts = [
            {"name": host.name, "address": host.address, "spare": number >= RANKS}
            for number, host in enumerate(lab.hosts)
        ]
        threads = {"OMP_NUM_THREADS": "1"}  # the hosts share the cores: threads that wait for each other hold up a step
        run = {
            "max_restarts": 3, "grace": 5, "resume": self.program.resume, "launcher": "torchrun", "env": threads,
        }  # fmt: skip
        self.inventory = lab.inventory(hosts=hosts, run=run)
        self.seen: dict[int, float] = {}
        self.run_id = driver.start(lab, self.inventory, "--", *self.program.command)

    def lines(self, attempt: int) -> list[dict[str, Any]]:
        done = driver.orch(self.lab, "logs", self.run_id, "-i", self.inventory, "--json", "--attempt", str(attempt))
        return [json.loads(line) for line in done.stdout.splitlines()]

    def losses(self, lines: list[dict[str, Any]]) -> dict[int, float]:
        found = ((line["rank"], re.search(self.program.loss, line["text"])) for line in lines)
        return {int(match[1]): float(match[2]) for rank, match in found if match and rank == 0}

    def wait_for(self, attempt: int, done: Callable[[dict[int, float]], bool]) -> list[dict[str, Any]]:
        def look() -> list[dict[str, Any]] | None:
            lines = self.lines(attempt)
            return lines if done(self.losses(lines)) else None

        try:
            return wait_until(look, 600, f"enough steps of attempt {attempt}")
        except BaseException:
            print("\n".join(f"{line['host']} {line['rank']}: {line['text']}" for line in self.lines(attempt)[-80:]))
            print(driver.orch(self.lab, "events", self.run_id, "-i", self.inventory).stdout)
            raise

    def fault(self, attempt: int, name: str, cause: Callable[[], None], first_loss: float) -> Row:
        """Cause it in this attempt, when enough was saved, and watch the next one."""
        least = self.program.step
        started = min(self.losses(self.wait_for(attempt, bool)))
        before = self.wait_for(attempt, lambda losses: max(losses, default=0) >= started + least)
        losses = self.losses(before)
        self.seen = {**losses, **self.seen}  # before the fault: afterwards the host of rank 0 may be off
        began = time.monotonic()
        cause()
        self.wait_for(attempt + 1, bool)
        seconds = time.monotonic() - began
        lines = self.wait_for(attempt + 1, lambda losses: len(losses) >= min(5, least))
        after = self.losses(lines)
        steps = sorted(after)[:5]
        known = [self.seen[step] for step in steps if step in self.seen]
        resumed = {
            str(line["rank"]): int(match[1])
            for line in lines
            if (match := re.search(self.program.resumed, line["text"])) and line["rank"] is not None
        }
        return Row(
            name,
            max(losses),
            resumed,
            mean(known or [losses[step] for step in sorted(losses)][-5:]),
            mean(after[step] for step in steps),
            first_loss or losses[min(losses)],
            seconds,
        )


def kill_rank(lab: Lab, run_id: str, word: str) -> None:
    host = lab.hosts[1]
    pids = [one.pid for one in host.marked(run_id) if word in one.argv and "torch.distributed.run" not in one.argv]
    host.sh(f"kill -9 {pids[-1]}", "root", check=True)


def try_program(name: str, programs: Path) -> list[Row]:
    with Lab(RANKS + 2) as lab:
        place(lab, name, programs)
        watched = Watched(lab, name)
        script = PROGRAMS[name].command[0]
        faults: list[tuple[str, Callable[[], None]]] = [
            ("`kill -9` of a rank", lambda: kill_rank(lab, watched.run_id, script)),
            ("a host switched off; a spare follows", lab.hosts[2].crash),
            ("the head switched off; another one is elected, and a spare follows", lab.hosts[0].crash),
        ]
        rows: list[Row] = []
        for attempt, (fault, cause) in enumerate(faults, 1):
            rows.append(watched.fault(attempt, fault, cause, rows[0].first_loss if rows else 0.0))
            print(f"{name}: {rows[-1]}: {rows[-1].verdict}", flush=True)
        driver.orch(lab, "kill", watched.run_id, "-i", watched.inventory)  # two hosts are off: it cannot verify them
    return rows


def version_of(name: str, programs: Path) -> str:
    program = PROGRAMS[name]
    if program.package:
        return f"{program.package} {version(program.package)}"
    return (programs / program.folder / "COMMIT").read_text().strip()


def render(rows: dict[str, list[Row]], programs: Path) -> str:
    commit = subprocess.run(["git", "describe", "--always", "--dirty"], capture_output=True, text=True, check=False)
    lines = [
        "# Programs that resume",
        "",
        f"Three hosts and two spares of the lab without a shared disk, CPUs, torch {version('torch')}, ddp-orch "
        f"{commit.stdout.strip()}, elections",
        "(the default). One run of each program with all faults. *Resumed at* is what each of the three ranks printed.",
        "*Loss* is the mean of the first five steps after the fault, and of the same steps before it. *s* are seconds",
        "from the fault to the first step; the machine had 2 cores and much other work.",
        f"{CHANGES}. Made by `python benchmarks/resume_programs.py --programs FOLDER`.",
        "",
        "| program | `run.resume` | fault | step before | resumed at | loss: first, before, after | s | verdict |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, faults in rows.items():
        for row in faults:
            steps = ", ".join(map(str, sorted(set(row.resumed.values())))) + f" ({len(row.resumed)} ranks)"
            losses = f"{row.first_loss:.2f}, {row.loss_before:.2f}, {row.loss_after:.2f}"
            cells = (name, f"`{PROGRAMS[name].resume}`", row.fault, row.before, steps, losses, f"{row.seconds:.0f}")
            lines.append("| " + " | ".join(map(str, (*cells, row.verdict))) + " |")
    lines += ["", "| program | version | command |", "|---|---|---|"]
    for name in rows:
        command = " ".join(PROGRAMS[name].command)
        lines.append(f"| {name} | {version_of(name, programs)} | `up -d -- {command}` |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(PROGRAMS)}; all if there is none")
    asked = parser.parse_args()
    for name in asked.names or PROGRAMS:
        tried = try_program(name, asked.programs)
        rows = {name: [asdict(row) for row in tried]}
        rows = {**(json.loads(ROWS.read_text()) if ROWS.exists() else {}), **rows}
        ROWS.write_text(json.dumps(rows, indent=2) + "\n")
    known = {name: [Row(**row) for row in rows[name]] for name in PROGRAMS if name in rows}
    RESULT.write_text(render(known, asked.programs))
    if any(row.verdict != "resumed" for faults in known.values() for row in faults):
        sys.exit("not all programs resumed")


if __name__ == "__main__":
    main()
