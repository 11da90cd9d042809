"""Start, watch and end all processes of one attempt on this node. For the guard, their subreaper.

torchrun reports no exit of a rank until it has stopped all of them, so the ranks are watched here: each
registers itself before it becomes the user's command, a pidfd tells the moment of its end, and /proc still shows a
zombie's exit status.
"""

import contextlib
import json
import os
import select
import signal
import time
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Set, Tuple

from ..host import processes
from . import job, rank_failure
from .container_engine import ContainerEngine, status_of_command
from .launch import Job

TORCHRUN_PATIENCE = 30.0  # s from its SIGTERM to its SIGKILL, which the other ranks get when one has failed
BARRIER_PATIENCE = 3.0  # s that torchrun may outlive its ranks when we stop it: in its exit barrier it ignores SIGTERM
UNKILLABLE_AFTER = 10.0  # s after KILL until a process counts as unkillable (stuck in the kernel)
LEFTOVER_GRACE = 5.0  # s for what a rank left behind when it ended well
COMMAND_MOST = 200  # characters of a command in the records


class Helpers(NamedTuple):
    """Pids of other children of the guard, -1 for none."""

    recorder: int
    preloader: int
    remover: int = -1  # of containers


class Tree:
    def __init__(
        self,
        attempt: int,
        spawn: Callable[[Dict[str, Any]], int],
        helpers: Callable[[], Helpers],
        report: Callable[[Dict[str, Any]], None],
        engine: Optional[ContainerEngine] = None,
        agent: str = "torchrun",
    ) -> None:
        """`engine`: starts the roots in containers. `agent`: the launcher whose agent starts the ranks."""
        self.attempt = attempt
        self.outcome: Optional[Dict[str, Any]] = None
        self.unkillable: List[Dict[str, Any]] = []
        self.stopping: Optional[str] = None
        self._spawn = spawn
        self._helpers = helpers
        self._report = report
        self._engine = engine
        self._agent = agent
        self._contained: Dict[str, processes.Process] = {}  # label -> the first process in the container
        self._starting: Dict[str, Dict[str, Any]] = {}  # label -> description
        self._roots: Dict[int, str] = {}
        self._statuses: Dict[str, int] = {}
        self._ranks: Dict[int, Tuple[processes.Process, int]] = {}  # pidfd -> (process, rank)
        self._ended: Dict[processes.Process, str] = {}
        self._ended_ranks: Set[int] = set()
        self._unseen: Optional[Tuple[int, int, float]] = None  # rank, pid, time of one that torchrun had reaped already
        self._finished: List[Dict[str, Any]] = []  # ranks that ended with 0 by themselves
        self._asked: Set[processes.Process] = set()  # those that had their SIGTERM
        self._asked_groups: Set[int] = set()
        self._kill_at: Optional[float] = None
        self._killed_at: Optional[float] = None
        self._alone_since: Optional[float] = None
        self._seen_ranks = False
        self._first_rank = 0
        self._sent: Dict[int, int] = {}  # rank -> the newest signal that a person has sent to it
        self._memory_kills = rank_failure.memory_kills()

    # starting

    def start(self, jobs: List[Job]) -> None:
        for root_job in jobs:
            self._roots[self._spawn(root_job.description)] = root_job.label

    def start_later(self, jobs: List[Job]) -> None:
        """The preloader will fork these."""
        self._starting = {root_job.label: root_job.description for root_job in jobs}

    def forked(self, label: str, pid: int) -> None:
        """The preloader has forked one of the processes that are starting."""
        del self._starting[label]
        self._roots[pid] = label

    def spawn_starting(self, note: str) -> None:
        """Start by exec what the preloader has not forked. `note`: printed by the first one. Raises OSError."""
        while self._starting:
            label = min(self._starting, key=int)
            description = dict(self._starting.pop(label), note=note)
            note = ""
            try:
                self._roots[self._spawn(description)] = label
            except OSError:
                self._starting.clear()
                raise

    def cancel_starting(self) -> None:
        """The preloader has ended, and the tree is being stopped."""
        self._starting.clear()

    @property
    def starting(self) -> List[Job]:
        """The jobs for which there is no process yet."""
        return [Job(label, description) for label, description in self._starting.items()]

    def register(self, line: bytes) -> None:
        """A rank's own report, written just before it becomes the user's command."""
        try:
            report = json.loads(line)
            process = processes.Process(int(report["pid"]), int(report["started"]))
            if not 0 < process.pid <= processes.PID_MOST:
                return
            if "contained" in report:
                self._contained[str(report["contained"])] = process
                return
            rank = int(report["rank"])
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
            return  # all of the user's processes can write into the FIFO, and nothing that they write may end the guard
        try:
            handle = processes.pidfd(process)
        except OSError:
            return  # no pidfd on this host: torchrun's own exit will tell, later
        self._seen_ranks = True
        if handle is not None:
            self._ranks[handle] = (process, rank)
        else:
            self._miss(rank, process.pid)

    # watching

    def ranks(self) -> List[Tuple[int, processes.Process]]:
        """The ranks that are running, of those that have registered."""
        known = [(rank, process) for process, rank in self._ranks.values()]
        for pid, label in self._roots.items():
            is_rank = label != "agent" and self._engine is None
            process = processes.identify(pid) if is_rank else None
            if process is not None:
                known.append((self._first_rank + int(label), process))
        return sorted(known)

    def signal_ranks(self, number: int, chosen: Optional[List[int]], only_if_caught: bool, dry: bool) -> Dict[str, Any]:
        """Send a signal to ranks themselves: torchrun passes on only some. `chosen`: None for all.

        `only_if_caught`: to none of them, if one has no handler for it. `dry`: only look.
        """
        ranks = [(rank, process) for rank, process in self.ranks() if chosen is None or rank in chosen]
        uncaught = [rank for rank, process in ranks if only_if_caught and not processes.catches(process, number)]
        send = not uncaught and not dry
        signaled = [rank for rank, process in ranks if send and processes.send(process, number)]
        if not only_if_caught:
            self._sent.update(dict.fromkeys(signaled, number))
        numbers = [rank for rank, _ in ranks]
        return {"attempt": self.attempt, "signaled": signaled, "uncaught": uncaught, "ranks": numbers}

    def descriptors(self) -> List[int]:
        return list(self._ranks)

    def take_ended(self) -> None:
        """Take in the ranks that have ended. Those that torchrun may have stopped come last: another one is why."""
        ended = select.poll()  # not select(): a descriptor may be above its 1024
        for handle in self._ranks:
            ended.register(handle, select.POLLIN)
        seen = []
        for handle, _ in ended.poll(0):
            process, rank = self._ranks.pop(handle)
            status = processes.status_of_ended(process, handle)
            os.close(handle)
            if status is None:
                self._miss(rank, process.pid)
            else:
                seen.append((rank, status, process.pid))
        for rank, status, pid in sorted(seen, key=lambda one: rank_failure.describe(one[1])[1] == "SIGTERM"):
            if rank_failure.describe(status)[1] == "SIGKILL":
                self._take_killed_agent()
            self._rank_done(rank, status, pid)

    def _take_killed_agent(self) -> None:
        """Take in torchrun where a signal has ended it: the kernel kills the ranks of a parent that has ended."""
        for pid, label in self._roots.items():
            status = processes.killed_by(pid) if label == "agent" and self._engine is None else None
            if status is not None:
                self._agent_done(status, pid)

    def _agent_done(self, status: int, pid: int) -> None:
        if "agent" not in self._statuses:
            self._statuses["agent"] = status
            if status:
                self._failed(None, status, pid)

    def _miss(self, rank: int, pid: int) -> None:
        """Keep the first: torchrun stops the others because of it."""
        now = time.monotonic()
        if self._unseen is None or now - self._unseen[2] > TORCHRUN_PATIENCE:
            self._unseen = rank, pid, now

    def _rank_done(self, rank: int, status: int, pid: int) -> None:
        if rank in self._ended_ranks:
            return  # in a container, both the rank and its root tell
        self._ended_ranks.add(rank)
        if status:
            self._failed(rank, status, pid)
        elif self.stopping is None:
            self._finished.append({"rank": rank, "attempt": self.attempt, "at": time.time()})

    def root_ended(self, pid: int, status: int) -> bool:
        """True when the pid was one of ours."""
        label = self._roots.pop(pid, None)
        if label is None:
            return False
        if self._engine is not None:
            status = status_of_command(status)
        if label == "agent" and os.WIFSIGNALED(status):
            self._agent_done(status, pid)  # its ranks ended because of that
        self.take_ended()
        if label == "agent":
            self._agent_done(status, pid)
        else:
            self._statuses[label] = status
            self._rank_done(self._first_rank + int(label), status, pid)
        return True

    def direct(self, first_rank: int) -> None:
        """Launcher `direct`: the roots are the ranks themselves."""
        self._first_rank = first_rank

    def _has_begun(self, rank: Optional[int]) -> bool:
        """Whether the container of a rank, or of torchrun, has begun to run."""
        return "agent" in self._contained or (rank is not None and str(rank - self._first_rank) in self._contained)

    def _failed(self, rank: Optional[int], status: int, pid: int) -> None:
        if self.stopping is not None:
            return  # a consequence of our own signals
        (code, name), what = rank_failure.describe(status), ""
        sent = None if rank is None else self._sent.get(rank)
        is_consequence = name == "SIGTERM" and sent != signal.SIGTERM  # torchrun may have stopped it
        if rank is None:
            is_consequence = code is not None  # torchrun ends with an error when a rank has
        if is_consequence and self._report_unseen():
            return
        if rank is None and code == job.SETUP_FAILED:
            what = "a line of `setup` failed"
        elif code == job.NOT_STARTED:
            what = "the command could not be started"
        elif self._engine is not None and self._engine.could_not_start(code or 0, has_begun=self._has_begun(rank)):
            what = "the container could not be started"
        who = self._agent if rank is None else "rank %d" % rank
        self._report(rank_failure.record(who, rank, status, pid, what, sent, self._memory_kills))

    def _report_unseen(self) -> bool:
        """Report the rank that torchrun reaped before it stopped the others and ended, if any."""
        if self._unseen is None or time.monotonic() - self._unseen[2] > TORCHRUN_PATIENCE:
            return False
        rank, pid, _ = self._unseen
        what = "failed; its exit code is not known"
        self._report(rank_failure.record("rank %d" % rank, rank, None, pid, what, None, self._memory_kills))
        return True

    # ending

    def members(self) -> Set[processes.Process]:
        return {child.process for child in self._look()}

    def _look(self) -> List[processes.Stat]:
        helpers = self._helpers()
        # while ranks are starting, its children may become ours: to stop them all, the preloader is stopped too
        without = [helpers.recorder] if self._starting else helpers
        family = processes.below(os.getpid(), without)
        if self._engine is None:
            return family
        known = {child.process for child in family}
        family += [child for child in self._engine.find_elsewhere() if child.process not in known]
        return [child for child in family if not self._is_keeper(child, self._engine)]

    def _is_keeper(self, child: processes.Stat, engine: ContainerEngine) -> bool:
        """Whether it is a process of the engine that outlives containers, and so is not one of the attempt."""
        is_root = child.process.pid in self._roots or child.parent != os.getpid()
        return not is_root and engine.is_keeper(child.process.pid)

    def stop(self, grace: float, why: str) -> None:
        """TERM now, KILL after `grace` seconds. A later call may shorten the grace, never lengthen it."""
        kill_at = time.monotonic() + grace
        if self.stopping is not None:
            self._kill_at = min(kill_at, self._kill_at or kill_at)
            return
        self.stopping = why
        self._kill_at = kill_at
        look = self._look()
        members = {child.process for child in look}
        self._note(members)
        stopped = look if self._engine is None else self._engine.without_shims(look)
        processes.send_all({child.process for child in stopped}, signal.SIGCONT)
        self._ask_roots()
        self._asked = {child.process for child in look if child.group in self._asked_groups}
        self._ask_orphans(look)

    def _ask_roots(self) -> None:
        """Send SIGTERM to the group of each rank: a rank may be a wrapper that does not pass signals on.

        torchrun does this itself. A second SIGTERM from the guard would run the ranks' handlers twice.
        """
        if self._engine is not None:
            self._asked_groups.update(process.pid for process, _ in self._ranks.values())
        for process in self._contained.values():  # it passes the signal on
            processes.send(process, signal.SIGTERM)
        for pid, label in self._roots.items():  # none is reaped: the pids are still theirs
            if label in self._contained:
                continue
            if label == "agent":
                self._asked_groups.update(process.pid for process, _ in self._ranks.values())
                if self._agent == "torchrun" or not self._ranks:
                    os.kill(pid, signal.SIGTERM)
                else:  # mpirun would kill the ranks of all hosts soon after the signal
                    self._ask_groups_of_ranks()
                continue
            self._asked_groups.add(pid)
            try:
                os.killpg(pid, signal.SIGTERM)
            except ProcessLookupError:  # it was forked a moment ago and leads no group yet
                os.kill(pid, signal.SIGTERM)

    def _ask_groups_of_ranks(self) -> None:
        """Send SIGTERM to each rank and to the process between it and mpirun, which leads its group (node/mpi)."""
        looks = [(process, processes.stat(process.pid)) for process, _ in self._ranks.values()]
        groups = {status.group for process, status in looks if status is not None and status.process == process}
        self._asked_groups |= groups
        for group in groups:
            with contextlib.suppress(ProcessLookupError):  # it has just ended
                os.killpg(group, signal.SIGTERM)

    def _ask_orphans(self, look: List[processes.Stat]) -> None:
        """Send SIGTERM, once, to processes that have outlived their root: no other process passes it on to them."""
        parents = {child.process.pid: child.parent for child in look}
        asked = {process.pid for process in self._asked}
        roots = {*self._roots, *(process.pid for process in self._contained.values())}
        for child in look:
            above = child.process.pid
            while above in parents and above not in roots:
                above = parents[above]
            if above in roots or child.process in self._asked:
                continue
            if self._engine is not None and self._engine.is_helper(child.process.pid):
                continue
            # they may start processes in order to end: those get no signal
            if child.group not in self._asked_groups and child.parent not in asked:
                processes.send(child.process, signal.SIGTERM)
            self._asked.add(child.process)

    def tick(self) -> float:
        """Do what is due. Returns the seconds until it has to be asked again."""
        if self.outcome is not None:
            return 60.0
        if (self._roots or self._starting) and self.stopping is None:
            return 60.0  # the descriptors and SIGCHLD wake us
        now = time.monotonic()
        family = self._look()
        members = {child.process for child in family}
        # twice: reading /proc is no snapshot, and may miss a process whose parent forks and dies meanwhile
        if not self._roots and not self._starting and not members and not self.members():
            if self._engine is not None and not self._engine.remove():
                return 0.05
            self._finish()
            return 60.0
        look = time.monotonic() - now
        if not self._roots and self.stopping is None:  # all ended by themselves and left something behind
            bad = any(self._statuses.values())
            self.stop(1.0 if bad else LEFTOVER_GRACE, "its ranks have ended")
            return 0.02
        if self._barrier(members, now) or now >= (self._kill_at or 0):
            return self._kill(members, now)
        self._ask_orphans(family)
        # where there are thousands of processes to look at, less often: this may take minutes
        return min(max(0.05, look * processes.LOOK_SHARE), max(0.005, (self._kill_at or now) - now))

    def _barrier(self, members: Set[processes.Process], now: float) -> bool:
        """Whether torchrun is the only process left, for longer than BARRIER_PATIENCE."""
        if not self._seen_ranks or self._ranks or {process.pid for process in members} != set(self._roots):
            self._alone_since = None
            return False
        self._alone_since = self._alone_since or now
        return now - self._alone_since >= BARRIER_PATIENCE

    def _kill(self, members: Set[processes.Process], now: float) -> float:
        self._killed_at = self._killed_at or now
        if now - self._killed_at > UNKILLABLE_AFTER:
            self.unkillable = [{"pid": process.pid, "cmd": processes.command(process.pid)} for process in members]
            self._finish()
            return 60.0
        processes.send_all(members, signal.SIGSTOP)  # so that none forks between our look and our signal
        members = self.members()
        self._note(members)
        processes.send_all(members, signal.SIGKILL)
        return 0.01

    def _note(self, members: Set[processes.Process]) -> None:
        """Note the processes that we end: `kill` shows them as its proof."""
        for process in members - set(self._ended):
            self._ended[process] = processes.command(process.pid)[:COMMAND_MOST]

    def _finish(self) -> None:
        for handle in self._ranks:
            os.close(handle)
        self._ranks.clear()
        by_itself = self.stopping in (None, "its ranks have ended")
        ok = by_itself and bool(self._statuses) and not any(self._statuses.values()) and not self._roots
        self.outcome = {"ok": ok, "statuses": self._statuses, "stopped": self.stopping, "unkillable": self.unkillable}
        self.outcome["finished"] = self._finished
        self.outcome["ended"] = [
            {"pid": process.pid, "cmd": command} for process, command in sorted(self._ended.items())
        ]
