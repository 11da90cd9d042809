"""Inventories, frames and log lines of any kind: no crash, no hang, nothing but text and colour on the terminal.

A few examples by default; `make fuzz` tries 100,000 of each (the hypothesis profile `fuzz` of tests/conftest.py). More
about each, with fewer examples: test_inventory_properties.py, test_node_wire.py, test_answers.py, test_terminal.py.
"""

from __future__ import annotations

import contextlib
import gc
import json
import re
import time
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from typing import Any

import yaml
from hypothesis import given
from hypothesis import strategies as st
from operations import OPERATIONS
from test_inventory_properties import NEARLY_YAML, STRUCTURES
from test_terminal import HOSTILE, cells, shown, state

from orchestrator.answers.decode import MalformedAnswer
from orchestrator.answers.operation import Operation, Streaming
from orchestrator.errors import InventoryError
from orchestrator.inventory import model, writing
from orchestrator.node.serve import wire
from orchestrator.node.serve.wire import Decoder, Frame, WireError
from orchestrator.output.lines import LineAssembler, Mask, Painter, to_json

SECONDS = 1.0  # of this thread, however busy the machine is


@contextlib.contextmanager
def no_hang() -> Iterator[None]:
    gc.disable()  # after thousands of examples, a collection of hypothesis's own objects takes a second by itself
    began = time.thread_time()
    try:
        yield
        assert time.thread_time() - began < SECONDS
    finally:
        gc.enable()


# --- inventories

BESIDE = st.dictionaries(st.sampled_from(["head", "defaults", "run", "ssh", "notify"]), STRUCTURES, max_size=3)
INVENTORIES = st.one_of(
    NEARLY_YAML,
    NEARLY_YAML.map("hosts: [a]\n{}".format),
    BESIDE.map(lambda rest: yaml.safe_dump({"hosts": ["a", "gpu[1-3]"], **rest})),
)


@given(INVENTORIES)
def test_any_inventory_is_understood_or_refused_with_its_place(text: str) -> None:
    with no_hang():
        try:
            read = model.parse(text, "inventory.yaml")
        except InventoryError as error:
            for line in str(error).splitlines():
                assert line.startswith("inventory.yaml:") and line.isprintable()
        else:
            assert model.parse(writing.render(read), "inventory.yaml") == read


# --- frames

HEADERS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=6),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["id", "result", "runs", "streams", "parts", "live", "x"]), inner, max_size=3)
    ),
    max_leaves=8,
)
FRAMES = st.builds(
    Frame,
    st.integers(0, 255),
    st.dictionaries(st.sampled_from(["id", "result", "error", "streams", "parts", "live", "offsets"]), HEADERS),
    st.binary(max_size=40),
)
CHANGES = st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), max_size=3)


@given(st.lists(FRAMES, max_size=3), CHANGES, st.binary(max_size=30), st.integers(1, 64), st.sampled_from(OPERATIONS))
def test_any_bytes_are_frames_or_a_wire_error_and_any_answer_is_one_or_nonsense(
    frames: list[Frame], changes: list[tuple[int, int]], tail: bytes, step: int, operation: Operation[Any]
) -> None:
    data = bytearray(b"".join(map(wire.encode, frames)) + tail)
    for position, value in changes:
        if data:
            data[position % len(data)] = value
    decoder = Decoder()
    with no_hang():
        try:
            for start in range(0, len(data), step):
                for frame in decoder.feed(bytes(data[start : start + step])):
                    _take(frame, operation)
        except WireError as error:
            assert len(str(error)) < 500
    assert len(decoder._buffer) <= len(data)


def _take(frame: Frame, operation: Operation[Any]) -> None:
    if isinstance(operation, Streaming):
        with contextlib.suppress(MalformedAnswer):
            operation.decode_data(frame.header, frame.payload)
    with contextlib.suppress(MalformedAnswer):
        operation.decode(frame.header.get("result"))


# --- log lines

STYLES = re.compile(r"\x1b\[[0-9;]*m")
CUTS = st.lists(st.integers(0, 200), max_size=3)


@cache
def fresh() -> dict[str, object]:
    return state(shown(""))


@given(st.one_of(HOSTILE.map(lambda text: text.encode("utf-8", "surrogatepass")), st.binary(max_size=80)), CUTS)
def test_of_any_output_nothing_but_text_and_colour_reaches_the_terminal(data: bytes, cuts: list[int]) -> None:
    """The whole way: bytes of a rank, cut anywhere, to lines, to what is printed, to a terminal."""
    with no_hang():
        assembler = LineAssembler("node-0", 1, "stdout", 1)
        ends = sorted({0, *(min(cut, len(data)) for cut in cuts), len(data)})
        pieces = [data[begin:end] for begin, end in pairwise(ends)]
        lines = [line for piece in pieces for line in assembler.feed(piece, 1.0)]
        lines += assembler.flush()
        plain, coloured = Painter(["node-0"], False), Painter(["node-0"], True, mask=Mask(["correct-horse"]))
        printed = "".join(f"{plain.paint(line)}\n" for line in lines)
        styled = "".join(f"{coloured.paint(line)}\n" for line in lines)
        exported = [json.loads(to_json(line, Mask())) for line in lines]
    assert re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]", printed) is None
    assert STYLES.sub("", styled) == printed
    assert all(line.startswith("node-0:1     | ") for line in printed.splitlines())
    assert not any(re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", one["text"]) for one in exported)
    if "\x1b" in styled and len(styled) < 4000:
        screen = shown(styled)
        assert state(screen) == fresh() and screen.typed == []
        if len(printed.splitlines()) < 90:  # more would scroll
            assert cells(screen) == cells(shown(printed))
