"""Reports of a made-up and of a real failed run, in a real browser."""

from __future__ import annotations

import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from fake_relay import A_RUN
from lab.lab import Lab

from orchestrator.answers.recorded import RECORD
from orchestrator.commands import report_data
from orchestrator.output.lines import Line, Mask
from orchestrator.runs.registry import Run
from orchestrator.ui import html
from orchestrator.ui.bands import COLD_TO_HOT

from .driver import assert_clean, code, ok, orch, runs, script
from .pages import browser, open_page

RAISES = """
import os, time
rank = int(os.environ["RANK"])
for step in range(20):
    print(f"step:{step} loss:{3 / (step + 1):.3f}", flush=True)
if rank == 1:
    {}["missing"]
time.sleep(120)
"""

HOSTS, RANKS = 16, 128
FIRST = {
    "host": "gpu-03",
    "node": 3,
    "rank": 27,
    "what": "rank 27: exit code 1",
    "said": "OutOfMemoryError",
    "at": 1050.0,
}
FINDING = {
    "severity": "error", "code": "cuda-oom", "hosts": ["gpu-03"], "rank": 27, "at": 1050.0, "confidence": "high",
    "message": "The job's own allocations exceed the memory of the GPU.", "fix": "Smaller micro-batch.",
    "evidence": ["torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."],
}  # fmt: skip
NEUTRAL = tuple(bytes.fromhex(COLD_TO_HOT[3][1:]))  # of ranks that are as fast as the others
DARK_PAGE = (0x15, 0x18, 0x1B)
RED, GREEN = (0xB3, 0x26, 0x1E), (0x00, 0x73, 0x4F)  # of `failed` and `succeeded`


def machine(at: float, node: int) -> dict[str, Any]:
    gpu = {"index": 0, "busy": int(80 + 15 * math.sin(at + node)), "used": 40 << 30, "total": 80 << 30}
    return {
        "at": at,
        "cores": 64,
        "cpu": [int(at * 10), int(at * 100)],
        "memory": [1 << 30, 64 << 30],
        "nics": [{"name": "eth0", "received": int(at * 1e6), "sent": int(at * 2e6), "mbit": 100_000}],
        "gpus": [{**gpu, "watts": 400.0 + node, "celsius": 60}],
        "disk": [int(at * 1e7 * (1 + math.sin(at / 5))), int(at * 1e6)],
    }


def failed_run() -> dict[str, Any]:
    """16 hosts with 8 ranks each: a rank that is slow, a restart, and an end for want of memory."""
    names = [f"gpu-{number:02}" for number in range(HOSTS)]
    spec = {
        "by": "ann@laptop", "nodes": [{"host": name} for name in names], "command": ["train.py", "--lr", "3e-4"],
        "env": {"LR": "<script>alert(1)</script>"}, "agent_argv": [], "python": "/home/ann/venv/bin/python",
        "versions": {"python": "3.11.4", "torch": "2.9.0+cu129", "CUDA": "12.9", "driver": "580.65", "GPU": "H100"},
    }  # fmt: skip
    events = [
        {"event": "StartRequested", "fields": {"master_addr": "a", "master_port": 1, "at": 1000.0}},
        {"event": "Failed", "fields": {"node": 3, "attempt": 1, "failure": FIRST, "at": 1020.0}},
        {"event": "PortFound", "fields": {"port": 2, "at": 1030.0}},
        {"event": "Failed", "fields": {"node": 3, "attempt": 2, "failure": FIRST, "at": 1050.0}},
    ]
    verdict = {"state": "failed", "first_failure": FIRST, "stopped_by": None, "attempt": 2, "at": 1060.0}
    known = {}
    for node, name in enumerate(names):
        run = {
            **A_RUN,
            "run_id": "20261122-040000-ab12", "name": "nightly", "started_at": "2026-11-22T04:00:00Z", "node": node,
            "state": "failed", "attempt": 2, "exit_code": 1, "signal": None, "nproc": 8, "ranks": RANKS,
            "verdict": verdict,
        }  # fmt: skip
        samples = [machine(1000.0 + number, node) for number in range(40)]
        told = {"run": run, "spec": spec, "exit": {"at": 1060.0}, "samples": samples}
        known[name] = RECORD.decode({**told, "events": events if node == 0 else []})
    run = Run("20261122-040000-ab12", "nightly", "failed", 2, "2026-11-22T04:00:00Z",
              {name: record.run for name, record in known.items() if record.run})  # fmt: skip
    figures = [
        Line(1000.0 + step, names[rank // 8], rank, "stdout", 1,
             f"step:{step} loss:{9 * math.exp(-step / 20):.4f} step_time:{0.25 * (1.6 if rank == 27 else 1):.3f}")
        for step in range(50) for rank in range(RANKS)
    ]  # fmt: skip
    said = [Line(1050.0, "gpu-03", 27, "stderr", 2, "<img src=http://192.0.2.1/x.png> " + "a long line " * 40)]
    others = [
        {**FINDING, "hosts": [names[rank // 8]], "rank": rank, "message": f"closed by peer [10.0.0.1]:4{rank:03}"}
        for rank in range(RANKS) if rank != 27
    ]  # fmt: skip
    diagnosis = {"findings": [FINDING], "consequences": others}
    log = [*figures[-800:], *said]
    made = report_data.make(run, known, dict.fromkeys(names, 0.0), figures, said, diagnosis, Mask([]), log)
    again = "cd /home/ann/project\nddp-orch up -i inventory.yaml --name nightly -- train.py --lr 3e-4"
    return {**asdict(made), "reproduce": again, "written_at": "2026-11-22T05:00:00.000000Z", "version": "0.1.0"}


def test_the_report_of_a_failed_run_opens_without_an_error_and_asks_nobody_for_anything(tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    page.write_text(html.render(failed_run()), encoding="utf-8")
    seen = open_page(page, tmp_path, 900, 800)
    assert seen.errors == () and seen.requests == ()
    assert (seen.width, seen.height) == (900, 800)
    assert RED in seen.colours and GREEN not in seen.colours
    assert "gpu-03: rank 27: exit code 1" in seen.text
    assert "<td>gpu-[00-15]</td><td>0-26,28-127</td><td>closed by peer" in seen.text
    assert seen.text.count("<polyline") > 6 and seen.text.count("<rect") > RANKS / 2


def test_in_the_dark_no_large_area_is_bright(tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    page.write_text(html.render(failed_run()), encoding="utf-8")
    light, dark = (open_page(page, tmp_path, 900, 1600, is_dark=is_dark).colours for is_dark in (False, True))
    assert NEUTRAL in light and NEUTRAL not in dark
    assert DARK_PAGE in dark and DARK_PAGE not in light


@pytest.mark.parametrize(
    ("body", "errors", "requests"),
    [
        ("<script>nope()</script>", 1, ()),
        ('<img src="http://192.0.2.1/x.png">', 0, ("http://192.0.2.1/x.png",)),
    ],
)
def test_a_page_that_is_not_so_would_be_found_out(
    body: str, errors: int, requests: tuple[str, ...], tmp_path: Path
) -> None:
    page = tmp_path / "bad.html"
    page.write_text(f"<!DOCTYPE html><html><body>{body}</body></html>", encoding="utf-8")
    seen = open_page(page, tmp_path, 300, 200)
    assert len(seen.errors) == errors and seen.requests == requests


def test_the_report_of_a_real_failed_run_opens_so_too(lab2: Lab, tmp_path: Path) -> None:
    browser()
    inventory = lab2.inventory(run={"launcher": "direct"})
    ok(orch(lab2, "up", inventory, "--", script(lab2, RAISES)), code=1)
    (run_id,) = runs(lab2, inventory)
    ok(orch(lab2, "report", run_id, "-i", inventory, "-o", "report.html"))
    seen = open_page(code(lab2) / "report.html", tmp_path, 900, 800)
    assert seen.errors == () and seen.requests == ()
    assert RED in seen.colours
    assert "First failure: node-1: rank 1" in seen.text and "(script-exception, confidence high)" in seen.text
    assert ">rank 1</span>" in seen.text
    assert_clean(lab2)
