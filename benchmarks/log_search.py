"""`logs --grep` over many hosts with one rare hit each, against `ssh HOST grep` on all hosts at once.

Hosts of the lab, all on this machine and so on its cores; one rank each writes `--megabytes` of lines with one needle
somewhere. The time is that of the whole command, from its start to its end, logins included. Each round runs every
contestant once; ratios are within a round.

    python benchmarks/log_search.py [--hosts 8] [--megabytes 256] [--rounds 5]
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

NEEDLE = "RuntimeError: CUDA out of memory"
SCRIPT = """
import os, random, sys
size, rng = int(sys.argv[1]) << 20, random.Random(int(os.environ["RANK"]))
block = "".join(f"step:{n} loss:{rng.random():.4f} lr:0.001 samples/s:{rng.randrange(9999)} data:{rng.random():.3f}s\\n"
                for n in range(10_000)).encode()
after = rng.randrange(size // len(block))
for number in range(size // len(block) + 1):
    sys.stdout.buffer.write(block)
    if number == after:
        sys.stdout.buffer.write(b"%s on rank %d\\n" % (sys.argv[2].encode(), int(os.environ["RANK"])))
"""


def timed(processes: list[subprocess.Popen[str]], expected: int) -> float:
    began = time.monotonic()
    found = sum(process.communicate()[0].count(NEEDLE) for process in processes)
    assert found == expected, f"{found} hits, not {expected}"
    return time.monotonic() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, default=8)
    parser.add_argument("--megabytes", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=5)
    asked = parser.parse_args()
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "stdin": subprocess.DEVNULL}
    with Lab(asked.hosts) as lab:
        folder = lab.controller_home / "bench"
        folder.mkdir()
        (folder / "train.py").write_text(SCRIPT)
        inventory = lab.inventory(run={"launcher": "direct"})
        argv = ["ddp-orch", "up", str(inventory), "-d", "--", "train.py", str(asked.megabytes), NEEDLE]
        assert lab.run(argv, cwd=folder, timeout=120).returncode == 0
        while lab.marked():
            time.sleep(0.5)
        journals = [list(host.home.glob(".local/state/ddp-orch/*/runs/*/log/1.[0-9]*.out.*.seg")) for host in lab.hosts]
        size = sum(path.stat().st_size for paths in journals for path in paths)
        assert size >= asked.hosts * asked.megabytes << 20
        find = f"LC_ALL=C cat .local/state/ddp-orch/*/runs/*/log/1.[0-9]*.out.*.seg | grep -aF '{NEEDLE}'"

        def by_hand() -> float:
            ssh = ["ssh", "-o", "BatchMode=yes"]
            return timed([lab.popen([*ssh, f"ann@{one.address}", find], **pipes) for one in lab.hosts], asked.hosts)

        def ours(pattern: str) -> float:
            argv = ["ddp-orch", "logs", "-i", str(inventory), "--grep", pattern]
            return timed([lab.popen(argv, **pipes)], asked.hosts)

        contestants = {
            "ssh grep -F": by_hand,
            "logs --grep TEXT": lambda: ours(NEEDLE),
            "logs --grep A.*B": lambda: ours(r"RuntimeError: .*out of memory"),
            "logs --grep nothing (login only)": lambda: timed(
                [lab.popen(["ddp-orch", "logs", "-i", str(inventory), "--tail", "0"], **pipes)], 0
            ),
        }
        seconds: dict[str, list[float]] = {name: [] for name in contestants}
        for turn in range(asked.rounds + 1):
            for name, contestant in contestants.items():
                took = contestant()
                if turn:  # the first round warms caches
                    seconds[name].append(took)
    print(results.table(seconds, "ssh grep -F"))
    figures = {"hosts": asked.hosts, "bytes": size, "seconds": seconds}
    results.write("log_search", json.loads(json.dumps(figures)))


if __name__ == "__main__":
    main()
