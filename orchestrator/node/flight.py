"""Flight-recorder dumps of torch's NCCL backend, summarised: what each rank had enqueued, and what it waits for.

They are pickles, written into a folder that others may write to: read with an unpickler that knows no global at all, so
that only numbers, text and containers can come of them, and only up to a size.
"""

import io
import os
import pickle
import re
from typing import Any, Dict, List

MOST = 64 * 1024 * 1024  # bytes of one dump
MOST_GROUPS = 64
NAME = re.compile(r"(\d+)$")


class _Plain(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError("a dump holds no %s.%s" % (module, name))

    def persistent_load(self, pid: Any) -> Any:
        raise pickle.UnpicklingError("a dump holds no references")


def read(path: str) -> Any:
    """Raises OSError, ValueError or pickle.UnpicklingError."""
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with os.fdopen(handle, "rb") as file:
        data = file.read(MOST + 1)
    if len(data) > MOST:
        raise ValueError("%s is larger than %d bytes" % (path, MOST))
    try:
        return _Plain(io.BytesIO(data)).load()
    except pickle.UnpicklingError:
        raise
    except Exception as error:  # noqa: BLE001  whatever broken opcodes lead to
        raise ValueError("%s is no dump: %s" % (path, error)) from None


def summary(path: str) -> Dict[str, Any]:
    """{"rank", "groups": [{"group", "ranks", "enqueued", "completed", "waits": {...} or None}]} of one rank's dump."""
    dump = read(path)
    if not isinstance(dump, dict) or not isinstance(dump.get("entries"), list):
        raise ValueError("%s is no dump: it has no entries" % path)
    number = NAME.search(path)
    groups: Dict[str, Dict[str, Any]] = {}
    for entry in dump["entries"]:
        if isinstance(entry, dict) and not entry.get("is_p2p"):
            _add(groups, entry, dump.get("pg_config"))
    found = [groups[name] for name in list(groups)[:MOST_GROUPS]]
    return {"rank": int(number.group(1)) if number else None, "groups": found}


def _add(groups: Dict[str, Dict[str, Any]], entry: Dict[str, Any], config: Any) -> None:
    name = _group(entry)
    seq = entry.get("collective_seq_id", entry.get("seq_id"))
    if not isinstance(seq, int):
        return
    group = groups.setdefault(
        name, {"group": name, "ranks": _ranks(config, entry), "enqueued": 0, "completed": 0, "waits": None}
    )
    group["enqueued"] = max(group["enqueued"], seq)
    if entry.get("state") == "completed" or entry.get("retired") is True:
        group["completed"] = max(group["completed"], seq)
    elif group["waits"] is None or seq < group["waits"]["seq"]:
        group["waits"] = {
            "seq": seq,
            "op": str(entry.get("profiling_name", "?"))[:80],
            "sizes": str(entry.get("input_sizes"))[:200],
            "types": str(entry.get("input_dtypes"))[:80],
            "state": str(entry.get("state"))[:20],
            "frames": _frames(entry.get("frames")),
        }


def _group(entry: Dict[str, Any]) -> str:
    group = entry.get("process_group")
    return str(group[0] if isinstance(group, (tuple, list)) and group else entry.get("pg_id", "0"))[:80]


def _ranks(config: Any, entry: Dict[str, Any]) -> str:
    one = config.get(_group(entry)) if isinstance(config, dict) else None
    return str(one.get("ranks", ""))[:400] if isinstance(one, dict) else ""


def _frames(frames: Any) -> List[str]:
    """The innermost frames outside of torch."""
    found = []
    for frame in frames if isinstance(frames, list) else []:
        if isinstance(frame, dict) and "site-packages/torch" not in str(frame.get("filename")):
            found.append("%s:%s in %s" % (frame.get("filename"), frame.get("line"), frame.get("name")))
    return [text[:200] for text in found[:3]]
