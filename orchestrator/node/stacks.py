"""Where every rank of this host hangs: its stacks, on its own stderr. Started by a guard before it ends them.

py-spy, where the rank's own environment has it, shows them from outside. Else SIGABRT, where the process catches it:
every rank is started with PYTHONFAULTHANDLER=1, whose handler prints the stacks of all threads at once, also of one
that is blocked in a collective, and then ends the process.
"""

import os
import resource
import shutil
import signal
import subprocess
import time
from typing import List

from . import processes

PY_SPY_WINDOW = 5.0  # s for one rank
ABORT_WINDOW = 2.0  # s for a rank to print its stacks and end


def main(arguments: List[str]) -> int:
    """Verb `stacks FOLDER ATTEMPT RANK:PID:STARTED ...`. FOLDER holds the FIFOs."""
    folder, attempt, *ranks = arguments
    to_abort: List[processes.Process] = []
    for word in ranks:
        rank, pid, started = word.split(":")
        process = processes.Process(int(pid), int(started))
        with open(os.path.join(folder, "%s.%s.err" % (attempt, rank)), "r+b", buffering=0) as stderr:
            if _py_spy(process, stderr.fileno()):
                continue
            can = _catches(process.pid, signal.SIGABRT)
            how = "its stacks follow" if can else "no stacks: no py-spy here, and it does not catch SIGABRT"
            text = "ddp-orch: rank %s, %s: %s\n" % (rank, _state(process.pid), how)
            stderr.write(text.encode("ascii", "backslashreplace"))
            if can:
                to_abort.append(process)
    _abort(to_abort)
    return 0


def _abort(ranks: List[processes.Process]) -> None:
    for process in ranks:
        try:
            _, hard = resource.prlimit(process.pid, resource.RLIMIT_CORE)
            resource.prlimit(process.pid, resource.RLIMIT_CORE, (0, hard))
        except (OSError, ValueError):
            pass  # it has gone; or it may leave a core file
    # all at once: when one has ended, torchrun ends the others
    processes.send_all(ranks, signal.SIGABRT)
    processes.send_all(ranks, signal.SIGCONT)  # one that is stopped handles no signal
    deadline = time.monotonic() + ABORT_WINDOW
    while time.monotonic() < deadline and any(processes.alive(process) for process in ranks):
        time.sleep(0.02)


def _py_spy(process: processes.Process, stderr: int) -> bool:
    environment = processes.environment(process.pid)
    beside = os.path.dirname(os.path.realpath("/proc/%d/exe" % process.pid))
    command = shutil.which("py-spy", path=environment.get("PATH", os.defpath) + os.pathsep + beside)
    if command is None:
        return False
    try:
        done = subprocess.run(
            [command, "dump", "--pid", str(process.pid)],
            stdin=subprocess.DEVNULL,
            stdout=stderr,
            stderr=subprocess.DEVNULL,
            timeout=PY_SPY_WINDOW,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def _catches(pid: int, number: int) -> bool:
    """Whether the process has a handler for the signal: else we would only kill it."""
    try:
        with open("/proc/%d/status" % pid) as file:
            caught = [line.split()[1] for line in file if line.startswith("SigCgt:")]
    except OSError:
        return False
    return bool(caught) and bool(int(caught[0], 16) >> (number - 1) & 1)


def _state(pid: int) -> str:
    found = processes.stat(pid)
    try:
        with open("/proc/%d/wchan" % pid) as file:
            waits = file.read().strip("0\n")
    except OSError:
        waits = ""
    return "pid %d, state %s%s" % (pid, found.state if found else "gone", ", waits in %s" % waits if waits else "")
