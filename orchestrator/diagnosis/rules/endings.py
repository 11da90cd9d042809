"""Ends of processes: which of them is the cause, and which is only the launcher's or the script's own doing. Pure."""

from __future__ import annotations

import re
from dataclasses import replace

from ..busy import FINISHED
from ..scene import STEPS, STEPS_OF_TRAINING, Scene
from ..suspects import DECISIVE, ENDING, FALLBACK, SPECIFIC, Suspect, Suspects, any_proof, map_code
from ..tracebacks import INSTALLED
from ..transcript import LogLine

SIGKILL, SIGTERM, SIGABRT = 9, 15, 6
MEMORY_KILLS = ("host-oom-killed", "cgroup-oom-killed")
KILLED_PID = re.compile(r"[Kk]illed process (\d+)")
STOPPED_PID = re.compile(r"Sending process (\d+) closing signal")
LONE_SIGTERM = 37  # levels of what the rules here conclude
TEARDOWN, TEARDOWN_IN_PYTHON = 38, 42
REFUSED = ENDING + 2
UNUSED_GROUP = 20  # below it, a group that was not destroyed is only warned of
NO_PYTHON_FRAME = re.compile(r"terminate called without an active exception.*\n(?:.*\n){1,12}?.*<no Python frame>")
"""An abort after the interpreter's end, as faulthandler shows it: gloo's threads, and no line of the script."""
FATAL = re.compile(r"^Fatal Python error: ")
CRASH_FRAME = re.compile(r'  File "(?P<file>.+)", line (?P<line>\d+) in (?P<name>.+)')
THREAD = re.compile(r"(?:Current thread|Thread) 0x")  # of Python: a thread of Gloo's, which aborts, is not shown
FATAL_WITHIN = 3  # lines, the first of which shows what happened
MAX_STACKS = 400  # lines of all threads
CRASHED_THERE = "See what that line calls, and with which data; use the same environment on all hosts."
TERMINATED = "terminate called without an active exception"
TIMED_OUT_COLLECTIVE = re.compile(r"caught collective operation timeout")
REFUSES = re.compile(
    r"(?i)\b(?:argument|option|config\w*|overrid\w*|flag|parameter|setting|key|usage|invalid value)s?\b"
)


def discount_overcome_trouble(suspects: Suspects, scene: Scene) -> Suspects:
    """A line of trouble after which training continued, until an exception ended it: it was a warning.

    First, as most rules ask whether a suspect is more than a hint.
    """
    ends = [
        suspect.line.number
        for suspect in suspects
        if suspect.exception is not None and not suspect.hint and suspect.level >= SPECIFIC
    ]
    if not ends:
        return suspects
    steps = [line.number for line in scene.lines if STEPS.search(line.text) and line.number < max(ends)]

    def was_overcome(suspect: Suspect) -> bool:
        if suspect.exception is not None or not SPECIFIC <= suspect.level < DECISIVE:
            return False
        number = suspect.line.number
        return number < max(ends) and sum(step > number for step in steps) >= STEPS_OF_TRAINING

    return tuple(
        replace(suspect, hint=True, confidence="low") if was_overcome(suspect) else suspect for suspect in suspects
    )


def find_crash_place(suspects: Suspects, scene: Scene) -> Suspects:
    """A crash for which faulthandler shows the script's own line, also one that Gloo makes. It changes only words."""

    def explain(suspect: Suspect) -> Suspect:
        frame = _crash_frame(_crash_line(suspect, scene), scene)
        if frame is None:
            return suspect
        file, number, name = frame["file"], frame["line"], frame["name"]
        line = replace(suspect.line, text=f'{suspect.line.text}\nFile "{file}", line {number}, in {name}')
        if suspect.code != "worker-segfault":
            return replace(suspect, line=line)
        place = f"in {file.rsplit('/', 1)[-1]} line {number} in {name}"
        ended_by = suspect.why or _recorded_signal(suspect, scene)
        why = f"{ended_by}, {place}" if ended_by else place
        return replace(suspect, line=line, why=why, fix=CRASHED_THERE)

    for code in ("worker-segfault", "gloo-size-mismatch"):
        suspects = map_code(suspects, code, explain)
    return suspects


def _recorded_signal(suspect: Suspect, scene: Scene) -> str:
    """The signal by which the rank ended, if its guard has recorded it."""
    place = (suspect.host, suspect.rank)
    ends = (exit_ for exit_ in scene.exits if exit_.number < 0 and (exit_.host, exit_.rank) == place and exit_.signal)
    return next((f"signal {end.signal}" for end in ends), "")


def _crash_line(suspect: Suspect, scene: Scene) -> LogLine:
    """The line of a suspect; of an end that the guard has recorded, the one by which faulthandler begins."""
    if suspect.line.number >= 0:
        return suspect.line
    place = (suspect.host, suspect.rank)
    own = (line for line in scene.lines if (line.host, line.rank) == place and FATAL.search(line.text))
    return next(own, suspect.line)


def _crash_frame(first: LogLine, scene: Scene) -> re.Match[str] | None:
    """The script's own innermost frame, or the place in a package if the script has none."""
    stream = (first.source, first.host, first.rank, first.stream)
    lines = [line for line in scene.lines if line.number >= first.number]
    texts = [line.text for line in lines if (line.source, line.host, line.rank, line.stream) == stream][:MAX_STACKS]
    if not any(map(FATAL.search, texts[:FATAL_WITHIN])):
        return None
    threads = [place for place, text in enumerate(texts) if THREAD.match(text)]
    current = [place for place in threads if texts[place].startswith("Current thread ")]
    begin = next(iter(current), threads[0] if len(threads) == 1 else len(texts))
    end = next((place for place in threads if place > begin), len(texts))
    frames = [match for match in map(CRASH_FRAME.match, texts[begin + 1 : end]) if match]
    return next((frame for frame in frames if not INSTALLED.search(frame["file"])), next(iter(frames), None))


def add_rank_to_memory_kills(suspects: Suspects, scene: Scene) -> Suspects:
    """The kernel reports that it killed a process for lack of memory: the pid, or the only kill, gives the rank.

    Before the rules that change the code of such a suspect.
    """
    killed = [exit_ for exit_ in scene.exits if exit_.signal == SIGKILL and not exit_.agent and exit_.rank is not None]
    if not killed:
        return suspects
    by_pid = {exit_.pid: exit_ for exit_ in killed}

    def add_rank(suspect: Suspect) -> Suspect:
        match = KILLED_PID.search(suspect.line.text)
        exit_ = by_pid.get(int(match[1])) if match else None
        if exit_ is None and len(killed) == 1:
            exit_ = killed[0]
        if exit_ is None or suspect.rank is not None:
            return suspect
        return replace(suspect, rank=exit_.rank, host=exit_.host or suspect.host)

    for code in MEMORY_KILLS:
        suspects = map_code(suspects, code, add_rank)
    return suspects


def find_lone_sigterm(suspects: Suspects, scene: Scene) -> Suspects:
    """A rank that SIGTERM ended although its agent sent none: the agent reports it as the first to fail.

    Before the rules that ask whether any end is known.
    """
    sent = {int(match[1]) for match in STOPPED_PID.finditer(scene.text)}
    why = "only this rank received it"
    return suspects + tuple(
        Suspect("sigterm-preempted", LONE_SIGTERM, replace(line, at=exit_.at), exit_.rank, exit_.host, "medium", why)
        for exit_ in scene.exits
        if exit_.signal == SIGTERM and exit_.root and exit_.pid not in sent and (line := exit_.line) is not None
    )


def drop_cancelled_steps(suspects: Suspects, scene: Scene) -> Suspects:
    """Slurm cancels a step by itself when one of its tasks has failed: then nobody else did.

    Before the rules that ask whether any end is known.
    """
    first_failure = min((exit_.number for exit_ in scene.exits if exit_.code > 0), default=None)
    if first_failure is None:
        return suspects
    return tuple(
        suspect
        for suspect in suspects
        if "CANCELLED AT" not in suspect.line.text or suspect.line.number < first_failure or suspect.level > DECISIVE
    )


def check_teardown(suspects: Suspects, scene: Scene) -> Suspects:
    """A finished script that never destroyed its process group and fails at its exit, with nothing else wrong.

    Where it is not that, the sign is dropped: it is in many logs. After the rules that find or drop other ends, and
    before `find_silent_host` and `find_absent_peer`, which ask for one.
    """
    if NO_PYTHON_FRAME.search(scene.text) and not any_proof(suspects, SPECIFIC):
        return tuple(
            replace(suspect, hint=False, level=TEARDOWN_IN_PYTHON, confidence="medium")
            if suspect.code == "process-group-not-destroyed" and "terminate called" in suspect.line.text
            else suspect
            for suspect in suspects
            if suspect.code != "worker-segfault"
        )
    ended = [exit_ for exit_ in scene.exits if exit_.rank is not None]
    aborted = bool(ended) and all(exit_.signal == SIGABRT for exit_ in ended)
    if (aborted and TERMINATED in scene.text) or (ended and _has_only_finished(suspects, scene)):
        return map_code(
            suspects,
            "process-group-not-destroyed",
            lambda suspect: replace(suspect, hint=False, level=TEARDOWN, confidence="medium" if aborted else "low"),
        )
    return tuple(
        suspect for suspect in suspects if suspect.code != "process-group-not-destroyed" or suspect.level < UNUSED_GROUP
    )


def _has_only_finished(suspects: Suspects, scene: Scene) -> bool:
    others = [
        suspect for suspect in suspects if suspect.level >= FALLBACK and suspect.code != "process-group-not-destroyed"
    ]
    return not others and any(FINISHED.search(line.text) for line in scene.lines)


def drop_stuck_watchdog(suspects: Suspects, scene: Scene) -> Suspects:
    """A watchdog that gets stuck after a collective has timed out is stuck because of it.

    After `find_absent_peer`, which a stuck watchdog keeps from naming a peer; before `find_refusal`.
    """
    first = min((line.at or 0.0 for line in scene.lines if TIMED_OUT_COLLECTIVE.search(line.text)), default=None)
    if first is None:
        return suspects
    return tuple(
        suspect
        for suspect in suspects
        if suspect.code != "nccl-watchdog-stuck" or suspect.line.at is None or suspect.line.at < first
    )


def find_refusal(suspects: Suspects, scene: Scene) -> Suspects:
    """A program that ended by itself before any step, with words about its settings and without an exception.

    Only if nothing else is known: after all rules that go by the output, and after `drop_own_signals`, because
    ddp-orch stops the other ranks when one refuses to start.
    """
    ended = [exit_ for exit_ in scene.exits if exit_.rank is not None and exit_.signal is None]
    if not ended or not {exit_.code for exit_ in ended} <= {1, 2} or scene.first_step is not None:
        return suspects
    if any(not exception.agent for exception in scene.exceptions) or any_proof(suspects, FALLBACK):
        return suspects
    line = next((line for line in scene.last_words if REFUSES.search(line.text)), None)
    if line is None:
        return suspects
    why = "it ended by itself before the first step, without an exception"
    line = replace(line, at=min((exit_.at for exit_ in ended if exit_.at is not None), default=line.at))
    return (*suspects, Suspect("script-bad-argument", REFUSED, line, None, scene.host_of(line), "low", why))
