"""Sessions and views over them, against a relay of a few lines: how they end when something goes wrong."""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from fake_relay import A_RUN, HELLO, Answer, Dialer, Relay
from lab.waiting import wait_until

from orchestrator.answers.attach import Attached
from orchestrator.answers.decode import decode
from orchestrator.answers.ends import STOP
from orchestrator.answers.operation import Operation, Streaming
from orchestrator.answers.runs import LIST
from orchestrator.hosts import session as sessions
from orchestrator.hosts.fleet import Fleet, Late, each
from orchestrator.hosts.node_program import NodeProgram
from orchestrator.hosts.session import InvalidAnswer, Refused, Session, SessionLost
from orchestrator.inventory.model import Host, parse
from orchestrator.node.serve import relay as relays
from orchestrator.node.serve import wire
from orchestrator.output.lines import Line
from orchestrator.output.pipeline import Sink
from orchestrator.runs import readers
from orchestrator.runs.follow import LogFilter, View

ANYTHING = Streaming("anything", Any, lambda header, _: header)  # type: ignore[arg-type, var-annotated]
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
        assert session(answer)[0].request(ANYTHING, {}) == {"fine": True}


def test_a_request_over_a_broken_connection_says_so() -> None:
    one, _ = session(lambda relay, request: relay.cut())
    with pytest.raises(SessionLost, match=r"^a: "):
        one.request(ANYTHING, {})
    with pytest.raises(SessionLost):
        one.request(ANYTHING, {})


def test_silence_is_found() -> None:
    one, relay = session(lambda relay, request: None)
    relay.say = lambda *_: None  # type: ignore[method-assign]
    with pytest.raises(SessionLost, match="no data for"):
        one.request(ANYTHING, {})


def test_a_bug_where_the_data_goes_reaches_the_one_who_asked() -> None:
    def broken(header: dict[str, Any], payload: bytes) -> None:
        raise KeyError("parts")

    one, _ = session(lambda relay, request: relay.data(request, b"x"))
    with pytest.raises(RuntimeError) as raised:
        one.follow(ANYTHING, {}, broken)
    assert isinstance(raised.value.__cause__, KeyError)


def test_a_slow_taker_of_data_is_not_taken_for_a_silent_host() -> None:
    resume = threading.Event()

    def answer(relay: Relay, request: dict[str, Any]) -> None:
        relay.data(request, b"x")
        relay.result(request, {})

    one, relay = session(answer)
    waiting = threading.Thread(target=lambda: one.follow(ANYTHING, {}, lambda *_: resume.wait(10) and None))
    waiting.start()
    deadline = time.monotonic() + 10
    while relay.pings < 10 and time.monotonic() < deadline:  # longer than DEAD_AFTER, while the reader is held up
        time.sleep(0.01)
    assert relay.pings >= 10
    resume.set()
    waiting.join(10)
    assert not one.lost


# --- limits of time and memory


def no_answer(relay: Relay, request: dict[str, Any]) -> None:
    """As a relay whose thread is stuck in the kernel: the others go on, and PINGs are answered."""


def test_a_host_that_answers_every_ping_but_no_request_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "ANSWER_LIMIT", 0.5)
    one, relay = session(no_answer)
    with pytest.raises(SessionLost, match=r"^a: .*`list`"):
        one.request(LIST, {})
    assert one.lost and relay.closed.is_set()  # which ends the relay and what it works on


def test_an_answer_may_take_longer_by_what_the_asker_grants(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "LIMITS", {"stop": 0.1})

    def answer(relay: Relay, request: dict[str, Any]) -> None:
        wait_until(lambda: relay.pings >= 8, 10, "more time has passed than `stop` has by itself")
        relay.result(request, {"killed": [], "ports_freed": [], "gpus_freed": [], "remaining": []})

    one, _ = session(lambda relay, request: threading.Thread(target=answer, args=(relay, request)).start())
    assert one.request(STOP, {}, extra_time=60.0).killed == ()


def test_time_in_which_nobody_takes_the_data_is_not_the_host_s(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "ANSWER_LIMIT", 0.5)
    resume = threading.Event()

    def answer(relay: Relay, request: dict[str, Any]) -> None:
        relay.data(request, b"x")
        relay.result(request, {})

    one, relay = session(answer)
    asked = threading.Thread(target=lambda: one.follow(ANYTHING, {}, lambda *_: resume.wait(10) and None))
    asked.start()
    wait_until(lambda: relay.pings >= 20, 10, "more time has passed than an answer may take")
    resume.set()
    asked.join(10)
    assert not one.lost


def test_every_operation_with_a_limit_of_its_own_is_one_of_the_relay() -> None:
    source = Path(relays.__file__).read_text()
    assert all(f'"{operation}": ' in source for operation in sessions.LIMITS)


def test_a_host_says_hello_once() -> None:
    one, _ = session(lambda relay, request: relay.say(wire.HELLO, HELLO))
    with pytest.raises(Refused, match="hello: sent twice"):
        one.request(ANYTHING, {})


# --- a fleet


def test_a_broken_session_is_opened_again_and_only_once_for_all_who_ask() -> None:
    dialer = Dialer(a=lambda relay, request: relay.cut() if request["op"] == "break" else relay.result(request, {}))
    one = fleet(dialer)
    with pytest.raises(SessionLost):
        one.session(HOSTS[0]).request(Operation("break", Any), {})
    threads = [threading.Thread(target=lambda: one.session(HOSTS[0]).request(ANYTHING, {})) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert dialer.dialled == ["a", "a"]
    one.close()


def test_any_exception_is_the_failure_of_its_host_and_says_where_it_came_from() -> None:
    def work(host: Host) -> str:
        if host.name == "b":
            raise ZeroDivisionError("two\nlines")
        return host.name

    found = each(HOSTS, work, 1)
    assert list(found.done) == ["a", "c"]
    assert isinstance(found.failed["b"], Refused) and found.failed["b"].code == "bug"
    assert re.fullmatch(r"b: .*\bZeroDivisionError: two lines \S+ test_session\.py:\d+\b.*", str(found.failed["b"]))


def test_whoever_has_enough_waits_for_no_other_host() -> None:
    hangs = threading.Event()

    def work(host: Host) -> str:
        if host.name == "b":
            hangs.wait(10)
        return host.name

    found = each(HOSTS, work, 3, enough=lambda so_far: set(so_far.done) == {"a", "c"})
    hangs.set()
    assert list(found.done) == ["a", "c"] and found.late == {"b"}
    assert isinstance(found.failed["b"], Late) and str(found.failed["b"]).startswith("b: ")


def test_an_interrupt_leaves_what_has_come() -> None:
    seen: list[set[str]] = []

    def work(host: Host) -> str:
        if host.name == "b":
            os.kill(os.getpid(), signal.SIGINT)
            threading.Event().wait(10)
        return host.name

    with pytest.raises(KeyboardInterrupt):
        each(HOSTS, work, 1, enough=lambda so_far: seen.append(set(so_far.done)) or False)
    assert seen[-1] == {"a"}


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
    return View("R", HOSTS[:hosts], LogFilter(follow=follow), of, said.append), of, said


def test_a_host_that_sends_nonsense_is_not_asked_again_and_the_others_are_shown() -> None:
    def damaged(relay: Relay, request: dict[str, Any]) -> None:
        relay.say(wire.DATA, {"id": request["id"], "streams": ["1.0.out"]})  # no parts

    def answer(relay: Relay, request: dict[str, Any]) -> None:
        relay.data(request, b"fine\n")
        relay.result(request, VERDICT)

    shown: list[Line] = []
    view, of, said = watch(Dialer(a=damaged, b=answer), 2)
    view.run(Sink(shown.extend))
    assert [line.text for line in shown] == ["fine"] and said == []
    failure = view.failed["a"]
    assert isinstance(failure, InvalidAnswer) and "attach.parts" in str(failure)
    of.close()


def test_an_exception_in_a_reader_is_the_failure_of_its_host(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: readers.Readers, host: str, event: readers.Event) -> None:
        if isinstance(event, readers.Data):
            raise KeyError("parts")
        put(self, host, event)

    put = readers.Readers.put
    monkeypatch.setattr(readers.Readers, "put", broken)
    view, of, said = watch(Dialer(a=lambda relay, request: relay.data(request, b"x")), 1)
    view.run(Sink(lambda lines: None))
    failure = view.failed["a"]
    assert said == [] and isinstance(failure, Refused) and failure.code == "bug"
    assert "KeyError: 'parts' at test_session.py:" in str(failure)
    of.close()


def test_a_host_that_sends_more_than_can_be_kept_is_read_no_further(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readers, "KEPT_LINES", 0)
    monkeypatch.setattr(readers, "MIN_KEPT_LINES", 1000)

    def endless(relay: Relay, request: dict[str, Any]) -> None:
        def send() -> None:
            for offset in range(0, 1 << 40, 100):
                if relay.closed.is_set():
                    return
                header = {"id": request["id"], "streams": ["1.0.out"], "parts": [[0, offset, 100, 1]]}
                relay.say(wire.DATA, header, b"\n" * 100)

        threading.Thread(target=send, daemon=True).start()

    def answer(relay: Relay, request: dict[str, Any]) -> None:
        relay.data(request, b"fine\n")
        relay.result(request, VERDICT)

    kept: list[Line] = []
    of = fleet(Dialer(a=endless, b=answer))
    view = View("R", HOSTS[:2], LogFilter(follow=False), of, lambda _: None, kept=True)
    view.run(Sink(kept.extend))
    of.close()
    assert len([line for line in kept if line.host == "a"]) == 1000 and [line.text for line in kept if line.text]
    failure = view.failed["a"]
    assert isinstance(failure, Refused) and not isinstance(failure, InvalidAnswer) and " lines " in str(failure)


@pytest.mark.parametrize("live", [False, True])
def test_a_host_has_only_so_many_streams(monkeypatch: pytest.MonkeyPatch, live: bool) -> None:
    monkeypatch.setattr(readers, "MAX_STREAMS", 100)

    def answer(relay: Relay, request: dict[str, Any]) -> None:
        names = [f"{attempt}.0.out" for attempt in range(101)]
        parts = [[number, 0, 0, 1] for number in range(101)]
        header = {"live": True, "offsets": dict.fromkeys(names, 1)} if live else {"streams": names, "parts": parts}
        relay.say(wire.DATA, {"id": request["id"], **header})

    view, of, _ = watch(Dialer(a=answer), 1)
    view.run(Sink(lambda lines: None))
    failure = view.failed["a"]
    assert isinstance(failure, InvalidAnswer) and "attach: " in str(failure) and "100" in str(failure)
    of.close()


def test_a_view_that_is_left_calls_no_host_lost() -> None:
    before = set(threading.enumerate())
    view, of, said = watch(Dialer(a=lambda relay, request: relay.data(request, b"one\n")), 1)

    def leave(lines: Sequence[Line]) -> None:
        if lines:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        view.run(Sink(leave))
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
    view.run(Sink(shown.extend))
    assert [line.text for line in shown] == ["last words"]
    assert view.outcomes == {"a": decode(Attached, VERDICT, "attach")}
    assert list(view.failed) == ["b"]
    assert any(line.startswith("b: ") for line in said)
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

    view.run(Sink(show))
    assert [(line.text, line.partial) for line in shown] == [("continue? ", True)]
    of.close()
