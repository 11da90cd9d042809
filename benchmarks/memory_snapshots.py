"""What the trainer's snapshots in memory cost: processor time per step of a small GPT, with one every few steps.

One rank on this machine. Processor time of all its threads, since a busy machine does not change it: the time in which
a step waits for the copy to host memory is in it, and so is that of the thread that writes. Of three runs in turn, one
is short, so that imports and the first steps can be taken away.

    python benchmarks/memory_snapshots.py [--rounds 5] [--every 5]
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

import results
from e2e.trainer_ranks import environment
from trainer_overhead import KEEPING_MEMORY

MODEL = ["--model=gpt-tiny", "--data=synthetic-tokens", "--samples=64", "--context=64", "--batch-size=8",
         "--optimizer=adamw", "--device=cpu", "--epochs=100000", "--eval-every=100000", "--save-every=100000",
         "--track=none"]  # fmt: skip
SHORT, SNAPSHOTS = 6, 5


def run(memory: Path, steps: int, every: int) -> tuple[float, int]:
    """Seconds of processor time, and the size of a snapshot. `every`: steps between two in memory; 0: none."""
    with tempfile.TemporaryDirectory() as out:
        argv = [*MODEL, f"--max-steps={steps}", f"--save-memory-every={every}", f"--out={out}"]
        before = used()
        subprocess.run(
            [sys.executable, "-m", "trainer", *argv],
            env=environment(DDP_ORCH_MEMORY_DIR=str(memory), **KEEPING_MEMORY),
            stdout=subprocess.DEVNULL,
            check=True,
        )
        took = used() - before
    snapshots = list(memory.iterdir())
    size = max((file.stat().st_size for file in snapshots), default=0)
    for file in snapshots:
        file.unlink()
    return took, size


def used() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--every", type=int, default=5)
    asked = parser.parse_args()
    steps = SHORT + asked.every * SNAPSHOTS
    shares, of_steps, of_snapshots, size = [], [], [], 0
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        for _ in range(asked.rounds):
            short, _ = run(Path(folder), SHORT, 0)
            without, _ = run(Path(folder), steps, 0)
            with_snapshots, size = run(Path(folder), steps, asked.every)
            of_steps.append((without - short) / (steps - SHORT))
            of_snapshots.append((with_snapshots - without) / SNAPSHOTS)
            shares.append(of_snapshots[-1] / asked.every / of_steps[-1])
    print(f"processor time of a step {1000 * median(of_steps):.0f} ms, of a snapshot of {size / 1e6:.0f} MB")
    print(f"{1000 * median(of_snapshots):.0f} ms; one every {asked.every} steps adds {100 * median(shares):.1f} %")
    figures = {"step_s": of_steps, "snapshot_s": of_snapshots, "shares": shares, "bytes": size}
    results.write("memory_snapshots", {"every": asked.every, "figures": figures})


if __name__ == "__main__":
    main()
