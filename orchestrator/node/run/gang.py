"""The whole life of a run as decisions: step(state, event) -> (state, actions). Pure; no clock, no IO.

Run by the head's recorder. An *order* is what a node shall do now; it is a function of the state, so a node that was
away (its recorder was restarted, its link was cut for a moment) is simply told its order again when it joins. Actions
are the orders that have changed. Nodes are numbered as in the spec: 0 is the head. The *team* are the nodes of an
attempt, in the order of their node ranks; the others are spares, and wait.

    waiting ──StartRequested──> running ──all exited well──────────> over(succeeded)
       │                         ^  │ first Failed / Lost / Stalled / StopRequested
       └──StopRequested───┐      │  v
                          └──> stopping ──all exited or lost──────> over(failed | lost | killed)
                                 │  ^ PortFound
                                 v  │
                              restarting: there is a team, and for a failure the budget is not spent

A restart after a lost host is not counted: it uses up a spare, or a node above the least number. `over` still has work:
every other node is told the verdict, the head ends last.
"""

import re
from typing import Any, Dict, List, NamedTuple, Optional, Tuple, Union

# An event's `at` is in seconds since 1970 by a clock that is never set back (recorder.py).
START_WINDOW = 60.0  # s from an order to run until the node says that it runs
STOP_WINDOW = 20.0  # s that a node may need beyond its ladder until it says that it has stopped
FAREWELL_WINDOW = 10.0  # s that the head waits for the others to end before it ends itself
# s between TERM and KILL after a failure: a rank blocked in a collective runs no Python signal handler
FAILURE_GRACE = 1.0
BACKOFF, BACKOFF_MOST = 1.0, 30.0  # s before the first restart, doubled for each further one, and the most
AT_START = 30.0  # s: a failure within these after the start of its attempt is one at start-up
FAILS_ALIKE = 3  # first failures in a row at start-up, all the same, after which the run is not started again
# What networks and file systems do at one start and not at the next: Python's OSError and its kin, torch's and NCCL's
TRANSIENT = re.compile(
    r"\[Errno -?\d+\]|\b(?:OS|IO|EOF|URL|HTTP|SSL|File\w+|\w*Connect\w*|\w*Timeout|Permission|BrokenPipe)Error\b"
    r"|\b\w*Timeout\b|\bgaierror\b|\bDist(?:Network|Store|Backend)Error\b|\bnccl(?:System|Remote)Error\b"
    r"|\bConnection (?:closed|reset|refused|timed out)\b|\b[Tt]imed out\b|\bEADDRINUSE\b|\b[Aa]ddress already in use\b"
    r"|\b(?:Input/output error|Stale file handle|No route to host|Broken pipe)\b"
)
FAILS_TOO_OFTEN = 2  # first failures of a run after which a host gives its place to a spare, if there is one


# --- events: what happened


class Joined(NamedTuple):
    """A node's recorder has a link to the head's."""

    node: int
    at: float


class StartRequested(NamedTuple):
    """The commit point: from here on the run does not need its controller."""

    master_addr: str
    master_port: int
    at: float


class Started(NamedTuple):
    node: int
    attempt: int
    at: float


class Failed(NamedTuple):
    """A process of the attempt ended badly by itself; its node still runs."""

    node: int
    attempt: int
    failure: Dict[str, Any]
    at: float


class Exited(NamedTuple):
    """A node has no process of the attempt any more."""

    node: int
    attempt: int
    ok: bool
    at: float


class Lost(NamedTuple):
    """Nothing was heard of a node for a whole lease, since `heard_at`."""

    node: int
    at: float
    heard_at: Optional[float] = None


class Left(NamedTuple):
    """A node's link was closed (by its end, or by an accident that Lost will tell)."""

    node: int
    at: float


class StopRequested(NamedTuple):
    by: str
    grace: float
    at: float


class PortFound(NamedTuple):
    """The head has a free port for the next attempt: an old one may still be in the kernel's hands."""

    port: int
    at: float


class Stalled(NamedTuple):
    """No rank has printed anything for `quiet` seconds. `frozen`: ranks that the kernel says are stopped, by node."""

    attempt: int
    quiet: float
    frozen: Dict[str, List[int]]
    at: float


class Tick(NamedTuple):
    at: float


Event = Union[Joined, StartRequested, Started, Failed, Exited, Lost, Left, StopRequested, PortFound, Stalled, Tick]


# --- orders: what a node shall do


class Run(NamedTuple):
    attempt: int
    node_rank: int
    nnodes: int
    first_rank: int
    world_size: int
    master_addr: str
    master_port: int


class Stop(NamedTuple):
    attempt: int
    grace: float
    why: str
    stacks: bool  # of all ranks into the journal, before they are ended


class Wait(NamedTuple):
    """A spare: be there. `team`: the hosts that do the work."""

    team: Tuple[str, ...]


class End(NamedTuple):
    verdict: Dict[str, Any]


Order = Union[Run, Stop, Wait, End]


class Action(NamedTuple):
    node: int
    order: Order


# --- state


class Node(NamedTuple):
    host: str
    nproc: int
    node_rank: Optional[int]  # in the team; None: a spare
    first_rank: int = 0
    phase: str = "absent"  # absent joined running exited lost left
    ordered_at: float = 0.0
    away: bool = False  # not heard of since its part of the attempt was done


class State(NamedTuple):
    nodes: Tuple[Node, ...]
    max_restarts: int = 0
    min_nodes: int = 1
    team: Tuple[int, ...] = ()
    world_size: int = 0
    phase: str = "waiting"  # waiting running stopping restarting over
    attempt: int = 0
    started_at: float = 0.0  # when the attempt was ordered
    master_addr: str = ""
    master_port: int = 0
    first_failure: Optional[Dict[str, Any]] = None  # of this attempt
    failures: Tuple[Dict[str, Any], ...] = ()  # the first of each attempt before
    stop_grace: float = FAILURE_GRACE
    stopped_by: Optional[str] = None
    since: float = 0.0  # when the phase began
    verdict: Optional[Dict[str, Any]] = None


def begin(nodes: List[Dict[str, Any]], max_restarts: int = 0, min_nodes: Optional[int] = None) -> State:
    """`min_nodes`: with how many the run may go on; None: with all that are no spares."""
    known = tuple(Node(node["host"], node["nproc"], None) for node in nodes)
    team = tuple(number for number, node in enumerate(nodes) if not node.get("spare"))
    return _place(State(known, max_restarts, len(team) if min_nodes is None else min_nodes), team)


def _place(state: State, team: Tuple[int, ...]) -> State:
    """Give the team its ranks."""
    nodes = [node._replace(node_rank=None, first_rank=0) for node in state.nodes]
    first_rank = 0
    for node_rank, number in enumerate(team):
        nodes[number] = nodes[number]._replace(node_rank=node_rank, first_rank=first_rank)
        first_rank += nodes[number].nproc
    return state._replace(nodes=tuple(nodes), team=team, world_size=first_rank)


def step(state: State, event: Event) -> Tuple[State, Tuple[Action, ...]]:
    after = _settle(_apply(state, event), event.at)
    joined = event.node if isinstance(event, Joined) else None
    if after == state and joined is None:
        return state, ()
    actions = []
    by_node = after._replace(nodes=state.nodes) == state  # an order depends on its own node and what is the run's
    for number in range(len(after.nodes)):
        if by_node and 0 < number != joined and after.nodes[number] == state.nodes[number]:
            continue
        order = order_of(after, number)
        if order is not None and (number == joined or order != order_of(state, number)):
            actions.append(Action(number, order))
    return after, tuple(actions)


def order_of(state: State, number: int) -> Optional[Order]:
    node = state.nodes[number]
    if node.phase in ("left", "absent"):
        return None
    if state.phase == "over":
        if number == 0 and not _others_gone(state):
            return None
        return End(state.verdict or {})
    if node.node_rank is None:
        hosts = tuple(state.nodes[one].host for one in state.team)
        return Wait(hosts) if state.attempt > 0 and node.phase != "lost" else None
    if node.phase == "exited":
        return None
    if state.phase == "running" and node.phase != "lost":
        return Run(
            state.attempt,
            node_rank=node.node_rank,
            nnodes=len(state.team),
            first_rank=node.first_rank,
            world_size=state.world_size,
            master_addr=state.master_addr,
            master_port=state.master_port,
        )
    if state.phase == "stopping" and state.attempt > 0:
        # stacks take some seconds, and who has asked for a stop does not wait for them
        stacks = bool((state.first_failure or {}).get("stalled")) and state.stopped_by is None
        return Stop(state.attempt, state.stop_grace, _why(state), stacks)
    return None


def _why(state: State) -> str:
    failure = state.first_failure
    if failure is None:
        return "stopped by %s" % state.stopped_by
    return "%s failed: %s" % (failure.get("host", "?"), failure.get("what", "?"))


def _others_gone(state: State) -> bool:
    return all(node.phase in ("left", "lost", "absent") for node in state.nodes[1:])


def _apply(state: State, event: Event) -> State:
    if isinstance(event, Joined):
        node = state.nodes[event.node]
        # a node that was declared lost stays so for this attempt: the others have been told
        return _with(state, event.node, phase="joined" if node.phase in ("absent", "left") else node.phase, away=False)
    if isinstance(event, StartRequested):
        if state.phase != "waiting":
            return state
        return _attempt(state, state.team, event.master_addr, event.master_port, event.at)
    if isinstance(event, PortFound):
        team = next_team(state)
        if team is None or not restart_is_due(state, event.at):
            return state
        return _attempt(state, team, state.master_addr, event.port, event.at)
    if isinstance(event, Failed) and event.failure.get("gone"):
        return _lose_guard(state, event)
    if isinstance(event, (Started, Failed, Exited)) and (event.attempt != state.attempt or state.phase == "waiting"):
        return state  # of an attempt that is over, or of a node that broke before there was one: it will be lost
    if isinstance(event, Started):
        return _with(state, event.node, phase="running") if state.nodes[event.node].phase == "joined" else state
    if isinstance(event, Failed):
        return _fail(state, event.failure, event.at)
    if isinstance(event, Exited):
        if state.nodes[event.node].phase in ("lost", "left", "exited"):
            return state
        after = _with(state, event.node, phase="exited")
        return (
            after if event.ok else _fail(after, _failure(state, event.node, "ended with an error", event.at), event.at)
        )
    if isinstance(event, Lost):
        return _lose(state, event)
    if isinstance(event, Stalled):
        return _fail(state, _stalled(state, event), event.at) if event.attempt == state.attempt else state
    if isinstance(event, Left):
        return _with(state, event.node, phase="left") if state.phase == "over" else state
    if isinstance(event, StopRequested):
        if state.phase in ("waiting", "running", "restarting"):
            return state._replace(phase="stopping", stopped_by=event.by, stop_grace=event.grace, since=event.at)
        if state.phase == "stopping":
            # whatever is being stopped already: the grace may become shorter, and never begins again
            grace = min(event.grace, state.stop_grace)
            return state._replace(stop_grace=grace, stopped_by=state.stopped_by or event.by)
        return state
    return state  # Tick: time alone, see _settle


def _attempt(state: State, team: Tuple[int, ...], master_addr: str, master_port: int, at: float) -> State:
    """The next attempt."""
    nodes = tuple(
        node._replace(phase="joined" if node.phase == "exited" else node.phase, ordered_at=at) for node in state.nodes
    )
    return _place(_archive(state)._replace(nodes=nodes), team)._replace(
        phase="running",
        attempt=state.attempt + 1,
        since=at,
        started_at=at,
        master_addr=master_addr,
        master_port=master_port,
    )


def _archive(state: State) -> State:
    """The attempt is done with: its first failure is history."""
    if state.first_failure is None:
        return state
    return state._replace(failures=(*state.failures, state.first_failure), first_failure=None)


def restart_is_due(state: State, at: float) -> bool:
    """Whether the back-off is over, and the head shall look for a port."""
    backoff = min(BACKOFF_MOST, BACKOFF * 2 ** (state.attempt - 1))
    return state.phase == "restarting" and at - state.since >= backoff


def label(state: State) -> str:
    """The state of a run that is not over, as `ps` shows it."""
    if state.phase == "waiting" or (
        state.phase == "running" and any(state.nodes[one].phase == "joined" for one in state.team)
    ):
        return "starting"
    if state.phase == "restarting" or (state.phase == "stopping" and _will_try_again(state)):
        return "restarting"
    return "running" if state.phase == "running" else "stopping"


def _will_try_again(state: State) -> bool:
    return state.first_failure is not None and state.stopped_by is None and why_not_again(state) is None


def why_not_again(state: State) -> Optional[str]:
    """Why a failed attempt is not tried again; None when it is."""
    failure = state.first_failure or {}
    if not failure.get("lost"):
        if restarts(state) >= state.max_restarts:
            spent = "all %d restarts are spent" % state.max_restarts
            return spent if state.max_restarts else "max_restarts is 0"
        alike = [_same_at_start(one) for one in (*state.failures, failure)[-FAILS_ALIKE:]]
        if len(alike) == FAILS_ALIKE and alike[0] is not None and len(set(alike)) == 1:
            return "it failed three times in a row in the same way at its start"
    if next_team(state) is None:
        return "a host was lost, and no spare is left" if len(state.nodes) > len(state.team) else "a host was lost"
    return None


def restarts(state: State) -> int:
    """How many of the budget are spent: all but those after a lost host."""
    return sum(1 for failure in state.failures if not failure.get("lost"))


def next_team(state: State) -> Optional[Tuple[int, ...]]:
    """Who does the next attempt, in the order of node ranks; None when too few are left.

    A node that is lost, or whose host failed too often, gives its place to the first spare; so the ranks of the others
    stay. There is none without the head.
    """
    failed = [failure.get("node") for failure in (*state.failures, state.first_failure or {})]
    weary = {number for number in failed if number and failed.count(number) >= FAILS_TOO_OFTEN}
    spares = [
        number
        for number, node in enumerate(state.nodes)
        if node.node_rank is None and node.phase == "joined" and number not in weary
    ]
    team: List[int] = []
    for number in state.team:
        lost = state.nodes[number].phase == "lost" or state.nodes[number].away
        if spares and (lost or number in weary):
            team.append(spares.pop(0))
        elif not lost:
            team.append(number)
    return tuple(team) if len(team) >= state.min_nodes and team[0] == 0 else None


def _same_at_start(failure: Dict[str, Any]) -> Optional[Tuple[Any, ...]]:
    """What two failures have in common that a further start would only repeat: an import that fails, a bad argument."""
    if not failure.get("at_start") or failure.get("exit_code") is None:
        return None  # a signal comes from outside the script
    if TRANSIENT.search(failure.get("said") or ""):
        return None
    return failure["exit_code"], failure.get("said")


def _lose(state: State, event: Lost) -> State:
    phase = state.nodes[event.node].phase
    if state.phase == "waiting":
        return _with(state, event.node, phase="absent")  # it may come back before the start
    if state.phase == "over":  # only the farewell could still wait for it
        return _with(state, event.node, phase="left")
    if phase == "lost":
        return state
    if phase in ("exited", "left") and state.phase == "running":
        return _with(state, event.node, away=True)  # its part is done
    failure = dict(_failure(state, event.node, "host lost", event.at), lost=True)
    if phase != "exited" and _was_silent_before_the_failure(state, event):
        at_start = event.at - state.started_at < AT_START
        state = state._replace(first_failure=dict(failure, at_start=at_start))
    return _drop(state, event.node, failure, event.at)


def _was_silent_before_the_failure(state: State, event: Lost) -> bool:
    """Of a host of the team: its peers may fail of its end at once, by a connection reset, long before a lease."""
    first = state.first_failure
    return (
        state.phase == "stopping"
        and first is not None
        and not first.get("lost")
        and state.nodes[event.node].node_rank is not None
        and event.heard_at is not None
        and event.heard_at <= state.since
    )


def _lose_guard(state: State, event: Failed) -> State:
    """Nobody is left on that host who could start a further attempt, though its recorder still answers."""
    if state.phase == "waiting" or state.nodes[event.node].phase in ("lost", "left"):
        return state
    return _drop(state, event.node, event.failure, event.at)


def _drop(state: State, number: int, failure: Dict[str, Any], at: float) -> State:
    """The run goes on or ends without that node; for a spare, nothing has failed."""
    lost = _with(state, number, phase="lost")
    if state.phase == "restarting" and next_team(lost) is None:
        return lost._replace(phase="stopping", since=at)
    return lost if lost.nodes[number].node_rank is None else _fail(lost, failure, at)


def _failure(state: State, node: int, what: str, at: float) -> Dict[str, Any]:
    """One that no process told."""
    return {"host": state.nodes[node].host, "node": node, "rank": None, "what": what, "at": at}


def _stalled(state: State, event: Stalled) -> Dict[str, Any]:
    quiet = "no rank printed a line for %d s" % event.quiet
    for node in state.team:
        for rank in event.frozen.get(str(node), []):
            what = "rank %d: stopped by a signal (SIGSTOP), and %s" % (rank, quiet)
            return dict(_failure(state, node, what, event.at), rank=rank, stalled=True)
    return dict(_failure(state, 0, quiet, event.at), node=None, host="all hosts", stalled=True)


def _with(state: State, number: int, **changes: Any) -> State:
    nodes = list(state.nodes)
    nodes[number] = nodes[number]._replace(**changes)
    return state._replace(nodes=tuple(nodes))


def _fail(state: State, failure: Dict[str, Any], at: float) -> State:
    """The first failure is kept; what comes later is its consequence. (But see _was_silent_before_the_failure.)"""
    if state.phase != "running":
        return state
    failure = dict(failure, at_start=at - state.started_at < AT_START)
    return state._replace(phase="stopping", first_failure=failure, stop_grace=FAILURE_GRACE, since=at)


def _settle(state: State, at: float) -> State:
    """What follows from the state as it is now, and from time."""
    working = [state.nodes[number] for number in state.team]
    if state.phase == "running":
        for number, node in ((number, state.nodes[number]) for number in state.team):
            if node.phase in ("joined", "absent") and at - node.ordered_at > START_WINDOW:
                failure = _failure(state, number, "did not start within %d s" % START_WINDOW, at)
                return _settle(_fail(_with(state, number, phase="lost"), failure, at), at)
        if all(node.phase == "exited" for node in working):
            return _over(state, "succeeded", at)
    if state.phase == "stopping":
        finished = all(node.phase in ("exited", "lost", "left", "absent") or state.attempt == 0 for node in working)
        if finished and _will_try_again(state):
            return state._replace(phase="restarting", since=at)
        if finished or at - state.since > state.stop_grace + STOP_WINDOW:
            if state.stopped_by is not None and why_not_again(state) is None:
                state = _archive(state)  # the stop request ended the run: a restart would have followed the failure
            return _over(state, _outcome(state), at)
    if state.phase == "over" and not _others_gone(state) and at - state.since > FAREWELL_WINDOW:
        nodes = state.nodes[:1] + tuple(node._replace(phase="left") for node in state.nodes[1:])
        return state._replace(nodes=nodes)
    return state


def _outcome(state: State) -> str:
    if state.first_failure is None:
        return "killed"
    return "lost" if state.first_failure.get("lost") else "failed"


def _over(state: State, outcome: str, at: float) -> State:
    reason = why_not_again(state) if state.first_failure else None
    verdict = {
        "state": outcome,
        "first_failure": state.first_failure,
        "restarts": max(0, state.attempt - 1),
        "no_restart_reason": reason,
        "not_again": reason,  # deprecated: its old name
        "stopped_by": state.stopped_by if outcome == "killed" else None,
        "attempt": state.attempt,
        "at": at,
    }
    return state._replace(phase="over", verdict=verdict, since=at)
