"""What shells and their commands print when they fail, and whether a rank ended with that. Pure."""

from __future__ import annotations

import re

from .exits import Exit
from .scene import Scene, is_surely_later
from .transcript import LogLine

END_DELAY = 5.0  # s between an error that ends a script by `set -e` and the end of the rank
COMMAND = r"^(?:\S*/)?[\w.+-]+(?: \(child\))?: "
NOT_THERE = re.compile(
    rf"{COMMAND}(?P<what>.+?)(?:: No such file(?: or directory)?(?: \(\d+\))?| \(No such file or directory\))$"
    r"|^\S+: (?:line )?\d+: (?P<program>\S*/\S*): not found$"
    r"|^\S+: (?:(?:line )?\d+: )?(?:source|\.): (?P<sourced>\S+): (?:file )?not found$"
    r"|^unzip: +cannot find or open (?P<archive>[^,]+),"
)
NO_FILE = re.compile(
    r"fatal error: |shared (?:object|library|memory)|\bcd: |\bno such file or directory: ", re.IGNORECASE
)
NO_FOLDER = re.compile(
    r"(?:cannot (?:create|touch|move)|failed to create|mkdir)\b.*: No such file or directory$"
    r"|cannot create (?P<dash>\S+): Directory nonexistent$"
)
"""What they say only of a file or a folder that they would make."""
DENIED = re.compile(rf"{COMMAND}.+: (?:Permission denied|Read-only file system)$")
CD = re.compile(r"(?:^|[\s:])cd: (?:can't cd to )?(?P<path>\S+?)(?:: No such file or directory)?$")
FOLLOWS = re.compile(
    r"^tar(?: \(child\))?: (?:Child returned|Error is not recoverable|Exiting with failure)"
    r"|^rsync error: |^gzip: stdin: "
)
"""Lines in which a command only repeats that it has failed."""
ERRORS = (NOT_THERE, NO_FOLDER, DENIED, CD, FOLLOWS)
ENVIRONMENT = re.compile(r"(?:^|/)(?:activate|(?:conda|mamba|micromamba)\.sh)$")
"""Scripts that activate a venv or a conda environment."""
NO_PROGRAM = re.compile(
    r"^(?:\S+: )?(?:(?:line )?\d+: )?(?:exec: )?(?P<name>[\w.+-]+): (?:command )?not found$"
    r"|^\S+: command not found: (?P<zsh>\S+)$"
    r"|^(?:\S*/)?(?:env|nice|nohup|setsid|stdbuf|timeout|xargs): (?:failed to (?:run command|execute) )?"
    r"['‘]?(?P<started>[\w.+-]+)['’]?: No such file or directory$"
)
UNSET = re.compile(
    r"^\S+:(?:(?: line)? ?\d+:)? (?P<name>\$?\w+): (?:unbound variable|parameter (?:null or )?not set(?: or null)?)$"
    r"|^\S+: (?:line )?\d+: (?P<needed>[A-Z_][A-Z0-9_]*|\d): "
    r"(?!readonly variable|bad |(?:command )?not found|No such |Is a )"
)
QUOTED = re.compile(r"['\"`‘](?P<path>[^'\"`’]+)['\"’]")
VERB = re.compile(r"^(?:fatal: )?(?:cannot|can't) (?:open|read|access|stat|create)(?: file)?:? ")


def missing_path(text: str) -> str | None:
    """The file that a command could not find; None: it says something else."""
    match = NOT_THERE.search(text)
    if match is None or NO_FILE.search(text):
        return None
    if path := match["program"] or match["sourced"] or match["archive"]:
        return str(path)
    what = str(match["what"])
    if quoted := QUOTED.search(what):
        return quoted["path"]
    parts = [part for part in what.split(": ") if part != "Cannot open"]
    return VERB.sub("", parts[-1]) if parts else None


def missing_environment(text: str) -> str | None:
    """The script of a venv or of conda that a shell could not source; None: it says something else."""
    path = missing_path(text)
    return path if path is not None and ENVIRONMENT.search(path) else None


def missing_program(text: str) -> str | None:
    """The program that a shell, or a command that starts others, did not find on the PATH."""
    match = NO_PROGRAM.search(text)
    return None if match is None else match["name"] or match["zsh"] or match["started"]


def unset_variable(text: str) -> str | None:
    """The variable that a shell needs, after `set -u` or in ${NAME:?}; digits: an argument of the script."""
    match = UNSET.search(text)
    return None if match is None else match["needed"] or match["name"].removeprefix("$")


def unmade_path(text: str) -> str | None:
    """What a command could not make, as its folder does not exist; None: it says something else."""
    match = NO_FOLDER.search(text)
    return None if match is None else match["dash"] or missing_path(text)


def find_final_errors(exit_: Exit, scene: Scene) -> tuple[LogLine, ...]:
    """The errors of commands with which a rank ended; empty: it printed something after them, or ended much later.

    Without `set -e`, a script continues after such an error.
    """
    words = [line for line in scene.lines if line.rank == exit_.rank and line.rank is not None and not line.agent]
    if not words and exit_.line is not None:
        words = list(scene.last_words_of(exit_.line.source, exit_.rank))
    errors: list[LogLine] = []
    for line in reversed([line for line in words if line.stream != "stdout"] or words):
        if not any(pattern.search(line.text) for pattern in ERRORS):
            break
        errors.insert(0, line)
    if not errors:
        return ()
    last = errors[-1]
    if any(is_surely_later(other, last) for other in words if other.stream != last.stream):
        return ()
    if exit_.at is not None and last.at is not None and exit_.at > last.at + END_DELAY:
        return ()
    return tuple(line for line in errors if not FOLLOWS.search(line.text)) or tuple(errors)
