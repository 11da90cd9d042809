"""The start of a session on a host: the node program is there and whole, or it is sent."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator.hosts.bootstrap import STUB, bootstrap_command
from orchestrator.hosts.node_program import SOURCES, NodeProgram, node_program

PROGRAM = node_program()
MARKER = b"n0nce "


def said(state: Path, program: NodeProgram = PROGRAM, state_dir: Path | None = None) -> list[str]:
    """What the stub says at the start of a session, ended when the relay has said hello."""
    command = bootstrap_command(sys.executable, program, "n0nce", str(state_dir) if state_dir else None)
    with subprocess.Popen(
        ["/bin/sh", "-c", command],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={"DDP_ORCH_STATE_DIR": str(state), "PATH": "/usr/bin:/bin"},
    ) as process:
        assert process.stdin and process.stdout
        words = []
        for line in process.stdout:
            if line.startswith(MARKER):
                words.append(line[len(MARKER) :].decode().strip())
                if words[-1] != "need":
                    break
                process.stdin.write(program.data)
                process.stdin.flush()
        if words[-1] == "have":
            assert process.stdout.read(4)  # a frame
        process.stdin.close()
    return words


def test_the_node_program_is_sent_once(tmp_path: Path) -> None:
    state = tmp_path / "state"
    assert said(state) == ["need", "have"]
    assert said(state) == ["have"]
    assert not [path for path in state.rglob("*.py") if path.stat().st_mode & 0o077]


def test_state_dir_of_the_inventory_is_used_in_place_of_that_of_the_host(tmp_path: Path) -> None:
    assert said(tmp_path / "state", state_dir=tmp_path / "a disk's !folder") == ["need", "have"]
    assert {path.name for path in tmp_path.iterdir()} == {"a disk's !folder"}


def emptied(path: Path) -> None:
    path.write_bytes(b"")


def zeroed(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("relay.py", emptied),
        ("relay.py", zeroed),
        ("relay.py", Path.unlink),
        ("guard.py", emptied),
        ("__init__.py", zeroed),
    ],
)
def test_a_node_program_that_was_damaged_is_sent_again(
    tmp_path: Path, name: str, damage: Callable[[Path], None]
) -> None:
    state = tmp_path / "state"
    said(state)
    (folder,) = state.glob("node-*")
    for cache in list(folder.rglob("__pycache__")):
        shutil.rmtree(cache)
    damage(min(folder.rglob(name), key=lambda path: len(path.parts)))
    assert said(state) == ["need", "have"]
    assert said(state) == ["have"]
    assert list(state.glob("node-*")) == [folder]


@pytest.mark.parametrize("damage", [emptied, zeroed, Path.unlink])
def test_damage_in_a_subpackage_of_the_node_program_is_found(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    sources, state = tmp_path / "sources", tmp_path / "state"
    shutil.copytree(SOURCES, sources, ignore=shutil.ignore_patterns("__pycache__"))
    (sources / "deep" / "er").mkdir(parents=True)
    (sources / "deep" / "er" / "module.py").write_text("x = 1\n")
    program = node_program(sources)
    assert said(state, program) == ["need", "have"]
    assert said(state, program) == ["have"]
    (module,) = state.glob("node-*/node/deep/er/module.py")
    damage(module)
    assert said(state, program) == ["need", "have"]
    assert module.read_text() == "x = 1\n"


WATCHED = """
import os, sys
synced, fsync, rename = set(), os.fsync, os.rename
def watched_fsync(handle):
    synced.add(os.readlink("/proc/self/fd/%d" % handle))
    fsync(handle)
def watched_rename(source, target):
    held = {os.path.join(folder, name) for folder, _, names in os.walk(source) for name in names} | {source}
    sys.stderr.write("%d files; not synced: %s\\n" % (len(held), sorted(held - synced)))
    rename(source, target)
os.fsync, os.rename = watched_fsync, watched_rename
"""


def run_stub(tmp_path: Path, changed: str) -> subprocess.CompletedProcess[bytes]:
    """Run the stub after lines that change what it calls."""
    head = f"NONCE, SHA, SIZE, SOURCES = 'n0nce', {PROGRAM.sha256!r}, {len(PROGRAM.data)}, {PROGRAM.sources}\n"
    return subprocess.run(
        [sys.executable, "-I", "-S", "-c", head + changed + STUB],
        input=PROGRAM.data,
        env={"DDP_ORCH_STATE_DIR": str(tmp_path / "state")},
        capture_output=True,
        timeout=60,
    )


def test_the_node_program_is_on_the_disk_before_it_has_its_name(tmp_path: Path) -> None:
    done = run_stub(tmp_path, WATCHED)
    count, _, missing = done.stderr.decode().splitlines()[0].partition(" files; not synced: ")
    assert int(count) > 40 and missing == "[]"


FULL = """
import errno, os
def full(handle):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
os.fsync = full
"""


def test_a_full_disk_is_told_apart_from_other_errors(tmp_path: Path) -> None:
    done = run_stub(tmp_path, FULL)
    assert done.stdout.splitlines()[-1].split()[:2] == [MARKER.strip(), b"full"]
