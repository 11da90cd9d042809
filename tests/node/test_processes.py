"""Finding processes, telling them apart for certain, and hitting none but those that are meant."""

from __future__ import annotations

import ctypes
import errno
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest
from lab.waiting import wait_until

from orchestrator.node.host import processes
from orchestrator.node.host.processes import Process
from orchestrator.node.ranks.rank_failure import describe

NOBODY = 65534


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(["sleep", "300"])
    # Popen comes back as soon as the kernel has begun to execute it, and for an instant it has no command line
    wait_until(lambda: processes.command(process.pid), 10, "sleep has its command line")
    yield process
    process.kill()
    process.wait()


def identified(process: subprocess.Popen[bytes]) -> Process:
    found = processes.identify(process.pid)
    assert found is not None
    return found


def without_pidfd(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """As on a kernel before 5.3 (ENOSYS), or in a container whose filter does not know the call (EPERM)."""

    def refused(*_: object) -> int:
        ctypes.set_errno(number)
        return -1

    monkeypatch.setattr(processes._libc, "syscall", refused)


def test_a_process_is_found_with_its_start(sleeper: subprocess.Popen[bytes]) -> None:
    found = processes.stat(sleeper.pid)
    assert found is not None
    assert found.parent == os.getpid()
    assert processes.alive(found.process)
    assert processes.command(sleeper.pid) == "sleep 300"
    assert processes.owner(sleeper.pid) == os.geteuid()


def test_a_name_with_spaces_and_parentheses_misleads_nobody() -> None:
    code = "import ctypes, sys; ctypes.CDLL(None).prctl(15, b') R 1 (', 0, 0, 0); print(flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout
        process.stdout.readline()
        found = processes.stat(process.pid)
        process.kill()
    assert found is not None
    assert found.parent == os.getpid()


@pytest.mark.parametrize("refused", [None, errno.ENOSYS, errno.EPERM])
def test_a_signal_reaches_the_process_that_is_meant(
    sleeper: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch, refused: int | None
) -> None:
    target = identified(sleeper)
    if refused is not None:
        without_pidfd(monkeypatch, refused)
    assert processes.send(target, signal.SIGTERM)
    assert sleeper.wait(5) == -signal.SIGTERM
    assert not processes.send(target, signal.SIGTERM)
    assert not processes.alive(target)


@pytest.mark.parametrize("refused", [None, errno.ENOSYS, errno.EPERM])
def test_a_stranger_with_the_pid_of_ours_is_not_hit(
    sleeper: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch, refused: int | None
) -> None:
    if refused is not None:
        without_pidfd(monkeypatch, refused)
    was_ours = Process(sleeper.pid, identified(sleeper).started - 1)
    assert not processes.send(was_ours, signal.SIGKILL)
    assert sleeper.poll() is None
    assert not processes.alive(was_ours)


@pytest.mark.parametrize("pid", [-1, 0, 1])
def test_no_group_and_never_the_first_process_is_signalled(pid: int) -> None:
    assert not processes.send(Process(pid, 0), 0)


def test_a_pidfd_tells_the_end_of_a_process(sleeper: subprocess.Popen[bytes]) -> None:
    handle = processes.pidfd(identified(sleeper))
    assert handle is not None
    assert not os.get_inheritable(handle)
    assert not select.select([handle], [], [], 0)[0]
    sleeper.kill()
    assert select.select([handle], [], [], 5.0)[0]
    os.close(handle)


def test_there_is_no_pidfd_of_a_process_that_is_gone(sleeper: subprocess.Popen[bytes]) -> None:
    target = identified(sleeper)
    assert processes.pidfd(target._replace(started=target.started + 1)) is None
    sleeper.kill()
    sleeper.wait()
    assert processes.pidfd(target) is None


@pytest.mark.parametrize("uid", [0, NOBODY])
@pytest.mark.parametrize(("how", "expected"), [("exit 7", (7, None)), ("kill -9 $$", (None, "SIGKILL"))])
def test_a_zombie_shows_how_it_ended_also_to_an_ordinary_user(
    uid: int, how: str, expected: tuple[int | None, str | None]
) -> None:
    """The kernel shows a zombie's exit status to whom it would let trace it: that must be its user, not only root."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        if os.geteuid() == 0:
            os.setgroups([])
            os.setuid(uid)
        zombie = os.fork()
        if zombie == 0:
            os.execv("/bin/sh", ["sh", "-c", how])
        os.waitid(os.P_PID, zombie, os.WEXITED | os.WNOWAIT)
        found = processes.stat(zombie)
        os.write(writer, b"%d" % (found.exit_status if found and found.state == "Z" else 0))
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as answer:
        assert describe(int(answer.read())) == expected
    os.waitpid(child, 0)


def test_descendants_are_found_to_the_last_and_zombies_are_left_out() -> None:
    code = (
        "import os, subprocess, time\n"
        "subprocess.Popen(['sleep', '300'], start_new_session=True)\n"
        "zombie = os.fork()\nif zombie == 0: os._exit(0)\n"
        "os.waitid(os.P_PID, zombie, os.WEXITED | os.WNOWAIT)\n"
        "print('ready', flush=True); time.sleep(300)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    try:
        assert process.stdout
        process.stdout.readline()
        below = processes.descendants(process.pid)
        assert [processes.command(one.pid) for one in below] == ["sleep 300"]
        assert processes.ancestors(next(iter(below)).pid)[:2] == [process.pid, os.getpid()]
    finally:
        processes.send_all(processes.descendants(process.pid), signal.SIGKILL)
        process.kill()
        process.communicate()


def test_marks_are_found_in_environments_and_not_in_look_alikes() -> None:
    marked = {"marked": {"DDP_ORCH_RUN_ID": "of-this-test"}, "alike": {"XDDP_ORCH_RUN_ID": "of-this-test"}}
    started = {
        name: subprocess.Popen(["sleep", "300"], env={"PATH": os.environ["PATH"], **environment})
        for name, environment in marked.items()
    }
    alike = subprocess.Popen(["sh", "-c", ": DDP_ORCH_RUN_ID=of-this-test; sleep 300"])
    try:
        expected = identified(started["marked"])
        wait_until(lambda: processes.marks().get(expected), 5.0, "the marked process is found")
        assert [one for one, mark in processes.marks().items() if mark == "of-this-test"] == [expected]
    finally:
        for process in [*started.values(), alike]:
            for one in processes.descendants(process.pid):
                processes.send(one, signal.SIGKILL)
            process.kill()
            process.wait()


def test_a_child_dies_with_its_parent_also_when_that_was_quicker() -> None:
    """The parent ends between the fork and the call: getppid tells."""
    reader, writer = os.pipe()
    parent = os.fork()
    if parent == 0:
        expected = os.getpid()
        if os.fork() == 0:
            while os.getppid() == expected:
                os.sched_yield()
            processes.die_with_parent(expected)
            os.write(writer, b"survived")
        os._exit(0)
    os.close(writer)
    os.waitpid(parent, 0)
    with os.fdopen(reader, "rb") as answer:
        assert answer.read() == b""


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, which can read everybody's environment")
def test_a_marked_process_of_another_user_is_not_of_a_run() -> None:
    marked = {processes.MARK: "20200101-000000-dead"}
    both = [subprocess.Popen(["sleep", "300"], env=marked, user=user) for user in (NOBODY, 0)]
    try:
        wait_until(lambda: all(processes.command(one.pid).startswith("sleep") for one in both), 10, "both sleep")
        found = {process.pid for process in processes.marks()}
        assert both[0].pid not in found and both[1].pid in found
    finally:
        for one in both:
            one.kill()
            one.wait()
