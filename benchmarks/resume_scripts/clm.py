"""Train a tiny GPT-2 with transformers' Trainer, in the form of its example run_clm.py: see ../resume_programs.py."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, HfArgumentParser, Trainer, TrainerCallback, TrainingArguments

CONTEXT = 32


class Blocks(Dataset[dict[str, torch.Tensor]]):
    """The text in blocks; a byte is a token."""

    def __init__(self, path: str) -> None:
        self.tokens = torch.tensor(list(Path(path).read_bytes()))

    def __len__(self) -> int:
        return len(self.tokens) // CONTEXT

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        block = self.tokens[index * CONTEXT : (index + 1) * CONTEXT]
        return {"input_ids": block, "labels": block}


def last_checkpoint(folder: Path) -> str | None:
    """The newest one that rank 0 has finished. get_last_checkpoint takes one that has only random states, too."""
    finished = [path.parent for path in folder.glob("checkpoint-*/trainer_state.json")]
    newest = max(finished, key=lambda path: int(path.name.rpartition("-")[2]), default=None)
    return None if newest is None else str(newest)


class Says(TrainerCallback):
    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        print(f"resumes at {state.global_step}", flush=True)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        time.sleep(0.1)  # a kill must not hit the saving by chance

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float] | None = None, **_: Any) -> None:
        if logs and "loss" in logs:
            print(f"step {state.global_step} loss {float(logs['loss']):.4f}", flush=True)


def main() -> None:
    (arguments,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()
    model = GPT2LMHeadModel(GPT2Config(vocab_size=256, n_positions=CONTEXT, n_embd=32, n_layer=2, n_head=2))
    trainer = Trainer(model, arguments, train_dataset=Blocks("input.txt"), callbacks=[Says()])
    trainer.train(resume_from_checkpoint=last_checkpoint(Path(arguments.output_dir)))


if __name__ == "__main__":
    main()
