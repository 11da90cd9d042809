"""Where a run writes: its output folder on each host, or one on a disk that its hosts share."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest
from local_runs import Runs, local_runs

from orchestrator.hosts.session import Refused
from orchestrator.node.host import state
from orchestrator.node.serve import locks, wire
from orchestrator.node.serve import runs as known_runs

SAY = """
import json, os, sys
out = os.environ["DDP_ORCH_OUTPUT_DIR"]
open(os.path.join(out, "rank-" + os.environ["RANK"]), "w").close()
print(json.dumps([out, sys.argv[1:], os.environ["MINE"]]))
"""


@pytest.mark.parametrize("torchrun", [True, False])
def test_the_output_folder_is_filled_in_where_it_is_asked_for(runs: Runs, torchrun: bool) -> None:
    words = ("--out={output}/x", "{{output}}", "${output}", '{"output": {}}')
    run = runs.start(SAY, *words, env={"MINE": "{output}:{host}"}, torchrun=torchrun)
    run.wait_over()
    out, arguments, mine = json.loads(run.journal()["1.0.out"])
    assert out == str(run.folder().parents[1] / "out" / run.run_id)
    assert arguments == [f"--out={out}/x", "{output}", "${output}", '{"output": {}}']
    assert mine == f"{out}:host-0"


def test_hosts_that_share_a_disk_have_one_folder_which_one_run_uses_at_a_time(runs: Runs, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    options = {"options": f"output: {disk}", "name": "mine", "env": {"MINE": ""}}
    wait = SAY + "sys.stdout.flush(); sys.stdin = None; import time; time.sleep(600 * (len(sys.argv) > 1))"
    first = runs.start(wait, "wait", nproc=(1, 1), **options)  # type: ignore[arg-type]
    for node in (0, 1):
        first.wait_for(str(disk / "mine"), f"1.{node}.out", node)
    with local_runs(tmp_path / "elsewhere") as others:
        with pytest.raises(Refused, match=f" {disk}/mine .*{first.run_id}") as refused:
            others.prepare(SAY, **options)  # type: ignore[arg-type]
        assert refused.value.code == "held"
        first.stop(grace=0.0)
        first.wait_over()
        second = others.start(SAY, **options)  # type: ignore[arg-type]
        assert second.wait_over()[0]["verdict"]["state"] == "succeeded"
    assert sorted(path.name for path in (disk / "mine").iterdir()) == [state.OUTPUT_LOCK, "rank-0", "rank-1"]
    description = known_runs.describe(first.run_id, str(first.folder()))
    assert description is not None and description["shared_output"] == str(disk / "mine")
    # listed once, and without the lock
    for parts, names in (["output", "code"], ["rank-0", "rank-1"]), (["code"], []):
        asked = {"run_id": first.run_id, "pattern": "", "parts": parts}
        answer = first.hosts[0].session.request("outputs", asked)
        assert [one[0] for one in answer["files"]] == names


def test_a_disk_that_is_not_the_one_of_the_head_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "SHARED_WINDOW", 0.0)
    spec = {
        "node": 1,
        "nodes": [{}, {}],
        "shared_output": str(tmp_path / "mine"),
        "run_id": "run-1",
        "name": "mine",
        "created_at": "now",
    }
    with pytest.raises(wire.Refused, match=rf"{tmp_path}/mine\b.*\bhead\b"):
        locks.share_output(spec, [])
    missing = {**spec, "node": 0, "shared_output": str(tmp_path / "no" / "mine")}
    with pytest.raises(wire.Refused, match=f"run.output {tmp_path}/no "):
        locks.share_output(missing, [])
    taken: list[int] = []
    locks.share_output({**spec, "node": 0}, taken)
    locks.share_output(spec, [])
    assert len(taken) == 1


def test_an_output_of_one_host_is_looked_for_in_the_output_folder_of_the_others(runs: Runs) -> None:
    run = runs.start(SAY, nproc=(1, 1), env={"MINE": ""})
    run.wait_over()
    outputs = [run.folder(node).parents[1] / "out" / run.run_id for node in (0, 1)]
    assert outputs[0] != outputs[1]
    paths = [
        str(outputs[1] / "rank-0"),
        str(outputs[0] / "rank-1"),
        str(outputs[1]).replace(run.run_id, "x") + "/rank-0",
    ]
    answers = [host.session.request("paths", {"run_id": run.run_id, "paths": paths})["paths"] for host in run.hosts]
    missing = os.strerror(errno.ENOENT)
    assert [[answer[path] for path in paths] for answer in answers] == [
        [None, missing, missing],
        [missing, None, missing],
    ]
