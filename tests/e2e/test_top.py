"""`top`: in a pipe, and on a terminal."""

from __future__ import annotations

import os
import pty
import re
import select

import pyte
from lab.lab import Lab
from lab.waiting import wait_until

from .driver import assert_clean, ok, orch, script, start

STEPS = """
import itertools, os, time
for step in itertools.count():
    print(f"step:{step} loss:{1 / (step + 1):.3f}", flush=True)
    time.sleep(0.2)
"""


def test_top_shows_every_host_with_its_ranks_figures_and_last_line(lab2: Lab) -> None:
    inventory = lab2.inventory(run={"launcher": "direct"})
    run_id = start(lab2, inventory, "--", script(lab2, STEPS))
    ok(orch(lab2, "logs", "--tail", "1", "-i", inventory))
    table = ok(orch(lab2, "top", "-i", inventory)).stdout
    assert run_id in table and "\x1b" not in table
    for host in ("node-0", "node-1"):
        row = next(line for line in table.splitlines() if line.startswith(host)).split()
        assert row[2] == "running" and row[3].isdigit() and "step:" in row[-2]
    _on_a_terminal(lab2, inventory, run_id)
    ok(orch(lab2, "kill", "-i", inventory, "--grace", "1"))
    over = ok(orch(lab2, "top", run_id, "-i", inventory)).stdout
    assert "killed" in over.splitlines()[0]
    assert_clean(lab2, run_id)


def test_on_a_dumb_terminal_top_is_one_table(lab2: Lab) -> None:
    inventory = lab2.inventory(run={"launcher": "direct"})
    ok(orch(lab2, "up", inventory, "--name", "mine", "--", script(lab2, "print('step:1')")))
    ours, theirs = pty.openpty()
    env = {"TERM": "dumb", "COLUMNS": "120"}
    process = lab2.popen(["ddp-orch", "top", "-i", str(inventory)], stdin=theirs, stdout=theirs, stderr=theirs, env=env)
    os.close(theirs)
    printed = b""
    try:
        while piece := _read(ours):
            printed += piece
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()
        os.close(ours)
    assert b"(mine)" in printed and b"node-1" in printed and b"\x1b" not in printed


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:  # nobody has its other side open
        return b""


def _on_a_terminal(lab: Lab, inventory: object, run_id: str) -> None:
    ours, theirs = pty.openpty()
    screen = pyte.Screen(80, 24)
    stream = pyte.ByteStream(screen)
    printed = bytearray()
    env = {"TERM": "xterm", "COLUMNS": "80", "LINES": "24"}
    process = lab.popen(["ddp-orch", "top", "-i", str(inventory)], stdin=theirs, stdout=theirs, stderr=theirs, env=env)
    os.close(theirs)

    def drawn(wanted: str) -> bool:
        while select.select([ours], [], [], 0.1)[0]:
            try:
                piece = os.read(ours, 65536)
            except OSError:
                break
            printed.extend(piece)
            stream.feed(piece)
        return any(wanted in line for line in screen.display)

    try:
        wait_until(lambda: drawn("node-1 1"), 60, "the board shows rank 1")
        assert any(run_id in line for line in screen.display)
        wait_until(lambda: drawn("loss █"), 30, "the curve of the loss is shown")
        os.write(ours, b"v")
        wait_until(lambda: drawn(" RANK HOST") and drawn("1 node-1"), 30, "a row per rank")
        os.write(ours, b"v")
        wait_until(lambda: drawn("node-1 1"), 30, "a row per host")
        os.write(ours, b"f")
        wait_until(lambda: drawn("only these hosts"), 30, "it asks for a pattern")
        os.write(ours, b"node-0\n")
        wait_until(lambda: drawn("node-0 0") and not drawn("node-1 1"), 30, "only one host is shown")
        os.write(ours, b"k")
        wait_until(lambda: drawn("type the name or the id"), 30, "it asks for the id")
        os.write(ours, b"nonsense\n")
        wait_until(lambda: drawn("nothing was killed"), 30, "it is not the id")
        os.write(ours, b"\n")
        wait_until(lambda: drawn("node-0 0"), 30, "the board is there again")
        os.write(ours, b"q")
        wait_until(lambda: not drawn("nothing") and process.poll() is not None, 30, "q ends it")
        assert process.returncode == 0
        left = re.sub(rb"\x1b\[\?1049h.*?\x1b\[\?1049l", b"", bytes(printed), flags=re.DOTALL)
        after = pyte.Screen(80, 24)
        pyte.ByteStream(after).feed(left)
        assert not any(line.strip() for line in after.display), after.display  # the terminal is as it was
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        os.close(ours)
