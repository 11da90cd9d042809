"""What `check --deep` runs on every rank: a real rendezvous, an all-reduce of each backend, a matrix product.

Prints one JSON object a line, behind MARKER. Needs torch and nothing else.
"""

import json
import os
import time
from datetime import timedelta

import torch
import torch.distributed as dist

MARKER = "ddp-orch-deep: "
JOIN_WINDOW = timedelta(seconds=60)
SIZES = (1 << 12, 1 << 20, 1 << 24)  # bytes
REPEATS = 5
PRODUCT_ON_CPU, PRODUCT_ON_GPU = 768, 8192  # rows and columns


def say(**what: object) -> None:
    print(MARKER + json.dumps({"rank": dist.get_rank(), **what}), flush=True)


def synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def all_reduces(backend: str, device: torch.device) -> None:
    """Each rank gives its number plus one: the sum is known, so that a wrong one is seen."""
    world = dist.get_world_size()
    expected = world * (world + 1) / 2
    for size in SIZES:
        best, right = float("inf"), True
        for _ in range(REPEATS):
            data = torch.full((size // 4,), dist.get_rank() + 1.0, device=device)
            synchronise(device)
            began = time.monotonic()
            dist.all_reduce(data)
            synchronise(device)
            best = min(best, time.monotonic() - began)
            right = right and bool((data == expected).all())
        say(what="all_reduce", backend=backend, bytes=size, seconds=best, right=right)


def product(device: torch.device) -> None:
    """The best of some products, in TFLOP/s: a slow or throttled device is seen beside the others."""
    on_gpu = device.type == "cuda"
    n = PRODUCT_ON_GPU if on_gpu else PRODUCT_ON_CPU
    kind = torch.float16 if on_gpu else torch.float32  # of bfloat16 GPUs before Ampere know nothing
    matrix = torch.ones(n, n, device=device, dtype=kind)
    best = float("inf")
    for _ in range(REPEATS):
        synchronise(device)
        began = time.monotonic()
        matrix @ matrix
        synchronise(device)
        best = min(best, time.monotonic() - began)
    name = torch.cuda.get_device_name(device) if on_gpu else "cpu"
    say(what="product", device=name, tflops=2 * n**3 / best / 1e12)


def main() -> None:
    with_gpus = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if with_gpus else torch.device("cpu")
    if with_gpus:
        torch.cuda.set_device(device)
    dist.init_process_group("cpu:gloo,cuda:nccl" if with_gpus else "gloo", timeout=JOIN_WINDOW)
    all_reduces("gloo", torch.device("cpu"))
    if with_gpus:
        all_reduces("nccl", device)
    product(device)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
