"""A stranger gets the very pid that a process of a run had: nobody signals it."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from e2e.driver import COUNTER, assert_clean, ok, orch, script, start
from lab.host import Host
from lab.lab import Lab
from lab.waiting import wait_until

from .trial import kill, ours


def record(host: Host, run_id: str, name: str) -> dict[str, object]:
    (path,) = host.home.glob(f".local/state/ddp-orch/*/runs/{run_id}/{name}")
    found = json.loads(path.read_text())
    assert isinstance(found, dict)
    return found


def stranger_with(host: Host, pid: int, argv: list[str]) -> subprocess.Popen[str]:
    """Start `argv` as ann, with that pid on its host."""
    for _ in range(50):
        host.sh(f"echo {pid - 1} > /proc/sys/kernel/ns_last_pid", "root", check=True)
        process = host.popen(argv)
        status = Path(f"/proc/{process.pid}/status").read_text()
        if status.split("NSpid:")[1].split("\n")[0].split()[-1] == str(pid):
            return process
        process.kill()
        process.wait()
    raise AssertionError(f"pid {pid} could not be had on {host.name}")


@pytest.mark.parametrize("boots", [False, True], ids=["same boot", "after a reboot"])
def test_a_stranger_with_a_recorded_pid_survives_every_kill(lab2: Lab, boots: bool) -> None:
    inventory = lab2.inventory(run={"launcher": "direct"})
    run_id = start(lab2, inventory, "--", script(lab2, COUNTER), "1000", "0.1")
    host = lab2.hosts[1]
    wait_until(lambda: list(host.home.glob(f".local/state/ddp-orch/*/runs/{run_id}/procs.json")), 30, "a record")
    ranks = [one[0] for one in record(host, run_id, "procs.json")["processes"]]  # type: ignore[attr-defined]
    guard = record(host, run_id, "state.json")["guard"][0]  # type: ignore[index]
    if boots:
        host.crash()
        host.boot()
    else:
        recorder = ours(host, "ddp-recorder")
        assert recorder is not None
        host.sh(f"kill -9 {guard} {recorder}", "root", check=True)
    wait_until(lambda: not lab2.marked(run_id), 60, "the run is over")
    strangers = [stranger_with(host, pid, ["sleep", "1000"]) for pid in {guard, *ranks}]
    for _ in range(3):
        ok(orch(lab2, "kill", run_id, "-i", inventory, "--grace", "0"))
        ok(orch(lab2, "kill", "--leftovers", "-i", inventory))
    assert [process.poll() for process in strangers] == [None] * len(strangers)
    for process in strangers:
        process.kill()
        process.wait()
    assert_clean(lab2)


def test_a_rank_whose_pid_is_used_again_at_once_is_not_taken_for_alive(lab2: Lab) -> None:
    """The run has to fail, though a process with the rank's pid is there when anybody looks."""
    inventory = lab2.inventory(run={"launcher": "direct"})
    run_id = start(lab2, inventory, "--", script(lab2, COUNTER), "1000", "0.1")
    host = lab2.hosts[1]
    wait_until(lambda: host.marked(run_id), 30, "the rank is there")
    (rank,) = [one.pid for one in host.marked(run_id)]
    kill(host, rank)
    stranger = stranger_with(host, rank, ["sleep", "1000"])
    ok(orch(lab2, "logs", "-f", run_id, "-i", inventory), 1)
    assert_clean(lab2, run_id)
    assert stranger.poll() is None
    stranger.kill()
    stranger.wait()
