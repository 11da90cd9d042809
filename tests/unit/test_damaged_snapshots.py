"""Which snapshots are called damaged, and the commands that put them out of the way."""

from __future__ import annotations

from dataclasses import replace

import pytest

from orchestrator.diagnosis.engine import DamagedFile, Diagnosis
from orchestrator.inventory.advice import AboutRun
from orchestrator.output.finding import Finding
from orchestrator.runs.damaged_snapshots import Snapshots, commands, with_snapshots
from orchestrator.runs.receiving import RemoteFile

CAUSE = Finding("error", "checkpoint-corrupt", ("a",), "A snapshot is damaged.", "Use another one.")


def snapshots(*files: tuple[str, int]) -> Snapshots:
    """`files`: (path, size), the newest first."""
    return Snapshots(tuple(RemoteFile(path, size, 10**18) for path, size in files), "/out/x", "/runs/1")


@pytest.mark.parametrize(
    ("files", "damaged", "told"),
    [
        ([("ckpt.pt", 0)], ["/out/x/ckpt.pt"], "no other"),
        ([("ckpt.pt", 0), ("old.pt", 9)], ["/out/x/ckpt.pt"], "before it, old.pt"),
        ([("new.pt", 9), ("ckpt.pt", 0)], ["/out/x/ckpt.pt"], "ckpt.pt (0 bytes"),
        ([("code/ckpt.pt", 12)], ["/runs/1/code/ckpt.pt"], "12 bytes"),
        ([("2.pt", 9), ("1.pt", 9)], [], "newest snapshots"),
    ],
)
def test_a_file_is_called_damaged_if_it_is_empty_or_the_only_one(
    files: list[tuple[str, int]], damaged: list[str], told: str
) -> None:
    diagnosis = with_snapshots(Diagnosis((CAUSE,), ()), {"a": snapshots(*files)})
    assert [file.path for file in diagnosis.damaged] == damaged
    assert diagnosis.findings[0].fix.startswith("On a: ") and told in diagnosis.findings[0].fix
    assert diagnosis.findings[0].fix.endswith(CAUSE.fix)


def test_hosts_with_the_same_files_share_a_sentence_and_those_with_none_are_not_named() -> None:
    by_host = {"a": snapshots(("ckpt.pt", 0)), "b": snapshots(("ckpt.pt", 0)), "c": snapshots()}
    diagnosis = with_snapshots(Diagnosis((CAUSE,), ()), by_host)
    assert diagnosis.findings[0].fix.count("ckpt.pt") == 1
    assert [file.host for file in diagnosis.damaged] == ["a", "b"]
    unchanged = Diagnosis((CAUSE,), ())
    assert with_snapshots(unchanged, {"c": snapshots()}) is unchanged


def test_a_file_on_a_disk_that_hosts_share_is_removed_once() -> None:
    files = snapshots(("ckpt.pt", 0), ("code/ckpt.pt", 0))
    shared = replace(files, is_shared=True)
    diagnosis = with_snapshots(Diagnosis((CAUSE,), ()), {"a": shared, "b": shared})
    assert [(file.host, file.path) for file in diagnosis.damaged] == [
        ("a", "/out/x/ckpt.pt"),
        ("a", "/runs/1/code/ckpt.pt"),
        ("b", "/runs/1/code/ckpt.pt"),
    ]


def test_only_an_empty_file_is_removed() -> None:
    about = AboutRun("mine", "i.yaml")
    (remove,) = commands([DamagedFile("a", "/out/a b.pt", 0)], about)
    assert remove == "ddp-orch exec i.yaml --hosts a -- rm '/out/a b.pt'"
    (move,) = commands([DamagedFile("a", "/out/x.pt", 7)], about)
    assert move.endswith(" -- mv /out/x.pt /out/x.pt.damaged")


@pytest.mark.parametrize(
    "damaged",
    [
        [DamagedFile(host, "/x.pt", 0) for host in "abcd"],
        [DamagedFile("a", "/x.pt", 0), DamagedFile("a", "/y.pt", 0)],
        [DamagedFile("a", "/x\x1b[2J.pt", 0)],
    ],
)
def test_no_command_is_offered_for_many_files_or_a_name_that_a_terminal_cannot_show(damaged: list[DamagedFile]) -> None:
    assert commands(damaged, AboutRun("mine", "i.yaml")) == {}
