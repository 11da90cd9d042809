"""Lines -> the exceptions in them, each with its chain and rank. The lines of several ranks may interleave. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from .transcript import LogLine

START = re.compile(r"Traceback \(most recent call last\):\s*$|^\W*Traceback \(most recent call last\) ─")
BOXED = re.compile(r"^\s*│\s(?P<path>/\S+):(?P<line>\d+) in (?P<name>\S+)")  # as rich draws it: typer, accelerate
MARKS = re.compile(r"[\^~ ]*")  # under the code of a frame
INSTALLED = re.compile(r"(?:site|dist)-packages|/lib/python\d|<frozen")
# what people catch to try something else
TRIED = re.compile(r"(?:FileNotFound|Key|Index|Attribute|Import|ModuleNotFound|Value)Error$|StopIteration$")
# while an exception is handled: what it left undone is missing, or who was told of the end has gone
CLEANING_UP = re.compile(
    r"(?:\w+\.)*(?:UnboundLocalError|NameError|BrokenPipeError|AttributeError: 'NoneType' object has no attribute "
    r"'(?:close|end|finish|flush|join|kill|release|shutdown|stop|terminate)')"
)
IGNORED = re.compile(r"^Exception ignored (?:in|while)\b|^--- Logging error ---")  # Python itself continues
# the exception before this line only passes on the one that follows
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
# after frames; some of Python's own exceptions are not capitalised: socket.gaierror, zlib.error
ANYTHING = re.compile(
    r"(?P<indent> {0,2})(?P<kind>(?:[A-Za-z_]\w*\.)*_?[A-Z]\w+|(?:\w+\.)+(?:\w*error|timeout))(?P<text>: .*|:?)$"
)
DURING = re.compile(r"During handling of the above exception")
CHAINED = re.compile(DURING.pattern + r"|The above exception was the direct cause")
ENDS_MESSAGE = re.compile(
    r"Traceback \(most|^\[?[IWEF]\d{3,4} |^(?:WARNING|ERROR|INFO|DEBUG)[:\s]|^-{5,}|^={5,}|^frame #"
    r"|^Exception raised from|^\S+:\d+:\d+ \[\d+\]|^terminate called|^Root Cause|^srun:|^slurmstepd"
    r"|^\"\"\"$|closing signal|^\[E ProcessGroup|^Exception (?:ignored|in thread)"
)
MESSAGE_LINES = 12  # that a message may have after its first
AGENT_FRAMES = re.compile(
    r"torch/distributed/(?:run\.py|launcher/api\.py|elastic/(?:agent|rendezvous|multiprocessing))"
    r"|bin/(?:torchrun|accelerate|deepspeed)\"|accelerate/commands|deepspeed/launcher|torch/distributed/launch\.py"
)
WORKER_FRAMES = re.compile(r'File "(?!<frozen|[^"]*(?:site|dist)-packages|[^"]*/bin/)[^"]+", line \d+')
OF_COMMAND = "CalledProcessError"  # of a launcher's workers, or of any other command
OF_LAUNCHER = ("ChildFailedError", "SignalException", OF_COMMAND)
"""What launchers raise when a worker or the launcher itself was ended."""
LAUNCHES = re.compile(r"\b(?:torchrun|torch\.distributed|accelerate|deepspeed|mpirun|mpiexec|srun)\b")
MAY_LAUNCH = re.compile(r"\b(?:python[\d.]*|bash|sh)\b")


@dataclass(frozen=True)
class LoggedException:
    """An exception. `kind` and `text` are its own; `chain` has those that led to it, the first one first."""

    line: LogLine  # the one with its kind
    kind: str
    text: str  # its message, all lines of it
    frames: tuple[str, ...]
    chain: tuple[LoggedException, ...] = ()
    agent: bool = False  # the launcher's own, not a rank's
    during: bool = False  # raised while others of its chain were handled, so it may have another reason
    ignored: bool = False  # the interpreter says itself that it continues
    thread: bool = False  # of a thread or a child: the rank may outlive it
    code: tuple[int, ...] = ()  # the numbers of the lines that show source code: they quote, and report nothing

    @property
    def own_words(self) -> bool:
        """Raised by the training's own code with its own message, which may quote anything."""
        places = self.places
        return self.deliberate and bool(places) and INSTALLED.search(places[-1]) is None

    @property
    def deliberate(self) -> bool:
        """Raised by a `raise` or an `assert`, and not by accident."""
        code = [frame for frame in self.frames if not frame.startswith('File "') and not MARKS.fullmatch(frame)]
        return bool(code) and re.search(r"(?:^|: )(?:raise|assert)\b", code[-1]) is not None

    @property
    def places(self) -> tuple[str, ...]:
        """The frames without their source code: `File "train.py", line 9, in main`."""
        return tuple(frame for frame in self.frames if frame.startswith('File "'))

    @property
    def sources(self) -> tuple[LoggedException, ...]:
        """Those of the chain that may show the cause, the best first.

        Usually the first one. But code may try, expect a failure, and fall back. Then the exception of the fallback is
        the cause: a cache is missing, and building it fails.
        """
        if not self.during or not self.chain or self.deliberate:
            return (*self.chain, self)
        handled = self.chain[-1].kind
        if CLEANING_UP.match(f"{self.kind}: {self.text}") and not handled.endswith(
            ("ImportError", "ModuleNotFoundError")
        ):
            return self.chain
        return (self,) if TRIED.search(handled) else (*self.chain, self)

    @property
    def lines(self) -> tuple[str, ...]:
        """What signatures are matched against. An assertion without a message shows its code instead."""
        code = next((frame for frame in reversed(self.frames) if frame.startswith("assert ")), "")
        message = self.text or (code if self.kind == "AssertionError" else "")
        return tuple(f"{self.kind}: {message}".split("\n"))


def find_exceptions(lines: Sequence[LogLine]) -> tuple[LoggedException, ...]:
    """All exceptions, in the order of their last lines."""
    streams: dict[tuple[object, ...], list[LogLine]] = {}
    for line in lines:
        key = (line.source, line.host, line.rank, line.local_rank, line.attempt, line.stream)
        streams.setdefault(key, []).append(line)
    exceptions = [exception for stream in streams.values() for exception in _parse_stream(stream)]
    return tuple(sorted(exceptions, key=lambda exception: exception.line.number))


@dataclass(frozen=True)
class _State:
    """What the lines since the last exception say of the next one."""

    place: Literal["outside", "cut off", "inside"] = "outside"
    """Its place in a traceback; `cut off`: in one whose beginning the log does not have."""
    link: Literal["", "cause", "during"] = ""
    """The last exception caused this one, or was being handled when this one was raised."""
    passes_on: bool = False
    """The last exception only passes on this one."""
    origin: Literal["", "ignored", "thread"] = ""
    spawned: int | None = None
    """The rank, where mp.spawn reports it."""

    def enter(self, text: str, previous: str) -> _State:
        """A traceback begins."""
        spawned = SPAWNED.search(previous)
        return replace(
            self,
            place="inside",
            passes_on=PASSED_ON.search(text) is not None or PASSED_ON.search(previous) is not None,
            spawned=int(spawned["rank"]) if spawned else None,
        )

    def announce(self, text: str) -> _State | None:
        """After a line that only says how the next exception is related to others; None: it is another line."""
        if CHAINED.search(text):
            return replace(self, link="during" if DURING.search(text) else "cause")
        if self.place == "inside":
            return None
        if IGNORED.search(text):
            return replace(self, origin="ignored")
        return replace(self, origin="thread") if THREAD.search(text) else None

    def skip(self, text: str) -> _State:
        """After a line that is no exception: a cut-off traceback ends with its indentation."""
        return replace(self, place="outside") if self.place == "cut off" and not text.startswith(" ") else self


def _parse_stream(lines: list[LogLine]) -> list[LoggedException]:
    """The exceptions of one stream, whose lines are in order."""
    exceptions: list[LoggedException] = []
    state = _State("cut off" if lines[0].text.startswith(" ") else "outside")
    frames: list[tuple[int, str]] = []  # of the traceback: line numbers and texts
    position = 0
    while position < len(lines):
        line = _ungroup(lines[position])
        previous = lines[position - 1].text if position > 0 else ""
        position += 1
        if START.search(line.text):
            state, frames = state.enter(line.text, previous), []
        elif (announced := state.announce(line.text)) is not None:
            state = announced
        elif state.place == "inside" and (boxed := BOXED.match(line.text)):
            frames.append((line.number, f'File "{boxed["path"]}", line {boxed["line"]}, in {boxed["name"]}'))
        elif match := _match_exception(line.text, state, bool(frames)):
            message, position = _read_message(lines, position, match)
            exception = _build(line, match["kind"], message, state, frames)
            exceptions.append(_join(exception, state, exceptions))
            state, frames = _State(), []
        else:
            state = state.skip(line.text)
            if state.place != "outside" and (line.text.startswith(" ") or 'File "' in line.text):
                frames.append((line.number, line.text.strip()))
    return exceptions


def _match_exception(text: str, state: _State, has_frames: bool) -> re.Match[str] | None:
    """The line that names an exception: in a traceback nearly anything after its frames."""
    inside = state.place == "inside"
    match = RAISED.match(text) or (ANYTHING.match(text) if inside and has_frames else None)
    if match is None or (match["indent"] and state.place == "outside"):
        return None
    return match if inside or _is_surely_exception(match) else None


def _is_surely_exception(match: re.Match[str]) -> bool:
    """Outside of a traceback: `x.Error: text` can be nothing else; a heading or a log line can."""
    kind = match["kind"].rsplit(".", 1)[-1]
    return bool(re.search(r"(?:Error|Exception|Interrupt)$", kind)) and (match["text"] != "" or "." in match["kind"])


def _build(line: LogLine, kind: str, text: str, state: _State, frames: Sequence[tuple[int, str]]) -> LoggedException:
    texts = tuple(frame for _, frame in frames)
    return LoggedException(
        _with_rank(line, state.spawned),
        kind,
        text,
        texts,
        agent=line.agent
        or (_runs_ranks(line, text, texts) if kind.endswith(OF_COMMAND) else _is_of_agent(texts, kind)),
        during=state.link == "during",
        ignored=state.origin == "ignored",
        thread=state.origin == "thread",
        code=tuple(number for number, frame in frames if not frame.startswith('File "')),
    )


def _join(exception: LoggedException, state: _State, before: list[LoggedException]) -> LoggedException:
    """With the chain before it, which is taken from `before`."""
    if not before or not (state.link or state.passes_on):
        return exception
    last = before.pop()
    if state.passes_on:  # a data loader shows the worker's exception after its own
        line = _with_rank(last.line, exception.line.rank)
        joined = replace(last, chain=(exception, *last.chain), line=line)
    else:
        joined = replace(exception, chain=(*last.chain, replace(last, chain=())))
    return replace(joined, thread=joined.thread or last.thread, ignored=last.ignored)


def _with_rank(line: LogLine, rank: int | None) -> LogLine:
    return line if line.rank is not None else replace(line, rank=rank)


def _ungroup(line: LogLine) -> LogLine:
    match = GROUPED.match(line.text)
    return replace(line, text=line.text[match.end() :]) if match else line


def _is_of_agent(frames: Sequence[str], kind: str) -> bool:
    if kind.endswith(OF_LAUNCHER):
        return True
    return any(AGENT_FRAMES.search(frame) for frame in frames) and not any(
        WORKER_FRAMES.search(frame) and not AGENT_FRAMES.search(frame) for frame in frames
    )


def _runs_ranks(line: LogLine, text: str, frames: Sequence[str]) -> bool:
    """Whether a command that failed runs the ranks. Ranks run commands too: tar, ninja."""
    if not frames or any(map(AGENT_FRAMES.search, frames)) or LAUNCHES.search(text):
        return True
    return line.rank is None and MAY_LAUNCH.search(text) is not None


def _read_message(lines: list[LogLine], position: int, match: re.Match[str]) -> tuple[str, int]:
    """The whole message, and the position behind it."""
    parts = [match["text"].removeprefix(":").strip()]
    for line in lines[position : position + MESSAGE_LINES]:
        next_exception = RAISED.match(line.text)
        if ENDS_MESSAGE.search(line.text) or CHAINED.search(line.text):
            break
        if next_exception is not None and _is_surely_exception(next_exception) and not parts[-1].endswith("raised:"):
            break
        if not line.text.startswith((" ", "\t")) and len(parts) > 1 and _ends_sentence(parts[-1]):
            break
        parts.append(line.text.strip())
        position += 1
    return "\n".join(parts), position


def _ends_sentence(text: str) -> bool:
    return text.endswith((".", "!", "?"))
