"""Have the output folders of a run brought to agreement before an attempt (`run.resume`): on the head. Never blocks.

Listing and copying is done by processes of their own (node/resume). When the servers of the team (output_server.py)
have told where they listen, the head starts a leader.
"""

from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple

from ..gang import agreement
from ..gang.gang_events import Agreed, NotAgreed
from ..gang.gang_state import Node, NodePhase, State
from . import messages
from .output_server import Contact, LineProcess, OutputServer
from .peers import RecorderApi

OPEN_WINDOW = 15.0  # s for the servers of the team to open their ports
SPARE_WINDOW = 3.0  # s, as part of these, for the servers of other nodes
RETRY = 1.0  # s
NO_NODE = (1 << 32) - 1  # the number of the leader on its connections: a server does not speak with its own node


def is_wanted(spec: Dict[str, Any]) -> bool:
    return spec["resume"] != "none" and not spec["shared_output"] and len(spec["nodes"]) > 1


class Round(NamedTuple):
    """One try to bring the folders of a team to agreement."""

    number: int
    team: Tuple[int, ...]
    nodes: Tuple[int, ...]  # all that can take part: what another node has may be needed
    hosts: Tuple[str, ...]  # of all nodes; some may have been added after the start
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
        self._trouble = (0, "")  # of the last round: the node, and what

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
            team = self._round.team
            self._stop()
            self._happens(Agreed(current.attempt + 1, team, at))
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
        for contact in self._server.advance():
            self.on_server(self._spec["node"], contact)
        if self._round is not None and self._round.team != agreement.pending(current):
            self._stop()
        if self._round is None:
            team = agreement.due(current, at)
            if team is not None and at >= self._begin_at:
                self._begin(current, team, at)
        elif at - self._progress_at > self._spec["resume_timeout"]:
            node, what = self._describe_stall(self._round)
            self._give_up(node, what, current, at)
        elif self._leader is None:
            self._lead_if_ready(at)

    def _describe_stall(self, current: Round) -> Tuple[int, str]:
        """The node, and what is wrong."""
        node, trouble = self._trouble
        if not trouble:
            node = next((number for number, count in self._left.items() if count), current.team[0])
        what = "%s: run.resume: no progress for %d s (run.resume_timeout)" % (
            current.hosts[node],
            self._spec["resume_timeout"],
        )
        return node, "%s; %s" % (what, trouble) if trouble else what

    def _begin(self, current: State, team: Tuple[int, ...], at: float) -> None:
        nodes = [number for number, node in enumerate(current.nodes) if number in team or _may_help(node)]
        self._progress_at = self._progress_at or at
        self._contacts, self._refusals, self._left = {}, {}, {}
        hosts = tuple(node.host for node in current.nodes)
        self._round = Round(int(at * 1000), team, tuple(nodes), hosts, at)
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
                self._try_again(number, "%s: run.resume: %s" % (self._round.hosts[number], why), at)
                return
        if any(number not in self._contacts for number in self._round.team):
            return
        if waited < SPARE_WINDOW and not all(number in self._contacts for number in self._round.nodes):
            return
        nodes = {number: dict(contact, host=self._round.hosts[number]) for number, contact in self._contacts.items()}
        given = {"key": self._recorder.key.hex(), "node": NO_NODE, "mode": self._spec["resume"]}
        given.update(limit=self._spec["resume_limit"], head=self._round.team[0], team=self._round.team, nodes=nodes)
        try:
            self._leader = LineProcess(self._spec["program"], "resume-lead", given)
        except OSError as error:
            self._try_again(self._spec["node"], "cannot start a process: %s" % error, at)

    def _try_again(self, node: int, what: str, at: float) -> None:
        if (node, what) != self._trouble:
            self._trouble = node, what
            self._recorder.say("%s; trying again" % what)
        before = self._progress_at, self._least_left, self._trouble
        self._stop()
        self._progress_at, self._least_left, self._trouble = before
        self._begin_at = at + RETRY

    def _give_up(self, node: int, what: str, current: State, at: float) -> None:
        self._stop()
        self._happens(NotAgreed(current.attempt + 1, node, what, at))

    def close(self) -> None:
        """Another node is the head now."""
        self._stop()

    def _stop(self) -> None:
        if self._leader is not None:
            self._leader.kill()
            self._leader.has_ended()
            self._leader = None
        if self._round is not None:
            self._serve_everywhere(self._round, 0)
        self._round = None
        self._progress_at, self._least_left, self._trouble = 0.0, float("inf"), (0, "")


def _may_help(node: Node) -> bool:
    """Whether a node that is not in the team may have a newer output folder."""
    is_able = node.phase in (NodePhase.JOINED, NodePhase.EXITED) and not node.away
    return is_able and node.leaves is None and not node.witness
