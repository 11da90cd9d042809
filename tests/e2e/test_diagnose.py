"""`diagnose` of real runs, and what a failed `up` ends with."""

from __future__ import annotations

import json
import re
import shlex
from typing import Any

import pytest
from lab.lab import Lab
from lab.waiting import wait_until

from .driver import assert_clean, lines_of, ok, orch, script, start

RAISES = """
import os, time
rank = int(os.environ["RANK"])
print(f"rank {rank} step 1", flush=True)
if rank == 1:
    {}["missing"]
time.sleep(120)
"""
KILLED = """
import os, signal, time
if os.environ["RANK"] == "1":
    os.kill(os.getpid(), signal.SIGKILL)
time.sleep(120)
"""


@pytest.mark.parametrize(("text", "code"), [(RAISES, "script-exception"), (KILLED, "worker-sigkilled")])
def test_the_first_cause_of_a_failed_run_is_named_with_host_and_rank(lab2: Lab, text: str, code: str) -> None:
    inventory = lab2.inventory()
    up = ok(orch(lab2, "up", inventory, "--", script(lab2, text)), code=1)
    assert f"first cause: {code}, node-1, rank 1" in up.stderr
    assert len(up.stderr[up.stderr.index("first cause") :].splitlines()) <= 18  # with the source, and what to do next
    if text == RAISES:
        assert re.search(r"\| train\.py:\d+ in \S+\n.*\n  \| > \d+ .*missing", up.stderr)
    assert "\x1b" not in up.stderr
    told = json.loads(ok(orch(lab2, "diagnose", "-i", inventory, "--json")).stdout)
    first = told["findings"][0]
    assert (first["code"], first["hosts"], first["rank"]) == (code, ["node-1"], 1)
    assert_clean(lab2)


def test_a_run_that_succeeded_has_no_findings(lab2: Lab) -> None:
    inventory = lab2.inventory()
    ok(orch(lab2, "up", inventory, "--", script(lab2, "print('fine')")))
    assert json.loads(ok(orch(lab2, "diagnose", "-i", inventory, "--json")).stdout) == {
        "findings": [],
        "consequences": [],
    }


AGAIN = """
import os, time
if os.environ["DDP_ORCH_ATTEMPT"] == "1" and os.environ["RANK"] == "1":
    {}["missing"]
print("attempt", os.environ["DDP_ORCH_ATTEMPT"], flush=True)
time.sleep(300)
"""


def test_of_a_run_that_succeeded_a_loss_that_is_not_finite_is_named(lab2: Lab) -> None:
    inventory = lab2.inventory()
    text = "print('Step 8 Loss 0.65'); print('Step 16 Loss nan'); print('Step 24 Loss nan')"
    ok(orch(lab2, "up", inventory, "--", script(lab2, text)))
    told = ok(orch(lab2, "diagnose", "-i", inventory))
    assert "no failure" in told.stdout
    assert "Step 16" in told.stderr
    data = json.loads(ok(orch(lab2, "report", "-i", inventory, "--json")).stdout)
    assert (data["last_step"], data["last_loss"]) == (24, "nan")
    assert "Step 16" in data["bad_loss"]


def test_of_a_run_that_was_started_again_the_failed_attempt_is_named(lab2: Lab) -> None:
    inventory = lab2.inventory(run={"launcher": "direct", "max_restarts": 1})
    run_id = start(lab2, inventory, "--", script(lab2, AGAIN))
    wait_until(lambda: any(line["text"] == "attempt 2" for line in lines_of(lab2, inventory, run_id)), 60, "attempt 2")
    shown = ok(orch(lab2, "diagnose", "-i", inventory))
    assert re.match(r"attempt 1 .*\bscript-exception, node-1, rank 1\b", shown.stdout)
    assert re.search(rf"\b{run_id} .*\brunning\b", shown.stderr)
    (told,) = json.loads(ok(orch(lab2, "diagnose", "-i", inventory, "--json")).stdout)["findings"]
    assert (told["severity"], told["code"], told["hosts"], told["rank"]) == (
        "warning",
        "script-exception",
        ["node-1"],
        1,
    )
    ok(orch(lab2, "kill", "-i", inventory, run_id, "--grace", "0"))
    assert_clean(lab2)


LOADS = """
import os, pathlib, pickle, time
if os.environ["RANK"] != "0":
    time.sleep(300)
folder = pathlib.Path(os.environ["DDP_ORCH_OUTPUT_DIR"])
if (folder / "ckpt.pt").exists():
    pickle.loads((folder / "ckpt.pt").read_bytes())
    raise SystemExit("resumed")
(folder / "ckpt.pt").touch()
raise SystemExit("no space left for the snapshot")
"""


def test_an_empty_snapshot_is_named_with_the_command_that_removes_it(lab2: Lab) -> None:
    inventory = lab2.inventory(run={"launcher": "direct", "max_restarts": 0})
    train = script(lab2, LOADS)
    ok(orch(lab2, "up", inventory, "--name", "empty", "--", train), code=1)
    again = ok(orch(lab2, "restart", "empty", "-i", inventory), code=1).stderr
    assert "first cause: checkpoint-corrupt" in again
    assert re.search(r"On node-0:\s+ckpt\.pt\s+\(0\s+bytes,.*\sno\s+other\s+snapshot\.", again, re.DOTALL)
    (removal,) = (words for words in map(str.strip, again.splitlines()) if words.startswith("ddp-orch exec "))
    assert again.index(removal) < again.rindex("ddp-orch restart")
    ok(orch(lab2, *shlex.split(removal.split("  # ")[0])[1:]))
    assert "no space left" in ok(orch(lab2, "restart", "empty", "-i", inventory), code=1).stderr
    assert_clean(lab2)


OPENS = """
import os, time
if os.environ["RANK"] == "1":
    if not os.path.exists({path!r}):
        raise FileNotFoundError("Unable to find '{path}'")
time.sleep(300)
"""


@pytest.mark.parametrize(("on_the_other", "code"), [(True, "file-missing-on-host"), (False, "dataset-missing")])
def test_of_a_missing_file_all_hosts_are_asked_whether_they_have_it(lab2: Lab, on_the_other: bool, code: str) -> None:
    inventory = lab2.inventory(run={"launcher": "direct"})
    if on_the_other:
        lab2.hosts[0].sh("mkdir -p /home/ann/data && touch /home/ann/data/x.bin", check=True)
    up = ok(orch(lab2, "up", inventory, "--", script(lab2, OPENS.format(path="/home/ann/data/x.bin"))), code=1)
    assert f"first cause: {code}, node-1, rank 1" in up.stderr
    assert "(high confidence)" in up.stderr
    where = r"/home/ann/data/x\.bin .*\bnode-0\b.*\bnode-1\b" if on_the_other else r"/home/ann/data/x\.bin "
    assert re.search(where, " ".join(up.stderr.split()))
    assert_clean(lab2)


MEETS_AT_HOME = """
import os, torch.distributed as dist
if True:
    os.environ["MASTER_ADDR"] = "localhost"
print("imported", flush=True)
dist.init_process_group("gloo")
"""


def test_a_line_that_keeps_the_ranks_from_meeting_is_named(lab2: Lab) -> None:
    inventory = lab2.inventory(run={"stall_timeout": 15})
    up = ok(orch(lab2, "up", inventory, "--", script(lab2, MEETS_AT_HOME)), code=1)
    assert re.search(r"^warning: train\.py:4 may name localhost", up.stderr, re.MULTILINE)
    assert "first cause: worker-never-arrived" in up.stderr
    first = json.loads(ok(orch(lab2, "diagnose", "-i", inventory, "--json")).stdout)["findings"][0]
    assert "train.py:4" in first["fix"] and "all ranks wait" in first["message"].lower()
    assert_clean(lab2)


MEETS_ELSEWHERE = """
import os, torch.distributed as dist
url = dict(init_method="tcp://ADDRESS:29500")
print("begins", flush=True)
dist.init_process_group("gloo", **url, rank=int(os.environ["RANK"]), world_size=2)
"""


@pytest.mark.parametrize(
    "address",
    ["localhost", *(pytest.param(address, marks=pytest.mark.full) for address in ("192.168.1.5", "10.77.0.99"))],
)
def test_an_address_of_no_host_is_named_while_the_ranks_look_for_it(lab2: Lab, address: str) -> None:
    inventory = lab2.inventory(run={"launcher": "direct"})
    up = ("up", inventory, "-d", "--name", "job", "--", script(lab2, MEETS_ELSEWHERE.replace("ADDRESS", address)))
    assert f"train.py:3 names {address}" in ok(orch(lab2, *up)).stderr

    def diagnose() -> list[dict[str, Any]]:
        shown = orch(lab2, "diagnose", "job", "-i", inventory, "--json").stdout
        return [found for found in json.loads(shown)["findings"] if address in found["message"]]

    (found,) = wait_until(diagnose, 60, "the address is named")
    is_local = address == "localhost"  # where rank 0 waits for the other
    assert found["code"] == ("worker-never-arrived" if is_local else "rdzv-endpoint-not-hosted")
    assert "train.py:3" in found["message" if is_local else "fix"]
    ok(orch(lab2, "kill", "job", "-i", inventory))
    if is_local:  # why the user may have stopped it
        (first, *_) = json.loads(ok(orch(lab2, "diagnose", "job", "-i", inventory, "--json")).stdout)["findings"]
        assert first["code"] == "user-interrupt" and "train.py:3" in first["fix"]
    assert_clean(lab2)


TRAINS = """
import os, sys, time, torch, torch.distributed as dist
from pathlib import Path
dist.init_process_group("gloo")
rank, last = dist.get_rank(), Path(os.environ["DDP_ORCH_OUTPUT_DIR"], "last.pt")
begin = 0
if last.exists():
    begin = torch.load(last)
    print(f"resumed from step {begin}", flush=True)
for step in range(begin, int(sys.argv[1])):
    loss = torch.ones(1)
    dist.all_reduce(loss)
    print(f"step {step} loss {loss.item() / (step + 2):.3f}", flush=True)
    time.sleep(0.1)
    if rank == 0:
        torch.save(step + 1, last)
dist.destroy_process_group()
"""
STARTS_TORCHRUN = """
set -e
torchrun --nnodes "$SKYPILOT_NUM_NODES" --node_rank "$SKYPILOT_NODE_RANK" --nproc_per_node 1 \\
  --master_addr "$(echo "$SKYPILOT_NODE_IPS" | head -n 1)" --master_port 29777 train.py "$1"
"""


@pytest.mark.parametrize(
    ("launcher", "attempts"),
    [
        pytest.param("skypilot", 1, marks=pytest.mark.full),
        pytest.param("skypilot", 2, marks=pytest.mark.full),
        pytest.param("torchrun", 1, marks=pytest.mark.full),
    ],
)
def test_a_rank_that_ends_first_because_it_alone_resumed_is_no_lost_host(
    lab3: Lab, launcher: str, attempts: int
) -> None:
    inventory = lab3.inventory(run={"launcher": launcher, "max_restarts": attempts - 1})
    script(lab3, TRAINS)
    script(lab3, STARTS_TORCHRUN, "run.sh")
    words = ("train.py",) if launcher == "torchrun" else ("bash", "run.sh")
    name = f"{launcher}{attempts}"
    ok(orch(lab3, "up", inventory, "--name", name, "--", *words, "3"))
    up = orch(lab3, "up", inventory, "--name", name, "--", *words, "8")
    assert "host-lost" not in up.stderr + up.stdout, up.stderr + up.stdout
    findings = json.loads(ok(orch(lab3, "diagnose", "-i", inventory, "--json")).stdout)["findings"]
    of_first = [finding for finding in findings if attempts == 1 or finding["message"].startswith("Attempt 1")]
    assert (of_first[0]["code"], sorted(of_first[0]["hosts"])) == ("file-missing-on-host", ["node-1", "node-2"]), (
        findings
    )
    assert "run.resume" in of_first[0]["fix"]
    assert_clean(lab3)
