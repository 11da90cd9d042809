"""Honest answers of a host, changed at random: whatever one host says, a command works on with the others.

A few changes by default; `make fuzz` tries many more.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import secrets
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fake_relay import Relay
from local_runs import Runs

from orchestrator import cli
from orchestrator.commands import context, top
from orchestrator.inventory.model import Host
from orchestrator.node.serve import wire
from orchestrator.ssh.pipe import LocalConnection, LocalPipe

CHANGES = int(os.environ.get("DDP_ORCH_FUZZ", "2000")) // 10
SEED = int(os.environ.get("DDP_ORCH_FUZZ_SEED", "1"))
HONEST, HOSTILE = "host-0", "host-1"
ESCAPE = "\x1b]52;c;Zm9v\x07\x1b[2J\x9b31m[/bold]\n\u202e"
SCRIPT = """
import os, pathlib, sys
pathlib.Path(os.environ["DDP_ORCH_OUTPUT_DIR"], "out.txt").write_text("out")
print("step:1 loss:2.5 step_time:0.1", flush=True)
sys.exit("boom" if os.environ["RANK"] == "1" else 0)
"""
Frames = list[tuple[int, dict[str, Any], bytes]]
Answers = dict[tuple[str, str], list[Frames]]
"""By host and operation: what was said to each request."""


# --- honest answers: the node program, heard


class Recorded:
    """A pipe to the real node program; what is said over it is kept."""

    def __init__(self, host: str, pipe: LocalPipe, answers: Answers) -> None:
        self._host, self._pipe, self._answers = host, pipe, answers
        self._requests, self._frames = wire.Decoder(), wire.Decoder()
        self._begun = b""
        self._said: dict[int, Frames] = {}
        self._sent = False

    def send(self, data: bytes) -> None:
        if data.startswith(wire.MAGIC) or self._sent:  # not the program itself
            self._sent = True
            for frame in self._requests.feed(data):
                if frame.kind == wire.REQUEST:
                    said = self._said[frame.header["id"]] = []
                    self._answers[self._host, frame.header["op"]].append(said)
        self._pipe.send(data)

    def recv(self, size: int, timeout: float | None) -> bytes:
        data = self._pipe.recv(size, timeout)
        self._begun += data
        marker, found, frames = self._begun.partition(b" have\n")
        if found:
            self._begun = marker + found
            for frame in self._frames.feed(frames):
                if frame.kind in (wire.RESULT, wire.DATA):
                    self._said[frame.header["id"]].append((frame.kind, frame.header, frame.payload))
        return data

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pipe, name)


class Recorder:
    """A dialer to hosts that are folders of this machine."""

    def __init__(self, folder: Path, answers: Answers) -> None:
        self._folder, self._answers = folder, answers

    def connect(self, host: Host) -> Any:
        connection = LocalConnection()
        begin = connection.open

        def open_recorded(command: str, timeout: float) -> Recorded:
            chosen = f"export DDP_ORCH_STATE_DIR={self._folder / host.name}; {command}"
            return Recorded(host.name, begin(chosen, timeout), self._answers)

        connection.open = open_recorded  # type: ignore[method-assign, assignment]
        return connection

    def prepare(self, hosts: Any) -> None: ...
    def forget_refusals(self) -> None: ...

    def take_other_keys(self) -> dict[str, Any]:
        return {}

    def close(self) -> None: ...


# --- and said again, with a change


class Replay(Recorder):
    """A dialer to hosts that say what was recorded; `change` sees every frame of the hostile one."""

    def __init__(self, answers: Answers, change: Callable[[str, dict[str, Any]], dict[str, Any]]) -> None:
        self._recorded, self._change = answers, change
        self._counts: defaultdict[tuple[str, str], int] = defaultdict(int)

    def connect(self, host: Host) -> Any:
        def answer(relay: Relay, request: dict[str, Any]) -> None:
            key = host.name, request["op"]
            said = self._recorded[key]
            frames = said[min(self._counts[key], len(said) - 1)]
            self._counts[key] += 1
            for kind, header, payload in frames:
                shown = self._change(request["op"], header) if host.name == HOSTILE else header
                relay.say(kind, {**shown, "id": request["id"]}, payload)

        return Relay(answer)


def places(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths to all that is in a value."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, one in items:
        yield (*place, key)
        yield from places(one, (*place, key))


def deep(levels: int) -> Any:
    return [] if not levels else [deep(levels - 1)]


WRONG: list[Callable[[Any], Any]] = [
    *(lambda _, new=new: new for new in (ESCAPE, -1, 10**30, 10**400, float("nan"), float("inf"), None, [], {}, True)),
    lambda _: deep(400),
    lambda _: "x" * 1_000_000,
    lambda old: [old] * min(20_000, wire.MAX_HEADER // 2 // len(json.dumps(old))),
]


def changed(value: Any, place: tuple[Any, ...], new: Callable[[Any], Any] | None) -> Any:
    """A copy with something else at that path; `new` None: with nothing there."""
    copy = value.copy()
    if len(place) > 1:
        copy[place[0]] = changed(copy[place[0]], place[1:], new)
    elif new is None:
        del copy[place[0]]
    else:
        copy[place[0]] = new(copy[place[0]])
    return copy


COMMANDS = (
    "ps --all",
    "ps --all --json",
    "logs",
    "logs --json",
    "logs -f",
    "top",
    "diagnose",
    "report",
    "fetch",
    "kill --grace 0",
    "kill --leftovers",
    "prune",
    "check",
)


def run(folder: Path, command: str) -> int:
    """Its exit code."""
    inventory = str(folder / "job/inventory.yaml")
    argv = [*command.split(), *([inventory] if command in ("prune", "check") else ["-i", inventory])]
    if command in ("fetch", "report"):
        argv += ["-o", str(folder / f"{secrets.token_hex(4)}{'.html' if command == 'report' else ''}")]
    return cli.guarded(lambda: cli.cli(argv, standalone_mode=False))


@pytest.fixture
def recorded(runs: Runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Answers:
    """What two hosts with a run that has failed say to every command."""
    runs.start(SCRIPT, nproc=(1, 1)).wait_over()
    for name in ("home", "job"):
        (tmp_path / name).mkdir()
    (tmp_path / "job/inventory.yaml").write_text(f"hosts: [{HONEST}, {HOSTILE}]\nrun: {{script: train.py}}\n")
    (tmp_path / "job/train.py").write_text("print('hi')\n")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setattr(top, "SAMPLE_INTERVAL", 0.01)
    answers: Answers = defaultdict(list)
    monkeypatch.setattr(context, "make_dialer", lambda *_: Recorder(tmp_path, answers))
    for command in COMMANDS:
        assert run(tmp_path, command) in (0, 1, 3), command
    return answers


def test_whatever_one_host_says_ends_no_command_for_the_others(
    recorded: Answers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(context, "secrets", SimpleNamespace(token_hex=lambda _: "NONCE"))
    draw = random.Random(SEED)
    for number in range(CHANGES):
        command = draw.choice(COMMANDS)
        applied: list[str] = []

        def change(operation: str, header: dict[str, Any], applied: list[str] = applied) -> dict[str, Any]:
            if applied or draw.random() < 0.5:
                return header
            place = draw.choice([place for place in places(header) if place != ("id",)])
            new = draw.choice([*WRONG, None])
            applied.append(f"{operation} {place} {'deleted' if new is None else repr(new(None))[:40]}")
            return changed(header, place, new)

        replay = Replay(recorded, change)
        monkeypatch.setattr(context, "make_dialer", lambda *_, replay=replay: replay)
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = run(tmp_path, command)
        assert code in range(6), (number, command, applied, err.getvalue()[-2000:])
        assert not CONTROL & {*out.getvalue(), *err.getvalue()}, (number, command, applied)


CONTROL = {chr(code) for code in (*range(9), *range(11, 32), *range(127, 160))} | {"\u202e"}
