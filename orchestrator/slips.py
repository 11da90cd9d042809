"""What people type who mean something else, and how it is meant. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from difflib import get_close_matches

import click

ELSEWHERE = {"list": "ps", "status": "ps", "stop": "kill", "down": "kill", "start": "up", "run": "up", "ssh": "exec"}
# how neighbours of this program call what is here


def hint(error: click.ClickException) -> str | None:
    """What the likeliest slips want: a script's own options without `--`, an inventory where none belongs."""
    command = getattr(getattr(error, "ctx", None), "info_name", None)
    behind = {"up": "SCRIPT ARGS...", "exec": "CMD ARGS..."}
    if isinstance(error, click.NoSuchOption) and error.option_name in ("-i", "--inventory"):
        return f"The inventory comes first here, without -i: ddp-orch {command} inventory.yaml"
    if isinstance(error, click.NoSuchOption) and command in behind:
        near = get_close_matches(error.option_name, error.possibilities or (), 1, 0.75)
        error.possibilities = near  # type: ignore[misc]  # an option of ours that is hardly meant helps nobody
        what = {"up": "script", "exec": "command"}[command]
        alone = " (flags alone are for the bundled trainer)" if command == "up" else ""
        usage = f"ddp-orch {command} INVENTORY -- {behind[command]}{alone}"
        return f"What belongs to the {what} stands behind `--`: {usage}"
    missing = getattr(error.param, "name", None) if isinstance(error, click.MissingParameter) else None
    if missing == "command":
        return "The inventory comes first: ddp-orch exec inventory.yaml -- CMD ARGS..."
    if missing == "inventory":
        return f"Such as: ddp-orch {command} inventory.yaml; `ddp-orch init HOST...` writes one."
    extra = error.message.partition("unexpected extra argument (")[2].rstrip(").")
    if extra.endswith((".yaml", ".yml")):
        return f"An inventory is given as `-i {extra}` here."
    return None


def to_paste(advice: str, words: Sequence[str]) -> str:
    """Advice that speaks of INVENTORY, with the one that is among these words in its place."""
    given = next((word for word in words if word.endswith((".yaml", ".yml"))), None)
    return advice if given is None else advice.replace("INVENTORY", shlex.quote(given))
