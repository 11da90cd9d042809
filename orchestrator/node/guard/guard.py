"""The guard: one process a run and host that owns the run's process tree and ends it exactly. Never blocks.

A relay starts it at `prepare`. It outlives the SSH session, starts and restarts the recorder, keeps the FIFOs, obeys
the orders that the recorder brings from the gang, and writes the exit record. SIGTERM stops the run on this host
(stop.json says who asked). Its lock on run.lock, not a pid in a file, proves that a run has a guard.
"""

import fcntl
import functools
import os
import select
import signal
import socket
import time
from typing import Any, Callable, Dict, List, Optional, Tuple

from ..gang import gang_events, gang_state
from ..host import guard_locks, network, processes, state
from ..link import messages
from ..link.attempt_phase import AttemptPhase
from . import team_requests
from .attempts import AttemptOrder, Attempts, takes_precedence
from .child import Become, RecorderChild
from .control import Control
from .past import Past
from .permit import Permit, clock
from .requests import Requests
from .shutdown import LEAVE_GRACE, Shutdown
from .snapshot_request import SnapshotRequest

LONGEST_TURN = 5.0  # s, the longest wait for an event


class Guard:
    def __init__(
        self,
        folder: str,
        spec: Dict[str, Any],
        private: Dict[str, Any],
        control: socket.socket,
        sockets: Dict[str, List[socket.socket]],
        held: List[int],
        become_recorder: Become,
        past: Optional[Past] = None,
    ) -> None:
        """`private`: the run's secrets and key, in memory only. `held`: locks of GPUs and names, until the guard ends.

        `past`: what there was before, if the run had another guard here.

        `sockets`, one for each address of this node: "link" for the recorders of other nodes, and on the head "rdzv" to
        keep the rendezvous port until it is needed.
        """
        self._folder = folder
        self._spec = spec
        self._private = private
        self._link_listeners = sockets.get("link", [])
        self._locks = list(held)
        self._committed = False  # the head has said that the run has begun
        self._waiting = False  # as a spare: the gang has begun without this node
        self._permit = Permit()
        self._holds = 0  # requests to hold the run, see tie.py
        self._finish: Optional[Dict[str, Any]] = None  # who wants the run to save a snapshot and stop
        self._snapshot_request: Optional[SnapshotRequest] = None
        # waits until no process of an older attempt is left; an order to run, at most until that time
        self._next_order: Optional[AttemptOrder] = None
        self._next_until: Optional[float] = None
        self._recorder = RecorderChild(become_recorder)
        self._control = Control(control)
        self._attempts = Attempts(
            folder,
            spec,
            private,
            sockets.get("rdzv", []),
            lambda: self._recorder.pid,
            self._send_status,
            self._write_state,
        )
        self._shutdown = Shutdown(folder, self._recorder, self._send_status)
        self._team_requests = team_requests.TeamRequests(past.team_requests if past is not None else ())
        self._requests = Requests(folder, self._answer_request)
        self._has_past = past is not None
        self._restarted = past is not None and past.restarted
        self._begun = 0 if past is None else past.begun
        if past is not None:
            self._waiting, self._control.start, self._finish = past.waiting, past.start, past.finish
            self._attempts.resume(past)

    # the loop

    def run(self) -> None:
        wakeup, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        for number in (signal.SIGCHLD, signal.SIGTERM):
            signal.signal(number, lambda *_: None)
        for number in (signal.SIGHUP, signal.SIGINT, signal.SIGPIPE):
            signal.signal(number, signal.SIG_IGN)
        self._attempts.open_register()
        self._attempts.preload()
        self._write_state()
        self._start_recorder()
        if self._has_past:
            self._control.answer({"rejoined": {"pid": os.getpid(), "boot_id": state.boot_id()}})
        for sock in filter(None, [self._control.channel, *self._attempts.rendezvous]):
            sock.setblocking(False)
        while not self._shutdown.finished:
            self._turn(wakeup)
        self._attempts.end_preloader()  # of an aborted run; it may not watch for our end yet

    def _turn(self, wakeup: int) -> None:
        watched: Dict[int, Callable[[], None]] = {
            wakeup: lambda: self._read_signals(wakeup),
            self._attempts.register: self._attempts.read_registrations,
        }
        if self._control.channel is not None:
            watched[self._control.channel.fileno()] = self._read_control
        for listener in self._attempts.rendezvous:
            watched[listener.fileno()] = functools.partial(network.accept_and_close, listener)
        poll = select.poll()
        channel = self._recorder.channel
        if channel is not None:
            watched[channel.fileno()] = self._read_recorder
        if self._attempts.preloader is not None:
            watched[self._attempts.preloader.fileno()] = self._attempts.read_preloader
        for handle in [*watched, *self._attempts.ranks()]:
            poll.register(handle, select.POLLIN)
        if channel is not None and self._recorder.has_unsent_status:
            poll.modify(channel.fileno(), select.POLLIN | select.POLLOUT)
        for handle, events in self._requests.watched():
            poll.register(handle, events)
            watched[handle] = functools.partial(self._requests.on_ready, handle)
        ready = [handle for handle, _ in poll.poll(int(self._seconds_to_wait() * 1000) + 1)]
        # before any exit is looked at: a rank may have ended already when its registration is read
        self._attempts.read_registrations()
        for handle in ready:
            if handle in watched:
                watched[handle]()
            else:
                self._attempts.on_rank_exit(handle)
        self._reap()
        if channel is None or channel.fileno() not in ready:  # else there may be a new permit to be read
            self._fence_if_due()
        self._advance()

    def _seconds_to_wait(self) -> float:
        """Until something has to be done though no descriptor is readable."""
        now = time.monotonic()
        due = [now + LONGEST_TURN, self._attempts.due_at(), self._shutdown.due_at(), self._requests.due_at()]
        if self._recorder.due is not None:
            due.append(self._recorder.due)
        if self._snapshot_request is not None:
            due.append(self._snapshot_request.due_at)
        if not self._is_committed():
            due.append(self._control.patience_ends_at())
        if self._attempts.is_running and not self._attempts.is_fenced:
            due.append(now + self._permit.seconds_left(clock()))
        return max(0.0, min(due) - now)

    def _advance(self) -> None:
        now = time.monotonic()
        self._attempts.advance(now)
        if self._snapshot_request is not None:
            self._snapshot_request.advance(now, self._attempts.tree)
        self._requests.drop_late(now)
        if self._next_order is not None and not self._attempts.is_running:
            order, self._next_order = self._next_order, None
            self._carry_out(order, self._next_until)
        if self._recorder.due is not None and now >= self._recorder.due and not self._shutdown.leaves:
            self._start_recorder()
        if not self._is_committed() and now > self._control.patience_ends_at():
            self._shutdown.abort()
        if self._shutdown.is_due and not self._attempts.is_running:
            self._attempts.end_preloader()
            self._shutdown.advance(now)

    def _is_committed(self) -> bool:
        """Whether the head has started the run, as far as this node knows."""
        is_at_work = self._waiting or self._control.start is not None or self._attempts.tree is not None
        return self._committed or self._has_past or is_at_work

    # the recorder

    def _start_recorder(self) -> None:
        if self._recorder.start(self._folder, self._spec, self._private, self._link_listeners):
            self._send_status()

    def _send_status(self) -> None:
        """Send everything the recorder has to know: it may have been started a moment ago.

        Of failures those of this attempt, and not all where many ranks fail: a message that is too long for the channel
        would be lost.
        """
        if self._shutdown.leaves:  # how its ranks end is no news: the host is about to be lost
            return
        attempt, tree = self._attempts.number, self._attempts.tree
        failures = [failure for failure in self._attempts.failures if failure["attempt"] == attempt]
        self._recorder.send_status(
            {
                "attempt": attempt,
                "phase": self._phase().value,
                "outcome": {"ok": tree.outcome["ok"]} if tree and tree.outcome else None,
                "failures": failures[: messages.FAILURES],
                "start": self._control.start,
                "committed": self._is_committed(),
                "waiting": self._waiting,
                "fenced": self._attempts.is_fenced,
                "restarted": self._restarted,
                "begun": self._begun,
                "finish": self._finish,
                "holds": self._holds,
                "stop": self._shutdown.stop,
                "drain": self._shutdown.is_draining,
                "team_requests": self._team_requests.pending,
            }
        )

    def _phase(self) -> AttemptPhase:
        if self._attempts.tree is None:
            return AttemptPhase.PREPARED
        return AttemptPhase.RUNNING if self._attempts.is_running else AttemptPhase.EXITED

    def _read_recorder(self) -> None:
        for message in self._recorder.receive():
            self._obey(message)

    def _obey(self, message: Dict[str, Any]) -> None:
        if message["do"] == "run":
            self._carry_out(gang_events.Run(**message["order"]), message["until"])
        elif message["do"] == "stop":
            self._carry_out(gang_events.Stop(message["attempt"], message["grace"], message["why"], message["stacks"]))
        elif message["do"] == "permit":
            self._permit.grant(message["at"], message["seconds"])
        elif message["do"] == "signal":
            self._snapshot_request = SnapshotRequest(message["signal"], self._attempts.number, self._spec["nproc"])
        elif message["do"] == "commit":
            self._committed = True
            self._attempts.make_output_folder()
            self._write_state()
            self._send_status()
        elif message["do"] == "wait":
            self._waiting = True
            self._attempts.wait()
            self._write_state()
            self._send_status()
        elif message["do"] == "end":
            self._shutdown.verdict = message["verdict"]
            self._attempts.stop_now(gang_state.FAILURE_GRACE, "the run is over")
        elif message["do"] == "drained":
            self._attempts.close_fifos(message["attempt"])
        elif message["do"] == "team answer":
            self._team_requests.answer(message["id"], message["answer"])
        elif message["do"] == "prepared":
            self._control.answer({"ready": message["ready"]})
        elif message["do"] == "cannot":
            self._control.answer({"error": message["why"], "code": message["code"]})

    def _carry_out(self, order: AttemptOrder, until: Optional[float] = None) -> None:
        """While an older attempt runs here, it is stopped first: no host has processes of two attempts."""
        if self._attempts.is_running and order.attempt > self._attempts.number:
            if self._next_order is None or takes_precedence(order, self._next_order):
                self._next_order, self._next_until = order, until
            self._attempts.stop_now(gang_state.FAILURE_GRACE, "attempt %d follows" % order.attempt)
        elif isinstance(order, gang_events.Run):
            self._run_attempt(order, until)
        else:
            self._attempts.stop(order)

    def _run_attempt(self, order: gang_events.Run, until: Optional[float]) -> None:
        """`until`: when the order is out of date, as the head may have been replaced. A head repeats its orders."""
        if (
            self._shutdown.verdict is not None
            or self._shutdown.stop is not None
            or order.attempt <= max(self._attempts.number, self._begun)
            or (until is not None and clock() >= until)
        ):
            self._send_status()  # the gang must know why there is no start: a stop request, or it was done already
            return
        self._permit.begin(clock())
        if self._permit.has_lapsed(clock()):
            self._attempts.skip(order.attempt)
        else:
            self._restarted = False
            self._attempts.start(order)

    def _fence_if_due(self) -> None:
        """Stop the ranks when the permit has lapsed. The guard stays: the head may come back, and has new orders."""
        if self._attempts.is_running and not self._attempts.is_fenced and self._permit.has_lapsed(clock()):
            self._attempts.fence()
            self._send_status()

    # signals and children

    def _read_signals(self, wakeup: int) -> None:
        try:
            numbers = os.read(wakeup, 4096)
        except BlockingIOError:
            return
        if signal.SIGTERM in numbers:
            request = state.read(self._path("stop.json")) or {}
            if not request and self._shutdown.leave_with_host(self._spec):
                self._attempts.stop_now(min(float(self._spec["grace"]), LEAVE_GRACE), "the host shuts down")
            else:
                by = messages.one_line(str(request.get("by", "SIGTERM from outside")))
                self.request_stop(by, float(request.get("grace", self._spec["grace"])))

    def request_stop(self, by: str, grace: float) -> None:
        self._shutdown.request_stop(by, grace)
        # before our ranks end: ranks of other hosts may then fail at once, and that must not count as a failure
        self._send_status()
        self._attempts.stop_now(grace, "stopped by %s" % by)

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == self._recorder.pid:
                self._recorder.ended()
                self._shutdown.on_recorder_exit(status)
            else:
                self._attempts.on_child_exit(pid, status)

    # the controller, while it is connected

    def _read_control(self) -> None:
        for message in self._control.receive():
            if message["do"] == "start" and self._control.start is None:
                self._commit(message["start"])
            elif message["do"] == "abort" and not self._is_committed():
                self._shutdown.abort()
        if self._control.channel is None and self._spec["node"] == 0 and not self._is_committed():
            self._shutdown.abort()  # only the head could have been committed: with its controller gone it never will be

    def _commit(self, start: Dict[str, Any]) -> None:
        self._control.start = start
        if self._link_listeners:
            self._link_listeners = network.keep_only(self._link_listeners, start["link_addresses"])
        self._write_state()
        self._send_status()
        self._control.answer({"started": {"pid": os.getpid(), "boot_id": state.boot_id()}})

    # other processes of this user

    def _answer_request(self, request: Dict[str, Any]) -> Dict[str, Any]:
        if request.get("do") == "ticket":
            return {"private": self._private}
        if request.get("do") == "hold":
            self._holds += 1
            self._send_status()
            return {}
        try:
            if request.get("do") == "signal":
                number, chosen = _signal_number(request), request["ranks"]
                return self._attempts.signal_ranks(number, chosen, request["only_if_caught"], request["dry"])
            if request.get("do") == "finish":
                return self._request_finish(str(request["by"]), _signal_number(request))
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            return {"error": "malformed request: %r" % error, "code": "unknown"}
        if request.get("do") in ("drain", "add") and team_requests.may_come(self._spec):
            answer = self._team_requests.add(request)
            self._send_status()
            return answer
        if request.get("do") == "withdraw":
            answer = self._team_requests.withdraw(str(request.get("id")))
            self._send_status()
            return answer
        return {"error": "unknown request", "code": "unknown"}

    def _request_finish(self, by: str, number: int) -> Dict[str, Any]:
        """Have the gang save a snapshot, by that signal to the ranks, and then stop the run."""
        known = self._attempts.signal_ranks(number, None, only_if_caught=True, dry=True)
        if self._finish is None:
            can_save = bool(known["ranks"]) and not known["uncaught"]  # a spare, or a host whose ranks begin, cannot
            self._finish = {"by": messages.one_line(by), "can_save": can_save}
        self._send_status()
        return {"can_save": self._finish["can_save"]}

    def take_over_preloader(self, channel: socket.socket, pid: int) -> None:
        """Use that of an earlier run."""
        self._attempts.take_over_preloader(channel, pid)

    def preloader_to_keep(self) -> Optional[Tuple[socket.socket, int]]:
        """The channel and the pid of a preloader that outlives the run, with `run.warm`."""
        is_over = self._shutdown.verdict is not None and not self._has_past
        return self._attempts.idle_preloader() if is_over else None

    # records

    def close(self) -> bool:
        tree = self._attempts.tree
        self._shutdown.write_record(self._spec, tree.outcome if tree else None, self._attempts.failures)
        return not self._shutdown.leaves

    def _write_state(self) -> None:
        record = {
            "phase": self._phase().value,
            "attempt": max(self._attempts.number, self._begun),
            "committed": self._is_committed(),
            "guard": processes.identify(os.getpid()),
            "boot_id": state.boot_id(),
            "start": self._control.start,
            "failures": self._attempts.failures,
            **self._attempts.place,
        }
        try:
            state.write(self._path("state.json"), record)
        except OSError as error:
            if error.errno not in state.UNWRITABLE:
                raise

    def _path(self, *names: str) -> str:
        return os.path.join(self._folder, *names)

    def hold(self) -> None:
        """Take run.lock. A process that can take it later knows that the guard has gone."""
        lock = os.open(self._path(guard_locks.RUN_LOCK), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX)  # a reader may be trying it for an instant; there is no other guard
        self._locks.append(lock)


def _signal_number(request: Dict[str, Any]) -> int:
    number = int(request["signal"])
    if not 0 < number < signal.NSIG:
        raise ValueError("no signal has the number %d" % number)
    return number
