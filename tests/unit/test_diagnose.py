"""The diagnosis of logs: of real failures (tests/golden/diagnose: log files and expected.json a case), and of texts
written after public reports of what cannot be produced on a machine without GPUs (worded.txt, reported.txt)."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from orchestrator.diagnosis import causes, fix_values, transcript
from orchestrator.diagnosis.engine import Diagnosis, diagnose

GOLDEN = Path(__file__).parents[1] / "golden" / "diagnose"
CASES = sorted(path.parent for path in GOLDEN.glob("*/expected.json"))


def of(folder: Path) -> Diagnosis:
    logs = sorted(path for path in folder.iterdir() if path.suffix == ".log")
    return diagnose(transcript.parse_logs([(str(path), path.read_text(encoding="utf-8")) for path in logs]))


@pytest.mark.parametrize("folder", CASES, ids=lambda folder: folder.name)
def test_the_first_cause_of_a_real_failure_is_named(folder: Path) -> None:
    expected = json.loads((folder / "expected.json").read_text())
    found = of(folder).findings
    if expected["code"] is None:
        assert found == ()
        return
    assert found, "no failure was seen"
    assert found[0].code in expected["code"].split("|"), found
    if expected["hosts"] is not None:
        assert list(found[0].hosts) == expected["hosts"]
    if expected["rank"] is not None:
        assert found[0].rank == expected["rank"]


def test_the_fix_has_the_port_that_the_evidence_names() -> None:
    for name in ("port-in-use-1", "wild-port-taken"):
        first = of(GOLDEN / name).findings[0]
        (port,) = set(re.findall(r"port: (\d+)", "".join(first.evidence)))
        assert f"sport = :{port}'" in first.fix


@pytest.mark.parametrize(
    ("evidence", "filled"),
    [
        ("[Errno 98] error while attempting to bind on address ('0.0.0.0', 8008): address already in use", ":8008 PID"),
        ('server = HTTPServer(("", 8008), Metrics)', ":8008 PID"),
        ("uvicorn.run(app, port=8008)", ":8008 PID"),
        ("listen tcp 127.0.0.1:8008: bind: address already in use", ":8008 PID"),
        ("port 8008 is in use by pid 811 (python)", ":8008 811"),
        ("port 8008 and port 8009 are in use", ":PORT PID"),
        ("train.py:12: Address already in use", ":PORT PID"),
        ("GPU 0 has 1 GiB free. Process 811 has 7 GiB memory in use. Of the allocated memory", ":PORT 811"),
        ("", ":PORT PID"),
    ],
)
def test_placeholders_of_a_fix_are_filled_with_the_only_value_there_is(evidence: str, filled: str) -> None:
    assert fix_values.fill_in(":PORT PID", [evidence]) == filled


def test_a_port_that_only_the_code_of_a_frame_shows_is_used() -> None:
    code = ['File "t.py", line 6, in main', 'HTTPServer(("", 8008), Metrics)']
    assert fix_values.fill_in(":PORT", ["Address already in use"], code) == ":8008"
    assert fix_values.fill_in(":PORT", ["port 8009 is in use"], code) == ":8009"


def test_a_snapshot_that_a_full_disk_cut_is_not_another_cause() -> None:
    assert "checkpoint-corrupt" not in [finding.code for finding in of(GOLDEN / "disk-full-1").findings]


def test_a_harmless_warning_is_no_evidence_for_a_silent_end() -> None:
    logs = [(f"{name}.log", (GOLDEN / "unknown-1" / f"{name}.log").read_text()) for name in ("node-a", "node-b")]
    name, text = logs[1]
    said, report = text.split("E1122", 1)
    warning = "[rank1]:[W1122 00:06:40.1 s.cpp:7] [c10d] The hostname of the client socket cannot be retrieved. err=-3"
    first = diagnose(transcript.parse_logs([logs[0], (name, f"{said}{warning}\nE1122{report}")])).findings[0]
    assert first.code == "unknown" and not [line for line in first.evidence if "c10d" in line]


Block = tuple[str, str, list[tuple[str, str]]]
"""The right answers, where the report is (or nothing), and the logs."""


def blocks(name: str) -> list[Block]:
    """Blocks `@@@ CODE[|CODE] [PROJECT#NUMBER]`, of one log each, or of several behind `--- NAME`."""
    found = []
    for block in re.split(r"^@@@ (?!@)", (GOLDEN / name).read_text(encoding="utf-8"), flags=re.M)[1:]:
        head, _, body = block.partition("\n")
        code, _, report = head.strip().partition(" ")
        parts = re.split(r"^--- (\S+)\n", body, flags=re.M)
        logs = list(zip(parts[1::2], parts[2::2], strict=True)) if parts[1:] else [("train.log", body)]
        found.append((code, report, logs))
    return found


def first_code(logs: list[tuple[str, str]]) -> str:
    findings = diagnose(transcript.parse_logs(logs)).findings
    return findings[0].code if findings else "none"


@pytest.mark.parametrize(
    ("code", "logs"),
    [(code, logs) for code, _, logs in blocks("worded.txt")],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_the_first_cause_is_named_in_the_words_of_other_launchers(code: str, logs: list[tuple[str, str]]) -> None:
    assert first_code(logs) in code.split("|")


# reports whose cause, as the thread found it, the log alone does not give us yet
MISREAD = {
    "EleutherAI/bergson#444": "barrier-deadlock",
    "IGNF/myria3d#123": "collective-timeout",
    "alan-turing-institute/autocast#386": "collective-timeout",
    "NVIDIA/nccl-tests#14": "ipv6-unusable",
    "deepspeedai/Megatron-DeepSpeed#356": "dataset-missing",
    "NVlabs/nvdiffrast#190": "none",
}


@pytest.mark.parametrize(
    ("code", "report", "logs"), blocks("reported.txt"), ids=lambda value: value if isinstance(value, str) else ""
)
def test_the_first_cause_of_a_public_report_is_the_one_that_its_thread_found(
    code: str, report: str, logs: list[tuple[str, str]]
) -> None:
    if report in MISREAD:  # once it is right, take it out of the list
        assert first_code(logs) == MISREAD[report]
        assert MISREAD[report] not in code.split("|")
    else:
        assert first_code(logs) in code.split("|")


def test_every_cause_has_a_meaning_and_a_fix_in_sentences() -> None:
    known = causes.load_knowledge().causes
    assert len(known) > 100
    for code, cause in known.items():
        assert re.fullmatch(r"[a-z0-9-]+", code)
        assert cause.meaning.endswith(".")
        assert cause.fix.endswith(".")
