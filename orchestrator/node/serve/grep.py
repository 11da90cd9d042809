"""`attach` with a regular expression, in a separate process: some expressions would take years.

Python cannot interrupt a search, and no other thread runs meanwhile. So the relay starts this process, passes on its
frames, and kills it when it has been silent for too long.
"""

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
from typing import Any, Callable, Dict

from ..host import processes
from . import wire

PATIENCE = 30.0  # s without a frame: it reports how far it has come, or that there is nothing new, more often
NICE = 10  # a search must not take the processor from the training

Emit = Callable[[Dict[str, Any], bytes], None]


def follow(arguments: Dict[str, Any], program: str, emit: Emit) -> Dict[str, Any]:
    """As `follow.follow`, of which it is the other process's. Raises Refused where that ends without an answer."""
    argv = processes.own_program(program, "grep", str(os.getpid()))
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdin is not None and child.stdout is not None
        try:
            with contextlib.suppress(BrokenPipeError), child.stdin as given:
                given.write(json.dumps(arguments).encode("ascii"))
            return _pass_on(child.stdout.fileno(), arguments["grep"], emit)
        finally:
            child.kill()


def _pass_on(source: int, pattern: str, emit: Emit) -> Dict[str, Any]:
    """Emit the frames of the other process. Returns its answer."""
    decoder = wire.Decoder()
    while select.select([source], [], [], PATIENCE)[0]:
        data = os.read(source, 1 << 18)
        if not data:
            raise wire.Refused(
                "unknown", "the search for %r ended without an answer: was its process killed?" % pattern
            )
        for frame in decoder.feed(data):
            if frame.kind == wire.RESULT:
                return frame.header
            emit(frame.header, frame.payload)
    raise wire.Refused(
        "unknown", "the search for %r took more than %.0f s for a few lines; use a simpler one" % (pattern, PATIENCE)
    )


def main(parent: int) -> int:
    """Verb `grep PARENT`: follow a journal as the arguments on stdin ask for, to stdout."""
    from . import follow as reading

    processes.die_with_parent(parent, signal.SIGKILL)
    processes.set_name("ddp-grep")
    os.nice(NICE)
    arguments = json.load(sys.stdin)

    def emit(header: Dict[str, Any], payload: bytes) -> None:
        _write(wire.Frame(wire.DATA, header, payload))

    _write(wire.Frame(wire.RESULT, reading.follow(arguments, emit)))
    return 0


def _write(frame: wire.Frame) -> None:
    data = memoryview(wire.encode(frame))
    while data:
        data = data[os.write(1, data) :]
