"""The server of this node's output folder (`run.resume`) and memory: a process, which other nodes fetch files from.

It lives from the head's request until the next one. Nothing here blocks.
"""

import json
import os
import subprocess
from typing import Any, Dict, List, Optional, Tuple

from ..host import memory_folder, processes, state
from ..link.peers import RecorderApi

Contact = Dict[str, Any]  # as messages.output_server wants it


class LineProcess:
    """A verb of the node program that gets JSON on stdin and prints lines of JSON."""

    def __init__(self, program: str, verb: str, given: Dict[str, Any]) -> None:
        """Raises OSError."""
        argv, pipe = processes.own_program(program, verb), subprocess.PIPE
        self._process = subprocess.Popen(argv, stdin=pipe, stdout=pipe, cwd="/")
        assert self._process.stdin is not None and self._process.stdout is not None
        self.stdout = self._process.stdout.fileno()
        os.set_blocking(self.stdout, False)
        self._buffer = b""
        try:
            self._process.stdin.write(json.dumps(dict(given, parent=os.getpid())).encode("ascii"))
            self._process.stdin.close()
        except OSError:
            pass  # it has died; the end of its output follows

    def read(self) -> Optional[List[Dict[str, Any]]]:
        """What it has printed since. None: it has ended."""
        try:
            data = os.read(self.stdout, 1 << 16)
        except BlockingIOError:
            return []
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        return [json.loads(line) for line in lines] if data else None

    def kill(self) -> None:
        self._process.kill()

    def has_ended(self) -> bool:
        if self._process.poll() is None:
            return False
        if self._process.stdout is not None:
            self._process.stdout.close()
        return True


class OutputServer:
    def __init__(self, recorder: RecorderApi) -> None:
        self._recorder = recorder
        self._process: Optional[LineProcess] = None
        self._ending: List[LineProcess] = []
        self._number = 0
        self._next: Optional[Tuple[int, List[str]]] = None

    def serve(self, number: int, addresses: List[str]) -> None:
        """Have a server that listens on these addresses, under this number, in place of the last one. 0: have none."""
        self._next = (number, addresses) if number else None
        if self._process is not None:
            self._process.kill()
            self._ending.append(self._process)
            self._process = None

    def advance(self) -> List[Contact]:
        """Start the server that was asked for, once no other one can write any more."""
        self._ending = [process for process in self._ending if not process.has_ended()]
        if self._next is None or self._ending:
            return []
        (self._number, addresses), self._next = self._next, None
        spec = self._recorder.spec
        root = state.output_folder(self._recorder.folder, spec)
        given: Dict[str, Any] = {"node": spec["node"], "root": root, "ports": spec["ports"], "addresses": addresses}
        memory = {"root": memory_folder.path(spec), "limit": spec.get("memory_limit")}
        given["memory"] = memory if memory_folder.is_wanted(spec) else None
        try:
            key = self._recorder.key.hex()
            self._process = LineProcess(spec["program"], "resume-serve", dict(given, key=key))
        except OSError as error:
            return [self._contact({"error": "cannot start a process: %s" % error})]
        return []

    def pipes(self) -> List[int]:
        """Also of a server that is ending: its end is what the next one waits for."""
        known = self._ending + ([self._process] if self._process is not None else [])
        return [process.stdout for process in known]

    def on_readable(self) -> List[Contact]:
        """Where the server listens, as soon as it does."""
        lines = self._process.read() if self._process is not None else []
        if lines is None:
            self.serve(0, [])
        for line in lines or []:
            if "say" in line:
                self._recorder.say(line["say"])
        return [self._contact(line) for line in lines or [] if "say" not in line] + self.advance()

    def _contact(self, fields: Dict[str, Any]) -> Contact:
        return {"addresses": [], "port": None, "error": "", **fields, "number": self._number}
