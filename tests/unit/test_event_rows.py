"""Events of a run as people read them."""

from __future__ import annotations

from orchestrator.ui.event_rows import fold_ends


def event(at: str, kind: str, what: str) -> dict[str, str]:
    return {"at": at, "kind": kind, "what": what}


def test_hosts_that_end_an_attempt_alike_are_one_event() -> None:
    begun, again = event("1", "attempt", "attempt 1 started"), event("6", "attempt", "attempt 2 started")
    failures = [event("2", "failure", "gpu-1: exit code 1"), event("2", "failure", "gpu-2: exit code 1")]
    ends = [event(str(3 + number), "end", f"gpu-{number}: attempt 1: all processes failed") for number in range(3)]
    later = event("7", "end", "gpu-0: attempt 2: all processes failed")
    assert fold_ends([begun, *failures, *ends, again, later]) == [
        begun,
        *failures,
        event("5", "end", "gpu-[0-2]: attempt 1: all processes failed"),
        again,
        later,
    ]
    other = event("5", "end", "gpu-9: attempt 1: all processes finished")
    assert fold_ends([ends[0], other]) == [ends[0], other]
