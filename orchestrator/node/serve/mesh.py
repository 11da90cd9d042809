"""Test the network between hosts: listen here, dial there, from the address and to the ports that a run would use.

A connection begins with the token of the listening host: strangers are not served, and no other host answers for it
(docker0 has the same address everywhere). Then come commands of one byte: PING is echoed; BULK is followed by bytes
until the end of the stream, and answered by their number (u64).
"""

import os
import socket
import struct
import threading
import time
from typing import Any, Dict, List, Optional, Tuple

from ..host import network
from . import dns

CONNECT_WINDOW = 3.0  # s for a connection, as a dropped packet is sent again after 1 s and 3 s
STALL_WINDOW = 3.0  # s without an acknowledgement after which large packets count as lost on the way
SERVE_WINDOW = 30.0  # s that a silent connection is kept
PINGS = 5
PAYLOAD = 192 * 1024  # bytes: some hundred packets of full size at once
BULK_SECONDS, BULK_MOST = 0.1, 32 << 20
BUFFER = 512 * 1024  # bytes in flight, so that a slow link is not measured by its buffers
RANDOM_PORTS = 2
PING, BULK = b"p", b"b"
COUNT = struct.Struct(">Q")


class Listeners:
    """The listening sockets of one check: one on a port of the run's, some on ports as the kernel gives them."""

    def __init__(self, token: str, run_port: Optional[int], low: int, high: int) -> None:
        """Raises OSError when no port can be had."""
        self._token = token.encode("utf-8", "surrogateescape")
        self._sockets = [_listen(run_port, low, high)] + [_listen(0, 0, 0) for _ in range(RANDOM_PORTS)]
        for listener in self._sockets:
            threading.Thread(target=self._accept, args=(listener,), daemon=True).start()

    @property
    def ports(self) -> List[int]:
        """The run's first."""
        return [listener.getsockname()[1] for listener in self._sockets]

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return  # this program ends
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection:
            connection.settimeout(SERVE_WINDOW)
            try:
                if _exactly(connection, len(self._token)) != self._token:
                    return
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                while True:
                    command = connection.recv(1)
                    if command == PING:
                        connection.sendall(PING)
                    elif command == BULK:
                        connection.sendall(COUNT.pack(_drain(connection)))
                    else:
                        return
            except OSError:
                return  # the other side has seen enough


def _listen(port: Optional[int], low: int, high: int) -> socket.socket:
    """`port`: this one, 0: any; None: one within low-high."""
    dual = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if dual else socket.AF_INET
    tries = (
        [port]
        if port is not None
        else [low + int.from_bytes(os.urandom(4), "big") % (high - low + 1) for _ in range(64)]
    )
    last: Optional[OSError] = None
    for candidate in tries:
        try:
            return socket.create_server(("", candidate), family=family, backlog=128, dualstack_ipv6=dual)
        except OSError as error:
            last = error
    raise last or OSError("no port")


def _exactly(connection: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        part = connection.recv(count - len(data))
        if not part:
            raise OSError("closed")
        data += part
    return data


def _drain(connection: socket.socket) -> int:
    count = 0
    while True:
        data = connection.recv(1 << 18)
        if not data:
            return count
        count += len(data)


def dial(arguments: Dict[str, Any]) -> Dict[str, Any]:
    """Try `targets` ({host, address, ports, token}) from `source` (null: as routed); `bulk`: large packets, bandwidth.

    -> {"results": [{host, address, source, interface, ports: {port: null or why not}, latency (s, null), stalled,
    bandwidth (bytes a second, null)}], "names"}. All are dialled at the same time; meanwhile `names` and the
    targets' addresses looked up (dns.py); bandwidths are measured one by one.
    """
    source = arguments["source"]
    results: List[Dict[str, Any]] = [{} for _ in arguments["targets"]]

    def work(number: int, target: Dict[str, Any]) -> None:
        results[number] = _try(target, source, arguments["bulk"])

    threads = [threading.Thread(target=work, args=item, daemon=True) for item in enumerate(arguments["targets"])]
    for thread in threads:
        thread.start()
    names = arguments["names"]
    answers = dns.look(names, [target["address"] for target in arguments["targets"]] if names else [])
    for thread in threads:
        thread.join()
    if arguments["bulk"]:
        for number, target in enumerate(arguments["targets"]):
            result = results[number]
            if result["latency"] is not None and not result["stalled"]:
                result["bandwidth"] = _bandwidth(result, target["token"].encode("utf-8", "surrogateescape"), source)
    return {"results": results, "names": answers}


def _try(target: Dict[str, Any], source: Optional[str], bulk: bool) -> Dict[str, Any]:
    result: Dict[str, Any] = {
        "host": target["host"],
        "address": target["address"],
        "source": None,
        "interface": None,
        "ports": {},
        "latency": None,
        "stalled": False,
        "bandwidth": None,
    }
    try:
        result["source"] = source or network.source_address(target["address"])
        result["interface"] = network.interface_of(result["source"])
    except OSError as error:
        result["ports"] = {str(port): "no route: %s" % error.strerror for port in target["ports"]}
        return result
    threads = [
        threading.Thread(
            target=_try_port,
            args=(result, port, target["token"].encode("utf-8", "surrogateescape"), source, bulk),
            daemon=True,
        )
        for port in target["ports"]
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return result


def _try_port(result: Dict[str, Any], port: int, token: bytes, source: Optional[str], bulk: bool) -> None:
    try:
        connection = _connect(result["address"], port, token, source)
    except OSError as error:
        result["ports"][str(port)] = _words(error)
        return
    with connection:
        try:
            latency = _latency(connection)
        except OSError as error:
            result["ports"][str(port)] = _words(error)
            return
        result["ports"][str(port)] = None
        result["latency"] = min(latency, result["latency"] or latency)
        if bulk:
            try:
                _payload(connection)
            except OSError:
                result["stalled"] = True


def _connect(address: str, port: int, token: bytes, source: Optional[str]) -> socket.socket:
    connection = socket.create_connection((address, port), CONNECT_WINDOW, (source, 0) if source else None)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER)
    connection.sendall(token)
    return connection


def _latency(connection: socket.socket) -> float:
    """The shortest of some round trips, in seconds."""
    best = CONNECT_WINDOW
    for _ in range(PINGS):
        began = time.monotonic()
        connection.sendall(PING)
        _exactly(connection, 1)
        best = min(best, time.monotonic() - began)
    return best


def _payload(connection: socket.socket) -> Tuple[int, float]:
    """Send a burst of full-size packets and wait for the acknowledgement. Raise OSError if they do not arrive."""
    connection.settimeout(STALL_WINDOW)
    return _send_bulk(connection, 0.0, PAYLOAD)


def _send_bulk(connection: socket.socket, seconds: float, least: int) -> Tuple[int, float]:
    """Send for so long, and at least so many bytes. -> bytes that arrived, seconds until they had."""
    chunk = bytes(64 * 1024)
    began = time.monotonic()
    connection.sendall(BULK)
    sent = 0
    while sent < least or (time.monotonic() - began < seconds and sent < BULK_MOST):
        connection.sendall(chunk)
        sent += len(chunk)
    connection.shutdown(socket.SHUT_WR)
    count: int = COUNT.unpack(_exactly(connection, COUNT.size))[0]
    return count, time.monotonic() - began


def _bandwidth(result: Dict[str, Any], token: bytes, source: Optional[str]) -> Optional[float]:
    port = next(int(port) for port, why in result["ports"].items() if why is None)
    try:
        with _connect(result["address"], port, token, source) as connection:
            connection.settimeout(SERVE_WINDOW)
            count, seconds = _send_bulk(connection, BULK_SECONDS, PAYLOAD)
    except OSError:
        return None
    return count / seconds


def _words(error: OSError) -> str:
    """`timed out` (dropped), `Connection refused` or `No route to host` (rejected), ..."""
    return "timed out" if isinstance(error, socket.timeout) else (error.strerror or str(error) or "failed")
