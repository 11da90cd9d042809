"""Choose the finished runs that run.keep does not keep, and delete each from all of its hosts, or from none.

A host alone cannot decide: it may have newer runs that the other hosts of the run do not have, or files that were not
fetched, and without the part of one host, the log and the records of the others are half a run.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from ..answers.files import PRUNE
from ..answers.finished import DueRun, Finished
from ..hosts.fleet import Fleet, fold_failures
from ..inventory import advice
from ..inventory.model import Host
from ..output.console import fold_messages, number_of, size
from .probe import Probed

MAX_LISTED_RUNS = 3
UNFETCHED_BYTES = 100_000_000
UNFETCHED_RUNS = 20


@dataclass(frozen=True)
class Choice:
    """Which finished runs to delete, and which not yet."""

    runs: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """By id of a run to delete: the hosts that have it."""
    unfetched: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """By host: the runs that are only kept because of its files that were not fetched, and the bytes of each."""
    waiting: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """By id of a run that is only kept because some of its hosts could not be asked: these hosts."""

    def on(self, host: str) -> list[str]:
        """The runs to delete from a host."""
        return [run_id for run_id, hosts in self.runs.items() if host in hosts]


def choose(answers: Mapping[str, Finished], blind: Collection[str] = (), *, force: bool = False) -> Choice:
    """Choose the runs that all of their hosts would delete.

    `answers`: by host. A host that answers without a run has deleted it, except for hosts in `blind`, which could not
    read all of their records. A run that is old enough does not wait for hosts that could not be asked: they may never
    come back. `force`: also runs with files that were not fetched.
    """
    kept = {run_id for answer in answers.values() for run_id in answer.others}
    due: dict[str, dict[str, DueRun]] = {}
    for host, answer in answers.items():
        for run in answer.due:
            due.setdefault(run.run_id, {})[host] = run
    runs: dict[str, Sequence[str]] = {}
    unfetched: dict[str, dict[str, int]] = {}
    waiting: dict[str, Sequence[str]] = {}
    for run_id, parts in sorted(due.items()):
        if run_id in kept:
            continue
        missing = find_missing(parts.values(), set(answers) - set(blind))
        if missing and not all(part.expired for part in parts.values()):
            waiting[run_id] = missing
            continue
        with_files = {host: part.unfetched for host, part in parts.items() if part.unfetched is not None}
        if not with_files or force:
            runs[run_id] = tuple(parts)
            continue
        for host, count in with_files.items():
            unfetched.setdefault(host, {})[run_id] = count
    return Choice(runs, unfetched, waiting)


def find_missing(parts: Collection[DueRun], answered: Collection[str]) -> tuple[str, ...]:
    """The hosts of a run that gave no answer. `parts`: what the others know of it."""
    hosts = max((part.hosts for part in parts), key=len)  # only the head knows of hosts that were added
    nodes = {part.node for part in parts}
    return tuple(name for node, name in enumerate(hosts) if node not in nodes and name not in answered)


def delete_due_runs(
    hosts: Sequence[Host],
    probed: Mapping[str, Probed],
    fleet: Fleet,
    inventory: str,
    step: Callable[[str], None],
    warn: Callable[[str], None],
) -> None:
    """Delete what run.keep does not keep, and report it. `probed`: what the hosts have answered."""
    answers = {host.name: answer for host in hosts if (answer := probed[host.name].facts.finished) is not None}
    choice = choose(answers, [name for name in answers if probed[name].hello.passed_over])
    for line in fold_messages(
        {host: describe_unfetched(runs, inventory) for host, runs in choice.unfetched.items() if are_many(runs)}
    ):
        warn(line)
    if not choice.runs:
        return
    results = fleet.each(
        [host for host in hosts if choice.on(host.name)],
        lambda host, session: session.request(PRUNE, {"runs": choice.on(host.name), "keep": None}),
        "deleting old runs",
    )
    for line in fold_failures(results.failed):
        warn(f"old runs were not deleted: {line}")
    if deleted := [run_id for run_id, names in choice.runs.items() if not results.failed.keys() & set(names)]:
        what = number_of(len(deleted), "finished run")
        step(f"deleted {what} (not the outputs), as run.keep says: {list_runs(deleted)}")


def are_many(unfetched: Mapping[str, int]) -> bool:
    """Whether the runs that a host keeps only because their files were not fetched need attention at each start."""
    return sum(unfetched.values()) >= UNFETCHED_BYTES or len(unfetched) >= UNFETCHED_RUNS


def describe_unfetched(unfetched: Mapping[str, int], inventory: str) -> str:
    """The message about runs that are kept only because a host has files of them that were not fetched."""
    runs = sorted(unfetched)
    kept, them = ("a run is", "it") if len(runs) == 1 else (f"{len(runs)} runs are", "each of them, such as")
    fetch, prune = (
        advice.command(*words, inventory=inventory) for words in (("fetch", runs[-1]), ("prune", "--force"))
    )
    return (
        f"{kept} kept longer than run.keep allows ({size(sum(unfetched.values()))}), because files written outside "
        f"$DDP_ORCH_OUTPUT_DIR were not fetched: {list_runs(runs)}. "
        f"Fetch {them} with `{fetch}`, or delete {'it' if len(runs) == 1 else 'them'} with `{prune}`"
    )


def list_runs(runs: Sequence[str]) -> str:
    """The newest of these runs, and how many more."""
    more = f" and {len(runs) - MAX_LISTED_RUNS} more" if len(runs) > MAX_LISTED_RUNS else ""
    return f"{', '.join(runs[-MAX_LISTED_RUNS:])}{more}"
