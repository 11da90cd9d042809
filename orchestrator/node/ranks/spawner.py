"""Start a process of the run: a session of its own, the limits of the user's login, the host's `setup`, then job.py."""

import json
import os
import resource
import signal
from typing import Any, Dict, List, Sequence

from ..host import processes
from . import job


class Spawner:
    def __init__(self, setup: List[str], program: List[str], umask: int, descriptors: int) -> None:
        """`umask`, `descriptors` (the soft limit of open files): for the processes, in place of the guard's own."""
        self._setup = setup
        self._program = program
        self._umask = umask
        self._descriptors = descriptors

    def spawn(self, description: Dict[str, Any], inherited: Sequence[int] = ()) -> int:
        """`inherited`: descriptors that the process gets too. Returns its pid. Raises OSError."""
        descriptor = -1
        if self._setup:
            descriptor = job.in_memory(json.dumps(description).encode("ascii"))  # it holds the secrets
            argv = job.through_setup(self._setup, self._program + ["job-exec", str(descriptor)])
            mark = {name: value for name, value in description["env"].items() if name == processes.MARK}
            # the rest is applied after setup
            description = dict(description, argv=argv, env=mark, note="", preload=None)
        guard = os.getpid()
        # a SIGTERM to the child must not reach the guard by the wakeup descriptor that both have for a moment
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            pid = os.fork()
        except OSError:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            raise
        if pid == 0:
            os.setsid()
            os.umask(self._umask)
            hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
            resource.setrlimit(resource.RLIMIT_NOFILE, (self._descriptors, hard))
            signal.set_wakeup_fd(-1)
            for number in (signal.SIGPIPE, signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGCHLD):
                signal.signal(number, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            for handle in [*inherited, *([descriptor] if descriptor >= 0 else [])]:
                os.set_inheritable(handle, True)
            job.become(description, guard)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        if descriptor >= 0:
            os.close(descriptor)
        return pid
