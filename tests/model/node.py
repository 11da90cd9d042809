"""A node of the model: a disk, a recorder that runs election.step, and a guard that owns the ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from orchestrator.node.gang import election, election_state
from orchestrator.node.gang.election_state import FIRST_EPOCH, Ballot, Config, Entry, Role, first_ballot
from orchestrator.node.gang.gang_state import FAILURE_GRACE

from .rules import Violation

if TYPE_CHECKING:
    from .gangs import Gang
    from .world import World

KILL_MOST = 1.8  # s by the node's clock that the ranks may live after SIGKILL
WAKE_MOST = 1.0  # s from the end of a pause until the guard has looked at its clock; its recorder may be quicker
STOP_WINDOW = 3.0  # s, of the election
STOP_BEAT = 1.0  # s at most between two messages to the head, without elections


@dataclass
class Ranks:
    """The living ranks of one node. `overslept_until`: they were frozen as their permit lapsed, and die by then."""

    node: int
    attempt: int
    epoch: int
    dying: bool = False
    overslept_until: float | None = None


class Guard:
    """Never has ranks of two attempts. A permit that has lapsed is not renewed for the ranks that ran under it."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.world = node.world
        self.ranks: Ranks | None = None
        self.attempt = 0
        self.ok = False
        self.failures: list[str] = []
        self.fenced = False
        is_first_head = not node.config.elects and node.config.node == 0
        self.permit_until = float("inf") if is_first_head else float("-inf")
        self.next: tuple[int, int] | None = None
        self.verdict: str | None = None
        self.wakes_at = float("-inf")
        self.alive = True  # a reboot makes a new guard, and the timers of the old one do nothing
        self.begun = 0  # by the guard before the reboot

    @property
    def phase(self) -> str:
        if self.ranks is not None:
            return "running"
        return "exited" if self.attempt else "prepared"

    def status(self) -> dict[str, Any]:
        return {
            "attempt": self.attempt,
            "phase": self.phase,
            "ok": self.ok,
            "failures": list(self.failures),
            "stop": self.node.stop_requested,
            "ended": self.verdict is not None,
            "fenced": self.fenced,
            "boots": self.node.boots,
            "begun": self.begun,
        }

    def permit(self, until: float) -> None:
        if not has_gap(self):
            self.permit_until = max(self.permit_until, until)
            self.node.at_clock(self.permit_until, self.check_permit)

    def check_permit(self) -> None:
        now = self.node.clock()
        if self.alive and self.ranks is not None and self.wakes_at <= now and self.permit_until <= now:
            self.kill("the permit has lapsed")

    def run(self, attempt: int, epoch: int, work: float) -> None:
        if self.verdict is not None or self.node.stop_requested or attempt <= max(self.attempt, self.begun):
            return
        if self.ranks is not None:
            self.kill("superseded")
            return  # the order comes again
        if self.node.clock() >= self.permit_until:
            if not self.node.config.elects:  # else the order itself is out of date, and comes again
                self.attempt, self.ok, self.failures, self.fenced = attempt, False, [], True
            return
        self.attempt, self.ok, self.failures, self.fenced = attempt, False, [], False
        if self.node.number not in self.node.config.candidates:
            raise Violation(f"the witness has ranks of attempt {attempt}")
        self.ranks = Ranks(self.node.number, attempt, epoch)
        self.world.rules.ranks_start(self.ranks, self.world.alive_ranks())
        started = self.ranks
        self.world.after(work, lambda: self.end(started, ok=True))

    def stop(self, attempt: int) -> None:
        if self.attempt < attempt and self.ranks is None:
            self.attempt, self.ok, self.failures, self.fenced = attempt, False, [], False
        elif self.ranks is not None and self.attempt <= attempt:
            self.kill("stopped")

    def fail(self) -> None:
        if self.ranks is not None:
            self.failures.append(f"rank of node {self.node.number} failed")
            self.end(self.ranks, ok=False)

    def kill(self, why: str) -> None:
        ranks = self.ranks
        is_fence = why == "the permit has lapsed"
        if ranks is not None and (is_fence or not ranks.dying):
            ranks.dying = True
            self.fenced = self.fenced or is_fence
            most = KILL_MOST if is_fence else FAILURE_GRACE + KILL_MOST
            seconds = self.world.dice.choice((0.0, 0.3, most)) / self.node.rate
            self.world.after(seconds, lambda: self.end(ranks, ok=False))

    def end(self, ranks: Ranks, ok: bool) -> None:
        if not self.alive or self.ranks is not ranks or (ok and ranks.dying):
            return
        if self.node.paused:
            self.node.inbox.append(lambda: self.end(ranks, ok))
            return
        self.ranks, self.ok = None, ok

    def leave(self) -> None:
        """The node was drained: that is no verdict on the run."""
        if self.verdict is None:
            self.verdict = "stopped"
            self.kill("drained")

    def finish(self, verdict: str) -> None:
        if self.verdict is None:
            self.verdict = verdict
            self.world.rules.node_ends(self.node.number, verdict)
            self.kill("the run is over")


def has_gap(guard: Guard) -> bool:
    """Whether the ranks have run without a permit, also if the guard has slept and not noticed it yet."""
    return guard.ranks is not None and guard.node.clock() >= guard.permit_until


@dataclass
class Disk:
    ballot: Ballot
    log: list[Entry] = field(default_factory=list)


class Node:
    def __init__(self, world: World, config: Config, rate: float, gang: type[Gang]) -> None:
        self.world = world
        self.number = config.node
        self.config = config
        self.rate = rate  # seconds of its clock in a second
        self.disk = Disk(first_ballot(config))
        self.stop_requested = False  # in stop.json
        self.up = True
        self.paused = False
        self.left = False  # it has the verdict or has given up, and its processes have ended
        self.gave_up = False
        self.is_known = False  # to a head: it has had an order
        self.sick_with = ""  # a problem that the health gate finds
        self.inbox: list[Any] = []  # what happened while it was paused
        self.boots = 0
        self.incarnation = 0  # of the recorder
        self._new_gang = gang
        self._boot()

    @property
    def is_unknown(self) -> bool:
        """It was added, and the run was over before it knew of it. Its guard then gives up by itself."""
        return self.number >= self.config.nodes and not self.state.log and not self.is_known

    def heads(self) -> Sequence[int]:
        """Whom it takes for the head. One that does not vote gets no beats until it has reached the first head."""
        if self.state.head is not None:
            return [self.state.head]
        if self.is_unknown:
            return range(self.config.nodes)
        dials = self.state.ballot.epoch == FIRST_EPOCH and self.number not in self.state.voters
        return self.config.candidates[:1] if dials else ()

    # its clock

    def clock(self) -> float:
        return self._clock_began + self.uptime()

    def uptime(self) -> float:
        return (self.world.now - self.booted_at) * self.rate

    def at_clock(self, at: float, do: Any) -> None:
        """Do something as soon as the clock shows `at`."""
        boots = self.boots
        seconds = max(0.0, (at - self.clock()) / self.rate) + 1e-9
        if seconds < 1e6:
            self.world.after(seconds, lambda: self.do(do) if self.boots == boots else None)

    def do(self, what: Any) -> None:
        if self.up and self.paused:
            self.inbox.append(what)
        elif self.up:
            what()

    # its life

    def _boot(self) -> None:
        self.boots += 1
        self.booted_at = self.world.now
        self._clock_began = self.world.dice.choice((1.0, 20.0, 5000.0))
        remembers = self.boots > 1 and self._new_gang.notices_reboots
        begun = max(self.guard.attempt, self.guard.begun) if remembers else 0
        self.guard = Guard(self)
        self.guard.begun = begun
        self.start_recorder()

    def start_recorder(self) -> None:
        """Also after one was killed: what is not on disk is forgotten."""
        self.incarnation += 1
        self.state = election.begin(
            self.config, self.disk.ballot, tuple(self.disk.log), f"{self.number}.{self.boots}", self.clock()
        )
        self.gang: Gang = self._new_gang(self)
        incarnation = self.incarnation
        self.world.after(self.world.dice.random() * self.config.beat, lambda: self.do(lambda: self._tick(incarnation)))
        self._check()

    def power_off(self) -> None:
        self.up = self.paused = False
        self.inbox.clear()
        self.guard.alive = False
        self.guard.ranks = None

    def power_on(self) -> None:
        if not self.up and not self.left:
            self.up = True
            self._boot()

    def pause(self) -> None:
        self.paused = self.up

    def resume(self) -> None:
        if not self.paused:
            return
        self.paused = False
        ranks = self.guard.ranks
        if ranks is not None and self.clock() >= self.guard.permit_until:
            seconds = (WAKE_MOST + KILL_MOST) / self.rate + 0.01
            ranks.overslept_until = self.world.now + seconds
            self.world.check_after(seconds + 0.01)
            self.guard.wakes_at = self.clock() + WAKE_MOST * self.world.dice.random()
            self.at_clock(self.guard.wakes_at, self.guard.check_permit)
        waiting, self.inbox = self.inbox, []
        for do in waiting:
            self.do(do)

    # its recorder

    @property
    def _beat(self) -> float:
        return self.config.beat if self.config.elects else min(STOP_BEAT, self.config.beat)

    def _tick(self, incarnation: int) -> None:
        if incarnation != self.incarnation or self.left:
            return
        self.world.after(
            self._beat * self.world.dice.uniform(0.8, 1.2) / self.rate,
            lambda: self.do(lambda: self._tick(incarnation)),
        )
        if self.world.scenario.eager and self.config.position is not None:
            self.state = self.state._replace(campaign_at=min(self.state.campaign_at, self.clock()))
        self.step(election_state.Tick(self.clock()))
        self.gang.on_tick()
        if self.guard.verdict is not None and self.guard.ranks is None and (self.gave_up or self.gang.may_leave()):
            self.left = True

    def step(self, event: election_state.Event) -> None:
        self.world.steps += 1
        before = self.state
        self.state, actions = election.step(before, event)
        for action in actions:
            if isinstance(action, election_state.Save):
                self.disk.ballot = action.ballot
            elif isinstance(action, election_state.Write):
                del self.disk.log[action.length :]
                self.disk.log += action.entries
            elif not self.config.elects:
                continue  # there are no beats, and the gang grants the permits
            elif isinstance(action, election_state.Permit):
                self.guard.permit(action.until)
            else:
                self.world.send(self.number, action.node, ("election", action.message))
        if self.state.role is Role.HEAD and before.role is not Role.HEAD:
            self.gang.on_lead()
        self._check()

    def _check(self) -> None:
        if self.state.role is Role.HEAD:
            self.world.rules.node_leads(self.number, self.state.ballot.epoch)
        if self.state.committed:
            self.world.rules.node_has_committed(self.number, self.state.log[: self.state.committed])

    def propose(self, text: str) -> None:
        self.step(election_state.Proposed(text, self.clock()))

    def hear(self, sender: int, payload: tuple[str, Any]) -> None:
        if self.left:
            return
        kind, content = payload
        if not isinstance(content, election_state.Ask):  # which a node also sends that hears nothing
            self.gang.heard_at[sender] = self.clock()  # also if it only renews a permit: a lost node gets none
        if kind == "election":
            self.step(election_state.Received(sender, content, self.clock()))
        else:
            self.world.steps += not self.config.elects
            self.gang.on_message(sender, kind, content)

    def give_up(self) -> None:
        """No head for too long. That is no verdict: other nodes may go on."""
        if self.guard.verdict is None:
            self.gave_up, self.guard.verdict = True, "lost"
            self.guard.kill("no head")

    def request_stop(self) -> None:
        self.stop_requested = True
        self.guard.kill("stop requested")
