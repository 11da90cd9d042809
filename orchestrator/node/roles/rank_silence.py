"""For how long the ranks of all nodes have printed nothing, which is the only sign of a hung collective."""

from typing import Any, Callable, Dict, List, NamedTuple, Optional

from ..gang import gang_orders
from ..gang.gang_state import State

WARNING = 600.0  # s without a line of any rank, where no stall_timeout is set


class Stall(NamedTuple):
    quiet: float  # s
    frozen: Dict[str, List[int]]  # ranks that a signal has stopped, by node


class RankSilence:
    def __init__(self, spec: Dict[str, Any], say: Callable[[str], None], notify: Callable[[str], None]) -> None:
        """`notify`: of a state, such as `stalled`."""
        self._limit: Optional[float] = spec["stall_timeout"]
        self._serves = bool(spec["launcher"].get("ready"))  # a server prints nothing while nobody asks
        self._say = say
        self._notify = notify
        self._by_node: Dict[int, Dict[str, Any]] = {}  # the last report of each node
        self._has_warned = False

    def hear(self, node: int, report: Dict[str, Any]) -> None:
        """`report`: as messages.silence gives it."""
        self._by_node[node] = report

    def clear(self) -> None:
        """Another attempt begins."""
        self._by_node.clear()

    def quiet(self, state: State) -> Optional[float]:
        """Seconds since a rank of the attempt printed a line; None: a node has not told yet."""
        if not all(node in self._by_node for node in state.team):
            return None
        return min((float(self._by_node[node]["quiet"]) for node in state.team), default=None)

    def look(self, state: State) -> Optional[Stall]:
        """Returns a stall that is longer than the limit. Without a limit, warns of it."""
        quiet = self.quiet(state)
        if gang_orders.label(state) != "running" or quiet is None:
            return None
        reports = {number: self._by_node[number] for number in state.team}
        frozen = {
            str(number): [rank for rank in report["frozen"] if rank in ranks_of(state, number)]
            for number, report in reports.items()
        }
        if self._limit is not None:
            return Stall(quiet, frozen) if quiet > self._limit else None
        if quiet < WARNING:
            self._has_warned = False
        elif not (self._has_warned or self._serves):
            self._has_warned = True
            stopped = ", ".join("rank %d" % rank for ranks in frozen.values() for rank in ranks)
            self._say(
                "no rank has printed a line for %d s%s. Set run.stall_timeout to end this and to show the stacks."
                % (quiet, " (%s: stopped by a signal)" % stopped if stopped else "")
            )
            self._notify("stalled")
        return None


def ranks_of(state: State, number: int) -> range:
    """A node's ranks in this attempt."""
    node = state.nodes[number]
    return range(node.first_rank, node.first_rank + node.nproc)
