"""A process that has imported the modules of one run forks the ranks of the next one, with `run.warm`."""

from __future__ import annotations

import os
import signal
import sys
import types
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from lab.waiting import wait_until
from local_runs import HEAVY, Run, Runs
from test_preload_equal import SCRIPTS, output_of

from orchestrator.node.guard import requests, warm
from orchestrator.node.host import processes, state
from orchestrator.node.preload import later_runs
from orchestrator.node.serve import leftovers

OPTIONS = "preload: [heavy], warm: 15m"
IMPORTER = "import heavy; print(heavy.importer)"
WAITS = "import heavy, time; print(heavy.importer, flush=True); time.sleep(60)"


def start(runs: Runs, modules: Path, code: str, *arguments: str, **options: Any) -> Run:
    options["env"] = {"PYTHONPATH": str(modules), **options.get("env", {})}
    return runs.start(code, *arguments, **{"options": OPTIONS, **options})


def find_kept(runs: Runs) -> dict[str, Any] | None:
    """The record of the keeper on the first host, once helpers of the run have ended."""
    (host,) = runs.hosts(1)
    for path in host.state.glob("*/warm/*/warm.json"):
        record = state.read(str(path))
        if (
            record
            and [process.pid for process in processes.descendants(record["keeper"][0])] == record["preloader"][:1]
        ):
            return record
    return None


def wait_kept(runs: Runs) -> tuple[processes.Process, processes.Process]:
    """The keeper and the preloader."""
    record = wait_until(lambda: find_kept(runs), 5.0, "the preloader is kept")
    return processes.Process(*record["keeper"]), processes.Process(*record["preloader"])


def run_to_its_end(runs: Runs, modules: Path, code: str = IMPORTER, *arguments: str, **options: Any) -> str:
    """What the rank printed. Afterwards, the preloader is kept."""
    run = start(runs, modules, code, *arguments, **options)
    (record,) = run.wait_over()
    assert record["verdict"]["state"] == "succeeded", run.journal()
    assert run.journal()["1.0.err"] == b""
    wait_kept(runs)
    return run.journal()["1.0.out"].decode()


def test_the_next_run_uses_the_modules_of_the_last_one(runs: Runs, modules: Path) -> None:
    first = run_to_its_end(runs, modules)
    code = "import heavy, os, sys; print(heavy.importer); print(sys.argv[1:], os.environ['DDP_ORCH_RUN_NAME'])"
    lines = [run_to_its_end(runs, modules, code, "--lr", str(number), name=f"n{number}") for number in (1, 2)]
    assert lines == [f"{first}['--lr', '{number}'] n{number}\n" for number in (1, 2)]


@pytest.mark.parametrize("name", ["process", "traceback", "workers", "syntax"])
def test_a_script_of_a_later_run_behaves_as_under_python(runs: Runs, modules: Path, tmp_path: Path, name: str) -> None:
    (tmp_path / "train.py").write_text(SCRIPTS[name])
    (tmp_path / "first.py").write_text(IMPORTER)
    env = {"HOME": str(tmp_path)}  # as `output_of` sets it
    first = run_to_its_end(runs, modules, "first.py", "--lr", "0.5", command=(), env=env)
    later = output_of(runs, tmp_path, "train.py", "[heavy], warm: 15m", command=())
    assert later == output_of(runs, tmp_path, "train.py", "none", command=())
    assert run_to_its_end(runs, modules, "first.py", command=(), env=env) == first
    assert len(list(runs.hosts(1)[0].state.glob("*/warm/*"))) == 1


@pytest.mark.parametrize("command", ["-c", "-m"])
def test_code_and_modules_of_a_later_run_behave_as_under_python(
    runs: Runs, modules: Path, tmp_path: Path, command: str
) -> None:
    (tmp_path / "train.py").write_text(SCRIPTS["process"])
    (tmp_path / "first.py").write_text(IMPORTER)
    code = SCRIPTS["process"] if command == "-c" else "train"
    first = IMPORTER.ljust(len(code)) if command == "-c" else "first"  # as long, for /proc/PID/cmdline
    run_to_its_end(runs, modules, first, "--lr", "0.5", env={"HOME": str(tmp_path)}, command=(command,))
    later = output_of(runs, tmp_path, code, "[heavy], warm: 15m", command=(command,))
    assert later == output_of(runs, tmp_path, code, "none", command=(command,))
    assert '"frames"' in later["1.0.out"]
    assert len(list(runs.hosts(1)[0].state.glob("*/warm/*"))) == 1


def change_module(modules: Path) -> dict[str, Any]:
    (modules / "heavy.py").write_text(f"{HEAVY}# longer")
    return {}


def hide_module(modules: Path) -> dict[str, Any]:
    (modules / "heavy.py").rename(modules.parent / "heavy.py")
    return {"command": (), "code": "train.py"}


def link_python(modules: Path) -> dict[str, Any]:
    """Another path of the same interpreter."""
    folder = modules.parent / "other" / "bin"
    folder.mkdir(parents=True)
    (folder / "python3").symlink_to(sys.executable)
    return {"python": str(folder / "python3")}


CHANGES: dict[str, Callable[[Path], dict[str, Any]]] = {
    "module": change_module,
    "python": link_python,
    "hidden": hide_module,
    "variable": lambda _: {"env": {"OMP_NUM_THREADS": "7"}},
    "modules": lambda _: {"options": "preload: [heavy, json], warm: 15m"},
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_would_be_imported_differently_is_imported_again(runs: Runs, modules: Path, change: str) -> None:
    first = run_to_its_end(runs, modules)
    (modules.parent / "train.py").write_text(IMPORTER)
    options = CHANGES[change](modules)
    assert run_to_its_end(runs, modules, options.pop("code", IMPORTER), **options) not in ("", first)


def test_a_process_that_is_not_forked_in_a_later_run_has_the_umask_and_the_limits_of_the_login(
    runs: Runs, modules: Path
) -> None:
    code = "import os, heavy, resource; print(os.umask(0), resource.getrlimit(resource.RLIMIT_NOFILE))"
    first = run_to_its_end(runs, modules, code)
    change_module(modules)
    assert run_to_its_end(runs, modules, code) == first


def test_what_is_in_the_folder_of_a_run_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "run"
    (folder / "code").mkdir(parents=True)
    monkeypatch.chdir(folder / "code")
    in_no_folder = types.ModuleType("ops")
    in_no_folder.__file__ = "_ops.py"  # as that of torch.ops
    monkeypatch.setitem(sys.modules, "ops", in_no_folder)
    path = [*sys.path, "__editable__.package.finder.__path_hook__"]  # as setuptools adds it
    monkeypatch.setattr(sys, "path", path)
    assert not later_runs.depends_on(str(folder))
    for inside in (str(folder / "code"), ""):
        monkeypatch.setattr(sys, "path", [*path, inside])
        assert later_runs.depends_on(str(folder))
    monkeypatch.setattr(sys, "path", path)
    in_no_folder.__file__ = str(folder / "code" / "ops.py")
    assert later_runs.depends_on(str(folder))


def test_modules_that_are_kept_end_with_their_time(runs: Runs, modules: Path) -> None:
    run = start(runs, modules, IMPORTER, options="preload: [heavy], warm: 1s")
    run.wait_over()
    both = wait_kept(runs)
    wait_until(lambda: not any(map(processes.alive, both)), 10.0, "keeper and preloader have ended")
    assert not list(runs.hosts(1)[0].state.glob("*/warm/*"))


def test_a_keeper_that_refuses_a_run_keeps_none_of_its_locks(runs: Runs, modules: Path, tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    (host,) = runs.hosts(1)
    start(runs, modules, IMPORTER, notify={"webhook": "", "command": f"cat {fifo}"}).wait_over()
    with fifo.open("w"):  # the command, a child of the keeper by now, runs until this end is closed
        (path,) = wait_until(lambda: list(host.state.glob("*/warm/*/warm.json")), 5.0, "the preloader is kept")
        keeper = processes.Process(*(state.read(str(path)) or {})["keeper"])
        refused = start(runs, modules, IMPORTER, name="same")
        assert refused.guard() != keeper
        refused.wait_over()
        assert processes.alive(keeper)
        start(runs, modules, IMPORTER, name="same").wait_over()  # refused by `prepare`, if the name is still locked


def test_ps_shows_what_is_kept_and_kill_leftovers_ends_it(runs: Runs, modules: Path) -> None:
    run_to_its_end(runs, modules)
    _, preloader = wait_kept(runs)
    session = runs.hosts(1)[0].session
    (shown,) = session.request("list", {})["warm"]
    assert shown["pid"] == preloader.pid and shown["modules"] == ["heavy"]
    assert 0 < shown["left"] <= 900 and shown["memory"] > 1 << 20
    assert session.request("stale", {"ports": []})["killed"] == [] and processes.alive(preloader)
    (killed,) = session.request("stale", {"ports": [], "warm": True})["killed"]
    assert killed["pid"] == preloader.pid and not processes.alive(preloader)
    assert session.request("list", {})["warm"] == []


def test_a_preloader_that_a_run_of_another_state_folder_takes_over_is_no_leftover(
    runs: Runs, modules: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has the mark of the new run already, and its keeper has not become the guard yet."""
    run_to_its_end(runs, modules)
    _, preloader = wait_kept(runs)
    run_id = "20260101-120000-0000"
    monkeypatch.setattr(processes, "marks", lambda: {preloader: run_id})
    assert run_id not in dict(leftovers._dead_runs())


def test_a_keeper_that_ends_while_it_is_looked_at_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DDP_ORCH_STATE_DIR", str(tmp_path / "state"))
    folder = Path(state.folder("warm", "1-2"))
    guarded = state.guarded
    looks = 0

    def end_after_the_last_look(path: str) -> bool:
        nonlocal looks
        looks += 1
        found = guarded(path)
        if looks == 2:
            folder.rmdir()
        return found

    monkeypatch.setattr(state, "guarded", end_after_the_last_look)
    assert list(warm.keepers()) == []
    assert looks == 2


def count_connections(folder: Path) -> int:
    """To the socket of a keeper."""
    name = requests.socket_name(str(folder))[1:].decode()
    return sum(name in line for line in Path("/proc/net/unix").read_text().splitlines()) - 1  # one of them listens


@pytest.mark.parametrize("first", ["run", "end"])
def test_an_end_reaches_no_run_that_has_the_process(runs: Runs, modules: Path, first: str) -> None:
    run_to_its_end(runs, modules)
    keeper, preloader = wait_kept(runs)
    (path,) = runs.hosts(1)[0].state.glob("*/warm/*")
    kept = warm.Keeper(str(path), state.read(str(path / "warm.json")) or {})
    actions = {"run": lambda: start(runs, modules, WAITS), "end": lambda: warm.end(kept)}
    os.kill(keeper.pid, signal.SIGSTOP)
    with ThreadPoolExecutor() as pool:
        started = {}
        for number, name in enumerate(sorted(actions, key=lambda name: name != first), 1):
            started[name] = pool.submit(actions[name])
            wait_until(lambda number=number: count_connections(path) == number, 5.0, f"{name} waits for the keeper")
        os.kill(keeper.pid, signal.SIGCONT)
    run = started["run"].result()
    run.wait_for("\n", "1.0.out")
    took_over = int(run.journal()["1.0.out"]) == preloader.pid
    assert took_over == (first == "run") == (run.guard() == keeper)
    assert started["end"].result() == (None if took_over else preloader)
    run.stop(grace=0.0)


def test_it_is_a_process_of_no_run(runs: Runs, modules: Path) -> None:
    run = start(runs, modules, WAITS, nproc=[2])
    run.wait_for("\n", "1.0.out")
    run.wait_for("\n", "1.1.out")
    importer = int(run.journal()["1.0.out"])
    members = {process.pid for process in run.members()}
    assert len(members) == 2 and importer not in members
    run.stop(grace=0.0)
    assert not run.members()
    assert [process.pid for process in wait_kept(runs)] == [run.guard().pid, importer]


def test_the_ranks_of_a_later_run_end_with_their_guard(runs: Runs, modules: Path) -> None:
    run_to_its_end(runs, modules)
    run = start(runs, modules, WAITS)
    run.wait_for("\n", "1.0.out")
    ranks = run.members()
    assert len(ranks) == 1
    importer = processes.identify(int(run.journal()["1.0.out"]))
    processes.send(run.guard(), signal.SIGKILL)
    wait_until(lambda: not any(map(processes.alive, [*ranks, importer])), 5.0, "all end")  # type: ignore[list-item]
    run.wait_over()


def test_a_stop_of_an_ended_run_does_not_reach_the_run_that_has_its_process(runs: Runs, modules: Path) -> None:
    first = start(runs, modules, IMPORTER)
    first.wait_over()
    wait_kept(runs)
    second = start(runs, modules, WAITS)
    second.wait_for("\n", "1.0.out")
    assert second.guard() == first.guard()
    assert first.stop(grace=0.0)["killed"] == []
    assert len(second.members()) == 1 and second.record("exit.json") is None
    second.stop(grace=0.0)


def test_each_run_has_its_own_secrets(runs: Runs, modules: Path) -> None:
    code = "import heavy, os; print(heavy.importer, os.environ.get('TOKEN'))"
    values = [run_to_its_end(runs, modules, code, secret=secret) for secret in ({"TOKEN": "a"}, {"TOKEN": "b"}, {})]
    importer = values[0].split()[0]
    assert values == [f"{importer} a\n", f"{importer} b\n", f"{importer} None\n"]


def switches(process: processes.Process) -> list[str]:
    """Of every thread: how often it was switched to another one."""
    folder = Path(f"/proc/{process.pid}/task")
    return [
        line
        for thread in sorted(os.listdir(folder))
        for line in (folder / thread / "status").read_text().splitlines()
        if "ctxt_switches" in line
    ]


def test_what_is_kept_uses_no_cpu(runs: Runs, modules: Path) -> None:
    run_to_its_end(runs, modules)
    idle = wait_kept(runs)
    other = runs.start("import time\nfor n in range(50): print(n, flush=True); time.sleep(0.02)")
    other.wait_for("1\n", "1.0.out")
    before = [switches(process) for process in idle]
    other.wait_for("49\n", "1.0.out")
    assert [switches(process) for process in idle] == before


def test_a_preloader_uses_no_cpu_while_the_ranks_run(runs: Runs, modules: Path) -> None:
    code = "import heavy, time; print(heavy.importer)\nfor n in range(50): print(n, flush=True); time.sleep(0.02)"
    run = start(runs, modules, code, options="preload: [heavy]")
    run.wait_for("\n1\n", "1.0.out")
    preloader = processes.identify(int(run.journal()["1.0.out"].split()[0]))
    assert preloader is not None
    before = switches(preloader)
    run.wait_for("49\n", "1.0.out")
    assert switches(preloader) == before
