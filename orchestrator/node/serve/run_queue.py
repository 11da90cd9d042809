"""The queue of `up --queue` on this host: a ticket file for each controller that waits here.

A controller holds the lock of its ticket through its relay, so a ticket is void when its controller has gone, however
that ended. Tickets are ordered by number, then by run id; no clock is used. A run that cannot start, because hosts that
it needs do not answer, keeps its tickets, but lets the runs behind it pass. Why no two controllers wait for each other:
docs/adr/0032-queued-runs-agree-on-one-order.md.
"""

import contextlib
import fcntl
import os
import time
from typing import Any, Dict, Iterator, List, Tuple

from ..host import state
from .wire import Refused

MUTEX = "lock"
LAST = "last.json"  # the highest number so far
NAMED = ("run_id", "name", "by")
SHOWN = NAMED + ("script", "queued_at", "waits_for")
ALONE_WINDOW = 10.0  # s; others have the queue for milliseconds


def queue(arguments: Dict[str, Any], held: Dict[str, int]) -> Dict[str, Any]:
    """Take a ticket or keep it, and tell who is before us.

    `arguments`: run_id; name; by; script; queued_at: Unix time; gpu_ids; number: null for a first proposal, else the
    one that all hosts agreed on, or 0 to be before all others; join: false to look without a ticket; waits_for: hosts
    that do not answer, and without which the run cannot start. `held`: the locked tickets of this session, by run id.
    """
    folder = state.folder("queue")
    with _alone(folder):
        cancelled_by = (state.read(_path(folder, arguments["run_id"])) or {}).get("cancelled_by")
        if cancelled_by is not None:
            return {"number": None, "ahead": [], "running": [], "cancelled_by": str(cancelled_by)}
        tickets = [ticket for ticket in _tickets(folder) if ticket["run_id"] != arguments["run_id"]]
        number = _join(folder, arguments, held) if arguments["join"] else arguments["number"]
    key = (number, arguments["run_id"])
    ahead = [
        ticket
        for ticket in sorted(tickets, key=_key)
        if (number is None or _key(ticket) < key) and _conflict(ticket, arguments) and not ticket.get("waits_for")
    ]
    others = [spec for spec in _unfinished() if spec["run_id"] != arguments["run_id"] and _conflict(spec, arguments)]
    return {
        "number": number,
        "ahead": [_of(ticket, NAMED) for ticket in ahead],
        "running": [_of(spec, NAMED) for spec in others if spec["guarded"]],
        "cut_short": [_of(spec, NAMED + ("host", "hosts")) for spec in others if not spec["guarded"]],
    }


def waiting() -> List[Dict[str, Any]]:
    """The runs that wait here, the next one first. Without the mutex, so nothing is removed."""
    folder = state.folder("queue")
    paths = [os.path.join(folder, name) for name in os.listdir(folder) if name not in (MUTEX, LAST)]
    tickets = [state.read(path) for path in paths if state.is_locked(path)]
    whole = [ticket for ticket in tickets if ticket is not None and _is_whole(ticket)]
    return [_of(ticket, SHOWN + ("number",)) for ticket in sorted(whole, key=_key)]


def cancel(arguments: Dict[str, Any]) -> Dict[str, Any]:
    """Have the controller of a ticket give it back when it asks next. `arguments`: run_id; by: who wants that."""
    folder = state.folder("queue")
    path = _path(folder, arguments["run_id"])
    with _alone(folder):
        ticket = state.read(path) if state.is_locked(path) else None
        if ticket is not None:
            handle = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                _rewrite(handle, dict(ticket, cancelled_by=arguments["by"]))
            finally:
                os.close(handle)
    return {}


def leave(arguments: Dict[str, Any], held: Dict[str, int]) -> Dict[str, Any]:
    """Give the ticket of a run back."""
    folder = state.folder("queue")
    with _alone(folder):
        handle = held.pop(arguments["run_id"], None)
        if handle is not None:
            _remove(_path(folder, arguments["run_id"]))
            os.close(handle)
    return {}


def _join(folder: str, arguments: Dict[str, Any], held: Dict[str, int]) -> int:
    """The number of our ticket. A proposal is higher than all numbers so far; an agreed one is at least as high as the
    proposal, so a run that is behind a proposal is also behind the number that is agreed on later.
    """
    path = _path(folder, arguments["run_id"])
    last = int((state.read(os.path.join(folder, LAST)) or {}).get("number", 0))
    number = arguments["number"]
    if number is None:
        number = last + 1
    if number > last:
        state.replace(os.path.join(folder, LAST), {"number": number})
    ticket = {name: arguments[name] for name in SHOWN + ("gpu_ids",)}
    ticket["number"] = number
    if arguments["run_id"] not in held:
        # the lock of the old file would stay with a session that is gone but not closed yet
        _remove(path)
        state.replace(path, ticket)
        handle = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        fcntl.flock(handle, fcntl.LOCK_EX)  # a new file: nobody else has opened it
        held[arguments["run_id"]] = handle
    else:
        _rewrite(held[arguments["run_id"]], ticket)
    return int(number)


def _rewrite(handle: int, ticket: Dict[str, Any]) -> None:
    """In place, because the lock belongs to the file. Readers hold the mutex, so they see no half of it."""
    import json

    data = json.dumps(ticket).encode("ascii")
    os.pwrite(handle, data, 0)
    os.ftruncate(handle, len(data))


def _path(folder: str, run_id: str) -> str:
    if not state.RUN_ID.match(run_id):
        raise state.StateError("not a run id: %r" % run_id)
    return os.path.join(folder, "%s.json" % run_id)


def _tickets(folder: str) -> List[Dict[str, Any]]:
    """The tickets whose controllers are still there. Those of others are removed."""
    tickets = []
    for name in os.listdir(folder):
        path = os.path.join(folder, name)
        if name in (MUTEX, LAST):
            continue
        ticket = state.read(path)
        if ticket is not None and state.is_locked(path) and _is_whole(ticket):
            tickets += [ticket] if ticket.get("cancelled_by") is None else []
        elif not state.is_locked(path):
            _remove(path)  # also a half-written file of a relay that was killed
    return tickets


def _is_whole(ticket: Dict[str, Any]) -> bool:
    try:
        words = all(isinstance(ticket[name], str) for name in ("name", "by"))
        ids = isinstance(ticket["gpu_ids"], list) and isinstance(ticket["number"], int)
        # another version may not write these
        waits_for = ticket.get("waits_for", [])
        words = words and isinstance(ticket.get("script", ""), str) and isinstance(waits_for, list)
        return words and ids and bool(state.RUN_ID.match(ticket["run_id"]))
    except state.DAMAGED:
        return False


def _remove(path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)


def _unfinished() -> Iterator[Dict[str, Any]]:
    """What is known of the runs that are not over here. Without a guard, a run may wait for this host elsewhere."""
    for run_id, folder in state.runs():
        guarded = state.guarded(folder)
        if guarded or not state.is_over(folder):
            with contextlib.suppress(*state.DAMAGED):
                spec = state.read(os.path.join(folder, "spec.json")) or {}
                if not state.is_witness(spec):
                    hosts = [node["host"] for node in spec["nodes"]]
                    known = _of(spec, NAMED + ("host", "gpu_ids"))
                    yield dict(known, run_id=run_id, hosts=hosts, guarded=guarded)


def _of(record: Dict[str, Any], names: Tuple[str, ...]) -> Dict[str, Any]:
    return {name: record[name] for name in names if name in record}


def _conflict(one: Dict[str, Any], other: Dict[str, Any]) -> bool:
    """Whether two runs cannot run here at the same time: they share a GPU or the name, or both use only CPUs."""
    if one["name"] == other["name"]:
        return True
    if not one["gpu_ids"] or not other["gpu_ids"]:
        return not one["gpu_ids"] and not other["gpu_ids"]
    return bool(set(one["gpu_ids"]) & set(other["gpu_ids"]))


def _key(ticket: Dict[str, Any]) -> Any:
    return (ticket["number"], ticket["run_id"])


@contextlib.contextmanager
def _alone(folder: str) -> Iterator[None]:
    handle = os.open(os.path.join(folder, MUTEX), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    deadline = time.monotonic() + ALONE_WINDOW
    try:
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError:
                if time.monotonic() > deadline:
                    raise Refused("unknown", "the queue is locked: see %s" % os.path.join(folder, MUTEX)) from None
            time.sleep(0.01)
        yield
    finally:
        os.close(handle)
