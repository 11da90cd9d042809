import argparse

import deepspeed
import torch

parser = argparse.ArgumentParser()
parser.add_argument("--local_rank", type=int)
arguments = deepspeed.add_config_arguments(parser).parse_args()
model = torch.nn.Linear(4, 1)
engine, *_ = deepspeed.initialize(args=arguments, model=model, model_parameters=model.parameters())
for _ in range(5):
    engine.backward(engine(torch.randn(4, 4, device=engine.device)).pow(2).mean())
    engine.step()
print("done", deepspeed.comm.get_rank(), "of", deepspeed.comm.get_world_size(), "steps", engine.global_steps)
