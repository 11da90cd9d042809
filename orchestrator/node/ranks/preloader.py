"""The guard's handle on the preloader: the process that has imported the modules of `run.preload` and forks the ranks.

preload/sitecustomize.py is what runs there, in the user's python. It forks twice, so that a rank becomes a child of the
guard, its nearest subreaper, and tells the pid before the rank begins. So the guard knows each rank before it can end.
With `run.warm` it may have served another run before (keeper.py). Never blocks.
"""

import array
import json
import os
import signal
import socket
from typing import Any, Callable, Dict, List, NamedTuple, Optional

from . import job, launch
from .launch import Job
from .rank_failure import describe

LONGEST = 4096  # bytes of a message


class Forked(NamedTuple):
    label: str  # of the job
    pid: int


class Preloader:
    """`pid`: -1 while there is none. `why_not`: why ranks are started without one; None: they are started by it.

    `can_stay`: whether it can serve another run after this one.
    """

    def __init__(
        self, modules: List[str], folder: str, is_warm: bool, spawn: Callable[[Dict[str, Any], List[int]], int]
    ) -> None:
        """`folder`: the run's. `is_warm`: it is to serve later runs. `spawn`: starts a process with descriptors."""
        self.pid = -1
        self.can_stay = False
        self.why_not: Optional[str] = None if modules else ""
        self.channel: Optional[socket.socket] = None
        self._modules = modules
        self._folder = folder if is_warm else None
        self._outputs = [os.path.join(folder, name) for name in ("preload.out", "preload.err")]
        self._spawn = spawn
        self._is_ready = False
        self._script: Optional[Dict[str, Any]] = None  # for `extend`, when it is ready
        self._is_extended = False
        self._has_changed = False  # files of the modules have: another process has to import them
        self._waiting: List[Job] = []

    def take_over(self, channel: socket.socket, pid: int, description: Dict[str, Any]) -> None:
        """Use the one of an earlier run. `description`: see `start`."""
        channel.setblocking(False)
        self.channel, self.pid = channel, pid
        environment = {**os.environ, **description["env"]}
        script = description["argv"][launch.SCRIPT]
        self._send({"env": environment, "cwd": description["cwd"], "script": script})

    def start(self, description: Dict[str, Any]) -> None:
        """`description`: of a rank, as far as it is known before an attempt."""
        if self.why_not is not None or self.pid > 0:
            return
        self._is_ready = self._has_changed = self.can_stay = self._is_extended = False
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            for path in self._outputs:
                os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600))
            stdout, stderr = self._outputs
            preload = {"channel": theirs.fileno(), "guard": os.getpid(), "modules": self._modules}
            told = json.dumps(dict(preload, folder=self._folder))
            self.pid = self._spawn(dict(description, stdout=stdout, stderr=stderr, preload=told), [theirs.fileno()])
        except OSError as error:
            self.why_not = str(error)
            ours.close()
        else:
            ours.setblocking(False)
            self.channel = ours
        finally:
            theirs.close()

    def fork(self, jobs: List[Job]) -> None:
        """Have it fork these ranks, as soon as it is ready."""
        self._waiting = jobs
        if self._is_ready:
            self._send_waiting()

    def extend(self, script: Dict[str, Any]) -> None:
        """Have it import what the script imports too (preload/extension.py), once. Ranks that it forks then wait."""
        if self._is_extended:
            return
        self._is_extended = True
        self._script = script
        if self._is_ready:
            self._send_waiting()

    def receive(self) -> List[Forked]:
        """The ranks that it has forked since the last call."""
        forked: List[Forked] = []
        while self.channel is not None:
            try:
                raw = self.channel.recv(LONGEST)
            except BlockingIOError:
                break
            except OSError:
                raw = b""
            if not raw:
                self._close()
                break
            message = json.loads(raw)
            if message["do"] == "ready":
                self._is_ready = True
                self.can_stay = message["can_stay"]
                self._send_waiting()
            elif message["do"] == "forked":
                forked.append(Forked(message["label"], message["pid"]))
            elif message["do"] == "changed":
                self._has_changed = True
            else:
                self.why_not = message["why"]
        return forked

    def ended(self, status: int, was_stopped: bool) -> None:
        """It has been reaped. `was_stopped`: by the guard. If it has failed, no other one is started."""
        self.pid, self.can_stay = -1, False
        self._close()
        self._waiting = []
        if self.why_not is None and not was_stopped and not self._has_changed:
            code, name = describe(status)
            self.why_not = "it was killed by %s" % name if name else "it ended with exit code %d" % (code or 0)
            self.why_not += self._last_words()

    def abandon(self) -> None:
        """It cannot be killed. It ends when it finds its channel closed."""
        self.pid, self.why_not = -1, "the process that preloads cannot be killed"
        self._close()

    def kill(self) -> None:
        if self.pid > 0:
            os.kill(self.pid, signal.SIGKILL)

    def _send_waiting(self) -> None:
        if self._script is not None:
            self._send({"script": self._script})
            self._script = None
        if not self._waiting:
            return
        jobs = [dict(waiting.description, label=waiting.label) for waiting in self._waiting]
        self._waiting = []
        self._send({"jobs": jobs})

    def _send(self, request: Dict[str, Any]) -> None:
        if self.channel is None:
            return
        data = job.in_memory(json.dumps(request).encode("ascii"))  # in no file: it holds the secrets
        try:
            handles = array.array("i", [data]).tobytes()
            self.channel.sendmsg([b"."], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, handles)])
        except OSError:
            pass  # it has ended; SIGCHLD is on its way
        finally:
            os.close(data)

    def _last_words(self) -> str:
        try:
            with open(self._outputs[1], encoding="utf-8", errors="replace") as file:
                lines = file.read().split("\n")
        except OSError:
            return ""
        fatal = [line for line in lines if line.startswith("Fatal Python error")]  # the stacks follow
        said = fatal or [line for line in lines if line.strip()]
        return ": " + said[-1] if said else ""

    def _close(self) -> None:
        if self.channel is not None:
            self.channel.close()
        self.channel = None
