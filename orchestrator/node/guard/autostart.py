"""`run.autostart`: what makes a host that was booted again rejoin its run by itself, without a controller.

While the run is not over, the user's crontab has a line for it, or the user's systemd a unit, and the run's folder has
the key of the run. Both start the verb `autostart` of the node program (serve/at_boot.py), or remove themselves where
that is gone. They wait for its disk, which may be mounted later: until then, the folder of this host is missing, too.
"""

import contextlib
import os
import re
import shlex
from typing import Any, Dict, List, Optional

from ..host import crontab, processes, state, user_units

RECORD = "autostart.json"
DISK_WINDOW = 300  # s for the disk with the state folder to be mounted
# variables of the session that started the run, and those that may be credentials
NOT_KEPT = re.compile(
    r"(SSH_|XDG_SESSION_|XDG_RUNTIME_DIR|DBUS_|DISPLAY|XAUTHORITY|(OLD)?PWD$|SHLVL$|_$)|(?i:.*(KEY|TOKEN|SECRET|PASS|CREDENTIAL))"
)


class Unusable(Exception):
    """This host cannot rejoin the run by itself; the text says why."""


def why_unusable(kind: str) -> Optional[str]:
    """`kind`: of run.autostart, not `none`."""
    return crontab.why_unusable() if kind == "cron" else user_units.why_unusable()


def install(folder: str, spec: Dict[str, Any], private: Dict[str, Any]) -> None:
    """Write the record, and the crontab's line or the unit. Raises Unusable."""
    if private["secrets"]:
        raise Unusable("the run has secrets, which are not written to a disk")
    environment = {name: value for name, value in os.environ.items() if not NOT_KEPT.match(name)}
    state.write(os.path.join(folder, RECORD), {"private": private, "environment": environment})
    run_id = spec["run_id"]
    try:
        if spec["autostart"] == "cron":
            crontab.add(run_id, _command(spec, crontab.removal(run_id)))
        else:
            user_units.add(run_id, _command(spec, user_units.removal(run_id)))
    except (crontab.Unusable, user_units.Unusable) as error:
        raise Unusable(str(error)) from error


def is_installed(folder: str) -> bool:
    return os.path.exists(os.path.join(folder, RECORD))


def rejoins(folder: str) -> bool:
    """Whether this host has the line or the unit that starts a guard of this run, which has none, at the next boot."""
    return is_installed(folder) and os.path.basename(folder) in run_ids()


def remove(folder: str) -> None:
    """Undo `install`; the folder may be gone. A line that cannot be removed now removes itself at the next boot."""
    with contextlib.suppress(OSError):
        os.unlink(os.path.join(folder, RECORD))
    forget(os.path.basename(folder))


def forget(*run_ids: str) -> None:
    with contextlib.suppress(crontab.Unusable, OSError, state.StateError):
        user_units.remove(*run_ids)
        if set(run_ids).intersection(crontab.run_ids()):
            crontab.remove(*run_ids)


def run_ids() -> List[str]:
    """The runs that this host would rejoin at boot."""
    return crontab.run_ids() + user_units.run_ids()


def _command(spec: Dict[str, Any], removal: str) -> str:
    """`removal`: for when the node program is gone, though the disk with the state folder is mounted."""
    program = spec["program"]
    argv = processes.own_program(program, "autostart", spec["run_id"])
    base = "DDP_ORCH_STATE_DIR=" + shlex.quote(state.base())
    here = shlex.quote(state.folder())
    wait = "n=0; while [ ! -d %s ] && [ $n -lt %d ]; do sleep 2; n=$((n+1)); done; " % (here, DISK_WINDOW / 2)
    start = "if [ -e %s ]; then %s exec %s; " % (shlex.quote(program), base, shlex.join(argv))
    return wait + start + "elif [ -d %s ]; then %s; fi" % (here, removal)
