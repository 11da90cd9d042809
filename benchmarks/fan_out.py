"""Many hosts at once: `ddp-orch exec -- echo hi` and a launch against pdsh, clush and parallel-ssh.

Hosts of the lab, every contestant a whole process that logs in anew, in turn, ratios within a round. The peers run at
the fan-out that suits each of them best, tried first; ours as it comes. Peers: pdsh, and
pip install -r benchmarks/requirements.txt

    echo     `echo hi` on all hosts (64; `--parts echo250`: 250)
    dead     64 hosts, and the same with one of them silent: when has the last of the other 63 run the command?
    up       `up -d` of a stand-in workload (no torch) on 64 hosts: when has the last rank printed its first line?
             And `up`: when is it on the screen? (`--parts up250`: 250)
    jump     128 logins at once through one jump host, sshd as it comes: how many are lost?
    via      `exec` over the system's ssh (`ssh.via: openssh`) against pdsh and against paramiko (64; `--parts via8`: 8)
    floor    what bounds `exec`: paramiko's logins alone; as many `ssh` at once as suit it best; our start alone

    python benchmarks/fan_out.py [--rounds 5] [--parts echo,dead,up,jump]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

import results
from lab.lab import Lab
from lab.waiting import wait_until

FANOUTS = [8, 16, 32, 64]
TRIES = 1  # of each fan-out
LIMIT = 180.0  # s

SCRIPT = "import os, time\nprint('first line of rank', os.environ['RANK'], time.time(), flush=True)\n"

PARALLEL_SSH = """
import sys
from pssh.clients import ParallelSSHClient
hosts = sys.argv[2].split(",")
client = ParallelSSHClient(hosts, user="ann", pkey="~/.ssh/id_ed25519", pool_size=int(sys.argv[1]))
for one in client.run_command("echo hi"):
    print(one.host, *one.stdout)
"""

# The least that paramiko can do: no ssh_config, no keys looked for, no host key looked up, one process, many threads.
PARAMIKO = """
import sys
from concurrent.futures import ThreadPoolExecutor
import paramiko
key = paramiko.Ed25519Key.from_private_key_file(sys.argv[2])

def echo(host):
    transport = paramiko.Transport((host, 22))
    transport.connect(username="ann", pkey=key)
    channel = transport.open_session()
    channel.exec_command("echo hi")
    print(host, channel.recv(100).decode().strip())
    transport.close()

with ThreadPoolExecutor(int(sys.argv[1])) as pool:
    list(pool.map(echo, sys.argv[3].split(",")))
"""


def addresses(lab: Lab) -> str:
    return ",".join(host.address for host in lab.hosts)


def timed(lab: Lab, argv: list[str], status: int = 0) -> tuple[float, subprocess.CompletedProcess[str]]:
    began = time.monotonic()
    done = lab.run(
        argv,
        cwd=lab.controller_home / "bench",
        timeout=LIMIT,
        env={"PDSH_SSH_ARGS_APPEND": "-o BatchMode=yes"},
    )
    took = time.monotonic() - began
    assert done.returncode == status, f"{argv}: {done.stderr[-2000:]}"
    return took, done


def echo(lab: Lab, argv: list[str]) -> float:
    took, done = timed(lab, argv)
    hosts = len(lab.hosts)
    assert done.stdout.count("hi") == hosts or "node-[0-" in done.stdout, f"{argv}: {done.stdout} {done.stderr}"
    return took


def pdsh(lab: Lab, fanout: int) -> float:
    return echo(lab, ["pdsh", "-R", "ssh", "-l", "ann", "-f", str(fanout), "-w", addresses(lab), "echo hi"])


def pdsh_python(lab: Lab, fanout: int) -> float:
    """What `exec` has to do as well: start a Python on each host, and in this lab all hosts share our processors."""
    command = f"""{lab.python} -I -S -c 'print("hi")'"""
    return echo(lab, ["pdsh", "-R", "ssh", "-l", "ann", "-f", str(fanout), "-w", addresses(lab), command])


def clush(lab: Lab, fanout: int) -> float:
    options = ["-S", "-l", "ann", "-o", "-oBatchMode=yes", "-f", str(fanout), "-w", addresses(lab)]
    return echo(lab, ["clush", *options, "echo hi"])


def parallel_ssh(lab: Lab, fanout: int) -> float:
    return echo(lab, [lab.python, "-c", PARALLEL_SSH, str(fanout), addresses(lab)])


def paramiko(lab: Lab, fanout: int) -> float:
    key = str(lab.controller_home / ".ssh/id_ed25519")
    return echo(lab, [lab.python, "-c", PARAMIKO, str(fanout), key, addresses(lab)])


def bare_ssh(lab: Lab, fanout: int) -> float:
    line = f"tr , '\\n' | xargs -P {fanout} -I HOST ssh -n -o BatchMode=yes ann@HOST echo hi"
    return echo(lab, ["sh", "-c", f"echo {addresses(lab)} | {line}"])


def ours(lab: Lab, via: str = "paramiko") -> float:
    inventory = lab.inventory(name=f"{via}.yaml", ssh={"via": via})
    return echo(lab, ["ddp-orch", "exec", str(inventory), "--", "echo", "hi"])


def best(lab: Lab, contestant: Callable[[Lab, int], float]) -> int:
    return min(FANOUTS, key=lambda fanout: min(contestant(lab, fanout) for _ in range(TRIES)))


def compare(lab: Lab, peers: list[Callable[[Lab, int], float]], rounds: int) -> dict[str, list[float]]:
    contestants: dict[str, Callable[[], float]] = {}
    for peer in peers:
        fanout = best(lab, peer)
        contestants[f"{peer.__name__} {fanout}"] = lambda peer=peer, fanout=fanout: peer(lab, fanout)
    ours(lab)
    contestants["ddp-orch exec"] = lambda: ours(lab)
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(rounds):
        for name, contestant in contestants.items():
            seconds[name].append(contestant())
    return seconds


def tell(part: str, hosts: int, seconds: dict[str, list[float]], **more: Any) -> None:
    print(f"{part}, {hosts} hosts\n{results.table(seconds, next(iter(seconds)))}\n", flush=True)
    results.write(f"fan_out_{part}", {"hosts": hosts, "seconds": seconds, **more})


def part_echo(lab: Lab, part: str, rounds: int) -> None:
    tell(part, len(lab.hosts), compare(lab, [pdsh, clush, parallel_ssh], rounds))


def part_via(lab: Lab, part: str, rounds: int) -> None:
    fanout = best(lab, pdsh)
    contestants: dict[str, Callable[[], float]] = {
        f"pdsh {fanout}": lambda: pdsh(lab, fanout),
        f"pdsh {fanout}, python": lambda: pdsh_python(lab, fanout),
        "exec, paramiko": lambda: ours(lab),
        "exec, openssh": lambda: ours(lab, "openssh"),
    }
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    for turn in range(rounds + 1):
        for name, contestant in contestants.items():
            took = contestant()
            if turn:
                seconds[name].append(took)
    tell(part, len(lab.hosts), seconds)


def part_floor(lab: Lab, part: str, rounds: int) -> None:
    seconds = compare(lab, [pdsh, bare_ssh, paramiko], rounds)
    seconds["ddp-orch --version"] = [timed(lab, ["ddp-orch", "--version"])[0] for _ in range(rounds)]
    tell(part, len(lab.hosts), seconds)


def part_dead(lab: Lab, part: str, rounds: int) -> None:
    """When the last host but one has run the command, by its own clock, which here is that of the controller."""
    argv = ["ddp-orch", "exec", str(lab.inventory()), "--json", "--", "date", "+%s.%N"]
    victim = lab.hosts[len(lab.hosts) // 2]

    def last_answer(status: int) -> float:
        began = time.time()
        _, done = timed(lab, argv, status)
        ran = [float(one["stdout"]) for one in json.loads(done.stdout) if one["host"] != victim.name]
        assert len(ran) == len(lab.hosts) - 1
        return max(ran) - began

    seconds: dict[str, list[float]] = {"all alive": [], "one is silent": []}
    for _ in range(rounds):
        seconds["all alive"].append(last_answer(0))
        victim.cut("ssh")
        seconds["one is silent"].append(last_answer(4))
        victim.heal()
    tell(part, len(lab.hosts), seconds)


def part_up(lab: Lab, part: str, rounds: int) -> None:
    inventory = lab.inventory(run={"launcher": "direct"})
    fanout = best(lab, pdsh)
    seconds: dict[str, list[float]] = {f"pdsh {fanout} echo hi": [], "up -d, first lines": [], "up, on the screen": []}
    for turn in range(rounds + 1):
        took = (pdsh(lab, fanout), detached(lab, inventory), attached(lab, inventory))
        if turn:  # the first one brings the node program and the code
            for name, one in zip(seconds, took, strict=True):
                seconds[name].append(one)
    tell(part, len(lab.hosts), seconds)


def detached(lab: Lab, inventory: Path) -> float:
    began = time.time()
    _, done = timed(lab, ["ddp-orch", "up", str(inventory), "-d", "--", "say.py"])
    run_id = done.stdout.split()[0]
    _, seen = timed(lab, ["ddp-orch", "logs", "-f", run_id, "-i", str(inventory)])
    said = [float(line.rsplit(" ", 1)[1]) for line in seen.stdout.splitlines() if "first line of rank" in line]
    assert len(said) == len(lab.hosts), seen.stdout + seen.stderr
    wait_until(lambda: not lab.marked(run_id), LIMIT, "the run is over")
    return max(said) - began


def attached(lab: Lab, inventory: Path) -> float:
    argv = ["ddp-orch", "up", str(inventory), "--", "say.py"]
    began = time.monotonic()
    with lab.popen(
        argv,
        cwd=lab.controller_home / "bench",
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as process:
        assert process.stdout
        came = [time.monotonic() - began for line in process.stdout if "first line of rank" in line]
    assert process.wait() == 0 and len(came) == len(lab.hosts)
    wait_until(lambda: not lab.marked(), LIMIT, "the run is over")
    return came[-1]


def part_jump(lab: Lab, part: str, rounds: int) -> None:
    """128 names for the other host, all behind the first one; sshd's own MaxStartups is 10:30:100."""
    behind = [{"name": f"gpu-{n:03}", "address": lab.hosts[1].address, "proxy_jump": "node-0"} for n in range(128)]
    inventory = lab.inventory(name="jump.yaml", hosts=behind)
    seconds, lost = [], 0
    for _ in range(rounds):
        began = time.monotonic()
        done = lab.run(["ddp-orch", "exec", str(inventory), "--json", "--", "echo", "hi"], timeout=LIMIT)
        seconds.append(time.monotonic() - began)
        lost += sum(one["stdout"] != "hi\n" for one in json.loads(done.stdout))
    tell(part, len(behind), {"128 logins through one": seconds}, lost=lost)
    print(f"lost in {rounds} rounds: {lost}\n")


PARTS: dict[str, tuple[int, Callable[[Lab, str, int], None]]] = {
    "echo": (64, part_echo),
    "dead": (64, part_dead),
    "up": (64, part_up),
    "jump": (2, part_jump),
    "via": (64, part_via),
    "via8": (8, part_via),
    "floor": (64, part_floor),
    "echo250": (250, part_echo),
    "up250": (250, part_up),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--fanouts", help="of the peers, to be tried; default " + ",".join(map(str, FANOUTS)))
    parser.add_argument("--parts", default="echo,dead,up,jump", help="of " + ", ".join(PARTS))
    asked = parser.parse_args()
    if asked.fanouts:
        FANOUTS[:] = map(int, asked.fanouts.split(","))
    for part in asked.parts.split(","):
        count, measure = PARTS[part]
        with Lab(count) as lab:
            (lab.controller_home / "bench").mkdir()
            (lab.controller_home / "bench" / "say.py").write_text(SCRIPT)
            measure(lab, part, asked.rounds)


if __name__ == "__main__":
    main()
