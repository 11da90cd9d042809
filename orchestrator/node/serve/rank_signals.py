"""`signal`, `saved`, `finish`, `hold`: signal ranks of a run here, wait for a saved snapshot, end the run, hold it."""

import os
import time
from typing import Any, Dict

from ..guard import requests
from ..host import state
from ..recorder import saved_line, snapshot_time
from .wire import Refused

LOOK_EVERY = 0.1  # s
LONGEST_WAIT = 10.0  # s of one request; the controller asks again


def send(arguments: Dict[str, Any]) -> Dict[str, Any]:
    """`arguments`: run_id, signal (number), ranks (null: all), only_if_caught, dry; see Tree.signal_ranks.

    `signal` null: the run's snapshot_signal. The answer has `offsets` too: where the streams of the ranks ended before.
    """
    folder = state.run_folder(arguments["run_id"])
    offsets = saved_line.ends(os.path.join(folder, "log")) if os.path.isdir(folder) else {}
    request = {name: arguments[name] for name in ("signal", "ranks", "only_if_caught", "dry")}
    if request["signal"] is None:
        request["signal"] = saved_line.signal_number(state.read(os.path.join(folder, "spec.json")) or {})
    answer = _ask(arguments["run_id"], folder, dict(request, do="signal"))
    if arguments["signal"] is None and answer["signaled"]:
        snapshot_time.begin(folder)
    return dict(answer, signal=request["signal"], offsets=offsets)


def finish(arguments: Dict[str, Any]) -> Dict[str, Any]:
    """`arguments`: run_id, by. Has the run save a snapshot and stop; `can_save`: the ranks here have a handler."""
    folder = state.run_folder(arguments["run_id"])
    number = saved_line.signal_number(state.read(os.path.join(folder, "spec.json")) or {})
    return _ask(arguments["run_id"], folder, {"do": "finish", "by": arguments["by"], "signal": number})


def hold(arguments: Dict[str, Any]) -> Dict[str, Any]:
    """`arguments`: run_id. Tells the guard that the controller, to which the run is tied, is still there."""
    return _ask(arguments["run_id"], state.run_folder(arguments["run_id"]), {"do": "hold"})


def _ask(run_id: str, folder: str, request: Dict[str, Any]) -> Dict[str, Any]:
    try:
        answer = requests.ask(folder, request)
    except (requests.NoAnswer, OSError) as error:
        raise Refused("no-guard", "run %s: %s" % (run_id, error)) from error
    if "error" in answer:
        raise Refused(str(answer.get("code", "unknown")), str(answer["error"]))
    return answer


def wait_for_saved_line(arguments: Dict[str, Any]) -> Dict[str, Any]:
    """`arguments`: run_id, offsets (as `signal` answered), seconds. `line` is null if none came."""
    folder = state.run_folder(arguments["run_id"])
    offsets = {str(stream): int(offset) for stream, offset in arguments["offsets"].items()}
    deadline = time.monotonic() + min(LONGEST_WAIT, float(arguments["seconds"]))
    while True:
        line = saved_line.find(os.path.join(folder, "log"), offsets)
        if line is not None:
            snapshot_time.end(folder)
        if line is not None or time.monotonic() > deadline:
            return {"line": line.text if line else None, "rank": line.rank if line else None, "offsets": offsets}
        time.sleep(LOOK_EVERY)
