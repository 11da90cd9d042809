"""Names of hosts: check them, expand ranges, select some of many. Resolves no name."""

from __future__ import annotations

import re
import shlex
import unicodedata
from collections.abc import Sequence

from ..errors import UsageError
from . import any_of

MAX_HOSTS = 10_000

# Not names: what ssh could take for an option, a shell for a command, or a log for several words.
NAME = r"[A-Za-z0-9][A-Za-z0-9._:%-]{0,253}"
USER = r"[A-Za-z_][A-Za-z0-9_.-]{0,31}\$?"


def check(name: str) -> str:
    """The name itself. Raises ValueError with what is wrong with it."""
    if not re.fullmatch(NAME, name):
        raise ValueError(
            f"{quoted(name)}{_culprit(name)}: a host name has at most 254 letters, digits and . _ : % -, and "
            "starts with a letter or a digit"
        )
    if re.fullmatch(r"[^:]+:[0-9]+", name):  # no IPv6 address has a single colon
        raise ValueError("a host name cannot contain a port; write {name: NAME, port: NUMBER}")
    return name


def quoted(text: str) -> str:
    """Shorten text for a message: on one line, without control characters."""
    return ascii(text[:40]) if text.isascii() or not text.isprintable() else f"'{text[:40]}'"


def _culprit(name: str) -> str:
    """The part of a name that is wrong, if it is easy to overlook."""
    if " - " in name:
        return " (is the `-` of the next line indented less or more than the first?)"
    if odd := next((char for char in name if not char.isascii()), None):
        return f" has U+{ord(odd):04X} {unicodedata.name(odd, '')}".rstrip()
    if name and (odd := next((char for char in name if not re.fullmatch(r"[A-Za-z0-9._:%-]", char)), None)):
        return f" has {odd!a}"
    return ""


def jump_hosts(proxy_jump: str) -> tuple[str, ...]:
    """The hosts of a chain of jumps `[user@]host[:port],...`, the first hop first. Raises ValueError."""
    hosts = []
    for hop in proxy_jump.split(","):
        user, at, place = hop.rpartition("@")
        if at and not re.fullmatch(USER, user):
            raise ValueError(f"{hop[:40]!r}: expected [user@]host[:port], several separated by commas")
        host, colon, port = place.partition(":") if place.count(":") == 1 else (place, "", "")
        if colon and not (re.fullmatch(r"[1-9][0-9]{0,4}", port) and int(port) <= 65535):
            raise ValueError(f"{hop[:40]!r}: expected a port from 1 to 65535")
        hosts.append(check(host))
    return tuple(hosts)


def expand(text: str) -> tuple[str, ...]:
    """`gpu[01-03]` -> gpu01, gpu02, gpu03; a name without a range -> that name. Raises ValueError."""
    if "[" not in text and "]" not in text:
        return (check(text),)
    if re.fullmatch(r"([A-Za-z0-9._:%-]|\[[0-9,/-]+\])+", text) is None:
        raise ValueError("invalid range of hosts: expected something like gpu[01-16] or gpu[1,3,5-9]")
    size = 1
    for inside in re.findall(r"\[([^]]*)\]", text):
        size *= sum(_count(part) for part in inside.split(","))
        if size > MAX_HOSTS:  # counted before it is expanded: gpu[1-999999999] would take the memory of the machine
            raise ValueError(f"more than {MAX_HOSTS:,} hosts")
    # imported here: it takes longer than all of our own parsing, and most inventories have no range
    from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet, NodeSetException

    try:
        return tuple(check(name) for name in NodeSet(text, resolver=RESOLVER_NOGROUP))
    except NodeSetException as exc:
        raise ValueError(f"invalid range of hosts: {exc}") from exc


def _count(part: str) -> int:
    match = re.fullmatch(r"([0-9]{1,9})(?:-([0-9]{1,9})(?:/([0-9]{1,9}))?)?", part)
    if match is None:
        raise ValueError(f"{part[:40]!r} is not a number or a range like 01-16")
    low, high, step = match[1], match[2] or match[1], match[3] or "1"
    if int(low) > int(high) or int(step) == 0:
        raise ValueError(f"the range {part} is empty")
    if len(low) != len(high) and (low[0] == "0" or high[0] == "0"):
        raise ValueError(f"the range {part} mixes two widths; write {low.zfill(len(high))}-{high.zfill(len(low))}")
    return (int(high) - int(low)) // int(step) + 1


def pick(names: Sequence[str], pattern: str, option: str = "--hosts") -> tuple[str, ...]:
    """Select the `names` that match a pattern, in the order of `names`.

    A pattern has names, ranges `gpu[01-04]` and globs `gpu*`; read from left to right, `,` adds, `!` takes away, and
    `&` keeps what is in both. Raises UsageError for a name that is not there.
    """
    chosen = set(names) if pattern.lstrip().startswith("!") else set()  # `!gpu02` alone: all but gpu02
    if not pattern.strip():
        raise UsageError(f"{option} '': selects no host; omit it to select all hosts")
    if any_of.parse(pattern) is not None:
        raise UsageError(
            f"{option} {shlex.quote(pattern)}: `any N` is only for `up` and `restart`, which choose free hosts for a "
            f"run; give the names of hosts, such as {option} {names[0]}"
        )
    operator = ","
    # outside of brackets: the comma in gpu[1,3] is the range's own
    for word in filter(None, map(str.strip, re.split(r"([,!&])(?![^\[]*\])", pattern))):
        if word in ",!&":
            operator = word
            continue
        matching = _named(names, word, f"{option} {pattern}" + (f": {word}" if word != pattern else ""))
        match operator:
            case "!":
                chosen -= matching
            case "&":
                chosen &= matching
            case _:
                chosen |= matching
    if not chosen:
        raise UsageError(f"{option} {pattern}: selects no host; the inventory has {_listed(names)}")
    return tuple(name for name in names if name in chosen)


def _named(names: Sequence[str], word: str, option: str) -> set[str]:
    if "[" not in word and ("*" in word or "?" in word):
        from fnmatch import fnmatchcase

        matching = {name for name in names if fnmatchcase(name, word)}
        if not matching:
            raise UsageError(f"{option} matches no host in the inventory: {_listed(names)}")
        return matching
    try:
        requested = expand(word)
    except ValueError as exc:
        raise UsageError(f"{option}: {exc}") from exc
    known = set(names)
    unknown = [name for name in requested if name not in known]
    if unknown:
        raise UsageError(f"{option}: {unknown[0]} is not in the inventory; {nearest(unknown[0], names)}")
    return set(requested)


def nearest(word: str, words: Sequence[str]) -> str:
    """The end of a message: the word that was probably meant, or all known words."""
    from difflib import get_close_matches

    close = get_close_matches(word, words, 1)
    return f"did you mean {close[0]}?" if close else f"known: {_listed(words)}"


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:12]) + (f" and {len(names) - 12} more" if len(names) > 12 else "")
