"""What is known of a process that has failed: how it ended, and who or what may have killed it."""

import signal
import time
from os import WEXITSTATUS, WIFSIGNALED, WTERMSIG
from typing import Any, Dict, NamedTuple, Optional, Tuple

from ..host.small_files import text_of


def describe(status: Optional[int]) -> Tuple[Optional[int], Optional[str]]:
    """(exit code, signal name) of a wait status; at least one of the two is None."""
    if status is None:
        return None, None
    if WIFSIGNALED(status):
        number = WTERMSIG(status)
        try:
            return None, signal.Signals(number).name
        except ValueError:
            return None, "SIG%d" % number
    return WEXITSTATUS(status), None


class MemoryKills(NamedTuple):
    """What the kernel counts of processes that it has killed because memory was short; "" where it does not count."""

    of_host: str
    at_own_limit: str  # lacks of memory at the limit of this cgroup, which the ranks are in


def memory_kills() -> MemoryKills:
    group = text_of("/proc/self/cgroup").partition("0::")[2].partition("\n")[0].rstrip("/")
    return MemoryKills(
        _line_of("/proc/vmstat", "oom_kill "), _line_of("/sys/fs/cgroup%s/memory.events" % group, "oom ")
    )


def _line_of(path: str, begin: str) -> str:
    return next((line for line in text_of(path).splitlines() if line.startswith(begin)), "")


def record(
    who: str,
    rank: Optional[int],
    status: Optional[int],
    pid: int,
    what: str,
    sent: Optional[int],
    kills_before: MemoryKills,
) -> Dict[str, Any]:
    """`status`: None if only torchrun has it. `what`: what happened, "": as its status says.

    `sent`: the signal that a person had sent to the rank.
    `kills_before`: when the attempt began. `requested`, `oom` and `own_limit` are there only if they are true.
    """
    code, name = describe(status)
    failure = {"rank": rank, "exit_code": code, "signal": name, "pid": pid, "at": time.time()}
    what = what or ("killed by %s" % name if name else "exit code %d" % (code or 0))
    if status is not None and name is not None and WTERMSIG(status) == sent:
        failure["requested"] = True
        what += ", sent by `ddp-orch signal`"
    elif name == "SIGKILL":
        kills = memory_kills()
        failure.update({"oom": True} if kills != kills_before else {})
        failure.update({"own_limit": True} if kills.at_own_limit != kills_before.at_own_limit else {})
    return dict(failure, what="%s: %s" % (who, what))
