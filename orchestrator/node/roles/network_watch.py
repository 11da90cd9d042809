"""On the head: nodes that answer, but do not reach it on the network of the ranks, so that these hang."""

import enum
from typing import Any, Callable, Dict, NamedTuple, Optional, Sequence, Set

from ..gang import gang_orders
from ..gang.gang_state import Phase, State
from ..link.link import LEASE
from ..link.messages import Reach
from .rank_network import CODE, INTERVAL, WINDOW

PATIENCE = 30.0  # s, or two leases: TCP, and so gloo and NCCL, outlast a shorter cut
GAPS = 2  # times the longest pause between two lines before the cut: ranks that print need no other sign of life
SLACK = INTERVAL + WINDOW  # s: two nodes that the same cut concerns may have reached the head last so far apart


class _Report(NamedTuple):
    """Of one node, by the clock of the head."""

    reached_at: float  # when the node reached the head last
    address: Optional[str]  # of the head, if the node reaches it no more
    at: float


class _Told(NamedTuple):
    """What the log says."""

    cut_off: int  # this node
    ends: str  # what the log says when it is over


class _Blame(enum.Enum):
    """Who is cut off, where a node does not reach the head."""

    NODE = "another one reaches the head"
    HEAD = "no other one reaches the head"
    EITHER = "no other one can tell"
    OPEN = "another one has not tried yet"


class NetworkWatch:
    def __init__(self, hosts: Sequence[str], lease: float, say: Callable[[str], None]) -> None:
        """`hosts`: may grow."""
        self._hosts = hosts
        self._warns_after = min(lease, LEASE)
        self._patience = max(PATIENCE, 2 * lease)
        self._fresh = max(lease, LEASE)
        self._say = say
        self._reports: Dict[int, _Report] = {}  # by node
        self._cuts: Set[int] = set()  # the nodes that do not reach the head
        self._told: Dict[int, _Told] = {}  # by such a node
        self._longest_gap = 0.0  # s without a line of any rank, while no node reported a cut

    def hear(self, node: int, reach: Optional[Reach], now: float) -> None:
        """What a node reports, with ranks or without; None: it cannot tell."""
        if reach is not None:
            self._reports[node] = _Report(now - reach.seconds, reach.address, now)
        else:
            self._reports.pop(node, None)
        if reach is not None and reach.address is not None:
            self._cuts.add(node)
            return
        self._cuts.discard(node)
        told = self._told.get(node)
        if told is not None:
            self._say(told.ends)
            self._told = {other: each for other, each in self._told.items() if each != told}

    @property
    def cut_off(self) -> Set[int]:
        """The nodes that are cut off, as far as the log says that a node does not reach the head."""
        return {told.cut_off for told in self._told.values()}

    def clear(self) -> None:
        """Another attempt begins."""
        self._reports.clear()
        self._cuts.clear()
        self._told.clear()
        self._longest_gap = 0.0

    def look(self, state: State, quiet: Optional[float], now: float) -> Optional[Dict[str, Any]]:
        """The failure of an attempt whose ranks hang. `quiet`: seconds since a rank printed a line, if it is known.

        `now`: by the clock of the gang.
        """
        if gang_orders.label(state) != "running" or quiet is None or state.nodes[state.head].node_rank is None:
            return None
        cuts = sorted(self._cuts.intersection(state.team))
        if not cuts:
            self._longest_gap = max(self._longest_gap, quiet)
            return None
        for node in cuts:
            seconds = now - self._reports[node].reached_at
            blame = self._blame(node, state, now) if seconds > self._warns_after else _Blame.OPEN
            if blame is _Blame.OPEN:
                continue
            self._warn(node, blame, state)
            if self._hangs(seconds, quiet):
                return self._failure(node, blame, state, now)
        return None

    def _failure(self, node: int, blame: _Blame, state: State, now: float) -> Dict[str, Any]:
        """Of a node that does not reach the head."""
        report, head = self._reports[node], state.nodes[state.head].host
        failed = state.head if blame is _Blame.HEAD else node
        whom = "no other host reaches it" if blame is _Blame.HEAD else "it does not reach %s" % head
        doubt = " (no other host can tell whether it or %s is cut off)" % head if blame is _Blame.EITHER else ""
        what = "host lost on the network of the ranks: %s at %s for %d s, though it answers elsewhere%s"
        return {
            "host": state.nodes[failed].host,
            "node": failed,
            "rank": None,
            "what": what % (whom, report.address, now - report.reached_at, doubt),
            "at": report.reached_at,
            "lost": True,
            "code": CODE,
        }

    def _blame(self, node: int, state: State, now: float) -> _Blame:
        """By what the others report that were heard a moment ago, those without ranks included."""
        since = self._reports[node].reached_at
        others = [
            report
            for other, report in self._reports.items()
            if other not in (node, state.head)
            and now - report.at <= self._fresh
            and not (report.address is not None and report.reached_at < since - SLACK)  # it was cut off itself
        ]
        if any(report.reached_at > since + SLACK for report in others):
            return _Blame.NODE
        if any(report.address is None for report in others):
            return _Blame.OPEN
        return _Blame.HEAD if others else _Blame.EITHER

    @staticmethod
    def cuts_off_head(state: State) -> bool:
        """Whether the attempt has ended because no other host reached the head."""
        failure = state.first_failure or {}
        is_over = state.phase is Phase.RESTARTING
        return is_over and failure.get("node") == state.head and failure.get("code") == CODE

    def _warn(self, node: int, blame: _Blame, state: State) -> None:
        if node in self._told:
            return
        host, head, address = self._hosts[node], state.nodes[state.head].host, self._reports[node].address
        if blame is _Blame.HEAD:
            told = _Told(state.head, "%s is reached at %s again" % (head, address))
            what = "%s is reached by no other host at %s" % (head, address)
        else:
            told = _Told(node, "%s reaches %s at %s again" % (host, head, address))
            what = "%s does not reach %s at %s" % (host, head, address)
        if told not in self._told.values():
            more = "; it answers elsewhere. Ranks that hang for %d s are stopped" % self._patience
            self._say(what + ", on the network of the ranks" + more)
        self._told[node] = told

    def _hangs(self, seconds: float, quiet: float) -> bool:
        return seconds > self._patience and quiet > max(self._patience, GAPS * self._longest_gap)
