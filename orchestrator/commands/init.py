"""`init`: write an inventory of hosts given as arguments, by a source, or chosen from ssh_config.

With --probe, or if the user agrees, it asks the hosts for Python with torch, GPUs and networks, and writes them.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import click

from ..errors import InventoryError, UsageError
from ..hosts.fleet import combine, fold_failures
from ..inventory import model
from ..inventory.advice import command
from ..inventory.model import Inventory
from ..inventory.sources import fill_in, reference
from ..inventory.sources.read_source import read_source
from ..inventory.sources.source_host import SourceHost, name_by_port
from ..inventory.sources.ssh_line import is_ssh_line, parse_ssh_line
from ..output.console import Console, fold, fold_messages, number_of
from ..output.terminal import one_line
from ..runs import find_pythons
from ..runs.find_pythons import FoundPython, HostPythons
from ..ssh.pipe import ConnectFailure
from . import host_questions
from .context import load_inventory, open_fleet, stderr_console

PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9._-]*(\[[0-9,-]+\][A-Za-z0-9._-]*)*")
WORDS = {"yes", "no", "on", "off", "true", "false", "null", "y", "n"}  # YAML would read these as other types

TEXT = """\
# The hosts of a training run. Every other key has a default. To see all keys:
#   ddp-orch config{path}
{found}
hosts:                  # rank 0 runs on the first host
{hosts}

defaults:               # for all hosts
  python: {python}
  # setup: [module load cuda]     # shell lines to run before python
  # gpus: [0, 1]                  # default: all GPUs, with a rank for each
  # interface: ens3               # default: the fastest network, which `ddp-orch check` measures

# run:
#   max_restarts: 3     # restart after a failure
#   resume: head        # before a restart, copy what rank 0 has saved to the other hosts

# Next:
#   ddp-orch trust{path}    # accept the SSH keys of the hosts, unless `init` has done that
#   ddp-orch check{path}    # find problems before you start
#   ddp-orch up{path}       # train the bundled model
#   ddp-orch up{path} -- train.py --lr 0.1    # run your own script
"""


def init(hosts: Sequence[str], source: str | None, output: str, probe: bool | None = None) -> int:
    """`source`: such as `@slurm` or `slurm`; its hosts are written instead of `hosts`.

    `probe`: connect to the hosts; None: ask the user, if there is a terminal.
    """
    path = Path(output)
    console = stderr_console()
    if source is not None and hosts:
        raise UsageError(f"--from {source}: give either hosts or a source of hosts")
    if source is not None:
        name = source if source.startswith(reference.MARK) else f"{reference.MARK}{source}"
        entries = list(map(_source_entry, read_source(name, Path(), os.environ)))
    else:
        entries = list(_entries(hosts)) if hosts else list(map(_source_entry, host_questions.choose_hosts()))
    text = render_entries(entries, output)
    try:
        inventory = model.parse(text, output)
    except InventoryError as error:
        raise UsageError(f"nothing was written, because the inventory would be invalid: {error}") from error
    if path.exists() and not _has_text(path, text):
        if not sys.stdin.isatty():
            raise UsageError(f"{output} already exists; give another -o FILE, or delete it")
        if not click.confirm(f"{output} already exists. Overwrite it?", default=False, err=True):
            raise UsageError(f"{output} was not changed")
    _write(path, text)
    given = ["--from", source] if source else hosts
    probe_command = shlex.join(["ddp-orch", "init", "--probe", *given, *_output_option(output)])
    on_terminal = sys.stdin.isatty() and sys.stderr.isatty()
    question = "Connect to the hosts now, to look for Python with torch?"
    try:
        if probe is None and on_terminal:
            probe = click.confirm(question, default=True, err=True)
        if probe:
            if on_terminal:
                from .trust import accept_keys

                accept_keys(load_inventory(output, None), False, console)
            return _probe(inventory, entries, path, output, text, console)
    except (click.Abort, KeyboardInterrupt):
        print(file=sys.stderr)  # the cursor is behind the question
        console.note(f"wrote {output}, but did not ask its hosts: `python` is python3. To ask them: {probe_command}")
        raise
    count = number_of(len(inventory.hosts), "host")
    console.note(
        f"wrote {output} with {count}, without connecting: `python` is python3.\n"
        f"next:\n  {command('trust', inventory=output)}   # accept the SSH keys of the hosts\n"
        f"  {probe_command}   # find Python with torch, GPUs and networks; or set `python` yourself"
    )
    return 0


def _output_option(output: str) -> tuple[str, ...]:
    return () if output == model.DEFAULT else ("-o", output)


def _has_text(path: Path, text: str) -> bool:
    """Whether the file is what `init` would write again."""
    try:
        return path.read_text(encoding="utf-8") == text
    except (OSError, ValueError):
        return False


def _write(path: Path, text: str) -> None:
    try:
        temporary = path.with_name(f".{path.name}.{os.getpid()}.new")
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(path)
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}") from error


def _probe(
    inventory: Inventory, entries: Sequence[str], path: Path, output: str, written: str, console: Console
) -> int:
    """Write the inventory again with an interpreter that has torch, and say what the hosts have.

    `written`: what it was written with before.
    """
    with open_fleet(inventory, short_timeout=True) as fleet:
        results = find_pythons.find_pythons(fleet, inventory.machines)
    chosen = find_pythons.choose(results.done)
    lines = {}
    for name, host in results.done.items():
        python = chosen.get(name)
        torch = f"{python.path} has torch {python.torch}" if python else "no Python with torch"
        lines[name] = one_line(f"{host.gpus or 'no GPU'}; {torch}")
    has_lines = [*fold_messages(lines), *_describe_networks(results.done)]
    usual = find_pythons.usual_path(chosen)
    if not _has_text(path, written):
        raise UsageError(f"{output} was changed in the meantime, and is left as it is; run `ddp-orch init` again")
    _write(path, render_entries(_with_pythons(entries, chosen), output, usual, has_lines))
    for line in has_lines:
        console.step(line)
    for line in fold_failures(results.failed):
        console.warning(line)
    found = "Python, GPUs and networks" if chosen else "GPUs and networks"
    asked = f" with {found} of {number_of(len(results.done), 'host')}" if results.done else ""
    if results.failed:
        codes = {error.code for error in results.failed.values() if isinstance(error, ConnectFailure)}
        trust = f"{command('trust', inventory=output)}, then: " if "ssh-host-key-unknown" in codes else ""
        next_step = (
            f"Nothing is known of {fold(results.failed)}: its `python` is a guess. "
            f"Next: {trust}{command('check', inventory=output)}"
        )
    elif len(chosen) < len(results.done):
        next_step = (
            f"Set `python` in it if {fold(set(results.done) - set(chosen))} has torch elsewhere. "
            f"Otherwise install torch: {command('setup', inventory=output)}"
        )
    else:
        next_step = f"Next: {command('check', inventory=output)}"
    console.note(f"wrote {output}{asked}. {next_step}")
    return combine(results.failed.values(), "").exit_code if results.failed else 0


def _describe_networks(found: Mapping[str, HostPythons]) -> Iterator[str]:
    """A line for each network that all hosts have, the fastest link first."""
    for network, links in find_pythons.shared_networks(found).items():
        by_name: dict[str, list[str]] = {}
        for host, link in links.items():
            by_name.setdefault(link.interface, []).append(host)
        names = [name if len(by_name) == 1 else f"{name} on {fold(hosts)}" for name, hosts in by_name.items()]
        slowest = min(link.mbit for link in links.values())
        speed = f", {slowest / 1000:g} Gbit/s" if slowest else ""
        yield one_line(f"all hosts are in {network} (interface {', '.join(names)}{speed})")


def _with_pythons(entries: Sequence[str], chosen: Mapping[str, FoundPython]) -> Iterator[str]:
    """The entries, with `python` where it differs from the usual one. A range of such hosts becomes one entry each."""
    usual = find_pythons.usual_path(chosen)
    for entry in entries:
        hosts = model.parse(f"hosts:\n{entry}", "").hosts
        paths = {host.name: chosen[host.name].path for host in hosts if host.name in chosen}
        if not set(paths.values()) - {usual}:
            yield entry
            continue
        for host in hosts:
            start = entry.removesuffix("}") if entry.endswith("}") else f"  - {{name: {json.dumps(host.name)}"
            own = paths.get(host.name, usual)
            yield start + ("}" if own == usual else f", python: {json.dumps(own)}}}")


def render(hosts: Sequence[str], path: str) -> str:
    """The text of an inventory of these hosts, each `[user@]name` or a command line of ssh."""
    return render_entries(_entries(hosts), path)


def render_entries(entries: Iterable[str], path: str, python: str | None = None, found: Sequence[str] = ()) -> str:
    """`python`: an interpreter that the hosts have. `found`: lines about the hosts, for a comment."""
    argument = "" if path == model.DEFAULT else f" {shlex.quote(path)}"
    comment = "       # an interpreter with torch, such as /opt/venv/bin/python"
    python = f"python3{comment}" if python is None else json.dumps(python)
    comments = "".join(f"# {line}\n" for line in ("What the hosts had when this was written:", *found)) if found else ""
    return TEXT.format(path=argument, found=comments, hosts="\n".join(entries), python=python)


def _source_entry(host: SourceHost) -> str:
    keys = fill_in.host_keys(host)
    if list(keys) == ["name"]:
        return f"  - {_scalar(host.name)}"
    return f"  - {{{', '.join(f'{key}: {json.dumps(value)}' for key, value in keys.items())}}}"


def _entries(hosts: Sequence[str]) -> Iterator[str]:
    from_lines = iter(name_by_port(_parse_ssh_line(host) for host in hosts if is_ssh_line(host)))
    for host in hosts:
        yield _source_entry(next(from_lines)) if is_ssh_line(host) else _entry(host)


def _parse_ssh_line(line: str) -> SourceHost:
    try:
        return parse_ssh_line(line)
    except ValueError as error:
        raise UsageError(f"{line}: {error}") from error


def _entry(host: str) -> str:
    user, at, name = host.rpartition("@")
    return f"  - {{name: {json.dumps(name)}, user: {json.dumps(user)}}}" if at else f"  - {_scalar(name)}"


def _scalar(name: str) -> str:
    return name if PLAIN.fullmatch(name) and name.lower() not in WORDS else json.dumps(name)
