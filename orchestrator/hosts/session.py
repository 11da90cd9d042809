"""A session with one host: start the node program there, send requests, receive answers. Knows nothing about runs."""

from __future__ import annotations

import queue
import re
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from ..answers.decode import MalformedAnswer, decode
from ..answers.hello import Hello
from ..answers.operation import Arguments, Operation, Streaming
from ..errors import OrchError, UnreachableError
from ..node.serve import wire
from ..output.terminal import one_line
from ..ssh.noise import NoMarker, read_marker
from ..ssh.pipe import Connection
from .bootstrap import bootstrap_command, interpreter_of
from .limits import ANSWER_LIMIT, LIMITS, WAITS_FOR, WAITS_FOR_FILES
from .node_program import NodeProgram

A = TypeVar("A")
D = TypeVar("D")
PING_EVERY = 5.0  # s
DEAD_AFTER = 14.0  # s without a frame after which the host counts as lost; the relay answers every PING at once
UPLOAD_DEAD_AFTER = 60.0  # s, the same during an upload: a PING waits behind some MiB on a slow line
BOOTSTRAP_WINDOW = 30.0  # s for the login shell and python to start


class SessionLost(UnreachableError):
    """The connection to a host was lost, or the host stopped answering."""


class Refused(OrchError):
    """The node program refused a request. `code` is the code of a finding; the message ends with `fix`, if any.

    `look`: a command that shows the problem in a login that is not interactive.
    """

    def __init__(self, code: str, problem: str, fix: str = "", look: str = "") -> None:
        super().__init__(f"{problem}; {fix}" if fix else problem)
        self.code = code
        self.exit_code = UnreachableError.exit_code if code in ("no-guard", "no-majority") else OrchError.exit_code
        self.problem = problem
        self.fix = fix
        self.look = look


class InvalidAnswer(Refused):
    """An answer that no node program gives. Not worth a retry: the host would give it again."""

    def __init__(self, host: str, why: object) -> None:
        super().__init__("unknown", f"{host}: invalid response from the node program ({why}); please report this")


Data = Callable[[Mapping[str, Any], bytes], None]
Send = Callable[[Mapping[str, Any], bytes], None]
"""Sends a DATA frame with this header, and a payload of at most wire.MAX_PAYLOAD bytes. Raises OSError."""


@dataclass(frozen=True)
class _Answer:
    """The decoded answer to a request."""

    value: Any


@dataclass
class _Request:
    """A request that has no answer yet."""

    operation: Operation[Any]
    on_data: Data | None
    active_at: float
    """When it was sent, or the last DATA was taken."""
    results: queue.Queue[_Answer | Refused | None] = field(default_factory=queue.Queue)
    """None: the session was lost."""


class Session:
    """A conversation with the relay on one host. Any thread may send requests; one thread of the session receives."""

    def __init__(
        self,
        host: str,
        connection: Connection,
        python: str,
        program: NodeProgram,
        nonce: str,
        state_dir: str | None = None,
    ) -> None:
        """Raises ConnectFailure, SessionLost or Refused."""
        self.host = host
        self._connection = connection
        self._pipe = connection.open(bootstrap_command(python, program, nonce, state_dir), BOOTSTRAP_WINDOW)
        rest = self._bootstrap(python, program, nonce.encode())
        self._sending = threading.Lock()
        self._numbers = 0
        self._waiting: dict[int, _Request] = {}
        self._hello: queue.Queue[Hello | None] = queue.Queue()
        self._greeted = False
        self._in_callback = False  # the reader is inside an `on_data`
        self._lost: str | None = None
        self._refused: Refused | None = None
        self._bug: BaseException | None = None
        self._uploads = 0
        self._pinged = time.monotonic()
        self._reader = threading.Thread(target=self._read, args=(rest,), name=f"session-{host}", daemon=True)
        self._reader.start()
        try:
            hello = self._hello.get(timeout=BOOTSTRAP_WINDOW)
        except queue.Empty:
            what = f"no hello from the node program within {BOOTSTRAP_WINDOW:.0f} s"
            self._end(f"{what}; it is probably waiting for {WAITS_FOR_FILES}")
            hello = None
        if hello is None:
            raise self._failure()
        self.hello = hello
        self.codes = set(hello.codes)
        """Hashes of the code snapshots on the host. The caller that sends one adds it."""

    # before the first frame

    def _bootstrap(self, python: str, program: NodeProgram, nonce: bytes) -> bytes:
        """Wait for the stub after the output of the login shell, and send the program if the host does not have it."""
        status, rest = self._read_marker(b"", nonce, python)
        if status == "need":
            try:
                self._pipe.send(program.data)
            except OSError as error:
                raise SessionLost(f"{self.host}: {error}, while the node program was sent") from error
            status, rest = self._read_marker(rest, nonce, python)
        if status.startswith("old "):
            raise Refused(
                "remote-env-differs",
                f"{self.host}: {interpreter_of(python)[-1]} is Python {status[4:]}, but 3.8 or newer is required",
                "set `python` to the absolute path of a newer one",
                f"{interpreter_of(python)[-1]} --version",
            )
        if status.startswith("full "):
            raise Refused("disk-full", f"{self.host}: {status[5:]}")
        if status != "have":
            raise Refused("remote-env-differs", f"{self.host}: {status.removeprefix('error ')}")
        return rest

    def _read_marker(self, seen: bytes, nonce: bytes, python: str) -> tuple[str, bytes]:
        marker = re.compile(rb"\n%s ([^\n]*)\n" % re.escape(nonce))
        try:
            found, rest = read_marker(self._pipe.recv, marker, time.monotonic() + BOOTSTRAP_WINDOW, seen)
        except NoMarker as missing:
            if missing.why == "noise":
                raise Refused(
                    "remote-env-differs",
                    f"{self.host}: the login shell prints endless output instead of starting Python",
                    f"check what `ssh {self.host} true` prints, and fix ~/.bashrc or similar files",
                    "true",
                ) from None
            raise self._no_python(missing.seen, python, missing.why == "late") from None
        return found[1].decode("utf-8", "replace"), rest

    def _no_python(self, seen: bytes, python: str, silent: bool) -> OrchError:
        # the status first: after it, stderr is complete
        status = None if silent else self._pipe.exit_status(5.0)
        output = (self._pipe.stderr() or seen).decode("utf-8", "backslashreplace").strip().splitlines()
        interpreter = interpreter_of(python)[-1]
        if silent:
            return Refused(
                "remote-env-differs",
                f"{self.host}: {interpreter} did not start within {BOOTSTRAP_WINDOW:.0f} s of the login; the host is "
                "overloaded, or the login waits for a file server, such as that of the home",
                look=f"{interpreter} --version",
            )
        if status is None and not output:
            return SessionLost(f"{self.host}: the connection was closed before Python started")
        what = output[-1][:300] if output else f"exit status {status}"
        return Refused(
            "remote-env-differs",
            f"{self.host}: cannot run {interpreter} in a non-interactive login: {what}",
            "set `python` to the absolute path of Python 3.8 or newer, or fix what the login runs instead",
            f"{interpreter} --version",
        )

    # frames

    def _read(self, rest: bytes) -> None:
        """Receive until the session ends, then wake all waiting requests, whatever ended it."""
        try:
            self._end(self._receive(rest))
        except (OSError, SessionLost) as error:
            self._end(str(error) or type(error).__name__)
        except Refused as error:
            self._refused = error
            self._end(str(error))
        except wire.WireError as error:
            self._end(f"protocol error: {error}")
        except MalformedAnswer as error:
            # a retry would give the same answer, so do not retry for ever
            self._refused = InvalidAnswer(self.host, error)
            self._end(str(self._refused))
        except BaseException as error:  # noqa: BLE001  raised in `request`
            self._bug = error
            self._end(f"bug: {error!r}")

    def _receive(self, rest: bytes) -> str:
        """Receive until the relay ends the session; returns the reason."""
        decoder = wire.Decoder()
        received_at = time.monotonic()
        data = rest
        while True:
            for frame in decoder.feed(data):
                if frame.kind == wire.BYE:
                    error = frame.header.get("error")
                    if error:
                        self._refused = Refused("remote-env-differs", f"{self.host}: {error}")
                    return str(error or "closed")
                self._dispatch(frame)
                received_at = time.monotonic()  # afterwards, because `on_data` may take long
            limit = UPLOAD_DEAD_AFTER if self._uploads else DEAD_AFTER
            if time.monotonic() - received_at > limit:
                raise SessionLost(f"no data for {limit:.0f} s")
            self._ping()
            try:
                data = self._pipe.recv(1 << 18, PING_EVERY)
            except TimeoutError:
                data = b""
                continue
            if not data:
                raise SessionLost("the connection was closed")

    def _ping(self) -> None:
        now = time.monotonic()
        if now - self._pinged >= PING_EVERY:
            self._pinged = now
            self._send(wire.Frame(wire.PING, {}))

    def _dispatch(self, frame: wire.Frame) -> None:
        if frame.kind == wire.HELLO:
            if self._greeted:
                raise MalformedAnswer("hello: sent twice")
            hello = decode(Hello, frame.header, "hello")
            self._greeted = True
            self._hello.put(hello)
            return
        number = frame.header.get("id")
        if not isinstance(number, int) or (request := self._waiting.get(number)) is None:
            return
        if frame.kind == wire.RESULT:
            result = frame.header.get("result")
            if not isinstance(result, dict):
                raise MalformedAnswer(f"{request.operation.name}: no result")
            answer = self._refusal(result) if "error" in result else _Answer(request.operation.decode(result))
            self._waiting.pop(number, None)  # a second answer has no request
            request.results.put(answer)
        elif frame.kind == wire.DATA and request.on_data is not None:
            self._in_callback = True
            try:
                request.on_data(frame.header, frame.payload)
            finally:
                self._in_callback = False
            request.active_at = time.monotonic()

    def _refusal(self, result: Mapping[str, Any]) -> Refused:
        return Refused(str(result.get("code", "unknown")), f"{self.host}: {one_line(str(result['error']))}")

    def _end(self, why: str) -> None:
        """End the session. The first reason is kept, because closing the pipe gives the reader another one."""
        if self._lost is None:
            self._lost = why
        self._hello.put(None)
        for request in list(self._waiting.values()):
            request.results.put(None)

    def _send(self, frame: wire.Frame) -> None:
        with self._sending:
            self._pipe.send(wire.encode(frame))

    # requests

    def request(
        self, operation: Operation[A], arguments: Arguments, *, upload: Iterable[bytes] = (), extra_time: float = 0.0
    ) -> A:
        """Ask the relay and wait for its answer, within the operation's limit plus `extra_time` seconds.

        A host that exceeds the limit counts as lost, and its session ends. Raises SessionLost, or Refused with the
        node's reason.
        """
        return self._ask(operation, arguments, None, upload, extra_time)

    def follow(self, operation: Streaming[A, D], arguments: Arguments, on_data: Callable[[D, bytes], None]) -> A:
        """As `request`, for an operation that sends data before its answer. `on_data(header, payload)` is called in
        the receiving thread.
        """

        def take(header: Mapping[str, Any], payload: bytes) -> None:
            on_data(operation.decode_data(header, payload), payload)

        return self._ask(operation, arguments, take)

    def converse(
        self,
        operation: Streaming[A, D],
        arguments: Arguments,
        on_data: Callable[[D, bytes], None],
        begin: Callable[[Send], None],
    ) -> A:
        """As `follow`, for an operation that also takes data. `begin` gets the function that sends it."""

        def take(header: Mapping[str, Any], payload: bytes) -> None:
            on_data(operation.decode_data(header, payload), payload)

        return self._ask(operation, arguments, take, begin=begin)

    def _ask(
        self,
        operation: Operation[A],
        arguments: Arguments,
        take: Data | None,
        upload: Iterable[bytes] = (),
        extra_time: float = 0.0,
        begin: Callable[[Send], None] = lambda _: None,
    ) -> A:
        request = _Request(operation, take, time.monotonic())
        with self._sending:
            self._numbers += 1
            number = self._numbers
            self._uploads += operation.name == "unpack"
        self._waiting[number] = request
        try:
            self._send(wire.Frame(wire.REQUEST, {"id": number, "op": operation.name, "args": arguments}))
            if operation.name == "unpack":
                self._upload(number, upload)
                request.active_at = time.monotonic()
            begin(lambda header, payload: self._send(wire.Frame(wire.DATA, {**header, "id": number}, payload)))
            if self._lost is not None:
                request.results.put(None)  # it may have been lost before this request was registered
            result = self._answer(request, LIMITS.get(operation.name, ANSWER_LIMIT) + extra_time)
        except OSError as error:
            raise SessionLost(f"{self.host}: {self._lost or error}") from error
        finally:
            self._waiting.pop(number, None)
            with self._sending:
                self._uploads -= operation.name == "unpack"
        if result is None:
            raise self._failure()
        if isinstance(result, Refused):
            raise result
        return result.value  # type: ignore[no-any-return]

    def _upload(self, number: int, chunks: Iterable[bytes]) -> None:
        for chunk in chunks:
            for start in range(0, len(chunk), wire.MAX_PAYLOAD):
                self._send(wire.Frame(wire.DATA, {"id": number}, chunk[start : start + wire.MAX_PAYLOAD]))
        self._send(wire.Frame(wire.DATA, {"id": number}))

    def _answer(self, request: _Request, limit: float) -> _Answer | Refused | None:
        while True:
            left = request.active_at + limit - time.monotonic()
            if left <= 0:
                name = request.operation.name
                waits_for = WAITS_FOR.get(name, WAITS_FOR_FILES)
                self._end(f"no answer to `{name}` within {limit:.0f} s; it is probably waiting for {waits_for}")
                self._pipe.close()  # ends the relay and its work
                return None
            try:
                return request.results.get(timeout=min(PING_EVERY, left))
            except queue.Empty:
                # the reader pings too, but `on_data` may block it, for example on a paused terminal
                self._ping()
            if self._in_callback:  # the answer may be queued behind the data, which is not the host's fault
                request.active_at = time.monotonic()

    def _failure(self) -> Exception:
        """Why there is no answer. A bug is no SessionLost: callers would open another session for ever."""
        if self._bug is not None:
            failure = RuntimeError(f"{self.host}: the session's reader failed")
            failure.__cause__ = self._bug
            return failure
        return self._refused or SessionLost(f"{self.host}: {self._lost}")

    @property
    def lost(self) -> bool:
        return self._lost is not None

    def close(self) -> None:
        """End the session on the host, and close the pipe. Never raises."""
        try:
            if not self.lost:
                self._send(wire.Frame(wire.BYE, {}))
                self._reader.join(2.0)
        except (OSError, OrchError):
            pass
        self._pipe.close()
        self._connection.close()
