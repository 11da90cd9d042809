"""The user's crontab: one line for each run that this host shall rejoin when it is booted. Other lines are kept.

A line ends with a comment that names its run, so it is found without a record of ours.
"""

import fcntl
import os
import re
import shlex
import shutil
import subprocess
from typing import Callable, List, Optional, Sequence

from . import processes, state

WINDOW = 20.0  # s for the crontab program
MARK = "# ddp-orch run "
_LINE = re.compile(r"@reboot .*" + re.escape(MARK) + r"([a-z0-9][a-z0-9-]{3,60})$")
_DAEMON = re.compile(r"(f|d|bus|sys)?crond?$")  # of vixie cron, cronie, fcron, dcron, busybox and BSD
_GENERATOR = "/usr/lib/systemd/system-generators/systemd-crontab-generator"  # systemd-cron: there is no process
_EMPTY = ("no crontab", "No such file")  # vixie cron and cronie; busybox


class Unusable(Exception):
    """There is no crontab for this user; the text says why."""


def why_unusable() -> Optional[str]:
    """None where the user has a crontab that can be changed, as far as reading it shows."""
    try:
        _read()
    except Unusable as error:
        return str(error)
    return None


def daemon_runs() -> Optional[bool]:
    """Whether anything starts the lines of crontabs; None: this host does not show the processes of others."""
    if os.geteuid() != 0 and not processes.name(1):
        return None  # /proc is mounted with hidepid
    return os.path.exists(_GENERATOR) or any(_DAEMON.match(processes.name(pid)) for pid in processes.pids())


def add(run_id: str, command: str) -> None:
    """Have cron run a command of /bin/sh at boot. Raises Unusable."""
    line = "@reboot %s %s%s" % (command.replace("%", "\\%"), MARK, run_id)  # cron makes a newline of a plain %
    _change(lambda lines: [*_without(lines, [run_id]), line])


def remove(*run_ids: str) -> None:
    """Remove the lines of these runs. Raises Unusable."""
    _change(lambda lines: _without(lines, run_ids))


def removal(run_id: str) -> str:
    """The command of /bin/sh that removes the line of a run.

    It changes nothing if the crontab cannot be read. It has no %, which not all versions of cron leave as it is.
    """
    others = """t=$(crontab -l) && printf "$(printf '\\045')s\\n" "$t" | grep -vF """
    return others + shlex.quote(MARK + run_id) + " | crontab -"


def run_ids() -> List[str]:
    """The runs that have a line; none where there is no crontab."""
    if not os.path.exists(_lock_path()):
        return []  # this host never had a line: do not start `crontab` to find that out
    try:
        return [run_id for run_id in map(_run_of, _read().splitlines()) if run_id is not None]
    except Unusable:
        return []


def _without(lines: List[str], gone: Sequence[str]) -> List[str]:
    return [line for line in lines if _run_of(line) not in gone]


def _run_of(line: str) -> Optional[str]:
    match = _LINE.match(line)
    return match[1] if match else None


def _change(change: Callable[[List[str]], List[str]]) -> None:
    lock = os.open(_lock_path(), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another run may begin or end at the same time
        before = _read().splitlines()
        after = change(before)
        if after == before:
            return
        if after:
            _crontab(["-"], "".join(line + "\n" for line in after))
        else:
            _crontab(["-r"])
    finally:
        os.close(lock)


def _read() -> str:
    result = _crontab(["-l"], check=False)
    if result.returncode == 0:
        return result.stdout
    if any(text in result.stderr for text in _EMPTY):
        return ""
    raise Unusable(_reason(result))


def _crontab(arguments: List[str], table: str = "", check: bool = True) -> "subprocess.CompletedProcess[str]":
    program = shutil.which("crontab") or "/usr/bin/crontab"
    try:
        result = subprocess.run(
            [program, *arguments],
            input=table,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=dict(os.environ, LC_ALL="C"),
            timeout=WINDOW,
            check=False,
            encoding="utf-8",
            errors="surrogateescape",
        )
    except FileNotFoundError:
        raise Unusable("there is no crontab program") from None
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unusable("crontab: %s" % error) from error
    if check and result.returncode != 0:
        raise Unusable(_reason(result))
    return result


def _reason(result: "subprocess.CompletedProcess[str]") -> str:
    lines = result.stderr.strip().splitlines()
    return "crontab: %s" % (lines[-1] if lines else "exit status %d" % result.returncode)


def _lock_path() -> str:
    return os.path.join(state.folder("locks"), "crontab")
