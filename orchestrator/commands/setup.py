"""`setup`: install the same torch in a venv on each host that lacks it, or copy its image to it. Needs no root."""

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
from ..hosts.bootstrap import login_bash
from ..hosts.fleet import Fleet, Results, combine, each, fold_failures
from ..inventory import selection
from ..inventory.container import has_image
from ..inventory.model import Host
from ..output.console import Console, fold, size
from ..output.terminal import one_line
from ..runs.images import Images, copy_images
from ..ssh.dialer import quote
from ..ssh.pipe import ConnectFailure
from .context import load_inventory, open_fleet, stderr_console

VENV = ".local/share/ddp-orch/venv"  # relative to the home folder
VERSION = r"[0-9]+(\.[0-9]+)*((a|b|rc|\.post|\.dev)[0-9]+)*(\+[A-Za-z0-9.]+)?"
LOOKING = "looking for torch"
MIN_PYTHON = (3, 9)  # there is no torch 2.4 or newer for 3.8

# Prints the version of a python and of its torch, without importing torch.
LOOK = """
import sys
if "" in sys.path: sys.path.remove("")  # -c added the current folder; do not import a json.py in it
import importlib.metadata, importlib.util, json, os
try: torch = importlib.metadata.version("torch")
except importlib.metadata.PackageNotFoundError: torch = None
venv = all(importlib.util.find_spec(name) for name in ("venv", "ensurepip"))
print(json.dumps({"executable": sys.executable, "python": list(sys.version_info[:2]), "torch": torch, "venv": venv,
                  "home": os.path.expanduser("~")}))
"""


# Arguments: python, venv, arguments of `pip install`. An incomplete venv has no pip, and is made again.
INSTALL = """
set -e
python=$1; venv=$2; shift 2
"$venv/bin/python" -m pip --version > /dev/null 2>&1 || "$python" -m venv --clear "$venv"
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-input "$@"
"""

# Runs a command while holding the lock of a venv. Several hosts may share a home, and so the venv.
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

# Output of pip if it cannot reach the package index.
UNREACHED = re.compile(
    r"Temporary failure in name resolution|Name or service not known|No address associated with hostname"
    r"|Connection refused|Network is unreachable|No route to host|CERTIFICATE_VERIFY_FAILED"
    r"|Tunnel connection failed: \d+ [\w -]+|(?:[Rr]ead |[Cc]onnection |connect )timed out"
)


@dataclass(frozen=True)
class SetupOptions:
    """The options of `setup`."""

    torch: str | None
    """A version; None: that of the head."""
    index_url: str | None
    wheels: str | None = None
    """A folder of wheels on every host, instead of an index."""


@dataclass(frozen=True)
class ReadyPython:
    python: str
    torch: str
    action: str
    """`kept` or `installed`."""


def setup(inventory_path: str | None, hosts: str | None, options: SetupOptions) -> int:
    """Exit code: 0 if all hosts are ready, 3 if one is not, 4 if one is unreachable."""
    if options.torch is not None and not re.fullmatch(VERSION, options.torch):
        raise UsageError(f"--torch {options.torch!r}: expected a version such as 2.9.1 or 2.9.1+cu126")
    if options.index_url is not None and not re.fullmatch(r"(https?|file)://\S+", options.index_url):
        raise UsageError(
            f"--index-url {options.index_url!r}: expected a URL such as https://download.pytorch.org/whl/cpu"
        )
    if options.wheels is not None and not options.wheels.startswith("/"):
        raise UsageError(f"--wheels {options.wheels!r}: expected the absolute path of a folder on the hosts")
    if options.wheels is not None and options.index_url is not None:
        raise UsageError("--wheels and --index-url cannot be combined")
    console = stderr_console()
    whole = load_inventory(inventory_path)
    inventory = whole if hosts is None else selection.select(whole, hosts)
    others = [host for host in whole.hosts if host not in inventory.hosts]
    with open_fleet(inventory) as fleet:
        fleet.prepare(inventory.hosts)
        _copy_ssh_keys(inventory.hosts, fleet)
        outside = [host for host in inventory.hosts if not has_image(host.container)]
        pythons = _prepare_hosts(outside, inventory.head, fleet, options)
        images = copy_images(inventory.hosts, others, inventory.run.ports, fleet)
    _print_pythons(inventory.hosts, pythons.done, console)
    _print_images(images, console)
    failed = {**pythons.failed, **images.failed}
    for line in fold_failures(failed):
        console.error(line)
    return combine(failed.values(), "").exit_code if failed else 0


def _prepare_hosts(hosts: Sequence[Host], head: str, fleet: Fleet, options: SetupOptions) -> Results[ReadyPython]:
    """Find or install torch: first on the head, whose version the others install. They may share its home."""
    first_hosts = [host for host in hosts if host.name == head]
    others = [host for host in hosts if host.name != head]
    first = each(first_hosts, lambda host: _prepare_host(host, fleet, options), 1, fleet.progress, LOOKING)
    if first.failed:
        return first
    if first.done:
        options = replace(options, torch=first.done[head].torch)
    rest = each(others, lambda host: _prepare_host(host, fleet, options), fleet.parallel, fleet.progress, LOOKING)
    return Results({**first.done, **rest.done}, rest.failed)


def _copy_ssh_keys(hosts: Sequence[Host], fleet: Fleet) -> None:
    """Run ssh-copy-id for hosts that deny all keys, if there is a terminal to type a password."""
    if not sys.stdin.isatty():
        return
    results = fleet.run(hosts, lambda _: "true", "logging in")
    for host in hosts:
        failure = results.failed.get(host.name)
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


def _prepare_host(host: Host, fleet: Fleet, options: SetupOptions) -> ReadyPython:
    """Find or install torch on this host. Raises FindingsError or UnreachableError."""
    configured = _inspect_python(host, fleet, host.python, host.setup)
    if configured is not None and configured.torch and _satisfies(configured.torch, options.torch):
        return ReadyPython(configured.executable, configured.torch, "kept")
    base = configured or _inspect_python(host, fleet, "python3", ())
    if base is None:
        raise FindingsError(
            f"{host.name}: neither {host.python} nor python3 works. Set `python` of the host in the inventory."
        )
    if base.python < MIN_PYTHON or not base.venv:
        version = ".".join(map(str, base.python))
        raise FindingsError(
            f"{host.name}: {base.executable} ({version}) cannot make a venv for torch. Install Python "
            f"{'.'.join(map(str, MIN_PYTHON))} or newer with venv and ensurepip (apt install python3-venv, conda, uv)."
        )
    venv = f"{base.home}/{VENV}"
    existing = _inspect_python(host, fleet, f"{venv}/bin/python", ())
    if existing is not None and existing.torch and _satisfies(existing.torch, options.torch):
        return ReadyPython(existing.executable, existing.torch, "kept")
    requirement = f"torch=={options.torch}" if options.torch else "torch"
    fleet.progress.set_phase(host.name, f"installing {requirement}")
    source = ["--index-url", options.index_url] if options.index_url else []
    if options.wheels:
        source = ["--no-index", "--find-links", options.wheels]
    argv = ["sh", "-c", INSTALL, "ddp-orch-setup", base.executable, venv, requirement, *source]
    result = fleet.run_on(host, quote(lock_venv(base.executable, venv, argv)))
    installed = _inspect_python(host, fleet, f"{venv}/bin/python", ()) if result.status == 0 else None
    if installed is None or not installed.torch:
        reason = explain_failure(requirement, result.stderr, result.status)
        raise FindingsError(f"{host.name}: could not install {requirement}: {reason}")
    return ReadyPython(installed.executable, installed.torch, "installed")


def lock_venv(python: str, venv: str, argv: Sequence[str]) -> list[str]:
    """Wrap `argv` so that hosts that share `venv` run it one after the other."""
    return [python, "-I", "-c", LOCKED, venv, *argv]


def explain_failure(requirement: str, stderr: str, status: int | None) -> str:
    if unreached := UNREACHED.search(stderr):
        return (
            f"the host cannot reach the package index: {unreached[0]}. Give an index that it can reach "
            "(--index-url URL), or a folder of wheels on every host (--wheels DIR); "
            f"`pip download {requirement} -d DIR` fills such a folder"
        )
    lines = [line for line in stderr.strip().splitlines() if line.strip()]
    errors = [line for line in lines if "ERROR" in line] or lines  # the last line of pip may be a notice
    return errors[-1] if errors else f"exit code {status}"


def _satisfies(version: str, request: str | None) -> bool:
    """Whether this torch is the requested one. `2.9.1+cu126` is also 2.9.1."""
    return request in (None, version, version.partition("+")[0])


def _inspect_python(host: Host, fleet: Fleet, python: str, setup_lines: Sequence[str]) -> FoundPython | None:
    """Run LOOK with this python after the setup lines; None if it does not run."""
    argv = (python, "-c", LOOK)
    result = fleet.run_on(host, quote(login_bash([*setup_lines, shlex.join(argv)]) if setup_lines else argv))
    if result.status != 0:
        return None
    try:
        return decode(FoundPython, json.loads(result.stdout.strip().splitlines()[-1]), "python")
    except (IndexError, ValueError, RecursionError, MalformedAnswer):
        return None  # a wrapper script printed something else


def _print_images(images: Images, console: Console) -> None:
    for image in dict.fromkeys(images.kept.values()):
        console.note(one_line(f"{fold(name for name, kept in images.kept.items() if kept == image)}: {image} kept"))
    for name, copied in images.copied.items():
        taken = copied.taken
        text = f"{size(taken.bytes)} in {taken.seconds:.1f} s, sha256 {taken.sha256[:12]} on both"
        console.note(one_line(f"{name}: {copied.image} copied from {copied.source}: {text}"))


def _print_pythons(hosts: Sequence[Host], ready: Mapping[str, ReadyPython], console: Console) -> None:
    """Print the torch of each host, and the `python` lines to set in the inventory."""
    groups: dict[ReadyPython, list[str]] = {}
    for name, result in ready.items():
        groups.setdefault(result, []).append(name)
    for result, names in groups.items():
        console.note(one_line(f"{fold(names)}: torch {result.torch} {result.action}, {result.python}"))
    pythons = {host.name: host.python for host in hosts}
    changed = {
        name: result.python
        for name, result in ready.items()
        if VENV in result.python and pythons[name] != result.python
    }
    for python in dict.fromkeys(changed.values()):
        host_names = fold(name for name in changed if changed[name] == python)
        plain = re.fullmatch(r"/[A-Za-z0-9._/@+-]+", python)
        print(f"python: {python if plain else json.dumps(one_line(python))}   # in the inventory, for {host_names}")
