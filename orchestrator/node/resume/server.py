"""The verb `resume-serve`: the part of one host in bringing output folders to agreement.

It listens on a port of its own, for the leader and for the servers of other hosts. It ends with its recorder.
"""

import json
import os
import queue
import socket
import stat
import sys
import threading
import time
from typing import Any, Dict, List, Tuple

from ..host import network, processes
from ..link.link import Link, LinkClosed
from . import output_tree
from .channel import Channel, Piece, Refused, connect
from .copies import Entry
from .ring import Memory

MOST_CONNECTIONS = 1024
STREAMS = 4  # files that a host fetches at the same time
ENTRIES = 1000  # in one message
PROGRESS_EVERY = 1.0  # s


class Server:
    def __init__(self, given: Dict[str, Any]) -> None:
        """`given`: key, node, root (the output folder), ports, addresses, memory: root and limit, or null."""
        self._key = bytes.fromhex(given["key"])
        self._node = given["node"]
        self._root = given["root"]
        low, high = given["ports"]
        self._listeners = network.listen_on(given["addresses"], network.random_ports(low, high))
        self._changes = threading.Lock()  # who has it may change the folder
        memory = given["memory"]
        self._memory = Memory(memory["root"], memory["limit"], self._key, self._node, _say) if memory else None

    def contact(self) -> Dict[str, Any]:
        names = [listener.getsockname() for listener in self._listeners]
        return {"addresses": [name[0] for name in names], "port": names[0][1]}

    def run(self) -> None:
        """Until the process is killed."""
        threads = [threading.Thread(target=self._accept, args=(listener,)) for listener in self._listeners]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                time.sleep(0.1)  # no descriptor is free
                continue
            if threading.active_count() > MOST_CONNECTIONS:
                connection.close()
            else:
                threading.Thread(target=self._serve, args=(connection,)).start()

    def _serve(self, connection: socket.socket) -> None:
        try:
            channel = Channel(Link(connection, self._key, self._node))
            while True:
                request = channel.receive()
                if not isinstance(request, dict):
                    return
                try:
                    self._answer(channel, request)
                except OSError as error:
                    channel.send(error=_text(error))
        except (LinkClosed, KeyError, TypeError, ValueError):
            return  # it has gone, or an honest process of ours does not send this
        finally:
            connection.close()

    def _answer(self, channel: Channel, request: Dict[str, Any]) -> None:
        kind = request["do"]
        if kind == "leave token":
            output_tree.leave_token(self._root, request["token"])
            channel.send()
        elif kind == "see tokens":
            channel.send(seen=[node for node, token in request["tokens"] if output_tree.sees_token(self._root, token)])
        elif kind == "remove token":
            output_tree.remove_token(self._root, request["token"])
            channel.send()
        elif kind == "list":
            self._list(channel)
        elif kind == "mark":
            output_tree.mark_leads(self._root, request["leads"])
            channel.send()
        elif kind == "send":
            self._send(channel, self._root, request["path"])
        elif kind == "send memory" and self._memory is not None:
            self._send(channel, self._memory.tree.root, request["path"])
        elif kind == "copy":
            with self._changes:
                self._copy(channel, request)
        elif self._memory is not None:
            self._memory.answer(channel, request)

    def _list(self, channel: Channel) -> None:
        entries = output_tree.listing(self._root)
        for begin in range(0, len(entries), ENTRIES):
            channel.send(entries=entries[begin : begin + ENTRIES])
        root = self._root
        incomplete, leads = output_tree.is_incomplete(root), output_tree.leads(root)
        channel.send(free=output_tree.free(root), incomplete=incomplete, leads=leads)

    def _send(self, channel: Channel, root: str, path: str) -> None:
        handle = output_tree.open_file(root, path)
        try:
            status = os.fstat(handle)
            if not stat.S_ISREG(status.st_mode):
                raise OSError(0, "no longer a file", path)
            channel.send(size=status.st_size, mtime=status.st_mtime_ns)
            for offset, data in output_tree.pieces(handle, status.st_size):
                channel.send_piece(offset, data)
            channel.send(end=True)
        finally:
            os.close(handle)

    def _copy(self, channel: Channel, request: Dict[str, Any]) -> None:
        """Do what copies.Copies says. `sources`: addresses, port and number of files by node; the files follow."""
        files: "queue.Queue[Tuple[int, Entry]]" = queue.Queue()
        for _ in range(request["messages"]):
            message = channel.answer()
            for fields in message["files"]:
                files.put((message["from"], Entry(*fields)))
        incoming = output_tree.Incoming(self._root)
        incoming.move_aside(request["aside"], request["into"])
        for fields in request["folders"]:
            incoming.make_folder(Entry(*fields))
        for fields in request["links"]:
            incoming.make_link(Entry(*fields))
        sources = {int(node): contact for node, contact in request["sources"].items()}
        fetchers = [Fetcher(self._key, self._node, sources, files, incoming) for _ in range(STREAMS)]
        for fetcher in fetchers:
            fetcher.start()
        for fetcher in fetchers:
            while fetcher.is_alive():
                fetcher.join(PROGRESS_EVERY)
                channel.send(received=sum(each.received for each in fetchers))
        errors = [fetcher.error for fetcher in fetchers if fetcher.error]
        if errors:
            channel.send(error=errors[0], again=all(fetcher.again for fetcher in fetchers if fetcher.error))
            return
        incoming.finish()
        channel.send(done=True)


class Fetcher(threading.Thread):
    """Fetches one file after the other from a queue. `again`: whether the error may be gone at the next try."""

    def __init__(
        self,
        key: bytes,
        node: int,
        sources: Dict[int, Dict[str, Any]],
        files: "queue.Queue[Tuple[int, Entry]]",
        incoming: output_tree.Incoming,
    ) -> None:
        super().__init__()
        self._key = key
        self._node = node
        self._sources = sources
        self._files = files
        self._incoming = incoming
        self._channels: Dict[int, Channel] = {}
        self.received = 0  # bytes
        self.error = ""
        self.again = False

    def run(self) -> None:
        try:
            while True:
                try:
                    source, entry = self._files.get_nowait()
                except queue.Empty:
                    return
                self._fetch(source, entry)
        except LinkClosed as error:
            self.error, self.again = "the connection to %s broke: %s" % (self._sources[source]["host"], error), True
        except Refused as error:
            self.error, self.again = "%s: %s" % (self._sources[source]["host"], error), True
        except OSError as error:
            self.error = _text(error)
        finally:
            if self.error:
                _empty(self._files)  # the others have nothing to do any more
            for channel in self._channels.values():
                channel.close()

    def _fetch(self, source: int, entry: Entry) -> None:
        contact = self._sources[source]
        if source not in self._channels:
            self._channels[source] = connect(contact["addresses"], contact["port"], self._key, self._node, source)
        channel = self._channels[source]
        answer = channel.ask(do="send", path=entry.path)
        if (answer["size"], answer["mtime"]) != (entry.size, entry.mtime):
            raise Refused("%s has changed meanwhile" % entry.path)
        file = self._incoming.begin_file(threading.get_ident())
        try:
            while True:
                message = channel.receive()
                if isinstance(message, dict):
                    break
                self._write(file, message, entry)
            if "error" in message:
                raise Refused(message["error"])
            file.finish(entry)
        finally:
            file.close()

    def _write(self, file: output_tree.IncomingFile, piece: Piece, entry: Entry) -> None:
        offset, data = piece
        if offset + len(data) > entry.size:
            raise Refused("%s has changed meanwhile" % entry.path)
        file.write(offset, data)
        self.received += len(data)


def _empty(files: "queue.Queue[Tuple[int, Entry]]") -> None:
    try:
        while True:
            files.get_nowait()
    except queue.Empty:
        pass


def _say(text: str) -> None:
    """Write a line for the log."""
    print(json.dumps({"say": text}), flush=True)


def _text(error: OSError) -> str:
    name = error.filename if isinstance(error.filename, str) else ""
    return "%s%s" % (name + ": " if name else "", error.strerror or error)


def main() -> int:
    """`given` as of Server, and `parent`: the recorder's pid. Prints the contact of the server, a line of JSON."""
    given = json.load(sys.stdin)
    processes.die_with_parent(given["parent"])
    processes.set_name("ddp-resume")
    os.umask(0o077)
    try:
        server = Server(given)
        contact: Dict[str, Any] = server.contact()
    except OSError as error:
        contact = {"error": "no free port in %d-%d: %s" % (*given["ports"], _text(error))}
    print(json.dumps(contact), flush=True)
    if "error" not in contact:
        server.run()
    return 0


def listed(channel: Channel) -> Tuple[List[Entry], Dict[str, Any]]:
    """What a server answers to `list`: for the leader."""
    channel.send(do="list")
    entries: List[Entry] = []
    while True:
        message = channel.answer()
        if "entries" not in message:
            return entries, message
        entries += [Entry(*fields) for fields in message["entries"]]
