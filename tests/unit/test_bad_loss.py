"""A loss that is not finite, in the lines of a run that somebody follows."""

from __future__ import annotations

import pytest

from orchestrator.output.lines import Line
from orchestrator.runs.bad_loss import BadLoss


def watched(*texts: tuple[int, str]) -> str:
    watch = BadLoss()
    for number, (rank, text) in enumerate(texts):
        line = Line(float(number), f"gpu-{rank}", rank, "stdout", 1, text)
        assert watch.push([line], 0.0) == [line]
    return watch.describe()


@pytest.mark.parametrize(
    ("texts", "named"),
    [
        ([(0, "step 1 loss 2.5"), (1, "step 1 loss 2.5")], ""),
        ([(0, "step 1 loss 2.5"), (0, "step 2 loss nan"), (0, "step 3 loss nan")], "gpu-0: step 2 loss nan"),
        ([(0, "step 2 loss nan"), (1, "step 2 loss 2.5")], "gpu-0: step 2 loss nan"),
        ([(0, "step 2 loss inf"), (0, "step 3 loss 2.5")], ""),
        ([(0, "Epoch 0 | Loss 2.5"), (0, "Epoch 1 | Loss NaN")], "gpu-0: Epoch 1 | Loss NaN"),
        ([(0, "best loss so far: inf is no figure of a step")], ""),
        ([(0, "loading the nanoGPT tokens, step 0")], ""),
    ],
)
def test_the_first_line_with_such_a_loss_is_named(texts: list[tuple[int, str]], named: str) -> None:
    found = watched(*texts)
    assert found.endswith(named) and bool(found) is bool(named)
