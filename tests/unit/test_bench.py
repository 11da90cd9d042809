"""What `bench` makes of the figures of some numbers of hosts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from orchestrator.bench import _draw, host_counts, scaling, table
from orchestrator.console import Console
from orchestrator.errors import UsageError


def figures(ranks: int, speed: float, limit: str) -> dict[str, Any]:
    seconds = {"compute": 0.01, "data": 0.001, "allreduce": 0.005, "together": 0.012}
    return {
        "world_size": ranks, "batch_size": 128, "limit": limit, "seconds_per_step": seconds,
        "samples_per_second": {"together": speed},
    }  # fmt: skip


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


def test_the_plot_is_a_picture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import sys

    _draw(POINTS, tmp_path / "bench.png", Console(sys.stderr, False))
    assert (tmp_path / "bench.png").read_bytes().startswith(b"\x89PNG")
    assert "bench.png" in capsys.readouterr().err
