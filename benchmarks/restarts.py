"""What a restart costs the guard and the recorder of a host, and whether that grows with the number of restarts.

One host, which is a folder of this machine, with eight ranks that are stand-ins. In every attempt one of them fails.
At the start of each attempt, descriptors, pipes and memory of both processes are counted, and their CPU time since the
one before. The ratios compare the last tenth of the attempts with the second tenth.

    python benchmarks/restarts.py [--restarts 100] [--ranks 8]
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "node"))

import results
from lab.waiting import wait_until
from local_runs import Run, impatient_program, local_runs

RANKS = """
import os, sys, time
last = os.environ["DDP_ORCH_ATTEMPT"] == sys.argv[1]
print("ready", flush=True)
if os.environ["RANK"] == "0":
    time.sleep(0 if last else 0.3)
    sys.exit(not last)
if not last:
    os.execlp("sleep", "sleep", "300")
"""
TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Figures:
    """Of one process at the start of an attempt."""

    descriptors: int
    pipes: int
    memory_mib: float
    cpu_s: float
    """Since the process began."""


def measure(pid: int) -> Figures:
    folder = Path(f"/proc/{pid}")
    links = [str(link.readlink()) for link in (folder / "fd").iterdir() if link.is_symlink()]
    pipes = sum(link.startswith("pipe:") or "/fifo/" in link for link in links)
    status = dict(line.split(":", 1) for line in (folder / "status").read_text().splitlines())
    times = (folder / "stat").read_text().rpartition(")")[2].split()[11:13]
    memory = float(status["VmRSS"].split()[0]) / 1024
    return Figures(len(links), pipes, round(memory, 1), sum(map(int, times)) / TICKS)


def series(run: Run, restarts: int) -> dict[str, list[Figures]]:
    """The figures of guard and recorder at the start of each attempt."""
    found: dict[str, list[Figures]] = {"guard": [], "recorder": []}
    recorder = run.recorder()
    assert recorder is not None
    for attempt in range(1, restarts + 1):
        output = run.folder() / "log" / f"{attempt}.0.out.{0:012}.seg"
        wait_until(lambda output=output: output.exists() and output.stat().st_size, 60, "rank 0 has begun")
        found["guard"].append(measure(run.guard().pid))
        found["recorder"].append(measure(recorder.pid))
    return found


def cpu_per_restart(figures: Sequence[Figures]) -> float:
    return (figures[-1].cpu_s - figures[0].cpu_s) / (len(figures) - 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--restarts", type=int, default=100)
    parser.add_argument("--ranks", type=int, default=8)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, local_runs(Path(folder), impatient_program()) as runs:
        options = f"max_restarts: {asked.restarts}"
        run = runs.start(RANKS, str(asked.restarts + 1), nproc=(asked.ranks,), options=options)
        found = series(run, asked.restarts)
        (record,) = run.wait_over(120.0)
    verdict = record["verdict"]["state"], record["verdict"]["attempt"]
    assert verdict == ("succeeded", asked.restarts + 1), verdict
    tenth = asked.restarts // 10
    summary = {}
    for name, figures in found.items():
        early, late = figures[tenth : 2 * tenth], figures[-tenth:]
        summary[name] = {
            "cpu_s_per_restart": [round(cpu_per_restart(early), 4), round(cpu_per_restart(late), 4)],
            "ratios": {
                key: round(max(asdict(one)[key] for one in late) / max(asdict(one)[key] for one in early), 3)
                for key in ("descriptors", "pipes", "memory_mib")
            },
            "last": asdict(figures[-1]),
        }
        print(name, summary[name])
    results.write("restarts", {"restarts": asked.restarts, "ranks": asked.ranks, "processes": summary})


if __name__ == "__main__":
    main()
