"""What every command needs of its surroundings: the terminal, the inventory that is meant, the hosts."""

from __future__ import annotations

import contextlib
import math
import os
import secrets
import shlex
import socket
import stat
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from ..errors import InventoryError, OrchError, UsageError
from ..hosts.fleet import Fleet, fold_failures
from ..hosts.node_program import node_program
from ..inventory import advice, model
from ..inventory.hostnames import pick
from ..inventory.model import Inventory
from ..output.console import Console, all_but, fold, fold_messages, wants_colour
from ..output.lines import SHORTEST_SECRET, Mask
from ..runs import recent, registry
from ..ssh.dialer import Dialer
from ..ui.progress import Progress, Silent
from . import deprecated

LOOK_PATIENCE = 5.0
"""Seconds that a command which only looks waits for a host to accept a connection."""


def stderr_console() -> Console:
    return Console(sys.stderr, wants_colour(sys.stderr, os.environ))


def make_progress() -> Progress:
    live = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
    return Progress(stderr_console(), sys.stderr, live)


def chosen_inventory(given: str | None, hosts: str | None = None) -> Inventory:
    """The inventory that is given, else the default one. `hosts`: only these of it, to look at."""
    return _load(given, model.default_path(os.environ), hosts)


def inventory_of_run(given: str | None, hosts: str | None, run: str | None) -> Inventory:
    """As `chosen_inventory`, for a command that may name a run: it takes the inventory which that run was started with.

    A name may be that of several runs: then the default inventory, if one of them was started with it.
    """
    default = model.default_path(os.environ)
    if given is not None:
        return _load(given, None, hosts)
    if run is None:
        return _load(None, default or recent.newest_inventory(), hosts)
    started_with = recent.inventories_of(run)
    if started_with and (default is None or str(Path(default).resolve()) not in started_with):
        return _load(started_with[0], None, hosts)
    return _load(None, default or recent.newest_inventory(), hosts)


def _load(given: str | None, default: str | None, hosts: str | None) -> Inventory:
    path = given if given is not None else default
    if path is None:
        raise UsageError(
            "no inventory: give -i FILE, set DDP_ORCH_INVENTORY, or change to a folder with an inventory.yaml; "
            "`ddp-orch init HOST...` writes one"
        )
    named = given is None and os.environ.get("DDP_ORCH_INVENTORY") == path
    if given is None and not named:
        _check_found(path)
    try:
        read = model.load(path)
    except InventoryError as error:
        source = "\n(from DDP_ORCH_INVENTORY)" if named else ""
        raise InventoryError(f"{error}{source}") from error
    for notice in read.deprecated:
        warn_once(notice)
    return read if hosts is None else part_of(read, hosts)


def warn_once(message: str) -> None:
    """A warning that this command prints once, however often it comes to it."""
    if deprecated.is_news(message):
        stderr_console().warning(message)


def _check_found(path: str) -> None:
    """Raises InventoryError where somebody else may have written an inventory that nobody has named."""
    try:
        found = [Path(path).lstat(), Path(path).stat()]
    except OSError:
        return  # `load` says so
    strangers = {one.st_uid for one in found} - {os.geteuid(), 0}
    if strangers:
        why = f"it belongs to {_user(strangers.pop())}"
    elif found[1].st_mode & stat.S_IWOTH or (found[1].st_mode & stat.S_IWGRP and not _is_own_group(found[1].st_gid)):
        why = f"others may write to it (mode {stat.S_IMODE(found[1].st_mode):o})"
    else:
        return
    raise InventoryError(
        f"{path}: {why}. An inventory can run programs as you, so ddp-orch does not use it unless you name it. "
        f"If you trust it, give -i {shlex.quote(path)}"
    )


def _user(uid: int) -> str:
    import pwd

    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"


def _is_own_group(gid: int) -> bool:
    """Whether it is the group that many systems give each user, with a umask that lets it write."""
    import grp
    import pwd

    try:
        user, group = pwd.getpwuid(os.geteuid()), grp.getgrgid(gid)
    except KeyError:
        return False
    return gid == user.pw_gid and group.gr_name == user.pw_name and set(group.gr_mem) <= {user.pw_name}


def part_of(read: Inventory, pattern: str, option: str = "--hosts") -> Inventory:
    """These hosts, to look at: unlike `inventory.select`, it need not be possible to start a run on them."""
    names = set(pick([host.name for host in read.hosts], pattern, option))
    return replace(read, hosts=tuple(host for host in read.hosts if host.name in names))


def mask_of(read: Inventory, run: registry.Run, console: Console) -> Mask:
    """Hides the secrets of a run and of the inventory that this environment has; warns of those that are not hidden."""
    of_run = {
        name for part in run.parts.values() for name in (read.run.secrets if part.secrets is None else part.secrets)
    }
    for line in not_hidden(run.run_id, of_run):
        console.warning(line)
    return Mask(value for name in {*of_run, *read.run.secrets} if (value := os.environ.get(name)))


def not_hidden(run_id: str, secret: Iterable[str]) -> list[str]:
    """What to say of secrets, by their names, that no mask hides in this environment."""
    values = {name: os.environ.get(name) for name in sorted(secret)}
    missing = [name for name, value in values.items() if value is None]
    short = [name for name, value in values.items() if value and len(value) < SHORTEST_SECRET]
    said = []
    if missing:
        said.append(
            f"run {run_id} has secrets that are not hidden in output, because they are not set in this environment: "
            f"{', '.join(missing)}. Set them to the values that the run was started with."
        )
    if short:
        said.append(f"{', '.join(short)}: values of fewer than {SHORTEST_SECRET} characters are not hidden in output")
    return said


def make_dialer(of: Inventory, progress: Silent, patience: float = math.inf) -> Dialer:
    config = os.environ.get("DDP_ORCH_SSH_CONFIG")
    return Dialer(
        of.ssh,
        ask_passphrase=_ask_passphrase if sys.stdin.isatty() else None,
        config_file=Path(config) if config else None,
        reaching=progress.reaching,
        trust_command=advice.command("trust", inventory=of.path),
        patience=patience,
    )


@contextlib.contextmanager
def open_fleet(of: Inventory, *, looking: bool = False) -> Iterator[Fleet]:
    """`looking`: for a command that only looks, and waits less for a host that is silent."""
    progress = make_progress()
    dialer = make_dialer(of, progress, LOOK_PATIENCE if looking else math.inf)
    fleet = Fleet(dialer, node_program(), of.ssh.parallel, lambda: secrets.token_hex(12), progress)
    try:
        yield fleet
    finally:
        for line in fold_messages({host: str(key) for host, key in fleet.take_other_keys().items()}):
            stderr_console().warning(line)
        fleet.close()


def _ask_passphrase(prompt: str) -> str:
    import click

    answer: str = click.prompt(prompt.rstrip(": "), hide_input=True, err=True)
    return answer


def whoami() -> str:
    import getpass

    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # in a container a user may have no name
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"


def warn_of(failed: Mapping[str, OrchError], console: Console) -> None:
    for line in fold_failures(failed):
        console.warning(line)


def warn_of_doubts(listing: registry.Listing, console: Console) -> None:
    for doubt in listing.doubts:
        console.warning(doubt)


def warn_of_missing(listing: registry.Listing, console: Console) -> None:
    """Of the hosts that told nothing of their runs, and how not to wait for them the next time; of those in doubt."""
    warn_of(listing.failed, console)
    for line in fold_messages(
        {host: f"{why}; runs recorded there are not listed" for host, why in listing.passed_over.items()}
    ):
        console.warning(line)
    warn_of_doubts(listing, console)
    if listing.failed and listing.runs and (again := again_without(listing.failed, sys.argv[1:])):
        console.note(f"to ask only the other hosts: {again}")


def again_without(hosts: Iterable[str], argv: Sequence[str]) -> str:
    """The command line that was given, without these hosts."""
    option = "--host" if argv[0] == "logs" else "--hosts"
    given = ("--host=", "--hosts=")
    words = [word for word in argv for word in (word.split("=", 1) if word.startswith(given) else [word])]
    words = [option if f"{word}=" in given else word for word in words]
    if option in words:
        last = len(words) - 1 - words[::-1].index(option)
        words[last + 1] += all_but(hosts)
    else:
        words[1:1] = [option, all_but(hosts)]
    line = shlex.join(["ddp-orch", *words])
    return f"{line} {advice.AGAIN}" if {"-", "-i-", "--inventory=-"} & set(argv) else line


def warn_of_unheard(run: registry.Run, listing: registry.Listing, console: Console) -> None:
    """Of hosts that --hosts leaves out, or that only another inventory has. Of those not reached was told already."""
    unheard = [host for host in listing.unheard(run) if host not in listing.failed]
    if unheard:
        console.warning(f"run {run.run_id} is also on {fold(unheard)}, which this command did not ask")


@dataclass(frozen=True)
class FoundRun:
    """The run that is meant, by the hosts that have answered."""

    run: registry.Run
    listing: registry.Listing
    """Its `late` hosts have not answered yet; `wait_for_rest` waits for them."""
    search: registry.Search


def find_run(fleet: Fleet, read: Inventory, wanted: str | None, console: Console) -> FoundRun:
    """The run that is meant, by all hosts; which could not be asked is said. Raises as `registry.choose` does."""
    found = _find_run(fleet, read, wanted, console, None)
    warn_of_unheard(found.run, found.listing, console)
    return found


def find_run_early(
    fleet: Fleet,
    read: Inventory,
    wanted: str | None,
    console: Console,
    enough: Callable[[str | None, str, registry.Listing], bool] = registry.is_found,
) -> FoundRun:
    """As `find_run`, but a host that is silent for some seconds is not waited for once the run is known.

    Nothing is said of other hosts that the run is on.
    """
    return _find_run(fleet, read, wanted, console, partial(enough, wanted, read.path))


def _find_run(
    fleet: Fleet,
    read: Inventory,
    wanted: str | None,
    console: Console,
    enough: Callable[[registry.Listing], bool] | None,
) -> FoundRun:
    search = registry.Search(fleet, read.hosts)
    listing = search.wait(enough)
    warn_of_missing(replace(listing, failed=listing.missing), console)
    run = registry.choose(listing, wanted, read.path)
    if wanted is None:
        tell_which(run, listing, console)
    return FoundRun(run, listing, search)


def wait_for_rest(found: FoundRun, read: Inventory, wanted: str | None, console: Console) -> FoundRun:
    """The run by all hosts; what is new of them is said. It may be another run, as a late host may have a newer one."""
    before = found.listing
    if not before.late:
        return found
    listing = found.search.wait()
    news = replace(
        listing,
        failed={host: error for host, error in listing.failed.items() if host in before.late},
        passed_over={host: why for host, why in listing.passed_over.items() if host in before.late},
        doubts=tuple(doubt for doubt in listing.doubts if doubt not in before.doubts),
    )
    warn_of_missing(news, console)
    try:
        run = registry.choose(listing, wanted, read.path)
    except UsageError as error:  # the beginning of an id: now that of several
        console.warning(str(error))
        run = next((one for one in listing.runs if one.run_id == found.run.run_id), found.run)
    return replace(found, run=run, listing=listing)


def tell_which(run: registry.Run, listing: registry.Listing, console: Console) -> None:
    """Where nobody has named a run and the newest is over, while others go on: these may be meant."""
    others = [one.run_id for one in listing.runs if one.unfinished]
    if others and not run.unfinished:
        console.note(f"run {run.run_id}, the newest, has ended ({run.state}); still running: {', '.join(others)}")
