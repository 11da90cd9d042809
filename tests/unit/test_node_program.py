"""The archive that is sent to the hosts: the same bytes for the same sources, and it runs by itself."""

from __future__ import annotations

import hashlib
import importlib
import io
import os
import shutil
import stat
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from orchestrator.hosts.node_program import SOURCES, node_program
from orchestrator.node.serve import relay


def names(data: bytes) -> list[str]:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return archive.namelist()


@pytest.fixture
def nested(tmp_path: Path) -> Path:
    """The node package with subpackages that a module imports from, and what does not belong to it."""
    folder = tmp_path / "sources"
    shutil.copytree(SOURCES, folder, ignore=shutil.ignore_patterns("__pycache__"))
    for name, text in {
        "deep/__init__.py": "",
        "deep/er/__init__.py": "",
        "deep/er/module.py": "from ... import PROTOCOL\n",
        "a/__init__.py": "",
        "deep/__pycache__/module.cpython-310.pyc": "",
        "deep/notes.txt": "",
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    with (folder / "__main__.py").open("a") as main:
        main.write("\nfrom .deep.er import module  # noqa\n")
    return folder


def test_the_node_program_is_the_same_bytes_each_time_whatever_the_files_times_are() -> None:
    once = node_program()
    os.utime(SOURCES / "__init__.py")
    assert node_program() == once
    assert once.sha256 == hashlib.sha256(once.data).hexdigest()


def test_the_node_program_holds_the_package_and_nothing_that_differs_between_machines() -> None:
    with zipfile.ZipFile(io.BytesIO(node_program().data)) as archive:
        infos = archive.infolist()
    listed = [info.filename for info in infos]
    assert listed == sorted(listed)
    expected = {f"node/{path.relative_to(SOURCES)}" for path in SOURCES.rglob("*.py")}
    assert set(listed) == {"__main__.py", *expected}
    assert {info.date_time for info in infos} == {(1980, 1, 1, 0, 0, 0)}
    assert {(info.create_system, info.external_attr >> 16, info.compress_type) for info in infos} == {
        (3, stat.S_IFREG | 0o644, zipfile.ZIP_STORED)
    }


def test_the_node_program_holds_the_subpackages_in_the_order_of_their_names(nested: Path) -> None:
    program = node_program(nested)
    listed = names(program.data)
    assert listed == sorted(listed)
    assert {"node/a/__init__.py", "node/deep/__init__.py", "node/deep/er/module.py"} <= set(listed)
    assert not [name for name in listed if not name.endswith(".py")]
    assert program.sources == sum(path.stat().st_size for path in nested.rglob("*.py"))


def test_the_order_in_which_a_file_system_lists_the_sources_makes_no_difference(nested: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    for path in sorted(nested.rglob("*.py"), reverse=True):
        target = other / path.relative_to(nested)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(path.read_bytes())
    assert node_program(other) == node_program(nested)


@pytest.mark.parametrize("subpackages", [False, True])
def test_the_node_program_runs_by_itself(tmp_path: Path, nested: Path, subpackages: bool) -> None:
    archive = tmp_path / "node.pyz"
    archive.write_bytes(node_program(nested if subpackages else SOURCES).data)
    # -I -S: nothing but the standard library
    done = subprocess.run((sys.executable, "-I", "-S", str(archive), "no-such-verb"), capture_output=True, timeout=30)
    assert done.returncode == 2
    assert b"Traceback" not in done.stderr


def test_every_operation_of_the_relay_names_a_function() -> None:
    for module, function in relay.OPERATIONS.values():
        assert callable(getattr(importlib.import_module(f"orchestrator.node.{module}"), function))
