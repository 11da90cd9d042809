"""The command that calls a function of the user in a rank, instead of a script. Pure.

`orchestrator.run(train, (0.1,))` starts it: `up --call train:train -- train.py '{"args": [0.1], "kwargs": {}}'`.
"""

from __future__ import annotations

import re
from pathlib import PurePath

from ..errors import UsageError

FOLDER = "returned"
"""In the output folder: what the functions returned, as `RUN_ID/rank-N.json`."""

CALL = """
import importlib, json, os, sys

script, name, arguments = sys.argv[1:4]
module, _, function = name.partition(":")
folder = os.path.abspath(script)
for _ in range(module.count(".") + 1 + (os.path.basename(script) == "__init__.py")):
    folder = os.path.dirname(folder)
sys.path[:] = [folder] + [path for path in sys.path if path]
sys.argv = [script]
target = importlib.import_module(module)
for part in function.split("."):
    target = getattr(target, part)
arguments = json.loads(arguments)
value = target(*arguments["args"], **arguments["kwargs"])

def number(value):
    if getattr(value, "ndim", None) == 0:  # of torch or numpy
        return value.item()
    raise TypeError(
        "%s() returned a value of type %s, which is not JSON: return numbers, text, lists and dicts, and save the rest "
        "to $DDP_ORCH_OUTPUT_DIR" % (function, type(value).__name__)
    )

result = {
    "attempt": int(os.environ["DDP_ORCH_ATTEMPT"]),
    "rank": int(os.environ["RANK"]),
    "value": value,
}
text = json.dumps(result, default=number)
folder = os.path.join(os.environ["DDP_ORCH_OUTPUT_DIR"], "FOLDER", os.environ["DDP_ORCH_RUN_ID"])
os.makedirs(folder, exist_ok=True)
path = os.path.join(folder, "rank-%d.json" % result["rank"])
with open(path + ".new", "w") as file:
    file.write(text)
os.replace(path + ".new", path)
""".replace('"FOLDER"', repr(FOLDER))
"""Runs on the hosts, with Python 3.8 or newer."""

_NAME = re.compile(r"[^:\s]+:[^:\s]+")


def package_depth(script: str, function: str) -> int:
    """In how many packages the script is."""
    return function.partition(":")[0].count(".") + (PurePath(script).name == "__init__.py")


def make(command: tuple[str, ...], function: str) -> tuple[str, ...]:
    """Turn `-u SCRIPT ARGUMENTS`, the arguments of Python for a script, into those that call a function of it.

    `function`: `MODULE:FUNCTION`. The module is the script; the folder above its packages is put on sys.path.
    ARGUMENTS is a JSON object with `args` and `kwargs`. Raises UsageError.
    """
    if not _NAME.fullmatch(function) or command[:1] != ("-u",) or len(command) != 3 or command[1].startswith("-"):
        raise UsageError("--call MODULE:FUNCTION needs a Python file and one JSON object after --")
    _, script, arguments = command
    return ("-u", "-c", CALL, script, function, arguments)
