"""Find, identify and signal the processes of a run on this host, by Linux's /proc.

A process is identified by (pid, start time) within one boot: a pid alone may belong to another process by now.
Nothing is ever chosen by its name, its port or its command line.
"""

import contextlib
import ctypes
import errno
import fcntl
import os
import pwd
import signal
import struct
import sys
from typing import Collection, Dict, Iterable, List, Mapping, NamedTuple, Optional, Set

MARK = "DDP_ORCH_RUN_ID"
PR_SET_PDEATHSIG, PR_SET_NAME, PR_SET_CHILD_SUBREAPER = 1, 15, 36
# the same numbers on x86-64 and aarch64; in os and signal only since 3.9
SYS_PIDFD_SEND_SIGNAL, SYS_PIDFD_OPEN = 424, 434
# From linux/pidfd.h. The request's number holds the size of the oldest struct pidfd_info: 64 bytes.
PIDFD_GET_INFO, PIDFD_INFO_EXIT = 0xC040FF0B, 1 << 3
_PIDFD_INFO = struct.Struct("=Q52xi")  # mask and exit_code
PID_MOST = 1 << 22  # PID_MAX_LIMIT of Linux
LONGEST_STAT = 4096  # bytes of /proc/PID/stat: a name of at most 64 and 50 numbers
LOOK_SHARE = 20  # while processes end, looking for them may take 5 % of a core

_libc = ctypes.CDLL(None, use_errno=True)


class Process(NamedTuple):
    pid: int
    started: int  # clock ticks after boot, field 22 of /proc/PID/stat


class Stat(NamedTuple):
    process: Process
    parent: int
    group: int  # the process group's id: its leader's pid
    state: str  # R S D Z T ...
    exit_status: int  # as wait() gives it; only a zombie's means something


def prctl(option: int, value: int) -> None:
    if _libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(%d)" % option)


def set_name(name: str) -> None:
    """What `ps` and `top` show (15 bytes)."""
    _libc.prctl(PR_SET_NAME, ctypes.c_char_p(name.encode()[:15]), 0, 0, 0)


def own_program(program: str, *verb: str) -> List[str]:
    """The argv of one of our processes. The path of the node program shows in `ps` what it is."""
    return [sys.executable, "-I", "-S", program, *verb]


def close_all_but(kept: Iterable[int]) -> None:
    """Close every descriptor but these and the standard ones. For a process that goes on as another one.

    The objects of the closed ones must not be finalized later: their numbers may be those of others by then.
    """
    names = set(os.listdir("/proc/self/fd")) - {str(handle) for handle in (0, 1, 2, *kept)}
    for name in names:
        with contextlib.suppress(OSError):  # the one that listed them
            os.close(int(name))


def die_with_parent(parent: int, number: int = signal.SIGKILL) -> None:
    """Have the kernel send `number` to this process when `parent` ends. Call it in a new child."""
    prctl(PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:  # it ended before the line above
        os.kill(os.getpid(), signal.SIGKILL)


def stat(pid: int) -> Optional[Stat]:
    try:
        handle = os.open("/proc/%d/stat" % pid, os.O_RDONLY | os.O_CLOEXEC)  # a file object takes half as long again
    except OSError:
        return None
    try:
        # the name (field 2) may hold spaces and parentheses: split after the last one
        fields = os.read(handle, LONGEST_STAT).rpartition(b")")[2].split()
    except OSError:
        return None
    finally:
        os.close(handle)
    return Stat(Process(pid, int(fields[19])), int(fields[1]), int(fields[2]), fields[0].decode(), int(fields[49]))


def pid_namespace() -> int:
    """A number of this process's PID namespace: in another one, its pids mean other processes."""
    return os.stat("/proc/self/ns/pid").st_ino


def identify(pid: int) -> Optional[Process]:
    status = stat(pid)
    return status.process if status else None


def alive(process: Process) -> bool:
    status = stat(process.pid)
    return status is not None and status.process == process and status.state not in "ZX"


def pids() -> List[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def command(pid: int) -> str:
    try:
        with open("/proc/%d/cmdline" % pid, "rb") as file:
            return file.read(4096).rstrip(b"\0").replace(b"\0", b" ").decode("utf-8", "backslashreplace")
    except OSError:
        return ""


def name(pid: int) -> str:
    """What `set_name` has set; a process may call itself anything."""
    try:
        with open("/proc/%d/comm" % pid, "rb") as file:
            return file.read().rstrip(b"\n").decode("utf-8", "replace")
    except OSError:
        return ""


def ancestors(pid: int) -> List[int]:
    """The pids above a process, its parent first."""
    above: List[int] = []
    status = stat(pid)
    while status is not None and status.parent > 0:
        above.append(status.parent)
        status = stat(status.parent)
    return above


def owner(pid: int) -> Optional[int]:
    try:
        return os.stat("/proc/%d" % pid).st_uid
    except OSError:
        return None


def user_name(uid: int) -> str:
    """The name of a user; the number where there is none."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def marks() -> Dict[Process, str]:
    """Every process of this user whose environment carries our mark, with its run id. (Root could read all.)"""
    run_ids = {}
    prefix = MARK.encode() + b"="
    for pid in pids():
        # before its environment is read: if the pid changes hands in between, the identity is stale and nothing is hit
        process = identify(pid)
        try:
            with open("/proc/%d/environ" % pid, "rb") as file:
                environment = file.read()
        except OSError:
            continue
        if process is None or prefix not in environment or owner(pid) != os.geteuid():
            continue
        for entry in environment.split(b"\0"):
            if entry.startswith(prefix):
                run_ids[process] = entry[len(prefix) :].decode("ascii", "replace")
                break
    return run_ids


def catches(process: Process, number: int) -> bool:
    """Whether a process has a handler for a signal. Without one, most signals end it."""
    try:
        with open("/proc/%d/status" % process.pid, encoding="ascii", errors="replace") as file:
            masks = [int(line.split()[1], 16) for line in file if line.startswith("SigCgt:")]
    except (OSError, ValueError, IndexError):
        return False
    return identify(process.pid) == process and any(mask >> (number - 1) & 1 for mask in masks)


def environment(pid: int) -> Dict[str, str]:
    """What a process was started with; empty where it cannot be read."""
    try:
        with open("/proc/%d/environ" % pid, "rb") as file:
            entries = [os.fsdecode(entry).partition("=") for entry in file.read().split(b"\0")]
    except OSError:
        return {}
    return {name: value for name, _, value in entries}


def frozen(members: Iterable[List[int]], ranks: Mapping[int, int]) -> List[int]:
    """The ranks of which a process is stopped (state T), of the processes [pid, start time] that a guard recorded.

    `ranks`: of the pids that are ranks. A forked rank shows the environment of its preloader, which has no RANK.
    """
    stopped = set()
    for pid, started in members:
        status = stat(pid)
        if status is not None and status.process.started == started and status.state in "Tt":
            rank = environment(pid).get("RANK", "")
            known = (
                [int(rank)] if rank.isdigit() else [ranks[above] for above in [pid, *ancestors(pid)] if above in ranks]
            )
            stopped.update(known[:1])
    return sorted(stopped)


def descendants(root: int) -> Set[Process]:
    """Everything below `root`, zombies left out. A subreaper's descendants include double-forked processes."""
    return {child.process for child in below(root)}


def below(root: int, without: Collection[int] = ()) -> List[Stat]:
    """The Stat of every process below `root`, except `without` and everything below it."""
    children: Dict[int, List[Stat]] = {}
    for pid in pids():
        status = stat(pid)
        if status is not None:
            children.setdefault(status.parent, []).append(status)
    family: List[Stat] = []
    waiting = [root]
    while waiting:
        for child in children.get(waiting.pop(), ()):
            if child.process.pid in without:
                continue
            waiting.append(child.process.pid)
            if child.state not in "ZX":
                family.append(child)
    return family


def pidfd(process: Process) -> Optional[int]:
    """A descriptor that becomes readable when the process ends; None if it has ended already.

    Raises OSError where they do not work: the kernel is older than 5.3, or a container forbids the call.
    """
    handle = int(_libc.syscall(SYS_PIDFD_OPEN, process.pid, 0))  # close-on-exec always
    if handle < 0:
        number = ctypes.get_errno()
        if number == errno.ESRCH:
            return None
        raise OSError(number, os.strerror(number))
    if identify(process.pid) != process:
        os.close(handle)
        return None
    return handle


def status_of_ended(process: Process, handle: int) -> Optional[int]:
    """How a process ended, as wait() gives it. None if its parent has reaped it and the kernel forgets: before 6.15.

    `handle`: its pidfd, which is readable.
    """
    zombie = stat(process.pid)
    if zombie is not None and zombie.process == process and zombie.state in "ZX":
        return zombie.exit_status
    info = bytearray(_PIDFD_INFO.pack(PIDFD_INFO_EXIT, 0))
    try:
        fcntl.ioctl(handle, PIDFD_GET_INFO, info)
    except OSError:
        return None
    mask, status = _PIDFD_INFO.unpack(info)
    return int(status) if mask & PIDFD_INFO_EXIT else None


def killed_by(pid: int) -> Optional[int]:
    """The wait status of a process that a signal has ended and that is not reaped; None for any other process.

    Its first thread is enough: the others may take longer, and until then its parent cannot wait for it.
    """
    found = stat(pid)
    is_killed = found is not None and found.state in "ZX" and os.WIFSIGNALED(found.exit_status)
    return found.exit_status if found is not None and is_killed else None


def send(process: Process, number: int) -> bool:
    """Signal exactly this process. False when it is not there any more."""
    if process.pid <= 1:
        return False
    try:
        handle = pidfd(process)
    except OSError:
        return _send_unpinned(process, number)
    if handle is None:
        return False
    try:
        return int(_libc.syscall(SYS_PIDFD_SEND_SIGNAL, handle, number, None, 0)) == 0
    finally:
        os.close(handle)


def _send_unpinned(process: Process, number: int) -> bool:
    """Without a pidfd: between the look and the signal the pid could change hands, if all others were used up."""
    if identify(process.pid) != process:
        return False
    try:
        os.kill(process.pid, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def send_all(processes: Iterable[Process], number: int) -> None:
    for process in processes:
        send(process, number)
