"""How a host is reached: with paramiko, the `ssh` program, or a command that the inventory names. No IO."""

from __future__ import annotations

import posixpath
import re
import shlex
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from .values import Reading

PARAMIKO, OPENSSH = "paramiko", "openssh"
ACCESS = ("user", "port", "identity_file", "proxy_jump")
"""Keys of a host that only say how to reach it. A command in `via` has to use those that are set."""

PLACEHOLDERS = ("host", "address", "target", *ACCESS)
_SRUN = "srun"
_ENDING = ("blaunch", "qrsh")
"""Programs of batch systems that kill what a session has started when it ends, and with it the guard of the run."""
_PLACEHOLDER = re.compile(r"\{([a-z_]+)\}")


def check(text: str) -> str:
    """The text itself. Raises ValueError with what is wrong with it."""
    if text in (PARAMIKO, OPENSSH):
        return text
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise ValueError(f"not a command: {str(error).lower()}") from error
    if len(words) < 2:
        raise ValueError("expected paramiko, openssh or a command with its arguments, such as docker exec -i {host}")
    if (program := posixpath.basename(words[0])) in _ENDING:
        raise ValueError(f"{program} is not supported: a run would end with the session; use openssh")
    for name in _PLACEHOLDER.findall(text):
        if name not in PLACEHOLDERS:
            raise ValueError(f"unknown {{{name}}}; known: {', '.join(f'{{{known}}}' for known in PLACEHOLDERS)}")
    return text


def is_command(via: str) -> bool:
    return via not in (PARAMIKO, OPENSSH)


def ends_runs(via: str) -> bool:
    """Whether Slurm ends a run with the session that started it: it is a step of the job."""
    return is_command(via) and posixpath.basename(shlex.split(via)[0]) == _SRUN


def bound_hosts(hosts: Iterable[Any]) -> tuple[str, ...]:
    """Those of the `model.Host`s on which Slurm ends a guard with the session that started it."""
    return tuple(host.name for host in hosts if ends_runs(host.via) and not host.local)


def argv_of(host: Any) -> tuple[str, ...]:
    """The command in `via` of a `model.Host`. srun gets a flag without which it keeps output back until a line ends."""
    target = f"{host.user}@{host.address}" if host.user else host.address
    values = {"host": host.name, "address": host.address, "target": target}
    values |= {name: getattr(host, name) for name in ACCESS}
    words = shlex.split(host.via)
    if ends_runs(host.via) and not {"-u", "--unbuffered"} & set(words):
        words.insert(1, "--unbuffered")
    return tuple(_PLACEHOLDER.sub(lambda match: str(values[match[1]]), word) for word in words)


class PlacedHost(Protocol):
    """A `model.Host`, and where each of its values is in the file."""

    @property
    def host(self) -> Any: ...
    @property
    def keys(self) -> Mapping[str, str]: ...


def check_hosts(placed_hosts: Iterable[PlacedHost], reading: Reading) -> None:
    """Note hosts for which their command is wrong, or the same as for another host."""
    first: dict[tuple[str, ...], str] = {}
    for placed in placed_hosts:
        host = placed.host
        if not is_command(host.via):
            continue
        wrong = _misfit(host)
        if not wrong and (other := first.setdefault(argv_of(host), host.name)) != host.name:
            wrong = f"the command is the same for {other} and {host.name}; use {{host}} or {{address}} in it"
        if wrong:
            key = placed.keys["via"] if placed.keys["via"] in reading.marks else "ssh.via"
            reading.wrong(reading.marks[key], key, wrong)


def _misfit(host: Any) -> str | None:
    used = set(_PLACEHOLDER.findall(host.via))
    for name in ACCESS:
        value = getattr(host, name)
        if name in used and value is None:
            return f"uses {{{name}}}, but {host.name} has no `{name}`"
        if value is not None and name not in used and not (name == "user" and "target" in used):
            return f"ignores `{name}` of {host.name}; use {{{name}}} in the command, or remove the key"
    return None
