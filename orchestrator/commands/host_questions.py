"""Ask at a terminal which hosts to use: those of ssh_config, names, command lines of ssh, or a hostfile."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path

import click

from ..errors import InventoryError, UsageError
from ..inventory import hostnames
from ..inventory.sources.hostfile import parse_hostfile
from ..inventory.sources.read_source import read_source
from ..inventory.sources.source_host import SourceHost
from ..inventory.sources.ssh_hosts import configured_hosts
from ..inventory.sources.ssh_line import is_ssh_line

OTHER = "a line such as `ssh root@1.2.3.4 -p 40022`, or the name of a hostfile"
YES_OR_NO = {"y": True, "yes": True, "n": False, "no": False}
"""What people answer to "More hosts?"."""


def choose_hosts() -> list[SourceHost]:
    """Raises UsageError without a terminal, and click.Abort on Ctrl-C."""
    if not sys.stdin.isatty():
        raise UsageError(
            "which hosts? Without a terminal, name them: ddp-orch init gpu1 gpu2, or 'gpu[01-16]', or "
            "--from @hostfile:FILE, @slurm, @pbs, @ansible:FILE, @ssh-config:PATTERN"
        )
    config = Path(os.environ.get("DDP_ORCH_SSH_CONFIG") or "~/.ssh/config").expanduser()
    configured = configured_hosts(config)
    for number, name in enumerate(configured, 1):
        click.echo(f"{number:4}  {name}", err=True)
    kinds = "numbers such as 1,3-5, names, all" if configured else "names such as gpu1,gpu2 or gpu[01-16]"
    listed = f"Type {kinds}, {OTHER}."
    click.echo(listed, err=True)
    chosen: dict[str, SourceHost] = {}
    default = "all" if configured else None
    question = "Which hosts?"
    while True:
        answer = click.prompt(question, default=default, show_default=bool(default), err=True).strip()
        if not answer:
            return list(chosen.values())
        if chosen and answer.lower() in YES_OR_NO and answer not in configured:
            if YES_OR_NO[answer.lower()]:
                question = "Which?"
                continue
            return list(chosen.values())
        try:
            hosts = parse_answer(answer, configured)
        except (ValueError, InventoryError) as error:
            click.echo(f"{error}; try again, or press Ctrl-C", err=True)
            continue
        chosen.update({host.name: host for host in hosts})
        if answer == "all":
            return list(chosen.values())
        names = list(chosen)
        shown = ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
        question, default = f"{shown}. More hosts? Name them, or press Enter to continue", ""


def parse_answer(answer: str, known: Sequence[str]) -> list[SourceHost]:
    """The hosts for an answer. Raises ValueError and InventoryError."""
    if is_ssh_line(answer):
        return list(parse_hostfile(answer))
    if Path(answer).expanduser().is_file():
        return list(read_source(f"@hostfile:{answer}", Path(), os.environ))
    return [host for name in parse_choice(answer, known) for host in _parse_name(name)]


def parse_choice(answer: str, known: Sequence[str]) -> list[str]:
    """The names for an answer: `all`, or numbers from 1, ranges of numbers, and names. Raises ValueError."""
    if answer.strip() == "all" and known:
        return list(known)
    names: list[str] = []
    for word in re.split(r"(?:,|\s)+(?![^\[]*\])", answer.strip()):
        span = re.fullmatch(r"([0-9]{1,6})(?:-([0-9]{1,6}))?", word)
        if word in known or _is_new_name(word, known):
            names.append(word)
        elif span and 1 <= int(span[1]) <= int(span[2] or span[1]) <= len(known):
            names += known[int(span[1]) - 1 : int(span[2] or span[1])]
        elif known:
            raise ValueError(f"{word!r} is neither a number from 1 to {len(known)} nor a name in the list")
        else:
            hostnames.expand(word.rpartition("@")[2])
            raise ValueError(f"{word!r} is not the name of a host")
    return list(dict.fromkeys(names))


def _is_new_name(word: str, known: Sequence[str]) -> bool:
    """Whether a word is the name of a host that is not in the list, and not a slip of one that is."""
    user, at, name = word.rpartition("@")
    if at and not re.fullmatch(hostnames.USER, user):
        return False
    if known and not (at or "." in name or "[" in name):
        return False
    try:
        return bool(hostnames.expand(name)) and not name.isdecimal()
    except ValueError:
        return False


def _parse_name(word: str) -> list[SourceHost]:
    user, _, name = word.rpartition("@")
    return [SourceHost(name=each, user=user or None) for each in hostnames.expand(name)]
