"""Requests to drain or to add hosts, from the guard of the head to its recorder and back."""

from __future__ import annotations

import pytest

from orchestrator.node.guard.team_requests import MOST, TeamRequests

REQUEST = {"do": "drain", "id": "a", "node": 1, "by": "ann"}


def test_a_request_is_pending_until_the_gang_has_decided() -> None:
    requests = TeamRequests()
    assert requests.add(REQUEST) == {"answer": None} == requests.add(REQUEST)
    assert requests.pending == [REQUEST]
    requests.answer("a", False)
    assert requests.pending == []  # a recorder that is started later must not try it again
    assert requests.add(REQUEST) == {"answer": False}


def test_what_was_pending_stays_pending_for_a_new_guard() -> None:
    requests = TeamRequests()
    requests.add(REQUEST)
    assert TeamRequests(requests.pending).pending == [REQUEST]


def test_a_request_that_was_withdrawn_is_not_carried_out_later() -> None:
    requests = TeamRequests()
    requests.add(REQUEST)
    assert requests.withdraw("a") == {"answer": None} == requests.withdraw("a")
    assert requests.pending == []


def test_it_is_too_late_to_withdraw_a_request_that_was_decided() -> None:
    requests = TeamRequests()
    requests.add(REQUEST)
    requests.answer("a", True)
    assert requests.withdraw("a") == {"answer": True}


def test_the_oldest_of_many_requests_is_forgotten() -> None:
    requests = TeamRequests()
    for number in range(MOST + 1):
        requests.add({**REQUEST, "id": str(number)})
    assert [request["id"] for request in requests.pending] == [str(number) for number in range(1, MOST + 1)]


@pytest.mark.parametrize("wrong", [{"node": "one"}, {"do": "stop"}, {"do": "add"}, {"by": None}])
def test_a_malformed_request_is_refused(wrong: dict[str, object]) -> None:
    assert "error" in TeamRequests().add({**REQUEST, **wrong})
