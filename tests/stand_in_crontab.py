"""A stand-in for the crontab program, whose table is a file."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

PROGRAM = """#!/bin/sh
if [ "$1" = - ]; then cat > {table}.new && mv {table}.new {table}
elif [ "$1" = -r ]; then rm {table}
elif [ -e {broken} ]; then exit 1
elif [ -e {table} ]; then cat {table}
else echo 'no crontab for you' >&2; exit 1
fi
"""


def put_in_path(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Returns the path of the table. While there is a file `broken` beside it, it cannot be read."""
    programs = folder / "bin"
    programs.mkdir()
    table = folder / "table"
    (programs / "crontab").write_text(PROGRAM.format(table=table, broken=folder / "broken"))
    (programs / "crontab").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    return table
