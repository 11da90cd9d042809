"""Random sequences of faults over four hosts and a spare; an oracle, made of the rules, says what must become of them.

    python tests/chaos/sequences.py [--count 200] [--seed 0] [--elect] [--torchrun] [--only N] [--write NAME] ...

Sequence N of a seed is always the same: `--only N` replays it. Counted are orphans (processes of ours that are left on
a host), wrong verdicts (state, or host of the first failure) and runs that were lost though the rules say that they
must survive. The exit code is 0 when there is none. Needs what the lab needs: Linux and root.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import math
import multiprocessing
import os
import random
import re
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[2])]

from e2e.driver import guards, runs, script, start
from lab.lab import Lab
from lab.waiting import wait_until

HOSTS, SPARE = 5, 4  # node-4 waits
LEASE = 8.0  # s, as in orchestrator/node/link/link.py
STALL = 6  # s of run.stall_timeout
REJOIN = 45  # s of run.rejoin_timeout
PATIENCE = 120.0  # s for a run to come back or to end; torch is slow where five hosts share two cores

# Ranks that wait for one another at every tick, as in a collective, and hang for ever when one of them is gone. They
# end when the file `finish` is on the head; `fault` makes the rank of a host fail.
TICKS = """
import os, sys, time
rank, world, attempt = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), os.environ["DDP_ORCH_ATTEMPT"]
home = os.path.expanduser("~")
{meet}
tick = 0
while not together(os.path.exists(home + "/finish")):
    with open(home + "/tick.new", "w") as file:
        file.write(attempt)
    os.replace(home + "/tick.new", home + "/tick")
    print("tick", tick, flush=True)
    if os.path.exists(home + "/fault"):
        os.unlink(home + "/fault")
        sys.exit("told to fail in attempt " + attempt)
    tick += 1
    time.sleep(0.1)
leave()
"""
STAR = """
import socket
place = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
if rank == 0:
    server = socket.create_server(place)
    others = [server.accept()[0] for _ in range(world - 1)]
else:
    while True:
        try:
            head = socket.create_connection(place)
            break
        except OSError:
            time.sleep(0.05)
def hear(one):
    word = one.recv(1)
    while not word:
        time.sleep(1000)
    return word
def together(last):
    if rank == 0:
        for one in others:
            hear(one)
        for one in others:
            one.send(b"x" if last else b".")
        return last
    head.send(b".")
    return hear(head) == b"x"
def leave():
    pass
"""
GLOO = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
def together(last):
    value = torch.tensor([float(last and rank == 0)])
    try:
        dist.all_reduce(value)
    except RuntimeError:  # gloo notices what NCCL would hang in
        time.sleep(1000)
    return value.item() > 0
leave = dist.destroy_process_group  # without it gloo's threads abort the interpreter's end now and then
"""

# kind -> what it does to its host, in the words of the rules
NOTHING, FAILS, LOST = "nothing", "fails", "lost"
KINDS = {
    "recorder": NOTHING,
    "blip": NOTHING,  # cut off for less than a lease
    "sshd": NOTHING,
    "worker": FAILS,
    "exit": FAILS,
    "stop": FAILS,  # SIGSTOP: seen by stall_timeout
    "guard": FAILS,  # the recorder starts another one
    "both": LOST,  # guard and recorder: nobody of that host can tell
    "power": LOST,
    "cut": LOST,  # it comes back when the run waits for it or continues without it
}


@dataclass(frozen=True)
class Fault:
    kind: str
    host: int


@dataclass(frozen=True)
class Sequence:
    seed: str
    max_restarts: int
    nnodes: str
    bursts: tuple[tuple[Fault, ...], ...]
    """Faults of one burst come at once, the next burst when the run goes on."""
    pauses: tuple[float, ...]
    """Seconds that the run goes on before each burst."""
    elects: bool = False
    """Whether the hosts elect another head when theirs is lost. Needs restarts."""

    @property
    def min_nodes(self) -> int:
        return int(self.nnodes.split(":")[0])

    @property
    def max_nodes(self) -> int:
        return int(self.nnodes.split(":")[-1])

    def __str__(self) -> str:
        bursts = ", then ".join(" + ".join(f"{one.kind} {one.host}" for one in burst) for burst in self.bursts)
        elects = ", elect" if self.elects else ""
        return f"{self.seed}: max_restarts {self.max_restarts}, nnodes {self.nnodes}{elects}: {bursts}"


def draw(seed: str, elects: bool) -> Sequence:
    dice = random.Random(seed)
    bursts = []
    for _ in range(dice.randrange(1, 4)):
        hosts = dice.sample(range(HOSTS), dice.choice((1, 1, 2)))
        bursts.append(tuple(Fault(dice.choice(list(KINDS)), host) for host in hosts))
    nnodes = dice.choice(("4", "3:4"))
    max_restarts = dice.randrange(elects, 3)
    pauses = tuple(dice.uniform(0.0, 2.0) for _ in bursts)
    return Sequence(seed, max_restarts, nnodes, tuple(bursts), pauses, elects)


# --- the oracle


@dataclass(frozen=True)
class Expected:
    """What must be true of the run by now. `over`: its state at the end, once it is over."""

    team: tuple[int, ...] = (0, 1, 2, 3)
    spares: frozenset[int] = frozenset({SPARE})
    head: int = 0
    down: frozenset[int] = frozenset()
    """Hosts that are lost for good."""
    attempt: int = 1
    spent: int = 0
    over: str | None = None
    named: frozenset[int] = frozenset()
    """Hosts of which one is the first failure's; none: whichever."""
    firsts: tuple[frozenset[int], ...] = field(default=())
    back: frozenset[int] = frozenset()
    """Hosts that were cut off by the last burst, and rejoin the run when the cut is over."""


def foresee(now: Expected, burst: tuple[Fault, ...], sequence: Sequence) -> Expected:
    """The rules (docs/failures.md, orchestrator/node/gang/gang.py), told once more from the outside."""
    struck = [one for one in burst if one.host in now.team and KINDS[one.kind] != NOTHING]
    hurt = {one.host for one in burst if KINDS[one.kind] == LOST}
    back = frozenset(one.host for one in burst if one.kind == "cut" and sequence.max_restarts > 0)
    spares = now.spares - hurt
    if not struck:
        return replace(now, spares=spares | back, back=back)
    # a process that ends is seen at once, silence after the lease; a stall could be either
    told = [one for one in struck if KINDS[one.kind] == FAILS and one.kind != "stop"]
    silent = [one for one in struck if KINDS[one.kind] == LOST]
    first = told or silent or struck
    named = frozenset(one.host for one in first)
    lost = not told and bool(silent)
    over = replace(now, over="lost" if lost else "failed", named=named, back=frozenset())
    down = now.down | (hurt - back)
    candidates = sorted(set(range(HOSTS)) - down - hurt)
    if sequence.elects and len(candidates) <= HOSTS // 2:
        return replace(over, named=frozenset())  # without a majority the hosts do not know of each other's losses
    head = min(candidates) if sequence.elects and now.head in hurt else now.head
    if (head in hurt and head not in back) or (not lost and now.spent >= sequence.max_restarts):
        # a head that is cut off loses the others, and they lose it
        return replace(over, named=frozenset()) if Fault("cut", 0) in burst else over
    if head in back:
        if now.spent >= sequence.max_restarts:
            return replace(over, named=frozenset())
        return replace(now, attempt=now.attempt + 1, spent=now.spent + 1, firsts=(*now.firsts, named), back=back)
    firsts = (*now.firsts, named)
    # which of two is the first failure is chance; none of the draws has a host that is weary in one case only
    weary = {host for host in now.team if host != head and sum(1 for one in firsts if one == {host}) >= 2}
    pool = sorted(spares - weary - {head})
    others = [host for host in now.team if host != head]
    seats = [head, *(others if head in now.team else others[1:])]
    places: list[int | None] = []
    for host in seats:
        if host != head and pool and (host in hurt or host in weary):
            places.append(pool.pop(0))
        else:
            places.append(None if host in hurt else host)
    team = [host for host in places if host is not None]
    waits = len(team) < sequence.min_nodes
    if waits and now.spent < sequence.max_restarts:
        team = [place if place is not None else host for place, host in zip(places, seats, strict=True)]
        team = [host for host in team if host not in hurt or host in back]
    if len(team) < sequence.min_nodes:
        return over
    while pool and len(team) < sequence.max_nodes:
        team.append(pool.pop(0))
    return Expected(
        tuple(team),
        (spares | back | set(now.team)) - hurt.difference(back) - set(team),
        head,
        down,
        now.attempt + 1,
        now.spent + (not lost or waits),
        firsts=firsts,
        back=back,
    )


def is_fair(sequence: Sequence) -> bool:
    """Whether the rules foresee one outcome. Left out: what depends on which of two faults was noticed first."""
    now = Expected()
    gone: set[int] = set()
    for burst in sequence.bursts:
        if now.over is not None:
            return False  # the sequence has a rest that would strike nobody
        kinds = [KINDS[one.kind] for one in burst if one.host in now.team]
        if any(one.host in gone for one in burst):
            return False
        if {"stop", "exit"} & {one.kind for one in burst} and len(burst) > 1:
            return False  # a rank may stop or end too late for either, and then do so in the next attempt
        if any(one.kind in ("worker", "exit", "stop") and one.host not in now.team for one in burst):
            return False  # it has no rank
        hurts = [one for one in burst if KINDS[one.kind] == LOST]
        if len(hurts) > 1 and any(one.host not in now.team for one in hurts):
            return False  # whether the spare was known to be gone when it was needed
        if kinds.count(LOST) and len(kinds) - kinds.count(NOTHING) > kinds.count(LOST):
            return False  # a second failure is noticed while the first is dealt with, or after
        if sequence.max_restarts and len(hurts) > 1 and any(one.kind == "cut" for one in hurts):
            return False  # who is back first
        head_is_cut = sequence.max_restarts and Fault("cut", 0) in burst and not sequence.elects
        if head_is_cut and (now.spares or sequence.nnodes != "4"):
            return False  # who of the others is back first
        gone |= {one.host for one in hurts if one.kind != "cut" or sequence.max_restarts == 0}
        now = foresee(now, burst, sequence)
        if any(len(first) > 1 and first & other for first, other in itertools.permutations(now.firsts, 2)):
            return False  # who is weary
    return True


def loses_head(sequence: Sequence) -> bool:
    now = Expected()
    for burst in sequence.bursts:
        now = foresee(now, burst, sequence)
    return now.head != 0


def fair(seed: int, number: int, elects: bool = False) -> Sequence:
    """Sequence `number` of a seed. With elections, the head is lost in every second one at least."""
    for salt in range(10_000):
        sequence = draw(f"{seed}.{number}.{salt}", elects)
        if is_fair(sequence) and (not elects or number % 2 or loses_head(sequence)):
            return sequence
    raise AssertionError("no fair sequence in 10,000 draws")


# --- the run


class Story:
    """One run with its faults, in a lab that is as new."""

    def __init__(self, lab: Lab, sequence: Sequence, torchrun: bool) -> None:
        self.lab = lab
        self.sequence = sequence
        hosts: list[dict[str, Any]] = [
            {"name": host.name, "address": host.address, "spare": number == SPARE}
            for number, host in enumerate(lab.hosts)
        ]
        self.inventory = lab.inventory(
            hosts=hosts,
            run={
                "launcher": "torchrun" if torchrun else "direct",
                "max_restarts": sequence.max_restarts,
                "nnodes": sequence.nnodes,
                "rejoin_timeout": REJOIN,
                "head_lost": "elect" if sequence.elects else "stop",
                # torch is loaded in silence
                "stall_timeout": 40 if torchrun else STALL,
            },
        )
        text = TICKS.replace("{meet}", GLOO if torchrun else STAR)
        self.run_id = start(lab, self.inventory, "--", script(lab, text), timeout=PATIENCE)
        self._look_at = 0.0

    def record(self, host: int, name: str) -> dict[str, Any] | None:
        """A record of the run on a host's disk, which outlives its power."""
        for path in self.lab.hosts[host].home.glob(f".local/state/ddp-orch/*/runs/{self.run_id}/{name}"):
            with contextlib.suppress(OSError, ValueError):
                found = json.loads(path.read_text())
                return dict(found.get("data", found))
        return None

    def works(self, team: tuple[int, ...], attempt: int) -> bool:
        """Every rank of the attempt has met the others."""
        for host in team:
            try:
                if (self.lab.hosts[host].home / "tick").read_text() != str(attempt):
                    return False
            except OSError:
                return False
        return True

    def is_over(self) -> bool:
        """Looked at twice a second at most: it means to look into every process of every host."""
        if time.monotonic() < self._look_at:
            return False
        self._look_at = time.monotonic() + 0.5
        return not self.lab.marked(self.run_id) and not guards(self.lab)

    def await_attempt(self, now: Expected) -> None:
        def reached() -> bool:
            if self.works(now.team, now.attempt):
                return True
            if self.is_over():
                raise RunEnded
            return False

        wait_until(reached, PATIENCE, f"attempt {now.attempt} works on {now.team}")
        for spare in now.spares - now.back:
            wait_until(
                lambda spare=spare: (self.record(spare, "state.json") or {}).get("committed"),
                20,
                f"the spare {spare} knows of the run",
            )

    def bring_back(self, now: Expected) -> None:
        """The cuts of the last burst are over: once the run waits for these hosts, or continues without them."""
        for host in now.back:
            if host in now.team:
                self.await_label("waiting", now)
            elif now.attempt > 1:
                self.await_attempt(now)
            self.lab.hosts[host].heal()
            if host not in now.team:
                wait_until(lambda host=host: self.is_spare(host, now.attempt), PATIENCE, f"node-{host} is a spare")

    def await_label(self, label: str, now: Expected) -> None:
        def shown() -> bool:
            if self.is_over():
                raise RunEnded
            # also one that has lost its majority, or does not know it yet, calls itself the head
            away = now.down | now.back if self.sequence.elects else frozenset()
            records = {host: self.record(host, "gang.json") or {} for host in range(HOSTS) if host not in away}
            return any(
                (record.get("head", 0), record.get("label")) == (host, label) for host, record in records.items()
            )

        wait_until(shown, PATIENCE, f"the run is {label}")

    def is_spare(self, host: int, attempt: int) -> bool:
        """Whether a host that is back has obeyed the order to stop, so that it may take part in the next attempt."""
        record = self.record(host, "state.json") or {}
        return (record.get("attempt"), record.get("phase")) == (attempt, "exited")

    def strike(self, burst: tuple[Fault, ...]) -> None:
        blips = []
        for one in burst:
            host = self.lab.hosts[one.host]
            if one.kind in ("cut", "blip"):
                host.cut()
                blips += [host] if one.kind == "blip" else []
            elif one.kind == "power":
                host.crash()
            elif one.kind == "sshd":
                host.sshd_stop()
                host.sshd_kill_sessions()
                host.sshd_start()
            elif one.kind == "exit":
                (host.home / "fault").touch()
                os.chown(host.home / "fault", 2001, 2001)
            else:
                pids = " ".join(self.victims(one))
                # stopped first: of guard and recorder none may see the end of the other
                host.sh(f"kill -STOP {pids}" + ("" if one.kind == "stop" else f" && kill -KILL {pids}"), "root")
        if blips:
            time.sleep(2.0)  # what is tried: less than a lease
            for host in blips:
                host.heal()

    def victims(self, one: Fault) -> list[str]:
        host = self.lab.hosts[one.host]
        names = {"guard": ["ddp-guard"], "recorder": ["ddp-recorder"], "both": ["ddp-guard", "ddp-recorder"]}
        if one.kind in names:
            # a recorder that has just been started has no name yet
            return [
                pid
                for name in names[one.kind]
                for pid in wait_until(
                    lambda name=name: by_name(self.lab, one.host, name), PATIENCE, f"{name} on node-{one.host}"
                )
            ]
        return [
            str(process.pid)
            for process in host.marked(self.run_id)
            if any(word.endswith("train.py") for word in process.argv) and "torch.distributed.run" not in process.argv
        ]

    def finish(self, team: tuple[int, ...]) -> None:
        """Rank 0 decides, wherever it is."""
        for host in team:
            path = self.lab.hosts[host].home / "finish"
            path.touch()
            os.chown(path, 2001, 2001)

    def repair(self) -> None:
        for host in self.lab.hosts:
            if not host.is_up:
                host.boot()
            host.heal()


class RunEnded(Exception):
    """Before its time."""


def by_name(lab: Lab, host: int, name: str) -> list[str]:
    found = []
    for comm in (lab.hosts[host].root / "proc").glob("[0-9]*/comm"):
        with contextlib.suppress(OSError):
            if comm.read_text().strip() == name:
                found.append(comm.parent.name)
    return found


def play(lab: Lab, sequence: Sequence, torchrun: bool = False) -> dict[str, Any]:
    """Run the sequence. What was wrong is in `orphans`, `wrong` and `lost_run`; the lab is left as it is."""
    began = time.monotonic()
    result: dict[str, Any] = {"sequence": str(sequence), "orphans": [], "wrong": [], "lost_run": False}
    story = Story(lab, sequence, torchrun)
    now = Expected()
    try:
        for burst, pause in zip(sequence.bursts, sequence.pauses, strict=True):
            story.await_attempt(now)
            time.sleep(pause)  # a random moment is what is tried
            story.strike(burst)
            waiting = {one.host for one in burst if KINDS[one.kind] == LOST} & now.spares
            now = foresee(now, burst, sequence)
            if now.over is not None:
                break
            if waiting:
                time.sleep(
                    2 * LEASE + 3
                )  # the next burst may count on its loss being known, also if all hosts were struck
            story.bring_back(now)
        if now.over is None:
            story.await_attempt(now)
            story.finish(now.team)
            now = replace(now, over="succeeded")
        wait_until(story.is_over, PATIENCE, "the run is over on all hosts")
    except RunEnded:
        result["lost_run"] = True
    except AssertionError as error:
        result["wrong"].append(str(error))
    result["orphans"] = orphans(lab)
    story.repair()
    found = runs(lab, story.inventory)[story.run_id]
    result.update(expected=now.over, state=found["state"], attempts=found["attempt"])
    judge(result, story, now, found)
    if any(result[key] for key in ("orphans", "wrong", "lost_run")):
        result["failures"] = {host: (story.record(host, "state.json") or {}).get("failures") for host in range(HOSTS)}
        result["stderr"] = logs(lab, story)
    result["seconds"] = round(time.monotonic() - began, 1)
    return result


def judge(result: dict[str, Any], story: Story, now: Expected, found: dict[str, Any]) -> None:
    if result["lost_run"] or (now.over == "succeeded" != found["state"]):
        result["lost_run"] = True
        return
    if now.over is not None and found["state"] != now.over:
        result["wrong"].append(f"the run is {found['state']}, not {now.over}")
    if found["attempt"] != now.attempt:
        result["wrong"].append(f"{found['attempt']} attempts, not {now.attempt}")
    hosts = sorted(range(HOSTS), key=lambda host: host in now.down)  # those that can know it first
    verdicts = [record["verdict"] for host in hosts if (record := story.record(host, "exit.json"))]
    first = (verdicts[0].get("first_failure") or {}).get("host") if verdicts else None
    if now.over in ("failed", "lost") and now.named and first not in {f"node-{host}" for host in now.named}:
        result["wrong"].append(f"the first failure is at {first}, not at one of {sorted(now.named)}")


def logs(lab: Lab, story: Story) -> list[str]:
    """The last words of every rank and agent, for whoever has to find out what was wrong."""
    argv = ["ddp-orch", "logs", "-i", str(story.inventory), story.run_id, "--tail", "10"]
    return [
        line
        for stream in ("stderr", "agent")
        for line in lab.run([*argv, "--stream", stream], timeout=60).stdout.splitlines()
    ]


def orphans(lab: Lab) -> list[str]:
    """Processes of ours that nobody would end any more; the run is over."""
    found = [f"{name}: {' '.join(one.argv)}" for name, some in lab.marked().items() for one in some]
    return found + guards(lab)


# --- many of them


def work(numbers: Any, seed: int, elects: bool, torchrun: bool, results: Any) -> None:
    """Play what comes, in one lab, until None comes."""
    with Lab(HOSTS) as lab:
        while (number := numbers.get()) is not None:
            try:
                results.put({"number": number, **play(lab, fair(seed, number, elects), torchrun)})
            except Exception:  # noqa: BLE001  one that breaks the test itself is shown, and the others go on
                broken = {"sequence": str(fair(seed, number, elects)), "broken": traceback.format_exc()}
                results.put({"number": number, **broken})
            lab.reset()
    results.put(None)


def play_all(
    wanted: list[int], seed: int, elects: bool, torchrun: bool, labs: int, seconds: float = math.inf
) -> Iterator[dict[str, Any]]:
    """The result of each as it ends, from several labs side by side. None is begun after so many seconds."""
    deadline = time.monotonic() + seconds
    numbers: Any = multiprocessing.Queue()
    results: Any = multiprocessing.Queue()
    arguments = (numbers, seed, elects, torchrun, results)
    workers = [multiprocessing.Process(target=work, args=arguments, daemon=True) for _ in range(labs)]
    for worker in workers:
        worker.start()
    left = list(wanted)
    for _ in range(labs):
        numbers.put(left.pop(0) if left else None)
    running = labs
    while running:
        result = results.get()
        if result is None:
            running -= 1
            continue
        numbers.put(left.pop(0) if left and time.monotonic() < deadline else None)
        yield result
    for worker in workers:
        worker.join()


BAD = {"orphans": "orphans", "wrong": "wrong verdicts", "lost_run": "runs lost that must survive", "broken": "broken"}


def summary(results: list[dict[str, Any]]) -> dict[str, Any]:
    bursts = [one["sequence"].split(": ")[2] for one in results]
    kinds = Counter(word.split()[0] for burst in bursts for word in re.split(", then | \\+ ", burst))
    return {
        "sequences": len(results),
        "faults": sum(kinds.values()),
        "of each kind": dict(sorted(kinds.items())),
        "expected": dict(Counter(str(one.get("expected")) for one in results)),
        **{name: sum(bool(one.get(key)) for one in results) for key, name in BAD.items()},
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--only", type=int, help="play this one alone")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--elect", action="store_true", help="with run.head_lost: elect")
    parser.add_argument("--torchrun", action="store_true", help="with torchrun and gloo instead of the stand-in")
    parser.add_argument("--labs", type=int, default=4, help="labs side by side")
    parser.add_argument("--seconds", type=float, default=math.inf, help="begin none after so long")
    parser.add_argument("--keep", type=Path, help="file of results: what is in it already is not played again")
    parser.add_argument("--write", help="name under benchmarks/results")
    wanted = parser.parse_args()
    results = [json.loads(line) for line in wanted.keep.read_text().splitlines()] if _exists(wanted.keep) else []
    numbers = [wanted.only] if wanted.only is not None else list(range(wanted.count))
    left = [number for number in numbers if number not in {one["number"] for one in results}]
    for result in play_all(
        left, wanted.seed, wanted.elect, wanted.torchrun, min(wanted.labs, len(left)), wanted.seconds
    ):
        results.append(result)
        bad = any(result.get(key) for key in BAD)
        told = json.dumps(result) if bad else f"{result['expected']:9} {result['seconds']:5} s  {result['sequence']}"
        print(told, flush=True)
        if wanted.keep:
            with wanted.keep.open("a") as file:
                file.write(json.dumps(result) + "\n")
    figures = summary(results)
    print(json.dumps(figures, indent=2))
    if wanted.write:
        from benchmarks.results import write

        write(wanted.write, {"seed": wanted.seed, "elect": wanted.elect, "torchrun": wanted.torchrun, **figures})
    return int(any(figures[name] for name in BAD.values()))


def _exists(path: Path | None) -> bool:
    return path is not None and path.exists()


if __name__ == "__main__":
    sys.exit(main())
