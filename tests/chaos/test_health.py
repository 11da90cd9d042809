"""Something of a host breaks in a run: before the next attempt it gives way to a spare, or the run waits for it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import fake_nvml
import pytest
from e2e.breakages import give_gpus, write
from e2e.driver import ok, orch
from lab.host import Host
from lab.lab import Lab
from lab.waiting import wait_until

from .trial import Trial, kill, trial, worker

WORK = """
import os, time
while not os.path.exists(os.path.expanduser("~/end")):
    print("rank", os.environ["RANK"], "works, attempt", os.environ["DDP_ORCH_ATTEMPT"], flush=True)
    time.sleep(0.2)
"""
DISK = "/home/ann/.local"


def hosts(lab: Lab, **of_one: Any) -> list[dict[str, Any]]:
    """All talk on the ssh network. `of_one`: more keys of node-1."""
    return [
        {
            "name": host.name,
            "address": host.address,
            "cluster_address": host.address,
            **(of_one if host.name == "node-1" else {}),
        }
        for host in lab.hosts
    ]


def fail(run: Trial, host: Host) -> None:
    for number in range(3):
        run.wait_for(f"rank {number} works, attempt 1")
    kill(host, worker(host, run.run_id))


def assert_waits(run: Trial, code: str) -> None:
    run.wait_for(f"[{code}]")
    wait_until(lambda: run.fact()["state"] == "waiting", 20, "ps shows that the run waits")
    events = ok(orch(run.lab, "events", "-i", run.inventory, run.run_id))
    assert "waits for node-1 until" in events.stderr and f"[{code}]" in events.stdout


def end(lab: Lab, run: Trial) -> None:
    run.wait_for("works, attempt 2", times=3)
    for host in lab.hosts:
        host.sh("touch ~/end", check=True)
    run.assert_ended(0, "succeeded", within=60, attempt=2)


@pytest.mark.short
def test_the_run_waits_until_a_full_disk_has_room_again(lab3: Lab) -> None:
    broken = lab3.hosts[1]
    broken.disk(DISK, "200m")
    with trial(lab3, lab3.inventory(hosts=hosts(lab3), run={"launcher": "direct", "max_restarts": 1}), WORK) as run:
        run.wait_for("rank 1 works")
        broken.sh(f"head -c 150M /dev/zero > {DISK}/filler", check=True)
        fail(run, broken)
        assert_waits(run, "disk-full")
        broken.sh(f"rm {DISK}/filler", check=True)
        end(lab3, run)


def test_a_head_with_a_full_disk_gives_up_the_lead(lab3: Lab) -> None:
    broken = lab3.hosts[0]
    broken.disk(DISK, "200m")
    run_keys = {"launcher": "direct", "max_restarts": 1, "nnodes": "2:3"}
    inventory = lab3.inventory(hosts=hosts(lab3), run=run_keys, notify={"command": "cat >> ~/news.jsonl"})
    with trial(lab3, inventory, WORK) as run:
        run.wait_for("rank 0 works")
        broken.sh(f"head -c 150M /dev/zero > {DISK}/filler", check=True)
        fail(run, broken)
        run.wait_for("gives up the lead")
        run.wait_for("works, attempt 2", times=2)
        assert "waiting for" not in run.output
        assert [node["node_rank"] for node in run.fact()["nodes"]] == [None, 0, 1]
        for host in lab3.hosts:
            host.sh("touch ~/end", check=True)
        run.assert_ended(0, "succeeded", within=60, attempt=2)
        told = ok(orch(lab3, "events", run.run_id, "-i", inventory)).stdout
        assert "node-0 gave up" in told and "majority" not in told
        found = ok(orch(lab3, "diagnose", run.run_id, "-i", inventory)).stdout
        assert "majority" not in found
    news = [host.sh("cat ~/news.jsonl").stdout for host in lab3.hosts]
    assert not news[0] and '"state": "restarting"' in news[1] and '"state": "waiting"' not in news[1]


def test_a_host_with_a_full_disk_is_shown_as_not_used(lab3: Lab) -> None:
    """Its disk does not take the record that it has no rank any more."""
    run_keys = {"launcher": "direct", "max_restarts": 1, "nnodes": "2:3"}
    broken = lab3.hosts[1]
    broken.disk(DISK, "200m")
    with trial(lab3, lab3.inventory(hosts=hosts(lab3), run=run_keys), WORK) as run:
        for number in range(3):
            run.wait_for(f"rank {number} works, attempt 1")
        broken.sh(f"cat /dev/zero > {DISK}/filler")
        kill(lab3.hosts[2], worker(lab3.hosts[2], run.run_id))
        run.wait_for("works, attempt 2", times=2)
        nodes = {node["host"]: node for node in run.fact()["nodes"]}
        assert [nodes[host.name]["node_rank"] for host in lab3.hosts] == [0, None, 1]
        assert nodes["node-1"]["unfit"] == ["disk-full"] and nodes["node-1"]["state"] == "waiting"
        page = ok(orch(lab3, "describe", run.run_id)).stdout + ok(orch(lab3, "ps", "-i", run.inventory)).stderr
        assert page.count("not used: disk-full") == 2 and "takes part" not in page
        assert " spare " in ok(orch(lab3, "top", run.run_id)).stdout
        broken.sh(f"rm {DISK}/filler", check=True)
        for host in lab3.hosts:
            host.sh("touch ~/end", check=True)
        run.assert_ended(0, "succeeded", within=60, attempt=2)


def test_the_run_waits_until_an_interface_of_nccl_is_up_again(lab3: Lab) -> None:
    broken = lab3.hosts[1]
    listed = hosts(lab3, env={"NCCL_SOCKET_IFNAME": "ens9"})
    with trial(lab3, lab3.inventory(hosts=listed, run={"launcher": "direct", "max_restarts": 1}), WORK) as run:
        run.wait_for("rank 1 works")
        wait_until(lambda: list(broken.home.glob(".local/state/*/*/runs/*/health.json")), 20, "it was measured")
        broken.root_run(["ip", "link", "set", "ens9", "down"])
        fail(run, broken)
        assert_waits(run, "gloo-ifname-no-match")
        broken.root_run(["ip", "link", "set", "ens9", "up"])
        end(lab3, run)


def with_nvml(lab: Lab, folder: Path) -> dict[str, Any]:
    """Two GPUs for each host, that nvidia-smi and NVML show."""
    base = dict(give_gpus(lab))
    library = fake_nvml.build(folder)
    for host in lab.hosts:
        write(host, "~/lib/gpus", fake_nvml.answers("0 fine", "0 fine"))
        shutil.copy(library, host.home / "lib" / library.name)
        (host.home / "lib" / library.name).chmod(0o755)
        exports = "export PATH=$HOME/bin:$PATH LD_LIBRARY_PATH=$HOME/lib FAKE_NVML=$HOME/lib/gpus\n"
        write(host, "~/.bashrc", exports)
    return base


def is_measured(host: Host) -> bool:
    paths = list(host.home.glob(".local/state/ddp-orch/*/runs/*/health.json"))
    return bool(paths) and len(json.loads(paths[0].read_text())["before"]["gpus"]) == 2


@pytest.mark.parametrize(
    ("gpu", "code"),
    [pytest.param("0 lost", "gpu-lost", marks=pytest.mark.short), ("7 fine", "gpu-ecc-error"), ("hang", "gpu-lost")],
    ids=lambda gpu: gpu,
)
def test_a_host_with_a_broken_gpu_gives_way_to_the_spare(lab4: Lab, tmp_path: Path, gpu: str, code: str) -> None:
    base = with_nvml(lab4, tmp_path)
    base["defaults"] = {**base["defaults"], "gpus": [0, 1], "nproc_per_node": 1}
    listed = hosts(lab4)
    listed[3]["spare"] = True
    inventory = lab4.inventory(hosts=listed, **base, run={"launcher": "direct", "max_restarts": 1})
    broken = lab4.hosts[1]
    with trial(lab4, inventory, WORK, "--skip-check") as run:
        for host in lab4.hosts:
            wait_until(lambda host=host: is_measured(host), 30, f"{host.name} was measured")
        write(broken, "~/lib/gpus", "hang\n" if gpu == "hang" else fake_nvml.answers("0 fine", gpu))
        fail(run, broken)
        end(lab4, run)
    assert "node-3:1" in run.output
    assert f"[{code}]" in ok(orch(lab4, "logs", run.run_id, "-i", inventory)).stdout
