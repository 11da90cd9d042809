"""`rejoin`: start a guard for a run that this host takes part in, after the host was restarted or the guard was killed.

The run's folder still has everything but `private`, which the guards of other hosts have in memory.
"""

import json
import os
import time
from typing import Any, Dict, List

from ..guard import guard_process, past
from ..host import guard_locks, network, state
from ..host.sweep import sweep
from . import locks as run_locks
from . import prepare
from .wire import Refused


def rejoin(arguments: Dict[str, Any]) -> Dict[str, Any]:
    """`arguments`: run_id, private (as for `prepare`).

    Refuses with `no-such-run`, `guarded` (there is a guard), `over`, or the code of what is in the way.
    """
    run_id = arguments["run_id"]
    folder = state.run_folder(run_id)
    check(run_id, folder)
    spec = state.read(os.path.join(folder, "spec.json")) or {}
    taken: List[int] = []
    listeners = []
    try:
        _take_run(folder, taken)
        check_not_over(run_id, folder)
        left = sweep(run_id, folder)
        if left:
            raise Refused("process-stopped", "pid %s (%s) cannot be ended" % (left[0]["pid"], left[0]["cmd"]))
        prepare.check_space(folder)
        state.keep_space(folder)
        if not os.path.isdir(spec["cwd"]):
            raise Refused("remote-workdir-missing", "%s is gone" % spec["cwd"])
        run_locks.take(spec, taken)
        run_locks.share_output(spec, taken)
        listeners = [_listen(address, port) for address, port in spec["listening"]]
        spec["epoch"] = max(time.time(), _last_event(folder)) - time.monotonic()
        state.write(os.path.join(folder, "spec.json"), spec)
        begun = past.after_restart(folder)._asdict()
        control = guard_process.start(folder, spec, arguments["private"], {"link": listeners}, taken, begun)
    except guard_process.NotStarted as error:
        raise Refused("unknown", str(error)) from error
    finally:  # the guard has its own
        for listener in listeners:
            listener.close()
        for lock in taken:
            os.close(lock)
    with control:
        return prepare.ask(control, None, "rejoined")


def check(run_id: str, folder: str) -> None:
    """Raises Refused where no guard may be started."""
    spec = state.read(os.path.join(folder, "spec.json"))
    if spec is None:
        raise Refused("no-such-run", "run %s is not on this host" % run_id)
    if state.guarded(folder):
        raise Refused("guarded", "run %s has its guard on this host" % run_id)
    check_not_over(run_id, folder)
    if "listening" not in spec:
        raise Refused("unknown", "run %s was started by an older version of ddp-orch" % run_id)


def check_not_over(run_id: str, folder: str) -> None:
    if state.is_over(folder):
        raise Refused("over", "run %s is over on this host" % run_id)


def _take_run(folder: str, taken: List[int]) -> None:
    try:
        guard_locks.take_run(folder, taken)
    except guard_locks.Held as error:
        raise Refused("guarded", str(error)) from error


def _listen(address: str, port: int) -> Any:
    """Where the other nodes look for this one."""
    try:
        return network.listen_on([address], [port])[0]
    except OSError as error:
        text = "cannot listen on %s: %s" % (network.endpoint(address, port), error.strerror)
        raise Refused("port-in-use", text) from error


def _last_event(folder: str) -> float:
    """When the gang decided last, on the head: its clock must not be set back."""
    try:
        with open(os.path.join(folder, "gang.jsonl"), "rb") as file:
            file.seek(-min(os.fstat(file.fileno()).st_size, 64 * 1024), os.SEEK_END)
            lines = file.read().splitlines()
    except OSError:
        return 0.0  # not the head
    for line in reversed(lines):
        try:
            return float(json.loads(line)["fields"]["at"])
        except state.DAMAGED:
            continue
    return 0.0
