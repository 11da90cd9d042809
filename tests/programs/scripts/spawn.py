"""The form of PyTorch's ImageNet example."""

import argparse

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

parser = argparse.ArgumentParser()
parser.add_argument("--dist-url")
parser.add_argument("--rank", type=int)
parser.add_argument("--world-size", type=int)
parser.add_argument("--multiprocessing-distributed", action="store_true")


def work(local_rank, arguments):
    dist.init_process_group(
        "gloo", init_method=arguments.dist_url, rank=arguments.rank + local_rank, world_size=arguments.world_size
    )
    total = torch.ones(1)
    dist.all_reduce(total)
    print("done", dist.get_rank(), "of", int(total), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    mp.spawn(work, args=(parser.parse_args(),), nprocs=1)
