"""Turn into a process of the run: environment, folder, output, death with the parent, then exec. Also two verbs.

The command reaches the process byte for byte: argv and environment come from a JSON file or descriptor, never through a
shell.

    torchrun:  guard ──> [bash -lc SETUP; exec job-exec FD] ──> torchrun ──> rank-exec FILE ──> the user's command
    mpirun:    as torchrun, with the programs of node/mpi in its place
    direct:    guard ──> [bash -lc SETUP; exec job-exec FD] ──> the user's command
    preload:   guard ──> [bash -lc SETUP; exec job-exec FD] ──> preload/sitecustomize.py ──> the user's command
"""

import json
import os
import sys
import tempfile
from typing import Any, Dict, List, Tuple

from ..host import processes

SETUP_FAILED = 97  # exit status: a line of the host's `setup` failed
SETUP_SAYS = "ddp-orch: setup line"
NOT_STARTED = 98  # exit status: the command could not be executed; the reason is on its stderr

PRELOAD_HOOK = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "preload")
PRELOAD_CHECK = """\
import os, sys
if not hasattr(sys, "ddp_orch_preload"):
    sys.exit("this python does not import sitecustomize from PYTHONPATH")
del os.environ["DDP_ORCH_PRELOAD_CHECK"]
os.execvp(sys.argv[1], sys.argv[1:])
"""


def become(job: Dict[str, Any], parent: int) -> None:
    """Never returns. `job`: argv, env (added to ours), cwd, stdout and stderr (paths of FIFOs), oom_score_adj.

    Optional: note (a line for stderr), preload (what preload/sitecustomize.py is told: the job is to be preloaded).
    """
    try:
        processes.die_with_parent(parent)
        for number, key in ((1, "stdout"), (2, "stderr")):
            # O_RDWR: opening never waits for a reader, and the pipe never ends under the writer
            fifo = os.open(job[key], os.O_RDWR)
            os.dup2(fifo, number)
            os.close(fifo)
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.close(null)
        os.chdir(job["cwd"])
        _prefer_for_oom(job.get("oom_score_adj", 0))
        environment = {**os.environ, **job["env"]}
        if job.get("note"):
            os.write(2, ("ddp-orch: %s\n" % job["note"]).encode("utf-8", "backslashreplace"))
        if job.get("preload"):
            _execute(*_preloaded(job["argv"], environment, job["preload"]))
        _execute(job["argv"], environment)
    except OSError as error:
        sys.stderr.write("ddp-orch: cannot start %s: %s\n" % (job["argv"][0], error))
        sys.stderr.flush()
    os._exit(NOT_STARTED)


def _execute(argv: List[str], environment: Dict[str, str]) -> None:
    try:
        os.execvpe(argv[0], argv, environment)  # noqa: S606
    except OSError as error:
        if error.errno == 7:  # E2BIG
            largest = max(environment.items(), key=lambda item: len(item[1]))
            raise OSError(
                7,
                "argument list or environment too large for the kernel (128 KiB for one value); "
                "the largest value is %s with %d bytes" % (largest[0], len(os.fsencode(largest[1]))),
            ) from None
        if error.errno in (2, 13) and "/" not in argv[0]:
            raise OSError(
                error.errno, "%s, looked for in PATH=%s" % (error.strerror, environment.get("PATH", ""))
            ) from None
        raise


def _preloaded(argv: List[str], environment: Dict[str, str], told: str) -> Tuple[List[str], Dict[str, str]]:
    """The command that becomes the preloader, but never the rank: it tests first that python imports our hook."""
    before = environment.get("PYTHONPATH")
    added = {
        "PYTHONPATH": PRELOAD_HOOK + (os.pathsep + before if before else ""),
        "DDP_ORCH_PRELOAD": told,
        "DDP_ORCH_PRELOAD_CHECK": "1",
    }
    if before is not None:
        added["DDP_ORCH_PRELOAD_PYTHONPATH"] = before
    return [argv[0], "-c", PRELOAD_CHECK, *argv], {**environment, **added}


def _prefer_for_oom(score: int) -> None:
    """When memory runs out, the kernel should kill a rank, not the guard that reports it."""
    if score:
        try:
            with open("/proc/self/oom_score_adj", "w") as file:
                file.write(str(score))
        except OSError:
            pass  # a container may forbid it; nothing depends on it


def through_setup(setup: List[str], argv: List[str]) -> List[str]:
    """The argv that runs `setup` in one login bash and then executes `argv`, with setup's variables and limits."""
    checked = "{ %s\n} || { echo '" + SETUP_SAYS + " %d failed with status '$? >&2; exit %d; }"
    lines = [checked % (line, number, SETUP_FAILED) for number, line in enumerate(setup, 1)]
    return ["bash", "-lc", "\n".join(lines) + '\nexec "$@"', "ddp-orch-setup"] + argv


def in_memory(data: bytes) -> int:
    """A descriptor from which `data` can be read, and which is on no disk."""
    if hasattr(os, "memfd_create"):
        handle = os.memfd_create("job")
    else:  # a Python built for old systems, as conda's are
        with tempfile.TemporaryFile(dir="/dev/shm") as file:
            handle = os.dup(file.fileno())
    with os.fdopen(os.dup(handle), "wb") as file:
        file.write(data)
    os.lseek(handle, 0, os.SEEK_SET)
    return handle


def job_exec(arguments: List[str]) -> None:
    """Verb `job-exec FD`: the job is on a descriptor, so that no secret of its environment is in a file."""
    with os.fdopen(int(arguments[0]), "rb") as file:
        job = json.loads(file.read())
    become(job, os.getppid())


def rank_exec(arguments: List[str]) -> None:
    """Verb `rank-exec FILE`: started by torchrun or mpirun in place of the user's command, to become it."""
    with open(arguments[0], "rb") as file:
        job = json.loads(file.read())
    local_rank = os.environ["LOCAL_RANK"]
    source = str(job["first_rank"] + int(local_rank))
    job["stdout"] = job["stdout"].replace("*", source)
    job["stderr"] = job["stderr"].replace("*", source)
    if job.get("pid_namespace") in (None, processes.pid_namespace()):
        write_register(job["register"], local_rank=int(local_rank), rank=int(os.environ["RANK"]))
    become(job, os.getppid())


def write_register(fifo: str, **fields: Any) -> None:
    """Register this process with the guard: it watches the ranks itself, because torchrun reports their exits late."""
    own = processes.identify(os.getpid())
    line = dict(fields, pid=os.getpid(), started=own.started if own else 0)
    handle = os.open(fifo, os.O_RDWR)
    os.write(handle, (json.dumps(line) + "\n").encode())
    os.close(handle)
