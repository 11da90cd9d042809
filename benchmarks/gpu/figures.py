"""The file of figures of one part: read, extended, written after every figure, so that a time limit loses little."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any, NoReturn

from summary import SKIPPED

DEVICE = os.environ.get("BENCHMARK_DEVICE", "cuda")
TINY = DEVICE == "cpu"
ROOT = Path(__file__).resolve().parents[2]


class Figures:
    def __init__(self, path: str) -> None:
        self._path = Path(path)
        self.values: dict[str, Any] = json.loads(self._path.read_text()) if self._path.exists() else {}

    def __contains__(self, name: str) -> bool:
        return name in self.values

    def add(self, name: str, value: Any) -> None:
        self.values[name] = value
        aside = self._path.with_suffix(".tmp")
        aside.write_text(json.dumps(self.values, indent=2) + "\n")
        aside.replace(self._path)
        print(f"{name}: {json.dumps(value)[:300]}")


def skip(reason: str) -> NoReturn:
    print(reason)
    sys.exit(SKIPPED)
