"""`port-forward`: a web server on a host of a run, as TensorBoard is one, asked from the controller's machine."""

from __future__ import annotations

import contextlib
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from lab.lab import Lab
from lab.waiting import wait_until

from .driver import assert_clean, code, ok, orch, script, start

WAIT = "import time\ntime.sleep(300)\n"
SIZE = 20_000_000
ASK_ALL = """
import concurrent.futures, hashlib, sys, urllib.request
def ask(number):
    return hashlib.sha256(urllib.request.urlopen(sys.argv[1] + "/data", timeout=60).read()).hexdigest()
with concurrent.futures.ThreadPoolExecutor(20) as pool:
    print(*set(pool.map(ask, range(20))))
"""


@contextlib.contextmanager
def forwarding(lab: Lab, *words: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The process, and the address that it has printed."""
    process = lab.popen(
        ["ddp-orch", "port-forward", *words],
        cwd=code(lab),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
    )
    assert process.stderr is not None
    printed = ""
    while not (match := re.search(r"http://127\.0\.0\.1:\d+", printed)):
        line = process.stderr.readline()
        assert line, printed
        printed += line
    try:
        yield process, match[0]
    finally:
        process.kill()
        process.communicate()


@pytest.mark.timeout(300)
def test_a_server_on_a_host_is_reached_by_many_connections(lab2: Lab) -> None:
    script(lab2, WAIT)
    inventory: Path = lab2.inventory(run={"launcher": "direct", "grace": 1})
    run = start(lab2, inventory, "--", "train.py")
    host = lab2.hosts[1]
    digest = host.sh(f"head -c {SIZE} /dev/urandom > data; sha256sum data").stdout.split()[0]
    words = (run, f"{host.name}:6006", "--local-port", "0")
    with forwarding(lab2, *words) as (process, address):
        asked = lab2.run(["python3", "-c", ASK_ALL, address], timeout=60)
        assert asked.returncode != 0  # nothing listens yet
        server = host.popen(["python3", "-m", "http.server", "6006", "--bind", "127.0.0.1"], "ann")
        try:
            wait_until(lambda: "6006" in host.sh("ss -ltn").stdout, 20, "the server listens")
            asked = lab2.run(["python3", "-c", ASK_ALL, address], timeout=120)
            assert asked.stdout.split() == [digest], (asked, process.poll())
            host.sshd_kill_sessions()
            lab2.run(["python3", "-c", ASK_ALL, address], timeout=120)  # the loss is noticed by a request
            asked = lab2.run(["python3", "-c", ASK_ALL, address], timeout=120)
            assert asked.stdout.split() == [digest], f"it does not connect again: {asked.stderr}"
        finally:
            server.kill()
            server.wait()
        in_use = orch(lab2, "port-forward", run, "6006", "--local-port", address.rpartition(":")[2])
        assert in_use.returncode == 5 and "--local-port" in in_use.stderr, in_use.stderr
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0
    assert orch(lab2, "port-forward", run, "nothing:6006").returncode == 2
    assert orch(lab2, "port-forward", run, "tensorboard").returncode == 2
    ok(orch(lab2, "kill", run, "-i", inventory))
    assert_clean(lab2)
