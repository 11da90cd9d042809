"""The example and the reference say what the table of keys says. `UPDATE_GOLDEN=1 pytest` on this file writes both."""

from __future__ import annotations

import os
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.inventory import model, writing
from orchestrator.inventory.docs import example, reference
from orchestrator.inventory.schema import SECTIONS
from orchestrator.inventory.yaml_source import Map, Node, Scalar, Sequence, compose

ROOT = Path(__file__).parent.parent.parent
EXAMPLE = ROOT / "inventory.example.yaml"
REFERENCE = ROOT / "docs" / "inventory.md"
BEGIN, END = "<!-- begin: made from the table of keys -->\n", "<!-- end: made from the table of keys -->\n"


def test_the_example_file_is_the_one_the_keys_make() -> None:
    if os.environ.get("UPDATE_GOLDEN"):
        EXAMPLE.write_text(example())
    assert EXAMPLE.read_text() == example()


def test_the_reference_is_the_one_the_keys_make() -> None:
    before, _, rest = REFERENCE.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    text = f"{before}{BEGIN}\n{reference()}{END}{after}"
    if os.environ.get("UPDATE_GOLDEN"):
        REFERENCE.write_text(text)
    assert REFERENCE.read_text() == text


def test_the_example_file_is_an_inventory() -> None:
    assert [host.name for host in model.load(EXAMPLE).hosts] == ["lovelace", "hopper"]


def test_every_key_is_in_the_example_file() -> None:
    def keys(node: Node, section: str) -> set[str]:
        if isinstance(node, Sequence):
            return set().union(*(keys(item, section) for item in node.items))
        if not isinstance(node, Map):
            return set()
        found = set()
        for name, value in node.items:
            assert isinstance(name, Scalar)
            found.add(f"{section}.{name.text}")
            found |= keys(value, f"{section}.{name.text}".removeprefix("."))
        return found

    assert keys(compose(example()), "") == {
        f"{section.name}.{key.name}" for section in SECTIONS for key in section.keys
    }


def test_lines_of_the_example_fit_a_screen() -> None:
    assert max(map(len, example().splitlines())) <= 120


def test_every_default_is_what_its_own_key_would_read() -> None:
    smallest = model.parse("hosts: [lovelace]", "inventory.yaml")
    assert model.parse(writing.render(smallest), "inventory.yaml") == smallest


def yaml_blocks() -> Iterator[tuple[str, str]]:
    for page in (
        ROOT / "README.md",
        *sorted((ROOT / "docs").glob("*.md")),
        *sorted((ROOT / "docs" / "guides").glob("*.md")),
    ):
        for part in page.read_text().split("```yaml\n")[1:]:
            yield page.name, textwrap.dedent(part.partition("```")[0])


@pytest.mark.parametrize(("page", "block"), yaml_blocks())
def test_every_yaml_block_of_the_docs_is_an_inventory(page: str, block: str) -> None:
    hosts = "" if re.search("^hosts:", block, re.MULTILINE) else "hosts: [gpu-01, gpu-02, gpu-03, gpu-04]\n"
    model.parse(hosts + block, page)
