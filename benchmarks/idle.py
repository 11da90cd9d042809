"""What guard and recorder of a host cost while nothing happens, with and without the election of a head.

Three hosts, which are folders of this machine, with a rank each that sleeps. The CPU time of both processes is counted
after the run has settled, and their memory at the end.

    python benchmarks/idle.py [--hosts 3] [--seconds 60] [--rounds 3] [--limit 0.2]
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "node"))

import results
from local_runs import Run, Runs, local_runs

RANK = "import os; print('ready', flush=True); os.execlp('sleep', 'sleep', '3600')"
SETTLES = 12.0  # s: longer than a lease, and than the guard's longest wait
MEMORY_LIMIT = 45  # MiB


def cpu(pid: int) -> float:
    """Seconds on a processor."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9


def memory(pid: int) -> float:
    """MiB."""
    found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return int(found[1]) / 1024


def processes(run: Run, node: int) -> dict[str, int]:
    recorder = run.recorder(node)
    assert recorder is not None
    return {"guard": run.guard(node).pid, "recorder": recorder.pid}


def measure(runs: Runs, mode: str, hosts: int, seconds: float) -> list[dict[str, float]]:
    """Of each host, the head first: percent of a core and MiB of both processes together, and what each took."""
    options = f"max_restarts: 3, head_lost: {mode}"
    run = runs.start(RANK, nproc=(1,) * hosts, options=options)
    for node in range(hosts):
        run.wait_for("ready", f"1.{node}.out", node)
    both = [processes(run, node) for node in range(hosts)]
    time.sleep(SETTLES)
    began = time.monotonic()
    before = [{name: cpu(pid) for name, pid in each.items()} for each in both]
    time.sleep(seconds)  # the measurement
    passed = time.monotonic() - began
    found = []
    for each, earlier in zip(both, before, strict=True):
        shares = {name: 100 * (cpu(pid) - earlier[name]) / passed for name, pid in each.items()}
        mib = sum(memory(pid) for pid in each.values())
        found.append({"percent": sum(shares.values()), "mib": mib, **shares})
    run.stop(grace=0.0)
    run.wait_over()
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--limit", type=float, default=0.2, help="percent of a core that a host may take")
    asked = parser.parse_args()
    rounds: dict[str, list[list[dict[str, float]]]] = {"stop": [], "elect": []}
    with tempfile.TemporaryDirectory() as folder, local_runs(Path(folder)) as runs:
        for _ in range(asked.rounds):
            for mode, found in rounds.items():
                found.append(measure(runs, mode, asked.hosts, asked.seconds))
    figures: dict[str, dict[str, dict[str, float]]] = {}
    for mode, found in rounds.items():
        figures[mode] = {}
        for node in range(asked.hosts):
            keys = found[0][node]
            figures[mode]["head" if node == 0 else f"host {node}"] = {
                key: round(median(one[node][key] for one in found), 4) for key in keys
            }
        for host, each in figures[mode].items():
            parts = f"guard {each['guard']:.3f}, recorder {each['recorder']:.3f}"
            print(f"head_lost: {mode:5}  {host:7} {each['percent']:.3f} % of a core ({parts}), {each['mib']:.1f} MiB")
    most = max(each["percent"] for hosts in figures.values() for each in hosts.values())
    largest = max(each["mib"] for hosts in figures.values() for each in hosts.values())
    results.write("idle", {"seconds": asked.seconds, "rounds": asked.rounds, "percent of a core and MiB": figures})
    return int(most > asked.limit or largest > MEMORY_LIMIT)


if __name__ == "__main__":
    sys.exit(main())
