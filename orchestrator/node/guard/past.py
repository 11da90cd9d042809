"""What a new guard has to know of a run that has begun already on this host."""

import os
from typing import Any, Dict, List, NamedTuple, Optional

from ..host import state


class Past(NamedTuple):
    attempt: int  # the newest; 0: none yet
    outcome: Optional[Dict[str, Any]]  # of that attempt
    failures: List[Dict[str, Any]]  # of all attempts
    place: Dict[str, Optional[int]]  # node_rank and first_rank in that attempt
    start: Optional[Dict[str, Any]]  # on the head: what the run was committed with
    waiting: bool  # as a spare
    finish: Optional[Dict[str, Any]]  # who wants the run to save a snapshot and stop
    team_requests: List[Dict[str, Any]]  # on the head: those that the gang has not decided
    restarted: bool  # the host was restarted, or guard and recorder were killed: nothing is left of the attempt
    begun: int = 0  # with `restarted`: the newest attempt before that, which is never started again


def first_place(spec: Dict[str, Any]) -> Dict[str, Optional[int]]:
    """This node's place in the first attempt. A spare and a witness have none."""
    before = spec["nodes"][: spec["node"]]
    if spec["nodes"][spec["node"]]["spare"] or state.is_witness(spec):
        return {"node_rank": None, "first_rank": None}
    return {"node_rank": len(before), "first_rank": sum(node["nproc"] for node in before)}


def after_restart(folder: str) -> Past:
    """What is known after a restart of the host, or when guard and recorder were killed."""
    record = state.read(os.path.join(folder, "state.json")) or {}
    place = {name: record.get(name) for name in ("node_rank", "first_rank")}
    return Past(
        0,
        None,
        record.get("failures", []),
        place,
        record.get("start"),
        waiting=False,
        finish=None,
        team_requests=[],
        restarted=True,
        begun=record.get("attempt", 0),
    )


def after_kill(folder: str, status: Dict[str, Any], failure: Dict[str, Any], left: List[Dict[str, Any]]) -> Past:
    """What is known when the guard was killed. `status`: its last. `left`: processes that cannot be ended.

    Its attempt has failed, if it was running.
    """
    record = state.read(os.path.join(folder, "state.json")) or {}
    attempt = status["attempt"]
    earlier = [known for known in record.get("failures", []) if known["attempt"] != attempt]
    exited = status["outcome"]
    more = [] if exited or not attempt else [failure]
    outcome: Dict[str, Any] = {
        "ok": bool(exited and exited["ok"]),
        "stopped": None,
        "statuses": {},
        "unkillable": left,
        "ended": [],
    }
    return Past(
        attempt,
        outcome if attempt else None,
        earlier + status["failures"] + more,
        {name: record.get(name) for name in ("node_rank", "first_rank")},
        status["start"],
        status["waiting"],
        status["finish"],
        status["team_requests"],
        restarted=False,
    )
