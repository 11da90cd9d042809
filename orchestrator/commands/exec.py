"""`exec`: run a command on every host, and print equal output once. Imports little, so that short commands are fast."""

from __future__ import annotations

import json
import posixpath
import re
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TextIO

from ..errors import Interrupted, OrchError, UsageError
from ..hosts.bootstrap import login_bash
from ..hosts.fleet import NO_PROGRESS, each, fold_failures, reasons
from ..hosts.host_command import CutOffError, Output
from ..inventory import advice, launcher_variables
from ..inventory.model import Host
from ..output.console import Console, fold, fold_messages, size
from ..output.terminal import tame
from ..ssh.dialer import quote
from .context import load_inventory, open_fleet, stderr_console
from .foreign_commands import is_file
from .live_output import LiveOutput, NewestLine, Stream

_PLAIN = re.compile(r"[\w./=:,@%+ -]*")  # a line that a shell splits into words, and nothing else


def execute(
    path: str | None, command: tuple[str, ...], hosts: str | None, setup: bool, as_json: bool, stream: bool = False
) -> int:
    """`stream`: print each line as it comes."""
    if stream and as_json:
        raise UsageError("--stream and --json cannot be combined")
    console = stderr_console()
    inventory = load_inventory(path, hosts)
    machines = inventory.hosts or inventory.machines  # the witness only if no other host is selected
    outputs: dict[str, Output] = {}
    cut_off: dict[str, CutOffError] = {}
    with open_fleet(inventory) as fleet:
        fleet.prepare(machines)
        shown = Stream(console, len(machines)) if stream else None
        live: LiveOutput = shown or NewestLine(fleet.progress)

        def run(host: Host) -> None:
            try:
                line = _shell_line(host, command, setup)
                output = fleet.run_on(host, line, lambda name, data: live.take(host.name, name, data))
            except CutOffError as error:
                if not stream:
                    cut_off[host.name] = error
                raise
            finally:
                live.end(host.name)
            outputs[host.name] = Output(output.status, "", "") if stream else output

        progress = NO_PROGRESS if stream else fleet.progress
        enough = None if shown is None else lambda _: shown.failure is not None
        try:
            failed = dict(each(machines, run, fleet.parallel, progress, "running", enough=enough).failed)
            if shown is not None and shown.failure is not None:
                raise shown.failure
        except KeyboardInterrupt:  # show the output of the hosts that have finished, even if one hangs
            finished = dict(outputs)
            still_running = fleet.end_commands()
            stopped = {
                host.name: _interrupted(host.name, still_running) for host in machines if host.name not in finished
            }
            console.status("")
            _print_results(finished, stopped, {}, console, as_json)
            raise
    console.status("")
    outputs = {host.name: outputs[host.name] for host in machines if host.name in outputs}
    _print_results(outputs, failed, cut_off, console, as_json)
    if (note := _describe_unsent(command, outputs, inventory.path)) is not None:
        console.note(note)
    codes = [output.status for output in outputs.values()] + [error.exit_code for error in failed.values()]
    return max(codes, default=0)


def _interrupted(host: str, still_running: frozenset[str]) -> Interrupted:
    return Interrupted("interrupted; the command may still be running" if host in still_running else "interrupted")


def _print_results(
    outputs: Mapping[str, Output],
    failed: Mapping[str, OrchError],
    cut_off: Mapping[str, CutOffError],
    console: Console,
    as_json: bool,
) -> None:
    """`cut_off`: those of `failed` that have printed something."""
    printed: dict[str, Output | CutOffError] = {**outputs, **cut_off}
    if as_json:
        answers = [_as_dict(host, output.status, output.stdout, output.stderr) for host, output in outputs.items()]
        for host, reason in reasons(failed).items():
            stdout, stderr = (printed[host].stdout, printed[host].stderr) if host in printed else ("", "")
            answers.append(_as_dict(host, None, stdout, stderr, reason))
        print(json.dumps(answers, indent=2))
    else:
        _print_folded({host: output.stdout for host, output in printed.items()}, sys.stdout)
        _print_folded({host: output.stderr for host, output in printed.items()}, sys.stderr)
        for line in fold_messages(
            {host: f"exit code {output.status}" for host, output in outputs.items() if output.status}
        ):
            console.warning(line)
    for line in fold_messages(
        {
            host: f"{size(output.left_out)} of output were discarded"
            for host, output in outputs.items()
            if output.left_out
        }
    ):
        console.warning(line)
    for line in fold_failures(failed):
        console.error(line)


def _describe_unsent(command: tuple[str, ...], outputs: Mapping[str, Output], inventory: str) -> str | None:
    """What to do if hosts do not have a file that the command names and that is here; None: something else."""
    try:
        words = command if len(command) > 1 else tuple(shlex.split(command[0]))
    except ValueError:
        return None
    name = next((word for word in words if not word.startswith("/") and is_file(word)), None)
    said = any(
        output.status and "No such file" in line and name in line
        for output in outputs.values()
        for line in output.stderr.splitlines()
        if name is not None
    )
    if name is None or not said:
        return None
    is_line = len(command) == 1 and not _PLAIN.fullmatch(command[0])
    script = ("SCRIPT", "ARGS...") if is_line else words
    launcher = f"run.launcher={launcher_variables.read_launcher(Path(name))}"
    own = () if name.endswith(".py") or is_line else ("--set", launcher)
    start = advice.command("up", *own, "--", *script, inventory=inventory)
    return f"{name} is a file on this machine; `exec` sends no code. To send it and start it: `{start}`"


def _as_dict(
    host: str, status: int | None, stdout: str, stderr: str, error: str | None = None
) -> dict[str, str | int | None]:
    return {"host": host, "exit_code": status, "stdout": stdout, "stderr": stderr, "error": error}


def _shell_line(host: Host, command: tuple[str, ...], setup: bool) -> str:
    line = command[0] if len(command) == 1 else quote(command)
    path = _path_setting(host.python)
    if not setup or not (host.setup or path):
        return line
    lines = [*host.setup, *path, line if len(command) == 1 else shlex.join(command)]
    return quote(login_bash(lines))


def _path_setting(python: str) -> tuple[str, ...]:
    """A shell line that adds the folder of `python` to PATH, so that a command finds the programs of a run.

    The folder of a venv or conda environment comes first. Any other comes last, because it may be /usr/bin.
    """
    folder = posixpath.dirname(python)
    if not folder.startswith("/"):
        return ()
    folder_word, root = shlex.quote(folder), shlex.quote(posixpath.dirname(folder))
    is_venv = f"[ -e {root}/pyvenv.cfg ] || [ -e {root}/conda-meta ]"
    return (f'if {is_venv}; then export PATH={folder_word}:"$PATH"; else export PATH="$PATH":{folder_word}; fi',)


def _print_folded(texts: Mapping[str, str], out: TextIO) -> None:
    """Print equal output of several hosts once, as `clush -b` does."""
    groups: dict[str, list[str]] = {}
    for host, text in texts.items():
        groups.setdefault(text, []).append(host)
    for text, names in groups.items():
        out.write("".join(f"{fold(names)}: {tame(line, colour=False)}\n" for line in text.splitlines()))
    out.flush()
