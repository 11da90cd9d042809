"""Have the folders of a run brought to agreement before an attempt: on the head. Never blocks.

These are the output folders (`run.resume`) and the snapshots in memory (`run.memory_limit`). Listing and copying is
done by processes of their own (node/resume). When the servers of the team (output_server.py) have told where they
listen, the head starts a leader. With snapshots in memory, the servers stay while the attempt runs: each copies what
the one before it in the ring saves. If a recorder was restarted, its server has gone, so the ring is closed again.
"""

from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple

from ..gang import agreement
from ..gang.gang_events import Agreed, Drain, NotAgreed
from ..gang.gang_state import Node, NodePhase, Phase, State
from ..link import messages
from ..link.peers import RecorderApi
from .output_server import Contact, LineProcess, OutputServer
from .outputs_advice import OutputsAdvice

OPEN_WINDOW = 15.0  # s for the servers of the team to open their ports
SPARE_WINDOW = 3.0  # s, as part of these, for the servers of other nodes
SOURCE_WINDOW = 30.0  # s for a host that only gives the others its files to join the run
LEAVES = "restart, as the others have its files"  # who drains that host
RETRY = 1.0  # s
RING_RETRY = 5.0  # s
NO_NODE = (1 << 32) - 1  # the number of the leader on its connections: a server does not speak with its own node


def is_wanted(spec: Dict[str, Any]) -> bool:
    return len(spec["nodes"]) > 1 and (_copies_outputs(spec) or _has_memory(spec))


def _has_memory(spec: Dict[str, Any]) -> bool:
    """Whether the ranks save in memory: the same on all nodes, as the gang depends on it."""
    return spec.get("memory_limit") is not None


def _copies_outputs(spec: Dict[str, Any]) -> bool:
    return spec["resume"] != "none" and not spec["shared_output"]


class Round(NamedTuple):
    """One try to bring the folders of a team to agreement, or only to close the ring of an attempt that runs."""

    number: int
    attempt: int
    only_ring: bool
    team: Tuple[int, ...]
    source: int  # with `run.resume: head`: the host of rank 0 in the attempt before; it may not be among the nodes
    nodes: Tuple[int, ...]  # all that can take part: what another node has may be needed
    hosts: Tuple[str, ...]  # of all nodes; some may have been added after the start
    ranks: Tuple[int, ...]  # of all nodes
    at: float


class Resumption:
    """On the head. `tell` sends a message to another node, `happens` gives the gang an event."""

    def __init__(
        self,
        recorder: RecorderApi,
        server: OutputServer,
        addresses: Callable[[], List[str]],
        tell: Callable[[int, Dict[str, Any]], None],
        happens: Callable[[Any], None],
    ) -> None:
        """`addresses`: of this host, to listen on."""
        self._recorder = recorder
        self._spec = recorder.spec
        self._addresses = addresses
        self._tell = tell
        self._happens = happens
        self._server = server
        self._round: Optional[Round] = None
        self._leader: Optional[LineProcess] = None
        self._contacts: Dict[int, Contact] = {}  # where the servers of this round listen
        self._refusals: Dict[int, str] = {}  # why there is no server
        self._left: Dict[int, int] = {}  # bytes that nodes have yet to receive in this round
        self._least_left = float("inf")  # of all nodes, in all rounds for this team
        self._progress_at = 0.0  # when the first round for this team began, or fewer bytes were left than ever
        self._begin_at = 0.0
        self._has_memory = _has_memory(self._spec) and is_wanted(self._spec)
        self._ring = 0  # the attempt whose ring is closed
        self._ring_at = 0.0
        self._trouble = (0, "")  # of the last round: the node, and what
        # a host that only gives the others what rank 0 of an earlier run saved there, and leaves then
        self._source = next((i for i, node in enumerate(self._spec["nodes"]) if node.get("source")), None)
        self._due_at: Optional[float] = None  # when the first round could have begun without that host
        self._drained_in = 0  # the attempt in which that host was asked to leave
        self._outputs_advice = OutputsAdvice(recorder.folder, recorder.spec, happens)

    def pipes(self) -> List[int]:
        return self._server.pipes() + ([self._leader.stdout] if self._leader is not None else [])

    def on_readable(self, handle: int, current: State, at: float) -> None:
        if self._leader is None or handle != self._leader.stdout:
            for contact in self._server.on_readable():
                self.on_server(self._spec["node"], contact)
            return
        lines = self._leader.read()
        if lines is None:
            self._try_again(self._spec["node"], "the process that copies has ended", at)
        for line in lines or []:
            self._on_leader(line, current, at)

    def _on_leader(self, line: Dict[str, Any], current: State, at: float) -> None:
        if self._round is None:
            return
        if "say" in line:
            self._recorder.say(messages.one_line(line["say"]))
        elif "left" in line:
            self._left = {int(node): count for node, count in line["left"].items()}
            if sum(self._left.values()) < self._least_left:  # a file that is begun again is no progress
                self._least_left, self._progress_at = sum(self._left.values()), at
        elif "done" in line:
            done = self._round
            self._stop(keep_servers=self._has_memory)
            self._ring = done.attempt
            if not done.only_ring:
                self._happens(Agreed(done.attempt, done.team, at, messages.one_line(line["note"])))
        elif line["again"]:
            self._try_again(line["node"], messages.one_line(line["failed"]), at)
        else:
            self._give_up(line["node"], messages.one_line(line["failed"]), current, at)

    def on_server(self, node: int, contact: Contact) -> None:
        if self._round is None or contact["number"] != self._round.number:
            return
        if contact["port"] is None:
            self._refusals[node] = contact["error"]
        else:
            self._contacts[node] = contact

    def advance(self, current: State, at: float) -> None:
        self._outputs_advice.advance(current, at)
        self._let_source_leave(current, at)
        for contact in self._server.advance():
            self.on_server(self._spec["node"], contact)
        if self._round is not None and not self._is_current(self._round, current):
            self._stop()
        if self._round is None:
            team = agreement.due(current, at, private=not _copies_outputs(self._spec))  # /dev/shm is of one host
            if at < self._begin_at or (team is not None and self._awaits_source(current, at)):
                return
            if team is not None:
                self._begin(current, team, at, only_ring=False)
            elif at >= self._ring_at and self._may_close_ring(current):
                self._begin(current, current.team, at, only_ring=True)
        elif at - self._progress_at > self._spec["resume_timeout"]:
            node, what = self._describe_stall(self._round)
            self._give_up(node, what, current, at)
        elif self._leader is None:
            self._lead_if_ready(at)

    def _awaits_source(self, current: State, at: float) -> bool:
        if self._source is None or current.attempt > 0 or current.nodes[self._source].phase is NodePhase.JOINED:
            return False
        self._due_at = self._due_at or at
        if at - self._due_at < SOURCE_WINDOW:
            return True
        host = current.nodes[self._source].host
        self._recorder.say("%s did not join, so the others begin without what rank 0 saved there" % host)
        return False

    def _let_source_leave(self, current: State, at: float) -> None:
        if self._source is None or current.attempt in (0, self._drained_in) or current.phase is not Phase.RUNNING:
            return
        self._drained_in = current.attempt
        if current.nodes[self._source].leaves is None:
            self._happens(Drain(self._source, LEAVES, 0.0, at))

    def _is_current(self, known: Round, current: State) -> bool:
        if known.only_ring:
            return self._may_close_ring(current) and known.attempt == current.attempt
        return known.team == agreement.pending(current)

    def _may_close_ring(self, current: State) -> bool:
        if not self._has_memory or current.phase is not Phase.RUNNING or self._ring == current.attempt:
            return False
        return all(node.phase is NodePhase.RUNNING and not node.away for node in current.members)

    def on_joined(self, number: int, at: float) -> None:
        """The recorder of a node may be a new one, whose server has gone."""
        self._ring, self._ring_at = 0, at + RETRY  # several may join
        if self._round is not None and number in self._round.nodes and number not in self._contacts:
            self._tell(number, {"resume": self._round.number})  # it had no link yet when the others were asked

    def _describe_stall(self, current: Round) -> Tuple[int, str]:
        """The node, and what is wrong."""
        node, trouble = self._trouble
        if not trouble:
            node = next((number for number, count in self._left.items() if count), current.team[0])
        timeout = self._spec["resume_timeout"]
        what = "%s: %s: no progress for %d s (run.resume_timeout)" % (current.hosts[node], self._key, timeout)
        return node, "%s; %s" % (what, trouble) if trouble else what

    def _begin(self, current: State, team: Tuple[int, ...], at: float, only_ring: bool) -> None:
        others = [] if only_ring else [number for number, node in enumerate(current.nodes) if _may_help(node)]
        nodes = sorted({*team, *others})
        self._progress_at = self._progress_at or at
        self._contacts, self._refusals, self._left = {}, {}, {}
        hosts, ranks = tuple(node.host for node in current.nodes), tuple(node.nproc for node in current.nodes)
        attempt = current.attempt + (0 if only_ring else 1)
        self._round = Round(int(at * 1000), attempt, only_ring, team, current.team[0], tuple(nodes), hosts, ranks, at)
        self._serve_everywhere(self._round, self._round.number)

    def _serve_everywhere(self, current: Round, number: int) -> None:
        for node in current.nodes:
            if node == self._spec["node"]:
                self._server.serve(number, self._addresses())
            else:
                self._tell(node, {"resume": number})

    def _lead_if_ready(self, at: float) -> None:
        assert self._round is not None
        waited = at - self._round.at
        for number in self._round.team:
            why = self._refusals.get(number, "the host did not answer" if waited > OPEN_WINDOW else "")
            if why and number not in self._contacts:
                self._try_again(number, "%s: %s: %s" % (self._round.hosts[number], self._key, why), at)
                return
        if any(number not in self._contacts for number in self._round.team):
            return
        answered = {*self._contacts, *self._refusals}
        sources = {self._source} | ({self._round.source} if self._spec["resume"] == "head" else set())
        needs_source = any(each in self._round.nodes and each not in answered for each in sources)
        if waited < (OPEN_WINDOW if needs_source else SPARE_WINDOW) and not answered.issuperset(self._round.nodes):
            return
        try:
            self._leader = LineProcess(self._spec["program"], "resume-lead", self._given_to_leader(self._round))
        except OSError as error:
            self._try_again(self._spec["node"], "cannot start a process: %s" % error, at)

    def _given_to_leader(self, current: Round) -> Dict[str, Any]:
        layout = [current.ranks[number] for number in current.team]
        memory = {"attempt": current.attempt, "layout": layout, "limit": self._spec.get("memory_limit")}
        return {
            "key": self._recorder.key.hex(),
            "node": NO_NODE,
            "mode": self._spec["resume"] if _copies_outputs(self._spec) else "none",
            "limit": self._spec["resume_limit"],
            "memory": memory if self._has_memory else None,
            "only_ring": current.only_ring,
            "head": current.team[0],
            "source": current.source if current.attempt > 1 else None,
            "source_host": current.hosts[current.source],
            "team": current.team,
            "nodes": {number: dict(each, host=current.hosts[number]) for number, each in self._contacts.items()},
        }

    @property
    def _key(self) -> str:
        """The key of the inventory that this follows from."""
        return "run.resume" if _copies_outputs(self._spec) else "run.memory_limit"

    def _try_again(self, node: int, what: str, at: float) -> None:
        if (node, what) != self._trouble:
            self._trouble = node, what
            self._recorder.say("%s; trying again" % what)
        before = self._progress_at, self._least_left, self._trouble
        only_ring = self._round is not None and self._round.only_ring
        self._stop()
        self._progress_at, self._least_left, self._trouble = before
        self._begin_at = at + (RING_RETRY if only_ring else RETRY)

    def _give_up(self, node: int, what: str, current: State, at: float) -> None:
        only_ring = self._round is not None and self._round.only_ring
        self._stop()
        if only_ring:
            self._ring = current.attempt  # without it, a lost host costs more steps
            return
        self._happens(NotAgreed(current.attempt + 1, node, what, at))

    def warn_of_outputs(self, current: State) -> None:
        """At a restart."""
        self._outputs_advice.begin(current)

    def warn_of_kept_files(self, current: State) -> None:
        """When the first attempt begins."""
        self._outputs_advice.begin_continued(current)

    def close(self) -> None:
        """Another node is the head now."""
        self._stop()

    def _stop(self, keep_servers: bool = False) -> None:
        if self._leader is not None:
            self._leader.kill()
            self._leader.has_ended()
            self._leader = None
        if self._round is not None and not keep_servers:
            self._serve_everywhere(self._round, 0)
        self._round = None
        self._progress_at, self._least_left, self._trouble = 0.0, float("inf"), (0, "")


def _may_help(node: Node) -> bool:
    """Whether a node that is not in the team may have a newer output folder."""
    is_able = node.phase in (NodePhase.JOINED, NodePhase.EXITED) and not node.away
    has_ended = node.leaves is not None and node.node_rank is None  # it was drained; what the last attempt saved counts
    return is_able and not has_ended and not node.witness
