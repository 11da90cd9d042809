"""Resolve what `ssh HOST` would do: the address, user, port, keys, jump hosts and files of the user's configuration.

The system's `ssh -G` resolves it, including `Match` and `Include`; without an `ssh` program, paramiko's reader does.
The inventory overrides ssh_config. Opens no connection. (A `Match exec` of the user is run, as ssh does.)
"""

from __future__ import annotations

import contextlib
import getpass
import os
import re
import shlex
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from ..inventory import via
from ..inventory.model import Host
from .config_cache import ConfigCache, Settings
from .known_hosts import lookup_names
from .pipe import ConnectFailure

KEY_KINDS = ("rsa", "ecdsa", "ecdsa_sk", "ed25519", "ed25519_sk", "xmss", "dsa")
DEFAULT_KEYS = tuple(f"~/.ssh/id_{kind}" for kind in KEY_KINDS)
"""The key files that ssh tries if the configuration sets none."""

MAX_JUMPS = 8
USE_OPENSSH = "set ssh.via: openssh"
SECOND_FACTOR = f"{USE_OPENSSH}, and log in once by hand over a shared connection (ControlMaster, see docs/ssh.md)"
"""The fix for a server that requires more than a key."""
"""The fix for what only the ssh program can do."""
IMPORTING = threading.RLock()
"""Held while paramiko or a module that needs it is imported: otherwise threads could see half-imported modules."""


@dataclass(frozen=True, kw_only=True)
class Target:
    """One sshd and how to log in to it. Equal targets may share a connection."""

    name: str  # as in the inventory
    command: str  # the ssh command for a login by hand
    hostname: str
    port: int
    user: str
    identity_file: Path | None  # set in the inventory: it must be usable, and is offered first
    identity_files: tuple[Path, ...]
    identities_only: bool
    agent_socket: Path | None
    jump: Target | None  # the jump host before this one; it may have a jump host too
    proxy_command: str | None  # ready for the shell
    user_known_hosts: tuple[Path, ...]
    global_known_hosts: tuple[Path, ...]
    host_key_alias: str | None
    hash_known_hosts: bool
    address_family: str  # any | inet | inet6
    bind_address: str | None
    algorithms: tuple[tuple[str, frozenset[str]], ...]  # those that ssh_config allows, by kind; a missing kind: all
    remarks: tuple[str, ...]  # about ways to log in that only ssh supports

    @property
    def known_as(self) -> tuple[str, ...]:
        """The names in known_hosts."""
        return lookup_names(self.hostname, self.port, self.host_key_alias)


class NeedsSshProgram(ConnectFailure):
    """ssh_config has what only the `ssh` program can do, for the host or for one of its jump hosts."""


def by_hand(text: str, hosts: Iterable[Host]) -> str:
    """Replace `ssh NAME` in a text by the command of the inventory for this host, so that it can be pasted."""
    if "ssh " not in text:
        return text
    by_name = {host.name: host for host in hosts if not host.local}

    def command(match: re.Match[str]) -> str:
        host = by_name.get(match[1])
        return login_by_hand(host) if host else match[0]

    return re.sub(r"\bssh ([\w.:%-]*[\w%])", command, text)


def options_of(host: Host) -> tuple[str, ...]:
    """The options and the address that make `ssh` reach a host. Raises ConnectFailure for an invalid address."""
    question = _question(host)
    _check_question(question, MAX_JUMPS)
    return question.arguments()


def login_by_hand(host: Host) -> str:
    """The command that a person uses to reach a host; the words of a remote command may follow."""
    return shlex.join(via.argv_of(host)) if via.is_command(host.via) else _question(host).command()


class Resolver:
    """Resolves hosts of an inventory to targets, each once. Safe to use from many threads."""

    def __init__(self, config_file: Path | None, agent_socket: str | None) -> None:
        self._config_file = config_file
        self._agent_socket = agent_socket
        self._ssh = shutil.which("ssh")
        self._lock = threading.Lock()
        self._asked: dict[tuple[str, ...], tuple[threading.Lock, list[Settings]]] = {}
        self._cache = ConfigCache()

    def resolve(self, host: Host, deadline: float) -> Target:
        """Raises `ConnectFailure` if ssh_config cannot be read or needs what only the `ssh` program can do."""
        return self._target(_question(host), deadline, MAX_JUMPS)

    def has_jump(self, host: Host, deadline: float) -> bool:
        """Whether a jump host leads to it. False if ssh_config cannot be read."""
        with contextlib.suppress(ConnectFailure):
            return _value(self._ask(_question(host), deadline), "proxyjump") is not None
        return False

    def _target(self, question: _Question, deadline: float, jumps_left: int) -> Target:
        name = question.name
        _check_question(question, jumps_left)
        settings = self._ask(question, deadline)
        if problem := _unsupported(settings):
            reason, fix = problem
            raise NeedsSshProgram(name, "ssh config", reason, "unknown", f"{fix}, or {USE_OPENSSH}")
        hostname, user = _host_and_user(settings, name)
        port = int(settings["port"][0])
        tokens = {
            "%": "%",
            "d": str(Path.home()),
            "h": hostname,
            "i": str(os.getuid()),
            "k": _value(settings, "hostkeyalias") or question.address,
            "n": question.address,
            "p": str(port),
            "r": user,
            "u": getpass.getuser(),
        }

        def path(text: str) -> Path:
            return Path(_expand(text, tokens, name)).expanduser()

        def paths(keyword: str) -> tuple[Path, ...]:
            return tuple(path(text) for value in settings.get(keyword, ()) for text in _files(value))

        jump, command = None, None
        if proxy_jump := _value(settings, "proxyjump"):
            *before, last = proxy_jump.split(",")
            jump = self._target(_jump_question(last, ",".join(before) or None), deadline, jumps_left - 1)
        elif proxy_command := _value(settings, "proxycommand"):
            command = _expand(proxy_command, tokens, name)
        agent = _value(settings, "identityagent", "SSH_AUTH_SOCK")
        if agent in ("SSH_AUTH_SOCK", "$SSH_AUTH_SOCK"):
            agent = self._agent_socket
        identity_file = Path(question.identity_file).expanduser() if question.identity_file else None
        return Target(
            name=name,
            command=question.command(),
            hostname=hostname,
            port=port,
            user=user,
            identity_file=identity_file,
            # One value per line, and a path may have spaces, unlike the files of known_hosts.
            identity_files=tuple(file for file in map(path, settings.get("identityfile", ())) if file != identity_file),
            identities_only=_value(settings, "identitiesonly") == "yes",
            agent_socket=path(agent) if agent else None,
            jump=jump,
            proxy_command=command,
            user_known_hosts=paths("userknownhostsfile"),
            global_known_hosts=paths("globalknownhostsfile"),
            host_key_alias=_value(settings, "hostkeyalias"),
            hash_known_hosts=_value(settings, "hashknownhosts") == "yes",
            address_family=_value(settings, "addressfamily") or "any",
            bind_address=_value(settings, "bindaddress"),
            algorithms=_algorithms(settings),
            remarks=_remarks(settings),
        )

    def _ask(self, question: _Question, deadline: float) -> Settings:
        """Ask ssh, or paramiko without ssh. Each question is asked once, because many hosts share a jump host."""
        arguments = question.arguments()
        with self._lock:
            lock, answer = self._asked.setdefault(arguments, (threading.Lock(), []))
        with lock:
            if not answer:
                ask = self._read_with_ssh if self._ssh else self._read_with_paramiko
                answer.append(ask(question, deadline))
            return answer[0]

    def _read_with_ssh(self, question: _Question, deadline: float) -> Settings:
        assert self._ssh
        if cached := self._cache.get(question.options(), question.address):
            return cached
        config = ("-F", str(self._config_file)) if self._config_file else ()
        try:
            process = subprocess.run(
                (self._ssh, "-v", "-G", *config, *question.arguments()),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=max(0.1, deadline - time.monotonic()),
            )
        except subprocess.TimeoutExpired as error:
            fix = "check ssh_config for a slow `Match exec`"
            raise _failure(question.name, "`ssh -G` did not finish in time", fix) from error
        if process.returncode:
            lines = process.stderr.decode(errors="replace").replace("\r", "").splitlines()
            reason = "; ".join(
                line for line in lines if not line.startswith(("debug1: ", "OpenSSH_", "Pseudo-terminal "))
            )
            raise _failure(question.name, f"`ssh -G` failed: {reason}", "fix ssh_config")
        settings: Settings = {}
        for line in process.stdout.decode(errors="surrogateescape").splitlines():
            keyword, _, value = line.partition(" ")
            settings.setdefault(keyword.lower(), []).append(value)
        stderr = process.stderr.decode(errors="surrogateescape")
        self._cache.add(question.options(), question.address, settings, stderr)
        return settings

    def _read_with_paramiko(self, question: _Question, deadline: float) -> Settings:
        with IMPORTING:
            from paramiko import SSHConfig
            from paramiko.ssh_exception import ConfigParseError

        usual = [Path("~/.ssh/config").expanduser(), Path("/etc/ssh/ssh_config")]
        files = [self._config_file] if self._config_file else usual
        text = "".join(file.read_text() + "\n" for file in files if file.exists())
        if included := re.search(r"(?im)^\s*include\b.*", text):
            reason = f"ssh_config has {included[0].strip()!r}, which only the ssh program can read"
            raise _failure(question.name, reason, "install the OpenSSH client")
        try:
            options = SSHConfig.from_text(text).lookup(question.address)
        except ConfigParseError as error:
            raise _failure(question.name, str(error), "fix ssh_config") from error
        settings = {keyword: [value] if isinstance(value, str) else list(value) for keyword, value in options.items()}
        from_inventory = {"user": question.user, "port": question.port, "proxyjump": question.proxy_jump}
        settings |= {keyword: [str(value)] for keyword, value in from_inventory.items() if value}
        if question.identity_file:
            settings.setdefault("identityfile", []).insert(0, question.identity_file)
        defaults = {
            "user": [getpass.getuser()],
            "port": ["22"],
            "hostname": [question.address],
            "identityfile": list(DEFAULT_KEYS),
            "userknownhostsfile": ["~/.ssh/known_hosts ~/.ssh/known_hosts2"],
            "globalknownhostsfile": ["/etc/ssh/ssh_known_hosts /etc/ssh/ssh_known_hosts2"],
        }
        return defaults | settings


def _files(value: str) -> list[str]:
    """The paths in a list. `ssh -G` separates them by spaces without quotes, paramiko returns them as written.

    ssh prints absolute paths, so a word that is not absolute belongs to the path before it.
    """
    if '"' in value or "\\ " in value:
        with contextlib.suppress(ValueError):
            return [text for text in shlex.split(value) if text != "none"]
    absolute = value.startswith(("/", "~", "%"))
    texts = re.split(" (?=[/~%])", value) if absolute else value.split()
    return [text.strip() for text in texts if text != "none"]


def resolve(host: Host, config_file: Path | None, agent_socket: str | None = None, timeout: float = 20.0) -> Target:
    """Resolve one host of an inventory. For many hosts, share a `Resolver`."""
    return Resolver(config_file, agent_socket).resolve(host, time.monotonic() + timeout)


@dataclass(frozen=True)
class _Question:
    """What to ask ssh about: a host of the inventory, or a jump host."""

    name: str
    address: str
    user: str | None
    port: int | None
    identity_file: str | None
    proxy_jump: str | None

    def options(self) -> tuple[str, ...]:
        """The options of ssh for what is set; they override ssh_config."""
        values = (("-l", self.user), ("-p", self.port), ("-i", self.identity_file), ("-J", self.proxy_jump))
        return tuple(text for option, value in values if value is not None for text in (option, str(value)))

    def arguments(self) -> tuple[str, ...]:
        return (*self.options(), "--", self.address)

    def command(self) -> str:
        """The command for a shell."""
        return shlex.join(("ssh", *self.options(), self.address))


def _question(host: Host) -> _Question:
    return _Question(host.name, host.address, host.user, host.port, host.identity_file, host.proxy_jump)


def _jump_question(jump: str, before: str | None) -> _Question:
    """`[user@]host[:port]` or `ssh://[user@]host[:port]`, as in ProxyJump; `before`: the jumps before it."""
    user, _, address = jump.strip().removeprefix("ssh://").rstrip("/").rpartition("@")
    bracketed = re.fullmatch(r"\[(.+)\](?::(\d+))?", address)
    plain = re.fullmatch(r"([^:]+):(\d+)", address)
    match = bracketed or plain
    host, port = (match[1], match[2]) if match else (address, None)
    return _Question(jump.strip(), host, user or None, int(port) if port else None, None, before)


def _value(settings: Settings, keyword: str, default: str | None = None) -> str | None:
    value = settings.get(keyword, [default or "none"])[0]
    return None if value.lower() == "none" or not value else value


def _expand(text: str, tokens: dict[str, str], name: str) -> str:
    """Expand the %-tokens and ${VARIABLES} of ssh_config."""

    def token(match: re.Match[str]) -> str:
        if match[1] not in tokens:
            reason = f"the token %{match[1]} in {text!r} is not supported"
            fix = f"write its value in its place, or {USE_OPENSSH}"
            raise NeedsSshProgram(name, "ssh config", reason, "unknown", fix)
        return tokens[match[1]]

    expanded = re.sub(r"%(.)", token, text)
    return re.sub(r"\$\{(\w+)\}", lambda match: os.environ.get(match[1], ""), expanded)


def _unsupported(settings: Settings) -> tuple[str, str] | None:
    """(reason, fix) for a setting that changes the peer or its trust and that ddp-orch does not support."""
    checks: tuple[tuple[str, Callable[[str], bool], str], ...] = (
        ("knownhostscommand", _is_set, "put the keys that it prints in a known_hosts file"),
        ("revokedhostkeys", _is_set, "mark the keys @revoked in known_hosts"),
        ("proxyusefdpass", lambda value: value == "yes", "use ProxyJump, or a ProxyCommand that passes bytes"),
        ("bindinterface", _is_set, "use BindAddress"),
        ("pubkeyauthentication", lambda value: value in ("no", "false"), "allow it: ddp-orch logs in with keys only"),
    )
    for keyword, wrong, fix in checks:
        for value in settings.get(keyword, ()):
            if wrong(value.lower()):
                return f"ssh_config sets {keyword} {value}, which is not supported", fix
    certificates = [value for value in settings.get("certificatefile", ()) if _is_set(value)]
    next_to_keys = {f"{key}-cert.pub" for key in settings.get("identityfile", ())}
    for certificate in certificates:
        if certificate not in next_to_keys:
            return (
                f"ssh_config sets CertificateFile {certificate}, which is not next to its key",
                "name it KEY-cert.pub",
            )
    return None


def _remarks(settings: Settings) -> tuple[str, ...]:
    """Ways to log in that are not supported; shown only if no other way works."""
    remarks = []
    if _is_set(provider := settings.get("pkcs11provider", ["none"])[0]):
        remarks.append(
            f"PKCS11Provider {provider} is not used (load its keys into the agent: `ssh-add -s {provider}`, "
            f"or {USE_OPENSSH})"
        )
    return tuple(remarks)


def _is_set(value: str) -> bool:
    return value.lower() not in ("", "none")


def _algorithms(settings: Settings) -> tuple[tuple[str, frozenset[str]], ...]:
    kinds = {
        "kex": "kexalgorithms",
        "ciphers": "ciphers",
        "macs": "macs",
        "keys": "hostkeyalgorithms",
        "pubkeys": "pubkeyacceptedalgorithms",
    }
    return tuple(
        (kind, frozenset(settings[keyword][0].split(","))) for kind, keyword in kinds.items() if keyword in settings
    )


def _check_question(question: _Question, jumps_left: int) -> None:
    """Raises ConnectFailure for what must not be handed to ssh."""
    if not re.fullmatch(r"[A-Za-z0-9_\[:][A-Za-z0-9._:%\[\]-]{0,253}", question.address):
        # ssh would read `-oProxyCommand=...` as an option, and a ProxyCommand's shell would run commands in a name.
        raise _failure(question.name, f"{question.address!r} is not a host name or address", "fix the address")
    if not jumps_left:
        reason = f"more than {MAX_JUMPS} jump hosts, or a ProxyJump loop"
        raise _failure(question.name, reason, "fix ProxyJump in ssh_config")


def _host_and_user(settings: Settings, name: str) -> tuple[str, str]:
    """Raises ConnectFailure for what a ProxyCommand's shell would read as commands."""
    hostname, user = settings["hostname"][0], settings["user"][0]
    if not re.fullmatch(r"[A-Za-z0-9_:][A-Za-z0-9._:%-]*", hostname) or not re.fullmatch(r"[\w.@\\+-]+\$?", user):
        reason = f"the user name {user!r} or the host name {hostname!r} is invalid"
        raise _failure(name, reason, "fix User or HostName in ssh_config")
    return hostname, user


def _failure(host: str, reason: str, fix: str) -> ConnectFailure:
    return ConnectFailure(host, "ssh config", reason, "unknown", fix)
