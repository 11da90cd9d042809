"""`run.autostart: cron`: what makes a host that was booted again rejoin its run by itself, without a controller.

While the run is not over, the user's crontab has a line for it, and the run's folder has the key of the run. The line
starts the verb `autostart` of the node program (serve/at_boot.py), or removes itself where that is gone.
"""

import contextlib
import os
import re
import shlex
from typing import Any, Dict

from ..host import crontab, processes, state

RECORD = "autostart.json"
# variables of the session that started the run, and those that may be credentials
NOT_KEPT = re.compile(
    r"(SSH_|XDG_SESSION_|XDG_RUNTIME_DIR|DBUS_|DISPLAY|XAUTHORITY|(OLD)?PWD$|SHLVL$|_$)|(?i:.*(KEY|TOKEN|SECRET|PASS|CREDENTIAL))"
)


def install(folder: str, spec: Dict[str, Any], private: Dict[str, Any]) -> None:
    """Write the record and the crontab's line. Raises Unusable."""
    if private["secrets"]:
        raise crontab.Unusable("the run has secrets, and those are not written to a disk")
    environment = {name: value for name, value in os.environ.items() if not NOT_KEPT.match(name)}
    state.write(os.path.join(folder, RECORD), {"private": private, "environment": environment})
    crontab.add(spec["run_id"], _command(spec))


def is_installed(folder: str) -> bool:
    return os.path.exists(os.path.join(folder, RECORD))


def remove(folder: str) -> None:
    """Undo `install`; the folder may be gone. A line that cannot be removed now removes itself at the next boot."""
    with contextlib.suppress(OSError):
        os.unlink(os.path.join(folder, RECORD))
    with contextlib.suppress(crontab.Unusable, OSError, state.StateError):
        crontab.remove(os.path.basename(folder))


def _command(spec: Dict[str, Any]) -> str:
    program, run_id = spec["program"], spec["run_id"]
    argv = processes.own_program(program, "autostart", run_id)
    base = "DDP_ORCH_STATE_DIR=" + shlex.quote(state.base())
    line = shlex.quote(crontab.MARK.strip() + " " + run_id)
    gone = "crontab -l | grep -vF %s | crontab -" % line
    # the folder with the node program may be gone: then the line removes itself
    return "if [ -e %s ]; then %s exec %s; else %s; fi" % (shlex.quote(program), base, shlex.join(argv), gone)
