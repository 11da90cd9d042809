"""What the head tells people after a host was lost."""

from __future__ import annotations

import pytest

from orchestrator.node.gang.gang_state import Node, NodePhase, State
from orchestrator.node.roles import narration


def after_loss(count: int, lost: int, head: int, **changes: object) -> str:
    phases = [NodePhase.LOST if number == lost else NodePhase.EXITED for number in range(count)]
    nodes = tuple(Node(f"host-{number}", 1, number, phase=phase) for number, phase in enumerate(phases))
    first = {"host": f"host-{lost}", "node": lost, "what": "host lost", "lost": True}
    state = State(nodes, head=head, attempt=1, elects=True, first_failure=first, elected_in=1 if head else -1)
    return narration.after_loss(state._replace(**changes))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("count", "lost", "head", "leads", "left", "is_last"),
    [
        (4, 0, 1, True, "3 of 4", True),
        (4, 2, 0, False, "3 of 4", True),
        (5, 2, 0, False, "4 of 5", False),
        (3, 0, 2, True, "2 of 3", True),
    ],
)
def test_people_learn_who_leads_and_whether_another_loss_can_be_borne(
    count: int, lost: int, head: int, leads: bool, left: str, is_last: bool
) -> None:
    text = after_loss(count, lost, head)
    assert (f"host-{head} leads" in text) == leads
    assert left in text and ("majority" in text) == is_last


def test_without_elections_no_majority_is_needed() -> None:
    assert "majority" not in after_loss(3, 1, 0, elects=False)


def test_a_failure_of_a_rank_says_nothing_of_hosts() -> None:
    failure = {"host": "host-1", "node": 1, "what": "exit code 1"}
    assert after_loss(3, 1, 0, first_failure=failure) == ""
