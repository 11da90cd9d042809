"""What `top` costs the machine that shows it, while every rank of a run reports a step every few seconds.

A lab of hosts with real sshd, all on this machine. `top` draws on a terminal of 200 columns and 50 lines; its CPU time
is counted with a row per host, and then with a row per rank.

    python benchmarks/top_cost.py [--hosts 64] [--ranks 8] [--step 5] [--seconds 40] [--rounds 3] [--limit 5]
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import os
import pty
import select
import struct
import sys
import termios
import time
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

import results
from e2e.driver import code, ok, orch, script, start
from lab import Lab

COLUMNS, LINES = 200, 50
STARTS = 10.0  # s: logins, and the first looks at all hosts
LEASE = 120  # s: hundreds of ranks on a few cores may keep a node program waiting

TRAIN = """
import os, sys, time
rank, pause, step = int(os.environ["RANK"]), float(sys.argv[1]), 0
while True:
    step += 1
    print(f"epoch:1 step:{step} loss:{2 / step:.4f} samples/s:{900 + rank} step_time:{pause}", flush=True)
    time.sleep(pause)
"""


def cpu(pid: int) -> float:
    """Seconds on a processor, of all threads."""
    return sum(int(path.read_text().split()[0]) for path in Path(f"/proc/{pid}/task").glob("*/schedstat")) / 1e9


def read(terminal: int, seconds: float) -> str:
    """What appears on the terminal within these seconds, which are the measurement."""
    end, seen = time.monotonic() + seconds, b""
    while (left := end - time.monotonic()) > 0:
        if select.select([terminal], [], [], left)[0]:
            seen += os.read(terminal, 1 << 16)
    return seen.decode(errors="replace")


def measure(lab: Lab, inventory: Path, seconds: float) -> dict[str, float]:
    """Percent of a core, by what the rows are."""
    terminal, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
    argv = ["ddp-orch", "top", "big", "-i", str(inventory)]
    process = lab.popen(argv, cwd=code(lab), stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True)
    os.close(theirs)
    found = {}
    try:
        for rows, key in (("hosts", b""), ("ranks", b"v")):
            os.write(terminal, key)
            read(terminal, STARTS)
            before = cpu(process.pid)
            shown = read(terminal, seconds)
            found[rows] = 100 * (cpu(process.pid) - before) / seconds
            assert "loss" in shown, shown[-2000:]
    finally:
        os.write(terminal, b"q")
        with contextlib.suppress(OSError):  # the terminal has no other end when top has left
            read(terminal, 20)
        process.wait(20)
        os.close(terminal)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, default=64)
    parser.add_argument("--ranks", type=int, default=8, help="ranks of each host")
    parser.add_argument("--step", type=float, default=5.0, help="seconds between the steps of a rank")
    parser.add_argument("--seconds", type=float, default=40.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--limit", type=float, default=5.0, help="percent of a core that top may take")
    asked = parser.parse_args()
    with Lab(asked.hosts) as lab:
        defaults = {"user": "ann", "python": lab.python, "nproc_per_node": asked.ranks}
        inventory = lab.inventory(run={"launcher": "direct", "lease": LEASE}, defaults=defaults)
        run = start(lab, inventory, "--name", "big", "--", script(lab, TRAIN), str(asked.step), timeout=400)
        rounds = [measure(lab, inventory, asked.seconds) for _ in range(asked.rounds)]
        load = os.getloadavg()[0]
        ok(orch(lab, "kill", run, "-i", inventory, "--grace", "0", timeout=300))
    percent = {rows: round(median(one[rows] for one in rounds), 2) for rows in rounds[0]}
    for rows, share in percent.items():
        print(f"a row for each of the {rows}: {share:.2f} % of a core")
    size = {"hosts": asked.hosts, "ranks of a host": asked.ranks, "s between steps": asked.step}
    results.write("top_cost", {**size, "rounds": asked.rounds, "load": round(load, 1), "percent of a core": percent})
    return int(max(percent.values()) > asked.limit)


if __name__ == "__main__":
    sys.exit(main())
