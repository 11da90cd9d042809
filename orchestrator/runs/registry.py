"""List the runs on the hosts, whoever started them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from ..answers.fields import UNFINISHED
from ..answers.ledger import EndedRun
from ..answers.runs import LIST, OtherUsersRun, Part, RunList, Verdict, Waits, WarmPython
from ..errors import OrchError
from ..hosts import claims
from ..hosts.fleet import Fleet, Results
from ..hosts.session import Session
from ..inventory.model import Host
from ..inventory.run_ids import PART_OF_ID
from ..output.console import fold
from ..output.lines import rfc3339
from . import queued_runs

PATIENCE = 2.0  # s for all hosts to answer, before the answers so far may be enough
RESTART = " (to restart it)"  # how the `stopped_by` of a run ends that `restart` starts again
CHECK = "check --deep"  # who has started its run
WATCH = "up --watch"  # the `stopped_by` of a run that is started again because its code has changed
SOURCE = "restart, as the others have its files"  # who drains a host that joined a run for that alone
QUIET = 1.0  # s without another answer; while answers come, the remaining hosts are slow, not silent


@dataclass(frozen=True)
class Run:
    """A run, put together from the answers of its hosts."""

    run_id: str
    name: str
    state: str
    attempt: int
    started_at: str
    parts: Mapping[str, Part]
    """The answers of its hosts, by the host's name in the inventory of this command."""
    disputed: frozenset[str] = frozenset()
    """Hosts of `parts` whose answers contradict each other."""

    @property
    def nodes(self) -> dict[str, int]:
        """The node number of each host, the head first; without disputed hosts."""
        nodes = {host: part.node for host, part in self.parts.items() if host not in self.disputed}
        return dict(sorted(nodes.items(), key=lambda item: (item[1] != self.head, item[1])))

    @property
    def head(self) -> int:
        """The node that leads the run."""
        return claims.head_of(part for host, part in self.parts.items() if host not in self.disputed)

    @property
    def unfinished(self) -> bool:
        return self.state in UNFINISHED

    @property
    def rejoining(self) -> tuple[str, ...]:
        """If no host has a guard of the run, but some start one when they are booted (run.autostart): these hosts."""
        if self.unfinished or self.verdict is not None:
            return ()
        return tuple(host for host in self.nodes if self.parts[host].rejoins)

    @property
    def is_over(self) -> bool:
        """Whether it has ended, and no host starts it again by itself."""
        return not (self.unfinished or self.rejoining)

    @property
    def broken(self) -> bool:
        """The run has finished, but a host still has an unfinished part of it."""
        return not self.unfinished and any(part.unfinished for part in self.parts.values())

    @property
    def hosts(self) -> tuple[str, ...]:
        """All its hosts in the order of node numbers, by their names in the inventory that it was started with."""
        return self._first.hosts

    @property
    def nprocs(self) -> tuple[int, ...]:
        """The number of ranks of each of `hosts`."""
        return self._first.nprocs

    @property
    def witness(self) -> str | None:
        """That of `hosts` which only votes."""
        return self._first.witness

    @property
    def missing_hosts(self) -> tuple[str, ...]:
        """Those of `hosts` that gave no answer about it, without those that were drained."""
        return tuple(name for name in self._without_answer if name not in self.drained)

    @property
    def _without_answer(self) -> tuple[str, ...]:
        present = {part.node for part in self.parts.values()}
        return tuple(name for node, name in enumerate(self.hosts) if node not in present)

    @property
    def all_nodes(self) -> dict[str, int]:
        """As `nodes`, with the hosts that gave no answer."""
        return {**{name: node for node, name in enumerate(self.hosts) if name in self._without_answer}, **self.nodes}

    @property
    def by(self) -> str:
        """Who started it, as user@machine."""
        return self._first.by

    @property
    def script(self) -> str:
        return self._first.script

    @property
    def verdict(self) -> Verdict | None:
        """How it ended; None: it is not over, or no host that answered knows."""
        return None if self.unfinished else claims.verdict_of(self.parts, self.nodes)

    @property
    def stopped_by(self) -> str | None:
        """Who or what stopped it; None: nobody has, or it is not over."""
        return self.verdict.stopped_by if self.verdict else None

    @property
    def grace(self) -> float:
        """Seconds between TERM and KILL when it is stopped."""
        return float(self._first.grace)

    @property
    def lease(self) -> float:
        """Seconds of silence until a host counts as lost."""
        return float(self._first.lease)

    @property
    def ended_at(self) -> float | None:
        """Unix time, seconds, by the clock of the host that ended last; None if none has.

        A host that was off then ends later, and with another verdict, as it finds nobody of the run any more.
        """
        ended = [part for part in self.parts.values() if part.ended_at is not None]
        agreed = [part for part in ended if part.verdict == self.verdict]
        return max((part.ended_at for part in agreed or ended if part.ended_at is not None), default=None)

    @property
    def ranks(self) -> int:
        """The most ranks that an attempt may have had."""
        return self._first.ranks

    @property
    def _first(self) -> Part:
        return self.parts[next(iter(self.nodes or self.parts))]

    @property
    def left(self) -> frozenset[str]:
        """Those of `parts` that were drained: the run was stopped there only."""
        return frozenset(host for host, part in self.parts.items() if part.has_left)

    @property
    def drained(self) -> frozenset[str]:
        """Those of `hosts` that were drained, whether they answer or not."""
        trusted = [part for host, part in self.parts.items() if host not in self.disputed]
        return claims.drained_hosts(trusted) | {part.host for part in trusted if part.has_left}

    @property
    def sources(self) -> frozenset[str]:
        """Those of `left` that only gave the others their files."""
        return frozenset(
            host for host in self.left if (verdict := self.parts[host].verdict) and verdict.stopped_by == SOURCE
        )

    @property
    def without_guard(self) -> tuple[str, ...]:
        """Its hosts on which it is not over, but was ended by a reboot, or by a kill of the user's processes."""
        return tuple(host for host, part in self.parts.items() if self.unfinished and part.lacks_guard)

    @property
    def cut_off(self) -> tuple[str, ...]:
        """While it continues on others: its hosts that answer, but wait for hosts that they do not hear."""
        waiting = (host for host, part in self.parts.items() if part.unfinished and part.waits and not part.has_left)
        continues = self.unfinished and self.state != "waiting"
        return tuple(host for host in waiting if continues and self.parts[host].node != self.head)

    @property
    def spares(self) -> tuple[str, ...]:
        """Its hosts that have no rank in the newest attempt, and may have some in the next one."""
        return tuple(
            host
            for host, part in self.parts.items()
            if part.unfinished and part.node_rank is None and not part.is_witness and part.node != self.head
            if host not in self.cut_off
        )

    @property
    def waits(self) -> Waits | None:
        """What it waits for; None: it does not wait, or no host that answered knows."""
        parts = (self.parts[host] for host in self.nodes)
        known = (part.waits for part in parts if part.unfinished and part.waits)
        return next(known, None) if self.state == "waiting" else None

    @property
    def suspects(self) -> tuple[str, ...]:
        """While its state is `suspect`: its hosts that are silent, by their names in `hosts`, as the head knows."""
        return self._of_head.suspects if self.state == "suspect" and self._of_head else ()

    @property
    def unfit(self) -> Mapping[str, tuple[str, ...]]:
        """By host, as the head knows: the problems for which the newest attempt left it out, or the next one has to."""
        codes = self._of_head.unfit if self.unfinished and self._of_head else {}
        return {host: codes[part.host] for host, part in self.parts.items() if part.unfinished and part.host in codes}

    @property
    def _of_head(self) -> Part | None:
        return self._first if self._first.node == self.head else None

    def _state_of(self, name: str, part: Part) -> str:
        return "lost" if name in self.cut_off else "suspect" if part.host in self.suspects else part.state_here

    @property
    def lacks_team(self) -> bool:
        """Whether it runs on fewer hosts than it began with."""
        with_ranks = sum(part.unfinished and part.node_rank is not None for part in self.parts.values())
        return self.unfinished and with_ranks < self.team

    @property
    def team(self) -> int:
        """On how many hosts it began."""
        return self._first.team

    def _role(self, host: str, part: Part) -> Literal["head", "team", "spare", "witness", "left"]:
        if part.is_witness:
            return "witness"
        if part.node == self.head:
            return "head"
        if host in self.left:
            return "left"
        return "spare" if part.node_rank is None else "team"

    def as_dict(self) -> dict[str, Any]:
        nodes = [
            {
                "host": host,
                "role": self._role(host, part),
                "node_rank": None if host in self.left else part.node_rank,
                "witness": part.is_witness,
                "state": self._state_of(host, part),
                "exit_code": part.exit_code,
                "signal": part.signal,
                "pid": part.pid if part.unfinished else None,
                "unfit": list(self.unfit[host]) if host in self.unfit else None,
                **({"size": asdict(part.size)} if part.size else {}),
            }
            for host, part in sorted(self.parts.items(), key=lambda item: item[1].node)
        ]
        return {
            "run_id": self.run_id,
            "name": self.name,
            "state": self.state,
            "attempt": self.attempt,
            "started_at": self.started_at,
            "waits": {**asdict(self.waits), "until": rfc3339(self.waits.until)} if self.waits else None,
            "suspects": list(self.suspects),
            "rejoining": list(self.rejoining),
            "nodes": nodes,
        }


@dataclass(frozen=True)
class Listing:
    """The runs that the hosts know."""

    runs: tuple[Run, ...]
    """The newest last."""
    failed: Mapping[str, OrchError]
    """Hosts without an answer."""
    answered: frozenset[str] = frozenset()
    late: frozenset[str] = frozenset()
    """Hosts of `failed` that may still answer."""
    passed_over: Mapping[str, str] = field(default_factory=dict)
    """By host: why the records in its usual state folder could not be read."""
    doubts: tuple[str, ...] = ()
    """Warnings about hosts whose answers are not used."""
    ledgers: Mapping[str, Sequence[EndedRun]] = field(default_factory=dict)
    """The ended runs that each host remembers."""
    warm: Mapping[str, Sequence[WarmPython]] = field(default_factory=dict)
    """By host, with `run.warm`: processes that wait for another run."""
    queued: tuple[queued_runs.QueuedRun, ...] = ()
    """Runs that wait for their turn, the next one first."""
    others: Mapping[str, Sequence[OtherUsersRun]] = field(default_factory=dict)
    """By host: the runs of other users."""

    @property
    def missing(self) -> Mapping[str, OrchError]:
        """The failed hosts, without those that may still answer."""
        return {host: error for host, error in self.failed.items() if host not in self.late}

    def missing_hosts(self, run: Run) -> tuple[str, ...]:
        """Hosts of the run that did not answer. (A host that answered without it has deleted its record.)"""
        return tuple(host for host in run.missing_hosts if host not in self.answered)

    def has_newer(self, run: Run) -> bool:
        """Whether a later run has the name of this one."""
        return any(other.name == run.name and other.started_at > run.started_at for other in self.runs)

    def find_unused(self, hosts: Sequence[str]) -> list[str]:
        """Those of the hosts that answered, and that no run uses."""
        used = {host for run in self.runs for host, part in run.parts.items() if part.unfinished}
        return [host for host in hosts if host in self.answered and host not in used]

    def without_record(self, run: Run) -> tuple[str, ...]:
        """Hosts that answered and have deleted their record of the run. The witness has nothing to show of it."""
        return tuple(host for host in run.missing_hosts if host in self.answered and host != run.witness)

    def forgetful(self, run: Run) -> tuple[str, ...]:
        """Hosts of a run that is not over, and that answered without a record of it: new machines, or emptied ones.

        While the run waits, those that it waits for. While it starts, none: its `up` may have given up.
        """
        missing = self.without_record(run) if run.unfinished and run.state != "starting" else ()
        return tuple(host for host in missing if run.waits is None or host in run.waits.hosts)


Answer = tuple[RunList, str]  # the runs of a host, and why its usual state folder is unusable, or ""


def find(
    fleet: Fleet,
    hosts: Sequence[Host],
    enough: Callable[[Listing], bool] | None = None,
    doing: str = "looking for runs",
    *,
    others: bool = False,
    sizes: bool = False,
    run_name: str | None = None,
) -> Listing:
    """Ask all hosts for their runs. `enough`: see `Search.wait`. `others`, `sizes`, `run_name`: see `Search`."""
    return Search(fleet, hosts, doing, others=others, sizes=sizes, run_name=run_name).wait(enough)


class Search:
    """Asks all hosts for their runs in the background, so that a silent host need not delay the others."""

    def __init__(
        self,
        fleet: Fleet,
        hosts: Sequence[Host],
        doing: str = "looking for runs",
        *,
        members: bool = False,
        others: bool = False,
        sizes: bool = False,
        run_name: str | None = None,
    ) -> None:
        """`members`: ask for the processes of unfinished runs as well. `others`: and for the runs of other users.

        `sizes`: and for the bytes that each run takes. `run_name`: the run that is looked for.
        """
        others = others or (run_name is not None and PART_OF_ID.fullmatch(run_name) is not None)
        what = {"members": members, "others": others, "sizes": sizes}

        def ask(_: Host, session: Session) -> Answer:
            return session.request(LIST, what), "; ".join(session.hello.passed_over)

        fleet.prepare(hosts)
        self._work = fleet.begin(hosts, ask, doing)
        self._began = time.monotonic()
        self._newest = 0, self._began  # the number of answers and failures, and when it last grew

    def wait(self, enough: Callable[[Listing], bool] | None = None) -> Listing:
        """The runs of all hosts. If hosts are silent for PATIENCE seconds, and at an interrupt, `enough` gets the
        listing so far. If it returns True, it is returned, with the silent hosts as `late`. Wait again for those.
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
    checked = {run_id: claims.check_claims(run_parts, answers.failed) for run_id, run_parts in parts.items()}
    runs = sorted(
        (_make_run(run_id, run_claims) for run_id, run_claims in checked.items() if run_claims.parts),
        key=lambda run: (run.started_at, run.run_id),
    )
    return Listing(
        tuple(runs),
        answers.failed,
        frozenset(answers.done),
        answers.late,
        passed_over,
        _doubts(checked),
        {host: answer.ledger for host, (answer, _) in answers.done.items()},
        {host: answer.warm for host, (answer, _) in answers.done.items() if answer.warm},
        queued_runs.gather({host: answer.queued for host, (answer, _) in answers.done.items()}, frozenset(parts)),
        {host: answer.others for host, (answer, _) in answers.done.items() if answer.others},
    )


def _make_run(run_id: str, run_claims: claims.Claims) -> Run:
    known = {host: part for host, part in run_claims.parts.items() if host not in run_claims.disputed}
    trusted = claims.with_drained(known)
    parts = list((trusted or run_claims.parts).values())
    first, state, attempt = claims.state_of_run(parts)
    if not trusted:
        state, attempt = claims.unfinished_state(parts) or "lost", max(part.attempt for part in parts)
    shown = {**run_claims.parts, **claims.without_old_places(trusted)}
    return Run(run_id, first.name, state, attempt, first.started_at, shown, run_claims.disputed)


def _doubts(checked: Mapping[str, claims.Claims]) -> tuple[str, ...]:
    strangers: dict[str, list[str]] = {}
    disputed: dict[frozenset[str], list[str]] = {}
    for run_id, run_claims in checked.items():
        for host in run_claims.strangers:
            strangers.setdefault(host, []).append(run_id)
        if run_claims.disputed:
            disputed.setdefault(run_claims.disputed, []).append(run_id)
    return (
        *(
            f"{host}: ignored its answer about {_count_runs(run_ids)}, which other hosts or its own name contradict"
            for host, run_ids in sorted(strangers.items())
        ),
        *(
            f"{fold(hosts)}: their answers about {_count_runs(run_ids)} contradict each other, so none of them is used"
            for hosts, run_ids in disputed.items()
        ),
    )


def _count_runs(run_ids: Sequence[str]) -> str:
    return f"run {run_ids[0]}" + (f" and {len(run_ids) - 1} more" if len(run_ids) > 1 else "")
