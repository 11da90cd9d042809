"""A stop request at any moment of a run with restarts ends it: the gang alone, in thousands of simulated worlds.

A world is made from a seed: nodes and links with delays, ranks that fail, ranks that do not obey SIGTERM, a recorder of
the head that is restarted, a host that loses power. What a guard does with its orders is modelled here;
tests/node/test_stop_moments.py does the same with real guards.
"""

from __future__ import annotations

import heapq
import json
import random
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from orchestrator.node.gang import gang, gang_events, gang_state, team
from orchestrator.node.gang.gang_events import End, Run, Stop, Wait
from orchestrator.node.gang.gang_state import Phase
from orchestrator.node.link.link import LEASE

WORLDS = 3000
WITHIN = 5.0  # s beyond its grace that a stop may take
TICK = 0.5  # s, as in orchestrator/node/link/peers.py
END_OF_TIME = 400.0  # s of a world without a stop


@dataclass
class Guard:
    """What orchestrator/node/guard/guard.py does, without processes."""

    number: int
    world: World
    attempt: int = 0
    phase: str = "prepared"
    failures: list[dict[str, Any]] = field(default_factory=list)
    start: bool = False
    stop: dict[str, Any] | None = None
    end: dict[str, Any] | None = None
    gone_at: float | None = None
    stopping: bool = False
    kill_at: float = 0.0

    def status(self) -> dict[str, Any]:
        failures = [dict(one) for one in self.failures]
        return {
            "attempt": self.attempt,
            "phase": self.phase,
            "failures": failures,
            "start": self.start,
            "stop": self.stop,
        }

    def tell(self) -> None:
        status = self.status()
        self.world.to_head(self.number, lambda: self.world.heard(self.number, status))

    def obey(self, order: gang_events.Order) -> None:
        match order:
            case Run():
                if self.end is not None or self.stop is not None or order.attempt <= self.attempt:
                    self.tell()
                    return
                self.attempt, self.phase, self.stopping = order.attempt, "running", False
                self.world.begun.append((self.world.now, self.number, order.attempt))
                self.tell()
                self.world.let_run(self)
            case Stop():
                if self.attempt < order.attempt:
                    self.attempt, self.phase = order.attempt, "exited"
                    self.tell()
                elif self.attempt == order.attempt:
                    self.stop_ranks(order.grace)
            case Wait():
                self.tell()
            case End():
                self.end = order.verdict
                self.stop_ranks(gang_state.FAILURE_GRACE)
                self.leave_if_done()

    def asked_to_stop(self, grace: float) -> None:
        self.stop = {"by": "ann", "grace": grace}
        self.tell()
        self.stop_ranks(grace)

    def stop_ranks(self, grace: float) -> None:
        if self.phase != "running":
            return
        kill_at = self.world.now + grace
        self.kill_at = min(kill_at, self.kill_at) if self.stopping else kill_at
        attempt, deadline = self.attempt, self.kill_at
        obeys_after = self.world.dice.choice((0.0, 0.05, 0.6, 60.0))  # s; the last: never
        self.stopping = True
        self.world.after(min(obeys_after, deadline - self.world.now), lambda: self.ranks_ended(attempt))

    def ranks_ended(self, attempt: int) -> None:
        if self.attempt == attempt and self.phase == "running":
            self.phase = "exited"
            self.tell()
            self.leave_if_done()

    def leave_if_done(self) -> None:
        if self.end is not None and self.phase != "running" and self.gone_at is None:
            self.gone_at = self.world.now
            if self.number:
                self.world.to_head(
                    self.number, lambda: self.world.happens(gang_events.Disconnected(self.number, self.world.now))
                )


class World:
    def __init__(self, seed: str, stop_at: float | None = None) -> None:
        self.dice = random.Random(seed)
        self.now = 0.0
        self.begun: list[tuple[float, int, int]] = []
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0
        self._arrives: dict[tuple[int, str], float] = defaultdict(float)
        dice = self.dice
        workers, spares = dice.randrange(1, 4), dice.choice((0, 0, 1))
        nodes = [
            {"host": f"host-{number}", "nproc": 1, "spare": number >= workers} for number in range(workers + spares)
        ]
        self.max_restarts = dice.randrange(4)
        self._nodes = nodes
        self.state = gang.begin(nodes, self.max_restarts)
        self.guards = [Guard(number, self) for number in range(len(nodes))]
        self.delays = [0.0, *(dice.choice((0.001, 0.05, 0.3)) for _ in nodes[1:])]
        self.good_attempt = dice.choice((1, 2, 3, 99))  # the first one that no rank fails in
        self.takes = dice.choice((0.2, 2.0, 40.0))  # s that an attempt runs
        self.port_found_after = dice.choice((0, 0, 4))  # ticks
        self.log: list[str] = []
        self.asked_in: gang_state.State | None = None  # the gang's state when the first stop request came to it
        self.dead: int | None = None
        if len(nodes) > 1 and dice.random() < 0.2:
            self.at(dice.uniform(0.0, 20.0), lambda: self.cut_power(len(nodes) - 1))
        if dice.random() < 0.3:
            self.at(dice.uniform(0.0, 20.0), self.restart_head)
        self.grace = dice.choice((0.0, 0.5, 3.0, 30.0))
        asked = dice.choice(([0], [len(nodes) - 1], range(len(nodes))))  # of `kill` and of kill(1) on one host
        lateness = [dice.uniform(0.0, 0.3) for _ in nodes]
        if stop_at is not None:
            for number in asked:
                self.at(stop_at + lateness[number], lambda number=number: self.ask_to_stop(number))
        for guard in self.guards:
            self.at(dice.uniform(0.0, 0.3), lambda guard=guard: self.join(guard))
        self.at(dice.uniform(0.3, 1.0), self.start)
        self.at(TICK, self.tick)
        while self._events and self.now < END_OF_TIME:
            self.now, _, act = heapq.heappop(self._events)
            act()

    def at(self, when: float, act: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._events, (when, self._count, act))

    def after(self, seconds: float, act: Callable[[], None]) -> None:
        self.at(self.now + seconds, act)

    def is_alive(self, number: int) -> bool:
        return number != self.dead

    @property
    def over(self) -> bool:
        return all(guard.gone_at is not None for guard in self.guards if self.is_alive(guard.number))

    # the link: what is sent first arrives first

    def _carry(self, number: int, way: str, act: Callable[[], None]) -> None:
        delay = self.delays[number] * self.dice.uniform(0.5, 1.5)
        self._arrives[number, way] = max(self._arrives[number, way], self.now + delay)
        self.at(self._arrives[number, way], lambda: act() if self.is_alive(number) else None)

    def to_head(self, number: int, act: Callable[[], None]) -> None:
        if self.is_alive(number):
            self._carry(number, "up", act)

    # the head, as in orchestrator/node/roles/head.py

    def happens(self, event: gang_events.Event) -> None:
        before = self.state
        self.state, actions = gang.step(before, event)
        if self.state != before:
            self.log.append(json.dumps([gang_events.event_name(event), event._asdict()]))
        for action in actions:
            if self.is_alive(action.node):
                order = action.order
                self._carry(action.node, "down", lambda node=action.node, order=order: self.guards[node].obey(order))

    def heard(self, number: int, status: dict[str, Any]) -> None:
        if status["start"] and self.state.phase is Phase.WAITING:
            self.happens(gang_events.StartRequested("10.0.0.1", 29500, self.now))
        if status["stop"] is not None:
            self.asked_in = self.asked_in or self.state
            self.happens(gang_events.StopRequested(status["stop"]["by"], status["stop"]["grace"], self.now))
        if status["phase"] == "running":
            self.happens(gang_events.Started(number, status["attempt"], self.now))
        for failure in status["failures"]:
            self.happens(gang_events.Failed(number, failure["attempt"], failure, self.now))
        if status["phase"] == "exited":
            ok = not status["failures"] and status["attempt"] >= self.good_attempt and status["stop"] is None
            self.happens(gang_events.Exited(number, status["attempt"], ok, self.now))

    def tick(self) -> None:
        if self.over:
            return
        if team.restart_is_due(self.state, self.now):
            self.port_found_after -= 1
            if self.port_found_after < 0:
                self.happens(gang_events.PortFound(29501, self.now))
        self.happens(gang_events.Tick(self.now))
        self.after(TICK, self.tick)

    def restart_head(self) -> None:
        """Its recorder is killed; the next one has the log, and is told everything again."""
        self.state = gang.begin(self._nodes, self.max_restarts)
        for line in self.log:
            name, fields = json.loads(line)
            self.state, _ = gang.step(self.state, gang_events.EVENTS[name](**fields))
        for guard in self.guards:
            if guard.gone_at is None:
                self.join(guard)

    # what happens on the hosts

    def join(self, guard: Guard) -> None:
        if self.is_alive(guard.number):
            self.to_head(guard.number, lambda: self.happens(gang_events.Joined(guard.number, self.now)))
            guard.tell()

    def start(self) -> None:
        self.guards[0].start = True
        self.guards[0].tell()

    def ask_to_stop(self, number: int) -> None:
        if self.is_alive(number) and self.guards[number].gone_at is None:
            self.guards[number].asked_to_stop(self.grace)

    def cut_power(self, number: int) -> None:
        heard_at = self.now
        self.dead = number
        self.after(LEASE, lambda: self.happens(gang_events.Lost(number, self.now, heard_at)))

    def let_run(self, guard: Guard) -> None:
        attempt = guard.attempt
        if attempt >= self.good_attempt:
            self.after(self.takes, lambda: self.ranks_ended_well(guard, attempt))
        elif guard.number == self.state.team[attempt % len(self.state.team)]:
            self.after(self.takes * self.dice.random(), lambda: self.rank_fails(guard, attempt))

    def ranks_ended_well(self, guard: Guard, attempt: int) -> None:
        if not guard.stopping:
            guard.ranks_ended(attempt)

    def rank_fails(self, guard: Guard, attempt: int) -> None:
        if guard.attempt != attempt or guard.phase != "running" or guard.stopping:
            return
        failure = {"host": f"host-{guard.number}", "node": guard.number, "rank": 0, "exit_code": 1, "attempt": attempt}
        guard.failures.append({**failure, "what": "rank 0: exit code 1", "said": f"failure {attempt}"})
        guard.tell()


@pytest.mark.parametrize("block", range(3))
def test_a_stop_request_ends_the_run_at_every_moment(block: int) -> None:
    states, moments = defaultdict(int), defaultdict(int)
    for number in range(block * WORLDS // 3, (block + 1) * WORLDS // 3):
        seed = f"stops {number}"
        plain = World(seed)
        lasted = max((guard.gone_at or END_OF_TIME) for guard in plain.guards if plain.is_alive(guard.number))
        stop_at = random.Random(number).uniform(0.0, min(lasted, 60.0))
        world = World(seed, stop_at)
        assert world.over, f"{seed}: guards are left"
        deadline = stop_at + 0.3 + world.grace + WITHIN + (LEASE if world.dead is not None else 0.0)
        if world.asked_in is not None:
            late = [guard.gone_at for guard in world.guards if (guard.gone_at or 0.0) > deadline]
            assert not late, f"{seed}: {late} after {deadline}"
        living = [guard for guard in world.guards if world.is_alive(guard.number)]
        assert all(guard.end == world.state.verdict for guard in living), seed
        check_verdict(world, seed)
        states[(world.state.verdict or {})["state"]] += 1
        moments[world.asked_in.phase.value if world.asked_in else "too late"] += 1
    assert min(states[one] for one in ("killed", "failed", "succeeded")) > 0, states
    # every phase has been met, or this test would prove less than it says
    assert min(moments[one] for one in ("waiting", "running", "stopping", "restarting")) > 0, moments


def check_verdict(world: World, seed: str) -> None:
    asked_in, verdict = world.asked_in, world.state.verdict
    assert verdict is not None, seed
    if asked_in is None:  # it was over before
        return
    assert verdict["attempt"] == asked_in.attempt, f"{seed}: an attempt was started after the stop request"
    if world.dead is not None:  # then the failures are not all of our making
        return
    spent = asked_in.first_failure is not None and len(asked_in.failures) == world.max_restarts
    if asked_in.phase is Phase.OVER or (asked_in.phase is Phase.STOPPING and spent):
        assert verdict["state"] != "killed", seed
        return
    assert (verdict["state"], verdict["stopped_by"], verdict["first_failure"]) == ("killed", "ann", None), seed
    last = [{"attempt": asked_in.attempt, **asked_in.first_failure}] if asked_in.first_failure else []
    known = [*asked_in.failures, *last]
    assert list(world.state.failures) == known, f"{seed}: the failures before are history"
