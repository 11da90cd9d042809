"""A rate of all ranks, which each of them prints, is not added up; rates of single ranks are."""

from __future__ import annotations

import pytest

from orchestrator.output.rates import Rates

Newest = list[tuple[float | None, float]]


@pytest.mark.parametrize(
    ("seen", "total", "is_printed"),
    [
        ([[(1, 84.0), (1, 83.0)], [(2, 84.0), (2, 84.0)]], 168.0, False),  # equal by chance
        ([[(1, 500.0), (1, 500.0)], [(2, 510.0), (2, 510.0)]], 510.0, True),
        ([[(1, 500.0), (1, 500.0)], [(2, 510.0), (1, 500.0)]], 510.0, True),  # rank 1 is a step behind
        ([[(2, 510.0), (1, 500.0)]], 1010.0, False),  # nothing is known yet
        ([[(None, 84.0), (None, 84.0)]], 84.0, True),
        ([[(None, 84.0), (None, 83.0)]], 167.0, False),
        ([[(3, 84.0)]], 84.0, False),
    ],
)
def test_rates_that_differ_at_a_step_are_those_of_single_ranks(
    seen: list[Newest], total: float, is_printed: bool
) -> None:
    rates = Rates()
    assert [rates.total(newest) for newest in seen][-1] == (total, is_printed)
