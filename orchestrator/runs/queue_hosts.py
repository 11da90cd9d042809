"""Decide for which hosts a run waits in the queue, and launch it when those that it needs are free."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from ..answers.queued import Turn
from ..errors import HeldError, OrchError, UnreachableError
from ..hosts.fleet import Fleet, Results, combine, fold_failures
from ..inventory.model import Host
from ..output.console import fold, number_of
from ..plan import plan as planning
from ..plan.plan import Plan
from ..plan.snapshot import Snapshot
from . import examination, launch, stand_ins
from . import probe as preflight
from .launch import HELD_CODES, LaunchContext
from .probe import Probed

PASSED = ". Until then, this command waits, and other runs may start first; the run keeps its place"


class AllHosts:
    """A run on all of its hosts, but for those that do not answer and that it does not need."""

    def __init__(
        self, plan: Plan, probed: Results[Probed], snapshot: Snapshot | None, fleet: Fleet, context: LaunchContext
    ) -> None:
        """`probed`: fresh answers. Raises an error if the run could not start on these hosts if they were free."""
        self._original, self._snapshot, self._fleet, self._context = plan, snapshot, fleet, context
        self._plan = plan
        """With the hosts that stand in for those that are away."""
        self._away: Collection[str] = ()
        self._fresh: Results[Probed] | None = self._take_stand_ins(probed)
        away = self._fresh.failed
        if away and self._can_start(away):  # whether it starts without them shows when its turn comes
            smaller = planning.without(self._plan, away) or self._plan
            launch.check(smaller, Results(self._fresh.done, {}), fleet, context, ignore=HELD_CODES)
        else:
            launch.check(self._plan, self._fresh, fleet, context, ignore=HELD_CODES)

    @property
    def hosts(self) -> list[Host]:
        """For which it waits. Those that do not answer now may do so when its turn comes."""
        return [node.host for node in self._plan.nodes]

    def find_needed(self, turns: Results[Turn]) -> tuple[str, ...]:
        """The hosts that do not answer, if the run cannot start without them."""
        return () if self._can_start(turns.failed) else tuple(turns.failed)

    def look(self, turns: Results[Turn]) -> None:
        """Let other hosts stand in for those that do not answer, or no longer."""
        taken = len(self._plan.team) - len(self._original.team)
        if set(turns.failed) != self._away or stand_ins.count_missing(self._original, turns.failed) > taken:
            self._take_stand_ins(Results({}, turns.failed))

    def launch(self, turns: Results[Turn]) -> Plan | None:
        """Launch the run if it is its turn on all hosts that answer. Raises as `launch.launch`."""
        probed, self._fresh = self._fresh, None
        if not turns.done or not all(turn.free for turn in turns.done.values()):
            return None
        if probed is None or not set(turns.done) <= set(probed.done):
            nodes = [node for node in self._plan.nodes if node.host.name in turns.done]
            self._context.timing.begin()
            probed = examination.examine(self._plan, self._snapshot, self._fleet, self._context.timing, nodes)
        # a host that is back since we asked for its turn has not given us one
        failed = {**{name: error for name, error in probed.failed.items() if name in turns.done}, **turns.failed}
        if not self._can_start(failed) and all(isinstance(error, UnreachableError) for error in failed.values()):
            raise HeldError("\n  ".join(fold_failures(failed)))
        done = {name: answer for name, answer in probed.done.items() if name in turns.done}
        return launch.launch(self._plan, self._snapshot, self._fleet, self._context, Results(done, failed))

    def describe_needed(self, turns: Results[Turn]) -> str:
        """Why the run cannot start, as long as hosts that it needs do not answer."""
        away = Results[Turn]({}, turns.failed)
        advice = launch.advise_start_without(self._plan, away, self._context, first="leave the queue, then ")
        lines = [f"the run needs {fold(turns.failed)}, which does not answer{PASSED}", *fold_failures(turns.failed)]
        return "\n  ".join([*lines, *([advice] if advice else [])])

    def _can_start(self, failed: Mapping[str, OrchError]) -> bool:
        """Whether it can start without these hosts."""
        is_away = all(isinstance(error, UnreachableError) for error in failed.values())
        return not failed or (is_away and planning.without(self._plan, failed) is not None)

    def _take_stand_ins(self, probed: Results[Probed]) -> Results[Probed]:
        context = self._context
        self._away = set(probed.failed)
        self._plan, known = stand_ins.take(
            self._original,
            probed,
            self._snapshot,
            self._fleet,
            context.timing,
            context.step,
            skip_check=context.skip_check,
        )
        return known


class AnyHosts:
    """A run that takes the first hosts of its inventory that are free."""

    def __init__(
        self,
        plan: Plan,
        probed: Results[Probed],
        snapshot: Snapshot | None,
        fleet: Fleet,
        context: LaunchContext,
        number: int,
    ) -> None:
        """`probed`: fresh answers. Raises an error if too few hosts have no problem that waiting does not solve."""
        self._plan, self._snapshot, self._fleet, self._context = plan, snapshot, fleet, context
        self._fresh: Results[Probed] | None = probed
        self._number = number
        problems = self._problems(probed, ignore=HELD_CODES)
        self.hosts = [node.host for node in plan.nodes if node.host.name not in problems]
        """For which it waits."""
        for line in fold_failures(problems):
            context.warn(f"not chosen: {line}")
        if len(self.hosts) < number:
            usable = f"only {number_of(len(self.hosts), 'host')}" if self.hosts else "no host"
            raise combine(problems.values(), f"{usable} can be used, but {number} are needed; nothing was started")

    def find_needed(self, turns: Results[Turn]) -> tuple[str, ...]:
        """As `AllHosts.find_needed`."""
        return tuple(turns.failed) if len(turns.done) < self._number else ()

    def look(self, turns: Results[Turn]) -> None:
        """The hosts stay."""

    def launch(self, turns: Results[Turn]) -> Plan | None:
        """Launch the run if it is its turn on enough hosts. Raises as `launch.launch`."""
        probed, self._fresh = self._fresh, None
        free = [host.name for host in self.hosts if host.name in turns.done and turns.done[host.name].free]
        if len(free) < self._number:
            return None
        if probed is None:
            self._context.timing.begin()
            candidates = planning.restrict(self._plan, free)
            probed = examination.examine(candidates, self._snapshot, self._fleet, self._context.timing)
        problems = self._problems(probed)
        chosen = [name for name in free if name in probed.done and name not in problems][: self._number]
        if len(chosen) < self._number:
            lines = "\n  ".join(fold_failures(problems))
            raise HeldError(f"too few of the free hosts can be used:\n  {lines}")
        answers = Results({name: probed.done[name] for name in chosen}, {})
        plan = planning.restrict(self._plan, chosen)
        return launch.launch(plan, self._snapshot, self._fleet, self._context, answers)

    def describe_needed(self, turns: Results[Turn]) -> str:
        """As `AllHosts.describe_needed`."""
        answering = f"only {fold(turns.done)} of them" if turns.done else "none of them"
        needs = f"the run needs {number_of(self._number, 'host')} of {fold(host.name for host in self.hosts)}"
        return "\n  ".join([f"{needs}, and {answering} answers{PASSED}", *fold_failures(turns.failed)])

    def _problems(self, probed: Results[Probed], ignore: Collection[str] = ()) -> dict[str, OrchError]:
        """Why hosts cannot be used, each looked at alone."""
        problems = dict(probed.failed)
        for name, host in probed.done.items():
            findings = preflight.check_hosts(planning.restrict(self._plan, [name]), {name: host})
            errors = [each for each in findings if each.severity == "error" and each.code not in ignore]
            if errors and not self._context.skip_check:
                problems[name] = launch.error_of(errors, f"{name}: {errors[0].message}")
        return problems
