"""Ranks in containers of all engines. The image is empty: the programs come from mounts of the hosts."""

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
# enroot's hook for GPUs reads etc/environment, which has this line in NVIDIA's images
MAKE_FOLDER = """
mkdir -p image/usr image/etc image/proc image/dev image/sys image/run image/home image/opt image/var image/inside
mkdir -m 1777 image/tmp
for folder in bin sbin lib lib64; do ln -s usr/$folder image/$folder; done
echo saved > image/inside/word
echo NVIDIA_VISIBLE_DEVICES=all > image/etc/environment
"""
MAKE_IMAGE = MAKE_FOLDER + IMPORT
# of the engines whose images are files; apptainer's package makes the folder in which it mounts them
MAKE_FILE = {
    "apptainer": "apptainer --silent build image.sif image",
    "enroot": "mksquashfs image image.sqsh -all-root -no-progress > mksquashfs.log",
}
PREPARE = {
    "apptainer": "mount -t tmpfs tmpfs /var/lib && mkdir -p /var/lib/apptainer/mnt/session",
    "enroot": "true",
}
# both mount images with it; without udev, only root may use it
FUSE = "mknod -m 666 /run/fuse c 10 229 && mount --bind /run/fuse /dev/fuse"
WHERE = """
import os, getpass
assert os.path.exists("/inside")
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
# it needs the image after SIGTERM
SAVES_LATE = """
import signal, sys, time
def save(*_):
    time.sleep(0.5)
    print(open("/inside/word").read(), end="", flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
print("begun", flush=True)
while True:
    time.sleep(0.1)
"""

needs_podman = pytest.mark.skipif(shutil.which("podman") is None, reason="no podman here")


@pytest.fixture
def lab(make_lab: Callable[..., Lab]) -> Lab:
    lab = make_lab(2)
    for host in lab.hosts:
        # crun refuses machines that have both versions of control groups
        host.sh("mountpoint -q /sys/fs/cgroup/unified && mount -t cgroup2 none /sys/fs/cgroup", "root")
    first, second = lab.hosts
    first.sh(f"{MAKE_IMAGE}; podman save --output image.tar {IMAGE}", check=True)
    second.sh("cat > image.tar", input="", check=True)  # so that it is ann's
    shutil.copyfile(first.home / "image.tar", second.home / "image.tar")
    second.sh("podman load --input image.tar", check=True)
    return lab


def inventory_of(lab: Lab, engine: str = "podman", image: str = IMAGE, **run: object) -> Path:
    mounts = [f"{path}:ro" for path in ("/usr", "/opt", *lab.shared_paths.split()) if Path(path).exists()]
    container = {"image": image, "engine": engine, "mounts": mounts, "env": {"WORD": "it's $HOME"}}
    return lab.inventory(run={"container": container, "env": {"WORD": "of the run"}, **run})


def printed(lab: Lab, inventory: Path, run_id: str) -> list[str]:
    return [line["text"] for line in lines_of(lab, inventory, run_id) if line["stream"] == "stdout"]


def nothing_left(lab: Lab, engine: str = "podman") -> bool:
    if lab.marked():
        return False
    if engine in MAKE_FILE:
        return True  # it has no containers but their processes
    return not any(host.sh(f"{engine} ps --all --quiet", check=True).stdout.split() for host in lab.hosts)


@needs_podman
@pytest.mark.lab
@pytest.mark.parametrize("launcher", ["torchrun", pytest.param("direct", marks=pytest.mark.full)])
def test_ranks_in_containers_train_together(lab: Lab, launcher: str) -> None:
    inventory = inventory_of(lab, launcher=launcher)
    found = json.loads(ok(orch(lab, "check", inventory, "--quick", "--json")).stdout)
    assert not {each["code"] for each in found["findings"]} & {"container-image-differs", "container-engine-unusable"}
    run_id = start(lab, inventory, "--", script(lab, WHERE))
    wait_for_state(lab, inventory, run_id, "succeeded")
    assert [line["text"] for line in lines_of(lab, inventory, run_id) if line["stream"] == "stdout"] == ["sum 2"] * 2
    check_shell(lab, inventory, run_id)
    wait_until(lambda: nothing_left(lab), 5, "no process and no container is left")


def check_shell(lab: Lab, inventory: Path, run_id: str) -> None:
    line = "cat /inside/word - && echo $WORD && id -u && python3 -c 'import torch' && exit 7"
    done = orch(lab, "shell", run_id, "node-1", "-i", inventory, "--", line, input="given\n")
    assert (done.returncode, done.stdout.splitlines()) == (7, ["saved", "given", "it's $HOME", "2001"]), done.stderr


def kill_processes(host: Host, pattern: str) -> None:
    """Those of the host whose name matches."""
    host.sh(f"kill -9 $(grep -lExs '{pattern}' /proc/[0-9]*/comm | cut -d/ -f3)", "root", check=True)


def kill_runs_and_guards(lab: Lab, inventory: Path, engine: str) -> str:
    """Kill a run, a guard, a guard with its recorder, and cut a host off. Returns the id of a run that is over."""
    endless = [script(lab, COUNTER), "100000", "0.1"]

    def begin() -> str:
        run_id = start(lab, inventory, "--", *endless)
        wait_until(lambda: len(counts(lines_of(lab, inventory, run_id))) == 2, 30, "both ranks print")
        return run_id

    killed = begin()
    proof = json.loads(ok(orch(lab, "kill", killed, "-i", inventory, "--json")).stdout)
    if engine not in MAKE_FILE:
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


@needs_podman
@pytest.mark.lab
def test_no_process_and_no_container_outlives_its_run(lab: Lab) -> None:
    killed = kill_runs_and_guards(lab, inventory_of(lab, lease=2, grace=5), "podman")
    label = f"--label=ddp-orch.run=$(echo ~/.local/state/ddp-orch/*/runs/{killed})"
    left = lab.hosts[1].sh(f"podman create {label} {IMAGE} true", check=True).stdout.strip()
    proof = json.loads(ok(orch(lab, "kill", "--leftovers", "-i", inventory_of(lab), "--json")).stdout)
    assert proof["containers_removed"] == [{"host": "node-1", "engine": "podman", "id": left}]


@needs_podman
@pytest.mark.lab
def test_a_failed_rank_in_a_container_is_reported_as_elsewhere(lab: Lab) -> None:
    inventory = inventory_of(lab, launcher="direct")
    text = "import os, time\nif os.environ['RANK'] == '1': os.kill(os.getpid(), 9)\ntime.sleep(60)"
    run_id = start(lab, inventory, "--", script(lab, text))
    run = wait_for_state(lab, inventory, run_id, "failed")
    assert [(node["exit_code"], node["signal"]) for node in run["nodes"]][1] == (None, "SIGKILL"), run
    wait_until(lambda: nothing_left(lab), 5, "nothing is left")


@needs_podman
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
    assert hosts == ["node-1"] and f"podman pull {IMAGE}" in fix and "ddp-orch setup" in fix
    copied = ok(orch(lab, "setup", inventory)).stderr
    assert f"node-0: {IMAGE} kept" in copied and f"node-1: {IMAGE} copied from node-0: " in copied
    assert "container-" not in ok(orch(lab, "check", inventory, "--quick", "--json")).stdout
    lab.hosts[0].sh("mount --bind /dev/null /etc/subuid", "root", check=True)
    kill_processes(lab.hosts[0], "podman pause|catatonit")  # it keeps the ids that there were
    hosts, fix = finding("container-ids-missing")
    assert hosts == ["node-0"] and "--add-subuids" in fix


@needs_podman
@pytest.mark.lab
def test_a_run_lives_in_a_container_that_is_already_there(lab: Lab) -> None:
    volumes = " ".join(f"--volume={path}:{path}:ro" for path in ("/usr", "/opt", *lab.shared_paths.split()))
    # its own processes: the lab forbids to mount another /proc
    box = f"podman run --detach --name box --network=host --pid=host {volumes} {IMAGE} sleep infinity"
    for host in lab.hosts:
        host.sh(box, check=True)
    inventory = lab.inventory(run={"container": {"enter": "box"}, "launcher": "direct", "grace": 5})
    looks = "import os; assert os.path.exists('/inside/word') and not os.path.exists('/home/ann')\n"
    finished = start(lab, inventory, "--", script(lab, looks + COUNTER), "3", "0")
    wait_for_state(lab, inventory, finished, "succeeded")
    assert counts(lines_of(lab, inventory, finished)) == {0: [0, 1, 2], 1: [0, 1, 2]}
    line = ["exec", inventory, "--", "cat", "/inside/word"]
    assert ok(orch(lab, *line)).stdout.splitlines()[-1].endswith("saved")

    endless = start(lab, inventory, "--", "train.py", "100000", "0.1")
    wait_for_state(lab, inventory, endless, "running")
    ok(orch(lab, "kill", endless, "-i", inventory))
    assert not lab.marked()
    lab.hosts[1].sh("podman kill box", check=True)
    state = "podman container inspect --format '{{.State.Status}}' box"
    wait_until(lambda: "exited" in lab.hosts[1].sh(state).stdout, 10, "the container has ended")
    refused = ok(orch(lab, *line), 4)
    assert all(word in refused.stderr for word in ("node-1", "podman", "exited")), refused.stderr


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
    kill_runs_and_guards(docker_lab, inventory_of(docker_lab, "docker", lease=2, grace=5), "docker")


@pytest.mark.lab
@pytest.mark.full
@pytest.mark.skipif(shutil.which("dockerd") is None, reason="no dockerd here")
def test_setup_copies_an_image_from_one_docker_to_another(docker_lab: Lab) -> None:
    inventory = inventory_of(docker_lab, "docker")
    docker_lab.hosts[1].sh(f"docker rmi {IMAGE}", check=True)
    copied = ok(orch(docker_lab, "setup", inventory)).stderr
    assert f"node-1: {IMAGE} copied from node-0: " in copied
    first, second = (
        host.sh(f"docker inspect --format '{{{{.Id}}}}' {IMAGE}", check=True).stdout for host in docker_lab.hosts
    )
    assert first == second
    assert f"node-[0-1]: {IMAGE} kept" in ok(orch(docker_lab, "setup", inventory)).stderr


@pytest.fixture(params=["apptainer", "enroot"])
def file_lab(request: pytest.FixtureRequest, make_lab: Callable[..., Lab]) -> tuple[Lab, str, str]:
    """The lab, an engine whose images are files, and the path of the image on all hosts."""
    engine = str(request.param)
    if shutil.which(engine) is None:
        pytest.skip(f"no {engine} here")
    lab = make_lab(2)
    for host in lab.hosts:
        host.sh(f"{PREPARE[engine]} && {FUSE}", "root", check=True)
    first, second = lab.hosts
    first.sh(MAKE_FOLDER + MAKE_FILE[engine], check=True)
    (image,) = first.sh("echo ~/image.s*", check=True).stdout.split()
    second.sh(f"touch {image}", check=True)
    shutil.copyfile(first.home / Path(image).name, second.home / Path(image).name)
    return lab, engine, image


@pytest.mark.unpackaged
@pytest.mark.lab
@pytest.mark.parametrize("launcher", ["torchrun", "direct"])
def test_ranks_train_in_images_that_are_files(file_lab: tuple[Lab, str, str], launcher: str) -> None:
    lab, engine, image = file_lab
    inventory = inventory_of(lab, "auto", image, launcher=launcher, env={"LD_LIBRARY_PATH": "/x"})
    found = json.loads(ok(orch(lab, "check", inventory, "--quick", "--json")).stdout)
    assert not [each for each in found["findings"] if each["code"].startswith("container-")]
    libraries = "/x:/.singularity.d/libs" if engine == "apptainer" else "/x"  # there, --nv puts those of the driver
    run_id = start(lab, inventory, "--", script(lab, f"{WHERE}assert os.environ['LD_LIBRARY_PATH'] == '{libraries}'\n"))
    wait_for_state(lab, inventory, run_id, "succeeded")
    assert [line["text"] for line in lines_of(lab, inventory, run_id) if line["stream"] == "stdout"] == ["sum 2"] * 2
    check_shell(lab, inventory, run_id)
    wait_until(lambda: nothing_left(lab, engine), 5, "no process is left")


@pytest.mark.unpackaged
@pytest.mark.lab
def test_no_process_outlives_its_run_in_an_image_that_is_a_file(file_lab: tuple[Lab, str, str]) -> None:
    lab, engine, image = file_lab
    kill_runs_and_guards(lab, inventory_of(lab, engine, image, lease=2, grace=5), engine)


@pytest.mark.unpackaged
@pytest.mark.lab
def test_a_rank_may_save_before_the_image_that_is_a_file_goes(file_lab: tuple[Lab, str, str]) -> None:
    lab, engine, image = file_lab
    inventory = inventory_of(lab, engine, image, launcher="direct")
    run_id = start(lab, inventory, "--", script(lab, SAVES_LATE))
    wait_until(lambda: len(printed(lab, inventory, run_id)) == 2, 30, "both ranks print")
    ok(orch(lab, "kill", run_id, "-i", inventory))
    assert sorted(printed(lab, inventory, run_id)) == ["begun", "begun", "saved", "saved"]


@pytest.mark.unpackaged
@pytest.mark.lab
def test_a_failure_in_an_image_that_is_a_file_is_reported_as_elsewhere(file_lab: tuple[Lab, str, str]) -> None:
    lab, engine, image = file_lab
    inventory = inventory_of(lab, engine, image, launcher="direct")
    run_id = start(
        lab, inventory, "--", script(lab, "import os, time\nif os.environ['RANK'] == '1': os._exit(1)\ntime.sleep(60)")
    )
    run = wait_for_state(lab, inventory, run_id, "failed")
    assert run["nodes"][1]["exit_code"] == 1, run
    diagnosis = json.loads(ok(orch(lab, "diagnose", run_id, "-i", inventory, "--json")).stdout)
    assert [(each["hosts"], each["rank"]) for each in diagnosis["findings"]] == [(["node-1"], 1)], diagnosis

    for host in lab.hosts:
        host.sh(f"echo damaged > {image}", check=True)
    found = json.loads(orch(lab, "check", inventory, "--quick", "--json").stdout)["findings"]
    (finding,) = [each for each in found if each["code"] == "container-engine-unusable"]
    assert f"{engine} " in finding["fix"], finding
    lab.hosts[0].sh(f"rm {image}", check=True)
    found = json.loads(orch(lab, "check", inventory, "--quick", "--json").stdout)["findings"]
    (finding,) = [each for each in found if each["code"] == "container-image-missing"]
    assert finding["hosts"] == ["node-0"] and "ddp-orch setup" in finding["fix"]
    assert f"node-0: {image} copied from node-1: 8 bytes" in ok(orch(lab, "setup", inventory)).stderr
    assert lab.hosts[0].sh(f"cat {image}", check=True).stdout == "damaged\n"
