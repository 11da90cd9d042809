"""Messages that the run waits: an outdated one is dropped, and one that was wrong is taken back where it arrived."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from lab.waiting import wait_until
from local_runs import Runs, changed_program
from test_mail import Server
from test_notify import Webhook
from test_rejoin import lose, rejoin

from orchestrator.node.gang.gang_events import End, Order, Run, Stop, Wait
from orchestrator.node.recorder import notify, wait_news
from orchestrator.node.roles.reporter import Reporter

SPARE = Wait(("host-0", "host-2"), "127.0.0.1")


def said(state: str) -> dict[str, Any]:
    return {"text": f"it is {state}", "state": state, "attempt": 1}


def wait_for_senders() -> None:
    wait_until(
        lambda: not any(thread.name == "notify" for thread in threading.enumerate()), 60, "nothing is being sent"
    )


@pytest.fixture
def webhook() -> Iterator[Webhook]:
    one = Webhook()
    yield one
    one.close()


@pytest.fixture
def server() -> Iterator[Server]:
    one = Server(None)
    yield one
    one.close()


@pytest.fixture
def program(tmp_path: Path) -> str:
    """With a short pause between tries."""
    path = tmp_path / "node.pyz"
    path.write_bytes(changed_program("notify.py", {b"\nPAUSE = 5.0": b"\nPAUSE = 0.5"}).data)
    return str(path)


@pytest.fixture
def folder(tmp_path: Path) -> str:
    (tmp_path / "run/log").mkdir(parents=True)
    return str(tmp_path / "run")


@pytest.fixture
def news(tmp_path: Path) -> Callable[[], list[dict[str, Any]]]:
    file = tmp_path / "news"
    return lambda: [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def test_a_message_that_the_run_waits_is_dropped_when_there_is_a_later_one(
    webhook: Webhook, program: str, folder: str
) -> None:
    webhook.status = 500
    targets = {"webhook": webhook.address}
    notify.tell(program, targets, said("waiting"), folder)
    wait_until(lambda: webhook.posted, 30, "it has been tried")
    webhook.status = 200
    notify.tell(program, targets, said("restarting"), folder)
    wait_for_senders()
    assert [each["text"] for each in webhook.posted] == ["it is waiting", "it is restarting"]
    assert not Path(folder, "notify.json").exists()


def test_other_messages_are_tried_again_after_a_later_one(webhook: Webhook, program: str, folder: str) -> None:
    webhook.status = 500
    targets = {"webhook": webhook.address}
    notify.tell(program, targets, said("restarting"), folder)
    wait_until(lambda: webhook.posted, 30, "it has been tried")
    webhook.status = 200
    notify.tell(program, targets, said("failed"), folder)
    wait_for_senders()
    assert sorted({each["text"] for each in webhook.posted[1:]}) == ["it is failed", "it is restarting"]


def test_an_outdated_message_is_sent_nowhere(webhook: Webhook, server: Server, folder: str, tmp_path: Path) -> None:
    targets = {
        "webhook": webhook.address,
        "mail": f"smtp://127.0.0.1:{server.port}/ann@example.org",
        "command": f"touch {tmp_path}/told",
    }
    number = wait_news.supersede(folder)
    message = wait_news.WaitMessage(folder, number)
    wait_news.supersede(folder)
    for target, value in targets.items():
        with pytest.raises(wait_news.Outdated):
            notify.send({target: value}, said("waiting"), waiting=message)
    assert not (webhook.posted or server.mails or (tmp_path / "told").exists())


@pytest.mark.parametrize("target", ["webhook", "mail"])
def test_a_message_is_dropped_if_it_is_outdated_when_the_connection_is_there(
    webhook: Webhook, server: Server, folder: str, target: str
) -> None:
    """During a cut, it takes a while until it is."""

    class Late(wait_news.WaitMessage):
        looks = 0

        def check(self) -> None:
            self.looks += 1
            if self.looks == 2:
                wait_news.supersede(folder)
            super().check()

    value = webhook.address if target == "webhook" else f"smtp://127.0.0.1:{server.port}/ann@example.org"
    late = Late(folder, wait_news.supersede(folder))
    with pytest.raises(wait_news.Outdated):
        notify.send({target: value}, said("waiting"), waiting=late)
    assert late.looks == 2 and not (webhook.posted or server.mails)


def reporter(folder: str, program: str, targets: dict[str, Any], attempt: int = 1) -> Reporter:
    nodes = [{"host": f"host-{number}"} for number in range(3)]
    spec = {"program": program, "nodes": nodes, "node": 1, "run_id": "R", "name": "nightly", "autostart": "none"}
    api: Any = SimpleNamespace(folder=folder, spec=spec, notify=targets, reported={"attempt": attempt})
    return Reporter(api)


def report(reporter: Reporter) -> None:
    reporter.tell("waiting", {"host": "host-0", "rank": None, "what": "head lost"}, ["host-0"], 0.0)


def test_a_report_is_taken_back_where_it_has_arrived(
    webhook: Webhook, program: str, folder: str, tmp_path: Path, news: Callable[[], list[dict[str, Any]]]
) -> None:
    targets = {"webhook": "http://127.0.0.1:9/", "command": f"cat >> {tmp_path}/news"}
    host = reporter(folder, program, targets)
    report(host)
    wait_for_senders()
    targets["webhook"] = webhook.address
    host.hear_head()
    host.obey(SPARE)
    host.on_tick(lambda: False)
    assert len(news()) == 1
    for _ in range(2):
        host.on_tick(lambda: True)
    wait_for_senders()
    assert [each["state"] for each in news()] == ["waiting", "continues"]
    assert "host-0, host-2" in news()[1]["text"] and "host-1" in news()[1]["text"]
    assert not webhook.posted


def test_a_report_that_has_arrived_nowhere_is_not_taken_back(program: str, folder: str, webhook: Webhook) -> None:
    targets = {"webhook": "http://127.0.0.1:9/"}
    host = reporter(folder, program, targets)
    report(host)
    targets["webhook"] = webhook.address
    host.hear_head()
    host.obey(SPARE)
    host.on_tick(lambda: True)
    wait_for_senders()
    assert not webhook.posted


@pytest.mark.parametrize(
    ("order", "events", "states"),
    [
        (SPARE, ["wait"], ["waiting", "continues"]),
        (End({"state": "succeeded", "first_failure": None}), ["wait"], ["waiting", "succeeded"]),
        (End({"state": "stopped", "left": True}), ["wait"], ["waiting", "continues"]),
        (Run(2, 0, 2, 0, 2, "127.0.0.1", 1), ["restart", "wait"], ["waiting"]),  # the head tells of a restart
        (Run(2, 0, 2, 0, 2, "127.0.0.1", 1), ["wait"], ["waiting", "continues"]),
        (Run(1, 0, 2, 0, 2, "127.0.0.1", 1), ["wait"], ["waiting", "continues"]),  # it came late
        (Stop(1, 1.0, "host-1 was cut off", False), ["wait"], ["waiting", "continues"]),
    ],
    ids=[
        "spare",
        "ended",
        "drained",
        "runs again",
        "runs again, and the head tells nothing",
        "an older order",
        "stopped first",
    ],
)
def test_what_follows_a_report_of_before_the_host_was_rebooted(
    order: Order,
    events: list[str],
    states: list[str],
    program: str,
    folder: str,
    tmp_path: Path,
    news: Callable[[], list[dict[str, Any]]],
) -> None:
    targets = {"command": f"cat >> {tmp_path}/news", "events": events}
    report(reporter(folder, program, targets))
    wait_for_senders()
    host = reporter(folder, program, targets)
    for each in (order, SPARE):
        host.obey(each)
        host.on_tick(lambda: True)
    wait_for_senders()
    assert [each["state"] for each in news()] == states


def test_a_report_that_was_right_is_not_taken_back(
    runs: Runs, tmp_path: Path, news: Callable[[], list[dict[str, Any]]]
) -> None:
    """Two of three hosts are lost, and one of them comes back."""
    told = {"command": f"cat >> {tmp_path}/news"}
    options = "max_restarts: 3, lease: 2, rejoin_timeout: 60, nnodes: '2:3', head_lost: elect"
    run = runs.start(
        "import time; print('ready', flush=True); time.sleep(600)", nproc=(1, 1, 1), options=options, notify=told
    )
    for node in range(3):
        run.wait_for("ready", f"1.{node}.out", node)
    for node in (0, 1):
        lose(run, node)
    wait_until(news, 40, "the host that is left reports that the run waits")
    rejoin(run, 1, notify=told)

    def states() -> list[str]:
        return [each["state"] for each in news()]

    wait_until(lambda: "restarting" in states(), 60, "the head tells of the restart")
    run.stop(1)
    run.stop(2)
    wait_until(lambda: "killed" in states(), 30, "and of the end")
    assert "continues" not in states()
