"""A command line of ssh, as providers show it for a rented machine: `ssh root@1.2.3.4 -p 40022`. No IO."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

from .source_host import SourceHost

_WITH_VALUE = "BbcDEeFIiJLlmOoPpQRSWw"  # options of ssh(1) that take a value
_OPTIONS = {"port": "p", "user": "l", "identityfile": "i", "proxyjump": "J", "hostname": "hostname"}


def is_ssh_line(line: str) -> bool:
    return re.match(r"(\$\s+)?ssh(\s|://)", line) is not None


def parse_ssh_line(line: str) -> SourceHost:
    """The host that this command line logs in to. Options that do not choose a host are ignored. Raises ValueError."""
    words = shlex.split(line)
    words = words[words[0] == "$" :]
    words = words[words[0] == "ssh" :]
    values: dict[str, str] = {}
    targets: list[str] = []
    for option, value in _options(words):
        if option == "":
            targets.append(value)
        elif option == "o":
            name, _, text = re.sub(r"\s*=\s*|\s+", "=", value, count=1).partition("=")
            values.setdefault(_OPTIONS.get(name.lower(), name), text)
        else:
            values.setdefault(option, value)
    if not targets:
        raise ValueError("the command line of ssh names no host")
    if len(targets) > 1:
        raise ValueError(f"{shlex.quote(targets[1])} follows the host; expected no command to run there")
    if "F" in values:
        raise ValueError("-F is not supported; set DDP_ORCH_SSH_CONFIG to that file")
    user, _, host = targets[0].removeprefix("ssh://").rpartition("@")
    if targets[0].startswith("ssh://") and (port := re.search(r":([0-9]+)$", host)):
        values.setdefault("p", port[1])
        host = host[: port.start()]
    number = values.get("p")
    if number is not None and not re.fullmatch(r"[0-9]{1,5}", number):
        raise ValueError(f"-p {shlex.quote(number)}: expected a port")
    return SourceHost(
        name=host.strip("[]"),
        address=values.get("hostname"),
        user=values.get("l") or user or None,
        port=None if number is None else int(number),
        identity_file=values.get("i"),
        proxy_jump=values.get("J"),
    )


def _options(words: list[str]) -> Iterator[tuple[str, str]]:
    """(option, value) of each word; the option of an argument is ""."""
    rest = iter(words)
    for word in rest:
        if not re.match(r"-.", word):
            yield "", word
            continue
        letter = next((char for char in word[1:] if char in _WITH_VALUE), None)
        if letter is None:
            continue  # only switches, such as -A or -tt
        value = word[word.index(letter) + 1 :] or next(rest, None)
        if value is None:
            raise ValueError(f"-{letter} has no value")
        yield letter, value
