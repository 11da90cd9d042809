"""Check host keys against known_hosts, explain why one is not trusted, and add new ones. Opens no connection."""

from __future__ import annotations

import re
import shlex
import threading
from pathlib import Path

from .config import USE_OPENSSH, Target
from .known_hosts import Entry, KnownHosts, Verdict, append, fingerprint
from .pipe import ConnectFailure, GroupMessage


class HostKeys:
    """The known_hosts files, and what to do about a key that is not in them."""

    def __init__(self, accept_new: bool, trust_command: str) -> None:
        self._accept_new = accept_new
        self._trust_command = trust_command
        self._files: dict[tuple[Path, ...], KnownHosts] = {}
        self._lock = threading.Lock()

    def key_types(self, target: Target) -> frozenset[str]:
        return self._known(target).key_types(target.known_as)

    def check(self, target: Target, key: bytes) -> None:
        with self._lock:
            known = self._read(target)
            verdict = known.verify(target.known_as, key)
            if verdict.status == "known":
                return
            if verdict.status == "unknown" and self._accept_new and target.user_known_hosts:
                self._add(target, key)
                return
        raise _untrusted(target, key, verdict, self._trust_command)

    def verify(self, target: Target, key: bytes) -> Verdict:
        return self._known(target).verify(target.known_as, key)

    def accept(self, target: Target, key: bytes) -> Path:
        """Add a key that the user has confirmed, and return the file.

        Raises ConnectFailure, also if another key of that name has just been accepted.
        """
        with self._lock:
            verdict = self._read(target).verify(target.known_as, key)
            if verdict.status in ("changed", "revoked"):
                raise _untrusted(target, key, verdict, self._trust_command)
            if not target.user_known_hosts:
                reason, fix = "ssh_config has no UserKnownHostsFile to write the key to", "set one in ssh_config"
                raise ConnectFailure(target.name, "host key", reason, "ssh-host-key-unknown", fix)
            if verdict.status != "known":
                self._add(target, key)
            return target.user_known_hosts[0]

    def _add(self, target: Target, key: bytes) -> None:
        path = target.user_known_hosts[0]
        try:
            self._read(target).add(append(path, target.known_as[0], key, hashed=target.hash_known_hosts))
        except OSError as error:
            reason = f"cannot write the key to {path}: {error.strerror}"
            raise ConnectFailure(target.name, "host key", reason, "unknown", "make the file writable") from error

    def _known(self, target: Target) -> KnownHosts:
        with self._lock:
            return self._read(target)

    def _read(self, target: Target) -> KnownHosts:
        files = target.user_known_hosts + target.global_known_hosts
        if files not in self._files:
            self._files[files] = KnownHosts.read(files)
        return self._files[files]


class KeySeen(Exception):
    """Ends a connection after the key exchange, when only the host key is needed. Not a failure."""

    def __init__(self, key: bytes) -> None:
        super().__init__("seen")
        self.key = key


class Look:
    """Used in place of HostKeys for a connection that ends as soon as the host has proved its key."""

    def __init__(self, host_keys: HostKeys) -> None:
        self._host_keys = host_keys

    def key_types(self, target: Target) -> frozenset[str]:
        return self._host_keys.key_types(target)

    def check(self, target: Target, key: bytes) -> None:
        raise KeySeen(key)


def _untrusted(target: Target, key: bytes, verdict: Verdict, trust: str) -> ConnectFailure:
    sent = fingerprint(key)
    where = verdict.entry.where if verdict.entry else ""
    name = target.known_as[0]
    group = None
    match verdict.status:
        case "changed":
            code = "ssh-host-key-changed"
            assert verdict.entry
            reason = (
                f"THE HOST KEY HAS CHANGED: the host sent {sent}, but {where} has {fingerprint(verdict.entry.key)}. "
                "Somebody may be intercepting the connection, or the host was reinstalled"
            )
            remove, remove_all = _how_to_remove(verdict.entry, name)
            only_if = "ask its administrator; only if the new key is correct, "
            fix = f"{only_if}{remove}, then accept the new key with `{trust}`"
            group = GroupMessage(
                f"THE HOST KEY HAS CHANGED: the host sent another key than the one in {verdict.entry.path}. "
                "Somebody may be intercepting the connection, or the host was reinstalled",
                f"{only_if}{remove_all}, then accept the new key with `{trust}`",
                shlex.quote(name),
            )
        case "revoked":
            code, reason = "ssh-host-key-changed", f"its key {sent} is revoked in {where}"
            fix = "generate a new host key on the host, and do not use the revoked one"
            group = GroupMessage("its key is revoked", fix)
        case "authority":
            code = "ssh-host-key-unknown"
            reason = f"only a certificate authority vouches for it ({where}); its key is {sent}"
            fix = f"{USE_OPENSSH}, or add its plain key, e.g. with `ssh-keyscan {target.hostname}`"
        case _:
            code, reason = "ssh-host-key-unknown", f"its key {sent} is not in known_hosts (as {name})"
            accept = f"compare it with the key on the host, then accept it with `{trust}`"
            fix = f"{accept} or `{target.command}`, or set ssh.host_keys: accept-new"
            group = GroupMessage("its key is not in known_hosts", f"{accept}, or set ssh.host_keys: accept-new")
    return ConnectFailure(target.name, "host key", reason, code, fix, group)


def _how_to_remove(entry: Entry, name: str) -> tuple[str, str]:
    """How to remove the key of one host, and of all HOSTS of a group."""
    file = shlex.quote(str(entry.path))
    if re.search(r"[*?!]", entry.hosts):  # ssh-keygen removes no pattern
        return (f"delete line {entry.line} of {file}", f"delete their lines of {file}")
    return (
        f"run `ssh-keygen -f {file} -R {shlex.quote(name)}`",
        f'run `for host in HOSTS; do ssh-keygen -f {file} -R "$host"; done`',
    )
