"""`ticket`: what a guard on another host of the run needs and has in no file, asked of the guard here."""

from typing import Any, Dict

from ..guard import requests
from ..host import state
from .wire import Refused


def ticket(arguments: Dict[str, Any]) -> Dict[str, Any]:
    """`arguments`: run_id. The answer goes to a controller of the same user, over SSH; it is in no log."""
    folder = state.run_folder(arguments["run_id"])
    try:
        answer = requests.ask(folder, {"do": "ticket"})
    except (requests.NoAnswer, OSError) as error:
        raise Refused("no-guard", "run %s: %s" % (arguments["run_id"], error)) from error
    if "error" in answer:
        raise Refused(str(answer.get("code", "unknown")), str(answer["error"]))
    return answer
