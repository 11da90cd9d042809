"""Which of the networks that hosts share is taken, and what is remembered of their speeds."""

from __future__ import annotations

from collections.abc import Iterable
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


def remember(measured: dict[str, dict[str, float]], hosts: Iterable[Host], chosen: dict[str, str]) -> None:
    by_name = {host.name: host for host in hosts}
    bandwidths.remember(by_name["a"], measured, by_name, chosen)


def test_an_address_is_as_fast_as_the_slowest_host_that_uses_it(hosts: tuple[Host, ...]) -> None:
    a, b, c = hosts
    remember({"1": {"b": 8.0, "c": 2.0}, "2": {"b": 4.0, "c": 4.0}}, hosts, {})
    assert bandwidths.prefer(a, [b]) == "1"
    assert bandwidths.prefer(a, [b, c]) == "2"
    assert bandwidths.prefer(b, [a, c]) is None


def test_a_new_measurement_replaces_the_old_one_of_that_pair_only(hosts: tuple[Host, ...]) -> None:
    a, b, c = hosts
    remember({"1": {"b": 5.0, "c": 5.0}}, hosts, {})
    remember({"2": {"b": 7.0}}, hosts, {})
    assert bandwidths.prefer(a, [b]) == "2"
    assert bandwidths.prefer(a, [c]) == "1"


def test_some_of_the_hosts_use_the_network_that_was_chosen_for_all(hosts: tuple[Host, ...]) -> None:
    a, b, c = hosts
    remember({"1": {"b": 3.2, "c": 1.6}, "2": {"b": 2.4, "c": 3.2}}, hosts, {"a": "2", "b": "2b", "c": "2c"})
    assert bandwidths.prefer(a, [b]) == bandwidths.prefer(a, [c]) == bandwidths.prefer(a, [b, c]) == "2"
    assert bandwidths.prefer(b, [c]) == bandwidths.prefer(b, [a, c]) == "2b"


def test_without_the_host_that_made_a_network_slow_its_speed_counts(hosts: tuple[Host, ...]) -> None:
    a, b, c = hosts
    remember({"1": {"b": 1.0, "c": 1.0}, "2": {"b": 9.0, "c": 0.1}}, hosts, {"a": "1", "b": "1b", "c": "1c"})
    assert bandwidths.prefer(a, [b, c]) == "1"
    assert bandwidths.prefer(a, [b]) == "2"


def test_the_newest_choice_for_most_of_the_hosts_counts(hosts: tuple[Host, ...]) -> None:
    a, b, c = hosts
    remember({"1": {"b": 1.0, "c": 1.0}}, hosts, {"a": "1", "b": "1b", "c": "1c"})
    remember({"2": {"b": 1.0}}, hosts, {"a": "2", "b": "2b"})
    assert bandwidths.prefer(a, [b]) == "2"
    assert bandwidths.prefer(b, [a]) == "2b"
    assert bandwidths.prefer(b, [a, c]) == "1b"


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        '{"x": 1}',
        "\x00",
        '{"a:None b:None": {"1": "fast"}}',
        '{"groups": 1}',
        '{"groups": [1, {"a:None": 1, "b:None": "x"}]}',
    ],
)
def test_a_damaged_memory_is_no_memory(hosts: tuple[Host, ...], tmp_path: Path, content: str) -> None:
    (tmp_path / "ddp-orch").mkdir()
    (tmp_path / "ddp-orch" / "bandwidths.json").write_text(content)
    assert bandwidths.prefer(hosts[0], hosts[1:]) is None
