"""Notifications by mail: to a real (if tiny) SMTP server, with and without TLS and a password, and by sendmail."""

from __future__ import annotations

import base64
import contextlib
import datetime
import email
import email.policy
import ipaddress
import socketserver
import ssl
import threading
from collections.abc import Iterator
from email.message import EmailMessage
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from lab.waiting import wait_until
from local_runs import Runs

from orchestrator.node.recorder import mail, notify

PASSWORD = "pass/word"  # %2F in an address


class Server:
    """An SMTP server (RFC 5321) for one mail at a time. `tls`: has STARTTLS, and wants a password."""

    def __init__(self, tls: ssl.SSLContext | None) -> None:
        self.mails: list[tuple[str, list[str], EmailMessage]] = []
        self.refuses = ""
        """A command that is answered with 550."""
        server = self

        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                with contextlib.suppress(OSError):  # the client does not trust us
                    self.converse()

            def finish(self) -> None:
                with contextlib.suppress(OSError):
                    super().finish()

            def converse(self) -> None:
                self.sender, self.to, self.is_known = "", [], tls is None
                self.answer("220 tiny")
                while line := self.rfile.readline().decode().strip():
                    word = line.partition(" ")[0].upper()
                    if word == server.refuses:
                        self.answer("550 no")
                    elif word == "QUIT":
                        return self.answer("221 bye")
                    else:
                        getattr(self, word.lower())(line)

            def answer(self, text: str) -> None:
                self.wfile.write(f"{text}\r\n".encode())

            def ehlo(self, line: str) -> None:
                offered = [] if tls is None or self.is_encrypted() else ["STARTTLS"]
                offered += ["AUTH PLAIN"] if self.is_encrypted() else []
                lines = ["tiny", *offered]
                for text in lines[:-1]:
                    self.answer(f"250-{text}")
                self.answer(f"250 {lines[-1]}")

            def is_encrypted(self) -> bool:
                return isinstance(self.connection, ssl.SSLSocket)

            def starttls(self, line: str) -> None:
                assert tls is not None
                self.answer("220 go")
                self.request = tls.wrap_socket(self.connection, server_side=True)
                self.setup()

            def auth(self, line: str) -> None:
                assert self.is_encrypted()
                given = base64.b64decode(line.split(" ")[2]).decode().split("\0")[1:]
                self.is_known = given == ["ann@example.org", PASSWORD]
                self.answer("235 welcome" if self.is_known else "535 who?")

            def mail(self, line: str) -> None:
                self.sender = line
                self.answer("250 ok" if self.is_known else "530 log in first")

            def rcpt(self, line: str) -> None:
                self.to.append(line[9:-1])
                self.answer("250 ok")

            def rset(self, line: str) -> None:
                self.answer("250 ok")

            def data(self, line: str) -> None:
                self.answer("354 go")
                lines = []
                while (piece := self.rfile.readline()) != b".\r\n":
                    lines.append(piece)
                parsed = email.message_from_bytes(b"".join(lines), policy=email.policy.default)
                server.mails.append((self.sender, self.to, parsed))  # type: ignore[arg-type]
                self.answer("250 ok")

        self._server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self._thread.start()
        self.port = self._server.server_address[1]

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture
def server() -> Iterator[Server]:
    one = Server(None)
    yield one
    one.close()


@pytest.fixture
def safe_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """With TLS, and a certificate that this process trusts."""
    key = Ed25519PrivateKey.generate()
    now = datetime.datetime.now(datetime.timezone.utc)
    name = x509.Name([])
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), 1, now, now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=True)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, None)
    )
    pem = tmp_path / "server.pem"
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    pem.write_bytes(private + certificate.public_bytes(Encoding.PEM))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem)
    monkeypatch.setenv("SSL_CERT_FILE", str(pem))
    one = Server(context)
    yield one
    one.close()


def test_the_end_of_a_run_is_mailed(runs: Runs, server: Server) -> None:
    address = f"smtp://127.0.0.1:{server.port}/ann@example.org,bob@example.org"
    run = runs.start("import sys; sys.exit(3)", notify={"mail": address})
    run.wait_over()
    wait_until(lambda: server.mails, 30.0, "the mail has come")
    ((sender, to, message),) = server.mails
    assert "<ann@example.org>" in sender and to == ["ann@example.org", "bob@example.org"]
    assert message["To"] == "ann@example.org, bob@example.org" and run.run_id in message["Subject"]
    assert "rank 0: exit code 3" in message.get_content()


def test_a_password_is_sent_only_after_tls(safe_server: Server) -> None:
    address = f"smtp://ann%40example.org:{{}}@127.0.0.1:{safe_server.port}/bob@example.org"
    assert mail.send(address.format("pass%2Fword"), "a ü\ntext") is None
    ((sender, to, message),) = safe_server.mails
    assert "<ann@example.org>" in sender and to == ["bob@example.org"]
    assert message["Subject"] == "a ü text" and "a ü\ntext" in message.get_content()
    assert mail.send(address.format("wrong"), "text") == "the server answered 535"


def test_a_server_that_is_not_trusted_gets_no_password(safe_server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SSL_CERT_FILE")
    why = mail.send(f"smtp://ann:secret@127.0.0.1:{safe_server.port}/bob@example.org", "text")
    assert why is not None and "secret" not in why and not safe_server.mails


def test_a_server_without_tls_gets_no_password(server: Server) -> None:
    assert mail.send(f"smtp://ann:secret@127.0.0.1:{server.port}/bob@example.org", "text") is not None
    assert not server.mails


@pytest.mark.parametrize(("refused", "why"), [("MAIL", "550"), ("RCPT", "recipients")])
def test_a_server_that_refuses_is_asked_again(
    server: Server, refused: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notify, "PAUSE", 0.0)
    server.refuses = refused
    message: dict[str, Any] = {"text": "hello"}
    targets = {"mail": f"smtp://127.0.0.1:{server.port}/bob@example.org"}
    assert why in notify.send(targets, message)["mail"]
    server.refuses = ""
    assert notify.send(targets, message) == {} and len(server.mails) == 1
    assert notify.send({"mail": "smtp://127.0.0.1:9/bob@example.org"}, message) == {"mail": "Connection refused"}


def test_sendmail_gets_the_mail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "sendmail"
    program.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/words\ncat > {tmp_path}/mail\nexit $(cat {tmp_path}/code)\n')
    program.chmod(0o755)
    (tmp_path / "code").write_text("0")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert mail.send("mailto:ann@example.org", "hello") is None
    assert (tmp_path / "words").read_text() == "-t -i\n"
    message = email.message_from_bytes((tmp_path / "mail").read_bytes())
    assert message["To"] == "ann@example.org" and message["Subject"] == "hello" and message["From"] is None
    (tmp_path / "code").write_text("75")
    assert mail.send("mailto:ann@example.org", "hello") == "sendmail: exit status 75"
    assert notify.look({"webhook": None, "mail": {"host": "", "port": 0}, "program": None}) == {}
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(mail, "FOLDERS", "/nowhere")
    assert mail.send("mailto:ann@example.org", "hello") == "sendmail: not found"
    assert notify.look({"webhook": None, "mail": {"host": "", "port": 0}, "program": None}) == {
        "mail": "sendmail: not found"
    }


def test_a_server_that_cannot_be_reached_is_found_before_a_run(server: Server) -> None:
    def look(port: int) -> dict[str, str]:
        return notify.look({"webhook": None, "mail": {"host": "127.0.0.1", "port": port}, "program": None})

    assert look(server.port) == {}
    assert look(9)["mail"].endswith(" 127.0.0.1:9: Connection refused")


@pytest.mark.parametrize(
    ("address", "port"),
    [("smtp://h/a@b", 25), ("smtp://u:p@h/a@b", 587), ("smtps://u:p@h/a@b", 465), ("smtp://u@h:2525/a@b", 2525)],
)
def test_ports_are_those_of_the_way_of_sending(address: str, port: int) -> None:
    assert mail.parse(address).port == port
