"""`fetch`: whose version of a file is the newest."""

from __future__ import annotations

from orchestrator.runs import file_versions
from orchestrator.runs.receiving import RemoteFile

MINUTE = 60


def files(**seconds: float) -> list[RemoteFile]:
    return [RemoteFile(name.replace("_", "."), 10, int(time * 1e9)) for name, time in seconds.items()]


def test_the_host_that_wrote_last_is_named_with_those_that_wrote_earlier() -> None:
    (found,) = file_versions.compare(
        {
            "box1": files(ckpt_pt=0, best_pt=0, log_1=0),
            "box2": files(ckpt_pt=35 * MINUTE, best_pt=20 * MINUTE),
            "box3": files(ckpt_pt=35 * MINUTE + 2, best_pt=20 * MINUTE),
        }
    )
    assert (found.paths, found.newest, found.older) == (("best.pt", "ckpt.pt"), ("box2", "box3"), ("box1",))
    assert found.lag == 20 * MINUTE


def test_hosts_that_save_together_and_files_of_one_host_are_no_news() -> None:
    assert file_versions.compare({"box1": files(ckpt_pt=5, a_log=0), "box2": files(ckpt_pt=8, b_log=900)}) == []


def test_each_file_may_have_another_newest_host() -> None:
    found = file_versions.compare({"box1": files(a=100, b=0), "box2": files(a=0, b=100)})
    assert [(each.paths, each.newest, each.older) for each in found] == [
        (("a",), ("box1",), ("box2",)),
        (("b",), ("box2",), ("box1",)),
    ]
