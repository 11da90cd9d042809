"""Broken input that only hosts can tell of: one fault a case, made on one of eight hosts, or on all of them.

A case breaks `guilty` hosts and yields what the inventory says of it; afterwards it mends them. What `up` says to each
is in tests/golden/broken/hosts/NAME.one.txt and NAME.all.txt (test_broken_hosts.py). Not here, as they are elsewhere:
faults of GPUs, names, interfaces and disks that `check` finds (breakages.py), logins of all kinds (test_ssh_login.py).
"""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

from lab.host import Host
from lab.lab import CONTROLLER_ADDRESS, Lab
from lab.waiting import wait_until

from orchestrator.hosts.node_program import SOURCES

Hosts = Sequence[Host]


@dataclass
class Asked:
    """What the case's `up` is given."""

    of_guilty: dict[str, Any] = field(default_factory=dict)
    """Keys of the inventory for the broken hosts."""
    top: dict[str, Any] = field(default_factory=dict)
    """Keys of the inventory's top level."""
    env: dict[str, str] = field(default_factory=dict)
    argv: tuple[str, ...] = ("--", "train.py")


Break = Callable[[Lab, Hosts], AbstractContextManager[Asked]]


@dataclass(frozen=True)
class Case:
    name: str
    break_: Break
    code: int
    scopes: tuple[str, ...]
    """`one`: the third of the eight hosts, `head`: the first, `all`: each of them."""


CASES: list[Case] = []
BOTH, ONE, ALL, HEAD = ("one", "all"), ("one",), ("all",), ("head",)


def case(code: int, scopes: tuple[str, ...] = BOTH) -> Callable[[Callable[[Lab, Hosts], Iterator[Asked]]], Break]:
    def register(function: Callable[[Lab, Hosts], Iterator[Asked]]) -> Break:
        made: Break = contextlib.contextmanager(function)
        CASES.append(Case(function.__name__.replace("_", "-"), made, code, scopes))
        return made

    return register


def write(host: Host, path: str, text: str, mode: str = "644") -> None:
    host.sh(f"mkdir -p $(dirname {path}) && cat > {path} && chmod {mode} {path}", input=text, check=True)


def remove(guilty: Hosts, path: str) -> None:
    for host in guilty:
        host.sh(f"rm -rf {path}", "root", check=True)


# --- getting there


@case(4)
def name_that_nobody_knows(lab: Lab, guilty: Hosts) -> Iterator[Asked]:
    yield Asked({"address": "NAME.invalid"})


@case(4)
def port_that_refuses(lab: Lab, guilty: Hosts) -> Iterator[Asked]:
    yield Asked({"port": 2022})


@case(4)
def black_hole(lab: Lab, guilty: Hosts) -> Iterator[Asked]:
    for host in guilty:
        host.cut("ssh")
    yield Asked(top={"ssh": {"connect_timeout": 3}})
    for host in guilty:
        host.heal("ssh")
    lab.forget_neighbours()


@contextlib.contextmanager
def listener(lab: Lab, port: int, says: str, hang_up: bool) -> Iterator[None]:
    """Something on the controller's machine that is no sshd."""
    program = (
        "import socket, sys; kept = []; server = socket.create_server(('', int(sys.argv[1])), backlog=64)\n"
        "print('ready', flush=True)\n"
        "while True:\n"
        "    one = server.accept()[0]; one.sendall(sys.argv[2].encode())\n"
        "    one.close() if sys.argv[3] else kept.append(one)\n"
    )
    argv = [lab.python, "-c", program, str(port), says, "yes" if hang_up else ""]
    process = lab.popen(argv, stdout=subprocess.PIPE)
    assert process.stdout and process.stdout.readline() == "ready\n"
    yield
    process.kill()
    process.communicate()


def _at_listener(lab: Lab, port: int, says: str, *, hang_up: bool = False, seconds: float = 3) -> Iterator[Asked]:
    with listener(lab, port, says, hang_up):
        yield Asked({"address": CONTROLLER_ADDRESS, "port": port}, {"ssh": {"connect_timeout": seconds}})


@case(4)
def tarpit_that_never_greets(lab: Lab, guilty: Hosts) -> Iterator[Asked]:
    yield from _at_listener(lab, 2001, "")


@case(4, ONE)
def tarpit_that_greets_and_falls_silent(lab: Lab, guilty: Hosts) -> Iterator[Asked]:
    yield from _at_listener(lab, 2002, "SSH-2.0-OpenSSH_9.2\r\n")


@case(4, ONE)
def web_server_on_the_port(lab: Lab, guilty: Hosts) -> Iterator[Asked]:
    yield from _at_listener(lab, 2003, "HTTP/1.1 400 \x1b]0;owned\x07Bad [/bold]\r\n\r\n", hang_up=True)


@case(4, ONE)
def sshd_that_drops_us(lab: Lab, guilty: Hosts) -> Iterator[Asked]:
    yield from _at_listener(lab, 2004, "Not allowed at this time\r\n", hang_up=True, seconds=2)


@case(4)
def jump_host_that_nobody_knows(lab: Lab, guilty: Hosts) -> Iterator[Asked]:
    yield Asked({"proxy_jump": "bastion.invalid"})


@case(4, ONE)
def jump_host_that_cannot_reach_it(lab: Lab, guilty: Hosts) -> Iterator[Asked]:
    yield Asked({"proxy_jump": "ann@node-1", "port": 2022})


# --- who is there


@contextlib.contextmanager
def known_hosts(lab: Lab, change: Callable[[str], str]) -> Iterator[None]:
    path = lab.controller_home / ".ssh/known_hosts"
    before = path.read_text()
    path.write_text(change(before))
    yield
    assert path.read_text() == change(before)  # a key that is refused is not written down either
    path.write_text(before)


def _without(guilty: Hosts) -> Callable[[str], str]:
    gone = {host.host_key for host in guilty}
    return lambda text: "".join(line for line in text.splitlines(True) if line.split(" ", 1)[1].strip() not in gone)


@case(4)
def host_key_unknown(lab: Lab, guilty: Hosts) -> Iterator[Asked]:
    with known_hosts(lab, _without(guilty)):
        yield Asked()


@case(4)
def host_key_changed(lab: Lab, guilty: Hosts) -> Iterator[Asked]:
    other = lab.make_key(lab.directory / "other")
    lines = "".join(f"{host.address} {other}\n" for host in guilty)
    with known_hosts(lab, lambda text: _without(guilty)(text) + lines):
        yield Asked(top={"ssh": {"host_keys": "accept-new"}})


@case(4)
def host_key_revoked(lab: Lab, guilty: Hosts) -> Iterator[Asked]:
    lines = "".join(f"@revoked * {host.host_key}\n" for host in guilty)
    with known_hosts(lab, lambda text: text + lines):
        yield Asked(top={"ssh": {"host_keys": "accept-new"}})


@case(4, ONE)
def host_key_of_the_jump_host_changed(lab: Lab, guilty: Hosts) -> Iterator[Asked]:
    other, jump = lab.make_key(lab.directory / "other"), lab.hosts[7]
    with known_hosts(lab, lambda text: _without([jump])(text) + f"{jump.name} {other}\n{jump.address} {other}\n"):
        yield Asked({"proxy_jump": f"ann@{jump.name}"}, argv=("--hosts", "!node-7", "--", "train.py"))


# --- who we are


@case(4)
def user_that_is_not_there(lab: Lab, guilty: Hosts) -> Iterator[Asked]:
    yield Asked({"user": "eve"})


@case(4)
def key_that_is_not_there(lab: Lab, guilty: Hosts) -> Iterator[Asked]:
    yield Asked({"identity_file": "/nowhere/id_ed25519"})


@case(4, ONE)
def key_that_is_no_key(lab: Lab, guilty: Hosts) -> Iterator[Asked]:
    path = lab.controller_home / "id_broken"
    path.write_text("-----BEGIN OPENSSH PRIVATE KEY-----\nbm90IGEga2V5\n-----END OPENSSH PRIVATE KEY-----\n")
    path.chmod(0o600)
    yield Asked({"identity_file": str(path)})
    path.unlink()


@case(4, ALL)
def certificate_that_is_none(lab: Lab, guilty: Hosts) -> Iterator[Asked]:
    path = lab.controller_home / ".ssh/id_ed25519-cert.pub"
    path.write_text("ssh-ed25519-cert-v01@openssh.com bm90IGEga2V5\n")
    yield Asked({"user": "eve"})
    path.unlink()


@case(4, ALL)
def key_that_is_locked(lab: Lab, guilty: Hosts) -> Iterator[Asked]:
    key = lab.controller_home / ".ssh/id_ed25519"
    change = ["ssh-keygen", "-q", "-p", "-f", str(key)]
    subprocess.run([*change, "-P", "", "-N", "open sesame"], check=True, capture_output=True)
    yield Asked()
    subprocess.run([*change, "-P", "open sesame", "-N", ""], check=True, capture_output=True)


@case(4, ALL)
def too_many_keys_in_the_agent(lab: Lab, guilty: Hosts) -> Iterator[Asked]:
    socket = str(lab.directory / "agent")
    agent = lab.popen(["ssh-agent", "-D", "-a", socket], stdout=subprocess.DEVNULL)
    wait_until((lab.directory / "agent").exists, 10, "the agent listens")
    for number in range(7):
        lab.make_key(lab.directory / f"other{number}")
        lab.run(["ssh-add", "-q", str(lab.directory / f"other{number}")], env={"SSH_AUTH_SOCK": socket}, check=True)
    key = lab.controller_home / ".ssh/id_ed25519"
    key.rename(key.with_name("away"))
    yield Asked(env={"SSH_AUTH_SOCK": socket})
    key.with_name("away").rename(key)
    agent.kill()
    agent.wait()


@case(4, ONE)
def ssh_config_that_is_broken(lab: Lab, guilty: Hosts) -> Iterator[Asked]:
    path = lab.controller_home / ".ssh/config"
    before = path.read_text()
    path.write_text(before + "Hosst node-2\n  User ann\n")
    yield Asked()
    path.write_text(before)


# --- the login


def _authorized(guilty: Hosts, options: str) -> Callable[[], None]:
    files = [host.home / ".ssh/authorized_keys" for host in guilty]
    before = [file.read_text() for file in files]
    for file, text in zip(files, before, strict=True):
        file.write_text(f"{options} {text}")

    def mend() -> None:
        for file, text in zip(files, before, strict=True):
            file.write_text(text)

    return mend


@case(3)
def key_that_may_run_one_command_only(lab: Lab, guilty: Hosts) -> Iterator[Asked]:
    mend = _authorized(guilty, 'command="echo this account is for backups; exit 1"')
    yield Asked()
    mend()


@case(3, ONE)
def login_shell_that_prints_without_end(lab: Lab, guilty: Hosts) -> Iterator[Asked]:
    for host in guilty:
        write(host, "~/.bashrc", "while :; do echo welcome to the cluster; done\n")
    yield Asked()
    remove(guilty, "/home/ann/.bashrc")


@case(3, ONE)
def login_shell_that_ends(lab: Lab, guilty: Hosts) -> Iterator[Asked]:
    for host in guilty:
        write(host, "~/.bashrc", "echo your password has expired >&2; exit 3\n")
    yield Asked()
    remove(guilty, "/home/ann/.bashrc")


# --- python, torch, setup


@case(3)
def python_that_is_not_there(lab: Lab, guilty: Hosts) -> Iterator[Asked]:
    yield Asked({"python": "/opt/venv/bin/python"})


@case(3, ONE)
def python_that_is_no_program(lab: Lab, guilty: Hosts) -> Iterator[Asked]:
    yield Asked({"python": "/etc/passwd"})


@case(3, ONE)
def python_that_is_not_on_the_path(lab: Lab, guilty: Hosts) -> Iterator[Asked]:
    yield Asked({"python": "python3.99"})


@case(3)
def python_that_is_old(lab: Lab, guilty: Hosts) -> Iterator[Asked]:
    patch = "import sys; sys.version_info, sys.version = (3, 6, 9), '3.6.9 (default)'; exec(sys.argv.pop(1))"
    for host in guilty:
        write(host, "~/python", f'#!/bin/bash\nexec {lab.python} -I -S -c "{patch}" "${{@:4}}"\n', "755")
    yield Asked({"python": "/home/ann/python"})
    remove(guilty, "/home/ann/python")


@case(3)
def python_without_torch(lab: Lab, guilty: Hosts) -> Iterator[Asked]:
    for host in guilty:  # a venv of its own would take seconds
        write(host, "~/python", f'#!/bin/bash\nexec {lab.python} -S "$@"\n', "755")
    yield Asked({"python": "/home/ann/python"})
    remove(guilty, "/home/ann/python")


@case(3)
def setup_line_that_fails(lab: Lab, guilty: Hosts) -> Iterator[Asked]:
    yield Asked({"setup": ["true", "module load cuda/99"]})


@case(3, ONE)
def setup_line_with_an_open_quote(lab: Lab, guilty: Hosts) -> Iterator[Asked]:
    yield Asked({"setup": ["export NAME='it is open"]})


@case(3, ONE)
def setup_line_that_exits(lab: Lab, guilty: Hosts) -> Iterator[Asked]:
    yield Asked({"setup": ["exit 7"]})


# --- the script


@case(3)
def script_that_does_not_compile(lab: Lab, guilty: Hosts) -> Iterator[Asked]:
    for host in lab.hosts:
        write(host, "~/work/train.py", "import os\nprint('no end'\n" if host in guilty else "print(1)\n")
    yield Asked(top={"defaults": {"workdir": "/home/ann/work"}})
    remove(lab.hosts, "/home/ann/work")


@case(3)
def script_that_is_not_there(lab: Lab, guilty: Hosts) -> Iterator[Asked]:
    for host in lab.hosts:
        write(host, f"~/work/{'trian' if host in guilty else 'train'}.py", "print(1)\n")
    yield Asked(top={"defaults": {"workdir": "/home/ann/work"}})
    remove(lab.hosts, "/home/ann/work")


@case(3)
def workdir_that_is_not_there(lab: Lab, guilty: Hosts) -> Iterator[Asked]:
    yield Asked({"workdir": "/data/work"})


@case(3, ONE)
def workdir_that_is_a_file(lab: Lab, guilty: Hosts) -> Iterator[Asked]:
    yield Asked({"workdir": "/etc/passwd"})


@case(3, ALL)
def module_that_nobody_has(lab: Lab, guilty: Hosts) -> Iterator[Asked]:
    (lab.controller_home / "code/nobody.py").write_text("import torch, nonsense\n")
    yield Asked(argv=("--", "nobody.py"))
    (lab.controller_home / "code/nobody.py").unlink()


# --- the disk


@contextlib.contextmanager
def small_disk(guilty: Hosts, path: str, options: str) -> Iterator[None]:
    for host in guilty:
        host.sh(f"mkdir -p {path}", check=True)
        host.root_run(["mount", "-t", "tmpfs", "-o", f"{options},mode=0700,uid=2001,gid=2001", "disk", path])
    yield
    for host in guilty:
        host.root_run(["umount", "-l", path])


@case(3)
def no_space(lab: Lab, guilty: Hosts) -> Iterator[Asked]:
    with small_disk(guilty, "/home/ann/.local/state", "size=40m"):
        yield Asked()


@case(3, ONE)
def no_space_for_the_node_program(lab: Lab, guilty: Hosts) -> Iterator[Asked]:
    with small_disk(guilty, "/home/ann/.local/state", "size=64k"):
        yield Asked()


@case(3, ONE)
def no_more_files_for_the_node_program(lab: Lab, guilty: Hosts) -> Iterator[Asked]:
    with small_disk(guilty, "/home/ann/.local/state", "size=4g,nr_inodes=20"):
        yield Asked()


@case(3, ONE)
def no_more_files_for_the_code(lab: Lab, guilty: Hosts) -> Iterator[Asked]:
    for number in range(100):
        (lab.controller_home / f"code/module{number}.py").touch()
    files = sum(1 for _ in SOURCES.rglob("*.py")) + 140  # room for the node program and what Python caches of it
    with small_disk(guilty, "/home/ann/.local/state", f"size=4g,nr_inodes={files}"):
        yield Asked()
    for number in range(100):
        (lab.controller_home / f"code/module{number}.py").unlink()


@case(3, ONE)
def no_private_folder_for_state(lab: Lab, guilty: Hosts) -> Iterator[Asked]:
    places = "/home/ann/.local/state/ddp-orch /var/tmp/ddp-orch-2001 /tmp/ddp-orch-2001"
    for host in guilty:
        host.sh("mkdir -p ~/.local/state; rm -rf ~/.local/state/ddp-orch", check=True)
        host.sh(f"for place in {places}; do mkdir $place; chown bob $place; done", "root", check=True)
    yield Asked()
    for place in places.split():
        remove(guilty, place)


# --- what others hold, what is not there


@case(5, HEAD)
def port_that_a_stranger_holds(lab: Lab, guilty: Hosts) -> Iterator[Asked]:
    program = "import socket, time; s = socket.create_server(('', 29400)); print('ready', flush=True); time.sleep(600)"
    process = guilty[0].popen([lab.python, "-c", program], "bob", stdout=subprocess.PIPE)
    assert process.stdout and process.stdout.readline() == "ready\n"
    yield Asked(top={"run": {"rdzv": {"port": 29400}}})
    process.kill()
    process.communicate()


@case(3)
def gpus_that_are_not_there(lab: Lab, guilty: Hosts) -> Iterator[Asked]:
    yield Asked({"gpus": 2})


@case(3)
def interface_that_is_not_there(lab: Lab, guilty: Hosts) -> Iterator[Asked]:
    yield Asked({"interface": "ib7"})


@case(3, ONE)
def cluster_address_of_somebody_else(lab: Lab, guilty: Hosts) -> Iterator[Asked]:
    yield Asked({"cluster_address": "10.78.200.200"})


@case(3, HEAD)
def cluster_address_of_the_head_that_nobody_reaches(lab: Lab, guilty: Hosts) -> Iterator[Asked]:
    yield Asked({"cluster_address": "172.17.0.1"})


@case(3, ONE)
def host_that_is_there_twice(lab: Lab, guilty: Hosts) -> Iterator[Asked]:
    yield Asked({"address": lab.hosts[1].address})
