"""What `bench` makes of the figures of some numbers of hosts."""

from __future__ import annotations

import io
import json
from dataclasses import asdict
from pathlib import Path

import pytest

from orchestrator.answers.printed import BenchResult, StepSeconds, Together
from orchestrator.commands import up
from orchestrator.commands.bench import (
    BenchOptions,
    Collector,
    _draw,
    _measure,
    _title,
    bench,
    host_counts,
    scaling,
    table,
)
from orchestrator.errors import Interrupted, RunFailed, UsageError
from orchestrator.output.console import Console
from orchestrator.output.lines import Line


def figures(ranks: int, speed: float, limit: str) -> BenchResult:
    seconds = {"compute": 0.01, "data": 0.001, "allreduce": 0.005, "together": 0.012}
    return BenchResult(ranks, 128, limit, Together(speed), StepSeconds(**seconds))


POINTS = scaling(
    [(1, figures(4, 1000.0, "compute")), (2, figures(8, 1900.0, "compute")), (4, figures(16, 3000.0, "allreduce"))]
)


@pytest.mark.parametrize(
    ("most", "counts"), [(1, [1]), (2, [1, 2]), (3, [1, 2, 3]), (8, [1, 2, 4, 8]), (9, [1, 2, 4, 8, 9])]
)
def test_hosts_are_doubled_until_all_take_part(most: int, counts: list[int]) -> None:
    assert host_counts(None, most) == counts


@pytest.mark.parametrize("given", ["0,1", "1,5", "two", ""])
def test_numbers_of_hosts_that_cannot_be_are_refused(given: str) -> None:
    with pytest.raises(UsageError, match="--counts"):
        host_counts(given, 4)


def test_efficiency_is_against_as_many_times_the_first() -> None:
    assert [point.efficiency for point in POINTS] == [1.0, 0.95, 0.75]


def test_the_table_has_a_line_for_each_number_of_hosts() -> None:
    lines = table(POINTS).splitlines()
    assert [line.split()[:4] for line in lines[2:]] == [
        ["1", "4", "128", "1000.0"], ["2", "8", "128", "1900.0"], ["4", "16", "128", "3000.0"],
    ]  # fmt: skip
    assert lines[4].split()[4:6] == ["75.0", "%"] and lines[4].endswith("allreduce")
    assert max(map(len, lines)) <= 80


def test_what_was_measured_is_shown_when_it_is_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "inventory.yaml").write_text("hosts: [a, b]")
    wanted = BenchOptions(
        inventory=str(tmp_path / "inventory.yaml"),
        counts=None,
        batch_per_host=None,
        strong_scaling=False,
        plot="",
        as_json=False,
        trainer_args=(),
    )

    def runs(asked: up.UpOptions, printer: Collector, *, is_measurement: bool) -> int:
        if asked.hosts == "a,b":
            return Interrupted.exit_code  # of a run that Ctrl-C has stopped
        result = json.dumps(asdict(figures(1, 1000.0, "data")))
        printer.push([Line(1.0, "a", 0, "stdout", 1, f"bench {result}")], 0.0)
        return 0

    monkeypatch.setattr(up, "up", runs)
    with pytest.raises(Interrupted):
        bench(wanted)
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()[2:]] == ["1"]


def test_a_result_that_no_trainer_prints_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def runs(_: up.UpOptions, printer: Collector, *, is_measurement: bool) -> int:
        printer.push([Line(1.0, "a", 0, "stdout", 1, 'bench {"world_size": "1"}')], 0.0)
        return 0

    monkeypatch.setattr(up, "up", runs)
    with pytest.raises(RunFailed, match=r"\bbench\.world_size\b"):
        _measure("inventory.yaml", ["a"], (), Console(io.StringIO(), False))


def test_on_a_terminal_its_run_is_seen_to_go_on() -> None:
    class Statuses(Console):
        def status(self, message: str) -> None:
            said.append(message)

    said: list[str] = []
    collector = Collector(Statuses(io.StringIO(), False), 0.0)
    collector.push([], 0.05)
    assert collector.wake_at == 1.0
    collector.push([], 1.0)
    collector.push([Line(1.0, "a", 0, "stdout", 1, "step:1")], 1.5)
    assert collector.wake_at == 2.0
    collector.push([], 2.1)
    collector.flush(2.2)
    assert said == ["1 s  starting", "2 s  step:1", ""] and collector.texts == ["step:1"]


def test_the_plot_is_a_picture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import sys

    title = _title(
        BenchOptions(
            inventory=None,
            counts=None,
            batch_per_host=128,
            strong_scaling=False,
            plot="",
            as_json=False,
            trainer_args=(),
        ),
        POINTS[0],
    )
    assert "128 samples per host" in title
    _draw(POINTS, tmp_path / "bench.png", title, Console(sys.stderr, False))
    assert (tmp_path / "bench.png").read_bytes().startswith(b"\x89PNG")
    assert "bench.png" in capsys.readouterr().err
