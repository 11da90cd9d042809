"""Runs in jobs of a real Slurm, whose cancelled jobs do not end what SSH has started."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator

import pytest
from lab import slurm as lab_slurm
from lab.fixtures import assert_nothing_left
from lab.lab import Lab
from lab.slurm import Slurm
from lab.waiting import wait_until

from .driver import COUNTER

why_not = lab_slurm.missing()
pytestmark = [
    pytest.mark.lab,
    pytest.mark.timeout(300),
    pytest.mark.skipif(why_not is not None and "CI" not in os.environ, reason=str(why_not)),
]


@pytest.fixture(scope="module")
def slurm() -> Iterator[Slurm]:
    with Lab(3) as lab:
        slurm = Slurm(lab)
        keys = f"defaults: {{python: {lab.python}}}\nrun: {{launcher: direct, grace: 5}}\n"
        slurm.write("inventory.yaml", keys)
        yield slurm
        assert_nothing_left(lab)


def wait_for(slurm: Slurm, job: str, line: str) -> str:
    """The output of a job, once it has such a line."""

    def output() -> str | None:
        text = slurm.output(job).read_text() if slurm.output(job).exists() else ""
        return text if re.search(line, text, re.MULTILINE) else None

    return wait_until(output, 90, f"job {job} prints {line}")


def wait_for_state(slurm: Slurm, job: str, state: str) -> None:
    wait_until(lambda: slurm.state(job) == state, 90, f"job {job} is {state}")


def test_a_cancelled_job_leaves_no_process_on_its_hosts(slurm: Slurm) -> None:
    slurm.write("count.py", COUNTER)
    up = "ddp-orch up @slurm --with inventory.yaml --requeue -- count.py 1000 0.2"
    job = slurm.submit(f"#!/bin/bash\n{up}\n", "--nodes=3", "--time=10")
    wait_for(slurm, job, "rank 2 count 1$")
    assert all(host.marked() for host in slurm.lab.hosts)
    (spec,) = slurm.head.home.glob(".local/state/ddp-orch/*/runs/*/spec.json")
    assert 0 < json.loads(spec.read_text())["walltime"] <= 10 * 60 - 30
    slurm.run("scancel", job)
    wait_until(lambda: not slurm.lab.marked(), 30, "no marked process is left")
    assert "SIGTERM to ddp-orch" in wait_for(slurm, job, "^run .* was stopped")
    wait_for_state(slurm, job, "CANCELLED")


def test_a_requeued_job_continues_from_its_snapshot_and_ends_with_the_same_loss(slurm: Slurm) -> None:
    up = "#!/bin/bash\nexec ddp-orch up @slurm --with inventory.yaml {} -- --epochs 2 --save-every 1000000\n"
    options = ("--nodes=3", "--time=10", "--open-mode=append")
    whole = slurm.submit(up.format(""), *options)
    wait_for_state(slurm, whole, "COMPLETED")
    job = slurm.submit(up.format("--requeue"), *options)
    wait_for(slurm, job, "epoch:1 step:")
    slurm.run("scancel", "--batch", "--signal=USR1", job)  # as sbatch --signal=B:USR1@600
    slurm.start_again(job)
    output = wait_for(slurm, job, "done epoch:2")
    assert "saved epoch:" in output and "resumed epoch:" in output
    assert f"ddp-orch fetch slurm-{job}" in wait_for(slurm, job, "^run .* succeeded")

    def loss(text: str) -> list[str]:
        return re.findall(r"done epoch:2 step:\d+ (test_loss:\S+ test_acc:\S+)", text)

    assert loss(output) == loss(slurm.output(whole).read_text()) != []
