"""What sending less costs: test accuracy on real images, the mean of several seeds, for each way to send gradients.

python benchmarks/compressed_accuracy.py [--seeds 5]
python benchmarks/compressed_accuracy.py --csv mnist_5k.csv.gz --plain --epochs 8 -- --augment --batch-size=64
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from statistics import mean

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

import results
from e2e import trainer_ranks
from e2e.trainer_ranks import trainings, values

WAYS = {
    "plain DDP": [],
    "--compress fp16": ["--compress=fp16"],
    "--compress bf16": ["--compress=bf16"],
    "--compress powersgd": ["--compress=powersgd"],
    "--local-sgd 16": ["--local-sgd=16"],
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--csv", help="other images than the bundled digits")
    parser.add_argument("--plain", action="store_true", help="only plain DDP")
    parser.add_argument("flags", nargs="*", help="more flags of the trainer, after --")
    asked = parser.parse_args()
    ways = ["plain DDP"] if asked.plain else list(WAYS)
    trainer_ranks.LIMIT = 3600  # s
    data = ["--data=csv", f"--data-path={Path(asked.csv).resolve()}"] if asked.csv else []
    turns = [(way, seed) for seed in range(asked.seeds) for way in ways]
    argvs = [
        [
            *WAYS[way],
            *data,
            *asked.flags,
            f"--seed={seed}",
            f"--epochs={asked.epochs}",
            f"--out={number}",
            "--track=none",
        ]
        for number, (way, seed) in enumerate(turns)
    ]
    reached: dict[str, list[float]] = {way: [] for way in ways}
    with tempfile.TemporaryDirectory() as folder:
        for (way, _), output in zip(turns, trainings(2, Path(folder), *argvs), strict=True):
            reached[way].append(float(values(output, "done ")["test_acc"]))
    plain = mean(reached["plain DDP"])
    for way, each in reached.items():
        points, spread = 100 * (mean(each) - plain), f"{min(each):.4f} to {max(each):.4f}"
        print(f"{way:28} {100 * mean(each):6.2f} %   {points:+.2f} points   {spread}")
    name = "compressed_accuracy" + ("_csv" if asked.csv else "")
    results.write(name, {"data": (asked.csv and Path(asked.csv).name) or "digits", "test_accuracy": reached})


if __name__ == "__main__":
    main()
