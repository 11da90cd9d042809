"""The figures of a real run become findings."""

from __future__ import annotations

import ast
import json
import re
from dataclasses import asdict

from orchestrator.answers.printed import AllReduce, Product
from orchestrator.runs.deep import MARKER, SCRIPT, Figure, Result, _decode, check_result, render


def product(rank: int, tflops: float, device: str = "cpu") -> Figure:
    return Figure(f"h{rank}", Product(rank, "product", device, tflops))


def reduce(rank: int, seconds: float = 1e-3, right: bool = True) -> Figure:
    return Figure(f"h{rank}", AllReduce(rank, "all_reduce", "gloo", 1 << 20, seconds, right))


def result(*figures: Figure) -> Result:
    return Result(figures, "", (), ())


def test_only_what_the_payload_prints_is_a_figure() -> None:
    for honest in (product(0, 1.0), reduce(0)):
        assert _decode(json.dumps(asdict(honest.value))) == honest.value
    hostile = (
        "",
        "[",
        "7",
        "{}",
        '{"what": "product"}',
        json.dumps({**reduce(0).as_dict(), "bytes": "x"}),
        "[" * 10**5,
    )
    assert [_decode(text) for text in hostile] == [None] * len(hostile)


def test_good_figures_have_no_findings() -> None:
    assert check_result(result(product(0, 1.0), product(1, 0.8), reduce(0), reduce(1))) == ()


def test_a_wrong_sum_is_an_error_of_the_host_that_got_it() -> None:
    (finding,) = check_result(result(reduce(0), reduce(1, right=False)))
    assert (finding.severity, finding.code, finding.hosts) == ("error", "collective-wrong-result", ("h1",))


def test_the_slow_rank_is_named_among_its_likes() -> None:
    figures = [product(0, 1.0), product(1, 1.1), product(2, 0.2), product(3, 300.0, "H100")]
    (finding,) = check_result(result(*figures))
    assert (finding.severity, finding.code, finding.hosts) == ("warning", "straggler", ("h2",))
    assert "rank 2" in finding.message


def test_a_run_that_failed_is_one_error_with_its_last_words() -> None:
    (finding,) = check_result(Result((), "rank 1: exit code 1", ("h1",), ("RuntimeError: no",)))
    assert (finding.code, finding.hosts) == ("deep-run-failed", ("h1",))
    assert "exit code 1" in finding.message and re.fullmatch("h1: .*: RuntimeError: no", *finding.evidence)


def test_the_slowest_of_a_collective_is_shown() -> None:
    text = render(result(reduce(0, 1e-3), reduce(1, 2e-3), product(0, 1.0)))
    assert "1024 KiB" in text and "slowest: rank 1 on h1" in text
    assert max(map(len, text.splitlines())) <= 100


def test_the_script_marks_its_lines_as_they_are_looked_for() -> None:
    constants = {
        node.targets[0].id: ast.literal_eval(node.value)
        for node in ast.parse(SCRIPT.read_text()).body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id == "MARKER"
    }
    assert constants == {"MARKER": MARKER}
