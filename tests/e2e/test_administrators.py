"""The guide for administrators: root sees the runs of all users on a host, and ends one; users learn whose a run is."""

from __future__ import annotations

import re
from pathlib import Path

from documentation import blocks
from lab.host import Host
from lab.lab import Lab

from .driver import assert_clean, ok, orch, script, start, wait_for_state

PAGE = "docs/guides/administrators.md"
WAITS = "import time\nprint('ready', flush=True)\ntime.sleep(600)"
ID = "20261128-043139-38ad"  # on the page


def command(words: str) -> str:
    """The command of the page with these words, for root."""
    commands = [command for block in blocks() if block.page == PAGE for command in block.commands]
    (found,) = (command for command in commands if words in command)
    return found.replace("sudo ", "")


def as_root(host: Host, text: str) -> str:
    return host.sh(text, "root").stdout


def start_for_bob(lab: Lab) -> tuple[str, Path]:
    run = {"launcher": "direct", "max_restarts": 2, "autostart": "cron"}
    bobs = lab.inventory(name="bob.yaml", run=run, defaults={"user": "bob", "python": lab.python})
    run_id = start(lab, bobs, "--name", "bobs", "--", script(lab, WAITS))
    wait_for_state(lab, bobs, run_id, "running")
    return run_id, bobs


def test_root_sees_and_ends_the_run_of_a_user(lab2: Lab) -> None:
    run_id, bobs = start_for_bob(lab2)
    host = lab2.hosts[1]
    (guard,) = as_root(host, command("ps -eo")).splitlines()
    assert guard.startswith("bob ") and guard.endswith(f" guard {run_id}")
    assert run_id in as_root(host, command("grep '# ddp-orch run '"))
    as_root(host, command("grep -v '# ddp-orch run '"))
    assert as_root(host, "crontab -l -u bob") == ""
    as_root(host, command(" guard " + ID).replace(ID, run_id))
    fact = wait_for_state(lab2, bobs, run_id, "killed")
    assert fact["attempt"] == 1
    assert_clean(lab2, run_id)
    assert "SIGTERM" in ok(orch(lab2, "events", run_id, "-i", bobs)).stdout
    told = ok(orch(lab2, "diagnose", run_id, "-i", bobs)).stdout
    assert "sigterm-preempted" in told and "administrator" in told


def test_a_command_about_a_run_of_another_user_names_the_user(lab2: Lab) -> None:
    run_id, bobs = start_for_bob(lab2)
    inventory = lab2.inventory()
    for words in (("kill",), ("logs", "-f"), ("describe",), ("top",), ("fetch",)):
        for run in (run_id, run_id[-4:]):
            result = orch(lab2, *words, "-i", inventory, run)
            assert result.returncode == 2 and {"bob", run_id} <= set(re.findall(r"[\w-]+", result.stderr)), (
                result.stderr
            )
    ok(orch(lab2, "kill", "-i", bobs, run_id, "--grace", "0"))
