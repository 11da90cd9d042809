"""The recorder: writes the journal, keeps the link, runs the gang on the head. Killed at any moment it loses no byte.

It is the guard's child and is restarted by it. All it knows is told again or lies on disk: the guard tells its whole
status to a newborn recorder, the journal's length says how far it was written, the gang's events are replayed, and
nodes join again.
"""

import json
import os
import select
import signal
import socket
import sys
import time
from typing import Any, Dict, List, NoReturn, Optional

from . import gang, journal, processes, state
from .link import BEAT, HANDSHAKE_WINDOW, LEASE, Link, LinkClosed, dial

PUMPS_A_TURN = 4  # MiB from one FIFO before the others get their turn
# A turn that brought less than LITTLE bytes of output is followed by a pause: line by line, 10,000 lines a second would
# cost a tenth of a core and make as many pieces for every reader. Less than the smallest FIFO holds: none may get full.
LITTLE, PAUSE = 2048, 0.005  # bytes, s
JOIN_WINDOW = 20.0  # s for the first link to the head, within `prepare`
REDIAL = 0.3  # s between tries to reach the head
TICK = 0.5  # s
DYING_WINDOW = 5.0  # s from the end of a guard's channel to the end of the guard


def main(
    folder: str, spec: Dict[str, Any], key: str, guard: socket.socket, listener: Optional[socket.socket], guard_pid: int
) -> NoReturn:
    """Runs in a fresh child of the guard; never returns."""
    try:
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        processes.set_name("ddp-recorder")
        Recorder(folder, spec, bytes.fromhex(key), guard, listener, guard_pid).run()
        os._exit(0)
    except BaseException:  # noqa: BLE001  the last resort: the fork of a relay must never return into its code
        import traceback

        traceback.print_exc()
        sys.stderr.flush()
        os._exit(70)


class Recorder:
    def __init__(
        self,
        folder: str,
        spec: Dict[str, Any],
        key: bytes,
        guard: socket.socket,
        listener: Optional[socket.socket],
        guard_pid: int,
    ) -> None:
        self._folder = folder
        self._spec = spec
        self._key = key
        self._guard: Optional[socket.socket] = guard
        self._guard_pid = guard_pid
        self._status: Dict[str, Any] = {
            "attempt": 0,
            "phase": "prepared",
            "failures": [],
            "outcome": None,
            "start": None,
            "stop": None,
            "drain": False,
        }
        self._fifos: Dict[int, journal.Writer] = {}
        self._opened: Dict[journal.Stream, int] = {}
        self._own: Dict[int, journal.Writer] = {}
        self._finished = False
        self._orphan_until: Optional[float] = None
        self._poll = select.poll()
        self._peers: Peers = Head(self, listener) if spec["node"] == 0 else Follower(self)

    # the loop

    def run(self) -> None:
        while not self._finished:
            poll = select.poll()
            for handle in self._fifos:
                poll.register(handle, select.POLLIN)
            if self._guard is not None:
                poll.register(self._guard, select.POLLIN)
            for link in self._peers.links():
                poll.register(link.fileno(), select.POLLIN | (select.POLLOUT if link.wants_write() else 0))
            listening = self._peers.listening()
            if listening is not None:
                poll.register(listening, select.POLLIN)
            moved = 0
            for handle, events in poll.poll(int(self._peers.due() * 1000) + 1):
                if handle in self._fifos:
                    moved += self._pump(handle, events)
                elif self._guard is not None and handle == self._guard.fileno():
                    self._hear_guard()
                else:
                    self._peers.ready(handle)
            self._peers.tick()
            if self._status["drain"]:
                self._drain()
            if self._orphan_until is not None and time.monotonic() > self._orphan_until:
                verdict = {"state": "lost", "first_failure": None, "stopped_by": None}
                self._end_orphaned(dict(verdict, attempt=self._status["attempt"]))
            if 0 < moved < LITTLE:
                time.sleep(PAUSE)

    # the journal

    def _open_fifos(self) -> None:
        folder = os.path.join(self._folder, "fifo")
        for name in sorted(os.listdir(folder)):
            parts = name.split(".")
            if len(parts) != 3:
                continue
            stream = journal.Stream(int(parts[0]), parts[1], parts[2])
            if stream not in self._opened:
                handle = os.open(os.path.join(folder, name), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
                self._opened[stream] = handle
                self._fifos[handle] = journal.Writer(os.path.join(self._folder, "log"), stream)

    def _pump(self, handle: int, events: int) -> int:
        moved = 0
        for _ in range(PUMPS_A_TURN):
            piece = self._fifos[handle].pump(handle)
            moved += piece
            if piece == 0:
                if events & select.POLLHUP:  # the guard, which keeps it open, is dead, and all is read
                    self._fifos.pop(handle).close()
                break
        return moved

    def say(self, text: str) -> None:
        """A line of our own in the journal."""
        attempt = max(1, int(self._status["attempt"]))
        if attempt not in self._own:
            self._own[attempt] = journal.Writer(
                os.path.join(self._folder, "log"), journal.Stream(attempt, "run", "out")
            )
        self._own[attempt].append(("ddp-orch: " + text + "\n").encode("utf-8", "backslashreplace"))

    def _drain(self) -> None:
        """The run is over and its processes are gone: what the FIFOs still hold is the last."""
        for handle, writer in self._fifos.items():
            while writer.pump(handle):
                pass
            if writer.dropped:
                self.say("%d bytes of output were dropped: the disk was full" % writer.dropped)
        self._finished = True

    # the guard

    def _hear_guard(self) -> None:
        try:
            raw = self._guard.recv(1 << 20) if self._guard else b""
        except OSError:
            raw = b""
        if not raw:
            self._orphaned()
            return
        self._status = json.loads(raw)
        self._open_fifos()
        self._peers.status(self._status)

    def command(self, message: Dict[str, Any]) -> None:
        if self._guard is None:
            if message["do"] == "end":
                self._end_orphaned(message["verdict"])
            return
        try:
            self._guard.send(json.dumps(message).encode("ascii"))
        except OSError:
            self._orphaned()

    def obey(self, order: gang.Order) -> None:
        """Bring an order of the gang to our guard."""
        if isinstance(order, gang.Run):
            self.command({"do": "run", "order": order._asdict()})
        elif isinstance(order, gang.Stop):
            self.command({"do": "stop", "attempt": order.attempt, "grace": order.grace, "why": order.why})
        else:
            self.command({"do": "end", "verdict": order.verdict})

    @property
    def reported(self) -> Dict[str, Any]:
        return self._status

    # without a guard

    def _orphaned(self) -> None:
        """Our guard was killed: end what it owned, tell the gang, and leave a record in its place."""
        if self._guard is None:
            return
        self._guard.close()
        self._guard = None
        deadline = time.monotonic() + DYING_WINDOW
        while os.getppid() == self._guard_pid:  # a dying process closes its descriptors before its children are orphans
            if time.monotonic() > deadline:
                os._exit(70)  # it lives and has dropped us; it will start another
            time.sleep(0.005)
        self._orphan_until = time.monotonic() + 2 * LEASE
        left = sweep(self._spec["run_id"], self._folder)
        failure = {
            "rank": None,
            "exit_code": None,
            "signal": None,
            "pid": self._guard_pid,
            "what": "the guard was killed",
            "at": time.time(),
            "attempt": self._status["attempt"],
        }
        self._status = dict(
            self._status,
            phase="exited",
            failures=self._status["failures"] + [failure],
            outcome={"ok": False, "stopped": None, "statuses": {}, "unkillable": left, "ended": []},
        )
        self.say("the guard was killed; its processes have been ended")
        self._peers.status(self._status)

    def _end_orphaned(self, verdict: Dict[str, Any]) -> None:
        for handle, writer in self._fifos.items():
            while writer.pump(handle):
                pass
        state.write_last(
            self._folder,
            {
                "verdict": verdict,
                "node": self._spec["node"],
                "outcome": self._status["outcome"],
                "failures": self._status["failures"],
                "at": time.time(),
            },
        )
        self._finished = True


def sweep(run_id: str, folder: str) -> List[Dict[str, Any]]:
    """KILL what carries the run's mark or was recorded as its own, until nothing is left. Returns what did not end."""
    deadline = time.monotonic() + 10.0
    while True:
        left = [one for one in belonging(run_id, folder) if one.pid != os.getpid()]
        if not left or time.monotonic() > deadline:
            return [{"pid": one.pid, "cmd": processes.command(one.pid)} for one in left]
        processes.send_all(left, signal.SIGKILL)
        time.sleep(0.01)  # the kernel needs a moment to take them down; the condition is the loop's


def belonging(run_id: str, folder: str) -> List[processes.Process]:
    """Processes of a run, by their mark and by the record its guard kept."""
    found = {process for process, mark in processes.marks().items() if mark == run_id}
    record = state.read(os.path.join(folder, "procs.json")) or {}
    if record.get("boot_id") == state.boot_id():
        found.update(processes.Process(*one) for one in record.get("processes", []))
    return [process for process in found if processes.alive(process)]


# --- peers


class Peers:
    """The recorder's side of the link: the head's and the others' differ."""

    def links(self) -> List[Link]:
        raise NotImplementedError

    def listening(self) -> Optional[socket.socket]:
        return None

    def due(self) -> float:
        return TICK

    def ready(self, handle: int) -> None:
        raise NotImplementedError

    def tick(self) -> None:
        raise NotImplementedError

    def status(self, status: Dict[str, Any]) -> None:
        raise NotImplementedError


class Head(Peers):
    """Runs the gang: statuses of nodes become events, the gang's actions become orders."""

    def __init__(self, recorder: Recorder, listener: Optional[socket.socket]) -> None:
        self._recorder = recorder
        self._spec = recorder._spec
        self._listener = listener
        if listener is not None:
            listener.setblocking(False)
        self._guests: Dict[int, Link] = {}  # not authenticated yet, or superseded
        self._nodes: Dict[int, Link] = {}
        self._heard: Dict[int, float] = {}
        self._tick_at = self._beat_at = 0.0
        self._answered = False
        self._state = gang.begin(self._spec["nodes"])
        self._log = self._replay(os.path.join(recorder._folder, "gang.jsonl"))

    def _replay(self, path: str) -> int:
        """Decisions are a function of events, so the events are what is kept. Returns the log to append to."""
        log = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        known = os.pread(log, os.fstat(log).st_size, 0)
        if known and not known.endswith(b"\n"):  # our predecessor was killed as it wrote: what follows is a new line
            os.write(log, b"\n")
        for line in known.split(b"\n"):
            try:
                entry = json.loads(line)
                event: gang.Event = getattr(gang, entry["event"])(**entry["fields"])
            except (ValueError, KeyError, TypeError, AttributeError):
                continue  # a torn last line: that event will come again with the nodes' statuses
            self._state, _ = gang.step(self._state, event)
        now = time.monotonic()
        self._heard = {
            number: now
            for number, node in enumerate(self._state.nodes)
            if number and node.phase not in ("absent", "left")
        }
        return log

    def _now(self) -> float:
        """Seconds since 1970 by a clock that is never set back, the same for all recorders of this run."""
        return float(self._spec["epoch"]) + time.monotonic()

    def links(self) -> List[Link]:
        return list(self._guests.values()) + list(self._nodes.values())

    def listening(self) -> Optional[socket.socket]:
        return self._listener

    def ready(self, handle: int) -> None:
        if self._listener is not None and handle == self._listener.fileno():
            self._accept()
            return
        for link in self.links():
            if link.fileno() == handle:
                self._exchange(link)
                return

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept() if self._listener else (None, None)
        except OSError:
            return
        if connection is not None:
            link = Link(connection, self._recorder._key, None)
            self._guests[link.fileno()] = link
            if len(self._guests) > 256:  # strangers that connect and say nothing shall not use up our descriptors
                self._drop(min(self._guests.values(), key=lambda one: one.opened_at))

    def _exchange(self, link: Link) -> None:
        was_ready = link.ready
        try:
            link.flush()
            messages = link.receive()
        except LinkClosed:
            self._drop(link)
            return
        if link.ready and not was_ready:
            del self._guests[link.fileno()]
            number = link.node if link.node is not None else -1
            if not 0 < number < len(self._state.nodes):
                link.close()
                return
            old = self._nodes.pop(number, None)
            if old is not None:
                old.close()
            self._nodes[number] = link
            self._step(gang.Joined(number, self._now()))
        if link.ready and link.node is not None:
            self._heard[link.node] = link.heard_at
            for message in messages:
                if "status" in message:
                    self._told(link.node, message["status"])

    def _drop(self, link: Link) -> None:
        self._guests.pop(link.fileno(), None)
        if link.node is not None and self._nodes.get(link.node) is link:
            del self._nodes[link.node]
            self._step(gang.Left(link.node, self._now()))
        link.close()

    def status(self, status: Dict[str, Any]) -> None:
        now = self._now()
        if self._state.nodes[0].phase == "absent" or not self._answered:
            self._answered = True
            self._step(gang.Joined(0, now))
            self._recorder.command({"do": "prepared", "ready": {}})
        if status["start"] is not None and self._state.phase == "waiting":
            self._step(gang.StartRequested(status["start"]["master_addr"], status["start"]["master_port"], now))
        self._told(0, status)

    def _told(self, number: int, status: Dict[str, Any]) -> None:
        """A node tells all it knows, every time; what is news becomes an event."""
        now = self._now()
        host = self._state.nodes[number].host
        if status["stop"] is not None:
            self._step(gang.StopRequested(status["stop"]["by"], status["stop"]["grace"], now))
        if status["phase"] == "running":
            self._step(gang.Started(number, status["attempt"], now))
        for failure in status["failures"]:
            self._step(gang.Failed(number, failure["attempt"], dict(failure, host=host, node=number), now))
        if status["phase"] == "exited":
            self._step(gang.Exited(number, status["attempt"], bool(status["outcome"]["ok"]), now))

    def tick(self) -> None:
        now = time.monotonic()
        if now < self._tick_at:
            return  # this is called after every line of output
        self._tick_at = now + TICK
        for link in list(self._guests.values()):
            if now - link.opened_at > HANDSHAKE_WINDOW:
                self._drop(link)
        if now >= self._beat_at:
            self._beat_at = now + BEAT
            for link in list(self._nodes.values()):
                self._send(link, {})
        for number, heard in list(self._heard.items()):
            if now - heard > LEASE and self._state.nodes[number].phase not in ("absent", "lost", "left"):
                self._step(gang.Lost(number, self._now()))
        self._step(gang.Tick(self._now()))

    def _send(self, link: Link, message: Dict[str, Any]) -> None:
        try:
            link.send(message)
        except LinkClosed:
            self._drop(link)

    def _step(self, event: gang.Event) -> None:
        before = self._state
        self._state, actions = gang.step(before, event)
        if self._state != before:
            entry = json.dumps({"event": type(event).__name__, "fields": event._asdict()}) + "\n"
            try:
                os.write(self._log, entry.encode("ascii"))
            except OSError:
                pass  # a full disk: the gang lives on in memory, only a restart of this recorder would forget
            self._narrate(before)
        for action in actions:
            if action.node == 0:
                self._recorder.obey(action.order)
            elif action.node in self._nodes:
                self._send(self._nodes[action.node], {"order": [type(action.order).__name__, action.order._asdict()]})

    def _narrate(self, before: gang.State) -> None:
        after = self._state
        if after.attempt != before.attempt:
            hosts = ", ".join(node.host for node in after.nodes)
            self._recorder.say(
                "attempt %d on %s, rendezvous at %s:%d" % (after.attempt, hosts, after.master_addr, after.master_port)
            )
        if after.first_failure is not None and before.first_failure is None:
            self._recorder.say(
                "first failure: %s: %s; stopping all nodes" % (after.first_failure["host"], after.first_failure["what"])
            )
        elif after.stopped_by is not None and before.stopped_by is None:
            self._recorder.say("stopping all nodes: asked by %s" % after.stopped_by)
        if after.verdict is not None and before.verdict is None:
            self._recorder.say(
                "the run has %s"
                % {"killed": "been stopped", "lost": "been lost"}.get(after.verdict["state"], after.verdict["state"])
            )


class Follower(Peers):
    """Keeps a link to the head: our status there, its orders here. Without it for a lease, the attempt is ended."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._spec = recorder._spec
        self._link: Optional[Link] = None
        self._redial_at = 0.0
        self._beat_at = 0.0
        self._began = self._heard_at = time.monotonic()
        self._joined = False
        self._fenced = False

    def links(self) -> List[Link]:
        return [self._link] if self._link is not None else []

    def due(self) -> float:
        if self._link is None:
            return max(0.0, min(TICK, self._redial_at - time.monotonic()))
        return TICK

    def ready(self, handle: int) -> None:
        link = self._link
        if link is None or link.fileno() != handle:
            return
        was_ready = link.ready
        try:
            link.flush()
            messages = link.receive()
        except LinkClosed:
            self._close()
            return
        if link.ready:
            self._heard_at = link.heard_at
        if link.ready and not was_ready:
            self._send({"status": self._recorder.reported})
            if not self._joined:
                self._joined = True
                self._recorder.command({"do": "prepared", "ready": {}})
        for message in messages:
            if "order" in message:
                kind, fields = message["order"]
                order: gang.Order = {"Run": gang.Run, "Stop": gang.Stop, "End": gang.End}[kind](**fields)
                self._recorder.obey(order)

    def _close(self) -> None:
        if self._link is not None:
            self._link.close()
        self._link = None
        self._redial_at = time.monotonic() + REDIAL

    def status(self, status: Dict[str, Any]) -> None:
        self._send({"status": status})

    def _send(self, message: Dict[str, Any]) -> None:
        if self._link is None:
            return
        try:
            self._link.send(message)
        except LinkClosed:
            self._close()

    def tick(self) -> None:
        now = time.monotonic()
        if self._link is None and now >= self._redial_at:
            try:
                self._link = dial(
                    self._spec["link_address"], self._spec["link_port"], self._recorder._key, self._spec["node"]
                )
            except LinkClosed:
                self._close()
        elif self._link is not None and not self._link.ready and now - self._link.opened_at > HANDSHAKE_WINDOW:
            self._close()
        if now >= self._beat_at:
            self._beat_at = now + BEAT
            self._send({})
        if self._link is not None and self._link.ready and now - self._link.heard_at > LEASE:
            self._close()
        if not self._joined and now - self._began > JOIN_WINDOW:
            self._began = now
            why = "no link to the head at %s:%d" % (self._spec["link_address"], self._spec["link_port"])
            self._recorder.command({"do": "cannot", "why": why, "code": "ephemeral-ports-blocked"})
        if now - self._heard_at > LEASE and not self._fenced and self._recorder.reported["attempt"] > 0:
            self._fenced = True
            self._fence()

    def _fence(self) -> None:
        """The head is gone, or we are cut off from it: the others are stopping, and so do we."""
        head = self._spec["nodes"][0]["host"]
        status = self._recorder.reported
        by = (status["stop"] or {}).get("by")
        self._recorder.say("nothing heard of the head (%s) for %d s: stopping" % (head, LEASE))
        failure = {"host": head, "node": 0, "rank": None, "what": "head lost", "lost": True, "at": time.time()}
        verdict = {
            "state": "killed" if by else "lost",
            "first_failure": None if by else failure,
            "stopped_by": by,
            "attempt": status["attempt"],
        }
        self._recorder.command({"do": "end", "verdict": verdict})
