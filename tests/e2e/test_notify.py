"""Notifications that cannot be sent are reported before a run, after it, and on request. The host is this machine."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

from lab.waiting import wait_until

from .local import orch


def test_a_notification_that_fails_is_reported_before_and_after_a_run_and_on_request(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    heard = tmp_path / "heard"
    hosts = f"hosts: [{{name: me, address: localhost, python: {sys.executable}}}]\nrun: {{launcher: direct}}\n"
    (tmp_path / "good.yaml").write_text(f"{hosts}notify: {{command: 'cat > {heard}'}}\n")
    (tmp_path / "bad.yaml").write_text(
        f"{hosts}notify: {{webhook: 'http://127.0.0.1:9/x', mail: 'smtp://127.0.0.1:9/a@b.c', command: nosuchcmd x}}\n"
    )

    done = orch(tmp_path, "notify", "good.yaml", "--test")
    assert done.returncode == 0 and "me: notify.command " in done.stderr, done.stderr
    assert json.loads(heard.read_text())["state"] == "test"
    failed = orch(tmp_path, "notify", "bad.yaml", "--test")
    assert failed.returncode == 3, failed.stderr
    assert re.search(r"\bme: notify\.webhook .*: Connection refused$", failed.stderr, re.MULTILINE)
    assert re.search(r"\bme: notify\.mail .*: Connection refused$", failed.stderr, re.MULTILINE)
    assert re.search(r"\bme: notify\.command .*\b127$", failed.stderr, re.MULTILINE)

    up = orch(tmp_path, "up", "bad.yaml", "--skip-check", "--", "train.py")
    assert up.returncode == 0, up.stderr
    assert re.search(r"\bnotify\.webhook .* 127\.0\.0\.1:9: Connection refused\b", up.stderr)
    assert re.search(r"\bnotify\.mail .* 127\.0\.0\.1:9: Connection refused\b", up.stderr)
    assert re.search(r"\bnotify\.command .*: nosuchcmd: ", up.stderr)
    said = re.compile(r"\bnotify\.webhook .*: Connection refused\b")
    wait_until(lambda: said.search(orch(tmp_path, "ps", "bad.yaml", "--all").stderr), 90, "ps says so")
    assert re.search(rf"ddp-orch: {said.pattern}", orch(tmp_path, "logs", "-i", "bad.yaml").stdout)
