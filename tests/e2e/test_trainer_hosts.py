"""The bundled trainer on hosts with different numbers of ranks: the same training as in one process."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from subprocess import PIPE, STDOUT

import pytest
from lab.lab import Lab

from .driver import assert_clean, ok, orch
from .trainer_ranks import ROOT, losses, trainings

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


@pytest.mark.full
@pytest.mark.slow
def test_plain_torchrun_trains_on_hosts_whose_own_name_is_127_0_1_1(lab2: Lab) -> None:
    """As Debian writes /etc/hosts. Gloo would publish 127.0.1.1 to the other host."""
    pytest.importorskip("torch", reason="torch is not installed: pip install 'ddp-orch[trainer]'")
    first = lab2.hosts[0]
    command = (
        f"cd {ROOT} && OMP_NUM_THREADS=1 {sys.executable} -m torch.distributed.run --nnodes=2 --nproc-per-node=1 "
        f"--rdzv-backend=c10d --rdzv-endpoint={first.name}:29400 --rdzv-id=debian "
        "-m trainer --max-steps=3 --log-every=1 --track=none --out=$(mktemp -d)"
    )
    try:
        for host in lab2.hosts:
            others = [line for line in lab2.hosts_file.splitlines() if host.name not in line.split()]
            host._write_etc("hosts", "\n".join([*others, "127.0.0.1 localhost", f"127.0.1.1 {host.name}", ""]))
        started = [
            host.popen(["sh", "-c", command], "ann", stdout=PIPE, stderr=STDOUT, text=True) for host in lab2.hosts
        ]
        outputs = [process.communicate(timeout=200)[0] for process in started]
        assert [process.returncode for process in started] == [0, 0], "\n".join(outputs)
    finally:
        for host in lab2.hosts:
            host._write_etc("hosts", lab2.hosts_file)
    assert [len(losses(output)) for output in outputs].count(3) == 1
