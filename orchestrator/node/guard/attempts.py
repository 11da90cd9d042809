"""The attempts of a run on this host: processes and FIFOs of each, from the order to its outcome. For the guard."""

import contextlib
import os
import socket
import time
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple, Union

from ..gang import gang_events
from ..host import network, processes, state
from ..link import messages
from ..ranks import contained, fifos, launch
from ..ranks.container_remover import ContainerRemover
from ..ranks.preloader import Preloader
from ..ranks.spawner import Spawner
from ..ranks.tree import Helpers, Tree
from .past import Past, first_place
from .process_record import ProcessRecord

STACKS_WINDOW = 15.0  # s for the stacks of hanging ranks
EXTEND_AFTER = 20.0  # s of an attempt, whose own imports come first, until the preloader imports what the script does
LONGEST_REGISTRATION = 4096  # bytes: PIPE_BUF, so that the lines of several ranks do not mix
MOST_FAILURES = 128  # of all attempts: they are in every record of the run

AttemptOrder = Union[gang_events.Run, gang_events.Stop]


class PendingStop(NamedTuple):
    """A stop that waits until the stacks of the ranks are in the journal."""

    pid: int  # of the process that shows them
    at: float  # when it is done with or without them, by the monotonic clock
    grace: float
    why: str


class Attempts:
    """`tree`: the processes of the newest attempt, None before the first.

    `failures`: the first of the run on this host and the newest, of each attempt its first.

    `place`: node_rank and first_rank in the newest attempt, both None for a spare.
    """

    def __init__(
        self,
        folder: str,
        spec: Dict[str, Any],
        private: Dict[str, Any],
        rendezvous: List[socket.socket],
        recorder_pid: Callable[[], int],
        send_status: Callable[[], None],
        write_state: Callable[[], None],
    ) -> None:
        """`rendezvous`: listeners that keep the rendezvous port until the first attempt needs it; on the head."""
        self.tree: Optional[Tree] = None
        self.failures: List[Dict[str, Any]] = []
        self.place = first_place(spec)
        self.rendezvous = rendezvous
        self.register = -1
        self._folder = folder
        self._spec = spec
        self._private = private
        self._recorder_pid = recorder_pid
        self._spawner = Spawner(spec["setup"], self._program(), spec["umask"], spec["descriptors"])
        self._preloader = Preloader(spec.get("preload", []), folder, "warm_key" in spec, self._spawner.spawn)
        self._remover = ContainerRemover([*self._program(), "remove-containers", folder])
        self._send_status = send_status
        self._write_state = write_state
        self._rdzv_port = 0  # of the attempt; 0 on other nodes than the head
        self._keepers: Dict[int, Dict[str, int]] = {}  # attempt -> path of a FIFO -> the descriptor that keeps it
        self._register_buffer = b""
        self._outcome_is_sent = False
        self._fenced_attempt = 0
        self._tree_due = 0.0
        self._extend_at = float("inf")
        self._pending: Optional[PendingStop] = None
        self._record = ProcessRecord(self._path("procs.json"))

    @property
    def number(self) -> int:
        """The number of the newest attempt, 0 before the first."""
        return self.tree.attempt if self.tree else 0

    @property
    def is_running(self) -> bool:
        return self.tree is not None and self.tree.outcome is None

    @property
    def is_fenced(self) -> bool:
        """Whether the newest attempt was stopped, or not started, because the permit of the head had lapsed."""
        return 0 < self.number == self._fenced_attempt

    # starting

    def make_output_folder(self) -> None:
        """The run has begun: `shell` has its path, and the first attempt may begin later, with `run.resume`."""
        if not state.is_witness(self._spec):
            with contextlib.suppress(OSError):  # the first attempt tries again, and tells
                self._make_output_folder()

    def _make_output_folder(self) -> str:
        output = state.output_folder(self._folder, self._spec)
        if not self._spec.get("shared_output"):  # a shared one was made by `prepare`, and its disk may hang by now
            os.makedirs(output, 0o700, exist_ok=True)
        return output

    def start(self, order: gang_events.Run) -> None:
        for listener in self.rendezvous:
            listener.close()
        self.rendezvous = []
        self._rdzv_port = order.master_port if order.node_rank == 0 else 0
        self.place = {"node_rank": order.node_rank, "first_rank": order.first_rank}
        tree = self._new_tree(order.attempt)
        try:
            self._start_processes(tree, order)
        except OSError as error:
            self._follow(tree)
            self._add_start_failure(error)
            self._write_state()
        self._record.due_at = time.monotonic() + 0.2

    def _start_processes(self, tree: Tree, order: gang_events.Run) -> None:
        spec = self._spec
        output = self._make_output_folder()
        paths = launch.Paths(self._folder, self._path("fifo"), self._path("log"), spec["cwd"], output)
        is_contained = bool(spec.get("container"))
        program = contained.program(spec) if is_contained else self._program()
        jobs, rank_job = launch.jobs(spec, self._private, order, paths, program)
        if is_contained:
            jobs = [contained.wrap(spec, each, paths) for each in jobs]
            rank_job["pid_namespace"] = processes.pid_namespace()
        state.replace(self._path("rank.json"), rank_job)
        ranks = range(order.first_rank, order.first_rank + spec["nproc"])
        sources = [str(rank) for rank in ranks] + (["agent"] if spec["agent_argv"] else [])
        self._keepers[order.attempt] = fifos.make(paths.fifo, order.attempt, sources)
        if not spec["agent_argv"]:
            tree.direct(order.first_rank)
        self._follow(tree)
        self._send_status()  # the recorder opens the FIFOs now
        self._write_state()  # before there are ranks: after a reboot, this attempt must not start again
        if spec["agent_argv"]:
            tree.start(jobs)
        else:
            tree.start_later(jobs)
            self._start_ranks(tree)

    def preload(self) -> None:
        """Start the preloader, if the run has one and it is not running."""
        self._preloader.start(self._preload_job())
        if self.place["node_rank"] is None or self.number > 1:  # a spare, or the one before ended with its attempt
            self._prepare_restart()

    def take_over_preloader(self, channel: socket.socket, pid: int) -> None:
        """Use the preloader of an earlier run."""
        self._preloader.take_over(channel, pid, self._preload_job())

    def _preload_job(self) -> Dict[str, Any]:
        output = state.output_folder(self._folder, self._spec)
        return launch.preload_job(self._spec, self._private["secrets"], self._spec["cwd"], output)

    def _prepare_restart(self) -> None:
        """Have the preloader import the modules of the script, for the ranks of the next attempt."""
        self._extend_at = float("inf")
        if self._spec.get("preload_script") and self._spec["max_restarts"]:
            job = self._preload_job()
            late = launch.late_names(self._spec)
            self._preloader.extend({"argv": job["argv"], "cwd": job["cwd"], "folder": self._folder, "late": late})

    def _start_ranks(self, tree: Tree) -> None:
        """Have the preloader fork the ranks that are starting. Without one, start them by exec."""
        self.preload()
        if self._preloader.why_not is None:
            self._preloader.fork(tree.starting)
            self._extend_at = time.monotonic() + EXTEND_AFTER
        else:
            why_not = self._preloader.why_not
            tree.spawn_starting("started without run.preload: %s" % why_not if why_not else "")

    def _new_tree(self, attempt: int) -> Tree:
        return Tree(
            attempt,
            self._spawner.spawn,
            lambda: Helpers(self._recorder_pid(), self._preloader.pid, self._remover.pid),
            self.add_failure,
            contained.engine_of(self._spec, self._remover.remove),
            self._spec["launcher"]["name"],
        )

    def _follow(self, tree: Tree) -> None:
        self.tree, self._outcome_is_sent = tree, False
        self._remover.begin()
        self._pending = None  # it was to stop the attempt before

    def skip(self, attempt: int) -> None:
        """Start no process of an attempt: the permit of the head lapsed before its order was read."""
        self._follow(self._new_tree(attempt))
        self.fence()

    def wait(self) -> None:
        """The gang made a spare of this node."""
        self.place = {"node_rank": None, "first_rank": None}
        self._prepare_restart()

    # watching

    def resume(self, past: Past) -> None:
        """Begin after an attempt of another guard, of which nothing is left."""
        self.failures, self.place = list(past.failures), dict(past.place)
        if past.attempt:
            self._follow(self._new_tree(past.attempt))
            assert self.tree is not None
            self.tree.outcome = past.outcome

    def open_register(self) -> None:
        """Make the FIFO in which ranks report themselves; `register` is its descriptor."""
        for name in os.listdir(self._path("fifo")):  # of a guard before
            os.unlink(self._path("fifo", name))
        os.mkfifo(self._path("fifo", "register"), 0o600)
        self.register = os.open(self._path("fifo", "register"), os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)

    def read_registrations(self) -> None:
        try:
            self._register_buffer += os.read(self.register, 65536)
        except BlockingIOError:
            return
        *lines, rest = self._register_buffer.split(b"\n")
        self._register_buffer = rest[:LONGEST_REGISTRATION]  # of a longer one, which no rank writes, the rest is lost
        for line in lines:
            if self.tree is not None:
                self.tree.register(line)

    def ranks(self) -> List[int]:
        """Descriptors that become readable when a rank ends."""
        return self.tree.descriptors() if self.tree else []

    def on_rank_exit(self, handle: int) -> None:
        if self.tree is not None and handle in self.tree.descriptors():
            self.tree.take_ended()

    def on_child_exit(self, pid: int, status: int) -> None:
        """Handle the exit of any child of the guard but the recorder."""
        self.read_preloader()  # it tells of a rank before the rank can end
        if pid == self._preloader.pid:
            self._on_preloader_exit(status)
        elif self._pending is not None and pid == self._pending.pid:
            self._pending = self._pending._replace(at=0.0)
        elif pid == self._remover.pid:
            self._remover.on_exit()
        elif self.tree is not None:
            self.read_registrations()  # the first process in a container has registered before it ended
            self.tree.root_ended(pid, status)

    @property
    def preloader(self) -> Optional[socket.socket]:
        """What is readable when the preloader has sent something."""
        return self._preloader.channel

    def read_preloader(self) -> None:
        for forked in self._preloader.receive():
            if self.tree is not None:
                self.tree.forked(forked.label, forked.pid)

    def _on_preloader_exit(self, status: int) -> None:
        tree = self.tree
        is_starting = tree is not None and bool(tree.starting)
        is_stopped = is_starting and tree is not None and tree.stopping is not None
        self._preloader.ended(status, was_stopped=is_stopped)
        if tree is None or not is_starting:
            if self._preloader.why_not is None and self.number == 0:
                self.preload()  # that of an earlier run could not be used
            return
        if is_stopped:
            tree.cancel_starting()
            return
        try:
            self._start_ranks(tree)
        except OSError as error:
            self._add_start_failure(error)

    def end_preloader(self) -> None:
        """Kill the preloader, unless it can serve another run."""
        if not self._preloader.can_stay:
            self._preloader.kill()

    def idle_preloader(self) -> Optional[Tuple[socket.socket, int]]:
        """The channel and the pid of a preloader that can serve another run."""
        left = self.is_running or (self.tree is not None and self.tree.unkillable)
        if left or not self._preloader.can_stay or self._preloader.channel is None:
            return None
        return self._preloader.channel, self._preloader.pid

    def due_at(self) -> float:
        due = [self._extend_at]
        if self.tree is not None:
            due += [self._tree_due] if self.tree.outcome is not None else [self._tree_due, self._record.due_at]
        if self._pending is not None:
            due.append(self._pending.at)
        return min(due)

    def advance(self, now: float) -> None:
        if self._pending is not None and now >= self._pending.at:
            pending, self._pending = self._pending, None
            self.stop_now(pending.grace, pending.why)
        if now >= self._extend_at:
            self._prepare_restart()
        tree = self.tree
        if tree is not None:
            self._tree_due = now + tree.tick()
            if tree.outcome is not None and tree.starting:
                tree.cancel_starting()
                self._preloader.abandon()
            if tree.outcome is not None and not self._outcome_is_sent:
                self._outcome_is_sent = True
                self._write_state()
                self._send_status()
            elif tree.outcome is None and now >= self._record.due_at:
                self._record.update(tree)

    def _add_start_failure(self, error: OSError) -> None:
        failure = {"rank": None, "exit_code": None, "signal": None, "pid": None}
        self.add_failure(dict(failure, what="cannot start: %s" % error, at=time.time()))

    def add_failure(self, failure: Dict[str, Any]) -> None:
        self._prepare_restart()
        of_attempt = sum(known["attempt"] == self.number for known in self.failures)
        if of_attempt == 0:
            failure = dict(failure, what=failure["what"] + self._stolen_port())
        if of_attempt < messages.FAILURES:
            self.failures.append(dict(failure, attempt=self.number))
            del self.failures[1 : 1 + max(0, len(self.failures) - MOST_FAILURES)]
        self._send_status()

    def _stolen_port(self) -> str:
        """On the head: whether another user listens on the rendezvous port, which we must free before it is used."""
        user = network.listening_user(self._rdzv_port) if self._rdzv_port else None
        if user in (None, os.geteuid()):
            return ""
        return "; port %d is held by another user (uid %d)" % (self._rdzv_port, user or 0)

    # stopping

    def stop(self, order: gang_events.Stop) -> None:
        """The gang's order. With stacks, which only ranks that still run can show, the stop waits for them."""
        attempt, grace, why = order.attempt, order.grace, order.why
        if self.tree is None or self.tree.attempt < attempt:  # it was never started here: it has exited at once
            self._follow(self._new_tree(attempt))
        if self.tree is None or self.tree.attempt != attempt or self.tree.outcome is not None:
            return
        self._prepare_restart()
        if order.stacks and self._pending is not None:
            return
        if not order.stacks or self.tree.stopping is not None:
            self.tree.stop(grace, why)
            return
        try:
            argv = self._program() + ["stacks", self._path("fifo"), str(attempt)]
            argv += ["%d:%d:%d" % (rank, process.pid, process.started) for rank, process in self.tree.ranks()]
            pid = os.posix_spawn(argv[0], argv, os.environ)
            self._pending = PendingStop(pid, time.monotonic() + STACKS_WINDOW, grace, why)
        except OSError:  # no process or memory to be had
            self.tree.stop(grace, why)

    def stop_now(self, grace: float, why: str) -> None:
        """Stop the attempt that is running, if one is."""
        if self.tree is not None and self.tree.outcome is None:
            self.tree.stop(grace, why)

    def fence(self) -> None:
        """Kill the attempt that is running: without a permit, other hosts may be about to go on without this one."""
        self._fenced_attempt = self.number
        self.stop_now(0.0, "no message from the head")

    def signal_ranks(self, number: int, chosen: Optional[List[int]], only_if_caught: bool, dry: bool) -> Dict[str, Any]:
        """As Tree.signal_ranks, for the attempt that is running."""
        if self.tree is None or self.tree.outcome is not None:
            return {"attempt": self.number, "signaled": [], "uncaught": [], "ranks": []}
        return self.tree.signal_ranks(number, chosen, only_if_caught, dry)

    def close_fifos(self, attempt: int) -> None:
        """Close the FIFOs of earlier attempts: their processes have ended, and the recorder has all their output."""
        for old in [old for old in self._keepers if old < attempt]:
            for path, keeper in self._keepers.pop(old).items():
                with contextlib.suppress(OSError):  # a disk that was mounted read-only
                    os.unlink(path)
                os.close(keeper)

    def _program(self) -> List[str]:
        return processes.own_program(self._spec["program"])

    def _path(self, *names: str) -> str:
        return os.path.join(self._folder, *names)


def takes_precedence(order: AttemptOrder, pending: AttemptOrder) -> bool:
    """Whether an order replaces one that waits: one of a later attempt does, and a stop of the same attempt."""
    return order.attempt > pending.attempt or (order.attempt == pending.attempt and isinstance(order, gang_events.Stop))
