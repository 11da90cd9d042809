"""`probe`: gather the facts of this host, quickly: in parallel, and without importing torch."""

import errno
import json
import os
import socket
import subprocess
import tempfile
import threading
import time
from typing import Any, Callable, Dict, List

from ..guard import autostart
from ..host import crontab, init_process, ledger, login_session
from ..host.run_command import answers_of
from ..ranks import job
from ..recorder import notify
from . import container_probe, dns, facts, gpus, led_last
from .runs import LEDGER_MOST

PYTHON_WINDOW = 60.0  # s for `setup` and the python to answer: module systems and network file systems can be slow
LOGIN_WINDOW = 10.0  # s for systemd
MARKER = "ddp-orch-facts:"


def look(arguments: Dict[str, Any]) -> Dict[str, Any]:
    """`arguments`: setup, python, env, workdir, script, gpus ("none" spares the question), ports, paths, names,
    notify (of the head), autostart (of the run, or null), container (in which the python is; or null), keep: look for
    ended runs to remove (or null), and run_name: look where rank 0 of the earlier runs of that name ran (or null).
    """
    answers: Dict[str, Any] = {}
    bugs: List[BaseException] = []

    def ask(name: str, question: Callable[[], Any]) -> None:
        try:
            answers[name] = question()
        except BaseException as error:  # noqa: BLE001  raised below: the relay shows it
            bugs.append(error)

    own = socket.gethostname()
    questions: Dict[str, Callable[[], Any]] = {
        "python": lambda: _python(arguments, answers),
        "lazy_init": init_process.lazy_init,
        "names": lambda: dns.look([own] + arguments["names"], arguments["addresses"]),
    }
    if arguments["autostart"]:
        questions["autostart"] = lambda: autostart.why_unusable(arguments["autostart"])
    if arguments["autostart"] == "cron":
        questions["cron_runs"] = crontab.daemon_runs
    if arguments["notify"]:
        questions["notify"] = lambda: notify.look(arguments["notify"])
    if arguments["keep"]:
        from . import retire  # `check` does not need it

        questions["finished"] = lambda: retire.look(arguments["keep"])
    if arguments["run_name"] is not None:
        questions["led_last"] = lambda: led_last.look(arguments["run_name"])
    if arguments["gpus"] != "none":
        questions["nvidia"] = gpus.look
    threads = [threading.Thread(target=ask, args=item, daemon=True) for item in questions.items()]
    for thread in threads:
        thread.start()
    here = facts.gather(arguments)
    for thread in threads:
        thread.join()
    if bugs:
        raise bugs[0]
    nvidia = answers.get("nvidia") or {"gpus": [], "driver": None, "cuda": None, "error": None, "xids": []}
    return {
        **here,
        "machine": os.uname().machine,
        "uid": os.geteuid(),
        "cores": len(os.sched_getaffinity(0)),
        "clock": time.time(),
        "gpus": nvidia.pop("gpus"),
        "nvidia": nvidia,
        "python": answers["python"],
        "names": answers["names"],
        "notify": answers.get("notify", {}),
        "autostart": answers.get("autostart"),
        "cron_runs": answers.get("cron_runs"),
        "container": answers.get("container"),
        "ledger": ledger.newest(LEDGER_MOST),
        "finished": answers.get("finished"),
        "led_last": answers.get("led_last"),
        "lazy_init": answers["lazy_init"],
        "login": answers_of({"login": login_session.look}, LOGIN_WINDOW).get("login"),
    }


def _python(arguments: Dict[str, Any], answers: Dict[str, Any]) -> Dict[str, Any]:
    """What `probe_python.py` finds in the host's python after its setup; `error` and `code` when it does not answer.

    With a container, in the python of its image; then `answers` gets what is known of the engine.
    """
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "probe_python.py"), encoding="utf-8") as file:
        program = file.read()
    request = {"script": arguments["script"], "workdir": arguments["workdir"], "marker": MARKER}
    # a file: argv has a limit, and setup may read stdin
    with tempfile.TemporaryDirectory() as folder:
        question = os.path.join(folder, "question.json")
        with open(question, "w", encoding="ascii") as file:
            json.dump(request, file)
        argv, environment = [arguments["python"], "-c", program, question], arguments["env"]
        if arguments.get("container"):
            answers["container"] = container_probe.look(arguments["container"], question)
            if answers["container"]["error"]:
                return _unanswered(answers["container"]["error"], answers["container"]["code"])
            arguments = dict(arguments, container=dict(arguments["container"], engine=answers["container"]["engine"]))
            argv, environment = container_probe.python_argv(arguments, question, argv)
        if arguments["setup"]:
            argv = job.through_setup(arguments["setup"], argv)
        return _answer(argv, environment, arguments)


def _answer(argv: List[str], environment: Dict[str, str], arguments: Dict[str, Any]) -> Dict[str, Any]:
    try:
        answer = subprocess.run(
            argv,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            timeout=PYTHON_WINDOW,
            check=False,
            env={**os.environ, **environment},
        )
    except FileNotFoundError:
        return _unanswered("%s not found; PATH=%s" % (argv[0], os.environ.get("PATH", "")))
    except OSError as error:
        code = "cpu-arch-mismatch" if error.errno == errno.ENOEXEC else "remote-env-differs"
        return _unanswered("%s: %s" % (argv[0], error.strerror), code)
    except subprocess.TimeoutExpired:
        return _unanswered("setup and %s did not answer within %d s" % (arguments["python"], PYTHON_WINDOW))
    text = answer.stdout.decode("utf-8", "replace")
    if answer.returncode == 0 and MARKER in text:
        result: Dict[str, Any] = json.loads(text.rpartition(MARKER)[2].splitlines()[0])
        return result
    errors = answer.stderr.decode("utf-8", "backslashreplace").strip().splitlines()
    what = errors[-1] if errors else "no output"
    if answer.returncode == job.SETUP_FAILED and what.startswith(job.SETUP_SAYS):
        before = ": " + errors[-2] if len(errors) > 1 else ""
        return _unanswered(what[len("ddp-orch: ") :] + before)
    if arguments.get("container"):
        return _unanswered(*container_probe.explain(arguments["container"], what))
    code = "cpu-arch-mismatch" if answer.returncode == 126 and "format error" in what else "remote-env-differs"
    if answer.returncode == 127:
        what = "not found after setup: %s" % what
    who = "setup, then " + arguments["python"] if arguments["setup"] else argv[0]
    return _unanswered("%s ended with status %d: %s" % (who, answer.returncode, what), code)


def _unanswered(text: str, code: str = "remote-env-differs") -> Dict[str, Any]:
    return {"error": text, "code": code}
