"""The system's `ssh` as the way to a host: its command line, and why it failed. Starts nothing."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from ..inventory.model import Host
from ..output.terminal import one_line
from .config import options_of
from .pipe import ConnectFailure, GroupMessage

LOST = 255
"""The status of ssh if it could not connect or lost the connection. A command may end with it too."""

ENVIRONMENT = {"SSH_ASKPASS_REQUIRE": "never"}
"""Also for the `ssh` that it starts for a jump host: nothing may ask a question."""

_SYSTEM_CONFIGS = ("/etc/ssh/ssh_config", "/usr/etc/ssh/ssh_config")
_ALIVE_INTERVAL, _ALIVE_COUNT = 5, 2
_REASON_LENGTH = 300


def ssh_argv(host: Host, host_keys: str, connect_timeout: float, config_file: Path | None) -> tuple[str, ...]:
    """The argv that runs `sh` on a host. Raises ConnectFailure for an address that ssh could take for an option."""
    options: Mapping[str, object] = {
        "BatchMode": "yes",
        "StrictHostKeyChecking": "accept-new" if host_keys == "accept-new" else "yes",
        "UpdateHostKeys": "no",
        "ConnectTimeout": max(1, math.ceil(connect_timeout)),
        "ServerAliveInterval": _ALIVE_INTERVAL,
        "ServerAliveCountMax": _ALIVE_COUNT,
        "ControlMaster": "no",  # use the master of the user, but be none: other sessions would end with this one
        "ControlPersist": "no",  # with it, ssh hides what the ssh of a jump host says
        "ForwardAgent": "no",
        "ForwardX11": "no",
        "ClearAllForwardings": "yes",
        "PermitLocalCommand": "no",  # its output would look like that of the host
        "RemoteCommand": "none",
        "LogLevel": "ERROR",  # hides banners, and shows errors even if ssh_config hides them
    }
    words = ["ssh", "-T", *(("-F", str(config_file)) if config_file else ())]
    for name, value in options.items():
        words += ("-o", f"{name}={value}")
    return (*words, *options_of(host), "exec sh")


def batch_config(config_file: Path | None) -> str:
    """An ssh_config that says the same as the user's, and that no ssh asks a question.

    For a jump host, ssh starts another ssh and hands on the name of its file, but none of its options. Without a
    terminal, that one would send empty passwords, and the jump host might lock the account.
    """
    files = (str(config_file.absolute()),) if config_file else ("~/.ssh/config", *_SYSTEM_CONFIGS)
    return "\n".join(["BatchMode yes", *(f'Include "{file}"' for file in files)]) + "\n"


@dataclass(frozen=True)
class _Cause:
    """What ssh prints in this case, as a regular expression, and what it means."""

    pattern: str
    code: str
    phase: str
    reason: str
    fix: str


_UNREACHABLE = _Cause(
    "timed out|No route|unreachable",
    "ssh-unreachable",
    "connect",
    "no connection",
    "check that the host is up, and the network",
)
_CAUSES = (
    _Cause("Could not resolve hostname", "ssh-name-unresolved", "name", "no address", "check the name"),
    _Cause(
        "IDENTIFICATION HAS CHANGED|REVOKED HOST KEY|is revoked",
        "ssh-host-key-changed",
        "host key",
        "THE HOST KEY HAS CHANGED, or is revoked. Somebody may be intercepting the connection, or the host was "
        "reinstalled",
        "ask its administrator; only if the new key is correct, remove the old one, then run `{trust}`",
    ),
    _Cause(
        "[Hh]ost key verification failed|host key is known for",
        "ssh-host-key-unknown",
        "host key",
        "{its} key is not in known_hosts",
        "compare it with the key on the host, then accept it with `{trust}` or `{ssh}`",
    ),
    _Cause(
        "UNPROTECTED PRIVATE KEY|bad permissions",
        "ssh-key-permissions",
        "key",
        "others can read the private key",
        "chmod 600 the file",
    ),
    _Cause(
        "Permission denied|Too many authentication failures|No supported authentication",
        "ssh-auth-denied",
        "login",
        "permission denied",
        "check that `{ssh} -o BatchMode=yes` logs in; if it needs a password or a second factor, open a shared "
        "connection first (ControlMaster, see docs/ssh.md)",
    ),
    _Cause("Connection refused", "ssh-connection-refused", "connect", "connection refused", "check that sshd runs"),
    _UNREACHABLE,
    _Cause(
        # not any lost connection: one that is lost after the login must not be tried again and again
        "exchange_identification|banner exchange",
        "ssh-throttled",
        "greeting",
        "the server closed the connection before the login",
        "raise MaxStartups in its sshd_config, lower ssh.parallel, or check for a ban (fail2ban, hosts.deny)",
    ),
    replace(_UNREACHABLE, pattern="[Cc]onnection", reason="the connection was lost"),
    _Cause("", "unknown", "ssh", "ssh failed", "check `{ssh}`"),
)


def explain(host: Host, stderr: bytes, ssh_by_hand: str, trust_command: str) -> ConnectFailure:
    """Why ssh failed before the login. With the code `ssh-throttled` it is worth another try."""
    text = stderr.decode("utf-8", "replace")
    lines = [one_line(line).strip() for line in text.splitlines()]
    lines = [line for line in lines if line and not line.startswith("@")]
    cause = next(cause for cause in _CAUSES if re.search(cause.pattern, text))
    fix = cause.fix.replace("{trust}", trust_command)
    offending = [line for line in lines if line.startswith("Offending")]  # of a changed key: its file and line
    said = "; ".join(offending or lines)[-_REASON_LENGTH:]
    named = re.search(r"host key is known for (\S+)", text)  # a jump host, perhaps
    what = cause.reason.replace("{its}", f"{named[1]}'s" if named and host.address not in named[1] else "its")
    reason = f"{what} (ssh: {said})" if said else what
    group = GroupMessage(what, fix.replace("{ssh}", "FIRST"), ssh_by_hand)
    return ConnectFailure(host.name, cause.phase, reason, cause.code, fix.replace("{ssh}", ssh_by_hand), group)
