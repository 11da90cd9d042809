"""What a host may answer: the shapes of the answers that commands rely on, checked as they come in. No IO.

A host may be broken, or in hostile hands. Its answers are data of other people until they have passed here: then every
key that is looked at is there and of its type, and no name, id, state or time holds anything but what such a thing is
made of. What is text by nature (a command line, a host's own words) is tamed where it is shown.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import FunctionType
from typing import Any

from .hostnames import NAME
from .naming import RUN_ID, RUN_NAME

Shape = Any
"""A type; a pattern for a text; None; `[shape]`; `{key: shape}`, other keys allowed; `{"key?": shape}`, it
may be missing; Each(shape), any keys; a tuple of shapes, one of them; a function that tells whether it is one."""


@dataclass(frozen=True)
class Each:
    """A dict with keys of any text, and values of one shape."""

    shape: Shape


def _is_address(value: Any) -> bool:
    try:
        ipaddress.ip_address(value if isinstance(value, str) else "")
    except ValueError:
        return False
    return True


def _is_range(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(map(_is_port, value)) and value[0] <= value[1]


def _are_two_counts(value: Any) -> bool:
    return isinstance(value, list) and [type(one) for one in value] == [int, int]


def _is_port(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 16


def _is_time(value: Any) -> bool:
    """Seconds since 1970, of a date that has four digits for its year."""
    return type(value) in (int, float) and 0 <= value < 253402300800


_HOST = re.compile(NAME)
_TIME = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:.]{8,18}(Z|[+-][0-9]{2}:[0-9]{2})")
_STATE = re.compile(r"starting|running|restarting|stopping|succeeded|failed|killed|lost")
_ENDED = re.compile(r"succeeded|failed|killed|lost")
_STREAM = re.compile(r"[0-9]{1,7}\.(agent|run|[0-9]{1,7})\.(out|err)")
_SIGNAL = (re.compile(r"SIG[A-Z0-9+]{1,12}"), int, None)

_VERDICT = {
    "state": _ENDED,
    "first_failure?": ({"host": str, "what": str, "node": (int, None)}, None),  # of no node: all are silent
    "stopped_by?": (str, None),
}
RUN = {
    "run_id": RUN_ID,
    "name": RUN_NAME,
    "state": _STATE,
    "attempt": int,
    "started_at": _TIME,
    "ended_at": (_is_time, None),
    "by": str,
    "script": str,
    "node": int,
    "host": _HOST,
    "hosts": [_HOST],
    "nprocs": [int],
    "team": int,
    "node_rank": (int, None),
    "first_rank": (int, None),
    "nproc": int,
    "ranks": int,
    "exit_code": (int, None),
    "signal": _SIGNAL,
    "pid": (int, None),
    "verdict?": _VERDICT,
    "outputs?": bool,
}
_PROCESS = {"pid": (int, None), "owner": str, "cmd": str}
_ENDING = {
    "killed": [{"pid": int, "cmd": str}],
    "ports_freed": [int],
    "gpus_freed": [(int, str)],
    "remaining": [{**_PROCESS, "why": str}],
}
_NUMBER = (float, int)
_UNFETCHED = {"unfetched": [RUN_ID], "unfetched_bytes": int}
_PREPARED = {"beside": [RUN_ID], "resumes": bool, **_UNFETCHED}
_MACHINE = {
    "cores": (int, None),
    "cpu": [_NUMBER],
    "memory": [_NUMBER],
    "nics": [{"name": str, "received": _NUMBER, "sent": _NUMBER}],
    "gpus": [{"busy": (*_NUMBER, None), "used": (*_NUMBER, None), "watts": (*_NUMBER, None)}],
}
_FAILURE = {
    "at": _NUMBER,
    "what": str,
    "rank": (int, None),
    "exit_code?": (int, None),
    "signal?": _SIGNAL,
    "said?": (str, None),
}
_SPEC = {
    "nodes": [{"host": _HOST}],
    "by": str,
    "python": str,
    "env": dict,
    "command": [str],
    "agent_argv": ([str], None),
}
_COUNT = (int, None)
_WORDS = (str, None)
_DISK = {"path": str, "kind": str, "total": int, "free": int, "free_files": _COUNT}
_GPU = {
    "index": int,
    "uuid": _WORDS,
    "name": _WORDS,
    "memory_mib": _COUNT,
    "used_mib": _COUNT,
    "compute_mode": _WORDS,
    "persistence": _WORDS,
    "mig": _WORDS,
    "fabric": _WORDS,
    "uncorrected_ecc": _COUNT,
    "repair": _WORDS,
    "slowed": [str],
    "pcie_lanes": _COUNT,
    "pcie_lanes_most": _COUNT,
    "application_clock_mhz": _COUNT,
    "application_clock_default_mhz": _COUNT,
    "power_limit_w": (*_NUMBER, None),
    "power_default_w": (*_NUMBER, None),
    "nvlinks": (_are_two_counts, None),
    "paths": (Each(str), None),
    "lost": bool,
    "processes": [{"pid": int, "used_mib": _COUNT, "uid": _COUNT, "command": _WORDS}],
}
_SCRIPT = {"path": str, "error": _WORDS, "absent": _WORDS, "missing": [str]}
_PYTHON = {
    "executable": str,
    "python": [int],
    "torch": _WORDS,
    "cuda": (re.compile(r"[0-9]{1,4}(\.[0-9]{1,6}){0,3}"), None),
    "path?": _WORDS,
    "packages": Each(str),
    "limits": Each(_COUNT),
    "script": (_SCRIPT, None),
    "settings": Each(str),
    "net_plugin": _WORDS,
    "libfabric": _WORDS,
}
_NAMES = Each({"found": [str], "error": _WORDS, "seconds": (*_NUMBER, None)})
_FACTS = {
    "hostname": str,
    "machine": str,
    "uid": int,
    "cores": int,
    "clock": _NUMBER,
    "workdir": (bool, None),
    "cgroup_pids": _COUNT,
    "disks": {"state?": _DISK, "home?": _DISK, "tmp?": _DISK, "shm?": _DISK},
    "interfaces": [
        {
            "name": str,
            "address": _is_address,
            "speed": int,
            "bridge": bool,
            "loopback": bool,
            "up": bool,
            "mtu": _COUNT,
        }
    ],
    "rdma": [{"device": str, "port": str, "state": str, "layer": str, "driver": str}],
    "firewalls": [str],
    "port_range": _is_range,
    "first_port": int,
    "listeners": Each({"pid": _COUNT, "command": _WORDS}),
    "orphans": [{"pid": int, "run_id": str, "command": str}],
    "stale_locks": [str],
    "paths": Each(_WORDS),
    "dns": [str],
    "gpus": [_GPU],
    "nvidia": {"driver": _WORDS, "cuda": _PYTHON["cuda"], "error": _WORDS, "xids": [str]},
    "python": (_PYTHON, {"error": str, "code": str}),
    "names": _NAMES,
}
_DIALLED = {
    "host": _HOST,
    "address": _is_address,
    "source": (_is_address, None),
    "interface": _WORDS,
    "ports": Each(_WORDS),
    "latency": (*_NUMBER, None),
    "stalled": bool,
    "bandwidth": (*_NUMBER, None),
}
HELLO = {"codes": [str], "boot_id": str, "machine_id": str, "state_inode": [int], "state?": str, "passed_over?": [str]}
ANSWERS: Mapping[str, Shape] = {
    "clock": {"clock": (float, int)},
    "probe": _FACTS,
    "listen": {"ports": [_is_port], "addresses": [_is_address]},
    "dial": {"results": [_DIALLED], "names": _NAMES},
    "prepare": (
        {**_PREPARED, "addresses": [_is_address], "rdzv_port": _is_port, "link_port": (_is_port, None)},  # head
        {**_PREPARED, "reachable": [_is_address], "interface": _WORDS},
    ),
    "prune": {"runs": [str], "unused": int, "freed": int, "left": int, **_UNFETCHED},
    "list": {"runs": [RUN]},
    "attach": {"run": (RUN, None), "beside_code?": ({"folder": str, "count": int, "files": [str]}, None)},
    "sample": {
        **_MACHINE,
        "clock": _NUMBER,
        "run": (RUN, None),
        "ranks": [{"rank": int, "last": str, "at": _NUMBER, "figures": dict}],
    },
    "record": {
        "run": (RUN, None),
        "spec": (_SPEC, None),
        "exit": ({"at": _NUMBER}, None),
        "events": [{"event": str, "fields": dict}],
        "samples": [{**_MACHINE, "at": _NUMBER}],
    },
    "evidence": {
        "failures": [_FAILURE],
        "kernel": [{"at": _NUMBER, "text": str}],
        "oom_kills": int,
        "dumps": [dict],
    },
    "stop": _ENDING,
    "force": _ENDING,
    "stale": {**_ENDING, "memory_freed": [str], "holders": [{**_PROCESS, "what": str}]},
}
_PIECES = {"streams": [_STREAM], "parts": [[int]]}


class Nonsense(Exception):
    """An answer that no node program of ours would give; the text says where it is wrong."""


def check(operation: str, answer: Any) -> None:
    """Raises Nonsense. Of operations without a shape nothing is known."""
    shape = ANSWERS.get(operation, dict)
    if (wrong := _wrong(answer, shape, operation)) is not None:
        raise Nonsense(wrong)


def check_hello(header: Any) -> None:
    """Raises Nonsense."""
    if (wrong := _wrong(header, HELLO, "hello")) is not None:
        raise Nonsense(wrong)


def check_data(operation: str, header: Mapping[str, Any], payload: bytes) -> None:
    """The header of what comes before an answer. Raises Nonsense."""
    if operation != "attach":
        return
    if "live" in header:
        if not isinstance(header.get("offsets"), dict):
            raise Nonsense("attach: live without offsets")
        return
    if (wrong := _wrong(header, _PIECES, "attach")) is not None:
        raise Nonsense(wrong)
    streams, parts = len(header["streams"]), header["parts"]
    if any(len(part) != 4 or min(part[:3]) < 0 or part[0] >= streams for part in parts):
        raise Nonsense("attach.parts: not [stream, offset, length, time]")
    if sum(part[2] for part in parts) != len(payload):
        raise Nonsense("attach.parts: not as long as what came")


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
            if not isinstance(value, dict):
                return where
            return next((bad for one in value.values() if (bad := _wrong(one, shape.shape, f"{where}.*"))), None)
        case FunctionType():
            return None if shape(value) else where
        case _:
            # True is an int to Python
            return None if isinstance(value, shape) and (shape is bool or not isinstance(value, bool)) else where
