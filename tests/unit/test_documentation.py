"""Every block of the documentation with commands or code is run by a test, or says above it why not.

tests/e2e/test_documentation.py runs all blocks without a mark, and the `up` commands of those marked `dry run`.
"""

from __future__ import annotations

import json
import re

import documentation
import pytest
from documentation import ROOT, Block, blocks

RUNNABLE = ("console", "bash", "sh", "python")


def problems(block: Block) -> list[str]:
    found = []
    if not block.language:
        found.append("no language: use text for what nobody types")
    if block.language not in RUNNABLE and re.search(r"^\$ ", block.text, re.MULTILINE):
        found.append("commands: use console")
    if block.mark and block.language not in RUNNABLE:
        found.append("a mark above a block that cannot be run")
    if block.language == "console" and not block.commands:
        found.append("no line with a prompt")
    if block.mark == "dry run" and not all(command.startswith("ddp-orch up ") for command in block.commands):
        found.append("dry run, but not only of up")
    if block.mark == "tested by":
        found += untested(block)
    return found


def untested(block: Block) -> list[str]:
    names = re.findall(r"tests/\S+\.py", block.note)
    missing = [name for name in names if not (ROOT / name).exists()]
    if missing or not names:
        return [f"no such test: {', '.join(missing) or block.note}"]
    tests = "".join((ROOT / name).read_text() for name in names)
    used = [words[1] for command in block.commands if (words := command.removeprefix("exec ").split())[0] == "ddp-orch"]
    return [f"{command} is in none of its tests" for command in used if not re.search(rf"[\" ]{command}[\" ]", tests)]


@pytest.mark.parametrize("block", blocks(), ids=str)
def test_every_block_is_run_or_says_why_not(block: Block) -> None:
    assert problems(block) == []


@pytest.mark.parametrize(
    ("above", "fence", "text", "problem"),
    [
        ("", "", "diagram", "language"),
        ("", "text", "$ ddp-orch up", "console"),
        ("", "console", "ddp-orch up", "prompt"),
        ("<!-- not run: needs GPUs -->", "yaml", "hosts: [a]", "cannot"),
        ("<!-- dry run: needs GPUs -->", "console", "$ ddp-orch check", "only"),
        ("<!-- tested by: tests/e2e/gone.py -->", "console", "$ ddp-orch up", "no such"),
        ("<!-- tested by: hand -->", "console", "$ ddp-orch up", "no such"),
        ("<!-- tested by: tests/e2e/test_queue.py -->", "console", "$ ddp-orch top", "in none"),
    ],
)
def test_a_block_that_is_not_run_is_found(above: str, fence: str, text: str, problem: str) -> None:
    (block,) = documentation.parse(f"{above}\n```{fence}\n{text}\n```\n", "page.md")
    (found,) = problems(block)
    assert problem in found


def test_no_mark_stands_elsewhere_than_above_a_block() -> None:
    pages = {block.page for block in blocks()}
    written = sum(len(re.findall(r"<!-- (?:not run|dry run|tested by)", (ROOT / page).read_text())) for page in pages)
    assert written == sum(block.mark is not None for block in blocks())


@pytest.mark.parametrize("block", [block for block in blocks() if block.language == "json"], ids=str)
def test_json_of_the_documentation_is_json(block: Block) -> None:
    json.loads(block.text)


def test_every_tool_of_the_comparison_is_cited() -> None:
    text = (ROOT / "docs" / "comparison.md").read_text()
    targets = dict(re.findall(r"(?m)^\[([\w-]+)\]: (https://\S+)$", text))
    used = re.findall(r"\]\[([\w-]+)\]", text)
    assert set(used) == set(targets)
    table = text.partition("|---|")[2].partition("\n\n")[0]
    rows = [row for row in table.splitlines()[1:] if not row.startswith("| **ddp-orch**")]
    assert len(rows) >= 10
    assert [row for row in rows if not re.match(r"\| \[.+?\]\[", row)] == []
