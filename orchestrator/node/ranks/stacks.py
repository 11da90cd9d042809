"""Print the stacks of every rank and its children on the stderr of the rank. The guard starts this before it stops
ranks that hang.

py-spy, where the rank's own environment has it, shows them from outside. Else SIGABRT, where the process catches it:
every rank is started with PYTHONFAULTHANDLER=1, whose handler prints the stacks of all threads at once, also of one
that is blocked in a collective, and then ends the process.
"""

import itertools
import os
import resource
import shutil
import signal
import subprocess
import time
from typing import List, NamedTuple, Tuple

from ..host import processes

PY_SPY_WINDOW = 5.0  # s for one process
ABORT_WINDOW = 2.0  # s for a process to print its stacks and end
CHILDREN_MOST = 8  # of a rank: the training itself may be in them (mp.spawn, accelerate launch)
CHILDREN_WINDOW = 6.0  # s for all of them


class Shown(NamedTuple):
    """A process to be aborted, and what is written before its stacks."""

    stderr: str
    header: str
    process: processes.Process


def main(arguments: List[str]) -> int:
    """Verb `stacks FOLDER ATTEMPT RANK:PID:STARTED ...`. FOLDER holds the FIFOs."""
    folder, attempt, *words = arguments
    ranks: List[Shown] = []
    children: List[List[Shown]] = []  # those of a rank, which share its stderr, one after the other
    to_spy: List[Tuple[str, processes.Process]] = []
    for word in words:
        rank, pid, started = word.split(":")
        process = processes.Process(int(pid), int(started))
        stderr = os.path.join(folder, "%s.%s.err" % (attempt, rank))
        below = [item.process for item in processes.below(process.pid) if _can_show(item.process)][:CHILDREN_MOST]
        if _py_spy(process, stderr):
            to_spy += [(stderr, child) for child in below]
            continue
        how = "its stacks follow"
        children.append(
            [Shown(stderr, "rank %s, child %s: %s" % (rank, _state(item.pid), how), item) for item in below]
        )
        if not _can_show(process):
            how = "no stacks: no py-spy here, and it does not catch SIGABRT"
        ranks.append(Shown(stderr, "rank %s, %s: %s" % (rank, _state(process.pid), how), process))
    deadline = time.monotonic() + CHILDREN_WINDOW
    for stderr, child in to_spy:
        if time.monotonic() < deadline:
            _py_spy(child, stderr)
    # no process may react to the end of another before it has shown its own stacks
    processes.send_all([item.process for family in [ranks, *children] for item in family], signal.SIGSTOP)
    for at_once in itertools.zip_longest(*children):
        if time.monotonic() < deadline:
            _abort([item for item in at_once if item is not None])
    _abort(ranks)
    return 0


def _abort(shown: List[Shown]) -> None:
    for item in shown:
        with open(item.stderr, "r+b", buffering=0) as stderr:
            # the rank's last line may be open: a progress bar ends without a newline
            stderr.write(("\nddp-orch: %s\n" % item.header).encode("ascii", "backslashreplace"))
    catching = [item.process for item in shown if _can_show(item.process)]
    for process in catching:
        try:
            _, hard = resource.prlimit(process.pid, resource.RLIMIT_CORE)
            resource.prlimit(process.pid, resource.RLIMIT_CORE, (0, hard))
        except (OSError, ValueError):
            pass  # it has gone; or it may leave a core file
    # all at once: when one has ended, torchrun ends the others
    processes.send_all(catching, signal.SIGABRT)
    processes.send_all([item.process for item in shown], signal.SIGCONT)  # one that is stopped handles no signal
    deadline = time.monotonic() + ABORT_WINDOW
    while time.monotonic() < deadline and any(processes.alive(process) for process in catching):
        time.sleep(0.02)


def _py_spy(process: processes.Process, stderr: str) -> bool:
    environment = processes.environment(process.pid)
    python_folder = os.path.dirname(os.path.realpath("/proc/%d/exe" % process.pid))
    command = shutil.which("py-spy", path=environment.get("PATH", os.defpath) + os.pathsep + python_folder)
    if command is None:
        return False
    try:
        with open(stderr, "r+b", buffering=0) as fifo:
            fifo.write(b"\n")  # as above the other stacks
            done = subprocess.run(
                [command, "dump", "--pid", str(process.pid)],
                stdin=subprocess.DEVNULL,
                stdout=fifo,
                stderr=subprocess.DEVNULL,
                timeout=PY_SPY_WINDOW,
            )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def _can_show(process: processes.Process) -> bool:
    """Whether the process has a handler for SIGABRT: else we would only kill it."""
    return processes.catches(process, signal.SIGABRT)


def _state(pid: int) -> str:
    status = processes.stat(pid)
    try:
        with open("/proc/%d/wchan" % pid) as file:
            waits = file.read().strip("0\n")
    except OSError:
        waits = ""
    return "pid %d, state %s%s" % (pid, status.state if status else "gone", ", waits in %s" % waits if waits else "")
