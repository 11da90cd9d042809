"""Recorders are killed a thousand times while output flows: what the ranks wrote is in the journal, byte for byte."""

from __future__ import annotations

import hashlib
import re

from lab.lab import Lab

from .trial import FULL, chance, kill, ours, trial

KILLS = 1000 if FULL else 20
# Every rank says what it has written, by its hash: on the other stream, as the last word.
FLOOD = """
import hashlib, os, sys, time
import torch, torch.distributed as dist
dist.init_process_group("gloo")
rank, total, number = int(os.environ["RANK"]), hashlib.sha256(), 0
while True:
    last = torch.tensor([float(os.path.exists(os.path.expanduser("~/finish")))])
    dist.all_reduce(last, dist.ReduceOp.MAX)
    for _ in range(50):
        line = "%d %d %s\\n" % (rank, number, "x" * (number * 7919 % 300))
        number += 1
        total.update(line.encode())
        sys.stdout.write(line)
    sys.stdout.flush()
    if last.item():
        break
    time.sleep(0.1)
print("sha256", total.hexdigest(), number, file=sys.stderr, flush=True)
"""


def test_recorders_killed_a_thousand_times_lose_and_double_no_byte(lab3: Lab) -> None:
    dice = chance()
    killed = 0
    with trial(lab3, lab3.inventory(), FLOOD) as run:
        for rank in range(3):
            run.wait_for(f"{rank} 50 ")
        while killed < KILLS:
            for host in lab3.hosts:
                pid = ours(host, "ddp-recorder")
                if pid is not None:  # else the guard has not restarted it yet
                    kill(host, pid)
                    killed += 1
            run.pass_time(dice.uniform(0, 0.6))
        for host in lab3.hosts:
            (host.home / "finish").touch()
        run.assert_ended(0, "succeeded", within=120)
    for rank, host in enumerate(lab3.hosts):
        parts = sorted(host.home.glob(f".local/state/ddp-orch/*/runs/{run.run_id}/log/1.{rank}.out.*.seg"))
        written = b"".join(part.read_bytes() for part in parts)
        said = re.search(rf":{rank} .*sha256 (\w+) (\d+)", run.output + run.errors)
        assert said and (hashlib.sha256(written).hexdigest(), written.count(b"\n")) == (said[1], int(said[2]))
