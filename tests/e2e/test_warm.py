"""`run.warm`: the modules of one run stay on the hosts for the next one, until they are too old or ended."""

from __future__ import annotations

import re
from pathlib import Path

from lab.lab import Lab
from lab.waiting import wait_until

from .driver import assert_clean, ok, orch, script

MODULES = "/home/ann/modules"
IMPORTERS = 'import heavy, os; print("rank", os.environ["RANK"], "imported by", heavy.importer, flush=True)'


def warm_inventory(lab: Lab, warm: str = "5m", **options: object) -> Path:
    for host in lab.hosts:
        host.sh(
            f"mkdir -p {MODULES} && cat > {MODULES}/heavy.py", input="import os\nimporter = os.getpid()\n", check=True
        )
    run = {"launcher": "direct", "preload": ["heavy"], "warm": warm, "env": {"PYTHONPATH": MODULES}, **options}
    return lab.inventory(run=run)


def importers(lab: Lab, inventory: Path) -> dict[str, str]:
    """By rank, the process that imported the module, of a new run."""
    text = ok(orch(lab, "up", inventory, "--", script(lab, IMPORTERS))).stdout
    return dict(re.findall(r"rank (\d+) imported by (\d+)", text))


def kept(lab: Lab, inventory: Path) -> list[str]:
    """The hosts for which `ps` shows a kept process."""
    table = ok(orch(lab, "ps", "-i", inventory)).stdout
    return re.findall(r"^(\S+) +\d+ +\S+ +heavy ", table, re.MULTILINE)


def test_a_run_forks_its_ranks_from_the_process_of_the_last_run(lab2: Lab) -> None:
    inventory = warm_inventory(lab2)
    first = importers(lab2, inventory)
    assert sorted(first) == ["0", "1"]
    assert kept(lab2, inventory) == [host.name for host in lab2.hosts]
    assert importers(lab2, inventory) == first
    ok(orch(lab2, "kill", "-i", inventory, "--leftovers"))
    assert kept(lab2, inventory) == []
    assert_clean(lab2)
    later = importers(lab2, inventory)
    assert later.keys() == first.keys() and not set(later.values()) & set(first.values())


def test_another_list_of_modules_is_imported_again(lab2: Lab) -> None:
    first = importers(lab2, warm_inventory(lab2))
    later = importers(lab2, warm_inventory(lab2, preload=["heavy", "json"]))
    assert later.keys() == first.keys() and not set(later.values()) & set(first.values())


def test_modules_that_are_kept_end_in_time(lab2: Lab) -> None:
    inventory = warm_inventory(lab2, "2s")
    importers(lab2, inventory)
    wait_until(lambda: not kept(lab2, inventory), 30, "nothing is kept")
    assert_clean(lab2)
