"""Variables that change what a program loads are the job's; our own programs beside it do not see them."""

from __future__ import annotations

from pathlib import Path

import pytest
from local_runs import Runs

EVIL = """
import os
open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "loaded-" + __name__), "a").close()
"""
OURS = ("json", "hashlib", "subprocess", "socket", "struct", "node", "sitecustomize", "usercustomize")


@pytest.mark.parametrize("torchrun", [False, True])
def test_what_the_job_loads_is_not_loaded_by_the_guard(runs: Runs, tmp_path: Path, torchrun: bool) -> None:
    folder = tmp_path / "evil"
    folder.mkdir()
    for name in ("mine", *(() if torchrun else OURS)):
        (folder / f"{name}.py").write_text(EVIL)
    env = {"PYTHONPATH": str(folder), "PYTHONSTARTUP": str(folder / "mine.py"), "LD_BIND_NOW": "1"}
    run = runs.start("import mine; print('trained')", env=env, torchrun=torchrun)
    (record,) = run.wait_over()
    assert record["verdict"]["state"] == "succeeded"
    assert b"trained" in run.journal()["1.0.out"]
    loaded = {path.name for path in folder.glob("loaded-*")}
    assert loaded <= {"loaded-mine", "loaded-sitecustomize", "loaded-usercustomize"} and "loaded-mine" in loaded
    guard = (run.folder() / "guard.err").read_text()
    assert guard == ""


@pytest.mark.parametrize(
    ("given", "of_agent"), [({}, "attempts:0"), ({"RES_OPTIONS": "timeout:5"}, "timeout:5")], ids=["ours", "the user's"]
)
def test_the_agent_asks_no_name_server_and_the_ranks_may(runs: Runs, given: dict[str, str], of_agent: str) -> None:
    code = """import os
print("rank", os.environ["RES_OPTIONS"])
print("agent", *(one for one in open(f"/proc/{os.getppid()}/environ").read().split("\\0") if "RES_OPTIONS=" in one))"""
    run = runs.start(code, env=given, torchrun=True)
    run.wait_over()
    of_rank = given.get("RES_OPTIONS", "timeout:1 attempts:1")
    assert run.journal()["1.0.out"].decode() == f"rank {of_rank}\nagent RES_OPTIONS={of_agent}\n"


def test_the_guard_has_neither_the_job_s_variables_nor_its_secrets_in_its_environment(runs: Runs) -> None:
    run = runs.start("import time; print('ready', flush=True); time.sleep(60)", env={"PYTHONPATH": "/evil", "LR": "1"})
    run.wait_for("ready", "1.0.out")
    environ = Path(f"/proc/{run.guard().pid}/environ").read_bytes()
    assert b"/evil" not in environ and b"LR=" not in environ
    run.stop(grace=0.0)
    run.wait_over()


def test_what_a_rank_said_last_is_recorded_without_the_secret_in_it(runs: Runs) -> None:
    secret = "correct-horse-battery"
    code = "import os, sys; sys.exit('401 for ' + os.environ['TOKEN'])"
    run = runs.start(code, secret={"TOKEN": secret})
    (record,) = run.wait_over()
    assert record["verdict"]["first_failure"]["said"] == "401 for ***"
    files = [path for path in run.folder().rglob("*") if path.is_file() and path.parent.name != "log"]
    assert files and not [path for path in files if secret.encode() in path.read_bytes()]
    assert secret.encode() in run.journal()["1.0.err"]  # which is raw, and private
