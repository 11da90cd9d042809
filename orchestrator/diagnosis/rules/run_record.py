"""What the hosts of a run know beyond its output: who stopped it, which host was lost, where its ranks were. Pure."""

from __future__ import annotations

import signal
from dataclasses import replace

from ...output.folding import name_ranks
from .. import dumps, recorder_lines, stacks
from ..busy import FINISHED, STEP
from ..confidence import SAME_TIME
from ..hangs import PEER_GONE
from ..scene import Scene
from ..suspects import ENDING, SPECIFIC, Suspect, Suspects, any_proof
from ..transcript import LogLine

OWN_SIGNALS = ("sigterm-preempted", "user-interrupt", "sighup-session-closed")
ASKED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""Signals that launchers report themselves."""
OF_FAILED_WRITES = (signal.SIGABRT, signal.SIGBUS)
REPORTED = 93  # levels of what the rules here conclude
EARLY_END = ENDING + 5
FULL_DISK = SPECIFIC + 10
SHOWN_HANG, UNSURE_HANG = 36, 22
COUNTED_KILL = "the cgroup counted a kill for lack of memory"
FIND_KILLER = (
    "Find out what killed it: the kernel for want of memory (`dmesg`), the end of a session, a clean-up script, or a "
    "person."
)
HANDLE = "Nothing to fix, if that was meant. A signal that should not end the ranks needs a handler in the script."
FROM_OUTSIDE = "SIGTERM from outside"
"""Who has stopped a run if somebody else than ddp-orch sent the signal, as node/guard/guard.py says it."""
ENDED_BY_OTHERS = (
    "The run got SIGTERM, and not from ddp-orch: an administrator, a shutdown of the host, a scheduler or a person "
    "has ended it."
)
ASK = (
    "Ask the administrators, or see `journalctl`, `last -x` and the scheduler's log on the hosts. To start the run "
    "again: ddp-orch restart."
)
QUIT = "Rank {rank} ended by itself, with exit code 0, while the others continued to train."
FIND_QUIT = (
    "Look for an early `sys.exit`, `return` or `break` that only this rank comes to. If there is none, it had fewer "
    "batches than the others: use DistributedSampler with drop_last or `with model.join():`."
)


def drop_own_signals(suspects: Suspects, scene: Scene) -> Suspects:
    """Signals that ddp-orch itself sent after the first failure are no cause.

    After the rules that ask whether a rank ended at all, whatever ended it; before `find_refusal`, which asks whether
    anything else explains the failure.
    """
    known = (scene.record.failed_at, recorder_lines.find_own_stop(scene.recorder_lines))
    since = min((at for at in known if at is not None), default=float("inf"))
    return tuple(suspect for suspect in suspects if suspect.code not in OWN_SIGNALS or (suspect.line.at or 0.0) < since)


def add_stop(suspects: Suspects, scene: Scene) -> Suspects:
    """The run was stopped, and its head knows by whom.

    Before `find_early_finisher`, which asks whether any end is known.
    """
    if scene.record.stopped_by is None:
        return suspects
    line = LogLine(len(scene.lines), "", None, None, None, f"stopped by {scene.record.stopped_by}")
    if scene.record.stopped_by == FROM_OUTSIDE:
        suspect = Suspect("sigterm-preempted", REPORTED, line, None, None, "high", line.text)
        return (*suspects, replace(suspect, meaning=ENDED_BY_OTHERS, fix=ASK))
    return (*suspects, Suspect("user-interrupt", REPORTED, line, None, None, "high", line.text))


def add_sent_signal(suspects: Suspects, scene: Scene) -> Suspects:
    """A person sent a rank the signal that ended it, with `ddp-orch signal`, before anything else had failed.

    After `drop_own_signals`, which drops what others say of a signal; before `find_early_finisher`, as `add_stop`.
    """
    sent = [exit_ for exit_ in scene.exits if exit_.requested and exit_.line is not None]
    first = min(sent, key=lambda exit_: exit_.at or 0.0, default=None)
    failed_at = scene.record.failed_at
    if first is None or first.line is None or (failed_at is not None and (first.at or 0.0) > failed_at + SAME_TIME):
        return suspects
    number = first.signal or 0
    if number == signal.SIGABRT and scene.stacks:  # to see where the ranks are, which `add_hang_causes` tells
        return suspects
    name = signal.Signals(number).name if number in set(signal.Signals) else "a signal"
    ended = name_ranks([exit_.rank for exit_ in sent if exit_.rank is not None])
    meaning = f"A person sent {name} with `ddp-orch signal`, which ended {ended}."
    suspect = Suspect("user-interrupt", REPORTED, first.line, first.rank, first.host, "high")
    return (*suspects, replace(suspect, meaning=meaning, fix=HANDLE))


def add_killed_launcher(suspects: Suspects, scene: Scene) -> Suspects:
    """A signal that ended torchrun on a host, which its guard saw first: ranks of other hosts then lost their peers.

    Before `find_early_finisher`, as `add_stop`. The ranks of that host were killed by the kernel, with torchrun.
    """
    killed = [exit_ for exit_ in scene.exits if exit_.agent and exit_.number < 0 and exit_.signal not in (None, *ASKED)]
    first = min(killed, key=lambda exit_: exit_.at or 0.0, default=None)
    failed_at = scene.record.failed_at
    if first is None or first.line is None or (failed_at is not None and (first.at or 0.0) > failed_at + SAME_TIME):
        return suspects
    by_memory = first.signal == signal.SIGKILL and first.host in scene.record.oom_hosts
    suspect = Suspect("agent-killed", REPORTED, first.line, None, first.host, "high")
    if by_memory:
        suspect = replace(suspect, code="cgroup-oom-killed", confidence="medium", why=COUNTED_KILL)
    else:
        what = first.line.text.partition(" (")[0].replace(": killed", " was killed")
        suspect = replace(suspect, meaning=f"On this host, {what}. Its ranks ended with it.", fix=FIND_KILLER)
    others = (each for each in suspects if each.code != "worker-sigkilled" or each.host != first.host)
    return (*others, suspect)


def add_full_disk(suspects: Suspects, scene: Scene) -> Suspects:
    """The rank that failed first, on a host whose disk was full: then its last words are often lost.

    Only if no error names itself there. Before `find_early_finisher`, as `add_stop`.
    """
    failed = [exit_ for exit_ in scene.record.exits if exit_.rank is not None]
    first = min(failed, key=lambda exit_: exit_.at or 0.0, default=None)
    if first is None or first.host is None or first.line is None or first.signal not in (None, *OF_FAILED_WRITES):
        return suspects
    full = recorder_lines.find_full_disk(scene.recorder_lines, first.host)
    own = (each for each in suspects if each.host == first.host and each.rank in (None, first.rank))
    if full is None or any_proof(tuple(own), SPECIFIC):
        return suspects
    line = replace(first.line, text=f"{full.text}\n{first.line.text}")
    meaning = f"The disk of {first.host} was full when rank {first.rank} ended: probably a write of it failed."
    return (*suspects, Suspect("disk-full", FULL_DISK, line, first.rank, first.host, "medium", meaning=meaning))


def check_cgroup_kills(suspects: Suspects, scene: Scene) -> Suspects:
    """SIGKILL on a host whose cgroup has counted a kill for lack of memory.

    It changes a code only; after `add_rank_to_memory_kills`, which would take another rank for such a suspect.
    """
    return tuple(
        replace(suspect, code="cgroup-oom-killed", confidence="medium", why=COUNTED_KILL)
        if suspect.code == "worker-sigkilled" and suspect.host in scene.record.oom_hosts
        else suspect
        for suspect in suspects
    )


def find_early_finisher(suspects: Suspects, scene: Scene) -> Suspects:
    """Ranks that had ended with exit code 0 when another one lost its peer: they left, or had fewer batches.

    The first of them is blamed if its steps show that it was not ahead of the others, and it says of no end.
    Only where no end is known, and so after `drop_own_signals` and `add_stop`; before `add_lost_host`, which adds one.
    """
    finished, failed_at = scene.record.finished or {}, scene.record.failed_at
    early = sorted(rank for rank, at in finished.items() if failed_at is not None and at < failed_at)
    complaints = [
        exception
        for exception in scene.exceptions
        if not exception.agent
        and exception.line.rank not in finished
        and any(PEER_GONE.search(text) for text in exception.lines)
    ]
    if not early or not complaints or any_proof(suspects, ENDING):
        return suspects
    quitter = min(early, key=lambda rank: finished[rank])
    if (last := _last_step_before_quitting(quitter, scene)) is not None:
        line = replace(last, at=finished[quitter])
        left = Suspect("uneven-inputs", EARLY_END, line, quitter, scene.host_of(last), "medium")
        return (*suspects, replace(left, meaning=QUIT.format(rank=quitter), fix=FIND_QUIT))
    first = complaints[0]
    why = f"{name_ranks(early)} had ended with exit code 0 while others still waited"
    host = scene.host_of(first.line)
    uneven = Suspect("uneven-inputs", EARLY_END, first.line, first.line.rank, host, "medium", why, first)
    return (*suspects, uneven)


def _last_step_before_quitting(quitter: int, scene: Scene) -> LogLine | None:
    """The last line with a step of a rank that ended; None if it may have come to the end of its data.

    It has not if another rank printed that step, or a later one, and the rank itself says nothing of an end.
    """
    own = [line for line in scene.lines if line.rank == quitter]
    last = next((line for line in reversed(own) if STEP.search(line.text)), None)
    if last is None or any(FINISHED.search(line.text) for line in own if line.number >= last.number):
        return None
    reached = _steps(last)
    others = (_steps(line) for line in scene.lines if line.rank is not None and line.rank != quitter)
    return last if any(len(steps) == len(reached) and steps >= reached for steps in others) else None


def _steps(line: LogLine) -> tuple[int, ...]:
    """The numbers of the epoch and the step in a line."""
    return tuple(int(match["number"]) for match in STEP.finditer(line.text))


def drop_after_stacks(suspects: Suspects, scene: Scene) -> Suspects:
    """The hosts showed the stacks of all ranks, and stopped them: what comes after that is ddp-orch's own doing.

    After all rules that find suspects, and before `add_hang_causes`, whose suspects have the time of the stacks.
    """
    if not scene.stacks:
        return suspects
    shown = scene.stacks[0].line
    return tuple(
        suspect
        for suspect in suspects
        if suspect.line.number < shown.number and (suspect.line.at or 0) < (shown.at or 1)
    )


def add_hang_causes(suspects: Suspects, scene: Scene) -> Suspects:
    """Who keeps the others waiting, by flight-recorder dumps and by stacks. After `drop_after_stacks`."""
    return suspects + _suspect_by_dumps(scene) + _suspect_by_stacks(scene)


def _suspect_by_dumps(scene: Scene) -> Suspects:
    cause = dumps.find_hang_cause(scene.record.dumps)
    if cause is None:
        return ()
    host = scene.ranks.get(cause.rank) if cause.rank is not None else None
    line = LogLine(len(scene.lines), host or "", host, cause.rank, None, "\n".join(cause.evidence))
    return (Suspect(cause.code, SHOWN_HANG, line, cause.rank, host, "medium", cause.why),)


def _suspect_by_stacks(scene: Scene) -> Suspects:
    shown = stacks.find_hang_cause(stacks.go_back(scene.stacks, scene.exceptions))
    if shown is None:
        return ()
    cause, line = shown
    line = replace(line, text="\n".join(cause.evidence))
    if cause.rank is None:
        unsure = Suspect(cause.code, UNSURE_HANG, line, None, None, "low", cause.why)
        return (replace(unsure, meaning=cause.meaning, fix=cause.fix),)
    return (Suspect(cause.code, SHOWN_HANG, line, cause.rank, line.host, "medium", cause.why),)
