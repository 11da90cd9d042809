"""`run.resume`: runs whose hosts have output folders of their own, brought to agreement before each attempt."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from lab.waiting import wait_until
from local_runs import Run, Runs, impatient_program, local_runs

from orchestrator.node.host import processes, state
from orchestrator.node.resume import output_tree

# A rank prints from what it resumes, saves what the first argument says, and waits to be killed. The last attempt ends.
SCRIPT = """
import glob, os, sys, time
out, rank, attempt = os.environ["DDP_ORCH_OUTPUT_DIR"], os.environ["RANK"], int(os.environ["DDP_ORCH_ATTEMPT"])
print("has", *(open(path).read()[:40] for path in sorted(glob.glob(out + "/**/*.pt", recursive=True))), flush=True)
if attempt == int(sys.argv[2]):
    sys.exit()
exec(sys.argv[1])
print("saved", flush=True)
time.sleep(60)
"""
BY_RANK_0 = "rank == '0' and os.makedirs(f'{out}/{attempt}') is None and open(f'{out}/{attempt}/a.pt', 'w').write('%s')"
BY_ALL = "open(f'{out}/{rank}.pt', 'w').write(f'shard{rank}')"


@pytest.fixture
def runs(tmp_path: Path) -> Iterator[Runs]:
    with local_runs(tmp_path, impatient_program()) as found:
        yield found


def output(run: Run, node: int) -> Path:
    (folder,) = run.hosts[node].state.glob("*/out/*")
    return folder


def files(run: Run, node: int) -> dict[str, str]:
    """What is in the output folder of a host."""
    folder = output(run, node)
    return {path.relative_to(folder).as_posix(): path.read_text() for path in folder.rglob("*") if path.is_file()}


def has(run: Run, attempt: int, rank: int, node: int) -> list[str]:
    """What a rank found at the beginning of an attempt."""
    return run.journal(node)[f"{attempt}.{rank}.out"].decode().split("\n")[0].split()[1:]


def own_lines(run: Run) -> str:
    return "".join(data.decode() for name, data in sorted(run.journal().items()) if name.split(".")[1] == "run")


def kill_a_rank(run: Run, attempt: int) -> None:
    """Of the second host, once all have saved."""
    for rank in range(2):
        run.wait_for("saved", f"{attempt}.{rank}.out", rank)
    of_rank_1 = [one for one in run.members() if b"\0RANK=1\0" in Path(f"/proc/{one.pid}/environ").read_bytes()]
    for process in of_rank_1:
        processes.send(process, signal.SIGKILL)


def states(run: Run) -> set[str]:
    return {record["verdict"]["state"] for record in run.wait_over(60)}


def test_what_the_head_has_saved_is_on_all_hosts_when_they_start_again(runs: Runs) -> None:
    run = runs.start(SCRIPT, BY_RANK_0 % "model", "3", nproc=(1, 1, 1), options="max_restarts: 3, resume: head")
    for attempt in (1, 2):
        kill_a_rank(run, attempt)
    assert states(run) == {"succeeded"}
    for node in range(3):
        assert [has(run, attempt, node, node) for attempt in (1, 2, 3)] == [[], ["model"], ["model", "model"]]
    assert len(re.findall(r"host-[12]: 1 file .*\b5 B\b.*\bhost-0\b", own_lines(run))) == 4


def test_with_union_every_host_has_the_shards_of_all(runs: Runs) -> None:
    run = runs.start(SCRIPT, BY_ALL, "2", nproc=(1, 1, 1), options="max_restarts: 1, resume: union")
    kill_a_rank(run, 1)
    assert states(run) == {"succeeded"}
    for node in range(3):
        assert has(run, 2, node, node) == ["shard0", "shard1", "shard2"]


def test_with_newest_all_hosts_resume_from_the_one_that_was_ahead(runs: Runs) -> None:
    save = "time.sleep(int(rank) * 0.2); open(out + '/s.pt', 'w').write(f'by{rank}'); open(f'{out}/only{rank}', 'w')"
    run = runs.start(SCRIPT, save, "2", nproc=(1, 1), options="max_restarts: 1, resume: newest")
    kill_a_rank(run, 1)
    assert states(run) == {"succeeded"}
    assert [has(run, 2, node, node) for node in (0, 1)] == [["by1"], ["by1"]]
    assert set(files(run, 0)) == {"s.pt", "only1", f"{output_tree.REPLACED}/only0", state.OUTPUT_LEADS}
    assert re.search(r"host-0: 1 file moved to .*replaced", own_lines(run))


def test_a_run_that_continues_under_its_name_begins_with_equal_folders(runs: Runs) -> None:
    first = runs.start(SCRIPT, BY_RANK_0 % "model", "2", nproc=(1, 1), options="resume: head", name="mine")
    for node in (0, 1):
        first.wait_for("saved", f"1.{node}.out", node)
    first.stop(grace=0.0)
    assert states(first) == {"killed"}
    run = runs.start(SCRIPT, "", "1", nproc=(1, 1), options="resume: head", name="mine")
    assert states(run) == {"succeeded"}
    assert has(run, 1, 1, 1) == ["model"]


def test_hosts_that_share_the_folder_copy_nothing(runs: Runs) -> None:
    run, start = runs.prepare(SCRIPT, BY_RANK_0 % "model", "2", nproc=(1, 1), options="max_restarts: 1, resume: union")
    homes = [Path(state.home_of(str(run.folder(node)))) for node in (0, 1)]
    (homes[0] / "out").mkdir()
    (homes[1] / "out").symlink_to(homes[0] / "out")
    run.hosts[0].session.request("start", {"run_id": run.run_id, "start": start})
    kill_a_rank(run, 1)
    assert states(run) == {"succeeded"}
    assert has(run, 2, 1, 1) == ["model"] and "copied" not in own_lines(run)
    assert set(os.listdir(output(run, 0))) == {"1", state.OUTPUT_LEADS}


@pytest.mark.parametrize("attempt", [1, 2])
def test_where_too_much_is_to_be_copied_the_run_fails_and_says_so(runs: Runs, attempt: int) -> None:
    """Rather than to train with different files. At the first attempt, an earlier run has left them."""
    options = "max_restarts: 1, resume: head, resume_limit: 1KiB"
    run, start = runs.prepare(SCRIPT, BY_RANK_0 % ("x" * 2000), "3", nproc=(1, 1), options=options)
    if attempt == 1:
        folder = Path(state.home_of(str(run.folder(0)))) / "out" / run.run_id
        folder.mkdir(parents=True)
        (folder / "a.pt").write_bytes(bytes(2000))
    run.hosts[0].session.request("start", {"run_id": run.run_id, "start": start})
    if attempt == 2:
        kill_a_rank(run, 1)
    verdict = run.wait_over(60)[0]["verdict"]
    assert verdict["state"] == "failed" and verdict["attempt"] == attempt - 1
    assert re.search(r"host-1: run.resume: 2.0 kB .* run.resume_limit is 1.0 kB", verdict["no_restart_reason"])
    assert verdict["no_restart_reason"] in own_lines(run)


def test_a_spare_gets_the_files_when_it_takes_the_place_of_a_lost_host(runs: Runs) -> None:
    options = "max_restarts: 1, lease: 3, resume: head"
    run = runs.start(SCRIPT, BY_RANK_0 % "model", "2", nproc=(1, 1, 1), spares=1, options=options)
    run.wait_for("saved", "1.1.out", 1)
    guard = run.guard(1)
    below = processes.descendants(guard.pid)
    processes.send(guard, signal.SIGSTOP)  # so that it starts nothing again
    processes.send_all(below | {guard}, signal.SIGKILL)
    run.wait_for("has", "2.1.out", 2, 60)
    wait_until(lambda: run.record("exit.json"), 30, "the run is over")
    assert (run.record("exit.json") or {})["verdict"]["state"] == "succeeded"
    assert has(run, 2, 1, 2) == ["model"]
    assert re.search(r"host-2: 1 file .*\b5 B\b.*\bhost-0\b", own_lines(run))


# --- while much is copied

LARGE = 400 << 20
BY_RANK_0_LARGE = (
    "rank == '0' and "
    f"[file.write(bytes(1 << 20)) for file in [open(out + '/a.pt', 'wb')] for _ in range({LARGE >> 20})]"
)


def copying(runs: Runs) -> Run:
    """A run that is copying a large file before its second attempt."""
    run = runs.start(SCRIPT, BY_RANK_0_LARGE, "2", nproc=(1, 1), options="max_restarts: 1, resume: head")
    kill_a_rank(run, 1)
    aside = output(run, 1) / output_tree.INCOMING
    wait_until(lambda: any(path.stat().st_size for path in aside.glob("*")), 30, "the file is being copied")
    return run


def servers(run: Run) -> list[processes.Process]:
    guards = [run.guard(node).pid for node in range(len(run.hosts))]
    below = [process for guard in guards for process in processes.descendants(guard)]
    return [process for process in below if processes.name(process.pid) == "ddp-resume"]


def test_a_killed_recorder_costs_another_copy_and_no_half_file_is_seen(runs: Runs) -> None:
    run = copying(runs)
    recorder = run.recorder(1)
    assert recorder is not None
    processes.send(recorder, signal.SIGKILL)
    assert states(run) == {"succeeded"}
    assert "trying again" in own_lines(run)
    assert (output(run, 1) / "a.pt").stat().st_size == LARGE and os.listdir(output(run, 1)) == ["a.pt"]
    assert run.journal(1)["2.1.out"].startswith(b"has \0\0")


def test_a_stop_request_ends_the_copies_and_the_run(runs: Runs) -> None:
    run = copying(runs)
    assert servers(run)
    run.stop(grace=0.0)
    assert states(run) == {"killed"}
    assert not (output(run, 1) / "a.pt").exists() and not servers(run)


@pytest.mark.parametrize(("resume", "warns"), [("none", True), ("head", False)])
def test_a_restart_tells_of_files_that_stay_on_one_host(runs: Runs, resume: str, warns: bool) -> None:
    code = (
        "import os, sys, time; rank, attempt = os.environ['RANK'], os.environ['DDP_ORCH_ATTEMPT']\n"
        "if rank == '0': open(os.environ['DDP_ORCH_OUTPUT_DIR'] + '/model.pt', 'w').close()\n"
        "if rank == '1' and attempt < '3': time.sleep(60)\n"
        "sys.exit(attempt < '3')"
    )
    run = runs.start(code, nproc=(1, 1), options=f"max_restarts: 2, resume: {resume}")
    assert {record["verdict"]["state"] for record in run.wait_over(60.0)} == {"succeeded"}
    said = b"".join(text for stream, text in run.journal().items() if ".run." in stream)
    assert said.count(b"run.resume is none") == warns


@pytest.mark.parametrize(("folder", "told"), [("os.getcwd()", 2), ("os.environ['DDP_ORCH_OUTPUT_DIR']", 0)])
def test_a_restart_tells_that_there_is_nothing_to_copy(runs: Runs, folder: str, told: int) -> None:
    code = (
        "import os, sys, time; rank, attempt = os.environ['RANK'], os.environ['DDP_ORCH_ATTEMPT']\n"
        f"if rank == '0': open({folder} + '/model.pt', 'w').close()\n"
        "if rank == '1' and attempt < '3': time.sleep(60)\n"
        "sys.exit(attempt < '3')"
    )
    run = runs.start(code, nproc=(1, 1), options="max_restarts: 2, resume: head")
    assert {record["verdict"]["state"] for record in run.wait_over(60.0)} == {"succeeded"}
    assert own_lines(run).count("nothing is copied") == told
