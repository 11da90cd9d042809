"""The verbs `guard` and `recorder`: put together what each of them is made of. Each is an interpreter of its own."""

import json
import os
import resource
import socket
import sys
from typing import NoReturn

from .host import processes


def main_guard() -> int:
    """Verb `guard RUN`: become the guard, given all it needs on stdin and by inherited descriptors. RUN is for `ps`."""
    from .guard import autostart, keeper  # the relay has no use for these
    from .guard.guard import Guard
    from .guard.past import Past

    given = json.load(sys.stdin)
    warm = given.get("warm")
    if warm is None and os.fork():
        return 0  # the relay waits for this parent; the guard is not its child
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.close(null)
    umask = os.umask(0o077)  # for our files; files of the ranks get the umask of the user's login
    # each rank takes 12 descriptors of guard and recorder, so 1024 are not enough for many ranks
    descriptors, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    for handle in given["inherited"]:
        os.set_inheritable(handle, False)
    processes.set_name("ddp-guard")
    processes.prctl(processes.PR_SET_CHILD_SUBREAPER, 1)
    spec = {"umask": umask, "descriptors": descriptors, **given["spec"]}  # it has them, if the run had a guard before
    guard = Guard(
        given["folder"],
        spec,
        given["private"],
        socket.socket(fileno=given["control"]),
        {name: [socket.socket(fileno=number) for number in handles] for name, handles in given["sockets"].items()},
        given["locks"],
        Past(**given["past"]) if given["past"] else None,
    )
    if not given["past"]:
        guard.hold()
    if warm is not None:  # this process was the keeper of a preloader
        os.set_inheritable(warm["channel"], False)
        guard.take_over_preloader(socket.socket(fileno=warm["channel"]), warm["preloader"])
        with socket.socket(fileno=warm["answer"]) as answer:
            answer.send(b"guard")
    guard.run()
    is_over = guard.close()
    if is_over and autostart.is_installed(given["folder"]):
        autostart.remove(given["folder"])
    preloader = guard.preloader_to_keep()
    if preloader is not None:
        keeper.become(spec, preloader)
    os._exit(0)  # at once: a relay that waits for the end of the control channel expects the process to be gone


def main_recorder() -> NoReturn:
    """Verb `recorder RUN`: started by the guard, with all it needs on stdin and by inherited descriptors."""
    from .recorder import history, upkeep  # the relay has no use for these
    from .recorder.recorder import Recorder
    from .roles.electing import cluster_link
    from .roles.transport import Transport

    given = json.load(sys.stdin)
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.close(null)
    processes.set_name("ddp-recorder")
    guard, *listeners = [socket.socket(fileno=handle) for handle in given["sockets"]]
    for sock in (guard, *listeners):
        sock.set_inheritable(False)
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
