"""How many lines a second of many hosts the controller shows: assembled, merged by time, tagged, written.

`--hosts` relays of this machine, without SSH, each with a journal of `--ranks` ranks that say the same at the same
moments; the controller's `View` and `printer` as `logs` has them, with a pipe to `cat` for the screen. All of it shares
this machine's cores. Before that, the controller alone: its share of the work on frames that are in memory already.

    python benchmarks/log_throughput.py [--hosts 16] [--ranks 4] [--lines 20000]
"""

from __future__ import annotations

import argparse
import contextlib
import os
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import results

from orchestrator.hosts.fleet import Fleet
from orchestrator.hosts.node_program import node_program
from orchestrator.inventory.model import Host, parse
from orchestrator.node.host import state
from orchestrator.node.recorder import journal
from orchestrator.node.serve import follow
from orchestrator.output.intake import Intake
from orchestrator.output.lines import Line, Mask
from orchestrator.output.pipeline import Pipeline, Stage
from orchestrator.runs.follow import LogFilter, View
from orchestrator.runs.printing import make_printer
from orchestrator.ssh.pipe import LocalConnection

RUN = "benchmark-run"
PIECE = 100  # lines: what a recorder finds at a time at some 5,000 lines/s of a rank


class Dialer:
    """Hosts that are folders of this machine."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def connect(self, host: Host) -> LocalConnection:
        os.environ["DDP_ORCH_STATE_DIR"] = str(self._folder / host.name)
        return LocalConnection()

    def close(self) -> None:
        pass


def write(folder: Path, host: int, ranks: int, lines: int) -> None:
    os.environ["DDP_ORCH_STATE_DIR"] = str(folder / f"gpu-{host:02}")
    log = Path(state.run_folder(RUN)) / "log"
    log.mkdir(parents=True)
    for rank in range(host * ranks, (host + 1) * ranks):
        data, records = bytearray(), b""
        for first in range(0, lines, PIECE):
            for number in range(first, first + PIECE):
                data += b"step:%d loss:2.3456 samples/s:12345 step_time:0.1234 lr:0.001000 rank:%d\n" % (number, rank)
            records += journal.RECORD.pack(len(data), 1_700_000_000_000_000_000 + first * 200_000)
        (log / f"1.{rank}.out.000000000000.seg").write_bytes(data)
        (log / f"1.{rank}.out.000000000000.idx").write_bytes(records)


@contextlib.contextmanager
def screen() -> Iterator[None]:
    """stdout is a pipe to something that reads it."""
    kept = os.dup(1)
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as reader:
        assert reader.stdin
        os.dup2(reader.stdin.fileno(), 1)
        reader.stdin.close()
        try:
            yield
        finally:
            sys.stdout.flush()
            os.dup2(kept, 1)
            os.close(kept)


class Counter(Stage):
    count = 0

    def push(self, lines: Sequence[Line], now: float) -> Sequence[Line]:
        self.count += len(lines)
        return lines


def shown(folder: Path, hosts: tuple[Host, ...]) -> tuple[int, float, float]:
    """Lines, seconds, and seconds of CPU of the controller."""
    fleet = Fleet(Dialer(folder), node_program(), 1, lambda: secrets.token_hex(12))  # type: ignore[arg-type]
    for host in hosts:  # one after the other: the folder goes by the environment
        fleet.session(host)
    view = View(RUN, hosts, LogFilter(follow=False), fleet, print)
    counter = Counter()
    print_ = make_printer([host.name for host in hosts], Mask(), as_json=False, full_output_command="")

    with screen():
        began, cpu = time.monotonic(), time.process_time()
        view.run(Pipeline((counter, print_)))
        took = time.monotonic() - began, time.process_time() - cpu
    fleet.close()
    assert not view.failed, view.failed
    return counter.count, *took


def alone(folder: Path, hosts: tuple[Host, ...]) -> tuple[int, float, float]:
    """As `shown`, of what the controller does with frames once they are there."""
    frames: list[tuple[str, dict[str, Any], bytes]] = []
    for host in hosts:
        os.environ["DDP_ORCH_STATE_DIR"] = str(folder / host.name)
        question = dict.fromkeys(("tail", "sources", "stream", "attempt", "since", "until", "grep"))
        asked: dict[str, Any] = {**question, "run_id": RUN, "offsets": {}, "follow": False}
        follow.follow(asked, lambda header, data, name=host.name: frames.append((name, header, data)))
    frames.sort(key=lambda frame: frame[1]["parts"][0][3])  # as they come in from all hosts at once
    names = [host.name for host in hosts]
    intake = Intake(names, (), 0.5, lambda *_: True, lambda _: False)
    counter = Counter()
    pipeline = Pipeline((intake, counter, make_printer(names, Mask(), as_json=False, full_output_command="")))
    with screen():
        began, cpu = time.monotonic(), time.process_time()
        for number, (name, header, data) in enumerate(frames):
            intake.feed(name, header["streams"], header["parts"], data, time.monotonic())
            if number % 16 == 15:
                pipeline.push((), time.monotonic())
        pipeline.flush(time.monotonic())
        took = time.monotonic() - began, time.process_time() - cpu
    return counter.count, *took


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, default=16)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--lines", type=int, default=20_000)
    asked = parser.parse_args()
    names = ", ".join(f"gpu-{number:02}" for number in range(asked.hosts))
    hosts = parse(f"hosts: [{names}]\ndefaults: {{python: {sys.executable}}}", "inventory.yaml").hosts
    wanted = asked.hosts * asked.ranks * asked.lines
    with tempfile.TemporaryDirectory() as name:
        for number in range(asked.hosts):
            write(Path(name), number, asked.ranks, asked.lines)
        lines, seconds, busy = alone(Path(name), hosts)
        assert lines == wanted, lines
        whole, whole_seconds, cpu = shown(Path(name), hosts)
        assert whole == wanted, whole
    figures = {
        "hosts": asked.hosts,
        "ranks": asked.hosts * asked.ranks,
        "lines": wanted,
        "controller_alone_lines_per_second": lines / seconds,
        "controller_alone_lines_per_second_of_cpu": lines / busy,
        "with_relays_on_the_same_cores_lines_per_second": whole / whole_seconds,
        "with_relays_on_the_same_cores_lines_per_second_of_the_controllers_cpu": whole / cpu,
    }
    for key, value in figures.items():
        print(f"{key:70} {value:12,.1f}")
    results.write("log_throughput", figures)


if __name__ == "__main__":
    main()
