"""Many ranks that print as fast as they can: are the journals whole, is the controller's file, and what is the memory?

Hosts of the lab; a writer on every rank (no torch) offers its share of `--rate` lines a second for `--seconds`; `up`
writes what it shows to a file. Every line has a number. In the end every rank's journal and every rank's lines in the
file must have all numbers in their order. All of it, the writers too, shares this machine's cores: where they cannot do
it, the writers wait (as ranks whose pipes are full do), or the file lags behind the journals.

    python benchmarks/log_stream.py [--hosts 16] [--ranks 4] [--rate 300000] [--seconds 60]
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

import results
from lab.lab import Lab

LIMIT = 1800.0  # s for all of it to end

SCRIPT = """
import os, sys, time
rate, seconds = float(sys.argv[1]), float(sys.argv[2])
rank, out, number = os.environ["RANK"], sys.stdout.buffer, 0
began = now = time.monotonic()
while now - began < seconds:
    due = int((now - began + 0.02) * rate)
    line = b"step:%d loss:2.3456 samples/s:12345 step_time:0.1234 lr:0.001000\\n"
    out.write(b"".join(line % n for n in range(number, due)))
    out.flush()
    number = max(number, due)
    time.sleep(max(0.0, began + number / rate - 0.02 - time.monotonic()))
    now = time.monotonic()
print("wrote", number, "lines in", time.monotonic() - began, "s", flush=True)
"""


def check(lines: Iterable[bytes]) -> tuple[int, float]:
    """How many lines a rank has written, and in how many seconds. Fails where one is missing, twice or torn."""
    number = 0
    for line in lines:
        if line.startswith(b"wrote"):
            _, wrote, _, _, seconds, _ = line.split()
            assert int(wrote) == number, f"{number} lines of {int(wrote)}"
            return number, float(seconds)
        assert line.startswith(b"step:%d " % number) and line.endswith(b"lr:0.001000\n"), (number, line)
        number += 1
    raise AssertionError(f"no end after {number} lines")


def journal(home: Path, rank: int) -> Iterator[bytes]:
    rest = b""
    for segment in sorted(home.glob(f".local/state/ddp-orch/**/log/1.{rank}.out.*.seg")):
        with segment.open("rb") as file:
            for line in file:
                if not line.endswith(b"\n"):
                    rest = line  # goes on in the next segment
                    continue
                yield rest + line
                rest = b""


def in_file(path: Path, ranks: int) -> int:
    """The lines of all ranks in the controller's file, each rank's checked."""
    numbers = [0] * ranks
    ended = 0
    with path.open("rb") as file:
        for line in file:
            tag, _, text = line.partition(b"| ")
            if text.startswith(b"step:"):
                rank = int(tag.partition(b":")[2])
                whole = text.startswith(b"step:%d " % numbers[rank]) and text.endswith(b"lr:0.001000\n")
                assert whole, f"rank {rank}, line {numbers[rank]}: {text!r}"
                numbers[rank] += 1
            elif text.startswith(b"wrote "):
                rank = int(tag.partition(b":")[2])
                assert int(text.split()[1]) == numbers[rank], (rank, numbers[rank], text)
                ended += 1
    assert ended == ranks, f"the end of {ranks - ended} ranks is missing"
    return sum(numbers)


class Memory:
    """The most that a process of ours has used, here and on the hosts."""

    def __init__(self, lab: Lab, controller: int) -> None:
        self.controller_mib = self.host_mib = 0.0
        self._lab, self._controller = lab, controller
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()

    def close(self) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.wait(1.0):
            self.controller_mib = max(self.controller_mib, peak(Path(f"/proc/{self._controller}/status")))
            for host in self._lab.hosts:
                ours = [one.pid for one in host.processes() if "-I" in one.argv]  # the relays, guards and recorders
                self.host_mib = max([self.host_mib, *(peak(host.root / f"proc/{pid}/status") for pid in ours)])


def peak(status: Path) -> float:
    try:
        return int(status.read_text().partition("VmHWM:")[2].split()[0]) / 1024
    except (OSError, IndexError):
        return 0.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, default=16)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--rate", type=int, default=300_000)
    parser.add_argument("--seconds", type=float, default=60.0)
    asked = parser.parse_args()
    ranks = asked.hosts * asked.ranks
    with Lab(asked.hosts) as lab:
        folder = lab.controller_home / "bench"
        folder.mkdir()
        (folder / "flood.py").write_text(SCRIPT)
        defaults = {"user": "ann", "python": lab.python, "nproc_per_node": asked.ranks}
        inventory = lab.inventory(defaults=defaults, run={"launcher": "direct"})
        argv = ["ddp-orch", "up", str(inventory), "--", "flood.py", str(asked.rate / ranks), str(asked.seconds)]
        shown = folder / "shown"
        with shown.open("wb") as out:
            began = time.monotonic()
            up = lab.popen(argv, cwd=folder, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.PIPE)
            memory = Memory(lab, up.pid)
            try:
                _, said = up.communicate(timeout=LIMIT)
            finally:
                memory.close()
            took = time.monotonic() - began
        assert up.returncode == 0, said
        each = [
            check(journal(host.home, index * asked.ranks + rank))
            for index, host in enumerate(lab.hosts)
            for rank in range(asked.ranks)
        ]
        lines = sum(count for count, _ in each)
        assert in_file(shown, ranks) == lines
        figures = {
            "hosts": asked.hosts,
            "ranks": ranks,
            "offered_lines_per_second": asked.rate,
            "lines": lines,
            "journal_lines_per_second": lines / max(seconds for _, seconds in each),
            "controller_lines_per_second": lines / took,
            "seconds_of_writing": max(seconds for _, seconds in each),
            "seconds_until_all_was_in_the_file": took,
            "controller_file_mb": shown.stat().st_size / 1e6,
            "controller_peak_mib": memory.controller_mib,
            "largest_process_of_ours_on_a_host_mib": memory.host_mib,
        }
    for key, value in figures.items():
        print(f"{key:45} {value:14,.1f}")
    print("journals whole, the controller's file equal to them")
    results.write(f"log_stream_{asked.hosts}x{asked.ranks}", figures)


if __name__ == "__main__":
    main()
