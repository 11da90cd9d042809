"""What the last lines on stderr say of why a process ended."""

import re
from typing import List

LONGEST = 300  # characters of the answer
LONGEST_EXCEPTION = 180  # characters of an exception whose message has further lines
FURTHER_LINES = 12  # of a message; what comes later belongs to something else
HEADER = "Traceback (most recent call last):"
# of torch itself, such as a failed reverse lookup: never why a process ended
C10D_WARNING = re.compile(r"\[W(?:\d{4} |\s*\w+\.cpp)")
RANK_PREFIX = re.compile(r"\[rank\d+\]: ?")  # torch puts it before each line of a traceback, and before its warnings
HYDRA_HINT = "Set the environment variable HYDRA_FULL_ERROR=1"  # hydra's last line, whatever the error
# by a process that ended, after an exception or not, while a thread of its libraries was running
ABORTED_AT_EXIT = "terminate called without an active exception"
EXCEPTION = re.compile(r"[\w.]+(Error|Exception|Exit|Interrupt|Warning)\b")  # the first line after a traceback's frames
ERROR = re.compile(r"(?i)error: ")
ADVICE = re.compile(r"(?i)hint: |note: |\[notice\] ")  # of pip, after its error
TORCHRUN_REPORTS = re.compile(r"torch\.distributed\.elastic\.multiprocessing\.errors\.ChildFailedError\b")
OF_PYTHON = re.compile(r"\S*python[\d.]*: |\S+\.py: error: ")  # no file or module of that name; an argument parser
TORCHRUN_ROOT = re.compile(r"(?:rank|exitcode)\s*: ")
RULE = re.compile(r"([=*#_-])\1{3,}$")


def last_words_of(text: str) -> str:
    """The last line that says what happened, without torch's `[rankN]:`.

    Of a crash it is the line before the dump of stacks, of hydra the line before its hint, of torchrun's report the
    exception before it, or what it takes for the first failure, of pip its error. Of an exception whose message has
    several lines it is the first and the last one.
    """
    raw = [RANK_PREFIX.sub("", line.rstrip(), 1) for line in text.splitlines()]
    raw = [line for line in raw if _may_say_something(line.strip())]
    exception = _last_exception(raw)
    lines = [line.strip() for line in raw]
    lines = [
        line
        for number, line in enumerate(lines)
        if line != ABORTED_AT_EXIT or not (number and EXCEPTION.match(lines[number - 1]))
    ]
    for number, line in enumerate(lines):
        if line.startswith("Fatal Python error:"):  # Python's faulthandler: stacks and modules follow
            before = lines[number - 1] if number else ""
            aborted = before.startswith(("terminate called", "what():")) or EXCEPTION.match(before)
            return lines[number - 1 if aborted else number][:LONGEST]
    for number, line in enumerate(lines):
        if line.startswith("Root Cause (first observed failure)"):
            told = [line for line in lines[number:] if TORCHRUN_ROOT.match(line)]
            # a script of the user that starts torchrun: its ranks print to the same stream
            said = exception or next((line for line in reversed(lines[:number]) if OF_PYTHON.match(line)), "")
            return said[:LONGEST] or " ".join(", ".join(told).split())[:LONGEST] or line
    words = [line for line in lines if not RULE.match(line)]
    if not words:
        return ""
    if ADVICE.match(words[-1]):
        errors = [line for line in words[-1 - FURTHER_LINES :] if ERROR.match(line)]
        return (errors or words)[-1][:LONGEST]
    if exception and exception in words[-1 - FURTHER_LINES : -1]:
        return ("%s ... %s" % (exception[:LONGEST_EXCEPTION], words[-1]))[:LONGEST]
    return words[-1][:LONGEST]


def _may_say_something(line: str) -> bool:
    return bool(line) and not C10D_WARNING.match(line) and not line.startswith(HYDRA_HINT)


def _last_exception(lines: List[str]) -> str:
    """The first line after the frames of the last traceback, without that of torchrun's report."""
    starts = [number for number, line in enumerate(lines) if line == HEADER]
    for start in reversed(starts):
        found = next((line for line in lines[start + 1 :] if not line.startswith(" ")), "")
        if not TORCHRUN_REPORTS.match(found):
            return found if EXCEPTION.match(found) else ""
    return ""
