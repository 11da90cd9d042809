"""A host that is cut off reports that the run waits, while the others train: it takes that back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from e2e.driver import assert_clean, ok, orch, script, start
from lab.host import Host
from lab.lab import Lab
from lab.waiting import wait_until

PORT = 8099
WAITS = "import time\nprint('ready', flush=True)\ntime.sleep(600)"
# takes what is posted, like a service that is not on a host of the run
SERVER = """
import http.server, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        with open("posted", "ab") as file:
            file.write(body + b"\\n")
        self.send_response(200)
        self.end_headers()
http.server.HTTPServer(("0.0.0.0", int(sys.argv[1])), Handler).serve_forever()
"""


def texts(file: Path) -> list[str]:
    return [json.loads(line)["text"] for line in file.read_text().splitlines()] if file.exists() else []


def begin(lab: Lab, head_lost: str, notify: dict[str, Any]) -> tuple[Path, str]:
    """Of the three hosts, the last one is the spare."""
    hosts: list[dict[str, Any]] = [{"name": host.name, "address": host.address} for host in lab.hosts]
    hosts[2]["spare"] = True
    options = {"launcher": "direct", "max_restarts": 20, "nnodes": "1:2", "head_lost": head_lost}
    run = {**options, "lease": 3, "rejoin_timeout": 300, "grace": 1}
    inventory = lab.inventory(hosts=hosts, run=run, notify=notify)
    run_id = start(lab, inventory, "--", script(lab, WAITS))
    wait_until(lambda: log(lab, inventory, run_id).count("ready") == 2, 60, "the ranks run")
    return inventory, run_id


def log(lab: Lab, inventory: Path, run_id: str) -> str:
    return orch(lab, "logs", run_id, "--all", "-i", inventory).stdout


def is_sending(host: Host) -> bool:
    return "ddp-notify" in host.sh("ps -eo comm").stdout


def end(lab: Lab, inventory: Path, run_id: str) -> None:
    ok(orch(lab, "kill", run_id, "-i", inventory))
    assert_clean(lab, run_id)


@pytest.mark.parametrize(
    ("head_lost", "victim"), [("elect", 1), pytest.param("elect", 0, marks=pytest.mark.short), ("stop", 1)]
)
def test_a_host_that_reported_a_wait_says_that_the_run_continues(lab3: Lab, head_lost: str, victim: int) -> None:
    inventory, run_id = begin(lab3, head_lost, {"command": "cat >> ~/news"})
    host, other = lab3.hosts[victim], lab3.hosts[1 - victim]
    host.cut()
    news = host.home / "news"
    wait_until(lambda: texts(news), 60, "it reports that the run waits")
    assert "waits for hosts" in texts(news)[0] and f"reported by {host.name}" in texts(news)[0]
    host.heal()
    wait_until(lambda: len(texts(news)) == 2, 60, "it takes that back")
    assert "continues" in texts(news)[1] and f"{other.name}, node-2; {host.name}," in texts(news)[1]
    wait_until(lambda: not is_sending(host), 60, "nothing is left to be sent")
    assert len(texts(news)) == 2
    end(lab3, inventory, run_id)


@pytest.mark.parametrize("head_lost", ["elect", "stop"])
def test_a_report_that_could_not_be_sent_during_a_cut_is_not_the_last_message(lab3: Lab, head_lost: str) -> None:
    server = lab3.hosts[0].popen(["python3", "-c", SERVER, str(PORT)])
    address = f"http://{lab3.hosts[0].address}:{PORT}/"
    posted = lab3.hosts[0].home / "posted"
    inventory, run_id = begin(lab3, head_lost, {"webhook": address, "events": ["restart", "wait"]})
    host = lab3.hosts[1]
    host.cut()
    wait_until(lambda: is_sending(host), 60, "it tries to report that the run waits")
    wait_until(lambda: any("restarts" in text for text in texts(posted)), 60, "the spare takes its place")
    host.heal()
    wait_until(lambda: "node-1 is back" in log(lab3, inventory, run_id), 60, "it has joined the run again")
    wait_until(lambda: not is_sending(host), 90, "nothing is left to be sent")
    reported = [text for text in texts(posted) if "reported by node-1" in text]
    assert not reported or "continues" in texts(posted)[-1]
    end(lab3, inventory, run_id)
    server.kill()
    server.wait()
