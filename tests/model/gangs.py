"""What the head decides with the replicated log: the least gang that has attempts, failures, teams and a verdict.

Orders follow from the committed part of the log alone, and are sent with every tick. A node obeys only the head of the
latest epoch that it knows.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from orchestrator.node.gang import election, election_log
from orchestrator.node.gang.election_state import SHORTER, Admitted, Entry, Role

if TYPE_CHECKING:
    from .node import Node

WORK = 20.0  # s of an attempt that succeeds
AFTER_A_LOSS = 3.0 / SHORTER  # s by the head's clock until the ranks of a lost node are dead, its permit having lapsed
FAREWELL = 10.0  # s


@dataclass
class Run:
    """What the committed entries say."""

    attempt: int = 0
    epoch: int = 0
    team: tuple[int, ...] = ()
    failure: str | None = None
    stopped: bool = False
    verdict: str | None = None
    lost: set[int] = field(default_factory=set)


def fold(entries: tuple[Entry, ...]) -> Run:
    run = Run()
    for entry in entries:
        event = json.loads(entry.text)
        match event["event"]:
            case "attempt" if run.verdict is None and event["number"] == run.attempt + 1 and not run.stopped:
                run = Run(event["number"], entry.epoch, tuple(event["team"]))
            case "elected" if run.attempt and run.failure is None:
                run.failure = f"the head of attempt {run.attempt} was lost"
            case "failed" if event["number"] == run.attempt and run.failure is None:
                run.failure = event["why"]
            case "lost" if event["number"] == run.attempt and run.verdict is None:
                run.lost.add(event["node"])
                run.failure = run.failure or f"node {event['node']} lost"
            case "stop":
                run.stopped = True
            case "over" if run.verdict is None:
                run.verdict = event["verdict"]
    return run


class Gang:
    ends_alone = False  # without a head, after a while
    notices_reboots = False  # else the new guard starts the same attempt again

    def __init__(self, node: Node) -> None:
        self.node = node
        self.statuses: dict[int, dict[str, Any]] = {}
        self.heard_at: dict[int, float] = {}
        self._folded = (-1, -1, Run())
        self._lost_at = float("-inf")
        self._over_at: float | None = None

    @property
    def run(self) -> Run:
        state = self.node.state
        if self._folded[:2] != (visible(state), state.ballot.epoch):
            self._folded = (visible(state), state.ballot.epoch, fold(state.log[: visible(state)]))
            run = self._folded[2]
            if run.failure is not None and state.role is Role.HEAD:
                self.node.world.rules.attempt_fails(visible(state), run.attempt, run.failure)
        return self._folded[2]

    def on_lead(self) -> None:
        self.__init__(self.node)  # type: ignore[misc]

    def on_message(self, sender: int, kind: str, content: Any) -> None:
        if kind == "status":
            self.statuses[sender] = content
            self.admit(sender)
            if content["ended"] and self.run.verdict is None and self.node.state.role is not Role.HEAD:
                return
        elif kind == "order" and content["epoch"] >= self.node.state.ballot.epoch:
            self._obey(content)

    def _obey(self, order: dict[str, Any]) -> None:
        guard, state = self.node.guard, self.node.state
        match order["order"]:
            case "run" if "beat" not in order or election.order_is_valid(state, order["beat"], self.node.clock()):
                guard.run(order["attempt"], order["attempt_epoch"], WORK)
            case "stop":
                guard.stop(order["attempt"])
            case "end":
                guard.finish(order["verdict"])
        self._tell()

    def _tell(self) -> None:
        for number in self.node.heads():
            if number != self.node.number:
                self.node.world.send(self.node.number, number, ("status", self.node.guard.status()))

    def admit(self, number: int) -> None:
        """A node that was added gets the log, and then votes."""
        state = self.node.state
        if state.role is Role.HEAD and number not in state.voters | state.learners:
            self.node.step(Admitted(number, self.node.clock()))

    def update_voters(self, wanted: frozenset[int]) -> bool:
        """Propose the next change, if there can be one now."""
        state = self.node.state
        for number in sorted((wanted - self.node.world.drained) ^ state.voters):
            if election_log.may_change_voters(state, state.voters ^ {number}):
                voters = sorted(state.voters ^ {number})
                self.node.propose(json.dumps({"event": "Voters", "fields": {"nodes": voters, "at": 0.0}}))
                return True
        return False

    def may_leave(self) -> bool:
        if self.node.state.role is not Role.HEAD:
            return True
        self._over_at = self._over_at or self.node.clock()
        others = (self.node.state.voters | self.node.state.learners) - self.node.world.drained - {self.node.number}
        ended = {number for number, status in self.statuses.items() if status["ended"]}
        return ended >= others or self.node.clock() - self._over_at > FAREWELL

    # the head

    def on_tick(self) -> None:
        state, now = self.node.state, self.node.clock()
        if state.role is not Role.HEAD:
            self._tell()
            return
        self.heard_at[self.node.number] = now
        self.on_message(self.node.number, "status", self.node.guard.status())
        if election.has_authority(state, now):
            self.update_voters(state.voters | state.learners)
            for event in self._events(now):
                self.node.propose(json.dumps(event))
        self._send_orders()

    def _events(self, now: float) -> list[dict[str, Any]]:
        state = self.node.state
        if state.log and state.last_epoch < state.ballot.epoch:
            return [{"event": "elected"}]
        if state.log and not election_log.is_current(state):
            return []
        run = self.run
        if run.verdict is not None:
            return []
        if any(status["stop"] for status in self.statuses.values()) and not run.stopped:
            return [{"event": "stop"}]
        if run.attempt and run.failure is None and not run.stopped:
            return self._watch(run, now)
        return self._next(run, now)

    def _watch(self, run: Run, now: float) -> list[dict[str, Any]]:
        silent = [number for number in run.team if self._silent(number, now)]
        if silent:
            self._lost_at = now
            return [{"event": "lost", "number": run.attempt, "node": silent[0]}]
        statuses = {number: self.statuses.get(number) for number in run.team}
        for number, status in statuses.items():
            if status and status["attempt"] == run.attempt and status["phase"] == "exited" and not status["ok"]:
                why = (status["failures"] or [f"node {number} ended"])[0]
                return [{"event": "failed", "number": run.attempt, "why": why}]
        if all(
            status and status["attempt"] == run.attempt and status["phase"] == "exited" for status in statuses.values()
        ):
            return [{"event": "over", "verdict": "succeeded"}]
        return []

    def _next(self, run: Run, now: float) -> list[dict[str, Any]]:
        """The attempt has failed or is stopped: when nothing of it is left, the next one may follow, or the verdict."""
        if not election.may_start_attempts(self.node.state, now) and self.node.state.log:
            return []
        busy = {number for number, status in self.statuses.items() if status["phase"] == "running"}
        if run.epoch == self.node.state.ballot.epoch:  # in an earlier epoch, all permits have lapsed
            busy |= {number for number in run.team if not self._has_exited(number, run.attempt)}
        for number in sorted(busy - run.lost):
            if self._silent(number, now):
                self._lost_at = now
                return [{"event": "lost", "number": run.attempt, "node": number}]
            return []
        if now - self._lost_at < AFTER_A_LOSS:
            return []
        if run.stopped:
            return [{"event": "over", "verdict": "killed"}]
        workers = [number for number in self.node.config.candidates if not self._silent(number, now)]
        if len(workers) < self.node.world.team_size:
            return []
        team = [self.node.number, *(number for number in workers if number != self.node.number)]
        return [{"event": "attempt", "number": run.attempt + 1, "team": team[: self.node.world.team_size]}]

    def _has_exited(self, number: int, attempt: int) -> bool:
        status = self.statuses.get(number)
        return status is not None and status["attempt"] >= attempt and status["phase"] == "exited"

    def _silent(self, number: int, now: float) -> bool:
        since = max(self.heard_at.get(number, float("-inf")), self.node.state.won_at)
        known = number in self.heard_at or now - self.node.state.won_at < self.node.config.lease
        return not known or now - since > self.node.config.lease

    def _send_orders(self) -> None:
        run, state = self.run, self.node.state
        if state.log and not election_log.is_current(state):
            return
        for number in sorted(state.voters | state.learners):
            order = self._order(run, number)
            if order is not None:
                order["epoch"] = state.ballot.epoch
                if number == self.node.number:
                    self._obey(order)
                else:
                    beat = election.beat_for(state, number, self.node.clock())
                    self.node.world.send(self.node.number, number, ("order", {**order, "beat": beat}))

    def _order(self, run: Run, number: int) -> dict[str, Any] | None:
        if run.verdict is not None:
            others_ended = self._over_at is not None
            return {"order": "end", "verdict": run.verdict} if number != self.node.number or not others_ended else None
        if run.attempt == 0:
            return None
        if run.failure is not None or run.stopped or number not in run.team:
            return {"order": "stop", "attempt": run.attempt - (number not in run.team and run.failure is None)}
        return {"order": "run", "attempt": run.attempt, "attempt_epoch": run.epoch}


def visible(state: Any) -> int:
    """How much of the log orders follow from."""
    return int(state.committed)
