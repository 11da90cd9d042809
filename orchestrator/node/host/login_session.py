"""Whether the end of a login ends its processes, and how a process can outlive it: what the init and PAM do here.

Everything is read without root. On a host without systemd, logins end nothing.
"""

import glob
import os
import re
import shutil
import stat
from typing import Any, Dict, List

from . import processes
from .run_command import output_of
from .small_files import text_of

WINDOW = 3.0  # s for a program of systemd
MANAGER = ["org.freedesktop.login1", "/org/freedesktop/login1", "org.freedesktop.login1.Manager"]
FOLDERS = ("/etc/systemd", "/run/systemd", "/usr/local/lib/systemd", "/usr/lib/systemd")  # the first wins
OPENRC_LEVEL = "/run/openrc/softlevel"
RUNIT_STOPS = ("/etc/runit/stopit", "/run/runit/stopit", "/run/runit.stopit")  # executable while it stops
INCLUDE = re.compile(r"(?:@include|\S+\s+(?:include|substack))\s+(\S+)")


def look(root: str = "") -> Dict[str, Any]:
    """`kills`: whether logind kills what a login of this user leaves behind; `linger`: whether the user's services run
    without a login; `scope`: whether systemd-run can move a process out of the login; `slurm_adopts`: whether PAM puts
    logins into a Slurm job. `root`: in front of all paths.
    """
    kills = kills_processes(root)
    return {
        "kills": kills,
        "linger": lingers(root),
        "scope": kills and _scope_works(),
        "slurm_adopts": slurm_adopts(root),
    }


def kills_processes(root: str = "") -> bool:
    """Whether what this process starts ends with its login."""
    if not os.path.isdir(root + "/run/systemd/system") or not is_in_session(root):
        return False
    settings = _settings(root)
    if settings.get("KillUserProcesses") != "yes":
        return False
    user = processes.user_name(os.geteuid())
    only = settings.get("KillOnlyUsers", "").split()
    return user not in settings.get("KillExcludeUsers", "root").split() and (not only or user in only)


def lingers(root: str = "") -> bool:
    """Whether the user's own systemd runs from boot on, without a login."""
    return os.path.exists("%s/var/lib/systemd/linger/%s" % (root, processes.user_name(os.geteuid())))


def is_in_session(root: str = "") -> bool:
    """Whether this process belongs to a login, as logind counts."""
    return re.search(r"/session-[^/]+\.scope(/|$)", text_of(root + "/proc/self/cgroup"), re.M) is not None


def host_shuts_down(root: str = "") -> bool:
    """Whether this host is being shut down or rebooted: by systemd, OpenRC, runit, or an init with runlevels."""
    if output_of(["systemctl", "is-system-running"], WINDOW).strip() == "stopping":
        return True
    if text_of(root + OPENRC_LEVEL).strip() in ("shutdown", "reboot"):
        return True
    if any(_is_executable(root + path) for path in RUNIT_STOPS):
        return True
    return output_of([root + "/sbin/runlevel"], WINDOW).split()[1:] in (["0"], ["6"])  # "2 6": before and now


def _is_executable(path: str) -> bool:
    try:
        return bool(os.stat(path).st_mode & stat.S_IXUSR)
    except OSError:
        return False


def outlive(argv: List[str], description: str) -> List[str]:
    """The command that runs `argv` so that it outlives the login, where that is needed and works; else `argv`."""
    if not kills_processes() or not _scope_works():
        return argv
    return ["systemd-run", "--user", "--scope", "--quiet", "--collect", "--description", description, "--"] + argv


def slurm_adopts(root: str = "") -> bool:
    names = ["sshd"]
    for name in names:
        for line in text_of("%s/etc/pam.d/%s" % (root, name)).splitlines():
            line = line.strip()
            if "pam_slurm_adopt" in line and not line.startswith("#"):
                return True
            included = INCLUDE.match(line)
            if included and included[1] not in names and "/" not in included[1]:
                names.append(included[1])
    return False


def _scope_works() -> bool:
    """It needs the user's own systemd, which a login without PAM does not have."""
    if shutil.which("systemd-run") is None:
        return False
    return output_of(["systemd-run", "--user", "--scope", "--quiet", "--collect", "echo", "yes"], WINDOW) == "yes\n"


def _settings(root: str) -> Dict[str, str]:
    """The settings of logind: of the running one, else those in its files."""
    names = ["KillUserProcesses", "KillOnlyUsers", "KillExcludeUsers"]
    if not root and shutil.which("busctl"):
        lines = output_of(["busctl", "get-property", *MANAGER, *names], WINDOW).splitlines()
        if len(lines) == len(names):
            return {name: parse_property(lines[number]) for number, name in enumerate(names)}
    return parse_files([text_of(path) for path in _files(root)])


def parse_property(text: str) -> str:
    """`b true` -> `yes`, `as 2 "root" "ann"` -> `root ann`: what busctl prints, as it stands in a file."""
    if text.startswith("b "):
        return "yes" if text == "b true" else "no"
    return " ".join(re.findall(r'"([^"]*)"', text))


def _files(root: str) -> List[str]:
    """logind.conf, then its drop-ins in the order of their names, wherever they are."""
    candidates = ["%s%s/logind.conf" % (root, folder) for folder in FOLDERS]
    main = [path for path in candidates if os.path.exists(path)][:1]
    drop_ins: Dict[str, str] = {}
    for folder in FOLDERS:
        for path in glob.glob("%s%s/logind.conf.d/*.conf" % (root, folder)):
            drop_ins.setdefault(os.path.basename(path), path)
    return main + [drop_ins[name] for name in sorted(drop_ins)]


def parse_files(texts: List[str]) -> Dict[str, str]:
    """The settings of logind; later files win. A commented line of its own file shows the default it is built with."""
    settings: Dict[str, str] = {}
    defaults: Dict[str, str] = {}
    for text in texts:
        for line in text.splitlines():
            match = re.match(r"\s*(#?)\s*(Kill\w+)\s*=\s*(.*?)\s*$", line)
            if match:
                (defaults if match[1] else settings)[match[2]] = match[3]
    known = {**defaults, **settings}
    if "KillUserProcesses" in known:
        known["KillUserProcesses"] = "yes" if known["KillUserProcesses"].lower() in ("yes", "true", "on", "1") else "no"
    return known
