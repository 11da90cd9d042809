"""On the head: when each node was heard, directly or by a detour, and what follows from its silence."""

from typing import Callable, Dict, List, NamedTuple, Sequence, Set

from ..gang import suspicion
from ..gang.suspicion import Judgement, Silence
from .server_probes import ServerProbes

MOST_NAMED = 4  # hosts in a line about many


class Loss(NamedTuple):
    node: int
    silent: float  # s


class NodeWatch:
    """Times are by the monotonic clock. `say` writes a line of ours. `nodes_wait`: as in suspicion.judge."""

    def __init__(
        self, hosts: Sequence[str], lease: float, nodes_wait: bool, say: Callable[[str], None], probes: ServerProbes
    ) -> None:
        self._hosts = hosts
        self._lease = lease
        self._nodes_wait = nodes_wait
        self._say = say
        self._probes = probes
        self._heard: Dict[int, float] = {}  # on any path
        self._direct: Dict[int, float] = {}  # on the link of the node, which had heard us there before
        self._watched: Set[int] = set()  # those that a line has called suspect
        self._by_detour: Set[int] = set()
        self.suspects: Set[int] = set()

    def join(self, node: int, at: float) -> None:
        self._heard[node] = self._direct[node] = at

    def hear(self, node: int, at: float) -> None:
        """The node was heard on its link."""
        self._heard[node] = at

    def hear_unheard(self, node: int, at: float, seconds: float) -> None:
        """The node reports on its link for how long it has not heard us: a path may work in one direction only."""
        self._direct[node] = at - seconds

    def hear_by_detour(self, node: int, helper: int, at: float) -> None:
        self._heard[node] = at
        if node in self._watched and node not in self._by_detour:
            self._by_detour.add(node)
            way = (
                "directly again"
                if helper == node
                else "through %s, so only the direct way is broken" % self._hosts[helper]
            )
            self._say("%s answers %s" % (self._hosts[node], way))

    def known(self) -> List[int]:
        return list(self._heard)

    def silent(self, node: int, now: float) -> float:
        return now - self._heard[node]

    def longest_silence(self, nodes: Sequence[int], now: float) -> float:
        return now - min((self._heard[node] for node in nodes), default=now)

    def unheard(self, node: int, now: float) -> float:
        """Seconds since the node has heard us on its link, as far as we know."""
        return now - self._direct[node]

    def without_link(self, nodes: Sequence[int], now: float) -> List[int]:
        """The nodes to reach by a detour."""
        return [node for node in nodes if self.unheard(node, now) > suspicion.suspect_after(self._lease)]

    def judge(self, nodes: Sequence[int], refusals: Set[int], now: float, leaving: Sequence[int] = ()) -> List[Loss]:
        """Returns the nodes that are lost. `nodes`: all that should answer. `leaving`: those that have nothing to do.

        They were asked to leave the run, so their end is no fault.
        """
        silences = [Silence(node, self.silent(node, now), node in refusals) for node in nodes]
        judgements = suspicion.judge(silences, self._lease, self._nodes_wait)
        lost = [silence for silence in silences if judgements[silence.node] is Judgement.LOST]
        staying = [node for node in nodes if node not in leaving]
        self.suspects = {node for node in staying if judgements[node] is Judgement.SUSPECT}
        self._describe(staying, now)
        for silence in lost:
            self._watched.discard(silence.node)
            is_up, host = self._probes.end(silence.node), self._hosts[silence.node]
            if silence.node in leaving:
                self._say("%s has left the run" % host)
            elif silence.refused:
                self._say("%s refuses connections: its guard and recorder have ended" % host)
            elif is_up:
                self._say(
                    "%s is up, because its SSH server answers. But its recorder does not: it hangs, or a firewall "
                    "blocks %s" % (host, self._probes.link_port(silence.node))
                )
        return [Loss(silence.node, silence.seconds) for silence in lost]

    def helpers(self, nodes: Sequence[int], suspect: int, now: float) -> Sequence[int]:
        silences = [Silence(node, now - self._direct[node]) for node in nodes]
        return suspicion.choose_helpers(silences, suspect, self._lease)

    def _describe(self, nodes: Sequence[int], now: float) -> None:
        """Say once whose link is silent, and whose is back. A detour may keep such a node from being suspect."""
        new = [node for node in self.without_link(nodes, now) if node not in self._watched]
        if new:
            self._watched.update(new)
            for node in new:
                self._probes.begin(node)
            links = [Silence(node, now - self._direct[node]) for node in nodes]
            if self._nodes_wait and suspicion.all_silent(links, self._lease):
                what = "all other nodes are silent, so the network of this host may be down; waiting up to %d s"
                action = what % (2 * self._lease)
            else:
                helpers = [self._hosts[node] for node in self.helpers(nodes, new[0], now)]
                action = "asking %s to reach it" % _listed(helpers) if helpers else "no other node can be asked"
            seconds = max(now - self._direct[node] for node in new)
            self._say("suspect: the link to %s has been silent for %d s; %s" % (self._named(new), seconds, action))
        back = sorted(
            node
            for node in self._watched & set(nodes)
            if now - self._direct[node] <= suspicion.suspect_after(self._lease)
        )
        if back:
            self._watched.difference_update(back)
            self._by_detour.difference_update(back)
            for node in back:
                self._probes.end(node)
            self._say("no longer suspect: %s" % self._named(back))

    def _named(self, nodes: Sequence[int]) -> str:
        return _listed([self._hosts[node] for node in nodes])


def _listed(hosts: Sequence[str]) -> str:
    more = len(hosts) - MOST_NAMED
    return ", ".join(hosts[:MOST_NAMED]) + (" and %d more" % more if more > 0 else "")
