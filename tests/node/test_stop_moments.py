"""A stop request at any moment of a run with restarts ends it: real guards and recorders, and ranks that fail.

Every moment is made from a seed: 8 of them, and 500 in `make chaos` (DDP_ORCH_STOP_MOMENTS).
"""

from __future__ import annotations

import json
import os
import queue
import random
import re
import signal
import socket
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from local_runs import Run, Runs, local_runs

from orchestrator.node.gang import gang, gang_events, gang_state
from orchestrator.node.guard.guard import Guard
from orchestrator.node.host import processes
from orchestrator.runs.conclusion import OUTCOMES

MOMENTS = int(os.environ.get("DDP_ORCH_STOP_MOMENTS", "8"))
AT_A_TIME = 4  # runs beside one another; they mostly wait
# s beyond its grace that a stop may take. A guard that has not ended 13 s after it is killed, and leaves no verdict.
WITHIN = 5.0 if MOMENTS > 100 else 10.0
ALL_PHASES = 100  # moments, from which on every phase is among them, however busy the machine is
LATEST = 7.0  # s after the start: the third attempt, or the pause before it

# a rank of each attempt fails; half of the others do not obey SIGTERM, so that an attempt takes a second to be stopped
FAIL = """
import os, random, signal, sys, time
rank, attempt = os.environ["RANK"], os.environ["DDP_ORCH_ATTEMPT"]
dice = random.Random(" ".join((sys.argv[1], rank, attempt)))
if dice.random() < 0.5:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("ready", flush=True)
if int(rank) == int(attempt) % int(os.environ["WORLD_SIZE"]):
    time.sleep(dice.random())
    sys.exit("failure of attempt " + attempt)
time.sleep(300)
"""


@dataclass(frozen=True)
class Stopped:
    seed: str
    phase: str
    """Of the gang, when the request came."""
    attempt: int
    late: float
    """Seconds from the request to the last guard's end, less the grace."""
    verdict: dict[str, Any]


def stop_at_a_random_moment(runs: Runs, seed: str) -> Stopped:
    dice = random.Random(seed)
    moment, grace = dice.uniform(-0.2, LATEST), dice.choice((0.0, 0.5, 2.0))
    way = dice.choice(("every host", "every host", "one host", "SIGTERM"))
    number = dice.randrange(2)
    run, start = runs.prepare(FAIL, seed, nproc=(1, 1), grace=grace, options="max_restarts: 9")
    if moment >= 0:
        run.hosts[0].session.request("start", {"run_id": run.run_id, "start": start})
        time.sleep(moment)
    asked_at = time.monotonic()
    ask_to_stop(run, way, number)
    records = run.wait_over(grace + WITHIN + 10.0)
    late = time.monotonic() - asked_at - grace
    first, second = (record["verdict"] for record in records)
    assert first == second, seed
    before = before_the_request(run)
    return Stopped(seed, before.phase.value, before.attempt, late, first)


def ask_to_stop(run: Run, way: str, number: int) -> None:
    if way == "SIGTERM":
        processes.send(run.guard(number), signal.SIGTERM)
        return
    asked = [threading.Thread(target=run.stop, args=(node,)) for node in ([number] if way == "one host" else [0, 1])]
    for one in asked:
        one.start()
    for one in asked:
        one.join()


def before_the_request(run: Run) -> gang_state.State:
    """The gang as it was when the first request came, by the log of its events."""
    spec = run.record("spec.json")
    assert spec is not None
    state = gang.begin(spec["nodes"], spec["max_restarts"], spec["min_nodes"])
    for line in (run.folder() / "gang.jsonl").read_text().splitlines():
        entry = json.loads(line)
        if entry["event"] == "StopRequested":
            return state
        state, _ = gang.step(state, gang_events.EVENTS[entry["event"]](**entry["fields"]))
    raise AssertionError(f"{run.run_id}: the gang heard of no stop request")


def test_a_stop_request_ends_a_run_with_restarts_at_every_moment(tmp_path: Path) -> None:
    with ExitStack() as stack:
        free: queue.SimpleQueue[Runs] = queue.SimpleQueue()
        for lane in range(min(AT_A_TIME, MOMENTS)):
            (folder := tmp_path / f"lane-{lane}").mkdir()
            runs = stack.enter_context(local_runs(folder))
            runs.hosts(2)  # a session is made with a variable of our own environment: not in several threads at once
            free.put(runs)

        def play(number: int) -> Stopped:
            runs = free.get()
            try:
                return stop_at_a_random_moment(runs, f"stop {number}")
            finally:
                free.put(runs)

        with ThreadPoolExecutor(AT_A_TIME) as pool:
            stopped = list(pool.map(play, range(MOMENTS)))
    phases = Counter(one.phase for one in stopped)
    late = sorted(one.late for one in stopped)
    print(f"{MOMENTS} moments, {dict(phases)}")
    print(f"seconds beyond the grace: median {late[len(late) // 2]:.2f}, most {late[-1]:.2f}")
    for one in stopped:
        assert OUTCOMES[one.verdict["state"]] == 130, one
        assert (one.verdict["stopped_by"] is None, one.verdict["first_failure"]) == (False, None), one
        assert one.verdict["attempt"] == one.attempt, one
        assert one.late < WITHIN, one
    if MOMENTS >= ALL_PHASES:
        assert {"running", "stopping", "restarting"} <= set(phases), phases


def test_a_stop_request_while_a_failed_attempt_is_being_stopped_is_heard(runs: Runs) -> None:
    deaf = "import os, signal, sys, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('ready', flush=True)\n"
    code = deaf + "time.sleep(0.5)\nif os.environ['RANK'] == '1':\n    sys.exit('told to fail')\ntime.sleep(300)"
    run = runs.start(code, nproc=(1, 1), options="max_restarts: 3")
    run.wait_for("first failure", "1.run.out")
    run.stop()
    records = run.wait_over()
    verdict = records[0]["verdict"]
    assert before_the_request(run).phase is gang_state.Phase.STOPPING
    assert (verdict["state"], verdict["stopped_by"], verdict["attempt"]) == ("killed", "the test", 1)
    assert re.search(r"stopping .*\bby the test$", run.journal()["1.run.out"].decode(), re.MULTILINE)


def test_a_guard_that_was_asked_to_stop_answers_an_order_to_run(tmp_path: Path) -> None:
    nodes = [{"host": "host-0", "nproc": 1, "spare": False}]
    process = {"program": "", "setup": [], "umask": 0o022, "descriptors": 1024}
    spec = {"node": 0, "nodes": nodes, "grace": 5.0, **process}
    ours, theirs = socket.socketpair()
    guard = Guard(str(tmp_path), spec, {}, ours, {}, [], become_recorder=lambda given: os._exit(0))
    told: list[dict[str, Any]] = []
    guard._recorder.send_status = told.append  # type: ignore[method-assign]
    guard.request_stop("ann", 5.0)
    told.clear()
    guard._obey({"do": "run", "order": gang_events.Run(2, 0, 1, 0, 1, "127.0.0.1", 29500)._asdict(), "until": None})
    assert [(one["phase"], one["stop"]["by"]) for one in told] == [("prepared", "ann")]
    ours.close()
    theirs.close()
