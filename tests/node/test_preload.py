"""Ranks that are forked from a process that has imported their modules."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from lab.waiting import wait_until
from local_runs import HEAVY, Run, Runs, changed_program, impatient_program, local_runs

from orchestrator.node.host import processes

IS_FORKED = "import os, heavy; print(os.getpid() != heavy.importer)"


@pytest.fixture
def impatient(tmp_path: Path) -> Iterator[Runs]:
    """As `runs`, without the pause before a restart."""
    with local_runs(tmp_path, impatient_program()) as found:
        yield found


def start(runs: Runs, modules: Path, code: str, *arguments: str, **options: Any) -> Run:
    options["env"] = {"PYTHONPATH": str(modules), **options.get("env", {})}
    options["options"] = f"preload: [heavy], {options.get('options', '')}"
    return runs.start(code, *arguments, **options)


def preloader(run: Run, node: int = 0) -> processes.Process | None:
    below = processes.descendants(run.guard(node).pid)
    return next((process for process in below if processes.name(process.pid) == "ddp-preload"), None)


def ranks(run: Run) -> list[processes.Process]:
    helpers = [process.pid for process in (preloader(run), run.recorder()) if process]
    return [status.process for status in processes.below(run.guard().pid, helpers)]


def test_ranks_of_all_hosts_and_attempts_are_forked_after_one_import(
    impatient: Runs, modules: Path, tmp_path: Path
) -> None:
    """A rank that fails before all are forked would end the preloader with the attempt, so they meet first."""
    code = f"""if True:
    import os, pathlib, sys, time, heavy
    print(heavy.importer)
    attempt = os.environ["DDP_ORCH_ATTEMPT"]
    met = pathlib.Path({str(tmp_path)!r}, attempt)
    met.mkdir(exist_ok=True)
    (met / os.environ["RANK"]).touch()
    while len(os.listdir(met)) < 4: time.sleep(0.01)
    sys.exit(int(attempt) < 3)"""
    run = start(impatient, modules, code, nproc=[2, 2], options="max_restarts: 2")
    run.wait_over()
    importers = [
        {run.journal(node)[f"{attempt}.{rank}.out"] for attempt in (1, 2, 3) for rank in (2 * node, 2 * node + 1)}
        for node in (0, 1)
    ]
    assert [len(pids) for pids in importers] == [1, 1] and importers[0] != importers[1]


def test_every_exit_code_and_signal_of_a_forked_rank_is_recorded(runs: Runs, modules: Path) -> None:
    code = "import os, signal; n = int(os.environ['RANK']); os._exit(n) if n < 31 else os.kill(os.getpid(), n - 31 + 9)"
    run = start(runs, modules, code, nproc=[33], grace=0.0)
    run.wait_over()
    failures = {failure["rank"]: failure for failure in run.record("exit.json")["failures"]}  # type: ignore[index]
    for rank, failure in failures.items():
        expected = (rank, None) if rank < 31 else (None, signal.Signals(rank - 31 + 9).name)
        assert (failure["exit_code"], failure["signal"]) == expected
    assert failures and 0 not in failures


def test_ps_shows_the_preloader_and_each_rank_for_what_they_are(runs: Runs, modules: Path) -> None:
    code = "import heavy, time; print('ready', flush=True); time.sleep(60)"
    run = start(runs, modules, code)
    run.wait_for("ready", "1.0.out")
    parent = preloader(run)
    assert parent is not None and processes.command(parent.pid).rstrip() == "ddp-orch preload heavy"
    (rank,) = ranks(run)
    assert processes.command(rank.pid).endswith(f"-u -c {code}")
    assert processes.stat(rank.pid).parent == run.guard().pid  # type: ignore[union-attr]
    run.stop(grace=0.0)
    run.wait_over()
    assert not processes.alive(parent)


def test_a_forked_rank_that_is_stopped_is_known_by_its_number(runs: Runs, modules: Path) -> None:
    run = start(runs, modules, "import time; print('ready', flush=True); time.sleep(60)", nproc=[2])
    run.wait_for("ready", "1.1.out")
    record = wait_until(lambda: run.record("procs.json"), 5.0, "the guard has recorded its processes")
    (rank,) = (pid for pid, number in record["ranks"] if number == 1)
    os.kill(rank, signal.SIGSTOP)
    wait_until(lambda: processes.stat(rank).state == "T", 5.0, "it is stopped")  # type: ignore[union-attr]
    assert processes.frozen(record["processes"], dict(record["ranks"])) == [1]
    run.stop(grace=0.0)
    run.wait_over()


def test_a_run_that_is_aborted_leaves_no_preloader(runs: Runs, modules: Path) -> None:
    (modules / "heavy.py").write_text("import time; time.sleep(60)")
    options = {"env": {"PYTHONPATH": str(modules)}, "options": "preload: [heavy]"}
    run, _ = runs.prepare("", **options)  # type: ignore[arg-type]
    wait_until(lambda: len(run.members()) == 1, 5.0, "the preloader runs")
    run.hosts[0].session.request("abort", {"run_id": run.run_id})
    wait_until(lambda: not run.members(), 5.0, "nothing is left")


@pytest.mark.parametrize(
    ("module", "reason"),
    [
        ("import no_such_module", "ModuleNotFoundError"),
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("import os; os._exit(3)", "exit code 3"),
        ("import os; print('bad', flush=True); os.kill(os.getpid(), 9)", "SIGKILL"),
        ("import os; os.abort()", "Aborted"),
        (
            "import os, threading; threading.Thread(target=threading.Event().wait, daemon=True).start()",
            "starts a thread",
        ),
        ("import subprocess; p = subprocess.Popen(['sleep', '60'])", "starts a process"),
        ("import os; rank = os.environ.get('RANK', '0')", "reads RANK"),
        ("import os; 'LOCAL_RANK' in os.environ", "reads LOCAL_RANK"),
        ("import sys; sys.path.insert(0, '/nowhere')", "sys.path"),
        ("import sys; sys.setprofile(lambda *_: None)", "traces"),
        ("import random; random.seed(1)", "seed"),
    ],
)
def test_what_does_not_survive_a_fork_is_started_by_exec(runs: Runs, modules: Path, module: str, reason: str) -> None:
    (modules / "heavy.py").write_text(module)
    run = start(runs, modules, "print('trained')", nproc=[2])
    (record,) = run.wait_over()
    assert record["verdict"]["state"] == "succeeded"
    assert run.journal()["1.0.out"] == run.journal()["1.1.out"] == b"trained\n"
    said = run.journal()["1.0.err"].decode()
    assert said.startswith("ddp-orch: ") and "run.preload" in said and reason in said and said.count("\n") == 1
    assert run.journal()["1.1.err"] == b""  # one line a host is enough


def test_a_module_that_opens_a_gpu_is_not_preloaded(modules: Path, tmp_path: Path) -> None:
    """No driver survives a fork."""
    device = Path(f"/tmp/nvidia-{os.getpid()}")
    device.touch()
    (modules / "heavy.py").write_text(f"handle = open({str(device)!r})\n")
    with local_runs(tmp_path, changed_program("imports.py", {b'"/dev/nvidia"': b'"/tmp/nvidia"'})) as runs:
        run = start(runs, modules, "print('trained')")
        (record,) = run.wait_over()
        assert record["verdict"]["state"] == "succeeded"
        assert b"opens a GPU" in run.journal()["1.0.err"]
    device.unlink()


def test_variables_that_libraries_read_at_import_are_set_before(runs: Runs, modules: Path) -> None:
    (modules / "heavy.py").write_text(f"{HEAVY}threads = os.environ['OMP_NUM_THREADS']\n")
    run = start(runs, modules, f"{IS_FORKED}\nprint(heavy.threads == os.environ['OMP_NUM_THREADS'])", nproc=[2])
    run.wait_over()
    assert run.journal()["1.0.out"] == b"True\nTrue\n"


@pytest.mark.parametrize(
    ("name", "value", "is_forked"),
    [
        ("OMP_NUM_THREADS", "3", True),
        ("OMP_NUM_THREADS", "{nproc_per_node}", True),
        ("GOMP_CPU_AFFINITY", "{rank}", False),
    ],
)
def test_variables_of_a_launcher_are_set_before_the_import(
    runs: Runs, modules: Path, name: str, value: str, is_forked: bool
) -> None:
    """Libraries in C read them when they are loaded."""
    (modules / "heavy.py").write_text(f"{HEAVY}import ctypes\ngetenv = ctypes.CDLL(None).getenv\n")
    with (modules / "heavy.py").open("a") as file:
        file.write(f"getenv.restype = ctypes.c_char_p\nvalue = getenv({name.encode()!r})\n")
    launcher = f"{{mine: {{scope: rank, env: {{{name}: '{value}'}}}}}}"
    code = f"{IS_FORKED}\nprint(heavy.value.decode() == os.environ[{name!r}])"
    run = start(runs, modules, code, launcher="mine", own_launchers=launcher)
    run.wait_over()
    assert run.journal()["1.0.out"] == f"{is_forked}\nTrue\n".encode()
    assert (name.encode() in run.journal().get("1.0.err", b"")) != is_forked


@pytest.mark.parametrize("name", ["CACHE", "OMP_NUM_THREADS"])
def test_a_variable_that_the_script_sets_for_a_module_is_set_before_its_import(
    runs: Runs, modules: Path, name: str
) -> None:
    (modules / "heavy.py").write_text("import os\ncache = os.environ.get('CACHE')\nimporter = os.getpid()\n")
    run = start(runs, modules, f"import os; os.environ[{name!r}] = '1'\n{IS_FORKED}\nprint(heavy.cache)")
    run.wait_over()
    assert run.journal()["1.0.out"] == (b"False\n1\n" if name == "CACHE" else b"False\nNone\n")
    assert name.encode() in run.journal()["1.0.err"]


def test_nothing_is_preloaded_while_coverage_measures_the_ranks(runs: Runs, modules: Path) -> None:
    """It starts from a .pth file, before our hook."""
    (modules / "sitecustomize.py").write_text("import sys; sys.settrace(lambda *_: None)\n")
    run = start(runs, modules, f"{IS_FORKED}\nimport sys; print(sys.gettrace() is not None)")
    run.wait_over()
    assert run.journal()["1.0.out"] == b"False\nTrue\n"
    assert b"coverage" in run.journal()["1.0.err"]


def test_a_python_that_does_not_import_the_hook_starts_no_second_training(
    runs: Runs, modules: Path, tmp_path: Path
) -> None:
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {os.path.realpath("/proc/self/exe")} -I "$@"\n')
    python.chmod(0o700)
    started = tmp_path / "started"
    run = start(runs, modules, f"open({str(started)!r}, 'a').write('x')", python=str(python))
    (record,) = run.wait_over()
    assert record["verdict"]["state"] == "succeeded"
    assert started.read_text() == "x"
    assert b"sitecustomize" in run.journal()["1.0.err"]


def test_a_module_that_was_changed_is_imported_again(impatient: Runs, modules: Path) -> None:
    (modules / "heavy.py").write_text("value = 1\n")
    code = """if True:
    import heavy, pathlib, sys
    print(heavy.value)
    if heavy.value == 2: sys.exit()
    pathlib.Path(heavy.__file__).write_text("value = 2  # longer\\n")
    sys.exit(3)"""
    run = start(impatient, modules, code, options="max_restarts: 1")
    (record,) = run.wait_over()
    assert record["verdict"]["state"] == "succeeded"
    assert run.journal()["2.0.out"] == b"2\n" and run.journal()["2.0.err"] == b""


def test_modules_are_imported_again_after_a_package_was_installed(impatient: Runs, modules: Path) -> None:
    """It may be one that an import of the modules would find."""
    site = modules / "site-packages"
    site.mkdir()
    (modules / "heavy.py").rename(site / "heavy.py")
    code = """if True:
    import heavy, os, pathlib, sys
    print(heavy.importer)
    pathlib.Path(heavy.__file__).with_name("new.dist-info").mkdir(exist_ok=True)
    sys.exit(int(os.environ["DDP_ORCH_ATTEMPT"]) < 3)"""
    run = start(impatient, site, code, options="max_restarts: 2")
    (record,) = run.wait_over()
    assert record["verdict"]["state"] == "succeeded"
    first, second, third = (run.journal()[f"{attempt}.0.out"] for attempt in (1, 2, 3))
    assert first != second == third


def test_ranks_are_started_by_exec_after_the_preloader_was_killed(impatient: Runs, modules: Path) -> None:
    code = "import os, time; print('ready', flush=True); time.sleep(60 * (os.environ['DDP_ORCH_ATTEMPT'] == '1'))"
    run = start(impatient, modules, code, options="max_restarts: 1")
    run.wait_for("ready", "1.0.out")
    parent = preloader(run)
    assert parent is not None
    (rank,) = ranks(run)
    processes.send(parent, signal.SIGKILL)
    wait_until(lambda: not processes.alive(parent), 5.0, "it is gone")
    processes.send(rank, signal.SIGKILL)
    (record,) = run.wait_over()
    assert record["verdict"]["state"] == "succeeded"
    assert b"SIGKILL" in run.journal()["2.0.err"]


def test_a_stop_during_the_import_leaves_nothing(runs: Runs, modules: Path, tmp_path: Path) -> None:
    begun = tmp_path / "begun"
    (modules / "heavy.py").write_text(f"import time; open({str(begun)!r}, 'w').close(); time.sleep(60)")
    run = start(runs, modules, "print('trained')")
    wait_until(begun.exists, 10.0, "the import has begun")
    run.stop(grace=5.0)
    (record,) = run.wait_over()
    assert record["verdict"]["state"] == "killed"
    assert run.journal()["1.0.out"] == b""


def test_a_failure_elsewhere_during_the_import_leaves_the_next_attempt_its_preloader(
    impatient: Runs, modules: Path
) -> None:
    # the second host imports for ever in the first attempt; the first host fails meanwhile
    (modules / "heavy.py").write_text(
        f"{HEAVY}import sys, time\n"
        "if 'host-1' in os.environ['HERE'] and not os.path.exists(os.environ['GO']):\n    time.sleep(60)\n"
    )
    go = modules.parent / "go"
    code = (
        f"import os, sys; open({str(go)!r}, 'w').close()\n{IS_FORKED}\nsys.exit(os.environ['DDP_ORCH_ATTEMPT'] == '1')"
    )
    env = {"HERE": "{host}", "GO": str(go)}
    run = start(impatient, modules, code, nproc=[1, 1], env=env, options="max_restarts: 1")
    assert {record["verdict"]["state"] for record in run.wait_over()} == {"succeeded"}
    assert run.journal(1)["2.1.out"] == b"True\n" and run.journal(1)["2.1.err"] == b""


def test_the_end_of_the_guard_is_the_end_of_forked_ranks(runs: Runs, modules: Path) -> None:
    code = "import time; print('ready', flush=True); time.sleep(60)"
    run = start(runs, modules, code)
    run.wait_for("ready", "1.0.out")
    below = [preloader(run), *ranks(run)]
    assert len(below) == 2
    processes.send(run.guard(), signal.SIGKILL)
    wait_until(lambda: not any(map(processes.alive, below)), 5.0, "rank and preloader end with their guard")
    run.wait_over()


def test_secrets_reach_the_ranks_and_no_file(runs: Runs, modules: Path) -> None:
    secret = "correct-horse-battery"
    run = start(runs, modules, "import os; print(len(os.environ['TOKEN']))", secret={"TOKEN": secret})
    run.wait_over()
    assert run.journal()["1.0.out"] == b"21\n"
    assert not [path for path in run.folder().rglob("*") if path.is_file() and secret.encode() in path.read_bytes()]


def test_setup_comes_before_the_import_and_its_variables_reach_the_ranks(runs: Runs, modules: Path) -> None:
    (modules / "heavy.py").write_text(f"{HEAVY}of_setup = os.environ['OF_SETUP']\n")
    code = f"{IS_FORKED}\nprint(heavy.of_setup, os.environ['OF_SETUP'], os.environ['PYTHONPATH'])"
    setup = ["export OF_SETUP=yes"]
    run = start(runs, modules, code, setup=setup)
    run.wait_over()
    assert run.journal()["1.0.out"].decode() == f"True\nyes yes {modules}\n"
