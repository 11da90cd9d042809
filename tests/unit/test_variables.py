"""Variables of `up`: those of --env-file and of -e."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.commands import variables
from orchestrator.errors import UsageError
from orchestrator.inventory import model

INVENTORY = model.parse("hosts: [a]\nrun: {secrets: [TOKEN]}\n", "inventory.yaml")


def read(folder: Path, text: str, *pairs: str) -> dict[str, str]:
    file = folder / "job.env"
    file.write_text(text)
    return variables.read(INVENTORY, [str(file)], pairs)


def test_a_file_has_comments_quotes_and_names_of_this_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FROM_HERE", "here")
    text = "# what it is\n\nA=1=2 # kept\nexport B='x y'\nC=\nD=\"q\nFROM_HERE\nE=$A\n"
    found = read(tmp_path, text)
    assert found == {"A": "1=2 # kept", "B": "x y", "C": "", "D": '"q', "FROM_HERE": "here", "E": "$A"}


def test_an_option_overrides_the_files_and_a_file_those_before_it(tmp_path: Path) -> None:
    assert read(tmp_path, "A=1\nB=1\nB=2\n", "A=3") == {"A": "3", "B": "2"}


def test_an_option_may_name_a_variable_of_this_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FROM_HERE", "a=b")
    assert read(tmp_path, "", "FROM_HERE") == {"FROM_HERE": "a=b"}
    with pytest.raises(UsageError, match="NOT_SET_ANYWHERE"):
        read(tmp_path, "", "NOT_SET_ANYWHERE")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("NOT_SET_ANYWHERE", "job.env:2: expected NAME=VALUE"),
        ("1A=2", "job.env:2: a variable name"),
        ("=2", "job.env:2: a variable name"),
        ("RANK=2", "job.env:2: the launcher sets"),
        ("TOKEN=2", "job.env:2: TOKEN is in run.secrets"),
    ],
)
def test_a_wrong_line_is_refused_with_its_place(tmp_path: Path, line: str, message: str) -> None:
    with pytest.raises(UsageError) as refused:
        read(tmp_path, f"A=1\n{line}\n")
    assert message in str(refused.value)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"A=\xff\n")
    for name in ("missing", "binary", "."):
        with pytest.raises(UsageError, match=f"--env-file .*{name}"):
            variables.read(INVENTORY, [str(tmp_path / name)], [])
