"""Recognise common mistakes on the command line, and suggest the command that was meant."""

from __future__ import annotations

import itertools
import re
import shlex
import shutil
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path

import click

from ..inventory.sources import reference
from .deprecated import current_names
from .foreign_commands import foreign_task, is_inventory

MIN_SIMILARITY = 0.75  # 0 to 1: an option that is less similar belongs to another program
PYTHON = re.compile(r"(.*/)?(python[0-9.]*|torchrun|deepspeed)")
LAUNCHER = re.compile(r"(.*/)?(torchrun|deepspeed|accelerate|mpirun|mpiexec|srun)")
"""Programs that people type before a script. `up` starts the launcher itself."""
ARGV = "ddp_orch.argv"  # the key in a context's `meta` of all words of the command line

_NNODES = "use --set run.nnodes=N, or choose hosts with --hosts PATTERN"
_NPROC = (
    "set nproc_per_node of the hosts in the inventory, or for one run: "
    "ddp-orch up -- torchrun --nproc_per_node=N SCRIPT"
)
# options of other programs by command, and what to use instead
OTHER_PROGRAMS = {
    "exec": dict.fromkeys(("-e", "--env"), "put a variable before the command: ddp-orch exec -- 'NAME=VALUE CMD'"),
    "kill": {"-9": "to end the run without a grace period, use --grace 0"},
    "logs": {
        "--lines": "use --tail N",
        "--no-follow": "without -f, `logs` shows what there is, and ends",
        "--sync-down": "use -o DIR",
    },
    "signal": {"-9": "give the signal after the run: ddp-orch signal RUN KILL"},
}
# options of other launchers, and what to use instead
FOREIGN = {
    **dict.fromkeys(
        ("-c", "--cluster"), "the hosts are those of the inventory; choose some of them with --hosts PATTERN"
    ),
    **dict.fromkeys(
        ("--cloud", "--infra", "--region", "--zone", "--instance-type", "--use-spot"),
        "leave it out: the hosts are those of the inventory",
    ),
    **dict.fromkeys(("-y", "--yes"), "leave it out: `up` asks no questions"),
    **dict.fromkeys(("-r", "--retry-until-up"), "use --queue, which waits until the hosts are free"),
    "--gpus": "set `gpus` of the hosts in the inventory",
    "--launcher": "use --set run.launcher=NAME, or set it in the inventory",
    "--master-addr": "the rendezvous is on the `head` of the inventory; its port is run.rdzv.port",
    "--master-port": "set run.rdzv.port in the inventory",
    "--max-restarts": "use --set run.max_restarts=N, or set it in the inventory",
    "--num-gpus": _NPROC,
    "--num-machines": _NNODES,
    "--num-nodes": _NNODES,
    "--nodes": _NNODES,
    "--ntasks-per-node": _NPROC,
    "--gpus-per-node": _NPROC,
    "-N": _NNODES,
    "--nnodes": _NNODES,
    "--node-rank": "ranks follow the order of `hosts` in the inventory; rank 0 is on its `head`",
    "--nproc": _NPROC,
    "--nproc-per-host": _NPROC,
    "--nproc-per-node": _NPROC,
    "--num-processes": _NPROC,
    "--num-proc-per-node": _NPROC,
    "--rdzv-backend": "use --set run.rdzv.backend=NAME, or set it in the inventory",
    "--rdzv-endpoint": "the rendezvous is on the `head` of the inventory; its port is run.rdzv.port",
    "--secret": "name the variable in run.secrets, and set it in your environment",
    "-f": "the inventory is an argument of its own: ddp-orch up FILE",
    "-n": "use --name NAME for the name of the run, and --set run.nnodes=N or --hosts PATTERN for the number of hosts",
}


def hint(error: click.ClickException) -> str | None:
    """The command line that was probably meant, or what to use instead of an unknown option."""
    context = getattr(error, "ctx", None)
    if context is None:
        return None
    argv = context.meta.get(ARGV, ())
    if isinstance(error, click.NoSuchOption):
        text = _unknown_option(error, str(context.info_name), argv)
        if text is None and len(error.option_name) == 2:
            _suggest(error, _options_with_initial(error.option_name[1], context))
        _suggest(error, current_names(error.possibilities or (), context.command))
        return text
    if "unexpected extra argument" in error.message and any(
        isinstance(param, click.Option) and param.name == "inventory" for param in context.command.params
    ):
        return _inventory_first(context, argv) or _one_run(context, argv)
    return None


def _one_run(context: click.Context, argv: Sequence[str]) -> str | None:
    """A hint if a command gets the name of a cluster or a job before the number of a run, as in other programs."""
    arguments = [param.name for param in context.command.params if isinstance(param, click.Argument)]
    if arguments != ["run"]:
        return None
    if argv[0] == "restart" and "--" in argv:
        end = argv.index("--")
        return _other_arguments(context, argv[:end], argv[end + 1 :])
    ps = "`ddp-orch ps --all` lists them"
    return f"{argv[0]} takes one RUN, by its id or name, and no name of a cluster: {ps}"


def _inventory_first(context: click.Context, argv: Sequence[str]) -> str | None:
    """A hint if a command that takes the inventory with -i has it among its arguments."""
    with_value = _options_with_value(context)
    for place, (before, word) in enumerate(itertools.pairwise(argv), 1):
        if is_inventory(word) and before not in with_value:
            return f"this command takes the inventory with -i: {_line([*argv[:place], '-i', *argv[place:]])}"
    return None


def _options_with_initial(letter: str, context: click.Context) -> list[str]:
    options = [param for param in context.command.params if isinstance(param, click.Option) and not param.hidden]
    return sorted(name for option in options for name in option.opts if name.startswith(f"--{letter}"))


def _suggest(error: click.NoSuchOption, options: list[str]) -> None:
    """Make click suggest these options instead of those that it finds similar."""
    error.possibilities = options  # type: ignore[misc]


def _unknown_option(error: click.NoSuchOption, command: str, argv: Sequence[str]) -> str | None:
    option = error.option_name
    if isinstance(error.ctx and error.ctx.command, click.Group):
        return _options_first(error, argv)
    if command == "init" and "ssh" in argv[1:2]:
        _suggest(error, [])
        return f"quote the line: ddp-orch init {shlex.quote(shlex.join(argv[1:]))}"
    if known := OTHER_PROGRAMS.get(command, {}).get(option):
        _suggest(error, [])
        return known
    if command == "restart":
        return _arguments_of_restart(error, argv)
    if command not in ("up", "exec", "bench"):
        return None
    own = argv[: argv.index("--")] if "--" in argv else argv
    is_task = command != "bench" and not any(word.endswith(".py") for word in own)
    if is_task and (task := foreign_task(own)) is not None:
        _suggest(error, [])
        return task
    place = next((number for number, word in enumerate(argv) if number and word.startswith(option)), len(argv))
    start = _first_of_script(argv[:place])
    if start is None and command == "up" and (known := FOREIGN.get(option.replace("_", "-"))):
        _suggest(error, [])
        return known
    # an option of ours that is hardly meant helps nobody
    near = [] if start is not None else get_close_matches(option, error.possibilities or (), 1, MIN_SIMILARITY)
    _suggest(error, near)
    if near:
        return None
    place = place if start is None else start
    if command == "up" and place > 1 and PYTHON.fullmatch(argv[place - 1]) and error.ctx is not None:
        place -= argv[place - 2] not in _options_with_value(error.ctx)
    return _after_dashes(command, argv[:place], argv[place:])


def _arguments_of_restart(error: click.NoSuchOption, argv: Sequence[str]) -> str | None:
    """A hint if `restart` gets an option that is probably one of the script."""
    option = error.option_name
    if known := FOREIGN.get(option.replace("_", "-")) if option.startswith("--") else None:
        _suggest(error, [])
        return known
    near = get_close_matches(option, error.possibilities or (), 1, MIN_SIMILARITY)
    _suggest(error, near)
    if near:
        return None
    assert error.ctx is not None
    place = next((number for number, word in enumerate(argv) if number and word.startswith(option)), len(argv))
    return _other_arguments(error.ctx, argv[:place], argv[place:])


def _other_arguments(context: click.Context, own: Sequence[str], words: Sequence[str]) -> str:
    """`own`: the words for `restart`. `words`: those for the script, perhaps with the script."""
    with_value = _options_with_value(context)
    before = itertools.pairwise(own)
    run = next((word for last, word in before if last not in with_value and not word.startswith("-")), "NAME")
    script = ["SCRIPT"] if words[:1] and words[0].startswith("-") else []
    start = _line(["up", "--name", run, "--", *script, *words])
    return f"restart gives the script the arguments that it had; to start it with others: {start}"


def _options_first(error: click.NoSuchOption, argv: Sequence[str]) -> str | None:
    """A hint if options of a command were given before the command."""
    assert error.ctx is not None and isinstance(error.ctx.command, click.Group)
    commands = error.ctx.command.commands
    place = next((number for number, word in enumerate(argv) if word in commands), None)
    if place is None:
        return None
    own = {option for param in commands[argv[place]].params for option in param.opts}
    names = {word.partition("=")[0] for word in argv[:place] if word.startswith("-")}
    if not names <= own:
        return None
    _suggest(error, [])
    return f"options come after the command: {_line([argv[place], *argv[:place], *argv[place + 1 :]])}"


def _after_dashes(command: str, own: Sequence[str], others: Sequence[str]) -> str:
    what = {"up": "the script and its flags", "exec": "the command and its flags"}.get(command, "the trainer's flags")
    own = [word for word in own if word != "--"]
    # in `up --lr 0.1 -- train.py`, --lr is a flag of the script
    place = list(others).index("--") if "--" in others and others[0].startswith("-") else 0
    words = [word for word in (*others[place:], *others[:place]) if word != "--"]
    has_flags = LAUNCHER.fullmatch(words[0]) and words[1:2] and words[1].startswith("-") if words else False
    if command == "up" and words and PYTHON.fullmatch(words[0]) and not has_flags:
        words = words[1:]
    start = f"{what} come after `--`: {_line([*own, '--', *words])}"
    if command == "exec" and len(words) > 1 and shutil.which(words[0]) is None:
        start += f" (without {words[0]} if it names a cluster: the hosts are those of the inventory)"
    return start


def _first_of_script(argv: Sequence[str]) -> int | None:
    """Where the script or command of the user begins, among the words before one of its options."""
    if argv and argv[0] == "exec":
        inventories = [number for number, word in enumerate(argv) if is_inventory(word)]
        start = inventories[-1] + 1 if inventories else 1
        return start if start < len(argv) else None
    return next(
        (
            number
            for number, word in enumerate(argv)
            if word.endswith(".py") or word == "-m" or (LAUNCHER.fullmatch(word) and argv[number - 1] != "--name")
        ),
        None,
    )


def misplaced(context: click.Context, option: str | None) -> str | None:
    """A message about an INVENTORY that is a script, is in the place of RUN, or is given twice; or None.

    `option`: the value of -i.
    """
    command, argv = str(context.info_name), context.meta.get(ARGV, ())
    run = context.params.get("run") or ""
    run = run if isinstance(run, str) else str(run[0])
    if (
        is_inventory(run)
        and (reference.is_source(run) or Path(run).is_file())
        and not context.params.get("inventory")
        and not context.params.get("log")
    ):
        place = _place(context, argv, run)
        return f"{run} is an inventory, not a run: {_line([*argv[:place], '-i', *argv[place:]])}"
    word = context.params.get("inventory")
    if word is None or option is word:
        return None
    others = context.params.get("command") or ()
    if not is_inventory(word) and (task := foreign_task(others)) is not None:  # exec CLUSTER TASK
        return task
    if command in ("up", "exec") and _is_of_script(context, command, word, option):
        end = argv.index("--") if "--" in argv else len(argv)
        own, words = list(argv[:end]), [word, *(context.params.get("script") or context.params.get("command") or ())]
        for script_word in words:
            del own[_place(context, own, script_word)]
        return _after_dashes(command, own, [*words, *argv[end:]])
    if word.endswith(".py"):
        return f"{word} is a script, not an inventory; to train with it: {_line(['up', '--', word])}"
    return None if option is None else f"the inventory is given twice: {option} and {word}"


def _is_of_script(context: click.Context, command: str, word: str, option: str | None) -> bool:
    """Whether the first word begins the script or the command, and is not an inventory."""
    if word.endswith(".py") or (option is not None and not is_inventory(word)):
        return True
    if is_inventory(word) or word == "-" or Path(word).exists():
        return False
    if command == "up":
        return PYTHON.fullmatch(word) is not None
    return bool(context.params.get("command"))


def _place(context: click.Context, argv: Sequence[str], argument: str) -> int:
    """The index of this argument in the words of a command. The value of an option may be the same word."""
    with_value = _options_with_value(context)
    return next(
        number for number, word in enumerate(argv) if number and word == argument and argv[number - 1] not in with_value
    )


def _options_with_value(context: click.Context) -> set[str]:
    options = [param for param in context.command.params if isinstance(param, click.Option) and not param.is_flag]
    return {name for option in options for name in option.opts}


def no_command(inventory: str | None) -> str:
    """A message about `exec` without a command."""
    if inventory is not None and (task := foreign_task([inventory])) is not None:
        return task
    if inventory is None or is_inventory(inventory):
        words = () if inventory is None else (inventory,)
        return f"no command given: {_line(['exec', *words, '--'])} CMD ARGS..."
    return f"the command comes after `--`: {_line(['exec', '--', inventory])}"


def _line(words: Sequence[str]) -> str:
    return shlex.join(["ddp-orch", *words])
