"""Hosts that have failed in more runs than the others have, by what all hosts remember. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from ..answers.ledger import EndedRun, HostFailure

RECENT = 5  # runs
FAILED_LEAST = 2  # of them
NOT_THE_HOST = ("script-exception", "collective-timeout", "cgroup-oom-killed", "worker-sigkilled", "membership-changed")
"""Codes of failures that say nothing about their host. At the limit of its cgroup, the script itself takes the memory.
Without a lack of memory, a person has killed the rank. A head without a majority was left alone by the others.
"""
NO_MAJORITY = "no majority is left"
"""In the text of a failure: several hosts were silent at once, as when a network fails between them."""


@dataclass(frozen=True)
class Unreliable:
    """A host whose failures ended attempts of `failed` of the last `runs` runs that it took part in."""

    host: str
    failed: int
    runs: int
    last: HostFailure
    run_id: str
    """The id of `last`."""

    def __str__(self) -> str:
        return f"failed in {self.failed} of the last {self.runs} runs"


def find_unreliable(ledgers: Mapping[str, Sequence[EndedRun]]) -> tuple[Unreliable, ...]:
    """`ledgers`: by host. A host that was lost wrote nothing of that run, so all of them are asked about each host."""
    every = _runs(ledgers)
    recent = {
        host: sorted((run for run in every.values() if _took_part(host, run, ledger)), key=lambda run: run.at)[-RECENT:]
        for host, ledger in ledgers.items()
    }
    failed = {host: [run for run in runs if _failures(host, run)] for host, runs in recent.items()}
    unreliable = []
    for host, runs in failed.items():
        others = [len(some) for other, some in failed.items() if other != host]
        if len(runs) >= FAILED_LEAST and len(runs) > median(others or [0]):
            last = _failures(host, runs[-1])[-1]
            unreliable.append(Unreliable(host, len(runs), len(recent[host]), last, runs[-1].run_id))
    return tuple(unreliable)


def _runs(ledgers: Mapping[str, Sequence[EndedRun]]) -> dict[str, EndedRun]:
    """Each run once. The head knows most; a host that was cut off takes the head for lost."""
    runs: dict[str, EndedRun] = {}
    for run in (run for ledger in ledgers.values() for run in ledger):
        known = runs.get(run.run_id)
        if known is None or run.node < known.node:
            runs[run.run_id] = run
    return runs


def _took_part(host: str, run: EndedRun, ledger: Iterable[EndedRun]) -> bool:
    return any(run.run_id == known.run_id for known in ledger) or any(host == one.host for one in run.failures)


def _failures(host: str, run: EndedRun) -> list[HostFailure]:
    own = [failure for failure in run.failures if failure.host == host and failure.code not in NOT_THE_HOST]
    return [failure for failure in own if NO_MAJORITY not in failure.what and not failure.outage]
