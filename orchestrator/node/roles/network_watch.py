"""On the head: nodes that answer, but do not reach it on the network of the ranks, so that these hang."""

from typing import Any, Callable, Dict, NamedTuple, Optional, Sequence, Set, Tuple

from ..gang import gang_orders
from ..gang.gang_state import Phase, State
from ..link.link import LEASE
from .rank_network import CODE

PATIENCE = 30.0  # s, or two leases: TCP, and so gloo and NCCL, outlast a shorter cut
GAPS = 2  # times the longest pause between two lines before the cut: ranks that print need no other sign of life


class _Cut(NamedTuple):
    seconds: float
    address: str  # of the head


class NetworkWatch:
    def __init__(self, hosts: Sequence[str], lease: float, say: Callable[[str], None]) -> None:
        """`hosts`: may grow."""
        self._hosts = hosts
        self._warns_after = min(lease, LEASE)
        self._patience = max(PATIENCE, 2 * lease)
        self._say = say
        self._cuts: Dict[int, _Cut] = {}  # by node
        self._told: Dict[int, str] = {}  # addresses of the head
        self._longest_gap = 0.0  # s without a line of any rank, while no node reported a cut

    def hear(self, node: int, cut: Optional[Tuple[float, str]]) -> None:
        """What a node reports; None: nothing is cut."""
        if cut is not None:
            self._cuts[node] = _Cut(*cut)
        elif self._cuts.pop(node, None) and node in self._told:
            self._say("%s reaches %s again" % (self._hosts[node], self._told.pop(node)))

    @property
    def cut_off(self) -> Set[int]:
        """The nodes of which the log says that they do not reach the head."""
        return set(self._told)

    def clear(self) -> None:
        """Another attempt begins."""
        self._cuts.clear()
        self._told.clear()
        self._longest_gap = 0.0

    def look(self, state: State, quiet: Optional[float], now: float) -> Optional[Dict[str, Any]]:
        """The failure of an attempt whose ranks hang. `quiet`: seconds since a rank printed a line, if it is known.

        `now`: for the failure, by the clock of the gang.
        """
        head = state.nodes[state.head]
        if gang_orders.label(state) != "running" or quiet is None or head.node_rank is None:
            return None
        others = [node for node in state.team if node != state.head]
        cuts = {node: self._cuts[node] for node in others if node in self._cuts}
        if not cuts:
            self._longest_gap = max(self._longest_gap, quiet)
            return None
        self._warn(cuts, head.host)
        hung = [node for node in others if node in cuts and self._hangs(cuts[node], quiet)]
        if not hung:
            return None
        if len(hung) == len(others) > 1:
            node, whom = state.head, "no other host reaches it"
        else:
            node, whom = hung[0], "it does not reach %s" % head.host
        cut = cuts[hung[0]]
        what = "host lost on the network of the ranks: %s at %s for %d s, though it answers elsewhere"
        return {
            "host": state.nodes[node].host,
            "node": node,
            "rank": None,
            "what": what % (whom, cut.address, cut.seconds),
            "at": now - cut.seconds,
            "lost": True,
            "code": CODE,
        }

    @staticmethod
    def cuts_off_head(state: State) -> bool:
        """Whether the attempt has ended because no other host reached the head."""
        failure = state.first_failure or {}
        is_over = state.phase is Phase.RESTARTING
        return is_over and failure.get("node") == state.head and failure.get("code") == CODE

    def _warn(self, cuts: Dict[int, _Cut], head: str) -> None:
        for node, cut in cuts.items():
            if cut.seconds > self._warns_after and node not in self._told:
                self._told[node] = "%s at %s" % (head, cut.address)
                self._say(
                    "%s does not reach %s, on the network of the ranks; it answers elsewhere. Ranks that hang for %d s "
                    "are stopped" % (self._hosts[node], self._told[node], self._patience)
                )

    def _hangs(self, cut: _Cut, quiet: float) -> bool:
        return cut.seconds > self._patience and quiet > max(self._patience, GAPS * self._longest_gap)
