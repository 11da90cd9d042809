import os

import lightning
from lightning.pytorch.demos.boring_classes import BoringModel

trainer = lightning.Trainer(
    accelerator="cpu",
    strategy="ddp",
    devices=int(os.environ["LOCAL_WORLD_SIZE"]),
    num_nodes=int(os.environ["GROUP_WORLD_SIZE"]),
    max_steps=5,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
)
trainer.fit(BoringModel())
print("done", trainer.global_rank, "of", trainer.world_size, "steps", trainer.global_step)
