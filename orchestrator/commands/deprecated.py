"""Old names of options. They are hidden and still work, with one notice; help and documents show the new names."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import click

SAID = "ddp_orch.deprecated"  # the key in a context's `meta` of the notices that this command has printed


class OldOption(click.Option):
    """An option under the name that it had before. `now`: its name of today, such as `--leftovers`."""

    def __init__(self, *args: Any, now: str, **attributes: Any) -> None:
        super().__init__(*args, **{**attributes, "hidden": True})
        self.now = now


def replace_old(context: click.Context) -> list[str]:
    """Move the values of old options to those of today. The notices are returned, one for each that was used."""
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
    """The same options, each under its name of today."""
    today = {old.opts[0]: old.now for old in command.params if isinstance(old, OldOption)}
    return list(dict.fromkeys(today.get(name, name) for name in names))


def is_news(message: str) -> bool:
    """Whether this command has not printed the message before: it may read an inventory more than once."""
    context = click.get_current_context(silent=True)
    said: set[str] = set() if context is None else context.meta.setdefault(SAID, set())
    is_new = message not in said
    said.add(message)
    return is_new
