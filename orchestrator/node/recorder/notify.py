"""Notify users that a run has ended or restarts: post to a webhook, send mail, run a command. On the head only.

A child of the recorder does it, so that a webhook that does not answer delays neither the run nor its end. The message
names hosts, ranks and exit codes, and nothing that a rank has printed: that may contain a secret.
"""

import contextlib
import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from typing import Any, Dict, Optional, Sequence

from ..host import processes, state
from ..ranks.job import in_memory
from . import journal, wait_news
from .wait_news import WaitMessage

TRIES = 3
PAUSE = 5.0  # s between tries
ANSWER_WINDOW = 10.0  # s for the webhook to answer
COMMAND_WINDOW = 60.0  # s for the command
CONNECT_WINDOW = 5.0  # s to connect to the webhook's host, when it is only tried
RECORD = "notify.json"  # what went wrong the last time; none: nothing
LAST = "notified"  # the state that the last message has told of; a process that sends one holds its lock

WORDS = {
    "succeeded": "has succeeded",
    "failed": "failed",
    "stopped": "was stopped, to be resumed",
    "killed": "was stopped",
    "lost": "was lost",
    "waiting": "waits for hosts",
    "continues": "continues",
    "starting": "has started",
    "stalled": "prints nothing",
    "ending": "is asked for a snapshot, to be stopped before its walltime",
    "non-finite-loss": "prints a loss that is not finite (nan or inf)",
}
EVENTS = {
    "starting": "start",
    "restarting": "restart",
    "waiting": "wait",
    "continues": "wait",
    "stalled": "stall",
    "ending": "walltime",
    "non-finite-loss": "loss",
}
"""The event of a message by its state. All other states are of the end of a run."""
USUAL = ("restart", "wait", "end")  # events, if the spec of the run does not name any


def message(
    spec: Dict[str, Any],
    state: str,
    attempt: int,
    first_failure: Optional[Dict[str, Any]],
    drained: Sequence[str] = (),
    more: str = "",
) -> Dict[str, Any]:
    """The message. `state`: of EVENTS, or of a verdict. A webhook gets only `text`, see webhooks.py.

    `drained`: the hosts that were drained, if that and no failure has ended the attempt. `more`: what else people
    should know, at the end of the text.
    """
    name = spec["run_id"] if spec["name"] == spec["run_id"] else "%s (%s)" % (spec["name"], spec["run_id"])
    why = "%s %s drained" % (", ".join(drained), "was" if len(drained) == 1 else "were")
    restarts = "restarts: %s" % (why if drained else "attempt %d failed" % attempt)
    text = "ddp-orch: run %s %s" % (name, WORDS.get(state, restarts))
    if first_failure:
        text += ": %s: %s" % (first_failure["host"], first_failure["what"])
    text += "; %s" % more if more else ""
    return {
        "text": text,
        "run_id": spec["run_id"],
        "name": spec["name"],
        "state": state,
        "attempt": attempt,
        "hosts": [node["host"] for node in spec["nodes"]],
        "first_failure": {key: first_failure.get(key) for key in ("host", "rank", "what")} if first_failure else None,
    }


def advise_reviving(spec: Dict[str, Any]) -> str:
    """For a message about lost hosts that a run waits for."""
    if spec.get("autostart", "none") != "none":
        return ""
    return "; after a reboot of a host, run: ddp-orch revive %s" % spec["name"]


def is_last(message: Dict[str, Any]) -> bool:
    """Whether it tells of the end of a run."""
    return message["state"] not in EVENTS


def tell(
    program: str, targets: Dict[str, Any], message: Dict[str, Any], folder: str, takes_back: Optional[int] = None
) -> None:
    """Start a process that sends the message, and return at once. `targets`: webhook, mail, command: each text or null.

    `takes_back`: it goes only where one that the run waits, of that number or a later one, may have arrived.

    Problems go into the log of the run, whose folder this is, and into its RECORD. Not a fork: the recorder has
    threads, and its links and FIFOs must not stay open through it.
    """
    if not any(targets.get(what) for what in ("webhook", "mail", "command")):
        return
    number = wait_news.supersede(folder)
    if takes_back is None and EVENTS.get(message["state"], "end") not in targets.get("events", USUAL):
        return
    try:
        fields = {"wanted": targets, "said": message, "folder": folder, "number": number, "takes_back": takes_back}
        given = in_memory(json.dumps(fields).encode("ascii"))
        try:
            child = subprocess.Popen(processes.own_program(program, "notify"), stdin=given, start_new_session=True)
        finally:
            os.close(given)
        threading.Thread(target=child.wait, name="notify", daemon=True).start()  # or it would stay as a zombie
    except (OSError, RuntimeError):
        pass  # the ranks have used up the user's processes


def main() -> int:
    """Verb `notify`: the message and its targets are on stdin. It may outlive the recorder."""
    processes.set_name("ddp-notify")
    given = json.load(sys.stdin)
    targets, message, folder = given["wanted"], given["said"], given["folder"]
    if given.get("takes_back") is not None:
        _take_back(targets, message, folder, given["takes_back"])
    elif message["state"] == "waiting":
        _send_waiting(targets, message, folder, given["number"])
    elif is_last(message):
        _send_last(targets, message, folder)
    else:
        _record(folder, message["attempt"], send(targets, message))
    return 0


def _send_last(targets: Dict[str, Any], message: Dict[str, Any], folder: str) -> None:
    """Send the message about the end of a run, unless it has been sent: each new recorder of the head asks for it."""
    file = os.open(os.path.join(folder, LAST), os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    fcntl.flock(file, fcntl.LOCK_EX)
    if not os.fstat(file).st_size:
        _record(folder, message["attempt"], send(targets, message))
        os.write(file, message["state"].encode("ascii"))


def _send_waiting(targets: Dict[str, Any], message: Dict[str, Any], folder: str, number: int) -> None:
    with wait_news.one_at_a_time(folder), contextlib.suppress(wait_news.Outdated):
        problems = send(targets, message, waiting=WaitMessage(folder, number))
        _record(folder, message["attempt"], problems)


def _take_back(targets: Dict[str, Any], message: Dict[str, Any], folder: str, since: int) -> None:
    """Send the message where one that the run waits may have arrived. One that is still being sent comes first."""
    with wait_news.one_at_a_time(folder):
        reached = wait_news.sent_since(folder, since)
        if reached:
            _record(folder, message["attempt"], send({what: targets.get(what) for what in reached}, message))


def send(
    targets: Dict[str, Any], message: Dict[str, Any], tries: int = TRIES, waiting: Optional[WaitMessage] = None
) -> Dict[str, str]:
    """Notify all targets. Returns the problems, by `webhook`, `mail` and `command`.

    `waiting`: if the message says that the run waits. Raises Outdated if that does not apply any more.
    """
    problems: Dict[str, Optional[str]] = {}
    if targets.get("webhook"):
        problems["webhook"] = post(targets["webhook"], message["text"], tries, waiting)
    if targets.get("mail"):
        problems["mail"] = _send_mail(targets["mail"], message["text"], tries, waiting)
    if targets.get("command"):
        _look(waiting)
        problems["command"] = run(targets["command"], message)
        if waiting is not None and problems["command"] is None:
            waiting.note("command")
    return {what: why for what, why in problems.items() if why is not None}


def _look(waiting: Optional[WaitMessage], arrives_at: str = "") -> None:
    """Go on only if the message still applies. `arrives_at`: the target that is about to get it."""
    if waiting is not None:
        waiting.check()
        if arrives_at:
            waiting.note(arrives_at)


def _record(folder: str, attempt: int, problems: Dict[str, str]) -> None:
    record = os.path.join(folder, RECORD)
    lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    fcntl.flock(lock, fcntl.LOCK_EX)  # the child of an earlier attempt may still be trying
    if not problems:
        if os.path.exists(record):
            os.unlink(record)
        return
    # not the recorder's own stream, which has one writer
    log = journal.Writer(os.path.join(folder, "log"), journal.Stream(max(1, attempt), "run", "err"))
    for what, why in sorted(problems.items()):
        sys.stderr.write("notify.%s: %s\n" % (what, why))
        log.append(("ddp-orch: notify.%s failed: %s\n" % (what, why)).encode("utf-8", "backslashreplace"))
    log.close()
    state.replace(record, {"problems": problems})


def test(arguments: Dict[str, Any]) -> Dict[str, Any]:
    """Send a message now, once. `arguments`: wanted (targets, as in `tell`), said (the message). Returns `problems`."""
    return {"problems": send(arguments["wanted"], arguments["said"], tries=1)}


def look(targets: Dict[str, Any]) -> Dict[str, str]:
    """Check the targets without sending anything. Each may be null.

    `targets`: webhook (scheme host port), mail (host port; no host: by sendmail), program.
    """
    problems = {
        "webhook": _connect(**targets["webhook"]) if targets["webhook"] else None,
        "mail": _look_for_mail(**targets["mail"]) if targets.get("mail") else None,
        "command": _find(targets["program"]) if targets["program"] else None,
    }
    return {what: why for what, why in problems.items() if why is not None}


def _connect(scheme: str, host: str, port: int) -> Optional[str]:
    from urllib.parse import urlsplit
    from urllib.request import getproxies, proxy_bypass

    proxy = None if proxy_bypass(host) else getproxies().get(scheme)
    if proxy:
        place = urlsplit(proxy if "//" in proxy else "//" + proxy)
        host, port = place.hostname or host, place.port or 80
    return _reach(host, port, " (the proxy of this host)" if proxy else "")


def _reach(host: str, port: int, what: str = "") -> Optional[str]:
    try:
        socket.create_connection((host, port), CONNECT_WINDOW).close()
    except (OSError, ValueError) as error:
        return "no connection to %s:%d%s: %s" % (host, port, what, getattr(error, "strerror", None) or error)
    return None


def _look_for_mail(host: str, port: int) -> Optional[str]:
    from . import mail

    if host:
        return _reach(host, port)
    return None if mail.find_sendmail() else "sendmail: not found"


def _find(program: str) -> Optional[str]:
    """As the shell looks for it, in the home directory."""
    argv = ["/bin/sh", "-c", 'command -v "$1" < /dev/null > /dev/null 2>&1', "sh", os.path.expanduser(program)]
    status = subprocess.call(argv, cwd=os.path.expanduser("~"), timeout=COMMAND_WINDOW)
    return None if status == 0 else "%s: not found" % program


def post(webhook: str, text: str, tries: int = TRIES, waiting: Optional[WaitMessage] = None) -> Optional[str]:
    """Post a message, with retries. Returns the problem or None. The address may be a secret, and is in no text."""
    import urllib.error
    import urllib.request  # with ssl and http: not in every recorder's memory

    from . import webhook_connections, webhooks

    data, head = webhooks.encode(webhook, text)
    head = {**head, "User-Agent": "ddp-orch"}
    opener = webhook_connections.opener(lambda: _look(waiting, "webhook"))

    why = ""
    for number in range(tries):
        if number:
            time.sleep(PAUSE)
        _look(waiting)
        try:
            request = urllib.request.Request(webhook, data, head)  # noqa: S310  the inventory takes http and https only
            opener.open(request, timeout=ANSWER_WINDOW).close()
            return None
        except urllib.error.HTTPError as error:
            why = "the server answered %d" % error.code
            error.close()
        except (OSError, ValueError) as error:
            reason = getattr(error, "reason", error)
            why = str(getattr(reason, "strerror", None) or type(reason).__name__)
    return why


def _send_mail(address: str, text: str, tries: int, waiting: Optional[WaitMessage] = None) -> Optional[str]:
    from . import mail

    why: Optional[str] = None
    for number in range(tries):
        if number:
            time.sleep(PAUSE)
        _look(waiting)
        why = mail.send(address, text, lambda: _look(waiting, "mail"))
        if why is None:
            return None
    return why


def run(command: str, message: Dict[str, Any]) -> Optional[str]:
    """By `sh -c`, in the home directory, with the message as JSON on stdin. Returns the problem, if any."""
    process = subprocess.Popen(
        ["/bin/sh", "-c", command],
        stdin=subprocess.PIPE,
        stdout=2,
        stderr=2,
        cwd=os.path.expanduser("~"),
        start_new_session=True,
    )
    try:
        process.communicate(json.dumps(message).encode("ascii") + b"\n", timeout=COMMAND_WINDOW)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return "stopped after %d s" % COMMAND_WINDOW
    return "exit status %d" % process.returncode if process.returncode else None
