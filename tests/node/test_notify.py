"""Who hears of the end of a run, and that nothing waits for those who do not listen."""

from __future__ import annotations

import http.server
import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from golden_files import assert_message
from lab.waiting import wait_until
from local_runs import Run, Runs, changed_program, local_runs
from test_rejoin import lose, rejoin

from orchestrator.hosts.node_program import node_program
from orchestrator.node.gang import gang_orders
from orchestrator.node.host import processes
from orchestrator.node.recorder import notify
from orchestrator.node.roles import loss_watch
from orchestrator.node.roles.rank_silence import RankSilence


class Webhook:
    """Takes what is posted; `status` is its answer."""

    def __init__(self) -> None:
        self.posted: list[dict[str, Any]] = []
        self.status = 200
        self.silent = threading.Event()
        webhook = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                webhook.posted.append(json.loads(body))
                self.send_response(webhook.status)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self._thread.start()
        self.address = f"http://127.0.0.1:{self._server.server_port}/services/secret"

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture
def webhook() -> Iterator[Webhook]:
    one = Webhook()
    yield one
    one.close()


def test_the_end_of_a_run_is_told_to_both(runs: Runs, webhook: Webhook, tmp_path: Path) -> None:
    heard = tmp_path / "heard"
    wanted = {"webhook": webhook.address, "command": f"cat > {heard}.new && mv {heard}.new {heard}"}
    code = "import os, sys; print('a secret', file=sys.stderr); sys.exit(3 * (os.environ['RANK'] == '1'))"
    run = runs.start(code, nproc=(1, 1), notify=wanted)
    run.wait_over()
    wait_until(heard.exists, 30.0, "the command has heard of it")
    said = json.loads(heard.read_text())
    assert said["state"] == "failed" and said["run_id"] == run.run_id and said["hosts"] == ["host-0", "host-1"]
    assert said["first_failure"] == {"host": "host-1", "rank": 1, "what": "rank 1: exit code 3"}
    wait_until(lambda: webhook.posted, 30.0, "the webhook has heard of it")
    assert webhook.posted == [{"text": said["text"]}]
    assert_message("notify-failed", said["text"], RUN=run.run_id)
    for node in (0, 1):
        for file in run.folder(node).rglob("*.json*"):
            assert "services/secret" not in file.read_text(errors="replace")


def test_a_lost_head_is_told_of_by_one_of_the_others(runs: Runs, webhook: Webhook) -> None:
    wait = "import time; print('ready', flush=True); time.sleep(600)"
    run = runs.start(wait, nproc=(1, 1, 1), notify={"webhook": webhook.address})
    for node in (1, 2):
        run.wait_for("ready", f"1.{node}.out", node)
    recorder = run.recorder(0)
    assert recorder is not None
    guard = run.guard(0)
    processes.send(guard, signal.SIGSTOP)  # so that it starts no other recorder
    processes.send_all([recorder, guard], signal.SIGKILL)
    for node in (1, 2):
        wait_until(lambda node=node: run.record("exit.json", node), 30.0, f"host {node} has ended")
    wait_until(lambda: webhook.posted, 30.0, "the webhook has heard of it")
    (posted,) = webhook.posted
    assert list(posted) == ["text"]
    assert_message("notify-head-lost", posted["text"], RUN=run.run_id)


@pytest.mark.parametrize(("head_lost", "lost"), [("stop", [0]), ("elect", [0, 1])])
def test_the_host_that_told_that_a_run_waits_tells_that_it_was_stopped(
    runs: Runs, tmp_path: Path, head_lost: str, lost: list[int]
) -> None:
    news, never = tmp_path / "news", "import time; print('ready', flush=True); time.sleep(600)"
    options = f"max_restarts: 1, lease: 2, rejoin_timeout: 60, nnodes: 3, head_lost: {head_lost}"
    run = runs.start(never, nproc=(1, 1, 1), options=options, notify={"command": f"cat >> {news}"})
    for node in range(3):
        run.wait_for("ready", f"1.{node}.out", node)
    for node in lost:
        lose(run, node)

    def states() -> list[str]:
        return [json.loads(line)["state"] for line in news.read_text().splitlines()] if news.exists() else []

    wait_until(lambda: "waiting" in states(), 40, "somebody tells that it waits")
    assert "ddp-orch revive" in news.read_text()
    for node in sorted({0, 1, 2} - {*lost}):
        assert run.stop(node, grace=1.0)["remaining"] == []
    wait_until(lambda: states()[-1] == "killed", 20, "and that it was stopped")
    assert states() == ["waiting", "killed"]


def test_a_head_that_was_booted_and_has_met_others_tells_that_the_run_is_lost(runs: Runs, tmp_path: Path) -> None:
    news, never = tmp_path / "news", "import time; print('ready', flush=True); time.sleep(600)"
    told = {"command": f"cat >> {news}"}
    options = "max_restarts: 1, lease: 2, rejoin_timeout: 8, nnodes: 3, head_lost: stop"
    run = runs.start(never, nproc=(1, 1, 1), options=options, notify=told)
    for node in range(3):
        run.wait_for("ready", f"1.{node}.out", node)
    for node in (2, 0):
        lose(run, node)
    rejoin(run, 0, notify=told)
    wait_until(lambda: run.record("exit.json", 0), 60, "the head waits no longer")
    wait_until(lambda: news.exists() and '"lost"' in news.read_text(), 20, "and tells")


def is_told(run: Run) -> bool:
    file = run.folder() / "notified"
    return file.exists() and file.stat().st_size > 0


# Once, the recorder is killed before it starts the process that sends.
KILLED_BEFORE = b"    try: open(folder+'/k','x');os.kill(os.getpid(),9)\n    except OSError: 0\n"
NOTHING_TO_SEND = b"""    if not any(targets.get(what) for what in ("webhook", "mail", "command")):\n        return\n"""


def test_a_head_whose_recorder_is_killed_at_the_end_tells_of_it_all_the_same(tmp_path: Path, webhook: Webhook) -> None:
    killed = KILLED_BEFORE[:-1].ljust(len(NOTHING_TO_SEND) - 1) + b"\n"
    with local_runs(tmp_path, changed_program("notify.py", {NOTHING_TO_SEND: killed})) as runs:
        run = runs.start("pass", nproc=(1, 1), notify={"webhook": webhook.address})
        assert {record["verdict"]["state"] for record in run.wait_over()} == {"succeeded"}
        assert (run.folder() / "k").exists()
        wait_until(lambda: is_told(run), 30, "the message was sent")
    assert len(webhook.posted) == 1


def test_the_end_of_a_run_is_told_once_however_many_recorders_ask_for_it(webhook: Webhook, runs: Runs) -> None:
    run = runs.start("pass", notify={"webhook": webhook.address})
    run.wait_over()
    wait_until(lambda: is_told(run), 30, "the message was sent")
    (program,) = run.hosts[0].state.glob("node-*")
    given = {"wanted": {"webhook": webhook.address}, "folder": str(run.folder())}
    for state, posted in (("succeeded", 1), ("restarting", 2)):
        message = json.dumps({**given, "said": {"text": "again", "state": state, "attempt": 1}})
        subprocess.run(processes.own_program(str(program), "notify"), input=message, text=True, check=True)
        assert len(webhook.posted) == posted


def test_a_run_does_not_wait_for_a_command_that_hangs(runs: Runs, tmp_path: Path) -> None:
    begun = tmp_path / "begun"
    run = runs.start("pass", notify={"command": f"echo $$ > {begun}; exec sleep 40"})
    began = time.monotonic()
    assert [record["verdict"]["state"] for record in run.wait_over()] == ["succeeded"]
    assert time.monotonic() - began < 35
    wait_until(lambda: begun.exists() and begun.read_text().strip(), 30.0, "the command runs")
    os.kill(int(begun.read_text()), signal.SIGKILL)  # still there, though the run is over


def test_what_could_not_be_sent_is_in_the_log_and_in_the_listing(runs: Runs) -> None:
    wanted = {"webhook": "http://127.0.0.1:9/services/secret", "command": "exit 3"}
    run = runs.start("pass", notify=wanted)
    run.wait_over()
    wait_until(lambda: run.journal().get("1.run.err", b"").count(b"\n") == 2, 60.0, "the log says what failed")
    assert_message("notify-not-sent", run.journal()["1.run.err"].decode())
    (known,) = run.hosts[0].session.request("list", {})["runs"]
    assert known["not_notified"] == {"command": "exit status 3", "webhook": "Connection refused"}
    assert "secret" not in (run.folder() / "guard.err").read_text()


def test_a_later_success_ends_the_complaint(runs: Runs, webhook: Webhook, tmp_path: Path) -> None:
    (program,) = runs.hosts(1)[0].state.glob("node-*")
    (tmp_path / "notify.json").write_text('{"problems": {"webhook": "Connection refused"}}')
    said = {"text": "hello", "state": "restarting", "attempt": 2}
    notify.tell(str(program), {"webhook": webhook.address}, said, str(tmp_path))
    wait_until(lambda: not (tmp_path / "notify.json").exists(), 30.0, "it is forgotten")
    assert webhook.posted == [{"text": "hello"}]


def test_what_would_fail_is_found_without_sending_anything(webhook: Webhook, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("http_proxy", raising=False)
    port = int(webhook.address.split(":")[2].partition("/")[0])
    place = {"scheme": "http", "host": "127.0.0.1", "port": port}
    assert notify.look({"webhook": place, "program": "cat"}) == {}
    assert notify.look({"webhook": None, "program": "nosuchcmd"}) == {"command": "nosuchcmd: not found"}
    refused = notify.look({"webhook": {**place, "port": 9}, "program": None})
    assert list(refused) == ["webhook"] and refused["webhook"].endswith(" 127.0.0.1:9: Connection refused")
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{port}")
    elsewhere = {"scheme": "http", "host": "webhook.invalid", "port": 80}
    assert notify.look({"webhook": elsewhere, "program": None}) == {}
    assert webhook.posted == []


def test_a_message_can_be_sent_at_once(runs: Runs, webhook: Webhook, tmp_path: Path) -> None:
    session = runs.hosts(1)[0].session
    said = {"text": "a test", "state": "test"}
    heard = tmp_path / "heard"
    wanted = {"webhook": webhook.address, "command": f"cat > {heard}"}
    assert session.request("notify", {"wanted": wanted, "said": said}) == {"problems": {}}
    assert webhook.posted == [{"text": "a test"}] and json.loads(heard.read_text()) == said
    webhook.status = 404
    problems = session.request("notify", {"wanted": {"webhook": webhook.address, "command": None}, "said": said})
    assert problems == {"problems": {"webhook": "the server answered 404"}}
    assert len(webhook.posted) == 2  # once each


def test_a_webhook_that_refuses_is_asked_again(webhook: Webhook, monkeypatch: pytest.MonkeyPatch, capfd: Any) -> None:
    monkeypatch.setattr(notify, "PAUSE", 0.0)
    webhook.status = 500
    assert notify.post(webhook.address, "hello") == "the server answered 500"
    assert len(webhook.posted) == notify.TRIES
    assert "secret" not in capfd.readouterr().err


def test_a_recorder_that_can_start_no_thread_tells_all_the_same(tmp_path: Path) -> None:
    program = tmp_path / "node.pyz"
    program.write_bytes(node_program().data)
    said = {"text": "a text", "state": "failed", "attempt": 1}
    threading.stack_size(1 << 46)  # more than there are addresses: no thread can be started
    try:
        with pytest.raises(RuntimeError):
            threading.Thread(target=print).start()
        notify.tell(str(program), {"command": f"touch {tmp_path}/told"}, said, str(tmp_path))
    finally:
        threading.stack_size(0)
    wait_until((tmp_path / "told").exists, 10.0, "the command runs")


def test_restarts_and_stops_are_told_in_words() -> None:
    spec = {"run_id": "R", "name": "nightly", "nodes": [{"host": "gpu-0"}]}
    failure = {"host": "gpu-0", "rank": 1, "what": "rank 1: SIGKILL", "said": "token"}
    again = notify.message(spec, "restarting", 2, failure)
    assert_message("notify-restarting", again["text"])
    assert "token" not in json.dumps(again)
    drained = notify.message(spec, "restarting", 2, None, drained=("gpu-1",))["text"]
    assert "gpu-1 was drained" in drained and "failed" not in drained
    assert_message("notify-stopped", notify.message(spec, "killed", 1, None)["text"])


def test_only_the_events_that_were_asked_for_are_told(runs: Runs, tmp_path: Path) -> None:
    code = "import os, sys; sys.exit(3 if os.environ['DDP_ORCH_ATTEMPT'] == '1' else 0)"
    command = f"cat > {tmp_path}/$$.new && mv {tmp_path}/$$.new {tmp_path}/told-$$"
    wanted = {"command": command, "events": ["start", "end"]}
    run = runs.start(code, notify=wanted, options="max_restarts: 1")
    assert run.wait_over()[0]["verdict"]["state"] == "succeeded"

    def told() -> set[str]:
        return {json.loads(path.read_text())["state"] for path in tmp_path.glob("told-*")}

    wait_until(lambda: "succeeded" in told(), 30.0, "the end was told")
    wait_until(lambda: "starting" in told(), 30.0, "the start was told")
    assert told() == {"starting", "succeeded"}


def test_the_end_of_the_walltime_is_told_before_it_comes(runs: Runs, tmp_path: Path) -> None:
    code = "import signal, time; signal.signal(signal.SIGUSR1, lambda *_: print('saved', flush=True)); time.sleep(60)"
    told = tmp_path / "told"
    wanted = {"command": f"cat > {told}.new && mv {told}.new {told}", "events": ["walltime"]}
    run = runs.start(code, notify=wanted, options="walltime: 4")
    assert run.wait_over()[0]["verdict"]["state"] == "stopped"
    wait_until(told.exists, 30.0, "it was told")
    assert json.loads(told.read_text())["state"] == "ending"


NAN = "import os, sys, time; print('step 7 loss nan', flush=True); time.sleep(600)"
STOPS = "import sys; sys.exit('trainer: host-1: the loss is not finite at step:3 rank:1 samples:17,4')"


@pytest.mark.parametrize("code", [NAN, STOPS], ids=["goes on", "ends"])
def test_a_loss_that_is_not_finite_is_told(runs: Runs, tmp_path: Path, code: str) -> None:
    told = tmp_path / "told"
    wanted = {"command": f"cat > {told}.new && mv {told}.new {told}", "events": ["loss"]}
    run = runs.start(code, notify=wanted)
    wait_until(told.exists, 30.0, "it was told")
    message = json.loads(told.read_text())
    assert message["state"] == "non-finite-loss" and "is not finite" in message["text"]
    assert "step" not in message["text"]  # no output of ranks
    run.stop(grace=0.0)


@pytest.mark.parametrize(
    ("text", "bad"),
    [
        ("step 7 loss nan", True),
        ("{'loss': nan, 'grad_norm': nan}", True),
        ("iter=3 train_loss=-inf", True),
        ("Loss: NaN", True),
        ("FloatingPointError: loss is nan", True),
        ("trainer: a: the loss is not finite at step:3", True),
        ("loss tensor(inf)", True),
        ("best loss inf", False),
        ("best_loss=inf", False),
        ("loss 2.31 nan_grads 0", False),
        ("loss nanoGPT", False),
        ("the loss is infinitesimal", False),
        ("weightloss nan", False),
    ],
)
def test_which_lines_have_a_loss_that_is_not_finite(tmp_path: Path, text: str, *, bad: bool) -> None:
    told: list[str] = []
    watch = loss_watch.LossWatch(str(tmp_path), {"events": ["loss"]}, told.append)
    watch.hear(1, text)
    watch.hear(1, text)
    assert told == ["non-finite-loss"] * bad
    watch.hear(2, text)
    assert told == ["non-finite-loss"] * 2 * bad
    watch = loss_watch.LossWatch(str(tmp_path), {"events": ["end"]}, told.append)
    watch.hear(3, text)
    assert len(told) == 2 * bad


def test_a_silence_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    told: list[str] = []
    silence = RankSilence({"stall_timeout": None, "launcher": {}}, said.append, told.append)
    node = SimpleNamespace(first_rank=0, nproc=1)
    state: Any = SimpleNamespace(team=[0], nodes=[node])
    monkeypatch.setattr(gang_orders, "label", lambda _: "running")
    for quiet in (1.0, 601.0, 602.0, 1.0, 601.0):
        silence.hear(0, {"quiet": quiet, "frozen": []})
        assert silence.look(state) is None
    assert told == ["stalled", "stalled"] and len(said) == 2


def test_a_command_that_takes_its_time_is_not_ended_with_the_next_attempt(runs: Runs, tmp_path: Path) -> None:
    code = "import os, sys; sys.exit(3 if os.environ['DDP_ORCH_ATTEMPT'] == '1' else 0)"
    command = (
        f"cat > {tmp_path}/$$; while [ ! -e {tmp_path}/go ]; do sleep 0.05; done; mv {tmp_path}/$$ {tmp_path}/told-$$"
    )
    run = runs.start(code, notify={"command": command}, options="max_restarts: 1")
    assert run.wait_over()[0]["verdict"]["state"] == "succeeded"
    (tmp_path / "go").touch()
    wait_until(lambda: len(list(tmp_path.glob("told-*"))) == 2, 10.0, "both commands have come to their end")
    states = {json.loads(path.read_text())["state"] for path in tmp_path.glob("told-*")}
    assert states == {"restarting", "succeeded"}
