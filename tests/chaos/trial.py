"""One run in a lab, for a fault to strike, and the three asserts that every test here ends with.

`CHAOS=full` (make chaos) takes every moment and the large numbers; `CHAOS_SEED=N` replays the random moments of a run.
"""

from __future__ import annotations

import json
import os
import random
import re
import secrets
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from e2e.driver import assert_clean, code, ok, orch, script
from lab.host import Host
from lab.lab import Lab
from lab.waiting import wait_until

FULL = os.environ.get("CHAOS") == "full"
SEED = int(os.environ.get("CHAOS_SEED") or secrets.randbelow(1_000_000))

# Sums over all ranks with gloo, a line a step. A file `fault` in the home of its host makes a rank do what it says.
GLOO = """
import os, sys, time
rank = int(os.environ["RANK"])
fault = os.path.expanduser("~/fault")
def misbehave():
    if not os.path.exists(fault):
        return
    what = open(fault).read()
    os.unlink(fault)
    print("rank", rank, "is told to", what, flush=True)
    if what == "fail":
        os._exit(1)  # by sys.exit torch 2.13 ends in "terminate called" and SIGABRT in 3 of 12 tries, without us too
    if what == "leave":
        os._exit(0)
    hoard = []
    while what == "eat":
        hoard.append(bytearray(os.urandom(1 << 20) * 32))
print("rank", rank, "begun", flush=True)
misbehave()
import torch, torch.distributed as dist
dist.init_process_group("gloo")
for step in range(int(sys.argv[1])):
    value = torch.full((1000,), float(rank + 1))
    dist.all_reduce(value)
    print("rank", rank, "step", step, "sum", int(value[0]), flush=True)
    misbehave()
    time.sleep(float(sys.argv[2]))
dist.destroy_process_group()
"""
FOR_EVER = "100000"
MOMENTS = ("random", "worst")  # worst: while the ranks meet, for torch would wait half an hour for one that is gone


def chance(*what: object) -> random.Random:
    """Random numbers of this test, the same again with the same CHAOS_SEED."""
    print(f"CHAOS_SEED={SEED}")
    return random.Random(f"{SEED} {what}")


class Trial:
    """An attached `up`, killed where it is left before its end. It prints to files, so that it never waits for us."""

    def __init__(self, lab: Lab, inventory: Path, *argv: str) -> None:
        self.lab = lab
        self.inventory = inventory
        self._folder = lab.controller_home / f"trial-{secrets.token_hex(4)}"
        self._folder.mkdir()
        with (self._folder / "out").open("w") as out, (self._folder / "err").open("w") as err:
            self.up = lab.popen(
                ["ddp-orch", "up", str(inventory), *argv],
                cwd=code(lab),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
            )

    def __enter__(self) -> Trial:
        return self

    def __exit__(self, *_: object) -> None:
        self.up.kill()
        self.up.wait()

    @property
    def output(self) -> str:
        return (self._folder / "out").read_text(errors="replace")

    @property
    def errors(self) -> str:
        return (self._folder / "err").read_text(errors="replace")

    @property
    def run_id(self) -> str:
        return self.errors.split(" has started")[0].rsplit("run ", 1)[1]

    @property
    def conclusion(self) -> str:
        """The line in which `up` tells how the run ended. The diagnosis may follow it."""
        return str(re.findall(rf"^.*run {self.run_id} (?:succeeded|failed|was ).*$", self.errors, re.M)[-1])

    def wait_for(self, text: str, timeout: float = 120, times: int = 1) -> None:
        """Until `text` was printed so many times on stdout, or on stderr."""

        def there() -> bool:
            ended = self.up.poll() is not None
            found = (self.output + self.errors).count(text) >= times
            if ended and not found:
                raise AssertionError(f"`up` has ended, without {text!r}:\n{self.output[-4000:]}\n{self.errors}")
            return found

        try:
            wait_until(there, timeout, f"{text!r} is printed")
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.output[-4000:]}\n{self.errors}") from None

    def wait_for_moment(self, moment: str, rank: int, dice: random.Random) -> None:
        """`worst`: the rank has just begun, and the others wait for it or will. `random`: some steps later."""
        if moment == "worst":
            self.wait_for(f"rank {rank} begun")
        else:
            step = dice.randrange(1, 12)
            print(f"after step {step}")
            self.wait_for(f"rank {rank} step {step} ")

    def pass_time(self, seconds: float) -> None:
        """Let the run go on for so long: the time is what is tried, not a condition. It has to be there afterwards."""
        with suppress(subprocess.TimeoutExpired):
            self.up.wait(seconds)
            raise AssertionError(f"`up` has ended:\n{self.output[-4000:]}\n{self.errors}")

    def fact(self) -> dict[str, Any]:
        """What `ps --json` tells of the run."""
        away = [host for host in self.lab.hosts if not host.is_up or host.links["ssh"].cut]
        listed = ok(orch(self.lab, "ps", "-i", self.inventory, "--all", "--json"), 4 if away else 0).stdout
        (found,) = [run for run in json.loads(listed) if run["run_id"] == self.run_id]
        return dict(found)

    def ended(self, within: float) -> int:
        """The exit code of `up`, which has to come within so many seconds."""
        try:
            return self.up.wait(within)
        except subprocess.TimeoutExpired:
            raise AssertionError(
                f"`up` has not ended within {within} s\n{self.output[-4000:]}\n{self.errors}"
            ) from None

    def assert_ended(
        self,
        code: int,
        state: str,
        first: str = "",
        within: float = 60,
        attempt: int = 1,
    ) -> dict[str, Any]:
        """The three asserts. `first`: how the first failure is named, from the host on; "" where there is none."""
        assert self.ended(within) == code, f"{self.output[-4000:]}\n{self.errors}"
        assert_clean(self.lab, self.run_id)
        told = f"{state}{': ' + first if first else ''}"
        assert told in self.conclusion, f"{told!r} is not told: {self.conclusion}"
        run = self.fact()
        assert (run["state"], run["attempt"]) == (state, attempt)
        return run


def trial(lab: Lab, inventory: Path, text: str, *argv: str) -> Trial:
    """`up` of a script."""
    return Trial(lab, inventory, "--", script(lab, text), *argv)


# --- who is struck


def worker(host: Host, run_id: str) -> int:
    """The one rank on this host, by its pid there."""
    found = [one.pid for one in host.marked(run_id) if _is_worker(one.argv)]
    assert len(found) == 1, f"{len(found)} ranks on {host.name}"
    return found[0]


def agent(host: Host, run_id: str) -> int:
    """torchrun on this host."""
    (found,) = [one.pid for one in host.marked(run_id) if "torch.distributed.run" in one.argv]
    return found


def _is_worker(argv: tuple[str, ...]) -> bool:
    return any(word.endswith("train.py") for word in argv) and "torch.distributed.run" not in argv


def ours(host: Host, name: str) -> int | None:
    """`ddp-guard` or `ddp-recorder` of the one run on this host. One that is dead and not reaped yet is none."""
    for comm in (host.root / "proc").glob("[0-9]*/comm"):
        try:
            state = comm.with_name("stat").read_text().rpartition(")")[2].split()[0]
            if comm.read_text().startswith(name[:15]) and state != "Z":
                return int(comm.parent.name)
        except OSError:
            continue
    return None


def kill(host: Host, pid: int, number: str = "KILL") -> None:
    host.sh(f"kill -{number} {pid}", "root", check=True)


def fault(host: Host, what: str) -> None:
    """Tell the rank of GLOO on this host to misbehave at its next step, or at its start."""
    path = host.home / "fault"
    path.write_text(what)
    os.chown(path, 2001, 2001)


def numbers(fact: Mapping[str, Any], host: str) -> tuple[int | None, str | None]:
    """(exit code, signal) that `ps --json` tells of a host."""
    (node,) = [node for node in fact["nodes"] if node["host"] == host]
    return node["exit_code"], node["signal"]
