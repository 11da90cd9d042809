"""Requests to drain hosts, which other processes of this user bring to the head's guard, and the gang's answers."""

from typing import Any, Dict, List

from . import messages

MOST = 64


class DrainRequests:
    """`requests`: all of them; the recorder ignores those that it has handled. `answers`: whether they are accepted."""

    def __init__(self) -> None:
        self.requests: List[Dict[str, Any]] = []
        self.answers: Dict[str, bool] = {}

    def add(self, request: Dict[str, Any]) -> Dict[str, Any]:
        """A request is repeated, with the same id, until `accepted` is no longer null."""
        try:
            node, name = messages.integer(request.get("node")), messages.text(request.get("id"))
            by = messages.text(request.get("by"))
        except messages.Malformed as error:
            return {"error": "malformed request: %s" % error, "code": "unknown"}
        if not any(known["id"] == name for known in self.requests):
            if len(self.requests) >= MOST:
                self.answers.pop(self.requests.pop(0)["id"], None)
            self.requests.append({"id": name, "node": node, "by": by})
        return {"accepted": self.answers.get(name)}
