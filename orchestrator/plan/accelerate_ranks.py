"""The ranks of `accelerate launch` without accelerate's launcher, which shares them out evenly: flags -> variables.

The variables are those of `prepare_multi_gpu_env` in accelerate 1.15 (accelerate.utils.launch).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from ..errors import UsageError
from ..inventory.model import Inventory
from . import accelerate, plan
from .invocation import Invocation, apply

_VARIABLES = {
    "mixed-precision": "ACCELERATE_MIXED_PRECISION",
    "dynamo-backend": "ACCELERATE_DYNAMO_BACKEND",
    "dynamo-mode": "ACCELERATE_DYNAMO_MODE",
    "num-cpu-threads-per-process": "OMP_NUM_THREADS",
}
_SWITCHES = {
    "dynamo-use-fullgraph": "ACCELERATE_DYNAMO_USE_FULLGRAPH",
    "dynamo-use-dynamic": "ACCELERATE_DYNAMO_USE_DYNAMIC",
    "dynamo-use-regional-compilation": "ACCELERATE_DYNAMO_USE_REGIONAL_COMPILATION",
    "enable-cpu-affinity": "ACCELERATE_CPU_AFFINITY",
    "debug": "ACCELERATE_DEBUG_MODE",
    "use-cpu": "ACCELERATE_USE_CPU",
}
_OF_LAUNCHER = ("multi-gpu", "quiet", "config-file", "num-processes", "num-machines", "main-process-ip")
"""Flags that say nothing to the ranks."""
_OF_CONFIG = (*_VARIABLES, *_SWITCHES)
_KINDS = ("", "NO", "MULTI_GPU", "MULTI_CPU")


def of_uneven(inventory: Inventory, invocation: Invocation, folder: Path) -> Invocation | None:
    """The ranks of `accelerate launch` on hosts with different numbers of them, which its launcher ignores.

    None: its launcher can be right, or must be used. `folder`: the one that the user is in.
    """
    if invocation.launcher != "accelerate" or not _is_uneven(apply(inventory, invocation)):
        return None
    return start_ranks(invocation, folder) if invocation.words else replace(invocation, launcher="torchrun")


def on_cpus(invocation: Invocation, folder: Path) -> Invocation | None:
    """The ranks of `accelerate launch` with a configuration that has `use_cpu`: its launcher would start each alone.

    None: it has not. Raises UsageError if its launcher is needed, too.
    """
    file = (
        accelerate.split_flags(invocation.words)[0].get("config-file") if invocation.launcher == "accelerate" else None
    )
    config = accelerate.read_config(file, folder) if file else None
    if config is None or config.values.get("use_cpu", "").lower() != "true":
        return None
    ranks = start_ranks(invocation, folder)
    if ranks is None:
        raise UsageError(
            f"{file}: with `use_cpu: true`, accelerate starts ranks that do not know each other, and ddp-orch cannot "
            "start them itself with FSDP, DeepSpeed, fp8 or such flags. Remove one of the two"
        )
    return ranks


def _is_uneven(inventory: Inventory) -> bool:
    """As far as the inventory says how many ranks the hosts have."""
    counts = {plan.ranks_of(host) for host in plan.order(inventory) if not host.witness}
    return "auto" not in counts and len(counts) > 1


def start_ranks(invocation: Invocation, folder: Path) -> Invocation | None:
    """The script of `accelerate launch`, and the variables by which its ranks know what the flags asked for.

    None: that is not all that they asked for. `invocation`: of `accelerate.complete`.
    """
    flags, words = accelerate.split_flags(invocation.words)
    config: Mapping[str, str] = {}
    if "config-file" in flags:
        found = accelerate.read_config(flags["config-file"], folder)
        if found is None or found.values.get("distributed_type", "") not in _KINDS:
            return None
        config = {name.replace("_", "-"): value for name, value in found.values.items()}
    if not flags.keys() <= {*_OF_CONFIG, *_OF_LAUNCHER} or "fp8" in (
        flags.get("mixed-precision"),
        config.get("mixed-precision"),
    ):
        return None
    values = {**{name: value for name, value in config.items() if name in _OF_CONFIG}, **flags}
    env = {variable: values[name] for name, variable in _VARIABLES.items() if values.get(name)}
    if "ACCELERATE_DYNAMO_BACKEND" in env:
        env["ACCELERATE_DYNAMO_BACKEND"] = env["ACCELERATE_DYNAMO_BACKEND"].upper()
    for name, variable in _SWITCHES.items():
        if name in flags or config.get(name, "").lower() == "true":
            env[variable] = "1" if name == "enable-cpu-affinity" else "true"
    return replace(invocation, words=words, launcher="torchrun", env={**env, **invocation.env})
