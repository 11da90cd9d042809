"""The recorder may be killed, the guard may be killed, the disk may be full: what is lost then, and what is not."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from lab.waiting import wait_until
from local_runs import Run, Runs, local_runs

from orchestrator.diagnosis.recorder_lines import attempt_of_dropped
from orchestrator.hosts.session import Refused
from orchestrator.node.gang import gang_events
from orchestrator.node.guard.attempts import Attempts
from orchestrator.node.guard.guard import Guard
from orchestrator.node.host import processes, state
from orchestrator.node.link import messages
from orchestrator.node.ranks.tree import COMMAND_MOST
from orchestrator.node.recorder import journal
from orchestrator.node.recorder.recorder import Recorder
from orchestrator.node.roles.follower import WorkerLink
from orchestrator.node.roles.transport import Transport
from orchestrator.node.serve import journal_reader

WAIT = "print('ready', flush=True); import time; time.sleep(300)"

POUR = """
import hashlib, os, random, sys, time
rng, digest, total = random.Random(sys.argv[1] + os.environ['RANK']), hashlib.sha256(), 0
end = time.time() + float(sys.argv[2])
while time.time() < end:
    data = rng.randbytes(rng.choice((1, 80, 4096, 65536, 300000)))
    view = memoryview(data)
    while view:
        view = view[os.write(1, view):]
    digest.update(data)
    total += len(data)
    if rng.random() < 0.2:
        time.sleep(0.001)
os.write(2, f'{digest.hexdigest()} {total}\\n'.encode())
"""


def replaced(run: Run, node: int, old: processes.Process) -> processes.Process:
    return wait_until(
        lambda: (new := run.recorder(node)) is not None and new != old and new, 10.0, "a killed recorder is replaced"
    )


@pytest.mark.slow
@pytest.mark.parametrize("torchrun", [False, True])
def test_a_recorder_killed_again_and_again_loses_no_byte(runs: Runs, torchrun: bool) -> None:
    seconds = 8
    run = runs.start(POUR, "seed", str(seconds), nproc=(2,), torchrun=torchrun)
    moment = random.Random(7)
    end = time.monotonic() + seconds
    kills = 0
    recorder = wait_until(run.recorder, 10.0, "there is a recorder")
    while time.monotonic() < end - 1.0:
        time.sleep(moment.uniform(0.0, 0.2))  # a random moment, not a condition
        processes.send(recorder, signal.SIGKILL)
        recorder = replaced(run, 0, recorder)
        kills += 1
    assert [record["verdict"]["state"] for record in run.wait_over()] == ["succeeded"]
    written = run.journal()
    for rank in ("0", "1"):
        digest, total = written[f"1.{rank}.err"].split()
        assert (len(written[f"1.{rank}.out"]), kills) == (int(total), kills)
        assert hashlib.sha256(written[f"1.{rank}.out"]).hexdigest().encode() == digest
    assert kills >= 5


@pytest.mark.slow
def test_a_writer_killed_five_hundred_times_loses_and_doubles_no_byte(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The journal alone, without a back-off between two writers: at any instruction, also at a new segment."""
    monkeypatch.setattr(journal, "SEGMENT", 3_000_000)
    stream, chance, digest, total = journal.Stream(1, "0", "out"), random.Random(3), hashlib.sha256(), 0
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    os.set_blocking(writer, False)
    for _ in range(500):
        child = os.fork()
        if child == 0:
            pump = journal.Writer(str(tmp_path), stream)
            while True:
                pump.pump(reader)
        end = time.monotonic() + chance.uniform(0.0, 0.01)
        while time.monotonic() < end:
            data = chance.randbytes(chance.choice((1, 100, 5000)))
            try:
                count = os.write(writer, data)
            except BlockingIOError:
                continue
            digest.update(data[:count])
            total += count
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    last = journal.Writer(str(tmp_path), stream)
    while last.pump(reader):
        pass
    os.close(reader)
    os.close(writer)
    kept, seen, reading = hashlib.sha256(), 0, journal_reader.Reader()
    while pieces := reading.read(journal.segments(str(tmp_path))[stream], 1 << 20):
        for piece in pieces:
            assert piece.offset == seen
            kept.update(piece.data)
            seen += len(piece.data)
    assert (seen, kept.digest()) == (total, digest.digest())
    assert len(journal.segments(str(tmp_path))[stream]) > 3


def test_a_recorder_is_started_again_while_the_disk_with_the_node_program_cannot_be_read(
    runs: Runs, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    run = runs.start(f"import os, time\nwhile not os.path.exists({str(go)!r}): time.sleep(0.05)\nprint('later')")
    recorder = wait_until(run.recorder, 10.0, "there is a recorder")
    (program,) = run.hosts[0].state.glob("node-*")
    program.rename(tmp_path / "aside")
    processes.send(recorder, signal.SIGKILL)
    replaced(run, 0, recorder)
    go.touch()
    run.wait_for("later", "1.0.out")
    (tmp_path / "aside").rename(program)
    assert [record["verdict"]["state"] for record in run.wait_over()] == ["succeeded"]


def test_a_head_whose_recorder_is_killed_still_ends_the_run(runs: Runs) -> None:
    """The gang is played again from its events, and the nodes join again."""
    code = "import os, time\nprint('ready', flush=True)\nwhile not os.path.exists('go'): time.sleep(0.05)"
    run = runs.start(code, nproc=(1, 1))
    for node in (0, 1):
        run.wait_for("ready", f"1.{node}.out", node)
        for _ in range(2):
            recorder = wait_until(lambda node=node: run.recorder(node), 10.0, "there is a recorder")
            processes.send(recorder, signal.SIGKILL)
            replaced(run, node, recorder)
    Path(run.record("spec.json")["workdir"], "go").touch()  # type: ignore[index]
    assert [record["verdict"]["state"] for record in run.wait_over()] == ["succeeded", "succeeded"]


def test_a_torn_last_event_of_the_gang_does_no_harm(runs: Runs) -> None:
    run = runs.start(WAIT, nproc=(1, 1))
    run.wait_for("ready", "1.1.out", 1)
    recorder = run.recorder()
    assert recorder is not None
    processes.send(recorder, signal.SIGSTOP)
    with (run.folder() / "gang.jsonl").open("ab") as file:
        file.write(b'{"event": "Tick", "fie')
    processes.send(recorder, signal.SIGKILL)
    recorder = replaced(run, 0, recorder)
    run.stop(1)
    assert [record["verdict"]["state"] for record in run.wait_over()] == ["killed", "killed"]
    lines = (run.folder() / "gang.jsonl").read_text().splitlines()
    assert '{"event": "Tick", "fie' in lines
    assert any("StopRequested" in line for line in lines)


# --- without a guard


def test_a_killed_guard_is_noticed_its_processes_are_ended_and_the_run_fails(runs: Runs) -> None:
    unmarked = "import os, subprocess; subprocess.Popen(['sleep', '300'], start_new_session=True, env={})\n" + WAIT
    run = runs.start(unmarked)
    run.wait_for("ready", "1.0.out")
    wait_until(lambda: len((run.record("procs.json") or {"processes": []})["processes"]) >= 2, 10.0, "a record")
    killed = run.guard()
    of_the_guard = processes.descendants(killed.pid) - {run.recorder()}
    processes.send(killed, signal.SIGKILL)
    (record,) = run.wait_over()
    assert record["verdict"]["state"] == "failed"
    assert record["verdict"]["first_failure"]["pid"] == killed.pid
    assert not record["verdict"]["first_failure"]["gone"]
    assert not [one for one in of_the_guard if processes.alive(one)]


def test_a_guard_killed_on_one_host_ends_the_run_on_all(runs: Runs) -> None:
    run = runs.start(WAIT, nproc=(1, 1))
    run.wait_for("ready", "1.1.out", 1)
    processes.send(run.guard(1), signal.SIGKILL)
    for node in (0, 1):
        record = wait_until(lambda node=node: run.record("exit.json", node), 15.0, f"host {node} has ended")
        assert record["verdict"]["state"] == "failed"


def test_a_killed_head_stops_the_other_nodes_within_a_lease(runs: Runs) -> None:
    run = runs.start(WAIT, nproc=(1, 1))
    run.wait_for("ready", "1.1.out", 1)
    recorder = run.recorder(0)
    assert recorder is not None
    guard = run.guard(0)
    processes.send(guard, signal.SIGSTOP)
    processes.send_all([recorder, guard], signal.SIGKILL)
    wait_until(lambda: run.record("exit.json", 1), 40.0, "the other node ends")
    record = run.record("exit.json", 1)
    assert record is not None
    assert record["verdict"]["state"] == "lost"
    assert record["verdict"]["first_failure"]["host"] == "host-0"


def test_a_node_cut_off_just_after_its_recorder_was_restarted_stops_too(runs: Runs) -> None:
    """A newborn recorder has never had a link, and must miss it all the same."""
    run = runs.start(WAIT, nproc=(1, 1))
    run.wait_for("ready", "1.1.out", 1)
    head = [run.guard(0), run.recorder(0)]
    recorder = run.recorder(1)
    assert recorder is not None
    for one in head:
        assert one is not None
        processes.send(one, signal.SIGSTOP)
    processes.send(recorder, signal.SIGKILL)
    wait_until(lambda: run.record("exit.json", 1), 20.0, "the cut-off node ends")


def test_what_a_run_without_guard_and_recorder_left_is_stale(runs: Runs) -> None:
    unmarked = "import os, subprocess; subprocess.Popen(['sleep', '300'], start_new_session=True, env={})\n" + WAIT
    run = runs.start(unmarked)
    bystander = runs.start(WAIT)
    for one in (run, bystander):
        one.wait_for("ready", "1.0.out")
    wait_until(lambda: len((run.record("procs.json") or {"processes": []})["processes"]) >= 2, 10.0, "a record")
    recorder, guard = run.recorder(), run.guard()
    assert recorder is not None
    processes.send(guard, signal.SIGSTOP)
    processes.send_all([recorder, guard], signal.SIGKILL)
    wait_until(lambda: not processes.alive(guard), 5.0, "the guard is gone")
    (listed,) = [one for one in run.hosts[0].session.request("list", {})["runs"] if one["run_id"] == run.run_id]
    assert listed["state"] == "lost"
    answer = run.hosts[0].session.request("stale", {"ports": []})
    assert "sleep 300" in [one["cmd"] for one in answer["killed"]]
    assert answer["remaining"] == []
    assert not run.members()
    assert bystander.members(), "a run with a guard is not stale"


def test_a_run_of_another_state_folder_is_not_stale(runs: Runs, tmp_path: Path) -> None:
    run = runs.start(WAIT)
    run.wait_for("ready", "1.0.out")
    with local_runs(tmp_path / "another") as others:
        (host,) = others.hosts(1)
        assert host.session.request("stale", {"ports": []})["killed"] == []
    assert run.members()


# --- a full disk


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    if os.geteuid() != 0:
        pytest.skip("only root can mount a small file system")
    folder = tmp_path / "small"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=80m", "tmpfs", folder], check=True)
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


def test_a_full_disk_neither_stops_nor_fails_the_ranks_and_gaps_tell_what_was_lost(small_disk: Path) -> None:
    filler = small_disk / "filler"
    filler.write_bytes(bytes(10 << 20))
    pour = (
        "import os, time\nblock, longest = b'x' * 65536, 0\n"
        "for _ in range(4800):\n    begun = time.monotonic()\n    os.write(1, block)\n"
        "    longest = max(longest, time.monotonic() - begun)\n"
        f"os.unlink({str(filler)!r})\nos._exit(0 if longest < 1.0 else 5)\n"
    )
    with local_runs(small_disk) as runs:
        run = runs.start(pour)
        (record,) = run.wait_over(60.0)
        assert record["verdict"]["state"] == "succeeded"
        parts = journal.segments(str(run.folder() / "log"))[journal.Stream(1, "0", "out")]
        sizes = [Path(part.path + ".seg").stat().st_size for part in parts]
        assert 10e6 < sum(sizes) < 84e6
        assert parts[-1].start + sizes[-1] == 4800 * 65536  # gaps add up exactly
        said = run.journal()["1.run.out"].decode().splitlines()
        (gap,) = run.hosts[0].session.request("evidence", {"run_id": run.run_id})["dropped"]
        assert gap == {"attempt": 1, "writer": "rank 0", "size": 4800 * 65536 - sum(sizes)}
        assert [attempt for line in said if (attempt := attempt_of_dropped(line)) is not None] == [1]
        assert (run.folder() / "guard.err").read_text() == ""


def fill(disk: Path) -> None:
    with (disk / "filler").open("wb", buffering=0) as file, pytest.raises(OSError, match="No space left"):
        while True:
            file.write(bytes(4096))


def test_a_run_is_stopped_when_the_disk_is_full(small_disk: Path) -> None:
    with local_runs(small_disk) as runs:
        run = runs.start(WAIT)
        run.wait_for("ready", "1.0.out")
        fill(small_disk)
        assert run.stop(grace=1.0)["remaining"] == []
        (record,) = run.wait_over()
        assert record["verdict"]["state"] == "killed"


def test_a_disk_without_room_for_a_folder_is_no_bug_of_the_node_program(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can mount a small file system")
    disk = tmp_path / "small"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=80m,nr_inodes=1000", "tmpfs", disk], check=True)
    try:
        with local_runs(disk) as runs:
            run, _ = runs.prepare(WAIT)
            spec = {**(run.record("spec.json") or {}), "run_id": "another-run", "name": "another-run"}
            with contextlib.suppress(OSError):
                for number in range(1000):
                    (disk / str(number)).touch()
            question = {"spec": spec, "private": {"secrets": {}, "key": "00" * 32, "notify": {}}, "head": None}
            with pytest.raises(Refused, match=os.strerror(errno.ENOSPC)) as refused:
                run.hosts[0].session.request("prepare", question)
            assert refused.value.code == "disk-full"
    finally:
        subprocess.run(["umount", "-l", disk], check=True)


def test_code_that_does_not_fit_the_disk_is_refused_and_leaves_nothing(small_disk: Path) -> None:
    with local_runs(small_disk) as runs:
        run, _ = runs.prepare(WAIT)
        digest = "a" * 64
        folder = run.folder().parents[1] / "code" / digest / "data"
        folder.mkdir(parents=True)
        with (folder / "large").open("wb") as file:
            file.truncate(100 << 20)  # it takes no space here, but its copy does
        other = {"run_id": "another-run", "name": "another-run", "workdir": None}
        spec = {**(run.record("spec.json") or {}), **other, "code": {"sha256": digest, "cwd": "."}}
        private = {"secrets": {}, "key": "00" * 32, "notify": {}}
        with pytest.raises(Refused, match=r"\bcode\b") as refused:
            run.hosts[0].session.request("prepare", {"spec": spec, "private": private, "head": None})
        assert refused.value.code == "disk-full"
        assert [path.name for path in run.folder().parent.iterdir()] == [run.run_id]


def test_how_a_run_ended_is_recorded_also_where_the_list_of_its_processes_does_not_fit(small_disk: Path) -> None:
    state.keep_space(str(small_disk))
    fill(small_disk)
    ended = [{"pid": pid, "cmd": "x" * 200} for pid in range(state.RESERVE // 200)]
    record = {"verdict": {"state": "killed"}, "outcome": {"ok": False, "ended": ended}, "failures": []}
    state.write_last(str(small_disk), record)
    assert state.read(str(small_disk / "exit.json")) == {**record, "outcome": {"ok": False, "ended": []}}


def test_the_record_of_a_run_that_failed_very_often_fits_the_space_kept_for_it(tmp_path: Path) -> None:
    spec = {"node": 0, "nodes": [{"host": "a", "nproc": 100, "spare": False}], "setup": [], "program": ""}
    spec.update(umask=0, descriptors=1024, launcher={"name": "torchrun"})
    attempts = Attempts(str(tmp_path), spec, {}, [], lambda: 0, lambda: None, lambda: None)
    for attempt in range(1, 11):
        attempts.stop(gang_events.Stop(attempt, grace=0.0, why="a test", stacks=False))
        for rank in range(100):
            attempts.add_failure({"rank": rank, "what": f"rank {rank}: {'x' * 50}", "at": 1732370000.123456})
    kept = [(failure["attempt"], failure["rank"]) for failure in attempts.failures]
    assert kept[0] == (1, 0)
    assert kept[-messages.FAILURES :] == [(10, rank) for rank in range(messages.FAILURES)]
    assert len(json.dumps(attempts.failures)) < state.RESERVE / 2


def test_of_a_record_that_does_not_fit_the_first_failure_stays(small_disk: Path) -> None:
    failures = [{"rank": rank, "what": "x" * 1000} for rank in range(1000)]
    state.keep_space(str(small_disk))
    fill(small_disk)
    state.write_last(str(small_disk), {"outcome": {"ok": False, "ended": ["y" * 1000]}, "failures": failures})
    record = state.read(str(small_disk / "exit.json"))
    assert record == {"outcome": {"ok": False, "ended": []}, "failures": failures[:1]}


def test_a_long_command_is_cut_in_the_record(runs: Runs) -> None:
    run = runs.start(WAIT, "x" * 3000)
    run.wait_for("ready", "1.0.out")
    run.stop(grace=1.0)
    (record,) = run.wait_over()
    assert [len(one["cmd"]) for one in record["outcome"]["ended"]] == [COMMAND_MOST]


# --- what it costs


def spent(process: processes.Process) -> float:
    """Seconds on a processor."""
    return int(Path(f"/proc/{process.pid}/schedstat").read_text().split()[0]) / 1e9


def memory(process: processes.Process) -> float:
    found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{process.pid}/status").read_text())
    assert found is not None
    return int(found[1]) / 1024


def wakes(process: processes.Process) -> int:
    """How often its threads have begun to wait. Unlike seconds, that does not grow on a busy machine."""
    texts = [path.read_text() for path in Path(f"/proc/{process.pid}/task").glob("*/status")]
    return sum(int(count) for text in texts for count in re.findall(r"^voluntary_ctxt_switches:\s+(\d+)", text, re.M))


IDLE = 10.0  # s
MOST_WAKES = 10  # a second, of both
MOST_SPENT = 0.5  # of a core: neither runs without a wait. How much it is: benchmarks/idle.py


@pytest.mark.slow
def test_guard_and_recorder_are_small_and_idle_while_nothing_happens(runs: Runs) -> None:
    run = runs.start(WAIT, nproc=(2, 1))
    run.wait_for("ready", "1.2.out", 1)
    both = [one for one in (run.guard(), run.recorder()) if one]
    time.sleep(2.0)  # the beginning is over
    before = [sum(map(spent, both)), sum(map(wakes, both))]
    time.sleep(IDLE)  # the measurement
    after = [sum(map(spent, both)), sum(map(wakes, both))]
    seconds, woken = (end - begin for begin, end in zip(before, after, strict=True))
    used = sum(map(memory, both))
    print(f"idle: {seconds / IDLE:.3%} of a core, {woken / IDLE:.1f} wakes a second, {used:.1f} MiB", file=sys.stderr)
    assert woken < MOST_WAKES * IDLE
    assert seconds < MOST_SPENT * IDLE
    assert used < 45


def test_a_journal_keeps_no_more_than_it_may_and_says_what_it_dropped(runs: Runs) -> None:
    code = "for number in range(200000): print(f'line {number:06d}', 'x' * 50)\nprint('the last')"
    run = runs.start(code, options="keep: {log_size: 3MiB}")
    (record,) = run.wait_over(60.0)
    assert record["verdict"]["state"] == "succeeded"
    log = run.folder() / "log"
    assert sum(path.stat().st_size for path in log.iterdir()) < 5 << 20  # what came since the last look
    text = run.journal()["1.0.out"].decode()
    assert text.endswith("the last\n") and len(text) > 1 << 20
    assert "run.keep.log_size (3 MiB): the oldest" in run.journal()["1.run.out"].decode()


def orphan(tmp_path: Path) -> Recorder:
    """A recorder that has just lost its guard, and will start no other one: the run is being stopped."""
    for name in ("log", "fifo"):
        (tmp_path / name).mkdir()
    spec = {"node": 1, "nproc": 100, "run_id": "a-run", "keep": {"journal": 1 << 20}, "cwd": str(tmp_path)}
    spec["nodes"] = [{"host": "a"}, {"host": "b"}]
    private = {"key": "00" * 32, "notify": {}, "secrets": {}}
    ours, theirs = socket.socketpair()
    recorder = Recorder(str(tmp_path), spec, private, ours, 0, lambda api: WorkerLink(api, Transport(api, [])))
    failure = {"rank": 0, "what": "rank 0: exit code 1", "attempt": 1, "at": 1.0}
    stop = {"by": "the test", "grace": 1.0}
    recorder._status.update(attempt=1, failures=[failure] * messages.FAILURES, stop=stop)
    theirs.close()
    recorder._hear_guard()
    return recorder


def test_the_end_of_a_guard_is_told_however_many_of_its_ranks_had_failed(tmp_path: Path) -> None:
    recorder = orphan(tmp_path)
    failures = messages.status(recorder.reported)["failures"]
    assert [one["gone"] for one in failures] == [False] * (messages.FAILURES - 1) + [True]


def test_a_run_whose_guard_was_killed_is_not_left_behind_while_its_recorder_ends_its_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    guarded = []

    def look(_: str, folder: str) -> list[dict[str, Any]]:
        guarded.append(state.guarded(folder))
        return []

    monkeypatch.setattr("orchestrator.node.recorder.recorder.sweep", look)
    orphan(tmp_path)
    assert guarded == [True] and not state.guarded(str(tmp_path))


def test_what_a_guard_tells_fits_the_channel_however_often_ranks_have_failed(tmp_path: Path) -> None:
    """A message too long for the channel would be lost, and the run would hang."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    theirs.settimeout(10)
    spec = {"node": 0, "nodes": [{"host": "a", "nproc": 8, "spare": False}], "setup": [], "program": ""}
    spec.update(umask=0, descriptors=1024, launcher={"name": "torchrun"})
    guard = Guard(str(tmp_path), spec, {}, ours, {}, [], become_recorder=lambda given: os._exit(0))
    guard._recorder._channel = ours
    for attempt in range(1, 31):
        guard._attempts.stop(gang_events.Stop(attempt, grace=0.0, why="a test", stacks=False))
        for rank in range(100):
            guard._attempts.add_failure({"rank": rank, "what": f"rank {rank}: {'x' * 100}", "at": 1.0})
            told = json.loads(theirs.recv(1 << 20))
    assert (told["attempt"], told["failures"][0]["rank"]) == (30, 0)
    ours.close()
    theirs.close()
