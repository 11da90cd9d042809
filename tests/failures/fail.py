# ruff: noqa: B007, E402, SIM115
"""One rank of a training that fails in a chosen way: `torchrun ... fail.py CASE`. Used by produce.py only."""

import argparse
import ctypes
import os
import signal
import sys
import time
from datetime import timedelta

RANK, WORLD = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
CULPRIT = WORLD - 1
case = sys.argv[1]

if case == "script-import-error":
    import not_a_module_anywhere  # noqa: F401
if case == "missing-module-on-host" and os.environ.get("GROUP_RANK") == "1":
    import wandb_not_here  # noqa: F401
if case == "script-bad-argument":
    parser = argparse.ArgumentParser()
    parser.add_argument("case")
    parser.add_argument("--epochs", type=int)
    parser.parse_args()
if case == "local-rank-argument":
    parser = argparse.ArgumentParser()
    parser.add_argument("case")
    parser.add_argument("--local_rank", type=int, required=True)
    parser.parse_args()

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset


class Rows(Dataset):
    def __init__(self, size, width=4):
        self.size, self.width = size, width

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        if case == "loader-exception" and RANK == CULPRIT and index == 17:
            raise ValueError(f"bad sample {index}: label -1")
        if case == "loader-killed" and RANK == CULPRIT and index == 17:
            os.kill(os.getpid(), signal.SIGKILL)
        if case == "stack" and RANK == CULPRIT and index == 9:
            return torch.ones(self.width + 1), 0
        return torch.ones(self.width), index % 2


def train(model, steps, width=4, log=True):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(steps):
        out = model(torch.randn(8, width))
        loss = (out[0] if isinstance(out, tuple) else out).sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if log:
            print(f"rank {RANK} step {step} loss {loss.item():.4f}", flush=True)
        yield step


class Net(torch.nn.Module):
    def __init__(self, hidden=8, branches=False):
        super().__init__()
        self.first, self.second = torch.nn.Linear(4, hidden), torch.nn.Linear(hidden, 2)
        self.branches = branches
        if branches:
            self.unused = torch.nn.Linear(4, 4)

    def forward(self, x):
        return self.second(self.first(x))


if case == "no-init":
    DDP(Net())
if case == "missing-rdzv-env":
    for name in ("MASTER_ADDR", "RANK"):
        os.environ.pop(name, None)
if case == "nccl-without-gpu":
    dist.init_process_group("nccl")
if case == "before-init-exception" and RANK == CULPRIT:
    raise FileNotFoundError(2, "No such file or directory", "/data/imagenet/train")
if case == "dataset-missing":
    os.listdir("/data/imagenet/train")
if case == "never-arrives" and RANK == CULPRIT:
    time.sleep(60)
dist.init_process_group("gloo", timeout=timedelta(seconds=8))
if case == "twice":
    dist.init_process_group("gloo")
if case == "model-mismatch":
    DDP(Net(hidden=8 if RANK else 9))
if case == "param-count":
    DDP(Net(branches=RANK == 0))
model = DDP(Net(branches=case == "unused"), find_unused_parameters=False)
for step in train(model, 3):
    pass
me = RANK == CULPRIT
if case == "ok":
    dist.barrier()
elif case == "exception" and me:
    print("about to fail", flush=True)
    {}["missing_key"]
elif case == "signal" and me:
    os.kill(os.getpid(), getattr(signal, sys.argv[2]))
elif case == "segfault" and me:
    ctypes.string_at(0)
elif case == "abort" and me:
    os.abort()
elif case == "sys-exit" and me:
    sys.exit(3)
elif case == "stop" and me:
    os.kill(os.getpid(), signal.SIGSTOP)
elif case == "uneven":
    for step in train(model, 3 + RANK * 2):
        pass
    print(f"rank {RANK} finished epoch 0", flush=True)
    dist.barrier()
elif case == "barrier" and RANK == 0:
    dist.barrier()
    dist.barrier()
elif case == "barrier":
    time.sleep(20)
elif case == "long-work":
    if RANK == 0:
        for part in range(20):
            print(f"tokenizing shard {part}/20", flush=True)
            time.sleep(1)
    dist.barrier()
elif case == "mismatch-op":
    if me:
        dist.broadcast(torch.ones(4), src=me * RANK)
    else:
        dist.all_reduce(torch.ones(4))
elif case == "mismatch-size":
    dist.all_reduce(torch.ones(4 if not me else 8))
elif case == "monitored":
    if not me:
        dist.monitored_barrier(timeout=timedelta(seconds=5))
    else:
        time.sleep(15)
elif case == "shape" and me:
    model(torch.randn(8, 5))
elif case == "loader-exception" or case == "loader-killed" or case == "stack":
    for rows, _ in DataLoader(Rows(64), batch_size=8, num_workers=2):
        model(rows).sum().backward()
elif case == "index" and me:
    torch.nn.functional.cross_entropy(torch.randn(4, 3), torch.tensor([0, 1, 2, 3]))
elif case == "cuda-tensor":
    dist.all_reduce(torch.ones(2), group=dist.new_group(backend="cuda:gloo"))
elif case == "disk-full" and RANK == 0:
    torch.save({"w": torch.ones(300000)}, os.path.join(sys.argv[2], "model.pt"))
elif case == "disk-full-write" and RANK == 0:
    with open(os.path.join(sys.argv[2], "log.txt"), "w") as file:
        file.write("x" * 3_000_000)
elif case == "too-many-files" and me:
    import resource

    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    kept = [open("/dev/null") for _ in range(100)]
elif case == "no-threads" and me:
    import resource
    import threading

    os.setuid(65534)
    resource.setrlimit(resource.RLIMIT_NPROC, (1, 1))
    [threading.Thread(target=time.sleep, args=(5,)).start() for _ in range(8)]
elif case == "permission" and me:
    os.setuid(65534)
    open("/etc/shadow").read()
elif case == "corrupt":
    with open(sys.argv[2] + f"/c{RANK}.pt", "wb") as file:
        torch.save(Net().state_dict(), file)
        file.truncate(600)
    torch.load(sys.argv[2] + f"/c{RANK}.pt")
elif case == "empty-checkpoint":
    open(sys.argv[2] + f"/e{RANK}.pt", "wb").close()
    torch.load(sys.argv[2] + f"/e{RANK}.pt")
elif case == "checkpoint-mismatch":
    model.load_state_dict(Net(hidden=9).state_dict())
elif case == "nan":
    loss = torch.tensor(float("nan"))
    print(f"step 4 loss {loss.item()}", flush=True)
    if me:
        print(f"Loss is {loss.item()}, stopping training", flush=True)
        sys.exit(1)
elif case == "sigpipe" and me:
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    r, w = os.pipe()
    os.close(r)
    os.write(w, b"x")
elif case == "memory" and me:
    kept = []
    while True:
        kept.append(bytearray(os.urandom(1 << 20)) * 16)
elif case == "shm" and me:
    for rows, _ in DataLoader(Rows(64, 1 << 20), batch_size=8, num_workers=2):
        pass
elif case == "slow" and me:
    time.sleep(12)
elif case == "wait":
    for _ in range(120):
        time.sleep(0.5)
        dist.all_reduce(torch.ones(1))

for step in train(model, 4):
    pass
if case == "not-destroyed":
    print(f"rank {RANK} done", flush=True)
else:
    dist.barrier()
    print(f"rank {RANK} done", flush=True)
    dist.destroy_process_group()
