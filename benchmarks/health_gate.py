"""Time from the end of a failed attempt to the next one, with the health gate against without it.

Hosts are folders of this machine, and ranks are stand-ins. Each round starts a run of each kind, whose first attempt
fails. The times are those of the gang's own events on the head.

    python benchmarks/health_gate.py [--hosts 2] [--rounds 10]
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "node"))

import results
from local_runs import Runs, changed_program, local_runs

FAILS_ONCE = "import os, time; time.sleep(3); raise SystemExit(os.environ['DDP_ORCH_ATTEMPT'] == '1')"


def restart(runs: Runs, hosts: int) -> float:
    run = runs.start(FAILS_ONCE, nproc=(1,) * hosts, options="max_restarts: 1")
    run.wait_over(120.0)
    events = [json.loads(line) for line in (run.folder() / "gang.jsonl").read_text().splitlines()]
    stopped = max(one["fields"]["at"] for one in events if one["event"] == "Exited" and one["fields"]["attempt"] == 1)
    (began,) = [one["fields"]["at"] for one in events if one["event"] == "PortFound"]
    return float(began - stopped)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=10)
    asked = parser.parse_args()
    without = changed_program("head.py", {b"has_gate=True": b"has_gate=None"})
    seconds: dict[str, list[float]] = {"without the gate": [], "with the gate": []}
    with (
        tempfile.TemporaryDirectory() as folder,
        local_runs(Path(folder) / "with") as with_gate,
        local_runs(Path(folder) / "without", without) as without_gate,
    ):
        for _ in range(asked.rounds):
            seconds["without the gate"].append(restart(without_gate, asked.hosts))
            seconds["with the gate"].append(restart(with_gate, asked.hosts))
    print(results.table(seconds, "without the gate"))
    results.write("health_gate", {"hosts": asked.hosts, "seconds": seconds})


if __name__ == "__main__":
    main()
