"""Find out whether a run that was started here starts a shell script. Reads files only."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from ..diagnosis.record import Command
from . import recent

_SHELLS = ("bash", "sh", "dash", "zsh", "ksh")
_SHEBANG = re.compile(rb"#! ?(?:\S*/)?(?:env +(?:-S +)?)?(?P<shell>bash|sh|dash|zsh|ksh)\b")
_OPTION_WITH_VALUE = ("-o", "+o", "-O", "+O", "--rcfile", "--init-file")


def describe_command(run_id: str) -> Command:
    """The command of the run, as far as this machine knows it."""
    started, command = recent.started(run_id), recent.command_of(run_id)
    if command is None:
        return Command()
    debug = command.options.get("debug") is True
    words = command.options.get("script")
    if not isinstance(words, tuple) or not words:
        return Command(debug=debug)
    if Path(str(words[0])).name in _SHELLS:
        return _parse_shell([str(word) for word in words], debug)
    shell = _shell_of(Path(started.code, str(words[0]))) if started is not None and started.code else None
    return Command((shell, str(words[0])) if shell else (), debug=debug)


def _parse_shell(words: Sequence[str], debug: bool) -> Command:
    """`bash [OPTION...] FILE ...` or `bash -c TEXT ...`."""
    shell, *rest = words
    is_traced = False
    place = 0
    while place < len(rest) and rest[place][:1] in ("-", "+"):
        option = rest[place]
        short = option.startswith("-") and not option.startswith("--")
        is_traced = is_traced or (short and "x" in option[1:]) or rest[place : place + 2] == ["-o", "xtrace"]
        if short and "c" in option[1:]:
            return Command((shell, "-c", "'...'"), is_traced, debug)
        place += 2 if option in _OPTION_WITH_VALUE else 1
    return Command((shell, rest[place]), is_traced, debug) if place < len(rest) else Command(debug=debug)


def _shell_of(file: Path) -> str | None:
    """The shell in the first line of a script."""
    try:
        with file.open("rb") as opened:
            match = _SHEBANG.match(opened.read(200))
    except OSError:
        return None
    return match["shell"].decode() if match else None
