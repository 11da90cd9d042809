"""What the trainer's snapshots in memory cost: a small GPT saves every few steps, in every second block of steps.

One rank on this machine, one process per round. The first two blocks do not count: memory is new for them. What the
node program does is not included: it sends the newest snapshot to the next host.

  step     the time of a block with snapshots, in comparison with the blocks before and after it
  thread   the processor time of the thread that writes, which works while training continues

    python benchmarks/memory_snapshots.py [--rounds 5] [--every 5]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from statistics import mean, median
from typing import Any, NoReturn

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

import results
from e2e.trainer_ranks import environment
from trainer_overhead import KEEPING_MEMORY

MODEL = ["--model=gpt-tiny", "--data=synthetic-tokens", "--samples=64", "--context=64", "--batch-size=8",
         "--optimizer=adamw", "--device=cpu", "--epochs=100000", "--eval-every=100000", "--save-every=100000",
         "--track=none"]  # fmt: skip
BLOCK, BLOCKS = 2, 13  # snapshots in a block; the odd blocks have none


def as_a_rank(arguments: list[str], memory: str) -> None:
    """Train, and print `figures {JSON}`: the seconds of each block, and the thread's for each snapshot."""
    from trainer import checkpoint
    from trainer.__main__ import main as train

    asked_at: list[float] = []  # when each snapshot was due
    written: list[float] = []
    save, write = checkpoint.FileWriter.save, checkpoint.write

    def save_in_turn(writer: Any, *given: Any, **options: Any) -> None:
        if str(writer._folder) == memory:
            asked_at.append(time.monotonic())
            if len(asked_at) // BLOCK % 2:
                return
        save(writer, *given, **options)

    def timed_write(folder: Path, *given: Any) -> None:
        begun = time.thread_time()
        write(folder, *given)
        if str(folder) == memory:
            written.append(time.thread_time() - begun)

    def exit_with_figures(code: int) -> NoReturn:
        starts = asked_at[::BLOCK]
        blocks = [after - before for before, after in pairwise(starts)]
        print("figures " + json.dumps({"blocks": blocks, "written": written}), flush=True)
        really_exit(code)

    checkpoint.FileWriter.save, checkpoint.write = save_in_turn, timed_write  # type: ignore[method-assign]
    really_exit, os._exit = os._exit, exit_with_figures  # type: ignore[assignment]  # the trainer ends by it
    sys.argv[1:] = arguments
    train()


def measure(every: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as out, tempfile.TemporaryDirectory(dir="/dev/shm") as memory:
        argv = [*MODEL, f"--max-steps={every * BLOCK * BLOCKS + 1}", f"--save-memory-every={every}", f"--out={out}"]
        ran = subprocess.run(
            [sys.executable, __file__, "--as-a-rank", memory, *argv],
            env=environment(DDP_ORCH_MEMORY_DIR=memory, **KEEPING_MEMORY),
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        size = max(file.stat().st_size for file in Path(memory).iterdir())
    (line,) = [line for line in ran.stdout.splitlines() if line.startswith("figures ")]
    figures = json.loads(line.removeprefix("figures "))
    blocks = figures["blocks"]
    extra = [blocks[at] - mean([blocks[at - 1], blocks[at + 1]]) for at in range(2, len(blocks) - 1, 2)]
    step = median(blocks[3::2]) / every / BLOCK
    return {
        "step_s": step,
        "share": median(extra) / BLOCK / every / step,
        "thread_share": median(figures["written"][BLOCK:]) / every / step,
        "bytes": size,
    }


def main() -> None:
    if sys.argv[1:2] == ["--as-a-rank"]:
        return as_a_rank(sys.argv[3:], sys.argv[2])
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--every", type=int, default=5)
    asked = parser.parse_args()
    rounds = [measure(asked.every) for _ in range(asked.rounds)]
    figures = {name: [each[name] for each in rounds] for name in rounds[0]}
    size, step = figures.pop("bytes")[0], median(figures["step_s"])
    print(f"a step of {1000 * step:.0f} ms; a snapshot of {size / 1e6:.0f} MB every {asked.every} steps adds to it")
    for name, what in (("share", "time"), ("thread_share", "processor time of another thread")):
        low, middle, high = (100 * share for share in (min(figures[name]), median(figures[name]), max(figures[name])))
        print(f"{middle:.1f} % {what} ({low:.1f} to {high:.1f})")
    results.write("memory_snapshots", {"every": asked.every, "bytes": size, "figures": figures})
    return None


if __name__ == "__main__":
    main()
