"""Which of the networks that hosts share is taken, and what is remembered of their speeds."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.inventory import model
from orchestrator.inventory.model import Host
from orchestrator.runs import bandwidths


@pytest.fixture
def hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Host, ...]:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return model.parse("hosts: [a, b, c]", "inventory.yaml").hosts


def test_a_much_faster_network_wins_and_of_similar_ones_the_first() -> None:
    assert bandwidths.fastest({"slow": 12e6, "fast": 1.2e9}) == "fast"
    assert bandwidths.fastest({"first": 0.85e9, "second": 1e9}) == "first"
    assert bandwidths.fastest({"broken": 0.0, "also broken": 0.0}) == "broken"


def test_an_address_is_as_fast_as_the_slowest_host_that_uses_it(hosts: tuple[Host, ...]) -> None:
    a, b, c = hosts
    bandwidths.remember(a, {"1": {"b": 5.0, "c": 2.0}, "2": {"b": 4.0, "c": 4.0}}, {host.name: host for host in hosts})
    assert bandwidths.recall(a, [b]) == {"1": 5.0, "2": 4.0}
    assert bandwidths.recall(a, [b, c]) == {"1": 2.0, "2": 4.0}
    assert bandwidths.recall(b, [a, c]) == {}


def test_a_new_measurement_replaces_the_old_one_of_that_pair_only(hosts: tuple[Host, ...]) -> None:
    a, b, c = hosts
    by_name = {host.name: host for host in hosts}
    bandwidths.remember(a, {"1": {"b": 5.0, "c": 5.0}}, by_name)
    bandwidths.remember(a, {"2": {"b": 7.0}}, by_name)
    assert bandwidths.recall(a, [b]) == {"2": 7.0}
    assert bandwidths.recall(a, [c]) == {"1": 5.0}


@pytest.mark.parametrize("content", ["", "[]", '{"x": 1}', "\x00", '{"a:None b:None": {"1": "fast"}}'])
def test_a_damaged_memory_is_no_memory(hosts: tuple[Host, ...], tmp_path: Path, content: str) -> None:
    (tmp_path / "ddp-orch").mkdir()
    (tmp_path / "ddp-orch" / "bandwidths.json").write_text(content)
    assert bandwidths.recall(hosts[0], hosts[1:]) == {}
