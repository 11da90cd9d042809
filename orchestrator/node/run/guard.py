"""The guard: one process a run and host that owns the run's process tree and ends it exactly. Never blocks.

It is started by a relay at `prepare`, outlives the SSH session, starts the recorder and restarts it when it dies, keeps
the FIFOs, obeys the orders that the recorder brings from the gang, and writes the exit record. SIGTERM stops the run on
this host (the wish, with its grace, is in stop.json). It holds an exclusive lock on run.lock for as long as it lives:
that lock, not a pid in a file, is the proof that a run has its guard.
"""

import fcntl
import functools
import json
import os
import select
import shutil
import signal
import socket
import time
from typing import Any, Callable, Dict, List, Optional, Tuple

from ..host import network, processes, state
from . import gang_events, gang_state, launch, messages
from .child import RecorderChild
from .tree import Tree, make_fifos

UNCOMMITTED_PATIENCE = 45.0  # s that a prepared guard waits for the head's word after its controller has gone
TREE_RECORD_EVERY = 2.0  # s between records of the tree's processes, or longer where looking is dear
TREE_RECORD_SHARE = 1000  # looking at the processes may cost a 1000th of a core
STACKS_WINDOW = 15.0  # s for the stacks of hanging ranks
DRAIN_WINDOW = 15.0  # s for the recorder to write what the FIFOs still hold


class Guard:
    def __init__(
        self,
        folder: str,
        spec: Dict[str, Any],
        private: Dict[str, Any],
        control: socket.socket,
        sockets: Dict[str, List[socket.socket]],
        locks: List[int],
    ) -> None:
        self._folder = folder
        self._spec = spec
        self._private = private  # secrets and the run's key: in memory only
        self._control: Optional[socket.socket] = control
        self._control_buffer = b""
        # on the head, one for each of its addresses: "link" for the recorders, "rdzv" to keep the rendezvous port
        # until it is needed
        self._sockets = sockets
        self._rdzv_port = 0  # of the attempt; 0 on other nodes than the head
        self._locks = list(locks)  # of GPUs: taken for as long as we live
        self._tree: Optional[Tree] = None
        self._tree_told = False
        self._tree_due = 0.0
        self._keepers: Dict[int, Dict[str, int]] = {}  # attempt -> path of a FIFO -> the descriptor that keeps it
        self._failures: List[Dict[str, Any]] = []
        self._start: Optional[Dict[str, Any]] = None
        self._stop: Optional[Dict[str, Any]] = None
        self._end: Optional[Dict[str, Any]] = None
        self._abandoned_at: Optional[float] = None
        self._waiting: Optional[List[str]] = None  # a spare: the team that works
        self._place = _place(spec)
        self._stacks = -1  # the pid of what shows where the ranks hang, and what follows it
        self._after_stacks: Optional[Tuple[float, float, str]] = None
        self._recorder = RecorderChild()
        self._drain_by: Optional[float] = None
        self._recorded: Any = None
        self._record_at = 0.0
        self._finished = False

    # the loop

    def run(self) -> None:
        wakeup, wake = os.pipe()
        os.set_blocking(wakeup, False)
        os.set_blocking(wake, False)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        for number in (signal.SIGCHLD, signal.SIGTERM):
            signal.signal(number, lambda *_: None)
        for number in (signal.SIGHUP, signal.SIGINT, signal.SIGPIPE):
            signal.signal(number, signal.SIG_IGN)
        os.mkfifo(self._path("fifo", "register"), 0o600)
        self._register = os.open(self._path("fifo", "register"), os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        self._register_buffer = b""
        self._write_state()
        self._start_recorder()
        for one in ([] if self._control is None else [self._control]) + self._sockets.get("rdzv", []):
            one.setblocking(False)
        while not self._finished:
            self._turn(wakeup)

    def _turn(self, wakeup: int) -> None:
        poll = select.poll()
        watched: Dict[int, Callable[[], None]] = {
            wakeup: lambda: self._signals(wakeup),
            self._register: self._registrations,
        }
        if self._control is not None:
            watched[self._control.fileno()] = self._controlled
        channel = self._recorder.channel
        if channel is not None:
            watched[channel.fileno()] = self._ordered
        for listener in self._sockets.get("rdzv", []):
            watched[listener.fileno()] = functools.partial(self._knocked, listener)
        for handle in watched:
            poll.register(handle, select.POLLIN)
        if channel is not None and self._recorder.has_to_be_told:
            poll.modify(channel.fileno(), select.POLLIN | select.POLLOUT)
        ranks = self._tree.descriptors() if self._tree else []
        for handle in ranks:
            poll.register(handle, select.POLLIN)
        ready = [handle for handle, _ in poll.poll(int(self._due() * 1000) + 1)]
        # before any exit is looked at: a rank may have ended already when its registration is read
        self._registrations()
        for handle in ready:
            if handle in watched:
                watched[handle]()
            elif self._tree is not None and handle in self._tree.descriptors():
                self._tree.rank_ended(handle)
        self._reap()
        self._decide()

    def _due(self) -> float:
        """Seconds until something has to be done without anybody waking us."""
        now = time.monotonic()
        due = [5.0]
        if self._tree is not None:
            due.append(self._tree_due - now)
            if self._tree.outcome is None:
                due.append(self._record_at - now)
        if self._recorder.due is not None:
            due.append(self._recorder.due - now)
        if self._after_stacks is not None:
            due.append(self._after_stacks[0] - now)
        if self._abandoned_at is not None and not self._committed():
            due.append(self._abandoned_at + UNCOMMITTED_PATIENCE - now)
        if self._drain_by is not None and self._recorder.pid > 0:
            due.append(self._drain_by - now)
        return max(0.0, min(due))

    def _decide(self) -> None:
        now = time.monotonic()
        tree = self._tree
        if tree is not None:
            self._tree_due = now + tree.tick()
            if tree.outcome is not None and not self._tree_told:
                self._tree_told = True
                self._write_state()
                self._tell()
            elif tree.outcome is None and now >= self._record_at:
                self._record_tree()
        if self._recorder.due is not None and now >= self._recorder.due:
            self._start_recorder()
        if self._abandoned_at is not None and not self._committed() and now - self._abandoned_at > UNCOMMITTED_PATIENCE:
            self._abort()
        if self._after_stacks is not None and now >= self._after_stacks[0]:
            self._stop_after_stacks()
        if self._end is not None and (tree is None or tree.outcome is not None):
            self._farewell(now)

    # the recorder

    def _start_recorder(self) -> None:
        argv = processes.own_program(self._spec["program"], "recorder", self._spec["run_id"])
        if self._recorder.start(argv, self._folder, self._spec, self._private, self._sockets.get("link", [])):
            self._tell()

    def _knocked(self, listener: socket.socket) -> None:
        """Another node tries whether it can reach the rendezvous port. Let in and let go, or the queue would fill."""
        try:
            listener.accept()[0].close()
        except OSError:
            pass  # it has gone already

    def _tell(self) -> None:
        """Everything the recorder has to know, whole: it may have been born a moment ago.

        Of failures those of this attempt, and not all where many ranks fail: a message that is too long for the channel
        would be lost.
        """
        tree = self._tree
        attempt = tree.attempt if tree else 0
        status = {
            "attempt": attempt,
            "phase": "prepared" if tree is None else "running" if tree.outcome is None else "exited",
            "outcome": {"ok": tree.outcome["ok"]} if tree and tree.outcome else None,
            "failures": [one for one in self._failures if one["attempt"] == attempt][: messages.FAILURES],
            "start": self._start,
            "waiting": self._waiting is not None,
            "stop": self._stop,
            "drain": self._drain_by is not None,
        }
        self._recorder.tell(status)

    def _ordered(self) -> None:
        for message in self._recorder.said():
            self._obey(message)

    def _obey(self, message: Dict[str, Any]) -> None:
        if message["do"] == "run":
            self._run_attempt(gang_events.Run(**message["order"]))
        elif message["do"] == "stop":
            if self._tree is None or self._tree.attempt < message["attempt"]:  # never begun here: it is over at once
                self._tree, self._tree_told = self._new_tree(message["attempt"]), False
            if self._tree.attempt == message["attempt"] and self._tree.outcome is None:
                self._stop_attempt(message["grace"], message["why"], message["stacks"])
        elif message["do"] == "wait":
            self._waiting = message["team"]
            self._place = {"node_rank": None, "first_rank": None}
            self._write_state()
            self._tell()
        elif message["do"] == "end":
            self._end = message["verdict"]
            if self._tree is not None and self._tree.outcome is None:
                self._tree.stop(gang_state.FAILURE_GRACE, "the run is over")
        elif message["do"] == "drained":
            self._close_fifos(message["attempt"])
        elif message["do"] == "prepared":
            self._answer({"ready": message["ready"]})
        elif message["do"] == "cannot":
            self._answer({"error": message["why"], "code": message["code"]})

    # an attempt

    def _run_attempt(self, order: gang_events.Run) -> None:
        if (
            self._end is not None
            or self._stop is not None
            or (self._tree is not None and order.attempt <= self._tree.attempt)
        ):
            self._tell()  # the gang must know why there will be no start: a stop request, or it has been done already
            return
        for listener in self._sockets.pop("rdzv", []):
            listener.close()
        self._rdzv_port = order.master_port if order.node_rank == 0 else 0
        spec = self._spec
        output = state.output_folder(self._folder, spec)
        code = spec["cwd"]
        paths = launch.Paths(self._folder, self._path("fifo"), self._path("log"), code, output)
        tree = self._new_tree(order.attempt)
        try:
            if not spec.get("shared_output"):  # that was made, and a shared disk may hang by now
                os.makedirs(output, 0o700, exist_ok=True)
            jobs, rank = launch.jobs(spec, self._private["secrets"], order, paths, self._program())
            state.replace(self._path("rank.json"), rank)
            ranks = range(order.first_rank, order.first_rank + spec["nproc"])
            sources = [str(rank) for rank in ranks] + (["agent"] if spec["agent_argv"] else [])
            self._keepers[order.attempt] = make_fifos(paths.fifo, order.attempt, sources)
            if not spec["agent_argv"]:
                tree.direct(order.first_rank)
            self._tree, self._tree_told = tree, False
            self._tell()  # the recorder opens the FIFOs now
            tree.start(jobs)
        except OSError as error:
            self._tree, self._tree_told = tree, False
            self._failed(
                {
                    "rank": None,
                    "exit_code": None,
                    "signal": None,
                    "pid": None,
                    "what": "cannot start: %s" % error,
                    "at": time.time(),
                }
            )
        self._record_at = time.monotonic() + 0.2
        self._place = {"node_rank": order.node_rank, "first_rank": order.first_rank}
        self._write_state()

    def _close_fifos(self, attempt: int) -> None:
        """The recorder has all that the processes of attempts before this one have written, and these are gone."""
        for old in [old for old in self._keepers if old < attempt]:
            for path, keeper in self._keepers.pop(old).items():
                os.unlink(path)
                os.close(keeper)

    def _stop_attempt(self, grace: float, why: str, with_stacks: bool) -> None:
        """`with_stacks`: they can only be had from ranks that still run, so their end waits for that."""
        tree = self._tree
        if tree is None or (with_stacks and self._after_stacks is not None):
            return
        if not with_stacks or tree.stopping is not None:
            tree.stop(grace, why)
            return
        try:
            argv = self._program() + ["stacks", self._path("fifo"), str(tree.attempt)]
            argv += ["%d:%d:%d" % (rank, process.pid, process.started) for rank, process in tree.ranks()]
            self._stacks = os.posix_spawn(argv[0], argv, os.environ)
            self._after_stacks = time.monotonic() + STACKS_WINDOW, grace, why
        except OSError:  # no process or memory to be had
            tree.stop(grace, why)

    def _stop_after_stacks(self) -> None:
        _, grace, why = self._after_stacks or (0.0, gang_state.FAILURE_GRACE, "")
        self._stacks, self._after_stacks = -1, None
        if self._tree is not None and self._tree.outcome is None:
            self._tree.stop(grace, why)

    def _committed(self) -> bool:
        """Whether the head has told that the run has begun."""
        return self._start is not None or self._tree is not None or self._waiting is not None

    def _new_tree(self, attempt: int) -> Tree:
        spec = self._spec
        recorder = lambda: self._recorder.pid  # noqa: E731
        return Tree(attempt, spec["setup"], self._program(), recorder, self._failed, spec["umask"], spec["descriptors"])

    def _program(self) -> List[str]:
        return processes.own_program(self._spec["program"])

    def _failed(self, failure: Dict[str, Any]) -> None:
        attempt = self._tree.attempt if self._tree else 0
        if not any(one["attempt"] == attempt for one in self._failures):
            failure = dict(failure, what=failure["what"] + self._stolen_port())
        self._failures.append(dict(failure, attempt=attempt))
        self._tell()

    def _stolen_port(self) -> str:
        """On the head: whether another user listens on the rendezvous port, which we must free before it is used."""
        user = network.listening_user(self._rdzv_port) if self._rdzv_port else None
        return (
            ""
            if user in (None, os.geteuid())
            else "; port %d is held by another user (uid %d)"
            % (
                self._rdzv_port,
                user,
            )
        )

    def _registrations(self) -> None:
        try:
            self._register_buffer += os.read(self._register, 65536)
        except BlockingIOError:
            return
        *lines, self._register_buffer = self._register_buffer.split(b"\n")
        for line in lines:
            if self._tree is not None:
                self._tree.register(line)

    def _record_tree(self) -> None:
        """Who belongs to us, on disk: whoever has to sweep after a killed guard finds them without their mark too."""
        begun = time.thread_time()  # what it costs us, not what others take meanwhile
        members = sorted(self._tree.members()) if self._tree else []
        if members != self._recorded:
            try:  # it is of no use after a power loss, so nobody waits for the disk
                state.replace(self._path("procs.json"), {"boot_id": state.boot_id(), "processes": members})
                self._recorded = members
            except OSError:
                pass  # a full disk; the mark is left, and the next look may write it
        cost = time.thread_time() - begun
        self._record_at = time.monotonic() + max(TREE_RECORD_EVERY, cost * TREE_RECORD_SHARE)

    # signals and wishes

    def _signals(self, wakeup: int) -> None:
        try:
            numbers = os.read(wakeup, 4096)
        except BlockingIOError:
            return
        if signal.SIGTERM in numbers:
            wish = state.read(self._path("stop.json")) or {}
            by = messages.one_line(str(wish.get("by", "SIGTERM from outside")))
            self._stop_asked(by, float(wish.get("grace", self._spec["grace"])))

    def _stop_asked(self, by: str, grace: float) -> None:
        if self._stop is None or grace < self._stop["grace"]:
            self._stop = {"by": by, "grace": grace, "at": time.time()}
        self._tell()  # before our ranks end: those of other hosts may fail at once, and that is no failure then
        if self._tree is not None and self._tree.outcome is None:
            self._tree.stop(grace, "stopped by %s" % by)

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == self._recorder.pid:
                self._recorder_ended(status)
            elif pid == self._stacks:
                self._after_stacks = self._after_stacks and (0.0, *self._after_stacks[1:])
            elif self._tree is not None:
                self._tree.root_ended(pid, status)

    def _recorder_ended(self, status: int) -> None:
        self._recorder.ended()
        if self._drain_by is not None and status == 0:
            self._recorder.due = None
            self._finished = True

    # the controller, while it is there

    def _controlled(self) -> None:
        try:
            data = self._control.recv(65536) if self._control else b""
        except BlockingIOError:
            return
        except OSError:
            data = b""
        *lines, self._control_buffer = (self._control_buffer + data).split(b"\n")
        for line in lines:
            message = json.loads(line)
            if message["do"] == "start" and self._start is None:
                self._start = message["start"]
                if "link" in self._sockets:
                    self._sockets["link"] = network.keep_only(self._sockets["link"], self._start["link_addresses"])
                self._write_state()
                self._tell()
                self._answer({"started": {"pid": os.getpid(), "boot_id": state.boot_id()}})
            elif message["do"] == "abort" and not self._committed():
                self._abort()
        if not data and self._control is not None:
            self._control.close()
            self._control = None
            self._abandoned_at = time.monotonic()
            if self._spec["node"] == 0 and self._start is None:
                self._abort()  # only the head could have been committed: with its controller gone it never will be

    def _answer(self, message: Dict[str, Any]) -> None:
        if self._control is not None:
            try:
                self._control.send(json.dumps(message).encode("ascii") + b"\n")
            except OSError:
                pass  # the relay has gone; its end of file follows

    def _abort(self) -> None:
        """Never committed: as if we had never been."""
        if self._recorder.pid > 0:
            self._recorder.kill()
            os.waitpid(self._recorder.pid, 0)
        shutil.rmtree(self._folder, ignore_errors=True)
        self._finished = True

    # the end

    def _farewell(self, now: float) -> None:
        if self._drain_by is None:
            self._drain_by = now + DRAIN_WINDOW
            self._tell()
        elif now > self._drain_by and self._recorder.pid > 0:
            self._recorder.kill()
            self._finished = True

    def close(self) -> None:
        if self._end is not None:
            outcome = self._tree.outcome if self._tree else None
            record = {
                "verdict": self._end,
                "node": self._spec["node"],
                "outcome": outcome,
                "failures": self._failures,
                "at": time.time(),
            }
            state.write_last(self._folder, record)
            for name in os.listdir(self._path("fifo")):
                os.unlink(self._path("fifo", name))

    def _write_state(self) -> None:
        tree = self._tree
        own = processes.identify(os.getpid())
        phase = "prepared" if tree is None else "running" if tree.outcome is None else "exited"
        try:
            state.write(
                self._path("state.json"),
                {
                    "phase": phase,
                    "attempt": tree.attempt if tree else 0,
                    "committed": self._committed(),
                    "guard": own,
                    "boot_id": state.boot_id(),
                    "failures": self._failures,
                    **self._place,
                },
            )
        except OSError as error:
            if error.errno not in state.FULL:
                raise

    def _path(self, *names: str) -> str:
        return os.path.join(self._folder, *names)

    def hold(self) -> None:
        """Take run.lock; whoever can take it later knows that we are gone."""
        lock = os.open(self._path("run.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX)  # a reader may be trying it for an instant; there is no other guard
        self._locks.append(lock)


def _place(spec: Dict[str, Any]) -> Dict[str, Optional[int]]:
    """This node's place in the first attempt. A spare has none."""
    before = spec["nodes"][: spec["node"]]
    if spec["nodes"][spec["node"]]["spare"]:
        return {"node_rank": None, "first_rank": None}
    return {"node_rank": len(before), "first_rank": sum(node["nproc"] for node in before)}
