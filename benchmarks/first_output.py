"""When do commands that wait for hosts write their first byte to a terminal, against `--help`? The host never answers.

    .venv/bin/python benchmarks/first_output.py [--rounds 5]

`--help` is what it takes to start Python and to read the command line. Writes benchmarks/results/first_output.json.
"""

from __future__ import annotations

import argparse
import os
import pty
import re
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import results

COMMANDS = """\
attach R -i FILE
check FILE
describe R -i FILE
diagnose R -i FILE
events R -i FILE
exec FILE -- true
fetch R -i FILE
gpus FILE
kill R -i FILE
logs -f R -i FILE
ps FILE
report R -i FILE
setup FILE
top R -i FILE
trust FILE
up FILE -- train.py
wait R -i FILE
"""
LIMIT = 20.0  # s
CURSOR = re.compile(rb"\x1b\[[0-9;?]*[A-Za-z]|\s")


def seconds_until_output(words: list[str], folder: Path) -> float:
    """Until there is a visible character on the terminal."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "orchestrator.cli", *words]
    env = {**os.environ, "TERM": "xterm", "XDG_STATE_HOME": str(folder)}
    began = time.perf_counter()
    process = subprocess.Popen(
        command, cwd=folder, stdin=theirs, stdout=theirs, stderr=theirs, env=env, start_new_session=True
    )
    os.close(theirs)
    printed = b""
    try:
        while not CURSOR.sub(b"", printed):
            if time.perf_counter() - began > LIMIT or not select.select([ours], [], [], LIMIT)[0]:
                raise SystemExit(f"no output of {' '.join(words)} within {LIMIT:g} s")
            printed += os.read(ours, 4096)
        return time.perf_counter() - began
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
        os.close(ours)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    seconds: dict[str, list[float]] = {"--help": []}
    with tempfile.TemporaryDirectory() as name, socket.create_server(("127.0.0.1", 0)) as silent:
        folder = Path(name)
        inventory = folder / "inventory.yaml"
        inventory.write_text(f"hosts: [{{name: a, address: 127.0.0.1, port: {silent.getsockname()[1]}}}]\n")
        (folder / "train.py").write_text("import torch")
        for _ in range(rounds):
            for line in ["--help", *COMMANDS.splitlines()]:
                words = [str(inventory) if word == "FILE" else word for word in line.split()]
                seconds.setdefault(line.split()[0], []).append(seconds_until_output(words, folder))
    print(results.table(seconds, "--help"))
    results.write("first_output", {"seconds": seconds})


if __name__ == "__main__":
    main()
