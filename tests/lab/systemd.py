"""The systemd of a user on a host: a real one, though process 1 of a host is not systemd.

Its control groups are the only thing of it that could outlive the lab.
"""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

from .host import USERS, Host
from .waiting import wait_until

SYSTEMD = "/usr/lib/systemd/systemd"
GROUPS = Path("/sys/fs/cgroup")
RUNTIME = f"/run/user/{USERS['ann']}"


@contextlib.contextmanager
def linger(host: Host) -> Iterator[None]:
    """The host looks like one that systemd has booted, and ann lingers there. Until it goes down."""
    host.root_run(["mount", "-t", "tmpfs", "-o", "mode=0755", "lib", "/var/lib"])
    folders = "/run/systemd/system /var/lib/systemd/linger"
    host.sh(f"mkdir -p {folders} && touch /var/lib/systemd/linger/ann", "root", check=True)
    boot = host.init
    try:
        yield
    finally:
        if host.is_up and host.init == boot:
            host.sh("umount -l /var/lib; rm -r /run/systemd", "root")


@contextlib.contextmanager
def user_manager(host: Host) -> Iterator[None]:
    """Start ann's systemd, as at boot where she lingers. What its units have started is left alone at the end."""
    groups = [group / f"{host.lab.directory.name}-{host.name}" for group in _hierarchies()]
    names = " ".join(map(str, groups))
    uid = USERS["ann"]
    enter = (
        f"mkdir -p /run/systemd/system {RUNTIME} {names} && chown -R {uid} {RUNTIME} {names} && chmod 700 {RUNTIME} && "
        f"for group in {names}; do echo $$ > $group/cgroup.procs; done && "
        f"exec setpriv --reuid {uid} --regid {uid} --clear-groups {SYSTEMD} --user"
    )
    environment = {"HOME": "/home/ann", "USER": "ann", "XDG_RUNTIME_DIR": RUNTIME}
    output = subprocess.DEVNULL
    process = host.popen(["/bin/sh", "-c", enter], "root", env=environment, stdout=output, stderr=output)
    try:
        yield
    finally:
        process.kill()
        process.wait()
        wait_until(lambda: all(_removed(group) for group in groups), 20, "the groups of the units are empty")


def systemctl(host: Host, *words: str) -> str:
    """What `systemctl --user` prints."""
    return host.run(["systemctl", "--user", *words], env={"XDG_RUNTIME_DIR": RUNTIME}).stdout


def _hierarchies() -> list[Path]:
    """Where systemd makes groups: one place with cgroup v2, two where both versions are mounted."""
    return [GROUPS] if (GROUPS / "cgroup.procs").exists() else [GROUPS / "systemd", GROUPS / "unified"]


def _removed(group: Path) -> bool:
    """Remove a group and those below it, as far as they are empty."""
    folders = sorted((path for path in group.rglob("*") if path.is_dir()), reverse=True) if group.exists() else []
    for folder in [*folders, group]:
        with contextlib.suppress(OSError):
            folder.rmdir()
    return not group.exists()
