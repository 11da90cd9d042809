"""The file server of the homes of two hosts does not answer: every command ends in time, and says why.

On node-1, sshd waits for the authorized keys. On node-2, which has these elsewhere, the login shell waits. Runs are
recorded in /var/tmp on both, as on hosts whose home is on NFS.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from e2e.driver import COUNTER, assert_clean, code, ok, orch, script, start
from lab.lab import Lab
from lab.waiting import wait_until

LIMIT = 150  # s, of which the login may take 20, and the start of python 30


def begin(lab: Lab, *argv: str | Path) -> subprocess.Popen[str]:
    output = subprocess.PIPE
    words = ["ddp-orch", *map(str, argv)]
    return lab.popen(words, cwd=code(lab), stdout=output, stderr=output, stdin=subprocess.DEVNULL)


@pytest.mark.lab
@pytest.mark.timeout(600)
def test_commands_end_although_homes_hang(make_lab: Callable[..., Lab]) -> None:
    options = {"AuthorizedKeysFile": "/etc/ssh/keys .ssh/authorized_keys", "StrictModes": "no"}
    lab = make_lab(3, sshd_options=options)
    (lab.hosts[2].directory / "etc/ssh/keys").write_text(lab.authorized_keys)
    for host in lab.hosts:
        host.sh("mkdir -p ~/.local/state && touch ~/.local/state/ddp-orch", check=True)  # so it is not used
    inventory = lab.inventory(run={"launcher": "direct", "grace": 2})
    run_id = start(lab, inventory, "--", script(lab, COUNTER), "100000", "0.1")
    with lab.hosts[1].hung("/home"), lab.hosts[2].hung("/home"):
        commands = {
            "check": begin(lab, "check", inventory, "--quick"),
            "up": begin(lab, "up", inventory, "-d", "--skip-check", "--", "train.py", "1", "1"),
            "ps": begin(lab, "ps", "-i", inventory),
            "logs": begin(lab, "logs", run_id, "-i", inventory, "--tail", "1"),
        }
        ended = {name: (*process.communicate(timeout=LIMIT), process.returncode) for name, process in commands.items()}
        kill = orch(lab, "kill", run_id, "-i", inventory, "--json", timeout=LIMIT)
        ended["kill"] = kill.stdout, kill.stderr, kill.returncode
        wait_until(lambda: not lab.marked(run_id), 60, "the ranks are stopped, also those with a hung home")
    for name, (output, errors, status) in ended.items():
        said = output + errors
        assert status == 4 and "Traceback" not in errors, (name, status, said)
        if name != "kill":  # its document has only their names
            assert {"node-1", "node-2"} <= set(re.findall(r"node-\d", said)) and "file server" in said, (name, said)
    assert run_id in ended["ps"][0] and "rank 0 count" in ended["logs"][0]
    assert json.loads(ended["kill"][0])["unreachable"] == ["node-1", "node-2"]
    ok(orch(lab, "kill", run_id, "-i", inventory))
    assert_clean(lab, run_id)
