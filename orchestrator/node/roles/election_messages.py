"""The messages of an election on the link: `[KIND, FIELDS]`. Pure."""

import json
from typing import Any, Callable, Dict, List, Tuple

from ..gang.election_state import Ack, Answer, Ask, Beat, Copy, Entry, Message, Stamp, voters_of
from ..link.messages import Malformed, clock, integer, list_of, object_of, seconds, text
from .gang_log import event_of

TEXT = 64 * 1024  # characters of an entry


def encode(message: Message) -> List[Any]:
    return [type(message).__name__, message._asdict()]


def decode(value: Any) -> Message:
    """Raises Malformed."""
    if len(list_of(value)) != 2 or not isinstance(value[0], str) or value[0] not in _KINDS:
        raise Malformed("not a message of an election")
    return _KINDS[value[0]](object_of(value[1]))


def _beat(fields: Dict[str, Any]) -> Beat:
    echo = fields.get("echo")
    return Beat(
        integer(fields.get("epoch")),
        _stamp(fields.get("sent")),
        None if echo is None else _stamp(echo),
        seconds(fields.get("remaining")),
        integer(fields.get("length")),
        text(fields.get("digest")),
        _entries(fields.get("entries")),
        integer(fields.get("committed")),
    )


def _ack(fields: Dict[str, Any]) -> Ack:
    beat, stamp = _stamp(fields.get("beat")), _stamp(fields.get("stamp"))
    return Ack(integer(fields.get("epoch")), beat, stamp, integer(fields.get("length")))


def _ask(fields: Dict[str, Any]) -> Ask:
    return Ask(
        integer(fields.get("epoch")),
        fields.get("trial") is True,
        integer(fields.get("round")),
        integer(fields.get("last_epoch")),
        integer(fields.get("length")),
        text(fields.get("digest")),
        integer(fields.get("committed")),
    )


def _answer(fields: Dict[str, Any]) -> Answer:
    epoch, round_number = integer(fields.get("epoch")), integer(fields.get("round"))
    return Answer(epoch, fields.get("trial") is True, round_number, fields.get("granted") is True)


def _copy(fields: Dict[str, Any]) -> Copy:
    return Copy(
        integer(fields.get("epoch")),
        integer(fields.get("last_epoch")),
        integer(fields.get("total")),
        integer(fields.get("length")),
        text(fields.get("digest")),
        _entries(fields.get("entries")),
    )


_KINDS: Dict[str, Callable[[Dict[str, Any]], Message]] = {
    "Beat": _beat,
    "Ack": _ack,
    "Ask": _ask,
    "Answer": _answer,
    "Copy": _copy,
}


def _stamp(value: Any) -> Stamp:
    if len(list_of(value)) != 2:
        raise Malformed("not a time")
    return Stamp(text(value[0]), clock(value[1]))


def _entries(value: Any) -> Tuple[Entry, ...]:
    return tuple(_entry(entry) for entry in list_of(value))


def _entry(value: Any) -> Entry:
    """An event of the gang, on one line as `json.dumps` writes it: the digest is of the text."""
    if len(list_of(value)) != 2 or not isinstance(value[1], str) or len(value[1]) > TEXT:
        raise Malformed("not an entry")
    try:
        entry = json.loads(value[1])
        event_of(entry)
        for node in voters_of(Entry(0, value[1])) or ():
            integer(node)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise Malformed("not an event") from error
    if json.dumps(entry) != value[1]:
        raise Malformed("not as it is written")
    return Entry(integer(value[0]), value[1])
