"""Send signals to the ranks of a run, and have them save a snapshot. Ends nothing by itself."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from ..answers.signaled import SAVED, SIGNAL, Saved, Signaled
from ..errors import OrchError, UsageError
from ..hosts.fleet import Fleet, Results
from ..hosts.session import Session
from ..inventory.model import Host
from ..output.console import number_of

NUMBERS = {
    # of Linux on x86-64 and Arm, which the hosts run; the controller may be macOS, whose numbers differ
    "HUP": 1, "INT": 2, "QUIT": 3, "ILL": 4, "TRAP": 5, "ABRT": 6, "BUS": 7, "FPE": 8, "KILL": 9, "USR1": 10,
    "SEGV": 11, "USR2": 12, "PIPE": 13, "ALRM": 14, "TERM": 15, "STKFLT": 16, "CHLD": 17, "CONT": 18, "STOP": 19,
    "TSTP": 20, "TTIN": 21, "TTOU": 22, "URG": 23, "XCPU": 24, "XFSZ": 25, "VTALRM": 26, "PROF": 27, "WINCH": 28,
    "IO": 29, "PWR": 30, "SYS": 31,
}  # fmt: skip
WAIT = 5.0  # s of one request for the line that says that a snapshot is saved


@dataclass(frozen=True)
class SnapshotLine:
    """The line in which a rank says that it has saved a snapshot."""

    host: str
    rank: int
    text: str


def send(
    fleet: Fleet, hosts: Sequence[Host], run_id: str, number: int, ranks: Collection[int] | None = None
) -> Results[Signaled]:
    """Send a signal to the ranks of a run on these hosts, or to some of them."""
    return _request(fleet, hosts, run_id, number, ranks, only_if_caught=False, dry=False)


def check_handlers(fleet: Fleet, hosts: Sequence[Host], run_id: str) -> None:
    """Raises UsageError if a rank has no handler for the snapshot signal, which would end it, and OrchError if a host
    fails.
    """
    results = _request(fleet, hosts, run_id, None, None, only_if_caught=True, dry=True)
    _raise_first(results.failed)
    uncaught = {rank: (host, answer) for host, answer in results.done.items() for rank in answer.uncaught}
    if uncaught:
        rank = min(uncaught)
        host, answer = uncaught[rank]
        others = f" and {number_of(len(uncaught) - 1, 'other rank')}" if len(uncaught) > 1 else ""
        have, them = ("have", "them") if others else ("has", "it")
        raise UsageError(
            f"{host}: rank {rank}{others} {have} no handler for {name_of(answer.signal)}, which would end {them}. "
            "Install one that saves a snapshot, or set run.snapshot_signal to the one that the script expects"
        )
    if not any(answer.ranks for answer in results.done.values()):
        raise UsageError(f"run {run_id}: no rank is running")


def take_snapshot(fleet: Fleet, hosts: Sequence[Host], run_id: str, limit: float) -> SnapshotLine | None:
    """Signal all ranks and wait for the first line that says that a snapshot is saved; None after `limit` seconds.

    Raises as `check_handlers`.
    """
    deadline = time.monotonic() + limit
    check_handlers(fleet, hosts, run_id)
    sent = _request(fleet, hosts, run_id, None, None, only_if_caught=True, dry=False)
    _raise_first(sent.failed)
    offsets: dict[str, Mapping[str, int]] = {host: answer.offsets for host, answer in sent.done.items()}

    def wait(host: Host, session: Session) -> Saved:
        seconds = max(0.0, min(WAIT, deadline - time.monotonic()))
        arguments = {"run_id": run_id, "offsets": dict(offsets[host.name]), "seconds": seconds}
        return session.request(SAVED, arguments, extra_time=seconds)

    while True:
        waiting = [host for host in hosts if host.name in offsets]
        results = fleet.each(waiting, wait, enough=lambda results: any(saved.line for saved in results.done.values()))
        for host, saved in results.done.items():
            if saved.line is not None and saved.rank is not None:
                return SnapshotLine(host, saved.rank, saved.line)
            offsets[host] = saved.offsets
        _raise_first(results.failed)
        if time.monotonic() >= deadline:
            return None


def name_of(number: int) -> str:
    """Such as `SIGUSR1`; `signal 40` for those without a name."""
    return next((f"SIG{name}" for name, known in NUMBERS.items() if known == number), f"signal {number}")


def _request(
    fleet: Fleet,
    hosts: Sequence[Host],
    run_id: str,
    number: int | None,
    ranks: Collection[int] | None,
    *,
    only_if_caught: bool,
    dry: bool,
) -> Results[Signaled]:
    arguments = {
        "run_id": run_id,
        "signal": number,
        "ranks": None if ranks is None else sorted(ranks),
        "only_if_caught": only_if_caught,
        "dry": dry,
    }
    return fleet.each(hosts, lambda host, session: session.request(SIGNAL, arguments), "signaling")


def _raise_first(failed: Mapping[str, OrchError]) -> None:
    for error in failed.values():
        raise error
