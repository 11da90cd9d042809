"""`doctor`: collect what a bug report needs in one archive. Each part is the output of another command of ddp-orch."""

from __future__ import annotations

import io
import json
import os
import platform
import re
import subprocess
import sys
import tarfile
import time
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from .. import __version__
from ..answers.recorded import RECORD
from ..errors import OrchError, UsageError
from ..inventory import writing
from ..inventory.advice import reference_of
from ..inventory.model import Inventory
from ..inventory.text_files import STDIN
from ..output.console import Console, number_of, size
from ..output.mask import Mask, hide_url_passwords
from .context import credentials_of, find_run, load_inventory_of_run, open_fleet, secret_values, stderr_console
from .report_data import PRIVATE

PACKAGES = ("fabric", "paramiko", "invoke", "cryptography", "click", "rich", "pyyaml", "torch")
PART_WINDOW = 120.0  # s for one part
MAX_PART = 16 << 20  # bytes; of a larger part, the end is kept
STDERR_LINES = "200"  # of each rank
TARGETS = ("webhook", "mail", "command")  # keys of notify
OF_HOSTS = {
    "check.json": ("check", "--quick", "--json"),
    "ps.json": ("ps", "--all", "--json"),
}
OF_RUN = {
    "diagnose.txt": ("diagnose",),
    "events.txt": ("events",),
    "report.json": ("report", "--json"),
    "agents.log": ("logs", "--stream", "agent", "--timestamps"),
    "stderr.log": ("logs", "--stream", "stderr", "--timestamps", "--tail", STDERR_LINES),
}


def doctor(run_name: str | None, inventory_path: str | None, output: str | None) -> int:
    console = stderr_console()
    path = Path(output or f"ddp-orch-doctor-{time.strftime('%Y%m%d-%H%M%S')}.tar.gz")
    if path.exists():
        raise UsageError(f"{path} exists; give another -o FILE")
    inventory = load_inventory_of_run(inventory_path, None, run_name)
    where = reference_of(inventory)
    if where == STDIN:
        raise UsageError("doctor asks the hosts several times; give -i FILE instead of an inventory on stdin")
    run = () if run_name is None else (run_name,)
    mask = _make_mask(inventory, run_name)
    parts = {"versions.json": _versions(), "inventory.json": json.dumps(without_credentials(inventory), indent=2)}
    commands = {
        **{name: (*words, where) for name, words in OF_HOSTS.items()},
        **{name: (*words, *run, "-i", where) for name, words in OF_RUN.items()},
    }
    for number, (name, words) in enumerate(commands.items(), 1):
        console.status(f"{number} of {len(commands)}: ddp-orch {words[0]}")
        parts[name] = _output(words)
    console.status("")
    _write(path, {name: hide_url_passwords(mask.hide(text)) for name, text in parts.items()})
    console.note(
        f"wrote {number_of(len(parts), 'part')} to {path} ({size(path.stat().st_size)}). Look through it before you "
        "share it: it has names of hosts, users and paths, and output of your script"
    )
    return 0


def _make_mask(inventory: Inventory, run_name: str | None) -> Mask:
    """Hide secrets, and what `without_credentials` leaves out of the inventory: a script may have printed it."""
    console = stderr_console()
    try:
        with open_fleet(inventory, short_timeout=True) as fleet:
            run = find_run(fleet, inventory, run_name, Console(io.StringIO(), colour=False)).run
            hosts = [host for host in inventory.machines if host.name in run.parts]
            question = {"run_id": run.run_id}
            records = fleet.each(hosts, lambda _, session: session.request(RECORD, question), "reading its record").done
        values = secret_values(inventory, run, console)
        values += credentials_of(records.values())
    except OrchError:  # the parts of the archive tell why
        values = [value for name in inventory.run.secrets if (value := os.environ.get(name))]
    variables = [inventory.run.env, *(host.env for host in inventory.hosts)]
    values += [value for env in variables for name, value in env.items() if PRIVATE.search(name)]
    values += [value for key in TARGETS if (value := getattr(inventory.notify, key))]
    return Mask(values)


def without_credentials(inventory: Inventory) -> dict[str, Any]:
    """The inventory as `config --json` prints it, without values that may be credentials."""
    document = writing.as_dict(inventory)
    for variables in (document["run"]["env"], *(host["env"] for host in document["hosts"])):
        variables.update({name: "***" for name in variables if PRIVATE.search(name)})
    for key in TARGETS:
        if document["notify"][key]:
            document["notify"][key] = "***"
    return document


def _versions() -> str:
    installed = {}
    for name in PACKAGES:
        try:
            installed[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            installed[name] = ""
    versions = {"ddp-orch": __version__, "python": sys.version, "platform": platform.platform(), **installed}
    try:
        versions["ssh"] = subprocess.run(["ssh", "-V"], capture_output=True, text=True, timeout=5.0).stderr.strip()
    except (OSError, subprocess.SubprocessError) as error:
        versions["ssh"] = str(error)
    return json.dumps(versions, indent=2)


def _output(words: tuple[str, ...]) -> str:
    """What a command of ddp-orch prints: stdout, then stderr and the exit code."""
    argv = [sys.executable, "-m", "orchestrator.cli", *words]
    environment = {**os.environ, "NO_COLOR": "1"}
    try:
        done = subprocess.run(argv, env=environment, stdin=subprocess.DEVNULL, capture_output=True, timeout=PART_WINDOW)
    except subprocess.TimeoutExpired as error:
        return f"{_text(error.stdout)}\n(no end after {PART_WINDOW:.0f} s)\n"
    return f"{_text(done.stdout)}\n--- stderr, exit code {done.returncode}\n{_text(done.stderr)}"


def _text(output: bytes | None) -> str:
    return (output or b"")[-MAX_PART:].decode("utf-8", "backslashreplace")


def _write(path: Path, parts: Mapping[str, str]) -> None:
    folder = re.sub(r"(\.tar)?\.[^.]+$", "", path.name) or "ddp-orch-doctor"
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "wb") as file, tarfile.open(fileobj=file, mode="w:gz") as archive:
            for name, text in parts.items():
                data = text.encode("utf-8", "backslashreplace")
                entry = tarfile.TarInfo(f"{folder if folder != path.name else f'{folder}-files'}/{name}")
                entry.size, entry.mtime, entry.mode = len(data), int(time.time()), 0o600
                archive.addfile(entry, io.BytesIO(data))
    except OSError as error:
        raise UsageError(f"-o {path}: {error.strerror}") from error
