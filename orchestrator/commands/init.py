"""`init`: write an inventory of hosts given as arguments, by a source, or chosen from ssh_config. Does not connect."""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import click

from ..errors import InventoryError, UsageError
from ..inventory import model
from ..inventory.advice import command
from ..inventory.sources import fill_in, reference
from ..inventory.sources.read_source import read_source
from ..inventory.sources.source_host import SourceHost, name_by_port
from ..inventory.sources.ssh_hosts import configured_hosts
from ..inventory.sources.ssh_line import is_ssh_line, parse_ssh_line
from .context import stderr_console

PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9._-]*(\[[0-9,-]+\][A-Za-z0-9._-]*)*")
WORDS = {"yes", "no", "on", "off", "true", "false", "null", "y", "n"}  # YAML would read these as other types

TEXT = """\
# The hosts of a training run. Every other key has a default. To see all keys:
#   ddp-orch config{path}

hosts:                  # rank 0 runs on the first host
{hosts}

defaults:               # for all hosts
  python: python3       # an interpreter with torch, such as /opt/venv/bin/python
  # setup: [module load cuda]     # shell lines to run before python

# run:
#   max_restarts: 3     # restart after a failure

# Next:
#   ddp-orch trust{path}    # accept the SSH keys of the hosts
#   ddp-orch check{path}    # find problems before you start
#   ddp-orch up{path}       # train the bundled model
#   ddp-orch up{path} -- train.py --lr 0.1    # run your own script
"""


def init(hosts: Sequence[str], source: str | None, output: str) -> int:
    """`source`: such as `@slurm` or `slurm`; its hosts are written instead of `hosts`."""
    path = Path(output)
    if source is not None and hosts:
        raise UsageError(f"--from {source}: give either hosts or a source of hosts")
    if source is not None:
        name = source if source.startswith(reference.MARK) else f"{reference.MARK}{source}"
        text = render_entries(map(_source_entry, read_source(name, Path(), os.environ)), output)
    else:
        text = render(hosts or _choose(), output)
    try:
        model.parse(text, output)
    except InventoryError as error:
        raise UsageError(f"nothing was written, because the inventory would be invalid: {error}") from error
    if path.exists():
        if not sys.stdin.isatty():
            raise UsageError(f"{output} already exists; give another -o FILE, or delete it")
        if not click.confirm(f"{output} already exists. Overwrite it?", default=False, err=True):
            raise UsageError(f"{output} was not changed")
    try:
        temporary = path.with_name(f".{path.name}.{os.getpid()}.new")
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(path)
    except OSError as error:
        raise UsageError(f"{output} cannot be written: {error.strerror}") from error
    next_command = command("trust", inventory=output)
    stderr_console().note(f"wrote {output}. Set `python` in it to an interpreter with torch, then run: {next_command}")
    return 0


def render(hosts: Sequence[str], path: str) -> str:
    """The text of an inventory of these hosts, each `[user@]name` or a command line of ssh."""
    return render_entries(_entries(hosts), path)


def render_entries(entries: Iterable[str], path: str) -> str:
    argument = "" if path == model.DEFAULT else f" {shlex.quote(path)}"
    return TEXT.format(path=argument, hosts="\n".join(entries))


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


def _choose() -> list[str]:
    """Let the user choose from the hosts in ssh_config."""
    if not sys.stdin.isatty():
        raise UsageError("which hosts? Give them: ddp-orch init gpu1 gpu2, or gpu[01-16]")
    config = Path(os.environ.get("DDP_ORCH_SSH_CONFIG") or "~/.ssh/config").expanduser()
    configured = configured_hosts(config)
    if not configured:
        raise UsageError(f"{config} lists no hosts; give them: ddp-orch init gpu1 gpu2")
    for number, name in enumerate(configured, 1):
        click.echo(f"{number:4}  {name}", err=True)
    while True:
        answer = click.prompt("Which? Numbers or names, such as 1,3-5; or all", default="all", err=True)
        try:
            return parse_choice(answer, configured)
        except ValueError as error:
            click.echo(f"{error}; try again, or press Ctrl-C", err=True)


def parse_choice(answer: str, known: Sequence[str]) -> list[str]:
    """The names for an answer: `all`, or numbers from 1, ranges of numbers, and names. Raises ValueError."""
    if answer.strip() == "all":
        return list(known)
    names: list[str] = []
    for word in re.split(r"[,\s]+", answer.strip()):
        span = re.fullmatch(r"([0-9]{1,6})(?:-([0-9]{1,6}))?", word)
        if word in known:
            names.append(word)
        elif span and 1 <= int(span[1]) <= int(span[2] or span[1]) <= len(known):
            names += known[int(span[1]) - 1 : int(span[2] or span[1])]
        else:
            raise ValueError(f"{word!r} is neither a number from 1 to {len(known)} nor a name in the list")
    return list(dict.fromkeys(names))
