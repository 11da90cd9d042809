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
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.node import gang
from orchestrator.node.gang import End, Event, Run, State, Stop

STORIES = sorted((Path(__file__).parents[1] / "golden" / "gang").glob("*.json"))


def event_of(step: dict[str, Any]) -> Event:
    kind: Any = getattr(gang, step["event"])
    event: Event = kind(**{name: value for name, value in step.items() if name not in ("event", "then", "phase")})
    return event


def shown(action: gang.Action) -> str:
    match action.order:
        case Run(attempt, node_rank, nnodes, first_rank, world_size, address, port):
            ranks = f"ranks from {first_rank} of {world_size}"
            order = f"Run attempt {attempt}: node {node_rank} of {nnodes}, {ranks}, {address}:{port}"
        case Stop(attempt, grace, why):
            order = f"Stop attempt {attempt} within {grace:g} s: {why}"
        case End(verdict):
            order = f"End: {verdict['state']}"
    return f"{action.node}: {order}"


@pytest.mark.parametrize("path", STORIES, ids=lambda path: path.stem)
def test_the_story_goes_as_written(path: Path) -> None:
    story = json.loads(path.read_text())
    state = gang.begin(story["nodes"])
    for number, step in enumerate(story["steps"], 1):
        state, actions = gang.step(state, event_of(step))
        assert [shown(action) for action in actions] == step.get("then", []), f"step {number}: {step['event']}"
        assert state.phase == step["phase"], f"step {number}: {step['event']}"
    assert state.verdict == story["verdict"]


# --- whatever happens

NODES = [{"host": f"host-{number}", "nproc": number + 1} for number in range(3)]
KINDS = st.sampled_from(
    ["Joined", "StartRequested", "Started", "Failed", "Exited", "Lost", "Left", "StopRequested", "Tick"]
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
            case "Joined" | "Lost" | "Left":
                events.append(getattr(gang, kind)(node, at))
            case "StartRequested":
                events.append(gang.StartRequested("10.0.0.1", 29500, at))
            case "Started":
                events.append(gang.Started(node, attempt, at))
            case "Failed":
                failure = {"host": f"host-{node}", "node": node, "what": f"failure at {len(events)}"}
                events.append(gang.Failed(node, attempt, failure, at))
            case "Exited":
                events.append(gang.Exited(node, attempt, draw(st.booleans()), at))
            case "StopRequested":
                events.append(gang.StopRequested("ann", draw(st.sampled_from([0.0, 5.0, 30.0])), at))
            case _:
                events.append(gang.Tick(at))
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
    order = ["waiting", "running", "stopping", "over"]
    for before, _, after, _ in play(events):
        if before.first_failure is not None:
            assert after.first_failure == before.first_failure
        if before.verdict is not None:
            assert after.verdict == before.verdict
        assert order.index(after.phase) >= order.index(before.phase)
        assert after.attempt >= before.attempt
        assert (after.verdict is not None) == (after.phase == "over")
        if before.phase == "stopping":
            assert after.stop_grace <= before.stop_grace


@settings(max_examples=100)
@given(histories())
def test_a_node_whose_attempt_is_over_is_told_nothing_but_the_end(events: list[Event]) -> None:
    for _, _, after, actions in play(events):
        for action in actions:
            phase = after.nodes[action.node].phase
            assert phase not in ("absent", "left")
            if phase == "exited" or after.phase == "over":
                assert action.order == End(after.verdict or {})
            if phase == "lost":
                assert not isinstance(action.order, Run)


@settings(max_examples=100)
@given(histories())
def test_the_head_is_told_the_end_when_no_other_has_to_be_told(events: list[Event]) -> None:
    for _, _, after, actions in play(events):
        if any(action.node == 0 and isinstance(action.order, End) for action in actions):
            assert all(node.phase in ("left", "lost", "absent") for node in after.nodes[1:])


@settings(max_examples=100)
@given(histories())
def test_success_needs_the_good_end_of_every_node_and_no_failure(events: list[Event]) -> None:
    state = gang.begin(NODES)
    good = set()
    for _, event, _state, _ in play(events):
        if isinstance(event, gang.Exited) and event.ok and event.attempt == 1:
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
    log = [json.dumps([type(event).__name__, event._asdict()]) for before, event, after, _ in played if after != before]
    state = gang.begin(NODES)
    for line in log:
        name, fields = json.loads(line)
        state, _ = gang.step(state, getattr(gang, name)(**fields))
    assert state == (played[-1][2] if played else gang.begin(NODES))


@settings(max_examples=100)
@given(histories())
def test_a_run_asked_to_stop_ends_though_no_node_ever_answers(events: list[Event]) -> None:
    ended_at = 1000.0 if not events else events[-1].at
    asked = [*events, gang.Joined(0, ended_at), gang.StopRequested("ann", 30.0, ended_at)]
    within = 30.0 + gang.STOP_WINDOW + gang.FAREWELL_WINDOW
    ticks: list[Event] = [gang.Tick(ended_at + second) for second in range(int(within) + 3)]
    played = play([*asked, *ticks])
    assert played[-1][2].phase == "over"
    assert any(action.node == 0 and isinstance(action.order, End) for _, _, _, actions in played for action in actions)


@given(st.sets(st.integers(1, len(NODES) - 1)))
def test_a_started_run_whose_nodes_do_not_come_fails_and_names_the_first_of_them(joined: set[int]) -> None:
    events: list[Event] = [gang.Joined(node, 0.0) for node in sorted({0, *joined})]
    events += [gang.StartRequested("10.0.0.1", 29500, 0.0), gang.Started(0, 1, 1.0)]
    events += [gang.Tick(float(second)) for second in range(2, 120)]
    verdict = play(events)[-1][2].verdict
    assert verdict is not None
    assert verdict["state"] == "failed"
    assert verdict["first_failure"]["what"] == "did not start within 60 s"
    assert verdict["first_failure"]["host"] == "host-1"


def test_a_node_that_comes_back_is_told_its_order_again() -> None:
    events: list[Event] = [gang.Joined(node, 0.0) for node in range(3)]
    events += [gang.StartRequested("10.0.0.1", 29500, 1.0), gang.Started(1, 1, 2.0)]
    state = play(events)[-1][2]
    _, actions = gang.step(state, gang.Joined(1, 3.0))
    assert [(action.node, type(action.order)) for action in actions] == [(1, Run)]


def test_a_node_lost_before_the_start_may_come_back_and_take_part() -> None:
    events: list[Event] = [gang.Joined(node, 0.0) for node in range(3)]
    events += [gang.Lost(2, 9.0), gang.Joined(2, 10.0), gang.StartRequested("10.0.0.1", 29500, 11.0)]
    *_, (_, _, state, actions) = play(events)
    assert state.phase == "running"
    assert [(action.node, type(action.order)) for action in actions] == [(0, Run), (1, Run), (2, Run)]


def test_decisions_for_many_nodes_are_quick() -> None:
    """512 nodes that join, start and end: an event must not cost a look at all pairs of nodes."""

    nodes = [{"host": f"host-{number}", "nproc": 8} for number in range(512)]
    events: list[Event] = [gang.Joined(number, 1.0) for number in range(512)]
    events.append(gang.StartRequested("10.0.0.1", 29500, 2.0))
    events += [gang.Started(number, 1, 3.0) for number in range(512)]
    begun = time.process_time()
    played = play(events, gang.begin(nodes))
    assert played[-1][2].phase == "running"
    assert time.process_time() - begun < 5.0
