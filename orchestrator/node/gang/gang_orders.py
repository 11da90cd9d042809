"""What follows from the gang's state: the order of each node, and the state of the run that `ps` shows. Pure."""

from typing import Optional

from . import gate, newcomers
from .gang_events import Commit, End, Order, Run, Stop, Wait
from .gang_state import FAILURE_GRACE, UNREACHABLE, NodePhase, Phase, State, others_gone
from .team import waits_for_nodes, will_try_again


def order_of(state: State, number: int) -> Optional[Order]:
    node = state.nodes[number]
    if node.phase in UNREACHABLE:
        return None
    if state.phase is Phase.OVER:
        if number == state.head and not others_gone(state):
            return None
        has_left = node.leaves is not None and node.node_rank is None
        return End((node.leaves if has_left else state.verdict) or {})
    if node.phase is NodePhase.RETURNED:
        return Stop(state.attempt, FAILURE_GRACE, "%s was cut off from the run" % node.host, stacks=False)
    if state.phase is Phase.WAITING:
        return Commit() if state.master_port else None
    check = gate.order_of(state, number)
    if check is not None:
        return check
    if node.node_rank is None:
        if node.leaves is not None and node.phase is not NodePhase.LOST and newcomers.may_end(state, number):
            return End(node.leaves)
        hosts = tuple(state.nodes[member].host for member in state.team)
        return Wait(hosts, state.master_addr) if state.attempt > 0 and node.phase is not NodePhase.LOST else None
    if node.phase is NodePhase.EXITED:
        return None
    if state.phase is Phase.RUNNING and node.phase is not NodePhase.LOST:
        return Run(
            state.attempt,
            node_rank=node.node_rank,
            nnodes=len(state.team),
            first_rank=node.first_rank,
            world_size=state.world_size,
            master_addr=state.master_addr,
            master_port=state.master_port,
        )
    if state.phase is Phase.STOPPING and state.attempt > 0:
        # stacks take some seconds, and a user who asked for a stop does not wait for them
        stacks = bool((state.first_failure or {}).get("stalled")) and state.stopped_by is None
        return Stop(state.attempt, state.stop_grace, _why(state), stacks)
    return None


def _why(state: State) -> str:
    failure = state.first_failure
    if failure is None:
        return "stopped by %s" % (state.stopped_by or state.drained_by)
    return "%s failed: %s" % (failure.get("host", "?"), failure.get("what", "?"))


def label(state: State) -> str:
    """The state of a run that is not over, as `ps` shows it."""
    if state.phase is Phase.WAITING or (
        state.phase is Phase.RUNNING and any(node.phase is NodePhase.JOINED for node in state.members)
    ):
        return "starting"
    if waits_for_nodes(state):
        return "waiting"
    if state.phase is Phase.RESTARTING or (state.phase is Phase.STOPPING and will_try_again(state)):
        return "restarting"
    return "running" if state.phase is Phase.RUNNING else "stopping"
