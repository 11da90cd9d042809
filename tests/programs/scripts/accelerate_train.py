import torch
from accelerate import Accelerator

accelerator = Accelerator()
model = torch.nn.Linear(4, 1)
data = torch.utils.data.DataLoader(torch.randn(64, 4), batch_size=4)
model, optimizer, data = accelerator.prepare(model, torch.optim.SGD(model.parameters(), 0.1), data)
for batch in data:
    accelerator.backward(model(batch).pow(2).mean())
    optimizer.step()
    optimizer.zero_grad()
total = accelerator.gather(torch.ones(1, device=accelerator.device)).sum()
print("done", accelerator.process_index, "of", int(total), "on", accelerator.distributed_type)
