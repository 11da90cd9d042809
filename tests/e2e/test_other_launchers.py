"""Hosts from a hostfile, and commands of other launchers, on hosts that are reached by SSH."""

from __future__ import annotations

import re

from lab.lab import Lab
from lab.waiting import wait_until

from .driver import assert_clean, code, lines_of, ok, orch, script

PLACE = """
import os, sys
print("place", os.environ["RANK"], os.environ["WORLD_SIZE"], *sys.argv[1:], flush=True)
"""
# the ranks of a host share one output, so that `print` would tear their lines
WHOLE_LINE = """
import os, sys
os.write(1, " ".join(["place", os.environ["RANK"], os.environ["WORLD_SIZE"], *sys.argv[1:]]).encode() + b"\\n")
"""
# its child ignores SIGTERM, and its second host fails in the first attempt
COMMAND = """
echo "place $NODE_RANK $NNODES $WORLD_SIZE $1"
(trap '' TERM; setsid sleep 600) &
[ "$NODE_RANK/$DDP_ORCH_ATTEMPT" = 1/1 ] && exit 3
[ "$DDP_ORCH_ATTEMPT" = 2 ] && echo waiting && exec sleep 600
sleep 600
"""


def places(output: str) -> list[str]:
    return sorted(re.findall(r"\| place (.+)$", output, re.M))


def test_a_run_on_the_hosts_of_a_hostfile_is_found_again_without_it(lab2: Lab) -> None:
    hostfile = code(lab2) / "hostfile"
    hostfile.write_text("".join(f"{host.address} slots=2\n" for host in lab2.hosts))
    inventory = lab2.inventory()
    script(lab2, PLACE + "import time\ntime.sleep(600)\n")
    words = (
        "up",
        "-d",
        "@hostfile:hostfile",
        "--with",
        inventory,
        "--",
        "mpirun",
        "-np",
        "2",
        "python",
        "train.py",
        "x",
    )
    run_id = ok(orch(lab2, *words)).stdout.split()[0]
    hostfile.unlink()
    listed = ok(orch(lab2, "ps")).stdout
    assert run_id in listed
    killed = ok(orch(lab2, "kill", run_id))
    assert run_id in killed.stdout + killed.stderr
    output = ok(orch(lab2, "logs", run_id)).stdout
    assert places(output) == ["0 2 x", "1 2 x"]
    assert_clean(lab2)


def test_a_command_that_is_started_once_per_host_is_restarted_and_killed(lab2: Lab) -> None:
    (code(lab2) / "run.sh").write_text(COMMAND)
    inventory = lab2.inventory(run={"launcher": "node", "max_restarts": 1})
    run_id = ok(
        orch(lab2, "up", "-d", inventory, "--", "bash", "run.sh", "{node_rank}/{nnodes} {hosts}")
    ).stdout.split()[0]

    def waiting() -> bool:
        lines = lines_of(lab2, inventory, run_id, "--attempt", "2", "--grep", "waiting")
        return len({line["host"] for line in lines}) == len(lab2.hosts)

    wait_until(waiting, 60, "both hosts run their second attempt")
    output = ok(orch(lab2, "logs", run_id, "-i", inventory, "--attempt", "2")).stdout
    hosts = ",".join(f"{host.address}:1" for host in lab2.hosts)
    assert places(output) == [f"0 2 2 0/2 {hosts}", f"1 2 2 1/2 {hosts}"]
    ok(orch(lab2, "kill", run_id, "-i", inventory, "--grace", "1"))
    assert_clean(lab2)


def test_torchrun_in_a_command_for_hosts_needs_no_flags(lab2: Lab) -> None:
    hosts = [{"name": host.name, "address": host.address, "nproc_per_node": 2} for host in lab2.hosts]
    inventory = lab2.inventory(hosts=hosts, run={"launcher": "node"})
    result = ok(orch(lab2, "up", inventory, "--", "torchrun", script(lab2, WHOLE_LINE), "{nproc_per_node}"))
    assert places(result.stdout) == [f"{rank} 4 2" for rank in range(4)]
    assert_clean(lab2)


def test_a_command_without_a_file_here_starts_in_an_empty_folder(lab2: Lab) -> None:
    inventory = lab2.inventory(run={"launcher": "node"})
    script(lab2, "raise SystemExit('not sent')\n")
    count = 'echo "place $NODE_RANK $(ls | wc -l) $A"'
    result = ok(orch(lab2, "up", inventory, "--", "A=1", "sh", "-c", count))
    assert places(result.stdout) == ["0 0 1", "1 0 1"]
    direct = lab2.inventory(run={"launcher": "direct", "preload": "none"})
    assert "Linux-" in ok(orch(lab2, "up", direct, "--", "-m", "platform")).stdout
    missing = orch(lab2, "up", direct, "--", "-m", "no_such_module.train")
    assert missing.returncode == 3 and "no_such_module" in missing.stderr
    assert_clean(lab2)
