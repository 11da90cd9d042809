"""ddp-orch on this machine's GPU, over real SSH to the hosts of the demo: check --deep, up, top, kill; and the demo.

The hosts are in a program of their own, which kills everything on them as soon as this one ends.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from figures import DEVICE, ROOT, TINY, Figures, skip

NEEDED = ("fabric", "paramiko", "click", "rich", "yaml", "ClusterShell", "torch")
LIMIT = 40  # s for a command
INVENTORY = """\
hosts:
  - {{name: demo-a, cluster_address: 127.0.0.1}}
defaults: {{python: {python}, interface: lo, gpus: {gpus}, nproc_per_node: 1}}
run: {{grace: 5}}
"""
TRAINING = ("--max-steps=1000000", "--save-every=1000000", "--eval-every=1000000", "--track=none", f"--device={DEVICE}")


class Commands:
    def __init__(self, figures: Figures, **environment: str) -> None:
        self.environment = {**os.environ, **environment}
        self.figures, self.done = figures, dict(figures.values.get("commands", {}))

    def run(self, *argv: str, name: str = "", codes: tuple[int, ...] = (0,)) -> str:
        """The output of `ddp-orch ARGV`. Exits if the exit code is none of `codes`."""
        began = time.monotonic()
        done = subprocess.run(
            [sys.executable, "-m", "orchestrator.cli", *argv], cwd=ROOT, env=self.environment, timeout=LIMIT,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
        )  # fmt: skip
        self.done[name or argv[0]] = {
            "code": done.returncode, "seconds": time.monotonic() - began, "output": done.stdout[-3000:],
        }  # fmt: skip
        self.figures.add("commands", self.done)
        if done.returncode not in codes:
            sys.exit(f"ddp-orch {' '.join(argv)}: exit code {done.returncode}\n{done.stdout}")
        return done.stdout


def main() -> None:
    if missing := [name for name in NEEDED if not importlib.util.find_spec(name)]:
        skip(f"{sys.executable} lacks {', '.join(missing)}: install them to a folder and add it to PYTHONPATH")
    figures = Figures(sys.argv[1])
    with tempfile.TemporaryDirectory() as driver, subprocess.Popen(
        [sys.executable, "-m", "orchestrator.demo.two_hosts"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        text=True, cwd=ROOT, start_new_session=True, env={**os.environ, **fake_driver(Path(driver))},
    ) as hosts:  # fmt: skip
        assert hosts.stdin and hosts.stdout
        folder = hosts.stdout.readline().rstrip("\n")
        if not folder:
            sys.exit("the hosts of the demo did not start")
        try:
            on_the_host(Path(folder), figures)
        finally:
            hosts.stdin.close()
    Commands(figures).run("demo")


def fake_driver(folder: Path) -> dict[str, str]:
    """The variables with which a host without a GPU finds a driver with one; {} on a machine with a GPU."""
    if DEVICE == "cuda" or not shutil.which("gcc"):
        return {}
    sys.path.insert(0, str(ROOT / "tests"))
    import fake_driver

    return fake_driver.make(folder.resolve())


def on_the_host(folder: Path, figures: Figures) -> None:
    file = folder / "inventory.yaml"
    gpus = "none" if DEVICE == "cpu" else "[0]"
    file.write_text(INVENTORY.format(python=json.dumps(sys.executable), gpus=gpus))
    commands = Commands(figures, DDP_ORCH_SSH_CONFIG=f"{folder}/ssh_config", XDG_STATE_HOME=f"{folder}/controller")
    inventory = ("-i", str(file))
    # 3: findings, such as a GPU without persistence mode
    commands.run("check", "--deep", *inventory, name="check --deep", codes=(0, 3))
    before = memory_used()
    commands.run("up", "--detach", *inventory, "--", "-m", "trainer", *TRAINING, name="up")
    wait_until(lambda: " step:" in commands.run("logs", "--tail", "5", *inventory, name="logs"), "the run has a step")
    table = commands.run("top", *inventory, name="top")
    if (DEVICE == "cuda" or shutil.which("gcc")) and "GPU %" not in table:
        sys.exit(f"top shows no GPU:\n{table}")
    held = memory_used()
    commands.run("kill", *inventory, name="kill")
    wait_until(lambda: TINY or memory_used() <= before + (64 << 20), "the memory of the GPU is free")
    commands.figures.add("gpu_memory", {"before": before, "in the run": held, "after the kill": memory_used()})


def memory_used() -> int:
    from orchestrator.node.host import nvml

    return sum(gpu["used"] or 0 for gpu in nvml.usage())


def wait_until(is_true: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + LIMIT
    while not is_true():
        if time.monotonic() > deadline:
            sys.exit(f"not within {LIMIT} s: {what}")
        time.sleep(0.5)


if __name__ == "__main__":
    main()
