"""What `restart` keeps of the `--hosts` of the last start, when the inventory has changed."""

from __future__ import annotations

import pytest

from orchestrator.commands.restarting import without_gone


@pytest.mark.parametrize(
    ("pattern", "kept"),
    [
        ("!a", "!a"),
        ("! a ! gone", "!a"),
        ("!gone", None),
        ("!", None),
        ("!gpu[1-3]", "!gpu[1,3]"),
        ("!x*", "!x*"),
        ("a,gone", "a,gone"),
        ("!gone,a", "!gone,a"),
        ("*", "*"),
    ],
)
def test_hosts_that_were_left_out_are_forgotten_when_they_are_gone(pattern: str, kept: str | None) -> None:
    assert without_gone(pattern, ["a", "gpu1", "gpu3"]) == kept
