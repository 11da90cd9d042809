"""Tell somebody that a run has ended or is started again: post to a webhook, run a command. On the head alone.

A child of the recorder does it, so that a webhook that does not answer holds up neither the run nor its end. What is
sent names hosts, ranks and exit codes and nothing that a rank has printed: there may be a secret in that.
"""

import json
import os
import signal
import subprocess
import sys
import time
from typing import Any, Dict, NoReturn, Optional

from . import processes

TRIES = 3
PAUSE = 5.0  # s between tries
ANSWER_WINDOW = 10.0  # s for the webhook to answer
COMMAND_WINDOW = 60.0  # s for the command

WORDS = {"succeeded": "has succeeded", "failed": "has failed", "killed": "has been stopped", "lost": "has been lost"}


def message(spec: Dict[str, Any], state: str, attempt: int, first_failure: Optional[Dict[str, Any]]) -> Dict[str, Any]:
    """What is told. `state`: `restarting`, or as a verdict has it. A webhook gets `text` alone, as Slack wants it."""
    name = spec["run_id"] if spec["name"] == spec["run_id"] else "%s (%s)" % (spec["name"], spec["run_id"])
    text = "ddp-orch: run %s %s" % (name, WORDS.get(state, "is started again: attempt %d has failed" % attempt))
    if first_failure:
        text += ": %s: %s" % (first_failure["host"], first_failure["what"])
    return {
        "text": text,
        "run_id": spec["run_id"],
        "name": spec["name"],
        "state": state,
        "attempt": attempt,
        "hosts": [node["host"] for node in spec["nodes"]],
        "first_failure": {key: first_failure.get(key) for key in ("host", "rank", "what")} if first_failure else None,
    }


def tell(wanted: Dict[str, Any], said: Dict[str, Any]) -> None:
    """Start a child that does it, and come back at once. `wanted`: webhook and command, each text or null."""
    if not wanted.get("webhook") and not wanted.get("command"):
        return
    try:
        pid = os.fork()
    except OSError:
        return  # the ranks have used up the user's processes
    if pid == 0:
        _child(wanted, said)
    os.waitpid(pid, 0)


def _child(wanted: Dict[str, Any], said: Dict[str, Any]) -> NoReturn:
    code = 70
    try:
        if os.fork() == 0:  # nobody waits for us
            os.setsid()
            processes.set_name("ddp-notify")
            _close_all()
            if wanted.get("webhook"):
                post(wanted["webhook"], {"text": said["text"]})
            if wanted.get("command"):
                run(wanted["command"], said)
        code = 0
    except BaseException:  # noqa: BLE001  the last resort: a fork must never return into the recorder's code
        import traceback

        traceback.print_exc()
        sys.stderr.flush()
    os._exit(code)


def _close_all() -> None:
    """The recorder's links and FIFOs must not stay open through us."""
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2:
            try:
                os.close(int(name))
            except OSError:
                pass  # the listing's own


def post(webhook: str, body: Dict[str, Any]) -> None:
    """Post JSON; again when it was not taken. The address may be a secret: it is in no message of ours."""
    data = json.dumps(body).encode("ascii")
    head = {"Content-Type": "application/json", "User-Agent": "ddp-orch"}
    import urllib.request  # with ssl and http: not in every recorder's memory

    request = urllib.request.Request(webhook, data, head)  # noqa: S310  the inventory takes http and https only
    for number in range(TRIES):
        try:
            urllib.request.urlopen(request, timeout=ANSWER_WINDOW).close()  # noqa: S310
            return
        except (OSError, ValueError) as error:
            sys.stderr.write("notify.webhook: %s\n" % getattr(error, "reason", type(error).__name__))
        if number + 1 < TRIES:
            time.sleep(PAUSE)


def run(command: str, said: Dict[str, Any]) -> None:
    """By `sh -c`, in the home directory, with the message as JSON on stdin."""
    process = subprocess.Popen(
        ["/bin/sh", "-c", command],
        stdin=subprocess.PIPE,
        stdout=2,
        stderr=2,
        cwd=os.path.expanduser("~"),
        start_new_session=True,
    )
    try:
        process.communicate(json.dumps(said).encode("ascii") + b"\n", timeout=COMMAND_WINDOW)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        sys.stderr.write("notify.command: ended after %d s\n" % COMMAND_WINDOW)
    if process.returncode:
        sys.stderr.write("notify.command: exit status %d\n" % process.returncode)
