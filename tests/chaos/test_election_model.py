"""The election in a model of whole runs, for long; a short form is in tests/unit/test_election_model.py."""

from __future__ import annotations

from model import walk

from .trial import SEED

STEPS = 1_000_000


def test_no_rule_is_broken_in_random_worlds() -> None:
    print(f"CHAOS_SEED={SEED}")
    _, steps = walk.walk(str(SEED), STEPS)
    assert steps >= STEPS
