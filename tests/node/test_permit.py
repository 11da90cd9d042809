"""A guard whose recorder hangs or is late still stops its ranks in time, and never has ranks of two attempts."""

from __future__ import annotations

import resource
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from driven_guard import Driver, driven_program
from lab.waiting import wait_until
from local_runs import Run, Runs, local_runs
from test_rejoin import lose, rejoin

from orchestrator.node.guard.permit import RENEWED_BELOW, Permit, Renewal, clock
from orchestrator.node.host import processes, state

WAIT = "print('ready', flush=True); import time; time.sleep(300)"
STUBBORN = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + WAIT


@pytest.fixture
def driven(tmp_path: Path) -> Iterator[tuple[Runs, Driver]]:
    with Driver(tmp_path / "host-0") as driver, local_runs(tmp_path, driven_program(tmp_path / "program")) as runs:
        yield runs, driver


def prepare(runs: Runs, driver: Driver, code: str = WAIT) -> Run:
    accepting = threading.Thread(target=driver.accept)
    accepting.start()
    run, _ = runs.prepare(code)
    accepting.join()
    return run


def attempts(run: Run) -> set[str]:
    """The attempts of which processes live."""
    return {processes.environment(one.pid).get("DDP_ORCH_ATTEMPT", "") for one in run.members()} - {""}


def runs_attempt(driver: Driver, number: int) -> None:
    driver.wait_for(lambda status: (status["attempt"], status["phase"]) == (number, "running"))


def test_a_guard_outlives_a_disk_that_cannot_be_written(driven: tuple[Runs, Driver]) -> None:
    runs, driver = driven
    run = prepare(runs, driver)
    driver.permit(60.0)
    driver.run(1)
    runs_attempt(driver, 1)
    guard = run.guard()
    _, most = resource.prlimit(guard.pid, resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))  # no file takes a byte
    driver.stop(1)
    driver.wait_for(lambda status: status["phase"] == "exited")
    resource.prlimit(guard.pid, resource.RLIMIT_FSIZE, (most, most))
    driver.end()
    run.wait_over()


def test_a_permit_that_comes_late_shortens_nothing(driven: tuple[Runs, Driver]) -> None:
    runs, driver = driven
    prepare(runs, driver, "print('ready')")
    driver.permit(60.0)
    driver.permit(5.0, ago=62.0)
    driver.run(1)
    status = driver.wait_for(lambda status: status["phase"] == "exited")
    assert (status["fenced"], status["outcome"]) == (False, {"ok": True})
    driver.end()


def test_the_ranks_end_without_a_further_word_when_the_permit_is_over(driven: tuple[Runs, Driver]) -> None:
    runs, driver = driven
    run = prepare(runs, driver, STUBBORN)
    driver.permit(0.5)
    driver.run(1)
    status = driver.wait_for(lambda status: status["phase"] == "exited")
    assert (status["fenced"], status["outcome"], status["failures"]) == (True, {"ok": False}, [])
    assert not attempts(run)
    assert state.guarded(str(run.folder()))
    driver.permit(60.0)
    driver.run(2)
    runs_attempt(driver, 2)
    assert not driver.statuses[-1]["fenced"]
    wait_until(lambda: attempts(run) == {"2"}, 10.0, "the rank of the next attempt")
    driver.end()


def test_a_rank_gets_no_time_after_the_permit(driven: tuple[Runs, Driver], tmp_path: Path) -> None:
    """The other hosts wait for as long as it may live."""
    runs, driver = driven
    ready, saved = tmp_path / "ready", tmp_path / "saved"
    save = f"lambda *_: (time.sleep(0.5), open({str(saved)!r}, 'w'))"
    code = f"import signal, time; signal.signal(signal.SIGTERM, {save})\nopen({str(ready)!r}, 'w')\ntime.sleep(300)"
    prepare(runs, driver, code)
    driver.permit(4.0)
    driver.run(1)
    wait_until(ready.exists, 4.0, "the rank handles SIGTERM")
    driver.wait_for(lambda status: status["phase"] == "exited" and status["fenced"])
    assert not saved.exists()
    driver.end()


def test_a_run_order_under_a_permit_that_is_over_starts_nothing(driven: tuple[Runs, Driver]) -> None:
    runs, driver = driven
    run = prepare(runs, driver)
    driver.permit(1.0, ago=2.0)
    driver.run(1)
    status = driver.wait_for(lambda status: status["phase"] == "exited")
    assert (status["attempt"], status["fenced"], status["outcome"]) == (1, True, {"ok": False})
    assert not list((run.folder() / "log").iterdir())
    driver.end()


def test_a_gap_between_permits_ends_the_attempt_although_the_guard_saw_none(driven: tuple[Runs, Driver]) -> None:
    """As after a suspend of the host: while the ranks had no permit, other hosts may have gone on."""
    runs, driver = driven
    run = prepare(runs, driver)
    driver.permit(5.0)
    driver.run(1)
    runs_attempt(driver, 1)
    guard = run.guard()
    processes.send(guard, signal.SIGSTOP)
    driver.send({"do": "permit", "at": clock() + 6.0, "seconds": 60.0})
    processes.send(guard, signal.SIGCONT)
    driver.wait_for(lambda status: status["phase"] == "exited" and status["fenced"])
    driver.end()


def test_without_a_permit_there_is_no_limit(driven: tuple[Runs, Driver]) -> None:
    runs, driver = driven
    prepare(runs, driver, "print('ready')")
    driver.run(1)
    status = driver.wait_for(lambda status: status["phase"] == "exited")
    assert (status["fenced"], status["outcome"]) == (False, {"ok": True})
    driver.end()


def test_an_order_for_a_later_attempt_ends_the_older_one_first(driven: tuple[Runs, Driver]) -> None:
    runs, driver = driven
    run = prepare(runs, driver, STUBBORN)
    driver.run(1)
    runs_attempt(driver, 1)
    wait_until(lambda: attempts(run) == {"1"}, 10.0, "its rank")
    driver.run(2)
    seen: list[set[str]] = []
    wait_until(lambda: seen.append(attempts(run)) or seen[-1] == {"2"}, 20.0, "the later attempt runs")  # type: ignore[func-returns-value]
    assert {"1", "2"} not in seen
    driver.wait_for(lambda status: (status["attempt"], status["phase"]) == (1, "exited"))
    runs_attempt(driver, 2)
    driver.end()


def test_a_stop_of_a_later_attempt_ends_the_older_one_too(driven: tuple[Runs, Driver]) -> None:
    runs, driver = driven
    run = prepare(runs, driver, STUBBORN)
    driver.run(1)
    runs_attempt(driver, 1)
    wait_until(lambda: attempts(run) == {"1"}, 10.0, "its rank")
    driver.run(3)
    driver.stop(3)  # replaces it while attempt 1 is being stopped
    driver.run(3)
    driver.wait_for(lambda status: (status["attempt"], status["phase"]) == (3, "exited"))
    assert not attempts(run)
    driver.end()


def test_permits_follow_each_other_or_leave_a_gap() -> None:
    permit = Permit()
    assert not permit.has_lapsed(1e9)
    permit.grant(at=10.0, seconds=5.0)
    assert (permit.has_lapsed(15.0), permit.has_lapsed(15.1)) == (False, True)
    permit.grant(at=14.0, seconds=5.0)
    permit.grant(at=11.0, seconds=1.0)
    assert (permit.seconds_left(15.0), permit.has_lapsed(16.0)) == (4.0, False)
    permit.grant(at=20.0, seconds=5.0)
    assert permit.has_lapsed(21.0)
    permit.begin(21.0)
    assert not permit.has_lapsed(21.0)
    permit.begin(26.0)
    assert permit.has_lapsed(26.0)


def test_a_guard_gets_only_the_permits_that_it_needs() -> None:
    renewal, lease = Renewal(8.0), 8.0
    assert renewal.due(100.0) is None
    renewal.grant(100.0, lease)
    assert renewal.due(100.0) == lease
    renewal.grant(101.0, lease)
    assert renewal.due(101.0) is None
    later = 108.0 - RENEWED_BELOW * lease
    assert renewal.due(later) == 109.0 - later
    assert renewal.due(108.0) is None  # there is none that is newer


def test_a_permit_after_a_pause_is_passed_on_at_once() -> None:
    renewal = Renewal(8.0)
    renewal.grant(100.0, 8.0)
    assert renewal.due(100.0) == 8.0
    renewal.grant(200.0, 1.0)
    assert renewal.due(200.0) == 1.0


def test_after_a_reboot_an_attempt_is_not_started_again(driven: tuple[Runs, Driver]) -> None:
    """A head that had no authority meanwhile may repeat its order. It counts the host as one that runs nothing."""
    runs, driver = driven
    run = prepare(runs, driver)
    driver.permit(60.0)
    driver.run(1)
    runs_attempt(driver, 1)
    wait_until(lambda: attempts(run) == {"1"}, 20, "its rank runs")
    lose(run)
    accepting = threading.Thread(target=driver.accept)
    accepting.start()
    rejoin(run)
    accepting.join()
    driver.permit(60.0)
    driver.run(1)
    status = driver.wait_for(lambda status: status["restarted"])
    driver.run(2)
    runs_attempt(driver, 2)
    after = driver.statuses[driver.statuses.index(status) :]
    assert {known["attempt"] for known in after} == {0, 2}, after
    wait_until(lambda: attempts(run) == {"2"}, 20, "its rank runs")
    driver.end()


def test_the_output_folder_is_there_before_the_first_attempt(driven: tuple[Runs, Driver]) -> None:
    """Copying files there may take long (`run.resume`), and `ddp-orch shell` has its path."""
    runs, driver = driven
    run = prepare(runs, driver)
    assert list(run.hosts[0].state.glob("*/out/*")) == []
    driver.send({"do": "commit"})
    driver.wait_for(lambda status: bool(status["committed"]))
    (folder,) = run.hosts[0].state.glob("*/out/*")
    assert list(folder.iterdir()) == [] and not state.has_files(str(folder))
    driver.end()
