"""Ranks in containers of podman and docker. The image is empty: the programs come from mounts of the hosts."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from lab.host import Host
from lab.lab import Lab
from lab.waiting import wait_until

from .driver import COUNTER, counts, lines_of, ok, orch, script, start, wait_for_state

IMAGE = "localhost/empty:1"
IMPORT = f"tar --owner 0 --group 0 -C image -c . | podman import - {IMAGE}"
MAKE_IMAGE = f"""
mkdir -p image/usr image/etc image/proc image/dev image/sys image/run image/home image/opt image/var
mkdir -m 1777 image/tmp
for folder in bin sbin lib lib64; do ln -s usr/$folder image/$folder; done
{IMPORT}
"""
WHERE = """
import os, getpass
assert os.path.exists("/run/.containerenv") or os.path.exists("/.dockerenv")
assert os.environ["WORD"] == "it's $HOME"
assert os.getuid() == 2001 and getpass.getuser() == "ann" and os.access(os.environ["HOME"], os.W_OK)
open(os.path.join(os.environ["DDP_ORCH_OUTPUT_DIR"], "rank" + os.environ["RANK"]), "w").close()
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
print("sum", int(total), flush=True)
dist.destroy_process_group()
"""

pytestmark = pytest.mark.skipif(shutil.which("podman") is None, reason="no podman here")


@pytest.fixture
def lab(make_lab: Callable[..., Lab]) -> Lab:
    lab = make_lab(2)
    for host in lab.hosts:
        # crun refuses machines that have both versions of control groups
        host.sh("mountpoint -q /sys/fs/cgroup/unified && mount -t cgroup2 none /sys/fs/cgroup", "root")
    first, second = lab.hosts
    first.sh(f"{MAKE_IMAGE} podman save --output image.tar {IMAGE}", check=True)
    second.sh("cat > image.tar", input="", check=True)  # so that it is ann's
    shutil.copyfile(first.home / "image.tar", second.home / "image.tar")
    second.sh("podman load --input image.tar", check=True)
    return lab


def inventory_of(lab: Lab, engine: str = "podman", **run: object) -> Path:
    mounts = [f"{path}:ro" for path in ("/usr", "/opt", *lab.shared_paths.split()) if Path(path).exists()]
    container = {"image": IMAGE, "engine": engine, "mounts": mounts}
    return lab.inventory(run={"container": container, "env": {"WORD": "it's $HOME"}, **run})


def nothing_left(lab: Lab, engine: str = "podman") -> bool:
    return not lab.marked() and not any(
        host.sh(f"{engine} ps --all --quiet", check=True).stdout.split() for host in lab.hosts
    )


@pytest.mark.lab
@pytest.mark.parametrize("launcher", ["torchrun", "direct"])
def test_ranks_in_containers_train_together(lab: Lab, launcher: str) -> None:
    inventory = inventory_of(lab, launcher=launcher)
    found = json.loads(ok(orch(lab, "check", inventory, "--quick", "--json")).stdout)
    assert not {each["code"] for each in found["findings"]} & {"container-image-differs", "container-engine-unusable"}
    run_id = start(lab, inventory, "--", script(lab, WHERE))
    wait_for_state(lab, inventory, run_id, "succeeded")
    assert [line["text"] for line in lines_of(lab, inventory, run_id) if line["stream"] == "stdout"] == ["sum 2"] * 2
    wait_until(lambda: nothing_left(lab), 5, "no process and no container is left")


def kill_processes(host: Host, pattern: str) -> None:
    """Those of the host whose name matches."""
    host.sh(f"kill -9 $(grep -lExs '{pattern}' /proc/[0-9]*/comm | cut -d/ -f3)", "root", check=True)


def kill_runs_and_guards(lab: Lab, engine: str) -> str:
    """Kill a run, a guard, a guard with its recorder, and cut a host off. Returns the id of a run that is over."""
    inventory = inventory_of(lab, engine, lease=2, grace=5)
    endless = [script(lab, COUNTER), "100000", "0.1"]

    def begin() -> str:
        run_id = start(lab, inventory, "--", *endless)
        wait_until(lambda: len(counts(lines_of(lab, inventory, run_id))) == 2, 30, "both ranks print")
        return run_id

    killed = begin()
    proof = json.loads(ok(orch(lab, "kill", killed, "-i", inventory, "--json")).stdout)
    assert {each["host"] for each in proof["containers_removed"]} == {"node-0", "node-1"}
    assert proof["remaining"] == [] and nothing_left(lab, engine)

    begin()
    kill_processes(lab.hosts[1], "ddp-guard")
    wait_until(lambda: nothing_left(lab, engine), 20, "the killed guard has left nothing")

    begin()
    kill_processes(lab.hosts[1], "ddp-(guard|record)")
    wait_until(lambda: nothing_left(lab, engine), 20, "neither have guard and recorder")

    begin()
    lab.hosts[1].cut()
    wait_until(lambda: nothing_left(lab, engine), 30, "a host that is cut off has ended its part")
    lab.hosts[1].heal()
    return killed


@pytest.mark.lab
def test_no_process_and_no_container_outlives_its_run(lab: Lab) -> None:
    killed = kill_runs_and_guards(lab, "podman")
    label = f"--label=ddp-orch.run=$(echo ~/.local/state/ddp-orch/*/runs/{killed})"
    left = lab.hosts[1].sh(f"podman create {label} {IMAGE} true", check=True).stdout.strip()
    proof = json.loads(ok(orch(lab, "kill", "--leftovers", "-i", inventory_of(lab), "--json")).stdout)
    assert proof["containers_removed"] == [{"host": "node-1", "engine": "podman", "id": left}]


@pytest.mark.lab
def test_a_failed_rank_in_a_container_is_reported_as_elsewhere(lab: Lab) -> None:
    inventory = inventory_of(lab, launcher="direct")
    text = "import os, time\nif os.environ['RANK'] == '1': os.kill(os.getpid(), 9)\ntime.sleep(60)"
    run_id = start(lab, inventory, "--", script(lab, text))
    run = wait_for_state(lab, inventory, run_id, "failed")
    assert [(node["exit_code"], node["signal"]) for node in run["nodes"]][1] == (None, "SIGKILL"), run
    wait_until(lambda: nothing_left(lab), 5, "nothing is left")


@pytest.mark.lab
def test_check_says_why_a_container_cannot_start(lab: Lab) -> None:
    inventory = inventory_of(lab)

    def finding(code: str) -> tuple[list[str], str]:
        found = json.loads(orch(lab, "check", inventory, "--quick", "--json").stdout)["findings"]
        return next((each["hosts"], each["fix"]) for each in found if each["code"] == code)

    lab.hosts[1].sh(f"mkdir image && {IMPORT}", check=True)
    hosts, fix = finding("container-image-differs")
    assert hosts == ["node-1"] and "podman save" in fix
    lab.hosts[1].sh(f"podman rmi {IMAGE}", check=True)
    hosts, fix = finding("container-image-missing")
    assert hosts == ["node-1"] and f"podman pull {IMAGE}" in fix
    lab.hosts[0].sh("mount --bind /dev/null /etc/subuid", "root", check=True)
    kill_processes(lab.hosts[0], "podman pause|catatonit")  # it keeps the ids that there were
    hosts, fix = finding("container-ids-missing")
    assert hosts == ["node-0"] and "--add-subuids" in fix


@pytest.fixture
def docker_lab(make_lab: Callable[..., Lab]) -> Iterator[Lab]:
    lab = make_lab(2)
    daemons = []
    for host in lab.hosts:
        host.sh("for path in /etc/docker /var/lib; do mount -t tmpfs tmpfs $path; done", "root", check=True)
        options = ["--iptables=false", "--bridge=none", "--data-root=/var/tmp/docker", "--storage-driver=vfs"]
        daemon = ["dockerd", *options, "--exec-root=/run/docker", "--pidfile=/run/docker.pid", "--group=ann"]
        daemons.append(host.popen(daemon, "root", stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
        wait_until(lambda host=host: host.sh("docker version").returncode == 0, 30, "dockerd answers")
        host.sh(MAKE_IMAGE.replace("podman import", "docker import"), check=True)
    yield lab
    for process in daemons:
        process.terminate()  # it ends its containerd
        process.wait(30)


@pytest.mark.lab
@pytest.mark.full
@pytest.mark.skipif(shutil.which("dockerd") is None, reason="no dockerd here")
def test_docker_leaves_nothing_either(docker_lab: Lab) -> None:
    inventory = inventory_of(docker_lab, "docker")
    run_id = start(docker_lab, inventory, "--", script(docker_lab, WHERE))
    wait_for_state(docker_lab, inventory, run_id, "succeeded")
    kill_runs_and_guards(docker_lab, "docker")
