"""The verb `remote-command`: what mpirun starts in place of ssh. Passes its words to the agent on the head.

    remote-command FOLDER [OPTION ...] HOST WORD ...

As with ssh, the words are joined to one line for the shell of the host, and the exit status is that of the line.
"""

import json
import os
import socket
import sys
from typing import Any, List

SOCKET = "commands"


def connect(folder: str, server: bool = False) -> socket.socket:
    """The Unix socket in `folder`. Its path may be longer than the 107 bytes that an address can have."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        end = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        address = "/proc/self/fd/%d/%s" % (handle, SOCKET)
        if server:
            if os.path.lexists(address):
                os.unlink(address)
            end.bind(address)
            end.listen(1024)
        else:
            end.connect(address)
        return end
    finally:
        os.close(handle)


def main(arguments: List[str]) -> int:
    folder, *words = arguments
    while words and words[0].startswith("-"):  # such as -x, for ssh
        words.pop(0)
    if len(words) < 2:
        sys.stderr.write("ddp-orch: mpirun: expected a host and a command, got %s\n" % " ".join(arguments))
        return 2
    try:
        with connect(folder) as sock:
            request = {"host": words[0], "command": " ".join(words[1:])}
            sock.sendall(json.dumps(request).encode("ascii") + b"\n")
            with sock.makefile("rb") as answers:
                answer: Any = json.loads(answers.readline() or b"{}")
    except OSError as error:
        sys.stderr.write("ddp-orch: mpirun: the agent of the run does not answer: %s\n" % error)
        return 255
    if answer.get("error"):
        sys.stderr.write("ddp-orch: mpirun: %s\n" % answer["error"])
    return int(answer.get("status", 255))
