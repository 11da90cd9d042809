"""Host memory of four ranks on one host that resume from a snapshot of 1 GB.

    python benchmarks/resume_memory.py [--trainer FOLDER]

The figure is the proportional set size (PSS) of all ranks together, sampled until the line `resumed`: memory that ranks
share counts once. What the ranks need before they read anything (the line `config`) is left out. The model and the
optimizer of all ranks take four times the snapshot. What is above that is the price of resuming, and of the modules
that torch imports for an optimizer.

`--trainer`: a checkout with another version of the trainer, to compare with.
"""

from __future__ import annotations

import argparse
import contextlib
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from subprocess import PIPE, STDOUT

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests")]

RANKS = 4
PAUSE = 0.05  # s between samples
MODEL = """
from torch import nn

def wide(classes):
    layers = [nn.Linear(3 * 8 * 8, 9000), nn.ReLU(), nn.Linear(9000, 9000), nn.ReLU(), nn.Linear(9000, classes)]
    return nn.Sequential(nn.Flatten(), *layers)
"""
FLAGS = ("-m", "trainer", "--model=mine:wide", "--optimizer=adamw", "--batch-size=8", "--track=none", "--out=out")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trainer", type=Path, default=ROOT, metavar="FOLDER")
    asked = parser.parse_args()
    import results
    from e2e.trainer_ranks import outputs_of, started

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "mine.py").write_text(MODEL)
        path = f"{asked.trainer.resolve()}:{folder}"
        with started(1, folder, *FLAGS, "--max-steps=1", PYTHONPATH=path) as ranks:
            output = outputs_of(ranks)[0]
        (snapshot,) = folder.glob("out/step-*.pt")
        size = snapshot.stat().st_size
        with started_on_one_host(RANKS, folder, {"PYTHONPATH": path}) as ranks:
            peak = peak_until_resumed(ranks)
    if not peak:
        sys.exit(output)
    over = (peak - RANKS * size) / size
    print(f"snapshot {size / 1e9:.2f} GB; peak of {RANKS} ranks until resumed {peak / 1e9:.2f} GB")
    print(f"above the model and optimizer of all ranks: {over:.2f} x the snapshot")
    if asked.trainer == ROOT:
        results.write("resume_memory", {"ranks": RANKS, "snapshot_bytes": size, "peak_bytes": peak, "above": over})


@contextlib.contextmanager
def started_on_one_host(count: int, folder: Path, environment: dict[str, str]) -> Iterator[list[subprocess.Popen[str]]]:
    """Ranks that know that they share a host: only the first writes and reads files for the others."""
    from e2e.trainer_ranks import ended, free_port
    from e2e.trainer_ranks import environment as inherited

    port = free_port()
    with contextlib.ExitStack() as stack:
        ranks = []
        for rank in map(str, range(count)):
            place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": str(count), "LOCAL_WORLD_SIZE": str(count)}
            place |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, **environment}
            argv = [sys.executable, *FLAGS, "--max-steps=2"]
            ranks.append(
                subprocess.Popen(argv, cwd=folder, env=inherited(**place), text=True, stdout=PIPE, stderr=STDOUT)
            )
            stack.enter_context(ended(ranks[-1]))
        yield ranks


def peak_until_resumed(ranks: list[subprocess.Popen[str]]) -> int:
    """Bytes of PSS of all ranks at their highest, above those at the start; 0 if the run did not resume."""
    resumed = threading.Event()
    highest = at_start = 0

    def sample() -> None:
        nonlocal highest
        while not resumed.wait(PAUSE):
            highest = max(highest, total())

    def total() -> int:
        return sum(pss(rank.pid) for rank in ranks)

    sampler = threading.Thread(target=sample)
    sampler.start()
    assert ranks[0].stdout
    found = False
    for line in ranks[0].stdout:
        if line.startswith("config "):  # all ranks have imported torch and met
            at_start = total()
        if found := line.startswith("resumed "):
            break
    resumed.set()
    sampler.join()
    return highest - at_start if found else 0


def pss(pid: int) -> int:
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:  # it has ended
        return 0
    return sum(int(line.split()[1]) * 1024 for line in text.splitlines() if line.startswith("Pss:"))


if __name__ == "__main__":
    main()
