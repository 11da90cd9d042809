"""How a run on its hosts ends: by itself, by a failure, by a wish. Nothing of it is left, nothing else touched."""

from __future__ import annotations

import fcntl
import mmap
import os
import re
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from lab.waiting import wait_until
from local_runs import Run, Runs

from orchestrator.node.host import processes, state
from orchestrator.node.link.link import dial
from orchestrator.node.serve import leftovers, stop

WAIT = "print('ready', flush=True); import time; time.sleep(300)"


@pytest.fixture
def bystander() -> Iterator[subprocess.Popen[bytes]]:
    """Looks just like a rank, and is none of ours."""
    process = subprocess.Popen([sys.executable, "-u", "-c", WAIT], stdout=subprocess.DEVNULL, start_new_session=True)
    yield process
    assert process.poll() is None, "a process that is not of the run was ended"
    process.kill()
    process.wait()


def ready(run: Run, *streams: tuple[int, str]) -> None:
    for node, stream in streams:
        run.wait_for("ready", stream, node)


def verdict(run: Run, timeout: float = 30.0) -> dict[str, object]:
    """The verdict, which all hosts must know alike."""
    first, *others = [record["verdict"] for record in run.wait_over(timeout)]
    assert all(one == first for one in others)
    return dict(first)


# --- by a stranger

SERVE = """
import os, socket, time
address = ("", int(os.environ["MASTER_PORT"]))
while socket.socket().connect_ex(("127.0.0.1", address[1])):
    time.sleep(0.01)  # the stranger is not there yet
socket.create_server(address)
"""
TAKE = """
import os, socket, sys, time
os.setgroups([]); os.setgid(65534); os.setuid(65534)
while True:
    try:
        listener = socket.create_server(("", int(sys.argv[1])))
    except OSError:
        continue
    print("taken", flush=True)
    time.sleep(60)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="another user is needed")
def test_a_user_who_takes_the_rendezvous_port_is_named(runs: Runs) -> None:
    run, start = runs.prepare(SERVE)
    with subprocess.Popen([sys.executable, "-c", TAKE, str(start["master_port"])], stdout=subprocess.PIPE) as stranger:
        try:
            run.hosts[0].session.request("start", {"run_id": run.run_id, "start": start})
            end = verdict(run)
        finally:
            stranger.kill()
    assert end["state"] == "failed"
    failure = end["first_failure"]
    assert isinstance(failure, dict)
    assert re.search(rf"\b{start['master_port']}\b.*\buid 65534\b", failure["what"])


# --- by itself


@pytest.mark.parametrize("torchrun", [False, True])
def test_a_run_that_ends_well_has_succeeded(runs: Runs, torchrun: bool) -> None:
    run = runs.start("import os; print('rank', os.environ['RANK'])", nproc=(2, 2), torchrun=torchrun)
    assert verdict(run)["state"] == "succeeded"
    assert run.journal(0)["1.1.out"] == b"rank 1\n"
    assert run.journal(1)["1.2.out"] == b"rank 2\n"
    assert not list((run.folder() / "fifo").iterdir())


def test_what_a_rank_leaves_behind_is_ended_and_the_run_has_still_succeeded(
    runs: Runs, bystander: subprocess.Popen[bytes]
) -> None:
    run = runs.start("import subprocess; subprocess.Popen(['sleep', '300'], start_new_session=True)")
    assert verdict(run)["state"] == "succeeded"


def test_what_outlives_a_rank_has_a_moment_to_finish_and_its_output_is_kept(runs: Runs) -> None:
    finish = "lambda *_: (time.sleep(0.5), print('last words', flush=True), os._exit(0))"
    run = runs.start(
        f"import os, signal, time\nsignal.signal(signal.SIGTERM, {finish})\nif os.fork() == 0:\n    time.sleep(300)"
    )
    assert verdict(run)["state"] == "succeeded"
    assert run.journal()["1.0.out"] == b"last words\n"


# --- by a failure

FAIL_ON_1 = "import os, sys, time\nif os.environ['RANK'] == '1':\n    sys.exit(3)\ntime.sleep(300)"


@pytest.mark.parametrize("torchrun", [False, True])
def test_a_failed_rank_is_named_and_all_nodes_stop(runs: Runs, torchrun: bool) -> None:
    run = runs.start(FAIL_ON_1, nproc=(2, 2), torchrun=torchrun)
    found = verdict(run, timeout=10.0)
    failure = found["first_failure"]
    assert found["state"] == "failed"
    assert isinstance(failure, dict)
    assert (failure["host"], failure["rank"], failure["exit_code"], failure["signal"]) == ("host-0", 1, 3, None)
    assert abs(failure["at"] - time.time()) < 60


LEAVES_EARLY = """
import os, pathlib, sys, time
left = pathlib.Path({path!r})
if os.environ["RANK"] == "1":
    left.write_text("pid %d" % os.getpid())
    sys.exit()
while not (left.exists() and left.read_text()):
    time.sleep(0.01)
while os.path.exists(left.read_text().replace("pid ", "/proc/")):  # until its agent has seen its end too
    time.sleep(0.01)
sys.exit(3)
"""


@pytest.mark.parametrize("torchrun", [False, True])
def test_a_rank_that_ended_well_before_another_failed_is_on_record(runs: Runs, tmp_path: Path, torchrun: bool) -> None:
    run = runs.start(LEAVES_EARLY.format(path=str(tmp_path / "left")), nproc=(1, 1), torchrun=torchrun)
    failure = verdict(run)["first_failure"]
    told = run.hosts[1].session.request("evidence", {"run_id": run.run_id})
    assert isinstance(failure, dict)
    assert (failure["rank"], failure["exit_code"]) == (0, 3)
    assert [(one["rank"], one["attempt"]) for one in told["finished"]] == [(1, 1)]
    assert told["finished"][0]["at"] < failure["at"]


def test_a_rank_that_was_killed_is_told_from_one_that_exited(runs: Runs) -> None:
    run = runs.start("import os; os.kill(os.getpid(), 9)", torchrun=True)
    failure = verdict(run)["first_failure"]
    assert isinstance(failure, dict)
    assert (failure["rank"], failure["exit_code"], failure["signal"]) == (0, None, "SIGKILL")


def test_ranks_die_with_their_torchrun_and_the_run_fails(runs: Runs, bystander: subprocess.Popen[bytes]) -> None:
    deaf = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + WAIT
    run = runs.start(deaf, nproc=(2,), torchrun=True)
    ready(run, (0, "1.0.out"), (0, "1.1.out"))
    (agent,) = [
        one for one in processes.descendants(run.guard().pid) if (found := processes.stat(one.pid))
        and found.parent == run.guard().pid and one != run.recorder()
    ]  # fmt: skip
    killed_at = time.monotonic()
    processes.send(agent, signal.SIGKILL)
    failure = verdict(run)["first_failure"]
    assert time.monotonic() - killed_at < 9  # of a grace of 10 s
    assert isinstance(failure, dict)
    assert (failure["what"].partition(":")[0], failure["signal"]) == ("torchrun", "SIGKILL")


def test_the_same_failure_of_changing_ranks_and_hosts_is_not_tried_again_and_again(runs: Runs) -> None:
    """Each time another rank is first; torch puts the rank before each line, and the message names a folder."""
    code = (
        "import os, sys, time\n"
        "rank, attempt = os.environ['RANK'], os.environ['DDP_ORCH_ATTEMPT']\n"
        "if int(rank) != int(attempt) % 2:\n    time.sleep(300)\n"
        "sys.exit('[rank' + rank + ']: ValueError: no config: ' + os.environ['DDP_ORCH_OUTPUT_DIR'])\n"
    )
    run = runs.start(code, nproc=(1, 1), options="max_restarts: 9")
    ended = verdict(run)
    assert (ended["state"], ended["attempt"]) == ("failed", 3)
    assert ended["no_restart_reason"]  # though there are restarts left
    failure = ended["first_failure"]
    assert isinstance(failure, dict)
    assert failure["said"] == f"ValueError: no config: out/{run.run_id}"


def test_a_failure_that_a_node_makes_up_without_end_ends_the_run_like_any_other(runs: Runs) -> None:
    run = runs.start(WAIT, nproc=(1, 1))
    ready(run, (0, "1.0.out"), (1, "1.1.out"))
    spec = run.record("spec.json", 1)
    assert spec is not None
    failure = {"rank": 1, "exit_code": 1, "signal": None, "pid": 7, "attempt": 1, "at": time.time()}
    failure["what"] = "x" * 900_000 + "\nddp-orch: attempt 7 on forged"
    status = {"attempt": 1, "phase": "running", "failures": [failure], "outcome": None, "start": None, "stop": None}
    node = dial(spec["link_addresses"][0], spec["link_port"], run.key, 1, dialled=0)
    node._socket.setblocking(True)
    while not node.ready:
        node.receive()
    node.send({"status": status})
    found = verdict(run)["first_failure"]
    node.close()
    assert isinstance(found, dict)
    assert (found["host"], found["what"]) == ("host-1", "x" * 300)
    assert "Traceback" not in (run.folder() / "guard.err").read_text()


# --- by a wish


@pytest.mark.parametrize("torchrun", [False, True])
def test_on_a_stop_a_rank_has_its_grace_to_save_what_it_has(runs: Runs, torchrun: bool) -> None:
    """Longer than torchrun has in its exit barrier: a rank that has no child is not taken for one that waits there."""
    code = (
        "import signal, sys, time\n"
        "def save(*_):\n    time.sleep(4)\n    print('saved', flush=True)\n    sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, save)\n" + WAIT
    )
    run = runs.start(code, torchrun=torchrun, grace=15)
    ready(run, (0, "1.0.out"))
    answer = run.stop()
    assert answer["remaining"] == []
    ended = verdict(run)
    assert (ended["state"], ended["first_failure"], ended["stopped_by"]) == ("killed", None, "the test")
    assert run.journal()["1.0.out"] == b"ready\nsaved\n"


INNER = """
import os, signal, sys, time
if sys.argv[1] == "session":
    os.setsid()
def save(*_):
    os.write(1, b"saving\\n")
    time.sleep(0.5)
    os.write(1, b"saved\\n")
    os._exit(0)
signal.signal(signal.SIGTERM, save)
print("ready", flush=True)
time.sleep(300)
"""
PYTHON_WRAPPER = "import subprocess, sys; sys.exit(subprocess.call([sys.executable, '-c', sys.argv[1], sys.argv[2]]))"
SHELL_WRAPPER = (
    "import os, sys; os.execv('/bin/sh', ['sh', '-c', '\"$@\"; exit $?', 'sh', sys.executable, '-c', *sys.argv[1:]])"
)


@pytest.mark.parametrize("torchrun", [False, True])
@pytest.mark.parametrize("wrapper", [PYTHON_WRAPPER, SHELL_WRAPPER], ids=["python", "shell"])
@pytest.mark.parametrize("where", ["group", "session"])
def test_what_a_wrapper_has_started_has_one_sigterm_and_its_grace(
    runs: Runs, wrapper: str, where: str, torchrun: bool
) -> None:
    run = runs.start(wrapper, INNER, where, torchrun=torchrun, grace=20)
    ready(run, (0, "1.0.out"))
    asked_at = time.monotonic()
    run.stop()
    assert time.monotonic() - asked_at < 15.0, "it ended by SIGKILL, after all of its grace"
    assert verdict(run)["state"] == "killed"
    assert run.journal()["1.0.out"] == b"ready\nsaving\nsaved\n"


STUBBORN = """
import os, signal, sys, time
for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
    signal.signal(number, signal.SIG_IGN)
for _ in range(int(sys.argv[1])):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.setsid()
            os.execve("/bin/sleep", ["sleep", "300"], {})  # without the mark
        os._exit(0)
    os.wait()
print('ready', flush=True)
time.sleep(300)
"""


@pytest.mark.parametrize("torchrun", [False, True])
def test_two_hundred_deaf_daemons_without_a_mark_are_ended_and_no_one_else(
    runs: Runs, bystander: subprocess.Popen[bytes], torchrun: bool
) -> None:
    run = runs.start(STUBBORN, "200", torchrun=torchrun)
    ready(run, (0, "1.0.out"))
    daemons = processes.descendants(run.guard().pid)
    assert len(daemons) >= 200
    answer = run.stop(grace=1.0)
    assert answer["remaining"] == []
    assert len(answer["killed"]) >= 200
    assert verdict(run)["state"] == "killed"
    assert not [one for one in daemons if processes.alive(one)]


def test_a_storm_of_forks_is_ended(runs: Runs) -> None:
    storm = (
        "import os, signal, time\nsignal.signal(signal.SIGCHLD, signal.SIG_IGN)\nprint('ready', flush=True)\n"
        "while True:\n    if os.fork() == 0:\n        os.setsid()\n        if os.fork(): os._exit(0)\n"
        "        time.sleep(0.05)\n        if os.fork(): os._exit(0)\n        time.sleep(5)\n        os._exit(0)\n"
        "    time.sleep(0.001)\n"
    )
    run = runs.start(storm)
    ready(run, (0, "1.0.out"))
    assert run.stop(grace=0.0)["remaining"] == []
    assert verdict(run)["state"] == "killed"


def test_a_stopped_process_is_ended(runs: Runs) -> None:
    run = runs.start("import os, signal; print('ready', flush=True); os.kill(os.getpid(), signal.SIGSTOP)")
    ready(run, (0, "1.0.out"))
    asked_at = time.monotonic()
    run.stop(grace=20.0)
    assert time.monotonic() - asked_at < 18.0, "it was not continued, so it could not hear the SIGTERM"
    assert verdict(run)["state"] == "killed"


def test_torchrun_in_its_exit_barrier_is_not_waited_for(runs: Runs) -> None:
    run = runs.start("print('ready', flush=True)", torchrun=True, env={"BARRIER": "1"})
    ready(run, (0, "1.0.out"))
    asked_at = time.monotonic()
    run.stop(grace=30.0)
    assert time.monotonic() - asked_at < 25.0
    assert verdict(run)["state"] == "killed"


def test_a_second_stop_shortens_the_grace_of_the_first(runs: Runs) -> None:
    run = runs.start(STUBBORN, "0", grace=60)
    ready(run, (0, "1.0.out"))
    runs_folder = run.folder()
    os.kill(run.guard().pid, signal.SIGTERM)
    wait_until(lambda: b"stopping" in run.journal().get("1.run.out", b""), 5.0, "the first stop was heard")
    asked_at = time.monotonic()
    run.stop(grace=0.5)
    assert time.monotonic() - asked_at < 40.0  # of a grace of 60 s
    assert verdict(run)["state"] == "killed"
    assert (runs_folder / "stop.json").exists()


@pytest.mark.parametrize("node", [0, 1])
def test_a_stop_asked_of_any_host_stops_all(runs: Runs, node: int) -> None:
    run = runs.start(WAIT, nproc=(1, 1))
    ready(run, (0, "1.0.out"), (1, "1.1.out"))
    run.stop(node)
    assert verdict(run)["state"] == "killed"


def test_a_stop_of_a_run_that_is_not_there_is_done_already(runs: Runs) -> None:
    (host,) = runs.hosts(1)
    answer = host.session.request("stop", {"run_id": "nobody-knows-it", "grace": None, "by": "the test"})
    assert (answer["known"], answer["killed"], answer["remaining"]) == (False, [], [])


def test_waiting_for_a_guard_costs_a_stop_request_no_core(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a host with thousands of processes a look at all of them takes a while."""
    looks = []

    def dear_look(run_id: str, folder: str) -> list[processes.Process]:
        looks.append(run_id)
        until = time.thread_time() + 0.02
        while time.thread_time() < until:
            pass
        return []

    monkeypatch.setenv("DDP_ORCH_STATE_DIR", str(tmp_path))
    for name, value in {"belonging": dear_look, "lease": lambda _: 0.0, "REPORT_WINDOW": 0.0}.items():
        monkeypatch.setattr(stop, name, value)
    deaf = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); " + WAIT
    folder = Path(state.run_folder("a-run"))
    folder.mkdir()
    with (
        (folder / "run.lock").open("w") as lock,
        subprocess.Popen([sys.executable, "-c", deaf], stdout=subprocess.PIPE) as guard,
    ):
        assert guard.stdout is not None and guard.stdout.readline()
        fcntl.flock(lock, fcntl.LOCK_EX)
        record = {"boot_id": state.boot_id(), "guard": processes.identify(guard.pid), "failures": []}
        state.write(str(folder / "state.json"), record)
        began = time.monotonic()
        stop.end_run({"run_id": "a-run", "grace": 2.0, "by": "the test"})
        took = time.monotonic() - began
    # one look beforehand; with LOOK_SHARE 20 a look of 0.02 s is followed by 0.4 s without one
    assert len(looks) <= 2 + took / 0.4


def test_a_stop_before_the_start_ends_what_was_prepared(runs: Runs) -> None:
    run, _ = runs.prepare(WAIT, nproc=(1, 1))
    run.stop(0)
    assert verdict(run)["state"] == "killed"
    assert "1.0.out" not in run.journal()


# --- what runs that are over have left


def test_memory_that_killed_ranks_left_is_freed_and_what_is_used_or_strange_is_kept(runs: Runs) -> None:
    (host,) = runs.hosts(1)
    made = [Path("/dev/shm") / name for name in (f"nccl-{secrets.token_hex(3)}", f"torch_{os.getpid()}_1_1")]
    used, strange = Path(f"/dev/shm/nccl-{secrets.token_hex(3)}"), Path(f"/dev/shm/mine-{secrets.token_hex(3)}")
    try:
        for path in (*made, used, strange):
            path.write_bytes(b"x" * 4096)
            os.utime(path, (1, 1))
        with used.open("r+b") as file, mmap.mmap(file.fileno(), 4096):
            freed = host.session.request("stale", {"ports": []})["memory_freed"]
        assert set(map(str, made)) <= set(freed)
        assert [path.exists() for path in (*made, used, strange)] == [False, False, True, True]
    finally:
        for path in (*made, used, strange):
            path.unlink(missing_ok=True)


def test_a_stranger_on_a_wanted_port_is_named_and_ended_only_when_named_back(
    runs: Runs, bystander: subprocess.Popen[bytes]
) -> None:
    (host,) = runs.hosts(1)
    listen = (
        "import socket; s = socket.create_server(('127.0.0.1', 0)); print(s.getsockname()[1], flush=True); s.accept()"
    )
    stranger = subprocess.Popen([sys.executable, "-c", listen], stdout=subprocess.PIPE, start_new_session=True)
    assert stranger.stdout is not None
    with stranger.stdout as said:
        port = int(said.readline())
    (holder,) = host.session.request("stale", {"ports": [port]})["holders"]
    assert (holder["what"], holder["pid"]) == (f"port {port}", stranger.pid)
    assert stranger.poll() is None
    answer = host.session.request("force", {"pids": [stranger.pid, 1 << 22]})
    assert [one["pid"] for one in answer["killed"]] == [stranger.pid]
    assert [(one["pid"], one["owner"]) for one in answer["remaining"]] == [(1 << 22, "")]
    assert stranger.wait(5) == -signal.SIGTERM


def test_root_ends_a_process_of_another_user(monkeypatch: pytest.MonkeyPatch) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root may end it")
    monkeypatch.setattr(leftovers, "FORCE_GRACE", 0.2)
    deaf = ["sh", "-c", "trap '' TERM; echo ready; exec sleep 300"]
    with subprocess.Popen(deaf, stdout=subprocess.PIPE, user=65534) as process:
        assert process.stdout is not None and process.stdout.readline()
        answer = leftovers.force({"pids": [process.pid]})
        assert ([one["pid"] for one in answer["killed"]], answer["remaining"]) == ([process.pid], [])


def test_force_never_ends_the_session_that_carries_it_out(runs: Runs) -> None:
    (host,) = runs.hosts(1)
    relay = int(host.session.hello.pid)
    answer = host.session.request("force", {"pids": [relay, os.getpid(), 1]})
    assert answer["killed"] == [] and len(answer["remaining"]) == 3


def test_what_ended_between_the_look_and_the_stop_is_part_of_the_proof(runs: Runs) -> None:
    run = runs.start(WAIT, nproc=(2, 2))
    ready(run, (0, "1.0.out"), (0, "1.1.out"), (1, "1.2.out"), (1, "1.3.out"))
    before = [run.listed(node)["members"] for node in (0, 1)]
    assert [len(members) for members in before] == [4, 4]  # both play their hosts on one machine
    run.stop(0, grace=0.0, members=before[0])
    run.wait_over()  # the other host has ended its ranks, as the gang told it, before anybody asks it to
    late = run.stop(1, grace=0.0, members=before[1])
    assert {one["pid"] for one in late["killed"]} == {pid for pid, _, _ in before[1]} and not late["remaining"]
    assert run.stop(1, grace=0.0)["killed"] == [] and "members" not in run.listed(1)
