"""Requests to drain or to add a host, brought to the head's guard by other processes of this user, and the answers."""

from typing import Any, Callable, Dict, Iterable, List

from ..gang import gang_events, newcomers
from ..gang.gang_state import State
from ..link import messages

MOST = 64
_FIELDS: Dict[str, Dict[str, Callable[[Any], Any]]] = {
    "drain": {"node": messages.integer},
    "add": {"host": messages.text, "nproc": messages.integer},
}


def may_come(spec: Dict[str, Any]) -> bool:
    """Whether this node is the head, or may become it."""
    return spec["node"] == 0 or spec.get("head_lost") == "elect"


class TeamRequests:
    """`pending`: what a guard that was killed had not passed on, or the gang had not decided."""

    def __init__(self, pending: Iterable[Dict[str, Any]] = ()) -> None:
        self._requests = {str(request["id"]): request for request in pending}
        self._answers: Dict[str, Any] = {}

    @property
    def pending(self) -> List[Dict[str, Any]]:
        """Requests without an answer. A decided one is not among them: a new recorder would decide it again."""
        return [request for name, request in self._requests.items() if name not in self._answers]

    def add(self, request: Dict[str, Any]) -> Dict[str, Any]:
        """A request is repeated, with the same id, until `answer` is no longer null."""
        try:
            kind, name, by = (messages.text(request.get(key)) for key in ("do", "id", "by"))
            fields = {key: check(request.get(key)) for key, check in _FIELDS[kind].items()}
        except (messages.Malformed, KeyError) as error:
            return {"error": "malformed request: %s" % error, "code": "unknown"}
        if name not in self._requests:
            if len(self._requests) >= MOST:
                oldest = next(iter(self._requests))
                del self._requests[oldest]
                self._answers.pop(oldest, None)
            self._requests[name] = {"do": kind, "id": name, "by": by, **fields}
        return {"answer": self._answers.get(name)}

    def withdraw(self, name: Any) -> Dict[str, Any]:
        """Nobody waits for it any more. Once it is decided, it is too late, and the answer is not null."""
        if name not in self._answers:
            self._requests.pop(name, None)
        return {"answer": self._answers.get(name)}

    def answer(self, name: str, answer: Any) -> None:
        if name in self._requests:
            self._answers[name] = answer


def event_of(request: Dict[str, Any], grace: float, at: float) -> gang_events.Event:
    if request["do"] == "drain":
        return gang_events.Drain(request["node"], request["by"], grace, at)
    return gang_events.Added(request["host"], request["nproc"], request["by"], at)


def answer_of(request: Dict[str, Any], state: State) -> Any:
    """After its event. To `drain`: whether the host leaves. To `add`: the number of the host, or False. Never None."""
    if request["do"] == "drain":
        return request["node"] < len(state.nodes) and state.nodes[request["node"]].leaves is not None
    return newcomers.number_of(state, request["host"]) or False
