"""The verb `resume-lead`: the part of the head. Has all servers list, plans the copies, has the servers make them.

Prints lines of JSON: `say`, a line for the log; `left`, the bytes that nodes have yet to receive; at the end `done`
with a note for the events of the run, or `failed` with the node and whether to try again.
"""

import json
import os
import secrets
import sys
import threading
import time
from typing import Any, Callable, Dict, List, Optional, TypeVar

from ..host import processes
from ..link.link import LinkClosed
from . import copies, output_tree
from .channel import Channel, Refused, connect
from .memory_leader import MemoryLeader
from .server import ENTRIES, listed

Answer = TypeVar("Answer")


class Failed(Exception):
    """The folders cannot be brought to agreement. `again`: perhaps at the next try."""

    def __init__(self, node: int, why: str, again: bool) -> None:
        super().__init__(why)
        self.node = node
        self.again = again


def _has_files(listing: copies.Listing) -> bool:
    return listing.newest > float("-inf")


class Leader:
    def __init__(self, given: Dict[str, Any], tell: Callable[..., None]) -> None:
        """`given`: key, node, mode, limit (bytes), head, source, source_host, team, nodes: host, addresses and port
        of each by number. `source` had rank 0 before `head`; null: the run begins.

        `mode` is none if only `memory` is to be brought to agreement: see MemoryLeader; null if there is none.
        `only_ring`: close the ring of memory, and nothing else.

        `tell` prints a line. Called from several threads.
        """
        self._given = given
        self._tell = tell
        self._left: Dict[int, int] = {}
        self._key = bytes.fromhex(given["key"])
        self._contacts = {int(number): contact for number, contact in given["nodes"].items()}
        self._hosts = {number: contact["host"] for number, contact in self._contacts.items()}
        self._team = list(given["team"])
        self._channels: Dict[int, Channel] = {}
        self._holders: Dict[int, int] = {}  # by node: the first node that has the same folder
        self._notes: List[str] = []

    def run(self) -> None:
        """Raises Failed."""
        self._channels = self._on_all(self._connect, list(self._contacts))
        if self._given["mode"] != "none" and not self._given["only_ring"]:
            self._agree_on_outputs()
        if self._given["memory"]:
            say = lambda text: self._tell(say=text)  # noqa: E731
            memory = MemoryLeader(self._given, self._channels, self._on_all, say, self._note_left)
            if not self._given["only_ring"]:
                memory.agree()
            memory.close_ring()

    @property
    def note(self) -> str:
        """What somebody who reads the events of the run wants to know."""
        return "; ".join(self._notes)

    def _agree_on_outputs(self) -> None:
        mode = self._given["mode"]
        self._holders = self._find_holders()
        listings = self._on_all(self._list, sorted(set(self._holders.values())))
        head = self._holders[self._given["head"]]
        source = copies.source_of(mode, listings, copies.of_rank_0(listings, head, self._before()))
        if not any(map(_has_files, listings.values())):
            self._note_no_files()
        else:
            self._note_source(source, listings[source])
        if len(listings) > 1:
            self._make_equal(listings, source)
        self._mark(source)

    def _make_equal(self, listings: Dict[int, copies.Listing], source: int) -> None:
        targets = {self._holders[number] for number in self._team}
        planned = copies.plan(self._given["mode"], listings, source, sorted(targets), self._before())
        planned = {number: each for number, each in planned.items() if not each.is_empty}
        for number, each in planned.items():
            self._check_size(number, each, listings[number].free)
        if any(each.files for each in planned.values()):
            hosts = ", ".join(self._hosts[number] for number in sorted(planned))
            total = sum(each.size for each in planned.values())
            self._tell(say="run.resume: copying %s in total to %s" % (copies.size_of(total), hosts))
        self._left = {number: each.size for number, each in planned.items()}
        self._on_all(lambda number: self._copy(number, planned[number]), list(planned))

    def _before(self) -> Optional[int]:
        """Whose folder the host of rank 0 in the attempt before has; None: the run begins. -1: it is not there."""
        before = self._given["source"]
        return None if before is None else self._holders.get(before, -1)

    def _note_no_files(self) -> None:
        """In the first attempt of a run, that is as it should be."""
        before = self._before()
        if before == -1:  # it may have files, so this says nothing against the script
            self._note(
                "%s, where rank 0 ran, does not answer, and no other host has files: the ranks begin without a "
                "snapshot. run.resume copies files only before an attempt, and only those in $DDP_ORCH_OUTPUT_DIR"
                % self._given["source_host"]
            )
        elif before is not None:
            self._note(
                "run.resume: no host has a file in its output folder, so nothing is copied. It copies only what is "
                "saved in $DDP_ORCH_OUTPUT_DIR"
            )

    def _note_source(self, source: int, listing: copies.Listing) -> None:
        """Where the files come from, if they are not those that the host of rank 0 in the attempt before has."""
        before, here = self._before(), self._hosts[source]
        is_shared = len(set(self._holders.values())) < len(self._holders)  # perhaps with a host that is not there, too
        files = "the ranks get the files of %s" % ("the others" if self._given["mode"] == "union" else here)
        age = "the newest %s old" % copies.age_of(time.time() - listing.newest / 1e9)
        if before is None and self._given["mode"] == "head" and source != self._holders[self._given["head"]]:
            head = self._hosts[self._given["head"]]
            why = "as %s has none" % head if listing.leads is None else "where rank 0 ran last"
            self._note("%s, %s, %s" % (files, why, age))
        elif before == -1 and not is_shared:
            self._note("%s, where rank 0 ran, does not answer: %s, %s" % (self._given["source_host"], files, age))

    def _note(self, what: str) -> None:
        self._notes.append(what)
        self._tell(say=what)

    def _mark(self, source: int) -> None:
        """From now on, only the head will have what rank 0 saves. The others of the team have what all shall have.

        With newest and union, what the host of rank 0 in the attempt before has was there to be chosen.
        """
        head = self._holders[self._given["head"]]
        self._on_all(lambda number: self._ask(number, do="mark", leads=True), [head])
        others = {source, *(self._holders[number] for number in self._team)}
        if self._given["mode"] != "head":
            others |= {before for before in [self._before()] if before in self._channels}
        self._on_all(lambda number: self._ask(number, do="mark", leads=False), sorted(others - {head}))

    # the steps

    def _connect(self, number: int) -> Channel:
        contact = self._contacts[number]
        return connect(contact["addresses"], contact["port"], self._key, self._given["node"], number)

    def _find_holders(self) -> Dict[int, int]:
        """On a shared disk, several nodes have the same folder. The team comes first, with the head."""
        numbers = self._team + [number for number in sorted(self._channels) if number not in self._team]
        tokens = {number: secrets.token_hex(16) for number in numbers}
        self._on_all(lambda number: self._ask(number, do="leave token", token=tokens[number]), numbers)
        pairs = list(tokens.items())
        seen = self._on_all(lambda number: self._ask(number, do="see tokens", tokens=pairs)["seen"], numbers)
        self._on_all(lambda number: self._ask(number, do="remove token", token=tokens[number]), numbers)
        return {number: next((other for other in numbers if other in seen[number]), number) for number in seen}

    def _list(self, number: int) -> copies.Listing:
        entries, end = listed(self._channels[number])
        return copies.Listing(tuple(entries), end["incomplete"], end["free"], end["leads"])

    def _check_size(self, number: int, planned: copies.Copies, free: int) -> None:
        host, size = self._hosts[number], copies.size_of
        if planned.size > self._given["limit"]:
            what = "%s: run.resume: %s are to be copied there, and run.resume_limit is %s"
            raise Failed(number, what % (host, size(planned.size), size(self._given["limit"])), again=False)
        if planned.files and planned.space + copies.RESERVE > free:
            what = "%s: run.resume: the copies need %s, and the disk of the output folder has %s free%s"
            kept = "; what rank 0 saved there is kept beside them" if planned.keep and planned.aside else ""
            raise Failed(number, what % (host, size(planned.space + copies.RESERVE), size(free), kept), again=False)

    def _copy(self, number: int, planned: copies.Copies) -> None:
        begun, channel = time.monotonic(), self._channels[number]
        kept = os.path.join(output_tree.KEPT, time.strftime("%Y-%m-%dT%H-%M-%S"))
        files = [
            {"from": source, "files": entries[begin : begin + ENTRIES]}
            for source, entries in planned.files.items()
            for begin in range(0, len(entries), ENTRIES)
        ]
        channel.send(
            do="copy",
            aside=planned.aside,
            into=kept if planned.keep else output_tree.REPLACED,
            folders=planned.folders,
            links=planned.links,
            sources={source: self._contacts[source] for source in planned.files},
            messages=len(files),
        )
        for message in files:
            channel.send(**message)
        while True:
            answer = channel.receive()
            if isinstance(answer, dict) and "error" in answer:
                what = "%s: run.resume: %s" % (self._hosts[number], answer["error"])
                raise Failed(number, what, answer.get("again", False))
            if isinstance(answer, dict):
                self._note_left(number, 0 if "done" in answer else planned.size - answer["received"])
                if "done" in answer:
                    break
        if planned.files:
            seconds = time.monotonic() - begun
            self._tell(say="%s: %s in %.1f s" % (self._hosts[number], copies.summary(planned, self._hosts), seconds))
        self._note_aside(number, planned, kept)

    def _note_aside(self, number: int, planned: copies.Copies, kept: str) -> None:
        host, files = self._hosts[number], copies.files_of(len(planned.aside))
        if planned.aside and planned.keep:
            what = (
                "%s: %s that rank 0 saved there moved to %s in the output folder: the ranks resume from other files. "
                "To resume from these again: docs/resume.md, After the head was lost"
            )
            self._note(what % (host, files, kept))
        elif planned.emptied:
            more = ", ..." if len(planned.emptied) > 1 else ""
            what = "%s: %s%s moved to .ddp-orch.replaced in the output folder: the file that replaces it is empty"
            self._note(what % (host, planned.emptied[0], more))
        elif planned.aside:
            what = "%s: %s moved to .ddp-orch.replaced: not in the folder of the other hosts"
            self._tell(say=what % (host, files))

    def _note_left(self, number: int, count: int) -> None:
        self._left[number] = count
        self._tell(left=self._left)

    def _ask(self, number: int, **request: Any) -> Dict[str, Any]:
        return self._channels[number].ask(**request)

    def _on_all(self, step: Callable[[int], Answer], numbers: List[int]) -> Dict[int, Answer]:
        """Take a step with all nodes at the same time. Raises Failed for a node of the team; leaves out others."""
        answers: Dict[int, Answer] = {}
        failures: Dict[int, Failed] = {}

        def take(number: int) -> None:
            try:
                answers[number] = step(number)
            except Failed as failed:
                failures[number] = failed
            except (LinkClosed, Refused, OSError) as error:
                key = "run.memory_limit" if self._given["mode"] == "none" else "run.resume"
                what = "%s: %s: %s" % (self._hosts[number], key, error)
                failures[number] = Failed(number, what, again=not isinstance(error, Refused))

        threads = [threading.Thread(target=take, args=(number,)) for number in numbers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for number in self._team:
            if number in failures:
                raise failures[number]
        return answers


def main() -> int:
    """`given` as of Leader, and `parent`: the recorder's pid."""
    given = json.load(sys.stdin)
    processes.die_with_parent(given["parent"])
    processes.set_name("ddp-resume")
    lock = threading.Lock()

    def tell(**message: Any) -> None:
        with lock:
            print(json.dumps(message), flush=True)

    leader = Leader(given, tell)
    try:
        leader.run()
    except Failed as failed:
        tell(failed=str(failed), node=failed.node, again=failed.again)
    else:
        tell(done=True, note=leader.note)
    os._exit(0)
