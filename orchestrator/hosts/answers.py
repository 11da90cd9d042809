"""What a host may answer: the shapes of the answers that commands rely on, checked as they come in. No IO.

A host may be broken, or in hostile hands. Its answers are data of other people until they have passed here: then every
key that is looked at is there and of its type, and no name, id, state or time holds anything but what such a thing is
made of. What is text by nature (a command line, a host's own words) is tamed where it is shown.
"""

from __future__ import annotations

import ipaddress
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import FunctionType
from typing import Any, Generic, TypeVar

from ..answers.decode import MalformedAnswer, decode
from ..answers.facts import Facts
from ..answers.network import DialReport, Listening
from ..inventory.hostnames import NAME
from ..inventory.run_ids import RUN_ID, RUN_NAME

Shape = Any
"""A type; a range that an int is in; a pattern for a text; None; `[shape]`; `{key: shape}`, other keys allowed;
`{"key?": shape}`, it may be missing; Each(shape); a tuple of shapes, one of them; a function that tells whether it is
one. An int has at most 64 bits and a sign, and a float is finite: whoever computes with them need not look."""

DEEPEST = 32  # levels of an answer: whoever goes through a deeper one runs out of stack


@dataclass(frozen=True)
class Each:
    """A dict with values of one shape, and keys of any text or of a pattern."""

    shape: Shape
    key: re.Pattern[str] | None = None


def _is_address(value: Any) -> bool:
    try:
        ipaddress.ip_address(value if isinstance(value, str) else "")
    except ValueError:
        return False
    return True


def _are_two_numbers(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(_wrong(one, _NUMBER, "") is None for one in value)


def _are_used_and_all(value: Any) -> bool:
    return _are_two_numbers(value) and value[1] > 0


def _is_grace(value: Any) -> bool:
    """Seconds, of which an inventory may ask for a day."""
    return type(value) in (int, float) and 0 <= value <= 86_400


def _is_figure(value: Any) -> bool:
    """A loss may well be nan."""
    return isinstance(value, float) or _wrong(value, int, "") is None


def _is_file(value: Any) -> bool:
    """Path, size, time."""
    return (
        isinstance(value, list)
        and [_wrong(*one, "") for one in zip(value, (str, int, int), strict=False)] == [None] * 3
    )


def _is_port(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 16


def _is_time(value: Any) -> bool:
    """Seconds since 1970, of a date that has four digits for its year."""
    return type(value) in (int, float) and 0 <= value < 253402300800


def _is_member(value: Any) -> bool:
    return isinstance(value, list) and [type(one) for one in value] == [int, int, str]


_HOST = re.compile(NAME)
_TIME = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:.]{8,18}(Z|[+-][0-9]{2}:[0-9]{2})")
_STATE = re.compile(r"starting|running|restarting|stopping|succeeded|failed|killed|lost")
_ENDED = re.compile(r"succeeded|failed|killed|lost")
_STREAM = re.compile(r"[0-9]{1,7}\.(agent|run|[0-9]{1,7})\.(out|err)")
_SIGNAL = (re.compile(r"SIG[A-Z0-9+]{1,12}"), int, None)
_NUMBER = (float, int)
# far above what any run has, and far below what is a burden to count
_NODE, _RANK, _ATTEMPT, _NPROC = range(100_000), range(1_000_000), range(10_000_000), range(4097)

_FAILURE = {
    "at": _is_time,
    "what": str,
    "rank": (_RANK, None),
    "exit_code?": (int, None),
    "signal?": _SIGNAL,
    "pid?": (int, None),
    "said?": (str, None),
    "attempt?": _ATTEMPT,
}
_VERDICT = {
    "state": _ENDED,
    # of no node: all are silent
    "first_failure?": ({**_FAILURE, "host": str, "node": (_NODE, None)}, None),
    "stopped_by?": (str, None),
}
RUN = {
    "run_id": RUN_ID,
    "name": RUN_NAME,
    "state": _STATE,
    "attempt": _ATTEMPT,
    "started_at": _TIME,
    "ended_at": (_is_time, None),
    "by": str,
    "script": str,
    "node": _NODE,
    "host": _HOST,
    "hosts": [_HOST],
    "nprocs": [_NPROC],
    "team": range(100_001),
    "node_rank": (_NODE, None),
    "first_rank": (_RANK, None),
    "nproc": _NPROC,
    "ranks": _RANK,
    "exit_code": (int, None),
    "signal": _SIGNAL,
    "pid": (int, None),
    "grace": _is_grace,
    "verdict?": _VERDICT,
    "outputs?": bool,
    "members?": [_is_member],
    "not_notified?": Each(str),
    "secrets?": [re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,254}")],
    "shared_output?": (re.compile(r"/[^\x00-\x1f]{0,4095}"), None),
}
_PROCESS = {"pid": (int, None), "owner": str, "cmd": str}
_ENDING = {
    "killed": [{"pid": int, "cmd": str}],
    "ports_freed": [int],
    "gpus_freed": [(int, str)],
    "remaining": [{**_PROCESS, "why": str}],
}
_UNFETCHED = {"unfetched": [RUN_ID], "unfetched_bytes": int}
_PREPARED = {"beside": [RUN_ID], "resumes": bool, **_UNFETCHED}
_MACHINE = {
    "cores": (int, None),
    "cpu": _are_two_numbers,
    "memory": _are_used_and_all,
    "nics": [{"name": str, "received": _NUMBER, "sent": _NUMBER, "mbit": (*_NUMBER, None)}],
    "gpus": [dict.fromkeys(("busy", "used", "total", "watts", "celsius"), (*_NUMBER, None))],
}
_SPEC = {
    "nodes": [{"host": _HOST}],
    "by": str,
    "python": str,
    "env": Each(str),
    "command": [str],
    "agent_argv": ([str], None),
}
# what `report` tells of; others are passed over
_TOLD = "StartRequested|PortFound|StopRequested|Failed|Exited|Lost|Stalled"
_EVENT = (
    {"event": re.compile(rf"(?!({_TOLD})$)[A-Za-z]{{1,40}}"), "fields": dict},
    {"event": re.compile("StartRequested|PortFound"), "fields": {"at": _is_time}},
    {"event": re.compile("StopRequested"), "fields": {"at": _is_time, "by": str}},
    {"event": re.compile("Failed"), "fields": {"at": _is_time, "node": _NODE, "failure": _FAILURE}},
    {"event": re.compile("Exited"), "fields": {"at": _is_time, "node": _NODE, "attempt": _ATTEMPT, "ok": bool}},
    {"event": re.compile("Lost"), "fields": {"at": _is_time, "node": _NODE}},
    {"event": re.compile("Stalled"), "fields": {"at": _is_time, "quiet": _NUMBER}},
)
_DUMP = {
    "rank": (_RANK, None),
    "groups": [
        {
            "group": str,
            "ranks": str,
            "enqueued": int,
            "completed": int,
            "waits": ({**dict.fromkeys(("op", "sizes", "types", "state"), str), "seq": int, "frames": [str]}, None),
        }
    ],
}
_WORDS = (str, None)
_OFFSETS = Each(int, _STREAM)
ANSWERS: Mapping[str, Shape] = {
    "clock": {"clock": (float, int)},
    "prepare": (
        {**_PREPARED, "addresses": [_is_address], "rdzv_port": _is_port, "link_port": (_is_port, None)},  # head
        {**_PREPARED, "reachable": [_is_address], "interface": _WORDS},
    ),
    "prune": {"runs": [str], "unused": int, "freed": int, "left": int, "outputs": [RUN_NAME], **_UNFETCHED},
    "output_folders": {"folders": [{"name": RUN_NAME, "bytes": int, "age": _is_time, "in_use": bool}]},
    "notify": {"problems": Each(str)},
    "remove_outputs": {"removed": [RUN_NAME], "freed": int},
    "list": {"runs": [RUN]},
    "attach": {
        "run": (RUN, None),
        "offsets?": _OFFSETS,
        "cut?": [_STREAM],
        "stray_outputs?": ({"folder": str, "count": int, "files": [str]}, None),
    },
    "outputs": {"files": [_is_file]},
    "sample": {
        **_MACHINE,
        "clock": _NUMBER,
        "run": (RUN, None),
        "ranks": [{"rank": _RANK, "last": str, "at": _NUMBER, "figures": Each(_is_figure)}],
    },
    "record": {
        "run": (RUN, None),
        "spec": (_SPEC, None),
        "exit": ({"at": _is_time}, None),
        "events": [_EVENT],
        "samples": [{**_MACHINE, "at": _NUMBER}],
    },
    "evidence": {
        "failures": [_FAILURE],
        "finished?": [{"rank": _RANK, "attempt": _ATTEMPT, "at": _is_time}],
        "kernel": [{"at": _is_time, "text": str}],
        "oom_kills": int,
        "dumps": [_DUMP],
    },
    "paths": {"paths": Each(_WORDS)},
    "python": {"executable": str, "python": [int], "torch": _WORDS, "venv": bool, "home": str},  # of `setup`
    "bench": {  # the trainer's line
        "world_size": int,
        "batch_size": int,
        "limit": re.compile(r"[a-z]{1,20}"),
        "samples_per_second": {"together": _NUMBER},
        "seconds_per_step": {"together": _NUMBER, "compute": _NUMBER, "data": _NUMBER, "allreduce": _NUMBER},
    },
    "deep": (  # the lines of a deep check's ranks
        {
            "what": re.compile("all_reduce"),
            "rank": int,
            "backend": str,
            "bytes": int,
            "seconds": _NUMBER,
            "right": bool,
        },
        {"what": re.compile("product"), "rank": int, "device": str, "tflops": _NUMBER},
    ),
    "abort": {"stopped_by": _WORDS},
    "stop": _ENDING,
    "force": _ENDING,
    "stale": {**_ENDING, "memory_freed": [str], "holders": [{**_PROCESS, "what": str}]},
}
_PIECES = {"streams": [_STREAM], "parts": [[int]]}
_LIVE = {"live": bool, "offsets": _OFFSETS}


Nonsense = MalformedAnswer
A = TypeVar("A")


@dataclass(frozen=True)
class Operation(Generic[A]):
    """Something that a host can be asked to do, and the type of its answer."""

    name: str
    answer: type[A]

    def decode(self, result: Any) -> A:
        """Raises MalformedAnswer."""
        return decode(self.answer, result, self.name)


class Untyped(Operation[dict[str, Any]]):
    """One whose answer is checked but not decoded."""

    def __init__(self, name: str) -> None:
        super().__init__(name, dict)

    def decode(self, result: Any) -> dict[str, Any]:
        check(self.name, result)
        return dict(result)


PROBE = Operation("probe", Facts)
LISTEN = Operation("listen", Listening)
DIAL = Operation("dial", DialReport)


def check(operation: str, answer: Any) -> None:
    """Raises Nonsense. Of operations without a shape nothing is known."""
    if _is_too_deep(answer):
        raise Nonsense(f"{operation}: nested too deeply")
    shape = ANSWERS.get(operation, dict)
    if (wrong := _wrong(answer, shape, operation)) is not None:
        raise Nonsense(wrong)


def check_data(operation: str, header: Mapping[str, Any], payload: bytes) -> None:
    """The header of what comes before an answer. Raises Nonsense."""
    if operation != "attach":
        return
    if "live" in header:
        if (wrong := _wrong(header, _LIVE, "attach")) is not None:
            raise Nonsense(wrong)
        return
    if (wrong := _wrong(header, _PIECES, "attach")) is not None:
        raise Nonsense(wrong)
    streams, parts = len(header["streams"]), header["parts"]
    if any(len(part) != 4 or min(part[:3]) < 0 or part[0] >= streams for part in parts):
        raise Nonsense("attach.parts: not [stream, offset, length, time]")
    if sum(part[2] for part in parts) != len(payload):
        raise Nonsense("attach.parts: not as long as what came")


def _is_too_deep(value: Any) -> bool:
    level = [value]
    for _ in range(DEEPEST):
        level = [
            inner
            for one in level
            if isinstance(one, (dict, list))
            for inner in (one.values() if isinstance(one, dict) else one)
        ]
    return bool(level)


def _wrong(value: Any, shape: Shape, where: str) -> str | None:
    """Where a value is not of its shape, None if it is."""
    match shape:
        case None:
            return None if value is None else where
        case re.Pattern():
            return None if isinstance(value, str) and shape.fullmatch(value) else where
        case tuple():
            found = [_wrong(value, one, where) for one in shape]
            return None if None in found else found[0]
        case list():
            if not isinstance(value, list):
                return where
            return next((wrong for one in value if (wrong := _wrong(one, shape[0], f"{where}[]")) is not None), None)
        case dict():
            if not isinstance(value, dict):
                return where
            for key, one in shape.items():
                name = key.rstrip("?")
                if name not in value and key == name:
                    return f"{where}.{name}"
                if name in value and (wrong := _wrong(value[name], one, f"{where}.{name}")) is not None:
                    return wrong
            return None
        case Each():
            if not isinstance(value, dict) or (shape.key and not all(map(shape.key.fullmatch, value))):
                return where
            return next((bad for one in value.values() if (bad := _wrong(one, shape.shape, f"{where}.*"))), None)
        case range():
            return None if type(value) is int and value in shape else where
        case FunctionType():
            return None if shape(value) else where
        case _:
            if shape is int:
                return None if type(value) is int and abs(value) <= 1 << 64 else where  # True is an int to Python
            if shape is float:
                return None if isinstance(value, float) and math.isfinite(value) else where
            return None if isinstance(value, shape) else where
