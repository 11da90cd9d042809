"""The relay: a host's end of one SSH session. It answers requests, and owns nothing that must outlive it.

Requests are numbered; each runs in a thread of its own, so that a stop is handled while a journal is streamed. The
main thread reads frames and answers PING. A controller that has been silent for too long counts as gone, and the relay
ends.
"""

import contextlib
import importlib
import os
import queue
import select
import socket
import sys
import threading
import time
from typing import TYPE_CHECKING, Any, BinaryIO, Callable, Dict, Set, cast

from ..host import processes, state
from . import wire

if TYPE_CHECKING:
    from . import shell

SILENCE = 30.0  # s without a frame from the controller (it sends a PING every 5)


# Requests that need nothing of the session: module and function. A module is loaded when it is first asked for: most
# sessions ask for one or two things, and to import everything took longer than to answer them.
OPERATIONS = {
    "probe": ("serve.probe", "look"),
    "dial": ("serve.mesh", "dial"),
    "find_image": ("serve.images", "find"),
    "offer_image": ("serve.images", "offer"),
    "sample": ("serve.sample", "sample"),
    "gpus": ("serve.gpus", "usage"),
    "record": ("serve.runs", "record"),
    "list": ("serve.runs", "listing"),
    "evidence": ("serve.evidence", "gather"),
    "paths": ("serve.evidence", "paths"),
    "stop": ("serve.stop", "end_run"),
    "rejoin": ("serve.rejoin", "rejoin"),
    "ticket": ("serve.ticket", "ticket"),
    "signal": ("serve.rank_signals", "send"),
    "finish": ("serve.rank_signals", "finish"),
    "hold": ("serve.rank_signals", "hold"),
    "saved": ("serve.rank_signals", "wait_for_saved_line"),
    "drain": ("serve.membership", "drain"),
    "add": ("serve.membership", "add"),
    "blueprint": ("serve.membership", "blueprint"),
    "stale": ("serve.leftovers", "stale"),
    "force": ("serve.leftovers", "force"),
    "outputs": ("serve.outputs", "listing"),
    "fetched": ("serve.outputs", "fetched"),
    "notify": ("recorder.notify", "test"),
    "finished": ("serve.retire", "survey"),
    "output_folders": ("serve.output_folders", "listing"),
    "remove_outputs": ("serve.output_folders", "remove"),
}


class Relay:
    def __init__(self, program: str) -> None:
        self._program = program
        # our own copies: what a request's child prints must not run into the frames
        self._in = os.dup(0)
        self._out = os.dup(1)
        null = os.open(os.devnull, os.O_RDWR)
        os.dup2(null, 0)
        os.dup2(2, 1)
        os.close(null)
        self._writing = threading.Lock()
        self._uploads: Dict[int, "queue.Queue[bytes]"] = {}
        self._shells: Dict[int, "shell.Shell"] = {}
        self._controls: Dict[str, socket.socket] = {}
        self._prepared: Dict[str, threading.Event] = {}  # by run: set when `prepare` has ended
        self._aborted: Set[str] = set()
        self._takes_images = False
        self._tickets: Dict[str, int] = {}  # locked until the session ends
        self._operations: Dict[str, Callable[[Dict[str, Any], int], Dict[str, Any]]] = {
            "listen": self._listen,
            "unpack": self._unpack,
            "prepare": self._prepare,
            "start": self._start,
            "abort": self._abort,
            "clock": lambda arguments, _: {"clock": time.time()},
            "attach": self._attach,
            "send": self._send_outputs,
            "code": self._send_code,
            "take_image": self._take_image,
            "shell": self._shell,
            "queue": self._queue,
            "cancel_queued": self._cancel_queued,
            "leave_queue": self._leave_queue,
            "prune": self._prune,
        }

    def serve(self) -> int:
        try:
            return self._serve()
        finally:
            for each in list(self._shells.values()):
                each.hang_up()
            if self._takes_images:
                from . import images

                images.give_up()

    def _serve(self) -> int:
        try:
            self.send(wire.Frame(wire.HELLO, _hello()))
        except (state.StateError, OSError) as error:
            self.send(wire.Frame(wire.BYE, {"error": "the state folder cannot be used: %s" % error}))
            return 1
        decoder = wire.Decoder()
        while True:
            if not select.select([self._in], [], [], SILENCE)[0]:
                return 1
            data = os.read(self._in, 1 << 16)
            if not data:
                return 0
            for frame in decoder.feed(data):
                if frame.kind == wire.PING:
                    self.send(wire.Frame(wire.PONG, {}))
                elif frame.kind == wire.REQUEST:
                    if frame.header["op"] == "unpack":
                        self._uploads[frame.header["id"]] = queue.Queue(16)  # the window of an upload: 4 MiB
                    elif frame.header["op"] == "shell":
                        self._add_shell(frame.header["id"])
                    elif frame.header["op"] == "prepare":
                        run_id = frame.header["args"]["spec"]["run_id"]
                        self._prepared[run_id] = threading.Event()
                        self._aborted.discard(run_id)  # its controller tries again
                    threading.Thread(target=self._answer, args=(frame.header,), daemon=True).start()
                elif frame.kind == wire.DATA and frame.header["id"] in self._uploads:
                    self._uploads[frame.header["id"]].put(frame.payload)
                elif frame.kind == wire.DATA and frame.header["id"] in self._shells:
                    self._shells[frame.header["id"]].put(frame.header, frame.payload)
                elif frame.kind == wire.BYE:
                    self.send(wire.Frame(wire.BYE, {}))
                    return 0

    def send(self, frame: wire.Frame) -> None:
        data = memoryview(wire.encode(frame))
        with self._writing:
            while data:
                data = data[os.write(self._out, data) :]

    def _answer(self, request: Dict[str, Any]) -> None:
        number = request["id"]
        try:
            result = self._do(request["op"], request["args"], number)
        except (state.StateError, wire.Refused) as error:
            result = {"error": str(error), "code": getattr(error, "code", "unknown")}
        except Exception as error:  # noqa: BLE001  a bug in here: the controller shows it instead of waiting
            import traceback

            result = {"error": "a bug in the node program:\n" + traceback.format_exc(), "code": "bug"}
            if isinstance(error, OSError) and error.errno in state.FULL:
                what = "%s: %s" % (error.filename or "state folder", error.strerror)
                result = {"error": "%s; free some space, or set state_dir" % what, "code": "disk-full"}
        try:
            self.send(wire.Frame(wire.RESULT, {"id": number, "result": result}))
        except OSError:
            pass

    def _do(self, operation: str, arguments: Dict[str, Any], number: int) -> Dict[str, Any]:
        if operation in self._operations:
            return self._operations[operation](arguments, number)
        module, function = OPERATIONS[operation]
        result: Dict[str, Any] = getattr(importlib.import_module(".." + module, __package__), function)(arguments)
        return result

    # requests that need the session

    def _listen(self, arguments: Dict[str, Any], number: int) -> Dict[str, Any]:
        from ..host import network
        from . import mesh

        low, high = arguments["ports"]
        try:
            listeners = mesh.Listeners(arguments["token"], arguments["run_port"], low, high)
        except OSError as error:
            raise wire.Refused(
                "port-in-use", "no free port in %d-%d: %s" % (low, high, error.strerror or error)
            ) from error
        # they end with the session
        return {"ports": listeners.ports, "addresses": network.candidates()}

    def _unpack(self, arguments: Dict[str, Any], number: int) -> Dict[str, Any]:
        from . import unpack

        stream = _Upload(self._uploads[number])
        try:
            return {"path": unpack.unpack(cast(BinaryIO, stream), arguments["sha256"], state.folder("code"))}
        except unpack.UnpackError as error:
            raise wire.Refused("unknown", str(error)) from error
        finally:
            stream.drain()
            del self._uploads[number]

    def _prepare(self, arguments: Dict[str, Any], number: int) -> Dict[str, Any]:
        from . import prepare

        run_id = arguments["spec"]["run_id"]

        def started(control: socket.socket) -> None:
            self._controls[run_id] = control
            if run_id in self._aborted:
                prepare.abort(control)

        try:
            return prepare.prepare(arguments, self._program, started)
        finally:
            self._prepared[run_id].set()

    def _start(self, arguments: Dict[str, Any], number: int) -> Dict[str, Any]:
        from . import prepare

        return prepare.ask(self._controls[arguments["run_id"]], {"do": "start", "start": arguments["start"]}, "started")

    def _abort(self, arguments: Dict[str, Any], number: int) -> Dict[str, Any]:
        from . import prepare

        run_id = arguments["run_id"]
        # another user may have stopped the run while it was being prepared
        wish = state.read(os.path.join(state.run_folder(run_id), "stop.json")) or {}
        self._aborted.add(run_id)
        control = self._controls.get(run_id)
        if control is not None:
            prepare.abort(control)
        if run_id in self._prepared:
            self._prepared[run_id].wait()  # its controller may have given up meanwhile
        control = self._controls.pop(run_id, None)
        if control is not None:
            with contextlib.suppress(ConnectionResetError):
                while control.recv(4096):  # closed when the guard has gone
                    pass
        return {"stopped_by": wish.get("by")}

    def _send_outputs(self, arguments: Dict[str, Any], number: int) -> Dict[str, Any]:
        from . import outputs

        def emit(header: Dict[str, Any], payload: bytes) -> None:
            self.send(wire.Frame(wire.DATA, dict(header, id=number), payload))

        return outputs.send(arguments, emit)

    def _send_code(self, arguments: Dict[str, Any], number: int) -> Dict[str, Any]:
        from . import code

        def emit(header: Dict[str, Any], payload: bytes) -> None:
            self.send(wire.Frame(wire.DATA, dict(header, id=number), payload))

        return code.send(arguments, emit)

    def _take_image(self, arguments: Dict[str, Any], number: int) -> Dict[str, Any]:
        from . import images

        self._takes_images = True

        def emit(header: Dict[str, Any], payload: bytes) -> None:
            self.send(wire.Frame(wire.DATA, dict(header, id=number), payload))

        return images.take(arguments, emit)

    def _add_shell(self, number: int) -> None:
        from . import shell

        self._shells[number] = shell.Shell(self._program)

    def _shell(self, arguments: Dict[str, Any], number: int) -> Dict[str, Any]:
        def emit(header: Dict[str, Any], payload: bytes) -> None:
            self.send(wire.Frame(wire.DATA, dict(header, id=number), payload))

        try:
            return self._shells[number].run(arguments, emit)
        finally:
            del self._shells[number]

    def _queue(self, arguments: Dict[str, Any], number: int) -> Dict[str, Any]:
        from . import run_queue, runs

        script = runs.script_of(arguments["command"], arguments["launcher"])
        return run_queue.queue(dict(arguments, script=script), self._tickets)

    def _cancel_queued(self, arguments: Dict[str, Any], number: int) -> Dict[str, Any]:
        from . import run_queue

        return run_queue.cancel(arguments)

    def _leave_queue(self, arguments: Dict[str, Any], number: int) -> Dict[str, Any]:
        from . import run_queue

        return run_queue.leave(arguments, self._tickets)

    def _prune(self, arguments: Dict[str, Any], number: int) -> Dict[str, Any]:
        from . import at_boot, retire

        removed = retire.prune(arguments, self._program)
        at_boot.clean()
        return removed

    def _attach(self, arguments: Dict[str, Any], number: int) -> Dict[str, Any]:
        def emit(header: Dict[str, Any], payload: bytes) -> None:
            self.send(wire.Frame(wire.DATA, dict(header, id=number), payload))

        if arguments["grep"] is not None:
            from . import grep

            return grep.follow(arguments, self._program, emit)
        from . import follow

        return follow.follow(arguments, emit)


class _Upload:
    """The payloads of an upload as a file to read from. An empty payload ends it."""

    def __init__(self, source: "queue.Queue[bytes]") -> None:
        self._source = source
        self._chunk = b""
        self._ended = False

    def read(self, size: int) -> bytes:
        while not self._chunk and not self._ended:
            self._chunk = self._source.get()
            self._ended = not self._chunk
        data, self._chunk = self._chunk[:size], self._chunk[size:]
        return data

    def drain(self) -> None:
        """Read the rest of a refused upload: the reader of frames would wait for ever."""
        while not self._ended:
            self._ended = not self._source.get()


def _hello() -> Dict[str, Any]:
    base = state.base()
    return {
        "boot_id": state.boot_id(),
        "machine_id": state.machine_id(),
        "hostname": socket.gethostname(),
        "state": base,
        "state_inode": [os.stat(base).st_dev, os.stat(base).st_ino],
        "passed_over": state.passed_over(),
        "uid": os.geteuid(),
        "pid": os.getpid(),
        "python": list(sys.version_info[:3]),
        "clock": time.time(),
        "codes": sorted(name for name in os.listdir(state.folder("code")) if len(name) == 64),
    }


def serve(program: str) -> int:
    processes.set_name("ddp-relay")
    return Relay(program).serve()
