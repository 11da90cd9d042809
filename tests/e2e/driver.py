"""Drive the program in a lab as a user would: its command line, its exit codes, its JSON."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lab.lab import Lab
from lab.waiting import wait_until

COUNTER = """
import os, sys, time
rank = os.environ["RANK"]
for number in range(int(sys.argv[1])):
    print(f"rank {rank} count {number}", flush=True)
    time.sleep(float(sys.argv[2]))
"""


def code(lab: Lab) -> Path:
    """The folder of the user's scripts, and the one the user is in."""
    folder = lab.controller_home / "code"
    folder.mkdir(exist_ok=True)
    return folder


def orch(lab: Lab, *argv: str | Path, timeout: float = 120, **options: Any) -> subprocess.CompletedProcess[str]:
    return lab.run(["ddp-orch", *map(str, argv)], timeout=timeout, **{"cwd": code(lab), **options})


def ok(result: subprocess.CompletedProcess[str], code: int = 0) -> subprocess.CompletedProcess[str]:
    assert result.returncode == code, f"exit code {result.returncode}, not {code}\n{result.stdout}\n{result.stderr}"
    assert "Traceback" not in result.stderr, result.stderr
    return result


def script(lab: Lab, text: str, name: str = "train.py") -> str:
    (code(lab) / name).write_text(text)
    return name


def start(lab: Lab, inventory: Path, *argv: str, **options: Any) -> str:
    """A detached run; its id."""
    return ok(orch(lab, "up", inventory, "-d", *argv, **options)).stdout.splitlines()[0]


def runs(lab: Lab, inventory: Path) -> dict[str, dict[str, Any]]:
    listed = ok(orch(lab, "ps", "-i", inventory, "--all", "--json")).stdout
    return {run["run_id"]: run for run in json.loads(listed)}


def wait_for_state(lab: Lab, inventory: Path, run_id: str, state: str, timeout: float = 60) -> dict[str, Any]:
    def reached() -> dict[str, Any] | None:
        run = runs(lab, inventory)[run_id]
        return run if run["state"] == state else None

    return wait_until(reached, timeout, f"run {run_id} is {state}")


def lines_of(lab: Lab, inventory: Path, run_id: str, *argv: str, **options: Any) -> list[dict[str, Any]]:
    listed = ok(orch(lab, "logs", run_id, "-i", inventory, "--json", *argv, **options)).stdout
    return [json.loads(line) for line in listed.splitlines()]


def counts(lines: list[Mapping[str, Any]]) -> dict[int, list[int]]:
    """What each rank of COUNTER counted, as it arrived."""
    found: dict[int, list[int]] = {}
    for line in lines:
        if line["stream"] == "stdout":
            found.setdefault(line["rank"], []).append(int(line["text"].rsplit(" ", 1)[1]))
    return found


def assert_clean(lab: Lab, run_id: str | None = None) -> None:
    """The second assert of every run's test: no marked process is left anywhere, and no guard."""
    wait_until(lambda: not lab.marked(run_id), 5, "no marked process is left")
    assert (left := guards(lab)) == [], left


def guards(lab: Lab) -> list[str]:
    """Our own processes on the hosts, but for relays, which end with their session."""
    names = []
    for host in lab.hosts:
        if host.is_up:
            names += [
                name
                for name in host.sh("cat /proc/[0-9]*/comm 2>/dev/null", "root").stdout.split()
                if name.startswith(("ddp-guard", "ddp-record"))
            ]
    return names


@contextmanager
def attached(lab: Lab, inventory: Path, *argv: str) -> Iterator[subprocess.Popen[str]]:
    """`up` in the foreground; interrupted at the end if it still runs."""
    process = lab.popen(
        ["ddp-orch", "up", str(inventory), *argv],
        cwd=code(lab),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
        process.wait()
