"""`setup`: make hosts ready to train, without root: a venv with the same torch on each. Nothing is done twice."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ..answers.decode import MalformedAnswer, decode
from ..answers.printed import FoundPython
from ..errors import FindingsError, UsageError
from ..hosts.fleet import Fleet, combine, each, fold_failures
from ..inventory import model
from ..inventory.model import Host
from ..output.console import Console, fold
from ..output.terminal import one_line
from ..ssh.dialer import quote
from ..ssh.pipe import ConnectFailure
from .context import load_inventory, open_fleet, stderr_console

VENV = ".local/share/ddp-orch/venv"  # below the home
VERSION = r"[0-9]+(\.[0-9]+)*((a|b|rc|\.post|\.dev)[0-9]+)*(\+[A-Za-z0-9.]+)?"
LOOKING = "looking for torch"
PYTHON_LEAST = (3, 9)  # of torch 2.4 and newer: 3.8 has none

# What a python is and has; torch is not imported.
LOOK = """
import sys
if "" in sys.path: sys.path.remove("")  # -c put the folder of the login there, and a json.py in it must not be ours
import importlib.metadata, importlib.util, json, os
try: torch = importlib.metadata.version("torch")
except importlib.metadata.PackageNotFoundError: torch = None
venv = all(importlib.util.find_spec(name) for name in ("venv", "ensurepip"))
print(json.dumps({"executable": sys.executable, "python": list(sys.version_info[:2]), "torch": torch, "venv": venv,
                  "home": os.path.expanduser("~")}))
"""


# $1 python, $2 the venv, then what pip is to install. A venv that was cut off has no pip: it is made again.
INSTALL = """
set -e
python=$1; venv=$2; shift 2
"$venv/bin/python" -m pip --version > /dev/null 2>&1 || "$python" -m venv --clear "$venv"
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-input "$@"
"""

# Runs a command while it holds the lock of a venv: workers may share a home that the head does not have.
LOCKED = """
import fcntl, os, sys
path = sys.argv[1] + ".lock"
os.makedirs(os.path.dirname(path), exist_ok=True)
lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
try: fcntl.flock(lock, fcntl.LOCK_EX)
except OSError: pass  # a file system without locks
os.set_inheritable(lock, True)
os.execvp(sys.argv[2], sys.argv[2:])
"""

# In what pip says when it does not get to the package index.
UNREACHED = re.compile(
    r"Temporary failure in name resolution|Name or service not known|No address associated with hostname"
    r"|Connection refused|Network is unreachable|No route to host|CERTIFICATE_VERIFY_FAILED"
    r"|Tunnel connection failed: \d+ [\w -]+|(?:[Rr]ead |[Cc]onnection |connect )timed out"
)


@dataclass(frozen=True)
class SetupOptions:
    """`setup` as it was asked for."""

    torch: str | None
    """A version; None: what the head gets or has."""
    index_url: str | None
    wheels: str | None = None
    """A folder on every host, taken instead of an index."""


@dataclass(frozen=True)
class Ready:
    python: str
    torch: str
    done: str
    """`kept` or `installed`."""


def setup(given: str | None, hosts: str | None, wanted: SetupOptions) -> int:
    """Exit code: 0 all are ready, 3 one is not, 4 one was not reached."""
    if wanted.torch is not None and not re.fullmatch(VERSION, wanted.torch):
        raise UsageError(f"--torch {wanted.torch!r}: expected a version such as 2.9.1 or 2.9.1+cu126")
    if wanted.index_url is not None and not re.fullmatch(r"(https?|file)://\S+", wanted.index_url):
        raise UsageError(
            f"--index-url {wanted.index_url!r}: expected a URL such as https://download.pytorch.org/whl/cpu"
        )
    if wanted.wheels is not None and not wanted.wheels.startswith("/"):
        raise UsageError(f"--wheels {wanted.wheels!r}: expected the absolute path of a folder on the hosts")
    if wanted.wheels is not None and wanted.index_url is not None:
        raise UsageError("--wheels and --index-url cannot be combined")
    console = stderr_console()
    read = load_inventory(given)
    if hosts is not None:
        read = model.select(read, hosts)
    with open_fleet(read) as fleet:
        fleet.prepare(read.hosts)
        _let_in(read.hosts, fleet)
        head = [host for host in read.hosts if host.name == read.head]
        others = [host for host in read.hosts if host.name != read.head]
        first = each(head, lambda host: _ready(host, fleet, wanted), 1, fleet.progress, LOOKING)
        ready, failed = dict(first.done), dict(first.failed)
        if not failed:
            # after the head: the rest get what it has, and a home that it shares with them is ready by then
            same = replace(wanted, torch=ready[read.head].torch)
            rest = each(others, lambda host: _ready(host, fleet, same), fleet.parallel, fleet.progress, LOOKING)
            ready |= rest.done
            failed |= rest.failed
    _tell(read.hosts, ready, console)
    for line in fold_failures(failed):
        console.error(line)
    return combine(failed.values(), "").exit_code if failed else 0


def _let_in(hosts: Sequence[Host], fleet: Fleet) -> None:
    """Where only a password works and somebody is there to type it: as ssh-copy-id does, and by it."""
    if not sys.stdin.isatty():
        return
    tried = fleet.run(hosts, lambda _: "true")
    for host in hosts:
        failure = tried.failed.get(host.name)
        if isinstance(failure, ConnectFailure) and failure.code == "ssh-auth-denied":
            subprocess.run(_ssh_copy_id(host), check=False)
    fleet.forget_refusals()


def _ssh_copy_id(host: Host) -> list[str]:
    config = os.environ.get("DDP_ORCH_SSH_CONFIG")
    return [
        "ssh-copy-id",
        *(["-F", config] if config else []),
        *(["-i", str(Path(host.identity_file).expanduser())] if host.identity_file else []),
        *(["-p", str(host.port)] if host.port else []),
        *(["-o", f"ProxyJump={host.proxy_jump}"] if host.proxy_jump else []),
        f"{host.user}@{host.address}" if host.user else host.address,
    ]


def _ready(host: Host, fleet: Fleet, wanted: SetupOptions) -> Ready:
    """Raises FindingsError or UnreachableError."""
    own = _look(host, fleet, host.python, host.setup)
    if own is not None and own.torch and wanted.torch in (None, own.torch, own.torch.partition("+")[0]):
        return Ready(own.executable, own.torch, "kept")
    base = own or _look(host, fleet, "python3", ())
    if base is None:
        raise FindingsError(
            f"{host.name}: neither {host.python} nor python3 works; set `python` of the host in the inventory"
        )
    if base.python < PYTHON_LEAST or not base.venv:
        version = ".".join(map(str, base.python))
        raise FindingsError(
            f"{host.name}: {base.executable} ({version}) cannot make a venv for torch: it needs python >= "
            f"{'.'.join(map(str, PYTHON_LEAST))} with venv and ensurepip (apt install python3-venv, or conda, or uv)"
        )
    venv = f"{base.home}/{VENV}"
    before = _look(host, fleet, f"{venv}/bin/python", ())
    if before is not None and before.torch and wanted.torch in (None, before.torch, _public(before.torch)):
        return Ready(before.executable, before.torch, "kept")
    what = f"torch=={wanted.torch}" if wanted.torch else "torch"
    fleet.progress.at(host.name, f"installing {what}")
    source = ["--index-url", wanted.index_url] if wanted.index_url else []
    if wanted.wheels:
        source = ["--no-index", "--find-links", wanted.wheels]
    argv = ["sh", "-c", INSTALL, "ddp-orch-setup", base.executable, venv, what, *source]
    done = fleet.run_on(host, quote(locked(base.executable, venv, argv)))
    after = _look(host, fleet, f"{venv}/bin/python", ()) if done.status == 0 else None
    if after is None or not after.torch:
        raise FindingsError(f"{host.name}: installing {what}: {why_not_installed(what, done.stderr, done.status)}")
    return Ready(after.executable, after.torch, "installed")


def locked(python: str, venv: str, argv: Sequence[str]) -> list[str]:
    """`argv`, run by nobody else who shares `venv` at the same time."""
    return [python, "-I", "-c", LOCKED, venv, *argv]


def why_not_installed(what: str, stderr: str, status: int | None) -> str:
    if unreached := UNREACHED.search(stderr):
        return (
            f"the host cannot reach the package index: {unreached[0]}. Give an index that it can reach "
            "(--index-url URL), or a folder of wheels on every host (--wheels DIR); "
            f"`pip download {what} -d DIR` fills such a folder"
        )
    lines = [line for line in stderr.strip().splitlines() if line.strip()]
    said = [line for line in lines if "ERROR" in line] or lines  # pip's last words may be a notice
    return said[-1] if said else f"exit code {status}"


def _public(version: str) -> str:
    return version.partition("+")[0]


def _look(host: Host, fleet: Fleet, python: str, lines: Sequence[str]) -> FoundPython | None:
    """What LOOK says of a python inside `lines` of setup; None when it does not run."""
    argv = [python, "-c", LOOK]
    if lines:
        argv = ["bash", "-lc", " && ".join(f"{{ {line}\n}}" for line in lines) + f" && {shlex.join(argv)}"]
    done = fleet.run_on(host, quote(argv))
    if done.status != 0:
        return None
    try:
        return decode(FoundPython, json.loads(done.stdout.strip().splitlines()[-1]), "python")
    except (IndexError, ValueError, RecursionError, MalformedAnswer):
        return None  # a wrapper that prints something else


def _tell(hosts: Sequence[Host], ready: Mapping[str, Ready], console: Console) -> None:
    """What is there now, and what the inventory has to say of it."""
    same: dict[Ready, list[str]] = {}
    for name, one in ready.items():
        same.setdefault(one, []).append(name)
    for one, names in same.items():
        console.note(one_line(f"{fold(names)}: torch {one.torch} {one.done}, {one.python}"))
    pythons = {host.name: host.python for host in hosts}
    changed = {name: one.python for name, one in ready.items() if VENV in one.python and pythons[name] != one.python}
    for python in dict.fromkeys(changed.values()):
        named = fold(name for name in changed if changed[name] == python)
        plain = re.fullmatch(r"/[A-Za-z0-9._/@+-]+", python)
        print(f"python: {python if plain else json.dumps(one_line(python))}   # in the inventory, for {named}")
