"""What Tab completes besides commands, options and files. No host is asked at a key press."""

from __future__ import annotations

import os

import click
from click.shell_completion import CompletionItem

from ..errors import OrchError

MOST_RUNS = 20  # offered


def run(context: click.Context, parameter: click.Parameter, begun: str) -> list[CompletionItem]:
    """The runs started from this machine, by id and by name. The hosts, who know all, are not asked at a key press."""
    from ..runs import recent

    known: dict[str, str] = {}
    for one in recent.newest()[:MOST_RUNS]:
        known.setdefault(one.run_id, one.name)
        known.setdefault(one.name, one.run_id)
    return [CompletionItem(word, help=what) for word, what in known.items() if word.startswith(begun)]


def script(context: click.Context, parameter: click.Parameter, begun: str) -> list[CompletionItem]:
    """A file here, as every word behind `--` may be one."""
    return [CompletionItem(begun, type="file")]


def host(context: click.Context, parameter: click.Parameter, begun: str) -> list[CompletionItem]:
    """The last word of a pattern, from the inventory that is named or lies here."""
    from ..inventory import model
    from ..runs import recent

    positional = [word for word in context.args if word.endswith((".yaml", ".yml"))]  # the line is not whole yet
    of_run = recent.inventories_of(str(context.params.get("run") or next(iter(context.args), "")))
    named = [context.params.get("inventory"), *positional, *of_run, model.default_path(os.environ)]
    try:
        read = model.load(next(filter(None, named), model.DEFAULT))
    except OrchError:
        return []
    cut = max(begun.rfind(mark) for mark in ",!&") + 1
    return [CompletionItem(begun[:cut] + one.name) for one in read.hosts if one.name.startswith(begun[cut:])]
