"""Why ssh failed, from what it prints. The outputs are those of OpenSSH 9.2."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.ssh.openssh import explain

HOST: Any = type("Host", (), {"name": "gpu1", "address": "10.0.0.1"})()


@pytest.mark.parametrize(
    ("stderr", "code"),
    [
        ("ssh: Could not resolve hostname gpu1: Name or service not known", "ssh-name-unresolved"),
        ("ssh: connect to host 10.0.0.1 port 22: Connection refused", "ssh-connection-refused"),
        ("ssh: connect to host 10.0.0.1 port 22: Connection timed out", "ssh-unreachable"),
        ("ssh: connect to host 10.0.0.1 port 22: No route to host", "ssh-unreachable"),
        ("Connection timed out during banner exchange\nConnection to 10.0.0.1 port 22 timed out", "ssh-unreachable"),
        (
            "kex_exchange_identification: Connection closed by remote host\nConnection closed by 10.0.0.1 port 22",
            "ssh-throttled",
        ),
        ("kex_exchange_identification: read: Connection reset by peer", "ssh-throttled"),
        ("Connection closed by 10.0.0.1 port 22", "ssh-unreachable"),  # after the login, so it is not tried again
        ("ann@10.0.0.1: Permission denied (publickey,password).", "ssh-auth-denied"),
        ("Received disconnect from 10.0.0.1 port 22:2: Too many authentication failures", "ssh-auth-denied"),
        ("stdio forwarding failed\nConnection closed by UNKNOWN port 65535", "ssh-unreachable"),
        ("", "unknown"),
    ],
)
def test_the_code_of_a_failure(stderr: str, code: str) -> None:
    failure = explain(HOST, f"{stderr}\r\n".encode(), "ssh gpu1", "ddp-orch trust")
    assert failure.code == code
    assert all(line.strip() in failure.reason for line in stderr.splitlines())


def test_an_unknown_key_of_a_jump_host_is_not_called_that_of_the_host() -> None:
    said = (
        "No ED25519 host key is known for {} and you have requested strict checking.\nHost key verification failed.\n"
    )
    of_jump = explain(HOST, said.format("bastion").encode(), "ssh gpu1", "ddp-orch trust")
    assert of_jump.group.reason.startswith("bastion's key") and of_jump.reason.startswith("bastion's key")
    of_host = explain(HOST, said.format(f"[{HOST.address}]:2222").encode(), "ssh gpu1", "ddp-orch trust")
    assert of_host.group.reason.startswith("its key")
