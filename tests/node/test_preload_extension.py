"""Before a restart, the preloader imports what the script imports: its ranks have those modules when they begin."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from lab.waiting import wait_until
from local_runs import HEAVY, Run, Runs, impatient_program, local_runs
from test_spares import pull_the_plug

from orchestrator.node.host import processes

ONCE = "import os, sys; attempt = int(os.environ['DDP_ORCH_ATTEMPT'])\n"
TORCH = "2.5.1"  # the version of the stand-in


@pytest.fixture
def impatient(tmp_path: Path) -> Iterator[Runs]:
    """As `runs`, without the pause before a restart."""
    with local_runs(tmp_path, impatient_program()) as found:
        yield found


@pytest.fixture
def modules(modules: Path) -> Path:
    """Stand-ins for the parts of torch that `preload: auto` imports, and a module of which it does not know."""
    (modules / "torch").mkdir()
    (modules / "torch" / "__init__.py").write_text(HEAVY)
    (modules / "torch" / "distributed.py").write_text("")
    (modules / "torch" / "_dynamo.py").write_text("")
    return modules


def start(runs: Runs, modules: Path, code: str, **options: Any) -> Run:
    options["env"] = {"PYTHONPATH": str(modules), **options.get("env", {})}
    options.setdefault("options", "max_restarts: 1")
    return runs.start(code, torch=TORCH, **options)


def finish(run: Run) -> dict[str, bytes]:
    assert {record["verdict"]["state"] for record in run.wait_over()} == {"succeeded"}, run.journal()
    return run.journal()


def test_restarted_ranks_have_the_modules_of_the_script(impatient: Runs, modules: Path) -> None:
    code = f"import heavy, torch\n{ONCE}print(*[m.importer == os.getpid() for m in (heavy, torch)], heavy.importer)\n"
    found = finish(start(impatient, modules, f"{code}sys.exit(attempt == 1)", nproc=[2]))
    first = [found[f"1.{rank}.out"].split() for rank in (0, 1)]
    second = [found[f"2.{rank}.out"].split() for rank in (0, 1)]
    assert [words[:2] for words in first] == [[b"True", b"False"]] * 2
    assert [words[:2] for words in second] == [[b"False", b"False"]] * 2
    assert second[0] == second[1]
    assert found["2.0.err"] == b""


@pytest.mark.parametrize(
    "module",
    [
        "import os; rank = os.environ.get('RANK', '0')",
        "import os; rank = int(os.environ['RANK'])",
        "import os\nif 'RANK' not in os.environ: os._exit(3)",
        "import os\nif 'RANK' not in os.environ: os.kill(os.getpid(), 11)",
        "import random; random.seed(1)",
        "import subprocess; p = subprocess.Popen(['sleep', '1'])",
        "import threading; threading.Thread(target=threading.Event().wait, daemon=True).start()",
        "import sys; sys.path.insert(0, '/nowhere')",
        "import os; cache = os.environ.get('CACHE')",
    ],
)
def test_a_module_that_only_a_rank_can_import_is_left_to_the_ranks(impatient: Runs, modules: Path, module: str) -> None:
    (modules / "picky.py").write_text(f"import os\nprint('imported')\n{module}\nimporter = os.getpid()\n")
    code = f"import os; os.environ['CACHE'] = '/x'\nimport heavy, picky, torch\n{ONCE}"
    code += "print([m.importer == os.getpid() for m in (heavy, picky, torch)])\n"
    found = finish(start(impatient, modules, f"{code}sys.exit(attempt == 1)"))
    assert found["1.0.out"] == b"imported\n[True, True, False]\n"
    assert found["2.0.out"] == b"imported\n[False, True, False]\n"
    assert found["2.0.err"] == b""


@pytest.mark.parametrize("line", ["print('beware')", "import warnings; warnings.warn('beware')"])
def test_what_a_module_prints_comes_where_the_script_imports_it(impatient: Runs, modules: Path, line: str) -> None:
    (modules / "noisy.py").write_text(line)
    code = (
        f"print('begins')\nimport warnings; warnings.simplefilter('ignore')\nimport torch, noisy\n{ONCE}print('ends')"
    )
    found = finish(start(impatient, modules, f"{code}\nsys.exit(attempt == 1)"))
    assert found["2.0.out"] == found["1.0.out"]
    assert found["2.0.err"] == found["1.0.err"] == b""


def test_what_modules_print_is_printed_by_each_rank(impatient: Runs, modules: Path) -> None:
    (modules / "noisy.py").write_text("import sys; print('hello'); print('beware', file=sys.stderr)")
    found = finish(start(impatient, modules, f"import noisy\n{ONCE}print('begins')\nsys.exit(attempt == 1)", nproc=[2]))
    for attempt in (1, 2):
        for rank in (0, 1):
            assert found[f"{attempt}.{rank}.out"] == b"hello\nbegins\n"
            assert found[f"{attempt}.{rank}.err"] == b"beware\n"


def test_a_spare_has_imported_the_modules_before_it_is_needed(runs: Runs, modules: Path, tmp_path: Path) -> None:
    imported = tmp_path / "imported"
    (modules / "late.py").write_text(f"{HEAVY}open({str(imported)!r}, 'a').write('%d ' % importer)\n")
    code = f"import late, time\n{ONCE}print(late.importer == os.getpid(), flush=True)\ntime.sleep(60 * (attempt == 1))"
    run = start(runs, modules, code, nproc=[1, 1, 1], spares=1, options="max_restarts: 1, lease: 3")
    wait_until(lambda: imported.exists() and len(imported.read_text().split()) == 3, 20.0, "the spare has imported it")
    assert "ddp-preload" in {processes.name(int(pid)) for pid in imported.read_text().split()}
    pull_the_plug(run, 1)
    wait_until(lambda: run.journal(2).get("2.1.out", b"").endswith(b"\n"), 30.0, "the spare runs a rank")
    assert run.journal(2)["2.1.out"] == b"False\n"
    run.stop(grace=0.0)


@pytest.mark.parametrize("killed", ["guard", "preloader", "fork"])
def test_nothing_outlives_the_guard(impatient: Runs, modules: Path, killed: str) -> None:
    code = f"import heavy, time\n{ONCE}print('ready', flush=True)\ntime.sleep(60 * (attempt == 2))\nsys.exit(1)"
    run = start(impatient, modules, code)
    run.wait_for("ready", "2.0.out")
    below = processes.descendants(run.guard().pid)
    preloader, fork = [process for process in below if processes.name(process.pid) == "ddp-preload"]
    processes.send({"guard": run.guard(), "preloader": preloader, "fork": fork}[killed], signal.SIGKILL)
    wait_until(lambda: not processes.alive(preloader) and not processes.alive(fork), 5.0, "both have ended")
    if killed != "guard":
        (rank,) = [process for process in below if processes.name(process.pid).startswith("python")]
        assert processes.alive(rank)  # it goes on without them
        run.stop(grace=0.0)
    run.wait_over()


def test_a_run_without_restarts_imports_nothing_for_them(runs: Runs, modules: Path, tmp_path: Path) -> None:
    imported = tmp_path / "imported"
    (modules / "late.py").write_text(f"import os; open({str(imported)!r}, 'a').write('%d ' % os.getpid())\n")
    run = start(runs, modules, "import late, sys; sys.exit(1)", options="max_restarts: 0")
    run.wait_over()
    assert len(imported.read_text().split()) == 1
