"""Check the messages that recorders send each other over the link, and limit their size. Pure.

A link proves which node speaks, not that its host is honest. A message that an honest recorder never sends raises
Malformed.
"""

from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple

from ..gang import gang_events
from .attempt_phase import AttemptPhase
from .contacts import Contact

TEXT = 300  # characters: such texts end up in our lines of the log, in records and notifications
FAILURES = 64  # of one attempt; the first is what counts
FROZEN = 1024  # ranks
PROBLEMS = 16  # of a host
ADDRESSES = 16  # of one node
MOST_NODES = 100_000  # of a run
LARGEST = 1 << 53  # of a number: what JSON carries exactly


class Envelope(NamedTuple):
    """A message of one node to another one, which a third may carry. Nodes are numbers."""

    sender: int
    target: int
    message: Dict[str, Any]


class OfHead(NamedTuple):
    """A message of the head to a node. `echo`: the node's own time of its newest message that the head has."""

    order: Optional[gang_events.Order]
    contacts: Dict[int, Contact]
    echo: Optional[float]
    envelope: Optional[Envelope]
    signal: Optional[int]  # for the ranks
    resume: Optional[int]  # the number of the server of outputs that it wants; 0: none any more
    election: Any  # see election_messages.py; None: nothing


class Reach(NamedTuple):
    """What a node knows of its way to the head on the network of the ranks."""

    seconds: float  # since that worked last
    address: Optional[str] = None  # of the head, if it works no more


class Malformed(Exception):
    """An honest recorder never sends this."""


def one_line(text: str) -> str:
    return " ".join(text.split())[:TEXT]


def status(message: Any) -> Dict[str, Any]:
    """A node's status (docs/protocol.md): the part that the gang needs."""
    message = object_of(message)
    stop, outcome, finish = message.get("stop"), message.get("outcome"), message.get("finish")
    try:
        phase = AttemptPhase(message.get("phase"))
    except ValueError as error:
        raise Malformed("phase") from error
    if outcome is None and phase is AttemptPhase.EXITED:
        raise Malformed("outcome")
    return {
        "attempt": integer(message.get("attempt")),
        "phase": phase,
        "outcome": None if outcome is None else {"ok": object_of(outcome).get("ok") is True},
        "failures": [_failure(failure) for failure in list_of(message.get("failures"))[:FAILURES]],
        "fenced": message.get("fenced") is True,
        "restarted": message.get("restarted") is True,
        "begun": integer(message.get("begun", 0)),
        "finish": None if finish is None else _finish(object_of(finish)),
        "holds": integer(message.get("holds", 0)),
        "stop": None if stop is None else {"by": text(object_of(stop).get("by")), "grace": _number(stop.get("grace"))},
    }


def _finish(request: Dict[str, Any]) -> Dict[str, Any]:
    return {"by": text(request.get("by")), "can_save": request.get("can_save") is True}


def silence(message: Any) -> Dict[str, Any]:
    """For how long the ranks of a node have been silent, and which of them a signal has stopped."""
    message = object_of(message)
    return {
        "quiet": _number(message.get("quiet")),
        "frozen": [integer(rank) for rank in list_of(message.get("frozen"))[:FROZEN]],
    }


def reach(message: Any) -> Optional[Reach]:
    """Whether a node reaches the head on the network of the ranks; None: it cannot tell."""
    if "cut" in message:
        cut = object_of(message["cut"])
        return Reach(_number(cut.get("seconds")), text(cut.get("address")))
    return Reach(_number(message["reached"])) if "reached" in message else None


def checked(message: Any) -> Dict[str, Any]:
    """Whether a host is well enough for an attempt."""
    message = object_of(message)
    return {
        "attempt": integer(message.get("attempt")),
        "problems": [
            {"code": text(object_of(problem).get("code")), "text": text(problem.get("text"))}
            for problem in list_of(message.get("problems"))[:PROBLEMS]
        ],
    }


def output_server(message: Any) -> Dict[str, Any]:
    """Where the server of a node's output folder listens; `port` is None if there is none, and `error` says why."""
    message = object_of(message)
    addresses = [text(address) for address in list_of(message.get("addresses"))[:ADDRESSES]]
    port, error = _optional(_port, message.get("port")), text(message.get("error"))
    return {"number": integer(message.get("number")), "addresses": addresses, "port": port, "error": error}


def clock(message: Any) -> float:
    """The time of its sender when it was sent: seconds since the boot of its host."""
    return _number(message)


def seconds(message: Any) -> float:
    return _number(message)


def envelope(message: Any, nodes: int) -> Envelope:
    """`nodes`: how many there are."""
    if len(list_of(message)) != 3 or max(integer(message[0]), integer(message[1])) >= nodes:
        raise Malformed("envelope")
    return Envelope(message[0], message[1], object_of(message[2]))


def of_head(message: Any) -> OfHead:
    """The head may know nodes that were added later."""
    nodes = MOST_NODES
    return OfHead(
        order(message["order"]) if "order" in message else None,
        contacts(message["contacts"], nodes) if "contacts" in message else {},
        clock(message["echo"]) if "echo" in message else None,
        envelope(message["envelope"], nodes) if "envelope" in message else None,
        integer(message["signal"]) if "signal" in message else None,
        integer(message["resume"]) if "resume" in message else None,
        message.get("election"),
    )


def order(message: Any) -> gang_events.Order:
    """The head's order to a node."""
    try:
        kind, fields = message
        return gang_events.ORDERS[kind](**fields)
    except (ValueError, KeyError, TypeError) as error:
        raise Malformed("order") from error


def contact(message: Any) -> Contact:
    """Where a node can be reached."""
    message = object_of(message)
    addresses = tuple(text(address) for address in list_of(message.get("addresses"))[:ADDRESSES])
    return Contact(addresses, _optional(_port, message.get("port")), _optional(_endpoint, message.get("sshd")))


def contacts(message: Any, count: int) -> Dict[int, Contact]:
    """The contacts of several of the `count` nodes of the run."""
    known = {}
    for key, fields in object_of(message).items():
        if not key.isdigit() or int(key) >= count:
            raise Malformed("not a node")
        known[int(key)] = contact(fields)
    return known


def _failure(message: Any) -> Dict[str, Any]:
    message = object_of(message)
    return {
        "rank": _optional(integer, message.get("rank")),
        "exit_code": _optional(integer, message.get("exit_code")),
        "signal": _optional(text, message.get("signal")),
        "pid": _optional(integer, message.get("pid")),
        "what": text(message.get("what")),
        "said": text(message.get("said", "")),
        "gone": message.get("gone") is True,
        "attempt": integer(message.get("attempt")),
        "at": _number(message.get("at")),
        **{key: True for key in ("requested", "oom", "own_limit") if message.get(key) is True},
    }


def _optional(check: Callable[[Any], Any], value: Any) -> Optional[Any]:
    return None if value is None else check(value)


def object_of(value: Any) -> Dict[str, Any]:
    if not isinstance(value, dict):
        raise Malformed("not an object")
    return value


def list_of(value: Any) -> List[Any]:
    if not isinstance(value, list):
        raise Malformed("not a list")
    return value


def integer(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= LARGEST:
        raise Malformed("not a number")
    return value


def _number(value: Any) -> float:
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not (0 <= value <= LARGEST):
        raise Malformed("not a number")
    return value


def _port(value: Any) -> int:
    if not 0 < integer(value) < 1 << 16:
        raise Malformed("not a port")
    return int(value)


def _endpoint(value: Any) -> Tuple[str, int]:
    if len(list_of(value)) != 2:
        raise Malformed("not an address and a port")
    return text(value[0]), _port(value[1])


def text(value: Any) -> str:
    if not isinstance(value, str):
        raise Malformed("not a text")
    return one_line(value)
