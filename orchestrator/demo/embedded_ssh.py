"""An SSH server on 127.0.0.1 inside this process, for the demo. It accepts one key, and runs commands by `/bin/sh -c`.

It needs no sshd, no root and no account: commands run as the user of this process. As with sshd without a terminal, a
command has its own session, and gets closed pipes but no signal when its client goes away. There are no passwords,
terminals, subsystems or forwardings. The server never kills a command: the owner of this process does.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import subprocess
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

import paramiko

# paramiko would log tracebacks of broken connections to stderr.
logging.getLogger("paramiko").setLevel(logging.CRITICAL + 1)

CHUNK = 64 * 1024  # bytes read at a time


class Server:
    """Listens on a free port as soon as it is created. Has its own host key."""

    def __init__(self, user: str, authorized: paramiko.PKey, home: Path, environment: Mapping[str, str]) -> None:
        """Commands run in `home` with exactly `environment`."""
        self.host_key = paramiko.ECDSAKey.generate()
        self._login = _Login(user, authorized, home, environment)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._transports: list[paramiko.Transport] = []
        self._accepting = threading.Thread(target=self._accept, name="embedded-ssh", daemon=True)
        self._accepting.start()

    @property
    def port(self) -> int:
        port: int = self._listener.getsockname()[1]
        return port

    def known_hosts_line(self) -> str:
        return f"[127.0.0.1]:{self.port} {self.host_key.get_name()} {self.host_key.get_base64()}\n"

    def close(self) -> None:
        """Accept no more connections, and close the open ones."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # unlike close, this wakes accept
        self._accepting.join()
        self._listener.close()
        for transport in self._transports:
            transport.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            transport = paramiko.Transport(connection)
            transport.add_server_key(self.host_key)
            transport.start_server(event=threading.Event(), server=self._login)
            self._transports.append(transport)


class _Login(paramiko.ServerInterface):
    """Which logins and requests are accepted. paramiko refuses all others."""

    def __init__(self, user: str, authorized: paramiko.PKey, home: Path, environment: Mapping[str, str]) -> None:
        self._user, self._authorized = user, authorized
        self._home, self._environment = home, environment

    def get_allowed_auths(self, username: str) -> str:
        return "publickey"

    def check_auth_publickey(self, username: str, key: paramiko.PKey) -> int:
        allowed = username == self._user and key == self._authorized
        return paramiko.common.AUTH_SUCCESSFUL if allowed else paramiko.common.AUTH_FAILED

    def check_channel_request(self, kind: str, chanid: int) -> int:
        if kind == "session":
            return paramiko.common.OPEN_SUCCEEDED
        return paramiko.common.OPEN_FAILED_ADMINISTRATIVELY_PROHIBITED

    def check_channel_exec_request(self, channel: paramiko.Channel, command: bytes) -> bool:
        # in another thread, because this one reads from the connection
        threading.Thread(target=self._run, args=(channel, command), name="embedded-exec", daemon=True).start()
        return True

    def _run(self, channel: paramiko.Channel, command: bytes) -> None:
        process = subprocess.Popen(
            [b"/bin/sh", b"-c", command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            cwd=self._home,
            env=dict(self._environment),
        )
        assert process.stdin and process.stdout and process.stderr
        # EOFError: the client may have gone away when the channel is closed
        with contextlib.suppress(EOFError), channel, process.stdout, process.stderr:
            threading.Thread(target=_feed, args=(channel, process), name="embedded-stdin", daemon=True).start()
            errors = threading.Thread(
                target=_drain, args=(process.stderr.fileno(), channel.sendall_stderr), name="embedded-stderr"
            )
            errors.start()
            _drain(process.stdout.fileno(), channel.sendall)
            errors.join()
            status = process.wait()
            if status >= 0:  # paramiko cannot report that a signal ended the process
                with contextlib.suppress(OSError, EOFError, paramiko.SSHException):
                    channel.send_exit_status(status)


def _feed(channel: paramiko.Channel, process: subprocess.Popen[bytes]) -> None:
    """Copy bytes of the client to stdin, until either end is closed."""
    assert process.stdin
    with contextlib.suppress(OSError, EOFError):
        while data := channel.recv(CHUNK):
            process.stdin.write(data)
            process.stdin.flush()
    with contextlib.suppress(OSError):
        process.stdin.close()


def _drain(source: int, send: Callable[[bytes], object]) -> None:
    """Copy everything from `source` to the client, until the client goes away."""
    with contextlib.suppress(OSError, EOFError, paramiko.SSHException):
        while data := os.read(source, CHUNK):
            send(data)
