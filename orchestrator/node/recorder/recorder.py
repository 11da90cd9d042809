"""The recorder: writes the journal, keeps the link, runs the gang on the head. Killed at any moment it loses no byte.

The guard starts and restarts it. Everything it knows is on disk or is sent again: the guard sends its whole
status to a new recorder, the length of the journal says how far it was written, the gang's events are replayed, and
nodes join again.
"""

import json
import os
import select
import socket
import time
from typing import Any, Callable, Dict, List, Optional

from ..gang import gang_events
from ..guard import autostart, exit_record, succession
from ..guard.past import after_kill
from ..guard.permit import Renewal, clock
from ..host import processes, state
from ..host.sweep import sweep
from ..link import messages
from ..link.attempt_phase import AttemptPhase
from ..link.link import LEASE, lease
from ..link.peers import ClusterLink, RecorderApi
from . import journal
from .health_check import HealthCheck

PUMPS_A_TURN = 4  # MiB from one FIFO before the others get their turn
# A turn that brought less than LITTLE bytes of output is followed by a pause: line by line, 10,000 lines a second would
# cost a tenth of a core and make as many pieces for every reader. Less than the smallest FIFO holds: none may get full.
LITTLE, PAUSE = 2048, 0.005  # bytes, s
LOOK_CLOSER_AFTER = 5.0  # s of silence until we look whether ranks are stopped, and then between two looks
DYING_WINDOW = 5.0  # s from the end of a guard's channel to the end of the guard
STOPPED_WINDOW = 1.0  # s to tell the head of the end of a guard that was killed because it did not stop


class Recorder:
    def __init__(
        self,
        folder: str,
        spec: Dict[str, Any],
        private: Dict[str, Any],
        guard: socket.socket,
        guard_pid: int,
        cluster_link: Callable[[RecorderApi], ClusterLink],
    ) -> None:
        """`cluster_link` makes our side of the link; it is called once, when all that a RecorderApi has is there."""
        self.folder = folder
        self.spec = spec
        self.key = bytes.fromhex(private["key"])
        self.notify = private["notify"]
        self._private = private
        self._secrets = [value for value in private["secrets"].values() if len(value) >= 8]  # as the Mask of `logs`
        self._guard: Optional[socket.socket] = guard
        self._guard_pid = guard_pid
        self._status: Dict[str, Any] = {
            "attempt": 0,
            "phase": AttemptPhase.PREPARED.value,
            "failures": [],
            "outcome": None,
            "start": None,
            "committed": False,
            "waiting": False,
            "fenced": False,
            "restarted": False,
            "begun": 0,
            "finish": None,
            "stop": None,
            "drain": False,
            "team_requests": [],
        }
        self._journal = os.path.join(folder, "log")
        self._newest: Optional[int] = None  # attempt whose FIFOs were opened; nothing is written of later ones
        self._fifos: Dict[int, journal.Writer] = {}
        self._drained = 0  # all attempts before this one: their FIFOs are done with
        self._own: Optional[journal.Writer] = None
        self._finished = False
        self._heard_ranks_at = time.monotonic()
        self._looks_at = 0.0
        self._frozen: List[int] = []  # at the last look
        # complete segments are all that can be dropped: they must be small against the journal that may be kept
        limit, streams = spec["keep"]["journal"], 2 * (spec["nproc"] + 1)
        self._segment = max(journal.SEGMENT_LEAST, min(journal.SEGMENT, limit // (4 * streams)))
        self._grown = self._segment  # bytes since the journal's size was looked at
        self._last_lines: List[str] = []  # the last line of each failure reported of this attempt
        self._orphan_until: Optional[float] = None
        self._verdict: Optional[Dict[str, Any]] = None  # that the guard was told
        self._renewal = Renewal(lease(spec))
        self._health = HealthCheck(folder, spec, lambda attempt, problems: self._link.on_checked(attempt, problems))
        self._link = cluster_link(self)

    # the loop

    def run(self) -> None:
        while not self._finished:
            poll = select.poll()
            for handle in self._fifos:
                poll.register(handle, select.POLLIN)
            if self._guard is not None:
                poll.register(self._guard, select.POLLIN)
            for link in self._link.links():
                poll.register(link.fileno(), select.POLLIN | (select.POLLOUT if link.wants_write() else 0))
            for listener in self._link.listening():
                poll.register(listener, select.POLLIN)
            for handle in [*self._health.handles(), *self._link.pipes()]:
                poll.register(handle, select.POLLIN)
            moved, heard = 0, False
            for handle, events in poll.poll(int(self._link.due() * 1000) + 1):
                if handle in self._fifos:
                    moved += self._pump(handle, events)
                elif self._guard is not None and handle == self._guard.fileno():
                    self._hear_guard()
                elif handle in self._health.handles():
                    self._health.on_readable()
                else:
                    if heard:
                        self._link.on_tick()  # hundreds of nodes may send something, and all of them wait for our beat
                    self._link.on_readable(handle)
                    heard = True
            self._health.advance(time.monotonic())
            self._link.on_tick()
            self._renew_permit()
            if self._status["drain"]:
                self._drain()
            if self._orphan_until is not None and time.monotonic() > self._orphan_until:
                self._end_orphaned(self._lost())
            self._grown += moved
            if self._grown >= self._segment:
                self._trim()
            if 0 < moved < LITTLE:
                time.sleep(PAUSE)

    # the journal

    def _open_fifos(self) -> None:
        folder = os.path.join(self.folder, "fifo")
        opened = {writer.stream for writer in self._fifos.values()}
        names = [name.split(".") for name in os.listdir(folder) if name.count(".") == 2]
        present = {journal.Stream(int(attempt), source, channel) for attempt, source, channel in names}
        new = {stream for stream in present - opened if stream.attempt >= self._drained}  # else it is about to go
        is_next = self._newest is not None and all(stream.attempt > self._newest for stream in new)
        known = journal.segments(self._journal) if new and not is_next else {}  # slow after many attempts
        self._newest = max((stream.attempt for stream in new), default=self._newest)
        for stream in sorted(new):
            try:
                handle = os.open(os.path.join(folder, str(stream)), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            except FileNotFoundError:
                continue  # removed since: our predecessor had told the guard that it is drained
            self._fifos[handle] = journal.Writer(self._journal, stream, self._segment, known.get(stream, []))

    def _close_old_fifos(self) -> None:
        """Finish the FIFOs of earlier attempts, whose processes have ended."""
        attempt = self._status["attempt"]
        old = [handle for handle, writer in self._fifos.items() if writer.stream.attempt < attempt]
        for handle in old:
            self._finish(handle)
        if old:
            self._drained = attempt
            self.command({"do": "drained", "attempt": attempt})

    def _finish(self, handle: int) -> None:
        """Take what is left in a FIFO that nobody writes any more, and close it."""
        writer = self._fifos[handle]
        while writer.pump(handle):
            pass
        if writer.dropped:
            what = "%d bytes of output of %s, attempt %d, were dropped: the disk was full"
            self.say(what % (writer.dropped, writer.stream.writer, writer.stream.attempt))
        writer.close()
        os.close(handle)
        del self._fifos[handle]

    def _pump(self, handle: int, events: int) -> int:
        moved = 0
        for _ in range(PUMPS_A_TURN):
            piece = self._fifos[handle].pump(handle)
            moved += piece
            if piece:
                if self._fifos[handle].stream.source.isdigit():
                    self._heard_ranks_at = time.monotonic()
            else:
                if events & select.POLLHUP:  # the guard, which keeps it open, is dead, and everything has been read
                    self._finish(handle)
                break
        return moved

    def _trim(self) -> None:
        self._grown = 0
        limit = self.spec["keep"]["journal"]
        for stream, dropped in journal.trim(self._journal, limit).items():
            what = (
                "the journal has reached run.keep.log_size (%d MiB): the oldest %.1f MiB of %s, attempt %d, are dropped"
            )
            self.say(what % (limit >> 20, dropped / 2.0**20, stream.writer, stream.attempt))

    def say(self, text: str) -> None:
        """A line of our own in the journal."""
        attempt = max(1, int(self._status["attempt"]), int(self._status["begun"]))
        if self._own is None or self._own.stream.attempt != attempt:
            if self._own is not None:
                self._own.close()
            known: Optional[List[journal.Segment]] = None if self._own is None else []  # the first may not be new
            self._own = journal.Writer(self._journal, journal.Stream(attempt, "run", "out"), known=known)
        self._own.append(("ddp-orch: " + text + "\n").encode("utf-8", "backslashreplace"))

    def _drain(self) -> None:
        """The run has ended: take what the FIFOs still hold, then end."""
        for handle in list(self._fifos):
            self._finish(handle)
        self._health.close()
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
        self._read_status(raw)

    def _read_status(self, raw: bytes) -> None:
        before, self._status = self._status["attempt"], json.loads(raw)
        if self._status["attempt"] != before:
            self._heard_ranks_at = time.monotonic()
            self._last_lines = []
        self._open_fifos()
        self._add_last_lines()
        self._close_old_fifos()
        self._link.on_status(self._status)

    def _add_last_lines(self) -> None:
        """Add the last line on the stderr of its process to each failure. With the exit code it tells causes apart."""
        failures = self._status["failures"]
        for failure in failures[len(self._last_lines) :]:
            for handle in list(self._fifos):  # the guard saw the end of the process: all it wrote is in its FIFO
                self._pump(handle, 0)
            rank = failure["rank"]
            source = "agent" if rank is None else str(rank)
            stream = journal.Stream(failure["attempt"], source, "err")
            writer = next((writer for writer in self._fifos.values() if writer.stream == stream), None)
            last_line = writer.last_words() if writer else journal.last_words(self._journal, stream)
            self._last_lines.append(self._hidden(self._shortened(last_line)))
        for number, failure in enumerate(failures):
            failure["said"] = self._last_lines[number]

    def _shortened(self, text: str) -> str:
        """Without this host's own folders: the same failure of two hosts must read the same."""
        code = os.path.join(self.folder, "code")
        host = os.path.dirname(os.path.dirname(self.folder))  # this host's part of the state folder
        for folder in sorted({self.spec["cwd"], code, host} - {"/"}, key=len, reverse=True):  # one may be in another
            text = text.replace(folder + "/", "")
        return text

    def _hidden(self, text: str) -> str:
        """Without the run's secrets: last lines go into the records, which unlike the journal contain none."""
        for secret in self._secrets:
            text = text.replace(secret, "***").replace(repr(secret)[1:-1], "***")
        return text

    def command(self, message: Dict[str, Any]) -> None:
        if message["do"] == "end":
            self._verdict = message["verdict"]
        if self._guard is None:
            if message["do"] == "end":
                self._end_orphaned(message["verdict"])
            return
        try:
            self._guard.send(json.dumps(message).encode("ascii"))
        except (BrokenPipeError, ConnectionResetError):  # anything else, such as a message too long, is a bug of ours
            self._orphaned()

    def permit(self, seconds: float) -> None:
        """Allow the ranks here to run for so many seconds from now. When that has passed, the guard stops them."""
        self._renewal.grant(clock(), seconds)
        self._renew_permit()

    def _renew_permit(self) -> None:
        now = clock()
        seconds = self._renewal.due(now)
        if seconds is not None:
            self.command({"do": "permit", "at": now, "seconds": seconds})

    def obey(self, order: gang_events.Order, until: Optional[float] = None) -> None:
        """Bring an order of the gang to our guard."""
        if isinstance(order, (gang_events.Run, gang_events.Wait)):
            self._health.begin(self._link.own_address())
        if isinstance(order, gang_events.Run):
            self.command({"do": "run", "order": order._asdict(), "until": until})
        elif isinstance(order, gang_events.Stop):
            self.command(dict(order._asdict(), do="stop"))
            if self.spec["max_restarts"] and self._status["stop"] is None:
                self._health.expect_check()
        elif isinstance(order, gang_events.Commit):
            self.command({"do": "commit"})
        elif isinstance(order, gang_events.Wait):
            self.command({"do": "wait", "team": order.team})
        elif isinstance(order, gang_events.Check):
            self._health.check(order.attempt, None if self._link.leads else order.at)
        else:
            self.command({"do": "end", "verdict": order.verdict})

    @property
    def reported(self) -> Dict[str, Any]:
        return self._status

    def silence(self) -> Dict[str, Any]:
        """`quiet`: seconds since a rank of this host printed anything; `frozen`: its ranks that a signal stopped."""
        now = time.monotonic()
        quiet = now - self._heard_ranks_at
        if quiet <= LOOK_CLOSER_AFTER:
            return {"quiet": quiet, "frozen": []}
        if now >= self._looks_at:
            self._looks_at = now + LOOK_CLOSER_AFTER
            record = state.read(os.path.join(self.folder, "procs.json"))
            self._frozen = processes.frozen(record["processes"], dict(record["ranks"])) if record else []
        return {"quiet": quiet, "frozen": self._frozen}

    # without a guard

    def _orphaned(self) -> None:
        """Our guard was killed: end its processes, and have a new guard take over. Without one, the run ends here."""
        guard, self._guard = self._guard, None
        if guard is None:
            return
        self._read_last_statuses(guard)
        deadline = time.monotonic() + DYING_WINDOW
        while os.getppid() == self._guard_pid:  # a dying process closes its descriptors before its children are orphans
            if time.monotonic() > deadline:
                os._exit(70)  # the guard lives and has closed our channel; it will start another recorder
            time.sleep(0.005)
        taken = succession.claim(self.folder)
        left = [each for each in sweep(self.spec["run_id"], self.folder) if each["pid"] is not None]
        self._open_fifos()
        for handle in list(self._fifos):
            self._finish(handle)
        failure: Dict[str, Any] = dict.fromkeys(("rank", "exit_code", "signal"))
        failure.update(pid=self._guard_pid, what="the guard was killed")
        failure.update(at=time.time(), attempt=self._status["attempt"])
        if self._verdict is not None:
            self._end_orphaned(self._verdict)
            return
        self._hand_over(failure, left, taken)
        succession.release(taken)
        self._report_end(failure, left)

    def _read_last_statuses(self, guard: socket.socket) -> None:
        """The guard may have sent more before its end than we have read."""
        guard.setblocking(False)
        with guard:
            while True:
                try:
                    raw = guard.recv(1 << 20)
                except OSError:
                    return
                if not raw:
                    return
                self._read_status(raw)

    def _hand_over(self, failure: Dict[str, Any], left: List[Dict[str, Any]], taken: List[int]) -> None:
        """Start a new guard, whose recorder takes over from us. Returns only if that is not possible.

        `taken`: by succession.claim.
        """
        status = self._status
        if status["stop"] is not None or not status["committed"]:
            return  # it is being stopped, or was never committed here
        self.say("the guard was killed, and its processes too; a new one takes over")
        past = after_kill(self.folder, status, failure, left)
        try:
            listeners = self._link.listening()
            succession.replace_guard(self.folder, self.spec, self._private, listeners, past, taken)
        except succession.NotPossible as error:
            self.say("no new guard: %s" % error)
            return
        os._exit(0)

    def _report_end(self, failure: Dict[str, Any], left: List[Dict[str, Any]]) -> None:
        """No guard will come: report to the gang, and write the exit record in the guard's place."""
        stop = self._status["stop"] or state.read(os.path.join(self.folder, "stop.json"))
        self._orphan_until = time.monotonic() + (2 * LEASE if stop is None else STOPPED_WINDOW)
        self._status = dict(
            self._status,
            phase=AttemptPhase.EXITED.value,
            failures=self._status["failures"][: messages.FAILURES - 1] + [dict(failure, gone=True)],
            outcome={"ok": False, "stopped": None, "statuses": {}, "unkillable": left, "ended": []},
            stop=stop,
        )
        self.say("the guard was killed; its processes were killed too")
        self._link.on_status(self._status)

    def _lost(self) -> Dict[str, Any]:
        """The verdict where no host has said how the run ended."""
        here = {"host": self.spec["nodes"][self.spec["node"]]["host"], "node": self.spec["node"]}
        failure = {**self._status["failures"][-1], **here}
        return {"state": "lost", "first_failure": failure, "stopped_by": None, "attempt": self._status["attempt"]}

    def _end_orphaned(self, verdict: Dict[str, Any]) -> None:
        for handle in list(self._fifos):
            self._finish(handle)
        exit_record.write(self.folder, self.spec, verdict, self._status["outcome"], self._status["failures"])
        if autostart.is_installed(self.folder):
            autostart.remove(self.folder)
        self._finished = True
