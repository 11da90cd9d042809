"""Random scenarios, and the shortest part of one that still breaks a rule."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable

from orchestrator.node.gang.election_state import LONE_HEAD

from .gangs import Gang
from .rules import Violation
from .world import MANY, Fault, Scenario, Weather, World

MOST_ADDED = 2  # nodes
PROBLEMS = ("gpu-lost", "clock-off")  # of the health gate: with the first one, no attempt can succeed
SECONDS = (0.05, 0.3, 0.7, 1.0, 1.3, 2.0, 4.0)  # that a fault lasts, in leases


def scenario(seed: str, begins: float = 0.5, whole: bool = False) -> Scenario:
    """`begins`: s, from when on there are faults. `whole`: with all that only gang.step has."""
    dice = random.Random(seed)
    voters = dice.choice((3, 3, 4, 5, 5, *((LONE_HEAD,) * whole)))
    elects = not whole or dice.random() < 0.7
    witness = elects and voters > LONE_HEAD and dice.random() < 0.3
    team_size = dice.randint(max(1, voters - witness - 2), voters - witness)
    lease = dice.choice((2.0, 8.0, 8.0))
    eager = dice.random() < 0.5
    weather = Weather(
        loss=dice.choice((0.0, 0.05, 0.2)),
        delay=dice.choice((0.001, 0.05, 0.3)),
        late=dice.choice((0.0, 0.01, 0.05)),
        doubled=dice.choice((0.0, 0.2)),
    )
    faults = []
    at = begins + dice.uniform(0.0, 10.0)
    for _ in range(dice.randint(1, 8)):
        faults.append(_fault(dice, voters, at, lease, whole))
        at += lease * dice.choice((0.01, 0.06, 0.4, 0.8, 1.1, 2.0)) * dice.uniform(0.8, 1.2)
    faults += _for_good(dice, voters, voters - witness - team_size, begins, at, elects)
    if dice.random() < 0.2:
        faults.append(Fault(begins + dice.uniform(0.0, at + lease), "stop"))
    if dice.random() < 0.3:
        is_last_straw = any(fault.seconds == float("inf") for fault in faults)
        seconds = dice.choice((0.1, lease, lease if is_last_straw else float("inf")))
        faults.append(Fault(begins, "farewell", dice.randrange(voters), seconds))
    if dice.random() < 0.4:
        some_are_gone = any(fault.seconds == float("inf") for fault in faults)
        faults += _changes(dice, voters, team_size, witness, lease, begins, at, some_are_gone, whole)
    if voters == LONE_HEAD or not elects:  # nobody replaces the head
        faults = [fault for fault in faults if (fault.kind, fault.node) != ("leave", 0)]
    if voters == LONE_HEAD and elects:
        faults = [fault for fault in faults if fault.kind != "farewell"]
    common = Scenario(seed, voters, team_size, witness, elects, lease, eager, weather, tuple(faults))
    if not whole:
        return common
    max_restarts = dice.choice((0, 1, 2, 5, MANY, MANY))
    return common._replace(max_restarts=max_restarts, has_gate=dice.random() < 0.5, has_agreement=dice.random() < 0.5)


def _changes(
    dice: random.Random,
    voters: int,
    team_size: int,
    witness: bool,
    lease: float,
    begins: float,
    until: float,
    some_are_gone: bool,
    whole: bool,
) -> list[Fault]:
    """Nodes are added and leave, and there are faults meanwhile."""
    added = dice.randint(0, MOST_ADDED)
    faults = [Fault(dice.uniform(begins, until), "add") for _ in range(added)]
    if voters - witness > team_size and dice.random() < 0.5 and not some_are_gone:
        faults += _leave(dice, voters - witness, voters - witness - team_size, begins, until, whole)
    for _ in range(dice.randint(0, 3)):
        faults.append(_fault(dice, voters + added, dice.uniform(begins, until + lease), lease, whole))
    return faults


def _leave(dice: random.Random, hosts: int, spares: int, begins: float, until: float, whole: bool) -> list[Fault]:
    if not whole or dice.random() < 0.3:
        return [Fault(dice.uniform(begins, until), "leave", dice.randrange(hosts), float("inf"))]
    leaving = {0} if dice.random() < 0.4 else set()  # the first head
    leaving |= set(dice.sample(range(hosts), dice.randint(1, spares) - len(leaving)))
    return [Fault(dice.uniform(begins, until), "drain", number) for number in sorted(leaving)]


def _for_good(dice: random.Random, voters: int, spares: int, begins: float, until: float, elects: bool) -> list[Fault]:
    """Faults that never end, and still leave a majority and a team."""
    gone = dice.sample(range(voters), min((voters - 1) // 2, spares)) if dice.random() < 0.3 else []
    faults = []
    for node in gone:
        at = dice.uniform(begins, until)
        others = [(node, other) for other in range(voters + MOST_ADDED) if other != node]
        inward = [(there, here) for here, there in others]
        pairs = dice.choice((others + inward, inward))
        cut = Fault(at, "cut", node, float("inf"), tuple(pairs))
        power = Fault(at, "power", node, float("inf"))
        faults.append(dice.choice((power, cut)) if elects or node != 0 else power)  # the head alone would wait on
    return faults


def _fault(dice: random.Random, voters: int, at: float, lease: float, whole: bool) -> Fault:
    seconds = lease * dice.choice(SECONDS) * dice.uniform(0.8, 1.2)
    node = dice.randrange(voters) if dice.random() < 0.7 else 0
    kinds = ("cut", "cut", "cut", "power", "pause", "recorder", "fail", *(("sick",) * whole))
    match dice.choice(kinds):
        case "cut":
            only = dice.choice(("", "", "", "Beat", "Ack", "Answer", "order", "status"))
            return Fault(at, "cut", 0, seconds, _cut(dice, voters, node), only)
        case "power":
            return Fault(at, "power", node, seconds)
        case "pause":
            return Fault(at, "pause", node, seconds)
        case "sick":
            return Fault(at, "sick", node, seconds, only=dice.choice(PROBLEMS))
        case "recorder":
            return Fault(at, "recorder", node)
        case _:
            return Fault(at, "fail", node)


def _cut(dice: random.Random, voters: int, node: int) -> tuple[tuple[int, int], ...]:
    """One side from the other, one node from some or from all, in both directions or in one."""
    numbers = list(range(voters))
    side = {node} if dice.random() < 0.5 else set(dice.sample(numbers, dice.randint(1, voters - 1)))
    others = [number for number in numbers if number not in side]
    if dice.random() < 0.3:
        others = dice.sample(others, dice.randint(1, len(others)))
    pairs = list(itertools.product(side, others))
    match dice.choice(("both", "both", "out", "in")):
        case "out":
            return tuple(pairs)
        case "in":
            return tuple((there, here) for here, there in pairs)
        case _:
            return tuple(pairs + [(there, here) for here, there in pairs])


def violation(scenario: Scenario, gang: type[Gang] = Gang) -> str | None:
    try:
        World(scenario, gang).play()
    except Violation as violation:
        return str(violation)
    return None


def shortest(scenario: Scenario, breaks: Callable[[Scenario], str | None] = violation) -> Scenario:
    """Leave out faults, then bad weather, as long as some rule is still broken."""
    for number in reversed(range(len(scenario.faults))):
        shorter = scenario._replace(faults=scenario.faults[:number] + scenario.faults[number + 1 :])
        if breaks(shorter):
            scenario = shorter
    for calmer in (Weather(0.0, 0.001, 0.0, 0.0), scenario.weather._replace(loss=0.0, doubled=0.0)):
        if calmer != scenario.weather and breaks(scenario._replace(weather=calmer)):
            return scenario._replace(weather=calmer)
    return scenario


def walk(seed: str, steps: int, gang: type[Gang], begins: float = 0.5) -> tuple[int, int]:
    """Play worlds until so many steps are done; returns the numbers of worlds and steps. Raises Violation."""
    done = 0
    for number in itertools.count():
        if done >= steps:
            return number, done
        world = World(scenario(f"{seed}.{number}", begins, gang.ends_alone), gang)
        try:
            world.play()
        except Violation:
            short = shortest(world.scenario, lambda scenario: violation(scenario, gang))
            raise Violation(f"{violation(short, gang)}\nin {short}") from None
        done += world.steps
    raise AssertionError  # count() never ends
