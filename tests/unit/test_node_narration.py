"""What the head tells people of restarts, of waiting, and after a host was lost."""

from __future__ import annotations

import pytest

from orchestrator.node.gang import gang, gate
from orchestrator.node.gang.gang_events import Checked, Elected
from orchestrator.node.gang.gang_state import Node, NodePhase, Phase, State
from orchestrator.node.roles import narration


def after_loss(count: int, lost: int, head: int, **changes: object) -> str:
    phases = [NodePhase.LOST if number == lost else NodePhase.EXITED for number in range(count)]
    nodes = tuple(Node(f"host-{number}", 1, number, phase=phase) for number, phase in enumerate(phases))
    first = {"host": f"host-{lost}", "node": lost, "what": "host lost", "lost": True}
    state = State(nodes, head=head, attempt=1, elects=True, first_failure=first, elected_in=1 if head else -1)
    return ", ".join(narration.after_loss(state._replace(**changes)))  # type: ignore[arg-type]


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


LOST = {"host": "host-1", "node": 1, "what": "host lost", "lost": True}
FAILED = {"host": "host-1", "node": 1, "what": "rank 1: exit code 1"}
UNFIT = {"code": "nccl-wrong-nic", "text": "it does not reach host-0"}


def ended(count: int = 3, **changes: object) -> State:
    """A run with a failed attempt, whose hosts are being checked."""
    nodes = tuple(Node(f"host-{number}", 1, number, phase=NodePhase.EXITED, asked=2) for number in range(count))
    state = State(nodes, team=tuple(range(count)), attempt=1, min_nodes=count, max_restarts=2, rejoin_timeout=60.0)
    state = state._replace(phase=Phase.RESTARTING, first_failure=FAILED, has_gate=True, since=1000.0)
    return state._replace(**changes)  # type: ignore[arg-type]


def with_lost(state: State, *lost: int) -> State:
    nodes = tuple(n._replace(phase=NodePhase.LOST) if k in lost else n for k, n in enumerate(state.nodes))
    return state._replace(nodes=nodes)


def test_a_restart_is_news_when_it_begins() -> None:
    planned, running = ended(), ended(phase=Phase.RUNNING)
    assert narration.news(running, planned) is None
    news = narration.news(planned, planned._replace(phase=Phase.RUNNING, attempt=2, first_failure=None), ["a note"])
    assert news == narration.News("restarting", 1, FAILED, [], "a note")


def test_a_restart_that_an_unfit_host_prevents_is_no_news() -> None:
    planned = ended()
    waits = gate.on_checked(planned, Checked(1, 2, (UNFIT,), 1010.0))
    news = narration.news(planned, waits)
    assert news is not None and news.state == "waiting"
    assert "host-1 to be" in news.more and UNFIT["code"] in news.more
    assert "1970-01-01T00:17:50Z" in news.more


def test_who_takes_over_is_told() -> None:
    spare = Node("host-2", 1, None, phase=NodePhase.JOINED)
    before = with_lost(ended(2, first_failure=LOST), 1)
    before = before._replace(nodes=(*before.nodes, spare))
    news = narration.news(before, before._replace(attempt=2, team=(0, 2)))
    assert news is not None and "host-2 in place" in news.more


def test_all_that_a_run_waits_for_is_told() -> None:
    lost = with_lost(ended(), 2)
    both = gate.on_checked(lost, Checked(1, 2, (UNFIT,), 1010.0))
    more = getattr(narration.news(ended(), both), "more", "")
    assert "host-2 to come" in more and "host-1 to be" in more and "enough" not in more
    one = narration.news(ended(), both._replace(min_nodes=2))
    assert one is not None and "1 of them" in one.more


def test_a_host_that_is_not_healthy_is_not_left() -> None:
    lost = with_lost(ended(4, first_failure=LOST), 1)
    assert "3 of 4" in str(narration.after_loss(lost))
    unfit = gate.on_checked(lost, Checked(2, 2, (UNFIT,), 1010.0))
    assert "2 of 4" in str(narration.after_loss(unfit))


def test_a_head_that_gives_up_the_lead_is_not_waited_for() -> None:
    planned = ended(elects=True, min_nodes=2)
    assert narration.news(planned, gate.on_checked(planned, Checked(0, 2, (UNFIT,), 1010.0))) is None
    all_needed = planned._replace(min_nodes=3)
    waits = narration.news(all_needed, gate.on_checked(all_needed, Checked(0, 2, (UNFIT,), 1010.0)))
    assert waits is not None and waits.state == "waiting"


def test_a_head_that_has_given_up_the_lead_was_not_lost() -> None:
    planned = ended(elects=True, min_nodes=2)
    unfit = gate.on_checked(planned, Checked(0, 2, (UNFIT,), 1010.0))
    led, _ = gang.step(unfit, Elected(1, "10.0.0.2", 1020.0))
    assert (led.head, led.nodes[0].phase) == (1, NodePhase.EXITED)
    (line,) = (line for line in narration.lines(unfit, led) if "host-1" in line)
    assert "left the lead" in line
