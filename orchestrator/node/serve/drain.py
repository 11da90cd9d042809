"""`drain`: ask the gang of a run, on its head, to continue without a host."""

import os
import time
from typing import Any, Dict

from ..host import state
from ..run import requests
from .wire import Refused

WINDOW, PAUSE = 10.0, 0.1  # s for the gang's answer, s between looks


def drain(arguments: Dict[str, Any]) -> Dict[str, Any]:
    """`arguments`: run_id, node, by. `accepted`: whether the run can continue without that node."""
    folder = state.run_folder(arguments["run_id"])
    request = {"do": "drain", "id": os.urandom(8).hex(), "node": arguments["node"], "by": arguments["by"]}
    deadline = time.monotonic() + WINDOW
    problem = "the recorder of the head does not answer"
    while time.monotonic() < deadline:
        try:
            answer = requests.ask(folder, request)
        except (requests.NoAnswer, OSError) as error:
            problem = str(error)  # a killed guard is replaced, and the next one is asked
        else:
            if "error" in answer:
                raise Refused(str(answer.get("code", "unknown")), str(answer["error"]))
            if answer["accepted"] is not None:
                return {"accepted": answer["accepted"]}
        time.sleep(PAUSE)
    raise Refused("no-guard", "run %s: %s" % (arguments["run_id"], problem))
