"""A forked rank is what a rank started by exec is: each script runs in both, and the outputs are compared."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest
from local_runs import Runs

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="hosts run Linux")

PROCESS = """
import faulthandler, gc, json, os, resource, signal, sys, threading
import heavy

def status(*names):
    lines = [line.split(":\\t") for line in open("/proc/self/status")]
    return {name: value.strip() for name, value in lines if name in names}

def files():
    found = {}
    for handle in sorted(os.listdir("/proc/self/fd"), key=int):
        try:
            found[handle] = os.path.basename(os.readlink("/proc/self/fd/" + handle))
        except OSError:
            pass
    return found

main = sys.modules["__main__"]
print(json.dumps({
    "argv": [sys.argv, sys.orig_argv, open("/proc/self/cmdline").read(), open("/proc/self/comm").read()],
    "path": sys.path,
    "importers": [name for name in sys.path_importer_cache if "preload" in name],
    "modules": [name for name in ("sitecustomize", "usercustomize") if name in sys.modules],
    "main": {name: repr(value) for name, value in vars(main).items() if name != "main"},
    "flags": repr(sys.flags),
    "env": {name: value for name, value in sorted(os.environ.items()) if "RUN_ID" not in name and "PORT" not in name},
    "own": [type(os.environ).__name__, hasattr(sys, "ddp_orch_preload")],
    "status": status("Threads", "SigBlk", "SigIgn", "SigCgt", "Cpus_allowed", "Umask", "NoNewPrivs"),
    "oom": open("/proc/self/oom_score_adj").read(),
    "nice": os.nice(0),
    "files": files(),
    "leads": [os.getsid(0) == os.getpid(), os.getpgid(0) == os.getpid()],
    "stdio": [(f.encoding, f.errors, f.line_buffering, f.write_through, f.isatty()) for f in (sys.stdout, sys.stderr)],
    "stdin": sys.stdin.read(),
    "thread": [threading.main_thread().native_id == os.getpid(), threading.active_count()],
    "gc": [gc.isenabled(), gc.get_threshold()],
    "faulthandler": faulthandler.is_enabled(),
    "limit": resource.getrlimit(resource.RLIMIT_NOFILE),
    "cwd": os.getcwd(),
    "frames": sys._getframe(0).f_back is None,
}, indent=1))
"""

TRACEBACK = """
import traceback, heavy

def inner(value):
    traceback.print_stack()
    try:
        return {}[value]
    except KeyError:
        raise ValueError("no such value") from None

inner(3)
"""

STACKS = """
import faulthandler, heavy, signal, os

def inner():
    faulthandler.dump_traceback()
    os.kill(os.getpid(), signal.SIGABRT)

inner()
"""

WORKERS = """
import multiprocessing, os, sys, heavy

def work(number):
    return number, os.path.basename(sys.argv[0]), __name__, multiprocessing.current_process().name[:-2]

if __name__ == "__main__":
    for method in ("fork", "spawn", "forkserver"):
        with multiprocessing.get_context(method).Pool(2) as pool:
            print(method, sorted(pool.map(work, range(4))))
"""

PICKLES = """
import copyreg, heavy, pickle, sys

class Point:
    def __init__(self, x):
        self.x = x

data = pickle.dumps(Point(3))
print(data, pickle.loads(data).x, Point.__module__, sys.modules["__main__"].Point is Point)
"""

PARSES = """
import argparse, heavy

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float)
parser.print_usage()
print(parser.parse_args())
parser.parse_args(["--lr", "high"])
"""

HANDLERS = """
import faulthandler, heavy, os, signal, sys

print(signal.getsignal(signal.SIGINT) is signal.default_int_handler, signal.getsignal(signal.SIGTERM))
signal.signal(signal.SIGTERM, lambda number, frame: print("caught", number, frame.f_code.co_name))
os.kill(os.getpid(), signal.SIGTERM)
signal.setitimer(signal.ITIMER_REAL, 0.01)
signal.pause()
"""

PROCESSES = """
import heavy, multiprocessing, os, subprocess, sys

def work(pipe):
    pipe.send((__name__, os.path.basename(sys.argv[0]), os.environ["RANK"]))
    sys.exit(5)

if __name__ == "__main__":
    for method in ("fork", "spawn", "forkserver"):
        context = multiprocessing.get_context(method)
        ours, theirs = context.Pipe()
        process = context.Process(target=work, args=(theirs,), daemon=True)
        process.start()
        process.join()
        print(method, ours.recv(), process.exitcode)
    print(subprocess.run([sys.executable, "-c", "import os; print(os.environ['RANK'])"], capture_output=True).stdout)
    if os.fork() == 0:
        sys.exit("of a child")
    print(os.waitstatus_to_exitcode(os.wait()[1]))
"""

ENDINGS = {
    "os exit": "import atexit, heavy, os; atexit.register(print, 'bye'); print('hello', flush=True); os._exit(9)",
    "thread": "import heavy, threading as t; t.Thread(target=lambda: (t.main_thread().join(), print('late'))).start()",
    "daemon": "import heavy, threading as t; t.Thread(target=t.Event().wait, daemon=True).start(); print('bye')",
    "thread error": "import heavy, threading; t = threading.Thread(target=int, args='x'); t.start(); t.join()",
    "at exit error": "import atexit, heavy; atexit.register(int, 'x')",
    "import error": "import heavy, no_such_module",
    "recursion": "import heavy\ndef f(): f()\nf()",
    "group": "import heavy; raise ExceptionGroup('several', [ValueError(1), KeyError(2)])",
    "unraisable": "import heavy\nclass C:\n    def __del__(self): raise ValueError(1)\nC()",
    "closed": "import heavy, sys; sys.stdout.close(); print('lost')",
    "long exit code": "import heavy, sys; sys.exit(300)",
    "exit code": "import heavy, sys; sys.exit(7)",
    "exit text": "import heavy, sys; sys.exit('a reason')",
    "ctrl-c": "import heavy; raise KeyboardInterrupt",
    "signal": "import heavy, os, signal; os.kill(os.getpid(), signal.SIGTERM)",
    "at exit": "import heavy, atexit, weakref; atexit.register(print, 'bye'); print('hello')",
    "syntax": "import heavy\ndef (",
    "warning": "import heavy, warnings\ndef f(): warnings.warn('careful', stacklevel=2)\nf()",
}

SCRIPTS = {
    "process": PROCESS,
    "traceback": TRACEBACK,
    "stacks": STACKS,
    "workers": WORKERS,
    "pickles": PICKLES,
    "parses": PARSES,
    "handlers": HANDLERS,
    "processes": PROCESSES,
    **ENDINGS,
}


def output_of(
    runs: Runs, tmp_path: Path, code: str, preload: str, timeout: float = 30, **options: Any
) -> dict[str, str]:
    """What the rank printed, and its end. Without pids, and what differs from run to run."""
    env = {"PYTHONPATH": str(tmp_path / "modules"), "HOME": str(tmp_path), **options.pop("env", {})}
    run = runs.start(code, "--lr", "0.1", env=env, options=f"preload: {preload}", grace=0.0, **options)
    (record,) = run.wait_over(timeout=timeout)
    failure = record["verdict"]["first_failure"] or {}
    texts = {stream: text.decode() for stream, text in run.journal().items() if stream.startswith("1.0.")}
    texts["end"] = f"{failure.get('exit_code')} {failure.get('signal')}"
    texts = {stream: re.sub("0x[0-9a-f]{8,}", "0x...", text) for stream, text in texts.items()}
    return {stream: text.replace(run.run_id, "RUN") for stream, text in texts.items()}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    modules = tmp_path / "modules"
    modules.mkdir()
    (modules / "heavy.py").write_text("import collections\n")
    return tmp_path


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_behaves_as_under_python(runs: Runs, folder: Path, name: str) -> None:
    (folder / "train.py").write_text(SCRIPTS[name])
    options = {"command": ()}
    forked = output_of(runs, folder, "train.py", "[heavy]", **options)
    assert forked == output_of(runs, folder, "train.py", "none", **options)
    assert forked["1.0.out"] or forked["1.0.err"] or forked["end"] != "None None"


@pytest.mark.parametrize("command", ["-c", "-m"])
def test_code_and_modules_behave_as_under_python(runs: Runs, folder: Path, command: str) -> None:
    (folder / "train.py").write_text(PROCESS)
    code = PROCESS if command == "-c" else "train"
    options = {"command": (command,)}
    forked = output_of(runs, folder, code, "[heavy]", **options)
    assert forked == output_of(runs, folder, code, "none", **options)
    assert '"frames"' in forked["1.0.out"]


def test_a_package_behaves_as_under_python(runs: Runs, folder: Path) -> None:
    (folder / "pkg").mkdir()
    (folder / "pkg" / "__init__.py").write_text("print('package', __name__)")
    (folder / "pkg" / "part.py").write_text("import sys\ndef f(): raise ValueError(sys.argv[1:])")
    (folder / "pkg" / "__main__.py").write_text(f"{PROCESS}\nfrom .part import f\nf()")
    forked = output_of(runs, folder, "pkg", "[heavy]", command=("-m",))
    assert forked == output_of(runs, folder, "pkg", "none", command=("-m",))
    assert "package pkg" in forked["1.0.out"] and "part.py" in forked["1.0.err"]


@pytest.mark.parametrize("hidden", ["print('of the host')", "raise RuntimeError", "import no_such_module"])
def test_the_sitecustomize_of_the_host_runs_too(runs: Runs, folder: Path, hidden: str) -> None:
    (folder / "modules" / "sitecustomize.py").write_text(hidden)
    (folder / "train.py").write_text(PROCESS)
    forked = output_of(runs, folder, "train.py", "[heavy]", command=())
    assert forked == output_of(runs, folder, "train.py", "none", command=())
    assert "of the host" in forked["1.0.out"] or "sitecustomize" in forked["1.0.err"]


def test_every_rank_prints_what_the_modules_print(runs: Runs, folder: Path) -> None:
    (folder / "modules" / "heavy.py").write_text("import sys; print('imported'); print('warned', file=sys.stderr)")
    env = {"PYTHONPATH": str(folder / "modules")}
    run = runs.start("import heavy; print('trained')", env=env, nproc=[2], options="preload: [heavy]")
    run.wait_over()
    for rank in range(2):
        assert run.journal()[f"1.{rank}.out"] == b"imported\ntrained\n"
        assert run.journal()[f"1.{rank}.err"] == b"warned\n"


def test_a_file_beside_the_script_hides_a_module_as_under_python(runs: Runs, folder: Path) -> None:
    (folder / "heavy.py").write_text("print('imported', __file__)")
    (folder / "train.py").write_text("import heavy")
    forked = output_of(runs, folder, "train.py", "[heavy]", command=())
    assert forked == output_of(runs, folder, "train.py", "none", command=())
    assert forked["1.0.out"] == f"imported {folder}/heavy.py\n"


@pytest.mark.parametrize("setting", ["gc.set_threshold(5, 6, 7)", "gc.disable()", "gc.disable(); gc.enable()"])
def test_a_module_may_set_when_garbage_is_collected(runs: Runs, folder: Path, setting: str) -> None:
    (folder / "modules" / "heavy.py").write_text(f"import gc; {setting}")
    code = "import gc, heavy; print(gc.isenabled(), gc.get_threshold())"
    forked = output_of(runs, folder, code, "[heavy]")
    assert forked == output_of(runs, folder, code, "none")
    assert forked["1.0.out"]


def test_a_rank_has_its_own_start_time_and_key(runs: Runs, folder: Path) -> None:
    (folder / "modules" / "heavy.py").write_text("import logging, multiprocessing, time\nimported = time.time()\n")
    code = "import heavy; print(heavy.logging._startTime > heavy.imported, end=' ')\n"
    code += "print(heavy.multiprocessing.current_process().authkey.hex())"
    run = runs.start(code, nproc=[2], env={"PYTHONPATH": str(folder / "modules")}, options="preload: [heavy]")
    run.wait_over()
    (first, key), (second, other) = (run.journal()[f"1.{rank}.out"].split() for rank in (0, 1))
    assert first == second == b"True"
    assert len(key) == len(other) == 64 and key != other


def test_random_numbers_differ_between_ranks_and_seeds_hold(runs: Runs, folder: Path) -> None:
    code = "import random, numpy; print(random.random(), numpy.random.random())"
    run = runs.start(code, nproc=[3], options="preload: [random, numpy]")
    run.wait_over()
    numbers = {run.journal()[f"1.{rank}.out"].decode() for rank in range(3)}
    assert len({number for text in numbers for number in text.split()}) == 6
    seeded = "random.seed(1); numpy.random.seed(1); print(hash('a'), random.random(), numpy.random.random())"
    code = f"import random, numpy; {seeded}"
    env = {"PYTHONHASHSEED": "7"}
    forked = output_of(runs, folder, code, "[random, numpy]", env=env)
    assert forked == output_of(runs, folder, code, "none", env=env)


TORCH = """
import os, sys, torch, torch.distributed as dist
from torch.utils.data import DataLoader

class Squares(torch.utils.data.Dataset):
    def __len__(self):
        return 8
    def __getitem__(self, index):
        return index * index

if __name__ == "__main__":
    open("seed" + os.environ["RANK"], "w").write(str(torch.initial_seed()))
    torch.manual_seed(1)
    print(torch.rand(3), torch.get_num_threads(), torch.cuda._is_in_bad_fork())
    print(torch.get_num_interop_threads(), torch.rand(300, 300).mm(torch.ones(300, 300)).sum())
    for method in ("fork", "spawn"):
        loader = DataLoader(Squares(), batch_size=4, num_workers=2, multiprocessing_context=method)
        print(method, [batch.tolist() for batch in loader])
    dist.init_process_group("gloo")
    total = torch.ones(2) * (dist.get_rank() + 1)
    dist.all_reduce(total)
    print(total, dist.get_world_size())
    layer = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))
    layer(total).sum().backward()
    print([parameter.grad.tolist() for parameter in layer.parameters()])
    dist.destroy_process_group()
"""


@pytest.mark.full
def test_a_training_with_torch_behaves_as_under_python(runs: Runs, folder: Path) -> None:
    (folder / "train.py").write_text(TORCH)
    # each rank starts two workers that import torch again
    options = {"command": (), "nproc": [2], "torch": "2.13.0", "timeout": 120}
    forked = output_of(runs, folder, "train.py", "[torch, torch.distributed]", **options)
    assert (folder / "seed0").read_text() != (folder / "seed1").read_text()
    assert forked == output_of(runs, folder, "train.py", "none", **options)
    assert "tensor([3., 3.]) 2" in forked["1.0.out"] and "run.preload" not in forked["1.0.err"]
