"""What this machine has: GPUs as ddp-orch and torch see them, programs, packages, and what NCCL allows on one GPU."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from figures import DEVICE, Figures

PACKAGES = ("torch", "torchvision", "timm", "triton", "numpy", "pytest", "pytest-timeout", "hypothesis", "fabric",
            "paramiko", "click", "rich", "pyyaml", "ClusterShell", "tensorboard", "wandb")  # fmt: skip
PROGRAMS = ("nvidia-smi", "sshd", "ip", "gcc", "git", "unshare")
# The driver's own words, kept whole: they become golden files of the tests.
QUESTIONS = {"query": ["-q", "-x"], "links": ["nvlink", "-s"], "topology": ["topo", "-m"]}

# Two ranks on one GPU: NCCL refuses this as a rule.
TWO_RANKS = """
import os, sys, torch, torch.distributed as dist
from datetime import timedelta
store = dist.FileStore(sys.argv[1], 2)
backend = "nccl" if sys.argv[3] == "cuda" else "gloo"
device = torch.device(sys.argv[3], 0) if sys.argv[3] == "cuda" else torch.device("cpu")
dist.init_process_group(backend, store=store, rank=int(sys.argv[2]), world_size=2, timeout=timedelta(seconds=20))
value = torch.ones(4, device=device)
dist.all_reduce(value)
print("the sum is", value[0].item(), flush=True)
os._exit(0)
"""


def main() -> None:
    figures = Figures(sys.argv[1])
    figures.add("machine", {
        "cores": os.cpu_count(), "kernel": platform.release(), "python": platform.python_version(),
        "packages": {name: version(name) for name in PACKAGES},
        "programs": {name: shutil.which(name) for name in PROGRAMS},
        "user": os.geteuid(),
    })  # fmt: skip
    if shutil.which("nvidia-smi"):
        for name, arguments in QUESTIONS.items():
            figures.add(f"nvidia_smi_{name}", output_of(["nvidia-smi", *arguments]))
    from orchestrator.node.host import machine, nvml
    from orchestrator.node.serve import gpus

    for name, question in {"look": gpus.look, "nvml": nvml.gpus, "usage": machine.usage}.items():
        figures.add(name, timed(question))
    figures.add("torch", timed(torch_facts))
    figures.add("two_ranks_on_one_gpu", two_ranks())


def version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def output_of(argv: list[str]) -> str:
    try:
        return subprocess.run(argv, capture_output=True, text=True, timeout=20, check=False).stdout
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)


def timed(question: Callable[[], Any]) -> dict[str, Any]:
    began = time.perf_counter()
    return {"answer": question(), "seconds": time.perf_counter() - began}


def torch_facts() -> dict[str, Any]:
    import torch

    cuda = torch.cuda.is_available()
    from trainer.metrics import peak_flops

    device = torch.device("cuda", 0) if cuda else torch.device("cpu")
    return {
        "torch": str(torch.__version__),
        "cuda": torch.version.cuda,
        "gpus": [torch.cuda.get_device_name(each) for each in range(torch.cuda.device_count())],
        "nccl": list(torch.cuda.nccl.version()) if cuda else None,  # type: ignore[call-overload]
        "peak_flops": peak_flops(device),
    }


def two_ranks() -> str:
    """`works`, or the last words of the ranks."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        ranks = [
            subprocess.Popen(
                [sys.executable, "-c", TWO_RANKS, f"{folder}/store", str(rank), DEVICE],
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            )
            for rank in range(2)
        ]  # fmt: skip
        outputs = []
        for rank in ranks:
            try:
                outputs.append(rank.communicate(timeout=35)[0])
            except subprocess.TimeoutExpired:
                rank.kill()
                outputs.append(rank.communicate()[0] + "no answer within 35 s")
    if all("the sum is 2.0" in output for output in outputs):
        return "works"
    return " ".join(outputs[0].split())[-600:]


if __name__ == "__main__":
    main()
