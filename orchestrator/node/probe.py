"""`probe`: the facts a launch needs of this host, quickly: nothing here imports torch."""

import json
import os
import pwd
import shutil
import subprocess
import time
from typing import Any, Dict, List

from . import job, state

PYTHON_WINDOW = 60.0  # s for `setup` and the python to answer: module systems and network file systems can be slow
MARKER = "ddp-orch-facts:"

# Runs in the user's python, inside the host's setup. find_spec does not import torch, which would cost seconds.
ASK_PYTHON = (
    """
import importlib.util, json, os, re, sys
spec = importlib.util.find_spec("torch")
torch = None
if spec is not None and spec.submodule_search_locations:
    try:
        text = open(os.path.join(list(spec.submodule_search_locations)[0], "version.py")).read()
        torch = re.search(r"__version__ = '([^']+)'", text).group(1)
    except Exception:
        torch = "unknown"
print("\\n%s" + json.dumps({"executable": sys.executable, "python": list(sys.version_info[:3]), "torch": torch}))
"""
    % MARKER
)


def facts(arguments: Dict[str, Any]) -> Dict[str, Any]:
    """`arguments`: setup, python, workdir, gpus ("none" spares the question)."""
    return {
        "system": os.uname().sysname,
        "machine": os.uname().machine,
        "kernel": os.uname().release,
        "user": pwd.getpwuid(os.geteuid()).pw_name if _known(os.geteuid()) else str(os.geteuid()),
        "cores": len(os.sched_getaffinity(0)),
        "host_id": state.host_id(),
        "clock": time.time(),
        "workdir": os.path.isdir(arguments["workdir"]) if arguments["workdir"] else None,
        "gpus": [] if arguments["gpus"] == "none" else _gpus(),
        "python": _python(arguments["setup"], arguments["python"]),
    }


def _known(uid: int) -> bool:
    try:
        pwd.getpwuid(uid)
    except KeyError:
        return False
    return True


def _gpus() -> List[Dict[str, Any]]:
    """As `nvidia-smi` lists them; none where there is no driver."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    query = [program, "--query-gpu=index,uuid,name,memory.total", "--format=csv,noheader,nounits"]
    try:
        answer = subprocess.run(
            query, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL, timeout=30, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return []
    gpus = []
    for line in answer.stdout.decode("utf-8", "replace").splitlines():
        fields = [field.strip() for field in line.split(",")]
        if answer.returncode == 0 and len(fields) == 4 and fields[0].isdigit():
            gpus.append(
                {
                    "index": int(fields[0]),
                    "uuid": fields[1],
                    "name": fields[2],
                    "memory_mib": int(fields[3]) if fields[3].isdigit() else None,
                }
            )
    return gpus


def _python(setup: List[str], python: str) -> Dict[str, Any]:
    argv = [python, "-c", ASK_PYTHON]
    if setup:
        argv = job.through_setup(setup, argv)
    try:
        answer = subprocess.run(
            argv,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            timeout=PYTHON_WINDOW,
            check=False,
        )
    except FileNotFoundError:
        return {"error": "%s not found; PATH=%s" % (argv[0], os.environ.get("PATH", "")), "code": "remote-env-differs"}
    except OSError as error:
        return {"error": "%s: %s" % (argv[0], error), "code": "remote-env-differs"}
    except subprocess.TimeoutExpired:
        return {
            "error": "setup and %s did not answer within %d s" % (python, PYTHON_WINDOW),
            "code": "remote-env-differs",
        }
    text = answer.stdout.decode("utf-8", "replace")
    if answer.returncode == 0 and MARKER in text:
        found: Dict[str, Any] = json.loads(text.rpartition(MARKER)[2].splitlines()[0])
        return found
    said = answer.stderr.decode("utf-8", "backslashreplace").strip().splitlines()
    what = said[-1] if said else "no output"
    if answer.returncode == 127:
        what = "not found after setup: %s" % what
    return {
        "error": "%s ended with status %d: %s"
        % (" ".join(argv[:1]) if not setup else "setup, then " + python, answer.returncode, what),
        "code": "remote-env-differs",
    }
