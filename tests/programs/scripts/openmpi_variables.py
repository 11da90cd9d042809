import os

import torch
import torch.distributed as dist

rank, size = int(os.environ["OMPI_COMM_WORLD_RANK"]), int(os.environ["OMPI_COMM_WORLD_SIZE"])
dist.init_process_group("gloo", init_method="env://", rank=rank, world_size=size)
total = torch.ones(1)
dist.all_reduce(total)
print("done", rank, "of", int(total))
dist.destroy_process_group()
