"""`ddp-orch demo`: run `ddp-orch up` on two hosts on this machine, over real SSH. Leaves nothing behind.

The hosts are a separate process (`two_hosts.py`), which cleans up no matter how this process ends.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from ..commands import logs, up
from ..commands.up_options import UpOptions
from ..errors import OrchError, RunFailed, UsageError
from ..output.console import Console, wants_colour
from . import crash, with_torch

MIN_ACCURACY = 0.95  # on the test set; with the fixed seed it is 0.98
CLEANUP_TIMEOUT = 20.0  # s for the hosts to kill their processes and exit
MAX_THREADS = 4  # per rank; the model is too small for more

INVENTORY = """\
hosts: [{{name: demo-a, cluster_address: 127.0.0.1}}, {{name: demo-b, cluster_address: 127.0.0.1}}]
defaults: {{python: {python}, interface: lo, gpus: none}}
run: {{launcher: direct, max_restarts: 1, grace: 10, env: {{OMP_NUM_THREADS: "{threads}"}}}}
"""

NEXT = (
    ("init --probe ann@lovelace ann@hopper", "write inventory.yaml, and find Python with torch"),
    ("trust", "accept the SSH keys of the hosts"),
    ("check", "find problems before you start"),
    ("up -- train.py --lr 0.1", "run your own script"),
)


def main(python: str | None) -> int:
    """Returns the exit code of `up`, or raises an OrchError. `python`: of the ranks; None: one that has torch."""
    _check_this_machine()
    python = with_torch.find(python, os.environ)
    console = Console(sys.stderr, wants_colour(sys.stderr, os.environ))
    began = time.monotonic()
    with _terminated_like_interrupted(), _hosts() as folder:
        inventory = _write_inventory(folder, python)
        # do not use the ssh_config and the state of the user
        os.environ.update(DDP_ORCH_SSH_CONFIG=str(folder / "ssh_config"), XDG_STATE_HOME=str(folder / "controller"))
        console.step("two hosts run on this machine, demo-a and demo-b. You reach them by SSH. Their inventory.yaml:")
        console.note("".join(f"    {line}\n" for line in inventory.read_text().splitlines()).rstrip())
        console.step("ddp-orch up inventory.yaml")
        code = up.up(_up(inventory), watch=crash.Crash(console))
        if code:
            return code
        accuracy, ranks = _result(inventory)
    if accuracy < MIN_ACCURACY:
        raise RunFailed(f"the test accuracy is {accuracy:.4f}; expected at least {MIN_ACCURACY}")
    seconds = time.monotonic() - began
    print(f"\ntest accuracy {accuracy:.4f} on handwritten digits, on 2 hosts, {ranks} ranks, in {seconds:.0f} seconds")
    print("next, train on your own hosts, which need only sshd, python3 and torch:")
    commands = [(f"{typed_name()} {words}", purpose) for words, purpose in NEXT]
    width = max(len(command) for command, _ in commands)
    print("\n".join(f"  {command:{width}}  # {purpose}" for command, purpose in commands), flush=True)
    return 0


def typed_name() -> str:
    """What starts ddp-orch when it is typed in the current folder."""
    if shutil.which("ddp-orch"):
        return "ddp-orch"
    installed = Path(sys.executable).with_name("ddp-orch")
    if not installed.exists():
        return shlex.join([sys.executable, "-m", "orchestrator.cli"])
    folder = Path.cwd()
    if not installed.is_relative_to(folder) or installed.parent == folder:  # a bare name is searched on the PATH
        return shlex.quote(str(installed))
    return shlex.quote(str(installed.relative_to(folder)))


def _check_this_machine() -> None:
    if sys.platform != "linux":
        raise UsageError("the demo runs its hosts on this machine, so it needs Linux. `ddp-orch up` works from here.")


@contextlib.contextmanager
def _hosts() -> Iterator[Path]:
    """Start the two hosts, and give their folder. At the end of the context, they and all their processes end."""
    process = subprocess.Popen(
        [sys.executable, "-m", "orchestrator.demo.two_hosts"],
        cwd=Path(__file__).parents[2],  # for `-m`
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,  # Ctrl-C goes to this process only
    )
    assert process.stdin and process.stdout
    try:
        folder = process.stdout.readline().rstrip("\n")
        if not folder:
            raise OrchError("the hosts of the demo did not start. The reason is printed above.")
        yield Path(folder)
    finally:
        with _ignoring_signals():
            process.stdin.close()
            process.wait(CLEANUP_TIMEOUT)


@contextlib.contextmanager
def _terminated_like_interrupted() -> Iterator[None]:
    """Make SIGTERM do what Ctrl-C does, so that `up` stops the run."""
    before = signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextlib.contextmanager
def _ignoring_signals() -> Iterator[None]:
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, signal.SIG_IGN) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


def _write_inventory(folder: Path, python: str) -> Path:
    threads = min(MAX_THREADS, max(1, len(os.sched_getaffinity(0)) // 2))
    path = folder / "inventory.yaml"
    path.write_text(INVENTORY.format(python=json.dumps(python), threads=threads))
    return path


def _up(inventory: Path) -> UpOptions:
    return UpOptions(
        inventory=str(inventory),
        script=(),
        show_outputs=False,  # the hosts will be gone
    )


def _result(inventory: Path) -> tuple[float, int]:
    """Test accuracy and number of ranks, as `ddp-orch logs --json` prints them for the finished run."""
    with contextlib.redirect_stdout(io.StringIO()) as output:
        logs.logs(logs.LogsOptions(inventory=str(inventory), as_json=True))
    lines = [json.loads(line) for line in output.getvalue().splitlines()]
    last = [match[1] for line in lines if (match := re.match(r"done .*\btest_acc:([\d.]+)", line["text"]))]
    if not last:
        raise RunFailed("the training ended without printing its test accuracy")
    return float(last[-1]), len({line["rank"] for line in lines if line["rank"] is not None})
