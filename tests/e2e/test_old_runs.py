"""Finished runs are deleted from all of their hosts or from none, over SSH."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from lab.lab import Lab

from .driver import ok, orch, runs, script

DONE = "print('hello')\n"
LEAVES_A_FILE = "import os\nif os.environ['RANK'] == '1':\n    open('left.txt', 'w').close()\n"
KEEP_ONE = {"launcher": "direct", "keep": {"runs": 1}}


def finish(lab: Lab, inventory: Path, name: str, text: str = DONE, *options: str) -> str:
    """Run a script to its end; the id of the run, and what `up` said."""
    return ok(orch(lab, "up", inventory, "--name", name, *options, "--", script(lab, text))).stderr


def holders(lab: Lab, inventory: Path, code: int = 0) -> dict[str, list[str]]:
    """By name of a run: the hosts that have it. `code`: of `ps`."""
    listed = json.loads(ok(orch(lab, "ps", "-i", inventory, "--all", "--json"), code).stdout)
    return {run["name"]: [node["host"] for node in run["nodes"]] for run in listed}


def delete_record(lab: Lab, number: int, run_id: str) -> None:
    lab.hosts[number].sh(f"rm -r ~/.local/state/ddp-orch/*/runs/{run_id}")


@pytest.mark.timeout(240)
def test_a_run_is_deleted_from_all_of_its_hosts_or_from_none(lab2: Lab) -> None:
    inventory = lab2.inventory(run=KEEP_ONE)
    both = ["node-0", "node-1"]
    finish(lab2, inventory, "whole")
    said = [finish(lab2, inventory, name, DONE, "--hosts", "node-0") for name in ("one", "two", "three")]
    assert holders(lab2, inventory) == {"whole": both, "two": ["node-0"], "three": ["node-0"]}
    assert "whole" not in "".join(said) and "deleted 1 finished run" in said[-1], said

    pruned = ok(orch(lab2, "prune", inventory)).stderr
    assert "whole" in holders(lab2, inventory), pruned  # node-1 has no newer run
    alone = ok(orch(lab2, "prune", inventory, "--run", "whole", "--hosts", "node-0"), 4).stderr
    assert "node-1" in alone and holders(lab2, inventory)["whole"] == both

    finish(lab2, inventory, "second")
    said = [finish(lab2, inventory, "third")]
    assert holders(lab2, inventory) == {"second": both, "third": both}
    assert "finished run" in said[0], said


@pytest.mark.timeout(240)
def test_a_run_waits_for_a_host_that_does_not_answer_unless_it_is_forced(lab3: Lab) -> None:
    inventory = lab3.inventory(run=KEEP_ONE)
    two = ["node-0", "node-1"]
    finish(lab3, inventory, "whole")
    (whole,) = runs(lab3, inventory)
    finish(lab3, inventory, "newer", DONE, "--hosts", "node-[0-1]")
    lab3.hosts[2].sshd_stop()
    pruned = ok(orch(lab3, "prune", inventory), 4).stderr
    assert f": {whole}" in pruned and "node-2" in pruned
    refused = ok(orch(lab3, "prune", inventory, "--run", whole), 4).stderr
    assert "--force" in refused and holders(lab3, inventory, 4)["whole"] == two
    ok(orch(lab3, "prune", inventory, "--run", whole, "--force"), 4)
    assert list(holders(lab3, inventory, 4)) == ["newer"]
    lab3.hosts[2].sshd_start()
    said = finish(lab3, inventory, "last")
    finish(lab3, inventory, "very-last")
    assert list(holders(lab3, inventory)) == ["last", "very-last"], said


@pytest.mark.full
@pytest.mark.timeout(240)
def test_files_that_were_not_fetched_on_one_host_keep_the_run_on_all(lab2: Lab) -> None:
    inventory = lab2.inventory(run=KEEP_ONE)
    both = ["node-0", "node-1"]
    finish(lab2, inventory, "whole", LEAVES_A_FILE)
    for name in ("second", "third"):
        finish(lab2, inventory, name)
    assert holders(lab2, inventory) == {"whole": both, "second": both, "third": both}
    pruned = ok(orch(lab2, "prune", inventory)).stderr
    assert "node-1: a run " in pruned and holders(lab2, inventory) == {"whole": both, "third": both}
    refused = ok(orch(lab2, "prune", inventory, "--run", "whole"), 2).stderr
    assert " --run " in refused and "--force" in refused and "fetch" in refused
    assert holders(lab2, inventory)["whole"] == both
    ok(orch(lab2, "prune", inventory, "--run", "whole", "--force"))
    assert list(holders(lab2, inventory)) == ["third"]


@pytest.mark.full
@pytest.mark.timeout(240)
def test_a_run_that_was_deleted_on_its_head_has_the_verdict_that_the_others_know(lab2: Lab) -> None:
    inventory = lab2.inventory(run=KEEP_ONE)
    finish(lab2, inventory, "whole")
    (run_id,) = runs(lab2, inventory)
    delete_record(lab2, 0, run_id)
    for command in (("wait", run_id), ("logs", run_id), ("logs", "-f", run_id), ("describe", run_id)):
        said = ok(orch(lab2, *command, "-i", inventory))
        assert "no answer" not in said.stderr + said.stdout, said
        assert "unknown" not in said.stderr
    diagnosed = orch(lab2, "diagnose", run_id, "-i", inventory)
    assert diagnosed.returncode == 0 and "node-0" in diagnosed.stderr, diagnosed
    without = orch(lab2, "events", run_id, "-i", inventory)
    assert without.returncode == 0 and "not answer" not in without.stderr and "node-0" in without.stderr, without
    assert "node-0" in said.stderr

    ok(orch(lab2, "prune", inventory, "--run", run_id))
    nothing = ok(orch(lab2, "fetch", run_id, "-i", inventory), 2).stderr
    assert "nothing to fetch" in nothing and "can still" not in nothing
