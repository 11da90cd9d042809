"""The runs on the hosts, whoever started them: found, told apart, described. The hosts know."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

from ..answers.ledger import EndedRun
from ..answers.runs import LIST, UNFINISHED, Part, RunList
from ..errors import OrchError, UnreachableError, UsageError
from ..hosts import claims
from ..hosts.fleet import Fleet, Results
from ..hosts.session import Session
from ..inventory.advice import command
from ..inventory.model import Host
from ..inventory.run_ids import RUN_ID, SUFFIX
from ..output.console import fold

PATIENCE = 2.0  # s for all hosts to answer, before what has come may be enough
QUIET = 1.0  # s without one more answer: of many hosts the last ones are slow, not silent


@dataclass(frozen=True)
class Run:
    """One run, put together from what its hosts say of it."""

    run_id: str
    name: str
    state: str
    attempt: int
    started_at: str
    parts: Mapping[str, Part]
    """What each of its hosts that answered says, by the host's name in our inventory."""
    disputed: frozenset[str] = frozenset()
    """Hosts of `parts` that contradict each other."""

    @property
    def nodes(self) -> dict[str, int]:
        """The node that each host is, the head first; without the hosts that contradict each other."""
        nodes = {host: part.node for host, part in self.parts.items() if host not in self.disputed}
        return dict(sorted(nodes.items(), key=lambda item: item[1]))

    @property
    def unfinished(self) -> bool:
        return self.state in UNFINISHED

    @property
    def broken(self) -> bool:
        """Over as a whole, while a host still has a part that is not."""
        return not self.unfinished and any(part.unfinished for part in self.parts.values())

    @property
    def hosts(self) -> tuple[str, ...]:
        """All its hosts in the order of nodes, by their names in the inventory that it was started from."""
        return self._first.hosts

    @property
    def unheard(self) -> tuple[str, ...]:
        """Those of `hosts` that told nothing of it."""
        heard = {part.node for part in self.parts.values()}
        return tuple(name for node, name in enumerate(self.hosts) if node not in heard)

    @property
    def all_nodes(self) -> dict[str, int]:
        """As `nodes`, with those of `unheard`."""
        return {**{name: node for node, name in enumerate(self.hosts) if name in self.unheard}, **self.nodes}

    @property
    def by(self) -> str:
        """Who started it, as user@machine."""
        return self._first.by

    @property
    def script(self) -> str:
        return self._first.script

    @property
    def grace(self) -> float:
        """Seconds between TERM and KILL when it is stopped."""
        return float(self._first.grace)

    @property
    def ended_at(self) -> float | None:
        """Unix seconds, by the clock of the host that was the last to end; None if none has."""
        return max((part.ended_at for part in self.parts.values() if part.ended_at is not None), default=None)

    @property
    def ranks(self) -> int:
        """As many as any attempt may have had."""
        return self._first.ranks

    @property
    def _first(self) -> Part:
        return self.parts[next(iter(self.nodes or self.parts))]

    def as_dict(self) -> dict[str, Any]:
        nodes = [
            {
                "host": host,
                "node_rank": part.node_rank,
                "state": part.state,
                "exit_code": part.exit_code,
                "signal": part.signal,
                "pid": part.pid if part.unfinished else None,
            }
            for host, part in sorted(self.parts.items(), key=lambda item: item[1].node)
        ]
        return {
            "run_id": self.run_id,
            "name": self.name,
            "state": self.state,
            "attempt": self.attempt,
            "started_at": self.started_at,
            "nodes": nodes,
        }


@dataclass(frozen=True)
class Listing:
    runs: tuple[Run, ...]
    """The newest last."""
    failed: Mapping[str, OrchError]
    answered: frozenset[str] = frozenset()
    late: frozenset[str] = frozenset()
    """Hosts among the failed that nobody has waited for."""
    passed_over: Mapping[str, str] = field(default_factory=dict)
    """Why a host's records in its usual state folder could not be read."""
    doubts: tuple[str, ...] = ()
    """Which hosts are not believed, and why: one sentence each."""
    ledgers: Mapping[str, Sequence[EndedRun]] = field(default_factory=dict)
    """The ended runs that each host remembers."""

    @property
    def missing(self) -> Mapping[str, OrchError]:
        """Hosts that failed, without those that may still answer."""
        return {host: error for host, error in self.failed.items() if host not in self.late}

    def unheard(self, run: Run) -> tuple[str, ...]:
        """Hosts of the run that were not asked or not reached. (One that has answered has its record no more.)"""
        return tuple(host for host in run.unheard if host not in self.answered)


Answer = tuple[RunList, str]  # and why the usual state folder could not be read


def find(
    fleet: Fleet,
    hosts: Sequence[Host],
    enough: Callable[[Listing], bool] | None = None,
    doing: str = "looking for runs",
) -> Listing:
    """What all hosts know. `enough`: see `Search.wait`."""
    return Search(fleet, hosts, doing).wait(enough)


class Search:
    """What all hosts know of runs, as their answers come: one silent host need not hold up the others."""

    def __init__(
        self, fleet: Fleet, hosts: Sequence[Host], doing: str = "looking for runs", *, members: bool = False
    ) -> None:
        """`members`: each part of an unfinished run has its processes in `members`, too."""

        def ask(_: Host, session: Session) -> Answer:
            return session.request(LIST, {"members": members}), "; ".join(session.hello.passed_over)

        fleet.prepare(hosts)
        self._work = fleet.begin(hosts, ask, doing)
        self._began = time.monotonic()
        self._newest = 0, self._began  # how many have answered or failed, and when that last became more

    def wait(self, enough: Callable[[Listing], bool] | None = None) -> Listing:
        """What all hosts know. `enough` sees what has come after PATIENCE seconds, once no more comes, and at an
        interrupt; where it returns True, the listing has the other hosts as `late`. Wait again for the rest.
        """

        def is_enough(answers: Results[Answer]) -> bool:
            return enough is not None and self._is_silent(answers) and enough(_listing(answers))

        return _listing(self._work.wait(is_enough if enough else None))

    def _is_silent(self, answers: Results[Answer]) -> bool:
        now = time.monotonic()
        count = len(answers.done) + len(answers.failed) - len(answers.late)
        if count > self._newest[0]:
            self._newest = count, now
        return now - self._began > PATIENCE and now - self._newest[1] > QUIET


def _listing(answers: Results[Answer]) -> Listing:
    passed_over = {host: why for host, (_, why) in answers.done.items() if why}
    parts: dict[str, dict[str, Part]] = {}
    for host, (answer, _) in answers.done.items():
        for part in answer.runs:
            parts.setdefault(part.run_id, {})[host] = part
    judged = {run_id: claims.check_claims(of_hosts, answers.failed) for run_id, of_hosts in parts.items()}
    runs = sorted(
        (_join(run_id, of_run) for run_id, of_run in judged.items() if of_run.parts),
        key=lambda run: (run.started_at, run.run_id),
    )
    return Listing(
        tuple(runs),
        answers.failed,
        frozenset(answers.done),
        answers.late,
        passed_over,
        _doubts(judged),
        {host: answer.ledger for host, (answer, _) in answers.done.items()},
    )


def _join(run_id: str, of_run: claims.Claims) -> Run:
    parts = of_run.parts.values()
    believed = [part for host, part in of_run.parts.items() if host not in of_run.disputed]
    first = min(believed or parts, key=lambda part: part.node)
    state, attempt = first.state if believed else "lost", first.attempt
    # the head, if it answered, knows the state of the whole run; any other only its own
    if not believed or first.node != 0:
        attempt = max(part.attempt for part in parts)
        if state not in UNFINISHED:
            states = {part.state for part in parts}
            state = next((one for one in UNFINISHED if one in states), state)
    return Run(run_id, first.name, state, attempt, first.started_at, of_run.parts, of_run.disputed)


def _doubts(judged: Mapping[str, claims.Claims]) -> tuple[str, ...]:
    strangers: dict[str, list[str]] = {}
    disputed: dict[frozenset[str], list[str]] = {}
    for run_id, of_run in judged.items():
        for host in of_run.strangers:
            strangers.setdefault(host, []).append(run_id)
        if of_run.disputed:
            disputed.setdefault(of_run.disputed, []).append(run_id)
    return (
        *(
            f"{host}: ignored its answer about {_some(run_ids)}, because other hosts or its own name contradict it"
            for host, run_ids in sorted(strangers.items())
        ),
        *(
            f"{fold(hosts)}: their answers about {_some(run_ids)} contradict each other; neither is used"
            for hosts, run_ids in disputed.items()
        ),
    )


def _some(run_ids: Sequence[str]) -> str:
    return f"run {run_ids[0]}" + (f" and {len(run_ids) - 1} more" if len(run_ids) > 1 else "")


def choose(listing: Listing, wanted: str | None, inventory: str) -> Run:
    """A run by its id, its name (the newest of that name) or a unique prefix of an id; by default the newest.

    `inventory`: the one whose hosts were asked. Raises UsageError, or UnreachableError where a host that was not
    reached might know the run.
    """
    runs = listing.runs
    if wanted is None:
        if not runs:
            raise _missing(listing, "there is no run on these hosts")
        return runs[-1]
    if not wanted:
        raise UsageError("RUN '': leave it out for the newest, or give an id, a name or the beginning of an id")
    exact = [run for run in runs if wanted in (run.run_id, run.name)]
    if exact:
        return exact[-1]
    prefixed = [run for run in runs if run.run_id.startswith(wanted)]
    if not prefixed and len(wanted) >= SUFFIX:
        prefixed = [run for run in runs if run.run_id.endswith(wanted)]
    if not prefixed:
        every = f"`{command('ps', '--all', inventory=inventory)}`"
        newest = f"; the newest is {runs[-1].run_id}" if runs else ""
        about = f"{_hint_at_missing(wanted, runs)}{newest}"
        raise _missing(listing, f"no run {wanted!r} on these hosts{about}; {every} lists them")
    if len(prefixed) > 1:
        found = ", ".join(run.run_id for run in prefixed)
        raise UsageError(f"{wanted!r} matches several runs: {found}; give more characters")
    return prefixed[0]


def _hint_at_missing(wanted: str, runs: Sequence[Run]) -> str:
    if RUN_ID.fullmatch(wanted):  # a whole id is pasted, not mistyped
        return " (it may have been pruned; `fetch` can still download its outputs)"
    names = [name for run in reversed(runs) for name in (run.name, run.run_id)]
    alike = get_close_matches(wanted, names, 1)
    return f" (did you mean {alike[0]}?)" if alike else ""


def is_found(wanted: str | None, inventory: str, listing: Listing) -> bool:
    """Whether a run can be chosen at all; a host that has not answered may have a newer one."""
    try:
        choose(listing, wanted, inventory)
    except OrchError:
        return False
    return True


def is_known(wanted: str | None, inventory: str, listing: Listing) -> bool:
    """Whether the run is one to look at: a host that has not answered may have a newer one, of that name too."""
    if wanted is None:
        return any(run.unfinished for run in listing.runs)
    if not is_found(wanted, inventory, listing):
        return False
    run = choose(listing, wanted, inventory)
    return run.run_id == wanted or run.unfinished


def _missing(listing: Listing, message: str) -> OrchError:
    if listing.failed:
        return UnreachableError(f"{message}; {fold(listing.failed)} could not be asked")
    return UsageError(message)
