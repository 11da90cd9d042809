"""The environment variables that `up` takes from --env-file and -e."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from ..errors import UsageError
from ..inventory.model import Inventory
from ..inventory.values import env_name, shown

MAX_BYTES = 1 << 20  # of a file


def read(inventory: Inventory, files: Sequence[str], pairs: Sequence[str]) -> dict[str, str]:
    """The variables of all files, then those of `-e NAME=VALUE`, which override them. Raises UsageError."""
    variables: dict[str, str] = {}
    for file in files:
        for number, line in enumerate(_text_of(file).splitlines(), 1):
            assignment = line.strip().removeprefix("export ").lstrip()
            if assignment and not assignment.startswith("#"):
                where = f"--env-file {file}:{number}"
                name, value = _variable_of_line(where, assignment, os.environ)
                variables[_check_name(where, name, inventory)] = value
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals and name in os.environ:  # as in docker
            value = os.environ[name]
        elif not equals:
            raise UsageError(f"-e {pair!r}: expected NAME=VALUE, or the name of a variable that is set here")
        if not name:
            raise UsageError(f"-e {pair!r}: no name before the =; expected NAME=VALUE")
        variables[_check_name(f"-e {shown(name)}", name, inventory)] = value
    return variables


def _text_of(file: str) -> str:
    try:
        with Path(file).open("rb") as stream:
            data = stream.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        raise UsageError(f"--env-file {shown(file, 500)}: {getattr(error, 'strerror', None) or error}") from error
    if len(data) > MAX_BYTES:
        raise UsageError(f"--env-file {file}: larger than 1 MiB; expected a NAME=VALUE on each line")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(f"--env-file {file}: not UTF-8: byte 0x{data[error.start]:02x}") from error


def _variable_of_line(where: str, assignment: str, environ: Mapping[str, str]) -> tuple[str, str]:
    """`NAME=VALUE`, or `NAME` for the value that it has in this environment. Quotes around VALUE are removed."""
    name, equals, value = assignment.partition("=")
    name, value = name.rstrip(), value.strip()
    if not equals:
        if name not in environ:
            raise UsageError(
                f"{where}: expected NAME=VALUE, or the name of a variable that is set here; got {shown(name)}"
            )
        return name, environ[name]
    return name, value[1:-1] if len(value) > 1 and value[0] == value[-1] and value[0] in "'\"" else value


def _check_name(where: str, name: str, inventory: Inventory) -> str:
    try:
        env_name(name)
    except ValueError as error:
        raise UsageError(f"{where}: {error}") from error
    if name in inventory.run.secrets:
        raise UsageError(f"{where}: {name} is in run.secrets, whose values come only from your environment")
    return name
