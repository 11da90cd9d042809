"""Make real failures of many kinds with torchrun, mp.spawn, hydra, Lightning and accelerate on this machine.

    python tests/failures/wild.py OUT [CASE...]

Each case was written down with its right answer before any diagnosis was made of it. OUT/CASE/ gets the log and an
expected.json. Needs root (tmpfs of a process's own); hydra, lightning and accelerate where a case wants them.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import textwrap
import time
from dataclasses import dataclass
from pathlib import Path

BEFORE = """
import ctypes, os, signal, sys, time
from datetime import timedelta
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset
RANK, WORLD = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
def start():
    dist.init_process_group("gloo", timeout=timedelta(seconds=8))
def train(model, steps, shape=(4, 8), first=0):
    optimizer = torch.optim.AdamW(model.parameters())
    for step in range(first, first + steps):
        loss = model(torch.randn(*shape)).pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if RANK == 0:
            print(f"[train] epoch 0 it {step} loss={loss.item():.4f}", flush=True)
"""


@dataclass(frozen=True)
class Case:
    code: str  # the right answers, separated by |; none: no failure
    rank: int | None  # the rank at fault, where one is
    script: str
    how: str = "torchrun"  # or plain, or a shell command with {python}, {script} and {port}
    nproc: int = 3
    options: str = ""
    arguments: str = ""
    mount: str = ""  # where to mount a tmpfs of 1 MB
    send: tuple[str, float] | None = None  # a signal to the launcher, s after the first step
    hold: bool = False  # let another process listen on the port
    env: str = ""
    before: bool = True


CASES = {
    "conv-channels": Case("shape-mismatch", None, """
        start()
        net = DDP(nn.Sequential(nn.Conv2d(3, 8, 3), nn.Flatten(), nn.Linear(8, 2)))
        net(torch.randn(2, 1, 16, 16))
        """),
    "ragged-batch": Case("shape-mismatch", 2, """
        start()
        class Texts(Dataset):
            def __len__(self): return 40
            def __getitem__(self, i): return torch.zeros(7 if RANK == 2 and i == 13 else 8)
        net = DDP(nn.Linear(8, 2))
        for step, rows in enumerate(DataLoader(Texts(), batch_size=4)):
            net(rows).sum().backward()
            print(f"rank={RANK} step={step}", flush=True)
        """),
    "dtype": Case("script-exception", None, """
        start()
        net = DDP(nn.Linear(8, 2))
        net(torch.randn(4, 8, dtype=torch.float64))
        """),
    "missing-keys": Case("checkpoint-mismatch", None, """
        start()
        torch.save({"backbone.weight": torch.ones(2, 8)}, f"/tmp/wild{RANK}.pt")
        net = nn.Linear(8, 2)
        net.load_state_dict(torch.load(f"/tmp/wild{RANK}.pt"))
        """),
    "optimizer-groups": Case("checkpoint-mismatch", None, """
        start()
        a, b = nn.Linear(8, 2), nn.Linear(8, 2, bias=False)
        torch.optim.SGD(b.parameters()).load_state_dict(torch.optim.SGD(a.parameters()).state_dict())
        """),
    "weights-only": Case("checkpoint-mismatch|script-exception", None, """
        class Config: pass
        start()
        torch.save({"config": Config()}, f"/tmp/wild{RANK}.pt")
        torch.load(f"/tmp/wild{RANK}.pt")
        """),
    "half-written": Case("checkpoint-corrupt", None, """
        start()
        torch.save(nn.Linear(64, 64).state_dict(), f"/tmp/wild{RANK}.pt")
        os.truncate(f"/tmp/wild{RANK}.pt", 9000)
        try:
            torch.load(f"/tmp/wild{RANK}.pt")
        except Exception as error:
            raise RuntimeError(f"could not resume from /tmp/wild{RANK}.pt") from error
        """),
    "loader-killed": Case("worker-sigkilled", 1, """
        start()
        class Rows(Dataset):
            def __len__(self): return 400
            def __getitem__(self, i):
                if RANK == 1 and i == 90: os.kill(os.getpid(), signal.SIGKILL)
                return torch.ones(8)
        net = DDP(nn.Linear(8, 2))
        for step, rows in enumerate(DataLoader(Rows(), batch_size=4, num_workers=1)):
            net(rows).sum().backward()
        """),
    "loader-segfault": Case("worker-segfault", 0, """
        start()
        class Rows(Dataset):
            def __len__(self): return 400
            def __getitem__(self, i):
                if RANK == 0 and i == 90: ctypes.string_at(8)
                return torch.ones(8)
        net = DDP(nn.Linear(8, 2))
        for step, rows in enumerate(DataLoader(Rows(), batch_size=4, num_workers=1)):
            net(rows).sum().backward()
        """),
    "loader-raises": Case("script-exception", 2, """
        start()
        class Rows(Dataset):
            def __len__(self): return 400
            def __getitem__(self, i):
                if RANK == 2 and i == 90: return {"x": 1}["label"]
                return torch.ones(8)
        net = DDP(nn.Linear(8, 2))
        for step, rows in enumerate(DataLoader(Rows(), batch_size=4, num_workers=2)):
            net(rows).sum().backward()
        """),
    "loader-unpicklable": Case("script-exception", None, """
        start()
        class Rows(Dataset):
            def __init__(self): self.f = lambda i: i
            def __len__(self): return 400
            def __getitem__(self, i): return torch.ones(8)
        for rows in DataLoader(Rows(), num_workers=1, multiprocessing_context="spawn"): pass
        """),
    "spawn-raises": Case("script-exception", 1, """
        import torch.multiprocessing as mp
        def main(rank, port):
            dist.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
            net = DDP(nn.Linear(8, 2))
            for step in range(5):
                net(torch.randn(4, 8)).sum().backward()
                print(f"GPU{rank} step {step}", flush=True)
                if rank == 1 and step == 3: 1 / 0
        if __name__ == "__main__":
            mp.spawn(main, (int(sys.argv[1]),), nprocs=2)
        """, "plain", arguments="{port}"),
    "spawn-port": Case("port-in-use", 0, """
        import torch.multiprocessing as mp
        def main(rank, port):
            dist.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
        if __name__ == "__main__":
            mp.spawn(main, (int(sys.argv[1]),), nprocs=2)
        """, "plain", arguments="{port}", hold=True),
    "spawn-lambda": Case("script-exception", None, """
        import torch.multiprocessing as mp
        if __name__ == "__main__":
            mp.spawn(lambda rank: print(rank), nprocs=2)
        """, "plain"),
    "skipped-collective": Case("gloo-recv-timeout|collective-timeout|barrier-deadlock|straggler", 1, """
        start()
        net = DDP(nn.Linear(8, 2))
        train(net, 4)
        if RANK != 1: dist.all_reduce(torch.ones(1))
        else: time.sleep(30)
        """),
    "other-collective": Case("collective-mismatch|gloo-size-mismatch", None, """
        start()
        train(DDP(nn.Linear(8, 2)), 2)
        if RANK == 1: dist.all_reduce(torch.ones(1000))
        else: dist.all_reduce(torch.ones(10))
        """),
    "detail-segfaults": Case("worker-segfault", None, """
        start()
        train(DDP(nn.Linear(8, 2)), 2)
        if RANK == 1: dist.all_gather([torch.ones(4) for _ in range(WORLD)], torch.ones(4))
        else: dist.all_reduce(torch.ones(4))
        """, env="TORCH_DISTRIBUTED_DEBUG=DETAIL"),
    "full-save": Case("disk-full", 0, """
        start()
        net = DDP(nn.Linear(1000, 1000))
        train(net, 2, (4, 1000))
        if RANK == 0: torch.save(net.state_dict(), "/mnt/last.ckpt")
        dist.barrier()
        """, mount="/mnt"),
    "full-csv": Case("disk-full", 2, """
        import logging
        start()
        train(DDP(nn.Linear(8, 2)), 2)
        if RANK == 2:
            with open("/mnt/metrics.csv", "w") as file:
                for row in range(100000): print(row, row * 2, "some,metric,values", file=file, flush=True)
        dist.barrier()
        """, mount="/mnt"),
    "port-taken": Case("port-in-use", None, "start()", options="--master-addr 127.0.0.1 --master-port {port}",
        hold=True),
    "segfault": Case("worker-segfault", 1, """
        start()
        train(DDP(nn.Linear(8, 2)), 3)
        if RANK == 1: ctypes.memset(16, 0, 8)
        dist.barrier()
        """),
    "sigkill": Case("worker-sigkilled", 2, """
        start()
        train(DDP(nn.Linear(8, 2)), 3)
        if RANK == 2: os.kill(os.getpid(), signal.SIGKILL)
        dist.barrier()
        """),
    "sigterm-launcher": Case("sigterm-preempted", None, """
        start()
        train(DDP(nn.Linear(8, 2)), 3)
        for _ in range(60):
            time.sleep(0.5)
            dist.barrier()
        """, send=("TERM", 1.0)),
    "sigint-launcher": Case("user-interrupt", None, """
        start()
        train(DDP(nn.Linear(8, 2)), 3)
        for _ in range(60):
            time.sleep(0.5)
            dist.barrier()
        """, send=("INT", 1.0)),
    "sigterm-rank": Case("sigterm-preempted", 1, """
        start()
        train(DDP(nn.Linear(8, 2)), 3)
        if RANK == 1: os.kill(os.getpid(), signal.SIGTERM)
        dist.barrier()
        """),
    "wrong-name": Case("script-import-error", None, "from torch.utils.data import DataLoadr"),
    "syntax": Case("script-import-error", None, "def train(:\n    pass", before=False),
    "assert-words": Case("script-exception", None, """
        start()
        batch = 30
        assert batch % WORLD == 1, f"batch size {batch} does not fit on {WORLD} processes"
        """),
    "diverged": Case("non-finite-loss", None, """
        class TrainingDiverged(Exception): pass
        start()
        for step in range(6):
            loss = torch.tensor(float("inf") if step == 5 else 2.0)
            print(f"step {step} loss {loss.item()}", flush=True)
            if not torch.isfinite(loss): raise TrainingDiverged(f"loss not finite at step {step}")
        """),
    "assert-finite": Case("non-finite-loss", 1, """
        start()
        net = DDP(nn.Linear(8, 2))
        train(net, 3)
        grad = torch.tensor([1.0, float("nan") if RANK == 1 else 0.0])
        assert not grad.isnan().any()
        dist.barrier()
        """),
    "leaves-early": Case("gloo-peer-lost|uneven-inputs|barrier-deadlock", 1, """
        start()
        net = DDP(nn.Linear(8, 2))
        train(net, 2 if RANK == 1 else 6)
        """),
    "says-and-exits": Case("script-bad-argument|script-exception|unknown", None, """
        sys.exit("config: learning_rate must be positive, got -1.0")
        """),
    "exit-code": Case("unknown|script-exception", 2, """
        start()
        train(DDP(nn.Linear(8, 2)), 2)
        if RANK == 2: sys.exit(7)
        dist.barrier()
        """),
    "argparse-choice": Case("script-bad-argument", None, """
        import argparse
        parser = argparse.ArgumentParser()
        parser.add_argument("--optimizer", choices=["sgd", "adam"])
        parser.parse_args()
        """, arguments="--optimizer lion", before=False),
    "click-option": Case("script-bad-argument", None, """
        import click
        @click.command()
        @click.option("--epochs", type=int, required=True)
        def main(epochs): pass
        main()
        """, arguments="--epochs ten", before=False),
    "hydra-override": Case("script-bad-argument", None, """
        import hydra
        @hydra.main(version_base=None, config_path=None)
        def main(cfg): print(cfg)
        main()
        """, arguments="optimizer.lr=0.1", before=False),
    "hydra-raises": Case("script-exception", None, """
        import hydra
        @hydra.main(version_base=None, config_path=None)
        def main(cfg):
            start()
            x = [1, 2, 3]
            print(x[WORLD])
        main()
        """),
    "lightning-raises": Case("script-exception", 1, """
        import lightning as L
        class Net(L.LightningModule):
            def __init__(self):
                super().__init__()
                self.net = nn.Linear(8, 2)
            def training_step(self, batch, i):
                if self.global_rank == 1 and i == 3: return self.nett(batch)
                return self.net(batch).sum()
            def configure_optimizers(self): return torch.optim.SGD(self.parameters(), 0.1)
        L.Trainer(accelerator="cpu", devices=2, max_epochs=1, logger=False, enable_checkpointing=False).fit(
            Net(), DataLoader(torch.randn(64, 8), batch_size=4))
        """, "plain"),
    "lightning-gpu": Case("no-gpu-visible", None, """
        import lightning as L
        L.Trainer(accelerator="gpu", devices=2)
        """, "plain"),
    "accelerate-raises": Case("script-exception", None, """
        from accelerate import Accelerator
        accelerator = Accelerator(cpu=True)
        net, loader = accelerator.prepare(nn.Linear(8, 2), DataLoader(torch.randn(64, 8), batch_size=4))
        for step, rows in enumerate(loader):
            accelerator.backward(net(rows).sum())
            if step == 2: accelerator.clip_grad_norm_(net.parameters(), max_nrom=1.0)
        """, "{python} -m accelerate.commands.launch --cpu --num_processes 2 --main_process_port {port} {script}"),
    "wrapped-missing-data": Case("dataset-missing", None, """
        class PipelineError(RuntimeError): pass
        start()
        def load(path):
            try:
                return open(path)
            except OSError as error:
                raise PipelineError("stage 'load' failed, see above") from error
        load("/datasets/c4/en/part-00000.jsonl")
        """),
    "cache-then-fails": Case("script-exception", None, """
        start()
        def build(): return 10 / (WORLD - 3)
        try:
            cached = open("/tmp/no/such/cache.bin").read()
        except FileNotFoundError:
            cached = build()
        """),
    "retried-download": Case("script-exception", None, """
        import logging
        start()
        logging.basicConfig(level=logging.INFO)
        try:
            raise ConnectionResetError(104, "Connection reset by peer")
        except OSError:
            logging.exception("download of vocab.json failed, using the cached one")
        net = DDP(nn.Linear(8, 2))
        train(net, 6)
        w = torch.ones(3, requires_grad=True)
        y = w.exp()
        y.add_(1)
        y.sum().backward()
        """),
    "quotes-another-error": Case("script-exception|script-bad-argument", None, '''
        start()
        raise ValueError("""bad policy in run.yaml:
          on_error: "No space left on device"
          on_oom: "CUDA out of memory"
        expected one of: stop, skip""")
        '''),
    "progress-bar": Case("script-exception", None, """
        start()
        table = nn.Embedding(10, 4)
        for step in range(40):
            sys.stderr.write(f"\\rtraining: {step * 2}%|{'#' * step}| {step}/50 [00:01<00:02, 21.3it/s, loss=0.21]")
            sys.stderr.flush()
            time.sleep(0.01)
        table(torch.tensor([3, 12]))
        """),
    "healthy-noise": Case("none", None, """
        import logging, warnings
        start()
        logging.basicConfig(level=logging.INFO)
        logging.warning("no checkpoint found in out/, starting from scratch")
        logging.info("retry policy: on error wait 5 s, fail after 3 tries")
        warnings.warn("lr_scheduler.step() before optimizer.step()")
        train(DDP(nn.Linear(8, 2)), 5)
        class Late:
            def __del__(self): raise RuntimeError("event loop is closed")
        late = Late()
        del late
        dist.barrier()
        dist.destroy_process_group()
        if RANK == 0: print("eval: error_rate 0.231, nan_count 0, failed 0\\nDone. Best checkpoint: out/best.pt")
        """),
    "many-files": Case("too-many-open-files", 0, """
        import resource
        start()
        train(DDP(nn.Linear(8, 2)), 2)
        if RANK == 0:
            resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))
            shards = [open("/proc/self/status") for _ in range(64)]
        dist.barrier()
        """),
    "not-allowed": Case("file-permission-denied", None, """
        start()
        os.setuid(65534)
        os.makedirs("/root/runs/exp7", exist_ok=True)
        """),
    "unused": Case("ddp-unused-parameters", None, """
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.a, self.b = nn.Linear(8, 2), nn.Linear(8, 2)
            def forward(self, x): return self.a(x)
        start()
        train(DDP(Net()), 5)
        """),
    "vocabulary": Case("model-mismatch", None, """
        start()
        DDP(nn.Embedding(1000 + RANK, 8))
        """),
    "no-group": Case("process-group-not-initialized", None, """
        DDP(nn.Linear(8, 2))
        """),
    "no-launcher": Case("missing-rdzv-env", None, "start()", "plain"),
    "uneven": Case("uneven-inputs", 0, """
        start()
        net = DDP(nn.Linear(8, 2))
        for step in range(4 + RANK * 3):
            net(torch.randn(4, 8)).sum().backward()
            print(f"rank {RANK}: batch {step}", flush=True)
        print(f"rank {RANK}: epoch 0 finished", flush=True)
        dist.barrier()
        """, nproc=2),
    "rank0-works": Case("rank0-work-exceeds-timeout", 0, """
        start()
        if RANK == 0:
            for shard in range(14):
                print(f"building vocabulary: shard {shard} of 40", flush=True)
                time.sleep(1)
        dist.barrier()
        """),
    "cuda-model": Case("no-gpu-visible", None, """
        start()
        DDP(nn.Linear(8, 2).cuda())
        """),
    "huge-tensor": Case("script-exception|unknown", None, """
        start()
        torch.empty(1 << 46)
        """),
    "bad-host": Case("hostname-unresolvable", None, "start()",
        options="--master-addr gpu-head.cluster.invalid --master-port {port} --rdzv-conf timeout=15"),
    "thread-dies": Case("script-exception", 1, """
        import queue, threading
        start()
        rows = queue.Queue(2)
        def prefetch():
            for number in range(20):
                if RANK == 1 and number == 6: raise ValueError(f"record {number}: bad header")
                rows.put(torch.randn(4, 8))
        threading.Thread(target=prefetch, daemon=True).start()
        net = DDP(nn.Linear(8, 2))
        for step in range(20):
            net(rows.get()).sum().backward()
        """),
    "restarts": Case("script-exception", 1, """
        start()
        train(DDP(nn.Linear(8, 2)), 2)
        if RANK == 1: None.step()
        dist.barrier()
        """, options="--max-restarts 2"),
    "bad-json": Case("script-exception|script-bad-argument|checkpoint-corrupt", None, """
        import json
        start()
        open(f"/tmp/wild{RANK}.json", "w").write('{"hidden": 64,}')
        json.load(open(f"/tmp/wild{RANK}.json"))
        """),
    "batch-norm": Case("shape-mismatch|script-exception", None, """
        start()
        nn.BatchNorm1d(8)(torch.randn(1, 8))
        """),
    "target-range": Case("script-exception", 2, """
        start()
        net = DDP(nn.Linear(8, 2))
        train(net, 2)
        nn.functional.cross_entropy(net(torch.randn(4, 8)), torch.tensor([0, 1, 1, 2 if RANK == 2 else 0])).backward()
        dist.barrier()
        """),
    "late-rank": Case("worker-never-arrived", 1, """
        if RANK == 1: time.sleep(40)
        start()
        """),
    "no-script": Case("remote-workdir-missing", None, "", "{python} -m torch.distributed.run --nproc-per-node 2 "
        "--master-port {port} experiments/train_v2.py"),
    "task-group": Case("script-exception", None, """
        import asyncio
        start()
        async def fetch(number):
            if number == 2: raise ValueError(f"shard {number} has no index")
        async def main():
            async with asyncio.TaskGroup() as group:
                for number in range(3): group.create_task(fetch(number))
        asyncio.run(main())
        """),
    "shell-killed": Case("worker-sigkilled", None, """
        for step in range(5): print(f"step {step} loss 1.2", flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
        """, "bash -c 'echo starting; {python} {script}; echo finished with $?'"),
    "no-launcher-found": Case("remote-env-differs", None, "",
        "bash -c 'cd /tmp && torchrun2 --nproc-per-node 2 {script}'"),
    "rich-traceback": Case("script-exception", None, """
        import rich.traceback
        rich.traceback.install(width=90)
        start()
        train(DDP(nn.Linear(8, 2)), 2)
        metrics = {"loss": 1.0}
        print(metrics["accuracy"])
        """),
    "abort": Case("worker-segfault|unknown", 1, """
        start()
        train(DDP(nn.Linear(8, 2)), 2)
        if RANK == 1: os.abort()
        dist.barrier()
        """),
    "hangs-interrupted": Case("user-interrupt|unknown|gloo-recv-timeout|barrier-deadlock", None, """
        dist.init_process_group("gloo", timeout=timedelta(minutes=30))
        train(DDP(nn.Linear(8, 2)), 3)
        if RANK == 1: time.sleep(60)
        dist.barrier()
        """, send=("INT", 4.0)),
    # the second set, written after what the first one taught
    "cleanup-fails-too": Case("shape-mismatch", None, """
        class Writer:
            file = None
            def close(self): self.file.flush()
        start()
        writer = Writer()
        try:
            nn.Linear(8, 2)(torch.randn(4, 9))
        finally:
            writer.close()
        """),
    "wrong-device-index": Case("no-gpu-visible|script-exception", None, """
        start()
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        """),
    "other-dtype-reduce": Case("script-exception|backend-unsupported-op", None, """
        start()
        dist.all_reduce(torch.ones(4, dtype=torch.complex64), op=dist.ReduceOp.MAX)
        """),
    "view-size": Case("shape-mismatch", 0, """
        start()
        net = DDP(nn.Linear(8, 2))
        train(net, 3)
        if RANK == 0: torch.randn(4, 6).view(5, 5)
        dist.barrier()
        """),
    "cat-sizes": Case("shape-mismatch", 1, """
        start()
        train(DDP(nn.Linear(8, 2)), 3)
        if RANK == 1: torch.cat([torch.ones(2, 3), torch.ones(2, 4)])
        dist.barrier()
        """),
    "missing-config-file": Case("dataset-missing|script-bad-argument|script-exception", None, """
        start()
        import yaml
        yaml.safe_load(open("configs/vit_b.yaml"))
        """),
    "bad-yaml": Case("script-bad-argument|script-exception", None, """
        import yaml
        start()
        yaml.safe_load("lr: [1, 2\\nepochs: 3")
        """),
    "environment-key": Case("script-exception|script-bad-argument", None, """
        start()
        print(os.environ["DATA_ROOT"])
        """),
    "file-vanishes": Case("dataset-missing|file-missing-on-host|script-exception", 2, """
        start()
        class Files(Dataset):
            def __len__(self): return 40
            def __getitem__(self, i):
                path = f"/tmp/img_{i:05}.bin" if RANK == 2 and i == 11 else "/proc/self/status"
                return torch.tensor(float(len(open(path).read())))
        for step, rows in enumerate(DataLoader(Files(), batch_size=4, num_workers=1)):
            dist.all_reduce(rows.sum())
            print(f"rank={RANK} step={step}", flush=True)
        """),
    "loader-timeout": Case("script-exception|straggler|unknown", 1, """
        start()
        class Slow(Dataset):
            def __len__(self): return 40
            def __getitem__(self, i):
                if RANK == 1 and i == 9: time.sleep(60)
                return torch.ones(8)
        for step, rows in enumerate(DataLoader(Slow(), batch_size=4, num_workers=1, timeout=3)):
            dist.all_reduce(rows.sum())
        """),
    "sigkill-and-talk-of-memory": Case("worker-sigkilled", 0, """
        start()
        print("memory guard: limit 60 GiB, oom_policy=kill", flush=True)
        train(DDP(nn.Linear(8, 2)), 3)
        if RANK == 0: os.kill(os.getpid(), signal.SIGKILL)
        dist.barrier()
        """),
    "barrier-only-rank0": Case("barrier-deadlock|gloo-recv-timeout", None, """
        start()
        train(DDP(nn.Linear(8, 2)), 3)
        if RANK == 0:
            print("saved checkpoint", flush=True)
            dist.barrier()
        else:
            time.sleep(30)
        """),
    "twice": Case("process-group-not-initialized", None, """
        start()
        start()
        """),
    "reused-checkpoint": Case("none", None, """
        from torch.utils.checkpoint import checkpoint
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.a = nn.Linear(8, 8)
            def forward(self, x):
                return checkpoint(self.a, checkpoint(self.a, x, use_reentrant=True), use_reentrant=True)
        start()
        net = DDP(Net())
        net(torch.randn(4, 8, requires_grad=True)).sum().backward()
        """),
    "backward-twice": Case("script-exception", None, """
        start()
        loss = DDP(nn.Linear(8, 2))(torch.randn(4, 8)).pow(2).sum()
        loss.backward()
        loss.backward()
        """),
    "logged-and-exits": Case("script-exception|unknown", 1, """
        import logging
        logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s")
        start()
        train(DDP(nn.Linear(8, 2)), 3)
        try:
            if RANK == 1: {}["labels"]
        except KeyError:
            logging.exception("training failed")
            os._exit(1)
        dist.barrier()
        """),
    "floating-point": Case("non-finite-loss|script-exception", None, """
        start()
        with torch.autograd.detect_anomaly():
            x = torch.zeros(3, requires_grad=True)
            (torch.sqrt(x) * 0).sum().backward()
        """),
    "lightning-misconfigured": Case("script-bad-argument|script-exception", None, """
        import lightning as L
        L.Trainer(accelerator="cpu", devices=2, precision="17-mixed")
        """, "plain"),
    "accelerate-no-script": Case("remote-workdir-missing|dataset-missing", None, "",
        "{python} -m accelerate.commands.launch --cpu --num_processes 2 --main_process_port {port} src/finetune.py"),
    "healthy-caught": Case("none", None, """
        import logging
        start()
        logging.basicConfig(level=logging.INFO)
        try:
            open("/tmp/nowhere/tokenizer.json")
        except OSError:
            logging.exception("no tokenizer cache")
        train(DDP(nn.Linear(8, 2)), 30)
        dist.barrier()
        dist.destroy_process_group()
        """),
    "restart-fails-otherwise": Case("script-exception", 1, """
        start()
        train(DDP(nn.Linear(8, 2)), 3)
        if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and RANK == 1: raise OSError("flaky mount")
        dist.barrier()
        dist.destroy_process_group()
        """, options="--max-restarts 1 --master-port {port}"),
    "barrier-by-one-in-training": Case("barrier-deadlock", 0, """
        start()
        net = DDP(nn.Linear(8, 2))
        train(net, 3)
        if RANK == 0: dist.barrier()
        train(net, 30, first=3)
        """),
    "barrier-by-one-among-reductions": Case("barrier-deadlock", 0, """
        start()
        for step in range(3): dist.all_reduce(torch.ones(2))
        if RANK == 0: dist.barrier()
        for step in range(3): dist.all_reduce(torch.ones(2))
        """),
    "rank1-downloads": Case("rank0-work-exceeds-timeout", 1, """
        start()
        train(DDP(nn.Linear(8, 2)), 3)
        if RANK == 1:
            for part in range(14):
                print(f"rank {RANK}: downloading shard {part} of 14", flush=True)
                time.sleep(1)
        dist.barrier()
        dist.destroy_process_group()
        """),
    "no-folder-to-save": Case("script-exception", 0, """
        start()
        net = DDP(nn.Linear(8, 2))
        train(net, 3)
        if RANK == 0: torch.save(net.module.state_dict(), "wild-checkpoints/last.pt")
        dist.barrier()
        """),
    "no-folder-for-log": Case("script-exception", 0, """
        start()
        net = DDP(nn.Linear(8, 2))
        if RANK == 0: log = open("wild-results/log.csv", "w")
        train(net, 3)
        """),
    "rank0-evaluates-in-batches": Case("rank0-work-exceeds-timeout", 0, """
        start()
        net = DDP(nn.Linear(8, 2))
        train(net, 5)
        if RANK == 0:
            for batch in range(14):
                print(f"eval batch {batch}", flush=True)
                time.sleep(1)
        train(net, 5, first=5)
        """),
    "rank0-evaluates": Case("rank0-work-exceeds-timeout", 0, """
        start()
        net = DDP(nn.Linear(8, 2))
        train(net, 5)
        if RANK == 0:
            print("evaluating...", flush=True)
            time.sleep(14)
        train(net, 5, first=5)
        """),
    "rank0-saves": Case("rank0-work-exceeds-timeout", 0, """
        start()
        net = DDP(nn.Linear(8, 2))
        train(net, 5)
        if RANK == 0:
            print("saving checkpoint to /nfs/ckpt/epoch0.pt", flush=True)
            time.sleep(14)
        train(net, 5, first=5)
        """),
    "rank0-validates-with-losses": Case("rank0-work-exceeds-timeout", 0, """
        start()
        net = DDP(nn.Linear(8, 2))
        for epoch in range(2):
            for step in range(4):
                net(torch.randn(4, 8)).sum().backward()
                print(f"[rank {RANK}] epoch {epoch} step {step} loss 0.5", flush=True)
            if RANK == 0:
                for batch in range(14):
                    print(f"[rank {RANK}] val batch {batch} loss 0.7", flush=True)
                    time.sleep(1)
        """),
    "stopped": Case("process-stopped|gloo-recv-timeout", 1, """
        start()
        train(DDP(nn.Linear(8, 2)), 3)
        if RANK == 1: os.kill(os.getpid(), signal.SIGSTOP)
        dist.barrier()
        """),
}  # fmt: skip


def port_of(name: str) -> int:
    return 21000 + sum(map(ord, name)) * 7 % 8000


def produce(out: Path, name: str) -> None:
    case = CASES[name]
    folder = out / name
    folder.mkdir(parents=True, exist_ok=True)
    script = Path(f"/tmp/wild-{name}.py")
    script.write_text((BEFORE if case.before else "") + textwrap.dedent(case.script))
    port = port_of(name)
    held = socket.socket()
    if case.hold:
        held.bind(("0.0.0.0", port))
        held.listen()
    torchrun = f"{{python}} -m torch.distributed.run --nproc-per-node {case.nproc} " + (
        case.options or "--master-port {port}"
    )
    how = {"torchrun": torchrun + " {script} " + case.arguments, "plain": "{python} {script} " + case.arguments}
    command = how.get(case.how, case.how).replace("{python}", sys.executable).replace("{script}", str(script))
    command = f"{case.env} {command}".replace("{port}", str(port))
    mount = f"mount -t tmpfs -o size=1m none {case.mount}; " if case.mount else ""
    env = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "WILD_MARK": f"{os.getpid()}{name}"}
    log = folder / "train.log"
    with log.open("wb") as file:
        process = subprocess.Popen(
            ["unshare", "-m", "bash", "-c", f"cd /tmp; {mount}exec " + f"env {command}"],
            stdout=file, stderr=subprocess.STDOUT, env=env, start_new_session=True,
        )  # fmt: skip
    if case.send is not None:
        until = time.monotonic() + 60
        while time.monotonic() < until and "it 2 loss" not in log.read_text():
            time.sleep(0.2)
        time.sleep(case.send[1])
        os.kill(process.pid, getattr(signal, f"SIG{case.send[0]}"))
    try:
        process.wait(90)
    except subprocess.TimeoutExpired:
        process.kill()
    mark = f"WILD_MARK={env['WILD_MARK']}".encode()
    for one in Path("/proc").iterdir():
        try:
            if mark in (one / "environ").read_bytes():
                os.kill(int(one.name), signal.SIGKILL)
        except (OSError, ValueError):
            pass
    process.wait()
    held.close()
    log.write_text(tidy(log.read_text(errors="replace"), script))
    code = None if case.code == "none" else case.code
    (folder / "expected.json").write_text(
        json.dumps({"code": code, "hosts": None, "rank": case.rank, "made_by": f"wild {name}"}) + "\n"
    )
    print(f"{name}: {process.returncode}", flush=True)


def tidy(text: str, script: Path) -> str:
    """The same, with a user's paths."""
    text = text.replace(str(script), "/home/ann/train.py").replace(script.stem, "train")
    text = re.sub(r"/\S*?/lib/python3\.\d+/site-packages/", "/home/ann/venv/lib/python3.11/site-packages/", text)
    text = re.sub(r"(?<![\w.])\S*/bin/python3?\b", "/home/ann/venv/bin/python", text)
    return text.replace(sys.base_prefix, "/usr").replace(socket.gethostname(), "gpu-7")


if __name__ == "__main__":
    for wanted in sys.argv[2:] or CASES:
        produce(Path(sys.argv[1]), wanted)
