"""An exponential moving average of the weights, which often tests better than the weights themselves (--ema)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn


class EMA:
    """Holds one more copy of the parameters. Buffers, such as batch norm's means, are averages already."""

    def __init__(self, model: nn.Module, decay: float) -> None:
        self._decay = decay
        self._parameters: list[Tensor] = list(model.parameters())
        self._averages = [parameter.detach().clone() for parameter in self._parameters]

    @torch.no_grad()
    def update(self) -> None:
        torch._foreach_lerp_(self._averages, self._parameters, 1 - self._decay)

    @contextlib.contextmanager
    def swapped_in(self) -> Iterator[None]:
        """The model has the averages inside, and its own weights again afterwards."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    @torch.no_grad()
    def _swap(self) -> None:
        for parameter, average in zip(self._parameters, self._averages, strict=True):
            before = parameter.detach().clone()
            parameter.copy_(average)
            average.copy_(before)

    def state_of(self, model: nn.Module) -> dict[str, Tensor]:
        """What an average has that begins with the weights of `model`."""
        return {str(number): parameter.detach() for number, parameter in enumerate(model.parameters())}

    def state_dict(self) -> dict[str, Any]:
        return {str(number): average for number, average in enumerate(self._averages)}

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        for number, average in enumerate(self._averages):
            average.copy_(state[str(number)])
