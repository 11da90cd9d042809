"""Say which hosts start a run again when they are booted (run.autostart), while no host has it."""

from __future__ import annotations

from collections.abc import Mapping

from ..answers.runs import Part
from ..output.console import Console, fold
from . import recent
from .registry import Run


def note(run: Run, kill: str, console: Console) -> None:
    """Print which hosts start the run again, if no host has it now. `kill`: the command that prevents it."""
    if run.rejoining:
        console.note(f"run {run.run_id} is not over: {describe(run.parts)}. To stop it instead: {kill}")


def describe(parts: Mapping[str, Part]) -> str:
    """`parts`: of the run, by host. Some of them rejoin it."""
    hosts = [host for host, part in parts.items() if part.rejoins]
    starter = parts[hosts[0]].autostart
    return f"with run.autostart, {starter} starts it again on {fold(hosts)}, within a minute of their boot"


def advise(run_id: str, parts: Mapping[str, Part]) -> str:
    """What to do about a run of which no host has a guard. `parts`: of the run, by host."""
    is_known = recent.command_of(run_id) is not None
    again = f"start the run again {f'with `ddp-orch restart {run_id}`' if is_known else 'with the same --name'}"
    if any(part.rejoins for part in parts.values()):
        return f"wait: {describe(parts)}. If it does not, stop it with `ddp-orch kill`, then {again}"
    if all(part.autostart == "none" for part in parts.values()):
        return f"{again}. It had no run.autostart, with which rebooted hosts come back by themselves"
    return f"{again}. Its hosts no longer do so by run.autostart: they gave up, or `ddp-orch kill` stopped the run"
