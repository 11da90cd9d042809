"""The election in a model of whole runs, for long; a short form is in tests/unit/test_election_model.py."""

from __future__ import annotations

import pytest
from model import walk
from model.gangs import Gang
from model.real_gang import BEGUN_BY, RealGang

from .trial import SEED

STEPS = 500_000  # with each gang


@pytest.mark.parametrize(("gang", "begins"), [(Gang, 0.5), (RealGang, BEGUN_BY)])
def test_no_rule_is_broken_in_random_worlds(gang: type[Gang], begins: float) -> None:
    print(f"CHAOS_SEED={SEED}")
    _, steps = walk.walk(str(SEED), STEPS, gang, begins)
    assert steps >= STEPS
