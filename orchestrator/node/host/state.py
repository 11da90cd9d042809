"""The private folder for all of ddp-orch's files on a host: where it is, and how files in it are written.

BASE/                     0700, owned by us, on a local disk
  <host id>/              a shared home may be mounted on many hosts: each writes only below its own id
    host.json             which host that is: machine_id, hostname, boot_id, pid_namespace
    runs/<run id>/        one folder a run
    locks/                GPU locks
    queue/                tickets of runs that wait for their turn
    warm/<pid>-<start>/   a folder for each preloader that waits for another run
    code/<sha256>/        code snapshots
    out/<run name>/       what the run writes: $DDP_ORCH_OUTPUT_DIR
"""

import errno
import fcntl
import hashlib
import json
import os
import re
import socket
import stat
import time
from typing import Any, Dict, Iterator, List, Optional, Tuple

from .small_files import text_of

OWN_OUTPUT = ".ddp-orch"  # how names in an output folder begin that are ours
OUTPUT_LOCK = ".ddp-orch.lock"  # in an output folder on a shared disk: held by the head of the run that uses it
OUTPUT_LEADS = ".ddp-orch.leads"  # in an output folder: see resume/output_tree.py
OUTPUT_MARKS = (OUTPUT_LOCK, OUTPUT_LEADS)
RESERVE = 64 * 1024  # bytes
FULL = (errno.ENOSPC, errno.EDQUOT)
UNWRITABLE = (*FULL, errno.EFBIG, errno.EIO, errno.EROFS)
"""Why a disk takes nothing more: it is full, has failed, or was mounted read-only. A run that has begun continues, as
it may write to other disks: what is not in a file is lost if the process that knows it is killed."""
RUN_ID = re.compile(r"[a-z0-9][a-z0-9-]{3,60}\Z")
# Of runs that are reported: a controller takes an answer with another id for damaged. Older versions made others.
LISTED = re.compile(r"[0-9]{8}-[0-9]{6}-[0-9a-f]{4}\Z")
SHARED_FILESYSTEMS = {
    "nfs", "nfs4", "cifs", "smb3", "smbfs", "lustre", "gpfs", "ceph", "fuse.ceph-fuse", "beegfs", "beegfs_nodev", "9p",
    "afs", "fuse.sshfs", "glusterfs", "fuse.glusterfs", "pvfs2", "orangefs", "panfs", "wekafs", "fuse.juicefs",
}  # fmt: skip
# A disk with one of these is mounted by one machine at a time.
LOCAL_FILESYSTEMS = {"ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "jfs", "bcachefs", "tmpfs", "overlay"}

UNUSED_AFTER = 3600.0  # s since the last session of a host until another container may have its folder

_HOST_IDS: Dict[str, str] = {}  # by state folder: a process keeps its folder when the hostname changes


DAMAGED = (KeyError, TypeError, ValueError, IndexError, AttributeError)
"""What a record of a wrong shape leads to where it is used: it was damaged, or another version wrote it."""


class StateError(Exception):
    """The state folder cannot be used; the text says why, and how to fix it."""


def base() -> str:
    """The state folder: $DDP_ORCH_STATE_DIR, which is also how `state_dir` of the inventory arrives, or a usual one."""
    chosen = os.environ.get("DDP_ORCH_STATE_DIR")
    if chosen:
        return _private(chosen)
    reasons = []
    for candidate in _local_candidates():
        try:
            return _private(candidate)
        except (OSError, StateError) as error:
            reasons.append(str(error))
    raise StateError("no folder for state: %s; set state_dir to a private folder on a local disk" % "; ".join(reasons))


def passed_over() -> List[str]:
    """Why folders that exist and have a higher priority are not the state folder. The runs in them are not seen."""
    if os.environ.get("DDP_ORCH_STATE_DIR"):
        return []
    reasons = []
    for candidate in _local_candidates():
        if not os.path.lexists(candidate):
            continue
        try:
            _check_private(candidate)
            break
        except (OSError, StateError) as error:
            reasons.append(str(error))
    return reasons


def _bases() -> List[str]:
    """The state folder, and others that were the state folder while a preferred one was not usable."""
    bases = [base()]
    if os.environ.get("DDP_ORCH_STATE_DIR"):
        return bases
    for candidate in _local_candidates():
        if candidate != bases[0] and os.path.lexists(candidate):
            try:
                _check_private(candidate)
                bases.append(candidate)
            except (OSError, StateError):
                pass  # see passed_over
    return bases


def _local_candidates() -> List[str]:
    # FIFOs and locks do not work on a shared disk, and a hung server must not take the guard with it
    return [path for path in _candidates() if filesystem(os.path.dirname(path)) not in SHARED_FILESYSTEMS]


def _candidates() -> List[str]:
    home = os.path.expanduser("~")
    in_home = [os.path.join(home, ".local", "state", "ddp-orch")] if os.path.isdir(home) else []
    return in_home + ["/var/tmp/ddp-orch-%d" % os.geteuid(), "/tmp/ddp-orch-%d" % os.geteuid()]


def _private(path: str) -> str:
    parent = os.path.dirname(os.path.abspath(path))
    os.makedirs(parent, mode=0o700, exist_ok=True)
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        pass
    _check_private(path)
    return path


def _check_private(path: str) -> None:
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        status = os.fstat(folder)
        if status.st_uid != os.geteuid():
            raise StateError("%s belongs to uid %d, not to you; remove it or set state_dir" % (path, status.st_uid))
        if status.st_mode & 0o077:
            raise StateError(
                "%s can be entered by others (mode %o); chmod 700 it" % (path, stat.S_IMODE(status.st_mode))
            )
    finally:
        os.close(folder)


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
    return text_of("/proc/sys/kernel/random/boot_id")


def machine_id() -> str:
    return text_of("/etc/machine-id") or text_of("/var/lib/dbus/machine-id")


def host_id() -> str:
    """The name of this host's folder in the state folder. It outlives reboots and a change of the hostname."""
    here = base()
    if here not in _HOST_IDS:
        record = _identity()
        name = _find_host(here, record) or _name_of(record)
        folder = os.path.join(here, name)
        os.makedirs(folder, 0o700, exist_ok=True)
        path = os.path.join(folder, "host.json")
        try:
            if read(path) == record:
                os.utime(path)  # in use: see retire.py
            else:
                replace(path, record)
        except OSError:
            pass  # a full disk; the next session writes it
        _HOST_IDS[here] = name
    return _HOST_IDS[here]


def _identity() -> Dict[str, Any]:
    return {
        "machine_id": machine_id(),
        "hostname": socket.gethostname(),
        "boot_id": boot_id(),
        "pid_namespace": _pid_namespace(),
    }


def _pid_namespace() -> int:
    """Differs between containers of one machine, which have its boot_id and often its machine-id."""
    try:
        return os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return 0


def _name_of(record: Dict[str, Any]) -> str:
    return hashlib.sha256((record["machine_id"] + "\0" + record["hostname"]).encode()).hexdigest()[:12]


def _find_host(base: str, here: Dict[str, Any]) -> Optional[str]:
    """The folder of this host below `base`, None if there is none.

    Hosts that share a home may be clones with one machine-id, so a hostname tells them apart; but it may change.
    """
    name = _name_of(here)
    records = {host: read(os.path.join(base, host, "host.json")) or {} for host in os.listdir(base)}
    known = {host: record for host, record in records.items() if record.get("machine_id") == here["machine_id"]}
    running = [
        host
        for host, record in known.items()
        if (record.get("boot_id"), record.get("pid_namespace")) == (here["boot_id"], here["pid_namespace"])
    ]
    if name in running or (not running and name in records):
        return name
    if running:
        return min(running)  # renamed since it was booted
    if filesystem(base) not in LOCAL_FILESYSTEMS:
        return None
    # renamed and rebooted, or a container that replaces another one, which may still be running
    free = [
        host
        for host, record in known.items()
        if (record.get("boot_id") != here["boot_id"] or _is_unused(os.path.join(base, host)))
        and not _works(os.path.join(base, host))
    ]
    return max(free, key=lambda host: os.stat(os.path.join(base, host, "host.json")).st_mtime, default=None)


def _is_unused(folder: str) -> bool:
    return time.time() - os.stat(os.path.join(folder, "host.json")).st_mtime > UNUSED_AFTER


def _works(folder: str) -> bool:
    try:
        return any(guarded(os.path.join(folder, "runs", name)) for name in os.listdir(os.path.join(folder, "runs")))
    except OSError:
        return False


def homes() -> List[str]:
    """This host's folders, first the one for new files: see `_bases`."""
    folders = [os.path.join(base(), host_id())]
    for other in _bases()[1:]:
        name = _find_host(other, _identity())
        if name is not None:
            folders.append(os.path.join(other, name))
    return folders


def folder(*parts: str) -> str:
    """A private folder below this host's own part of the state folder. It is made if it does not exist."""
    path = os.path.join(base(), host_id())
    for part in ("",) + parts:
        path = os.path.join(path, part) if part else path
        try:
            os.mkdir(path, 0o700)
        except FileExistsError:
            pass
    return path


def run_folder(run_id: str) -> str:
    """The folder of a run, which may not exist. `run_id` comes from outside, so it is checked not to be a path."""
    if not RUN_ID.match(run_id):
        raise StateError("not a run id: %r" % run_id)
    for home in homes()[1:]:
        path = os.path.join(home, "runs", run_id)
        if os.path.isdir(path):
            return path
    return os.path.join(folder("runs"), run_id)


def guarded(folder: str) -> bool:
    """Whether the run's guard lives: it holds the lock. A pid in a file would prove nothing."""
    return is_locked(os.path.join(folder, "run.lock"))


def is_over(folder: str) -> bool:
    """Whether the run is over on this host, or is being stopped."""
    return any(os.path.exists(os.path.join(folder, name)) for name in ("exit.json", "stop.json"))


def is_locked(path: str) -> bool:
    """Whether a process holds the lock of this file."""
    try:
        handle = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(handle)
    return False


def home_of(run_folder: str) -> str:
    """The host's folder that a run's folder is in."""
    return os.path.dirname(os.path.dirname(run_folder))


def is_witness(spec: Dict[str, Any]) -> bool:
    """Whether this node of the run only votes. It has no code, no ranks and no outputs."""
    return bool(spec["nodes"][spec["node"]].get("witness"))


def output_folder(run_folder: str, spec: Dict[str, Any]) -> str:
    """$DDP_ORCH_OUTPUT_DIR of a run on this host: a folder here, or one on a disk that the hosts share."""
    return spec.get("shared_output") or os.path.join(home_of(run_folder), "out", spec["name"])


def has_files(output: str) -> bool:
    """Whether something was saved to an output folder on this host. Folders that the script only made do not count."""
    for folder, below, names in os.walk(output):
        if folder == output:
            below[:] = [name for name in below if not name.startswith(OWN_OUTPUT)]
            names = [name for name in names if not name.startswith(OWN_OUTPUT)]
        if names:
            return True
    return False


def write(path: str, value: Dict[str, Any]) -> None:
    """Write JSON so that even after a power loss there is the old file or the new one, never a part. Raises OSError."""
    aside = _write_aside(path, value)
    sync(aside)
    os.rename(aside, path)
    sync(os.path.dirname(path))


def replace(path: str, value: Dict[str, Any]) -> None:
    """Write JSON so that readers see the old file or the new one, without waiting for the disk. Raises OSError."""
    os.rename(_write_aside(path, value), path)


def write_last(folder: str, record: Dict[str, Any]) -> None:
    """Write a run's exit.json, in the space that was kept for it. Raises OSError.

    Where that is too little, the list of the processes that were ended is left out, then all failures but the first.
    """
    try:
        os.unlink(os.path.join(folder, "reserve"))
    except FileNotFoundError:
        pass  # another has begun to write it, and was killed
    outcome = record["outcome"] and dict(record["outcome"], ended=[])
    shorter = dict(record, outcome=outcome)
    for candidate in (record, shorter, dict(shorter, failures=record["failures"][:1])):
        try:
            write(os.path.join(folder, "exit.json"), candidate)
            return
        except OSError as error:
            if error.errno not in FULL:
                raise
            full = error
    raise full


def keep_space(folder: str) -> None:
    """Reserve the space that `write_last` needs: the end of a run must be recorded even if the run filled the disk."""
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


def sync(path: str) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def read(path: str) -> Optional[Dict[str, Any]]:
    """The JSON object in a file; None if there is none, or if it is unreadable."""
    try:
        with open(path, "rb") as file:
            value = json.loads(file.read())
    except (OSError, ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def runs() -> Iterator[Tuple[str, str]]:
    """(run id, folder) of every run this host knows, in no order."""
    folder("runs")
    for home in homes():
        parent = os.path.join(home, "runs")
        for name in os.listdir(parent) if os.path.isdir(parent) else []:
            if RUN_ID.match(name):
                yield name, os.path.join(parent, name)
