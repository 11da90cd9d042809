"""The manual page and the tables of the documentation say what the code says, and every command in it can be parsed.

`UPDATE_GOLDEN=1 pytest` on this file writes the page and the tables.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from orchestrator import errors
from orchestrator.cli import cli
from orchestrator.commands import manual
from orchestrator.commands.options import SECTIONS
from orchestrator.diagnosis import causes
from orchestrator.errors import OrchError

ROOT = Path(__file__).parents[2]
MAN = ROOT / "docs" / "ddp-orch.1"
PAGE = ROOT / "docs" / "reference.md"
FINDINGS = ROOT / "docs" / "findings.md"
BEGIN = "<!-- begin: made from orchestrator/commands/manual.py -->\n"
END = "<!-- end: made from orchestrator/commands/manual.py -->\n"
CAUSES = "<!-- {}: made from orchestrator/diagnosis/knowledge -->\n"
INTERNAL = re.compile(r"DDP_ORCH_(COMPLETE|CONTAINED_|MPI_KEY|MPIRUN|PRELOAD\w*|RANK_SCRIPT|READY)?")
"""Variables that our own processes pass to each other."""


def same(path: Path, text: str) -> None:
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text(text)
    assert path.read_text() == text


def test_the_manual_page_is_the_one_that_the_commands_make() -> None:
    same(MAN, manual.man_page(cli))


def test_the_tables_are_the_ones_that_the_code_makes() -> None:
    before, _, rest = PAGE.read_text().partition(BEGIN)
    same(PAGE, f"{before}{BEGIN}\n{manual.tables()}\n{END}{rest.partition(END)[2]}")


def test_the_table_of_causes_is_the_one_that_the_knowledge_makes() -> None:
    before, _, rest = FINDINGS.read_text().partition(CAUSES.format("begin"))
    begin, end = map(CAUSES.format, ("begin", "end"))
    same(FINDINGS, f"{before}{begin}\n{causes.table()}\n{end}{rest.partition(end)[2]}")


@pytest.mark.skipif(not shutil.which("groff"), reason="no groff")
def test_the_help_groups_all_commands_as_the_readme_does() -> None:
    shown = [name for names in SECTIONS.values() for name in names]
    assert sorted(shown) == sorted(name for name, command in cli.commands.items() if not command.hidden)
    sections: dict[str, dict[str, None]] = {}
    for heading, name in re.findall(
        r"^\| (?:\*\*(.+)\*\*|`ddp-orch ([a-z-]+))", (ROOT / "README.md").read_text(), re.M
    ):
        if heading:
            sections[heading] = {}
        else:
            sections[list(sections)[-1]].setdefault(name)
    assert {heading: tuple(names) for heading, names in sections.items()} == {
        heading: names for heading, names in SECTIONS.items() if heading != "Other"
    }


def test_groff_has_no_complaint_about_the_manual_page() -> None:
    done = subprocess.run(["groff", "-man", "-Tutf8", "-ww", MAN], capture_output=True, text=True, check=True)
    assert not done.stderr and done.stdout


def test_every_exit_code_is_explained() -> None:
    kinds = [each for each in vars(errors).values() if isinstance(each, type) and issubclass(each, OrchError)]
    assert {0, *(kind.exit_code for kind in kinds)} == set(manual.EXIT_CODES)


def test_every_variable_is_explained() -> None:
    sources = (path.read_text() for path in (ROOT / "orchestrator").rglob("*.py") if path.name != "manual.py")
    used = {name for source in sources for name in re.findall(r"(?<!_)DDP_ORCH_[A-Z_]*", source)}
    assert {name for name in used if not INTERNAL.fullmatch(name)} == {
        name for name in (*manual.READ_HERE, *manual.SET_FOR_RANKS) if name.startswith("DDP_ORCH_")
    }


def command_lines() -> Iterator[tuple[str, str]]:
    """Every `ddp-orch` command of the blocks with shell commands, and where it stands."""
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))):
        fence = None
        for line in page.read_text().replace("\\\n", " ").splitlines():
            if opening := re.match(r" *```(\w*)", line):
                fence = opening[1] if fence is None else None
            elif fence in ("", "console", "bash") and (match := re.match(r"\s*(?:\$ |exec )(ddp-orch .*)", line)):
                yield str(page.relative_to(ROOT)), match[1]


@pytest.mark.parametrize(("page", "line"), list(dict.fromkeys(command_lines())))
def test_every_command_of_the_documentation_has_the_options_that_exist(page: str, line: str) -> None:
    words = shlex.split(re.split(r"\s(?:#|\||>|>>|<|&&|;|2>)(?:\s|$)", line)[0])[1:]
    if words[0].startswith("-"):
        assert words[0] in ("--help", "--version"), page
        return
    parent = click.Context(cli, info_name="ddp-orch")
    name, command, rest = cli.resolve_command(parent, words)
    assert command is not None
    try:
        command.make_context(name, rest, parent=parent)
    except click.exceptions.Exit:  # --help
        assert "--help" in rest or "-h" in rest, page


@pytest.mark.parametrize(("shell", "name"), [("bash", "ddp-orch"), ("zsh", "_ddp-orch"), ("fish", "ddp-orch.fish")])
def test_the_completion_that_pip_installs_is_the_one_that_the_command_prints(shell: str, name: str) -> None:
    words = [sys.executable, "-m", "orchestrator.cli", "completion", shell]
    done = subprocess.run(words, capture_output=True, text=True, cwd=ROOT, check=True)
    assert f"_DDP_ORCH_COMPLETE={shell}_complete" in done.stdout
    same(ROOT / "docs" / "completion" / name, done.stdout)
