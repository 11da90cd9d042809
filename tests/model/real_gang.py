"""The gang of the node program in the model: statuses become events in the log, and committed events become orders.

The part around gang.step is what HeadLink does, with a log that a majority holds.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from orchestrator.node.gang import agreement, election, gang, gang_events, gang_orders, newcomers, team
from orchestrator.node.gang.election_state import Role
from orchestrator.node.gang.gang_events import End, Run, Stop
from orchestrator.node.gang.gang_state import GONE, NodePhase, Phase, State

from .gangs import WORK, Gang

if TYPE_CHECKING:
    from .node import Node

MANY = 1000  # restarts
REJOIN_TIMEOUT = 10_000.0  # s that the head waits for nodes
GIVES_UP_AFTER = 60.0  # s without a head, beyond a lease
BEGUN_BY = 8.0  # s: a host that is lost before the start ends the run, as its controller sees it


class RealGang(Gang):
    ends_alone = True
    notices_reboots = True

    def __init__(self, node: Node) -> None:
        super().__init__(node)
        voters, size = node.config.voters, node.world.team_size
        nodes = [
            {
                "host": f"node-{number}",
                "nproc": 1,
                "spare": number >= size,
                "witness": number not in node.config.candidates,
            }
            for number in range(voters)
        ]
        begun = gang.begin(nodes, MANY, size, REJOIN_TIMEOUT, size, has_agreement=True)
        self._committed: tuple[int, State] = (0, begun)  # how many entries, and the state after them
        self._tip: tuple[int, State] = (0, begun)
        self._links: set[int] = set()
        self._decided_at = float("-inf")

    # the log

    def _now(self) -> float:
        """As the recorders' clock of a run: true time at the boot, and then by this node's own clock."""
        return 1000.0 + self.node.booted_at + self.node.uptime()

    def _replayed(self, known: tuple[int, State], length: int) -> tuple[int, State]:
        position, state = known
        for entry in self.node.state.log[position:length]:
            event = json.loads(entry.text)
            state, _ = gang.step(state, gang_events.EVENTS[event["event"]](**event["fields"]))
            position += 1
            if state.first_failure is not None and position <= self.node.state.committed:
                self.node.world.rules.attempt_fails(position, state.attempt, _cause(state.first_failure))
        return max(position, length), state

    @property
    def state(self) -> State:
        self._committed = self._replayed(self._committed, self.node.state.committed)
        return self._committed[1]

    @property
    def tip(self) -> State:
        self._tip = self._replayed(self._tip, self.node.state.length)
        return self._tip[1]

    def _happens(self, event: gang_events.Event) -> None:
        if self.state.phase is Phase.OVER:  # no authority is needed for the farewell
            self._committed = (self._committed[0], gang.step(self.state, event)[0])
            return
        now = self.node.clock()
        rested = now - self._decided_at > self.node.config.lease
        self._decided_at = now
        if rested and self.tip.phase is not Phase.WAITING:
            self._propose(gang_events.Resumed(self._now()))
        if gang.step(self.tip, event)[0] != self.tip:
            self._propose(event)

    def _propose(self, event: gang_events.Event) -> None:
        self.node.propose(json.dumps({"event": gang_events.event_name(event), "fields": event._asdict()}))

    # messages

    def on_lead(self) -> None:
        state = self.state
        self.__init__(self.node)  # type: ignore[misc]
        self._committed = (self.node.state.committed, state)
        self._tip = self._committed

    def on_message(self, sender: int, kind: str, content: Any) -> None:
        if kind == "order" and content["epoch"] >= self.node.state.ballot.epoch:
            self._obey(content)
        elif kind == "status":
            self.statuses[sender] = content
            self.admit(sender)
            if self._decides():
                self._on_status(sender, content)

    def _decides(self) -> bool:
        state = self.node.state
        return state.role is Role.HEAD and (
            election.has_authority(state, self.node.clock()) or self.state.phase is Phase.OVER
        )

    def _on_status(self, number: int, status: dict[str, Any]) -> None:
        now = self._now()
        if self.node.state.length and self.node.state.last_epoch < self.node.state.ballot.epoch:
            return
        if number == len(self.tip.nodes):
            self._happens(gang_events.Added(f"node-{number}", 1, "ann", now))
        if number >= len(self.tip.nodes):
            return  # the run has not begun, or is over
        if number not in self._links:
            self._links.add(number)
            self._happens(gang_events.Joined(number, now))
        if status["ended"]:
            self._happens(gang_events.Disconnected(number, now))
            return
        if status["stop"]:
            self._happens(gang_events.StopRequested("ann", 5.0, now))
        if status["attempt"] == 0 and status["boots"] > 1:
            self._happens(gang_events.HostRestarted(number, now, status["begun"]))
        if status["phase"] == "running":
            self._happens(gang_events.Started(number, status["attempt"], now))
        for what in status["failures"]:
            failure = {"host": f"node-{number}", "node": number, "what": what}
            self._happens(gang_events.Failed(number, status["attempt"], failure, now))
        if status["phase"] == "exited":
            self._happens(gang_events.Exited(number, status["attempt"], status["ok"], now, status["fenced"]))

    def _obey(self, order: dict[str, Any]) -> None:
        guard, now = self.node.guard, self.node.clock()
        match order["order"]:
            case Run(attempt):
                if "beat" not in order or election.order_is_valid(self.node.state, order["beat"], now):
                    guard.run(attempt, order["epoch"], WORK)
            case Stop(attempt):
                guard.stop(attempt)
            case End(verdict):
                guard.finish(verdict["state"])
        self._tell()

    # the head

    def on_tick(self) -> None:
        state, now = self.node.state, self.node.clock()
        if state.role is not Role.HEAD:
            self._end_without_head(now)
            self._tell()
            return
        if self._decides():
            self._decide(now)
        if self._decides():
            self._send_orders()

    def _end_without_head(self, now: float) -> None:
        """The head may have been lost as it told the others of the verdict."""
        silent = now - self.node.state.heard_at
        if silent > self.node.config.lease and self.state.verdict is not None:
            self.node.guard.finish(self.state.verdict["state"])
        elif silent > self.node.config.lease + GIVES_UP_AFTER and self.node.state.length:
            self.node.give_up()

    def _decide(self, now: float) -> None:
        state = self.node.state
        if state.length and state.last_epoch < state.ballot.epoch:
            self._decided_at = now
            self._propose(gang_events.Elected(self.node.number, f"10.0.0.{self.node.number}", self._now()))
            return
        self.on_message(self.node.number, "status", self.node.guard.status())
        members = [node for node in self.tip.nodes if node.node_rank is not None]
        if self.tip.phase is Phase.WAITING and all(node.phase is NodePhase.JOINED for node in members):
            self._happens(gang_events.StartRequested("10.0.0.0", 29500, self._now()))
        for number, node in enumerate(self.tip.nodes):
            silent = now - max(self.heard_at.get(number, state.won_at), state.won_at)
            if silent > self.node.config.lease and number != self.node.number and node.phase not in GONE:
                self._happens(gang_events.Lost(number, self._now(), self._now() - silent))
                self._links.discard(number)
        if election.may_start_attempts(state, now):
            self._agree()
            if team.restart_is_due(self.tip, self._now()):
                self._happens(gang_events.PortFound(29501, self._now()))
        self._happens(gang_events.Tick(self._now()))
        if self.state.phase is not Phase.OVER:
            self.update_voters(newcomers.voters(self.state))

    def _agree(self) -> None:
        """The output folders are equal at once, or, in one of some cases, after a while."""
        members = agreement.due(self.tip, self._now(), private=self.tip.attempt % 2 == 0)
        if members is not None and (self.tip.attempt + int(self.node.clock())) % 4:
            self._happens(gang_events.Agreed(self.tip.attempt + 1, members, self._now()))

    def _send_orders(self) -> None:
        state = self.node.state
        if not election.is_current(state):
            return
        for number in range(len(self.state.nodes)):
            order = gang_orders.order_of(self.state, number)
            if order is None or (number not in self._links and number != self.node.number):
                continue
            if isinstance(order, End) and self.node.world.dies_in_the_farewell(self.node):
                return
            message = {"order": order, "epoch": state.ballot.epoch}
            if number == self.node.number:
                self._obey(message)
            else:
                beat = election.beat_for(state, number, self.node.clock())
                self.node.world.send(self.node.number, number, ("order", {**message, "beat": beat}))

    def may_leave(self) -> bool:
        return self.node.state.role is not Role.HEAD or gang_orders.order_of(self.state, self.node.number) is not None


def _cause(failure: dict[str, Any]) -> str:
    return f"{failure.get('host')}: {failure.get('what')}"
