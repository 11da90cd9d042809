"""`exec`: one command on every host, equal output shown once. Imports little: a short command is over in a moment."""

from __future__ import annotations

import json
import posixpath
import shlex
import sys
from collections.abc import Mapping
from typing import TextIO

from ..errors import Interrupted, OrchError
from ..hosts.fleet import Output, each, fold_failures, reasons
from ..inventory.model import Host
from ..output.console import Console, fold, fold_messages, size
from ..output.terminal import tame
from ..ssh.dialer import quote
from .context import load_inventory, open_fleet, stderr_console


def execute(given: str | None, command: tuple[str, ...], hosts: str | None, setup: bool, as_json: bool) -> int:
    console = stderr_console()
    read = load_inventory(given, hosts)
    done: dict[str, Output] = {}
    with open_fleet(read) as fleet:

        def run(host: Host) -> None:
            done[host.name] = fleet.run_on(host, _exec_line(host, command, setup))

        fleet.prepare(read.hosts)
        try:
            failed = dict(each(read.hosts, run, fleet.parallel, fleet.progress, "running").failed)
        except KeyboardInterrupt:  # one host that hangs must not cost what the others have said
            finished = dict(done)
            left = fleet.end_commands()
            stopped = {host.name: _interrupted(host.name, left) for host in read.hosts if host.name not in finished}
            _tell(finished, stopped, console, as_json)
            raise
    done = {host.name: done[host.name] for host in read.hosts if host.name in done}
    _tell(done, failed, console, as_json)
    codes = [one.status for one in done.values()] + [error.exit_code for error in failed.values()]
    return max(codes, default=0)


def _interrupted(host: str, left: frozenset[str]) -> Interrupted:
    return Interrupted("interrupted; the command may still be running" if host in left else "interrupted")


def _tell(done: Mapping[str, Output], failed: Mapping[str, OrchError], console: Console, as_json: bool) -> None:
    if as_json:
        answers = [_exec_as_dict(host, one.status, one.stdout, one.stderr) for host, one in done.items()]
        answers += [_exec_as_dict(host, None, "", "", reason) for host, reason in reasons(failed).items()]
        print(json.dumps(answers, indent=2))
    else:
        _print_folded({host: one.stdout for host, one in done.items()}, sys.stdout)
        _print_folded({host: one.stderr for host, one in done.items()}, sys.stderr)
        for line in fold_messages({host: f"exit code {one.status}" for host, one in done.items() if one.status}):
            console.warning(line)
    for line in fold_messages(
        {host: f"{size(one.left_out)} of its output were left out" for host, one in done.items() if one.left_out}
    ):
        console.warning(line)
    for line in fold_failures(failed):
        console.error(line)


def _exec_as_dict(
    host: str, status: int | None, stdout: str, stderr: str, error: str | None = None
) -> dict[str, str | int | None]:
    return {"host": host, "exit_code": status, "stdout": stdout, "stderr": stderr, "error": error}


def _exec_line(host: Host, command: tuple[str, ...], setup: bool) -> str:
    line = command[0] if len(command) == 1 else quote(command)
    path = _path_of_python(host.python)
    if not setup or not (host.setup or path):
        return line
    lines = [*host.setup, *path, line if len(command) == 1 else shlex.join(command)]
    return quote(["bash", "-lc", " && ".join(f"{{ {one}\n}}" for one in lines)])


def _path_of_python(python: str) -> tuple[str, ...]:
    """The shell line that has a command find what a run's script has: first what is beside the `python` of a venv or
    conda environment; what is beside another python last, as that may be /usr/bin.
    """
    folder = posixpath.dirname(python)
    if not folder.startswith("/"):
        return ()
    beside, root = shlex.quote(folder), shlex.quote(posixpath.dirname(folder))
    own = f"[ -e {root}/pyvenv.cfg ] || [ -e {root}/conda-meta ]"
    return (f'if {own}; then export PATH={beside}:"$PATH"; else export PATH="$PATH":{beside}; fi',)


def _print_folded(texts: Mapping[str, str], out: TextIO) -> None:
    """As clush -b: output that several hosts share is shown once."""
    same: dict[str, list[str]] = {}
    for host, text in texts.items():
        same.setdefault(text, []).append(host)
    for text, names in same.items():
        out.write("".join(f"{fold(names)}: {tame(line, colour=False)}\n" for line in text.splitlines()))
    out.flush()
