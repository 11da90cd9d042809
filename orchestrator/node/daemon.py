"""The guard, its recorder, and the keeper of a preloader: what they are made of, and how one becomes the other.

The recorder is a fork of the guard, and a keeper that is asked for its preloader becomes the guard of the next run. So
both have all modules already: to import them again took 80 ms each on every host, before the first line of a run.
"""

import contextlib
import gc
import json
import os
import resource
import signal
import socket
import sys
import traceback
from typing import Any, Dict, NoReturn

from .guard import autostart, keeper
from .guard.child import HANDLED
from .guard.guard import Guard
from .guard.past import Past
from .host import processes
from .preload.memory import Title
from .recorder import history, upkeep
from .recorder.recorder import Recorder
from .roles.electing import cluster_link
from .roles.transport import Transport


def main_guard() -> int:
    """Verb `guard RUN`: become the guard, given all it needs on stdin and by inherited descriptors. RUN is for `ps`."""
    given = json.load(sys.stdin)
    if os.fork():
        return 0  # the relay waits for this parent; the guard is not its child
    _forget_stdin()
    processes.set_name("ddp-guard")
    _guard(given)


def main_keeper() -> NoReturn:
    """Verb `keeper RUN`: keep the preloader of that run until the next one. RUN is for `ps`."""
    given = json.load(sys.stdin)
    _forget_stdin()
    keeper.keep(given, _guard_of_next_run)


def _guard_of_next_run(given: Dict[str, Any]) -> NoReturn:
    _show_as("guard", given["spec"])
    _guard(given)


def _guard(given: Dict[str, Any]) -> NoReturn:
    gc.freeze()  # else a collection would copy the pages that the recorder shares
    umask = os.umask(0o077)  # for our files; files of the ranks get the umask of the user's login
    # each rank takes 12 descriptors of guard and recorder, so 1024 are not enough for many ranks
    descriptors, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    for handle in given["inherited"]:
        os.set_inheritable(handle, False)
    processes.prctl(processes.PR_SET_CHILD_SUBREAPER, 1)
    spec = {"umask": umask, "descriptors": descriptors, **given["spec"]}  # it has them, if the run had a guard before
    guard = Guard(
        given["folder"],
        spec,
        given["private"],
        socket.socket(fileno=given["control"]),
        {name: [socket.socket(fileno=number) for number in handles] for name, handles in given["sockets"].items()},
        given["locks"],
        _recorder,
        Past(**given["past"]) if given["past"] else None,
    )
    if not given["past"]:
        guard.hold()
    warm = given.get("warm")
    if warm is not None:  # this process was the keeper of a preloader
        os.set_inheritable(warm["channel"], False)
        guard.take_over_preloader(socket.socket(fileno=warm["channel"]), warm["preloader"])
        with socket.socket(fileno=warm["answer"]) as answer:
            answer.send(b"guard")
    guard.run()
    is_over = guard.close()
    if is_over and spec["autostart"] != "none":  # the record has gone with the folder of a run that was aborted
        autostart.remove(given["folder"])
    preloader = guard.preloader_to_keep()
    if preloader is not None:
        keeper.become(spec, preloader)
    os._exit(0)  # at once: a relay that waits for the end of the control channel expects the process to be gone


def _recorder(given: Dict[str, Any]) -> NoReturn:
    """Make the recorder of a fork of the guard. The frames of the guard stay, so none of its objects is finalized."""
    try:
        signal.set_wakeup_fd(-1)
        for number in HANDLED:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, HANDLED)
        processes.close_all_but(given["sockets"])
        _show_as("recorder", given["spec"])
        guard, *listeners = [socket.socket(fileno=handle) for handle in given["sockets"]]
        history.History(given["folder"]).start()
        upkeep.start(given["folder"], given["spec"])
        Recorder(
            given["folder"],
            given["spec"],
            given["private"],
            guard,
            given["guard_pid"],
            lambda recorder: cluster_link(recorder, Transport(recorder, listeners)),
        ).run()
        os._exit(0)  # without waiting for the thread of the history
    except Exception:  # noqa: BLE001  as the interpreter would
        traceback.print_exc()
    finally:  # never back into the frames of the guard
        os._exit(1)


def _forget_stdin() -> None:
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.close(null)


def _show_as(verb: str, spec: Dict[str, Any]) -> None:
    """What `ps` shows of this process: as if it had been started with this verb."""
    # without -I -S: there is no more room than for the arguments with which it was started
    words = (sys.executable, spec["program"], verb, spec["run_id"])
    with contextlib.suppress(OSError):
        Title().write([os.fsencode(word) for word in words], ("ddp-" + verb).encode("ascii"))
