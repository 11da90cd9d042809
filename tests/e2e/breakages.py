"""What can be wrong with hosts, and what `check` has to say of it: one case a fault, made for real in a lab of three.

A case breaks something, yields the changes of the inventory that go with it, and mends it again afterwards.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lab import systemd
from lab.host import Host
from lab.lab import Lab
from lab.memory import parent_and_limit, removed
from lab.waiting import wait_until

from . import nvidia

Overrides = Mapping[str, Any]
Break = Callable[[Lab], "contextlib.AbstractContextManager[Overrides]"]
SYSTEM_PYTHON = "/usr/bin/python3"


@dataclass(frozen=True)
class Case:
    name: str
    code: str
    guilty: tuple[int, ...]
    """Numbers of the hosts that are to be named."""
    severity: str
    break_: Break
    fix: str = ""
    """Is in the fix."""
    says: str = ""
    """Is in the message."""
    evidence: str = ""
    """Is in the evidence."""
    level: str = "--quick"
    exit_code: int = 3
    gpus: bool = False
    """All hosts have (faked) GPUs and a torch with CUDA."""
    allowed: tuple[str, ...] = ()
    """Other codes that follow from it."""
    job: Mapping[str, str] | None = None
    """Variables of a job of Slurm, which the hosts are from."""
    short: bool = False
    """Part of every run of the tests."""


CASES: list[Case] = []


def case(
    code: str, guilty: tuple[int, ...] = (1,), severity: str = "error", **options: Any
) -> Callable[[Callable[[Lab], Iterator[Overrides]]], Callable[[Lab], Iterator[Overrides]]]:
    """A generator that breaks, yields the overrides of the inventory, and mends."""
    if severity != "error":
        options.setdefault("exit_code", 0)

    def register(function: Callable[[Lab], Iterator[Overrides]]) -> Callable[[Lab], Iterator[Overrides]]:
        name = function.__name__
        CASES.append(Case(name, code, guilty, severity, contextlib.contextmanager(function), **options))
        return function

    return register


# --- helpers


def hosts(lab: Lab, **of_one: Any) -> list[dict[str, Any]]:
    """The hosts of the inventory, with something special about node-1."""
    return [
        {"name": host.name, "address": host.address, **(of_one if host.name == "node-1" else {})} for host in lab.hosts
    ]


@contextlib.contextmanager
def cron_on(hosts: Iterable[Host]) -> Iterator[None]:
    daemons = [host.popen(["cron", "-f"], "root") for host in hosts]
    for daemon in daemons:
        wait_until(lambda pid=daemon.pid: Path(f"/proc/{pid}/comm").read_text() == "cron\n", 10, "cron runs")
    yield
    for daemon in daemons:
        daemon.terminate()
        daemon.wait(10)


def write(host: Host, path: str, text: str, mode: str = "644") -> None:
    host.sh(f"mkdir -p $(dirname {path}) && cat > {path} && chmod {mode} {path}", input=text, check=True)


@contextlib.contextmanager
def file(host: Host, path: str, text: str, mode: str = "644") -> Iterator[None]:
    write(host, path, text, mode)
    yield
    host.sh(f"rm {path}", check=True)


@contextlib.contextmanager
def etc_hosts(host: Host, change: Callable[[str], str]) -> Iterator[None]:
    before = host.lab.hosts_file
    host._write_etc("hosts", change(before))
    yield
    host._write_etc("hosts", before)


@contextlib.contextmanager
def nft(host: Host, rule: str) -> Iterator[None]:
    """A firewall of one rule, in the place where administrators have theirs."""
    host.root_run(["nft", "add table inet filter"])
    host.root_run(["nft", "add chain inet filter input { type filter hook input priority 0; }"])
    host.root_run(["nft", f"add rule inet filter input {rule}"])
    yield
    host.root_run(["nft", "delete table inet filter"])


def wrapper(lab: Lab, line: str) -> str:
    """A python that does something first: `$2` is the program, after `-c`."""
    return f"#!/bin/bash\npython={lab.python}\n{line}\n"


def fake_torch(host: Host, folder: str, version: str = "2.9.0+cu124", cuda: str | None = "12.4", **others: str) -> None:
    """What a torch leaves on the disk, as far as `check` looks at it."""
    write(host, f"{folder}/torch/version.py", f"__version__ = '{version}'\ncuda: 'str | None' = {cuda!r}\n")
    write(host, f"{folder}/torch/__init__.py", "")
    for package, number in others.items():
        write(host, f"{folder}/{package}-{number}.dist-info/METADATA", "")


def setup(*lines: str, python: str | None = None) -> dict[str, Any]:
    return {"setup": list(lines)} | ({"python": python} if python else {})


def defaults(lab: Lab, **more: Any) -> dict[str, Any]:
    return {"user": "ann", "python": lab.python, **more}


# --- reaching them


@case("ssh-auth-denied", exit_code=4, says="permission denied for user ann", fix="ssh -l ann")
def wrong_key(lab: Lab) -> Iterator[Overrides]:
    keys = lab.hosts[1].home / ".ssh/authorized_keys"
    keys.rename(keys.with_name("away"))
    yield {}
    keys.with_name("away").rename(keys)


def _known_hosts(lab: Lab, change: Callable[[str], str]) -> Callable[[], None]:
    path = lab.controller_home / ".ssh/known_hosts"
    before = path.read_text()
    path.write_text("".join(change(line) for line in before.splitlines(True)))

    def mend() -> None:
        path.write_text(before)

    return mend


@case("secret-not-set", (), "warning", says="NO_SUCH_TOKEN", fix="export NO_SUCH_TOKEN=", short=True)
def a_secret_that_is_not_set_here(lab: Lab) -> Iterator[Overrides]:
    yield {"run": {"secrets": ["NO_SUCH_TOKEN", "PATH"]}}


@case("ssh-host-key-unknown", exit_code=4)
def unknown_host_key(lab: Lab) -> Iterator[Overrides]:
    address = lab.hosts[1].address
    mend = _known_hosts(lab, lambda line: "" if address in line else line)
    yield {}
    mend()


@case("ssh-host-key-changed", exit_code=4)
def changed_host_key(lab: Lab) -> Iterator[Overrides]:
    address, other = lab.hosts[1].address, lab.hosts[0].host_key
    mend = _known_hosts(lab, lambda line: f"{address} {other}\n" if line.startswith(f"{address} ") else line)
    yield {}
    mend()


@case("ssh-connection-refused", exit_code=4)
def no_sshd(lab: Lab) -> Iterator[Overrides]:
    lab.hosts[1].sshd_stop()
    yield {}
    lab.hosts[1].sshd_start()


@case("ssh-unreachable", exit_code=4)
def host_cut_off(lab: Lab) -> Iterator[Overrides]:
    lab.hosts[1].cut()
    yield {"ssh": {"connect_timeout": 2}}
    lab.hosts[1].heal()


@case("ssh-name-unresolved", exit_code=4)
def name_that_is_not_there(lab: Lab) -> Iterator[Overrides]:
    yield {"hosts": hosts(lab, address="no-such-host.invalid")}


@case("ssh-key-permissions", guilty=(0, 1, 2), exit_code=4, says="run `chmod 600 /")
def key_that_others_may_read(lab: Lab) -> Iterator[Overrides]:
    key = lab.controller_home / ".ssh/id_ed25519"
    key.chmod(0o644)
    yield {}
    key.chmod(0o600)


@case("duplicate-host", guilty=(1,))
def one_host_by_two_names(lab: Lab) -> Iterator[Overrides]:
    yield {"hosts": hosts(lab, address=lab.hosts[0].address)}


# --- python, torch, the script


@case("remote-env-differs", says="non-interactive", evidence="'/opt/none/python --version'", short=True)
def python_that_is_not_there(lab: Lab) -> Iterator[Overrides]:
    yield {"hosts": hosts(lab, python="/opt/none/python")}


@case("remote-env-differs", says="setup line 1", evidence="source ~/venv/bin/activate && ", short=True)
def setup_that_fails(lab: Lab) -> Iterator[Overrides]:
    yield {"hosts": hosts(lab, **setup("source ~/venv/bin/activate"))}


@case("missing-module-on-host", says="has no torch", fix="orch setup", allowed=("python-version-mismatch",), short=True)
def no_torch_on_one_host(lab: Lab) -> Iterator[Overrides]:
    yield {"hosts": hosts(lab, python=SYSTEM_PYTHON)}


@case("torch-version-mismatch", says="2 hosts have torch", fix="-m pip install torch==", short=True)
def another_torch(lab: Lab) -> Iterator[Overrides]:
    fake_torch(lab.hosts[1], "~/other", "2.5.1", None)
    yield {"hosts": hosts(lab, **setup("export PYTHONPATH=~/other"))}


@case("torch-too-old", guilty=(0, 1, 2), severity="warning")
def old_torch(lab: Lab) -> Iterator[Overrides]:
    for host in lab.hosts:
        fake_torch(host, "~/other", "2.1.2", None)
    yield {"defaults": defaults(lab, **setup("export PYTHONPATH=~/other"))}


@case("torch-version-mismatch", says="NCCL")
def another_nccl(lab: Lab) -> Iterator[Overrides]:
    for number, host in enumerate(lab.hosts):
        fake_torch(host, "~/other", nvidia_nccl_cu12="2.26.2" if number != 1 else "2.21.5")
    yield {"defaults": defaults(lab, **setup("export PYTHONPATH=~/other"))}


@case("torch-version-mismatch", severity="warning", says="cuDNN")
def another_cudnn(lab: Lab) -> Iterator[Overrides]:
    for number, host in enumerate(lab.hosts):
        fake_torch(host, "~/other", nvidia_cudnn_cu12="9.1.0.70" if number != 1 else "8.9.2.26")
    yield {"defaults": defaults(lab, **setup("export PYTHONPATH=~/other"))}


@case("nccl-library-conflict", severity="warning", fix="pip uninstall")
def two_nccls(lab: Lab) -> Iterator[Overrides]:
    host = lab.hosts[1]
    write(host, "~/other/nvidia_nccl_cu11-2.19.3.dist-info/METADATA", "")
    write(host, "~/other/nvidia_nccl_cu12-2.26.2.dist-info/METADATA", "")
    yield {"hosts": hosts(lab, **setup("export PYTHONPATH=~/other"))}


@case("python-version-mismatch", severity="warning", says="3.9")
def another_python(lab: Lab) -> Iterator[Overrides]:
    patch = "import sys; sys.version_info = (3, 9, 1)\nexec(sys.argv.pop(1))"
    line = f'[ "$1" = -c ] || exec $python "$@"\nexec $python -c "{patch}" "${{@:2}}"'
    write(lab.hosts[1], "~/python", wrapper(lab, line), "755")
    yield {"hosts": hosts(lab, python="/home/ann/python")}


@case("cpu-arch-mismatch", severity="warning", says="i686")
def another_architecture(lab: Lab) -> Iterator[Overrides]:
    write(lab.hosts[1], "~/python", wrapper(lab, 'exec setarch i686 $python "$@"'), "755")
    yield {"hosts": hosts(lab, python="/home/ann/python")}


def _project(lab: Lab, text: str) -> dict[str, Any]:
    (lab.controller_home / "project").mkdir(exist_ok=True)
    (lab.controller_home / "project/train.py").write_text(text)
    return {"script": "project/train.py"}


@case("script-import-error", guilty=(0, 1, 2), says="line 2")
def syntax_error(lab: Lab) -> Iterator[Overrides]:
    yield {"run": _project(lab, "import os\nprint('no end'\n")}


@case("script-import-error", guilty=(0, 1, 2), says="imports nonsense")
def module_that_nobody_has(lab: Lab) -> Iterator[Overrides]:
    yield {"run": _project(lab, "import os, nonsense\n")}


@case("missing-module-on-host", says="imports seldom", fix="pip install seldom")
def module_missing_on_one_host(lab: Lab) -> Iterator[Overrides]:
    for host in (lab.hosts[0], lab.hosts[2]):
        write(host, "~/other/seldom.py", "")
    run = _project(lab, "import os, json\nimport seldom\ntry:\n    import cupy\nexcept ImportError:\n    pass\n")
    yield {"run": run, "defaults": defaults(lab, **setup("export PYTHONPATH=~/other"))}


@case("remote-workdir-missing", says="not a folder")
def no_workdir(lab: Lab) -> Iterator[Overrides]:
    for host in (lab.hosts[0], lab.hosts[2]):
        write(host, "~/work/train.py", "print(1)\n")
    yield {"run": {"script": "train.py"}, "defaults": defaults(lab, workdir="/home/ann/work")}


@case("remote-workdir-missing", says="is missing")
def no_script(lab: Lab) -> Iterator[Overrides]:
    for host in lab.hosts:
        write(host, f"~/work/{'train' if host.name != 'node-1' else 'other'}.py", "print(1)\n")
    yield {"run": {"script": "train.py"}, "defaults": defaults(lab, workdir="/home/ann/work")}


@case("file-missing-on-host", severity="warning")
def data_on_two_of_three(lab: Lab) -> Iterator[Overrides]:
    for host in (lab.hosts[0], lab.hosts[2]):
        write(host, "~/data/0.bin", "")
    yield {"run": {**_project(lab, ""), "args": ["--images", "/home/ann/data"]}}


@case("dataset-missing", guilty=(0, 1, 2), severity="warning")
def data_nowhere(lab: Lab) -> Iterator[Overrides]:
    yield {"run": {**_project(lab, ""), "args": ["--data=/data/imagenet", "--output", "/home/ann/out"]}}


@case("file-permission-denied", severity="warning")
def data_that_may_not_be_read(lab: Lab) -> Iterator[Overrides]:
    for host in lab.hosts:
        write(host, "~/data", "")
    lab.hosts[1].sh("chmod 000 ~/data", check=True)
    yield {"run": {**_project(lab, ""), "args": ["--data", "/home/ann/data"]}}


# --- the host


@case("limit-nofile", says="only 128", fix="hard limit, which is 128")
def few_open_files(lab: Lab) -> Iterator[Overrides]:
    yield {"hosts": hosts(lab, **setup("ulimit -n 128"))}


@case("limit-nproc", severity="warning", says="only 300")
def few_processes(lab: Lab) -> Iterator[Overrides]:
    yield {"hosts": hosts(lab, **setup("ulimit -u 300"))}


@case("disk-full", says="has only", fix="du ")
def disk_full(lab: Lab) -> Iterator[Overrides]:
    lab.hosts[1].disk("/home/ann/.local", "40m")
    yield {}
    lab.hosts[1].root_run(["umount", "-l", "/home/ann/.local"])
    lab.hosts[1]._disks.clear()


@case("nccl-shm-exhausted", severity="warning", fix="remount")
def tiny_shm(lab: Lab) -> Iterator[Overrides]:
    lab.hosts[1].root_run(["mount", "-o", "remount,size=16m", "/dev/shm"])
    yield {}
    lab.hosts[1].root_run(["mount", "-o", "remount,size=50%", "/dev/shm"])


@case("memory-dir-unusable", says="run.memory_limit is 64 MiB", fix="remount")
def too_little_memory_for_snapshots(lab: Lab) -> Iterator[Overrides]:
    lab.hosts[1].root_run(["mount", "-o", "remount,size=16m", "/dev/shm"])
    yield {"run": {"memory_limit": "64MiB"}}
    lab.hosts[1].root_run(["mount", "-o", "remount,size=50%", "/dev/shm"])


@case("jit-extension-lock", severity="warning", fix="rm /home/ann/.cache/torch_extensions")
def stale_lock(lab: Lab) -> Iterator[Overrides]:
    folder = "~/.cache/torch_extensions/py311_cpu/ext"
    lab.hosts[1].sh(f"mkdir -p {folder} && touch -d '1 hour ago' {folder}/lock", check=True)
    yield {}
    lab.hosts[1].sh(f"rm {folder}/lock", check=True)


@case("orphan-workers", severity="warning", fix="kill --leftovers", short=True)
def left_process(lab: Lab) -> Iterator[Overrides]:
    process = lab.hosts[1].popen(["sleep", "600"], env={"DDP_ORCH_RUN_ID": "20260101-000000-dead"})
    yield {}
    process.kill()
    process.wait()


@contextlib.contextmanager
def login_session(host: Host) -> Iterator[None]:
    """As if systemd-logind, which kills what a login leaves behind, had put sshd's logins into sessions.

    systemd is not pid 1 here: its programs are stand-ins, of which `systemd-run` executes what it gets and logs that.
    """
    group = parent_and_limit()[0] / f"session-{host.lab.directory.name}.scope"
    write(host, "~/.bashrc", "export PATH=$HOME/bin:$PATH\n")
    write(host, "~/bin/busctl", "#!/bin/sh\necho 'b true'; echo 'as 0'; echo 'as 1 \"root\"'\n", "755")
    scope = 'while [ "${1#-}" != "$1" ]; do [ "$1" = --description ] && shift; shift; done\necho "$@" >> ~/scopes\n'
    write(host, "~/bin/systemd-run", f'#!/bin/sh\n{scope}exec "$@"\n', "755")
    host.sh(f"mkdir -p /run/systemd/system {group} && cat /run/sshd.pid > {group}/cgroup.procs", "root", check=True)
    try:
        yield
    finally:
        host.sh(f"cat /run/sshd.pid > {group.parent}/cgroup.procs; rmdir /run/systemd/system", "root", check=True)
        host.sh("rm ~/.bashrc ~/bin/busctl ~/bin/systemd-run")
        wait_until(lambda: removed(group), 10, f"{group} is empty")


@case("login-kills-run", fix="loginctl enable-linger", short=True)
def logind_that_kills(lab: Lab) -> Iterator[Overrides]:
    with login_session(lab.hosts[1]):
        yield {}


@case("login-kills-run", fix="KillUserProcesses=no")
def logind_that_kills_without_a_systemd_of_the_user(lab: Lab) -> Iterator[Overrides]:
    with login_session(lab.hosts[1]):
        write(lab.hosts[1], "~/bin/systemd-run", "#!/bin/sh\nexit 1\n", "755")
        yield {}


@case("zombies-not-reaped", severity="warning", fix="--init", short=True)
def a_container_without_an_init(lab: Lab) -> Iterator[Overrides]:
    init = lab.hosts[1].init
    os.kill(init, signal.SIGSTOP)  # process 1 of a container, such as `sleep`, does as little
    try:
        yield {}
    finally:
        os.kill(init, signal.SIGCONT)


@case("login-in-slurm-job", severity="note", fix="run.walltime")
def logins_in_a_slurm_job(lab: Lab) -> Iterator[Overrides]:
    host = lab.hosts[1]
    host.root_run(["mount", "-t", "tmpfs", "-o", "mode=0755", "pam", "/etc/pam.d"])
    write_as_root = "echo 'account required pam_slurm_adopt.so' > /etc/pam.d/sshd && chmod 644 /etc/pam.d/sshd"
    host.sh(write_as_root, "root", check=True)
    yield {}
    host.root_run(["umount", "-l", "/etc/pam.d"])


@case("clock-skew", severity="warning", says="90 s ahead", fix="set-ntp")
def clock_ahead(lab: Lab) -> Iterator[Overrides]:
    # only our node program is started with -I; its clock is the one that is compared. It replaces its process by that
    # of the relay, which here must be the same one
    patch = "import os, runpy, sys, time; real = time.time; time.time = lambda: real() + 90\n"
    patch += "os.execv = lambda _, argv: (sys.argv.__setitem__(slice(None), argv[3:]), "
    patch += "runpy.run_path(argv[3], run_name='__main__'))\n"
    line = f'[ "$1" = -I ] || exec $python "$@"\nexec $python -I -S -c "{patch}$4" "${{@:5}}"'
    write(lab.hosts[1], "~/python", wrapper(lab, line), "755")
    yield {"hosts": hosts(lab, python="/home/ann/python")}


# --- names


@case("hostname-unresolvable", severity="warning", fix="tee -a /etc/hosts")
def own_name_unknown(lab: Lab) -> Iterator[Overrides]:
    with etc_hosts(lab.hosts[1], lambda text: text.replace("10.77.0.2 node-1\n", "")):
        yield {}


@case("hostname-unresolvable", severity="note", level="", says="node-0")
def others_names_unknown(lab: Lab) -> Iterator[Overrides]:
    with etc_hosts(lab.hosts[1], lambda text: "127.0.0.1 localhost\n10.77.0.2 node-1\n"):
        yield {}


@case("gloo-loopback-address", severity="note")
def own_name_is_loopback(lab: Lab) -> Iterator[Overrides]:
    with etc_hosts(lab.hosts[1], lambda text: text.replace("10.77.0.2 node-1", "127.0.1.1 node-1")):
        yield {}


@case("dns-slow", severity="warning", says="RES_OPTIONS")
def silent_name_server(lab: Lab) -> Iterator[Overrides]:
    host = lab.hosts[1]
    host.slow_dns()
    with etc_hosts(host, lambda text: text.replace("10.77.0.2 node-1\n", "")):
        yield {}
    host.no_dns()


# --- interfaces and addresses


@case("gloo-ifname-no-match", says="eth9 does not exist", fix="interface: auto")
def no_such_interface(lab: Lab) -> Iterator[Overrides]:
    yield {"hosts": hosts(lab, interface="eth9")}


@case("gloo-ifname-no-match", says="ens9 is down", fix="ip link set ens9 up")
def interface_down(lab: Lab) -> Iterator[Overrides]:
    host = lab.hosts[1]
    host.root_run(["ip", "link", "set", "ens9", "down"])
    yield {"hosts": hosts(lab, interface="ens9")}
    host.root_run(["ip", "link", "set", "ens9", "up"])


@case("nccl-ifname-no-match", says="NCCL_SOCKET_IFNAME=ib", fix="remove NCCL_SOCKET_IFNAME")
def pattern_of_nccl(lab: Lab) -> Iterator[Overrides]:
    yield {"hosts": hosts(lab, env={"NCCL_SOCKET_IFNAME": "ib"})}


@case("gloo-ifname-no-match", says="GLOO_SOCKET_IFNAME=eth1", fix="remove GLOO_SOCKET_IFNAME")
def name_of_another_hosts_interface(lab: Lab) -> Iterator[Overrides]:
    yield {"run": {"env": {"GLOO_SOCKET_IFNAME": "eth1"}}}


@case("nccl-wrong-nic", says="not an address of this host")
def wrong_cluster_address(lab: Lab) -> Iterator[Overrides]:
    yield {"hosts": hosts(lab, cluster_address="10.78.0.200")}


@case("nccl-wrong-nic", guilty=(0,), says="172.17.0.1", level="")
def docker0_trap(lab: Lab) -> Iterator[Overrides]:
    listed = hosts(lab)
    listed[0]["interface"] = "docker0"
    yield {"hosts": listed}


@case("no-route", level="", says="10.78.0.1")
def no_route(lab: Lab) -> Iterator[Overrides]:
    host = lab.hosts[1]
    host.root_run(["ip", "address", "del", f"{host.cluster_address}/16", "dev", "ens9"])
    listed = hosts(lab)
    listed[0]["cluster_address"] = lab.hosts[0].cluster_address
    yield {"hosts": listed}
    host.root_run(["ip", "address", "add", f"{host.cluster_address}/16", "dev", "ens9"])


@case("rdzv-port-blocked", level="", says="does not reach", short=True)
def one_of_two_networks_is_dead(lab: Lab) -> Iterator[Overrides]:
    lab.hosts[1].cut("cluster")
    yield {
        "hosts": [
            {**one, "cluster_address": host.cluster_address} for one, host in zip(hosts(lab), lab.hosts, strict=True)
        ]
    }
    lab.hosts[1].heal()


@case("ipv6-unusable", severity="note", says="no IPv6")
def ipv6_half_there(lab: Lab) -> Iterator[Overrides]:
    for host in (lab.hosts[0], lab.hosts[2]):
        host.root_run(["ip", "address", "add", f"fd77::{host.address.rsplit('.', 1)[1]}/64", "dev", "eth0", "nodad"])
    yield {}
    for host in (lab.hosts[0], lab.hosts[2]):
        host.root_run(["ip", "address", "del", f"fd77::{host.address.rsplit('.', 1)[1]}/64", "dev", "eth0"])


@case("nccl-net-plugin-mismatch", fix="NCCL_NET_PLUGIN")
def plugin_on_one_host(lab: Lab) -> Iterator[Overrides]:
    write(lab.hosts[1], "~/plugin/libnccl-net.so", "")
    yield {"hosts": hosts(lab, **setup("export LD_LIBRARY_PATH=~/plugin"))}


@case("nccl-net-plugin-mismatch", severity="warning", says="libfabric.so.1", fix="LD_LIBRARY_PATH")
def libfabric_missing_on_one_host(lab: Lab) -> Iterator[Overrides]:
    for host in lab.hosts:
        write(host, "~/plugin/libnccl-net-ofi.so", "")
        if host is not lab.hosts[1]:
            write(host, "~/plugin/libfabric.so.1", "")
    yield {"defaults": defaults(lab, **setup("export LD_LIBRARY_PATH=~/plugin"))}
    write(lab.hosts[1], "~/plugin/libfabric.so.1", "")


@case("store-exposed", guilty=(0,), severity="note", says="8.8.4.1")
def public_address(lab: Lab) -> Iterator[Overrides]:
    head = lab.hosts[0]
    head.root_run(["ip", "address", "add", "8.8.4.1/32", "dev", "eth0"])
    yield {}
    head.root_run(["ip", "address", "del", "8.8.4.1/32", "dev", "eth0"])


# --- ports and paths


def _listener(lab: Lab, user: str) -> Iterator[Overrides]:
    code = "import socket, time; s = socket.create_server(('', 29500)); print('up', flush=True); time.sleep(600)"
    import subprocess

    process = lab.hosts[0].popen([SYSTEM_PYTHON, "-c", code], user, stdout=subprocess.PIPE)
    assert process.stdout is not None and process.stdout.readline() == "up\n"
    yield {"run": {"rdzv": {"port": 29500}}}
    process.kill()
    process.communicate()


@case("port-in-use", guilty=(0,), says="in use by pid", fix="ssh -l ann 10.77.0.1 kill", short=True)
def port_held_by_ourselves(lab: Lab) -> Iterator[Overrides]:
    yield from _listener(lab, "ann")


@case("port-in-use", guilty=(0,), says="another user", fix="port: auto")
def port_held_by_another_user(lab: Lab) -> Iterator[Overrides]:
    yield from _listener(lab, "bob")


@case("port-permission", guilty=(0,), says="29500 is reserved for root")
def port_of_root(lab: Lab) -> Iterator[Overrides]:
    key = "net.ipv4.ip_unprivileged_port_start"
    lab.hosts[0].root_run(["sysctl", "-q", "-w", f"{key}=30000"])
    yield {"run": {"rdzv": {"port": 29500}}}
    lab.hosts[0].root_run(["sysctl", "-q", "-w", f"{key}=1024"])


@case(
    "rdzv-port-blocked",
    guilty=(0,),
    level="",
    says="no other host reaches",
    fix="tcp dport 20000-29999 accept",
    short=True,
)
def firewall_of_the_head_drops(lab: Lab) -> Iterator[Overrides]:
    with nft(lab.hosts[0], "tcp dport 20000-29999 drop"):
        yield {}


@case("rdzv-port-blocked", guilty=(0,), level="", fix="10.77.0.2, 10.77.0.3")
def firewall_of_the_head_rejects(lab: Lab) -> Iterator[Overrides]:
    with nft(lab.hosts[0], "tcp dport 20000-29999 reject with icmpx type admin-prohibited"):
        yield {}


@case("rdzv-port-blocked", level="", says="does not reach")
def firewall_lets_one_host_not_in(lab: Lab) -> Iterator[Overrides]:
    with nft(
        lab.hosts[0],
        f"ip saddr {{ {lab.hosts[1].address}, {lab.hosts[1].cluster_address} }} tcp dport 20000-29999 drop",
    ):
        yield {}


@case("rdzv-port-blocked", level="", says="does not reach", fix="established")
def firewall_drops_what_the_head_answers(lab: Lab) -> Iterator[Overrides]:
    with nft(lab.hosts[1], "tcp dport 32768-60999 drop"):
        yield {}


@case("ephemeral-ports-blocked", level="", says="(32768-60999)", fix="dport 32768-60999", short=True)
def random_ports_dropped_one_way(lab: Lab) -> Iterator[Overrides]:
    with nft(lab.hosts[1], "tcp dport 32768-60999 ct state new drop"):
        yield {}


@case("ephemeral-ports-blocked", level="", says="rejected")
def random_ports_rejected(lab: Lab) -> Iterator[Overrides]:
    with nft(lab.hosts[1], "tcp dport 32768-60999 ct state new reject with tcp reset"):
        yield {}


@case("ephemeral-ports-blocked", level="", fix="firewall-cmd --permanent")
def random_ports_dropped_where_firewalld_is_seen(lab: Lab) -> Iterator[Overrides]:
    lab.hosts[1].root_run(["mkdir", "-p", "/run/firewalld"])
    with nft(lab.hosts[1], "tcp dport 32768-60999 ct state new drop"):
        yield {}
    lab.hosts[1].root_run(["rmdir", "/run/firewalld"])


@case("mtu-mismatch", level="", says="large packets", fix="mtu 1400", short=True)
def black_hole_for_large_packets(lab: Lab) -> Iterator[Overrides]:
    with nft(lab.hosts[1], "iifname != lo meta length gt 1400 tcp dport 20000-60999 drop"):
        yield {}


@case("mtu-mismatch", level="", severity="warning", says="2 hosts have MTU 1500")
def another_mtu(lab: Lab) -> Iterator[Overrides]:
    for interface in ("eth0", "ens9"):
        lab.hosts[1].root_run(["ip", "link", "set", interface, "mtu", "1400"])
    yield {}
    for interface in ("eth0", "ens9"):
        lab.hosts[1].root_run(["ip", "link", "set", interface, "mtu", "1500"])


@case("network-slow", level="", severity="warning", says="Mbit/s", fix="ethtool")
def slow_cable(lab: Lab) -> Iterator[Overrides]:
    lab.hosts[1].rate("10mbit")
    yield {}
    lab.hosts[1].heal()


@case("network-slow", level="", severity="warning", says="latency")
def late_network(lab: Lab) -> Iterator[Overrides]:
    lab.hosts[1].delay(30)
    yield {}
    lab.hosts[1].heal()


# --- GPUs, by what nvidia-smi says


def smi(host: Host, text: str, status: int = 0, links: str = "", topology: str = "") -> None:
    write(host, "~/bin/answer", text)
    write(host, "~/bin/nvlink", links)
    write(host, "~/bin/topo", topology)
    script = f'#!/bin/sh\n[ "$1" = -q ] || exec cat ~/bin/"$1"\ncat ~/bin/answer\nexit {status}\n'
    write(host, "~/bin/nvidia-smi", script, "755")


def give_gpus(lab: Lab) -> Overrides:
    """Two H100 for each host, and a torch with CUDA, as far as that shows without importing it."""
    for host in lab.hosts:
        write(host, "~/.bashrc", "export PATH=$HOME/bin:$PATH\n")
        smi(host, nvidia.answer({}, {}))
        fake_torch(host, "~/gpu")
    return {"defaults": defaults(lab, **setup("export PYTHONPATH=~/gpu"))}


def gpu_case(code: str, severity: str = "error", **options: Any) -> Callable[..., Any]:
    return case(code, severity=severity, gpus=True, **options)


@case("autostart-unusable", fix="cron.allow")
def a_crontab_that_is_not_allowed(lab: Lab) -> Iterator[Overrides]:
    host = lab.hosts[1]
    host.root_run(["mount", "--bind", "/bin/false", "/usr/bin/crontab"])
    with cron_on(lab.hosts):
        yield {"run": {"autostart": "cron", "max_restarts": 1}}
    host.root_run(["umount", "/usr/bin/crontab"])


@case("autostart-unusable", severity="warning", fix="entrypoint")
def a_cron_that_does_not_run(lab: Lab) -> Iterator[Overrides]:
    with cron_on([lab.hosts[0], *lab.hosts[2:]]):
        yield {"run": {"autostart": "cron", "max_restarts": 1}}


@case("autostart-unusable", fix="enable-linger")
def systemd_that_starts_nothing_without_a_login(lab: Lab) -> Iterator[Overrides]:
    with contextlib.ExitStack() as lingering:
        for host in lab.hosts:
            lingering.enter_context(systemd.linger(host))
        lab.hosts[1].root_run(["rm", "/var/lib/systemd/linger/ann"])
        yield {"run": {"autostart": "systemd", "max_restarts": 1}}


@gpu_case("gpu-memory-held-by-others", says="in use by pid", exit_code=3, short=True)
def gpu_in_use(lab: Lab) -> Iterator[Overrides]:
    held = nvidia.PROCESS.format(pid=1, used=70000)
    smi(lab.hosts[1], nvidia.answer({}, {"used": 70004, "processes": held}))
    yield {}
    smi(lab.hosts[1], nvidia.answer({}, {}))


def _gpu(
    code: str, case_name: str, says: str, severity: str = "error", *, exit_code: int | None = None, **of_gpu: object
) -> None:
    """A case in which node-1's second GPU differs."""

    def broken(lab: Lab) -> Iterator[Overrides]:
        smi(lab.hosts[1], nvidia.answer({}, of_gpu))
        yield {}
        smi(lab.hosts[1], nvidia.answer({}, {}))

    broken.__name__ = case_name
    options = {} if exit_code is None else {"exit_code": exit_code}
    gpu_case(code, severity, says=says, **options)(broken)


_gpu("gpu-memory-held-by-others", "gpu_partly_in_use", "5000 of 81559 MiB", "warning", used=5000)
_gpu("gpu-ecc-error", "ecc_errors", "3 uncorrectable memory errors", ecc=3)
_gpu("gpu-ecc-error", "row_remapping_pending", "row remapping is pending", remap_pending="Yes")
_gpu("gpu-mig-unsupported", "mig", "is split (MIG)", mig="Enabled")
_gpu("gpu-exclusive-mode", "prohibited_mode", "Prohibited", compute_mode="Prohibited")
_gpu("gpu-exclusive-mode", "exclusive_mode", "Exclusive_Process", "note", compute_mode="Exclusive_Process")
_gpu("straggler", "slowed_down_by_heat", "hw_slowdown", "warning", hw_slowdown="Active")
_gpu("straggler", "fewer_pcie_lanes", "4 of 16 PCIe lanes", "warning", lanes=4)
_gpu("gpu-clock-limited", "application_clock", "1095 of 1980 MHz", "note", application_clock=1095)
_gpu("gpu-power-limited", "power_limit", "400 of 700 W", "note", power_limit=400)
_gpu("cuda-fabricmanager-down", "no_fabric_manager", "In Progress", fabric="In Progress")
_gpu("gpu-lost", "gpu_off_its_bus", "fallen off the bus", fabric="GPU is lost")
_gpu("gpu-persistence-off", "no_persistence", "persistence mode is off", "note", persistence="Disabled")
_gpu("gpu-mismatch", "other_gpus", "2 hosts have GPUs 2 x NVIDIA H100", "warning", name="NVIDIA A100-SXM4-80GB")


@gpu_case("nvlink-inactive", "warning", says="GPU 1 has 14 active NVLinks, others have 18")
def nvlinks_down(lab: Lab) -> Iterator[Overrides]:
    smi(lab.hosts[1], nvidia.answer({}, {}), links=nvidia.links(18, 14))
    yield {}
    smi(lab.hosts[1], nvidia.answer({}, {}), links=nvidia.links(18, 18))


@gpu_case("gpu-topology-mismatch", "warning", says="2 hosts have between GPUs 1 x NV18, node-1 has 1 x PCIe")
def gpus_joined_otherwise(lab: Lab) -> Iterator[Overrides]:
    for host in lab.hosts:
        smi(host, nvidia.answer({}, {}), topology=nvidia.topology("SYS" if host is lab.hosts[1] else "NV18"))
    yield {}
    smi(lab.hosts[1], nvidia.answer({}, {}), topology=nvidia.topology("NV18"))


@gpu_case("gpu-mismatch", "warning", says="1 x NVIDIA H100")
def one_gpu_less(lab: Lab) -> Iterator[Overrides]:
    smi(lab.hosts[1], nvidia.answer({}))
    yield {}
    smi(lab.hosts[1], nvidia.answer({}, {}))


JOB = {"SLURM_JOB_ID": "42", "SLURM_JOB_NODELIST": "node-[0-2]", "SLURM_GPUS_PER_NODE": "2"}


@gpu_case("gpus-of-other-jobs", "warning", says="asked for 2", fix="scontrol", allowed=("gpu-mismatch",), job=JOB)
def gpus_beyond_those_of_the_job(lab: Lab) -> Iterator[Overrides]:
    smi(lab.hosts[1], nvidia.answer({}, {}, {}))
    yield {}
    smi(lab.hosts[1], nvidia.answer({}, {}))


@gpu_case("gpu-driver-mismatch", "warning", says="535.54.03")
def another_driver(lab: Lab) -> Iterator[Overrides]:
    smi(lab.hosts[1], nvidia.answer({}, {}, driver="535.54.03", cuda="12.2"))
    yield {}
    smi(lab.hosts[1], nvidia.answer({}, {}))


@gpu_case("cuda-driver-too-old", says="supports CUDA up to 11.4", allowed=("gpu-driver-mismatch",))
def driver_too_old(lab: Lab) -> Iterator[Overrides]:
    smi(lab.hosts[1], nvidia.answer({}, {}, driver="470.57.02", cuda="11.4"))
    yield {}
    smi(lab.hosts[1], nvidia.answer({}, {}))


@gpu_case("nvml-driver-library-mismatch", fix="reboot")
def driver_upgraded_under_the_kernel(lab: Lab) -> Iterator[Overrides]:
    smi(lab.hosts[1], "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 550.144\n", 18)
    yield {}
    smi(lab.hosts[1], nvidia.answer({}, {}))


@gpu_case("gpu-lost", says="Unable to determine")
def device_handle(lab: Lab) -> Iterator[Overrides]:
    smi(lab.hosts[1], "Unable to determine the device handle for GPU0000:3B:00.0: Unknown Error\n", 15)
    yield {}
    smi(lab.hosts[1], nvidia.answer({}, {}))


@gpu_case("no-gpu-visible", says="couldn't communicate")
def driver_not_loaded(lab: Lab) -> Iterator[Overrides]:
    smi(lab.hosts[1], "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure\n", 9)
    yield {}
    smi(lab.hosts[1], nvidia.answer({}, {}))


@gpu_case("no-gpu-visible", says="has no GPU")
def no_driver_at_all(lab: Lab) -> Iterator[Overrides]:
    lab.hosts[1].sh("mv ~/bin/nvidia-smi ~/bin/away", check=True)
    yield {}
    lab.hosts[1].sh("mv ~/bin/away ~/bin/nvidia-smi", check=True)


@gpu_case("no-gpu-visible", says="built without CUDA", allowed=("torch-version-mismatch",))
def torch_without_cuda(lab: Lab) -> Iterator[Overrides]:
    fake_torch(lab.hosts[1], "~/gpu", "2.9.0+cpu", None)
    yield {}
    fake_torch(lab.hosts[1], "~/gpu")


@gpu_case("no-gpu-visible", says="`gpus` lists 5, but")
def gpu_that_is_not_there(lab: Lab) -> Iterator[Overrides]:
    yield {"hosts": hosts(lab, gpus=[0, 5])}


@gpu_case("nproc-exceeds-gpus", says="3 ranks, but only 2 GPUs", fix="nproc_per_node: 2")
def more_ranks_than_gpus(lab: Lab) -> Iterator[Overrides]:
    yield {"hosts": hosts(lab, nproc_per_node=3)}


@gpu_case("gpu-xid-fault", "warning", says="Xid 119")
def fault_in_the_kernels_log(lab: Lab) -> Iterator[Overrides]:
    line = (
        "[  42.1] NVRM: Xid (PCI:0000:02:00): 119, pid=811, name=python, Timeout after 45s of waiting for RPC response"
    )
    write(lab.hosts[1], "~/bin/dmesg", f"#!/bin/sh\necho '{line}'\n", "755")
    yield {}
    lab.hosts[1].sh("rm ~/bin/dmesg", check=True)
