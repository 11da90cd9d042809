"""What a broken or hostile host may say: only what an honest one could say gets past the session."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fake_relay import A_FAILURE, A_RUN, Relay
from host_facts import decoded, with_gpus
from hypothesis import given
from hypothesis import strategies as st
from operations import OPERATIONS

from orchestrator.answers.attach import ATTACH, Live, Pieces
from orchestrator.answers.decode import MalformedAnswer
from orchestrator.answers.hello import Hello
from orchestrator.answers.operation import Operation
from orchestrator.answers.runs import LIST
from orchestrator.checks import auto_env, hosts
from orchestrator.commands import ps
from orchestrator.hosts import claims
from orchestrator.hosts import session as sessions
from orchestrator.hosts.node_program import NodeProgram
from orchestrator.hosts.session import InvalidAnswer, Refused, Session, SessionLost
from orchestrator.inventory import model
from orchestrator.node.serve import relay
from orchestrator.plan import plan
from orchestrator.runs.registry import Run
from orchestrator.ssh import noise

ABSENT = "<absent>"
A_PROCESS = {"pid": 9, "used_mib": 70000, "uid": 1000, "command": "python"}
ESCAPE = "\x1b]52;c;Zm9v\x07"


def refused(operation: Operation[Any], answer: Any) -> str:
    with pytest.raises(MalformedAnswer) as caught:
        operation.decode(answer)
    return str(caught.value)


def test_what_an_honest_host_lists_is_taken() -> None:
    lost = {"host": "a", "what": "it fell silent", "node": 0, "rank": None, "at": 1.0}
    for verdict in ({"state": "lost"}, {"state": "lost", "first_failure": lost, "stopped_by": None}):
        over = {**A_RUN, "verdict": verdict, "signal": "SIGKILL", "exit_code": None}
        assert [part.verdict is None for part in LIST.decode({"runs": [A_RUN, over]}).runs] == [True, False]
        run = ATTACH.decode({"run": {**A_RUN, "verdict": verdict}, "ended": True, "offsets": {}, "cut": []}).run
        assert run is not None and run.verdict is not None and run.verdict.state == "lost"
    assert ATTACH.decode({"run": None}).run is None
    streams = ["1.0.out", "12.4711.err", "1.agent.err", "0.run.out"]
    parts = [[3, 0, 1, 1], [0, 7, 2, 2]]
    data = ATTACH.decode_data({"streams": streams, "parts": parts}, b"abc")
    assert data == Pieces(tuple(streams), ((3, 0, 1, 1), (0, 7, 2, 2)))
    assert ATTACH.decode_data({"live": True, "offsets": {"1.0.out": 3}}, b"") == Live(True, {"1.0.out": 3})


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("run_id", "../../.ssh"),
        ("run_id", "package"),
        ("run_id", "index"),
        ("run_id", f"20260101{ESCAPE}"),
        ("name", "../x"),
        ("name", f"mine{ESCAPE}"),
        ("name", "[/bold]"),
        ("state", "owned"),
        ("state", ["running"]),
        ("started_at", f"2026-01-01T00:00:00{ESCAPE}"),
        ("ended_at", "now"),
        ("ended_at", float("inf")),
        ("ended_at", 10**400),
        ("ended_at", True),
        ("by", ["ann"]),
        ("script", None),
        ("node", "0"),
        ("node", True),
        ("node", None),
        ("hosts", "ab"),
        ("hosts", ["-oProxyCommand=id"]),
        ("hosts", [[]]),
        ("attempt", 1.5),
        ("signal", ESCAPE),
        ("pid", "1"),
        ("verdict", {"state": "won"}),
        ("verdict", {"state": "failed", "first_failure": {"host": "a"}}),
        ("verdict", None),
    ],
)
def test_a_run_that_no_host_could_have_is_refused_with_its_key(key: str, value: Any) -> None:
    assert refused(LIST, {"runs": [A_RUN, {**A_RUN, key: value}]}).startswith(f"list.runs[1].{key}")


@pytest.mark.parametrize("key", [key for key in A_RUN if key != "verdict"])
def test_a_missing_key_is_refused(key: str) -> None:
    assert refused(LIST, {"runs": [{name: A_RUN[name] for name in A_RUN if name != key}]}) == f"list.runs[0].{key}"


@pytest.mark.parametrize(
    ("header", "payload"),
    [
        ({}, b""),
        ({"streams": ["1.0.out"], "parts": [[0, 0, 2, 1]]}, b"x"),
        ({"streams": ["1.0.out"], "parts": [[1, 0, 1, 1]]}, b"x"),
        ({"streams": ["1.0.out"], "parts": [[-1, 0, 1, 1]]}, b"x"),
        ({"streams": ["1.0.out"], "parts": [[0, 0, -1, 1], [0, 0, 2, 1]]}, b"x"),
        ({"streams": ["1.0.out"], "parts": [[0, 0, 1]]}, b"x"),
        ({"streams": ["1.0.out"], "parts": [[0, 0, 1, "now"]]}, b"x"),
        ({"streams": ["../../x"], "parts": []}, b""),
        ({"streams": ["1.0.err.x"], "parts": []}, b""),
        ({"streams": [f"1.{'9' * 5000}.out"], "parts": []}, b""),
        ({"live": True}, b""),
        ({"live": True, "offsets": [1]}, b""),
    ],
)
def test_pieces_that_do_not_fit_are_refused(header: dict[str, Any], payload: bytes) -> None:
    with pytest.raises(MalformedAnswer):
        ATTACH.decode_data(header, payload)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([*A_RUN, "runs", "verdict"]), inner),
    max_leaves=12,
)


@given(st.sampled_from(OPERATIONS), JSON)
def test_any_answer_is_taken_or_malformed(operation: Operation[Any], answer: Any) -> None:
    try:
        operation.decode(answer)
    except MalformedAnswer as error:
        assert str(error).isprintable()


# --- facts, which many rules read

FULL: dict[str, Any] = {
    **with_gpus(
        rdma=[{"device": "mlx5_0", "port": "1", "state": "ACTIVE", "layer": "InfiniBand", "driver": "mlx5_core"}],
        firewalls=["ufw"],
        listeners={"29500": {"pid": 7, "command": "python"}},
        orphans=[{"pid": 8, "run_id": "20260101-000000-abcd", "command": "python"}],
        stale_locks=["/home/ann/lock"],
        paths={"/data": None},
        dns=["10.0.0.53"],
        clock=1.0,
    ),
    "nvidia": {"driver": "550.54.15", "cuda": "12.4", "error": None, "xids": ["NVRM: Xid (PCI:0000:3b:00): 79, x"]},
}
FULL["python"] = {
    **FULL["python"],
    "script": {"path": "train.py", "error": None, "absent": None, "missing": []},
    "packages": {"numpy": "2"},
}
FULL["gpus"] = [
    {**gpu, "nvlinks": [18, 18], "paths": {"GPU0": "NV18", "GPU1": "NV18"}, "processes": [A_PROCESS]}
    for gpu in FULL["gpus"]
]


def places(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every path into a value."""
    yield place
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, one in items:
        yield from places(one, (*place, key))


def replaced(value: Any, place: tuple[Any, ...], new: Any) -> Any:
    """A copy with something else at that path; ABSENT: with nothing there."""
    if not place:
        return new
    copy = value.copy()
    if new == ABSENT and len(place) == 1:
        del copy[place[0]]
    else:
        copy[place[0]] = replaced(copy[place[0]], place[1:], new)
    return copy


WRONG = [ABSENT, None, True, -1, 2**70, 1.5, "", ESCAPE, "9" * 5000, [], [[]], [1], {}, {"a": 1}]


@pytest.mark.parametrize("wrong", WRONG, ids=lambda wrong: repr(wrong)[:20])
def test_facts_with_anything_wrong_are_refused_or_judged(wrong: Any) -> None:
    full = decoded(FULL)
    read = model.parse("{hosts: [a, b], run: {rdzv: {port: 29500}}}", "inventory.yaml")
    made = plan.make(read, run_id="R", name="R", command=("-u", "train.py"), code=None, env={}, debug=False)
    hellos = {name: Hello((), "b", "m", (1, number)) for number, name in enumerate("ab")}
    refusals = 0
    for place in places(FULL):
        try:
            facts = decoded(replaced(FULL, place, wrong))
        except MalformedAnswer as error:
            assert str(error).isprintable()
            refusals += 1
            continue
        hosts.check_hosts(made, {"a": facts, "b": full}, hellos, {"a": (0.0, 0.1)})
        auto_env.choose({"a": facts, "b": full})
        plan.resolve(made, {"a": facts, "b": full})
    assert refusals > 20


FULL_RUN: dict[str, Any] = {
    **A_RUN,
    "state": "failed",
    "ended_at": 2.0,
    "verdict": {
        "state": "failed",
        "first_failure": {**A_FAILURE, "exit_code": 3, "signal": None, "pid": 7, "said": "x", "attempt": 1},
        "stopped_by": None,
    },
    "outputs": True,
    "members": [[7, 8, "python"]],
    "not_notified": {"webhook": "refused"},
    "secrets": ["TOKEN"],
    "shared_output": "/outputs",
    "resume": "union",
}


@pytest.mark.parametrize("wrong", WRONG, ids=lambda wrong: repr(wrong)[:20])
def test_a_run_with_anything_wrong_is_refused_or_listed(wrong: Any) -> None:
    (honest,) = LIST.decode({"runs": [{**FULL_RUN, "node": 1, "host": "b", "node_rank": 1, "first_rank": 1}]}).runs
    refusals = 0
    for place in places(FULL_RUN):
        try:
            (part,) = LIST.decode({"runs": [replaced(FULL_RUN, place, wrong)]}).runs
        except MalformedAnswer as error:
            assert str(error).isprintable()
            refusals += 1
            continue
        known = {"a": part, "b": honest}
        agreed = claims.check_claims(known)
        nodes = {host: one.node for host, one in known.items() if host in agreed.parts}
        assert claims.verdict_of(agreed.parts, nodes) is None or nodes
        claims.ranks_of(agreed.parts, nodes)
        claims.newest_ranks(agreed.parts, nodes)
        run = Run(part.run_id, part.name, part.state, part.attempt, part.started_at, known)
        json.dumps(run.as_dict())
        ps._row(run, run.missing_hosts, 3.0)
    assert refusals > 10


def test_every_operation_of_a_host_has_a_type_for_its_answer() -> None:
    of_a_session = Path(relay.__file__).read_text().partition("self._operations: ")[2].partition("}\n")[0]
    served = {*relay.OPERATIONS, *re.findall(r'"(\w+)": ', of_a_session)}
    assert {operation.name for operation in OPERATIONS} == served


# --- through a session


def session(relay: Relay) -> Session:
    return Session("a", relay, "python3", NodeProgram("0" * 64, b""), "NONCE")  # type: ignore[arg-type]


@pytest.mark.parametrize("number", [[1], {}, None, "1", 1.5, 2**70])
def test_an_answer_to_nothing_that_was_asked_is_passed_over(number: Any) -> None:
    def answer(relay: Relay, request: dict[str, Any]) -> None:
        relay.say(3, {"id": number, "result": {}})
        relay.say(4, {"id": number})
        relay.result(request, {"fine": True})

    assert session(Relay(answer)).request(Operation("anything", Any), {}) == {"fine": True}


@pytest.mark.parametrize("result", [None, [], "x", {"runs": 1}, {"runs": [json.loads("{}")]}])
def test_nonsense_is_that_host_s_failure(result: Any) -> None:
    one = session(Relay(lambda relay, request: relay.result(request, result)))
    with pytest.raises(InvalidAnswer, match=r"^a: .*\blist\b"):
        one.request(LIST, {})
    one.close()


def test_a_host_that_never_says_hello_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    class Silent(Relay):
        def say(self, kind: int, header: dict[str, Any], payload: bytes = b"") -> None:
            if kind != 1:
                super().say(kind, header, payload)

        def recv(self, size: int, timeout: float | None) -> bytes:
            self.say(6, {})  # it is alive, and says so all the time
            return super().recv(size, timeout)

    monkeypatch.setattr(sessions, "BOOTSTRAP_WINDOW", 0.3)
    with pytest.raises(SessionLost, match=r"^a: .*hello"):
        session(silent := Silent(lambda relay, request: None))
    silent.close()  # as whoever dialled does; else its reader would read on for as long as we live


def test_a_connection_that_is_lost_while_the_node_program_is_sent_is_no_bug() -> None:
    class Cut(Relay):
        def recv(self, size: int, timeout: float | None) -> bytes:
            return b"\nNONCE need\n"

    relay = Cut(lambda relay, request: None)
    relay.closed.set()
    with pytest.raises(SessionLost, match=r"^a: "):
        session(relay)


def test_a_login_that_drips_bytes_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    class Dripping(Relay):
        def recv(self, size: int, timeout: float | None) -> bytes:
            return b"."

    monkeypatch.setattr(sessions, "BOOTSTRAP_WINDOW", 0.3)
    monkeypatch.setattr(noise, "NOISE_LIMIT", 1 << 40)
    with pytest.raises(Refused, match=r"^a: python3 .* 0 s") as refused:
        session(Dripping(lambda relay, request: None))
    assert refused.value.code == "remote-env-differs"
