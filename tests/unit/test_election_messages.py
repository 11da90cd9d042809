"""The messages of an election on the link: their golden form, and what no honest node sends."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from orchestrator.node import PROTOCOL
from orchestrator.node.gang.election_state import MESSAGES, Ack, Answer, Ask, Beat, Copy, Entry, Message, Stamp
from orchestrator.node.gang.gang_events import StartRequested, Tick
from orchestrator.node.link.messages import Malformed
from orchestrator.node.roles.election_messages import decode, encode
from orchestrator.node.roles.gang_log import entry_of

GOLDEN = Path(__file__).parents[1] / "golden" / "wire" / "election.json"
STARTED = Entry(1, json.dumps(entry_of(StartRequested("10.0.0.1", 29500, 1000.5))))
TICK = Entry(2, json.dumps(entry_of(Tick(1001.25))))
EXAMPLES: tuple[Message, ...] = (
    Beat(2, Stamp("boot-a", 12.5), Stamp("boot-b", 900.0), 6.75, 1, "ab" * 32, (TICK,), 1),
    Beat(1, Stamp("boot-a", 0.5), None, 0.0, 0, "", (), 0),
    Ack(2, Stamp("boot-a", 12.5), Stamp("boot-b", 901.0), 2),
    Ask(3, True, 7, 2, 2, "cd" * 32, 1),
    Answer(2, True, 7, True),
    Copy(2, 2, 2, 0, "", (STARTED, TICK)),
)


def test_every_message_has_its_golden_form() -> None:
    golden = json.loads(GOLDEN.read_text())
    assert golden["protocol"] == PROTOCOL
    assert [json.loads(json.dumps(encode(message))) for message in EXAMPLES] == golden["messages"]
    assert tuple(map(decode, golden["messages"])) == EXAMPLES
    assert {type(message).__name__ for message in EXAMPLES} == set(MESSAGES)


def changed(message: Message, **fields: Any) -> list[Any]:
    kind, known = json.loads(json.dumps(encode(message)))
    return [kind, {**known, **fields}]


@pytest.mark.parametrize(
    "message",
    [
        None,
        [],
        ["Beat"],
        ["Vote", {}],
        [["Beat"], {}],
        ["Beat", []],
        ["Beat", {}],
        changed(EXAMPLES[0], epoch=-1),
        changed(EXAMPLES[0], epoch=1.5),
        changed(EXAMPLES[0], remaining=float("nan")),
        changed(EXAMPLES[0], sent=["boot-a"]),
        changed(EXAMPLES[0], sent=[7, 1.0]),
        changed(EXAMPLES[0], entries=[[1]]),
        changed(EXAMPLES[0], entries=[[1, "{"]]),
        changed(EXAMPLES[0], entries=[[1, "[" * 5000]]),
        changed(EXAMPLES[0], entries=[[1, '{"event": "Nothing", "fields": {}}']]),
        changed(EXAMPLES[0], entries=[[1, '{"event": "Tick", "fields": {"when": 1}}']]),
        changed(EXAMPLES[0], entries=[[1, TICK.text + "\n"]]),
        changed(EXAMPLES[2], stamp=None),
        changed(EXAMPLES[3], length="2"),
    ],
)
def test_what_no_honest_node_sends_is_malformed(message: object) -> None:
    with pytest.raises(Malformed):
        decode(message)
