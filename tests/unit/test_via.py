"""Commands in `via`."""

from __future__ import annotations

import pytest

from orchestrator.commands import in_job
from orchestrator.errors import UsageError
from orchestrator.inventory import model, via
from orchestrator.ssh.program_dialer import second_shell


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("docker exec -i {host}", "docker exec -i box"),
        ("srun --overlap -w {host}", "srun --unbuffered --overlap -w box"),
        ("/opt/slurm/bin/srun -u -w {host}", "/opt/slurm/bin/srun -u -w box"),
    ],
)
def test_the_words_of_a_command(command: str, expected: str) -> None:
    (host,) = model.parse(f"hosts: [{{name: box, via: '{command}'}}]", "i").hosts
    assert via.argv_of(host) == tuple(expected.split())


def test_a_container_is_entered_in_a_step_of_slurm_too() -> None:
    text = "hosts: [{name: b, via: 'srun -w {host}', container: {enter: box}}, {name: c, via: 'srun -w {host}'}]"
    entered, plain = (second_shell(host) for host in model.parse(text, "i").hosts)
    assert entered.startswith("env $(") and " sh -c " in entered and " box " in f"{entered} "
    assert plain.startswith("env $(") and plain.endswith(") sh")


def test_a_run_that_slurm_ends_with_its_session_cannot_be_detached() -> None:
    inventory = model.parse("hosts: [a, {name: b, via: 'srun -w {host}'}]", "i")
    with pytest.raises(UsageError, match="srun"):
        in_job.find_job(inventory, detach=True, requeue=False)
    assert in_job.find_job(inventory, detach=False, requeue=False) is None
