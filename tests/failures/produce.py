"""Make real failures: run torchrun with gloo on two `hosts` of this machine and keep what each of them prints.

    python tests/failures/produce.py OUT [CASE...]

Each case gives OUT/CASE/node-a.log and node-b.log. Needs root (a host name of its own for each agent) and torch. The
golden cases in tests/golden/diagnose were made from these, cut to what is needed.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).parent
PYTHON = sys.executable
AGENT = [PYTHON, "-m", "torch.distributed.run"]
TIME = 75  # s, after which a case that hangs is ended, as a person would

# case: (nproc per node, arguments of fail.py, what else)
CASES: dict[str, tuple[int, list[str], dict[str, str]]] = {
    name: (1, [name], {})
    for name in (
        "ok", "script-import-error", "local-rank-argument", "no-init", "nccl-without-gpu",
        "before-init-exception", "dataset-missing", "twice", "model-mismatch", "param-count", "unused", "segfault",
        "abort", "sys-exit", "barrier", "mismatch-op", "mismatch-size", "monitored", "shape", "loader-exception",
        "loader-killed", "stack", "index", "cuda-tensor", "too-many-files", "permission", "nan",
        "sigpipe", "not-destroyed", "never-arrives", "checkpoint-mismatch", "missing-module-on-host",
        "missing-rdzv-env", "no-threads",
    )
}  # fmt: skip
CASES |= {
    "script-bad-argument": (1, ["script-bad-argument", "--lr", "3"], {}),
    "exception": (2, ["exception"], {}),
    "uneven": (2, ["uneven"], {}),
    "stop": (2, ["stop"], {}),
    "long-work": (2, ["long-work"], {}),
    "slow": (2, ["slow"], {}),
    "sigkill": (2, ["signal", "SIGKILL"], {}),
    "sigterm-one": (2, ["signal", "SIGTERM"], {}),
    "sigbus": (1, ["signal", "SIGBUS"], {}),
    "mismatch-detail": (1, ["mismatch-op"], {"TORCH_DISTRIBUTED_DEBUG": "DETAIL"}),
    "unused-detail": (1, ["unused"], {"TORCH_DISTRIBUTED_DEBUG": "DETAIL"}),
    "tags": (2, ["exception"], {"TAGS": "1"}),
    "record-restarts": (1, ["exception"], {"RESTARTS": "2"}),
    "corrupt": (1, ["corrupt", "/tmp/ddp-orch-failures"], {}),
    "empty-checkpoint": (1, ["empty-checkpoint", "/tmp/ddp-orch-failures"], {}),
    "disk-full": (1, ["disk-full", "/mnt"], {"MOUNT": "/mnt"}),
    "disk-full-write": (1, ["disk-full-write", "/mnt"], {"MOUNT": "/mnt"}),
    "shm": (1, ["shm"], {"MOUNT": "/dev/shm"}),
    "sighup": (1, ["wait"], {"SEND": "HUP a"}),
    "sigterm-all": (1, ["wait"], {"SEND": "TERM ab"}),
    "sigint": (1, ["wait"], {"SEND": "INT a"}),
    "agent-killed": (1, ["wait"], {"SEND": "KILL a"}),
    "agent-b-killed": (1, ["wait"], {"SEND": "KILL b"}),
    "script-missing": (1, ["ok"], {"SCRIPT_B": "/srv/train/fail.py"}),
    "port-in-use": (1, ["ok"], {"HOLD": "listen"}),
    "node-missing": (1, ["ok"], {"ONLY": "a"}),
    "head-missing": (1, ["ok"], {"ONLY": "b"}),
    "id-mismatch": (1, ["ok"], {"C10D": "1", "ID_B": "other"}),
    "c10d-node-missing": (1, ["ok"], {"C10D": "1", "ONLY": "a"}),
    "c10d-head-missing": (1, ["ok"], {"C10D": "1", "ONLY": "b"}),
    "c10d-exception": (2, ["exception"], {"C10D": "1"}),
    "c10d-head-killed": (1, ["wait"], {"C10D": "1", "SEND": "KILL a"}),
    "c10d-ok": (1, ["ok"], {"C10D": "1"}),
    "port-held": (1, ["ok"], {"C10D": "1", "HOLD": "listen"}),
    "nnodes-mismatch": (1, ["ok"], {"C10D": "1", "NNODES_B": "3"}),
    "restarts": (1, ["sys-exit"], {"RESTARTS": "1"}),
    "uneven-2": (1, ["uneven"], {}),
    "exception-4": (4, ["exception"], {}),
    "segfault-2": (2, ["segfault"], {}),
    "memory": (1, ["memory"], {"CGROUP": "1"}),
    "bad-host": (1, ["ok"], {"MASTER": "head.cluster.invalid", "ONLY": "b"}),
    "bad-ifname": (1, ["ok"], {"GLOO_SOCKET_IFNAME": "eth7"}),
}


def produce(out: Path, name: str) -> None:
    nproc, arguments, extra = CASES[name]
    folder = out / name
    folder.mkdir(parents=True, exist_ok=True)
    port = extra.get("PORT", str(20000 + (os.getpid() * 7 + sum(map(ord, name)) * 13) % 9000))
    holder = subprocess.Popen([PYTHON, "-m", "http.server", port]) if "HOLD" in extra else None
    if holder:
        time.sleep(2)
    env = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "FAILURES_MARK": f"{os.getpid()}{name}"}
    env |= {key: value for key, value in extra.items() if key.startswith(("TORCH", "GLOO"))}
    agents = {}
    for node, which in enumerate("ab"):
        if extra.get("ONLY", which) != which:
            continue
        master = extra.get("MASTER", "127.0.0.1")
        nnodes = extra.get("NNODES_B", "2") if which == "b" else "2"
        command = [
            *AGENT,
            f"--nnodes={nnodes}",
            f"--nproc-per-node={nproc}",
            f"--max-restarts={extra.get('RESTARTS', 0)}",
        ]
        if "C10D" in extra:
            conf = f"is_host={int(which == 'a')},join_timeout=20,read_timeout=15,last_call_timeout=2"
            command += ["--rdzv-backend=c10d", f"--rdzv-endpoint={master}:{port}", f"--rdzv-conf={conf}"]
            command += [f"--rdzv-id={extra.get('ID_B', 'run1') if which == 'b' else 'run1'}", "--local-addr=127.0.0.1"]
        else:
            command += [
                f"--node-rank={extra.get('RANK_B', node) if which == 'b' else node}",
                f"--master-addr={master}",
                f"--master-port={port}",
            ]
            command += ["--rdzv-conf=timeout=20"]
        if "TAGS" in extra:
            command += ["--tee=3", f"--log-dir=/tmp/ddp-orch-failures/{which}"]
        command += [extra.get("SCRIPT_B", str(HERE / "fail.py")) if which == "b" else str(HERE / "fail.py")]
        shell = f"hostname node-{which}; "
        if "MOUNT" in extra:
            shell += f"mount -t tmpfs -o size=1m none {extra['MOUNT']}; "
        if "CGROUP" in extra and which == "b":
            group = "/sys/fs/cgroup/memory/ddp-orch-failures"
            shell += f"mkdir -p {group}; echo 600M > {group}/memory.limit_in_bytes; echo $$ > {group}/cgroup.procs; "
        log = (folder / f"node-{which}.log").open("wb")
        agents[which] = subprocess.Popen(
            ["unshare", "-u", "-m", "bash", "-c", shell + 'exec "$@"', "bash", *command, *arguments],
            stdout=log, stderr=subprocess.STDOUT, env=env, start_new_session=True,
        )  # fmt: skip
    if "SEND" in extra:
        name_of, to = extra["SEND"].split()
        until = time.monotonic() + 60
        while time.monotonic() < until and not all(
            "step 2" in (folder / f"node-{which}.log").read_text() for which in "ab"
        ):
            time.sleep(0.5)
        for which in to:
            os.kill(agents[which].pid, getattr(signal, f"SIG{name_of}"))
    until = time.monotonic() + TIME
    while time.monotonic() < until and any(agent.poll() is None for agent in agents.values()):
        time.sleep(0.2)
    codes = {which: agent.poll() for which, agent in agents.items()}
    mark = f"FAILURES_MARK={env['FAILURES_MARK']}".encode()
    for process in Path("/proc").iterdir():
        try:
            if mark in (process / "environ").read_bytes():
                os.kill(int(process.name), signal.SIGKILL)
        except (OSError, ValueError):
            pass
    for agent in agents.values():
        if agent.poll() is None:
            agent.kill()
        agent.wait()
    if holder:
        holder.kill()
        holder.wait()
    print(f"{name}: exit codes {codes}", flush=True)


if __name__ == "__main__":
    target = Path(sys.argv[1])
    Path("/tmp/ddp-orch-failures").mkdir(exist_ok=True)
    for wanted in sys.argv[2:] or CASES:
        produce(target, wanted)
