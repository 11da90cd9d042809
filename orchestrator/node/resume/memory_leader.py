"""Has all hosts of an attempt resume from one snapshot in memory, and closes the ring: for the leader."""

from typing import Any, Callable, Dict, List, Optional

from ..link.link import LinkClosed
from . import parts
from .channel import Channel
from .parts import Choice

OnAll = Callable[
    [Callable[[int], Any], List[int]], Dict[int, Any]
]  # takes a step with all these nodes at the same time


class MemoryLeader:
    def __init__(
        self,
        given: Dict[str, Any],
        channels: Dict[int, Channel],
        on_all: OnAll,
        say: Callable[[str], None],
        note_left: Callable[[int, int], None],
    ) -> None:
        """`given`: as of Leader; its `memory` has attempt, layout (ranks of each node of the team) and limit (bytes).

        `note_left`: tells how many bytes a node has yet to receive.
        """
        self._contacts = {int(number): contact for number, contact in given["nodes"].items()}
        self._team: List[int] = list(given["team"])
        self._attempt: int = given["memory"]["attempt"]
        self._layout = tuple(given["memory"]["layout"])
        self._limit: int = given["memory"]["limit"]
        self._channels = channels
        self._on_all = on_all
        self._say = say
        self._note_left = note_left
        self._problems: List[str] = []

    def agree(self) -> None:
        """The ranks of all hosts find the same newest snapshot: the newest that all can have. Raises Failed."""
        holdings = self._on_all(self._list, list(self._channels))
        choice, reasons = parts.choose(holdings, self._team, self._layout, self._limit)
        if choice is not None:
            self._assemble_all(choice)
            reasons += self._problems
        for reason in reasons[:1]:
            self._say("run.memory_limit: %s" % reason)
        adopted = choice if not self._problems else None
        if adopted is not None:
            self._say("the newest snapshot in memory that all hosts can have is of step %d" % adopted.step)
        self._on_all(lambda number: self._adopt(number, adopted), self._team)

    def _assemble_all(self, choice: Choice) -> None:
        self._on_all(lambda number: self._assemble(number, choice), self._team)

    def close_ring(self) -> None:
        """Each host copies from now on what the one before it saves. Raises Failed."""
        if len(self._team) > 1:
            self._on_all(self._follow, self._team)

    def _list(self, number: int) -> List[parts.Saved]:
        return [parts.decode(message) for message in self._channels[number].ask(do="list memory")["memory"]]

    def _assemble(self, number: int, choice: Choice) -> None:
        """Raises LinkClosed where another try may help."""
        needed = choice.parts[number]
        channel = self._channels[number]
        channel.send(
            do="assemble",
            name=choice.name,
            parts=[[node, parts.encode(saved)] for node, saved in needed],
            sources={node: self._contacts[node] for node, _ in needed},
        )
        left = size = sum(saved.size for node, saved in needed if node != number)
        while True:
            self._note_left(number, left)
            answer = channel.receive()
            if not isinstance(answer, dict) or answer.get("again"):
                raise LinkClosed(str(answer["error"]) if isinstance(answer, dict) else "not an answer")
            if "error" in answer:
                self._problems.append("%s: %s" % (self._contacts[number]["host"], answer["error"]))
            if "error" in answer or "done" in answer:
                return self._note_left(number, 0)
            left = size - answer["received"]

    def _adopt(self, number: int, choice: Optional[Choice]) -> None:
        label = parts.Label(self._attempt, self._team.index(number), self._layout)
        self._channels[number].ask(do="adopt", name=choice.name if choice else None, label=label._asdict())

    def _follow(self, number: int) -> None:
        source = self._team[self._team.index(number) - 1]
        self._channels[number].ask(do="follow", source=dict(self._contacts[source], node=source))
