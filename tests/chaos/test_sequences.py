"""A few random sequences of faults, for every day; `make chaos` plays 200, and 20 with torchrun and gloo."""

from __future__ import annotations

import pytest

from .sequences import BAD, Expected, Fault, Sequence, foresee, is_fair, play_all
from .trial import SEED


@pytest.mark.lab
@pytest.mark.short
def test_runs_end_as_the_rules_say_whatever_strikes_them() -> None:
    print(f"CHAOS_SEED={SEED}; one of them again: sequences.py --seed {SEED} --only NUMBER")
    # to the end: a lab that is left keeps pytest from ending
    results = list(play_all([0, 1], SEED, False, False, labs=1))
    assert not [one for one in results if any(one.get(key) for key in BAD)]


@pytest.mark.short
def test_the_oracle_knows_the_rules() -> None:
    """It is a program too: some outcomes, worked out by hand."""

    def end(
        max_restarts: int, nnodes: str, *bursts: str, elects: bool = False
    ) -> tuple[str | None, tuple[int, ...], int]:
        faults = tuple(tuple(Fault(one[:-2], int(one[-1])) for one in burst.split(" + ")) for burst in bursts)
        sequence = Sequence("", max_restarts, nnodes, faults, (0.0,) * len(faults), elects)
        now = Expected()
        for burst in faults:
            now = foresee(now, burst, sequence)
        return now.over, now.team, now.attempt

    assert end(0, "4", "worker 1") == ("failed", (0, 1, 2, 3), 1)
    assert end(1, "4", "worker 1") == (None, (0, 1, 2, 3), 2)
    assert end(0, "4", "power 1") == (None, (0, 4, 2, 3), 2)
    assert end(0, "4", "power 1", "cut 4") == ("lost", (0, 4, 2, 3), 2)
    assert end(0, "3:4", "power 1", "cut 4") == (None, (0, 2, 3), 3)
    assert end(2, "4", "power 0") == ("lost", (0, 1, 2, 3), 1)
    assert end(0, "4", "guard 0") == ("failed", (0, 1, 2, 3), 1)
    assert end(2, "4", "guard 0") == (None, (0, 1, 2, 3), 2)
    assert end(2, "4", "recorder 0 + blip 3") == (None, (0, 1, 2, 3), 1)
    assert end(2, "4", "worker 2", "worker 2") == (None, (0, 1, 4, 3), 3)
    assert end(1, "4", "guard 2") == (None, (0, 1, 2, 3), 2)
    assert end(1, "4", "power 0", elects=True) == (None, (1, 4, 2, 3), 2)
    assert end(1, "4", "cut 0", "power 1", elects=True) == (None, (0, 4, 2, 3), 3)
    assert end(1, "4", "power 4", "cut 0", elects=True) == (None, (1, 0, 2, 3), 2)
    assert end(1, "3:4", "power 0", "power 1", elects=True) == (None, (2, 4, 3), 3)
    assert end(1, "3:4", "power 0 + power 1", "both 2", elects=True)[0] == "lost"


@pytest.mark.short
def test_what_depends_on_which_of_two_ranks_was_seen_first_is_not_played() -> None:
    """The host of the first failure is replaced after its second one."""

    def fair(*hosts: int) -> bool:
        bursts = (Fault("worker", 1), Fault("worker", 2)), *((Fault("worker", host),) for host in hosts)
        return is_fair(Sequence("", 3, "4", bursts, (0.0,) * len(bursts)))

    assert fair(3)
    assert not fair(1)
    assert not fair(3, 2)
