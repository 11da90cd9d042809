"""Two hosts on this machine for the demo, each with an SSH server.

A program, `python -m orchestrator.demo.two_hosts`. It prints the folder of the hosts, and serves until its stdin ends.
Then it kills all processes that were started on the hosts, and deletes the folder. This also works if the demo is
killed with SIGKILL. It reads and writes no files of the user.

FOLDER/                 0700
  ssh_config            for both hosts: `ssh -F FOLDER/ssh_config demo-a` works
  id_ecdsa known_hosts  fresh keys
  demo-a/ demo-b/       home, state folder and TMPDIR of each host
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import site
import sys
import tempfile
import time
from pathlib import Path
from types import FrameType
from typing import NoReturn

import paramiko

from ..node.host import processes
from .embedded_ssh import Server

HOSTS = ("demo-a", "demo-b")
USER = "demo"
END_WINDOW = 10.0  # s for killed processes to be gone

# Variables that a login would set, or with which Python finds the torch of the user. (HOME differs on the hosts.)
PASSED = ("PATH", "LANG", "LC_ALL", "TZ", "LD_LIBRARY_PATH", "PYTHONPATH")

SSH_CONFIG = """\
Host {name}
  HostName 127.0.0.1
  Port {port}
  User {user}
  IdentityFile {folder}/id_ecdsa
  IdentitiesOnly yes
  IdentityAgent none
  UserKnownHostsFile {folder}/known_hosts
  GlobalKnownHostsFile /dev/null
"""


def main() -> int:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, _leave)
    # Daemons on the hosts become children of this process, so that it finds and kills them.
    processes.prctl(processes.PR_SET_CHILD_SUBREAPER, 1)
    folder = Path(tempfile.mkdtemp(prefix="ddp-orch-demo-", dir=_place()))
    try:
        open_hosts(folder)
        print(folder, flush=True)
        sys.stdin.buffer.read()
    finally:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        end_descendants()
        shutil.rmtree(folder)
    return 0


def _leave(number: int, frame: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)


def _place() -> str:
    """The folder for temporary files; /tmp if its name needs quotes, because `ssh -G` prints paths without them."""
    place = tempfile.gettempdir()
    return place if re.fullmatch(r"[A-Za-z0-9_./+-]+", place) else "/tmp"  # noqa: S108  # mkdtemp makes a private folder in it


def open_hosts(folder: Path) -> list[Server]:
    """Start both servers, and write the files that a client needs to `folder`."""
    key = paramiko.ECDSAKey.generate()
    key.write_private_key_file(str(folder / "id_ecdsa"))
    servers = []
    for name in HOSTS:
        home = folder / name
        (home / "tmp").mkdir(parents=True, mode=0o700)
        servers.append(Server(USER, key, home, _environment(home)))
    fields = [{"name": name, "port": server.port} for name, server in zip(HOSTS, servers, strict=True)]
    (folder / "ssh_config").write_text("".join(SSH_CONFIG.format(**host, user=USER, folder=folder) for host in fields))
    (folder / "known_hosts").write_text("".join(server.known_hosts_line() for server in servers))
    return servers


def _environment(home: Path) -> dict[str, str]:
    passed = {name: os.environ[name] for name in PASSED if name in os.environ}
    return {
        "PATH": os.defpath,
        **passed,
        "HOME": str(home),
        "USER": USER,
        "LOGNAME": USER,
        "SHELL": "/bin/sh",
        "TMPDIR": str(home / "tmp"),
        "DDP_ORCH_STATE_DIR": str(home / "state"),
        "PYTHONUSERBASE": site.getuserbase(),
    }


def end_descendants() -> None:
    """Kill all processes on the hosts. Raises TimeoutError if some remain, which then are stuck in the kernel."""
    deadline = time.monotonic() + END_WINDOW
    while left := processes.descendants(os.getpid()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"these processes are still running: {sorted(process.pid for process in left)}")
        processes.send_all(left, signal.SIGKILL)
        time.sleep(0.01)  # the kernel needs a moment; the loop checks the condition


if __name__ == "__main__":
    sys.exit(main())
