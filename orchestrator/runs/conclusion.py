"""Print how a run ended, and what to do next."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Collection, Mapping

from ..answers.attach import StrayOutputs
from ..answers.runs import Part, Verdict
from ..errors import Interrupted, RunFailed, RunStopped, UnreachableError
from ..hosts import claims
from ..hosts.fleet import fold_failures
from ..inventory.advice import AboutRun
from ..output.console import Console, fold
from ..output.terminal import one_line
from . import registry, rejoining, resume_command, shell_scripts
from .follow import View
from .resume_command import Obstacle, Resume

MAX_COMMAND = 60  # columns before the purpose of a command
MAX_COLUMNS = 1000  # where the output is no terminal
OUTCOMES = {
    "succeeded": 0,
    "failed": RunFailed.exit_code,
    "lost": UnreachableError.exit_code,
    "stopped": RunStopped.exit_code,
    "killed": Interrupted.exit_code,
}


def conclude(
    run_id: str,
    about: AboutRun,
    nodes: Mapping[str, int],
    view: View,
    console: Console,
    took: str = "",
    *,
    resume: str,
    is_requeued: bool = False,
    show_outputs: bool = True,
    is_replaced: bool = False,
    doubt: str = "",
    explain: Callable[[], Obstacle] = Obstacle,
    without_record: Collection[str] = (),
) -> int:
    """Print how the run ended and what to do next, and return the exit code for that.

    `nodes`: the node number of each host; `resume` to `show_outputs`: see `attach.attend`; `is_replaced`: there is a
    newer run of this name; `doubt`: a warning after a success; `explain`: prints why it failed, and returns what keeps
    it from starting again. `without_record`: see `claims.verdict_of`.
    """
    for line in fold_failures(view.failed):
        console.warning(line)
    if view.unaware:
        console.warning(
            f"{fold(view.unaware)} was cut off and does not know that the run has ended. It keeps its locks and waits "
            f"for the other hosts. To end it there: {about.command('kill')}"
        )
    nodes = {**nodes, **_added(nodes, view)}
    parts = {host: part for host in nodes if host in view.outcomes and (part := view.outcomes[host].run)}
    verdict = claims.verdict_of(parts, nodes, without_record)
    if verdict is None:
        return _conclude_without_verdict(run_id, about, parts, nodes, console, resume, without_record)
    _print_outcome(run_id, about, verdict, parts, view, console, took, resume=resume, doubt=doubt)
    can_carry_over = resume == about.command("restart")  # files beside the code
    stray = {host: files for host, outcome in view.outcomes.items() if (files := outcome.stray_outputs)}
    uncopied = resume_command.beside_code(stray, parts) if can_carry_over else ""
    if stray and not _starts_again(verdict):
        is_shell = bool(shell_scripts.describe_command(run_id).shell)
        copies = any(part.resume != "none" for part in parts.values())
        console.warning(_describe_stray_outputs(stray, uncopied, is_shell=is_shell, copies=copies))
    chosen = resume_command.choose(resume, parts, set(nodes) - set(parts) - set(without_record))
    obstacle = explain() if verdict.state in ("failed", "lost") else Obstacle()
    if obstacle.removal:
        chosen = Resume(resume)
    elif uncopied:
        chosen = Resume(chosen.command, f"{uncopied}: if all ranks load it, fetch it, and put it into your code")
    elif obstacle.is_missing:
        chosen = Resume(resume_command.with_snapshot_of_head(resume))
    if show_outputs:
        can_resume = any(part.outputs for part in parts.values()) or (can_carry_over and bool(stray))
        continues = _starts_again(verdict) or (is_requeued and verdict.state == "stopped")
        offered = Resume("") if is_replaced or continues or not can_resume else chosen
        removal = obstacle.removal if offered.command else {}
        _advise(about, verdict, parts.values(), console, has_stray=bool(stray), resume=offered, removal=removal)
    elif verdict.state in ("failed", "lost"):
        console.note(f"why: {about.command('diagnose')}")
    return OUTCOMES[verdict.state]


def _print_outcome(
    run_id: str,
    about: AboutRun,
    verdict: Verdict,
    parts: Mapping[str, Part],
    view: View,
    console: Console,
    took: str,
    *,
    resume: str,
    doubt: str,
) -> None:
    match verdict.state:
        case "succeeded":
            console.success(f"run {run_id} succeeded{took}")
            if doubt:
                console.warning(doubt)
        case "stopped":
            by = f" by {one_line(verdict.stopped_by)}" if verdict.stopped_by else ""
            console.note(f"run {run_id} was stopped{by}, to be resumed")
        case "killed":
            console.note(
                f"run {run_id} was stopped by {one_line(verdict.stopped_by or 'an unknown user')} (state: killed)"
            )
            if view.failed:
                kill = about.of_all("kill", "--leftovers")
                console.warning(f"could not verify {fold(view.failed)}. Once reachable, run: {kill}")
        case "lost":
            console.error(
                f"run {run_id} was lost: {_first_failure(verdict)}{advise_after_lost_head(verdict, parts, resume)}"
            )
        case _:
            console.error(f"run {run_id} failed: {_first_failure(verdict)}")


def _starts_again(verdict: Verdict) -> bool:
    """Whether the command that stopped the run starts the next one."""
    by = verdict.stopped_by or ""
    return by == registry.WATCH or by.endswith(registry.RESTART)


def _added(nodes: Mapping[str, int], view: View) -> dict[str, int]:
    """The hosts that were added to the run while it was followed. None can claim a number that another host has."""
    parts = {host: part for host in view.added if host in view.outcomes and (part := view.outcomes[host].run)}
    return {host: part.node for host, part in parts.items() if part.node not in nodes.values()}


def _conclude_without_verdict(
    run_id: str,
    about: AboutRun,
    parts: Mapping[str, Part],
    nodes: Mapping[str, int],
    console: Console,
    resume: str,
    without_record: Collection[str],
) -> int:
    if any(len(part.hosts) > len(nodes) for part in parts.values()):
        follow = about.command("logs", "-f")
        console.error(f"run {run_id}: it may go on on hosts that were added to it. To follow it there: {follow}")
        return UnreachableError.exit_code
    if any(part.rejoins for part in parts.values()):
        follow = about.command("logs", "-f")
        console.error(f"run {run_id} is not over: {rejoining.describe(parts)}. To follow it then: {follow}")
        return UnreachableError.exit_code
    if claims.is_abandoned(parts, nodes):
        advice = f". To start a run that resumes from its outputs: {resume}" if resume else ""
        console.error(f"run {run_id} was lost: {claims.ABANDONED}{advice}")
        return OUTCOMES["lost"]
    silent = fold(set(nodes) - set(parts) - set(without_record))
    if without_record and not silent:
        console.error(f"run {run_id}: its final state is unknown: {fold(without_record)} has deleted its record of it")
        return UnreachableError.exit_code
    why = f"there is no answer from {silent}" if silent else "its head has not recorded it"
    console.error(f"run {run_id}: its final state is unknown, because {why}. Run `{about.of_all('ps', '--all')}` later")
    return UnreachableError.exit_code


def _advise(
    about: AboutRun,
    verdict: Verdict,
    parts: Collection[Part],
    console: Console,
    *,
    has_stray: bool,
    resume: Resume,
    removal: Mapping[str, str],
) -> None:
    """The next commands, each on a line of its own so that it can be copied."""
    has_outputs = any(part.outputs for part in parts)
    commands = {about.command("report"): "curves, events and logs on one page"}
    if has_outputs or has_stray:
        shared = next((path for part in parts if (path := part.shared_output)), None)
        commands[about.command("fetch")] = f"download the outputs{f', in {shared} on its hosts' if shared else ''}"
    commands |= removal
    if resume.command and verdict.state != "succeeded":
        purpose = "resume" if removal or verdict.state != "failed" else "resume, after a fix"
        commands[resume.command] = f"{purpose}; {resume.note}" if resume.note else purpose
    console.note("\n".join(["next:", *with_purposes(commands, shutil.get_terminal_size((MAX_COLUMNS, 24)).columns)]))


def with_purposes(commands: Mapping[str, str], columns: int) -> list[str]:
    """Each command with its purpose behind it, or above it where a line would be wider than the terminal."""
    width = min(MAX_COMMAND, max(map(len, commands)))
    lines = [f"  {command:{width}}  # {purpose}" for command, purpose in commands.items()]
    if max(map(len, lines)) <= columns:
        return lines
    return [line for command, purpose in commands.items() for line in (f"  # {purpose}", f"  {command}")]


def _describe_stray_outputs(
    files_by_host: Mapping[str, StrayOutputs], uncopied: str, *, is_shell: bool, copies: bool
) -> str:
    """The warning about files that the script wrote to relative paths.

    `uncopied`: `resume_command.beside_code`. `is_shell`: whether it is a shell script. `copies`: with run.resume.
    """
    host, files = min(files_by_host.items(), key=lambda item: item[0])
    names = ", ".join(files.files) + (", ..." if files.count > len(files.files) else "")
    others = f" (and some on {fold(set(files_by_host) - {host})})" if len(files_by_host) > 1 else ""
    if is_shell:
        how = 'in the shell script: --out "$DDP_ORCH_OUTPUT_DIR"'
    else:
        how = "in an argument, {output} is that folder: --out '{output}'"
    text = (
        f"the script wrote files outside $DDP_ORCH_OUTPUT_DIR: {names} on {host}{others}\n  in {files.folder}\n"
        "  A new run of the same name will not find them, unless `restart` starts it. Write to $DDP_ORCH_OUTPUT_DIR; "
        f"{how}"
    )
    if any("{output}" in name for name in files.files):
        text += "\n  {output} is replaced in arguments after `--` only, not inside of scripts"
    if uncopied:
        only = uncopied[:1].upper() + uncopied[1:]
        how = "run.resume copies only that folder" if copies else "with run.resume: head, all hosts get what is there"
        text += f"\n  {only}. If all ranks load it, save it in that folder: {how}"
    return text


def advise_after_lost_head(verdict: Verdict, parts: Mapping[str, Part], resume: str) -> str:
    """How to resume after the head was lost; "" if another host was."""
    first = verdict.first_failure
    if first is None or first.node != 0:
        return ""
    others = {name: part for name, part in parts.items() if name != first.host and not part.is_witness}
    with_outputs = [name for name, part in others.items() if part.outputs or part.shared_output]
    if with_outputs:
        return (
            f"\n  to resume from the newest snapshot of the others, remove {first.host} from the inventory or set "
            f"another `head` (such as {with_outputs[0]}), then run: {resume}"
        )
    if not any(part.resume != "none" for part in parts.values()):  # all ranks shall load it
        resume = resume_command.with_snapshot_of_head(resume)
    if first.host in parts:  # it is up again
        return f"\n  {first.host} answers again. To resume from its outputs, run: {resume}"
    of_team = {host for part in others.values() for host in part.hosts if host != part.witness}
    silent = sorted(of_team - set(others) - {first.host})
    what = f"{fold(silent)} did not answer. Of the others, only" if silent else "the others have no outputs, so only"
    return (
        f"\n  {what} {first.host} can have a snapshot. To resume from it when {first.host} is up again, run: {resume}"
    )


def _first_failure(verdict: Verdict) -> str:
    first = verdict.first_failure
    if first is None:
        return "reason unknown"
    note = "" if first.stalled else " (first failure; later errors are likely consequences)"
    return f"{one_line(first.host)}: {one_line(first.what)}{note}"
