"""The whole life of a run as decisions: step(state, event) -> (state, actions). Pure; no clock, no IO.

The head's recorder runs it. An *order* is what a node has to do now. It is a function of the state, so a node that was
away (its recorder was restarted, its link was cut for a moment) gets its order again when it joins. Actions are the
orders that have changed. Nodes are numbered as in the spec: 0 is the head until another is elected. The *team* is the
nodes of an attempt, in the order of their node ranks; the other nodes are spares, and wait. A witness waits forever.

    waiting ──StartRequested──> running ──all exited well──────────> over(succeeded)
       │                         ^  │ first Failed / Lost / Stalled / StopRequested
       └──StopRequested───┐      │  v
                          └──> stopping ──all exited or lost──────> over(failed | lost | killed)
                                 │  ^ PortFound
                                 v  │
                              restarting: there is a team or lost nodes may come back, and the budget is not spent

With `run.resume`, waiting lasts until the output folders agree, and PortFound counts only then (agreement.py).

A lost node that has a link again is *returned*. It has to stop what may still run there. Then it takes its old place if
the run waits for it, else it is a spare. A restart after a lost host counts against max_restarts only if that host
takes part again. Otherwise it has cost a spare, or one of the nodes above the minimum. In `over` the other nodes still
have to be told the verdict; the head ends last.
"""

from typing import Any, Dict, List, Optional, Tuple, Union

from . import agreement, drain, gate, newcomers
from .gang_events import (
    Action,
    Added,
    Agreed,
    Checked,
    Disconnected,
    Drain,
    Elected,
    Event,
    Exited,
    Failed,
    HostRestarted,
    Joined,
    Lost,
    NoMajority,
    NotAgreed,
    Noted,
    PortFound,
    Resumed,
    Stalled,
    Started,
    StartRequested,
    StopRequested,
    Tick,
    Voters,
)
from .gang_failures import (
    earlier_failures,
    failure_of,
    fenced,
    no_majority,
    outcome_of,
    stalled,
    was_silent_before_the_failure,
)
from .gang_orders import order_of
from .gang_state import (
    FAILURE_GRACE,
    GONE,
    KILL_WINDOW,
    UNREACHABLE,
    Node,
    NodePhase,
    Phase,
    State,
    change_node,
    change_nodes,
    others_gone,
)
from .team import (
    AT_START,
    gives_way,
    next_team,
    place,
    restart_is_due,
    uses_restart,
    waits_for_nodes,
    why_not_again,
    will_try_again,
)

START_WINDOW = 60.0  # s from an order to run until the node reports that it runs
STOP_WINDOW = 20.0  # s that a node may need beyond the grace until it reports that it has stopped
FAREWELL_WINDOW = 10.0  # s that the head waits for the others to end before it ends itself


def begin(
    nodes: List[Dict[str, Any]],
    max_restarts: int = 0,
    min_nodes: Optional[int] = None,
    rejoin_timeout: float = 0.0,
    max_nodes: int = 0,
    has_gate: bool = False,
    has_agreement: bool = False,
    elects: bool = False,
    kill_window: float = KILL_WINDOW,
) -> State:
    """`min_nodes`: the least number of nodes the run may continue with; None: all that are no spares.

    `rejoin_timeout`: seconds to wait for lost nodes. `max_nodes`: the number of nodes up to which a team grows again.
    `has_gate`: see gate.py. `has_agreement`: see agreement.py. `elects`: whether another head can be elected.
    `kill_window`: see gang_state.
    """
    first = [node for node in nodes if not node.get("added")]  # the others come with their events
    known = tuple(Node(node["host"], node["nproc"], None, witness=bool(node.get("witness"))) for node in first)
    team = tuple(number for number, node in enumerate(first) if not (node.get("spare") or node.get("witness")))
    least = len(team) if min_nodes is None else min_nodes
    state = State(known, max_restarts, least, max_nodes, rejoin_timeout, elects=elects, kill_window=kill_window)
    voters = newcomers.first_voters(state)
    return place(state._replace(has_gate=has_gate, has_agreement=has_agreement, voters=voters), team)


def step(state: State, event: Event) -> Tuple[State, Tuple[Action, ...]]:
    after = gate.settle(_settle(_apply(state, event), event.at), event.at)
    joined = event.node if isinstance(event, Joined) else None
    if after == state and joined is None:
        return state, ()
    actions = []
    by_node = after._replace(nodes=state.nodes) == state  # if only nodes changed, so did only their own orders
    for number in range(len(state.nodes)):  # one that is added with this event has no link yet
        if by_node and number not in (after.head, joined) and after.nodes[number] == state.nodes[number]:
            continue
        order = order_of(after, number)
        if order is not None and (number == joined or order != order_of(state, number)):
            actions.append(Action(number, order))
    return after, tuple(actions)


# --- events


def _apply(state: State, event: Event) -> State:
    if isinstance(event, Tick):  # by far the most frequent
        return state  # time alone, see _settle
    if isinstance(event, Joined):
        return _on_joined(state, event)
    if isinstance(event, StartRequested):
        if state.phase is not Phase.WAITING or state.master_port:
            return state
        asked = state._replace(master_addr=event.master_addr, master_port=event.master_port, since=event.at)
        return asked if state.has_agreement else _attempt(asked, state.team, event.master_port, event.at)
    if isinstance(event, PortFound):
        team = next_team(state) if restart_is_due(state, event.at) else None
        if not agreement.allows(state, team):
            return state
        met = state._replace(master_addr=event.master_addr or state.master_addr)
        return _attempt(met, team or (), event.port, event.at)
    if isinstance(event, Agreed):
        after = agreement.on_agreed(state, event)
        begins = state.phase is Phase.WAITING and agreement.allows(after, state.team)
        return _attempt(after, state.team, state.master_port, event.at) if begins else after
    if isinstance(event, NotAgreed):
        return _on_not_agreed(state, event)
    if isinstance(event, Noted):
        return state if event.note in state.notes else state._replace(notes=(*state.notes, event.note))
    if isinstance(event, (Started, Failed, Exited)):
        return _on_report(state, event)
    if isinstance(event, Lost):
        return _on_lost(state, event)
    if isinstance(event, HostRestarted):
        return _on_host_restarted(state, event)
    if isinstance(event, Elected):
        return _on_elected(state, event)
    if isinstance(event, NoMajority):
        return state._replace(silent=tuple(event.silent))
    if isinstance(event, Resumed):
        return change_nodes(state._replace(since=event.at), range(len(state.nodes)), ordered_at=event.at)
    if isinstance(event, Stalled):
        return _fail(state, stalled(state, event), event.at) if event.attempt == state.attempt else state
    if isinstance(event, Drain):
        return drain.on_requested(state, event)
    if isinstance(event, Added):
        return newcomers.on_added(state, event)
    if isinstance(event, Voters):
        return state._replace(voters=tuple(event.nodes))
    if isinstance(event, Checked):
        return gate.on_checked(state, event)
    if isinstance(event, Disconnected):
        over = state.phase is Phase.OVER
        return change_node(state, event.node, phase=NodePhase.DISCONNECTED) if over else state
    if isinstance(event, StopRequested):
        return _on_stop_requested(state, event)
    return state


def _on_joined(state: State, event: Joined) -> State:
    phase = state.nodes[event.node].phase
    if phase in UNREACHABLE:
        phase = NodePhase.JOINED
    elif phase is NodePhase.LOST and state.rejoin_timeout and state.phase is not Phase.OVER:
        phase = NodePhase.RETURNED  # without a rejoin_timeout it stays lost: the others have been told
    return change_node(state, event.node, phase=phase, away=False)


def _on_report(state: State, event: Union[Started, Failed, Exited]) -> State:
    """What a node reports of its own processes."""
    if isinstance(event, Failed) and event.failure.get("gone"):
        return _on_guard_killed(state, event)
    if event.attempt != state.attempt or state.phase is Phase.WAITING:
        return state  # of an earlier attempt, or of a node that failed before the first one: it will be lost
    phase = state.nodes[event.node].phase
    is_spare = state.nodes[event.node].node_rank is None
    if phase is NodePhase.RETURNED and isinstance(event, Exited):  # its guard starts nothing of this attempt any more
        return change_node(state, event.node, phase=NodePhase.JOINED if is_spare else NodePhase.EXITED)
    if is_spare or phase is NodePhase.RETURNED:
        return state
    if isinstance(event, Started):
        return change_node(state, event.node, phase=NodePhase.RUNNING) if phase is NodePhase.JOINED else state
    if isinstance(event, Failed):
        return _fail(state, event.failure, event.at)
    if phase in (NodePhase.LOST, NodePhase.DISCONNECTED, NodePhase.EXITED):
        return state
    after = change_node(state, event.node, phase=NodePhase.EXITED)
    if event.ok:
        return after
    if event.fenced and state.phase is Phase.RUNNING:
        lost = change_node(after, event.node, lost_in=state.attempt)
        return _fail(lost, fenced(state, event.node, event.at), event.at)
    return _fail(after, failure_of(state, event.node, "ended with an error", event.at), event.at)


def _on_guard_killed(state: State, event: Failed) -> State:
    """Without a guard the host cannot start another attempt, though its recorder still answers."""
    phase = state.nodes[event.node].phase
    if state.phase is Phase.WAITING or phase in (NodePhase.LOST, NodePhase.DISCONNECTED):
        return state
    return _mark_lost(state, event.node, event.failure, event.at)


def _on_lost(state: State, event: Lost) -> State:
    phase = state.nodes[event.node].phase
    if state.phase is Phase.WAITING:
        return change_node(state, event.node, phase=NodePhase.ABSENT)  # it may come back before the start
    if state.phase is Phase.OVER:  # only the farewell could still wait for it
        return change_node(state, event.node, phase=NodePhase.DISCONNECTED)
    if phase is NodePhase.LOST:
        return state
    if phase in (NodePhase.EXITED, NodePhase.DISCONNECTED) and state.phase is Phase.RUNNING:
        return change_node(state, event.node, away=True)  # its part is done
    failure = dict(failure_of(state, event.node, "host lost", event.at), lost=True)
    if phase is not NodePhase.EXITED and was_silent_before_the_failure(state, event):
        at_start = event.at - state.started_at < AT_START
        state = state._replace(first_failure=dict(failure, at_start=at_start))
    return _mark_lost(state._replace(lost_at=event.at), event.node, failure, event.at)


def _on_host_restarted(state: State, event: HostRestarted) -> State:
    """The node repeats this until it has obeyed an order. Repetitions change nothing."""
    node = state.nodes[event.node]
    if state.phase in (Phase.WAITING, Phase.OVER) or node.phase not in (NodePhase.JOINED, NodePhase.RUNNING):
        return state
    if event.begun is not None and event.begun < state.attempt and node.phase is NodePhase.JOINED:
        return state  # the order to run is on its way: nothing of this attempt is lost, and its ranks may still start
    failure = dict(
        failure_of(state, event.node, "the host was restarted, or its guard and recorder were killed", event.at),
        lost=True,
    )
    lost = _mark_lost(state, event.node, failure, event.at)
    return change_node(lost, event.node, phase=NodePhase.RETURNED) if state.rejoin_timeout else lost


def _on_elected(state: State, event: Elected) -> State:
    """The ranks of the old head's attempt have no permit any more. What it decided stays."""
    if state.phase is Phase.WAITING and state.master_port:
        state = _attempt(state, state.team, state.master_port, event.at)  # of the old head: it fails below
    old = state.head
    nodes = tuple(node._replace(asked=0) for node in state.nodes)  # the times are by the clock of the old head
    after = state._replace(head=event.node, elected_in=state.attempt, master_addr=event.master_addr, since=event.at)
    after = after._replace(nodes=nodes, lost_at=float("-inf"))
    if state.phase in (Phase.WAITING, Phase.OVER):
        return after
    if drain.has_to_resign(state):
        return drain.on_elected(after, event.at)
    if event.node != old and gives_way(state):
        return after
    if old == event.node or event.resigned:  # it was without a majority for so long that its attempt has ended
        return _fail(after, no_majority(state, event.silent, event.at), event.at)
    failure = dict(failure_of(state, old, "head lost", event.at), lost=True)
    return _fail(_mark_lost(after, old, failure, event.at), failure, event.at)


def _mark_lost(state: State, number: int, failure: Dict[str, Any], at: float) -> State:
    """The run continues, waits or ends without that node. The loss of a spare is no failure."""
    lost = change_node(state, number, phase=NodePhase.LOST, lost_in=state.attempt)
    lost = drain.on_lost(state, lost, number, failure)
    if state.phase is Phase.RESTARTING and next_team(lost) is None:
        if why_not_again(lost) is not None:
            return lost._replace(phase=Phase.STOPPING, since=at)
        if next_team(state) is not None:
            return lost._replace(since=at)  # the run waits from now on
    return lost if lost.nodes[number].node_rank is None else _fail(lost, failure, at)


def _on_stop_requested(state: State, event: StopRequested) -> State:
    if state.phase in (Phase.WAITING, Phase.RUNNING, Phase.RESTARTING):
        stopping = state._replace(phase=Phase.STOPPING, stopped_by=event.by, resumable=event.resumable)
        return stopping._replace(stop_grace=event.grace, since=event.at)
    if state.phase is Phase.STOPPING:
        # it is being stopped already: the grace may become shorter, and never starts again
        grace = min(event.grace, state.stop_grace)
        return state._replace(stop_grace=grace, stopped_by=state.stopped_by or event.by)
    return state


def _on_not_agreed(state: State, event: NotAgreed) -> State:
    """The run ends: ranks that begin with different files would train out of step."""
    if state.phase not in (Phase.WAITING, Phase.RESTARTING) or event.attempt != state.attempt + 1:
        return state
    if state.first_failure is None:
        failure = dict(failure_of(state, event.node, event.why, event.at), at_start=True)
        state = state._replace(first_failure=failure)
    return _over(state, outcome_of(state), event.at, event.why)


def _attempt(state: State, team: Tuple[int, ...], master_port: int, at: float) -> State:
    """Begin the next attempt."""
    nodes = tuple(
        node._replace(phase=NodePhase.JOINED if node.phase is NodePhase.EXITED else node.phase, ordered_at=at)
        for node in state.nodes
    )
    return place(_archive(state)._replace(nodes=nodes), team)._replace(
        restarts_used=state.restarts_used + uses_restart(state, team),
        led=state.led if team[0] in state.led else (*state.led, team[0]),
        phase=Phase.RUNNING,
        drained_by=None,
        silent=(),
        attempt=state.attempt + 1,
        since=at,
        started_at=at,
        master_port=master_port,
    )


def _archive(state: State) -> State:
    """The attempt is over: its first failure becomes history."""
    if state.first_failure is None:
        return state
    failure = {"attempt": state.attempt, **state.first_failure}
    return state._replace(failures=(*state.failures, failure), first_failure=None)


def _fail(state: State, failure: Dict[str, Any], at: float) -> State:
    """The first failure is kept; what comes later is its consequence. (But see was_silent_before_the_failure.)"""
    if state.phase is not Phase.RUNNING:
        return state
    failure = dict(failure, at_start=at - state.started_at < AT_START)
    return state._replace(phase=Phase.STOPPING, first_failure=failure, stop_grace=FAILURE_GRACE, since=at)


def _settle(state: State, at: float) -> State:
    """What follows from the state as it is now, and from time."""
    state = agreement.settle(state)
    if agreement.absent(state) and at - state.since > START_WINDOW:
        return _settle(_lose_first_attempt(state, at), at)
    if state.phase is Phase.RUNNING:
        for number, node in ((number, state.nodes[number]) for number in state.team):
            if node.phase in (NodePhase.JOINED, NodePhase.ABSENT) and at - node.ordered_at > START_WINDOW:
                failure = failure_of(state, number, "did not start within %d s" % START_WINDOW, at)
                has_link = state.rejoin_timeout and node.phase is NodePhase.JOINED
                phase = NodePhase.RETURNED if has_link else NodePhase.LOST
                after = change_node(state, number, phase=phase, lost_in=state.attempt)
                return _settle(_fail(after, failure, at), at)
        if all(node.phase is NodePhase.EXITED for node in state.members):
            return _over(state, "succeeded", at)
    if state.phase is Phase.STOPPING:
        # a node that has returned runs nothing of this attempt: its permit has lapsed
        finished = state.attempt == 0 or all(
            node.phase in (NodePhase.EXITED, NodePhase.RETURNED) or node.phase in GONE for node in state.members
        )
        if finished and will_try_again(state):
            return state._replace(phase=Phase.RESTARTING, since=at)
        if finished or at - state.since > state.stop_grace + STOP_WINDOW:
            if state.stopped_by is not None and why_not_again(state) is None:
                state = _archive(state)  # without the stop request, a restart would have followed the failure
            state = drain.with_cause(state, at)
            return _over(state, outcome_of(state), at)
    if waits_for_nodes(state) and at - state.since > state.rejoin_timeout:
        why = gate.why_not_ready(state)
        state = drain.with_cause(state, at)
        return _over(state, outcome_of(state), at, why)
    if state.phase is Phase.OVER and not others_gone(state) and at - state.since > FAREWELL_WINDOW:
        others = [number for number in range(len(state.nodes)) if number != state.head]
        return change_nodes(state, others, phase=NodePhase.DISCONNECTED)
    return state


def _lose_first_attempt(state: State, at: float) -> State:
    """Nodes were lost before it began. It counts as begun, so that spares can take their places."""
    attempt = _attempt(state, state.team, state.master_port, at)
    for number in agreement.absent(state):
        attempt = _mark_lost(attempt, number, dict(failure_of(state, number, "host lost", at), lost=True), at)
    return attempt


def _over(state: State, outcome: str, at: float, reason: Optional[str] = None) -> State:
    """`reason`: why no attempt follows, where the state alone does not say it."""
    if reason is None and state.first_failure:
        reason = why_not_again(state)
    verdict = {
        "state": outcome,
        "first_failure": state.first_failure,
        "failures": earlier_failures(state),
        "restarts": max(0, state.attempt - 1),
        "no_restart_reason": reason,
        "not_again": reason,  # deprecated: its old name
        "stopped_by": state.stopped_by if outcome in ("killed", "stopped") else None,
        "attempt": state.attempt,
        "at": at,
    }
    return state._replace(phase=Phase.OVER, verdict=verdict, since=at)
