"""Lines -> the exceptions in them, each with its chain and rank; several ranks may interleave. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from .transcript import Said

START = re.compile(r"Traceback \(most recent call last\):\s*$|^\W*Traceback \(most recent call last\) ─")
BOXED = re.compile(r"^\s*│\s(?P<path>/\S+):(?P<line>\d+) in (?P<name>\S+)")  # as rich draws it: typer, accelerate
MARKS = re.compile(r"[\^~ ]*")  # under the code of a frame
INSTALLED = re.compile(r"(?:site|dist)-packages|/lib/python\d|<frozen")
# what people catch to go another way
TRIED = re.compile(r"(?:FileNotFound|Key|Index|Attribute|Import|ModuleNotFound|Value)Error$|StopIteration$")
IGNORED = re.compile(r"^Exception ignored (?:in|while)\b|^--- Logging error ---")  # Python itself says that it goes on
# what follows is the exception that the one before it only passes on
PASSED_ON = re.compile(
    r"(?i)original traceback|^\s*\+-\+-+ 1 -+|^(?:-- |\W*)(?:process \d+ )?(?:terminated )?"
    r"(?:with the following error|caused by|"
    r"(?:the )?(?:original|remote|inner|worker) (?:error|exception|traceback)\b.{0,40})\W*$"
)
SPAWNED = re.compile(
    r"^-- Process (?P<rank>\d+) terminated with the following error"
)  # mp.spawn: its index is the rank
GROUPED = re.compile(r"^\s*\|(?: |$)")  # an ExceptionGroup's own lines and those of its parts
THREAD = re.compile(r"^Exception in thread \S+|^Process \S*Process-[\d:]+:")  # may end a part, and not the rank
KIND = (
    r"(?:[A-Za-z_]\w*\.)*_?[A-Z]\w*"
    r"(?:Error|Exception|Interrupt|Exit|Timeout|Closed|Failure|Failed|Mismatch|NotFound)\w*"
)
RAISED = re.compile(rf"(?P<indent> {{0,8}})(?P<kind>{KIND}|(?:\w+\.)+[A-Z]\w+|OSError|NanLoss\w*)(?P<text>: .*|:?)$")
# after frames; of Python's own some are not capitalised: socket.gaierror, zlib.error
ANYTHING = re.compile(
    r"(?P<indent> {0,2})(?P<kind>(?:[A-Za-z_]\w*\.)*_?[A-Z]\w+|(?:\w+\.)+(?:\w*error|timeout))(?P<text>: .*|:?)$"
)
DURING = re.compile(r"During handling of the above exception")
CHAINED = re.compile(DURING.pattern + r"|The above exception was the direct cause")
ENDS_MESSAGE = re.compile(
    r"Traceback \(most|^\[?[IWEF]\d{3,4} |^(?:WARNING|ERROR|INFO|DEBUG)[:\s]|^-{5,}|^={5,}|^frame #"
    r"|^Exception raised from|^\S+:\d+:\d+ \[\d+\]|^terminate called|^Root Cause|^srun:|^slurmstepd"
    r"|closing signal|^\[E ProcessGroup|^Exception (?:ignored|in thread)"
)
MESSAGE_LINES = 12  # that a message may have after its first
AGENT_FRAMES = re.compile(
    r"torch/distributed/(?:run\.py|launcher/api\.py|elastic/(?:agent|rendezvous|multiprocessing))"
    r"|bin/(?:torchrun|accelerate|deepspeed)\"|accelerate/commands|deepspeed/launcher|torch/distributed/launch\.py"
)
WORKER_FRAMES = re.compile(r'File "(?!<frozen|[^"]*(?:site|dist)-packages|[^"]*/bin/)[^"]+", line \d+')


@dataclass(frozen=True)
class Raised:
    """An exception. `kind` and `text` are its own; `chain` has those that led to it, the first one first."""

    line: Said  # the one with its kind
    kind: str
    text: str  # its message, all lines of it
    frames: tuple[str, ...]
    chain: tuple[Raised, ...] = ()
    agent: bool = False  # the launcher's own, not a rank's
    during: bool = False  # raised while others of its chain were handled, so perhaps of another reason
    ignored: bool = False  # the interpreter says itself that it goes on
    thread: bool = False  # of a thread or a child: the rank may outlive it
    code: tuple[int, ...] = ()  # the numbers of the lines that show source code: they quote, and report nothing

    @property
    def own_words(self) -> bool:
        """Raised by the training's own code, in words of its own: they may quote anything."""
        places = [frame for frame in self.frames if frame.startswith('File "')]
        return self.deliberate and bool(places) and INSTALLED.search(places[-1]) is None

    @property
    def deliberate(self) -> bool:
        """By a `raise` or an `assert`, and not by an accident."""
        code = [frame for frame in self.frames if not frame.startswith('File "') and not MARKS.fullmatch(frame)]
        return bool(code) and re.search(r"(?:^|: )(?:raise|assert)\b", code[-1]) is not None

    @property
    def sources(self) -> tuple[Raised, ...]:
        """Those of the chain that may tell the cause, the best first.

        Usually the first one. But where a try was expected to fail now and then, what was raised by accident in
        its place is the failure itself: a missing cache is handled by building it, and the building fails.
        """
        tried = self.during and bool(self.chain) and TRIED.search(self.chain[-1].kind) is not None
        return (self,) if tried and not self.deliberate else (*self.chain, self)

    @property
    def lines(self) -> tuple[str, ...]:
        """To match signatures against. Of an assertion without words its code is what it says."""
        code = next((frame for frame in reversed(self.frames) if frame.startswith("assert ")), "")
        said = self.text or (code if self.kind == "AssertionError" else "")
        return tuple(f"{self.kind}: {said}".split("\n"))


def find(lines: Sequence[Said]) -> tuple[Raised, ...]:
    """All exceptions, in the order of their last lines."""
    streams: dict[tuple[object, ...], list[Said]] = {}
    for line in lines:
        key = (line.source, line.host, line.rank, line.local_rank, line.attempt, line.stream)
        streams.setdefault(key, []).append(line)
    found = [raised for stream in streams.values() for raised in _of_stream(stream)]
    return tuple(sorted(found, key=lambda raised: raised.line.number))


@dataclass
class _Pending:
    """What the lines before an exception say of it."""

    inside: bool = False  # a traceback has begun
    chained: bool = False
    original: bool = False  # the exception before it only passes it on
    during: bool = False
    ignored: bool = False
    thread: bool = False
    spawned: int | None = None  # the rank, where mp.spawn tells it
    frames: list[str] = field(default_factory=list)
    code: list[int] = field(default_factory=list)

    def begin(self, line: Said, before: str) -> None:
        """A traceback begins."""
        spawned = SPAWNED.search(before)
        self.inside, self.frames, self.code = True, [], []
        self.original = PASSED_ON.search(line.text) is not None or PASSED_ON.search(before) is not None
        self.spawned = int(spawned["rank"]) if spawned else None

    def announces(self, text: str) -> bool:
        """Whether a line only tells how the next exception is related to the last one."""
        if CHAINED.search(text):
            self.chained, self.during = True, DURING.search(text) is not None
            return True
        ignored, thread = IGNORED.search(text) is not None, THREAD.search(text) is not None
        if self.inside or not (ignored or thread):
            return False
        self.ignored, self.thread = ignored, thread
        return True

    def add(self, line: Said) -> None:
        """A line of the traceback."""
        text = line.text.strip()
        self.frames.append(text)
        if not text.startswith('File "'):
            self.code.append(line.number)

    def join(self, raised: Raised, found: list[Raised]) -> Raised:
        """With the chain before it. One that was never raised here has no traceback of its own."""
        if not found or not (self.chained or (self.original and self.inside)):
            return raised
        before = found.pop()
        # a data loader shows the worker's exception after its own; else the first of a chain comes first
        joined = (
            replace(before, chain=(raised, *before.chain), line=_of_rank(before.line, raised.line.rank))
            if self.original
            else replace(raised, chain=(*before.chain, replace(before, chain=())))
        )
        return replace(joined, thread=joined.thread or before.thread, ignored=before.ignored)


def _of_stream(lines: list[Said]) -> list[Raised]:
    found: list[Raised] = []
    pending = _Pending()
    position = 0
    cut_off = lines[0].text.startswith(" ")  # the log may begin in the midst of a traceback
    while position < len(lines):
        line = _ungrouped(lines[position])
        before = lines[position - 1].text if position > 0 else ""
        position += 1
        if START.search(line.text):
            pending.begin(line, before)
            continue
        if pending.announces(line.text):
            continue
        if pending.inside and (boxed := BOXED.match(line.text)):
            pending.frames.append(f'File "{boxed["path"]}", line {boxed["line"]}, in {boxed["name"]}')
            continue
        match = RAISED.match(line.text) or (ANYTHING.match(line.text) if pending.inside and pending.frames else None)
        indented = match is not None and match["indent"] and not pending.inside and not cut_off
        if match is None or indented or not _plausible(match, pending.inside):
            cut_off = cut_off and line.text.startswith(" ")
            if (pending.inside or cut_off) and (line.text.startswith(" ") or 'File "' in line.text):
                pending.add(line)
            continue
        text, position = _message(lines, position, match)
        found.append(pending.join(_raised(line, match["kind"], text, pending), found))
        pending, cut_off = _Pending(), False
    return found


def _raised(line: Said, kind: str, text: str, pending: _Pending) -> Raised:
    agent = line.agent or _of_agent(pending.frames, kind)
    return Raised(
        _of_rank(line, pending.spawned),
        kind,
        text,
        tuple(pending.frames),
        agent=agent,
        during=pending.during,
        ignored=pending.ignored,
        thread=pending.thread,
        code=tuple(pending.code),
    )


def _of_rank(line: Said, rank: int | None) -> Said:
    return line if line.rank is not None else replace(line, rank=rank)


def _ungrouped(line: Said) -> Said:
    match = GROUPED.match(line.text)
    return replace(line, text=line.text[match.end() :]) if match else line


def _plausible(match: re.Match[str], inside: bool) -> bool:
    """Outside a traceback only what can be nothing but an exception: `x.Error: text`, not a heading or a log line."""
    if inside:
        return True
    kind = match["kind"].rsplit(".", 1)[-1]
    return bool(re.search(r"(?:Error|Exception|Interrupt)$", kind)) and (match["text"] != "" or "." in match["kind"])


def _of_agent(frames: Sequence[str], kind: str) -> bool:
    if kind.endswith(("ChildFailedError", "SignalException", "CalledProcessError")):
        return True
    return any(AGENT_FRAMES.search(frame) for frame in frames) and not any(
        WORKER_FRAMES.search(frame) and not AGENT_FRAMES.search(frame) for frame in frames
    )


def _message(lines: list[Said], position: int, match: re.Match[str]) -> tuple[str, int]:
    """The whole message, and where to go on."""
    parts = [match["text"].removeprefix(":").strip()]
    for line in lines[position : position + MESSAGE_LINES]:
        other = RAISED.match(line.text)
        if ENDS_MESSAGE.search(line.text) or CHAINED.search(line.text) or (other and _plausible(other, False)):
            break
        if not line.text.startswith((" ", "\t")) and len(parts) > 1 and not _goes_on(parts[-1]):
            break
        parts.append(line.text.strip())
        position += 1
    return "\n".join(parts), position


def _goes_on(text: str) -> bool:
    return not text.endswith((".", "!", "?")) or text == ""
