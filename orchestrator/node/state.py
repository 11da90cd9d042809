"""The private folder on a host in which everything of ours lies: where it is, and how files in it are written.

BASE/                     0700, owned by us, on a local disk
  <host id>/              a shared home may be mounted on many hosts: each writes only below its own id
    runs/<run id>/        one folder a run
    locks/                GPU locks
    code/<sha256>/        code snapshots
    out/<run name>/       what the run writes: $DDP_ORCH_OUTPUT_DIR
"""

import hashlib
import json
import os
import re
import socket
import stat
from typing import Any, Dict, Iterator, Optional, Tuple

RESERVE = 64 * 1024  # bytes
RUN_ID = re.compile(r"[a-z0-9][a-z0-9-]{3,60}\Z")
SHARED_FILESYSTEMS = {
    "nfs", "nfs4", "cifs", "smb3", "smbfs", "lustre", "gpfs", "ceph", "beegfs", "9p", "afs", "fuse.sshfs", "glusterfs",
    "fuse.glusterfs", "pvfs2", "orangefs", "panfs", "wekafs", "fuse.juicefs",
}  # fmt: skip


class StateError(Exception):
    """The state folder cannot be used; the text says why and how to mend it."""


def base() -> str:
    """The state folder: $DDP_ORCH_STATE_DIR, or the first usable of ~/.local/state/ddp-orch, /var/tmp, /tmp."""
    wanted = os.environ.get("DDP_ORCH_STATE_DIR")
    if wanted:
        return _private(wanted)
    reasons = []
    home = os.path.expanduser("~")
    candidates = [os.path.join(home, ".local", "state", "ddp-orch")] if os.path.isdir(home) else []
    candidates += ["/var/tmp/ddp-orch-%d" % os.geteuid(), "/tmp/ddp-orch-%d" % os.geteuid()]
    for candidate in candidates:
        if filesystem(os.path.dirname(candidate)) in SHARED_FILESYSTEMS:
            continue  # FIFOs and locks do not work there, and a hung server must not take the guard with it
        try:
            return _private(candidate)
        except (OSError, StateError) as error:
            reasons.append(str(error))
    raise StateError(
        "no folder for state: %s; set DDP_ORCH_STATE_DIR to a private folder on a local disk" % "; ".join(reasons)
    )


def _private(path: str) -> str:
    parent = os.path.dirname(os.path.abspath(path))
    os.makedirs(parent, mode=0o700, exist_ok=True)
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        pass
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        found = os.fstat(folder)
        if found.st_uid != os.geteuid():
            raise StateError(
                "%s belongs to uid %d, not to you; remove it or set DDP_ORCH_STATE_DIR" % (path, found.st_uid)
            )
        if found.st_mode & 0o077:
            raise StateError(
                "%s can be entered by others (mode %o); chmod 700 it" % (path, stat.S_IMODE(found.st_mode))
            )
    finally:
        os.close(folder)
    return path


def filesystem(path: str) -> str:
    """The type of the file system that `path` (or its nearest existing parent) lies on, "" when unknown."""
    path = os.path.realpath(path)
    best, kind = "", ""
    try:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as lines:
            for line in lines:
                left, _, right = line.partition(" - ")
                point = re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal.group(1), 8)), left.split()[4])
                if (path == point or path.startswith(point.rstrip("/") + "/")) and len(point) >= len(best):
                    best, kind = point, right.split()[0]
    except (OSError, IndexError):
        return ""
    return kind


def boot_id() -> str:
    return _read("/proc/sys/kernel/random/boot_id")


def machine_id() -> str:
    return _read("/etc/machine-id") or _read("/var/lib/dbus/machine-id")


def host_id() -> str:
    """Stable over reboots, and different on two hosts that share a home."""
    return hashlib.sha256((machine_id() + "\0" + socket.gethostname()).encode()).hexdigest()[:12]


def _read(path: str) -> str:
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            return file.read().strip()
    except OSError:
        return ""


def folder(*parts: str) -> str:
    """A private folder below this host's own part of the state folder, made if need be."""
    path = os.path.join(base(), host_id())
    for part in ("",) + parts:
        path = os.path.join(path, part) if part else path
        try:
            os.mkdir(path, 0o700)
        except FileExistsError:
            pass
    return path


def run_folder(run_id: str) -> str:
    """The folder of a run, which may not exist. `run_id` comes from outside: no path may hide in it."""
    if not RUN_ID.match(run_id):
        raise StateError("not a run id: %r" % run_id)
    return os.path.join(folder("runs"), run_id)


def write(path: str, value: Dict[str, Any]) -> None:
    """Write JSON so that even after a power loss there is the old file or the new one, never a part. Raises OSError."""
    aside = _write_aside(path, value)
    _sync(aside)
    os.rename(aside, path)
    _sync(os.path.dirname(path))


def replace(path: str, value: Dict[str, Any]) -> None:
    """Write JSON so that readers see the old file or the new one, without waiting for the disk. Raises OSError."""
    os.rename(_write_aside(path, value), path)


def write_last(folder: str, record: Dict[str, Any]) -> None:
    """Write a run's exit.json, in the space that was kept for it. Raises OSError."""
    try:
        os.unlink(os.path.join(folder, "reserve"))
    except FileNotFoundError:
        pass  # another has begun to write it, and was killed
    write(os.path.join(folder, "exit.json"), record)


def keep_space(folder: str) -> None:
    """Take the space that `write_last` will need: how a run ended shall be known also if it filled the disk."""
    handle = os.open(os.path.join(folder, "reserve"), os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        os.write(handle, bytes(RESERVE))
    finally:
        os.close(handle)


def _write_aside(path: str, value: Dict[str, Any]) -> str:
    aside = "%s.%d.new" % (path, os.getpid())
    handle = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
    try:
        rest = memoryview(json.dumps(value).encode("ascii"))
        while rest:  # where the disk is almost full, a part is written first
            rest = rest[os.write(handle, rest) :]
    except OSError:
        os.unlink(aside)
        raise
    finally:
        os.close(handle)
    return aside


def _sync(path: str) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def read(path: str) -> Optional[Dict[str, Any]]:
    """The JSON object in a file, None when there is none or it cannot be read: a reader never guesses."""
    try:
        with open(path, "rb") as file:
            value = json.loads(file.read())
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None


def runs() -> Iterator[Tuple[str, str]]:
    """(run id, folder) of every run this host knows, in no order."""
    parent = folder("runs")
    for name in os.listdir(parent):
        if RUN_ID.match(name):
            yield name, os.path.join(parent, name)
