"""`trust`: show the SSH keys of all hosts and whether they are known, new or changed; add the new ones after a yes."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import click

from ..errors import OrchError, UnreachableError
from ..hosts.fleet import each, fold_failures
from ..inventory.advice import command
from ..inventory.model import Inventory
from ..inventory.via import is_command
from ..output.console import Console, fold, number_of
from ..output.terminal import tame
from ..ssh.config import SECOND_FACTOR
from ..ssh.dialer import ConnectFailure, Dialer, Target
from ..ssh.known_hosts import Verdict, bits, fingerprint, key_type
from ..ssh.pipe import GroupMessage
from .context import load_inventory, make_dialer, make_progress, stderr_console


@dataclass(frozen=True)
class SshEndpoint:
    """An sshd: of a host or a jump host. Hosts with the same address are one endpoint."""

    name: str
    target: Target

    @property
    def behind(self) -> tuple[str, ...]:
        """The jump hosts on the way to it, by their names in known_hosts."""
        jump = self.target.jump
        return (*SshEndpoint("", jump).behind, jump.known_as[0]) if jump else ()


@dataclass(frozen=True)
class ShownKey:
    """The key of an endpoint, and whether known_hosts has it."""

    endpoint: SshEndpoint
    key: bytes
    verdict: Verdict

    def line(self) -> str:
        """The key as `ssh-keygen -l` prints it, after its status."""
        status = {"known": "known", "changed": "CHANGED", "revoked": "REVOKED"}.get(self.verdict.status, "new")
        kind = key_type(self.key).removeprefix("ssh-").split("-")[0].upper()
        name = tame(self.endpoint.name, colour=False)
        return f"{status:7} {bits(self.key):4} {fingerprint(self.key)} {name} ({kind})"


def trust(inventory_path: str | None, hosts: str | None, yes: bool) -> int:
    console = stderr_console()
    inventory = load_inventory(inventory_path, hosts)
    if not accept_keys(inventory, yes, console):
        return UnreachableError.exit_code
    console.note(f"all keys are trusted; next: {command('check', inventory=inventory.path)}")
    return 0


def accept_keys(inventory: Inventory, yes: bool, console: Console) -> bool:
    """Show the keys of all hosts, and add those that the user accepts. Whether all are trusted then.

    Jump hosts come first: a host behind a jump host is reachable only if the jump host is trusted.
    """
    progress = make_progress()
    strict = replace(inventory, ssh=replace(inventory.ssh, host_keys="strict"))  # keys are accepted only by a yes
    dialer = make_dialer(strict, progress)
    remote = [host for host in inventory.machines if not host.local and not is_command(host.via)]
    if others := [host.name for host in inventory.machines if is_command(host.via)]:
        console.note(f"{fold(others)}: no SSH key to check, because `via` is a command")
    dialer.prepare(remote)
    chains = each(remote, dialer.chain, inventory.ssh.parallel)
    failed: dict[str, OrchError] = dict(chains.failed)
    untrusted: set[str] = set()  # endpoints, by their names in known_hosts
    try:
        for endpoints in _levels(chains.done.values()):
            reachable = [endpoint for endpoint in endpoints if not untrusted.intersection(endpoint.behind)]
            for endpoint in endpoints:
                if endpoint not in reachable:
                    reason = "not asked, because a jump host on the way to it is not trusted"
                    failed[endpoint.target.name] = UnreachableError(reason)
            key_results = each(
                reachable,
                lambda endpoint: _fetch_key(dialer, endpoint),
                inventory.ssh.parallel,
                progress,
                "asking for its key",
            )
            failed.update(
                {
                    endpoint.target.name: key_results.failed[endpoint.name]
                    for endpoint in reachable
                    if endpoint.name in key_results.failed
                }
            )
            keys = list(key_results.done.values())
            trusted = _add_keys(dialer, keys, yes, failed, console)
            untrusted |= {endpoint.target.known_as[0] for endpoint in endpoints} - trusted
    finally:
        dialer.close()
    for line in fold_failures(failed):
        console.error(line)
    return not failed


def _levels(chains: Iterable[tuple[Target, ...]]) -> list[list[SshEndpoint]]:
    """All endpoints, by the number of jump hosts before them."""
    levels: list[dict[tuple[str, ...], SshEndpoint]] = []
    for chain in chains:
        for depth, target in enumerate(chain):
            if depth == len(levels):
                levels.append({})
            endpoint = SshEndpoint(_name(target), target)
            levels[depth].setdefault((*endpoint.behind, target.known_as[0]), endpoint)
    return [list(level.values()) for level in levels]


def _name(target: Target) -> str:
    known_as = target.known_as[0]
    alias = "" if known_as == target.name.lower() else f",{known_as}"
    return f"{target.name}{alias}" + (f" via {target.jump.name}" if target.jump else "")


def _fetch_key(dialer: Dialer, endpoint: SshEndpoint) -> ShownKey:
    try:
        key = dialer.look(endpoint.target)
    except ConnectFailure as failure:
        if failure.fix != SECOND_FACTOR:
            raise
        by_hand = "`trust` cannot log in to it. Accept the key by hand, over a shared connection (ControlMaster): `%s`"
        fix, target = by_hand % endpoint.target.command, endpoint.target
        group = GroupMessage(failure.reason, by_hand % "FIRST", target.command)
        raise ConnectFailure(target.name, failure.phase, failure.reason, failure.code, fix, group) from failure
    return ShownKey(endpoint, key, dialer.host_keys.verify(endpoint.target, key))


def _add_keys(
    dialer: Dialer, keys: Sequence[ShownKey], yes: bool, failed: dict[str, OrchError], console: Console
) -> set[str]:
    """Show the keys, and add the new ones if the user agrees. Returns the known_hosts names of trusted endpoints."""
    for key in keys:
        click.echo(key.line())
    for endpoints in sharing_a_key((key.endpoint.target.name, key.key) for key in keys):
        console.warning(
            f"{fold(endpoints)} have the same key: they are one machine, or copies of one. Each can pose as the "
            "others. New keys for a copy: rm /etc/ssh/ssh_host_* && ssh-keygen -A, then restart sshd"
        )
    new = [key for key in keys if key.verdict.status in ("unknown", "authority")]
    accepted = bool(new) and (yes or _ask(len(new)))
    trusted = {key.endpoint.target.known_as[0] for key in keys if key.verdict.status == "known"}
    files: dict[Path, int] = {}
    for key in keys:
        if key.verdict.status == "known" or (key in new and not accepted):
            continue
        try:
            path = dialer.host_keys.accept(key.endpoint.target, key.key)
            files[path] = files.get(path, 0) + 1
            trusted.add(key.endpoint.target.known_as[0])
        except UnreachableError as error:  # includes all changed keys
            failed[key.endpoint.target.name] = error
    for path, count in files.items():
        console.note(f"added {number_of(count, 'key')} to {path}")
    if new and not accepted:
        for key in new:
            action = "answer yes, or give --yes" if sys.stdin.isatty() else "give --yes (there is no terminal to ask)"
            reason = f"its key is not trusted yet. Verify the fingerprint, then {action}."
            failed[key.endpoint.target.name] = UnreachableError(reason)
    return trusted


def sharing_a_key(keys: Iterable[tuple[str, bytes]]) -> list[list[str]]:
    """The hosts with equal keys, of (host, key)."""
    names: dict[bytes, set[str]] = {}
    for name, key in keys:
        names.setdefault(key, set()).add(name)
    return [sorted(same) for same in names.values() if len(same) > 1]


def _ask(count: int) -> bool:
    if not sys.stdin.isatty():
        return False
    keys = "this new key" if count == 1 else f"these {count} new keys"
    return click.confirm(f"Add {keys} to known_hosts?", default=False, err=True)
