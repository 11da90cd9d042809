"""Draw docs/images/top.svg, the picture of README.md: `PYTHONPATH=tests python -m e2e.draw_top`, as root.

It is the screen of `ddp-orch top` on three hosts of the lab, which have no GPUs.
"""

from __future__ import annotations

import io
import os
import pty
import re
import select
import time
from itertools import groupby
from pathlib import Path

import pyte
from lab.lab import Lab
from rich.console import Console
from rich.style import Style
from rich.text import Text

from .driver import code, ok, orch, script, start

PICTURE = Path(__file__).parents[2] / "docs" / "images" / "top.svg"
ROWS, COLUMNS, SECONDS = 20, 104, 45
NAMES = ("lovelace", "hopper", "noether")
TRAIN = """
import math, os, random, time
rank = int(os.environ["RANK"])
pause = 0.24 if rank == 6 else 0.2
for step in range(200, 1000):
    loss = 0.4 + 2.2 * math.exp(-(step - 200) / 60) + random.uniform(-0.05, 0.05)
    sum(x * x for x in range(100000))
    time.sleep(pause)
    measured = pause + random.uniform(0, 0.01)
    print(f"step:{step}/1000 loss:{loss:.3f} samples/s:{320 / pause:.0f} step_time:{measured:.3f}", flush=True)
"""


def main() -> None:
    with Lab(len(NAMES)) as lab:
        hosts = [{"name": name, "address": host.address} for name, host in zip(NAMES, lab.hosts, strict=True)]
        defaults = {"user": "ann", "python": lab.python, "nproc_per_node": 4}
        inventory = lab.inventory(hosts=hosts, defaults=defaults, run={"launcher": "direct", "grace": 1})
        inventory.rename(code(lab) / "inventory.yaml")
        start(lab, code(lab) / "inventory.yaml", "--name", "digits", "--", script(lab, TRAIN))
        draw(watch(lab))
        ok(orch(lab, "kill", "digits", "--grace", "0"))


def watch(lab: Lab) -> pyte.Screen:
    ours, theirs = pty.openpty()
    screen = pyte.Screen(COLUMNS, ROWS)
    stream = pyte.ByteStream(screen)
    env = {"TERM": "xterm-256color", "COLUMNS": str(COLUMNS), "LINES": str(ROWS)}
    words = ["ddp-orch", "top", "digits"]
    process = lab.popen(words, cwd=code(lab), stdin=theirs, stdout=theirs, stderr=theirs, env=env)
    os.close(theirs)
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        if select.select([ours], [], [], 0.1)[0]:
            stream.feed(os.read(ours, 65536))
    process.kill()
    process.wait()
    return screen


def style_of(cell: pyte.screens.Char) -> Style:
    colour = {"default": None, "brown": "yellow"}.get(cell.fg, cell.fg)
    is_number = colour is not None and re.fullmatch("[0-9a-f]{6}", colour)
    return Style(color=f"#{colour}" if is_number else colour, bold=cell.bold, reverse=cell.reverse)


def draw(screen: pyte.Screen) -> None:
    console = Console(record=True, width=COLUMNS, file=io.StringIO())
    for row in range(ROWS):
        cells = (screen.buffer[row][column] for column in range(COLUMNS))
        line = Text()
        for style, same in groupby(cells, style_of):
            line.append("".join(cell.data for cell in same), style)
        line.rstrip()
        console.print(line)
    svg = console.export_svg(title="ddp-orch top", clear=False)
    PICTURE.write_text(re.sub(r"\s*@font-face \{.*?\}", "", svg, flags=re.DOTALL))  # no font from another site


if __name__ == "__main__":
    main()
