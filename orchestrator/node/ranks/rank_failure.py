"""What is known of a process that has failed: how it ended, and who or what may have killed it."""

import signal
import time
from os import WEXITSTATUS, WIFSIGNALED, WTERMSIG
from typing import Any, Dict, Optional, Tuple

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


def oom_kills() -> str:
    """How many processes of this host the kernel has killed because memory was short; "" where it does not count."""
    lines = text_of("/proc/vmstat").splitlines()
    return next((line for line in lines if line.startswith("oom_kill ")), "")


def record(
    who: str,
    rank: Optional[int],
    status: Optional[int],
    pid: int,
    what: str,
    sent: Optional[int],
    oom_kills_before: str,
) -> Dict[str, Any]:
    """`status`: None if only torchrun has it. `what`: what happened, "": as its status says.

    `sent`: the signal that a person had sent to the rank.
    `oom_kills_before`: when the attempt began. `requested` and `oom` are there only if they are true.
    """
    code, name = describe(status)
    failure = {"rank": rank, "exit_code": code, "signal": name, "pid": pid, "at": time.time()}
    what = what or ("killed by %s" % name if name else "exit code %d" % (code or 0))
    if status is not None and name is not None and WTERMSIG(status) == sent:
        failure["requested"] = True
        what += ", sent by `ddp-orch signal`"
    elif name == "SIGKILL" and oom_kills() != oom_kills_before:
        failure["oom"] = True
    return dict(failure, what="%s: %s" % (who, what))
