"""Requests to drain hosts, from the guard of the head to its recorder and back."""

from __future__ import annotations

from orchestrator.node.run.drain_requests import MOST, DrainRequests

REQUEST = {"id": "a", "node": 1, "by": "ann"}


def test_a_request_is_pending_until_the_gang_has_decided() -> None:
    drains = DrainRequests()
    assert drains.add(REQUEST) == {"accepted": None} == drains.add(REQUEST)
    assert drains.pending == [REQUEST]
    drains.answer("a", accepted=False)
    assert drains.pending == []  # a recorder that is started later must not try it again
    assert drains.add(REQUEST) == {"accepted": False}


def test_what_was_pending_stays_pending_for_a_new_guard() -> None:
    drains = DrainRequests()
    drains.add(REQUEST)
    assert DrainRequests(drains.pending).pending == [REQUEST]


def test_the_oldest_of_many_requests_is_forgotten() -> None:
    drains = DrainRequests()
    for number in range(MOST + 1):
        drains.add({**REQUEST, "id": str(number)})
    assert [request["id"] for request in drains.pending] == [str(number) for number in range(1, MOST + 1)]


def test_a_malformed_request_is_refused() -> None:
    assert "error" in DrainRequests().add({**REQUEST, "node": "one"})
