"""Start a process inside the namespaces of another one. Knows nothing of labs, hosts or networks.

Why not nsenter: to join a process table it must fork, so the pid it gives is its own, and killing that leaves the real
process alive. Here the process started is itself a child of the caller: kill -9 hits what the test means to hit.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

# linux/sched.h
CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWIPC, CLONE_NEWPID, CLONE_NEWNET = 0x20000, 0x4000000, 0x8000000, 1 << 29, 1 << 30

# Everything of its own. It does not heed SIGTERM; SIGKILL to it or to its child, pid 1, ends all that is inside.
UNSHARE = ("unshare", "--net", "--mount", "--pid", "--uts", "--ipc", "--fork", "--kill-child")

_libc = ctypes.CDLL(None, use_errno=True)


def popen(
    init: int,
    argv: Sequence[str | os.PathLike[str]],
    *,
    env: Mapping[str, str],
    cwd: str | os.PathLike[str],
    uid: int,
    **options: Any,
) -> subprocess.Popen[str]:
    """Popen `argv` in all namespaces of process `init`, as `uid` (its group has the same number)."""
    pidfd = os.pidfd_open(init)

    def enter() -> None:  # runs in the child, between fork and exec
        _setns(pidfd, CLONE_NEWNS | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWNET)
        if uid != 0:
            os.setgroups([uid])
            os.setgid(uid)
            os.setuid(uid)
        os.chdir(cwd)

    try:
        with _children_in_process_table(pidfd):
            return subprocess.Popen(
                argv, env=dict(env), preexec_fn=enter, encoding="utf-8", errors="replace", **options
            )
    finally:
        os.close(pidfd)


def pipes(input: str | None) -> dict[str, Any]:
    """Popen's options for `run`."""
    stdin = subprocess.DEVNULL if input is None else subprocess.PIPE
    return {"stdin": stdin, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}


def run(
    process: subprocess.Popen[str], input: str | None, timeout: float, check: bool
) -> subprocess.CompletedProcess[str]:
    """Feed and drain `process` to its end; after `timeout` seconds it is killed and TimeoutExpired raised."""
    with process:
        try:
            stdout, stderr = process.communicate(input, timeout)
        except BaseException:
            process.kill()
            raise
    result = subprocess.CompletedProcess(process.args, process.returncode, stdout, stderr)
    if check:
        result.check_returncode()
    return result


def children_of(parents: set[int]) -> dict[int, int]:
    """parent pid -> child pid, by one look at the whole process table (not every kernel has /proc/PID/children)."""
    found = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
            if parent in parents:
                found[parent] = int(stat.parent.name)
    return found


@contextlib.contextmanager
def _children_in_process_table(pidfd: int) -> Iterator[None]:
    """Children that this thread starts meanwhile belong to the process table of `pidfd`; the thread itself stays."""
    _setns(pidfd, CLONE_NEWPID)
    try:
        yield
    finally:
        own = os.pidfd_open(os.getpid())
        try:
            _setns(own, CLONE_NEWPID)
        finally:
            os.close(own)


def _setns(fd: int, kinds: int) -> None:
    if _libc.setns(fd, kinds) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"setns: {os.strerror(number)}")
