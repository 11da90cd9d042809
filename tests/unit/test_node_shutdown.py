"""How a guard ends: what a second SIGTERM changes."""

from __future__ import annotations

import pytest

from orchestrator.node.guard.child import RecorderChild
from orchestrator.node.guard.shutdown import Shutdown
from orchestrator.node.host import login_session

SPEC = {"max_restarts": 1, "rejoin_timeout": 600.0}


def never_become(_: object) -> None:
    raise AssertionError("no recorder is started here")


def test_a_host_that_shuts_down_does_so_although_a_later_look_cannot_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = iter([True, False])  # at the second SIGTERM, systemctl does not answer any more
    monkeypatch.setattr(login_session, "host_shuts_down", lambda: next(looks))
    shutdown = Shutdown("/nowhere", RecorderChild(never_become), lambda: None)  # type: ignore[arg-type]
    assert shutdown.leave_with_host(SPEC)
    assert shutdown.leave_with_host(SPEC) and shutdown.leaves
