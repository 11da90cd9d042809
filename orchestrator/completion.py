"""What Tab completes besides commands, options and files. No host is asked at a key press."""

from __future__ import annotations

import os

import click
from click.shell_completion import CompletionItem

from .errors import OrchError


def run(context: click.Context, parameter: click.Parameter, begun: str) -> list[CompletionItem]:
    """The runs started from this machine, by id and by name. The hosts, who know all, are not asked at a key press."""
    from . import history

    known: dict[str, str] = {}
    for run_id, name in history.newest_runs():
        known.setdefault(run_id, name)
        known.setdefault(name, run_id)
    return [CompletionItem(word, help=what) for word, what in known.items() if word.startswith(begun)]


def script(context: click.Context, parameter: click.Parameter, begun: str) -> list[CompletionItem]:
    """A file here, as every word behind `--` may be one."""
    return [CompletionItem(begun, type="file")]


def host(context: click.Context, parameter: click.Parameter, begun: str) -> list[CompletionItem]:
    """The last word of a pattern, from the inventory that is named or lies here."""
    from . import inventory

    positional = [word for word in context.args if word.endswith((".yaml", ".yml"))]  # the line is not whole yet
    named = [context.params.get("inventory"), *positional, os.environ.get("DDP_ORCH_INVENTORY"), "inventory.yaml"]
    try:
        read = inventory.load(next(filter(None, named)))
    except OrchError:
        return []
    cut = max(begun.rfind(mark) for mark in ",!&") + 1
    return [CompletionItem(begun[:cut] + one.name) for one in read.hosts if one.name.startswith(begun[cut:])]
