"""Train a model that FSDP2 shards, and save it with torch.distributed.checkpoint: see ../resume_programs.py."""

from __future__ import annotations

import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

SAVE_EVERY = 20


def is_complete(folder: Path) -> bool:
    try:
        parts = FileSystemReader(folder).read_metadata().storage_data.values()
    except FileNotFoundError:
        return False
    return all((folder / part.relative_path).exists() for part in parts)


def main() -> None:
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    mesh = init_device_mesh("cpu", (size,))
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 1))
    for layer in (model[0], model[2], model):
        fully_shard(layer, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    output = Path(os.environ["DDP_ORCH_OUTPUT_DIR"])
    steps = sorted(int(path.name.split("-")[1]) for path in output.glob("step-*") if is_complete(path))
    step = steps[-1] if steps else 0
    if step:
        weights, moments = get_state_dict(model, optimizer)
        state = {"model": weights, "optimizer": moments}
        dcp.load(state, checkpoint_id=output / f"step-{step}")
        set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    print(f"resumes at {step}", flush=True)
    while True:
        generator = torch.Generator().manual_seed(step * size + rank)
        inputs = torch.randn(64, 32, generator=generator)
        loss = (model(inputs) - inputs[:, :4].sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        total = loss.detach().clone()
        dist.all_reduce(total)
        print(f"step {step} loss {total.item() / size:.4f}", flush=True)
        if step % SAVE_EVERY == 0:
            weights, moments = get_state_dict(model, optimizer)
            dcp.save({"model": weights, "optimizer": moments}, checkpoint_id=output / f"step-{step}")
        time.sleep(0.1)  # a kill must not hit the saving by chance


if __name__ == "__main__":
    main()
