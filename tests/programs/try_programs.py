"""Try the programs of docs/launchers.md that are packages, on two hosts of a lab: `make examples`. Needs root.

Prints a table: program, version, command, and whether every rank took part.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import re
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from lab.lab import Lab  # noqa: E402

SECONDS = 600  # for one program; DeepSpeed builds an extension first
SPAWN = "--multiprocessing-distributed --dist-url tcp://{master_addr}:{master_port} --world-size {nnodes}"


@dataclass(frozen=True)
class Program:
    name: str
    command: str
    """After `ddp-orch up INVENTORY`."""
    packages: tuple[str, ...] = ()
    """What pip installs; the version of the first one is shown."""
    ranks: int = 2
    """How many say that they are done."""
    env: str = ""
    needs: str = ""
    """A program that the hosts need."""


PROGRAMS = (
    Program("torchrun, static", "-- torchrun --nnodes=2 --nproc_per_node=2 place.py", ranks=4),
    Program(
        "torchrun, c10d",
        "-- torchrun --nnodes=2 --nproc_per_node=2 --rdzv_id=1 --rdzv_backend=c10d --rdzv_endpoint=h:29500 place.py",
        ranks=4,
    ),
    Program(
        "torch.distributed.launch",
        "-- python -m torch.distributed.launch --nproc_per_node=2 --nnodes=2 --node_rank=0 local_rank.py",
        ranks=4,
    ),
    Program("mpirun without MPI", "-- mpirun -np 4 -H a:2,b:2 -x MASTER_ADDR=a python openmpi_variables.py", ranks=4),
    Program("mp.spawn", f"--set run.launcher=node -- python spawn.py {SPAWN} --rank {{node_rank}}"),
    Program("lightning", "-- lightning_train.py", ("lightning",)),
    Program("transformers", "-- transformers_train.py", ("transformers", "accelerate")),
    Program("accelerate", "-- accelerate launch --config_file accelerate.yaml accelerate_train.py", ("accelerate",)),
    Program(
        "deepspeed",
        "-- deepspeed deepspeed_train.py --deepspeed --deepspeed_config ds.json",
        ("deepspeed", "ninja"),
        env="DS_ACCELERATOR=cpu",
    ),
    Program("mpi4py", "-- mpirun -np 4 python mpi4py_sum.py", ("mpi4py",), ranks=4, needs="mpirun"),
    Program("jax", "--set run.launcher=jax -- jax_sum.py", ("jax",)),
    Program("tensorflow", "--set run.launcher=tensorflow -- python tensorflow_sum.py", ("tensorflow-cpu",)),
    Program("ray", "-- ray symmetric-run --address h:6379 --min-nodes 2 -- python ray_tasks.py", ("ray[default]",), 1),
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("programs", nargs="*", help="only those whose name contains one of these words")
    parser.add_argument("--install", action="store_true", help="install the packages, into this Python's environment")
    options = parser.parse_args()
    chosen = [
        program
        for program in PROGRAMS
        if not options.programs or any(word in program.name for word in options.programs)
    ]
    rows = []
    with Lab(2) as lab:
        for program in chosen:
            why_not = _install(program) if options.install else None
            outcome = why_not or _try(program, lab)
            rows.append((program, outcome))
            print(f"{program.name}: {outcome}", flush=True)
    print("\n| program | version | `ddp-orch up ...` | outcome |\n|---|---|---|---|")
    for program, outcome in rows:
        print(f"| {program.name} | {_version(program)} | `{program.command}` | {outcome} |")
    return 1 if any(outcome.startswith("FAILED") for _, outcome in rows) else 0


def _install(program: Program) -> str | None:
    """Why its packages cannot be installed."""
    if not program.packages:
        return None
    argv = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *program.packages]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
    return f"not installed: {lines[-1][:100]}" if done.returncode else None


def _version(program: Program) -> str:
    name = re.sub(r"\[.*", "", program.packages[0]) if program.packages else "torch"
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "-"


def _try(program: Program, lab: Lab) -> str:
    if program.needs and shutil.which(program.needs) is None:
        return f"not tried: no {program.needs} here"
    folder = lab.controller_home / "code"
    shutil.copytree(HERE / "scripts", folder, dirs_exist_ok=True)
    inventory = lab.inventory(run={"grace": 5})
    variables = ["-e", program.env] if program.env else []
    argv = ["ddp-orch", "up", str(inventory), *variables, *program.command.split()]
    began = time.monotonic()
    try:
        done = lab.run(argv, cwd=folder, timeout=SECONDS)
        output, ended = done.stdout + done.stderr, f"exit code {done.returncode}"
    except subprocess.TimeoutExpired as error:
        printed = error.stdout or b""
        output = printed.decode(errors="replace") if isinstance(printed, bytes) else printed
        ended = f"no end in {SECONDS} s"
    ranks = set(re.findall(r"\bdone (\d+) of (\d+)", output))
    lab.reset()
    expected = 2 if program.name == "ray" else program.ranks
    if ended == "exit code 0" and ranks == {(str(rank), str(expected)) for rank in range(program.ranks)}:
        return f"done, {time.monotonic() - began:.0f} s"
    (Path("/tmp") / f"ddp-orch-{program.name.split()[0].rstrip(',')}.log").write_text(output)
    return f"FAILED: {ended}, ranks {sorted(ranks)}: {_reason(output)}"


def _reason(output: str) -> str:
    """The evidence of the first cause, else the last line."""
    lines = [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in output.splitlines() if line.strip()]
    evidence = [line.strip(" |") for line in lines if line.startswith("  | ")]
    return (evidence or lines[-1:] or ["no output"])[0][:120]


if __name__ == "__main__":
    sys.exit(main())
