"""One host is silent: the commands show what the others have, and end what is to be ended there."""

from __future__ import annotations

import re
import socket
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fake_relay import A_RUN, Dialer, Relay
from golden_files import assert_message

from orchestrator.commands import context, kill, ps
from orchestrator.errors import UnreachableError
from orchestrator.hosts import session
from orchestrator.inventory.model import parse
from orchestrator.runs import registry
from orchestrator.ssh.dialer import ConnectFailure
from orchestrator.ssh.dialer import Dialer as SshDialer

HOSTS = parse("hosts: [a]", "inventory.yaml")
RUN = str(A_RUN["run_id"])
NOTHING: dict[str, Any] = {"killed": [], "ports_freed": [], "gpus_freed": [], "remaining": []}


class TwoHosts(Dialer):
    """Host a knows a run; host b answers PINGs only."""

    def __init__(self) -> None:
        super().__init__(a=self.answer, b=lambda relay, request: None)
        self.stopped: list[str] = []

    def answer(self, relay: Relay, request: dict[str, Any]) -> None:
        if request["op"] == "list":
            relay.result(request, {"runs": [A_RUN]})
        elif request["op"] == "stop":
            self.stopped.append(request["args"]["run_id"])
            self.on_stop()
            relay.result(request, NOTHING)

    def on_stop(self) -> None: ...

    def prepare(self, hosts: Any) -> None: ...


@pytest.fixture
def inventory(tmp_path: Path) -> str:
    (tmp_path / "inventory.yaml").write_text("hosts: [a, b]\n")
    return str(tmp_path / "inventory.yaml")


@pytest.fixture
def hosts(monkeypatch: pytest.MonkeyPatch) -> TwoHosts:
    dialer = TwoHosts()
    monkeypatch.setattr(context, "make_dialer", lambda *_: dialer)
    monkeypatch.setattr(context, "secrets", SimpleNamespace(token_hex=lambda _: "NONCE"))
    monkeypatch.setattr(session, "PING_EVERY", 0.1)
    monkeypatch.setattr(registry, "PATIENCE", 0.1)
    return dialer


def test_a_run_that_is_named_is_stopped_before_a_silent_host_has_answered(
    hosts: TwoHosts, inventory: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(session, "ANSWER_LIMIT", 1000.0)  # the listing of b takes longer than any test
    monkeypatch.setattr(session, "LIMITS", {"stop": 1.0})
    options: dict[str, Any] = {"leftovers": False, "everything": False, "force": [], "as_json": False}
    assert kill.kill(RUN, inventory, None, grace=0.0, **options) == 4
    assert hosts.stopped == [RUN]
    assert re.search(r"\bb: .*`stop`.* 9 s", capsys.readouterr().err)


def test_part_of_an_id_may_mean_a_run_of_a_silent_host_and_is_not_ended_before_that_has_answered(
    hosts: TwoHosts, inventory: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    listed: list[bool] = []
    monkeypatch.setattr(session, "ANSWER_LIMIT", 2.0)
    monkeypatch.setattr(session, "LIMITS", {"stop": 1.0})
    monkeypatch.setattr(hosts, "on_stop", lambda: listed.append("yet from b" in capsys.readouterr().err))
    options: dict[str, Any] = {"leftovers": False, "everything": False, "force": [], "as_json": False}
    began = time.monotonic()
    assert kill.kill(RUN[:10], inventory, None, grace=0.0, **options) == 4
    assert hosts.stopped == [RUN] and listed == [True]
    assert time.monotonic() - began > 2.0


def test_the_id_of_a_run_that_no_other_host_has_is_waited_for(
    hosts: TwoHosts, inventory: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(session, "ANSWER_LIMIT", 2.0)
    options: dict[str, Any] = {"leftovers": False, "everything": False, "force": [], "as_json": False}
    with pytest.raises(UnreachableError):
        kill.kill("20200101-000000-0000", inventory, None, grace=0.0, **options)
    assert "no other host" in capsys.readouterr().err and hosts.stopped == []


def test_ps_on_a_terminal_shows_what_there_is_while_a_host_is_silent(
    hosts: TwoHosts, inventory: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(session, "ANSWER_LIMIT", 2.0)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setattr("sys.argv", ["ddp-orch", "ps", "-i", "inventory.yaml"])
    assert ps.ps(inventory, None, False, False) == 4
    out, err = capsys.readouterr()
    assert out.count(RUN) == 2  # at once, and in the end
    assert_message("ps-of-a-silent-host", err)


def test_a_host_that_accepts_no_connection_is_waited_for_as_long_as_the_command_likes() -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listener:
        port = listener.getsockname()[1]
        fills = [socket.socket() for _ in range(4)]
        for one in fills:
            one.setblocking(False)
            one.connect_ex(("127.0.0.1", port))
        dialer = SshDialer(replace(HOSTS.ssh, connect_timeout=1000.0), config_file=Path("/dev/null"), patience=0.5)
        began = time.monotonic()
        with pytest.raises(ConnectFailure) as caught:
            dialer.connect(replace(HOSTS.hosts[0], address="127.0.0.1", port=port))
        assert caught.value.code == "ssh-unreachable" and time.monotonic() - began < 500
        for one in fills:
            one.close()


def test_a_command_that_waits_for_all_hosts_names_the_silent_one(
    hosts: TwoHosts, inventory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "ANSWER_LIMIT", 5.0)  # b answers only when it was named, else not at all
    requests: list[tuple[Relay, dict[str, Any]]] = []
    hosts._answers["b"] = lambda relay, request: requests.append((relay, request))
    notes: list[str] = []

    def answer_when_named(message: str) -> None:
        notes.append(message)
        relay, request = requests.pop()
        relay.result(request, {"runs": []})

    console = SimpleNamespace(note=answer_when_named, warning=notes.append)
    with context.open_fleet(context.load_inventory(inventory)) as fleet:
        lookup = context.find_run(fleet, context.load_inventory(inventory), None, console)  # type: ignore[arg-type]
    assert (lookup.run.run_id, lookup.listing.answered) == (RUN, {"a", "b"})
    assert re.search(r"\bb\b", notes[0])


def test_a_silent_host_that_has_no_part_of_the_run_is_not_waited_for(
    hosts: TwoHosts, inventory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "ANSWER_LIMIT", 1000.0)
    alone = {**A_RUN, "hosts": ["a"], "nprocs": [1], "team": 1}
    hosts._answers["a"] = lambda relay, request: relay.result(request, {"runs": [alone]})
    said: list[str] = []
    console = SimpleNamespace(note=said.append, warning=said.append)
    with context.open_fleet(context.load_inventory(inventory)) as fleet:
        lookup = context.find_run(fleet, context.load_inventory(inventory), "mine", console)  # type: ignore[arg-type]
    assert lookup.run.run_id == RUN and lookup.listing.late == {"b"} and said == []
