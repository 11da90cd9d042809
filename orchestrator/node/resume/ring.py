"""Snapshots in memory, the part of one host: answers the leader, and copies what the host before it in the ring saves.

The ring is the hosts of an attempt in the order of their node ranks. Each has a thread here that asks the one before it
for its newest snapshot, and keeps two of them. So a host that is lost takes no snapshot with it.
"""

import os
import threading
import time
from typing import Any, Callable, Dict, List, Optional

from ..link.link import LinkClosed
from . import output_tree, parts
from .channel import Channel, Refused, connect
from .copies import size_of
from .memory_tree import MemoryTree
from .parts import Label, Saved

LOOK_EVERY = 0.1  # s between looks for a new snapshot
ANSWER_AFTER = 2.0  # s until the answer is that there is none
RETRY = 1.0  # s
PROGRESS_EVERY = 1.0  # s
SETTLE = 1.0  # s in which a host may save the same snapshot itself
NICE = 10  # of the threads that copy while ranks run
GENERATIONS = 2  # copies that are kept


class Memory:
    """Answers requests. `say` writes a line for the log."""

    def __init__(self, root: str, limit: int, key: bytes, node: int, say: Callable[[str], None]) -> None:
        self.tree = MemoryTree(root, node)
        self._limit = limit
        self._key = key
        self._node = node
        self._say = say
        self._follower: Optional[Follower] = None
        self._adopted: Optional[str] = None

    def answer(self, channel: Channel, request: Dict[str, Any]) -> None:
        """Raises OSError, LinkClosed, Refused, KeyError, TypeError or ValueError."""
        kind = request["do"]
        if kind == "list memory":
            channel.send(memory=[parts.encode(saved) for saved in self.tree.all()])
        elif kind == "assemble":
            self._stop_following()  # it would remove what may be needed
            try:
                self._assemble(channel, request)
            except (LinkClosed, Refused) as error:
                channel.send(error=str(error), again=True)
            else:
                channel.send(done=True)
        elif kind == "adopt":
            self._stop_following()
            self._adopted = request["name"]
            label = request["label"]
            self.tree.adopt(Label(label["attempt"], label["node_rank"], tuple(label["layout"])), self._adopted)
            channel.send()
        elif kind == "follow":
            self._stop_following()
            self._follower = Follower(self, request["source"])
            self._follower.start()
            channel.send()
        elif kind == "newest":
            self._send_newest(channel, request["known"])

    def _stop_following(self) -> None:
        if self._follower is not None:
            self._follower.stopped.set()
            self._follower = None

    def _assemble(self, channel: Channel, request: Dict[str, Any]) -> None:
        needed = [(int(node), parts.decode(saved)) for node, saved in request["parts"]]
        sources = {int(node): contact for node, contact in request["sources"].items()}
        channels: Dict[int, Channel] = {}
        received, reported_at = 0, time.monotonic()

        def on_piece(size: int) -> None:
            nonlocal received, reported_at
            received += size
            if time.monotonic() > reported_at + PROGRESS_EVERY:
                reported_at = time.monotonic()
                channel.send(received=received)

        def fetch(node: int, path: str, size: int, file: output_tree.IncomingFile) -> None:
            if node not in channels:
                channels[node] = self.connect(sources[node], node)
            receive(channels[node], path, size, file, on_piece)

        try:
            self.tree.assemble(request["name"], needed, fetch)
        finally:
            for each in channels.values():
                each.close()

    def connect(self, contact: Dict[str, Any], node: int) -> Channel:
        return connect(contact["addresses"], contact["port"], self._key, self._node, node)

    def _send_newest(self, channel: Channel, known: Optional[List[Any]]) -> None:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICE)  # of this connection's thread
        deadline = time.monotonic() + ANSWER_AFTER
        while True:
            newest = self.tree.newest()
            if newest is not None and identity(newest) != known:
                return channel.send(newest=parts.encode(newest))
            if time.monotonic() > deadline:
                return channel.send(newest=None)
            time.sleep(LOOK_EVERY)

    def saves_itself(self) -> bool:
        """Whether the ranks of this host have saved something in this attempt."""
        return any(saved.name != self._adopted for saved in self.tree.saved())

    def copy(self, channel: Channel, source: Dict[str, Any], saved: Saved, on_piece: Callable[[int], None]) -> None:
        self.tree.trim_copies(GENERATIONS - 1)
        used = sum(each.size for each in self.tree.all())
        if used + saved.size > self._limit:
            what = (
                "run.memory_limit: no copy of the snapshots of %s here: %s are used, a copy needs %s, the limit is %s"
            )
            raise TooLarge(what % (source["host"], size_of(used), size_of(saved.size), size_of(self._limit)))
        self.tree.add_copy(
            source["node"], saved, lambda _, path, size, file: receive(channel, path, size, file, on_piece)
        )

    def say(self, text: str) -> None:
        self._say(text)


class TooLarge(Exception):
    """The copy would exceed run.memory_limit."""


class Follower(threading.Thread):
    """Copies the snapshots of one host, until `stopped`."""

    def __init__(self, memory: Memory, source: Dict[str, Any]) -> None:
        """`source`: node, host, addresses and port of its server."""
        super().__init__(daemon=True)
        self._memory = memory
        self._source = source
        self._known: Optional[List[Any]] = None  # identity of the newest that was looked at
        self._said = ""
        self.stopped = threading.Event()

    def run(self) -> None:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICE)
        while not self.stopped.is_set():
            try:
                channel = self._memory.connect(self._source, self._source["node"])
                try:
                    while not self.stopped.is_set():
                        self._look(channel)
                finally:
                    channel.close()
            except TooLarge as error:
                self._say(str(error))
            except (LinkClosed, Refused, OSError, KeyError, TypeError, ValueError):
                pass  # a host that is lost, or a snapshot that its script has removed meanwhile
            self.stopped.wait(RETRY)

    def _look(self, channel: Channel) -> None:
        answer = channel.ask(do="newest", known=self._known)
        if answer["newest"] is None or self.stopped.is_set():
            return
        newest = parts.decode(answer["newest"])
        if not newest.is_sharded and self._known is None:
            self.stopped.wait(SETTLE)
        self._known = identity(newest)
        if newest.is_sharded or not self._memory.saves_itself():
            self._memory.copy(channel, self._source, newest, self._on_piece)

    def _on_piece(self, _: int) -> None:
        if self.stopped.is_set():
            raise LinkClosed("another host is followed now")

    def _say(self, text: str) -> None:
        if text != self._said:
            self._said = text
            self._memory.say(text)


def identity(saved: Saved) -> List[Any]:
    return [saved.label.attempt, saved.name]


def receive(
    channel: Channel, path: str, size: int, file: output_tree.IncomingFile, on_piece: Callable[[int], None]
) -> None:
    """Receive a file of another host's memory. Raises LinkClosed, Refused, OSError, and what `on_piece` raises."""
    if channel.ask(do="send memory", path=path)["size"] != size:
        raise Refused("%s has changed meanwhile" % path)
    while True:
        message = channel.receive()
        if isinstance(message, dict):
            break
        offset, data = message
        if offset + len(data) > size:
            raise Refused("%s has changed meanwhile" % path)
        file.write(offset, data)
        on_piece(len(data))
    if "error" in message:
        raise Refused(message["error"])
