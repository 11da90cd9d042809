"""Tab completion of runs, scripts and hosts. Asks no host."""

from __future__ import annotations

import os

import click
from click.shell_completion import CompletionItem

from ..errors import OrchError

MOST_RUNS = 20  # offered


def run(context: click.Context, parameter: click.Parameter, prefix: str) -> list[CompletionItem]:
    """Runs that were started from this machine, by id and by name."""
    from ..runs import recent

    known: dict[str, str] = {}
    for entry in recent.newest()[:MOST_RUNS]:
        known.setdefault(entry.run_id, entry.name)
        known.setdefault(entry.name, entry.run_id)
    return [CompletionItem(word, help=what) for word, what in known.items() if word.startswith(prefix)]


def script(context: click.Context, parameter: click.Parameter, prefix: str) -> list[CompletionItem]:
    """A file: every word after `--` may be one."""
    return [CompletionItem(prefix, type="file")]


def host(context: click.Context, parameter: click.Parameter, prefix: str) -> list[CompletionItem]:
    """Complete the last name of a pattern, from the inventory on the command line or the default one."""
    from ..inventory import model
    from ..runs import recent

    positional = [
        word for word in context.args if word.endswith((".yaml", ".yml")) or word.startswith("@")
    ]  # the command line is not complete yet
    of_run = recent.inventories_of(str(context.params.get("run") or next(iter(context.args), "")))
    paths = [context.params.get("inventory"), *positional, *of_run, model.default_path(os.environ)]
    try:
        inventory = model.load(next(filter(None, paths), model.DEFAULT), variables=os.environ)
    except OrchError:
        return []
    start = max(prefix.rfind(mark) for mark in ",!&") + 1
    return [
        CompletionItem(prefix[:start] + host.name)
        for host in inventory.machines
        if host.name.startswith(prefix[start:])
    ]
