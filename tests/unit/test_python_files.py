"""What a script and its own modules import and name."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from orchestrator.inventory import model
from orchestrator.plan import entrypoint, import_roots, python_files


def write(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder / "x.py"


@pytest.mark.parametrize(
    ("text", "certain"),
    [
        ("import os, mpi4py.MPI as M\n", True),
        ("def main():\n    from mpi4py import MPI\nif __name__ == '__main__':\n    main()\n", True),
        ("def f():\n    import mpi4py\ndef main():\n    f()\nfire.Fire(main)\n", True),
        ("def f():\n    import mpi4py\nif args.mpi:\n    f()\n", False),
        ("def f():\n    f()\n    import mpi4py\n", False),
        ("if __name__ == '__main__':\n    import mpi4py\n", True),
        ("try:\n    import mpi4py\nexcept ImportError:\n    mpi4py = None\n", False),
        ("import sys\nif 'mpi' in sys.argv:\n    import mpi4py\n", False),
        ("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import mpi4py\n", None),
        ("# import mpi4py\ntext = '''\nimport mpi4py\n'''\n", None),
        ("import mpi4pyx\nfrom .mpi4py import x\n", None),
        ("print 'Python 2'\nimport mpi4py\n", None),
    ],
)
def test_an_import_is_found_where_it_stands(text: str, certain: bool | None, tmp_path: Path) -> None:
    script = write(tmp_path, {"x.py": text})
    found = python_files.find_import("mpi4py", script, tmp_path)
    assert (found and found.certain) is certain


@pytest.mark.parametrize(
    ("files", "place", "certain"),
    [
        (
            {"x.py": "from lib import comm\n", "lib/__init__.py": "", "lib/comm.py": "import mpi4py\n"},
            "lib/comm.py",
            True,
        ),
        ({"x.py": "import lib.a\n", "lib/a.py": "from . import b\n", "lib/b.py": "import mpi4py\n"}, "lib/b.py", True),
        ({"x.py": "import b\n", "b.py": "import x\ndef f():\n    import mpi4py\n"}, "b.py", False),
        (
            {
                "x.py": "from lib import (  # all\n    a as c,\n    b,\n)\n",
                "lib/a.py": "",
                "lib/b.py": "import mpi4py\n",
            },
            "lib/b.py",
            True,
        ),
        ({"x.py": "import os, \\\n    b as d\n", "b.py": "from mpi4py import MPI\n"}, "b.py", True),
        ({"x.py": "import b\n", "b.py": "import torch\n", "other.py": "import mpi4py\n"}, None, None),
    ],
)
def test_own_modules_are_followed(
    files: dict[str, str], place: str | None, certain: bool | None, tmp_path: Path
) -> None:
    found = python_files.find_import("mpi4py", write(tmp_path, files), tmp_path)
    assert (found and str(found.path.relative_to(tmp_path)), found and found.certain) == (place, certain)


def test_a_script_that_may_use_mpi_is_started_with_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path, {"x.py": "try:\n    import mpi4py\nexcept ImportError:\n    pass\n"})
    snapshot = entrypoint.find(model.parse("hosts: [a]\n", "i"), ("x.py",))[1]
    assert snapshot is not None
    assert any("x.py:2" in warning and "-- mpirun python x.py" in warning for warning in snapshot.warnings)


@pytest.mark.parametrize(
    ("files", "old"),
    [
        ({"x.py": "p.add_argument('--local_rank', type=int)\n"}, True),
        ({"x.py": "p.add_argument('--local_rank', '--local-rank')\n"}, False),
        ({"x.py": "import options\n", "options.py": "p.add_argument('--local_rank')\n"}, True),
        ({"x.py": "p.add_argument('--local_rank_x')\n"}, False),
        ({"x.py": "import torch\n", "other.py": "'--local_rank'\n"}, False),
    ],
)
def test_the_form_of_local_rank_is_that_of_the_script(files: dict[str, str], old: bool, tmp_path: Path) -> None:
    assert python_files.has_old_local_rank(write(tmp_path, files), tmp_path) is old


@pytest.mark.parametrize(
    ("files", "alone"),
    [
        ({"x.py": "import torch, tqdm\nfrom sklearn import datasets\nimport argparse\n"}, True),
        ({"x.py": "import torch\nfrom model import Net\n", "model.py": "from torch import nn\n"}, True),
        ({"x.py": "import torch\nfrom model import Net\n", "model.py": "import torch.distributed as dist\n"}, False),
        ({"x.py": "import torch, os\nos.environ['LOCAL_RANK']\n"}, False),
        ({"x.py": "import torch\nfrom transformers import Trainer\n"}, False),
        ({"x.py": "import torch\nimport lib.net\n", "lib/__init__.py": "", "lib/net.py": "x = torch.ones(1)\n"}, True),
        ({"x.py": "import numpy\n"}, False),
    ],
)
def test_a_script_for_one_gpu_is_recognised(files: dict[str, str], alone: bool, tmp_path: Path) -> None:
    assert python_files.trains_alone(write(tmp_path, files), tmp_path) is alone


@pytest.mark.parametrize(("hosts", "told"), [("[a, b]", True), ("[{name: a, nproc_per_node: 1}]", False)])
def test_a_script_for_one_gpu_is_started_with_a_warning(
    hosts: str, told: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path, {"x.py": "import torch\n"})
    snapshot = entrypoint.find(model.parse(f"hosts: {hosts}\n", "i"), ("x.py",))[1]
    assert snapshot is not None and any("x.py" in warning for warning in snapshot.warnings) is told


TUTORIAL = """
import os, torch.distributed as dist, torch.multiprocessing as mp
def setup(rank, world_size):
    os.environ["MASTER_ADDR"] = "localhost"
    os.environ["MASTER_PORT"] = "12355"
    dist.init_process_group("gloo", rank=rank, world_size=world_size)
def train(rank, world_size):
    setup(rank, world_size)
if __name__ == "__main__":
    mp.spawn(train, args=(2,), nprocs=2)
"""


OF_MANY_SCRIPTS = """
if "RANK" in os.environ and "WORLD_SIZE" in os.environ:
    rank = int(os.environ["RANK"])
elif torch.cuda.is_available():
    os.environ["MASTER_ADDR"] = "127.0.0.1"
"""
OF_LOCAL_RUNS = (
    "os.getenv('MASTER_ADDR') is None",
    "world_size == 1",
    "args.debug",
    "args.local",
    "not args.distributed",
    "not dist.is_torchelastic_launched()",
    "'SLURM_PROCID' in env",
)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (TUTORIAL, {("address", 4), ("spawn", 10)}),
        (
            "dist.init_process_group('nccl', init_method='tcp://127.0.0.1:23456', rank=0, world_size=2)",
            {("address", 1)},
        ),
        ("dist.init_process_group('nccl', init_method='env://')", set()),
        ("if 'MASTER_ADDR' not in os.environ:\n    os.environ['MASTER_ADDR'] = 'localhost'", set()),
        ("os.environ['MASTER_ADDR'] = args.address\nos.environ['MASTER_PORT'] = '29500'", set()),
        ("if args.multiprocessing_distributed:\n    mp.spawn(main_worker)", set()),
        ("if args.ddp:\n    print()\n    os.environ['MASTER_ADDR'] = '127.0.0.1'", {("possible address", 3)}),
        (
            "if args.a:\n    if args.b:\n        dist.init_process_group(init_method='tcp://[::1]:1')",
            {("possible address", 3)},
        ),
        ("if use_gpu():\n    os.environ.setdefault('MASTER_ADDR', 'localhost')", set()),
        ("os.environ['MASTER_ADDR'] = '10.0.0.7'", {("address", 1)}),
        ("dist.init_process_group(init_method='tcp://10.0.0.7:29500')", {("address", 1)}),
        ("dist.init_process_group(init_method='env://')", set()),
        (OF_MANY_SCRIPTS, set()),
        *((f"if {test}:\n    os.environ['MASTER_ADDR'] = 'localhost'", set()) for test in OF_LOCAL_RUNS),
        ("def unused():\n    torch.multiprocessing.spawn(f)", set()),
        ("torch.multiprocessing.spawn(f)", {("spawn", 1)}),
    ],
)
def test_a_script_that_starts_its_ranks_itself_is_recognised(
    text: str, found: set[tuple[str, int]], tmp_path: Path
) -> None:
    places = python_files.find_own_launchers(write(tmp_path, {"x.py": text}), tmp_path)
    assert {("possible " * (not one.certain) + one.what, one.line) for one in places} == found


@pytest.mark.parametrize(
    ("script", "roots"),
    [
        ("import torch, mymodel.net\n", ["."]),
        ("from deep import net\n", ["src"]),
        ("import sys\nsys.path.append('.')\nimport mymodel\n", []),
        ("try:\n    import mymodel\nexcept ImportError:\n    pass\n", []),
        ("import beside, data, einops\n", []),
    ],
)
def test_an_import_from_the_root_of_the_code_is_warned_of(
    script: str, roots: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    files = {"mymodel/__init__.py": "", "src/deep/__init__.py": "", "data/train.txt": "", "scripts/beside.py": ""}
    subprocess.run(("git", "init", "--quiet"), cwd=tmp_path, check=True)
    write(tmp_path, {"scripts/x.py": script, "beside.py": "", **files})
    command, snapshot = entrypoint.find(model.parse("hosts: [a, b]\n", "i"), ("scripts/x.py",))
    assert snapshot is not None
    found = list(import_roots.warn(snapshot, command, [{}, {}]))
    assert [re.findall(r"PYTHONPATH=([^` ]+)", warning) for warning in found] == [[root] for root in roots]
    assert list(import_roots.warn(snapshot, command, [{"PYTHONPATH": "."}] * 2)) == []
    command, snapshot = entrypoint.find(model.parse("hosts: [a, b]\n", "i"), ("-m", "scripts.x"))
    assert snapshot is not None
    assert list(import_roots.warn(snapshot, command, [{}, {}])) == []


def test_a_file_that_hides_a_module_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    hiding = {"random.py", "cuda.py", "logging/__init__.py", "numpy/__init__.py", "torch.py"}
    others = {
        "test.py",
        "lib/queue.py",
        "cuda_utils.py",
        "yaml/own.py",
        "lib/numpy/__init__.py",
        "sympy.txt",
        "data.py",
    }
    for path in (*hiding, *others):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
    write(tmp_path, {"x.py": "import torch.distributed", **dict.fromkeys((*hiding, *others), "")})
    snapshot = entrypoint.find(model.parse("hosts: [a, b]\n", "i"), ("x.py",))[1]
    assert snapshot is not None
    named = {warning.split(" hides ")[0] for warning in snapshot.warnings}
    assert named == {path.removesuffix("__init__.py") for path in hiding}


@pytest.mark.parametrize(("hosts", "told"), [("[a, b]", 2), ("[{name: a, nproc_per_node: 1}]", 0)])
def test_a_script_of_a_tutorial_is_started_with_warnings(
    hosts: str, told: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path, {"x.py": TUTORIAL})
    snapshot = entrypoint.find(model.parse(f"hosts: {hosts}\n", "i"), ("x.py",))[1]
    assert snapshot is not None and sum("x.py:" in warning for warning in snapshot.warnings) == told


@pytest.mark.parametrize(
    ("text", "run", "launcher"),
    [
        ("import os\nprint(os.environ['SKYPILOT_NODE_RANK'])", "", "skypilot"),
        ("import os\ndef main():\n    return os.environ['DSTACK_NODES_IPS']\nmain()", "", "dstack"),
        ("from os import environ\nrank = int(environ['SLURM_PROCID'])", "", "srun"),
        ("import os\nrank = int(os.environ['OMPI_COMM_WORLD_RANK'])", "", "mpi"),
        ("import os\nrank = int(os.environ['SLURM_PROCID'])", "run: {launcher: srun}", None),
        ("import os\nrank = int(os.environ['SLURM_PROCID'])", "run: {launcher: jax}", None),
        ("import os\nrank = int(os.environ['OMPI_COMM_WORLD_RANK'])", "run: {launcher: mpirun}", None),
        ("import os\nrank = int(os.environ['SLURM_PROCID'])", "run: {env: {SLURM_PROCID: '0'}}", None),
        ("import os\nprint(os.environ['SLURM_ARRAY_TASK_ID'])", "", None),
        ("import os\nos.environ['SLURM_PROCID'] = '0'", "", None),
        ("import os\nprint(os.environ.get('SKYPILOT_NODE_RANK'))", "", None),
        ("import os\nif 'SLURM_PROCID' in os.environ:\n    os.environ['SLURM_PROCID']", "", None),
        ("import os\nx = os.environ['SLURM_PROCID'] if 'SLURM_PROCID' in os.environ else 0", "", None),
        ("import os\nif 'RANK' in os.environ:\n    exit()\nos.environ['SLURM_PROCID']", "", None),
    ],
)
def test_a_script_that_needs_variables_of_another_launcher_is_started_with_a_warning(
    text: str, run: str, launcher: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path, {"x.py": text})
    snapshot = entrypoint.find(model.parse(f"hosts: [a, b]\n{run}\n", "i"), ("x.py",))[1]
    assert snapshot is not None
    named = re.findall(r"--set run\.launcher=(\w+)", " ".join(snapshot.warnings))
    assert named == ([] if launcher is None else [launcher])


def test_of_a_call_that_the_script_needs_only_the_address_is_to_go(tmp_path: Path) -> None:
    text = "dist.init_process_group(init_method='tcp://10.0.0.7:1')\nos.environ['MASTER_ADDR'] = '10.0.0.7'"
    places = python_files.find_own_launchers(write(tmp_path, {"x.py": text}), tmp_path)
    assert {one.line: one.in_call for one in places} == {1: True, 2: False}
