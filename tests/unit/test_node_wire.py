"""Frames as bytes. The golden files are the protocol: they change only with its version and docs/protocol.md."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.node import PROTOCOL
from orchestrator.node.serve import wire
from orchestrator.node.serve.wire import Decoder, Frame, WireError

GOLDEN = sorted((Path(__file__).parents[1] / "golden" / "wire").glob("frame-*.json"))

values = st.recursive(st.none() | st.booleans() | st.integers() | st.text(max_size=20), st.lists, max_leaves=5)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=20), lambda inner: st.lists(inner), max_leaves=5
)
headers = st.dictionaries(st.text(max_size=20), values, max_size=4)
frames = st.builds(Frame, st.integers(0, 255), headers, st.binary(max_size=300))


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_every_frame_has_its_golden_bytes(path: Path) -> None:
    golden: dict[str, Any] = json.loads(path.read_text())
    frame = Frame(golden["kind"], golden["header"], bytes.fromhex(golden["payload"]))
    assert golden["protocol"] == PROTOCOL
    assert wire.encode(frame).hex() == golden["bytes"].replace(" ", "")
    assert list(Decoder().feed(bytes.fromhex(golden["bytes"]))) == [frame]


def test_every_kind_of_frame_has_a_golden_file() -> None:
    assert {json.loads(path.read_text())["kind"] for path in GOLDEN} == set(range(wire.HELLO, wire.BYE + 1))


@given(st.lists(frames, max_size=5), st.lists(st.integers(0, 2000), max_size=8))
def test_frames_survive_the_way_however_it_cuts_them(sent: list[Frame], cuts: list[int]) -> None:
    data = b"".join(map(wire.encode, sent))
    ends = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    decoder = Decoder()
    received = [frame for begin, end in itertools.pairwise(ends) for frame in decoder.feed(data[begin:end])]
    assert received == sent


def test_names_that_are_not_utf8_survive() -> None:
    frame = Frame(wire.REQUEST, {"argv": ["caf\udce9", "\udcff\udcfe"]})
    assert next(Decoder().feed(wire.encode(frame))) == frame


@given(st.binary(max_size=200))
def test_bytes_that_are_no_frame_are_an_error_of_ours_and_never_another(data: bytes) -> None:
    try:
        for frame in Decoder().feed(data):
            assert isinstance(frame, Frame)
    except WireError:
        pass


@given(frames, st.integers(0, 400), st.integers(0, 255))
def test_a_flipped_byte_gives_a_frame_or_an_error_of_ours(frame: Frame, at: int, value: int) -> None:
    data = bytearray(wire.encode(frame))
    data[at % len(data)] = value
    try:
        list(Decoder().feed(bytes(data)))
    except WireError:
        pass


@pytest.mark.parametrize(
    ("head", "why"),
    [
        (wire.HEAD.pack(b"DO", PROTOCOL, 1, wire.MAX_HEADER + 1, 0), "too large"),
        (wire.HEAD.pack(b"DO", PROTOCOL, 1, 2, wire.MAX_PAYLOAD + 1), "too large"),
        (wire.HEAD.pack(b"DO", PROTOCOL, 1, 0xFFFFFFFF, 0xFFFFFFFF), "too large"),
        (wire.HEAD.pack(b"DO", PROTOCOL + 1, 1, 2, 0), f"protocol {PROTOCOL + 1}"),
        (wire.HEAD.pack(b"OD", PROTOCOL, 1, 2, 0), "not a frame"),
        (wire.HEAD.pack(b"DO", PROTOCOL, 1, 2, 0) + b"[]", "not an object"),
        (wire.HEAD.pack(b"DO", PROTOCOL, 1, 2, 0) + b"{x", "not JSON"),
        (wire.HEAD.pack(b"DO", PROTOCOL, 1, 100_000, 0) + b"[" * 100_000, "not JSON"),
    ],
)
def test_what_is_no_frame_is_refused_as_soon_as_it_shows(head: bytes, why: str) -> None:
    with pytest.raises(WireError, match=why):
        list(Decoder().feed(head))


def test_a_frame_that_the_other_side_would_refuse_is_not_sent() -> None:
    wire.encode(Frame(wire.DATA, {}, bytes(wire.MAX_PAYLOAD)))
    with pytest.raises(WireError, match="too large"):
        wire.encode(Frame(wire.DATA, {}, bytes(wire.MAX_PAYLOAD + 1)))
    with pytest.raises(WireError, match="too large"):
        wire.encode(Frame(wire.REQUEST, {"x": "x" * wire.MAX_HEADER}))
