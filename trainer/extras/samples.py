"""Let a language model continue a text, to see what it has learned (--sample-tokens)."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from trainer.config import Config, ConfigError
from trainer.data import Data, seed_of
from trainer.dist import World

PROMPT = 16  # tokens of the first test sample


def find_decoder(config: Config, data: Data) -> Callable[[list[int]], str]:
    """The function from tokens to text. Raises ConfigError when there is none."""
    if data.channels or data.targets == 1:
        raise ConfigError("--sample-tokens is for models of tokens")
    if not config.decode:
        return decode_bytes if config.data == "text" else lambda tokens: " ".join(map(str, tokens))
    module, _, function = config.decode.partition(":")
    try:
        decode: Any = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"--decode {config.decode}: {error}") from error
    return lambda tokens: str(decode(tokens))


def decode_bytes(tokens: list[int]) -> str:
    return bytes(tokens).decode(errors="replace")


def print_sample(model: nn.Module, data: Data, config: Config, world: World, position: str) -> None:
    """All ranks must call: the layers of a sharded model are gathered for each token."""
    decode = find_decoder(config, data)
    (first,) = data.test.batches([(0, torch.zeros(1, dtype=torch.int64))])
    prompt = first.inputs[:, :PROMPT]
    generator = torch.Generator(world.device).manual_seed(seed_of(config.seed, 0))
    tokens = generate(model, prompt, config.sample_tokens, config.context, generator)[0].tolist()
    prompt_text, text = decode(tokens[: prompt.shape[1]]), decode(tokens[prompt.shape[1] :])
    world.print(f"sample {position} prompt:{json.dumps(prompt_text)} text:{json.dumps(text)}")


@torch.no_grad()
def generate(model: nn.Module, tokens: Tensor, count: int, context: int, generator: torch.Generator) -> Tensor:
    """Append `count` tokens, each drawn from what the model predicts for it."""
    model.eval()
    for _ in range(count):
        logits = model(tokens[:, -context:])[:, -1].float()
        following = torch.multinomial(logits.softmax(dim=-1), 1, generator=generator)
        tokens = torch.cat([tokens, following], dim=1)
    model.train()
    return tokens
