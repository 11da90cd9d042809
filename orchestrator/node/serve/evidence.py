"""What a host knows about a failure beyond the output: exits, out-of-memory kills, the kernel's log, dumps."""

import functools
import glob
import os
import re
import time
from typing import Any, Callable, Dict, List, Tuple

from ..host import state
from ..host.run_command import answers_of, output_of
from . import facts, flight

KERNEL_WINDOW = 5.0  # s for dmesg
KERNEL = re.compile(
    r"oom|Out of memory|Killed process|NVRM: Xid|segfault at|fallen off|link (?:is )?down|I/O error", re.I
)
MOST_KERNEL_LINES = 40
DUMPS = ("/tmp/nccl_trace_rank_", "~/.cache/torch/comm_lib_trace_rank_")
MOST_DUMPS = 16
MOST_DROPPED = 64  # writers of attempts
OUTPUTS = re.compile(r"/[0-9a-f]{12}/out/([^/]+)/(.+)")  # in an output folder: host's id, name of the run, file
SLACK = 5.0  # s before the record of a run that still count as its time


def gather(arguments: Dict[str, Any]) -> Dict[str, Any]:
    """`arguments`: run_id. A part that cannot be had is empty: most hosts keep the kernel's log from plain users."""
    folder = state.run_folder(arguments["run_id"])
    ended = state.read(os.path.join(folder, "exit.json"))
    now = ended or state.read(os.path.join(folder, "state.json"))
    spec = state.read(os.path.join(folder, "spec.json"))
    if now is None or spec is None:
        return {"error": "no such run here", "code": "no-such-run"}
    since = os.stat(os.path.join(folder, "spec.json")).st_mtime - SLACK
    return {
        "failures": now["failures"],
        "finished": ((ended or {}).get("outcome") or {}).get("finished", []),
        "kernel": _kernel(since),
        "oom_kills": _oom_kills(),
        "dropped": _dropped(folder),
        "dumps": _dumps(dict(os.environ, **spec.get("env", {})), since),
        "clock": time.time(),
    }


def paths(arguments: Dict[str, Any]) -> Dict[str, Any]:
    """`arguments`: run_id, paths. Whether each can be read here: null, or why not. Relative ones are the run's.

    A path in the output folder of the run on another host is looked for in that of this host.
    """
    folder = state.run_folder(arguments["run_id"])
    spec = state.read(os.path.join(folder, "spec.json"))
    if spec is None:
        return {"error": "no such run here", "code": "no-such-run"}
    questions: Dict[str, Callable[[], Any]] = {}
    for path in arguments["paths"]:
        output = OUTPUTS.search(path)
        is_output = output is not None and output[1] == spec["name"]
        place = os.path.join(state.output_folder(folder, spec), output[2]) if output and is_output else path
        questions[path] = functools.partial(facts.unreadable, os.path.join(spec["cwd"], place))
    answers = answers_of(questions, facts.FILES_WINDOW)
    return {"paths": {path: answers.get(path, "its file system does not answer") for path in questions}}


def _dropped(folder: str) -> List[Dict[str, Any]]:
    """The output that a full disk has kept out of the journal. The recorder's own line about it needs room too."""
    from ..recorder import journal  # other requests do not need it

    gaps: Dict[Tuple[int, str], int] = {}
    for stream, size in journal.gaps(os.path.join(folder, "log")).items():
        key = stream.attempt, stream.writer
        gaps[key] = gaps.get(key, 0) + size
    newest = sorted(gaps.items())[-MOST_DROPPED:]
    return [{"attempt": attempt, "writer": writer, "size": size} for (attempt, writer), size in newest]


def _kernel(since: float) -> List[Dict[str, Any]]:
    booted = time.time() - time.clock_gettime(time.CLOCK_MONOTONIC)
    messages = []
    for line in output_of(["dmesg"], KERNEL_WINDOW).splitlines():
        stamp = re.match(r"\[ *(\d+\.\d+)\] ", line)
        if stamp and KERNEL.search(line) and booted + float(stamp.group(1)) >= since:
            messages.append({"at": booted + float(stamp.group(1)), "text": line[stamp.end() :][:500]})
    return messages[-MOST_KERNEL_LINES:]


def _oom_kills() -> int:
    """All kills at the memory limit of our own cgroup. The number alone does not prove that one was of this run."""
    for group, file_name in (("0::", "%s/memory.events"), ("memory:", "/memory%s/memory.oom_control")):
        try:
            with open("/proc/self/cgroup") as file:
                path = next(line.strip().split(group, 1)[1] for line in file if group in line)
            with open("/sys/fs/cgroup" + file_name % path.rstrip("/")) as file:
                return int(next(line.split()[1] for line in file if line.startswith("oom_kill ")))
        except (OSError, StopIteration, ValueError):
            continue
    return 0


def _dumps(environment: Dict[str, str], since: float) -> List[Dict[str, Any]]:
    prefixes = [environment.get(name) for name in ("TORCH_NCCL_DEBUG_INFO_TEMP_FILE", "TORCH_FR_DUMP_TEMP_FILE")]
    dumps: List[str] = []
    for prefix in [prefix for prefix in prefixes if prefix] or DUMPS:
        for path in sorted(glob.glob(glob.escape(os.path.expanduser(prefix)) + "*"))[:MOST_DUMPS]:
            try:
                if os.stat(path).st_mtime >= since:
                    dumps.append(path)
            except OSError:
                continue
    return flight.summaries(dumps)
