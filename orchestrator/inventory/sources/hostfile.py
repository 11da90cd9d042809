"""Hostfiles of MPI, DeepSpeed, PBS and others, and lists of ssh command lines: text -> hosts. No IO.

A line is one of:
    HOST                      repeated lines are slots (PBS_NODEFILE, OAR_NODEFILE)
    HOST slots=4 max_slots=8  Open MPI, DeepSpeed; also np=, cpu=, gpus=, user=, port=
    HOST:4                    MPICH, Intel MPI, Horovod
    USER@HOST:2222            a port
    ssh USER@HOST -p 2222     a command line of ssh
"""

from __future__ import annotations

import re
import shlex

from ..hostnames import quoted
from .source_host import MAX_SLOTS, SourceHost, SourceProblem, count_repeats, name_by_port
from .ssh_line import is_ssh_line, parse_ssh_line

_SLOTS = ("slots", "np", "cpu", "cpus", "gpus")
_IGNORED = ("max_slots", "max-slots", "sockets", "boards", "cores", "binding", "ifhn", "weight")
_DEFAULT_SSH_PORT = 22


def parse_hostfile(text: str) -> tuple[SourceHost, ...]:
    """The hosts in the order of the file, each once. Raises ValueError."""
    hosts: list[SourceHost] = []
    problems: list[tuple[int, str]] = []
    for number, line in enumerate(text.splitlines(), 1):
        content = re.sub(r"(^|\s)#.*", "", line).strip()
        if not content:
            continue
        try:
            hosts.append(parse_ssh_line(content) if is_ssh_line(content) else _parse_line(content))
        except ValueError as error:
            problems.append((number, str(error)))
            if content[0] in "{[<" or content == "---":
                break  # another format: the other lines would only repeat it
    if problems:
        raise SourceProblem(problems)
    if not hosts:
        raise ValueError("lists no hosts; expected lines such as `gpu1 slots=8`")
    return count_repeats(name_by_port(hosts))


def _parse_line(line: str) -> SourceHost:
    _refuse_other_formats(line)
    # `slots = 4` is one word
    first, *words = re.sub(r"\s*=\s*", "=", line).replace(",", " ").split()
    values: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals and re.fullmatch(r"[0-9]{1,4}", word) and len(words) == 1:
            name, value = "slots", word
        elif not equals or name.lower() not in (*_SLOTS, *_IGNORED, "user", "username", "port"):
            raise ValueError(f"{quoted(word)} is unknown; expected a line such as `{quoted(first)[1:-1]} slots=8`")
        values[name.lower()] = value
    user, at, place = first.rpartition("@")
    if at and not user:
        raise ValueError(f"{quoted(first)}: no user before the @")
    name, number = _split_number(place)
    is_port = number is not None and _is_port(number, bool(user), place)
    slots = next((values[key] for key in _SLOTS if key in values), None)
    return SourceHost(
        name=name,
        user=user or values.get("user") or values.get("username"),
        port=number if is_port else _whole(values.get("port"), "port"),
        slots=_whole(slots, "slots") if slots is not None else None if is_port else number,
    )


def _split_number(place: str) -> tuple[str, int | None]:
    """`gpu1:4` and `[::1]:4` -> the host and the number. An IPv6 address without brackets has none."""
    match = re.fullmatch(r"\[([0-9A-Fa-f:.%]+)\](?::([0-9]{1,5}))?|([^:\[\]]+):([0-9]{1,5})", place)
    if match is None:
        return place, None
    number = match[2] or match[4]
    return match[1] or match[3], None if number is None else int(number)


def _is_port(number: int, has_user: bool, place: str) -> bool:
    if not has_user and number == _DEFAULT_SSH_PORT:
        raise ValueError(f"{place}: 22 slots, or port 22 of SSH? Write `slots=22` or `port=22` after the host")
    return has_user or number > MAX_SLOTS


def _whole(value: str | None, name: str) -> int | None:
    if value is None:
        return None
    if not re.fullmatch(r"[0-9]{1,6}", value):
        raise ValueError(f"{name}={shlex.quote(value[:40])}: expected a number")
    return int(value)


def _refuse_other_formats(line: str) -> None:
    """Raises ValueError with a better reason than an invalid name."""
    if re.match(r"rank\s+\d+\s*=", line):
        raise ValueError("this is a rankfile, which places ranks one by one; give the hostfile")
    if re.fullmatch(r"\[[^\]]*[A-Za-z][^\]]*\]", line):
        raise ValueError(f"{quoted(line)} begins a group of an Ansible inventory; use @ansible:FILE")
    if re.match(r"[{\[]\s*([\"{\[]|$)|---|hosts:", line):
        raise ValueError("this is JSON or YAML; a hostfile has one host per line. An inventory needs no @hostfile:")
    if line.startswith("+"):
        raise ValueError(f"{quoted(line.split()[0])}: relative nodes of an allocation are not supported; name the host")
    if "[" in line and re.search(r"\[[0-9,-]+\]", line.split()[0]) and ":" not in line.split()[0]:
        raise ValueError(f"{quoted(line.split()[0])}: hostfiles have no ranges; write the range in an inventory")
    if re.match(r"[0-9.]+\s+[A-Za-z]|[0-9A-Fa-f:]*:[0-9A-Fa-f:]*\s+[A-Za-z]", line) and "=" not in line:
        raise ValueError(f"{quoted(line)}: an address and names, as in /etc/hosts; expected one host per line")
