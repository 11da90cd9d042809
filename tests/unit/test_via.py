"""Commands in `via`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fake_relay import A_RUN, part_of

from orchestrator.answers.rejoin import REJOIN, Private, Ticket
from orchestrator.answers.runs import LIST, RunList
from orchestrator.commands import add, in_job
from orchestrator.errors import UsageError
from orchestrator.hosts.fleet import Fleet, Results, Work
from orchestrator.inventory import model, via
from orchestrator.inventory.model import Host
from orchestrator.runs import attach, revive
from orchestrator.ssh.program_dialer import second_shell

MIXED = "hosts: [a, {name: b, via: 'srun -w {host}'}]"


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
    inventory = model.parse(MIXED, "i")
    with pytest.raises(UsageError, match="srun"):
        in_job.find_job(inventory, detach=True, requeue=False)
    assert in_job.find_job(inventory, detach=False, requeue=False) is None


@pytest.mark.parametrize("count", [1, 2])
def test_up_says_what_happens_to_the_run_when_its_terminal_is_closed(count: int) -> None:
    """Slurm ends it, as soon as one of its hosts is reached with srun."""
    hosts = model.parse(MIXED, "i").hosts[:count]
    said = [in_job.describe_closing(hosts, {}, "FOLLOW"), in_job.describe_detached(hosts, None, "FOLLOW")]
    if count == 1:
        assert "does not stop" in said[0] and "continues" in said[1]
    else:
        assert all("srun" in text and " ends " in text for text in said)
    in_slurm = in_job.describe_closing(hosts, {"SLURM_JOB_ID": "7"}, "FOLLOW")
    assert "slurm" in in_slurm and "stops" in in_slurm and "snapshot" in in_slurm


def test_a_host_whose_guard_would_end_with_the_command_is_not_added(tmp_path: Path) -> None:
    (tmp_path / "inventory.yaml").write_text(MIXED)
    with pytest.raises(UsageError, match="srun"):
        add.add_host("run-1", "b", str(tmp_path / "inventory.yaml"), as_json=False)


class Rejoining(Fleet):
    """Hosts that take their guard back."""

    def __init__(self) -> None:
        self.rejoined: list[str] = []

    def session(self, host: Host) -> Any:
        return HostSession(self, host)

    def each(self, hosts: Any, work: Any, doing: str = "", **_: Any) -> Results[Any]:
        return Work(hosts, lambda host: work(host, self.session(host)), 2).wait()


class HostSession:
    def __init__(self, fleet: Rejoining, host: Host) -> None:
        self._fleet, self._host = fleet, host

    def request(self, operation: Any, _: Any) -> Ticket | RunList:
        if operation is LIST:
            return RunList((part_of(hosts=list(NODES), nprocs=[1] * len(NODES)),))
        if operation is REJOIN:
            self._fleet.rejoined.append(self._host.name)
        return Ticket(Private({}, "0" * 64, {}))


THREE = "hosts: [a, b, {name: c, via: 'srun -w {host}'}]"
NODES = {"a": 0, "b": 1, "c": 2}


def test_only_guards_that_outlive_the_command_are_started_again() -> None:
    parts = {
        name: part_of(node=node, host=name, state="running" if node == 0 else "lost", hosts=list(NODES))
        for name, node in NODES.items()
    }
    fleet = Rejoining()
    revived = revive.revive("run-1", NODES, parts, model.parse(THREE, "i").hosts, fleet)
    assert (fleet.rejoined, revived.hosts) == (["b"], ("b",))
    assert "srun" in str(revived.failed["c"])


@pytest.mark.parametrize("attached", [False, True])
def test_only_up_brings_a_host_back_whose_guard_ends_with_the_program(attached: bool) -> None:
    """The other guards end with `up` as well. Those of a run that `logs -f` or `top` follows do not."""
    fleet, warnings, hosts = Rejoining(), list[str](), model.parse(THREE, "i").hosts
    options = {"check": attach.may_revive} if attached else {}
    reviver = revive.Reviver(A_RUN["run_id"], NODES, hosts, fleet, lambda _: None, warnings.append, **options)
    for host in hosts[1:] * 2:
        reviver.revive(host)
    assert set(fleet.rejoined) == ({"b", "c"} if attached else {"b"})
    assert [warning for warning in warnings if "srun" not in warning] == []
    assert len(warnings) == (0 if attached else 1)
