"""Runs in jobs of a real Slurm, whose cancelled jobs do not end what SSH has started."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from lab import slurm as lab_slurm
from lab.fixtures import assert_nothing_left
from lab.host import PATH
from lab.lab import Lab
from lab.slurm import Slurm
from lab.waiting import wait_until

from .driver import COUNTER
from .terminals import SESSION, terminal
from .trainer_ranks import trainings

why_not = lab_slurm.missing()
pytestmark = [
    pytest.mark.lab,
    pytest.mark.timeout(420),
    pytest.mark.skipif(why_not is not None and "CI" not in os.environ, reason=str(why_not)),
]


@pytest.fixture(scope="module")
def slurm() -> Iterator[Slurm]:
    with Lab(3) as lab:
        slurm = Slurm(lab)
        run = "{launcher: direct, grace: 5, env: {OMP_NUM_THREADS: 1}}"  # the hosts share the cores of this machine
        keys = f"defaults: {{python: {lab.python}}}\nrun: {run}\n"
        slurm.write("inventory.yaml", keys)
        yield slurm
        assert_nothing_left(lab)


SAVER = """
import os, signal, sys, time
path = os.path.join(os.environ["DDP_ORCH_OUTPUT_DIR"], "count" + os.environ["RANK"])
count = 0
def save(*_):
    with open(path, "w") as file:
        file.write(str(count))
    print("saved", count, flush=True)
signal.signal(signal.SIGUSR1, save)
if os.path.exists(path):
    print("resumed", open(path).read(), flush=True)
    sys.exit()
print("begun", flush=True)
while True:
    count += 1
    time.sleep(0.05)
"""


def wait_for(slurm: Slurm, job: str, line: str, seconds: float = 90) -> str:
    """The output of a job, once it has such a line."""

    def output() -> str | None:
        text = slurm.output(job).read_text() if slurm.output(job).exists() else ""
        return text if re.search(line, text, re.MULTILINE) else None

    return wait_until(output, seconds, f"job {job} prints {line}")


def wait_for_state(slurm: Slurm, job: str, state: str) -> None:
    wait_until(lambda: slurm.state(job) == state, 90, f"job {job} is {state}")


def test_a_cancelled_job_leaves_no_process_on_its_hosts(slurm: Slurm) -> None:
    slurm.write("count.py", COUNTER)
    up = "ddp-orch up @slurm --with inventory.yaml --requeue -- count.py 1000 0.2"
    job = slurm.submit(f"#!/bin/bash\n{up}\n", "--nodes=3", "--time=10")
    shown = wait_for(slurm, job, "rank 2 count 1$")
    assert "`ddp-orch check @slurm --with inventory.yaml`" in shown  # the hosts share two networks
    assert all(host.marked() for host in slurm.lab.hosts)
    (spec,) = slurm.head.home.glob(".local/state/ddp-orch/*/runs/*/spec.json")
    assert 0 < json.loads(spec.read_text())["walltime"] <= 10 * 60 - 30
    slurm.run("scancel", job)
    wait_until(lambda: not slurm.lab.marked(), 30, "no marked process is left")
    assert "SIGTERM to ddp-orch" in wait_for(slurm, job, "^run .* was stopped")
    wait_for_state(slurm, job, "CANCELLED")
    shown = slurm.output(job).read_text()
    assert re.search(r"^[^:]*\bjob is ending\b", shown, re.MULTILINE) and "warning: the job" not in shown, shown


def test_a_requeued_job_continues_from_its_snapshot_and_ends_with_the_same_loss(slurm: Slurm, tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="torch is not installed: pip install 'ddp-orch[trainer]'")
    flags = ("--epochs=8", "--save-every=1000000")
    up = f"#!/bin/bash\nexec ddp-orch up @slurm --with inventory.yaml --requeue -- {' '.join(flags)}\n"
    job = slurm.submit(up, "--nodes=3", "--time=10", "--open-mode=append")
    wait_for(slurm, job, "epoch:1 step:")
    slurm.run("scancel", "--batch", "--signal=USR1", job)  # as sbatch --signal=B:USR1@600
    slurm.start_again(job)
    output = wait_for(slurm, job, "done epoch:8")
    assert "saved epoch:" in output and "resumed epoch:" in output
    assert "ddp-orch report" in output and "ddp-orch up" not in output  # nothing is left to do
    assert f"ddp-orch fetch slurm-{job}" in wait_for(slurm, job, "^run .* succeeded")
    (undisturbed,) = trainings(1, tmp_path, flags)
    losses = [re.findall(r"done epoch:8 step:\d+ test_loss:(\S+)", text) for text in (output, undisturbed)]
    (ended,), (expected,) = losses
    assert float(ended) == pytest.approx(float(expected), abs=2e-4)


@pytest.mark.full
@pytest.mark.parametrize(
    ("limit", "walltime"),
    [(("--time=1",), "auto"), (("--time=3", "--signal=B:USR1@90"), "null")],
    ids=["asked of squeue", "a signal of slurmctld"],
)
def test_before_slurms_time_limit_a_run_saves_and_its_job_is_queued_again(
    slurm: Slurm, limit: tuple[str, ...], walltime: str
) -> None:
    slurm.write("save.py", SAVER)
    keys = f"{{launcher: direct, grace: 5, walltime: {walltime}}}"
    slurm.write("limit.yaml", f"defaults: {{python: {slurm.lab.python}}}\nrun: {keys}\n")
    up = "#!/bin/bash\nexec ddp-orch up @slurm --with limit.yaml --requeue -- save.py\n"
    job = slurm.submit(up, "--nodes=3", "--open-mode=append", *limit)
    first = wait_for(slurm, job, "^run .* was stopped", 200)
    assert len(re.findall(r"\| saved [1-9]", first)) == 3 and "| resumed" not in first
    slurm.start_again(job)
    whole = wait_for(slurm, job, "^run .* succeeded")
    counts = [sorted(re.findall(rf"\| {word} (\d+)", whole)) for word in ("saved", "resumed")]
    assert counts[0] == counts[1] and len(counts[0]) == 3, whole


@pytest.mark.parametrize("end", ["scancel", "hangup"])
def test_the_end_of_an_interactive_job_saves_a_snapshot(slurm: Slurm, end: str) -> None:
    slurm.write("save.py", SAVER)
    python = str(Path(slurm.head.python).parent)
    env = {"SLURM_CONF": lab_slurm.CONF, "PATH": f"{python}:{PATH}", "SHELL": "/bin/bash", "TERM": "xterm"}
    salloc = [*SESSION, "salloc", "-N2", "-n2", "--kill-command=TERM"]
    name = f"inter-{end}"
    with terminal(lambda each: slurm.head.popen(salloc, env=env, stdin=each, stdout=each, stderr=each)) as user:
        job = user.wait_for(r"Granted job allocation (\d+)")[1]
        user.type(f"cd work; ddp-orch up @slurm --with inventory.yaml --name {name} -- save.py\r")
        user.wait_for(r"[^$]begun")
        assert re.search(r"terminal\b.*\bstops", user.shown), user.shown
        if end == "scancel":
            slurm.run("scancel", job)
            user.wait_for(r"stopped\b.*\bSIGHUP")
            assert "saved" in user.shown, user.shown
            user.wait_for("has been revoked")
            user.type("ddp-orch up @slurm --with inventory.yaml --name again -- save.py\r")  # in the shell that is left
            user.wait_for(rf"job {job} has ended")
        else:
            user.close()
        wait_until(lambda: not slurm.lab.marked(), 60, "no marked process is left")
    out = [list(host.home.glob(f".local/state/ddp-orch/*/out/{name}/count*")) for host in slurm.lab.hosts[:2]]
    assert [len(files) for files in out] == [1, 1], out


@pytest.fixture
def no_logins(slurm: Slurm) -> Iterator[None]:
    for host in slurm.lab.hosts:
        host.sshd_stop()
    yield
    for host in slurm.lab.hosts:
        host.sshd_start()


@pytest.mark.full
@pytest.mark.usefixtures("no_logins")
def test_srun_reaches_hosts_that_allow_no_logins(slurm: Slurm) -> None:
    without_place = "import os\nassert not [name for name in os.environ if name.startswith('SLURM')]\n"
    slurm.write("count_srun.py", without_place + COUNTER)
    keys = f"defaults: {{python: {slurm.lab.python}}}\nrun: {{launcher: direct, grace: 5}}\n"
    slurm.write("srun.yaml", keys + "ssh: {via: 'srun --overlap -N1 -n1 -w {host}'}\n")
    up = "#!/bin/bash\nexec ddp-orch up @slurm --with srun.yaml -- count_srun.py {} 0.1\n"
    options = ("--nodes=3", "--time=10")
    job = slurm.submit(up.format(20), *options)
    output = wait_for(slurm, job, "^run .* succeeded")
    assert {rank: output.count(f"rank {rank} count ") for rank in range(3)} == dict.fromkeys(range(3), 20)
    wait_for_state(slurm, job, "COMPLETED")
    job = slurm.submit(up.format(100000), *options)
    wait_for(slurm, job, "rank 2 count 1$")
    assert all(host.marked() for host in slurm.lab.hosts)
    slurm.run("scancel", job)
    wait_until(lambda: not slurm.lab.marked(), 60, "no marked process is left")


CLOSED = """#!/bin/bash
ddp-orch up -i srun-only.yaml -- count_srun.py 100000 0.1 > up.log 2>&1 &
until grep -q 'rank 2 count 1$' up.log; do sleep 0.2; done
kill -HUP $!
echo closed
sleep 600
"""


@pytest.mark.full
@pytest.mark.usefixtures("no_logins")
def test_over_srun_a_run_ends_with_the_terminal_of_up_while_the_job_continues(slurm: Slurm) -> None:
    """Slurm does not end a step whose srun was killed. The hosts are not those of @slurm."""
    slurm.write("count_srun.py", COUNTER)
    hosts = ", ".join(host.name for host in slurm.lab.hosts)
    keys = f"hosts: [{hosts}]\ndefaults: {{python: {slurm.lab.python}}}\nrun: {{launcher: direct, grace: 5}}\n"
    slurm.write("srun-only.yaml", keys + "ssh: {via: 'srun --overlap -N1 -n1 -w {host}'}\n")
    job = slurm.submit(CLOSED, "--nodes=3", "--time=10")
    wait_for(slurm, job, "^closed")
    wait_until(lambda: not slurm.lab.marked(), 60, "no marked process is left")
    assert slurm.state(job) == "RUNNING"
    slurm.run("scancel", job)
