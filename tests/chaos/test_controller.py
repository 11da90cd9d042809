"""The controller is killed, sleeps, or is there twice: the run belongs to its hosts."""

from __future__ import annotations

import signal
from concurrent.futures import ThreadPoolExecutor

import pytest
from e2e.driver import COUNTER, assert_clean, counts, guards, lines_of, ok, orch, runs, script, start
from lab.lab import Lab
from lab.waiting import wait_until

from .trial import FOR_EVER, FULL, GLOO, chance, trial

LEASES = 40  # s: longer than the lease (8 s), the relay's patience (30 s) and the controller's own (14 s)


@pytest.mark.parametrize("number", range(20 if FULL else 1))
def test_a_controller_killed_at_any_moment_leaves_a_whole_run_or_nothing(lab2: Lab, number: int) -> None:
    """The moments reach from the first connection to well behind the commit point."""
    inventory = lab2.inventory(run={"launcher": "direct"})
    seconds = chance(number).uniform(0.2, 4.0)
    print(f"killed after {seconds:.2f} s")
    with trial(lab2, inventory, COUNTER, "600", "0.1") as run:
        run.pass_time(seconds)

    def listed() -> int:
        return sum(run["state"] in ("starting", "running") for run in runs(lab2, inventory).values())

    def settled() -> bool:
        """A host may still be preparing the run: then no guard is left, or yet."""
        count, marked = listed(), lab2.marked()
        return (count == 1 and len(marked) == len(lab2.hosts)) or not (count or marked or guards(lab2))

    wait_until(settled, 60, "the run goes on everywhere, or nothing is left")
    if listed():
        ok(orch(lab2, "kill", "-i", inventory, "--grace", "1"))
    assert_clean(lab2)


def test_a_sleeping_laptop_stops_nothing_and_misses_nothing(lab2: Lab) -> None:
    inventory = lab2.inventory(run={"launcher": "direct"})
    with trial(lab2, inventory, COUNTER, "600", "0.1") as run:
        run.wait_for("rank 1 count 20")
        run.up.send_signal(signal.SIGSTOP)
        run.pass_time(LEASES)
        run.up.send_signal(signal.SIGCONT)
        run.assert_ended(0, "succeeded", within=90)
    for rank in range(2):
        seen = [int(line.split()[-1]) for line in run.output.splitlines() if f"rank {rank} count " in line]
        assert seen == list(range(600))


def test_a_laptop_that_sleeps_during_the_launch_leaves_a_whole_run_or_nothing(lab2: Lab) -> None:
    inventory = lab2.inventory(run={"launcher": "direct"})
    seconds = chance().uniform(0.4, 2.0)
    print(f"asleep after {seconds:.2f} s")
    with trial(lab2, inventory, COUNTER, "1200", "0.1") as run:
        run.pass_time(seconds)
        run.up.send_signal(signal.SIGSTOP)
        run.pass_time(LEASES)
        here = [len(host.marked()) for host in lab2.hosts]
        assert all(here) or not any(here)
        run.up.send_signal(signal.SIGCONT)
        if not any(here):
            # woken up, it finds its hosts gone: an error that says so, or it may begin only now
            wait_until(lambda: run.up.poll() is not None or lab2.marked(), 60, "it ends or starts")
        ok(orch(lab2, "kill", "-i", inventory, "--grace", "1"))
        assert run.ended(60) in (4, 130)
    assert_clean(lab2)


def test_two_ups_of_one_name_at_once_make_one_run(lab2: Lab) -> None:
    inventory = lab2.inventory(run={"launcher": "direct"})
    name = script(lab2, COUNTER)
    argv = ["up", str(inventory), "-d", "--name", "same", "--", name, "600", "0.1"]
    for _ in range(5 if FULL else 1):
        with ThreadPoolExecutor() as pool:
            results = list(pool.map(lambda _: orch(lab2, *argv), range(2)))
        codes = sorted(result.returncode for result in results)
        unfinished = [run for run in runs(lab2, inventory).values() if run["state"] in ("starting", "running")]
        # each may have taken one host from the other; then both are told, and nothing is left
        assert codes in ([0, 5], [5, 5]), [result.stderr for result in results]
        assert len(unfinished) == codes.count(0)
        told = [result.stderr for result in results if result.returncode == 5]
        assert all(" name same " in text for text in told), told
        ok(orch(lab2, "kill", "-i", inventory, "--grace", "0"))
        assert_clean(lab2)


def test_two_kills_at_once_both_succeed(lab3: Lab) -> None:
    with trial(lab3, lab3.inventory(), GLOO, FOR_EVER, "0.05") as run:
        run.wait_for("rank 2 step 3 ")
        with ThreadPoolExecutor() as pool:
            kills = list(pool.map(lambda _: orch(lab3, "kill", run.run_id, "-i", run.inventory), range(2)))
        assert [one.returncode for one in kills] == [0, 0], [one.stderr for one in kills]
        assert run.ended(30) == 130
        assert_clean(lab3, run.run_id)
        assert run.fact()["state"] == "killed"


@pytest.mark.parametrize("number", range(10 if FULL else 1))
def test_a_kill_during_an_up_leaves_a_run_that_is_known_or_nothing(lab2: Lab, number: int) -> None:
    inventory = lab2.inventory(run={"launcher": "direct"})
    seconds = chance(number).uniform(0.3, 2.5)
    print(f"kill after {seconds:.2f} s")
    with trial(lab2, inventory, COUNTER, "600", "0.1") as run:
        run.pass_time(seconds)
        ok(orch(lab2, "kill", "--all", "-i", inventory, "--grace", "0"))
        # it came too early, and the run is there; or in time, and `up` says so
        wait_until(
            lambda: run.up.poll() is not None or "count 5" in run.output, 60, "the run is there, or `up` has ended"
        )
        if run.up.poll() is None:
            ok(orch(lab2, "kill", "--all", "-i", inventory, "--grace", "0"))
        assert run.ended(30) in (4, 130), run.errors
        assert "Traceback" not in run.errors
        assert_clean(lab2)


def test_a_run_is_followed_and_ended_from_another_machine(lab2: Lab) -> None:
    """Given the inventory alone; the laptop that started it is gone."""
    inventory = lab2.inventory(run={"launcher": "direct"})
    run_id = start(lab2, inventory, "--", script(lab2, COUNTER), "100", "0.05")
    other = lab2.controller_home / "other"
    other.mkdir()
    elsewhere = {"HOME": str(other), "DDP_ORCH_SSH_CONFIG": str(lab2.controller_home / ".ssh/config")}
    (other / ".ssh").symlink_to(lab2.controller_home / ".ssh")
    ok(orch(lab2, "logs", "-f", run_id, "-i", inventory, env=elsewhere))
    assert counts(lines_of(lab2, inventory, run_id)) == {0: list(range(100)), 1: list(range(100))}
    assert_clean(lab2)
