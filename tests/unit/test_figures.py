"""The figures in the lines of a training, and the search for the lines that have any."""

from __future__ import annotations

import pytest

from orchestrator.node.serve.figures import PATTERN, figures, may_have_figures
from orchestrator.node.serve.search import Query


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("step 48 loss 0.39", {"step": 48, "loss": 0.39}),
        ("Step 48 Loss 0.39", {"step": 48, "loss": 0.39}),
        ("STEP: 48/100 LOSS: 0.39", {"step": 48, "total": 100, "loss": 0.39}),
        ("epoch 0 train loss 0.65", {"loss": 0.65}),
        ("Epoch 0 | Loss 0.65", {"loss": 0.65}),
        ("[GPU0] Epoch 5 | Batchsize: 32 | Steps: 8 | Loss: 0.38", {"loss": 0.38}),
        ("Samples/s: 900", {"rate": 900}),
        ("Epoch 0 Step 3 Loss 0.4", {"step": 3, "loss": 0.4}),
    ],
)
def test_figures_are_found_however_they_are_written(text: str, found: dict[str, float]) -> None:
    assert figures(text) == found
    assert may_have_figures(text)
    line = text.encode() + b"\n"
    others = b"loading\n", b"saved\n"
    hits = list(Query(PATTERN).hits(line.join(others)))  # as a host searches its journal for the report
    assert hits == [(len(others[0]), len(others[0]) + len(line))]


def test_a_line_without_their_names_has_none() -> None:
    assert not may_have_figures("saved the model")
