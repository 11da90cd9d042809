"""Load the user's keys, from the agent and from files, in the order in which they are offered to a host.

Never writes or shows a key, and asks for a pass phrase only in `unlock`. paramiko is imported when a file is read.
"""

from __future__ import annotations

import base64
import binascii
import copy
import os
import shlex
import socket
import stat
import struct
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Union

from .config import DEFAULT_KEYS, IMPORTING, USE_OPENSSH, Target

if TYPE_CHECKING:
    from paramiko import PKey

ATTEMPTS = 3
"""How often to ask for a pass phrase; ssh does the same."""

AGENT_TIMEOUT = 30.0
"""Seconds for one answer of the agent, which may ask the user for a confirmation."""


@dataclass(frozen=True)
class Skipped:
    """A key that is not offered, and why."""

    path: Path
    reason: str
    code: str = "ssh-auth-denied"

    def __str__(self) -> str:
        return f"{self.path} {self.reason}"


@dataclass(frozen=True)
class Identity:
    """A key that can sign, and its name for messages."""

    key: Key
    label: str


@dataclass(frozen=True)
class Offer:
    """The keys to try at a host, in this order, and those that cannot be used."""

    identities: tuple[Identity, ...]
    skipped: tuple[Skipped, ...]


_REQUEST_IDENTITIES, _IDENTITIES_ANSWER, _SIGN_REQUEST, _SIGN_RESPONSE = 11, 12, 13, 14


class AgentError(Exception):
    """The agent does not answer, or refuses to sign."""


class Agent:
    """A connection to an ssh-agent (draft-ietf-sshm-ssh-agent), shared by all threads."""

    def __init__(self, path: Path) -> None:
        """Raises OSError or AgentError when no agent answers there."""
        self._lock = threading.Lock()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.settimeout(AGENT_TIMEOUT)
        try:
            self._socket.connect(str(path))
            answer = self._call(_REQUEST_IDENTITIES, b"", _IDENTITIES_ANSWER)
        except (OSError, AgentError):
            self._socket.close()
            raise
        fields = list(_strings(answer[4:]))
        self.keys = tuple(AgentKey(self, *pair) for pair in zip(fields[::2], fields[1::2], strict=False))

    def sign(self, blob: bytes, data: bytes, flags: int) -> bytes:
        request = _string(blob) + _string(data) + struct.pack(">I", flags)
        return next(_strings(self._call(_SIGN_REQUEST, request, _SIGN_RESPONSE)), b"")

    def close(self) -> None:
        self._socket.close()

    def _call(self, kind: int, request: bytes, expected: int) -> bytes:
        with self._lock:
            try:
                self._socket.sendall(_string(bytes([kind]) + request))
                answer = self._read(int.from_bytes(self._read(4), "big"))
            except OSError as error:
                self._socket.close()  # a late answer must not be read as the answer to the next request
                raise AgentError(f"the SSH agent does not answer: {error}") from error
        if answer[:1] != bytes([expected]):
            raise AgentError("the SSH agent refused the request")
        return answer[1:]

    def _read(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            part = self._socket.recv(size - len(data))
            if not part:
                raise ConnectionResetError("it closed the connection")
            data += part
        return data


class AgentKey:
    """A key in an agent, with the part of paramiko's `PKey` that a login needs."""

    def __init__(self, agent: Agent, blob: bytes, comment: bytes) -> None:
        self._agent = agent
        self.blob = blob
        self.comment = comment.decode(errors="replace")
        self.public_blob = None

    @property
    def is_security_key(self) -> bool:
        return self.get_name().startswith("sk-")

    def get_name(self) -> str:
        return next(_strings(self.blob), b"").decode(errors="replace")

    def asbytes(self) -> bytes:
        return self.blob

    def sign_ssh_data(self, data: bytes, algorithm: str | None = None) -> bytes:
        # OpenSSH's agent uses the first flag that it knows, so only one is sent.
        name = algorithm or ""
        flags = 4 if name.startswith("rsa-sha2-512") else 2 if name.startswith("rsa-sha2-256") else 0
        return self._agent.sign(self.blob, data, flags)


Key = Union[AgentKey, "PKey"]


@dataclass
class _File:
    """The part of a key file that is readable without its pass phrase."""

    path: Path
    public: bytes | None = None  # the public key in wire format, where it is in the clear
    locked: bool = False
    skipped: Skipped | None = None  # why the private key cannot be used
    key: PKey | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)


class KeyRing:
    """All keys of one invocation. Reads every file once and asks for every pass phrase once."""

    def __init__(self, ask_passphrase: Callable[[str], str] | None) -> None:
        self._ask = ask_passphrase
        self._files: dict[Path, _File] = {}
        self._agents: dict[Path, Agent | None] = {}
        self._lock = threading.Lock()

    def offer(self, target: Target) -> Offer:
        """The keys for a target: the configured ones in their order, then the other keys of the agent.

        (OpenSSH offers all keys of the agent first, so a server that allows two tries may never see the right key.)
        """
        agent_keys = self._agent_keys(target)
        keys: list[Identity | Skipped] = []
        offered: set[bytes] = set()
        for path in _configured(target):
            key = self._key(path, agent_keys)
            if isinstance(key, Skipped):
                if path == target.identity_file or key.reason != _MISSING:  # most of the default files do not exist
                    keys.append(key)
            elif key.asbytes() not in offered:
                offered.add(key.asbytes())
                keys += _identities(key, path)
        for blob, agent_key in agent_keys.items():
            if agent_key.is_security_key:
                keys.append(Skipped(Path(agent_key.comment), f"(in the agent) {_SECURITY_KEY}"))
            elif blob not in offered and not target.identities_only:
                keys.append(Identity(agent_key, f"{agent_key.comment} (in the agent)"))
        return Offer(
            tuple(key for key in keys if isinstance(key, Identity)),
            tuple(key for key in keys if isinstance(key, Skipped)),
        )

    def unlock(self, targets: Iterable[Target]) -> None:
        """Ask for the pass phrases that these targets need, once each. Without a terminal, the keys stay locked.

        For a key in a default file, ask only if there is no other key.
        """
        if not self._ask:
            return
        defaults = {Path(name).expanduser() for name in DEFAULT_KEYS}
        for target in targets:
            agent_keys = self._agent_keys(target)
            files = [file for path in _configured(target) if (file := self._file(path)).public not in agent_keys]
            locked = [file for file in files if file.locked and not file.key and not file.skipped]
            has_others = bool(agent_keys) or any(not file.locked and not file.skipped for file in files)
            for file in locked:
                if file.path not in defaults or not has_others:
                    self._unlock(file, self._ask)

    def close(self) -> None:
        for agent in self._agents.values():
            if agent:
                agent.close()

    def _agent_keys(self, target: Target) -> dict[bytes, AgentKey]:
        path = target.agent_socket
        if not path:
            return {}
        with self._lock:
            if path not in self._agents:
                try:
                    self._agents[path] = Agent(path)
                except (OSError, AgentError):
                    self._agents[path] = None  # as with ssh, a missing agent is not an error
            agent = self._agents[path]
        return {key.blob: key for key in agent.keys} if agent else {}

    def _file(self, path: Path) -> _File:
        with self._lock:
            if path not in self._files:
                self._files[path] = _inspect(path)
            return self._files[path]

    def _key(self, path: Path, agent_keys: Mapping[bytes, AgentKey]) -> Key | Skipped:
        """The key of a file, from the agent if it has that key; or why it cannot be used."""
        file = self._file(path)
        agent_key = agent_keys.get(file.public) if file.public else None
        if agent_key and not agent_key.is_security_key:
            return agent_key
        return self._load(file)

    def _load(self, file: _File) -> PKey | Skipped:
        with file.lock:
            if file.key:
                return file.key
            if file.skipped:
                return file.skipped
            if file.locked:
                return Skipped(
                    file.path, f"has a pass phrase and is not in the agent; run `ssh-add {shlex.quote(str(file.path))}`"
                )
            try:
                file.key = _read_private_key(file.path, None)
            except (OSError, ValueError) as error:
                file.skipped = Skipped(file.path, f"cannot be used: {error}")
                return file.skipped
            return file.key

    def _unlock(self, file: _File, ask: Callable[[str], str]) -> None:
        prompt = f"Pass phrase for {file.path}: "
        for _ in range(ATTEMPTS):
            try:
                file.key = _read_private_key(file.path, ask(prompt))
                return
            except (OSError, ValueError) as error:
                reason = str(error)
                prompt = f"This does not unlock the key. Pass phrase for {file.path}: "
        file.skipped = Skipped(file.path, f"cannot be unlocked: {reason}")


_MISSING = "does not exist"
_SECURITY_KEY = f"is a security key, which is not supported; {USE_OPENSSH}"


def _identities(key: Key, path: Path) -> Iterator[Identity | Skipped]:
    """A key of a file. Its certificate, if there is one, is offered before the bare key."""
    certificate = path.with_name(f"{path.name}-cert.pub")
    if certificate.exists():
        try:
            yield Identity(_with_certificate(key, certificate), str(certificate))
        except (OSError, ValueError) as error:
            yield Skipped(certificate, f"cannot be used: {error}")
    yield Identity(key, str(path))


def _configured(target: Target) -> tuple[Path, ...]:
    return ((target.identity_file,) if target.identity_file else ()) + target.identity_files


def _inspect(path: Path) -> _File:
    public_file = path.with_name(path.name + ".pub")
    try:
        data = path.read_bytes()
        mode = path.stat()
    except OSError as error:
        # The private key may be in the agent alone.
        reason = _MISSING if isinstance(error, FileNotFoundError) else f"cannot be read: {error.strerror}"
        return _File(path, public=_public_from_line(public_file), skipped=Skipped(path, reason))
    if b"PRIVATE KEY" not in data:
        reason = "is a public key whose private key is not in the agent"
        return _File(path, public=_public_from_line(path), skipped=Skipped(path, reason))
    public, locked = _head(data)
    file = _File(path, public=public or _public_from_line(public_file), locked=locked)
    if file.public and next(_strings(file.public), b"").startswith(b"sk-"):
        file.skipped = Skipped(path, _SECURITY_KEY)
    elif mode.st_uid == os.getuid() and stat.S_IMODE(mode.st_mode) & 0o077:
        reason = (
            f"is readable by others (mode {stat.S_IMODE(mode.st_mode):04o}); run `chmod 600 {shlex.quote(str(path))}`"
        )
        file.skipped = Skipped(path, reason, "ssh-key-permissions")
    return file


def _head(data: bytes) -> tuple[bytes | None, bool]:
    """The public key and whether there is a pass phrase (PROTOCOL.key of OpenSSH; RFC 1421 for the older format)."""
    if b"BEGIN OPENSSH PRIVATE KEY" not in data:
        return None, b"ENCRYPTED" in data
    try:
        body = base64.b64decode(b"".join(data.split(b"-----")[2].split()))
        fields = _strings(body.removeprefix(b"openssh-key-v1\0"))
        cipher, _kdf, _options = next(fields), next(fields), next(fields)
        rest = body[len(b"openssh-key-v1\0") + sum(4 + len(field) for field in (cipher, _kdf, _options)) + 4 :]
        return next(_strings(rest)), cipher != b"none"
    except (IndexError, binascii.Error, StopIteration):
        return None, False  # loading it will report the error


def _public_from_line(path: Path) -> bytes | None:
    try:
        return base64.b64decode(path.read_text().split()[1], validate=True)
    except (OSError, IndexError, ValueError):
        return None


def _read_private_key(path: Path, passphrase: str | None) -> PKey:
    """Load a key. Raises ValueError if paramiko cannot sign with it, or if the pass phrase is wrong."""
    from io import StringIO

    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import serialization as form
    from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

    with IMPORTING:
        from paramiko import ECDSAKey, Ed25519Key, RSAKey

    data = path.read_bytes()
    load = form.load_ssh_private_key if b"BEGIN OPENSSH" in data else form.load_pem_private_key
    try:
        loaded = load(data, passphrase.encode() if passphrase is not None else None)
    except (TypeError, UnsupportedAlgorithm) as error:
        raise ValueError(str(error)) from error
    if not isinstance(loaded, (ed25519.Ed25519PrivateKey, ec.EllipticCurvePrivateKey, rsa.RSAPrivateKey)):
        raise ValueError(f"keys of type {type(loaded).__name__} are not supported")
    # Given the file, paramiko would derive the key of the pass phrase again, which is slow on purpose.
    plain = StringIO(loaded.private_bytes(form.Encoding.PEM, form.PrivateFormat.OpenSSH, form.NoEncryption()).decode())
    if isinstance(loaded, ed25519.Ed25519PrivateKey):
        return Ed25519Key(file_obj=plain)
    return RSAKey(file_obj=plain) if isinstance(loaded, rsa.RSAPrivateKey) else ECDSAKey(file_obj=plain)


def _with_certificate(key: Key, certificate: Path) -> Key:
    """The key with its certificate. Raises OSError or ValueError."""
    with IMPORTING:
        from paramiko.pkey import PublicBlob

    certified = copy.copy(key)
    certified.public_blob = PublicBlob.from_file(str(certificate))
    return certified


def _string(data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + data


def _strings(data: bytes) -> Iterator[bytes]:
    """The strings of SSH's wire format (RFC 4251, 5) at the start of `data`."""
    while len(data) >= 4:
        end = 4 + int.from_bytes(data[:4], "big")
        yield data[4:end]
        data = data[end:]
