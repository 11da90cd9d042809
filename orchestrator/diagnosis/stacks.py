"""The stacks of all ranks of a run of ours that printed nothing for too long -> who keeps the others waiting. Pure.

The hosts show them before they end the ranks (node/stacks.py): by py-spy, or by SIGABRT and Python's own handler.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from . import hangs
from .dumps import Judged
from .transcript import Said

HEADER = re.compile(
    r"ddp-orch: rank (?P<rank>\d+), (?P<how>(?P<child>child )?pid \d+, state (?P<state>\w+).*): "
    r"(?:its stacks follow|no st)"
)
PY_SPY = re.compile(r"Process (?P<pid>\d+): ")
THREAD = re.compile(r'(?P<main>Current thread 0x|Thread .*: "MainThread")|Thread ')
FRAME = re.compile(
    r'  File "(?P<file>.+)", line (?P<line>\d+) in (?P<name>.+)|'
    r"    (?P<name2>\S.*) \((?P<file2>[^()]+):(?P<line2>\d+)\)"
)
REST = re.compile(
    r"Fatal Python error: Aborted|Current thread's C stack|  Binary file |Extension modules: |  \.\.\.|Python v|$"
)
# a process that only waits for those that it has started
LAUNCHER = re.compile(
    r"\btorch/multiprocessing/spawn\.py$|\bsubprocess\.py$|\bmultiprocessing/(?:popen_\w+|process)\.py$"
)
INSTALLED = re.compile(
    r"(?:site|dist)-packages|/lib/python\d|<frozen|^torch/|^(?:threading|queue|selectors|socket)\.py$"
)
WAITING = re.compile(r"\btorch/(?:distributed|nn/parallel|autograd|_tensor)\b")
STOPPED, ON_A_DISK = {"T", "t"}, "D"
SHOWN = 4  # ranks


@dataclass
class Stack:
    """Where a rank is: the frames of its main thread, the innermost first."""

    rank: int
    line: Said
    state: str = ""
    how: str = ""
    frames: list[tuple[str, str, str]] = field(default_factory=list)
    """(file, line, function)"""
    in_main: bool = False
    child: bool = False
    """It is of a process that the rank has started."""

    @property
    def waits_for_children(self) -> bool:
        return not self.frames or any(LAUNCHER.search(file) for file, _, _ in self.frames)

    @property
    def operation(self) -> str | None:
        """The collective, or the like, that it waits in."""
        names = [
            match["name"]
            for file, _, name in self.frames
            if WAITING.search(file) and (match := hangs.OPERATION.search(f"in {name}"))
        ]
        return "backward" if "backward" in names else names[-1] if names else None

    @property
    def place(self) -> str:
        """`train.py line 8 in <module>`: the innermost of the user's own frames."""
        own = [frame for frame in self.frames if not INSTALLED.search(frame[0])] or self.frames
        if not own:
            return self.how or "nobody knows where"
        file, line, name = own[0]
        return f"{file.rsplit('/', 1)[-1]} line {line} in {name}"


def cut(lines: Sequence[Said], *, with_py_spy: bool = False) -> tuple[list[Said], list[Stack]]:
    """The lines without our stacks, and these: of the first attempt that has any, one a rank.

    `with_py_spy`: its dumps, which begin like lines of anybody, are known to be there.
    """
    left: list[Said] = []
    open_: dict[int, Stack] = {}
    found: list[Stack] = []
    for line in lines:
        stack = open_.get(line.rank) if line.rank is not None else None
        header = HEADER.match(line.text)
        if header:
            stack = Stack(int(header["rank"]), line, header["state"], header["how"], child=header["child"] is not None)
        elif with_py_spy and line.rank is not None and line.stream == "stderr" and PY_SPY.match(line.text):
            stack = Stack(line.rank, line)
        elif stack is None or line.stream != stack.line.stream or not _is_part(line.text):
            if stack is not None and line.stream == stack.line.stream:
                del open_[stack.rank]
            left.append(line)
            continue
        else:
            _add(stack, line.text)
            continue
        open_[stack.rank] = stack
        found.append(stack)
    first = min((stack.line.attempt for stack in found), default=1)
    by_rank: dict[int, list[Stack]] = {}
    for stack in found:
        if stack.line.attempt == first:
            by_rank.setdefault(stack.rank, []).append(stack)
    return left, [_telling(family) for family in by_rank.values()]


def _telling(family: Sequence[Stack]) -> Stack:
    """The rank's own stack, or that of its child that trains, where the rank is only its launcher."""
    own, *children = sorted(family, key=lambda stack: stack.child)  # py-spy shows the rank itself first
    if own.operation is not None or not own.waits_for_children:
        return own
    of_children = [stack for stack in children if stack.frames]
    return next((stack for stack in of_children if stack.operation is not None), (of_children or [own])[0])


def _is_part(text: str) -> bool:
    return any(pattern.match(text) for pattern in (THREAD, FRAME, REST))


def _add(stack: Stack, text: str) -> None:
    if thread := THREAD.match(text):
        stack.in_main = thread["main"] is not None
    elif stack.in_main and (match := FRAME.match(text)):
        stack.frames.append(
            (match["file"] or match["file2"], match["line"] or match["line2"], match["name"] or match["name2"])
        )


def judge(stacks: Sequence[Stack]) -> tuple[Judged, Said] | None:
    """What it is, and the line that tells of it."""
    waiting = [stack for stack in stacks if stack.operation is not None]
    absent = [stack for stack in stacks if stack.operation is None and stack.frames]
    stopped = [stack for stack in stacks if stack.state in STOPPED]
    stopped = stopped or [stack for stack in stacks if stack.state == ON_A_DISK and stack not in waiting]
    if stopped:
        others = [stack for stack in waiting if stack not in stopped]
        return _judged("process-stopped", stopped, others, f"state {stopped[0].state}")
    if absent and waiting:
        first = absent[0]
        why = f"rank {first.rank}, at {first.place}"
        hosts, absent_hosts = ({stack.line.host for stack in some} for some in (stacks, absent))
        one_of_several = len(absent) > 1 and len(absent_hosts) == 1 < len(hosts)
        return _judged("straggler" if one_of_several else "rank0-work-exceeds-timeout", absent, waiting, why)
    if absent:
        return _odd_one(absent) or _judged("unknown", [], absent, "no rank is seen in a collective")
    if not waiting:
        return None
    waits = [hangs.Wait(stack.rank, stack.line.host, stack.line, stack.operation) for stack in waiting]
    if (hang := hangs.mismatch(waits, ())) is not None:
        culprits = sorted(waiting, key=lambda stack: stack.rank != hang.rank)
        return _judged(hang.code, culprits[:1], culprits[1:], hang.message)
    return _judged("collective-timeout", [], waiting, f"all wait in {waiting[0].operation}")


def _odd_one(stacks: Sequence[Stack]) -> tuple[Judged, Said] | None:
    """On GPUs collectives return at once: most ranks wait at one line, for a result, and one is elsewhere."""
    usual, count = Counter(stack.place for stack in stacks).most_common(1)[0]
    odd = [stack for stack in stacks if stack.place != usual]
    if not odd or count <= len(stacks) / 2:
        return None
    others = [stack for stack in stacks if stack.place == usual]
    return _judged("rank0-work-exceeds-timeout", odd, others, f"rank {odd[0].rank}, at {odd[0].place}")


def _judged(code: str, culprits: Sequence[Stack], others: Sequence[Stack], why: str) -> tuple[Judged, Said]:
    shown = [*culprits, *others][:SHOWN]
    evidence = tuple(
        f"rank {stack.rank}: {stack.place}" + (f", in {stack.operation}" if stack.operation else "") for stack in shown
    )
    return Judged(code, culprits[0].rank if culprits else None, why, evidence), shown[0].line
