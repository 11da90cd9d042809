"""The stacks of all ranks of a run that printed nothing for too long -> which rank keeps the others waiting. Pure.

The hosts print them before they stop the ranks (node/ranks/stacks.py), with py-spy or by SIGABRT and faulthandler.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from . import hangs
from .dumps import HangCause
from .tracebacks import LoggedException
from .transcript import LogLine

HEADER = re.compile(
    r"ddp-orch: rank (?P<rank>\d+), (?P<how>(?P<child>child )?pid \d+, state (?P<state>\w+).*): "
    r"(?:its stacks follow|no st)"
)
PY_SPY = re.compile(r"(?:^|(?<=\]))Process (?P<pid>\d+): ")
"""Like HEADER, this may follow a progress bar, which ends without a newline."""
ABORTED = re.compile(r"Fatal Python error: Aborted$")
THREAD = re.compile(r'(?P<main>Thread .*: "MainThread")|(?:Current thread|Thread) ')
FRAME = re.compile(
    r'  File "(?P<file>.+)", line (?P<line>\d+) in (?P<name>.+)|'
    r"    (?P<name2>\S.*) \((?P<file2>[^()]+):(?P<line2>\d+)\)"
)
PLACE = re.compile(r'File "(.+)", line (\d+), in (.+)')
REST = re.compile(
    r"Fatal Python error: Aborted|Current thread's C stack|  Binary file |  <|Extension modules: |  \.\.\.|Python v|$"
)
# a process that only waits for those that it has started
LAUNCHER = re.compile(
    r"\btorch/multiprocessing/spawn\.py$|\bsubprocess\.py$|\bmultiprocessing/(?:popen_\w+|process)\.py$"
)
INSTALLED = re.compile(
    r"(?:site|dist)-packages|/lib/python\d|<frozen|^torch/|^(?:threading|queue|selectors|socket)\.py$"
)
WAITING = re.compile(r"\btorch/(?:distributed|nn/parallel|autograd|_tensor)\b")
RESOURCES = re.compile(r"\bmultiprocessing/resource_tracker\.py$")
STOPPED, ON_A_DISK = {"T", "t"}, "D"
EVIDENCE_RANKS = 4


MEETING = "init_process_group"
ALL_MEET = "All ranks wait for each other in init_process_group, so they do not look for rank 0 at the same address."
LET_MEET = (
    "Look in the script for lines that set MASTER_ADDR, MASTER_PORT, RANK or WORLD_SIZE, or pass init_method, rank or "
    "world_size to init_process_group, and remove them: ddp-orch sets these variables (docs/guides/two-boxes.md). If "
    "there are none, `ddp-orch check` shows whether the hosts can connect to each other."
)
Frame = tuple[str, str, str]
"""(file, line, function)"""


@dataclass(frozen=True)
class Stack:
    """Where a rank is: the frames of its main thread, the innermost first."""

    rank: int
    line: LogLine
    state: str = ""
    how: str = ""
    frames: tuple[Frame, ...] = ()
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
        if not names and any(name == MEETING and WAITING.search(file) for file, _, name in self.frames):
            return MEETING
        return "backward" if "backward" in names else names[-1] if names else None

    @property
    def place(self) -> str:
        """`train.py line 8 in <module>`: the innermost of the user's own frames."""
        own = [frame for frame in self.frames if not INSTALLED.search(frame[0])] or self.frames
        if not own:
            return self.how or "an unknown place"
        file, line, name = own[0]
        return f"{file.rsplit('/', 1)[-1]} line {line} in {name}"


def split_off(
    lines: Sequence[LogLine], *, with_py_spy: bool = False, were_aborted: bool = False
) -> tuple[list[LogLine], list[Stack]]:
    """The lines without the stacks, and these: of the first attempt that has any, one for each rank.

    `with_py_spy`: the lines may have its dumps, which begin like lines that any program may print. `were_aborted`: a
    person sent SIGABRT to the ranks, so they have printed their stacks without a header.
    """
    rest: list[LogLine] = []
    current: dict[int, tuple[Stack, list[str]]] = {}  # of each rank
    blocks: list[tuple[Stack, list[str]]] = []
    for line in lines:
        stack, texts = current.get(line.rank, (None, [])) if line.rank is not None else (None, [])
        begun, before = _begin_stack(line, with_py_spy, were_aborted)
        if begun is not None:
            rest += [replace(line, text=before)] if before else []
            current[begun.rank] = (begun, [])
            blocks.append(current[begun.rank])
        elif stack is None or line.stream != stack.line.stream:
            rest.append(line)
        elif _is_part(line.text):
            texts.append(line.text)
        else:
            del current[stack.rank]
            rest.append(line)
    first = min((stack.line.attempt for stack, _ in blocks), default=1)
    by_rank: dict[int, list[Stack]] = {}
    for stack, texts in blocks:
        if stack.line.attempt == first:
            by_rank.setdefault(stack.rank, []).append(replace(stack, frames=_main_frames(texts)))
    return rest, [_choose_stack(family) for family in by_rank.values()]


def _begin_stack(line: LogLine, with_py_spy: bool, were_aborted: bool) -> tuple[Stack | None, str]:
    """The stack that begins in a line, and what stands before it: an open progress bar."""
    if header := HEADER.search(line.text):
        line, before = _cut(line, header)
        return Stack(
            int(header["rank"]), line, header["state"], header["how"], child=header["child"] is not None
        ), before
    rank = line.rank
    if with_py_spy and rank is not None and line.stream == "stderr" and (header := PY_SPY.search(line.text)):
        line, before = _cut(line, header)
        return Stack(rank, line), before
    if were_aborted and rank is not None and (header := ABORTED.search(line.text)):
        line, before = _cut(line, header)
        return Stack(rank, line), before
    return None, ""


def _cut(line: LogLine, header: re.Match[str]) -> tuple[LogLine, str]:
    return replace(line, text=line.text[header.start() :]), line.text[: header.start()]


def _choose_stack(family: Sequence[Stack]) -> Stack:
    """The rank's own stack, or that of its child that trains, where the rank is only its launcher."""
    own, *children = sorted(family, key=lambda stack: stack.child)  # py-spy shows the rank itself first
    children = [child for child in children if not any(RESOURCES.search(frame[0]) for frame in child.frames)]
    if own.operation is not None or not own.waits_for_children:
        return own
    of_children = [stack for stack in children if stack.frames]
    return next((stack for stack in of_children if stack.operation is not None), (of_children or [own])[0])


def _is_part(text: str) -> bool:
    return any(pattern.match(text) for pattern in (THREAD, FRAME, REST))


def _main_frames(texts: Sequence[str]) -> tuple[Frame, ...]:
    """Those of the main thread: py-spy names it; faulthandler begins with the newest thread, so it is the last.

    faulthandler's current thread is the one that got the signal, which may be any.
    """
    threads: list[list[Frame]] = []
    main: list[Frame] | None = None
    for text in texts:
        if thread := THREAD.match(text):
            threads.append([])
            main = threads[-1] if thread["main"] else main
        elif threads and (match := FRAME.match(text)):
            values = match.groupdict()
            file, line, name = (values[key] or values[f"{key}2"] for key in ("file", "line", "name"))
            threads[-1].append((file, line, name))
    return tuple(main if main is not None else threads[-1] if threads else ())


def go_back(found: Sequence[Stack], exceptions: Sequence[LoggedException]) -> list[Stack]:
    """The stacks, but of a rank that had lost a peer before: where it was then.

    The hosts do not stop their ranks at one moment: the end of the first ends collectives of the others.
    """
    lost_a_peer = [each for each in exceptions if hangs.PEER_GONE.search(each.text) and not each.ignored]
    before = {(each.line.rank, each.line.attempt): _frames_of(each) for each in reversed(lost_a_peer)}
    frames = {stack.rank: before.get((stack.rank, stack.line.attempt)) for stack in found}
    return [replace(stack, frames=frames[stack.rank] or stack.frames) for stack in found]


def _frames_of(exception: LoggedException) -> tuple[Frame, ...]:
    matches = map(PLACE.match, reversed(exception.places))
    return tuple((match[1], match[2], match[3]) for match in matches if match)


def find_hang_cause(stacks: Sequence[Stack]) -> tuple[HangCause, LogLine] | None:
    """The cause, and the line that shows it."""
    meeting = [stack for stack in stacks if stack.operation == MEETING]
    if meeting and len(meeting) == len([stack for stack in stacks if stack.frames]):
        cause, line = _cause("worker-never-arrived", [], meeting, "")
        return replace(cause, meaning=ALL_MEET, fix=LET_MEET), line
    waiting = [stack for stack in stacks if stack.operation is not None]
    absent = [stack for stack in stacks if stack.operation is None and stack.frames]
    stopped = [stack for stack in stacks if stack.state in STOPPED]
    stopped = stopped or [stack for stack in stacks if stack.state == ON_A_DISK and stack not in waiting]
    if stopped:
        others = [stack for stack in waiting if stack not in stopped]
        return _cause("process-stopped", stopped, others, f"state {stopped[0].state}")
    if absent and waiting:
        return _explain_absence(absent, waiting, stacks)
    if absent:
        return _find_odd_one(absent) or _cause("unknown", [], absent, "no rank is in a collective")
    if not waiting:
        return None
    waits = [hangs.Wait(stack.rank, stack.line.host, stack.line, stack.operation) for stack in waiting]
    if (hang := hangs.find_mismatch(waits, ())) is not None:
        culprits = sorted(waiting, key=lambda stack: stack.rank != hang.rank)
        return _cause(hang.code, culprits[:1], culprits[1:], hang.message)
    return _cause("collective-timeout", [], waiting, f"all wait in {waiting[0].operation}")


def _explain_absence(
    absent: Sequence[Stack], waiting: Sequence[Stack], stacks: Sequence[Stack]
) -> tuple[HangCause, LogLine]:
    """Ranks outside of the collective that the others wait in. Several on one of several hosts: that host is slow."""
    first = absent[0]
    all_hosts, absent_hosts = ({stack.line.host for stack in some} for some in (stacks, absent))
    slow_host = len(absent) > 1 and len(absent_hosts) == 1 < len(all_hosts)
    code = "straggler" if slow_host else "rank0-work-exceeds-timeout"
    return _cause(code, absent, waiting, f"rank {first.rank}, at {first.place}")


def _find_odd_one(stacks: Sequence[Stack]) -> tuple[HangCause, LogLine] | None:
    """On GPUs collectives return at once: most ranks wait at one line, for a result, and one is elsewhere."""
    usual, count = Counter(stack.place for stack in stacks).most_common(1)[0]
    odd = [stack for stack in stacks if stack.place != usual]
    if not odd or count <= len(stacks) / 2:
        return None
    others = [stack for stack in stacks if stack.place == usual]
    return _cause("rank0-work-exceeds-timeout", odd, others, f"rank {odd[0].rank}, at {odd[0].place}")


def _cause(code: str, culprits: Sequence[Stack], others: Sequence[Stack], why: str) -> tuple[HangCause, LogLine]:
    shown = [*culprits, *others][:EVIDENCE_RANKS]
    evidence = tuple(
        f"rank {stack.rank}: {stack.place}" + (f", in {stack.operation}" if stack.operation else "") for stack in shown
    )
    return HangCause(code, culprits[0].rank if culprits else None, why, evidence), shown[0].line
