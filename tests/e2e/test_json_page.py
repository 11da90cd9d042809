"""docs/json.md names the keys of every JSON document, as the commands print them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

from lab.lab import Lab

from orchestrator.answers.gpus import GpuList, GpuUser, UsedGpu
from orchestrator.commands import gpus
from orchestrator.commands.bench import Point

from .driver import assert_clean, ok, orch, script, start, wait_for_state

PAGE = Path(__file__).parents[2] / "docs" / "json.md"
FAIL = "/tmp/ddp-orch-json-page"
SCRIPT = f"""
import os, signal, sys, time
print("step:1 loss:2.5", flush=True)
signal.signal(signal.SIGUSR1, lambda *_: print("saved step:1", flush=True))
while not os.path.exists("{FAIL}"):
    time.sleep(0.05)
sys.exit("RuntimeError: CUDA error: out of memory" if os.environ["RANK"] == "1" else 0)
"""


def documented() -> dict[str, set[str]]:
    """Keys by place, such as `ps[].nodes[]`."""
    rows = re.findall(r"(?m)^\| `([\w.\[\]]+)` \| ((?:`\w+`(?:, )?)+) \|", PAGE.read_text(encoding="utf-8"))
    return {place: set(re.findall(r"\w+", keys)) for place, keys in rows}


def printed(value: Any, place: str) -> Iterator[tuple[str, set[str]]]:
    """The place and keys of each object in a document."""
    if isinstance(value, list):
        for each in value:
            yield from printed(each, f"{place}[]")
    elif isinstance(value, dict):
        yield place, set(value)
        for key, inner in value.items():
            yield from printed(inner, f"{place}.{key}")


def test_documents_have_the_keys_that_the_page_names(lab2: Lab) -> None:
    inventory = lab2.inventory(run={"launcher": "direct"})
    code = ("--", script(lab2, SCRIPT))
    documents: dict[str, Any] = {"up": json.loads(ok(orch(lab2, "up", inventory, "-d", "--json", *code)).stdout)}
    run_id = documents["up"]["run_id"]
    wait_for_state(lab2, inventory, run_id, "running")

    def ask(command: str, *words: str) -> None:
        documents[command] = json.loads(ok(orch(lab2, command, *words, "-i", inventory, "--json")).stdout)

    ask("check")
    for command in ("snapshot", "revive", "describe"):
        ask(command, run_id)
    ask("signal", run_id, "CONT")
    ask("ps", "--size")
    documents["exec"] = json.loads(ok(orch(lab2, "exec", inventory, "--json", "--", "touch", FAIL)).stdout)
    wait_for_state(lab2, inventory, run_id, "failed")
    for command in ("events", "diagnose", "report"):
        ask(command, run_id)
    lines = ok(orch(lab2, "logs", run_id, "-i", inventory, "--json")).stdout.splitlines()
    documents["logs"] = list(map(json.loads, lines))
    orch(lab2, "exec", inventory, "--", "rm", FAIL)
    running = start(lab2, inventory, *code)
    wait_for_state(lab2, inventory, running, "running")
    ask("kill", running, "--grace=0")
    user = GpuUser(1, 2, "ann", "python", None)
    known = GpuList((UsedGpu(0, "H100", 4, 2, 0, 30, False, (user,)),), "550", None)  # the hosts have no GPU
    documents["gpus"] = [gpus.as_dict("node-0", known)]

    page = documented()
    assert page.pop("bench[]") == {field.name for field in fields(Point)}  # takes minutes
    for place in ("drain", "add", "ps[].waits"):  # need a run with restarts; their tests compare the whole document
        page.pop(place)
    seen: dict[str, set[str]] = {}
    for command, document in documents.items():
        for place, keys in printed(document, command):
            if place in page:
                assert keys == page[place], place
                seen[place] = keys
    assert page.keys() == seen.keys()
    assert_clean(lab2)
