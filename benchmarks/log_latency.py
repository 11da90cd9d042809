"""From a rank's print to the controller's terminal, against `ssh HOST torchrun --tee 3` typed by hand.

Hosts of the lab, one rank each, `--rate` lines a second together, each with the time it was printed at; all clocks are
those of this machine. The terminal is a pty whose reader notes when a line comes. The first seconds are left out. Each
round runs every contestant once.

    python benchmarks/log_latency.py [--hosts 2] [--rate 1000] [--seconds 10] [--rounds 3]
"""

from __future__ import annotations

import argparse
import os
import pty
import re
import select
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

import results
from lab.lab import Lab

WARM_UP = 2.0  # s from a rank's first line
SCRIPT = """
import sys, time
every, end = 1 / float(sys.argv[1]), time.monotonic() + float(sys.argv[2])
due = time.monotonic()
while due < end:
    print(f"step:1 loss:2.345 printed-at {time.time_ns()} rest of the line", flush=True)
    due += every
    time.sleep(max(0.0, due - time.monotonic()))
"""
PRINTED = re.compile(rb"printed-at (\d+) rest of the line")


class Terminal:
    """A pty, and a thread that notes the delay of every line that comes."""

    def __init__(self) -> None:
        self._ours, self.theirs = pty.openpty()
        self.delays: list[tuple[int, float]] = []  # (printed at, ns; delay, s)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        rest = b""
        while select.select([self._ours], [], [], 0.2)[0] or not self._ended.is_set():
            if not select.select([self._ours], [], [], 0)[0]:
                continue
            data = os.read(self._ours, 1 << 16)
            now = time.time_ns()
            *lines, rest = (rest + data).split(b"\n")
            for found in filter(None, map(PRINTED.search, lines)):
                self.delays.append((int(found[1]), (now - int(found[1])) / 1e9))

    def close(self) -> list[float]:
        self._ended.set()
        self._thread.join()
        os.close(self._ours)
        os.close(self.theirs)
        after = min(at for at, _ in self.delays) + WARM_UP * 1e9
        return sorted(delay for at, delay in self.delays if at > after)


def on_a_terminal(start: Callable[[int], list[subprocess.Popen[str]]]) -> list[float]:
    terminal = Terminal()
    for process in start(terminal.theirs):
        assert process.wait() == 0, process.args
    return terminal.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, default=2)
    parser.add_argument("--rate", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args()
    with Lab(asked.hosts) as lab:
        folder = lab.controller_home / "bench"
        folder.mkdir()
        (folder / "train.py").write_text(SCRIPT)
        for host in lab.hosts:
            host.sh("mkdir bench && cat > bench/train.py", input=SCRIPT, check=True)
        inventory = lab.inventory()
        words = ["train.py", str(asked.rate / asked.hosts), str(asked.seconds + WARM_UP)]

        def ours(terminal: int) -> list[subprocess.Popen[str]]:
            argv = ["ddp-orch", "up", str(inventory), "--", *words]
            pipes: dict[str, Any] = {"stdout": terminal, "stderr": subprocess.DEVNULL, "stdin": subprocess.DEVNULL}
            return [lab.popen(argv, cwd=folder, env={"TERM": "xterm"}, **pipes)]

        def by_hand(terminal: int) -> list[subprocess.Popen[str]]:
            torchrun = (
                f"cd bench && {shlex.quote(lab.python)} -m torch.distributed.run --rdzv-backend=static "
                f"--master-addr={lab.hosts[0].address} --master-port=29500 --nnodes={asked.hosts} --nproc-per-node=1 "
                f"--node-rank={{}} --local-addr={{}} --max-restarts=0 --tee 3 --log-dir /tmp/tee {shlex.join(words)}"
            )
            return [
                lab.popen(
                    ["ssh", "-o", "BatchMode=yes", f"ann@{host.address}", torchrun.format(rank, host.address)],
                    stdout=terminal,
                    stderr=subprocess.DEVNULL,
                    stdin=subprocess.DEVNULL,
                )
                for rank, host in enumerate(lab.hosts)
            ]

        contestants = {"ssh torchrun --tee": by_hand, "ddp-orch up": ours}
        delays: dict[str, list[float]] = {name: [] for name in contestants}
        for _ in range(asked.rounds):
            for name, contestant in contestants.items():
                delays[name] += on_a_terminal(contestant)
    figures = {}
    print(f"{'milliseconds':24} {'lines':>8} {'median':>8} {'p99':>8} {'max':>8}")
    for name, all_of in delays.items():
        ordered = sorted(all_of)
        figures[name] = {
            "lines": len(ordered),
            "median_ms": ordered[len(ordered) // 2] * 1000,
            "p99_ms": ordered[len(ordered) * 99 // 100] * 1000,
            "max_ms": ordered[-1] * 1000,
        }
        row = figures[name]
        print(f"{name:24} {row['lines']:8} {row['median_ms']:8.1f} {row['p99_ms']:8.1f} {row['max_ms']:8.1f}")
    results.write("log_latency", {"hosts": asked.hosts, "rate": asked.rate, "rounds": asked.rounds, "delays": figures})


if __name__ == "__main__":
    main()
