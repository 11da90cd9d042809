"""The Python interface, as a program on the user's machine uses it: real hosts, real exceptions."""

from __future__ import annotations

import json
import signal
import subprocess

import pytest
from lab.lab import Lab
from lab.waiting import wait_until

from .driver import assert_clean, code, ok, orch, runs, script

HOME = "import json, pathlib, sys, time\nimport orchestrator\nfrom orchestrator import errors\n"


def python(lab: Lab, text: str, *argv: str, name: str = "home.py") -> subprocess.CompletedProcess[str]:
    """Run a program with the Python that has ddp-orch, in the folder of the user's code."""
    (code(lab) / name).write_text(HOME + text)
    return lab.run(["python", name, *argv], cwd=code(lab), timeout=120)


def settings(lab: Lab, launcher: str = "direct") -> str:
    lab.inventory(run={"launcher": launcher, "grace": 2}).replace(code(lab) / "inventory.yaml")
    return launcher


TRAIN = """
import os

def train(first, *, second):
    print("training", flush=True)
    return {"rank": int(os.environ["RANK"]), "sum": first + second, "world": int(os.environ["WORLD_SIZE"])}
"""


@pytest.mark.parametrize("launcher", ["torchrun", "direct"])
def test_a_function_is_called_in_every_rank_and_its_values_come_back(lab2: Lab, launcher: str) -> None:
    settings(lab2, launcher)
    script(lab2, TRAIN, "train.py")
    result = python(
        lab2,
        "import train\n"
        "run = orchestrator.run(train.train, (2,), {'second': 40}, name='sums')\n"
        "print(json.dumps([run.name, run.returned()]))\n",
    )
    ok(result)
    name, values = json.loads(result.stdout)
    assert name == "sums"
    assert values == [{"rank": rank, "sum": 42, "world": 2} for rank in range(2)]
    assert_clean(lab2)


def test_a_function_of_the_program_itself_or_of_a_package_is_found(lab2: Lab) -> None:
    settings(lab2)
    package = code(lab2) / "models" / "cnn"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("from ..shared import NAME\ndef name():\n    return NAME\n")
    (package / "fit.py").write_text(
        "from . import name\nclass Fit:\n    @staticmethod\n    def go():\n        return name()\n"
    )
    (package.parent / "shared.py").write_text("NAME = 'shared'\n")
    result = python(
        lab2,
        "from models import cnn\nfrom models.cnn import fit\n"
        "def own(value):\n    return [value, __name__]\n"
        "if __name__ == '__main__':\n"
        "    for function, args in ((own, (1,)), (cnn.name, ()), (fit.Fit.go, ())):\n"
        "        print(json.dumps(orchestrator.run(function, args, hosts='node-1').returned()))\n",
    )
    ok(result)
    assert [json.loads(line) for line in result.stdout.splitlines()] == [[[1, "home"]], ["shared"], ["shared"]]


def test_a_script_runs_with_its_words_and_variables_and_its_output_is_read_as_it_comes(lab2: Lab) -> None:
    settings(lab2)
    script(
        lab2,
        "import os, pathlib, sys\nprint(sys.argv[1:], os.environ['WHAT'], flush=True)\n"
        "pathlib.Path(os.environ['DDP_ORCH_OUTPUT_DIR'], 'model.pt').write_text('weights')\n",
    )
    result = python(
        lab2,
        "options = {'env': {'WHAT': 'works'}, 'settings': {'run.max_restarts': 1}}\n"
        "run = orchestrator.run('train.py', ['--lr', 0.1], **options)\n"
        "print(sorted((line.host, line.rank, line.text) for line in run.logs() if line.stream == 'stdout'))\n"
        "print([line.rank for line in run.logs(rank=1, follow=False, grep='lr')])\n"
        "print(run.wait(), run.status().state, [node.exit_code for node in run.status().nodes])\n"
        "print(sorted(map(str, run.fetch('*.pt', to='here').rglob('*.pt'))))\n"
        "((same, status),) = orchestrator.list_runs(finished=True).items()\n"
        "print(same == run, status == run.status(), orchestrator.find_run(run.run_id[-6:]).run_id == run.run_id)\n"
        "print(run.diagnose())\n",
    )
    ok(result)
    assert result.stdout.splitlines() == [
        "[('node-0', 0, \"['--lr', '0.1'] works\"), ('node-1', 1, \"['--lr', '0.1'] works\")]",
        "[1]",
        "None succeeded [0, 0]",
        "['here/node-0/model.pt', 'here/node-1/model.pt']",
        "True True True",
        "()",
    ]


def test_a_failure_is_an_exception_with_its_first_cause(lab2: Lab) -> None:
    settings(lab2)
    script(lab2, "import os\nif os.environ['RANK'] == '1':\n    open('/data/none')\nimport time\ntime.sleep(60)\n")
    result = python(
        lab2,
        "run = orchestrator.run('train.py')\n"
        "try:\n    run.wait()\n"
        "except errors.RunFailed as error:\n    print(error)\n"
        "(cause, *_) = run.diagnose()\n"
        "print(cause.hosts, cause.rank, cause.code)\n",
    )
    ok(result)
    message, _, cause = result.stdout.strip().rpartition("\n")
    assert "failed" in message and "/data/none" in message and "node-1: " in message
    assert cause.startswith("('node-1',) 1 ")


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        ("orchestrator.run('none.py')", "UsageError", "none.py: no such file"),
        ("orchestrator.run('train.py', inventory='none.yaml')", "InventoryError|UsageError", "none.yaml"),
        ("orchestrator.run('train.py', inventory={'hots': []})", "UsageError", "hots"),
        ("orchestrator.run('train.py', inventory={'hosts': ['10.77.0.99']})", "UnreachableError", "10.77.0.99"),
        ("orchestrator.run('train.py', settings={'run.nnodes': 9})", "UsageError", "nnodes"),
        ("orchestrator.run('train.py', kwargs={'lr': 1})", "UsageError", "args"),
        ("orchestrator.run(lambda: 1)", "UsageError", "top level"),
        ("orchestrator.run(len, ([],))", "UsageError", "a .py file"),
        ("orchestrator.run(own, (object(),))", "UsageError", "JSON"),
        ("orchestrator.run(own, ('x' * 200_000,))", "UsageError", "bytes"),
        ("orchestrator.find_run('nothing')", "UsageError", "no such run"),
    ],
)
def test_wrong_input_is_one_exception_that_says_what(lab2: Lab, call: str, error: str, words: str) -> None:
    settings(lab2)
    script(lab2, "print('started')")
    result = python(
        lab2,
        f"def own(value):\n    pass\ntry:\n    {call}\n"
        "except errors.OrchError as error:\n    print(type(error).__name__, error)\n",
    )
    ok(result)
    assert result.stdout.split()[0] in error.split("|")
    assert words in result.stdout
    assert not lab2.marked()


def test_what_json_cannot_represent_fails_the_rank_and_says_why(lab2: Lab) -> None:
    settings(lab2)
    result = python(
        lab2,
        "def own():\n    return {1, 2}\n"
        "if __name__ == '__main__':\n"
        "    try:\n        orchestrator.run(own).returned()\n"
        "    except errors.RunFailed as error:\n        print(error)\n",
    )
    ok(result)
    assert "type set" in result.stdout


def test_wait_gives_up_after_its_timeout_and_kill_ends_the_run(lab2: Lab) -> None:
    settings(lab2)
    script(lab2, "import time\nprint('ready', flush=True)\ntime.sleep(600)\n")
    result = python(
        lab2,
        "run = orchestrator.run('train.py')\n"
        "next(line for line in run.logs() if line.text == 'ready')\n"
        "try:\n    run.wait(1)\n"
        "except TimeoutError as error:\n    print(run.status().state, error)\n"
        "run.kill(grace=0)\n"
        "run.kill()\n"
        "try:\n    run.wait()\n"
        "except errors.Interrupted as error:\n    print(run.status().state)\n",
    )
    ok(result)
    running, killed = result.stdout.splitlines()
    assert running.startswith("running ") and "after 1 s" in running
    assert killed == "killed"
    assert_clean(lab2)


def test_the_run_continues_when_the_program_that_started_it_is_interrupted(lab2: Lab) -> None:
    settings(lab2)
    script(lab2, "import time\nprint('ready', flush=True)\ntime.sleep(600)\n")
    (code(lab2) / "home.py").write_text(
        HOME + "run = orchestrator.run('train.py')\nfor line in run.logs():\n    print(line.text, flush=True)\n"
    )
    program = lab2.popen(["python", "home.py"], cwd=code(lab2), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert program.stdout is not None
    wait_until(lambda: program.stdout.readline().strip() == "ready", 60, "the script runs")  # type: ignore[union-attr]
    program.send_signal(signal.SIGINT)
    program.communicate(timeout=30)
    assert program.returncode == -signal.SIGINT
    (run,) = runs(lab2, code(lab2) / "inventory.yaml").values()
    assert run["state"] == "running"
    ok(orch(lab2, "kill", run["run_id"], "--grace", "0"))
