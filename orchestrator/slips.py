"""What people type who mean something else, and the command that they mean. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from difflib import get_close_matches

import click

ALIKE = 0.75  # of 1: an option that is less alike is another program's
ARGV = "ddp_orch.argv"  # the key in a context's `meta` of all words of the command line

# how neighbours of this program call what is here; {} stands for the words that follow
ELSEWHERE = {
    "attach": "ddp-orch logs -f{}",
    "cancel": "ddp-orch kill{}",
    "cp": "ddp-orch fetch RUN (brings outputs here); ddp-orch up sends the code by itself",
    "dashboard": "ddp-orch top{}",
    "describe": "ddp-orch report{}",
    "down": "ddp-orch kill{}",
    "download": "ddp-orch fetch{}",
    "events": "ddp-orch logs --stream agent{}",
    "gpus": "ddp-orch exec -- nvidia-smi",
    "hosts": "ddp-orch config (the hosts of the inventory); ddp-orch check (their state)",
    "inspect": "ddp-orch report{}",
    "list": "ddp-orch ps{}",
    "ls": "ddp-orch ps{}",
    "queue": "ddp-orch ps{}; ddp-orch up --wait starts as soon as the hosts are free",
    "restart": "ddp-orch up --name NAME -- SCRIPT ARGS... (a new run resumes in the output folder of that name)",
    "rm": "ddp-orch prune (removes old runs); ddp-orch kill RUN (stops one)",
    "run": "ddp-orch up{}",
    "shell": "ssh HOST; for a command on every host: ddp-orch exec -- CMD",
    "ssh": "ddp-orch exec -- CMD (on every host); for a shell: ssh HOST",
    "start": "ddp-orch up{}",
    "stats": "ddp-orch top{}",
    "status": "ddp-orch ps{}",
    "stop": "ddp-orch kill{}",
    "sync": "ddp-orch up -- SCRIPT (sends the code by itself)",
    "tail": "ddp-orch logs -f --tail 10{}",
    "train": "ddp-orch up{}",
    "wait": "ddp-orch logs -f{}",
    "watch": "ddp-orch top{}",
}

# options of other launchers that `up` has not, and what to use in their place
FOREIGN = {
    "--env-file": "give variables with -e K=V, or with `run: {env: ...}` in the inventory",
    "--gpus": "set `gpus` of the hosts in the inventory",
    "--master-addr": "the rendezvous is on the `head` of the inventory; its port is run.rdzv.port",
    "--master-port": "set run.rdzv.port in the inventory",
    "--max-restarts": "set run.max_restarts in the inventory",
    "--nnodes": "choose hosts with --hosts PATTERN, or set run.nnodes in the inventory",
    "--node-rank": "ranks follow the order of `hosts` in the inventory; rank 0 is on its `head`",
    "--nproc-per-node": "set nproc_per_node of the hosts in the inventory",
    "--rdzv-backend": "set run.rdzv.backend in the inventory",
    "--rdzv-endpoint": "the rendezvous is on the `head` of the inventory; its port is run.rdzv.port",
    "--set": "change the key in the inventory",
    "-n": "choose hosts with --hosts PATTERN, or set run.nnodes in the inventory",
}


def elsewhere(argv: Sequence[str]) -> str | None:
    """What is said to a command of a neighbour of this program."""
    if not argv or argv[0] not in ELSEWHERE:
        return None
    words = "".join(f" {shlex.quote(word)}" for word in argv[1:])
    return f"there is no command '{argv[0]}'; you may want: {ELSEWHERE[argv[0]].format(words)}"


def hint(error: click.ClickException) -> str | None:
    """The command line that was probably meant, or what to use in the place of an unknown option."""
    context = getattr(error, "ctx", None)
    if context is None:
        return None
    argv = context.meta.get(ARGV, ())
    if isinstance(error, click.NoSuchOption):
        return _unknown_option(error, str(context.info_name), argv)
    extra = error.message.partition("unexpected extra argument (")[2].rstrip(").")
    if extra.endswith((".yaml", ".yml")) and extra in argv:
        place = argv.index(extra)
        return f"an inventory is given with -i here: {_line([*argv[:place], '-i', *argv[place:]])}"
    return None


def _unknown_option(error: click.NoSuchOption, command: str, argv: Sequence[str]) -> str | None:
    option = error.option_name
    if option in ("-i", "--inventory") and len(argv) > 2 and argv[0] == option:
        return f"-i belongs after the command: {_line([argv[2], *argv[:2], *argv[3:]])}"
    if command not in ("up", "exec", "bench"):
        return None
    place = next((number for number, word in enumerate(argv) if number and word.startswith(option)), len(argv))
    start = _first_of_script(argv[:place])
    if start is None and command == "up" and (known := FOREIGN.get(option.replace("_", "-"))):
        return known
    # an option of ours that is hardly meant helps nobody
    near = [] if start is not None else get_close_matches(option, error.possibilities or (), 1, ALIKE)
    error.possibilities = near  # type: ignore[misc]
    if near:
        return None
    place = place if start is None else start
    return _after_dashes(command, argv[:place], argv[place:])


def _after_dashes(command: str, own: Sequence[str], others: Sequence[str]) -> str:
    what = {"up": "the script and its flags", "exec": "the command and its flags"}.get(command, "the trainer's flags")
    words = [word for word in others if word != "--"]
    return f"{what} come after `--`: {_line([*(word for word in own if word != '--'), '--', *words])}"


def _first_of_script(argv: Sequence[str]) -> int | None:
    """Where the user's script or command begins, in the words before an option of its own."""
    if argv and argv[0] == "exec":
        inventories = [number for number, word in enumerate(argv) if word.endswith((".yaml", ".yml"))]
        start = inventories[-1] + 1 if inventories else 1
        return start if start < len(argv) else None
    return next((number for number, word in enumerate(argv) if word.endswith(".py") or word == "-m"), None)


def misplaced(context: click.Context, option: str | None) -> str | None:
    """What is said to an INVENTORY that is none, is in the place of a RUN, or is there twice. `option`: that of -i."""
    command, argv = str(context.info_name), context.meta.get(ARGV, ())
    run = context.params.get("run") or ""
    run = run if isinstance(run, str) else str(run[0])
    if run.endswith((".yaml", ".yml")) and not context.params.get("inventory") and not context.params.get("log"):
        return f"{run} is an inventory, and no run: {_line([command, '-i', *argv[1:]])}"
    word = context.params.get("inventory")
    if word is None or option is word:
        return None
    script = word.endswith(".py")
    if command in ("up", "exec") and (script or (option is not None and not word.endswith((".yaml", ".yml")))):
        words = [word, *(context.params.get("script") or context.params.get("command") or ())]
        own = list(argv)
        for one in words:
            own.remove(one)
        return _after_dashes(command, own, words)
    if script:
        return f"{word} is a script, and no inventory; to train with it: {_line(['up', '--', word])}"
    return None if option is None else f"the inventory is given twice: {option} and {word}"


def no_command(inventory: str | None) -> str:
    """What is said to `exec` without a command."""
    if inventory is None or inventory.endswith((".yaml", ".yml")):
        given = () if inventory is None else (inventory,)
        return f"no command is given: {_line(['exec', *given, '--'])} CMD ARGS..."
    return f"the command comes after `--`: {_line(['exec', '--', inventory])}"


def _line(words: Sequence[str]) -> str:
    return shlex.join(["ddp-orch", *words])
