"""A login whose end would kill the run: `up` moves the run out of it.

systemd is not pid 1 in the lab. A stand-in for `systemd-run` shows that it is used, and that a guard which it starts
has all that it needs; whether a real scope outlives a real login cannot be seen here.
"""

from __future__ import annotations

import json

from lab.lab import Lab

from .breakages import login_session
from .driver import assert_clean, ok, orch, script, start, wait_for_state


def test_a_run_is_moved_out_of_a_login_that_would_kill_it(lab2: Lab) -> None:
    host = lab2.hosts[1]
    inventory = lab2.inventory(run={"launcher": "direct"})
    host.root_run(["mount", "-t", "tmpfs", "-o", "mode=0755", "lib", "/var/lib"])
    with login_session(host):
        refused = orch(lab2, "up", inventory, "-d", "--", script(lab2, "print(1)\n"))
        host.sh("mkdir -p /var/lib/systemd/linger && touch /var/lib/systemd/linger/ann", "root", check=True)
        (host.home / "scopes").unlink()
        run_id = start(lab2, inventory, "--", script(lab2, "print(1)\n"))
        wait_for_state(lab2, inventory, run_id, "succeeded")
        scopes = (host.home / "scopes").read_text()
        assert json.loads(ok(orch(lab2, "check", inventory, "--quick", "--json")).stdout)["findings"] == []
    host.root_run(["umount", "-l", "/var/lib"])
    assert refused.returncode == 3 and "login-kills-run" in refused.stderr
    assert f"guard {run_id}" in scopes and not (lab2.hosts[0].home / "scopes").exists()
    assert_clean(lab2, run_id)
