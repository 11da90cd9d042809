"""The data sets of --data. trainer/data.py says what a data set is.

own      your own datasets (MODULE:FUNCTION)
builtin  the bundled digits, images in a CSV file, random data
cifar10  CIFAR-10, downloaded once per node
folder   images in one folder per class, as ImageNet is laid out
tokens   text and files of tokens
workers  load samples in processes that run ahead
"""

from __future__ import annotations

from pathlib import Path

import torch

from trainer.config import Config, ConfigError
from trainer.data import Data


def load(config: Config, device: torch.device) -> Data:
    """Raises ConfigError when the data are missing or not what the flags say."""
    # Imported here: each import takes time, and a run needs one of them.
    from trainer.datasets import builtin

    if ":" in config.data:
        from trainer.datasets.own import own

        return own(config, device)
    if config.data == "synthetic":
        return builtin.synthetic(config, device)
    if config.data == "synthetic-tokens":
        return builtin.synthetic_tokens(config, device)
    if config.data == "digits":
        return builtin.csv(config, device, builtin.DIGITS)
    path = Path(config.data_path)
    if config.data != "cifar10" and not path.exists():
        raise ConfigError(f"--data-path {path}: this file or folder does not exist")
    if config.data == "csv":
        return builtin.csv(config, device, path)
    if config.data == "cifar10":
        from trainer.datasets.cifar10 import cifar10

        return cifar10(config, device)
    if config.data == "folder":
        from trainer.datasets.folder import folder

        return folder(config, device)
    from trainer.datasets.tokens import tokens

    return tokens(config, device)
