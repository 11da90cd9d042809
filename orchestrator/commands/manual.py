"""The manual page `ddp-orch.1`, and the tables of exit codes and variables in docs/reference.md. Pure."""

from __future__ import annotations

import click

from .. import __version__

EXIT_CODES = {
    0: "success; `up`, `logs -f` and `wait`: the run succeeded",
    1: "the run failed; `kill`: a process of the run is still running",
    2: "wrong usage, or an error in the inventory",
    3: "a check found an error; nothing was started",
    4: "a host is unreachable, or was lost",
    5: "a GPU, port or name is in use; nothing was started",
    70: "a bug in ddp-orch",
    74: "the output cannot be written, for example because the disk is full",
    75: "the run saved a snapshot and was stopped, to be resumed",
    124: "`wait --timeout`: the run has not ended in time; it continues",
    130: "the run was killed, or Ctrl-C ended the command",
}

READ_HERE = {
    "DDP_ORCH_INVENTORY": "the inventory of commands without INVENTORY",
    "DDP_ORCH_SSH_CONFIG": "the configuration file of SSH, in place of ~/.ssh/config",
    "DDP_ORCH_STATE_DIR": "on a host: the folder for the files of runs, if the inventory has no `state_dir` for it",
    "DDP_ORCH_NO_RUN": "if set, `orchestrator.run` returns None: for scripts that start themselves",
    "XDG_STATE_HOME": "the folder in which ddp-orch remembers the runs that were started here; default: ~/.local/state",
    "NO_COLOR, FORCE_COLOR, TERM": "whether messages have colours",
    "SSH_AUTH_SOCK": "the socket of the SSH agent",
}
"""Variables that ddp-orch reads."""

SET_FOR_RANKS = {
    "DDP_ORCH_OUTPUT_DIR": "the folder for outputs, which `fetch` downloads; `{output}` in arguments",
    "DDP_ORCH_RUN_ID": "the id of the run",
    "DDP_ORCH_RUN_NAME": "the name of the run",
    "DDP_ORCH_ATTEMPT": "the number of the attempt, from 1",
    "DDP_ORCH_MEMORY_DIR": "the folder for snapshots in memory, if run.memory_limit is set",
}
"""Variables that the ranks of a run get, besides those of their launcher."""


def tables() -> str:
    """The generated part of docs/reference.md."""
    parts = [
        "## Exit codes\n\n| code | meaning |\n|---|---|\n",
        *(f"| {code} | {meaning} |\n" for code, meaning in EXIT_CODES.items()),
        "\n## Variables that ddp-orch reads\n\n| variable | meaning |\n|---|---|\n",
        *(f"| `{name.replace(', ', '`, `')}` | {meaning} |\n" for name, meaning in READ_HERE.items()),
        "\n## Variables that ranks get\n\n| variable | meaning |\n|---|---|\n",
        *(f"| `{name}` | {meaning} |\n" for name, meaning in SET_FOR_RANKS.items()),
    ]
    return "".join(parts)


def man_page(program: click.Group) -> str:
    """The source of the manual page."""
    commands = [(name, command) for name, command in sorted(program.commands.items()) if not command.hidden]
    lines = [
        f'.TH DDP-ORCH 1 "" "ddp-orch {__version__}" "User Commands"',
        ".SH NAME",
        "ddp\\-orch \\- launch PyTorch distributed training on many machines over plain SSH",
        ".SH SYNOPSIS",
        ".B ddp\\-orch",
        "\\fICOMMAND\\fR [\\fIOPTION\\fR...] [\\fIARGUMENT\\fR...] [\\-\\- \\fISCRIPT ARGS\\fR...]",
        ".SH DESCRIPTION",
        _escape(program.help or ""),
        ".PP",
        "Without an argument, commands use $DDP_ORCH_INVENTORY or ./inventory.yaml.",
        "\\fBddp\\-orch help\\fR \\fICOMMAND\\fR shows all options of a command.",
        ".SH COMMANDS",
    ]
    for name, command in commands:
        lines += [".TP", f"\\fB{_escape(name)}\\fR", _escape(command.get_short_help_str(200))]
    lines.append(".SH EXIT STATUS")
    for code, meaning in EXIT_CODES.items():
        lines += [".TP", f"\\fB{code}\\fR", _escape(meaning)]
    lines.append(".SH ENVIRONMENT")
    for variable, meaning in {**READ_HERE, **SET_FOR_RANKS}.items():
        lines += [".TP", f"\\fB{_escape(variable)}\\fR", _escape(meaning)]
    lines += [
        ".SH FILES",
        ".TP",
        "\\fI./inventory.yaml\\fR",
        "The hosts, how to reach them, and what to run. \\fBddp\\-orch init\\fR writes it.",
        ".TP",
        "\\fI~/.local/state/ddp\\-orch\\fR",
        "On a host: the files of runs. Here: what was started from this machine.",
        ".SH EXAMPLES",
        ".nf",
        "ddp\\-orch init ann@lovelace ann@hopper",
        "ddp\\-orch check",
        "ddp\\-orch up \\-\\- train.py \\-\\-lr 0.1",
        ".fi",
        ".SH SEE ALSO",
        "\\fBtorchrun\\fR(1), \\fBssh\\fR(1), \\fBssh_config\\fR(5)",
    ]
    return "\n".join(lines) + "\n"


def _escape(text: str) -> str:
    """Text for roff: no requests, and hyphens that can be copied."""
    words = " ".join(text.replace("`", "").split()).replace("\\", "\\e").replace("-", "\\-")
    return f"\\&{words}" if words.startswith((".", "'")) else words
