"""Say what a run gets from the earlier runs of its name, and what some of its hosts lack of it. No IO."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from ..answers.facts import Facts
from ..answers.prepare import Carried, LeftBehind, Prepared
from ..inventory import advice
from ..output.console import fold, fold_messages
from ..output.terminal import one_line
from ..plan.entrypoint import TRAINER
from ..plan.plan import Plan

Answers = Mapping[str, Prepared]  # by host


def describe(answers: Answers, plan: Plan, continues: str | None) -> Iterator[str]:
    """What it gets. `continues`: the run that this one starts again."""
    carried = {host: _describe_carried(answer.carried) for host, answer in answers.items() if answer.carried}
    for line in fold_messages(carried):
        yield f"{line}, which run {continues} wrote beside its code"
    if resuming := [host for host, answer in answers.items() if answer.resumes]:
        yield f"{fold(resuming)}: the output folder of {plan.name} has files; {_describe_resume(plan)}"


def hosts_with_outputs(facts: Mapping[str, Facts]) -> list[str]:
    """Those whose output folder of this name has files, but for one on a disk of all hosts."""
    return [host for host, fact in facts.items() if fact.led_last is not None and fact.led_last.newest is not None]


def warn(answers: Answers, plan: Plan, command_to_continue: Callable[[str], str]) -> Iterator[str]:
    """What ranks may look for in vain, or find in another state than others.

    `command_to_continue`: see `launch.LaunchContext`.
    """
    yield from _warn_of_uncarried(answers, plan)
    left = {host: answer.left_behind for host, answer in answers.items() if answer.left_behind}
    yield from fold_messages({host: _describe_left_behind(found, command_to_continue) for host, found in left.items()})
    if any(answer.resumes for answer in answers.values()):
        yield from _warn_of_outputs(answers, plan)


def _describe_left_behind(left: LeftBehind, command_to_continue: Callable[[str], str]) -> str:
    file = one_line(left.file)
    if left.hidden:
        return (
            f"run {left.run_id}, of the same name, wrote {file} beside its code, and your code has another one, which "
            f"this run finds. To continue from that of the run, stop this run, `ddp-orch fetch {left.run_id}`, and "
            f"copy its {file} into your code"
        )
    return (
        f"run {left.run_id}, of the same name, wrote {file} beside its code, where this run does not "
        f"find it. To continue from it, stop this run, then: {command_to_continue(left.run_id)}"
    )


def _describe_resume(plan: Plan) -> str:
    if not _has_own_outputs(plan) or len(plan.team) == 1:
        return "the run resumes from them"
    return "run.resume is none, so the ranks of each host find only its own (docs/resume.md)"


def _has_own_outputs(plan: Plan) -> bool:
    """Whether nothing brings the output folders of the hosts to agreement."""
    run, code = plan.inventory.run, plan.code
    sends_itself = code is not None and code.root == str(TRAINER.parent)
    # run.output may be a disk of all hosts, which another check looks at
    return not (sends_itself or run.resume != "none" or run.output)


def _describe_carried(carried: Carried) -> str:
    more = carried.count - len(carried.files)
    return one_line(f"kept {', '.join(carried.files)}{f' and {more} more' if more else ''}")


def _warn_of_uncarried(answers: Answers, plan: Plan) -> Iterator[str]:
    """If hosts lack a snapshot that others have beside the code. They may have an older one, of the code."""
    carried = {node.host.name: answers[node.host.name].carried for node in plan.team}
    snapshots = {host: found.snapshot for host, found in carried.items() if found and found.snapshot}
    lacking = [host for host in carried if host not in snapshots]
    if snapshots and lacking:
        host, file = next(iter(snapshots.items()))
        do, their = ("does", "its") if len(lacking) == 1 else ("do", "their")
        yield (
            f"{fold(lacking)} {do} not have the {one_line(file)} of {host}, but none, or that of your code, so {their} "
            "ranks may begin at another step. If all ranks load it, save it in $DDP_ORCH_OUTPUT_DIR, with run.resume: "
            "head (docs/resume.md). For one more run: stop this one, fetch the file, and put it into your code"
        )


def _warn_of_outputs(answers: Answers, plan: Plan) -> Iterator[str]:
    """If ranks may not find the snapshot that others load, or find an older one."""
    lacking = [node.host.name for node in plan.team if not answers[node.host.name].resumes]
    if not _has_own_outputs(plan):
        return
    before = {answers[node.host.name].resumed_with for node in plan.team} - {"none", None}
    if before and len(plan.team) > 1:
        flag = f"run.resume={min(map(str, before))}"
        yield (
            f"the run before of this name had {flag}, and this one has not, so ranks may load snapshots of different "
            f"steps. If that is not meant: {_restart(plan, flag)}"
        )
    elif lacking:
        yield (
            f"{fold(lacking)}: the output folder of {plan.name} is empty, so ranks there may begin at the first step. "
            f"If they must load a snapshot too: {_restart(plan, 'run.resume=head')} if rank 0 saves, or with `union` "
            "if every rank saves a part (docs/resume.md)"
        )


def _restart(plan: Plan, setting: str) -> str:
    return f"`{advice.command('restart', plan.name, '--set', setting, inventory=plan.inventory.path)}`"
