"""A rank that does several trainings one after the other: a process a rank, and torch imported once.

    python many_trainings.py '[["--epochs=1", "--out=a"], ...]'     with the variables of torchrun, and TRAINER_DEVICE

Between trainings rank 0 prints `training I`; one that is refused prints `refused: ...` in its place.
"""

from __future__ import annotations

import json
import os
import sys

from trainer.config import parse
from trainer.dist import joined
from trainer.extras.bench import bench
from trainer.loop import run
from trainer.place import find

with joined(os.environ.get("TRAINER_DEVICE", "cpu"), find(os.environ)) as world:
    for number, argv in enumerate(json.loads(sys.argv[1])):
        world.print(f"training {number}")
        try:
            config = parse(argv)
            bench(config, world) if config.bench else run(config, world)
        except SystemExit as end:
            world.print(f"refused: exit code {end.code}")
sys.stdout.flush()
sys.stderr.flush()
os._exit(0)
