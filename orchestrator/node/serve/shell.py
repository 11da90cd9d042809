"""`shell`: run a command for the user in the folder and with the variables, python and container of a run's ranks.

It is no part of the run: it does not end with it, and `kill` leaves it alone. It ends with the session.
"""

import collections
import contextlib
import fcntl
import json
import os
import select
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
from typing import Any, Callable, Deque, Dict, List, Optional, Tuple

from ..guard import requests
from ..host import containers, engines, processes, state
from ..ranks import contained, job, launch
from . import shell_exec
from .wire import Refused

Emit = Callable[[Dict[str, Any], bytes], None]

CHUNK = 64 * 1024  # bytes
LIVE_EVERY = 15.0  # s between signs of life while the command prints nothing
DRAIN_WINDOW = 2.0  # s for the rest of the output after the end of the command


class Shell:
    """One command, and what the controller sends for it. `put` and `hang_up` may be called from another thread."""

    def __init__(self, program: str) -> None:
        self._program = program
        self._frames: Deque[Tuple[Dict[str, Any], bytes]] = collections.deque()
        self._woken, self._wake = os.pipe()
        os.set_blocking(self._wake, False)
        self._process: Optional[subprocess.Popen] = None  # type: ignore[type-arg]
        self._input = -1  # where the command reads, -1 when it is closed
        self._outputs: Dict[int, str] = {}  # by descriptor: the stream
        self._terminal = False
        self._pending = bytearray()
        self._ends = False  # close the input when all is written

    def put(self, header: Dict[str, Any], payload: bytes) -> None:
        self._frames.append((header, payload))
        self._notify()

    def hang_up(self) -> None:
        """End the command and its process group, as a terminal that is closed does."""
        process = self._process
        if process is not None and process.poll() is None:
            with contextlib.suppress(OSError):
                os.killpg(process.pid, signal.SIGHUP)

    def run(self, arguments: Dict[str, Any], emit: Emit) -> Dict[str, Any]:
        """`arguments`: run_id, command (words), terminal (null, or `rows columns name`).

        First emits `missing_secrets`, names. Then DATA has `stream` and output, or `taken`: how many bytes of the input
        the command has taken.
        """
        try:
            folder = state.run_folder(arguments["run_id"])
            spec = state.read(os.path.join(folder, "spec.json"))
            if spec is None:
                raise Refused("no-such-run", "run %s is not on this host" % arguments["run_id"])
            if state.is_witness(spec):
                raise Refused("no-such-run", "this host only votes in run %s: it has no ranks" % spec["run_id"])
            secrets, missing = _secrets(folder, spec)
            description = _describe(spec, folder, secrets, arguments)
            self._start(spec, description, arguments["terminal"])
            emit({"missing_secrets": missing}, b"")
            return {"exit_code": self._exchange(emit)}
        finally:
            self.hang_up()
            self._close()

    def _start(self, spec: Dict[str, Any], description: Dict[str, Any], terminal: Optional[Dict[str, Any]]) -> None:
        descriptor = job.in_memory(json.dumps(description).encode("ascii"))  # it holds the secrets
        argv = [sys.executable, "-I", "-S", self._program, "shell-exec", str(descriptor)]
        if spec["setup"]:
            argv = job.through_setup(spec["setup"], argv)
        theirs: List[int] = []
        try:
            if terminal is not None:
                self._terminal = True
                ours, command_end = os.openpty()
                theirs = [command_end] * 3
                _resize(ours, terminal)
                self._input, self._outputs = ours, {ours: "stdout"}
            else:
                pipes = [os.pipe() for _ in range(3)]
                theirs = [pipes[0][0], pipes[1][1], pipes[2][1]]
                self._input, self._outputs = pipes[0][1], {pipes[1][0]: "stdout", pipes[2][0]: "stderr"}
            for handle in {self._input, *self._outputs}:
                os.set_blocking(handle, False)
            self._process = subprocess.Popen(
                argv,
                stdin=theirs[0],
                stdout=theirs[1],
                stderr=theirs[2],
                pass_fds=[descriptor],
                start_new_session=True,
            )
        finally:
            for handle in {*theirs, descriptor}:
                os.close(handle)
        threading.Thread(target=self._wait, args=(self._process,), daemon=True).start()

    def _wait(self, process: "subprocess.Popen[bytes]") -> None:
        process.wait()
        self._notify()

    def _notify(self) -> None:
        with contextlib.suppress(OSError):  # full: it is awake, or closed: the command has ended
            os.write(self._wake, b".")

    def _exchange(self, emit: Emit) -> int:
        assert self._process is not None
        live_at = time.monotonic() + LIVE_EVERY
        ends_at = None
        while True:
            status = self._process.poll()  # before the look at the output: all of it is there by then
            if status is not None and ends_at is None:
                ends_at = time.monotonic() + DRAIN_WINDOW
            has_output = self._poll(0.0 if status is not None else max(0.0, live_at - time.monotonic()), emit)
            if status is not None and ends_at is not None and (not has_output or time.monotonic() > ends_at):
                return status if status >= 0 else 128 - status
            if has_output or time.monotonic() >= live_at:
                if not has_output:
                    emit({"live": True}, b"")
                live_at = time.monotonic() + LIVE_EVERY

    def _poll(self, timeout: float, emit: Emit) -> bool:
        """Wait for something to do, and do it. Whether there was output."""
        poll = select.poll()
        poll.register(self._woken, select.POLLIN)
        events = dict.fromkeys(self._outputs, select.POLLIN)
        if self._pending and self._input >= 0:
            events[self._input] = events.get(self._input, 0) | select.POLLOUT
        for handle, wanted in events.items():
            poll.register(handle, wanted)
        ready = dict(poll.poll(timeout * 1000))
        if self._woken in ready:
            os.read(self._woken, CHUNK)
            self._take_frames(emit)
        had_output = False
        for handle, stream in list(self._outputs.items()):
            if ready.get(handle, 0) & ~select.POLLOUT:
                had_output |= self._forward(handle, stream, emit)
        if self._pending and self._input >= 0 and ready.get(self._input, 0) & (select.POLLOUT | select.POLLERR):
            self._feed(emit)
        return had_output

    def _forward(self, handle: int, stream: str, emit: Emit) -> bool:
        try:
            data = os.read(handle, CHUNK)
        except BlockingIOError:
            return False
        except OSError:  # of a terminal that nobody has open
            data = b""
        if data:
            emit({"stream": stream}, data)
            return True
        del self._outputs[handle]
        if handle != self._input:
            os.close(handle)
        return False

    def _take_frames(self, emit: Emit) -> None:
        while self._frames:
            header, payload = self._frames.popleft()
            if "rows" in header and self._terminal and self._input >= 0:
                _resize(self._input, header)
            self._ends |= bool(header.get("end"))
            if self._input < 0:
                emit({"taken": len(payload)}, b"")  # the command has closed its stdin
            else:
                self._pending += payload
        self._close_ended_input()

    def _feed(self, emit: Emit) -> None:
        try:
            count = os.write(self._input, self._pending[:CHUNK])
        except BlockingIOError:
            return
        except OSError:
            count, self._ends = len(self._pending), True
        del self._pending[:count]
        emit({"taken": count}, b"")
        self._close_ended_input()

    def _close_ended_input(self) -> None:
        if self._ends and not self._pending and self._input >= 0 and not self._terminal:
            os.close(self._input)
            self._input = -1

    def _close(self) -> None:
        for handle in {self._input, *self._outputs} - {-1}:
            os.close(handle)
        self._input, self._outputs = -1, {}
        wake, self._wake = self._wake, -1
        for handle in (self._woken, wake):
            os.close(handle)


def _secrets(folder: str, spec: Dict[str, Any]) -> Tuple[Dict[str, str], List[str]]:
    """The secrets of the run from its guard, and the names of those that nobody here has any more."""
    names = list(spec.get("secrets", []))
    if not names:
        return {}, []
    try:
        values = dict(requests.ask(folder, {"do": "ticket"})["private"]["secrets"])
    except (requests.NoAnswer, OSError, *state.DAMAGED):
        values = {}
    return values, sorted(set(names) - set(values))


def _describe(spec: Dict[str, Any], folder: str, secrets: Dict[str, str], arguments: Dict[str, Any]) -> Dict[str, Any]:
    """What shell_exec.py wants to know."""
    terminal = arguments["terminal"]
    output = state.output_folder(folder, spec)
    environment = launch.shell_environment(spec, secrets, output)
    if terminal is not None:
        environment["TERM"] = terminal["name"]
        environment["PS1"] = "(%s) \\h:\\W\\$ " % spec["name"]
    argv = shell_exec.command_of(arguments["command"])
    if not spec.get("container"):
        return {
            "argv": argv,
            "env": environment,
            "cwd": spec["cwd"],
            "python": spec["python"],
            "terminal": terminal is not None,
        }
    return _describe_contained(spec, folder, environment, argv, terminal is not None)


def _describe_contained(
    spec: Dict[str, Any], folder: str, environment: Dict[str, str], argv: List[str], terminal: bool
) -> Dict[str, Any]:
    """In a new container of the same image: that of a rank ends with the attempt."""
    engine = spec["container"]["engine"]
    row = engines.ENGINES[engine]
    home = os.path.join(state.home_of(folder), contained.CACHE)
    os.makedirs(home, 0o700, exist_ok=True)
    if spec["gpu_ids"] and "CUDA_VISIBLE_DEVICES" not in spec["env"] and not row.all_gpus:
        environment.pop("CUDA_VISIBLE_DEVICES", None)  # the container has only these GPUs, with other numbers
    passed = contained.encode({"HOME": home, "USER": processes.user_name(os.geteuid()), **environment})
    mounts = [folder, environment["DDP_ORCH_OUTPUT_DIR"], home, spec["program"] + ":ro"]
    inside = engines.Inside(
        folder="",  # without the run's label: its containers are removed after an attempt
        cwd=spec["cwd"],
        mounts=[*mounts, *filter(None, [spec["workdir"]])],
        variables=sorted(passed),
        gpus=spec["gpu_ids"],
    )
    command = [*contained.program(spec), "shell-exec", "inside", spec["python"], *argv]
    client = engines.run_argv(spec["container"], containers.here(), inside, command)
    if row.records:  # the others keep the streams of their program
        client[2:2] = ["--interactive", *(["--tty"] if terminal else [])]
    variables = engines.client_environment(engine, passed, os.path.join(state.home_of(folder), contained.RUNTIME))
    return {"argv": client, "env": variables, "cwd": folder, "python": "", "terminal": terminal}


def _resize(terminal: int, size: Dict[str, Any]) -> None:
    rows, columns = (max(1, min(int(size[name]), 10_000)) for name in ("rows", "columns"))
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
