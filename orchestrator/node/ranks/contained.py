"""Start the command of a rank or agent in a container, and be its first process there.

    guard ──> engine's client            (a child of the guard: its exit status is that of the container)
    engine ──> contained FILE ──> the command

The first process passes signals on, and ends the container when the run has no guard any more: if the guard is killed,
nothing else may be left to do so.
"""

import base64
import json
import os
import signal
import sys
import time
from typing import Any, Callable, Dict, List, Optional

from ..host import containers, engines, processes, state
from . import job
from .container_engine import ContainerEngine
from .launch import Job, Paths

VARIABLE = "DDP_ORCH_CONTAINED_"  # + NAME: the variable NAME of the command, on its way into the container
CACHE = "container-home"  # HOME in containers: its caches are kept for later runs
RUNTIME = "container-engine"  # a folder for engines that need one of the user
LOOK_EVERY = 1.0  # s between looks whether there is a guard
LIBRARIES = "/.singularity.d/libs"  # where Apptainer's --nv puts those of the driver; it adds them to LD_LIBRARY_PATH
PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


def wrap(spec: Dict[str, Any], root_job: Job, paths: Paths) -> Job:
    """The job that runs another one in a container. Its file in the run's folder holds no secret."""
    description = root_job.description
    variables = dict(description["env"])
    engine = spec["container"]["engine"]
    if spec["gpu_ids"] and "CUDA_VISIBLE_DEVICES" not in spec["env"] and not engines.ENGINES[engine].all_gpus:
        variables.pop("CUDA_VISIBLE_DEVICES", None)  # the container has only these GPUs, with other numbers
    inner = dict(description, env={}, label=root_job.label, folder=paths.run)
    inner.update(register=os.path.join(paths.fifo, "register"), pid_namespace=processes.pid_namespace())
    file = os.path.join(paths.run, "contained.%s.json" % root_job.label)
    state.replace(file, inner)
    home = os.path.join(state.home_of(paths.run), CACHE)
    os.makedirs(home, 0o700, exist_ok=True)
    variables = {"HOME": home, "USER": processes.user_name(os.geteuid()), **variables}
    passed = encode(variables)
    passed[processes.MARK] = spec["run_id"]
    folders = [paths.run, paths.output, home, spec["program"] + ":ro", *filter(None, [spec["workdir"]])]
    inside = engines.Inside(
        folder=paths.run,
        cwd=paths.cwd,
        mounts=folders,
        variables=sorted(passed),
        gpus=spec["gpu_ids"],
    )
    argv = engines.run_argv(spec["container"], containers.here(), inside, [*program(spec), "contained", file])
    environment = engines.client_environment(engine, passed, os.path.join(state.home_of(paths.run), RUNTIME))
    outer = {"argv": argv, "cwd": paths.run, "env": {processes.MARK: spec["run_id"], **environment}}
    return Job(root_job.label, {**outer, "stdout": description["stdout"], "stderr": description["stderr"]})


def engine_of(spec: Dict[str, Any], remove: Callable[[], bool]) -> Optional[ContainerEngine]:
    """`remove`: removes what is left of the containers of an attempt."""
    container = spec.get("container")
    return ContainerEngine(container["engine"], spec["run_id"], remove) if container else None


def encode(variables: Dict[str, str]) -> Dict[str, str]:
    """Variables on their way into a container: without line ends, quotes and `$`, which engines split or expand."""
    return {VARIABLE + name: base64.b64encode(os.fsencode(value)).decode("ascii") for name, value in variables.items()}


def decode_environment() -> None:
    """In the container: set the variables of `encode`."""
    has_libraries = LIBRARIES in os.environ.get("LD_LIBRARY_PATH", "").split(":")
    for name in [name for name in os.environ if name.startswith(VARIABLE)]:
        os.environb[os.fsencode(name[len(VARIABLE) :])] = base64.b64decode(os.environ.pop(name))
    folders = os.environ.get("LD_LIBRARY_PATH", "").split(":")
    if has_libraries and LIBRARIES not in folders:  # without them, CUDA finds no driver
        os.environ["LD_LIBRARY_PATH"] = ":".join([*filter(None, folders), LIBRARIES])


def program(spec: Dict[str, Any]) -> List[str]:
    """The argv of one of our processes in a container, with the python of the image."""
    return [spec["python"], "-I", "-S", spec["program"]]


def main(arguments: List[str]) -> int:
    """Verb `contained FILE`. Returns the exit status of the command, as a shell does."""
    with open(arguments[0], "rb") as file:
        inner = json.loads(file.read())
    decode_environment()
    signal.pthread_sigmask(signal.SIG_BLOCK, [*PASSED_ON, signal.SIGCHLD])
    # in another namespace, the pids that we see mean other processes to the guard
    is_known = inner["pid_namespace"] == processes.pid_namespace()
    if is_known:
        job.write_register(inner["register"], contained=inner["label"])
    own = os.getpid()
    pid = os.fork()
    if pid == 0:
        os.setsid()
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        if is_known and inner["label"] != "agent":
            local_rank = int(inner["label"])
            job.write_register(inner["register"], local_rank=local_rank, rank=inner["first_rank"] + local_rank)
        job.become(inner, own)
    return _watch(pid, inner["folder"], to_group=inner["label"] != "agent")


def _watch(pid: int, folder: str, to_group: bool) -> int:
    """Until the command ends. As process 1 of a PID namespace, this also reaps its orphans."""
    look_at = time.monotonic() + LOOK_EVERY
    while True:
        info = signal.sigtimedwait([*PASSED_ON, signal.SIGCHLD], max(0.0, look_at - time.monotonic()))
        if info is not None and info.si_signo != signal.SIGCHLD:
            _pass_on(pid, info.si_signo, to_group)
        status = _reap(pid)
        if status is not None:
            return 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
        if time.monotonic() >= look_at:
            look_at = time.monotonic() + LOOK_EVERY
            if not state.guarded(folder):
                sys.stderr.write("ddp-orch: the run has no guard any more\n")
                _kill_run()
                return 128 + signal.SIGKILL


def _kill_run() -> None:
    own = os.getpid()
    run_id = os.environ[processes.MARK]
    members = [process for process, mark in processes.marks().items() if mark == run_id and process.pid != own]
    processes.send_all(members, signal.SIGKILL)


def _pass_on(pid: int, number: int, to_group: bool) -> None:
    try:
        (os.killpg if to_group else os.kill)(pid, number)
    except ProcessLookupError:
        pass  # it has just ended


def _reap(pid: int) -> Optional[int]:
    """The wait status of the command once it has ended."""
    while True:
        try:
            ended, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return 0
        if ended == pid:
            return status
        if ended == 0:
            return None
