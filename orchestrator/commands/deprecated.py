"""Deprecated names of options. They still work, with a notice. The help does not show them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import click

PRINTED = "ddp_orch.deprecated"  # key in a context's `meta`: the notices that this command has printed


class OldOption(click.Option):
    """A deprecated name of an option. `now`: its current name, such as `--leftovers`."""

    def __init__(self, *args: Any, now: str, **attributes: Any) -> None:
        super().__init__(*args, **{**attributes, "hidden": True})
        self.now = now


def replace_old_options(context: click.Context) -> list[str]:
    """Move the values of deprecated options to the current ones. Returns a notice for each that was used."""
    notices = []
    for old in context.command.params:
        if not isinstance(old, OldOption):
            continue
        value = context.params.pop(str(old.name))
        if not value:
            continue
        name = next(str(param.name) for param in context.command.params if old.now in param.opts)
        context.params[name] = (*context.params[name], *value) if old.multiple else value
        notices.append(f"{old.opts[0]} is deprecated; use {old.now}")
    return notices


def current_names(names: Iterable[str], command: click.Command) -> list[str]:
    """The same options, by their current names."""
    current = {old.opts[0]: old.now for old in command.params if isinstance(old, OldOption)}
    return list(dict.fromkeys(current.get(name, name) for name in names))


def is_new(message: str) -> bool:
    """Whether this command has not printed the message before. (It may read an inventory more than once.)"""
    context = click.get_current_context(silent=True)
    printed: set[str] = set() if context is None else context.meta.setdefault(PRINTED, set())
    is_unprinted = message not in printed
    printed.add(message)
    return is_unprinted
