"""ResNet-18 (He et al., 2015), as torchvision's: 11,689,512 parameters with 1000 classes, 45 MB of gradients.

python -m trainer --model resnet18:resnet18          with this folder on PYTHONPATH
"""

from __future__ import annotations

from itertools import pairwise

from torch import Tensor, nn


class Block(nn.Module):
    def __init__(self, before: int, width: int, stride: int) -> None:
        super().__init__()
        self.main = nn.Sequential(
            nn.Conv2d(before, width, 3, stride, padding=1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width),
        )
        short = [nn.Conv2d(before, width, 1, stride, bias=False), nn.BatchNorm2d(width)] if stride > 1 else []
        self.short = nn.Sequential(*short)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = nn.functional.relu(self.main(x) + self.short(x))
        return out


def resnet18(classes: int) -> nn.Module:
    stem = [nn.Conv2d(3, 64, 7, 2, padding=3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, padding=1)]
    widths = (64, 64, 128, 256, 512)
    blocks = [
        block
        for before, width in pairwise(widths)
        for block in (Block(before, width, 2 if width > before else 1), Block(width, width, 1))
    ]
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, classes))
