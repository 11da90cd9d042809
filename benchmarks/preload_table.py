"""The page of preload_scripts.py: how many programs behave the same, and a row for each. No IO."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from preload_scripts import Program

HEAD = ("program", "source", "command", "special", "output", "exit code", "tracebacks", "note")


def page(programs: Sequence[Program], rows: Mapping[str, dict[str, Any]]) -> str:
    """`rows`: by the name of the program, as `compare` returns them, with their commit."""
    compared = [each for each in programs if each.name in rows]
    lines = ["| " + " | ".join(HEAD) + " |", "|---" * len(HEAD) + "|"]
    lines += [line(each, rows[each.name]) for each in compared]
    return head(compared, rows) + "\n".join(lines) + "\n"


def head(compared: Sequence[Program], rows: Mapping[str, dict[str, Any]]) -> str:
    commits = sorted({row["commit"] for row in rows.values()})
    different = [{name for names in row["different"].values() for name in names} for row in rows.values()]
    equal = sum(not each for each in different)
    forked = sum(not each.intersection(("forked", "restarted")) for each in different)
    failing = sum(row["end"] != "0" for row in rows.values())
    others = [each for each in compared if is_of_others(each)]
    different_programs = {script(each) for each in others}
    ended_well = {script(each) for each in others if rows[each.name]["end"] == "0"}
    return f"""# Programs under `run.preload`

Each entry ran by exec, under `python` without a launcher, in a forked rank, and in a forked rank of a second attempt,
whose process had imported what the script imports. `differs` names those that differ from exec.
{equal} of {len(rows)} entries behaved the same in all four. In forked ranks, {forked} behaved as by exec.
{failing} of them fail, most of them on purpose. {len(others)} entries run programs of others, some in several forms:
{len(different_programs)} different programs, of which {len(ended_well)} end without an error in one of their entries.
{len(rows) - len(others)} entries are small scripts of ours, some of them with libraries of others.
Commit: {", ".join(commits)}.

`benchmarks/preload_scripts.py` says what is compared and how to repeat it. `benchmarks/preload_scripts.yaml` has the
entries, without the code of others.

"""


def is_of_others(program: Program) -> bool:
    return bool(program.folder) or (program.command[0] == "-m" and program.source != "Python")


def script(program: Program) -> tuple[str, str]:
    """The same for two entries that start the same program in different forms."""
    first = program.command[1] if program.command[0] == "-m" else program.command[0]
    return program.source, first


def line(program: Program, row: dict[str, Any]) -> str:
    command = " ".join(program.command).replace("\n", " ").replace("|", "\\|")
    count = row["tracebacks"]
    cells = [
        program.name,
        program.source,
        f"`{command}`" + (f", {program.ranks} ranks" if program.ranks > 1 else ""),
        program.special,
        f"{cell(row, 'output')} ({row['lines']} lines)",
        f"{cell(row, 'end')} ({row['end']})",
        f"{cell(row, 'traceback')} ({count})" if count or row["different"]["traceback"] else "none",
        " ".join(filter(None, [program.note, row["why_not"] and f"Not forked: {row['why_not']}."])),
    ]
    return "| " + " | ".join(cells) + " |"


def cell(row: dict[str, Any], what: str) -> str:
    different = row["different"][what]
    return "differs: " + ", ".join(different) if different else "equal"
