"""What a host can be asked for, and the type of each answer. No IO.

A host may be broken, or in hostile hands. Its answers are data of other people until they are decoded, which a session
does as they come in: then every key is there and of its type, and no name, id, state or time holds anything but what
such a thing is made of. What is text by nature (a command line, a host's own words) is tamed where it is shown.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from ..answers.attach import Attached, Live, Pieces
from ..answers.decode import MalformedAnswer, decode
from ..answers.ends import Aborted, Ending, LeftoversEnding
from ..answers.evidence import Evidence, Paths
from ..answers.facts import Clock, Facts
from ..answers.files import FileData, Nothing, OutputFolders, Outputs, Pruned, RemovedOutputs
from ..answers.network import DialReport, Listening
from ..answers.prepare import NotifyProblems, PreparedHead, PreparedNode
from ..answers.recorded import Record, Sample
from ..answers.runs import RunList

A = TypeVar("A")
D = TypeVar("D")


@dataclass(frozen=True)
class Operation(Generic[A]):
    """Something that a host can be asked to do, and the type of its answer."""

    name: str
    answer: type[A]

    def decode(self, result: Any) -> A:
        """Raises MalformedAnswer."""
        return decode(self.answer, result, self.name)


@dataclass(frozen=True)
class Streaming(Operation[A], Generic[A, D]):
    """One that gives data before its answer."""

    decode_data: Callable[[Mapping[str, Any], bytes], D]
    """What the header of a DATA frame says. Raises MalformedAnswer."""


def _decode_pieces(header: Mapping[str, Any], payload: bytes) -> Pieces | Live:
    if "live" in header:
        return decode(Live, header, "attach")
    data = decode(Pieces, header, "attach")
    if any(min(part[:3]) < 0 or part[0] >= len(data.streams) for part in data.parts):
        raise MalformedAnswer("attach.parts: not [stream, offset, length, time]")
    if sum(part[2] for part in data.parts) != len(payload):
        raise MalformedAnswer("attach.parts: not as long as what came")
    return data


def _decode_file_data(header: Mapping[str, Any], _: bytes) -> FileData:
    return decode(FileData, header, "send")


CLOCK = Operation("clock", Clock)
# before a run
PROBE = Operation("probe", Facts)
LISTEN = Operation("listen", Listening)
DIAL = Operation("dial", DialReport)
UNPACK = Operation("unpack", Nothing)
PREPARE_HEAD = Operation("prepare", PreparedHead)
PREPARE_NODE = Operation("prepare", PreparedNode)
START = Operation("start", Nothing)
ABORT = Operation("abort", Aborted)
# of runs
LIST = Operation("list", RunList)
ATTACH = Streaming("attach", Attached, _decode_pieces)
SAMPLE = Operation("sample", Sample)
RECORD = Operation("record", Record)
EVIDENCE = Operation("evidence", Evidence)
PATHS = Operation("paths", Paths)
OUTPUTS = Operation("outputs", Outputs)
SEND = Streaming("send", Nothing, _decode_file_data)
FETCHED = Operation("fetched", Nothing)
STOP = Operation("stop", Ending)
FORCE = Operation("force", Ending)
STALE = Operation("stale", LeftoversEnding)
# of what runs have left
PRUNE = Operation("prune", Pruned)
OUTPUT_FOLDERS = Operation("output_folders", OutputFolders)
REMOVE_OUTPUTS = Operation("remove_outputs", RemovedOutputs)
NOTIFY = Operation("notify", NotifyProblems)
