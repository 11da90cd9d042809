"""The bundled trainer on hosts with different numbers of ranks: the same training as in one process."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from lab.lab import Lab

from .driver import assert_clean, ok, orch
from .trainer_ranks import losses, trainings

FLAGS = ("--epochs=2", "--log-every=2", "--track=none")


@pytest.mark.slow
def test_two_ranks_on_one_host_and_one_on_two_others_train_as_one_process_does(lab3: Lab, tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="torch is not installed: pip install 'ddp-orch[trainer]'")
    hosts = [
        {"name": host.name, "address": host.address, "nproc_per_node": ranks}
        for host, ranks in zip(lab3.hosts, (2, 1, 1), strict=True)
    ]
    run = {"launcher": "direct", "args": list(FLAGS), "env": {"OMP_NUM_THREADS": "1"}}
    done = ok(orch(lab3, "up", lab3.inventory(hosts=hosts, run=run)))
    assert len(re.findall(r"start rank:[0-3] world_size:4 ", done.stdout)) == 4
    there = re.sub(r"(?m)^.*?\| ", "", done.stdout)
    (here,) = trainings(1, tmp_path, FLAGS)
    assert len(losses(here)) == 12
    assert losses(there) == pytest.approx(losses(here), abs=2e-4)
    assert_clean(lab3)
