"""Make the command line of `restart` that starts a run again with other options than it had."""

from __future__ import annotations

from collections.abc import Sequence

from ..inventory import advice
from ..output.console import all_but
from ..runs import recent

ALL_HOSTS = "*"


def command_to_restart(
    run_id: str, *, hosts: str | None, settings: tuple[str, ...], detach: bool, inventory: str, without: Sequence[str]
) -> str:
    """The command line that starts this run again, with these values of the options of `up`.

    `inventory`: its path. `without`: hosts to leave out.
    """
    known = recent.command_of(run_id)
    before = known.options if known else {}
    hosts = (hosts or "") + (all_but(without) if without else "")
    if settings[: len(had := before.get("settings", ()))] == had:  # `restart` keeps them
        settings = settings[len(had) :]
    words = ["--detach"] if detach else []
    words += ["--hosts", hosts or ALL_HOSTS] if hosts != (before.get("hosts") or "") else []
    for setting in settings:
        words += ["--set", setting]
    return advice.command("restart", run_id, *words, inventory=inventory)
