"""Ask all hosts of a plan for their facts, and send them the code: what comes before the checks of a launch."""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Iterator, Sequence
from typing import BinaryIO

from ..answers.operation import Arguments
from ..answers.prepare import UNPACK
from ..errors import UsageError
from ..hosts.fleet import Fleet, Results
from ..hosts.session import Session
from ..inventory.model import Host
from ..output.console import size
from ..plan.plan import Node, Plan
from ..plan.snapshot import Snapshot
from ..ui.progress import NoProgress
from . import probe as preflight
from .probe import Probed
from .timing import Timing

CHUNK = 256 * 1024  # bytes sent at a time


def examine(
    plan: Plan, snapshot: Snapshot | None, fleet: Fleet, timing: Timing, nodes: Sequence[Node] | None = None
) -> Results[Probed]:
    """The facts of each host, which has the code then. Raises UsageError if the code cannot be packed.

    `nodes`: which may become a part of the plan; None: all that are.
    """
    nodes = plan.nodes if nodes is None else nodes
    hosts = [node.host for node in nodes]
    packed = PackedSnapshot(snapshot)
    script = preflight.script_of(snapshot)
    keep = plan.inventory.run.keep
    questions = {node.host.name: preflight.question(plan, node, script, keep=keep) for node in nodes}
    fleet.prepare(hosts)

    def probe(host: Host, session: Session) -> Probed:
        timing.connected(host.name)
        return _probe(host, session, questions[host.name], plan, packed, fleet.progress, timing)

    return fleet.each(hosts, probe, "checking")


def _probe(
    host: Host,
    session: Session,
    question: Arguments,
    plan: Plan,
    packed: PackedSnapshot,
    progress: NoProgress,
    timing: Timing,
) -> Probed:
    """Ask a host for its facts, and send it the code unless it has that already."""
    with timing.measure("check", host.name):
        probed = preflight.ask(session, question)
    if plan.code is not None and not (host.workdir or host.witness) and plan.code.sha256 not in session.codes:
        progress.set_phase(host.name, f"sending the code, {size(plan.code.size)}")
        with timing.measure("send", host.name):
            session.request(UNPACK, {"sha256": plan.code.sha256}, upload=packed.chunks())
        session.codes.add(plan.code.sha256)  # `up --wait` probes the same sessions again
    return probed


class PackedSnapshot:
    """A snapshot of the code, packed when the first host needs it and then read by all hosts that do."""

    def __init__(self, snapshot: Snapshot | None) -> None:
        self._snapshot = snapshot
        self._lock = threading.Lock()
        self._file: BinaryIO | None = None

    def chunks(self) -> Iterator[bytes]:
        """The packed snapshot. Raises UsageError when it cannot be packed."""
        if self._snapshot is None:
            return
        with self._lock:
            if self._file is None:
                self._file = _pack(self._snapshot)
        offset = 0
        while chunk := os.pread(self._file.fileno(), CHUNK, offset):
            yield chunk
            offset += len(chunk)


def _pack(snapshot: Snapshot) -> BinaryIO:
    try:
        file = tempfile.TemporaryFile()  # noqa: SIM115  open for as long as hosts read it
        snapshot.write_tar(file)
        file.flush()
    except OSError as error:
        raise UsageError(f"the code cannot be packed in {tempfile.gettempdir()}: {error.strerror}") from error
    return file
