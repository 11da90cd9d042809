"""Requests to drain hosts, which other processes of this user bring to the head's guard, and the gang's answers."""

from typing import Any, Dict, Iterable, List

from . import messages

MOST = 64


def may_come(spec: Dict[str, Any]) -> bool:
    """Whether this node is the head, or may become it."""
    return spec["node"] == 0 or spec.get("head_lost") == "elect"


class DrainRequests:
    """`pending`: what a guard that was killed had not passed on, or the gang had not decided."""

    def __init__(self, pending: Iterable[Dict[str, Any]] = ()) -> None:
        self._requests = {str(request["id"]): request for request in pending}
        self._answers: Dict[str, bool] = {}

    @property
    def pending(self) -> List[Dict[str, Any]]:
        """Requests without an answer. A decided one is not among them: a new recorder would decide it again."""
        return [request for name, request in self._requests.items() if name not in self._answers]

    def add(self, request: Dict[str, Any]) -> Dict[str, Any]:
        """A request is repeated, with the same id, until `accepted` is no longer null."""
        try:
            node, name = messages.integer(request.get("node")), messages.text(request.get("id"))
            by = messages.text(request.get("by"))
        except messages.Malformed as error:
            return {"error": "malformed request: %s" % error, "code": "unknown"}
        if name not in self._requests:
            if len(self._requests) >= MOST:
                oldest = next(iter(self._requests))
                del self._requests[oldest]
                self._answers.pop(oldest, None)
            self._requests[name] = {"id": name, "node": node, "by": by}
        return {"accepted": self._answers.get(name)}

    def answer(self, name: str, *, accepted: bool) -> None:
        if name in self._requests:
            self._answers[name] = accepted
