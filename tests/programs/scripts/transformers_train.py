import os

import torch
from transformers import Trainer, TrainingArguments


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def forward(self, x, labels):
        predicted = self.layer(x)
        return {"loss": torch.nn.functional.mse_loss(predicted, labels), "logits": predicted}


data = [{"x": torch.randn(4), "labels": torch.randn(1)} for _ in range(64)]
arguments = TrainingArguments(
    output_dir=os.environ["DDP_ORCH_OUTPUT_DIR"],
    use_cpu=True,
    max_steps=5,
    per_device_train_batch_size=4,
    report_to=[],
    save_strategy="no",
)
trainer = Trainer(Model(), arguments, train_dataset=data)
trainer.train()
print("done", arguments.process_index, "of", arguments.world_size, "steps", trainer.state.global_step)
