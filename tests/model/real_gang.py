"""The gang of the node program in the model: statuses become events in the log, and committed events become orders.

The part around gang.step is what HeadLink does, with a log that a majority holds.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from orchestrator.node.gang import (
    agreement,
    drain,
    election,
    election_log,
    election_state,
    gang,
    gang_events,
    gang_orders,
    newcomers,
    team,
)
from orchestrator.node.gang.election_state import Role
from orchestrator.node.gang.gang_events import Check, End, Run, Stop
from orchestrator.node.gang.gang_state import GONE, NodePhase, Phase, State, is_unfit, kill_window

from .gangs import WORK, Gang

if TYPE_CHECKING:
    from .node import Node

REJOIN_TIMEOUT = 10_000.0  # s that the head waits for nodes
GIVES_UP_AFTER = 150.0  # s without a head, beyond a lease: longer than a few faults last
BEGUN_BY = 8.0  # s: a host that is lost before the start ends the run, as its controller sees it


class RealGang(Gang):
    ends_alone = True
    notices_reboots = True

    def __init__(self, node: Node) -> None:
        super().__init__(node)
        voters, size = node.config.nodes, node.world.team_size
        nodes = [
            {
                "host": f"node-{number}",
                "nproc": 1,
                "spare": number >= size,
                "witness": number not in node.config.candidates,
            }
            for number in range(voters)
        ]
        scenario = node.world.scenario
        options = {
            "has_gate": scenario.has_gate,
            "has_agreement": scenario.has_agreement,
            "elects": scenario.elects,
            "kill_window": kill_window(node.config.lease, scenario.elects),
        }
        begun = gang.begin(nodes, scenario.max_restarts, size, REJOIN_TIMEOUT, size, **options)
        self._committed: tuple[int, State] = (0, begun)  # how many entries, and the state after them
        self._tip: tuple[int, State] = (0, begun)
        self._links: set[int] = set()
        self._has_announced = False
        self._decided_at = float("-inf")
        self._echoes: dict[int, tuple[int, float]] = {}  # on the head: each node's own newest time, with its boot
        self._heard_head_at = node.clock()  # without elections: by which time of ours the head has heard this node

    # the log

    def _now(self) -> float:
        """As the recorders' clock of a run: true time at the boot, and then by this node's own clock."""
        return 1000.0 + self.node.booted_at + self.node.uptime()

    def _replayed(self, known: tuple[int, State], length: int) -> tuple[int, State]:
        position, state = known
        for entry in self.node.state.log[position:length]:
            event = json.loads(entry.text)
            before = state
            state, _ = gang.step(state, gang_events.EVENTS[event["event"]](**event["fields"]))
            position += 1
            if before.attempt < state.attempt and position <= self.node.state.committed:
                self._begins(before, state)
            if state.first_failure is not None and position <= self.node.state.committed:
                self.node.world.rules.attempt_fails(position, state.attempt, _cause(state.first_failure))
        return max(position, length), state

    def _begins(self, before: State, after: State) -> None:
        unfit = [after.nodes[number].host for number in after.team if is_unfit(before, number)]
        self.node.world.rules.attempt_begins(after.attempt, after.max_restarts, unfit)

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
            if content["clock"] < self._echoes.get(sender, (0, 0.0)):
                return  # it was overtaken
            self.statuses[sender] = content
            self._echoes[sender] = content["clock"]
            if self.node.config.elects:
                self.admit(sender)
            if self._decides():
                self._on_status(sender, content)
        elif kind == "checked" and self._decides() and sender in self._links:
            self._happens(gang_events.Checked(sender, *content, self._now()))

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
        self.node.is_known = True
        if "echo" in order:
            self._on_echo(*order["echo"])
        match order["order"]:
            case Check(attempt):
                problems = [{"code": self.node.sick_with, "text": ""}] if self.node.sick_with else []
                if self.node.state.role is Role.HEAD:
                    self.on_message(self.node.number, "checked", (attempt, problems))
                self._send("checked", (attempt, problems))
            case Run(attempt):
                if "beat" not in order or election.order_is_valid(self.node.state, order["beat"], now):
                    guard.run(attempt, order["epoch"], WORK)
            case Stop(attempt):
                guard.stop(attempt)
            case End({"state": "stopped"}):
                self.node.gave_up = True
                guard.leave()
            case End(verdict):
                guard.finish(verdict["state"])
        self._tell()

    def _on_echo(self, boot: int, sent_at: float) -> None:
        """As follower.py: the head waits for this node for a lease from then on at least."""
        now, lease = self.node.clock(), self.node.config.lease
        if boot == self.node.boots and now - sent_at <= lease:
            self._heard_head_at = max(self._heard_head_at, sent_at)
            self.node.guard.permit(sent_at + lease)

    def _status(self) -> dict[str, Any]:
        return {**self.node.guard.status(), "clock": (self.node.boots, self.node.clock())}

    def _tell(self) -> None:
        self._send("status", self._status())

    def _send(self, kind: str, content: Any) -> None:
        for number in self.node.heads() if self.node.config.elects else [0]:
            if number != self.node.number:
                self.node.world.send(self.node.number, number, (kind, content))

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
        if not self.node.config.elects:
            limit = 0.0 if self.node.stop_requested else GIVES_UP_AFTER
            if now - self._heard_head_at > self.node.config.lease + limit and self.node.is_known:
                self.node.give_up()
            return
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
        self.on_message(self.node.number, "status", self._status())
        members = [node for node in self.tip.nodes if node.node_rank is not None]
        if self.tip.phase is Phase.WAITING and all(node.phase is NodePhase.JOINED for node in members):
            self._happens(gang_events.StartRequested("10.0.0.0", 29500, self._now()))
        for number, node in enumerate(self.tip.nodes):
            silent = now - max(self.heard_at.get(number, state.won_at), state.won_at)
            if silent > self.node.config.lease and number != self.node.number and node.phase not in GONE:
                self._happens(gang_events.Lost(number, self._now(), self._now() - silent))
                self._links.discard(number)
        for number in self.node.world.asked_to_leave:
            if number < len(self.tip.nodes):
                self._happens(gang_events.Drain(number, "ann", 5.0, self._now()))
        if not self.node.config.elects or election.may_start_attempts(state, now):
            self._agree()
            if team.restart_is_due(self.tip, self._now()):
                self._happens(gang_events.PortFound(29501, self._now()))
        self._happens(gang_events.Tick(self._now()))
        if self.state.head == self.node.number and drain.can_resign(self.state):
            self.node.step(election_state.Resigned(now))
            return
        if self.state.phase is not Phase.OVER and self.node.config.elects:
            self.update_voters(newcomers.voters(self.state))

    def _agree(self) -> None:
        """The output folders are equal at once, or, in one of some cases, after a while."""
        members = agreement.due(self.tip, self._now(), private=self.tip.attempt % 2 == 0)
        if members is not None and (self.tip.attempt + int(self.node.clock())) % 4:
            self._happens(gang_events.Agreed(self.tip.attempt + 1, members, self._now()))

    def _send_orders(self) -> None:
        state = self.node.state
        if not election_log.is_current(state):
            return
        if not self._has_announced:
            self._admit_all()
        for number in range(len(self.state.nodes)):
            order = gang_orders.order_of(self.state, number)
            is_silent = order is None and self.node.config.elects  # beats go anyway
            if is_silent or (number not in self._links and number != self.node.number):
                continue
            if (
                self.state.phase is Phase.OVER
                and isinstance(order, End)
                and self.node.world.dies_in_the_farewell(self.node)
            ):
                return
            message = {"order": order, "epoch": state.ballot.epoch}
            if number == self.node.number:
                self._obey(message)
            elif self.node.config.elects:
                beat = election.beat_for(state, number, self.node.clock())
                self.node.world.send(self.node.number, number, ("order", {**message, "beat": beat}))
            else:
                self.node.world.send(self.node.number, number, ("order", {**message, "echo": self._echoes[number]}))

    def _admit_all(self) -> None:
        self._has_announced = True
        for number, node in enumerate(self.state.nodes):
            if self.node.config.elects and number != self.node.number and node.phase not in GONE:
                self.node.step(election_state.Admitted(number, self.node.clock()))

    def may_leave(self) -> bool:
        return self.node.state.role is not Role.HEAD or gang_orders.order_of(self.state, self.node.number) is not None


def _cause(failure: dict[str, Any]) -> str:
    return f"{failure.get('host')}: {failure.get('what')}"
