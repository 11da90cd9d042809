"""Read OpenSSH's known_hosts files, check a host's key against them, and add keys. Opens no connection.

The format is that of sshd(8), SSH_KNOWN_HOSTS FILE FORMAT: patterns with `*`, `?` and `!`, `[host]:port`, hashed names,
`@revoked` and `@cert-authority`. An invalid line is skipped and noted; the others still count.
"""

from __future__ import annotations

import base64
import binascii
import fcntl
import hashlib
import hmac
import os
import re
import secrets
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

SSH_PORT = 22


@dataclass(frozen=True)
class Entry:
    """One line of a known_hosts file: a key and its hosts."""

    marker: Literal["", "revoked", "cert-authority"]
    hosts: str  # as written: patterns joined by commas, or one hashed name
    key_type: str
    key: bytes
    path: Path
    line: int

    @property
    def where(self) -> str:
        return f"{self.path}:{self.line}"


@dataclass(frozen=True)
class Verdict:
    """The status of a key that a host has sent.

    `entry` is the line that decides it: the same key (known, revoked), another key of that host (changed), an authority
    that signs keys of that host (authority: no plain key is on file), or None (unknown).
    """

    status: Literal["known", "unknown", "changed", "revoked", "authority"]
    entry: Entry | None = None


class KnownHosts:
    """The lines of several files together. Safe to use from many threads."""

    def __init__(self, entries: Iterable[Entry] = (), notes: Iterable[str] = ()) -> None:
        self.notes = tuple(notes)
        """Lines and files that were skipped, and why."""
        self._named: dict[str, list[Entry]] = {}
        self._patterns: list[Entry] = []
        self._hashed: list[tuple[bytes, bytes, Entry]] = []
        for entry in entries:
            self.add(entry)

    @classmethod
    def read(cls, paths: Iterable[Path]) -> KnownHosts:
        """Read the files that exist, in this order. Never raises because of their content."""
        entries: list[Entry] = []
        notes: list[str] = []
        for path in paths:
            try:
                lines = path.read_bytes().splitlines()
            except FileNotFoundError:
                continue
            except OSError as error:
                notes.append(f"{path}: not read: {error.strerror}")
                continue
            for number, line in enumerate(lines, 1):
                try:
                    entry = parse_line(line.decode(errors="replace"), path, number)
                except ValueError as error:
                    notes.append(f"{path}:{number}: left out: {error}")
                    continue
                if entry:
                    entries.append(entry)
        return cls(entries, notes)

    def add(self, entry: Entry) -> None:
        if entry.hosts.startswith("|"):
            self._hashed.append((*_hashed_name(entry.hosts), entry))
        elif re.search(r"[*?!]", entry.hosts):
            self._patterns.append(entry)
        else:
            for name in entry.hosts.lower().split(","):
                self._named.setdefault(name, []).append(entry)

    def verify(self, names: tuple[str, ...], key: bytes) -> Verdict:
        """Check the key that a host has sent. `names`: see `lookup_names`."""
        entries = self._of(names[0])
        # A key on file for the host without a port is valid for the port as well, but a different key there means
        # nothing, because several sshds may run on one host. OpenSSH does the same.
        elsewhere = [entry for name in names[1:] for entry in self._of(name)]
        same = [entry for entry in entries + elsewhere if entry.key == key]
        for entry in same:
            if entry.marker == "revoked":
                return Verdict("revoked", entry)
        for entry in same:
            if entry.marker == "":
                return Verdict("known", entry)
        others = [entry for entry in entries if entry.marker == ""]
        if others:
            return Verdict("changed", min(others, key=lambda entry: entry.key_type != key_type(key)))
        for entry in entries:
            if entry.marker == "cert-authority":
                return Verdict("authority", entry)
        return Verdict("unknown")

    def key_types(self, names: tuple[str, ...]) -> frozenset[str]:
        """The types of the keys on file, so that the host is asked for a key of such a type."""
        return frozenset(entry.key_type for name in names for entry in self._of(name) if entry.marker == "")

    def _of(self, name: str) -> list[Entry]:
        entries = list(self._named.get(name, ()))
        entries += [entry for entry in self._patterns if _matches(entry.hosts.lower(), name)]
        encoded = name.encode()
        entries += [entry for salt, digest, entry in self._hashed if hmac.digest(salt, encoded, "sha1") == digest]
        return entries


def lookup_names(hostname: str, port: int, alias: str | None) -> tuple[str, ...]:
    """The names of a host in known_hosts: the one that decides, then one that may also confirm a key."""
    if alias:
        return (alias.lower(),)
    name = hostname.lower()
    return (name,) if port == SSH_PORT else (f"[{name}]:{port}", name)


def parse_line(line: str, path: Path, number: int) -> Entry | None:
    """One line, or None for an empty line or a comment. Raises ValueError with what is wrong."""
    fields = line.split()
    if not fields or fields[0].startswith("#"):
        return None
    marker: Literal["", "revoked", "cert-authority"] = ""
    if fields[0].startswith("@"):
        match fields.pop(0):
            case "@revoked":
                marker = "revoked"
            case "@cert-authority":
                marker = "cert-authority"
            case other:
                raise ValueError(f"unknown marker {other}")
    if len(fields) < 3:
        raise ValueError("fewer than three fields")
    hosts, type_name, encoded = fields[:3]
    try:
        key = base64.b64decode(encoded, validate=True)
    except binascii.Error as error:
        raise ValueError("the key is not base64") from error
    if key_type(key) != type_name:
        raise ValueError(f"the key is not of type {type_name}")
    if hosts.startswith("|"):
        _hashed_name(hosts)
    return Entry(marker, hosts, type_name, key, path, number)


def key_type(key: bytes) -> str:
    """The type in a key in wire format, or "" if it is not a key."""
    size = int.from_bytes(key[:4], "big")
    return key[4 : 4 + size].decode("ascii", errors="replace") if len(key) > 4 + size else ""


def fingerprint(key: bytes) -> str:
    """As `ssh-keygen -l` prints it: `SHA256:...`."""
    return "SHA256:" + base64.b64encode(hashlib.sha256(key).digest()).decode().rstrip("=")


def bits(key: bytes) -> int:
    """As `ssh-keygen -l` prints it: the length of an RSA modulus; for other keys, the number in their type."""
    kind = key_type(key)
    if kind == "ssh-rsa":
        rest = key[4 + len(kind) :]
        for _ in range(2):  # the exponent, then the modulus
            size = int.from_bytes(rest[:4], "big")
            number, rest = rest[4 : 4 + size], rest[4 + size :]
        return int.from_bytes(number, "big").bit_length()
    curve = re.search(r"nistp(\d+)", kind)
    return int(curve[1]) if curve else 256


_append_lock = threading.Lock()


def append(path: Path, name: str, key: bytes, *, hashed: bool) -> Entry:
    """Add a key to a file. A missing file is created (0600, its folder 0700).

    Other programs may be adding to the file, so it is locked. A last line without a newline gets one first. Raises
    OSError when the file cannot be written.
    """
    hosts = _hash(name) if hashed else name
    text = f"{hosts} {key_type(key)} {base64.b64encode(key).decode()}\n"
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with _append_lock:
        descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "a+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.seek(0)
            before = file.read()
            if before and not before.endswith(b"\n"):
                text = "\n" + text
            file.write(text.encode())
    return Entry("", hosts, key_type(key), key, path, len((before + text.encode()).splitlines()))


def _matches(patterns: str, name: str) -> bool:
    """Match OpenSSH's pattern list: at least one pattern matches, and no negated one."""
    matched = False
    for pattern in patterns.split(","):
        negated = pattern.startswith("!")
        if _is_like(name, pattern[negated:]):
            if negated:
                return False
            matched = True
    return matched


def _is_like(name: str, pattern: str) -> bool:
    """Match a pattern in which `*` is any text and `?` any character. Takes O(name x pattern) time.

    (A regular expression for 40 times `*a` would take years.)
    """
    at = position = 0
    star, resume = -1, 0  # the last `*`, and where in the name to search next for what follows it
    while at < len(name):
        if position < len(pattern) and pattern[position] == "*":
            star, resume = position, at
            position += 1
        elif position < len(pattern) and pattern[position] in ("?", name[at]):
            at, position = at + 1, position + 1
        elif star >= 0:
            resume += 1
            at, position = resume, star + 1
        else:
            return False
    return not pattern[position:].strip("*")


def _hashed_name(hosts: str) -> tuple[bytes, bytes]:
    """Salt and HMAC-SHA1 of a name written as `|1|SALT|HASH`."""
    try:
        _, version, salt, digest = hosts.split("|")
        if version != "1":
            raise ValueError(f"unknown kind of hashed name |{version}|")
        return base64.b64decode(salt, validate=True), base64.b64decode(digest, validate=True)
    except ValueError as error:  # binascii.Error is one
        raise ValueError("the hashed name cannot be read") from error


def _hash(name: str) -> str:
    salt = secrets.token_bytes(20)
    digest = hmac.digest(salt, name.encode(), "sha1")
    return f"|1|{base64.b64encode(salt).decode()}|{base64.b64encode(digest).decode()}"
