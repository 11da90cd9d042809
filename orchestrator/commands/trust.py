"""`trust`: the keys that all hosts show, told apart into known, new and changed; the new ones added after one yes."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import click

from ..errors import OrchError, UnreachableError
from ..hosts.fleet import each, fold_failures
from ..inventory.advice import command
from ..output.console import Console, number_of
from ..output.terminal import tame
from ..ssh.dialer import Dialer, Target
from ..ssh.known_hosts import Verdict, bits, fingerprint, key_type
from .context import load_inventory, make_dialer, make_progress, stderr_console


@dataclass(frozen=True)
class SshEndpoint:
    """One sshd of the inventory: a host's or a jump host's. Hosts that share it are one endpoint."""

    name: str
    target: Target

    @property
    def behind(self) -> tuple[str, ...]:
        """The jump hosts that lead to it, by what they are known as."""
        jump = self.target.jump
        return (*SshEndpoint("", jump).behind, jump.known_as[0]) if jump else ()


@dataclass(frozen=True)
class Shown:
    """The key behind an endpoint, and what known_hosts says of it."""

    endpoint: SshEndpoint
    key: bytes
    verdict: Verdict

    def line(self) -> str:
        """As `ssh-keygen -l` prints it, with what is known of it in front."""
        status = {"known": "known", "changed": "CHANGED", "revoked": "REVOKED"}.get(self.verdict.status, "new")
        kind = key_type(self.key).removeprefix("ssh-").split("-")[0].upper()
        name = tame(self.endpoint.name, colour=False)
        return f"{status:7} {bits(self.key):4} {fingerprint(self.key)} {name} ({kind})"


def trust(path: str | None, hosts: str | None, yes: bool) -> int:
    """Host by host from the outside in: a host behind a jump host can be asked only when that one is trusted."""
    console = stderr_console()
    read = load_inventory(path, hosts)
    progress = make_progress()
    strict = replace(read, ssh=replace(read.ssh, host_keys="strict"))  # a key is accepted by a yes, and by nothing else
    dialer = make_dialer(strict, progress)
    remote = [host for host in read.hosts if not host.local]
    dialer.prepare(remote)
    chains = each(remote, dialer.chain, read.ssh.parallel)
    failed: dict[str, OrchError] = dict(chains.failed)
    refused: set[str] = set()  # endpoints that nothing goes through, by what they are known as
    try:
        for endpoints in _levels(chains.done.values()):
            open_ = [endpoint for endpoint in endpoints if not refused.intersection(endpoint.behind)]
            for endpoint in endpoints:
                if endpoint not in open_:
                    reason = "not asked: a jump host on the way to it is not trusted"
                    failed[endpoint.target.name] = UnreachableError(reason)
            looked = each(open_, lambda one: _look(dialer, one), read.ssh.parallel, progress, "asking for its key")
            failed.update(
                {
                    endpoint.target.name: looked.failed[endpoint.name]
                    for endpoint in open_
                    if endpoint.name in looked.failed
                }
            )
            shown = list(looked.done.values())
            trusted = _settle(dialer, shown, yes, failed, console)
            refused |= {endpoint.target.known_as[0] for endpoint in endpoints} - trusted
    finally:
        dialer.close()
    for line in fold_failures(failed):
        console.error(line)
    if not failed:
        console.note(f"all keys are trusted; next: {command('check', inventory=read.path)}")
    return UnreachableError.exit_code if failed else 0


def _levels(chains: Iterable[tuple[Target, ...]]) -> list[list[SshEndpoint]]:
    """All endpoints, those first that lead to others."""
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


def _look(dialer: Dialer, endpoint: SshEndpoint) -> Shown:
    key = dialer.look(endpoint.target)
    return Shown(endpoint, key, dialer.host_keys.judge(endpoint.target, key))


def _settle(
    dialer: Dialer, shown: Sequence[Shown], yes: bool, failed: dict[str, OrchError], console: Console
) -> set[str]:
    """Show the keys, add the new ones if that is wanted; gives what the trusted ones are known as."""
    for one in shown:
        click.echo(one.line())
    new = [one for one in shown if one.verdict.status in ("unknown", "authority")]
    wanted = bool(new) and (yes or _ask(len(new)))
    trusted = {one.endpoint.target.known_as[0] for one in shown if one.verdict.status == "known"}
    files: dict[Path, int] = {}
    for one in shown:
        if one.verdict.status == "known" or (one in new and not wanted):
            continue
        try:
            path = dialer.host_keys.accept(one.endpoint.target, one.key)
            files[path] = files.get(path, 0) + 1
            trusted.add(one.endpoint.target.known_as[0])
        except UnreachableError as error:  # among them all changed keys
            failed[one.endpoint.target.name] = error
    for path, count in files.items():
        console.note(f"added {number_of(count, 'key')} to {path}")
    if new and not wanted:
        for one in new:
            say = "answer yes, or give --yes" if sys.stdin.isatty() else "give --yes (no terminal to ask on)"
            reason = f"its key is not trusted yet; compare it, then {say}"
            failed[one.endpoint.target.name] = UnreachableError(reason)
    return trusted


def _ask(count: int) -> bool:
    if not sys.stdin.isatty():
        return False
    keys = "this new key" if count == 1 else f"these {count} new keys"
    return click.confirm(f"Add {keys} to known_hosts?", default=False, err=True)
