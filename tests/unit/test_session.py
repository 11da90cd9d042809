"""Sessions and views over them, against a relay of a few lines: how they end when something goes wrong."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from fake_relay import A_RUN, Answer, Dialer, Relay

from orchestrator import session as sessions
from orchestrator.fleet import Fleet, each
from orchestrator.inventory import Host, parse
from orchestrator.logs import Line
from orchestrator.node import wire
from orchestrator.session import Session, SessionLost
from orchestrator.ship import NodeProgram
from orchestrator.view import Choice, View

HOSTS = parse("hosts: [a, b, c]", "inventory.yaml").hosts
VERDICT = {"run": {**A_RUN, "state": "lost", "verdict": {"state": "lost"}}}

PROGRAM = NodeProgram("0" * 64, b"")


@pytest.fixture(autouse=True)
def short_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "PING_EVERY", 0.05)
    monkeypatch.setattr(sessions, "DEAD_AFTER", 0.3)


def session(answer: Answer) -> tuple[Session, Relay]:
    relay = Relay(answer)
    return Session("a", relay, "python3", PROGRAM, "NONCE"), relay


def fleet(dialer: Dialer) -> Fleet:
    return Fleet(dialer, PROGRAM, 8, lambda: "NONCE")  # type: ignore[arg-type]


# --- a session


def test_an_answer_that_came_before_the_connection_broke_is_an_answer() -> None:
    def answer(relay: Relay, request: dict[str, Any]) -> None:
        relay.result(request, {"fine": True})
        relay.cut()

    for _ in range(20):  # whoever comes first: the reader or the one who asks
        assert session(answer)[0].request("anything", {}) == {"fine": True}


def test_a_request_over_a_broken_connection_says_so() -> None:
    one, _ = session(lambda relay, request: relay.cut())
    with pytest.raises(SessionLost, match="a: the connection was closed"):
        one.request("anything", {})
    with pytest.raises(SessionLost):
        one.request("anything", {})


def test_silence_is_found() -> None:
    one, relay = session(lambda relay, request: None)
    relay.say = lambda *_: None  # type: ignore[method-assign]
    with pytest.raises(SessionLost, match="nothing heard"):
        one.request("anything", {})


def test_a_bug_where_the_data_goes_reaches_the_one_who_asked() -> None:
    def broken(header: dict[str, Any], payload: bytes) -> None:
        raise KeyError("parts")

    one, _ = session(lambda relay, request: relay.data(request, b"x"))
    with pytest.raises(RuntimeError) as raised:
        one.request("anything", {}, on_data=broken)
    assert isinstance(raised.value.__cause__, KeyError)


def test_a_slow_taker_of_data_is_not_taken_for_a_silent_host() -> None:
    resume = threading.Event()

    def answer(relay: Relay, request: dict[str, Any]) -> None:
        relay.data(request, b"x")
        relay.result(request, {})

    one, relay = session(answer)
    waiting = threading.Thread(target=lambda: one.request("anything", {}, on_data=lambda *_: resume.wait(10) and None))
    waiting.start()
    deadline = time.monotonic() + 10
    while relay.pings < 10 and time.monotonic() < deadline:  # longer than DEAD_AFTER, while the reader is held up
        time.sleep(0.01)
    assert relay.pings >= 10
    resume.set()
    waiting.join(10)
    assert not one.lost


# --- a fleet


def test_a_broken_session_is_opened_again_and_only_once_for_all_who_ask() -> None:
    dialer = Dialer(a=lambda relay, request: relay.cut() if request["op"] == "break" else relay.result(request, {}))
    one = fleet(dialer)
    with pytest.raises(SessionLost):
        one.session(HOSTS[0]).request("break", {})
    threads = [threading.Thread(target=lambda: one.session(HOSTS[0]).request("anything", {})) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert dialer.dialled == ["a", "a"]
    one.close()


def test_a_bug_on_one_host_is_raised() -> None:
    def work(host: Host) -> str:
        if host.name == "b":
            raise ZeroDivisionError
        return host.name

    with pytest.raises(ZeroDivisionError):
        each(HOSTS, work, 1)


def test_what_is_done_for_each_host_stays_in_their_order() -> None:
    delays: Iterator[float] = iter([0.05, 0.02, 0.0])

    def work(host: Host) -> str:
        if host.name == "b":
            raise SessionLost("b: gone")
        time.sleep(next(delays))
        return host.name.upper()

    found = each(HOSTS, work, 3)
    assert list(found.done.items()) == [("a", "A"), ("c", "C")]
    assert list(found.failed) == ["b"]


# --- a view


def watch(dialer: Dialer, hosts: int, *, follow: bool = True) -> tuple[View, Fleet, list[str]]:
    said: list[str] = []
    of = fleet(dialer)
    return View("R", HOSTS[:hosts], Choice(follow=follow), of, said.append), of, said


def test_a_host_that_sends_nonsense_is_not_asked_again_and_the_others_are_shown() -> None:
    def damaged(relay: Relay, request: dict[str, Any]) -> None:
        relay.say(wire.DATA, {"id": request["id"], "streams": ["1.0.out"]})  # no parts

    def answer(relay: Relay, request: dict[str, Any]) -> None:
        relay.data(request, b"fine\n")
        relay.result(request, VERDICT)

    shown: list[Line] = []
    view, of, said = watch(Dialer(a=damaged, b=answer), 2)
    view.run(shown.extend)
    assert [line.text for line in shown] == ["fine"] and said == []
    assert str(view.failed["a"]) == "a: its answer makes no sense: attach.parts"
    of.close()


def test_a_bug_in_a_reader_ends_the_view(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(view: View, host: Host, kind: str, value: Any = None) -> None:
        if kind == "data":
            raise KeyError("parts")
        put(view, host, kind, value)

    put = View._put
    monkeypatch.setattr(View, "_put", broken)
    view, of, said = watch(Dialer(a=lambda relay, request: relay.data(request, b"x")), 1)
    with pytest.raises(RuntimeError, match="a: the session's reader failed"):
        view.run(lambda lines: None)
    assert said == []
    of.close()


def test_a_view_that_is_left_calls_no_host_lost() -> None:
    before = set(threading.enumerate())
    view, of, said = watch(Dialer(a=lambda relay, request: relay.data(request, b"one\n")), 1)

    def leave(lines: list[Line]) -> None:
        if lines:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        view.run(leave)
    of.close()
    for thread in set(threading.enumerate()) - before:
        thread.join(5)
    assert said == []


def test_a_host_that_is_away_keeps_nobody_once_the_run_is_over() -> None:
    def answer(relay: Relay, request: dict[str, Any]) -> None:
        relay.data(request, b"last words\n")
        relay.result(request, VERDICT)

    shown: list[Line] = []
    view, of, said = watch(Dialer(a=answer, b=lambda relay, request: relay.cut()), 2)
    view.run(shown.extend)
    assert [line.text for line in shown] == ["last words"]
    assert view.outcomes == {"a": VERDICT}
    assert list(view.failed) == ["b"]
    assert any("trying to reach it" in line for line in said)
    of.close()


def test_a_prompt_is_shown_though_no_newline_has_come() -> None:
    kept: list[tuple[Relay, dict[str, Any]]] = []

    def answer(relay: Relay, request: dict[str, Any]) -> None:
        relay.say(wire.DATA, {"id": request["id"], "live": True, "offsets": {}})
        relay.data(request, b"continue? ")
        kept.append((relay, request))

    shown: list[Line] = []
    view, of, _ = watch(Dialer(a=answer), 1)

    def show(lines: list[Line]) -> None:
        shown.extend(lines)
        if lines and kept:
            relay, request = kept.pop()
            relay.result(request, VERDICT)

    view.run(show)
    assert [(line.text, line.partial) for line in shown] == [("continue? ", True)]
    of.close()
