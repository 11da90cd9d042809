"""Launchers as data, and the command lines of other launchers."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import InventoryError, UsageError
from orchestrator.inventory import launcher_rows, launcher_variables, model
from orchestrator.plan import accelerate, accelerate_ranks, entrypoint, invocation, launcher_flags, launchers, leading
from orchestrator.plan.launchers import check_even
from orchestrator.runs import probe

ROOT = Path(__file__).parents[2]
TWO = "hosts: [a, b]\n"


def test_every_launcher_has_a_row() -> None:
    names = [launcher.name for launcher in (launchers.TORCHRUN_STATIC, *launchers.PRESETS)]
    assert sorted(names) == sorted(launcher_rows.NAMES)
    for launcher in launchers.PRESETS:
        row = launcher_rows.LauncherRow(
            scope=launcher.scope,
            argv=launcher.argv if launcher.scope == "host" else (),
            worker=launcher.worker,
            env=launcher.env,
            ready="http://{master_addr}:8000/health" if launcher.ready else None,
        )
        own = "hosts: [a]\nlaunchers: " + json.dumps({"mine": {**vars(row), "env": dict(row.env)}})
        env_of_rdzv = {name for name in row.env if name.startswith(("OMPI", "PMI", "MPI", "SLURM", "JAX"))}
        assert model.parse(own, "i").launchers["mine"].scope == launcher.scope, env_of_rdzv


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("train.py --lr 1", {"words": "train.py --lr 1"}),
        ("-m pkg.train --lr 1", {"words": "-m pkg.train --lr 1"}),
        ("--lr 1", {"words": "--lr 1"}),
        ("python train.py", {"words": "train.py"}),
        ("/opt/venv/bin/python3.11 -u -m pkg.train x", {"words": "-m pkg.train x"}),
        (
            "torchrun --nnodes=2 --nproc_per_node 4 --node_rank=0 --rdzv_endpoint=h:1 x.py --nnodes 9",
            {"words": "x.py --nnodes 9", "nnodes": (2, 2), "nproc_per_node": 4},
        ),
        (
            "torchrun --nnodes 1:4 --max-restarts=3 --standalone -m pkg",
            {"words": "-m pkg", "nnodes": (1, 4), "max_restarts": 3},
        ),
        ("torchrun --nproc-per-node=gpu x.py", {"words": "x.py"}),
        ("python -m torch.distributed.run --nproc_per_node=2 x.py", {"words": "x.py", "nproc_per_node": 2}),
        ("-m torch.distributed.run --nproc_per_node=2 x.py", {"words": "x.py", "nproc_per_node": 2}),
        ("-m deepspeed x.py", {"words": "x.py", "launcher": "deepspeed"}),
        ("-m package.train x.py", {"words": "-m package.train x.py"}),
        (
            "python -m torch.distributed.launch --nproc_per_node=2 --master_port 1 x.py --a",
            {"words": "x.py --a", "nproc_per_node": 2, "launcher": "torch.distributed.launch"},
        ),
        ("python -m torch.distributed.launch --use_env x.py", {"words": "x.py"}),
        (
            "deepspeed --hostfile=h --num_nodes 2 --num_gpus=8 ds.py --deepspeed --deepspeed_config c.json",
            {
                "words": "ds.py --deepspeed --deepspeed_config c.json",
                "launcher": "deepspeed",
                "nnodes": (2, 2),
                "nproc_per_node": 8,
            },
        ),
        (
            "mpirun -np 4 -H a:2,b:2 -x NCCL_DEBUG=INFO -x PATH -bind-to none -mca pml ob1 python main.py --x",
            {
                "words": "main.py --x",
                "launcher": "mpi",
                "total_ranks": 4,
                "env": {"NCCL_DEBUG": "INFO"},
            },
        ),
        (
            "mpirun -pernode -hosts a,b -genvall -env A 1 --use-hwthread-cpus -genvlist HOME,NO env B=2 python main.py",
            {
                "words": "main.py",
                "launcher": "mpi",
                "nproc_per_node": 1,
                "env": {"A": "1", "HOME": "/root", "B": "2"},
            },
        ),
        ("OMP_NUM_THREADS=1 torchrun x.py A=2", {"words": "x.py A=2", "env": {"OMP_NUM_THREADS": "1"}}),
        (
            "/usr/bin/env A=1 B=x=y python -m torch.distributed.launch --use_env x.py",
            {"words": "x.py", "env": {"A": "1", "B": "x=y"}},
        ),
        (
            "A=1 uv run B=2 torchrun --nproc-per-node 2 x.py",
            {"words": "x.py", "nproc_per_node": 2, "env": {"A": "1", "B": "2"}},
        ),
        ("uv run -m pkg --lr 1", {"words": "-m pkg --lr 1"}),
        (
            "python -W ignore -Werror::UserWarning -X dev -O -B x.py",
            {
                "words": "x.py",
                "env": {
                    "PYTHONWARNINGS": "ignore,error::UserWarning",
                    "PYTHONDEVMODE": "1",
                    "PYTHONOPTIMIZE": "1",
                    "PYTHONDONTWRITEBYTECODE": "1",
                },
            },
        ),
        ("python -W ignore -m torch.distributed.run x.py", {"words": "x.py", "env": {"PYTHONWARNINGS": "ignore"}}),
        (
            "mpirun -np 2 python -W ignore x.py",
            {"words": "x.py", "launcher": "mpi", "total_ranks": 2, "env": {"PYTHONWARNINGS": "ignore"}},
        ),
        ("nohup poetry run -- x.py", {"words": "x.py"}),
        ("A=1 --lr 1", {"words": "--lr 1", "env": {"A": "1"}}),
        ("torchrun --rdzv-backend=c10d x.py", {"words": "x.py", "rdzv_backend": "c10d"}),
        (
            "mpiexec -n 8 --ppn 4 python -m pkg",
            {"words": "-m pkg", "launcher": "mpi", "total_ranks": 8, "nproc_per_node": 4},
        ),
        (
            "accelerate launch --num_machines 2 --num_processes 8 --machine_rank 0 --mixed_precision bf16 x.py --lr 1",
            {
                "words": "--mixed_precision bf16 x.py --lr 1",
                "launcher": "accelerate",
                "nnodes": (2, 2),
                "total_ranks": 8,
            },
        ),
        (
            "accelerate launch --config_file c.yaml -m pkg.x",
            {"words": "--config_file c.yaml -m pkg.x", "launcher": "accelerate"},
        ),
        (
            "vllm serve M --nnodes 2 --node-rank=0 --master-addr h --headless --tp 8",
            {"words": "vllm serve M --tp 8", "launcher": "vllm", "nnodes": (2, 2)},
        ),
        (
            "python -m vllm.entrypoints.openai.api_server --model M",
            {"words": "{python} -m vllm.entrypoints.openai.api_server --model M", "launcher": "vllm"},
        ),
        (
            "sglang serve --model-path M --nnodes=2 --node-rank 1 --dist-init-addr h:1",
            {"words": "sglang serve --model-path M", "launcher": "sglang", "nnodes": (2, 2)},
        ),
        (
            "ray symmetric-run --address h:6379 --min-nodes 2 -- python main.py --address x",
            {"words": "python main.py --address x", "launcher": "ray", "nnodes": (2, 2)},
        ),
        ("accelerate-launch x.py", {"words": "x.py", "launcher": "accelerate"}),
        ("vllm serve M --tp 8", {"words": "vllm serve M --tp 8", "launcher": "vllm"}),
        (
            "python -m sglang.launch_server --model M",
            {"words": "{python} -m sglang.launch_server --model M", "launcher": "sglang"},
        ),
    ],
)
def test_command_lines_of_other_launchers(line: str, expected: dict[str, Any]) -> None:
    found = invocation.recognise(line.split(), {"PATH": "/bin", "HOME": "/root"})
    asked = {name: value for name, value in vars(found).items() if value and name not in ("ignored", "mpi_env")}
    assert {**asked, "words": " ".join(found.words)} == expected


def test_flags_that_are_left_out_are_named() -> None:
    found = invocation.recognise(shlex.split("torchrun --node_rank=1 --rdzv-endpoint h:1 x.py --node_rank 3"), {})
    assert list(found.ignored) == ["--node_rank", "--rdzv-endpoint"]


@pytest.mark.parametrize(
    ("line", "flag", "reason"),
    [
        ("torchrun --log-dir logs x.py", "--log-dir", launcher_flags.OUTPUT),
        ("torchrun --tee=3 x.py", "--tee", launcher_flags.OUTPUT),
        ("torchrun --numa-binding node x.py", "--numa-binding", launcher_flags.CORES),
        ("torchrun --master-addr h x.py", "--master-addr", launcher_flags.RENDEZVOUS),
        ("torchrun --node-rank 1 x.py", "--node-rank", launcher_flags.HOSTS),
        ("torchrun --rdzv-backend=etcd x.py", "--rdzv-backend etcd", launcher_flags.RENDEZVOUS),
        ("torchrun --nproc_per_node=cpu x.py", "--nproc_per_node cpu", "set nproc_per_node"),
        ("mpirun -bind-to core python x.py", "-bind-to", launcher_flags.CORES),
        ("mpirun --map-by slot python x.py", "--map-by", launcher_flags.PLACES),
        ("mpirun -x LD_LIBRARY_PATH python x.py", "-x LD_LIBRARY_PATH", launcher_flags.OWN_VALUE),
        ("mpirun -x UNSET python x.py", "-x UNSET", "not set here"),
        ("mpirun -x MASTER_ADDR=h python x.py", "MASTER_ADDR", leading.SET_BY_US),
        ("RANK=0 NODE_RANK=0 python x.py", "NODE_RANK", leading.SET_BY_US),
        ("uv run x.py", "uv run", leading.STARTERS["uv", "run"]),
    ],
)
def test_what_is_left_out_has_its_own_reason(line: str, flag: str, reason: str) -> None:
    found = invocation.recognise(line.split(), {"LD_LIBRARY_PATH": "/lib"})
    assert found.words == ("x.py",) and not found.env
    assert reason in found.ignored[flag]


def test_a_rendezvous_that_the_inventory_cannot_have_is_refused() -> None:
    found = invocation.recognise(["torchrun", "--rdzv-backend=c10d", "x.py"], {})
    assert invocation.apply(model.parse(TWO, "i"), found).run.rdzv.backend == "c10d"
    with pytest.raises(UsageError, match=r"run\.resume"):
        invocation.apply(model.parse(TWO + "run: {resume: head}", "i"), found)


@pytest.mark.parametrize(
    ("line", "gpus"),
    [
        ("CUDA_VISIBLE_DEVICES=0,1 x.py", "[0,1]"),
        ("env CUDA_VISIBLE_DEVICES= x.py", "none"),
        ("mpirun -x CUDA_VISIBLE_DEVICES=2 python x.py", "[2]"),
    ],
)
def test_gpus_are_chosen_in_the_inventory(line: str, gpus: str) -> None:
    with pytest.raises(UsageError) as caught:
        invocation.recognise(line.split(), {})
    assert f"gpus: {gpus}" in str(caught.value)


def test_the_mpirun_to_start_can_be_set_in_the_environment() -> None:
    assert model.parse(TWO + "run: {env: {DDP_ORCH_MPIRUN: /opt/mpirun}}", "i").run.env
    with pytest.raises(InventoryError, match="DDP_ORCH_RUN_NAME"):
        model.parse(TWO + "run: {env: {DDP_ORCH_RUN_NAME: x}}", "i")


def test_a_variable_before_the_command_cannot_be_a_secret() -> None:
    inventory = model.parse(TWO + "run: {secrets: [TOKEN]}", "i")
    with pytest.raises(UsageError, match=r"^TOKEN: .*run\.secrets"):
        invocation.apply(inventory, invocation.recognise(["TOKEN=a", "x.py"], {}))


def test_a_command_for_hosts_may_have_variables_before_it() -> None:
    inventory = model.parse(TWO + "run: {launcher: node}", "i")
    found = invocation.read(shlex.split("A=1 uv run x.py"), inventory, {})
    assert (found.words, found.env) == (("uv", "run", "x.py"), {"A": "1"})


@pytest.mark.parametrize(
    "line",
    [
        "torchrun --no-python ./x",
        "torchrun --nosuch 1 x.py",
        "torchrun --nproc-per-node",
        "torchrun --nproc-per-node x.py",
        "torchrun --nnodes two x.py",
        "torchrun",
        "deepspeed --include a:0 x.py",
        "deepspeed --autotuning run x.py",
        "mpirun -np 4",
        "srun -N 2 python x.py",
        "mpirun -env A",
        "ray symmetric-run --num-gpus 1 -- x.py",
        "ray symmetric-run --address h:1 x.py",
        "horovodrun -np 4 python x.py",
        "jsrun -n 4 python x.py",
        "aprun -n 4 python x.py",
        "colossalai run --nproc_per_node 4 x.py",
        "python -X nosuch x.py",
        "python -i x.py",
        "python -c pass",
        "python",
        "CUDA_VISIBLE_DEVICES=0,1 python -m torch.distributed.launch x.py",
        "env -i x.py",
        "uv run --with torch x.py",
        "A=1",
    ],
)
def test_flags_that_cannot_be_honoured_are_refused(line: str) -> None:
    with pytest.raises(UsageError, match=line.split()[0].partition("=")[0]):
        invocation.recognise(line.split(), {})


def test_numbers_of_ranks_are_applied() -> None:
    inventory = model.parse(TWO, "i")
    found = invocation.apply(inventory, invocation.recognise(shlex.split("mpirun -np 6 -x A=1 python x.py"), {}))
    assert [host.nproc_per_node for host in found.hosts] == [3, 3]
    assert found.run.launcher == "mpi"
    for line in ("mpirun -np 3 python x.py", "torchrun --nnodes 3 x.py"):
        with pytest.raises(UsageError, match="hosts"):
            invocation.apply(inventory, invocation.recognise(line.split(), {}))
    one = invocation.apply(
        inventory, invocation.recognise(shlex.split("torchrun --nnodes 1 --max_restarts 2 x.py"), {})
    )
    assert (one.run.nnodes, one.run.max_restarts) == ((1, 1), 2)


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("run: {launcher: torchrnu}", "run.launcher"),
        ("launchers: {direct: {}}", "launchers.direct"),
        ("launchers: {m: {argv: [x]}}", "launchers.m.argv"),
        ('launchers: {m: {argv: [x, "{command}", "{nodes}"]}}', "launchers.m.argv"),
        ('launchers: {m: {argv: ["{command}", "{rank}"]}}', "launchers.m.argv"),
        ("launchers: {m: {scope: rank, argv: [x]}}", "launchers.m.argv"),
        ('launchers: {m: {scope: rank, worker: [x], argv: ["{command}"]}}', "launchers.m.worker"),
        ("launchers: {m: {comand: x}}", "launchers.m.comand"),
        ("launchers: {m: x}", "launchers"),
        ("launchers: {m: {env: {RANK: x}}}", "launchers.m.env.RANK"),
        ("launchers: {m: {ready: https://x:1/}}", "launchers.m.ready"),
        ('launchers: {m: {ready: "http://{nodes}:1/"}}', "launchers.m.ready"),
        ("launchers: {m: {scope: rank, ready: http://x:1/}}", "launchers.m.ready"),
    ],
)
def test_a_wrong_launcher_of_the_user_is_refused_with_its_key(text: str, key: str) -> None:
    with pytest.raises(InventoryError, match=f"i:2: {key}: "):
        model.parse(f"hosts: [a]\n{text}\n", "i")


@pytest.mark.parametrize(
    ("flags", "config", "words", "ranks"),
    [
        ("", "", "--multi_gpu x.py", None),
        ("--mixed_precision fp8", "", "--multi_gpu --mixed_precision fp8 x.py", None),
        ("--use_fsdp", "", "--use_fsdp x.py", None),
        ("--use-deepspeed", "", "--deepspeed_multinode_launcher=standard --use-deepspeed x.py", None),
        ("--config_file=c.yaml", "", "--config_file=c.yaml x.py", None),  # it is on the hosts, whatever is in it
        ("--config_file c.yaml", "distributed_type: 'MULTI_GPU'", "--multi_gpu --config_file c.yaml x.py", None),
        ("--config_file c.yaml", "distributed_type: FSDP\nnum_processes: 8", "--config_file c.yaml x.py", None),
        (
            "--config_file c.yaml",
            "distributed_type: DEEPSPEED\nnum_machines: 2\nnum_processes: 8\ndeepspeed_config: {zero_stage: 2}",
            "--deepspeed_multinode_launcher=standard --config_file c.yaml x.py",
            8,
        ),
    ],
)
def test_the_kind_of_training_of_accelerate_is_its_own(
    flags: str, config: str, words: str, ranks: int | None, tmp_path: Path
) -> None:
    if config:
        (tmp_path / "c.yaml").write_text(config + "\n")
    invoked = invocation.recognise(["accelerate", "launch", *flags.split(), "x.py"], {})
    found = accelerate.complete(invoked, tmp_path)
    assert (shlex.join(found.words), found.total_ranks) == (words, ranks)
    assert found.nnodes == ((2, 2) if ranks else None)


def test_accelerate_is_not_asked_for_what_it_cannot_do(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("a: [\n")
    for flags in ("--cpu", "--config_file c.yaml"):
        with pytest.raises(UsageError, match=flags.split()[-1]):
            accelerate.complete(invocation.recognise(f"accelerate launch {flags} x.py".split(), {}), tmp_path)


def test_a_configuration_of_accelerate_that_no_host_reads_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.py").write_text("import torch\n")
    (tmp_path / "y.py").write_text("from accelerate import Accelerator\n")
    (tmp_path / "hf" / "accelerate").mkdir(parents=True)
    lines = ("x.py", "y.py", "accelerate launch x.py", "accelerate launch --config_file c x.py", "")

    def unused() -> list[str]:
        environ = {"HF_HOME": str(tmp_path / "hf")}
        return [
            line for line in lines if accelerate.find_unused(invocation.recognise(line.split(), {}), environ, tmp_path)
        ]

    assert unused() == []
    (tmp_path / "hf" / "accelerate" / "default_config.yaml").write_text("")
    assert unused() == ["y.py", "accelerate launch x.py"]


@pytest.mark.parametrize(
    ("line", "url"),
    [
        ("vllm serve M", "http://127.0.0.1:8000/health"),
        ("vllm serve M --port 9000 --host 0.0.0.0", "http://127.0.0.1:9000/health"),
        ("vllm serve M --port=9000 --host=10.0.0.1", "http://10.0.0.1:9000/health"),
        ("vllm serve M --host fd00::1", "http://[fd00::1]:8000/health"),
        ("vllm serve M --ssl-certfile=c", ""),
        ("python -m sglang.launch_server --model-path M", "http://127.0.0.1:30000/health"),
    ],
)
def test_a_server_is_ready_at_the_address_and_port_of_its_command(line: str, url: str) -> None:
    invoked = invocation.recognise(line.split(), {})
    inventory = invocation.apply(model.parse(TWO, "i"), invoked)
    assert launchers.with_server(launchers.choose(inventory), invoked.words).ready == url


def test_uneven_hosts_are_refused_where_the_launcher_could_not_be_right() -> None:
    rows = {launcher.name: launcher for launcher in launchers.PRESETS}
    check_even(rows["mpi"], {"a": 1, "b": 2}, (2, 2), 1)
    check_even(rows["node"], {"a": 1, "b": 2}, (2, 2), 0)
    check_even(rows["accelerate"], {"a": 2, "b": 2}, (1, 2), 1)
    for name, nnodes, spares in (("accelerate", (2, 2), 0), ("node", (1, 2), 0), ("node", (2, 2), 1)):
        with pytest.raises(UsageError, match=name):
            check_even(rows[name], {"a": 1, "b": 2}, nnodes, spares)


@pytest.mark.parametrize("launcher", ["node", "skypilot", "tensorflow"])
def test_a_file_in_the_place_of_a_program_is_refused_before_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, launcher: str
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("train.py", "run.sh", "task.yaml", "good.sh"):
        (tmp_path / name).write_text("")
    (tmp_path / "good.sh").chmod(0o755)
    inventory = model.parse(TWO + f"run: {{launcher: {launcher}}}", "i")
    for words, meant in (
        ("train.py --lr 1", "-- python train.py --lr 1"),
        ("run.sh", "-- bash run.sh"),
        ("./run.sh", "-- bash ./run.sh"),
        ("task.yaml", "a program"),
        ("good.sh", "-- bash good.sh"),
    ):
        with pytest.raises(UsageError) as caught:
            entrypoint.find(inventory, tuple(words.split()))
        assert meant in str(caught.value), caught.value
    for words in ("./good.sh", "bash run.sh", "python train.py", "hostname"):
        entrypoint.find(inventory, tuple(words.split()))


def test_a_command_for_hosts_needs_a_file_or_a_workdir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.sh").write_text("echo\n")
    inventory = model.parse(TWO + "run: {launcher: node}", "i")
    command, snapshot = entrypoint.find(inventory, ("bash", "run.sh"))
    assert command[3:] == ("bash", "run.sh") and snapshot is not None
    with pytest.raises(UsageError, match=r"rnu\.sh does not exist"):
        entrypoint.find(inventory, ("bash", "rnu.sh"))
    command, empty = entrypoint.find(inventory, ("vllm", "serve", "M"))
    assert command[4:] == ("serve", "M") and empty is not None
    assert (empty.files, empty.workdir) == ((), ".") and len(empty.notes) == 1
    with pytest.raises(UsageError, match="launcher"):
        entrypoint.find(inventory, ())
    there = model.parse("hosts: [{name: a, workdir: /w}]\nrun: {launcher: node}", "i")
    assert entrypoint.find(there, ("vllm", "serve", "M"))[1] is None


def test_a_module_that_is_not_here_is_looked_for_on_the_hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    inventory = model.parse(TWO, "i")
    (tmp_path / "pkg").mkdir()
    (tmp_path / "c.yaml").write_text("import: mpi4py\n")
    with pytest.raises(UsageError, match=r"pkg/trian\.py"):
        entrypoint.find(inventory, ("-m", "pkg.trian"))
    command, snapshot = entrypoint.find(inventory, ("-m", "axolotl.cli.train", "c.yaml"))
    assert command == ("-u", "-m", "axolotl.cli.train", "c.yaml")
    assert snapshot is not None and [entry.path for entry in snapshot.files] == ["c.yaml"]
    assert probe.script_of(snapshot) == {"path": "-m axolotl.cli.train", "source": "import axolotl\n", "local": []}
    without = entrypoint.find(inventory, ("-m", "axolotl"))[1]
    assert without is not None and without.files == () and without.module == "axolotl" and len(without.notes) == 2


def test_a_dry_run_shows_what_each_host_starts(tmp_path: Path) -> None:
    text = (
        'hosts: [a, b]\nlaunchers: {mine: {argv: [wrap, "{command}", "--of={nnodes}", "{run}"], worker: [--quiet]}}\n'
        "defaults: {nproc_per_node: 2}\n"
    )
    (tmp_path / "inventory.yaml").write_text(text)
    (tmp_path / "x.py").write_text("")
    words = [sys.executable, "-m", "orchestrator.cli", "up", "--dry-run", "--json", "--set", "run.launcher=mine"]
    result = subprocess.run(
        [*words, "--name", "r", "--", "x.py", "{node_rank}"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    commands = [node["command"] for node in json.loads(result.stdout)["nodes"]]
    assert commands == [["wrap", "x.py", "0", "--of=2", "r"], ["wrap", "x.py", "1", "--of=2", "r", "--quiet"]]


def test_a_script_that_imports_mpi4py_needs_a_real_mpirun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "with_mpi.py").write_text("import os\nfrom mpi4py import MPI\n")
    (tmp_path / "without.py").write_text("# import mpi4py\n")
    assert entrypoint.needs_mpi(("with_mpi.py", "x"), tmp_path)
    assert not entrypoint.needs_mpi(("without.py",), tmp_path)
    with pytest.raises(UsageError, match=r"with_mpi\.py:2 imports mpi4py.*-- mpirun python with_mpi\.py --lr 1"):
        entrypoint.find(model.parse(TWO, "i"), ("with_mpi.py", "--lr", "1"))
    real = model.parse(TWO + "run: {launcher: mpirun}", "i")
    for inventory, script in ((real, "with_mpi.py"), (model.parse(TWO, "i"), "without.py")):
        snapshot = entrypoint.find(inventory, (script,))[1]
        assert snapshot is not None and not snapshot.warnings


def test_flags_of_a_real_mpirun_become_its_variables() -> None:
    line = "mpiexec.hydra -np 4 -H a:2 --bind-to core -mca btl ^openib -genv FI_PROVIDER tcp -x A=1 python main.py"
    found = invocation.with_real_mpi(invocation.recognise(line.split(), {}))
    assert (found.launcher, found.words, found.total_ranks, list(found.ignored)) == ("mpirun", ("main.py",), 4, ["-H"])
    assert found.env == {
        "A": "1",
        "OMPI_MCA_hwloc_base_binding_policy": "core",
        "OMPI_MCA_btl": "^openib",
        "FI_PROVIDER": "tcp",
        "DDP_ORCH_MPIRUN": "mpiexec.hydra",
    }


def test_what_ddp_orch_itself_starts_needs_ranks() -> None:
    for name, expected in (("node", "torchrun"), ("accelerate", "torchrun"), ("direct", "direct"), ("mpi", "mpi")):
        inventory = model.parse(TWO + f"run: {{launcher: {name}}}", "i")
        assert launchers.for_own_scripts(inventory).run.launcher == expected


def test_a_program_that_is_no_file_is_refused_with_the_launcher_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=r"run\.launcher=node -- axolotl train c\.yaml"):
        entrypoint.find(model.parse(TWO, "i"), ("axolotl", "train", "c.yaml"))


@pytest.mark.parametrize(
    ("launcher", "line", "words"),
    [
        ("node", "python main.py --rank 0", None),
        ("node", "torchrun --no-python ./x", None),
        ("ray", "python main.py", None),
        ("mine", "deepspeed x.py", None),
        ("accelerate", "accelerate launch --num_machines 2 x.py", "x.py"),
        ("accelerate", "x.py", None),
        ("vllm", "vllm serve M", None),
        ("vllm", "vllm serve M --headless", "vllm serve M"),
        ("ray", "ray symmetric-run --address h:1 -- python x.py", "python x.py"),
        ("direct", "python main.py", "main.py"),
    ],
)
def test_words_of_a_command_for_hosts_are_left_as_they_are(launcher: str, line: str, words: str | None) -> None:
    inventory = model.parse(TWO + f"run: {{launcher: {launcher}}}\nlaunchers: {{mine: {{}}}}", "i")
    found = invocation.read(shlex.split(line), inventory, {})
    assert " ".join(found.words) == (words or line)
    assert invocation.apply(inventory, found).run.launcher == launcher


@pytest.mark.parametrize(
    ("line", "command"),
    [
        (
            "python main.py --dist-url tcp://10.0.0.1:2 --rank 0 --world-size=2 --multiprocessing-distributed d",
            "python main.py --dist-url 'tcp://{master_addr}:{master_port}' --rank '{node_rank}' "
            "'--world-size={nnodes}' --multiprocessing-distributed d",
        ),
        (
            "tools/train.py --num-gpus 8 --num-machines 2 --machine-rank 1 --dist_url=tcp://h:1",
            "python tools/train.py --num-gpus 8 --num-machines '{nnodes}' --machine-rank '{node_rank}' "
            "'--dist_url=tcp://{master_addr}:{master_port}'",
        ),
        ("main.py --dist-url env:// --rank 0", None),
        ("main.py --dist-url tcp://h:1 --rank {rank}", None),
        ("main.py --multiprocessing-distributed --rank", None),
        ("main.py --rank 0", None),
    ],
)
def test_a_script_with_the_number_of_one_host_is_refused_with_the_command_for_all(
    line: str, command: str | None
) -> None:
    words, inventory = shlex.split(line), model.parse(TWO, "i")
    if command is None:
        assert invocation.read(words, inventory, {}).words == tuple(words)
        return
    with pytest.raises(UsageError) as caught:
        invocation.read(words, inventory, {})
    assert str(caught.value).endswith(f"ddp-orch up i --set run.launcher=node -- {command}")
    invocation.read(shlex.split(command), model.parse(TWO + "run: {launcher: node}", "i"), {})


@pytest.mark.parametrize(
    ("line", "launcher"),
    [("echo $SKYPILOT_NODE_RANK", "skypilot"), ("echo $DSTACK_NODE_RANK", "dstack"), ("echo", "node")],
)
def test_the_proposed_launcher_is_the_one_whose_variables_the_script_reads(
    line: str, launcher: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.sh").write_text(f"{line}\n")
    for words in (("bash", "run.sh"), ("run.sh",)):
        with pytest.raises(UsageError) as caught:
            entrypoint.find(model.parse("hosts: [a, b]", "i"), words)
        assert f"ddp-orch up i --set run.launcher={launcher} -- bash run.sh" in str(caught.value)


def test_each_variable_that_names_a_launcher_is_one_that_it_sets() -> None:
    rows = {launcher.name: launcher for launcher in launchers.PRESETS}
    for name, variables in launcher_variables.VARIABLES.items():
        assert set(variables) <= rows[name].env.keys()


UNEVEN = "hosts: [{name: a, nproc_per_node: 1}, {name: b, gpus: 3}]\n"


@pytest.mark.parametrize(
    ("line", "config", "words", "env"),
    [
        ("x.py --lr 1", "", "x.py --lr 1", {}),
        (
            "--mixed_precision=bf16 --dynamo_backend inductor --dynamo_use_dynamic --enable_cpu_affinity -m pkg.x a.py",
            "",
            "-m pkg.x a.py",
            {
                "ACCELERATE_MIXED_PRECISION": "bf16",
                "ACCELERATE_DYNAMO_BACKEND": "INDUCTOR",
                "ACCELERATE_DYNAMO_USE_DYNAMIC": "true",
                "ACCELERATE_CPU_AFFINITY": "1",
            },
        ),
        (
            "--config_file c.yaml --mixed_precision no x.py",
            "distributed_type: MULTI_GPU\nmixed_precision: fp16\ndebug: true\nuse_cpu: false\n"
            "dynamo_config: {dynamo_backend: EAGER}\nmachine_rank: 0\n",
            "x.py",
            {
                "ACCELERATE_MIXED_PRECISION": "no",
                "ACCELERATE_DEBUG_MODE": "true",
                "ACCELERATE_DYNAMO_BACKEND": "EAGER",
            },
        ),
        ("--use_fsdp x.py", "", None, None),
        ("--config_file c.yaml x.py", "distributed_type: DEEPSPEED\n", None, None),
        ("--config_file elsewhere.yaml x.py", "", None, None),
        ("--mixed_precision fp8 x.py", "", None, None),
        ("--gradient_clipping 1 x.py", "", None, None),
    ],
)
def test_ranks_of_accelerate_are_started_by_torchrun_on_uneven_hosts(
    line: str, config: str, words: str | None, env: dict[str, str] | None, tmp_path: Path
) -> None:
    (tmp_path / "c.yaml").write_text(config or "{}")
    invoked = accelerate.complete(invocation.recognise(["accelerate", "launch", *line.split()], {}), tmp_path)
    inventory = model.parse(UNEVEN, "i")
    found = accelerate_ranks.of_uneven(inventory, invoked, tmp_path)
    assert (found and " ".join(found.words)) == words and (found and found.env) == env
    assert found is None or invocation.apply(inventory, found).run.launcher == "torchrun"
    assert accelerate_ranks.of_uneven(model.parse(TWO, "i"), invoked, tmp_path) is None


def test_ranks_of_accelerate_on_cpus_are_started_by_torchrun(tmp_path: Path) -> None:
    """As `accelerate config` writes it for several machines without GPUs. accelerate would start each rank alone."""
    several = "distributed_type: MULTI_CPU\nnum_machines: 2\nnum_processes: 4\n"

    def found(config: str) -> invocation.Invocation | None:
        (tmp_path / "c.yaml").write_text(config)
        words = ["accelerate", "launch", "--config_file", "c.yaml", "x.py"]
        return accelerate_ranks.on_cpus(accelerate.complete(invocation.recognise(words, {}), tmp_path), tmp_path)

    ranks = found(several + "use_cpu: true\n")
    assert ranks is not None and (ranks.launcher, ranks.words, ranks.total_ranks) == ("torchrun", ("x.py",), 4)
    assert ranks.env == {"ACCELERATE_USE_CPU": "true"}
    assert found(several + "use_cpu: false\n") is None
    with pytest.raises(UsageError, match="use_cpu"):
        found("distributed_type: FSDP\nnum_machines: 2\nuse_cpu: true\n")


def test_a_program_after_mpirun_is_started_by_a_real_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.out").write_bytes(b"\x7fELF")
    inventory = model.parse(TWO, "i")
    found = invocation.read(shlex.split("mpirun -np 4 -x A=1 ./a.out --n 3"), inventory, {})
    assert (found.launcher, found.is_program, found.total_ranks, found.env) == ("mpirun", True, 4, {"A": "1"})
    command, snapshot = entrypoint.find_program(invocation.apply(inventory, found), found.words)
    assert command[3:] == ("./a.out", "--n", "3")
    assert snapshot is not None and [entry.path for entry in snapshot.files] == ["a.out"]


def test_the_number_of_hosts_of_a_command_agrees_with_any_n() -> None:
    inventory = model.parse("hosts: any 2 of [a, b, c]\n", "i")

    def applied(words: str) -> model.Inventory:
        return invocation.apply(inventory, invocation.read(shlex.split(words), inventory, {}))

    assert applied("torchrun --nnodes 2 --nproc_per_node 3 x.py").run.nnodes == "auto"
    assert applied("mpirun -np 4 python x.py").hosts[0].nproc_per_node == 2
    for number in ("3", "1:2"):
        with pytest.raises(UsageError, match="any 2"):
            applied(f"torchrun --nnodes {number} x.py")


def test_a_program_around_each_rank_cannot_be_preloaded() -> None:
    text = TWO + 'launchers: {pin: {scope: rank, argv: [numactl, "--membind={local_rank}", "{command}"]}}\n'
    pin = launchers.choose(model.parse(text + "run: {launcher: pin}", "i"))
    assert not pin.can_preload and launchers.choose(model.parse(TWO + "run: {launcher: direct}", "i")).can_preload
    with pytest.raises(UsageError, match=r"run\.preload"):
        launchers.choose(model.parse(text + "run: {launcher: pin, preload: [torch]}", "i"))
