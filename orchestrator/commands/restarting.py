"""Make the command line of `restart` that starts a run again with other options than it had."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from ..inventory import advice, hostnames
from ..output.console import all_but
from ..runs import recent

ALL_HOSTS = "*"


def command_to_restart(
    run_id: str,
    *,
    hosts: str | None,
    repeated: Mapping[str, tuple[str, Sequence[str]]],
    detach: bool,
    inventory: str,
    without: Sequence[str],
) -> str:
    """The command line that starts this run again, with these values of the options of `up`.

    `repeated`: by field of UpOptions, an option that can be repeated, and its values. `inventory`: its path.
    `without`: hosts to leave out.
    """
    known = recent.command_of(run_id)
    before = known.options if known else {}
    hosts = (hosts or "") + (all_but(without) if without else "")
    words = ["--detach"] if detach else []
    words += ["--hosts", hosts or ALL_HOSTS] if hosts != (before.get("hosts") or "") else []
    for name, (option, values) in repeated.items():
        words += [word for value in _added(before.get(name, ()), values) for word in (option, value)]
    return advice.command("restart", run_id, *words, inventory=inventory)


def without_gone(pattern: str, names: Sequence[str]) -> str | None:
    """A `--hosts` that only leaves out hosts, without those that have left the inventory. None: all hosts.

    `names`: of the inventory. Another pattern stays as it is.
    """
    first, *left_out = pattern.split("!")
    if first.strip() or re.search(r"[*?]|[,&](?![^\[]*\])", pattern):
        return pattern
    hosts = [name for word in left_out if word.strip() for name in hostnames.expand(word.strip())]
    known = [name for name in hosts if name in names]
    if not known:
        return None
    return pattern if known == hosts else all_but(known)


def _added(before: Sequence[str], now: Sequence[str]) -> Sequence[str]:
    """The shortest end of `now` without which it has only values of `before`, in their order: `restart` keeps those."""
    for start in range(len(now), -1, -1):
        rest = iter(before)
        if all(value in rest for value in now[:start]):
            return now[start:]
    return now
