"""Encode and decode the frames between a controller and a relay. Does no IO.

A frame is a fixed head, a JSON header and a raw payload (docs/protocol.md):

    b"DO"  u8 protocol  u8 kind  u32 header length  u32 payload length    big-endian

Everything a peer sends is untrusted: lengths are capped before anything is allocated, and a header is a JSON object.
"""

import json
import struct
from typing import Any, Dict, Iterator, NamedTuple

from .. import PROTOCOL

HEAD = struct.Struct(">2sBBII")
MAGIC = b"DO"
MAX_HEADER = 4 * 1024 * 1024  # a spec may hold a few hundred KiB of environment
MAX_PAYLOAD = 256 * 1024

HELLO, REQUEST, RESULT, DATA, PING, PONG, BYE = range(1, 8)


class WireError(Exception):
    """The peer sent something that is not a frame of this protocol."""


class Refused(Exception):
    """A request that is refused, and why; `code` is the code of a finding."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code


class Frame(NamedTuple):
    kind: int
    header: Dict[str, Any]
    payload: bytes = b""


def encode(frame: Frame) -> bytes:
    # ASCII JSON: surrogate escapes (bytes that are not UTF-8, in argv and environment) survive the way
    header = json.dumps(frame.header, separators=(",", ":")).encode("ascii")
    if len(header) > MAX_HEADER or len(frame.payload) > MAX_PAYLOAD:
        raise WireError("frame too large: header %d, payload %d bytes" % (len(header), len(frame.payload)))
    return HEAD.pack(MAGIC, PROTOCOL, frame.kind, len(header), len(frame.payload)) + header + frame.payload


class Decoder:
    """Bytes in, frames out; keeps what is not complete yet."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[Frame]:
        self._buffer += data
        while len(self._buffer) >= HEAD.size:
            magic, protocol, kind, header_length, payload_length = HEAD.unpack_from(self._buffer)
            if magic != MAGIC:
                raise WireError("not a frame: %r" % bytes(self._buffer[:32]))
            if protocol != PROTOCOL:
                raise WireError("protocol %d, this program speaks %d" % (protocol, PROTOCOL))
            if header_length > MAX_HEADER or payload_length > MAX_PAYLOAD:
                raise WireError("frame too large: header %d, payload %d bytes" % (header_length, payload_length))
            end = HEAD.size + header_length + payload_length
            if len(self._buffer) < end:
                return
            header = _header(bytes(self._buffer[HEAD.size : HEAD.size + header_length]))
            payload = bytes(self._buffer[HEAD.size + header_length : end])
            del self._buffer[:end]
            yield Frame(kind, header, payload)


def _header(raw: bytes) -> Dict[str, Any]:
    try:
        header = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise WireError("a frame's header is not JSON: %s" % error) from None
    if not isinstance(header, dict):
        raise WireError("a frame's header is not an object")
    return header
