"""The program by which the python of a host becomes a program of the host. Pure."""

from __future__ import annotations

from collections.abc import Sequence

RUN_PROGRAM = """
import os, sys

def tell_when_ready(url, command):
    import http.client, time, urllib.parse
    began, place = time.monotonic(), urllib.parse.urlsplit(url)
    while True:
        try:
            os.kill(command, 0)
        except OSError:
            return
        connection = http.client.HTTPConnection(place.hostname, place.port, timeout=5)
        try:
            connection.request("GET", (place.path or "/") + ("?" + place.query if place.query else ""))
            if connection.getresponse().status < 400:
                text = "ddp-orch: ready after %d s: %s\\n" % (time.monotonic() - began, url)
                return os.write(1, text.encode())
        except (OSError, http.client.HTTPException):
            pass
        finally:
            connection.close()
        time.sleep(1)

url = os.environ.pop("DDP_ORCH_READY", "")
if url:
    command = os.getpid()
    child = os.fork()
    if child == 0:
        if os.fork() == 0:  # no child of the command, which need not expect one
            tell_when_ready(url, command)
        os._exit(0)
    os.waitpid(child, 0)
folder, path = os.path.dirname(sys.executable), os.environ.get("PATH", os.defpath)
venv = any(os.path.exists(os.path.join(folder, "..", name)) for name in ("pyvenv.cfg", "conda-meta"))
os.environ["PATH"] = folder + ":" + path if venv else path + ":" + folder
try:
    os.execvp(sys.argv[1], sys.argv[1:])
except OSError as error:
    sys.exit("ddp-orch: cannot start %s: %s; PATH=%s" % (sys.argv[1], error.strerror, os.environ["PATH"]))
"""
"""Runs a command with the programs of its python's environment on the PATH. If DDP_ORCH_READY is a URL, another process
prints a line once it answers.
"""

_LAST = "os.execvp(sys.argv[1], sys.argv[1:])"  # of RUN_PROGRAM in all versions


def without_program(command: Sequence[str]) -> Sequence[str]:
    """The command that the user gave, for a command of a plan that may begin with RUN_PROGRAM."""
    return command[4:] if len(command) > 4 and _LAST in command[3] else command
