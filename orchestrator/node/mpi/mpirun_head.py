"""On the head: wait for the agents of the other hosts, start mpirun, and pass its commands to them."""

import json
import os
import select
import shutil
import socket
import subprocess
import sys
from typing import Any, Dict, List, NamedTuple, Optional

from ..host import network
from ..link.acceptor import Acceptor
from ..link.link import Link, LinkClosed
from . import implementations, remote_command
from .implementations import Slots
from .place import Place, environment, write_script

MPIRUN = "DDP_ORCH_MPIRUN"  # the variable of the user with the mpirun to start
LOOK = 0.1  # s between looks whether mpirun has ended
MOST_REQUEST = 1024 * 1024  # bytes of a command


class Asked(NamedTuple):
    """A command of mpirun that runs on another host."""

    client: socket.socket
    link: Link


def run(place: Place, key: bytes) -> int:
    """Returns the exit status of mpirun. Raises OSError, LinkClosed."""
    variables = environment(place)
    name = os.environ.get(MPIRUN) or "mpirun"
    mpirun = shutil.which(name, path=variables["PATH"])
    if mpirun is None:
        advice = "install Open MPI or MPICH on all hosts, load its module in `setup`, or set %s" % MPIRUN
        raise OSError("%s is not on the PATH of %s; %s" % (name, os.uname().nodename, advice))
    start = implementations.hydra if implementations.is_hydra(mpirun) else implementations.open_mpi
    workers = _gather(place, key)
    agent = write_script(place, "remote-command", [*place.program, "remote-command", place.folder])
    hosts = [Slots(place.local_addr, place.ranks), *(workers[node].slots for node in sorted(workers))]
    argv, own = start(mpirun, place, hosts, os.path.join(place.folder, "hostfile"), agent)
    with remote_command.connect(place.folder, server=True) as listener:
        listener.setblocking(False)
        process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, env={**variables, **own})
        return _Switchboard(listener, list(workers.values())).serve(process)


class _Worker(NamedTuple):
    link: Link
    slots: Slots


def _gather(place: Place, key: bytes) -> "Dict[int, _Worker]":
    """The other hosts, by node rank. How long it may take is up to them: each gives up by itself.

    The port is that of the ranks' rendezvous: they can listen on it once this has returned.
    """
    found: Dict[int, _Worker] = {}
    if place.nnodes == 1:
        return found
    listeners = network.listen_on([place.master_addr], [place.master_port])
    acceptor = Acceptor(listeners, key, 0)
    greeting: Dict[int, Link] = {}  # by descriptor
    try:
        while len(found) < place.nnodes - 1:
            poll = select.poll()
            for listener in listeners:
                poll.register(listener, select.POLLIN)
            for each in (*acceptor.links(), *greeting.values()):
                poll.register(each.fileno(), select.POLLIN | (select.POLLOUT if each.wants_write() else 0))
            for handle, _ in poll.poll(1000):
                link = greeting.get(handle)
                messages: List[Dict[str, Any]] = []
                if link is not None:
                    link.flush()
                    messages = link.receive()
                elif acceptor.owns(handle):
                    accepted = acceptor.on_readable(handle)
                    if accepted is not None:
                        link, messages = accepted
                        greeting[link.fileno()] = link
                for message in messages:
                    if link is not None and "hello" in message:
                        hello = message["hello"]
                        slots = Slots(str(hello["address"]), int(hello["ranks"]))
                        found[int(link.peer or 0)] = _Worker(link, slots)
            acceptor.expire()
    finally:
        for listener in listeners:
            listener.close()
    return found


class _Switchboard:
    """Passes commands to the hosts, and their exit statuses back."""

    def __init__(self, listener: socket.socket, workers: List[_Worker]) -> None:
        self._listener = listener
        self._links = {worker.slots.address: worker.link for worker in workers}
        self._asked: Dict[int, Asked] = {}
        self._clients: Dict[int, bytes] = {}  # what each has sent, by descriptor
        self._sockets: Dict[int, socket.socket] = {}
        self._number = 0

    def serve(self, process: "subprocess.Popen[bytes]") -> int:
        while process.poll() is None:
            poll = select.poll()
            poll.register(self._listener, select.POLLIN)
            for link in self._links.values():
                poll.register(link.fileno(), select.POLLIN | (select.POLLOUT if link.wants_write() else 0))
            for handle in self._sockets:
                poll.register(handle, select.POLLIN)
            for handle, _ in poll.poll(LOOK * 1000):
                self._on_readable(handle)
        status = process.returncode
        for link in self._links.values():
            link.send({"over": 128 - status if status < 0 else status})
        return 128 - status if status < 0 else status

    def _on_readable(self, handle: int) -> None:
        if handle == self._listener.fileno():
            try:
                client = self._listener.accept()[0]
            except OSError:
                return
            self._sockets[client.fileno()], self._clients[client.fileno()] = client, b""
        elif handle in self._sockets:
            self._read_request(self._sockets[handle])
        else:
            address = next(address for address, link in self._links.items() if link.fileno() == handle)
            self._read_link(address)

    def _read_link(self, address: str) -> None:
        link = self._links[address]
        try:
            link.flush()
            messages = link.receive()
        except LinkClosed as error:
            sys.stderr.write("ddp-orch: mpirun: lost the agent on %s: %s\n" % (address, error))
            del self._links[address]
            for number in [number for number, asked in self._asked.items() if asked.link is link]:
                self._answer(self._asked.pop(number).client, 255, "%s is lost" % address)
            return
        for message in messages:
            asked = self._asked.pop(int(message.get("ended", -1)), None)
            if asked is not None:
                self._answer(asked.client, int(message["status"]))

    def _read_request(self, client: socket.socket) -> None:
        handle = client.fileno()
        data = client.recv(65536)
        self._clients[handle] += data
        if b"\n" not in self._clients[handle]:
            if not data or len(self._clients[handle]) > MOST_REQUEST:
                del self._sockets[handle], self._clients[handle]
                client.close()
            return
        request = json.loads(self._clients.pop(handle))
        del self._sockets[handle]
        self._pass_on(client, str(request["host"]), str(request["command"]))

    def _pass_on(self, client: socket.socket, host: str, command: str) -> None:
        link: Optional[Link] = self._links.get(host)
        if link is None:
            known = ", ".join(self._links) or "none"
            self._answer(client, 255, "%s is no other host of the run (%s)" % (host, known))
            return
        self._number += 1
        self._asked[self._number] = Asked(client, link)
        link.send({"start": self._number, "command": command})

    @staticmethod
    def _answer(client: socket.socket, status: int, error: str = "") -> None:
        answer = {"status": 128 - status if status < 0 else status, "error": error}
        try:
            client.sendall(json.dumps(answer).encode("ascii") + b"\n")
        except OSError:
            pass  # mpirun has ended it
        client.close()
