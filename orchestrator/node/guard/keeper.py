"""The process between two runs that keeps a preloader, with `run.warm`. It waits, and uses no CPU.

It was the guard of the last run, and becomes the guard of the next one (warm.py). It ends after `run.warm`, when its
preloader ends, and on request. Its preloader ends with it.
"""

import json
import os
import resource
import select
import shutil
import signal
import socket
import time
from typing import Any, Callable, Dict, List, NoReturn, Tuple

from ..host import processes, state
from ..ranks.job import in_memory
from . import warm
from .requests import is_own, socket_name

BecomeGuard = Callable[[Dict[str, Any]], NoReturn]
"""Makes this process the guard of the next run: given what a guard gets on stdin."""
REQUEST_WINDOW = 5.0  # s for a relay to send its request once it has connected


def become(spec: Dict[str, Any], preloader: Tuple[socket.socket, int]) -> None:
    """For a guard whose run has ended. Returns only if that fails."""
    channel, pid = preloader
    names = ("run_id", "program", "python", "preload", "warm", "warm_key", "umask", "descriptors")
    given = {name: spec[name] for name in names}
    null = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(null, number)
    os.chdir("/")
    os.set_inheritable(channel.fileno(), True)
    data = in_memory(json.dumps(dict(given, channel=channel.fileno(), preloader=pid)).encode("ascii"))
    os.dup2(data, 0)
    argv = processes.own_program(spec["program"], "keeper", spec["run_id"])
    os.execv(argv[0], argv)  # noqa: S606


def keep(given: Dict[str, Any], become_guard: BecomeGuard) -> NoReturn:
    """`given`: by `become`."""
    processes.set_name(warm.NAME)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # helpers of the last run may still end, and nobody waits for them
    own = processes.identify(os.getpid())
    assert own is not None
    folder = state.folder("warm", "%d-%d" % (own.pid, own.started))
    lock = warm.lock(folder)
    channel = socket.socket(fileno=given["channel"])
    os.set_inheritable(channel.fileno(), False)
    deadline = time.monotonic() + given["warm"]
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC) as listener:
        listener.bind(socket_name(folder))
        listener.listen(4)
        record = {
            "keeper": own,
            "preloader": processes.identify(given["preloader"]),
            "key": given["warm_key"],
            "python": given["python"],
            "modules": given["preload"],
            "since": time.time(),
            "seconds": given["warm"],
        }
        state.replace(os.path.join(folder, warm.RECORD), record)
        for oldest in sorted(warm.keepers(), key=lambda keeper: keeper.record["since"])[: -warm.MOST]:
            warm.end_later(oldest)  # this one too, if it is the oldest
        _wait(given, folder, listener, channel, deadline, become_guard)
    shutil.rmtree(folder, ignore_errors=True)
    os.close(lock)
    os._exit(0)


def _wait(
    given: Dict[str, Any],
    folder: str,
    listener: socket.socket,
    channel: socket.socket,
    deadline: float,
    become_guard: BecomeGuard,
) -> None:
    """Returns when the time is over, or the preloader has ended."""
    poll = select.poll()
    poll.register(listener, select.POLLIN)
    poll.register(channel, select.POLLIN)
    while True:
        left = deadline - time.monotonic()
        if left <= 0:
            return
        ready = [handle for handle, _ in poll.poll(int(left * 1000) + 1)]
        if channel.fileno() in ready:
            return
        if ready:
            connection, _ = listener.accept()
            connection.settimeout(REQUEST_WINDOW)
            try:
                received = warm.receive(connection) if is_own(connection) else None
            except warm.Ended:
                return
            except (OSError, ValueError):
                received = None
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # a guard has to see the end of its preloader
            if received is not None and received[0].get("key") == given["warm_key"] and _is_alone(given["preloader"]):
                shutil.rmtree(folder, ignore_errors=True)
                become_guard(_prepare_guard(given, channel, connection, *received))
            signal.signal(signal.SIGCHLD, signal.SIG_IGN)
            for handle in received[1] if received is not None else ():
                os.close(handle)  # else the run that is refused has its locks and ports taken after its end
            connection.close()


def _is_alone(preloader: int) -> bool:
    """Whether the preloader is the only child: all others would count as processes of the next run."""
    return [process.pid for process in processes.descendants(os.getpid())] == [preloader]


def _prepare_guard(
    given: Dict[str, Any],
    channel: socket.socket,
    connection: socket.socket,
    request: Dict[str, Any],
    handles: List[int],
) -> Dict[str, Any]:
    """Have everything as if this process had been started as the guard of the next run. Returns what it is given.

    `handles`: its log, then the descriptors that its input names.
    """
    log, *inherited = handles
    number_here = dict(zip(request["given"]["inherited"], inherited))  # noqa: B905  a keyword of Python 3.10

    def translate(numbers: List[int]) -> List[int]:
        return [number_here[number] for number in numbers]

    processes.close_all_but([log, *inherited, channel.fileno(), connection.fileno()])
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["folder"])
    os.umask(given["umask"])  # as a guard gets it from a relay
    resource.setrlimit(resource.RLIMIT_NOFILE, (given["descriptors"], resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    return dict(
        request["given"],
        inherited=inherited,
        control=number_here[request["given"]["control"]],
        sockets={name: translate(numbers) for name, numbers in request["given"]["sockets"].items()},
        locks=translate(request["given"]["locks"]),
        warm={"channel": channel.fileno(), "preloader": given["preloader"], "answer": connection.fileno()},
    )
