"""`bench` in the lab: a table, JSON and a plot of real runs on one and on two hosts."""

from __future__ import annotations

import json
import signal
import subprocess

import pytest
from lab.lab import Lab
from lab.waiting import wait_until

from .driver import assert_clean, guards, ok, orch


@pytest.mark.full
@pytest.mark.slow
def test_bench_measures_one_host_and_two(lab2: Lab) -> None:
    inventory = lab2.inventory(run={"launcher": "direct", "args": ["--epochs=1"]})
    plot = lab2.controller_home / "bench.png"
    options = ("--json", "--batch-per-host=64", f"--plot={plot}")
    done = ok(orch(lab2, "bench", inventory, *options, "--", "--bench-seconds=0.1", timeout=200))
    one, two = json.loads(done.stdout)
    assert [(point["hosts"], point["ranks"], point["batch_size"]) for point in (one, two)] == [(1, 1, 64), (2, 2, 128)]
    assert one["efficiency"] == 1 and two["samples_per_second"] > 0
    assert plot.read_bytes().startswith(b"\x89PNG")
    assert_clean(lab2)


@pytest.mark.full
@pytest.mark.slow
def test_interrupted_it_ends_its_run_and_says_no_more(lab2: Lab) -> None:
    inventory = lab2.inventory(run={"launcher": "direct", "args": ["--epochs=1"]})
    argv = ["ddp-orch", "bench", str(inventory), "--counts=2", "--", "--bench-seconds=60"]
    process = lab2.popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    wait_until(lambda: len(guards(lab2)) == 4 and lab2.marked(), 60, "the run has begun")
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130 and out == "" and err.endswith("error: interrupted\n"), err
    assert "Traceback" not in err and "last lines" not in err
    # the second host cannot know at once that the head was not told to start
    wait_until(lambda: not lab2.marked() and not guards(lab2), 60, "both hosts have given the run up")
    assert_clean(lab2)
