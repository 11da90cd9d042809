"""What the trainer's snapshots in memory cost, as a share of the steps between two of them, for a small GPT.

One rank on this machine. All figures are from one process per round: the processor time that training waits for the
copy to host memory, that of the thread that writes the copy, and that of the steps between. A busy machine changes
processor time least. The first two snapshots do not count: memory is new for them. What the node program does is not
included: it sends the newest to the next host.

    python benchmarks/memory_snapshots.py [--rounds 5] [--every 5]
"""

from __future__ import annotations

import argparse
import functools
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

import results
from e2e.trainer_ranks import environment
from trainer_overhead import KEEPING_MEMORY

MODEL = ["--model=gpt-tiny", "--data=synthetic-tokens", "--samples=64", "--context=64", "--batch-size=8",
         "--optimizer=adamw", "--device=cpu", "--epochs=100000", "--eval-every=100000", "--save-every=100000",
         "--track=none"]  # fmt: skip
FIRST, COUNTED = 2, 8  # snapshots


def as_a_rank(arguments: list[str], memory: str) -> None:
    """Train, and print `figures {JSON}`: seconds of processor time per snapshot, and of a step."""
    from trainer import checkpoint
    from trainer.__main__ import main as train

    copied: list[tuple[float, float]] = []  # of each snapshot: seconds, and those of the process so far
    written: list[float] = []

    def timed(function: Callable[..., Any], note: Callable[[float], None]) -> Callable[..., Any]:
        @functools.wraps(function)
        def run(folder: Any, *rest: Any, **options: Any) -> Any:
            begun = time.thread_time()
            result = function(folder, *rest, **options)
            if str(getattr(folder, "_folder", folder)) == memory:
                note(time.thread_time() - begun)
            return result

        return run

    save = timed(checkpoint.FileWriter.save, lambda seconds: copied.append((seconds, time.process_time())))
    checkpoint.FileWriter.save = save  # type: ignore[method-assign]
    checkpoint.write = timed(checkpoint.write, written.append)
    sys.argv[1:] = arguments
    try:
        train()
    finally:
        before, *counted = copied[FIRST - 1 :]
        of_snapshots = [each for each, _ in counted], written[FIRST - 1 : FIRST - 1 + len(counted)]
        all_seconds = counted[-1][1] - before[1] - sum(map(sum, of_snapshots))
        figures = {"copy": of_snapshots[0], "write": of_snapshots[1], "steps": all_seconds}
        print("figures " + json.dumps(figures), flush=True)


def measure(every: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as out, tempfile.TemporaryDirectory(dir="/dev/shm") as memory:
        steps = every * (FIRST + COUNTED) + 1
        argv = [*MODEL, f"--max-steps={steps}", f"--save-memory-every={every}", f"--out={out}"]
        ran = subprocess.run(
            [sys.executable, __file__, "--as-a-rank", memory, *argv],
            env=environment(DDP_ORCH_MEMORY_DIR=memory, **KEEPING_MEMORY),
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        size = max(file.stat().st_size for file in Path(memory).iterdir())
    (line,) = [line for line in ran.stdout.splitlines() if line.startswith("figures ")]
    return {**json.loads(line.removeprefix("figures ")), "bytes": size}


def main() -> None:
    if sys.argv[1:2] == ["--as-a-rank"]:
        return as_a_rank(sys.argv[3:], sys.argv[2])
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--every", type=int, default=5)
    asked = parser.parse_args()
    rounds = [measure(asked.every) for _ in range(asked.rounds)]
    copies = [median(each["copy"]) for each in rounds]
    writes = [median(each["write"]) for each in rounds]
    steps = [each["steps"] / len(each["copy"]) / asked.every for each in rounds]
    shares = [(copy + write) / asked.every / step for copy, write, step in zip(copies, writes, steps, strict=True)]
    size = rounds[0]["bytes"]
    print(f"processor time of a step {1000 * median(steps):.0f} ms, of a snapshot of {size / 1e6:.0f} MB:")
    print(f"copy {1000 * median(copies):.0f} ms, write {1000 * median(writes):.0f} ms")
    low, middle, high = (100 * share for share in (min(shares), median(shares), max(shares)))
    print(f"one every {asked.every} steps: {middle:.1f} % ({low:.1f} to {high:.1f})")
    figures = {"step_s": steps, "copy_s": copies, "write_s": writes, "shares": shares, "bytes": size}
    results.write("memory_snapshots", {"every": asked.every, "figures": figures})
    return None


if __name__ == "__main__":
    main()
