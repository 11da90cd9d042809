import os

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
print("done", os.environ["RANK"], "of", int(total))
dist.destroy_process_group()
