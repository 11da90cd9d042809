"""Each service gets a message in its own form. The service is a server here, reached as the proxy of this process."""

from __future__ import annotations

import http.server
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TEXT = "mine:failed"
POST = "import sys; from orchestrator.node.recorder import notify; sys.exit(notify.post(*sys.argv[1:], tries=1))"


class Proxy(http.server.ThreadingHTTPServer):
    """Answers every POST itself, and keeps it: (address, type, body)."""

    def __init__(self) -> None:
        self.posted: list[tuple[str, str, str]] = []
        posted = self.posted

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"])).decode()
                posted.append((self.path, self.headers["Content-Type"], body))
                self.send_response(204)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        super().__init__(("127.0.0.1", 0), Handler)


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    server = Proxy()
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("http://hooks.slack.com/services/T/B/x", {"text": TEXT}),
        ("http://chat.example.org/hooks/x", {"text": TEXT}),
        ("http://example.webhook.office.com/webhookb2/x", {"text": TEXT}),
        ("http://notdiscord.com/api/webhooks/1/x", {"text": TEXT}),
        ("http://discord.com/api/webhooks/1/x", {"content": TEXT, "allowed_mentions": {"parse": []}}),
        ("http://discord.com/api/webhooks/1/x/slack", {"text": TEXT}),
        ("http://ntfy.sh/mine", TEXT),
        ("http://ntfy.example.org/mine", TEXT),
    ],
)
def test_a_message_has_the_form_of_its_service(proxy: Proxy, address: str, expected: object) -> None:
    kind, body = _post(proxy, address)
    assert (json.loads(body) if kind == "application/json" else body) == expected
    assert isinstance(expected, dict) or kind.startswith("text/plain")


def test_a_workflow_of_teams_gets_a_card(proxy: Proxy) -> None:
    body = json.loads(_post(proxy, "http://prod-1.westeurope.logic.azure.com/workflows/x?sig=y")[1])
    (attachment,) = body["attachments"]
    assert (body["type"], attachment["contentType"]) == ("message", "application/vnd.microsoft.card.adaptive")
    assert [(block["type"], block["text"]) for block in attachment["content"]["body"]] == [("TextBlock", TEXT)]


def _post(proxy: Proxy, address: str) -> tuple[str, str]:
    variables = {**os.environ, "PYTHONPATH": str(ROOT), "http_proxy": f"http://127.0.0.1:{proxy.server_port}"}
    for name in ("no_proxy", "NO_PROXY"):
        variables.pop(name, None)
    subprocess.run([sys.executable, "-c", POST, address, TEXT], env=variables, check=True, timeout=60)
    ((path, kind, body),) = proxy.posted
    assert path == address
    return kind, body
