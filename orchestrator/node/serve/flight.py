"""Flight-recorder dumps of torch's NCCL backend, summarised: what each rank had enqueued, and what it waits for.

They are pickles, in a folder that others may write to: only files of ours are read, and with an unpickler that knows no
global at all, so that they can only yield numbers, text and containers. A few bytes of pickle may ask for any amount
of memory, so it is done in a process of its own, with a limit.
"""

import gc
import io
import json
import os
import pickle
import re
import reprlib
import resource
import stat
import sys
from typing import Any, Dict, List

from ..host import processes
from ..host.run_command import output_of

MOST = 64 * 1024 * 1024  # bytes of one dump
MEMORY_MOST = 1 << 30  # bytes of memory to read them all
WINDOW = 20.0  # s for it
MOST_GROUPS = 64
MOST_FRAMES = 3
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
        status = os.fstat(handle)
        if status.st_uid != os.geteuid() or not stat.S_ISREG(status.st_mode):
            raise ValueError("%s is not a file of ours" % path)
        data = file.read(MOST + 1)
    if len(data) > MOST:
        raise ValueError("%s is larger than %d bytes" % (path, MOST))
    try:
        return _Plain(io.BytesIO(data)).load()
    except pickle.UnpicklingError:
        raise
    except MemoryError:
        raise
    except Exception as error:  # noqa: BLE001  whatever broken opcodes lead to
        raise ValueError("%s is no dump: %s" % (path, error)) from None


def summaries(paths: List[str]) -> List[Dict[str, Any]]:
    """Summarise the dumps that can be read, in a separate process."""
    program = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    code = "import sys; sys.path.insert(0, sys.argv[1]); from node.__main__ import main; sys.exit(main(sys.argv[2:]))"
    argv = [sys.executable, "-I", "-S", "-c", code, program, "dumps", str(os.getpid())] + paths
    return [json.loads(line) for line in output_of(argv, WINDOW).splitlines()] if paths else []


def main(arguments: List[str]) -> int:
    """The process: a line of JSON for each dump that can be read. `arguments`: the pid of who asks, paths."""
    processes.die_with_parent(int(arguments[0]))
    gc.disable()  # it would go through millions of containers again and again
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_MOST, MEMORY_MOST))
    for path in arguments[1:]:
        try:
            print(json.dumps(summary(path)), flush=True)
        except (OSError, ValueError, pickle.UnpicklingError, MemoryError, RecursionError):
            continue
    return 0


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
    kept = [groups[name] for name in list(groups)[:MOST_GROUPS]]
    return {"rank": int(number.group(1)) if number else None, "groups": kept}


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
            "op": _text(entry.get("profiling_name", "?"), 80),
            "sizes": _text(entry.get("input_sizes"), 200),
            "types": _text(entry.get("input_dtypes"), 80),
            "state": _text(entry.get("state"), 20),
            "frames": _frames(entry.get("frames")),
        }


def _group(entry: Dict[str, Any]) -> str:
    group = entry.get("process_group")
    return _text(group[0] if isinstance(group, (tuple, list)) and group else entry.get("pg_id", "0"), 80)


def _ranks(config: Any, entry: Dict[str, Any]) -> str:
    group_config = config.get(_group(entry)) if isinstance(config, dict) else None
    return _text(group_config.get("ranks", ""), 400) if isinstance(group_config, dict) else ""


def _frames(frames: Any) -> List[str]:
    """The innermost frames outside of torch."""
    lines: List[str] = []
    for frame in frames if isinstance(frames, list) else []:
        if not isinstance(frame, dict) or len(lines) == MOST_FRAMES:
            continue
        place = _text(frame.get("filename"), 200)
        if "site-packages/torch" not in place:
            lines.append("%s:%s in %s" % (place, _text(frame.get("line"), 20), _text(frame.get("name"), 200)))
    return [text[:200] for text in lines]


class _Short(reprlib.Repr):
    """As `str`, but of nested containers only the beginning is looked at."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel, self.maxlist, self.maxtuple, self.maxdict, self.maxlong = 3, 24, 24, 24, 80


def _text(value: Any, most: int) -> str:
    return (value if isinstance(value, str) else _Short().repr(value))[:most]
