"""Time to end a run on many hosts, proof included, against `pdsh echo hi` on the same hosts.

A stand-in workload (`launcher: direct`, no torch) sleeps on every host; `ddp-orch kill` ends it, sweeps, and proves
that nothing is left. pdsh runs at the fan-out that suits it best. Each round does both.

    python benchmarks/kill_time.py [--hosts 64] [--rounds 5]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

import results
from lab.lab import Lab
from lab.waiting import wait_until

SCRIPT = "import time\nprint('ready', flush=True)\ntime.sleep(3600)\n"


def timed(lab: Lab, argv: list[str]) -> tuple[float, subprocess.CompletedProcess[str]]:
    began = time.monotonic()
    done = lab.run(argv, cwd=lab.controller_home / "bench", timeout=120)
    took = time.monotonic() - began
    assert done.returncode == 0, f"{argv}: {done.stderr[-2000:]}"
    return took, done


def echo_by_pdsh(lab: Lab, fanout: int) -> float:
    hosts = ",".join(host.address for host in lab.hosts)
    took, done = timed(lab, ["pdsh", "-R", "ssh", "-l", "ann", "-f", str(fanout), "-w", hosts, "echo hi"])
    assert done.stdout.count("hi") == len(lab.hosts), done.stderr
    return took


def kill(lab: Lab, inventory: Path) -> float:
    _, started = timed(lab, ["ddp-orch", "up", str(inventory), "-d", "--", "sleep.py"])
    run_id = started.stdout.split()[0]
    wait_until(lambda: sum(len(found) for found in lab.marked(run_id).values()) >= len(lab.hosts), 120, "all ranks run")
    took, done = timed(lab, ["ddp-orch", "kill", run_id, "-i", str(inventory), "--json"])
    proof = json.loads(done.stdout)
    assert len({one["host"] for one in proof["killed"]}) == len(lab.hosts) and not proof["remaining"]
    assert not lab.marked(run_id)
    return took


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    asked = parser.parse_args()
    with Lab(asked.hosts) as lab:
        (lab.controller_home / "bench").mkdir()
        (lab.controller_home / "bench" / "sleep.py").write_text(SCRIPT)
        inventory = lab.inventory(run={"launcher": "direct"})
        fanouts = [8, 16, 32, 64]
        best = min(fanouts, key=lambda fanout: min(echo_by_pdsh(lab, fanout) for _ in range(2)))
        kill(lab, inventory)  # brings the node program and the code
        pdsh, ours = f"pdsh -f {best} echo hi", "ddp-orch kill"
        seconds: dict[str, list[float]] = {pdsh: [], ours: []}
        for _ in range(asked.rounds):
            seconds[pdsh].append(echo_by_pdsh(lab, best))
            seconds[ours].append(kill(lab, inventory))
    print(results.table(seconds, pdsh))
    results.write("kill_time", {"hosts": asked.hosts, "seconds": seconds})


if __name__ == "__main__":
    main()
