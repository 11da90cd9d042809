"""The environment variables that `up` and `restart` take from --env-file and -e."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from ..errors import UsageError
from ..inventory import settings as command_line
from ..inventory.model import Inventory
from ..inventory.values import env_name, shown
from ..output.console import fold
from ..plan.plan import Plan

MAX_BYTES = 1 << 20  # of a file


def read(
    inventory: Inventory, files: Sequence[str], pairs: Sequence[str], settings: Sequence[str] = ()
) -> dict[str, str]:
    """The variables of all files, then those of `-e NAME=VALUE`, which override them.

    Raises UsageError, also if one of `settings` gives a variable that has its value here.
    """
    # read once: a file may be a pipe
    found = list(_assignments(files, pairs))
    _check_settings(settings, found)
    return {_check_name(where, name, inventory): value for where, name, value in found}


def names(files: Sequence[str], pairs: Sequence[str]) -> dict[str, str]:
    """The names of these variables, and the option that gives each its value. Raises UsageError."""
    return _options(_assignments(files, pairs))


def check_settings(settings: Sequence[str], files: Sequence[str], pairs: Sequence[str]) -> None:
    """Raises UsageError if `--set run.env...` would have no effect, because these options override it."""
    _check_settings(settings, list(_assignments(files, pairs)))


def _check_settings(settings: Sequence[str], found: Sequence[tuple[str, str, str]]) -> None:
    given = command_line.variables(settings)
    for name, option in _options(found).items():
        if name in given:
            raise UsageError(
                f"{name} has two values: that of {option} overrides that of --set; give only one, "
                f"such as -e {name}={_word(given[name])}"
            )


def _options(found: Iterable[tuple[str, str, str]]) -> dict[str, str]:
    return {name: where.rpartition(":")[0] or where for where, name, _ in found}


def warn_of_host_values(plan: Plan, settings: Sequence[str]) -> list[str]:
    """Warnings about `--set run.env...` where `env` of hosts overrides it, and no option -e overrides that."""
    warnings = []
    for name, value in command_line.variables(settings).items():
        of_host = [node for node in plan.nodes if name in node.host.env]
        hosts = [node.host.name for node in of_host if node.env.get(name) == node.host.env[name] != value]
        if hosts:
            warnings.append(
                f"{name} of --set has no effect on {fold(hosts)}, which {'has' if len(hosts) == 1 else 'have'} a value "
                f"of {name} in the inventory; to override that: -e {name}={_word(value)}"
            )
    return warnings


def _word(value: str | None) -> str:
    return "VALUE" if value is None else shlex.quote(value)


def _assignments(files: Sequence[str], pairs: Sequence[str]) -> Iterator[tuple[str, str, str]]:
    """Where each variable is set, its name and its value; later ones override earlier ones."""
    for file in files:
        for number, line in enumerate(_text_of(file).splitlines(), 1):
            assignment = line.strip().removeprefix("export ").lstrip()
            if assignment and not assignment.startswith("#"):
                where = f"--env-file {file}:{number}"
                yield (where, *_variable_of_line(where, assignment, os.environ))
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals and name in os.environ:  # as in docker
            value = os.environ[name]
        elif not equals:
            raise UsageError(f"-e {pair!r}: expected NAME=VALUE, or the name of a variable that is set here")
        if not name:
            raise UsageError(f"-e {pair!r}: no name before the =; expected NAME=VALUE")
        yield f"-e {shown(name)}", name, value


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
