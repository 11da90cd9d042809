"""What `check` prints for people: the hosts first, the verdict last, at any width."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations
from typing import Any

import pytest
from golden_files import assert_message
from host_facts import ETH0, PYTHON, decoded, with_gpus
from host_facts import facts as facts_of

from orchestrator.commands.check_text import Report, render
from orchestrator.inventory import model
from orchestrator.output.finding import Finding
from orchestrator.plan import plan
from orchestrator.runs.mesh import Network, Pair

ERROR = Finding(
    "error", "gpu-lost", ("gpu-03",), "GPU 5 does not answer.", "ssh gpu-03 sudo nvidia-smi -r", ("Xid 79",)
)
WARNING = Finding("warning", "gpu-driver-mismatch", ("gpu-03",), "7 hosts have driver 550.54.15, not gpu-03.", "x")

REFUSED = Finding("error", "ssh-connection-refused", ("gpu-02",), "connecting to 10.0.0.2:22: refused", "ssh gpu-02")


def report(names: str, *findings: Finding, unreachable: tuple[str, ...] = (), **odd: dict[str, Any]) -> Report:
    """`odd`: the facts of a host that differs, with `_` for `-` in its name."""
    inventory = model.parse(f"hosts: ['{names}']", "inventory.yaml")
    made = plan.make(inventory, run_id="R", name="R", command=("-u", "x.py"), code=None, env={}, debug=False)
    hosts = [node.host.name for node in made.nodes]
    addresses = {host: f"10.0.0.{number}" for number, host in enumerate(hosts, 1) if host not in unreachable}
    python = {**PYTHON, "torch": "2.9.0+cu129", "python": [3, 11, 9]}
    facts = {
        host: decoded(
            odd.get(host.replace("-", "_"))
            or {**with_gpus(8, python=python), "interfaces": [{**ETH0, "address": address}]}
        )
        for host, address in addresses.items()
    }
    pairs = tuple(
        Pair(*two, addresses[two[1]], (20001, None), (), 1e-4 * (1 + hosts.index(two[0]) % 7), False, 1e9)
        for two in permutations(addresses, 2)
    )
    interfaces = dict.fromkeys(addresses, "eno2")
    head = next(iter(addresses))
    network = Network(head, addresses, interfaces, ("10.0.0.1",), {}, pairs, {}, {}) if len(addresses) > 1 else None
    ordered = tuple(sorted(findings, key=lambda finding: finding.severity))
    return Report(made, ordered, (), network, facts, frozenset(unreachable))


OLD_DRIVER = with_gpus(7, nvidia={"driver": "535.1", "cuda": "12.2", "error": None, "xids": []})
REPORTS = {
    "healthy": report("gpu-[01-03]"),
    "differs": report("gpu-[01-03]", ERROR, WARNING, gpu_03=OLD_DRIVER),
    "unreachable": report("gpu-[01-04]", REFUSED, unreachable=("gpu-02",)),
    "head-unreachable": report("gpu-[01-04]", REFUSED, unreachable=("gpu-01",)),
    "one-left": report("gpu-[01-02]", REFUSED, unreachable=("gpu-02",)),
    "64-hosts": report("gpu-[01-64]", ERROR, WARNING, gpu_03=OLD_DRIVER),
    "no-gpus": report("lovelace", lovelace=facts_of()),
}


def test_a_host_that_answers_without_the_python_of_the_inventory_is_not_called_unreachable() -> None:
    finding = Finding("error", "remote-env-differs", ("gpu-02",), "cannot run /opt/bin/python", "set python")
    text = render(report("gpu-[01-03]", finding, unreachable=("gpu-02",)), 80, colour=False)
    row = next(line for line in text.splitlines() if line.startswith("gpu-02"))
    assert row.endswith("1 error") and "unreachable" not in text


@pytest.mark.parametrize("name", REPORTS)
@pytest.mark.parametrize("width", [80, 120])
def test_the_hosts_come_first_and_the_verdict_last(name: str, width: int) -> None:
    text = render(REPORTS[name], width, colour=False)
    assert_message(f"check/{name}-{width}", text)
    assert text.startswith("HOST") and text.splitlines()[-1].startswith("next: ")
    assert max(map(len, text.splitlines())) <= width
    assert text.index("chosen:") < (text.index("[gpu-lost]") if "[gpu-lost]" in text else len(text))


def test_equal_hosts_share_a_row() -> None:
    lines = render(REPORTS["64-hosts"], 100, colour=False).splitlines()
    assert [line.split()[0] for line in lines[1:3]] == ["gpu-[01-02,04-64]", "gpu-03"]


@pytest.mark.parametrize(
    ("name", "style", "verdict"),
    [("healthy", "\x1b[32m", "ready: "), ("differs", "\x1b[1;31m", "not ready: "), ("no-gpus", "\x1b[32m", "ready: ")],
)
def test_the_verdict_is_coloured_on_a_terminal(name: str, style: str, verdict: str) -> None:
    assert f"{style}{verdict}" in render(REPORTS[name], 80, colour=True)
    assert "\x1b" not in render(REPORTS[name], 80, colour=False)


def test_a_warning_does_not_keep_hosts_from_being_ready() -> None:
    text = render(report("gpu-[01-03]", WARNING), 100, colour=True)
    assert "\x1b[33mready: 3 hosts, 24 ranks, 1 warning" in text


def test_the_next_command_names_the_inventory_as_it_was_given_and_no_script_where_it_has_one() -> None:
    made = report("gpu-[01-02]").plan
    run = replace(made.inventory.run, script="train.py")
    given = replace(made.inventory, path="@hostfile:hosts --with base.yaml", source="@hostfile:hosts")
    for inventory, expected in (
        (given, "next: ddp-orch up @hostfile:hosts --with base.yaml -- SCRIPT"),
        (replace(given, run=run), "next: ddp-orch up @hostfile:hosts --with base.yaml"),
    ):
        changed = replace(report("gpu-[01-02]"), plan=replace(made, inventory=inventory))
        assert render(changed, 100, colour=False).splitlines()[-1] == expected


def test_scattered_names_do_not_push_the_table_off_the_screen() -> None:
    odd = {f"gpu_{number:02}": OLD_DRIVER for number in range(1, 64, 3)}
    lines = render(report("gpu-[01-64]", **odd), 80, colour=False).splitlines()
    assert max(map(len, lines)) <= 80


def test_what_the_user_sets_on_all_hosts_is_not_chosen() -> None:
    healthy = REPORTS["healthy"]
    variables = {"OMP_NUM_THREADS": "1", "RES_OPTIONS": "timeout:2"}
    nodes = tuple(replace(node, env=variables) for node in healthy.plan.nodes)
    given = render(replace(healthy, plan=replace(healthy.plan, nodes=nodes)), 100, colour=False)
    chosen = render(healthy, 100, colour=False)
    assert all(name in chosen and name not in given for name in variables)
