"""The rules that rewrite suspects: the case that each serves, and whether its place in the order matters."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations, pairwise

import pytest

from orchestrator.diagnosis import recorder_lines, stacks
from orchestrator.diagnosis.causes import load_knowledge
from orchestrator.diagnosis.dumps import Collective, Dump, Group
from orchestrator.diagnosis.engine import diagnose
from orchestrator.diagnosis.exits import Exit
from orchestrator.diagnosis.record import RunRecord
from orchestrator.diagnosis.refine import RULES, Rule, refine
from orchestrator.diagnosis.rules import (
    connections,
    devices,
    endings,
    hidden_modules,
    lost_hosts,
    missing_files,
    own_calls,
    run_record,
    shell_commands,
    unreadable_files,
)
from orchestrator.diagnosis.scene import NO_RECORD, Scene, build_scene
from orchestrator.diagnosis.signs import find_suspects
from orchestrator.diagnosis.suspects import Suspects
from orchestrator.diagnosis.transcript import LogLine, parse_logs
from orchestrator.output.finding import Finding

RAISED = 'Traceback (most recent call last):\n  File "/w/train.py", line 9, in main\n    train()\n'
PEER_LOST = "RuntimeError: [/p/gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.0.0.2]:1234\n"
HIDES = (
    'Traceback (most recent call last):\n  File "/w/train.py", line 1, in <module>\n    import torch\n'
    '  File "/v/site-packages/torch/cuda/_utils.py", line 9, in <module>\n    from cuda.bindings import (\n'
    '  File "/w/cuda.py", line 6, in <module>\n    DEVICE = torch.zeros(1).device\n'
    "AttributeError: partially initialized module 'torch' has no attribute 'zeros'\n"
)
NO_FOLDER = (
    'Traceback (most recent call last):\n  File "/w/train.py", line 9, in main\n'
    '    log = open("results/log.csv", "w")\n'
    "FileNotFoundError: [Errno 2] No such file or directory: 'results/log.csv'\n"
)
NOT_SET = (
    'Traceback (most recent call last):\n  File "/w/train.py", line 9, in main\n    key = os.environ["WANDB_API_KEY"]\n'
    "  File \"<frozen os>\", line 679, in __getitem__\nKeyError: 'WANDB_API_KEY'\n"
)
OWN_PORT = (
    'Traceback (most recent call last):\n  File "/w/train.py", line 9, in main\n    HTTPServer(("0.0.0.0", 8123), H)\n'
    '  File "/usr/lib/python3.11/socketserver.py", line 457, in __init__\n    self.server_bind()\n'
    "OSError: [Errno 98] Address already in use\n"
)
RENDEZVOUS_PORT = (
    'Traceback (most recent call last):\n  File "/w/train.py", line 9, in main\n    dist.init_process_group("gloo")\n'
    '  File "/v/site-packages/torch/distributed/rendezvous.py", line 199, in _create_c10d_store\n'
    "RuntimeError: The server socket has failed to listen: Address already in use\n"
)
CRASH = (
    'Fatal Python error: Segmentation fault\n\nThread 0x00007f01 (most recent call first):\n  File "/w/a.py", line 7 '
    "in feed\n\nCurrent thread 0x00007f02 (most recent call first):\n"
    '  File "/usr/lib/python3.11/ctypes/__init__.py", line 519 in string_at\n  File "/w/train.py", line 20 in main\n'
)
NO_COMMAND = (
    'Traceback (most recent call last):\n  File "/w/train.py", line 9, in main\n    subprocess.run(["git", "log"])\n'
    '  File "/usr/lib/python3.11/subprocess.py", line 1955, in _execute_child\n    raise child_exception_type(errno)\n'
    "FileNotFoundError: [Errno 2] No such file or directory: 'git'\n"
)
REFUSED_FILE = "_pickle.UnpicklingError: Weights only load failed. Use torch.serialization.add_safe_globals([C])\n"
STEPS = "step 1 loss 2.1\nstep 2 loss 2.0\nstep 3 loss 1.9\n"
FAILED = (
    "failed (exitcode: {code}) local_rank: {local} (pid: {pid}) of binary: python\n"
    "Root Cause (first observed failure):\n  time : 2026-11-22_10:00:09\n  host : {host}\n"
    "  rank : {rank} (local_rank: {local})\n  exitcode : {code} (pid: {pid})\n"
)
NCCL_TIMEOUT = (
    "[rank0]:[E1122 10:00:00.000000 ProcessGroupNCCL.cpp:1] [Rank 0] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=9, OpType=ALLREDUCE, NumelIn=5, NumelOut=5, Timeout(ms)=1000) ran for 1001 ms\n"
)
STUCK_WATCHDOG = "[rank0]:[F1122 10:00:09.000000 ProcessGroupNCCL.cpp:1] watchdog got stuck for 480 seconds\n"
SHOWN_STACK = (
    "ddp-orch: rank {rank}, pid 9, state S, waits in futex: its stacks follow\n"
    "Current thread 0x00007f (most recent call first):\n{frames}"
)
WAITS = '  File "/v/site-packages/torch/autograd/__init__.py", line 395 in backward\n'
ELSEWHERE = '  File "/w/train.py", line 8 in main\n'


def tag(rank: int, text: str) -> str:
    return "".join(f"[rank{rank}]: {line}\n" for line in text.splitlines())


def failed(code: int, *, rank: int = 0, host: str = "a", pid: int = 7) -> str:
    return FAILED.format(code=code, local=rank % 2, rank=rank, host=host, pid=pid)


@dataclass(frozen=True)
class Case:
    """Logs by their host's name, and what the hosts know."""

    logs: dict[str, str]
    record: RunRecord = NO_RECORD

    def scene(self) -> Scene:
        lines, own = recorder_lines.split_off(parse_logs([(f"{name}.log", text) for name, text in self.logs.items()]))
        lines, shown = stacks.split_off(lines)
        return build_scene(lines, self.record, own, shown)


def suspects_of(scene: Scene) -> Suspects:
    return find_suspects(scene, load_knowledge())[0]


def show(suspects: Suspects) -> set[str]:
    """CODE LEVEL HOST RANK, and whether it is a hint."""
    return {f"{s.code} {s.level} {s.host} {s.rank}{' hint' if s.hint else ''}" for s in suspects}


def details(suspects: Suspects) -> list[str]:
    return sorted(f"{s.code} {s.level} {s.host} {s.rank} {s.hint} {s.confidence} {s.why} {s.line}" for s in suspects)


SIGNALLED = Exit(-1, -1, "a", 1, 9.0, line=LogLine(-1, "a", "a", 1, 9.0, "rank 1: killed by SIGHUP"), requested=True)
KILLED_AGENT = Exit(
    -9, -1, "a", None, 9.0, line=LogLine(-1, "a", "a", None, 9.0, "torchrun: killed by SIGKILL"), agent=True
)
EXITED = Exit(1, -1, "b", 1, 9.0, line=LogLine(-1, "b", "b", 1, 9.0, "rank 1: exit code 1"), root=True)
CD = "run.sh: line 2: cd: /home/ann/sky_workdir: No such file or directory\n"
NO_SCRIPT = "python: can't open file '/w/trian.py': [Errno 2] No such file or directory\n"
LATE_ERROR = RAISED + "KeyError: 'labels'\n"
OOM_LINE = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. "
STOPPED_AFTER_REFUSAL = Case(
    {"a": "this configuration needs a key named lr\nReceived 15 death signal\n" + failed(1)}, RunRecord(failed_at=0.0)
)
# what a rule takes away of a case, and what it puts in its place
UNSERVED = """
[W1129 00:23:57.097078583 socket.cpp:764] [c10d] The client socket has failed to connect to [ad0:0:26e4:0:7fbe::]:2558 (errno: 101 - Network is unreachable).
[W1129 00:23:57.098464955 socket.cpp:764] [c10d] The client socket has failed to connect to 205.85.0.0:2557 (errno: 101 - Network is unreachable).
[E1129 00:23:57.098643392 socket.cpp:818] [c10d] The client socket has failed to connect to any network address of (192.168.1.5, 29500).
"""  # noqa: E501  by torch 2.13, which prints garbage for the address that it tries
CASES: dict[Rule, tuple[Case, set[str], set[str]]] = {
    endings.discount_overcome_trouble: (
        Case({"a": "bind: Address already in use\n" + STEPS + STEPS + LATE_ERROR}),
        {"port-in-use 78 a None"},
        {"port-in-use 78 a None hint"},
    ),
    devices.check_device_ordinals: (
        Case(
            {
                "a": tag(0, STEPS),
                "b": tag(2, RAISED + "RuntimeError: CUDA error: invalid device ordinal\n"),
            }
        ),
        {"nproc-exceeds-gpus 76 b 2"},
        {"global-rank-as-device 76 b 2"},
    ),
    devices.explain_missing_nccl: (
        Case({"a": tag(0, RAISED + "RuntimeError: Distributed package doesn't have NCCL built in\n")}),
        set(),
        set(),
    ),
    devices.check_gpu_memory: (
        Case(
            {
                "a": tag(
                    0,
                    RAISED + OOM_LINE + "GPU 0 has a total capacity of 80.00 GiB of which 1.00 GiB is free. "
                    "Process 99 has 60.00 GiB memory in use. Including non-PyTorch memory, this process has 19.00 GiB "
                    "memory in use.\n",
                )
            }
        ),
        {"cuda-oom 78 a 0"},
        {"gpu-memory-held-by-others 78 a 0"},
    ),
    connections.check_loopback: (
        Case({name: f"connect [127.0.0.1]:4321: Connection refused on {name}\n" for name in "ab"}),
        {"gloo-loopback-address 24 a None", "gloo-loopback-address 24 b None"},
        {"gloo-loopback-address 67 a None", "gloo-loopback-address 67 b None"},
    ),
    own_calls.explain_required_local_rank: (
        Case({"a": tag(0, "train.py: error: the following arguments are required: --local_rank\n")}),
        set(),
        set(),
    ),
    connections.check_unserved: (
        Case({"a": tag(0, UNSERVED), "b": tag(1, UNSERVED)}),
        {"ipv6-unusable 78 a 0", "ipv6-unusable 78 b 1"},
        {"rdzv-endpoint-not-hosted 80 a 0"},
    ),
    connections.check_timeouts: (
        Case(
            {
                "a": "waiting\n",
                "b": "The client socket has timed out after 60s while trying to connect to (a, 29500).\n",
            }
        ),
        set(),
        {"rdzv-port-blocked 28 b None"},
    ),
    endings.add_rank_to_memory_kills: (
        Case({"a": "kernel: Out of memory: Killed process 77 (python)\n" + failed(-9, rank=1, pid=77)}),
        {"host-oom-killed 95 a None"},
        {"host-oom-killed 95 a 1"},
    ),
    endings.find_lone_sigterm: (Case({"a": STEPS + failed(-15, rank=1)}), set(), {"sigterm-preempted 37 a 1"}),
    endings.drop_cancelled_steps: (
        Case(
            {
                "a": "srun: error: a: task 1: Exited with exit code 1\n"
                "slurmstepd: error: *** STEP 7.0 ON a CANCELLED AT 2026-11-22T10:00:00 ***\n"
            }
        ),
        {"sigterm-preempted 43 a 1"},
        set(),
    ),
    own_calls.find_unset_variable: (Case({"a": tag(0, NOT_SET)}), set(), set()),
    own_calls.find_own_port: (Case({"a": tag(0, OWN_PORT)}), set(), set()),
    endings.find_crash_place: (Case({"a": CRASH}), set(), set()),
    own_calls.find_missing_command: (
        Case({"a": tag(0, NO_COMMAND)}),
        {"dataset-missing 74 a 0"},
        {"script-exception 74 a 0"},
    ),
    hidden_modules.explain_import: (
        Case({"a": tag(0, RAISED + "ImportError: attempted relative import with no known parent package\n")}),
        set(),
        set(),
    ),
    unreadable_files.find_unreadable_file: (
        Case({"a": tag(0, RAISED + REFUSED_FILE)}),
        {"checkpoint-corrupt 78 a 0"},
        {"checkpoint-mismatch 78 a 0"},
    ),
    hidden_modules.find_hidden_module: (
        Case({"a": tag(0, HIDES)}),
        {"script-exception 50 a 0"},
        {"script-import-error 79 a 0"},
    ),
    missing_files.find_missing_folder: (
        Case({"a": tag(0, NO_FOLDER)}),
        {"dataset-missing 74 a 0"},
        {"script-exception 74 a 0"},
    ),
    missing_files.check_written_files: (
        Case(
            {
                "a": tag(0, "saved vocab.json\n"),
                "b": tag(1, RAISED + "FileNotFoundError: [Errno 2] No such file or directory: '/tmp/vocab.json'\n"),
            }
        ),
        {"dataset-missing 74 b 1"},
        {"file-missing-on-host 74 b 1"},
    ),
    endings.check_teardown: (
        Case({"a": "training finished\nterminate called without an active exception\n" + failed(-6)}),
        {"process-group-not-destroyed 38 a 0 hint"},
        {"process-group-not-destroyed 38 a 0"},
    ),
    connections.find_silent_host: (
        Case({"a": tag(0, STEPS), "b": tag(1, STEPS) + "RendezvousConnectionError: Connection closed by peer\n"}),
        set(),
        {"host-lost 29 a None"},
    ),
    connections.find_missed_rendezvous: (
        Case(
            {
                "a": "Traceback (most recent call last):\n"
                '  File "/v/site-packages/torch/distributed/elastic/rendezvous/api.py", line 9, in next_rendezvous\n'
                "torch.distributed.elastic.rendezvous.api.RendezvousTimeoutError\n",
                "b": "Traceback (most recent call last):\n"
                '  File "/v/site-packages/torch/distributed/elastic/rendezvous/api.py", line 9, in next_rendezvous\n'
                "torch.distributed.elastic.rendezvous.api.RendezvousClosedError\n",
            }
        ),
        set(),
        {"nnodes-mismatch 29 b None"},
    ),
    connections.find_absent_peer: (
        Case({"a": tag(0, STEPS + RAISED + PEER_LOST), "b": tag(1, STEPS)}),
        {"gloo-peer-lost 21 a 0"},
        {"gloo-peer-lost 21 b 1"},
    ),
    shell_commands.explain_cd: (
        Case({"a": "start\n", "b": tag(1, CD)}, RunRecord(exits=(EXITED,))),
        {"remote-workdir-missing 78 b 1"},
        {"script-exception 78 b 1"},
    ),
    shell_commands.explain_unset_variable: (
        Case({"a": "run.sh: line 3: $1: unbound variable\n"}),
        {"remote-env-differs 62 a None"},
        {"script-bad-argument 62 a None"},
    ),
    shell_commands.explain_missing_program: (
        Case({"a": tag(0, "run.sh: line 3: conda: command not found\n")}, RunRecord(exits=(EXITED,))),
        set(),
        set(),
    ),
    unreadable_files.explain_read_only: (
        Case({"a": tag(0, "mkdir: cannot create directory '/data/x': Read-only file system\n")}),
        set(),
        set(),
    ),
    shell_commands.explain_missing_script: (Case({"a": NO_SCRIPT}, RunRecord(same_code=True)), set(), set()),
    shell_commands.find_failed_command: (
        Case(
            {"a": "start\n", "b": tag(1, "ls: cannot access '/data': No such file or directory\n")},
            RunRecord((EXITED,)),
        ),
        set(),
        {"dataset-missing 62 b 1"},
    ),
    endings.drop_stuck_watchdog: (Case({"a": NCCL_TIMEOUT + STUCK_WATCHDOG}), {"nccl-watchdog-stuck 36 a 0"}, set()),
    devices.check_allocation_size: (
        Case(
            {
                "a": "RuntimeError: [enforce fail] DefaultCPUAllocator: can't allocate memory: "
                "you tried to allocate 281474976710656 bytes.\n"
            }
        ),
        {"host-oom-killed 72 a None"},
        {"script-exception 72 a None"},
    ),
    endings.find_refusal: (
        Case({"a": "this configuration needs a key named lr\n" + failed(1)}),
        set(),
        {"script-bad-argument 32 a None"},
    ),
    run_record.drop_own_signals: (
        Case({"a": STEPS + "Received 15 death signal\n"}, RunRecord(failed_at=0.0)),
        {"sigterm-preempted 43 a None"},
        set(),
    ),
    run_record.add_stop: (Case({"a": STEPS}, RunRecord(stopped_by="Ctrl-C")), set(), {"user-interrupt 93 None None"}),
    run_record.add_sent_signal: (
        Case({"a": STEPS}, RunRecord(exits=(SIGNALLED,), failed_at=9.0)),
        set(),
        {"user-interrupt 93 a 1"},
    ),
    run_record.add_killed_launcher: (
        Case({"a": failed(-9), "b": tag(1, RAISED + PEER_LOST)}, RunRecord(exits=(KILLED_AGENT,), failed_at=9.0)),
        {"worker-sigkilled 40 a 0"},
        {"agent-killed 93 a None"},
    ),
    run_record.add_full_disk: (
        Case(
            {
                "a": "a:agent | ddp-orch: b: the disk of /x has only 0 MiB left [disk-full]; not used\n"
                + tag(0, RAISED + PEER_LOST),
                "b": tag(1, STEPS),
            },
            RunRecord(exits=(EXITED,), failed_at=9.0),
        ),
        set(),
        {"disk-full 60 b 1"},
    ),
    run_record.check_cgroup_kills: (
        Case({"a": failed(-9)}, RunRecord(oom_hosts=("a",))),
        {"worker-sigkilled 40 a 0"},
        {"cgroup-oom-killed 40 a 0"},
    ),
    run_record.find_early_finisher: (
        Case(
            {"a": tag(0, STEPS + RAISED + PEER_LOST), "b": tag(1, STEPS)}, RunRecord(failed_at=9.0, finished={1: 8.0})
        ),
        set(),
        {"uneven-inputs 35 b 1"},
    ),
    lost_hosts.add_lost_host: (
        Case({"a": tag(0, STEPS)}, RunRecord(lost="b", failed_at=9.0)),
        set(),
        {"host-lost 93 b None"},
    ),
    run_record.drop_after_stacks: (
        Case(
            {
                "a": tag(0, SHOWN_STACK.format(rank=0, frames=WAITS))
                + tag(1, SHOWN_STACK.format(rank=1, frames=ELSEWHERE))
                + failed(-6)
            }
        ),
        {"worker-segfault 39 a 0"},
        set(),
    ),
    run_record.add_hang_causes: (
        Case(
            {"a": tag(0, STEPS)},
            RunRecord(
                dumps=[
                    Dump(0, (Group("0", 8, Collective(8, "all_reduce", "[5]", "Float", "started", ())),)),
                    Dump(1, (Group("0", 7, None),)),
                ]
            ),
        ),
        set(),
        {"collective-timeout 36 None 1"},
    ),
    missing_files.check_sent_code: (
        Case(
            {
                "a": tag(0, RAISED + "FileNotFoundError: [Errno 2] No such file or directory: 'data/x.bin'\n"),
                "b": tag(1, STEPS),
            },
            RunRecord(same_code=True),
        ),
        {"file-missing-on-host 76 a 0"},
        {"dataset-missing 76 a 0"},
    ),
}
# each pair: in this order another result than with the first rule moved behind the second
ORDERED: dict[tuple[Rule, Rule], Case] = {
    (connections.check_loopback, connections.check_timeouts): Case(
        {
            name: f"connect [127.0.0.1]:4321: refused on {name}\nTCP client failed to connect to host a:29500\n"
            for name in "ab"
        }
    ),
    (endings.check_teardown, connections.find_silent_host): Case(
        {
            "a": "training finished\nterminate called without an active exception\n"
            "RendezvousConnectionError: Connection closed by peer\n" + failed(-6),
            "b": tag(1, STEPS),
        }
    ),
    (connections.find_absent_peer, endings.drop_stuck_watchdog): Case(
        {
            "a": NCCL_TIMEOUT + STUCK_WATCHDOG + tag(0, RAISED + PEER_LOST),
            "b": tag(1, STEPS),
        }
    ),
    (run_record.drop_own_signals, endings.find_refusal): STOPPED_AFTER_REFUSAL,
    (run_record.find_early_finisher, lost_hosts.add_lost_host): Case(
        {"a": tag(0, STEPS + RAISED + PEER_LOST), "b": tag(1, STEPS)},
        RunRecord(failed_at=9.0, finished={1: 8.0}, lost="b"),
    ),
    (lost_hosts.add_lost_host, run_record.drop_after_stacks): Case(
        {"a": tag(0, SHOWN_STACK.format(rank=0, frames=WAITS))}, RunRecord(lost="b", failed_at=9.0)
    ),
    (run_record.drop_after_stacks, run_record.add_hang_causes): Case(
        {"a": tag(0, SHOWN_STACK.format(rank=0, frames=WAITS)) + tag(1, SHOWN_STACK.format(rank=1, frames=ELSEWHERE))}
    ),
    # not neighbours
    (endings.discount_overcome_trouble, connections.check_timeouts): Case(
        {
            "a": "bind: Address already in use\nTCP client failed to connect to host a:29500\n"
            + STEPS
            + STEPS
            + LATE_ERROR
        }
    ),
    (connections.check_timeouts, endings.find_refusal): Case(
        {"a": "TCP client failed to connect to host a:29500\nthis configuration needs a key named lr\n" + failed(1)}
    ),
    (endings.add_rank_to_memory_kills, devices.check_allocation_size): Case(
        {
            "a": failed(-9, rank=1),
            "b": "DefaultCPUAllocator: can't allocate memory: you tried to allocate 281474976710656 bytes.\n",
        }
    ),
    (endings.add_rank_to_memory_kills, run_record.check_cgroup_kills): Case(
        {"a": failed(-9, rank=1), "b": "DataLoader worker (pid 5) is killed by signal: Killed.\n"},
        RunRecord(oom_hosts=("b",)),
    ),
    (endings.find_lone_sigterm, endings.check_teardown): Case(
        {"a": "training finished\nprocess group has NOT been destroyed\n" + failed(-15, rank=1)}
    ),
    (endings.drop_cancelled_steps, endings.check_teardown): Case(
        {
            "a": "training finished\nprocess group has NOT been destroyed\n"
            "srun: error: a: task 1: Exited with exit code 1\n"
            "slurmstepd: error: *** STEP 7.0 ON a CANCELLED AT 2026-11-22T10:00:00 ***\n"
        }
    ),
    (own_calls.find_missing_command, missing_files.check_written_files): Case(
        {"a": tag(0, "saved git\n") + tag(1, NO_COMMAND)}
    ),
    (missing_files.find_missing_folder, missing_files.check_written_files): Case(
        {"a": tag(0, "saved results/log.csv\n") + tag(1, NO_FOLDER)}
    ),
    (missing_files.check_written_files, missing_files.check_sent_code): Case(
        {
            "a": tag(0, "saved vocab.json\n"),
            "b": tag(1, RAISED + "FileNotFoundError: [Errno 2] No such file or directory: 'vocab.json'\n"),
        },
        RunRecord(same_code=True),
    ),
    (run_record.drop_own_signals, run_record.find_early_finisher): Case(
        {"a": tag(0, STEPS + RAISED + PEER_LOST) + "Received 15 death signal\n", "b": tag(1, STEPS)},
        RunRecord(failed_at=0.0, finished={1: -1.0}),
    ),
    (run_record.drop_own_signals, run_record.add_sent_signal): Case(
        {"a": STEPS}, RunRecord(exits=(SIGNALLED,), failed_at=9.0)
    ),
    (run_record.add_sent_signal, run_record.find_early_finisher): Case(
        {"a": tag(0, STEPS + RAISED + PEER_LOST), "b": tag(1, STEPS)},
        RunRecord(exits=(SIGNALLED,), failed_at=9.0, finished={1: 8.0}),
    ),
    (run_record.add_killed_launcher, run_record.find_early_finisher): Case(
        {"a": tag(0, STEPS + RAISED + PEER_LOST), "b": tag(1, STEPS)},
        RunRecord(exits=(KILLED_AGENT,), failed_at=9.0, finished={1: 8.0}),
    ),
    (run_record.add_full_disk, run_record.find_early_finisher): Case(
        {
            "a": "a:agent | ddp-orch: b: the disk of /x has only 0 MiB left [disk-full]; not used\n"
            + tag(0, STEPS + RAISED + PEER_LOST),
            "b": tag(1, STEPS) + tag(2, STEPS),
        },
        RunRecord(exits=(EXITED,), failed_at=9.0, finished={2: 8.0}),
    ),
    (run_record.add_stop, run_record.find_early_finisher): Case(
        {"a": tag(0, STEPS + RAISED + PEER_LOST), "b": tag(1, STEPS)},
        RunRecord(failed_at=9.0, finished={1: 8.0}, stopped_by="Ctrl-C"),
    ),
}


def moved_behind(first: Rule, second: Rule) -> tuple[Rule, ...]:
    rest = [rule for rule in RULES if rule is not first]
    place = rest.index(second) + 1
    return (*rest[:place], first, *rest[place:])


def name_of(value: object) -> str:
    return getattr(value, "__name__", "")


@pytest.mark.parametrize("rule", RULES, ids=name_of)
def test_each_rule_rewrites_its_case(rule: Rule) -> None:
    case, taken, put = CASES[rule]
    scene = case.scene()
    before, after = show(suspects_of(scene)), show(rule(suspects_of(scene), scene))
    assert (before - after, after - before) == (taken, put)


@pytest.mark.parametrize("rule", RULES, ids=name_of)
def test_a_rule_leaves_alone_what_it_has_nothing_to_say_about(rule: Rule) -> None:
    scene = Case({"a": tag(0, STEPS + RAISED + "ValueError: 1 channel\n")}).scene()
    suspects = suspects_of(scene)
    assert suspects
    assert rule(suspects, scene) == suspects


@pytest.mark.parametrize(("first", "second"), ORDERED, ids=name_of)
def test_where_the_order_of_two_rules_matters_it_is_this_one(first: Rule, second: Rule) -> None:
    assert RULES.index(first) < RULES.index(second)
    scene = ORDERED[first, second].scene()
    suspects = suspects_of(scene)
    assert details(refine(suspects, scene)) != details(refine(suspects, scene, moved_behind(first, second)))


def test_a_bad_argument_is_named_although_ddp_orch_then_stopped_the_other_ranks() -> None:
    scene = STOPPED_AFTER_REFUSAL.scene()
    assert [suspect.code for suspect in refine(suspects_of(scene), scene)] == ["script-bad-argument"]


def test_the_fix_of_an_impossible_allocation_names_its_size() -> None:
    asked = "RuntimeError: [enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: "
    found = first_finding(tag(0, RAISED + asked + f"you tried to allocate {36 << 40} bytes.\n") + failed(1))
    assert found.code == "script-exception" and "36 TiB" in found.fix


GLOO_ABORTS = (
    "terminate called after throwing an instance of 'gloo::EnforceNotMet'\n  what():  [enforce fail at pair.cc:456] "
    "op.preamble.length <= op.nbytes. 1000 vs 12. Received data size doesn't match expected size.\n"
    "Fatal Python error: Aborted\n\n{others}Thread 0x00007f8dde1c0b80 (most recent call first):\n"
    '  File "/v/site-packages/torch/distributed/distributed_c10d.py", line 3252 in all_reduce\n'
    '  File "/w/train.py", line 8 in main\n  File "/w/train.py", line 10 in <module>\n'
)


@pytest.mark.parametrize(
    ("text", "code", "frame"),
    [
        (GLOO_ABORTS.format(others=""), "gloo-size-mismatch", "8, in main"),
        (GLOO_ABORTS.format(others='Thread 0x1:\n  File "/w/a.py", line 7 in feed\n\n'), "gloo-size-mismatch", None),
        (CRASH, "worker-segfault", "20, in main"),
    ],
)
def test_the_line_of_the_script_that_crashed_is_evidence(text: str, code: str, frame: str | None) -> None:
    found = first_finding(text + failed(-6))
    assert found.code == code
    frames = [part.partition('/train.py", line ')[2] for part in found.evidence if part.startswith('File "')]
    assert frames == ([frame] if frame else [])


def first_finding(text: str) -> Finding:
    return diagnose(parse_logs([("a.log", text)])).findings[0]


def test_a_variable_that_is_not_set_is_shown_where_the_script_asks_for_it() -> None:
    found = first_finding(tag(0, NOT_SET) + failed(1))
    assert found.code == "script-exception" and "WANDB_API_KEY" in found.message
    assert [way in found.fix for way in ("-e WANDB_API_KEY", "run.env", "run.secrets")] == [True] * 3
    assert found.evidence[0].startswith('File "/w/train.py", line 9')
    other = first_finding(tag(0, LATE_ERROR) + failed(1))
    assert "run.secrets" not in other.fix


@pytest.mark.parametrize(
    ("variable", "launcher"),
    [
        ("SKYPILOT_NODE_RANK", "skypilot"),
        ("DSTACK_NODES_IPS", "dstack"),
        ("SLURM_PROCID", "srun"),
        ("OMPI_COMM_WORLD_RANK", "mpi"),
    ],
)
def test_a_variable_of_another_launcher_is_to_come_from_that_launcher(variable: str, launcher: str) -> None:
    found = first_finding(tag(0, NOT_SET.replace("WANDB_API_KEY", variable)) + failed(1))
    assert f"--set run.launcher={launcher} -- " in found.fix and f"-e {variable}" not in found.fix


@pytest.mark.parametrize(
    ("text", "own", "advises_local_rank"),
    [
        (tag(0, STEPS) + tag(1, OWN_PORT) + failed(1, rank=1), True, True),
        (tag(0, OWN_PORT) + failed(1), True, False),
        (tag(0, STEPS) + tag(1, RENDEZVOUS_PORT) + failed(1, rank=1), False, False),
    ],
)
def test_a_port_that_the_script_opens_is_none_of_the_rendezvous(text: str, own: bool, advises_local_rank: bool) -> None:
    found = first_finding(text)
    assert found.code == "port-in-use"
    assert ("rendezvous" not in found.message, "LOCAL_RANK" in found.fix) == (own, advises_local_rank)
    assert found.evidence[0].startswith('File "/w/train.py", line 9')


@pytest.mark.parametrize(
    ("own", "others", "blamed"),
    [
        ("epoch 1 step 2\n", "epoch 1 step 3\n", 1),
        ("epoch 1 step 3\n", "epoch 1 step 3\n", 1),
        ("epoch 1 step 4\n", "epoch 1 step 3\n", 0),
        ("epoch 1 step 2\ntraining finished\n", "epoch 1 step 3\n", 0),
        ("epoch 1 step 2\n", "loss 0.1\n", 0),
        ("", "epoch 1 step 3\n", 0),
    ],
)
def test_a_rank_that_ended_by_itself_amid_its_data_is_blamed(own: str, others: str, blamed: int) -> None:
    record = RunRecord(failed_at=9.0, finished={1: 8.0}, ranks={0: "a", 1: "b"})
    scene = Case({"a": tag(0, others + RAISED + PEER_LOST), "b": tag(1, "begun\n" + own)}, record).scene()
    *_, found = run_record.find_early_finisher(suspects_of(scene), scene)
    assert (found.rank, "sys.exit" in found.fix) == (blamed, blamed == 1)


def mixed_cases() -> Iterator[Case]:
    """All cases, and each two of them together, as two failures of one job."""
    cases = [case for case, _, _ in CASES.values()]
    yield from cases
    yield from ORDERED.values()
    for one, other in combinations(cases, 2):
        hosts = {**one.logs, **other.logs}
        logs = {host: one.logs.get(host, "") + other.logs.get(host, "") for host in hosts}
        yield Case(logs, one.record if one.record != NO_RECORD else other.record)


def test_neighbours_may_change_places_where_their_order_is_not_said_to_matter() -> None:
    neighbours = [pair for pair in pairwise(RULES) if pair not in ORDERED]
    for case in mixed_cases():
        scene = case.scene()
        suspects = suspects_of(scene)
        refined = details(refine(suspects, scene))
        for first, second in neighbours:
            names = f"{name_of(first)}, {name_of(second)}: {case}"
            assert details(refine(suspects, scene, moved_behind(first, second))) == refined, names
