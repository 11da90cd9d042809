"""Find a Python with torch on this machine, for the ranks of the demo."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from ..errors import FindingsError

TIMEOUT = 30.0  # s; a Python on a network disk starts slowly
_HAS_TORCH = "import importlib.util, sys; sys.exit(importlib.util.find_spec('torch') is None)"


def find(chosen: str | None, environment: Mapping[str, str]) -> str:
    """The path of a Python with torch: `chosen`, or else our own, that of an active environment, or that of the PATH.

    Raises FindingsError if there is none.
    """
    found: dict[tuple[Path, Path], str] = {}
    for path in _candidates(environment):
        # python and python3 of one environment are one file; those of two environments may be, too
        found.setdefault((Path(path).parent, Path(path).resolve()), path)
    pythons = [shutil.which(chosen) or chosen] if chosen else [*found.values()]
    for python in pythons:
        if has_torch(python):
            return python
    raise FindingsError(
        f"the demo needs torch, which {' and '.join(pythons)} {'lacks' if len(pythons) == 1 else 'lack'}. Install it:\n"
        f"  {pythons[0]} -m pip install torch\nor name another Python:\n  ddp-orch demo --python PATH"
    )


def has_torch(python: str) -> bool:
    try:
        return subprocess.run([python, "-c", _HAS_TORCH], capture_output=True, timeout=TIMEOUT).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def _candidates(environment: Mapping[str, str]) -> Iterator[str]:
    yield sys.executable
    for variable in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        if environment.get(variable):
            python = Path(environment[variable]) / "bin" / "python"
            if python.exists():
                yield str(python)
    for name in ("python3", "python"):
        if path := shutil.which(name, path=environment.get("PATH")):
            yield path
