"""systemd units of the user: one for each run that this host shall rejoin when it is booted.

systemd reads their files at boot, if the user lingers: nobody has to be asked to install or remove one. A home may be
shared, so the name of a unit has this host's id, and it starts on this host only.
"""

import contextlib
import os
import re
import shlex
import socket
from typing import List, Optional, Tuple

from . import login_session, state

FOLDER = "~/.config/systemd/user"
WANTS = "default.target.wants"  # units that start with the user's systemd
# What the command has started stays when the command ends: it is the guard.
UNIT = """[Unit]
Description=ddp-orch: rejoin run {run_id}
ConditionHost={host}

[Service]
Type=simple
KillMode=process
ExecStart=/bin/sh -c {command}

[Install]
WantedBy=default.target
"""


class Unusable(Exception):
    """systemd starts no units of this user; the text says why."""


def why_unusable(root: str = "") -> Optional[str]:
    """None where systemd would read the units at boot. Whether it does so without a login is `login_session.lingers`.

    `root`: in front of all paths.
    """
    return None if os.path.isdir(root + "/run/systemd/system") else "systemd does not run there"


def add(run_id: str, command: str) -> None:
    """Have systemd run a command of /bin/sh at boot. Raises Unusable."""
    why = why_unusable()
    if why is None and not login_session.lingers():
        why = "without lingering, systemd starts your units only when you log in: loginctl enable-linger"
    if why is not None:
        raise Unusable(why)
    link, path = _paths(run_id)
    text = UNIT.format(run_id=run_id, host=socket.gethostname(), command=quote(command))
    try:
        os.makedirs(os.path.dirname(link), mode=0o700, exist_ok=True)
        with open(path, "w", encoding="utf-8", errors="surrogateescape") as file:
            file.write(text)
        state.sync(path)
        os.symlink(os.path.join(os.pardir, os.path.basename(path)), link)
        for folder in (os.path.dirname(path), os.path.dirname(link)):
            state.sync(folder)
    except OSError as error:
        remove(run_id)
        raise Unusable("%s: %s" % (error.filename or path, error.strerror)) from error


def remove(*run_ids: str) -> None:
    for run_id in run_ids:
        for path in _paths(run_id):
            with contextlib.suppress(OSError):
                os.unlink(path)


def removal(run_id: str) -> str:
    """The command of /bin/sh that removes the unit of a run."""
    return "rm -f " + " ".join(map(shlex.quote, _paths(run_id)))


def run_ids() -> List[str]:
    """The runs that have a unit on this host."""
    name = re.compile(r"ddp-orch-(.+)-%s\.service" % state.host_id())
    try:
        matches = [name.fullmatch(file) for file in os.listdir(os.path.expanduser(FOLDER))]
    except OSError:
        return []
    return [match[1] for match in matches if match]


def quote(command: str) -> str:
    """One argument of ExecStart. `%` and `$` have a meaning there too."""
    for special, meant in (("\\", "\\\\"), ('"', '\\"'), ("\n", "\\n"), ("%", "%%"), ("$", "$$")):
        command = command.replace(special, meant)
    return '"%s"' % command


def _paths(run_id: str) -> Tuple[str, str]:
    """Of the link that enables the unit, and of the unit."""
    folder, name = os.path.expanduser(FOLDER), "ddp-orch-%s-%s.service" % (run_id, state.host_id())
    return os.path.join(folder, WANTS, name), os.path.join(folder, name)
