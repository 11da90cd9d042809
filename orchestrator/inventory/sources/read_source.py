"""`@slurm`, `@hostfile:F` and the like -> hosts. Reads the files that they name; the other modules parse."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path

from ...errors import InventoryError
from ..hostnames import nearest, quoted
from ..text_files import STDIN, read_text
from . import ansible, clouds, hostfile, schedulers, ssh_hosts
from .reference import MARK
from .source_host import NotInJob, SourceHost, SourceProblem

WITHOUT_ARGUMENT = ("slurm", "pbs", "lsf", "sge", "env")
WITH_ARGUMENT = {"hostfile": "FILE", "ansible": "FILE[#GROUP]", "ssh-config": "PATTERN"}
MAX_PROBLEMS = 20


class SourceUnavailable(InventoryError):
    """The source exists only in a job, and this shell is not in one."""


def read_source(source: str, folder: Path, variables: Mapping[str, str]) -> tuple[SourceHost, ...]:
    """The hosts of a source. `folder`: relative paths start there. Raises InventoryError."""
    kind, colon, argument = source.removeprefix(MARK).partition(":")
    if kind not in (*WITHOUT_ARGUMENT, *WITH_ARGUMENT):
        names = [*WITHOUT_ARGUMENT, *WITH_ARGUMENT]
        name = source.removeprefix(MARK)
        if (folder / name).is_file():  # `init --from machines`
            raise InventoryError(f"{source}: unknown source of hosts. For a hostfile, write {MARK}hostfile:{name}")
        raise InventoryError(f"{source}: unknown source of hosts; {nearest(kind, names)}. For a file, write ./{source}")
    if kind in WITHOUT_ARGUMENT and colon:
        raise InventoryError(f"{source}: {MARK}{kind} takes no argument")
    if kind in WITH_ARGUMENT and not argument:
        raise InventoryError(f"{source}: expected {MARK}{kind}:{WITH_ARGUMENT[kind]}")
    match kind:
        case "hostfile":
            hosts = _parse_file(argument, folder, hostfile.parse_hostfile)
        case "ansible":
            path, _, group = argument.partition("#")
            hosts = _parse_file(path, folder, lambda text: ansible.parse_ansible(text, group or None))
        case "ssh-config":
            hosts = _from_ssh_config(source, argument, variables)
        case _ if kind in schedulers.NODE_FILES:
            hosts = _from_node_file(source, kind, folder, variables)
        case _:
            parse = {"slurm": schedulers.parse_slurm, "lsf": schedulers.parse_lsf, "env": clouds.parse_clouds}[kind]
            hosts = _from_variables(source, parse, variables)
    return tuple(_with_absolute_key(host, folder) for host in hosts)


def _parse_file(name: str, folder: Path, parse: Callable[[str], tuple[SourceHost, ...]]) -> tuple[SourceHost, ...]:
    path = name if name == STDIN else str(folder / Path(name).expanduser())
    place = name if folder == Path() else path
    try:
        return parse(read_text(path))
    except FileNotFoundError as error:
        raise InventoryError(f"{place}: no such file") from error
    except SourceProblem as error:
        lines = [f"{place}:{line}: {message}" for line, message in error.lines]
        if len(lines) > MAX_PROBLEMS:
            lines[MAX_PROBLEMS:] = [f"{place}: and {len(lines) - MAX_PROBLEMS} more"]
        raise InventoryError("\n".join(lines)) from error
    except ValueError as error:
        raise InventoryError(f"{place}: {error}") from error


def _from_variables(
    source: str, parse: Callable[[Mapping[str, str]], tuple[SourceHost, ...]], variables: Mapping[str, str]
) -> tuple[SourceHost, ...]:
    try:
        return parse(variables)
    except NotInJob as error:
        raise SourceUnavailable(f"{source}: {error}") from error
    except ValueError as error:
        raise InventoryError(f"{source}: {error}") from error


def _from_node_file(source: str, kind: str, folder: Path, variables: Mapping[str, str]) -> tuple[SourceHost, ...]:
    variable = schedulers.NODE_FILES[kind]
    path = variables.get(variable)
    if not path:
        raise SourceUnavailable(f"{source}: {variable} is not set: this shell is not in a job of {kind.upper()}")
    return _parse_file(path, folder, schedulers.parse_sge if kind == "sge" else schedulers.parse_node_file)


def _from_ssh_config(source: str, pattern: str, variables: Mapping[str, str]) -> tuple[SourceHost, ...]:
    config = Path(variables.get("DDP_ORCH_SSH_CONFIG") or "~/.ssh/config").expanduser()
    names = ssh_hosts.configured_hosts(config)
    patterns = re.split(r"[,\s]+", pattern)
    selected = [name for name in names if any(fnmatchcase(name, each) for each in patterns)]
    if not selected:
        raise InventoryError(f"{source}: no Host in {config} matches {quoted(pattern)}; {nearest(pattern, names)}")
    try:
        return tuple(SourceHost(name=name) for name in selected)
    except ValueError as error:
        raise InventoryError(f"{config}: {error}") from error


def _with_absolute_key(host: SourceHost, folder: Path) -> SourceHost:
    if host.identity_file is None or host.identity_file.startswith(("/", "~")):
        return host
    return replace(host, identity_file=str((folder / host.identity_file).absolute()))
