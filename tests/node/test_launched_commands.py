"""What the command of each launcher finds in its environment and arguments."""

from __future__ import annotations

import json
import re
import socket
from typing import Any

import pytest
from local_runs import Run, Runs

from orchestrator.plan.run_program import RUN_PROGRAM

TELL = """
import json, os, sys
print(json.dumps({"argv": sys.argv[1:], "env": dict(os.environ)}))
"""
OF_A_HOST = ("NNODES", "NODE_RANK", "NPROC_PER_NODE", "WORLD_SIZE")


def told(run: Run, node: int, stream: str) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(run.journal(node)[stream])
    return answer


def test_a_command_starts_once_per_host_and_knows_its_place(runs: Runs) -> None:
    words = (
        "{python}",
        "-c",
        TELL,
        "--rank={node_rank}",
        "{nnodes}/{world_size}",
        "{{nnodes}}",
        "${nnodes}",
        "{other}",
    )
    words += ("tcp://{master_addr}:{master_port}", "{host}", "{output_dir}")
    run = runs.start(RUN_PROGRAM, *words, nproc=(2, 2), launcher="node")
    run.wait_over()
    master = ""
    for node in (0, 1):
        journal = run.journal(node)
        assert [stream for stream in journal if ".run." not in stream and stream.endswith(".out")] == [f"1.{node}.out"]
        found = told(run, node, f"1.{node}.out")
        rank, count, literal, omega, other, url, host, output = found["argv"]
        assert (rank, count, literal, omega, other) == (f"--rank={node}", "2/4", "{nnodes}", "${nnodes}", "{other}")
        assert host == f"host-{node}" and output == found["env"]["DDP_ORCH_OUTPUT_DIR"]
        env = found["env"]
        assert [env[name] for name in OF_A_HOST] == ["2", str(node), "2", "4"]
        assert [env[f"PET_{name}"] for name in OF_A_HOST[:3]] == ["2", str(node), "2"]
        assert url == f"tcp://{env['MASTER_ADDR']}:{env['MASTER_PORT']}"
        assert "RANK" not in env and "LOCAL_RANK" not in env and "TORCHELASTIC_RUN_ID" not in env
        master = master or url
        assert url == master


def test_uneven_hosts_are_counted(runs: Runs) -> None:
    run = runs.start(RUN_PROGRAM, "{python}", "-c", TELL, nproc=(1, 3), launcher="node")
    run.wait_over()
    env = [told(run, node, f"1.{node}.out")["env"] for node in (0, 1)]
    assert [(one["NPROC_PER_NODE"], one["WORLD_SIZE"]) for one in env] == [("1", "4"), ("3", "4")]


def test_a_host_whose_command_fails_ends_the_run(runs: Runs) -> None:
    fails = "import os, sys, time; sys.exit(3) if os.environ['NODE_RANK'] == '1' else time.sleep(600)"
    run = runs.start(RUN_PROGRAM, "{python}", "-c", fails, nproc=(2, 2), launcher="node")
    verdict = run.wait_over()[0]["verdict"]
    failure = verdict["first_failure"]
    assert (verdict["state"], failure["host"], failure["exit_code"]) == ("failed", "host-1", 3)


def test_a_command_that_does_not_exist_is_named(runs: Runs) -> None:
    run = runs.start(RUN_PROGRAM, "nosuchprogram", launcher="node")
    run.wait_over()
    assert b"nosuchprogram" in run.journal()["1.0.err"]


def test_a_program_may_stand_around_each_rank(runs: Runs) -> None:
    pin = '{scope: rank, argv: [env, "PINNED={local_rank}", "{command}", "--{world_size}"]}'
    run = runs.start(TELL, "{rank}", nproc=(2,), launcher="pin", own_launchers=f"{{pin: {pin}}}")
    run.wait_over()
    for rank in (0, 1):
        found = told(run, 0, f"1.{rank}.out")
        assert (found["argv"], found["env"]["PINNED"]) == (["{rank}", "--2"], str(rank))


def test_ranks_find_the_variables_of_slurm(runs: Runs) -> None:
    run = runs.start(TELL, nproc=(1, 2), launcher="srun")
    run.wait_over()
    places = {}
    for node, rank in ((0, 0), (1, 1), (1, 2)):
        env = told(run, node, f"1.{rank}.out")["env"]
        places[rank] = [
            env[name] for name in ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NTASKS", "SLURM_NTASKS_PER_NODE")
        ]
        assert env["SLURM_JOB_NODELIST"] == env["MASTER_ADDR"] and env["SLURMD_NODENAME"] == f"host-{node}"
        assert env["SLURM_JOB_ID"].isdecimal() and env["SLURM_CPUS_PER_TASK"].isdecimal()
    assert places == {0: ["0", "0", "3", "1"], 1: ["1", "0", "3", "2"], 2: ["2", "1", "3", "2"]}


def test_each_host_of_vllm_has_its_own_address_unless_the_user_sets_it(runs: Runs) -> None:
    for own in ({}, {"VLLM_HOST_IP": "192.0.2.9"}):
        run = runs.start(RUN_PROGRAM, "{python}", "-c", TELL, nproc=(1, 1), launcher="vllm", env=own)
        run.wait_over()
        assert told(run, 1, "1.1.out")["env"]["VLLM_HOST_IP"] == own.get("VLLM_HOST_IP", "127.0.0.1")


@pytest.mark.parametrize("options", ["", "head_lost: elect, max_restarts: 1, rejoin_timeout: 5"])
def test_commands_find_all_hosts_of_their_attempt(runs: Runs, options: str) -> None:
    words = ("{python}", "-c", TELL, "{hosts}", "{addresses}")
    run = runs.start(RUN_PROGRAM, *words, nproc=(2, 2, 2, 2), spares=1, launcher="tensorflow", options=options)
    run.wait_over()
    for node in range(3):
        found = told(run, node, f"1.{node}.out")
        address = "127.0.0.1"
        assert found["argv"] == [f"{address}:2,{address}:2,{address}:2", f"{address},{address},{address}"]
        workers = [f"{address}:{found['env']['MASTER_PORT']}"] * 3
        expected = {"cluster": {"worker": workers}, "task": {"type": "worker", "index": node}}
        assert json.loads(found["env"]["TF_CONFIG"]) == expected


@pytest.mark.parametrize(
    ("launcher", "count", "gpus", "addresses"),
    [
        ("skypilot", "SKYPILOT_NUM_NODES", "SKYPILOT_NUM_GPUS_PER_NODE", "SKYPILOT_NODE_IPS"),
        ("dstack", "DSTACK_NODES_NUM", "DSTACK_GPUS_PER_NODE", "DSTACK_NODES_IPS"),
    ],
)
def test_scripts_of_rented_hosts_find_the_variables_that_they_know(
    runs: Runs, launcher: str, count: str, gpus: str, addresses: str
) -> None:
    run = runs.start(RUN_PROGRAM, "{python}", "-c", TELL, nproc=(2, 2), launcher=launcher)
    run.wait_over()
    for node in range(2):
        env = told(run, node, f"1.{node}.out")["env"]
        assert (env[count], env[gpus], env[addresses]) == ("2", "2", "127.0.0.1\n127.0.0.1")
        assert env[f"{launcher.upper()}_NODE_RANK"] == str(node) == env["NODE_RANK"]
    assert launcher == "skypilot" or (env["DSTACK_MASTER_NODE_IP"], env["DSTACK_GPUS_NUM"]) == ("127.0.0.1", "4")


def test_ranks_of_a_launcher_find_all_hosts(runs: Runs) -> None:
    own = '{mine: {scope: rank, env: {PEERS: "{hosts}"}}}'
    run = runs.start(TELL, nproc=(1, 2), launcher="mine", own_launchers=own)
    run.wait_over()
    found = [told(run, node, f"1.{rank}.out")["env"]["PEERS"] for rank, node in ((0, 0), (1, 1), (2, 1))]
    assert found == ["127.0.0.1:1,127.0.0.1:2"] * 3


def test_ranks_find_the_variables_of_mpi(runs: Runs) -> None:
    run = runs.start(TELL, nproc=(1, 2), launcher="mpi")
    run.wait_over()
    found = [told(run, node, f"1.{rank}.out")["env"] for rank, node in ((0, 0), (1, 1), (2, 1))]
    names = ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "PMI_RANK", "RANK")
    assert [[env[name] for name in names] for env in found] == [
        ["0", "3", "0", "0", "0"],
        ["1", "3", "0", "1", "1"],
        ["2", "3", "1", "2", "2"],
    ]


def test_a_script_for_deepspeed_gets_its_local_rank_as_an_argument(runs: Runs) -> None:
    run = runs.start(TELL, "--lr", "{local_rank}", nproc=(2,), launcher="deepspeed")
    run.wait_over()
    for rank in (0, 1):
        assert told(run, 0, f"1.{rank}.out")["argv"] == [f"--local_rank={rank}", "--lr", "{local_rank}"]


# as `vllm serve` does: every host gets the flags, and only the first one serves
SERVER = """
import http.server, sys
class Handler(http.server.BaseHTTPRequestHandler):
    answers = 0
    def do_GET(self):
        Handler.answers += 1
        self.send_response(503 if Handler.answers < 2 else 200)
        self.end_headers()
flags = sys.argv[1:]
if "--headless" not in flags:
    assert "--node-rank=0" in flags and "DDP_ORCH_READY" not in __import__("os").environ
    http.server.HTTPServer(("127.0.0.1", int(flags[1])), Handler).serve_forever()
__import__("time").sleep(600)
"""


def test_a_server_is_reported_as_ready_once_it_answers(runs: Runs) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    words = ("{python}", "-u", "-c", SERVER, "--port", str(port))
    run = runs.start(RUN_PROGRAM, *words, nproc=(1, 1), launcher="vllm")
    run.wait_for("ready", "1.0.out")
    line = run.journal()["1.0.out"].decode()
    assert re.fullmatch(rf"ddp-orch: ready after \d+ s: http://127\.0\.0\.1:{port}/health\n", line)
    assert not run.journal(1).get("1.1.out")
    run.stop()
    run.wait_over()
    assert run.members() == []
