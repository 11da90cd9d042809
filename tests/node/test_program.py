"""The node program as a host runs it: old Pythons, odd requests, values byte for byte, secrets."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import stand_in_crontab
from lab.waiting import wait_until
from local_runs import Host, Runs, changed_program, local_runs

from orchestrator.answers.attach import ATTACH, Live, Pieces
from orchestrator.hosts.node_program import node_program
from orchestrator.hosts.session import Refused, SessionLost
from orchestrator.node.host import processes, state
from orchestrator.node.ranks import job
from orchestrator.node.recorder.journal import RECORD

# what `attach` is asked for
ALL: dict[str, Any] = {"offsets": {}, "follow": False}
ALL.update(dict.fromkeys(("tail", "sources", "stream", "attempt", "since", "until", "grep")))
WAIT = "print('ready', flush=True); import time; time.sleep(300)"


@pytest.fixture
def oldest_python() -> str:
    """The oldest Python on this machine that a host may have: 3.8, or what comes nearest."""
    installed = map(str, Path.home().glob(".pyenv/versions/3.8.*/bin/python3.8"))
    named = (shutil.which(f"python3.{minor}") for minor in range(8, sys.version_info.minor))
    return next(filter(runs_python, [*sorted(installed, reverse=True), *filter(None, named)]), sys.executable)


def runs_python(program: str) -> bool:
    """What bears the name may be a shim for a version that is not chosen here."""
    return subprocess.run([program, "-c", ""], capture_output=True).returncode == 0


def test_the_program_compiles_with_the_oldest_python(oldest_python: str, tmp_path: Path) -> None:
    (tmp_path / "node.pyz").write_bytes(node_program().data)
    code = "import zipfile, sys\nfor name in zipfile.ZipFile(sys.argv[1]).namelist():\n"
    code += "    compile(zipfile.ZipFile(sys.argv[1]).read(name), name, 'exec')"
    subprocess.run([oldest_python, "-W", "error", "-c", code, tmp_path / "node.pyz"], check=True)


@pytest.mark.parametrize("torchrun", [False, True])
def test_the_oldest_python_runs_fails_stops_and_records(oldest_python: str, runs: Runs, torchrun: bool) -> None:
    """There splice and pidfd come by ctypes."""
    fails = "import os, sys, time\nprint('x' * 100000)\nif os.environ['RANK'] == '1': sys.exit(3)\ntime.sleep(300)"
    run = runs.start(fails, nproc=(2, 2), torchrun=torchrun, python=oldest_python)
    head, other = run.wait_over()
    assert head["verdict"]["first_failure"]["what"] == "rank 1: exit code 3"
    assert head["verdict"] == other["verdict"]
    assert run.journal()["1.1.out"] == b"x" * 100000 + b"\n"
    run = runs.start(WAIT, torchrun=torchrun, python=oldest_python, setup=["export FROM_SETUP=1"])
    run.wait_for("ready", "1.0.out")
    assert run.stop(grace=1.0)["remaining"] == []
    (record,) = run.wait_over()
    assert record["verdict"]["state"] == "killed"
    assert (run.folder() / "guard.err").read_text() == ""


# --- values


@pytest.mark.parametrize("torchrun", [False, True])
@pytest.mark.parametrize("setup", [(), ("export FROM_SETUP='set up'", "cd /")])
def test_arguments_and_environment_arrive_byte_for_byte(runs: Runs, torchrun: bool, setup: tuple[str, ...]) -> None:
    values = [
        "",
        " ",
        "a b",
        "$HOME",
        "`id`",
        "'\"",
        "\\",
        "*",
        "new\nline",
        "caf\udce9",
        "{nproc}",
        "--nnodes=9",
        "%d",
    ]
    code = (
        "import os, sys\nfor value in [*sys.argv[1:], os.environ['VALUE'], os.environ['SECRET'], os.getcwd(), "
        "os.environ.get('FROM_SETUP', '')]:\n    os.write(1, os.fsencode(value) + b'\\0')"
    )
    odd = "{x} $(id) '\"\n caf\udce9"
    run = runs.start(
        code, *values, torchrun=torchrun, setup=setup, env={"VALUE": odd}, secret={"SECRET": "s3cr3t-" + odd}
    )
    run.wait_over()
    spec = run.record("spec.json")
    assert spec is not None
    expected = [*values, odd, "s3cr3t-" + odd, spec["workdir"], "set up" if setup else ""]
    assert run.journal()["1.0.out"].split(b"\0")[:-1] == [os.fsencode(value) for value in expected]


@pytest.mark.parametrize("setup", [(), ("umask 0007",)])
def test_what_a_rank_writes_is_as_open_as_the_login_makes_it(runs: Runs, setup: tuple[str, ...]) -> None:
    before = os.umask(0o027)
    try:
        run = runs.start("import os; print(oct(os.umask(0)))", setup=setup)
    finally:
        os.umask(before)
    run.wait_over()
    assert run.journal()["1.0.out"] == (b"0o7\n" if setup else b"0o27\n")
    assert all(path.stat().st_mode & 0o077 == 0 for path in run.folder().rglob("*.seg"))


@pytest.mark.parametrize("torchrun", [False, True])
def test_a_secret_is_in_no_argv_and_in_no_file(runs: Runs, torchrun: bool) -> None:
    run = runs.start(WAIT, torchrun=torchrun, setup=["true"], secret={"WANDB_API_KEY": "s3cr3t-value"})
    run.wait_for("ready", "1.0.out")
    for one in [*processes.descendants(run.guard().pid), run.guard()]:
        assert "s3cr3t" not in processes.command(one.pid)
    for path in run.hosts[0].state.rglob("*"):
        if path.is_file():
            assert b"s3cr3t-value" not in path.read_bytes(), path
            assert path.stat().st_mode & 0o077 == 0, path
    run.stop(grace=0.5)


def test_ps_shows_what_our_processes_are(runs: Runs) -> None:
    run = runs.start(WAIT)
    run.wait_for("ready", "1.0.out")
    recorder = run.recorder()
    assert recorder is not None
    shown = [processes.command(pid) for pid in (run.hosts[0].session.hello.pid, run.guard().pid, recorder.pid)]
    (program,) = run.hosts[0].state.glob("node-*")
    ours = f"{sys.executable} -I -S {program}"
    recorder_shown = f"{sys.executable} {program} recorder {run.run_id}"
    assert shown == [f"{ours} serve {program}", f"{ours} guard {run.run_id}", recorder_shown]
    run.stop(grace=0.0)


def test_a_setup_line_that_fails_is_named_and_nothing_is_started(runs: Runs) -> None:
    run = runs.start("print('ready')", setup=["true", "false"])
    (record,) = run.wait_over()
    assert record["verdict"]["first_failure"]["exit_code"] == 97
    assert re.search(r"\bsetup line 2\b.* 1\b", run.journal()["1.0.err"].decode())


def test_a_command_that_cannot_be_executed_says_why(runs: Runs) -> None:
    # no value alone is too long, and Linux takes a quarter of the stack's limit
    values = {"LARGEST": "x" * 110_000, "A": "x" * 100_000, "B": "x" * 100_000}
    run = runs.start("pass", env=values, setup=["ulimit -s 1024"])
    (record,) = run.wait_over()
    assert record["verdict"]["first_failure"]["exit_code"] == job.NOT_STARTED
    assert re.search(rb"\bLARGEST\b.*\b110000\b", run.journal()["1.0.err"])


# --- requests


def test_an_operation_that_is_not_known_and_a_run_that_is_not_there_are_answers(runs: Runs) -> None:
    (host,) = runs.hosts(1)
    with pytest.raises(Refused, match="KeyError"):
        host.session.request("explode", {})
    with pytest.raises(Refused) as refused:
        host.session.request(
            "attach",
            {**ALL, "run_id": "never-was"},
        )
    assert refused.value.code == "no-such-run"
    with pytest.raises(Refused, match=r"'\.\./\.\./etc'"):
        host.session.request("stop", {"run_id": "../../etc", "grace": None, "by": "the test"})
    assert host.session.request("list", {}) == {"runs": [], "ledger": [], "warm": [], "queued": [], "others": []}


def test_a_run_that_is_here_already_is_not_prepared_twice(runs: Runs) -> None:
    run = runs.start(WAIT)
    run.wait_for("ready", "1.0.out")
    spec = run.record("spec.json")
    with pytest.raises(Refused, match=run.run_id) as refused:
        run.hosts[0].session.request(
            "prepare", {"spec": spec, "private": {"secrets": {}, "key": "00" * 32, "notify": {}}, "head": None}
        )
    assert refused.value.code == "held"
    assert run.members()


def test_a_name_in_use_is_held_and_free_again_after_the_run(runs: Runs) -> None:
    run = runs.start(WAIT)
    spec = dict(run.record("spec.json") or {}, run_id="another-run")
    question = {"spec": spec, "private": {"secrets": {}, "key": "00" * 32, "notify": {}}, "head": None}
    with pytest.raises(Refused, match=run.run_id) as refused:
        run.hosts[0].session.request("prepare", question)
    assert refused.value.code == "held"
    assert not list(run.hosts[0].state.glob("*/runs/another-run"))
    run.wait_for("ready", "1.0.out")
    run.stop(grace=0.5)
    run.wait_over()
    assert run.hosts[0].session.request("prepare", question)["ready"] == {}
    run.hosts[0].session.request("abort", {"run_id": "another-run"})
    assert not list(run.hosts[0].state.glob("*/runs/another-run"))


@pytest.mark.parametrize("goodbye", ["close", "kill"])
def test_what_was_prepared_and_never_started_is_gone_when_its_controller_is(runs: Runs, goodbye: str) -> None:
    run, _ = runs.prepare(WAIT)
    folder, guard = run.folder(), run.guard()
    session = run.hosts[0].session
    if goodbye == "close":
        session.close()
    else:
        relay = processes.identify(session.hello.pid)
        assert relay is not None
        processes.send(relay, 9)
    wait_until(lambda: not processes.alive(guard) and not folder.exists(), 5.0, "the prepared guard is gone")


def test_a_committed_run_goes_on_without_its_controller(runs: Runs) -> None:
    run, start = runs.prepare("import time; time.sleep(2); print('done')", nproc=(1, 1))
    run.hosts[0].session.request("start", {"run_id": run.run_id, "start": start})
    for host in run.hosts:
        relay = processes.identify(host.session.hello.pid)
        assert relay is not None
        processes.send(relay, 9)
    assert [record["verdict"]["state"] for record in run.wait_over()] == ["succeeded", "succeeded"]
    assert run.journal(1)["1.1.out"] == b"done\n"


def test_many_knocks_at_the_rendezvous_port_do_not_close_it(runs: Runs) -> None:
    """Each node of a large run tries it once; a queue of 128 would be full."""
    run, start = runs.prepare(WAIT)
    for _ in range(600):
        socket.create_connection(("127.0.0.1", start["master_port"]), 2.0).close()
    run.hosts[0].session.request("abort", {"run_id": run.run_id})


def test_a_rendezvous_port_that_another_program_has_on_another_address_is_refused(runs: Runs) -> None:
    """torch listens on all addresses, whichever the ranks connect to."""
    with socket.create_server(("127.0.0.2", 0)) as stranger:
        port = stranger.getsockname()[1]
        with pytest.raises(Refused, match=rf"\b{port}\b.*\bpid {os.getpid()}\b") as refused:
            runs.prepare(WAIT, nproc=(1, 1), options=f"rdzv: {{port: {port}}}")
    assert refused.value.code == "port-in-use"


def test_a_run_that_was_given_up_is_started_by_a_later_try_of_the_same_session(runs: Runs) -> None:
    """As `up --queue` does when something else holds what the run needs."""
    run, start = runs.prepare(WAIT)
    session = run.hosts[0].session
    spec = run.record("spec.json")
    session.request("abort", {"run_id": run.run_id})
    question = {"spec": spec, "private": {"secrets": {}, "key": run.key.hex(), "notify": {}}, "head": None}
    answer = session.request("prepare", question)
    session.request("start", {"run_id": run.run_id, "start": {**start, "master_port": answer["rdzv_port"]}})
    run.wait_for("ready", "1.0.out")
    run.stop(grace=0.0)


def test_the_controller_has_an_answer_when_the_guard_is_killed_before_the_start(runs: Runs) -> None:
    for operation in ("start", "abort"):
        run, start = runs.prepare(WAIT)
        guard = run.guard()
        processes.send(guard, signal.SIGKILL)
        wait_until(lambda guard=guard: not processes.alive(guard), 5.0, "the killed guard is gone")
        session = run.hosts[0].session
        if operation == "start":
            with pytest.raises(Refused, match=r"\bguard\.err\b"):
                session.request("start", {"run_id": run.run_id, "start": start})
        else:
            assert session.request("abort", {"run_id": run.run_id}) == {"stopped_by": None}


def test_a_controller_that_gives_up_is_told_who_stopped_the_run(runs: Runs) -> None:
    run, _ = runs.prepare(WAIT)
    run.stop(grace=0.0)
    answer = run.hosts[0].session.request("abort", {"run_id": run.run_id})
    assert answer == {"stopped_by": "the test"}


@pytest.mark.parametrize("moment", ["at once", "when its folder is there", "when its guard is there"])
def test_a_host_that_is_still_being_prepared_is_aborted(runs: Runs, moment: str) -> None:
    """Its guard waits for a head that has been aborted, and would do so for 45 s after its controller has gone."""
    run, _ = runs.prepare(WAIT, nproc=(1, 1))
    host = run.hosts[1]
    spec = dict(run.record("spec.json", 1) or {}, run_id="another-run", name="another-run")
    private = {"secrets": {}, "key": "00" * 32, "notify": {}}
    with socket.create_server(("127.0.0.1", 0)) as silent_head, ThreadPoolExecutor(1) as pool:
        port = silent_head.getsockname()[1]
        head = {"addresses": ["127.0.0.1"], "rdzv_port": port, "link_port": port}
        preparing = pool.submit(host.session.request, "prepare", {"spec": spec, "private": private, "head": head})
        names = {"at once": "*/runs", "when its folder is there": "*/runs/another-run"}
        pattern = names.get(moment, "*/runs/another-run/guard.err")
        wait_until(lambda: list(host.state.glob(pattern)), 10.0, "it is being prepared")
        host.session.request("abort", {"run_id": "another-run"})
        assert not list(host.state.glob("*/runs/another-run"))
        with pytest.raises(Refused):
            preparing.result(10.0)
    assert not list(host.state.glob("*/runs/another-run"))


def test_a_run_that_is_aborted_leaves_no_line_in_the_crontab(
    runs: Runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = stand_in_crontab.put_in_path(tmp_path, monkeypatch)
    run, _ = runs.prepare(WAIT, nproc=(1, 1), options="autostart: cron, max_restarts: 1")
    assert run.run_id in table.read_text()
    guard = run.guard()
    for host in run.hosts:
        host.session.request("abort", {"run_id": run.run_id})
    wait_until(lambda: not processes.alive(guard), 5.0, "the guard has ended")
    wait_until(lambda: not table.exists(), 5.0, "the line is removed")


# --- attach


class Reading:
    """What a reader gets: bytes by stream, the times of the pieces as they came, and the closing answer."""

    def __init__(self, host: Host, run_id: str, **options: Any) -> None:
        self.streams: dict[str, bytes] = {}
        self.times: list[int] = []
        self.offsets: dict[str, list[tuple[int, int]]] = {}
        self.answer = host.session.follow(ATTACH, {**ALL, "run_id": run_id, **options}, self._take)
        for pieces in self.offsets.values() if options.get("grep") is None else ():
            ends = [offset + length for offset, length in pieces]
            assert [offset for offset, _ in pieces][1:] == ends[:-1], "pieces of a stream follow one another"

    def _take(self, header: Pieces | Live, payload: bytes) -> None:
        at = 0
        for index, offset, length, when in header.parts if isinstance(header, Pieces) else ():
            stream = header.streams[index]
            self.streams[stream] = self.streams.get(stream, b"") + payload[at : at + length]
            self.offsets.setdefault(stream, []).append((offset, length))
            self.times.append(when)
            at += length


def test_a_reader_gets_all_streams_in_the_order_of_time_until_the_run_ends(runs: Runs) -> None:
    code = "import os, time\nfor n in range(20):\n    print(n, flush=True); time.sleep(0.02)"
    run = runs.start(code, nproc=(2,))
    live = Reading(run.hosts[0], run.run_id, follow=True)
    text = b"".join(b"%d\n" % number for number in range(20))
    assert (live.streams["1.0.out"], live.streams["1.1.out"]) == (text, text)
    assert live.streams["1.run.out"].endswith(b"succeeded\n")
    assert live.answer.run is not None and live.answer.run.state == "succeeded"
    assert live.answer.offsets["1.0.out"] == len(text)
    later = Reading(run.hosts[0], run.run_id)
    assert later.streams == live.streams
    assert later.times == sorted(later.times)


def test_a_reader_goes_on_from_its_offsets_and_may_choose_streams(runs: Runs) -> None:
    run = runs.start("print('one\\ntwo\\nthree')", nproc=(2,))
    run.wait_over()
    host = run.hosts[0]
    assert Reading(host, run.run_id, offsets={"1.0.out": 4}, sources=["0"]).streams == {"1.0.out": b"two\nthree\n"}
    assert Reading(host, run.run_id, tail=1, sources=["0", "1"]).streams == {
        "1.0.out": b"three\n", "1.1.out": b"three\n"
    }  # fmt: skip
    assert Reading(host, run.run_id, attempt=2).streams == {}


def test_a_journal_of_single_bytes_can_be_read(runs: Runs) -> None:
    """Each byte may be a piece of its own: what a frame's header says of them must not outgrow it."""
    run = runs.start("pass")
    run.wait_over()
    count = 150_000
    segment = run.folder() / "log" / "9.0.out.000000000000.seg"
    segment.write_bytes(b"x" * count)
    segment.with_suffix(".idx").write_bytes(b"".join(RECORD.pack(number + 1, number) for number in range(count)))
    assert Reading(run.hosts[0], run.run_id, attempt=9).streams["9.0.out"] == b"x" * count


def test_a_search_finds_the_lines_while_the_run_writes_them(runs: Runs) -> None:
    code = "import time\nfor n in range(20):\n    print('step', n, flush=True); time.sleep(0.02)"
    run = runs.start(code)
    live = Reading(run.hosts[0], run.run_id, follow=True, sources=["0"], grep="step 1[0-4]$")
    assert live.streams == {"1.0.out": b"".join(b"step %d\n" % number for number in range(10, 15))}
    assert live.answer.run is not None and live.answer.run.state == "succeeded"
    assert Reading(run.hosts[0], run.run_id, sources=["0"], grep="step 1[0-4]$").streams == live.streams
    with pytest.raises(Refused, match=r"'\('"):
        Reading(run.hosts[0], run.run_id, grep="(")


@pytest.fixture
def impatient_search(tmp_path: Path) -> Iterator[Runs]:
    program = changed_program("grep.py", {b"\nPATIENCE = 30.0 ": b"\nPATIENCE = 06.0 "})
    with local_runs(tmp_path, program) as found:
        yield found


def test_an_expression_that_takes_years_costs_only_its_own_request_an_error(impatient_search: Runs) -> None:
    run = impatient_search.start("print('x' * 60); print('needle')")
    run.wait_over()
    host = run.hosts[0]
    errors: list[Refused] = []

    def search() -> None:
        try:
            Reading(host, run.run_id, grep="(x+x+)+y")
        except Refused as error:
            errors.append(error)

    searching = threading.Thread(target=search)
    searching.start()
    relay = host.session.hello.pid
    wait_until(lambda: len(processes.descendants(relay)) == 1, 10.0, "the search has begun")
    (child,) = processes.descendants(relay)
    while searching.is_alive():  # all others are answered at once meanwhile
        assert host.session.request("clock", {})["clock"] > 0
        assert Reading(host, run.run_id, grep="needle").streams["1.0.out"] == b"needle\n"
    assert [error.code for error in errors] == ["unknown"]
    assert "(x+x+)+y" in str(errors[0]) and "simpler" in str(errors[0])
    assert not processes.alive(child)
    assert not host.session.lost


def test_a_search_ends_with_its_session(runs: Runs) -> None:
    run = runs.start("print('x' * 60)")
    run.wait_over()
    session = run.hosts[0].connect()

    def search() -> None:
        with contextlib.suppress(SessionLost):
            session.request("attach", {**ALL, "run_id": run.run_id, "grep": "(x+x+)+y"})

    threading.Thread(target=search, daemon=True).start()
    relay = session.hello.pid
    wait_until(lambda: len(processes.descendants(relay)) == 1, 10.0, "the search has begun")
    (child,) = processes.descendants(relay)
    session.close()
    wait_until(lambda: not processes.alive(child), 5.0, "the search has ended")


def test_the_listing_tells_each_run_by_its_records(runs: Runs) -> None:
    run, start = runs.prepare(WAIT)
    (host,) = runs.hosts(1)

    def states() -> list[str]:
        return [one["state"] for one in host.session.request("list", {})["runs"]]

    assert states() == ["starting"]
    host.session.request("start", {"run_id": run.run_id, "start": start})
    wait_until(lambda: states() == ["running"], 10.0, "it runs")
    run.wait_for("ready", "1.0.out")
    run.stop(grace=0.5)
    assert states() == ["killed"]
    (folder,) = host.state.glob(f"*/runs/{run.run_id}")
    (folder / "exit.json").unlink()
    state.write(str(folder / "state.json"), {**(state.read(str(folder / "state.json")) or {}), "boot_id": "another"})
    assert states() == ["lost"]
