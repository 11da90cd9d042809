"""Types for the values in answers: names, ids, states, times, numbers, each with a check of its value. Pure."""

from __future__ import annotations

import ipaddress
import re
from typing import Annotated

from ..inventory.hostnames import NAME
from ..inventory.run_ids import RUN_ID, RUN_NAME


def is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def is_unix_time(seconds: float) -> bool:
    return 0 <= seconds < 253_402_300_800


def is_grace(seconds: float) -> bool:
    return 0 <= seconds <= 86_400


def is_lease(seconds: float) -> bool:
    return 0 < seconds <= 600


def is_interval(pair: tuple[float, float]) -> bool:
    return pair[0] <= pair[1]


HostName = Annotated[str, re.compile(NAME).fullmatch]
ProblemCode = Annotated[str, re.compile(r"[a-z0-9]+(-[a-z0-9]+){0,9}").fullmatch]
"""As of a finding of `check`."""
RunId = Annotated[str, RUN_ID.fullmatch]
RunName = Annotated[str, RUN_NAME.fullmatch]
Address = Annotated[str, is_address]
Port = Annotated[int, range(65_536).__contains__]
UNFINISHED = ("starting", "running", "suspect", "restarting", "waiting", "stopping")
_FINAL = r"succeeded|failed|stopped|killed|lost"
State = Annotated[str, re.compile(f"{'|'.join(UNFINISHED)}|{_FINAL}").fullmatch]
FinalState = Annotated[str, re.compile(_FINAL).fullmatch]
"""`stopped`: ended on request or by run.walltime, after the ranks were asked for a snapshot."""
Signal = Annotated[str, re.compile(r"SIG[A-Z0-9+]{1,12}").fullmatch]
StreamName = Annotated[str, re.compile(r"[0-9]{1,7}\.(agent|run|[0-9]{1,7})\.(out|err)").fullmatch]
"""`ATTEMPT.ORIGIN.out`: the origin is a rank, the agent, or the run itself."""
Timestamp = Annotated[str, re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:.]{8,18}(Z|[+-][0-9]{2}:[0-9]{2})").fullmatch]
"""RFC 3339."""
UnixTime = Annotated[float, is_unix_time]
"""Seconds since 1970; the year has four digits."""
Grace = Annotated[float, is_grace]
"""Seconds; at most a day, as in the inventory."""
Lease = Annotated[float, is_lease]
"""Seconds; at most ten minutes, as in the inventory."""
VariableName = Annotated[str, re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,254}").fullmatch]
AbsolutePath = Annotated[str, re.compile(r"/[^\x00-\x1f]{0,4095}").fullmatch]
CudaVersion = Annotated[str, re.compile(r"[0-9]{1,4}(\.[0-9]{1,6}){0,3}").fullmatch]

# far more than any run has, but not so many that counting to them takes long
NodeNumber = Annotated[int, range(100_000).__contains__]
Rank = Annotated[int, range(1_000_000).__contains__]
Attempt = Annotated[int, range(10_000_000).__contains__]
Epoch = Annotated[int, range(10_000_000).__contains__]
Nproc = Annotated[int, range(4_097).__contains__]
TeamSize = Annotated[int, range(100_001).__contains__]
