"""Options that several commands share, and the command classes that parse them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import click

from ..errors import UsageError
from ..inventory.sources import reference
from . import completion, deprecated, foreign_commands, hints
from .exit_codes import OutputClosed

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")

RUN = click.argument("run", required=False, shell_complete=completion.run)
WITH = click.option(
    "--with",
    "with_file",
    type=click.Path(),
    metavar="FILE",
    help="If the hosts come from @SOURCE: take all other keys from this inventory file.",
)


def parse_option(option: str, text: str | None, parse: Callable[[str], T]) -> T | None:
    """The value of an option, or None if it was not given. Errors name the option."""
    try:
        return None if text is None else parse(text)
    except UsageError as error:
        raise UsageError(f"{option}: {error}") from error


def _inventory_of_run(default: str) -> Callable[[F], F]:
    help_text = f"Inventory file, or hosts from @SOURCE. Default: {default}."
    option = click.option("-i", "--inventory", "inventory", type=click.Path(), metavar="FILE", help=help_text)
    return lambda function: option(WITH(function))


INVENTORY_OF_GIVEN_RUN = _inventory_of_run("the inventory that RUN was started with")
INVENTORY_OF_RUN = _inventory_of_run(
    "the inventory that RUN was started with. Without RUN: $DDP_ORCH_INVENTORY, ./inventory.yaml, or the inventory of "
    "the newest run"
)
JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
ENV = click.option(
    "-e",
    "--env",
    "env",
    multiple=True,
    metavar="K=V",
    help="Set an environment variable for the ranks. NAME alone takes its value from here. Can be repeated.",
)
ENV_FILE = click.option(
    "--env-file",
    type=click.Path(),
    multiple=True,
    metavar="FILE",
    help="Set the variables in FILE: a NAME=VALUE on each line. -e overrides them. Can be repeated.",
)
SET = click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="KEY=VALUE",
    help="Change a key of run or notify for this run, such as run.max_restarts=3. Can be repeated.",
)
HOSTS = click.option(
    "--hosts",
    metavar="PATTERN",
    shell_complete=completion.host,
    help="Use only these hosts, such as gpu[01-04] or '!gpu02' (all but gpu02).",
)


def inventory(function: F) -> F:
    """INVENTORY, or `-i FILE`: `Command` makes one parameter of the two."""
    return _inventory(function, "$DDP_ORCH_INVENTORY, or ./inventory.yaml")


def inventory_of_any_run(function: F) -> F:
    """As `inventory`, but the last default is the inventory of the newest run."""
    return _inventory(function, "$DDP_ORCH_INVENTORY, ./inventory.yaml, or the inventory of the newest run")


def _inventory(function: F, default: str) -> F:
    argument = click.argument("inventory", required=False, type=click.Path(), metavar="[INVENTORY]")
    option = click.option(
        "-i",
        "--inventory",
        "inventory_option",
        type=click.Path(),
        metavar="FILE",
        help=f"Inventory file, or hosts from @slurm, @pbs, @lsf, @sge, @env, @hostfile:FILE, @ansible:FILE[#GROUP] or "
        f"@ssh-config:PATTERN. The same as INVENTORY. Default: {default}.",
    )
    return argument(option(WITH(function)))


LOCAL = ("config", "init", "demo", "help", "version", "completion")
"""Commands that connect to no host, or ask the user first."""


class Command(click.Command):
    """A command whose inventory is an argument or the option -i."""

    def invoke(self, context: click.Context) -> Any:
        if context.info_name not in LOCAL and not context.params.get("log"):
            _show_start()
        return super().invoke(context)

    def parse_args(self, context: click.Context, argv: list[str]) -> list[str]:
        rest = super().parse_args(context, argv)
        option = context.params.pop("inventory_option", None)
        with_file = context.params.pop("with_file", None)
        if (notices := deprecated.replace_old_options(context)) and not context.resilient_parsing:
            from .context import warn_once

            for notice in notices:
                warn_once(notice)
        if not context.resilient_parsing and (message := hints.misplaced(context, option)) is not None:
            raise UsageError(message)
        if option is not None:
            context.params["inventory"] = option
        if with_file is not None:
            context.params["inventory"] = _join(context.params.get("inventory"), with_file)
        return rest


def _show_start() -> None:
    """On a terminal, say that the command starts: to load it takes a while, seconds in a home folder on a slow disk."""
    import os

    from ..output.console import Console, wants_colour

    Console(sys.stderr, wants_colour(sys.stderr, os.environ)).status("starting")


def _join(source: str | None, file: str) -> str:
    if source is None or not reference.is_source(source):
        instead = "it is the inventory" if source is None else "give only one inventory"
        raise UsageError(f"--with {file}: {instead}; --with needs hosts from a source such as @slurm")
    return reference.join(source, file)


class CommandWithArgs(Command):
    """A command whose last parameter takes the words after `--` unchanged, and any words before it after INVENTORY."""

    def parse_args(self, context: click.Context, argv: list[str]) -> list[str]:
        end = argv.index("--") if "--" in argv else len(argv)
        if context.info_name == "up" and not context.resilient_parsing:
            message = foreign_commands.of_other_program(argv[end + 1 :]) or foreign_commands.of_other_program(
                argv[:end]
            )
            if message is not None:
                raise UsageError(message)
        rest = super().parse_args(context, argv[:end])
        name = str(next(param.name for param in self.params if param.nargs == -1))
        context.params[name] = (*(context.params.get(name) or ()), *argv[end + 1 :])
        return rest


SECTIONS: Mapping[str, Sequence[str]] = {
    "Prepare": ("init", "trust", "check", "setup", "config", "notify", "demo"),
    "Start": ("up",),
    "Watch": (
        *("ps", "logs", "wait", "top", "events", "attach", "describe", "shell", "port-forward"),
        *("report", "diagnose", "doctor"),
    ),
    "Change and stop": ("snapshot", "restart", "signal", "drain", "add", "revive", "kill"),
    "Outputs": ("fetch", "prune"),
    "Hosts": ("exec", "gpus", "bench"),
    "Other": ("completion", "help", "version"),
}  # of the help, in the order of README's table


class Program(click.Group):
    command_class = Command

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        width = max(len(name) for names in SECTIONS.values() for name in names)
        for section, names in SECTIONS.items():
            limit = formatter.width - 6 - width
            rows = [(name.ljust(width), self.commands[name].get_short_help_str(limit)) for name in names]
            with formatter.section(section):
                formatter.write_dl(rows)

    def parse_args(self, context: click.Context, argv: list[str]) -> list[str]:
        context.meta[hints.ARGV] = tuple(argv)
        if not argv and not context.resilient_parsing:
            click.echo(context.get_help(), err=True)
            sys.exit(UsageError.exit_code)
        return super().parse_args(context, argv)

    def resolve_command(
        self, context: click.Context, argv: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if (message := foreign_commands.elsewhere(argv)) is not None and not context.resilient_parsing:
            raise UsageError(message)
        return super().resolve_command(context, argv)

    def invoke(self, context: click.Context) -> Any:
        try:
            return super().invoke(context)
        except BrokenPipeError as error:
            raise OutputClosed from error  # click would turn it into exit code 1


class Seconds(click.FloatRange):
    """Seconds, as in `run.grace` of an inventory. Refuses nan, which FloatRange accepts."""

    def __init__(self) -> None:
        super().__init__(0, 86_400)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        seconds = super().convert(value, param, ctx)
        return seconds if seconds == seconds else self.fail(f"{value} is not a number of seconds", param, ctx)
