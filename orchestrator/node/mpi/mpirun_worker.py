"""On all hosts but the head: run the commands with which mpirun starts its daemon, until mpirun has ended.

Nobody logs in for it: the daemon is a process of the run like all others, so the guard of this host ends it.
"""

import os
import select
import subprocess
import time
from typing import Any, Dict, List

from ..link.link import Link, LinkClosed, dial
from .place import Place, environment

RETRY = 0.2  # s between tries to reach the head
JOIN_WINDOW = 600.0  # s until the head must be reached: its `setup` may take long
LOOK = 0.2  # s between looks whether a command has ended


def run(place: Place, key: bytes) -> int:
    """Returns the exit status of mpirun. Raises LinkClosed when the head is lost."""
    link = _join(place, key)
    link.send({"hello": {"address": place.local_addr, "ranks": place.ranks}})
    commands: Dict[int, subprocess.Popen[bytes]] = {}
    variables = environment(place)
    poll = select.poll()
    poll.register(link.fileno(), select.POLLIN)
    while True:
        for message in link.receive() if poll.poll(LOOK * 1000) else []:
            if "over" in message:
                return int(message["over"])
            _start(message, commands, variables, link)
        for number, command in list(commands.items()):
            if command.poll() is not None:
                link.send({"ended": number, "status": command.returncode})
                del commands[number]


def _start(message: Dict[str, Any], commands: "Dict[int, Any]", variables: Dict[str, str], link: Link) -> None:
    number = int(message["start"])
    home = os.path.expanduser("~")
    argv: List[str] = ["/bin/sh", "-c", str(message["command"])]
    try:
        commands[number] = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, env=variables, cwd=home if os.path.isdir(home) else "/"
        )
    except OSError:
        link.send({"ended": number, "status": 126})


def _join(place: Place, key: bytes) -> Link:
    """The connection to the head, which listens once its agent has started."""
    deadline = time.monotonic() + JOIN_WINDOW
    while True:
        try:
            return _connect(place, key)
        except LinkClosed:
            if time.monotonic() > deadline:
                raise
            time.sleep(RETRY)


def _connect(place: Place, key: bytes) -> Link:
    link = dial(place.master_addr, place.master_port, key, place.node_rank, 0)
    poll = select.poll()
    try:
        while not link.ready:
            poll.register(link.fileno(), select.POLLIN | (select.POLLOUT if link.wants_write() else 0))
            if not poll.poll(5000):
                raise LinkClosed("no answer")
            link.flush()
            link.read()
    except LinkClosed:
        link.close()
        raise
    return link
