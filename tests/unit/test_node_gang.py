"""The life of a run as decisions: told by golden stories, and searched for contradictions.

A golden file is a story: what happened, what each node was told then (`then`), the phase of the run, and the verdict.
Events that are not shown with a `then` changed no order.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from golden_files import assert_message
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.node.gang import gang, gang_events, gang_orders, team
from orchestrator.node.gang.gang_events import End, Event, Run, Stop, Wait
from orchestrator.node.gang.gang_state import GONE, NodePhase, Phase, State

STORIES = sorted((Path(__file__).parents[1] / "golden" / "gang").glob("*.json"))


def event_of(step: dict[str, Any]) -> Event:
    kind = gang_events.EVENTS[step["event"]]
    event: Event = kind(**{name: value for name, value in step.items() if name not in ("event", "then", "phase")})
    return event


def shown(action: gang.Action) -> str:
    match action.order:
        case Run(attempt, node_rank, nnodes, first_rank, world_size, address, port):
            ranks = f"ranks from {first_rank} of {world_size}"
            order = f"Run attempt {attempt}: node {node_rank} of {nnodes}, {ranks}, {address}:{port}"
        case Stop(attempt, grace, why, stacks):
            order = f"Stop attempt {attempt} within {grace:g} s: {why}{', with stacks' if stacks else ''}"
        case Wait(team):
            order = f"Wait: {', '.join(team)} at work"
        case End(verdict):
            order = f"End: {verdict['state']}"
    return f"{action.node}: {order}"


@pytest.mark.parametrize("path", STORIES, ids=lambda path: path.stem)
def test_the_story_goes_as_written(path: Path) -> None:
    story = json.loads(path.read_text())
    options = {
        name: story[name] for name in ("max_restarts", "min_nodes", "rejoin_timeout", "max_nodes") if name in story
    }
    state = gang.begin(story["nodes"], **options)
    for number, step in enumerate(story["steps"], 1):
        state, actions = gang.step(state, event_of(step))
        assert [shown(action) for action in actions] == step.get("then", []), f"step {number}: {step['event']}"
        assert state.phase.value == step["phase"], f"step {number}: {step['event']}"
    assert state.verdict == story["verdict"]


# --- whatever happens

NODES = [{"host": f"host-{number}", "nproc": number + 1} for number in range(3)]
KINDS = st.sampled_from(
    ["Joined", "StartRequested", "Started", "Failed", "Exited", "Lost", "Left", "StopRequested", "PortFound", "Tick"]
)


@st.composite
def histories(draw: st.DrawFn) -> list[Event]:
    events: list[Event] = []
    at = 1000.0
    for kind in draw(st.lists(KINDS, max_size=40)):
        at += draw(st.sampled_from([0.0, 0.01, 0.5, 9.0, 70.0]))
        # the head is not on the other end of a link: it cannot be lost to itself, nor leave
        node = draw(st.integers(1 if kind in ("Lost", "Left") else 0, len(NODES) - 1))
        attempt = draw(st.sampled_from([1, 1, 1, 0, 2]))
        match kind:
            case "Lost":
                events.append(gang_events.Lost(node, at, draw(st.sampled_from([None, at - 0.2, at - 9.0]))))
            case "Joined" | "Left":
                events.append(gang_events.EVENTS[kind](node, at))
            case "StartRequested":
                events.append(gang_events.StartRequested("10.0.0.1", 29500, at))
            case "Started":
                events.append(gang_events.Started(node, attempt, at))
            case "Failed":
                failure = {"host": f"host-{node}", "node": node, "what": f"failure at {len(events)}"}
                events.append(gang_events.Failed(node, attempt, failure, at))
            case "Exited":
                events.append(gang_events.Exited(node, attempt, draw(st.booleans()), at))
            case "PortFound":
                events.append(gang_events.PortFound(29501, at))
            case "StopRequested":
                events.append(gang_events.StopRequested("ann", draw(st.sampled_from([0.0, 5.0, 30.0])), at))
            case _:
                events.append(gang_events.Tick(at))
    return events


def play(events: list[Event], state: State | None = None) -> list[tuple[State, Event, State, tuple[gang.Action, ...]]]:
    state = state or gang.begin(NODES)
    played = []
    for event in events:
        after, actions = gang.step(state, event)
        played.append((state, event, after, actions))
        state = after
    return played


@settings(max_examples=100)
@given(histories())
def test_what_was_decided_once_is_never_changed(events: list[Event]) -> None:
    order = [Phase.WAITING, Phase.RUNNING, Phase.STOPPING, Phase.OVER]
    for before, event, after, _ in play(events):
        if before.first_failure is not None and after.first_failure != before.first_failure:
            # but for a host that had gone silent before, so that it failed first
            assert isinstance(event, gang_events.Lost) and event.heard_at is not None and event.heard_at <= before.since
            assert after.first_failure and after.first_failure["lost"] and not before.first_failure.get("lost")
        if before.verdict is not None:
            assert after.verdict == before.verdict
        assert order.index(after.phase) >= order.index(before.phase)
        assert after.attempt >= before.attempt
        assert (after.verdict is not None) == (after.phase is Phase.OVER)
        if before.phase is Phase.STOPPING:
            assert after.stop_grace <= before.stop_grace


@settings(max_examples=100)
@given(histories())
def test_a_node_whose_attempt_is_over_is_told_nothing_but_the_end(events: list[Event]) -> None:
    for _, _, after, actions in play(events):
        for action in actions:
            phase = after.nodes[action.node].phase
            assert phase not in (NodePhase.ABSENT, NodePhase.DISCONNECTED)
            if phase is NodePhase.EXITED or after.phase is Phase.OVER:
                assert action.order == End(after.verdict or {})
            if phase is NodePhase.LOST:
                assert not isinstance(action.order, Run)


@settings(max_examples=100)
@given(histories())
def test_the_head_is_told_the_end_when_no_other_has_to_be_told(events: list[Event]) -> None:
    for _, _, after, actions in play(events):
        if any(action.node == 0 and isinstance(action.order, End) for action in actions):
            assert all(node.phase in GONE for node in after.nodes[1:])


@settings(max_examples=100)
@given(histories())
def test_success_needs_the_good_end_of_every_node_and_no_failure(events: list[Event]) -> None:
    state = gang.begin(NODES)
    good = set()
    for _, event, _state, _ in play(events):
        if isinstance(event, gang_events.Exited) and event.ok and event.attempt == 1:
            good.add(event.node)
    if state.verdict is not None and state.verdict["state"] == "succeeded":
        assert good == set(range(len(NODES)))
        assert state.first_failure is None
        assert state.stopped_by is None


@settings(max_examples=100)
@given(histories())
def test_the_events_that_changed_something_give_the_same_state_again(events: list[Event]) -> None:
    """The recorder writes only these, as JSON, and may be restarted after any of them."""
    played = play(events)
    log = [
        json.dumps([gang_events.event_name(event), event._asdict()])
        for before, event, after, _ in played
        if after != before
    ]
    state = gang.begin(NODES)
    for line in log:
        name, fields = json.loads(line)
        state, _ = gang.step(state, gang_events.EVENTS[name](**fields))
    assert state == (played[-1][2] if played else gang.begin(NODES))


@settings(max_examples=100)
@given(histories())
def test_a_run_asked_to_stop_ends_though_no_node_ever_answers(events: list[Event]) -> None:
    ended_at = 1000.0 if not events else events[-1].at
    asked = [*events, gang_events.Joined(0, ended_at), gang_events.StopRequested("ann", 30.0, ended_at)]
    within = 30.0 + gang.STOP_WINDOW + gang.FAREWELL_WINDOW
    ticks: list[Event] = [gang_events.Tick(ended_at + second) for second in range(int(within) + 3)]
    played = play([*asked, *ticks])
    assert played[-1][2].phase is Phase.OVER
    assert any(action.node == 0 and isinstance(action.order, End) for _, _, _, actions in played for action in actions)


@given(st.sets(st.integers(1, len(NODES) - 1)))
def test_a_started_run_whose_nodes_do_not_come_fails_and_names_the_first_of_them(joined: set[int]) -> None:
    events: list[Event] = [gang_events.Joined(node, 0.0) for node in sorted({0, *joined})]
    events += [gang_events.StartRequested("10.0.0.1", 29500, 0.0), gang_events.Started(0, 1, 1.0)]
    events += [gang_events.Tick(float(second)) for second in range(2, 120)]
    verdict = play(events)[-1][2].verdict
    assert verdict is not None
    assert verdict["state"] == "failed"
    assert " 60 s" in verdict["first_failure"]["what"]
    assert verdict["first_failure"]["host"] == "host-1"


def test_a_node_that_comes_back_is_told_its_order_again() -> None:
    events: list[Event] = [gang_events.Joined(node, 0.0) for node in range(3)]
    events += [gang_events.StartRequested("10.0.0.1", 29500, 1.0), gang_events.Started(1, 1, 2.0)]
    state = play(events)[-1][2]
    _, actions = gang.step(state, gang_events.Joined(1, 3.0))
    assert [(action.node, type(action.order)) for action in actions] == [(1, Run)]


def test_a_node_lost_before_the_start_may_come_back_and_take_part() -> None:
    events: list[Event] = [gang_events.Joined(node, 0.0) for node in range(3)]
    events += [
        gang_events.Lost(2, 9.0),
        gang_events.Joined(2, 10.0),
        gang_events.StartRequested("10.0.0.1", 29500, 11.0),
    ]
    *_, (_, _, state, actions) = play(events)
    assert state.phase is Phase.RUNNING
    assert [(action.node, type(action.order)) for action in actions] == [(0, Run), (1, Run), (2, Run)]


def test_decisions_for_many_nodes_are_quick() -> None:
    """512 nodes that join, start and end: an event must not cost a look at all pairs of nodes."""

    nodes = [{"host": f"host-{number}", "nproc": 8} for number in range(512)]
    events: list[Event] = [gang_events.Joined(number, 1.0) for number in range(512)]
    events.append(gang_events.StartRequested("10.0.0.1", 29500, 2.0))
    events += [gang_events.Started(number, 1, 3.0) for number in range(512)]
    begun = time.process_time()
    played = play(events, gang.begin(nodes))
    assert played[-1][2].phase is Phase.RUNNING
    assert time.process_time() - begun < 5.0


# --- restarts


def started(max_restarts: int, at: float = 1000.0) -> State:
    state = gang.begin(NODES, max_restarts)
    for number in range(len(NODES)):
        state, _ = gang.step(state, gang_events.Joined(number, at))
    state, _ = gang.step(state, gang_events.StartRequested("10.0.0.1", 29500, at))
    for number in range(len(NODES)):
        state, _ = gang.step(state, gang_events.Started(number, 1, at))
    return state


def fail(state: State, at: float, **failure: Any) -> State:
    """Node 1 fails by itself, and all nodes stop."""
    told = {"host": "host-1", "node": 1, "rank": 1, "what": "rank 1 failed", "exit_code": None, "said": "", **failure}
    state, _ = gang.step(state, gang_events.Failed(1, state.attempt, told, at))
    for number in range(len(NODES)):
        state, _ = gang.step(state, gang_events.Exited(number, state.attempt, False, at + 1))
    return state


def again(state: State, at: float) -> State:
    state, actions = gang.step(state, gang_events.PortFound(29501, at))
    assert [action.order for action in actions] == [gang_orders.order_of(state, number) for number in range(len(NODES))]
    assert all(isinstance(action.order, Run) and action.order.attempt == state.attempt for action in actions)
    for number in range(len(NODES)):
        state, _ = gang.step(state, gang_events.Started(number, state.attempt, at))
    return state


def test_a_failure_within_the_budget_is_followed_by_the_same_nodes_on_another_port() -> None:
    state = fail(started(1), 2000.0)
    assert (state.phase, gang_orders.label(state)) == (Phase.RESTARTING, "restarting")
    assert team.restart_is_due(state, state.since)
    state = again(state, 2002.0)
    order = gang_orders.order_of(state, 2)
    assert isinstance(order, Run)
    assert (order.attempt, order.node_rank, order.master_port) == (2, 2, 29501)
    for number in range(len(NODES)):
        state, _ = gang.step(state, gang_events.Exited(number, 2, True, 3000.0))
    assert state.verdict and state.verdict["state"] == "succeeded" and state.verdict["restarts"] == 1


def test_when_the_budget_is_spent_the_last_attempts_first_failure_is_the_verdict() -> None:
    state = again(fail(started(1), 2000.0, what="the first"), 2010.0)
    state = fail(state, 3000.0, what="the second")
    assert state.verdict and state.verdict["state"] == "failed"
    assert state.verdict["first_failure"]["what"] == "the second"
    assert [(one["what"], one["attempt"]) for one in state.verdict["failures"]] == [("the first", 1)]
    assert_message("not-restarted-budget-spent", state.verdict["no_restart_reason"])


def fail_at_start(*failures: dict[str, Any]) -> State:
    """One attempt after the other fails three seconds after its start."""
    state = started(5)
    for number, failure in enumerate(failures):
        at = 1003.0 + 100 * number
        state = fail(again(state, at - 3.0) if number else state, at, **failure)
    return state


MISSING = {"exit_code": 1, "said": "ModuleNotFoundError: No module named 'x'"}


def test_the_same_failure_three_times_in_a_row_at_start_up_is_not_tried_again() -> None:
    assert fail_at_start(MISSING, MISSING).phase is Phase.RESTARTING
    state = fail_at_start(MISSING, MISSING, MISSING)
    assert state.verdict
    assert_message("not-restarted-same-failure", state.verdict["no_restart_reason"])


@pytest.mark.parametrize(
    "failures",
    [
        [MISSING, MISSING, {"exit_code": 1, "said": "another"}],
        [MISSING, {"exit_code": 1, "said": "another"}, MISSING],
        [{"exit_code": 1}, {"exit_code": 1}, {"exit_code": 2}],
        [{"signal": "SIGKILL"}] * 3,
    ],
)
def test_other_failures_at_start_up_are_tried_again(failures: list[dict[str, Any]]) -> None:
    assert fail_at_start(*failures).phase is Phase.RESTARTING


@pytest.mark.parametrize(
    "said",
    [
        "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address. "
        "port: 29500, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use",
        "torch.distributed.DistStoreError: Timed out after 61 seconds waiting for clients. 1/2 clients joined.",
        "ncclSystemError: System call (e.g. socket, malloc) or external library call failed or device error.",
        "RuntimeError: [/pytorch/gloo/transport/tcp/pair.cc:547] Connection closed by peer [10.0.0.2]:46102",
        "FileNotFoundError: [Errno 2] No such file or directory: '/mnt/data/train.bin'",
        "OSError: [Errno 116] Stale file handle: '/mnt/data'",
        "RuntimeError: unable to read file: Input/output error",
        "TimeoutError: timed out",
        "socket.gaierror: [Errno -3] Temporary failure in name resolution",
        "requests.exceptions.ConnectionError: HTTPSConnectionPool(host='hf.co', port=443): Max retries exceeded",
        "requests.exceptions.ReadTimeout: HTTPSConnectionPool(host='huggingface.co', port=443): Read timed out.",
        "urllib.error.HTTPError: HTTP Error 503: Service Unavailable",
    ],
)
def test_errors_of_network_and_files_are_always_tried_again(said: str) -> None:
    assert fail_at_start(*[{"exit_code": 1, "said": said}] * 3).phase is Phase.RESTARTING


@pytest.mark.parametrize(
    "said",
    [
        "ValueError: batch size 7 is not divisible by 2",
        "train.py: error: unrecognized arguments: --timeout",
        "AttributeError: module 'torch' has no attribute 'connect'",
        "KeyError: 'TimeoutSeconds'",
        "profile.ProfileError: bad",
        "",
    ],
)
def test_errors_of_the_script_are_not_taken_for_those_of_the_network(said: str) -> None:
    assert fail_at_start(*[{"exit_code": 1, "said": said}] * 3).verdict


def test_the_same_failure_later_is_tried_again() -> None:
    state = again(fail_at_start(MISSING, MISSING), 1300.0)
    assert fail(state, 2300.0, **MISSING).phase is Phase.RESTARTING


def test_a_lost_host_is_not_restarted_without() -> None:
    state, _ = gang.step(started(5), gang_events.Lost(1, 2000.0))
    for number in (0, 2):
        state, _ = gang.step(state, gang_events.Exited(number, 1, False, 2001.0))
    assert state.verdict and state.verdict["state"] == "lost"
    assert_message("not-restarted-host-lost", state.verdict["no_restart_reason"])


def test_a_stop_during_the_back_off_ends_the_run_as_killed() -> None:
    state, _ = gang.step(fail(started(5), 2000.0), gang_events.StopRequested("ann", 30.0, 2001.2))
    assert state.verdict and (state.verdict["state"], state.verdict["first_failure"]) == ("killed", None)


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        pytest.param([1000.0] * 4, [0, 0, 0, 0], id="each attempt trains"),
        pytest.param([1.0] * 9, [0, 1, 2, 4, 8, 16, 30, 30, 30], id="each fails at its start"),
        pytest.param([1.0, 1.0, 1.0, 1000.0, 1.0, 1.0], [0, 1, 2, 0, 0, 1], id="one in between trains"),
    ],
)
def test_the_back_off_grows_while_attempts_fail_at_their_start(seconds: list[float], expected: list[int]) -> None:
    state, waits = started(9), []
    for number, trained in enumerate(seconds):
        # the exit codes differ, or the run would be given up
        state = fail(state, state.started_at + trained, exit_code=number + 1)
        waits.append(next(wait for wait in range(99) if team.restart_is_due(state, state.since + wait)))
        state = again(state, state.since + waits[-1])
    assert waits == expected


# --- spares, and fewer hosts

SPARED = [*NODES, {"host": "host-3", "nproc": 2, "spare": True}, {"host": "host-4", "nproc": 2, "spare": True}]


def at_work(nodes: list[dict[str, Any]], min_nodes: int | None = None, max_restarts: int = 0) -> State:
    state = gang.begin(nodes, max_restarts, min_nodes)
    for number in range(len(nodes)):
        state, _ = gang.step(state, gang_events.Joined(number, 1000.0))
    state, _ = gang.step(state, gang_events.StartRequested("10.0.0.1", 29500, 1000.0))
    return begun(state, 1001.0)


def begun(state: State, at: float) -> State:
    for number in state.team:
        state, _ = gang.step(state, gang_events.Started(number, state.attempt, at))
    return state


def ended(state: State, at: float, ok: bool = False) -> State:
    for number in state.team:
        state, _ = gang.step(state, gang_events.Exited(number, state.attempt, ok, at))
    return state


def places(state: State) -> dict[str, tuple[int, int, int]]:
    """host -> (node rank, first rank, world size) of who has an order to run."""
    orders = {node.host: gang_orders.order_of(state, number) for number, node in enumerate(state.nodes)}
    return {
        host: (order.node_rank, order.first_rank, order.world_size)
        for host, order in orders.items()
        if isinstance(order, Run)
    }


def test_a_host_that_was_lost_after_its_part_was_done_is_no_spare_of_a_later_attempt() -> None:
    state = at_work(SPARED, 1, max_restarts=1)
    state, _ = gang.step(state, gang_events.Exited(1, 1, True, 1002.0))
    state, _ = gang.step(state, gang_events.Lost(1, 1003.0))
    failure = {"host": "host-2", "node": 2, "what": "failed", "rank": None}
    state, _ = gang.step(state, gang_events.Failed(2, 1, failure, 1004.0))
    state, _ = gang.step(ended(state, 1004.0), gang_events.PortFound(29501, 1005.0))
    assert state.team == (0, 3, 2)
    state, _ = gang.step(state, gang_events.Lost(2, 1006.0))
    state, _ = gang.step(ended(state, 1006.0), gang_events.PortFound(29502, 1050.0))
    assert state.team == (0, 3, 4)


def test_spares_wait_from_the_start_on_and_are_told_the_end() -> None:
    state = at_work(SPARED)
    assert places(state) == {"host-0": (0, 0, 6), "host-1": (1, 1, 6), "host-2": (2, 3, 6)}
    assert (
        gang_orders.order_of(state, 3)
        == gang_orders.order_of(state, 4)
        == Wait(("host-0", "host-1", "host-2"), state.master_addr)
    )
    state = ended(state, 2000.0, ok=True)
    assert state.verdict and state.verdict["state"] == "succeeded"
    assert isinstance(gang_orders.order_of(state, 3), End)


def test_the_next_team_of_many_hosts_is_found_in_one_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    is_ready = team._is_ready

    def count(state: State, number: int) -> bool:
        asked.append(number)
        return is_ready(state, number)

    monkeypatch.setattr(team, "_is_ready", count)
    state = at_work([{"host": f"host-{number}", "nproc": 1} for number in range(200)], max_restarts=1)
    asked.clear()
    assert team.next_team(state) == tuple(range(200))
    assert len(asked) == 200


def test_a_lost_host_gives_its_place_to_a_spare_without_costing_a_restart() -> None:
    state = ended(gang.step(at_work(SPARED), gang_events.Lost(1, 2000.0))[0], 2001.0)
    assert (state.phase, state.restarts_used) == (Phase.RESTARTING, 0)
    state = begun(gang.step(state, gang_events.PortFound(29501, 2010.0))[0], 2011.0)
    assert places(state) == {"host-0": (0, 0, 6), "host-3": (1, 1, 6), "host-2": (2, 3, 6)}
    state = ended(gang.step(state, gang_events.Lost(2, 3000.0))[0], 3001.0)
    state = begun(gang.step(state, gang_events.PortFound(29502, 3010.0))[0], 3011.0)
    assert places(state) == {"host-0": (0, 0, 5), "host-3": (1, 1, 5), "host-4": (2, 3, 5)}
    state = ended(gang.step(state, gang_events.Lost(3, 4000.0))[0], 4001.0)
    assert state.verdict and state.verdict["state"] == "lost"
    assert state.verdict["first_failure"]["host"] == "host-3"


def test_a_spare_that_is_lost_while_it_waits_harms_nobody_and_is_not_used() -> None:
    state, actions = gang.step(at_work(SPARED), gang_events.Lost(3, 2000.0))
    assert (state.phase, actions) == (Phase.RUNNING, ())
    state = ended(gang.step(state, gang_events.Lost(1, 2100.0))[0], 2101.0)
    state = gang.step(state, gang_events.PortFound(29501, 2110.0))[0]
    assert set(places(state)) == {"host-0", "host-4", "host-2"}


def test_a_host_that_fails_twice_gives_its_place_to_a_spare_within_the_budget() -> None:
    state = at_work(SPARED, max_restarts=3)
    for at in (2000.0, 3000.0):
        failure = {"host": "host-1", "node": 1, "rank": 1, "what": "rank 1 failed"}
        state = ended(gang.step(state, gang_events.Failed(1, state.attempt, failure, at))[0], at + 1)
        state = begun(gang.step(state, gang_events.PortFound(29501, at + 100))[0], at + 101)
    assert set(places(state)) == {"host-0", "host-3", "host-2"}
    assert state.restarts_used == 2
    assert isinstance(gang_orders.order_of(state, 1), Wait)


def test_without_a_spare_a_run_goes_on_with_fewer_hosts_down_to_the_least() -> None:
    state = ended(gang.step(at_work(NODES, min_nodes=2), gang_events.Lost(1, 2000.0))[0], 2001.0)
    state = begun(gang.step(state, gang_events.PortFound(29501, 2010.0))[0], 2011.0)
    assert places(state) == {"host-0": (0, 0, 4), "host-2": (1, 1, 4)}
    state = ended(gang.step(state, gang_events.Lost(2, 3000.0))[0], 3001.0)
    assert state.verdict and state.verdict["state"] == "lost"


def test_a_spare_that_is_lost_during_the_back_off_is_not_counted_on() -> None:
    state = ended(gang.step(at_work(SPARED[:4]), gang_events.Lost(1, 2000.0))[0], 2001.0)
    assert state.phase is Phase.RESTARTING
    state = gang.step(state, gang_events.Lost(3, 2001.5))[0]
    state = gang.step(state, gang_events.Tick(2002.0))[0]
    assert state.verdict and state.verdict["state"] == "lost"
    assert_message("not-restarted-no-spare", state.verdict["no_restart_reason"])


def test_a_host_that_was_silent_before_its_peers_failed_is_the_first_failure() -> None:
    """Their connections to it were reset; its own silence shows only when the lease is over."""
    failure = {"host": "host-2", "node": 2, "rank": 3, "what": "rank 3: exit code 1", "exit_code": 1}
    failed, _ = gang.step(at_work(SPARED), gang_events.Failed(2, 1, failure, 2000.0))
    for number in (0, 2):
        failed, _ = gang.step(failed, gang_events.Exited(number, 1, False, 2001.0))
    state, _ = gang.step(failed, gang_events.Lost(1, 2008.5, 1999.5))
    assert state.phase is Phase.RESTARTING and state.restarts_used == 0
    assert state.first_failure and (state.first_failure["host"], state.first_failure["lost"]) == ("host-1", True)
    # heard of since: then it was lost later, and for the failure the budget is spent
    state, _ = gang.step(failed, gang_events.Lost(1, 2009.5, 2000.5))
    assert state.verdict and state.verdict["first_failure"]["host"] == "host-2"


def test_a_host_whose_guard_was_killed_takes_no_part_in_the_next_attempt() -> None:
    gone = {"host": "host-1", "node": 1, "rank": None, "what": "the guard was killed", "gone": True}
    state = ended(gang.step(at_work(SPARED, max_restarts=1), gang_events.Failed(1, 1, gone, 2000.0))[0], 2001.0)
    state = begun(gang.step(state, gang_events.PortFound(29501, 2100.0))[0], 2101.0)
    assert set(places(state)) == {"host-0", "host-3", "host-2"} and state.restarts_used == 1
    assert gang.step(state, gang_events.Failed(1, 1, gone, 2200.0)) == (state, ())  # told again
    alone = ended(gang.step(at_work(NODES, max_restarts=1), gang_events.Failed(1, 1, gone, 2000.0))[0], 2001.0)
    assert alone.verdict and alone.verdict["state"] == "failed"
    assert_message("not-restarted-host-lost", alone.verdict["no_restart_reason"])


def test_a_spare_whose_guard_was_killed_is_not_counted_on() -> None:
    gone = {"host": "host-3", "node": 3, "rank": None, "what": "the guard was killed", "gone": True}
    state, actions = gang.step(at_work(SPARED), gang_events.Failed(3, 0, gone, 2000.0))
    assert (state.phase, actions) == (Phase.RUNNING, ())
    state = ended(gang.step(state, gang_events.Lost(1, 2100.0))[0], 2101.0)
    state = gang.step(state, gang_events.PortFound(29501, 2110.0))[0]
    assert set(places(state)) == {"host-0", "host-4", "host-2"}


def test_a_stall_names_the_stopped_rank_and_asks_for_stacks() -> None:
    state, actions = gang.step(at_work(NODES, max_restarts=1), gang_events.Stalled(1, 61.5, {"2": [4]}, 2000.0))
    assert state.first_failure and (state.first_failure["host"], state.first_failure["rank"]) == ("host-2", 4)
    orders = [action.order for action in actions]
    assert len(orders) == 3 and all(isinstance(order, Stop) and order.stacks for order in orders)
    assert ended(state, 2001.0).phase is Phase.RESTARTING


def test_a_stop_request_does_not_wait_for_the_stacks_of_a_stalled_attempt() -> None:
    stalled, _ = gang.step(at_work(NODES, max_restarts=1), gang_events.Stalled(1, 61.5, {}, 2000.0))
    state, actions = gang.step(stalled, gang_events.StopRequested("ann", 30.0, 2001.0))
    orders = [action.order for action in actions]
    assert len(orders) == 3 and all(isinstance(order, Stop) and not order.stacks for order in orders)
    verdict = ended(state, 2002.0).verdict
    assert verdict and verdict["state"] == "killed"


def test_a_stall_of_an_earlier_attempt_or_of_a_run_that_is_stopping_is_no_news() -> None:
    state = at_work(NODES, max_restarts=1)
    assert gang.step(state, gang_events.Stalled(0, 61.5, {}, 2000.0)) == (state, ())
    stopping = gang.step(state, gang_events.StopRequested("ann", 30.0, 2000.0))[0]
    assert gang.step(stopping, gang_events.Stalled(1, 61.5, {}, 2001.0)) == (stopping, ())


@st.composite
def long_histories(draw: st.DrawFn) -> list[tuple[str, int, float, bool]]:
    kinds = st.sampled_from(["Lost", "Failed", "ended well", "ended badly", "restart", "Stalled", "wait"])
    step = st.tuples(kinds, st.integers(1, len(SPARED) - 1), st.sampled_from([0.1, 3.0, 40.0]), st.booleans())
    return draw(st.lists(step, max_size=30))


@settings(max_examples=200)
@given(long_histories(), st.integers(1, 3), st.integers(0, 3))
def test_every_attempt_has_a_whole_team_and_no_run_outlives_its_hosts(
    history: list[tuple[str, int, float, bool]], min_nodes: int, max_restarts: int
) -> None:
    state, at = at_work(SPARED, min_nodes, max_restarts), 1001.0
    lost: set[int] = set()
    for kind, number, pause, answers in history:
        at += pause
        before = state
        match kind:
            case "Lost":
                lost.add(number)
                state, _ = gang.step(state, gang_events.Lost(number, at))
            case "Failed":
                failure = {"host": f"host-{number}", "node": number, "what": "failed", "rank": None}
                state, _ = gang.step(state, gang_events.Failed(number, state.attempt, failure, at))
            case "ended well" | "ended badly":
                state, _ = gang.step(state, gang_events.Exited(number, state.attempt, kind == "ended well", at))
            case "restart":
                state, _ = gang.step(state, gang_events.PortFound(29501, at))
            case "Stalled":
                state, _ = gang.step(state, gang_events.Stalled(state.attempt, 60.0, {}, at))
            case _:
                state, _ = gang.step(state, gang_events.Tick(at))
        if state.phase is Phase.STOPPING and answers:
            state = ended(state, at)
        assert state.team[0] == 0 and len(set(state.team)) == len(state.team) >= min_nodes
        if state.attempt > before.attempt:
            assert not lost & set(state.team)
            assert state.restarts_used <= max_restarts
            assert sum(state.nodes[one].nproc for one in state.team) == state.world_size
        elif before.first_failure is not None:
            assert state.first_failure == before.first_failure
        if before.verdict is not None:
            assert state.verdict == before.verdict
    for _ in range(40):  # whatever was: asked to stop, it ends
        at += 5.0
        state, _ = gang.step(state, gang_events.StopRequested("ann", 0.0, at))
    assert state.verdict is not None
