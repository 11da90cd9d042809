"""Hosts from what people have: nodelists, hostfiles, Ansible inventories, variables of schedulers and clouds."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from orchestrator.commands import context
from orchestrator.errors import InventoryError, UsageError
from orchestrator.inventory import model, paths, writing
from orchestrator.inventory.advice import AboutRun, command
from orchestrator.inventory.sources import clouds, reference, schedulers
from orchestrator.inventory.sources.ansible import parse_ansible
from orchestrator.inventory.sources.hostfile import parse_hostfile
from orchestrator.inventory.sources.nodelist import expand_counts, expand_nodes
from orchestrator.inventory.sources.read_source import SourceUnavailable, read_source
from orchestrator.inventory.sources.source_host import SourceHost, SourceProblem
from orchestrator.inventory.sources.ssh_line import parse_ssh_line
from orchestrator.runs import recent

ROOT = Path(__file__).parents[2]


def fields(host: SourceHost) -> dict[str, Any]:
    return {name: value for name, value in vars(host).items() if value is not None}


def names_and_slots(hosts: tuple[SourceHost, ...]) -> list[tuple[str, int | None]]:
    return [(host.name, host.slots) for host in hosts]


@pytest.mark.parametrize(
    ("nodelist", "names"),
    [
        ("wbn098", ["wbn098"]),
        ("cn[265,297-299]", ["cn265", "cn297", "cn298", "cn299"]),
        ("n[001,007-009],m2", ["n001", "n007", "n008", "n009", "m2"]),
        ("n[2,1]", ["n2", "n1"]),  # the order of Slurm: its numbers of tasks follow it
        ("rack[0-1]n[8-10]-ib", [f"rack{rack}n{node}-ib" for rack in (0, 1) for node in (8, 9, 10)]),
        ("a[1-2].x,b-3", ["a1.x", "a2.x", "b-3"]),
    ],
)
def test_nodelists_of_slurm_are_expanded(nodelist: str, names: list[str]) -> None:
    assert list(expand_nodes(nodelist)) == names


@pytest.mark.parametrize("nodelist", ["n[001-", "n[1-2", "", "a,,b", "n[]", "n[a-b]", "n[3-1]", "n[1-99999999]", "a b"])
def test_a_nodelist_that_is_cut_off_or_invalid_is_refused(nodelist: str) -> None:
    with pytest.raises(ValueError, match=r"node|range|number"):
        expand_nodes(nodelist)


def test_counts_of_slurm_belong_to_the_nodes_in_order() -> None:
    assert expand_counts("4(x3),2", 4) == (4, 4, 4, 2)
    for counts, nodes in (("4(x3)", 2), ("4", 2), ("4(x)", 1), ("", 1)):
        with pytest.raises(ValueError, match="numbers"):
            expand_counts(counts, nodes)


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"SLURM_JOB_NODELIST": "n[1-2]"}, [("n1", None), ("n2", None)]),
        # without --ntasks, an exclusive job has one task per CPU
        ({"SLURM_JOB_NODELIST": "n[1-2]", "SLURM_TASKS_PER_NODE": "48(x2)"}, [("n1", None), ("n2", None)]),
        (
            {"SLURM_JOB_NODELIST": "n[1-2]", "SLURM_TASKS_PER_NODE": "4,2", "SLURM_NTASKS": "6"},
            [("n1", 4), ("n2", 2)],
        ),
        # one task per node, as in job scripts for torchrun: a rank per GPU
        (
            {"SLURM_JOB_NODELIST": "n[1-2]", "SLURM_TASKS_PER_NODE": "1(x2)", "SLURM_NTASKS_PER_NODE": "1"},
            [("n1", None), ("n2", None)],
        ),
        ({"SLURM_NODELIST": "n7", "SLURM_GPUS_PER_NODE": "a100:2,v100:1"}, [("n7", 3)]),
        ({"SLURM_NODELIST": "n7", "SLURM_GPUS_PER_NODE": "8"}, [("n7", 8)]),
        (
            {
                "SLURM_NODELIST": "n7",
                "SLURM_GPUS_ON_NODE": "4",
                "SLURM_TASKS_PER_NODE": "16",
                "SLURM_NTASKS": "16",
            },
            [("n7", None)],
        ),
        (
            {
                "SLURM_HET_SIZE": "2",
                "SLURM_JOB_NODELIST": "a1",
                "SLURM_JOB_NODELIST_HET_GROUP_0": "a1",
                "SLURM_JOB_NODELIST_HET_GROUP_1": "b[1-2]",
            },
            [("a1", None), ("b1", None), ("b2", None)],
        ),
    ],
)
def test_jobs_of_slurm(variables: dict[str, str], expected: list[tuple[str, int | None]]) -> None:
    assert names_and_slots(schedulers.parse_slurm(variables)) == expected


def test_only_the_first_task_of_srun_may_start_a_run() -> None:
    with pytest.raises(ValueError, match="task 3 of srun"):
        schedulers.parse_slurm({"SLURM_JOB_NODELIST": "n[1-4]", "SLURM_PROCID": "3"})


@pytest.mark.parametrize(
    ("hosts", "expected"),
    [
        ("h1 4 h2 4", ["h1", "h2"]),
        ("grid03 1 grid05 1 grid01 2", ["grid03", "grid05", "grid01"]),
        ("batch5 1 h36n01 42 h36n02 42", ["h36n01", "h36n02"]),  # the launch node of Summit
    ],
)
def test_jobs_of_lsf(hosts: str, expected: list[str]) -> None:
    assert names_and_slots(schedulers.parse_lsf({"LSB_MCPU_HOSTS": hosts})) == [(name, None) for name in expected]


def test_repeated_lines_of_a_pbs_node_file_are_slots() -> None:
    text = "x1001c0s0b0n0.hsn.cm\nx1001c0s0b0n0.hsn.cm\nx1002c0s1b0n0.hsn.cm\n"
    expected = [("x1001c0s0b0n0.hsn.cm", 2), ("x1002c0s1b0n0.hsn.cm", 1)]
    assert names_and_slots(schedulers.parse_node_file(text)) == expected
    assert names_and_slots(schedulers.parse_node_file("a\nb\n")) == [("a", None), ("b", None)]


def test_the_host_file_of_sge() -> None:
    text = "node01.local 4 all.q@node01.local UNDEFINED\nnode02.local 4 all.q@node02.local <NULL>\n"
    assert names_and_slots(schedulers.parse_sge(text)) == [("node01.local", None), ("node02.local", None)]
    with pytest.raises(SourceProblem) as refused:
        schedulers.parse_sge("node01.local\n")
    assert refused.value.lines[0][0] == 1


HOSTFILES: list[tuple[str, list[dict[str, Any]]]] = [
    ("node1 slots=8\nnode2 slots=2", [{"name": "node1", "slots": 8}, {"name": "node2", "slots": 2}]),
    ("node1   slots = 8 max_slots=8\n", [{"name": "node1", "slots": 8}]),
    ("node01:20\nnode11:32\n", [{"name": "node01", "slots": 20}, {"name": "node11", "slots": 32}]),
    ("marco1\nmarco2:2", [{"name": "marco1", "slots": 1}, {"name": "marco2", "slots": 2}]),
    ("# cluster\n\n10.0.0.1\r\n10.0.0.2 # spare\n", [{"name": "10.0.0.1"}, {"name": "10.0.0.2"}]),
    ("IP1 4\nIP2 8", [{"name": "IP1", "slots": 4}, {"name": "IP2", "slots": 8}]),
    ("a slots=2\nb slots=2\na slots=2\n", [{"name": "a", "slots": 4}, {"name": "b", "slots": 2}]),
    ("localhost:3\n", [{"name": "localhost", "slots": 3}]),
    ("fe80::1\n[fe80::2]:4", [{"name": "fe80::1", "slots": 1}, {"name": "fe80::2", "slots": 4}]),
    ("ann@gpu1:2222\n", [{"name": "gpu1", "user": "ann", "port": 2222}]),
    ("gpu1:22022\n", [{"name": "gpu1", "port": 22022}]),
    ("gpu1 slots=4 user=ann port=2222\n", [{"name": "gpu1", "slots": 4, "user": "ann", "port": 2222}]),
    (
        "ssh root@1.2.3.4 -p 40022\n$ ssh -p 40023 root@1.2.3.4 -L 8080:localhost:8080\n",
        [
            {"name": "1.2.3.4-40022", "address": "1.2.3.4", "user": "root", "port": 40022},
            {"name": "1.2.3.4-40023", "address": "1.2.3.4", "user": "root", "port": 40023},
        ],
    ),
]


@pytest.mark.parametrize(("text", "expected"), HOSTFILES)
def test_hostfiles(text: str, expected: list[dict[str, Any]]) -> None:
    assert [fields(host) for host in parse_hostfile(text)] == expected


@pytest.mark.parametrize(
    ("text", "line", "reason"),
    [
        ("a\njob-master-0 slot=8\n", 2, "'slot=8' is unknown"),
        ("10.100.0.227 slots=8max_slots=8\n", 1, "expected a number"),
        ("# x\n127.0.0.1 localhost\n", 2, "/etc/hosts"),
        ("[gpus]\nnode1\n", 1, "@ansible:FILE"),
        ('[{"ssh": "h1", "ips": ["1.2.3.4"]}]', 1, "JSON"),
        ("rank 0=aa slot=1:0-2\n", 1, "rankfile"),
        ("gpu1:22\n", 1, "22 slots, or port 22"),
        ("+n0\n", 1, "relative"),
        ("gpu[1-4] slots=8\n", 1, "range"),
        ("gpu1 slots=0\n", 1, "slots is 0"),
        ("ann@gpu1:99999\n", 1, "port"),
        ("@gpu1\n", 1, "no user"),
        ("ssh root@1.2.3.4 nvidia-smi\n", 1, "no command"),
        ("ssh -F x root@1.2.3.4\n", 1, "DDP_ORCH_SSH_CONFIG"),
        ("<html>\n", 1, "host name"),
    ],
)
def test_a_line_that_is_no_host_is_refused_with_its_number_and_the_reason(text: str, line: int, reason: str) -> None:
    with pytest.raises(SourceProblem) as refused:
        parse_hostfile(text)
    assert refused.value.lines[0][0] == line
    assert reason in refused.value.lines[0][1]


def test_a_hostfile_with_one_host_on_two_ports_and_users_of_one_name_is_refused() -> None:
    with pytest.raises(ValueError, match="listed twice"):
        parse_hostfile("ann@gpu1\nbob@gpu1\n")
    with pytest.raises(ValueError, match="lists no hosts"):
        parse_hostfile("# none\n")


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("ssh lovelace", {"name": "lovelace"}),
        ("ssh -tt -i ~/.ssh/id_rsa ann@gpu1", {"name": "gpu1", "user": "ann", "identity_file": "~/.ssh/id_rsa"}),
        ("ssh -p40022 -l root host.example", {"name": "host.example", "user": "root", "port": 40022}),
        ("ssh -o Port=2222 -oUser=ann -J b gpu1", {"name": "gpu1", "user": "ann", "port": 2222, "proxy_jump": "b"}),
        ("ssh ssh://root@1.2.3.4:40022", {"name": "1.2.3.4", "user": "root", "port": 40022}),
    ],
)  # fmt: skip
def test_command_lines_of_ssh(line: str, expected: dict[str, Any]) -> None:
    assert fields(parse_ssh_line(line)) == expected


INI = """\
# the lab
head ansible_host=10.0.0.1

[gpu]
gpu[01:02].lab ansible_port=2222   # comment
gpu9:2022 ansible_user=bob

[storage]
nas

[cluster:children]
gpu
storage

[cluster:vars]
ansible_user=ann
ansible_ssh_common_args='-o StrictHostKeyChecking=no -o ProxyCommand="ssh -p 2200 -W %h:%p eve@bastion"'
"""
YAML = """\
all:
  vars: {ansible_user: root}
  children:
    bench:
      hosts:
        wrk-6: {ansible_host: 10.40.200.106, idrac_host: 10.21.200.106}
    lab:
      hosts:
        lab-72: {ansible_host: 192.168.1.72, ansible_user: andrey}
    workers:
      children: {bench: {}}
"""
LIST = """{"_meta": {"hostvars": {"a": {"ansible_host": "10.0.0.1", "ansible_port": 2222}}},
 "all": {"children": ["gpu", "ungrouped"]}, "gpu": {"hosts": ["a", "b"]}}"""
JUMP = {"user": "ann", "proxy_jump": "eve@bastion:2200"}


@pytest.mark.parametrize(
    ("text", "group", "expected"),
    [
        (
            INI,
            "gpu",
            [
                {**JUMP, "name": "gpu01.lab", "port": 2222},
                {**JUMP, "name": "gpu02.lab", "port": 2222},
                {**JUMP, "name": "gpu9", "port": 2022, "user": "bob"},
            ],
        ),
        (INI, "ungrouped", [{"name": "head", "address": "10.0.0.1"}]),
        (YAML, "workers", [{"name": "wrk-6", "address": "10.40.200.106", "user": "root"}]),
        (YAML, "lab", [{"name": "lab-72", "address": "192.168.1.72", "user": "andrey"}]),
        (LIST, None, [{"name": "a", "address": "10.0.0.1", "port": 2222}, {"name": "b"}]),
        ("web1\nweb2 ansible_connection=local\n", None, [{"name": "web1"}, {"name": "web2", "address": "localhost"}]),
        ("[a]\nn\n[b]\nn ansible_user=u\n", "a", [{"name": "n", "user": "u"}]),
        ("[dc]\n10.[1:2].1.1\n; [red]\n; 10.0.21.62", None, [{"name": "10.1.1.1"}, {"name": "10.2.1.1"}]),
    ],
)
def test_ansible_inventories(text: str, group: str | None, expected: list[dict[str, Any]]) -> None:
    assert [fields(host) for host in parse_ansible(text, group)] == expected


def test_the_hosts_of_all_groups_come_in_the_order_of_the_file() -> None:
    assert [host.name for host in parse_ansible(INI, None)] == ["head", "gpu01.lab", "gpu02.lab", "gpu9", "nas"]


@pytest.mark.parametrize(
    ("text", "group", "line", "reason"),
    [
        ("[gpu]\na ansible_user='{{ me }}'\n", None, 2, "template"),
        ("[gpu]\na b\n", None, 2, "expected variables"),
        ("[gpu:hosts]\na\n", None, 1, ":children"),
        ("[a:children]\nb\n", None, 2, "unknown group"),
        ("[gpu]\na[1-3]\n", None, 2, "not a range"),
        ("[gpu]\na ansible_connection=winrm\n", None, 2, "winrm"),
        ("[gpu]\na ansible_ssh_common_args='-o ProxyCommand=\"nc %h %p\"'\n", None, 2, "proxy_jump"),
        ("# x\nall:\n  hosts:\n    a: {ansible_port: x}\n", None, 4, "ansible_port"),
        ("all:\n  host:\n    a:\n", None, 3, "expected `hosts`"),
    ],
)
def test_a_line_of_ansible_that_ddp_orch_cannot_use_is_refused(
    text: str, group: str | None, line: int, reason: str
) -> None:
    with pytest.raises(SourceProblem) as refused:
        parse_ansible(text, group)
    assert refused.value.lines[0][0] == line
    assert reason in refused.value.lines[0][1]


def test_an_unknown_group_of_ansible_is_refused_with_the_nearest() -> None:
    with pytest.raises(ValueError, match="gpu"):
        parse_ansible("[gpu]\na\n", "gpus")
    with pytest.raises(ValueError, match="itself"):
        parse_ansible("[a:children]\nb\n[b:children]\na\n", None)


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        (
            {"SKYPILOT_NODE_IPS": "10.0.0.1\n10.0.0.2", "SKYPILOT_NODE_RANK": "0", "SKYPILOT_NUM_GPUS_PER_NODE": "8"},
            [("10.0.0.1", 8), ("10.0.0.2", 8)],
        ),
        ({"DSTACK_NODES_IPS": "10.0.0.1\n10.0.0.2"}, [("10.0.0.1", None), ("10.0.0.2", None)]),
        (
            {"PET_MASTER_ADDR": "job-node-0-0.job", "PET_NNODES": "2", "PET_NPROC_PER_NODE": "4"},
            [("job-node-0-0.job", 4), ("job-node-0-1.job", 4)],
        ),
        (
            {"PET_MASTER_ADDR": "mnist-master-0", "PET_NNODES": "3", "PET_NPROC_PER_NODE": "auto"},
            [("mnist-master-0", None), ("mnist-worker-0", None), ("mnist-worker-1", None)],
        ),
    ],
)
def test_tasks_of_clouds(variables: dict[str, str], expected: list[tuple[str, int | None]]) -> None:
    assert names_and_slots(clouds.parse_clouds(variables)) == expected


@pytest.mark.parametrize(
    "variables",
    [
        {"SKYPILOT_NODE_IPS": "10.0.0.1\n10.0.0.2", "SKYPILOT_NODE_RANK": "1"},
        {"PET_MASTER_ADDR": "10.0.0.1", "PET_NNODES": "2"},
        {"PET_MASTER_ADDR": "job-node-0-0.job", "PET_NNODES": "1:4"},
        {"PRIMARY_ADDR": "10.65.0.2", "NUM_NODES": "2", "NODE_RANK": "0"},
    ],
)
def test_a_task_whose_nodes_are_unknown_is_refused(variables: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=r"start ddp-orch on one|does not tell|expected a number|RunPod"):
        clouds.parse_clouds(variables)


@pytest.mark.parametrize("source", ["@slurm", "@pbs", "@lsf", "@sge", "@env"])
def test_a_source_outside_of_its_job_is_unavailable(source: str) -> None:
    with pytest.raises(SourceUnavailable, match="not"):
        read_source(source, Path(), {})


@pytest.mark.parametrize(
    "source", ["@slrm", "@slurm:x", "@hostfile", "@hostfile:", "@hostfile:nosuch", "@ssh-config:x*"]
)
def test_a_source_that_does_not_exist_is_refused(source: str, tmp_path: Path) -> None:
    with pytest.raises(InventoryError, match=f"^{source}|no such file"):
        read_source(source, tmp_path, {"DDP_ORCH_SSH_CONFIG": str(tmp_path / "config")})


def test_a_file_that_is_given_as_a_source_is_named_with_its_kind(tmp_path: Path) -> None:
    (tmp_path / "machines").write_text("a\n")
    with pytest.raises(InventoryError) as refused:
        read_source("@machines", tmp_path, {})
    assert "@hostfile:machines" in str(refused.value) and "./@machines" not in str(refused.value)


def test_problems_of_a_file_name_it_with_the_line(tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text("a\nb slot=8\n" + "c x y\n" * 30)
    with pytest.raises(InventoryError) as refused:
        read_source("@hostfile:hosts", tmp_path, {})
    first, *_, last = str(refused.value).splitlines()
    assert first.startswith(f"{tmp_path}/hosts:2: ") and last.endswith("and 11 more")


def test_hosts_of_ssh_config_are_chosen_by_pattern(tmp_path: Path) -> None:
    (tmp_path / "config").write_text("Host gpu-1 gpu-2\n  User ann\nHost nas\nHost *\n  Port 22\n")
    variables = {"DDP_ORCH_SSH_CONFIG": str(tmp_path / "config")}
    assert [host.name for host in read_source("@ssh-config:gpu-*", Path(), variables)] == ["gpu-1", "gpu-2"]


# in the place of an inventory

SLURM = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-2]", "SLURM_GPUS_PER_NODE": "4"}


def test_a_source_alone_is_an_inventory() -> None:
    inventory = model.load("@slurm", variables=SLURM)
    assert [(host.name, host.nproc_per_node) for host in inventory.hosts] == [("n1", 4), ("n2", 4)]
    assert (inventory.head, inventory.source) == ("n1", "@slurm")


def test_a_file_gives_the_other_keys(tmp_path: Path) -> None:
    file = tmp_path / "base.yaml"
    file.write_text("hosts: [other]\ndefaults: {user: ann, gpus: 2}\nrun: {script: train.py}\n")
    inventory = model.load(reference.join("@slurm", str(file)), variables=SLURM)
    # `gpus` of the file wins over the number that Slurm tells
    assert [(host.name, host.user, host.nproc_per_node) for host in inventory.hosts] == [
        ("n1", "ann", "auto"),
        ("n2", "ann", "auto"),
    ]
    assert inventory.run.script == "train.py" and paths.folder(inventory) == tmp_path.resolve()


def test_an_inventory_names_its_source_and_paths_start_at_its_folder(tmp_path: Path) -> None:
    (tmp_path / "machines").write_text("a slots=2\nssh -i key b\n")
    (tmp_path / "inventory.yaml").write_text('from: "@hostfile:machines"\n')
    inventory = model.load(tmp_path / "inventory.yaml")
    assert [(host.name, host.identity_file) for host in inventory.hosts] == [("a", None), ("b", str(tmp_path / "key"))]
    assert model.parse(writing.render(inventory), "copy.yaml").hosts == inventory.hosts


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('# x\nfrom: "@slurm"\nhosts: [a]\n', "inventory.yaml:2: from:"),
        ("from: slurm\n", "inventory.yaml:1: from:"),
        ("from: [a]\n", "inventory.yaml:1: from:"),
        ('from: "@slurm"\nhead: x\n', "inventory.yaml:2: head:"),
    ],
)
def test_a_wrong_from_is_refused_with_its_line(text: str, message: str) -> None:
    with pytest.raises(InventoryError, match=message):
        model.parse(text, "inventory.yaml", variables=SLURM)


def test_command_lines_in_messages_name_the_source_but_not_for_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DDP_ORCH_INVENTORY", raising=False)
    both = reference.join("@slurm", "my base.yaml")
    assert command("check", inventory=both) == "ddp-orch check @slurm --with 'my base.yaml'"
    assert command("kill", "--leftovers", inventory="@slurm") == "ddp-orch kill --leftovers -i @slurm"
    assert AboutRun("mine", "@slurm").command("logs", "-f") == "ddp-orch logs -f mine"


def test_a_run_is_found_again_without_the_variables_of_its_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DDP_ORCH_INVENTORY", raising=False)
    (tmp_path / "inventory.yaml").write_text('from: "@slurm"\nrun: {script: train.py, sync: [data]}\n')
    started = model.load("inventory.yaml", variables=SLURM)
    copy = writing.render(paths.with_absolute_paths(started))
    recent.remember(started.path, "20261123-101010-abcd", "mine", copy=copy)
    for run in ("mine", None):
        inventory = context.load_inventory_of_run(None, None, run)
        assert inventory.hosts == started.hosts
    assert inventory.run.script == str(tmp_path / "train.py") and inventory.run.sync == (str(tmp_path / "data"),)
    assert Path(inventory.path).stat().st_mode & 0o777 == 0o600
    monkeypatch.setattr(recent, "MAX_RUNS", 1)
    recent.remember("inventory.yaml", "20261123-101011-abcd", "other")
    assert not Path(inventory.path).exists(), "copies are deleted with the run's entry"
    with pytest.raises(UsageError, match="SLURM_JOB_NODELIST"):
        context.load_inventory_of_run(None, None, None)


def orch(folder: Path, *argv: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command_line = [sys.executable, "-m", "orchestrator.cli", *argv]
    env = {**os.environ, "PYTHONPATH": str(ROOT), **environment}
    return subprocess.run(command_line, cwd=folder, env=env, capture_output=True, text=True, check=False)


def test_commands_take_a_source_in_the_place_of_an_inventory(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text("hosts: [other]\ndefaults: {python: /opt/py}\n")
    (tmp_path / "train.py").write_text("print()\n")
    words = ("up", "@slurm", "--with", "base.yaml", "--dry-run", "--json", "--", "train.py")
    plan = json.loads(orch(tmp_path, *words, **SLURM).stdout)
    assert [(node["host"], node["nproc_per_node"], node["command"][0]) for node in plan["nodes"]] == [
        ("n1", 4, "/opt/py"),
        ("n2", 4, "/opt/py"),
    ]
    result = orch(tmp_path, "config", "--with", "base.yaml")
    assert result.returncode == 2 and "--with" in result.stderr
    result = orch(tmp_path, "check", **SLURM)
    assert result.returncode == 2 and "@slurm" in result.stderr


def test_init_writes_the_hosts_of_a_source(tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text("node1 slots=8\nssh root@1.2.3.4 -p 40022\n")
    result = orch(tmp_path, "init", "--from", "@hostfile:hosts")
    assert result.returncode == 0, result.stderr
    written = model.load(tmp_path / "inventory.yaml")
    assert [(host.name, host.user, host.port, host.nproc_per_node) for host in written.hosts] == [
        ("node1", None, None, 8),
        ("1.2.3.4", "root", 40022, 1),
    ]
    result = orch(tmp_path, "init", "-o", "pasted.yaml", "ssh root@1.2.3.4 -p 40022", "lovelace")
    assert result.returncode == 0, result.stderr
    assert [host.port for host in model.load(tmp_path / "pasted.yaml").hosts] == [40022, None]


def test_init_names_hosts_that_share_an_address_by_their_ports(tmp_path: Path) -> None:
    lines = ["ssh root@1.2.3.4 -p 40022", "ssh root@1.2.3.4 -p 40023"]
    result = orch(tmp_path, "init", lines[0], "gpu[1-2]", lines[1])
    assert result.returncode == 0, result.stderr
    written = model.load(tmp_path / "inventory.yaml")
    assert [(host.name, host.address, host.port) for host in written.hosts] == [
        ("1.2.3.4-40022", "1.2.3.4", 40022),
        ("gpu1", "gpu1", None),
        ("gpu2", "gpu2", None),
        ("1.2.3.4-40023", "1.2.3.4", 40023),
    ]


@pytest.mark.parametrize(
    ("variables", "count"),
    [
        ({"SLURM_GPUS_PER_NODE": "a100:2,v100:1", "SLURM_GPUS": "6"}, 3),
        ({"SLURM_GPUS_ON_NODE": "2"}, 2),
        ({"SLURM_GPUS_ON_NODE": "2", "SLURM_GPUS": "3"}, None),
        ({}, None),
    ],
)
def test_the_gpus_that_a_job_has_on_each_host(variables: dict[str, str], count: int | None) -> None:
    job = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-2]", **variables}
    assert model.parse("{}", "@slurm", variables=job).job_gpus == count
    assert model.parse("hosts: [a]", "i", variables=job).job_gpus is None
