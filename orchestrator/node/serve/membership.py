"""`drain` and `add`: ask the gang of a run, on its head, to continue without a host or to take one more."""

import os
import time
from typing import Any, Dict

from ..guard import requests
from ..host import state
from ..link.link import elects
from .wire import Refused

MAY_COME = ". The request was withdrawn. If the head had noted it before, it is carried out when a majority is back"
WINDOW, PAUSE = 10.0, 0.1  # s for the gang's answer, s between looks


def drain(arguments: Dict[str, Any]) -> Dict[str, Any]:
    """`arguments`: run_id, node, by. `accepted`: whether the run can continue without that node.

    `elects`: whether its hosts can elect another head.
    """
    accepted = _ask(arguments["run_id"], {"do": "drain", "node": arguments["node"], "by": arguments["by"]})
    spec = state.read(os.path.join(state.run_folder(arguments["run_id"]), "spec.json")) or {}
    return {"accepted": accepted, "elects": elects(spec)}


def add(arguments: Dict[str, Any]) -> Dict[str, Any]:
    """`arguments`: run_id, host, nproc, by. `node`: the number of the host; null if the run cannot take it."""
    request = {"do": "add", **{name: arguments[name] for name in ("host", "nproc", "by")}}
    answer = _ask(arguments["run_id"], request)
    return {"node": None if answer is False else answer}


def blueprint(arguments: Dict[str, Any]) -> Dict[str, Any]:
    """What a host that is added to a run needs to know of it: the head's `spec` and `start`. `arguments`: run_id."""
    folder = state.run_folder(arguments["run_id"])
    spec = state.read(os.path.join(folder, "spec.json"))
    start = (state.read(os.path.join(folder, "state.json")) or {}).get("start")
    head = (state.read(os.path.join(folder, "gang.json")) or {}).get("head")
    if spec is not None and start is None and head == spec["node"]:  # it was elected
        start = {"link_addresses": spec["contact"]["addresses"]}
    if spec is None or start is None:
        raise Refused("no-such-run", "run %s has not been started with this host as its head" % arguments["run_id"])
    return {"spec": spec, "start": start, "raw": spec}


def _ask(run_id: str, request: Dict[str, Any]) -> Any:
    folder = state.run_folder(run_id)
    request = dict(request, id=os.urandom(8).hex())
    deadline = time.monotonic() + WINDOW
    problem = ""
    while time.monotonic() < deadline:
        try:
            answer = requests.ask(folder, request)
        except (requests.NoAnswer, OSError) as error:
            problem = str(error)  # a killed guard is replaced, and the next one is asked
        else:
            if "error" in answer:
                raise Refused(str(answer.get("code", "unknown")), str(answer["error"]))
            if answer["answer"] is not None:
                return answer["answer"]
            problem = ""
        time.sleep(PAUSE)
    if problem:
        raise Refused("no-guard", "run %s: %s" % (run_id, problem))
    return _withdraw(run_id, folder, request["id"])


def _withdraw(run_id: str, folder: str, name: str) -> Any:
    """So that nothing comes later of a request that was not decided in time. Returns its answer if it just was.

    The head may have it in its log already, if it lost its majority meanwhile. Then the next head may decide on it.
    """
    try:
        answer = requests.ask(folder, {"do": "withdraw", "id": name}).get("answer")
    except (requests.NoAnswer, OSError) as error:
        raise Refused("no-guard", "run %s: %s" % (run_id, error)) from error
    if answer is not None:
        return answer
    if not elects(state.read(os.path.join(folder, "spec.json")) or {}):
        raise Refused("no-guard", "run %s: the recorder of the head does not answer" % run_id)
    text = "run %s: the head has not decided on it within %d s, so it seems to have no majority of the hosts"
    raise Refused("no-majority", text % (run_id, WINDOW) + MAY_COME)
