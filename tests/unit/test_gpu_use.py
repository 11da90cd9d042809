"""How busy GPUs are costs nothing where there are none, and a host that fails takes nothing away."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.hosts.fleet import Results
from orchestrator.inventory.model import parse
from orchestrator.runs import gpu_use


class FakeFleet:
    """Answers a few times, each time as it is told to; then the watch is over."""

    def __init__(self, *answers: dict[str, list[float | None]]) -> None:
        self.answers = list(answers)
        self.asked: list[list[str]] = []

    def each(self, hosts: Any, work: Any) -> Results[Any]:
        self.asked.append([host.name for host in hosts])
        gpus = self.answers.pop(0)
        samples = {
            host: SimpleNamespace(gpus=[SimpleNamespace(busy=busy) for busy in values]) for host, values in gpus.items()
        }
        return Results(samples, {})


def shown(fleet: FakeFleet, hosts: str, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    monkeypatch.setattr(gpu_use, "INTERVAL", 0.0)
    seen: list[float] = []
    stopped = SimpleNamespace(wait=lambda _: not fleet.answers)
    inventory = parse(f"hosts: ['{hosts}']", "inventory.yaml")
    with gpu_use.watch("R", inventory.hosts, fleet, None):  # type: ignore[arg-type]
        assert not fleet.asked  # nobody looks
    gpu_use._ask("R", inventory.hosts, fleet, seen.append, stopped)  # type: ignore[arg-type]
    return seen


def test_it_is_the_average_of_all_gpus_that_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    fleet = FakeFleet({"a": [100.0, 50.0], "b": [None, 90.0]}, {}, {"a": [10.0]})
    assert shown(fleet, "a", monkeypatch) == [80.0, 10.0]


def test_hosts_without_gpus_are_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    fleet = FakeFleet({"a": []}, {"a": [10.0]})
    assert shown(fleet, "a", monkeypatch) == [] and len(fleet.asked) == 1
