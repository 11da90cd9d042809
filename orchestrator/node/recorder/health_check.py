"""Have the health of this host measured, in a process that can be abandoned. For the recorder. Never blocks.

The first measurement, at the start of the run, is kept in the run's folder; the later ones are compared with it.
"""

import contextlib
import json
import os
import socket
import subprocess
import time
from typing import Any, Callable, Dict, List, Optional, Set

from ..host import health, network, processes, state

DEADLINE = 8.0  # s for the process, which needs a fraction of a second and gives a hanging driver health.WINDOW
RECORD = "health.json"
ANSWER_MOST = 1 << 20  # bytes

Done = Callable[[int, List[health.Problem]], None]


class HealthCheck:
    """One check at a time: a later one replaces one that is still running."""

    def __init__(self, folder: str, spec: Dict[str, Any], done: Done) -> None:
        """`done`: called by `advance` with the attempt and the problems of each check."""
        self._path = os.path.join(folder, RECORD)
        self._folder = folder
        self._spec = spec
        self._done = done
        self._process: Optional["subprocess.Popen[bytes]"] = None
        self._ended: List["subprocess.Popen[bytes]"] = []  # not reaped yet; one that hangs in the kernel stays
        self._request: Dict[str, Any] = {}
        self._attempt = 0  # that the running check is for; 0: it is the first measurement
        self._kill_at = 0.0
        self._ready: Optional["subprocess.Popen[bytes]"] = None  # waits for a request
        self._answer = b""
        self._problems: Optional[List[health.Problem]] = None  # of a check that is done

    def begin(self, address: Optional[str]) -> None:
        """Measure for the first time. `address`: of this host towards the other nodes; None: there are none."""
        if self._process is None and not os.path.exists(self._path):
            disks = {"state": self._folder, "output": state.output_folder(self._folder, self._spec)}
            names = interfaces(self._spec, address)
            self._start({"gpu_ids": self._spec["gpu_ids"], "disks": disks, "interfaces": names}, 0)

    def expect_check(self) -> None:
        """Start the process of the next check: its python is ready by then."""
        if self._ready is None:
            with contextlib.suppress(OSError):  # the check itself reports it
                self._ready = self._spawn()

    def check(self, attempt: int, head_clock: Optional[float]) -> None:
        """`head_clock`: Unix seconds; None on the head."""
        self._abandon()
        first = state.read(self._path)
        if first is None:  # it was not measured, or the record is lost: only what hangs can be seen
            first = {"request": dict(self._request or {"gpu_ids": [], "disks": {}, "interfaces": []})}
        self._start(dict(first["request"], head_clock=head_clock), attempt)

    def _start(self, request: Dict[str, Any], attempt: int) -> None:
        self._request, self._attempt, self._problems = request, attempt, None
        process, self._ready = self._ready, None
        try:
            if process is None or process.poll() is not None:
                process = self._spawn()
        except OSError as error:  # no process to be had: ranks could not be started either
            self._problems = [{"code": "limit-nproc", "text": "cannot start a process: %s" % error}]
            return
        assert process.stdin is not None and process.stdout is not None
        try:
            process.stdin.write(json.dumps(request).encode("ascii"))
            process.stdin.close()
        except OSError:
            pass  # it has died; the end of its output follows
        os.set_blocking(process.stdout.fileno(), False)
        self._process, self._answer, self._kill_at = process, b"", time.monotonic() + DEADLINE

    def close(self) -> None:
        if self._ready is not None:
            self._ready.kill()

    def _spawn(self) -> "subprocess.Popen[bytes]":
        argv = processes.own_program(self._spec["program"], "health")
        pipe = subprocess.PIPE
        return subprocess.Popen(argv, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, cwd="/")

    # while it runs

    def handles(self) -> List[int]:
        """Descriptors to wait for."""
        return [self._process.stdout.fileno()] if self._process is not None and self._process.stdout else []

    def on_readable(self) -> None:
        data = os.read(self.handles()[0], ANSWER_MOST)
        self._answer += data
        if data and not data.endswith(b"\n"):
            return
        self._abandon()
        try:
            self._problems = self._judge(json.loads(self._answer))
        except state.DAMAGED:
            self._problems = []  # it was killed: nothing is known

    def _judge(self, now: Dict[str, Any]) -> List[health.Problem]:
        first = state.read(self._path)
        if first is None:
            request = {name: value for name, value in self._request.items() if name != "head_clock"}
            first = {"request": request, "before": now}
            try:
                state.replace(self._path, first)
            except OSError:
                pass  # a full disk: the next check is the first measurement
        return health.problems(self._request, first["before"], now)

    def advance(self, now: float) -> None:
        self._ended = [process for process in self._ended if process.poll() is None]
        if self._process is not None and now >= self._kill_at:
            self._abandon()
            text = "the health check did not answer within %d s: a disk of the host may hang" % DEADLINE
            self._problems = [{"code": "filesystem-hung", "text": text}]
        if self._problems is not None:
            problems, self._problems = self._problems, None
            if self._attempt:
                self._done(self._attempt, problems)

    def _abandon(self) -> None:
        """Nobody waits for its end: a process that hangs in the kernel has none."""
        if self._process is None:
            return
        process, self._process = self._process, None
        if process.poll() is None:
            process.kill()
        if process.stdout is not None:
            process.stdout.close()
        self._ended.append(process)


def interfaces(spec: Dict[str, Any], address: Optional[str]) -> List[str]:
    """The interfaces that the run uses here: that of its own traffic, and those that NCCL and gloo are told to use."""
    own = "" if address is None else network.interface_of(address)
    return sorted({own, *named_interfaces(spec)} - {""})


def named_interfaces(spec: Dict[str, Any]) -> List[str]:
    """The interfaces of this host that NCCL and gloo are told to use by name."""
    environment = {**spec["auto_env"], **spec["env"]}
    existing = [name for _, name in socket.if_nameindex()]
    names: Set[str] = set()
    for variable in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"):
        value = environment.get(variable, "")
        prefixes = [] if value.startswith("^") or "{" in value else value.lstrip("=").split(",")
        names.update(name for name in existing for prefix in prefixes if prefix and name.startswith(prefix))
    return sorted(names)
