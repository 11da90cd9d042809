"""What commands share: the console, the inventory, the connections to its hosts, and the run that is meant."""

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

from ..answers.recorded import Record
from ..errors import InventoryError, OrchError, UsageError
from ..hosts.fleet import Fleet, fold_failures
from ..hosts.node_program import node_program
from ..inventory import advice, model
from ..inventory.hostnames import pick
from ..inventory.model import Inventory
from ..inventory.sources.read_source import SourceUnavailable
from ..inventory.sources.schedulers import current_scheduler
from ..output.console import Console, all_but, fold, fold_messages, wants_colour
from ..output.lines import SHORTEST_SECRET, Mask
from ..output.mask import credentials_in
from ..runs import choice, recent, registry
from ..ssh.dialer import Dialer
from ..ui.progress import NoProgress, Progress
from . import deprecated, same_name

QUICK_CONNECT_TIMEOUT = 5.0
"""Seconds for a host to accept a connection, in commands that change nothing on it."""


def stderr_console() -> Console:
    return Console(sys.stderr, wants_colour(sys.stderr, os.environ))


def make_progress() -> Progress:
    live = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
    return Progress(stderr_console(), sys.stderr, live)


def load_inventory(path: str | None, hosts: str | None = None, settings: Sequence[str] = ()) -> Inventory:
    """Load the inventory at `path`, else the default one.

    `hosts`: a pattern, see `select_hosts`. `settings`: see `inventory.settings.apply`.
    """
    return _load_file(path, model.default_path(os.environ), hosts, settings)


def load_inventory_of_run(path: str | None, hosts: str | None, run: str | None) -> Inventory:
    """As `load_inventory`, for a command about a run: by default, the inventory that this run was started with.

    Several runs may have the name. Then the default inventory is taken if one of them was started with it.
    """
    default = model.default_path(os.environ)
    if path is not None:
        return _load_file(path, None, hosts)
    started_with = [] if run is None else recent.inventories_of(run)
    if started_with and (default is None or str(Path(default).resolve()) not in started_with):
        return _load_file(started_with[0], None, hosts)
    newest = recent.newest_inventory()
    try:
        return _load_file(None, default or newest, hosts)
    except SourceUnavailable as error:
        if newest is None:
            raise
        stderr_console().note(f"{error}. Using the hosts of the newest run that was started from here")
        return _load_file(None, newest, hosts)


def _load_file(argument: str | None, default: str | None, hosts: str | None, settings: Sequence[str] = ()) -> Inventory:
    path = default if argument is None else argument
    if path is None:
        raise UsageError(
            "no inventory: give -i FILE, set DDP_ORCH_INVENTORY, or change to a folder with an inventory.yaml; "
            f"`ddp-orch init HOST...` writes one{_advise_job()}"
        )
    named = argument is None and os.environ.get("DDP_ORCH_INVENTORY") == path
    if argument is None and not named:
        _check_owner(path)
    try:
        inventory = model.load(path, settings, os.environ)
    except InventoryError as error:
        if started_with := _inventories_of_run(path):
            raise InventoryError(
                f"{path} is a run, not an inventory. Its inventory is {started_with[0]}; for a shell in its "
                f"environment: {advice.command('shell', path, inventory=started_with[0])}"
            ) from error
        source = "\n(from DDP_ORCH_INVENTORY)" if named else ""
        raise type(error)(f"{error}{source}") from error
    for notice in inventory.deprecated:
        warn_once(notice)
    return inventory if hosts is None else select_hosts(inventory, hosts)


def _inventories_of_run(path: str) -> list[str]:
    """The inventories of the run that was given in the place of an inventory."""
    is_run = not Path(path).exists() and any(path in (run.run_id, run.name) for run in recent.newest())
    return recent.inventories_of(path) if is_run else []


def _advise_job() -> str:
    scheduler = current_scheduler(os.environ)
    return f". To use the hosts of this job: @{scheduler}" if scheduler else ""


def warn_once(message: str) -> None:
    """Print a warning, unless this command has printed it before."""
    if deprecated.is_new(message):
        stderr_console().warning(message)


def _check_owner(path: str) -> None:
    """Raises InventoryError if another user may have written this inventory, which the user has not named."""
    try:
        link, file = Path(path).lstat(), Path(path).stat()
    except OSError:
        return  # `model.load` reports it
    strangers = {link.st_uid, file.st_uid} - {os.geteuid(), 0}
    if strangers:
        why = f"it belongs to {_user(strangers.pop())}"
    elif file.st_mode & stat.S_IWOTH or (file.st_mode & stat.S_IWGRP and not _is_own_group(file.st_gid)):
        why = f"others may write to it (mode {stat.S_IMODE(file.st_mode):o})"
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
    """Whether it is the user's private group, which the umask of many systems lets write."""
    import grp
    import pwd

    try:
        user, group = pwd.getpwuid(os.geteuid()), grp.getgrgid(gid)
    except KeyError:
        return False
    return gid == user.pw_gid and group.gr_name == user.pw_name and set(group.gr_mem) <= {user.pw_name}


def select_hosts(inventory: Inventory, pattern: str, option: str = "--hosts") -> Inventory:
    """The inventory with these hosts only. Unlike with `selection.select`, a run need not be able to start on them."""
    names = set(pick([host.name for host in inventory.machines], pattern, option))
    witness = inventory.run.witness if inventory.run.witness and inventory.run.witness.name in names else None
    hosts = tuple(host for host in inventory.hosts if host.name in names)
    return replace(inventory, hosts=hosts, run=replace(inventory.run, witness=witness))


def command_to_resume(run: registry.Run, about: advice.AboutRun) -> str:
    """The command that starts a run again, from its outputs; with placeholders if it was started elsewhere."""
    if recent.command_of(run.run_id) is not None:
        return about.command("restart")
    return f"{about.of_all('up', '--name', run.name)} -- SCRIPT ARGS..."


def make_mask(inventory: Inventory, run: registry.Run, console: Console) -> Mask:
    """Mask the secrets of the run and of the inventory. Warn of those that this environment does not have."""
    return Mask(secret_values(inventory, run, console))


def secret_values(inventory: Inventory, run: registry.Run, console: Console) -> list[str]:
    """The values of these secrets that this environment has. Warn of those that it does not have."""
    of_run = {
        name
        for part in run.parts.values()
        for name in (inventory.run.secrets if part.secrets is None else part.secrets)
    }
    for line in describe_unmasked(run.run_id, of_run):
        console.warning(line)
    return [value for name in {*of_run, *inventory.run.secrets} if (value := os.environ.get(name))]


def unset_secrets(inventory: Inventory) -> list[str]:
    """Secrets of the inventory that this environment does not have: `up` refuses to start without them."""
    return [name for name in inventory.run.secrets if name not in os.environ]


def credentials_of(records: Iterable[Record]) -> list[str]:
    """Values in the command of a run that look like credentials, for what the user may share."""
    return [value for record in records if record.spec for value in credentials_in(record.spec.command)]


def describe_unmasked(run_id: str, names: Iterable[str]) -> list[str]:
    """Warnings about secrets, given by name, that a mask cannot hide in this environment."""
    values = {name: os.environ.get(name) for name in sorted(names)}
    missing = [name for name, value in values.items() if value is None]
    short = [name for name, value in values.items() if value and len(value) < SHORTEST_SECRET]
    warnings = []
    if missing:
        warnings.append(
            f"run {run_id} has secrets that are not hidden in output, because they are not set in this environment: "
            f"{', '.join(missing)}. Set them to the values that the run was started with."
        )
    if short:
        warnings.append(
            f"{', '.join(short)}: values of fewer than {SHORTEST_SECRET} characters are not hidden in output"
        )
    return warnings


def make_dialer(inventory: Inventory, progress: NoProgress, patience: float = math.inf) -> Dialer:
    config = os.environ.get("DDP_ORCH_SSH_CONFIG")
    return Dialer(
        inventory.ssh,
        ask_passphrase=_ask_passphrase if sys.stdin.isatty() else None,
        config_file=Path(config) if config else None,
        reaching=progress.set_connection_phase,
        trust_command=advice.command("trust", inventory=inventory.path),
        patience=patience,
    )


@contextlib.contextmanager
def open_fleet(inventory: Inventory, *, short_timeout: bool = False) -> Iterator[Fleet]:
    """`short_timeout`: for commands that change nothing. They wait less for a silent host."""
    progress = make_progress()
    dialer = make_dialer(inventory, progress, QUICK_CONNECT_TIMEOUT if short_timeout else math.inf)
    fleet = Fleet(dialer, node_program(), inventory.ssh.parallel, lambda: secrets.token_hex(12), progress)
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


def warn_of_failures(failed: Mapping[str, OrchError], console: Console) -> None:
    for line in fold_failures(failed):
        console.warning(line)


def warn_of_doubts(listing: registry.Listing, console: Console) -> None:
    for doubt in listing.doubts:
        console.warning(doubt)


def warn_of_missing(listing: registry.Listing, console: Console) -> None:
    """Warn of hosts whose runs are not listed, and of doubtful answers. Say how to leave silent hosts out next time."""
    warn_of_failures(listing.failed, console)
    for line in fold_messages(
        {host: f"{why}; runs recorded there are not listed" for host, why in listing.passed_over.items()}
    ):
        console.warning(line)
    warn_of_doubts(listing, console)
    if listing.failed and listing.runs and _takes_hosts():
        console.note(f"to ask only the other hosts: {command_line_without(listing.failed, sys.argv[1:])}")


def _takes_hosts() -> bool:
    """Whether the command that is running has an option that chooses which hosts to ask."""
    import click

    context = click.get_current_context(silent=True)
    if context is not None and context.info_name == "restart":  # there, they are the hosts of the new run
        return False
    return context is None or any({"--hosts", "--host"} & set(param.opts) for param in context.command.params)


def command_line_without(hosts: Iterable[str], argv: Sequence[str]) -> str:
    """The command line of this process, with an option that leaves these hosts out."""
    option = "--host" if argv[0] == "logs" else "--hosts"
    prefixes = ("--host=", "--hosts=")
    words = [word for word in argv for word in (word.split("=", 1) if word.startswith(prefixes) else [word])]
    words = [option if f"{word}=" in prefixes else word for word in words]
    if option in words:
        last = len(words) - 1 - words[::-1].index(option)
        words[last + 1] += all_but(hosts)
    else:
        words[1:1] = [option, all_but(hosts)]
    line = shlex.join(["ddp-orch", *words])
    return f"{line} {advice.AGAIN}" if {"-", "-i-", "--inventory=-"} & set(argv) else line


def warn_of_unasked_hosts(run: registry.Run, listing: registry.Listing, console: Console) -> None:
    """Warn of hosts of the run that --hosts leaves out, that are in another inventory only, or that have deleted it.

    `warn_of_missing` has warned of unreachable hosts.
    """
    hosts = [host for host in listing.missing_hosts(run) if host not in listing.failed]
    if hosts:
        console.warning(f"run {run.run_id} is also on {fold(hosts)}, which this command did not ask")
    if not run.unfinished and (hosts := list(listing.without_record(run))):
        console.warning(f"{fold(hosts)}: the part of run {run.run_id} was deleted there, so it is missing here")


@dataclass(frozen=True)
class RunLookup:
    """The run that the user means, as the hosts that have answered describe it."""

    run: registry.Run
    listing: registry.Listing
    """`wait_for_rest` waits for its `late` hosts."""
    search: registry.Search


def find_run(fleet: Fleet, inventory: Inventory, run_name: str | None, console: Console) -> RunLookup:
    """Find the run that the user means. Wait for all hosts that may know of it, and name the silent ones.

    Raises as `choice.choose`.
    """
    search = registry.Search(fleet, inventory.machines, run_name=run_name)
    listing = search.wait(lambda _: True)
    if listing.late and not choice.is_complete(run_name, inventory.path, listing):
        console.note(f"no answer yet from {fold(listing.late)}; waiting")
        listing = search.wait()
    lookup = _choose(search, listing, inventory, run_name, console)
    warn_of_unasked_hosts(lookup.run, lookup.listing, console)
    return lookup


def find_run_early(
    fleet: Fleet,
    inventory: Inventory,
    run_name: str | None,
    console: Console,
    enough: Callable[[str | None, str, registry.Listing], bool] = choice.is_found,
) -> RunLookup:
    """As `find_run`, but do not wait for hosts that are silent for some seconds once `enough` accepts the answers.

    Does not warn of hosts of the run that this command did not ask.
    """
    search = registry.Search(fleet, inventory.machines, run_name=run_name)
    listing = search.wait(partial(enough, run_name, inventory.path))
    return _choose(search, listing, inventory, run_name, console)


def _choose(
    search: registry.Search,
    listing: registry.Listing,
    inventory: Inventory,
    run_name: str | None,
    console: Console,
) -> RunLookup:
    warn_of_missing(replace(listing, failed=listing.missing), console)
    run = choice.choose(listing, run_name, inventory.path)
    same_name.note_choice(run, listing, run_name, inventory, console)
    return RunLookup(run, listing, search)


def wait_for_rest(lookup: RunLookup, inventory: Inventory, run_name: str | None, console: Console) -> RunLookup:
    """Find the run again once all hosts have answered, and warn of what is new.

    The result may be another run: a late host may have a newer one.
    """
    before = lookup.listing
    if not before.late:
        return lookup
    listing = lookup.search.wait()
    news = replace(
        listing,
        failed={host: error for host, error in listing.failed.items() if host in before.late},
        passed_over={host: why for host, why in listing.passed_over.items() if host in before.late},
        doubts=tuple(doubt for doubt in listing.doubts if doubt not in before.doubts),
    )
    warn_of_missing(news, console)
    try:
        run = choice.choose(listing, run_name, inventory.path)
    except UsageError as error:  # now a part of several ids
        console.warning(str(error))
        run = next((other for other in listing.runs if other.run_id == lookup.run.run_id), lookup.run)
    return replace(lookup, run=run, listing=listing)
