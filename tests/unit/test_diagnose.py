"""The diagnosis of real failures' logs (tests/golden/diagnose: log files and expected.json a case)."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from orchestrator import causes, transcript
from orchestrator.diagnose import Diagnosis, diagnose

GOLDEN = Path(__file__).parents[1] / "golden" / "diagnose"
CASES = sorted(path.parent for path in GOLDEN.glob("*/expected.json"))


def of(folder: Path) -> Diagnosis:
    logs = sorted(path for path in folder.iterdir() if path.suffix == ".log")
    return diagnose(transcript.read([(str(path), path.read_text(encoding="utf-8")) for path in logs]))


@pytest.mark.parametrize("folder", CASES, ids=lambda folder: folder.name)
def test_the_first_cause_of_a_real_failure_is_named(folder: Path) -> None:
    expected = json.loads((folder / "expected.json").read_text())
    found = of(folder).findings
    if expected["code"] is None:
        assert found == ()
        return
    assert found, "no failure was seen"
    assert found[0].code == expected["code"], found
    if expected["hosts"] is not None:
        assert list(found[0].hosts) == expected["hosts"]
    if expected["rank"] is not None:
        assert found[0].rank == expected["rank"]


def test_every_cause_says_what_it_means_and_how_to_mend_it() -> None:
    known = causes.load().causes
    assert len(known) > 100
    for code, cause in known.items():
        assert re.fullmatch(r"[a-z0-9-]+", code)
        assert cause.meaning.endswith(".")
        assert cause.fix.endswith(".")
