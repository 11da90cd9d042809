"""A world: true time, clocks that drift, a network that loses, delays, doubles and cuts, and faults at given times."""

from __future__ import annotations

import heapq
import itertools
import random
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from orchestrator.node.gang.election_state import DRIFT, Config

from .gangs import Gang
from .node import STOP_WINDOW, Node, Ranks
from .rules import Rules, Violation

MANY = 1000  # restarts
CALM = 300.0  # s after the last fault has ended, in which the run must end
CALM_DELAY = 0.01  # s, the mean delay of messages then
BEHIND = 10  # messages that wait behind a late one, where their order is kept


class Weather(NamedTuple):
    """Of all links. `late`: the share of messages that come up to three leases late."""

    loss: float
    delay: float  # s, the mean
    late: float
    doubled: float


class Fault(NamedTuple):
    """`kind`: cut, power, pause, recorder, fail, sick, stop, farewell, add, drain or leave.

    cut: `pairs` are links, each in one direction. add: one more node. drain: the node is asked to leave the run, also
    if it is the head. leave: the node has been drained, and is gone. sick: the health gate finds the problem `only`.

    farewell: the head loses its power as it tells the others of the verdict, after `node` of them.

    `only`: the kind of message that is cut, all if it is empty.
    """

    at: float
    kind: str
    node: int = 0
    seconds: float = 0.0  # until it ends; inf: never
    pairs: tuple[tuple[int, int], ...] = ()
    only: str = ""

    @property
    def cuts(self) -> list[tuple[int, int, str]]:
        return [(sender, receiver, self.only) for sender, receiver in self.pairs]


class Scenario(NamedTuple):
    seed: str
    voters: int
    team_size: int
    witness: bool  # the last node
    elects: bool
    lease: float  # s
    eager: bool  # candidates try as soon as their own lease is over
    weather: Weather
    faults: tuple[Fault, ...]
    max_restarts: int = MANY
    has_gate: bool = False
    has_agreement: bool = True


class World:
    def __init__(self, scenario: Scenario, gang: type[Gang] = Gang) -> None:
        self.scenario = scenario
        self.dice = random.Random(scenario.seed)
        self.now = 0.0
        self.steps = 0
        self.rules = Rules()
        self.team_size = scenario.team_size
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._cuts: Counter[tuple[int, int, str]] = Counter()
        self._calm = False
        self._told = 0  # nodes, of the verdict
        self._gang = gang
        self.drained: set[int] = set()  # and gone, without a word to the others
        self.asked_to_leave: set[int] = set()
        self._is_stopped = False
        self._newest: dict[tuple[int, int], tuple[list[int], float]] = {}  # message of each link: when it arrives
        self.nodes: list[Node] = []
        for _ in range(scenario.voters):
            self._add_node()

    def _add_node(self) -> None:
        scenario, number = self.scenario, len(self.nodes)
        added = (number,) if number >= scenario.voters else ()
        candidates = (*range(scenario.voters - scenario.witness), *added)
        config = Config(number, scenario.voters, candidates, scenario.lease, STOP_WINDOW, scenario.elects)
        rate = self.dice.choice((1 - DRIFT, 1.0, 1 + DRIFT, 1 + DRIFT))
        self.nodes.append(Node(self, config, rate, self._gang))

    def after(self, seconds: float, do: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.now + seconds, next(self._order), do))

    def send(self, sender: int, receiver: int, payload: tuple[str, Any]) -> None:
        weather = self.scenario.weather
        kind = payload[0] if payload[0] != "election" else type(payload[1]).__name__
        is_cut = self._cuts[sender, receiver, ""] or self._cuts[sender, receiver, kind]
        if is_cut or (self.dice.random() < weather.loss and not self._calm):
            return
        if not self.scenario.elects:
            self._send_in_order(sender, receiver, payload)
            return
        node = self.nodes[receiver]
        for _ in range(1 + (self.dice.random() < weather.doubled)):
            self.after(self._delay(), lambda: node.do(lambda: node.hear(sender, payload)))

    def _send_in_order(self, sender: int, receiver: int, payload: tuple[str, Any]) -> None:
        """Without elections, all goes by the link of a node to the head, and the link ends with either process."""
        ends = self.nodes[sender], self.nodes[receiver]
        processes = [end.incarnation for end in ends]
        known, newest = self._newest.get((sender, receiver), (processes, 0.0))
        at = max(self.now + self._delay(), newest if known == processes else 0.0)
        self._newest[sender, receiver] = processes, at

        def arrive() -> None:
            if [end.incarnation for end in ends] == processes:
                ends[1].hear(sender, payload)

        self.after(at - self.now, lambda: ends[1].do(arrive))

    def _delay(self) -> float:
        seconds = self.dice.expovariate(1 / (CALM_DELAY if self._calm else self.scenario.weather.delay))
        late = self.scenario.weather.late / (1 if self.scenario.elects else BEHIND)
        if self.dice.random() < late and not self._calm:
            seconds = self.dice.uniform(0, 3 * self.scenario.lease)
        return seconds

    def check_after(self, seconds: float) -> None:
        """Ranks that overslept must be dead by then, or belong to the attempt of all others."""
        self.after(seconds, lambda: self.rules.ranks_live(list(self.alive_ranks())))

    def alive_ranks(self) -> Iterator[Ranks]:
        """Ranks that execute: not those of a paused node, nor those that its guard finds with a lapsed permit."""
        for node in self.nodes:
            ranks = node.guard.ranks
            if ranks is None or node.paused:
                continue
            if ranks.overslept_until is None or self.now > ranks.overslept_until:
                yield ranks

    # faults

    def dies_in_the_farewell(self, head: Node) -> bool:
        """Called for each node that the head is about to tell."""
        fault = next((fault for fault in self.scenario.faults if fault.kind == "farewell"), None)
        if fault is None or self._told > fault.node:
            return False
        self._told += 1
        if self._told <= fault.node:
            return False
        head.power_off()
        if fault.seconds < float("inf"):
            self.after(fault.seconds, head.power_on)
        return True

    def _begin(self, fault: Fault) -> None:
        if fault.node >= len(self.nodes):
            return  # it is added later
        node = self.nodes[fault.node]
        match fault.kind:
            case "cut":
                self._cuts.update(fault.cuts)
            case "add":
                self._add_node()
            case "leave":
                node.power_off()
                self.drained.add(fault.node)
            case "power":
                node.power_off()
            case "pause":
                node.pause()
            case "recorder":
                node.do(node.start_recorder)
            case "fail":
                node.do(node.guard.fail)
            case "sick":
                node.sick_with = fault.only
            case "drain":
                self.asked_to_leave.add(fault.node)
            case "stop":
                self._is_stopped = True
                for other in self.nodes:
                    other.do(other.request_stop)

    def _end(self, fault: Fault) -> None:
        if fault.node >= len(self.nodes):
            return
        node = self.nodes[fault.node]
        match fault.kind:
            case "cut":
                self._cuts.subtract(fault.cuts)
            case "power":
                if fault.node not in self.drained:
                    node.power_on()
                if self._is_stopped and not self.scenario.elects:
                    node.do(node.request_stop)  # `kill` did not reach this host, and is run again
            case "pause":
                node.resume()
            case "sick":
                node.sick_with = ""

    def play(self) -> None:
        """Until the calm after the last fault. Raises Violation."""
        calm_at = 0.0
        for fault in self.scenario.faults:
            self.after(fault.at, lambda fault=fault: self._begin(fault))  # type: ignore[misc]
            calm_at = max(calm_at, fault.at)
            if fault.seconds < float("inf"):
                self.after(fault.at + fault.seconds, lambda fault=fault: self._end(fault))  # type: ignore[misc]
                calm_at = max(calm_at, fault.at + fault.seconds)
        self.after(calm_at, lambda: setattr(self, "_calm", True))
        try:
            while self._events and self.now < calm_at + CALM and not self._is_over():
                self.now, _, do = heapq.heappop(self._events)
                do()
            self._judge()
        except Violation as violation:
            raise Violation(f"at {self.now:.3f} s: {violation}") from None

    def _is_over(self) -> bool:
        return all(node.left or not node.up or node.is_unknown for node in self.nodes) and not any(
            fault.kind == "power" and fault.at + fault.seconds > self.now for fault in self.scenario.faults
        )

    def _judge(self) -> None:
        """After the calm: a majority was connected for long enough."""
        is_someone_gone = any(fault.seconds == float("inf") for fault in self.scenario.faults)
        if is_someone_gone and not self.rules.committed:
            return  # the head was lost before any other node knew that the run had begun
        is_headless = not self.scenario.elects and not self.nodes[0].up  # the others end without a verdict
        if not self.rules.verdicts and not is_headless:
            stop = any(fault.kind == "stop" for fault in self.scenario.faults)
            raise Violation("a stop request did not end the run" if stop else "the run made no progress")
        obeys = all(fault.only not in ("order", "status") for fault in self.scenario.faults)
        is_spent = self.rules.attempt > self.scenario.max_restarts
        allowed = {"succeeded", "killed", "failed", "lost"} if is_spent else {"succeeded", "killed"}
        if obeys and not set(self.rules.verdicts.values()) <= allowed:
            raise Violation(f"a run that could continue has ended: {self.rules.verdicts}")
        for ranks in self.alive_ranks():
            raise Violation(f"ranks of attempt {ranks.attempt} are left on node {ranks.node}")
        for node in self.nodes:
            if node.up and not node.left and node.gang.ends_alone and not node.is_unknown:
                raise Violation(f"node {node.number} does not end")
