"""Which snapshot in memory all hosts of an attempt can have."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.node.resume.parts import Label, Saved, choose, decode, encode, step_of

LAYOUT = (1, 1, 1)
GIB = 1 << 30


def whole(step: int, attempt: int = 1, folder: str = "saved") -> Saved:
    name = f"step-{step:06}"
    return Saved(folder, name, ((f"{name}/model.pt", 100),), Label(attempt, 0, LAYOUT))


def part(step: int, rank: int, attempt: int = 1, folder: str = "saved", layout: tuple[int, ...] = LAYOUT) -> Saved:
    name = f"step-{step:06}-sharded"
    return Saved(folder, name, ((f"{name}/{rank}.pt", 100),), Label(attempt, rank, layout))


@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("step-12", 12),
        ("step-000120-ab12.pt", 120),
        ("step-5-sharded", 5),
        (".step-5", None),
        ("step-", None),
        ("x", None),
    ],
)
def test_a_name_tells_the_step(name: str, step: int | None) -> None:
    assert step_of(name) == step


def test_of_whole_snapshots_the_newest_of_any_host_counts() -> None:
    choice, _ = choose({0: [whole(5)], 1: [whole(5), whole(10)], 2: []}, [0, 1, 2], LAYOUT, GIB)
    assert choice is not None and choice.step == 10
    assert {node: [source for source, _ in parts] for node, parts in choice.parts.items()} == {0: [1], 1: [1], 2: [1]}


def test_a_copy_counts_where_its_host_is_lost() -> None:
    copy = whole(10, folder="copies/1-0")
    choice, _ = choose({1: [copy], 2: [whole(5)], 3: []}, [3, 1, 2], LAYOUT, GIB)
    assert choice is not None and choice.parts[3] == [(1, copy)] and choice.parts[1] == [(1, copy)]


def test_of_sharded_snapshots_all_parts_must_be_there() -> None:
    holdings = {0: [part(5, 0), part(10, 0)], 1: [part(5, 1), part(10, 1)], 2: [part(5, 2)]}
    choice, reasons = choose(holdings, [0, 1, 2], LAYOUT, GIB)
    assert choice is not None and choice.step == 5 and "step-000010-sharded" in reasons[0]
    assert {node: [each.label.node_rank for _, each in parts] for node, parts in choice.parts.items()} == {
        0: [0], 1: [1], 2: [2],
    }  # fmt: skip


def test_a_spare_gets_the_part_of_the_lost_host_from_the_next_one_in_the_ring() -> None:
    holdings = {0: [part(10, 0)], 2: [part(10, 2), part(10, 1, folder="copies/1-1")], 3: []}
    choice, _ = choose(holdings, [0, 3, 2], LAYOUT, GIB)
    assert choice is not None and choice.parts[3] == [(2, part(10, 1, folder="copies/1-1"))]


def test_with_other_ranks_on_the_hosts_each_gets_all_parts() -> None:
    holdings = {0: [part(10, 0)], 2: [part(10, 2), part(10, 1, folder="copies/1-1")]}
    choice, _ = choose(holdings, [0, 2], (1, 1), GIB)
    assert choice is not None
    assert [each.label.node_rank for _, each in choice.parts[0]] == [0, 1, 2]
    none, reasons = choose(holdings, [0, 2], (1, 1), 250)
    assert none is None and "run.memory_limit is 250 B" in reasons[0]


def test_parts_of_two_attempts_are_not_mixed_and_the_newer_attempt_counts() -> None:
    """A host was away while the run continued from step 5 without it. What it has of step 10 is of another course."""
    older = {2: [part(10, 2)], 1: [part(10, 1), part(10, 0, folder="copies/1-0")]}
    newer = {0: [part(10, 0, 2), part(5, 0, 2)], 1: [*older[1], part(5, 1, 2)], 2: [*older[2], part(5, 2, 2)]}
    choice, _ = choose(newer, [0, 1, 2], LAYOUT, GIB)
    assert choice is not None and choice.step == 5
    assert {each.label.attempt for parts in choice.parts.values() for _, each in parts} == {2}


def test_without_snapshots_there_is_no_choice() -> None:
    assert choose({0: [], 1: []}, [0, 1], (1, 1), GIB) == (None, [])


@given(
    st.dictionaries(
        st.integers(0, 4), st.lists(st.tuples(st.sampled_from([5, 10, 15]), st.integers(0, 2))), min_size=3
    ),
    st.permutations([0, 1, 2]),
)
def test_what_is_chosen_can_be_had_by_all(found: dict[int, list[tuple[int, int]]], team: list[int]) -> None:
    holdings = {
        node: [part(step, rank, folder=f"copies/1-{rank}") for step, rank in each] for node, each in found.items()
    }
    choice, _ = choose(holdings, team, LAYOUT, GIB)
    complete = [
        step
        for step in (5, 10, 15)
        if {rank for each in found.values() for known, rank in each if known == step} == {0, 1, 2}
    ]
    assert (choice.step if choice else None) == max(complete, default=None)
    for node_rank, node in enumerate(team if choice else []):
        assert choice is not None
        ((source, saved),) = choice.parts[node]
        assert saved in holdings[source] and saved.label.node_rank == node_rank


def test_the_message_of_a_part_can_be_read_back() -> None:
    assert decode(encode(part(5, 1))) == part(5, 1)
    with pytest.raises((KeyError, TypeError, ValueError)):
        decode({"label": {}})
