"""A view over the real reader of journals: cut off anywhere, it goes on where it was; only what is wanted travels."""

from __future__ import annotations

import math
import random
import re
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from fake_relay import A_RUN, Dialer, Relay
from golden_files import assert_message
from lab.waiting import wait_until

from orchestrator.answers.hello import Clock
from orchestrator.errors import OrchError
from orchestrator.hosts.claims import Ranks
from orchestrator.hosts.fleet import Fleet
from orchestrator.hosts.node_program import NodeProgram
from orchestrator.inventory.model import parse
from orchestrator.node.host import state
from orchestrator.node.recorder import journal
from orchestrator.node.serve import follow, wire
from orchestrator.output.lines import Line
from orchestrator.output.pipeline import Sink
from orchestrator.runs import follow as views
from orchestrator.runs import readers
from orchestrator.runs.follow import LogFilter, View
from orchestrator.ssh.pipe import ConnectFailure

HOSTS = parse("hosts: [a, b]", "inventory.yaml").hosts
RUN = "test-run"


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DDP_ORCH_STATE_DIR", str(tmp_path / "state"))
    folder = Path(state.run_folder(RUN)) / "log"
    folder.mkdir(parents=True)
    return folder


def put(log: Path, stream: str, pieces: list[tuple[float, bytes]], segment: int = 1 << 20) -> None:
    start = end = 0
    for at, data in pieces:
        if end - start >= segment:
            start = end
        with open(log / f"{stream}.{start:012d}.seg", "ab") as file:
            file.write(data)
        end += len(data)
        with open(log / f"{stream}.{start:012d}.idx", "ab") as file:
            file.write(journal.RECORD.pack(end, int(at * 1e9)))


def attach(relay: Relay, request: dict[str, Any], limit: float = float("inf")) -> int:
    """Answer from the journal; cut the connection behind `limit` bytes. Returns the bytes sent."""
    sent = 0

    class CutError(Exception):
        pass

    def say(frame: wire.Frame) -> None:
        nonlocal sent
        data = wire.encode(frame)
        if sent + len(data) > limit:
            relay._out.put(data[: int(limit) - sent] or b"")
            relay.cut()
            raise CutError
        sent += len(data)
        relay._out.put(data)

    try:
        result = follow.follow(
            request["args"], lambda header, data: say(wire.Frame(wire.DATA, {**header, "id": request["id"]}, data))
        )
        say(wire.Frame(wire.RESULT, {"id": request["id"], "result": result}))
    except CutError:
        pass
    return sent


def look(choice: LogFilter, **answers: Callable[[Relay, dict[str, Any]], Any]) -> tuple[list[Line], View, list[str]]:
    of = Fleet(Dialer(**answers), NodeProgram("0" * 64, b""), 8, lambda: "NONCE")  # type: ignore[arg-type]
    said: list[str] = []
    shown: list[Line] = []
    view = View(RUN, HOSTS[: len(answers)], choice, of, said.append)
    view.run(Sink(shown.extend))
    of.close()
    return shown, view, said


def texts(choice: LogFilter) -> list[str]:
    return [line.text for line in look(choice, a=attach)[0]]


@pytest.mark.parametrize(("grep", "cuts"), [(None, 1000), ("[02468]$", 50)])
def test_cut_at_a_thousand_random_bytes_it_shows_what_was_written(
    log: Path, monkeypatch: pytest.MonkeyPatch, grep: str | None, cuts: int
) -> None:
    monkeypatch.setattr(random, "uniform", lambda low, high: 0.0)
    monkeypatch.setattr(follow, "FRAME_AFTER", math.inf)  # frames of the same size, however slow the machine
    monkeypatch.setattr(wire, "MAX_PAYLOAD", 800)  # many frames, of which some arrive and one is cut
    rng = random.Random(42)
    written: dict[str, list[str]] = {}
    for stream in ("1.0.out", "1.0.err", "1.1.out", "1.agent.err"):
        lines = [f"{stream} {'é' * rng.randrange(100)} {number}" for number in range(max(cuts, 300))]
        data = "".join(line + "\n" for line in lines).encode()
        pieces = []
        while data:
            size = rng.randrange(1, 600)
            pieces, data = [*pieces, data[:size]], data[size:]
        put(log, stream, [(1 + number / 1000, piece) for number, piece in enumerate(pieces)], 10_000)
        written[stream] = [line for line in lines if grep is None or re.search(grep, line)]
    sent: list[int] = []

    def answer(relay: Relay, request: dict[str, Any]) -> None:
        sent.append(attach(relay, request, rng.randrange(1, 1300) if len(sent) < cuts else float("inf")))

    shown, view, _ = look(LogFilter(follow=True, grep=grep), a=answer)
    assert view.failed == {}
    assert len(sent) == cuts + 1
    assert sum(size > 0 for size in sent) > cuts / 50  # frames arrived between the cuts
    origins = {
        "1.0.out": (0, "stdout"),
        "1.0.err": (0, "stderr"),
        "1.1.out": (1, "stdout"),
        "1.agent.err": (None, "agent"),
    }
    for stream, lines in written.items():
        of = [line for line in shown if (line.rank, line.stream) == origins[stream]]
        # on a slow machine a line that is cut in two is first shown as far as it has come
        assert "".join(line.text for line in of) == "".join(lines)


def test_only_what_is_wanted_is_read(log: Path) -> None:
    put(log, "1.0.out", [(10, b"one\n"), (20, b"two loss\nthr"), (30, b"ee\n"), (40, b"four loss\n")])
    put(log, "1.0.err", [(15, b"warning: loss\n")])
    put(log, "2.agent.err", [(50, b"closing\n")])
    assert texts(LogFilter(follow=False)) == ["one", "warning: loss", "two loss", "three", "four loss", "closing"]
    assert texts(LogFilter(follow=False, stream="stdout")) == ["one", "two loss", "three", "four loss"]
    assert texts(LogFilter(follow=False, stream="agent")) == ["closing"]
    assert texts(LogFilter(follow=False, attempt=2)) == ["closing"]
    assert texts(LogFilter(follow=False, since=20.0, stream="stdout")) == ["two loss", "three", "four loss"]
    assert texts(LogFilter(follow=False, since=30.0, stream="stdout")) == ["three", "four loss"]
    assert texts(LogFilter(follow=False, until=20.0)) == ["one", "warning: loss", "two loss"]
    assert texts(LogFilter(follow=False, until=30.0, since=16.0)) == ["two loss", "three"]
    assert texts(LogFilter(follow=False, since=60.0)) == []
    assert texts(LogFilter(follow=False, grep="loss")) == ["warning: loss", "two loss", "four loss"]
    assert texts(LogFilter(follow=False, grep="loss", until=30.0, stream="stdout")) == ["two loss"]
    assert texts(LogFilter(follow=False, tail=1)) == ["warning: loss", "four loss", "closing"]
    assert texts(LogFilter(follow=False, tail=1, since=45.0)) == ["closing"]


def test_of_a_search_only_the_hits_travel(log: Path) -> None:
    put(log, "1.0.out", [(number, b"x" * 99 + b"\n") for number in range(5000)] + [(9999, b"needle\n")])
    sent: list[int] = []
    shown, _, _ = look(
        LogFilter(follow=False, grep="needle"), a=lambda relay, request: sent.append(attach(relay, request))
    )
    assert [line.text for line in shown] == ["needle"]
    assert sent[0] < 2000


def test_hosts_are_put_in_the_order_of_time_whatever_their_clocks_say(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(log, "1.0.out", [(100.0, b"first\n"), (102.0, b"third\n")])
    answer_a = [(3601.0, b"second\n"), (3603.0, b"fourth\n")]  # an hour, all but 100 s, ahead
    ahead = {"a": 0.0, "b": 3500.0}
    monkeypatch.setattr(views, "clock_ahead", lambda session: ahead[session.host])
    asked: list[dict[str, Any]] = []

    def b(relay: Relay, request: dict[str, Any]) -> None:
        asked.append(request["args"])
        parts, position = [], 0
        for at, data in answer_a:
            parts.append([0, position, len(data), int(at * 1e9)])
            position += len(data)
        header = {"id": request["id"], "streams": ["1.0.out"], "parts": parts}
        relay.say(wire.DATA, header, b"".join(data for _, data in answer_a))
        relay.result(request, {"run": None, "offsets": {}, "cut": []})

    shown, _, _ = look(LogFilter(follow=False, since=50.0), a=attach, b=b)
    assert [(line.text, line.at) for line in shown] == [
        ("first", 100.0),
        ("second", 101.0),
        ("third", 102.0),
        ("fourth", 103.0),
    ]
    assert asked[0]["since"] == int(3550e9)


def test_a_clock_is_compared_and_small_differences_are_left_alone() -> None:
    class Session:
        def __init__(self, ahead: float) -> None:
            self.ahead = ahead

        def request(self, operation: object, arguments: dict[str, Any]) -> Clock:
            return Clock(views.time.time() + self.ahead)

    assert views.clock_ahead(Session(0.001)) == 0.0  # type: ignore[arg-type]
    assert views.clock_ahead(Session(-30.0)) == pytest.approx(-30.0, abs=1.0)  # type: ignore[arg-type]


def test_a_login_that_is_denied_is_not_tried_again(log: Path) -> None:
    put(log, "1.0.out", [(1.0, b"last words\n")])

    class Denying(Dialer):
        def connect(self, host: Any) -> Relay:
            if self.dialled.count(host.name):
                self.dialled.append(host.name)
                raise ConnectFailure(host.name, "login", "permission denied for user ann", "ssh-auth-denied", "")
            return super().connect(host)

    dialer = Denying(a=lambda relay, request: attach(relay, request, 1))
    of = Fleet(dialer, NodeProgram("0" * 64, b""), 8, lambda: "NONCE")  # type: ignore[arg-type]
    said: list[str] = []
    view = View(RUN, HOSTS[:1], LogFilter(follow=True), of, said.append)
    view.run(Sink(lambda lines: None))  # ends
    of.close()
    assert dialer.dialled == ["a", "a"]
    failure: OrchError = view.failed["a"]
    assert isinstance(failure, ConnectFailure) and failure.code == "ssh-auth-denied"
    assert_message("view-denied", "\n".join(said))


def test_a_host_that_is_booted_after_a_long_time_is_tried_within_seconds(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    longest: list[float] = []
    monkeypatch.setattr(readers.random, "uniform", lambda _, most: longest.append(most) or 0.0)
    put(log, "1.0.out", [(1.0, b"hello\n")])

    class Down(Dialer):
        def connect(self, host: Any) -> Relay:
            if len(longest) >= 20:  # enough for the test
                raise ConnectFailure(host.name, "login", "permission denied for user ann", "ssh-auth-denied", "")
            if self.dialled:
                raise ConnectFailure(host.name, "connect", "no answer", "host-unreachable", "")
            return super().connect(host)

    dialer = Down(a=lambda relay, request: attach(relay, request, 1))
    of = Fleet(dialer, NodeProgram("0" * 64, b""), 8, lambda: "NONCE")  # type: ignore[arg-type]
    View(RUN, HOSTS[:1], LogFilter(follow=True), of, lambda line: None).run(Sink(lambda lines: None))
    of.close()
    assert longest[0] < 1 and max(longest) <= 6


def test_a_host_that_is_dead_keeps_nobody_once_the_run_is_over_elsewhere(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(views, "AWAY_PATIENCE", 0.1)
    put(log, "1.0.out", [(1.0, b"last words\n")])
    dialling, ended = threading.Event(), threading.Event()
    waited_out: list[bool] = []

    class Dying(Dialer):
        def connect(self, host: Any) -> Relay:
            if host.name == "b" and self.dialled.count("b"):
                dialling.set()
                waited_out.append(not ended.wait(30))  # as a dial into a black hole does
                raise ConnectFailure(host.name, "connect", "no answer", "host-unreachable", "")
            return super().connect(host)

    def over(relay: Relay, request: dict[str, Any]) -> None:
        dialling.wait(30)
        relay.result(request, {"run": {**A_RUN, "verdict": {"state": "lost"}}, "offsets": {}, "cut": []})

    dialer = Dying(a=over, b=lambda relay, request: attach(relay, request, 1))
    of = Fleet(dialer, NodeProgram("0" * 64, b""), 8, lambda: "NONCE")  # type: ignore[arg-type]
    said: list[str] = []
    view = View(RUN, HOSTS, LogFilter(follow=True), of, said.append)
    view.run(Sink(lambda lines: None))
    assert waited_out == []
    assert "b: " in str(view.failed["b"])
    assert_message("view-away", "\n".join(said))
    ended.set()
    of.close()


def test_that_a_host_is_connected_again_is_no_warning(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(random, "uniform", lambda low, high: 0.0)
    put(log, "1.0.out", [(1.0, b"hello\n")])
    answers = iter([lambda relay, request: relay.cut(), lambda relay, request: relay.result(request, SUCCEEDED)])
    dialer = Dialer(a=lambda relay, request: next(answers)(relay, request))
    of = Fleet(dialer, NodeProgram("0" * 64, b""), 8, lambda: "NONCE")  # type: ignore[arg-type]
    warned: list[str] = []
    noted: list[str] = []
    view = View(RUN, HOSTS[:1], LogFilter(follow=True), of, warned.append, note=noted.append)
    view.run(Sink(lambda lines: None))
    of.close()
    assert len(warned) == 1 and "again" in warned[0]
    assert len(noted) == 1 and "connected" in noted[0]


def test_of_a_host_that_goes_after_the_end_of_the_run_it_is_not_said_that_the_run_goes_on(log: Path) -> None:
    put(log, "1.0.out", [(1.0, b"last words\n")])
    started = threading.Event()

    def over(relay: Relay, request: dict[str, Any]) -> None:
        started.wait(30)
        relay.result(request, {"run": {**A_RUN, "verdict": {"state": "lost"}}, "offsets": {}, "cut": []})

    def gone(relay: Relay, request: dict[str, Any]) -> None:
        started.set()
        ended.wait(30)
        attach(relay, request, 1)

    of = Fleet(Dialer(a=over, b=gone), NodeProgram("0" * 64, b""), 8, lambda: "NONCE")  # type: ignore[arg-type]
    said: list[str] = []
    view = View(RUN, HOSTS, LogFilter(follow=True), of, said.append)
    ended = view._readers.run_ended
    view.run(Sink(lambda lines: None))
    of.close()
    assert_message("view-away-after-the-end", said[0])


LOST = {"run": {**A_RUN, "state": "lost"}, "ended": True, "offsets": {}, "cut": []}
SUCCEEDED = {"run": {**A_RUN, "verdict": {"state": "succeeded"}}, "ended": True, "offsets": {}, "cut": []}


def follow_run(
    monkeypatch: pytest.MonkeyPatch, **answers: Callable[[Relay, dict[str, Any]], Any]
) -> tuple[View, list[str]]:
    """The view of a run that was followed to its end, and the hosts that it asked to be revived."""
    monkeypatch.setattr(readers, "LOOK_FOR_GUARD", 0.01)
    revived: list[str] = []
    of = Fleet(Dialer(**answers), NodeProgram("0" * 64, b""), 8, lambda: "NONCE")  # type: ignore[arg-type]
    hosts = HOSTS[: len(answers)]
    view = View(RUN, hosts, LogFilter(follow=True), of, print, revive=lambda host: revived.append(host.name))
    view.run(Sink(lambda lines: None))
    of.close()
    return view, revived


def test_a_host_that_was_restarted_is_revived_and_followed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = 0

    def restarted(relay: Relay, request: dict[str, Any]) -> None:
        nonlocal looks
        looks += 1
        relay.result(request, LOST if looks < 4 else SUCCEEDED)

    view, revived = follow_run(monkeypatch, a=restarted)
    assert looks == 4 and revived == ["a", "a"]  # not at the first look: the recorder may start a guard by itself
    outcome = view.outcomes["a"].run
    assert outcome is not None and outcome.verdict is not None and outcome.verdict.state == "succeeded"


def test_a_run_without_any_guard_is_not_followed_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(views, "GUARD_PATIENCE", 0.1)
    view, _ = follow_run(
        monkeypatch,
        a=lambda relay, request: relay.result(request, LOST),
        b=lambda relay, request: relay.result(request, LOST),
    )
    assert all(outcome.run and outcome.run.state == "lost" for outcome in view.outcomes.values())


def test_a_host_without_a_guard_keeps_nobody_once_the_run_is_over_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    lost = threading.Event()

    def restarted(relay: Relay, request: dict[str, Any]) -> None:
        lost.set()
        relay.result(request, LOST)

    def over(relay: Relay, request: dict[str, Any]) -> None:
        lost.wait(30)
        relay.result(request, SUCCEEDED)

    view, _ = follow_run(monkeypatch, a=over, b=restarted)
    assert view.failed == {}


def test_a_line_whose_rest_waits_for_the_lines_of_other_hosts_is_not_shown_in_two(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readers, "MAX_HELD", 10)
    monkeypatch.setattr(views, "IDLE_AFTER", 0.1)
    held = threading.Event()

    def a(relay: Relay, request: dict[str, Any]) -> None:
        texts = [b"".join(b"line %d\n" % number for number in range(20)) + b"cut ", b"in two\n"]
        position = 0
        for at, text in enumerate(texts, 1):
            header = {"id": request["id"], "streams": ["1.0.out"], "parts": [[0, position, len(text), at * 10**9]]}
            relay.say(wire.DATA, header, text)
            position += len(text)
            wait_until(lambda: view._intake.held("a") > 10, 10, "the first lines are held")
        relay.result(request, {"run": None, "offsets": {}, "cut": []})

    def b(relay: Relay, request: dict[str, Any]) -> None:
        held.wait(10)  # until then, the lines of the other host are held for ours
        relay.data(request, b"slow\n")
        relay.result(request, {"run": None, "offsets": {}, "cut": []})

    of = Fleet(Dialer(a=a, b=b), NodeProgram("0" * 64, b""), 8, lambda: "NONCE")  # type: ignore[arg-type]
    view = View(RUN, HOSTS, LogFilter(follow=False), of, print)
    shown: list[Line] = []
    threading.Timer(0.5, held.set).start()  # five times as long as a line may be unfinished
    view.run(Sink(shown.extend))
    of.close()
    of_a = [line.text for line in shown if line.host == "a"]
    assert of_a == [*(f"line {number}" for number in range(20)), "cut in two"]


def test_an_unfinished_line_is_shown_though_its_host_says_more_elsewhere(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = threading.Event()

    def a(relay: Relay, request: dict[str, Any]) -> None:
        header = {"id": request["id"], "streams": ["1.0.out", "1.1.out"]}
        relay.say(wire.DATA, header | {"parts": [[0, 0, 7, 10**9]]}, b"prompt>")
        relay.say(wire.DATA, {"id": request["id"], "live": True, "offsets": {}})
        for number in range(1000):
            relay.say(wire.DATA, header | {"parts": [[1, 5 * number, 5, 10**9 + number * 10**8]]}, b"busy\n")
            if seen.wait(0.01):
                break
        relay.result(request, {"run": None, "offsets": {}, "cut": []})

    of = Fleet(Dialer(a=a), NodeProgram("0" * 64, b""), 8, lambda: "NONCE")  # type: ignore[arg-type]
    shown: list[str] = []

    def show(lines: Sequence[Line]) -> None:
        shown.extend(line.text for line in lines)
        if "prompt>" in shown:
            seen.set()

    View(RUN, HOSTS[:1], LogFilter(follow=True), of, print).run(Sink(show))
    of.close()
    assert seen.is_set() and shown.count("prompt>") == 1


def test_lines_that_a_host_sends_in_the_name_of_another_ones_rank_are_dropped() -> None:
    def sends(*streams: str) -> Callable[[Relay, dict[str, Any]], None]:
        def answer(relay: Relay, request: dict[str, Any]) -> None:
            texts = [f"{stream}\n".encode() for stream in streams]
            parts = [[number, 0, len(text), 10**9] for number, text in enumerate(texts)]
            header = {"id": request["id"], "streams": list(streams), "parts": parts}
            relay.say(wire.DATA, header, b"".join(texts))
            relay.result(request, {"run": A_RUN, "ended": True, "offsets": {}, "cut": []})

        return answer

    of = Fleet(
        Dialer(a=sends("1.0.out", "1.agent.err"), b=sends("1.0.out", "1.1.out", "1.0.err", "1.agent.err")),  # type: ignore[arg-type]
        NodeProgram("0" * 64, b""), 8, lambda: "NONCE",
    )  # fmt: skip
    warnings: list[str] = []
    shown: list[Line] = []
    ranks = Ranks({1: {"a": range(1), "b": range(1, 2)}})
    View(RUN, HOSTS, LogFilter(follow=False), of, warnings.append, ranks=ranks).run(Sink(shown.extend))
    of.close()
    assert sorted((line.host, line.text) for line in shown) == [
        ("a", "1.0.out"),
        ("a", "1.agent.err"),
        ("b", "1.1.out"),
        ("b", "1.agent.err"),
    ]
    (warning,) = warnings
    assert warning.startswith("b: ") and "rank 0" in warning and "attempt 1" in warning
