"""The scheduler of TorchX in plugins/torchx, driven by TorchX itself."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from lab.lab import Lab

from .driver import assert_clean, code, ok, orch, script

pytest.importorskip("torchx")
PLUGIN = Path(__file__).parents[2] / "plugins" / "torchx"

TORCHX = """
import json, sys
sys.path.insert(0, sys.argv[1])
from ddp_orch_torchx import create_scheduler
from torchx.components.dist import ddp
from torchx.runner import Runner

runner = Runner("tests", {"ddp_orch": create_scheduler})
"""


def torchx(lab: Lab, text: str) -> Any:
    """The output of a program that has a runner."""
    (code(lab) / "home.py").write_text(TORCHX + text)
    return ok(lab.run([sys.executable, "home.py", str(PLUGIN)], cwd=code(lab), timeout=120))


def use_two_hosts(lab: Lab) -> None:
    lab.inventory(run={"launcher": "direct", "grace": 2}).replace(code(lab) / "inventory.yaml")


def test_dist_ddp_runs_on_the_hosts_and_is_followed_to_its_end(lab2: Lab) -> None:
    use_two_hosts(lab2)
    script(lab2, "import os, sys\nprint(os.environ['RANK'], os.environ['WORLD_SIZE'], os.environ['A'], sys.argv[1:])\n")
    result = torchx(
        lab2,
        "app = ddp('--lr', '0.1 or so', script='train.py', j='2x2', env={'A': 'b c'}, max_retries=2)\n"
        "handle = runner.run(app, 'ddp_orch', {})\n"
        "status = runner.wait(handle, wait_interval=0.2)\n"
        "print(status.state, status.num_restarts, [replica.hostname for replica in status.roles[0].replicas])\n"
        "for node in (0, 1):\n    print(sorted(runner.log_lines(handle, 'ddp', node, regex='lr')))\n"
        "print([app.state.name for app in runner.list('ddp_orch')])\n",
    )
    state, first, second, listed = result.stdout.splitlines()[-4:]
    assert state == "SUCCEEDED 0 ['node-0', 'node-1']"
    assert eval(first) == [f"{rank} 4 b c ['--lr', '0.1 or so']\n" for rank in (0, 1)]
    assert eval(second) == [f"{rank} 4 b c ['--lr', '0.1 or so']\n" for rank in (2, 3)]
    assert listed == "['SUCCEEDED']"
    assert_clean(lab2)


def test_a_cancelled_application_leaves_nothing_and_a_failed_one_says_why(lab2: Lab) -> None:
    use_two_hosts(lab2)
    script(lab2, "import sys, time\nif len(sys.argv) > 1:\n    open(sys.argv[1])\ntime.sleep(600)\n")
    result = torchx(
        lab2,
        "handle = runner.run(ddp(script='train.py', j='2x1'), 'ddp_orch', {})\n"
        "runner.cancel(handle)\n"
        "print(runner.wait(handle, wait_interval=0.2).state)\n"
        "handle = runner.run(ddp('/data/none', script='train.py', j='2x1'), 'ddp_orch', {})\n"
        "status = runner.wait(handle, wait_interval=0.2)\n"
        "print(status.state, status.msg)\n",
    )
    assert result.stdout.splitlines()[0] == "CANCELLED"
    assert "FAILED" in result.stdout and "/data/none" in result.stdout
    assert_clean(lab2)


@pytest.mark.parametrize(
    ("app", "words"),
    [
        ("ddp(script='train.py', j='2x1', mounts=['type=bind', 'src=/a', 'dst=/b'])", "container: {mounts"),
        ("utils.echo('hello')", "roles with torchrun"),
    ],
)
def test_what_cannot_be_run_is_refused_before_anything_starts(lab2: Lab, app: str, words: str) -> None:
    use_two_hosts(lab2)
    result = torchx(
        lab2,
        "from torchx.components import utils\n"
        f"try:\n    runner.run({app}, 'ddp_orch', {{}})\nexcept ValueError as error:\n    print(error)\n",
    )
    assert words in result.stdout
    assert "[]" in orch(lab2, "ps", "--all", "--json").stdout


def test_the_dry_run_shows_a_command_that_works_when_pasted(lab2: Lab) -> None:
    use_two_hosts(lab2)
    script(lab2, "print('hello')")
    result = torchx(
        lab2,
        "app = ddp(script='train.py', j='2x1')\n"
        "print(runner.dryrun(app, 'ddp_orch', {'inventory': 'inventory.yaml', 'hosts': 'node-[0-1]'}))\n",
    )
    command = result.stdout.splitlines()[-1]
    assert command.startswith("ddp-orch up -d --name train-")
    run_id = ok(lab2.run(["sh", "-c", command], cwd=code(lab2), timeout=60)).stdout.strip()
    ok(orch(lab2, "wait", run_id, timeout=120))
