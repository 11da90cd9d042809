"""The chain from the pieces of streams to the printed line: in which order lines come out, and when."""

from __future__ import annotations

import io
import itertools
import math
import random
from collections.abc import Iterator, Sequence
from contextlib import redirect_stdout
from pathlib import Path

import pytest
from golden_files import same_as

from orchestrator.output.folding import WINDOW
from orchestrator.output.intake import Intake
from orchestrator.output.lines import REORDER_WINDOW, Line, Mask
from orchestrator.output.pipeline import Pipeline, Sink, Stage
from orchestrator.output.torchrun_noise import HOLD
from orchestrator.runs.printing import make_printer

GOLDEN = Path(__file__).parents[1] / "golden" / "logs" / "pipeline"
IDLE = 0.5
DEATH = "W1122 17:07:52.318000 65 torch/agent/server/api.py:753] Received 15 death signal, shutting down workers"


class Chain:
    """Hosts a and b, with the ranks 0, 1 and 2, 3, before a chain that prints; and what it has printed."""

    def __init__(self, *, fold: bool = False, live: bool = True, ahead: float = 0.0) -> None:
        self.intake = Intake(["a", "b"], (), IDLE, lambda *_: True, lambda _: False)
        self.intake.set_clock("b", ahead)
        screen = make_printer(
            ["a", "b"], Mask(), as_json=False, full_output_command="ALL", fold_ranks=4 if fold else None
        )
        self.pipeline = Pipeline((self.intake, screen))
        self.offsets: dict[tuple[str, str], int] = {}
        if live:
            self.intake.live("a")
            self.intake.live("b")

    def feed(self, now: float, host: str, stream: str, text: str, at: float | None = None) -> str:
        data = text.encode()
        offset = self.offsets.get((host, stream), 0)
        self.offsets[host, stream] = offset + len(data)
        parts = [(0, offset, len(data), int((now if at is None else at) * 1e9))]
        self.intake.feed(host, [stream], parts, data, now)
        return self.push(now)

    def push(self, now: float) -> str:
        return printed(lambda: self.pipeline.push((), now))

    def flush(self, now: float) -> str:
        return printed(lambda: self.pipeline.flush(now))


def printed(do: object) -> str:
    assert callable(do)
    with redirect_stdout(io.StringIO()) as out:
        do()
    return out.getvalue()


def near(expected: float) -> object:
    return pytest.approx(expected, abs=1e-9)


# --- hold times


def test_a_live_line_is_held_for_earlier_ones_of_other_hosts_and_no_longer() -> None:
    chain = Chain()
    assert chain.feed(10.0, "a", "1.0.out", "later\n") == ""
    assert chain.feed(10.05, "b", "1.2.out", "earlier\n", at=9.9) == ""
    assert chain.pipeline.wake_at == near(10.0 + REORDER_WINDOW)
    assert chain.push(10.09) == ""
    assert chain.push(chain.pipeline.wake_at) == "b:2     | earlier\na:0     | later\n"
    assert chain.pipeline.wake_at == near(10.0 + IDLE)  # to look for unfinished lines


def test_lines_from_the_journal_are_held_until_the_host_that_is_behind_has_come_past_them() -> None:
    chain = Chain(live=False)
    assert chain.feed(10.0, "a", "1.0.out", "first\n", at=1.0) == ""
    assert chain.push(60.0) == ""  # however long that takes
    assert chain.feed(61.0, "b", "1.2.out", "second\n", at=2.0) == "a:0     | first\n"
    chain.intake.live("a")
    assert chain.push(61.1) == "b:2     | second\n"


def test_an_unfinished_line_is_shown_when_its_host_has_been_silent() -> None:
    chain = Chain()
    assert chain.feed(10.0, "a", "1.0.out", "prompt> ") == ""
    assert chain.pipeline.wake_at == near(10.0 + IDLE)
    assert chain.push(10.0 + IDLE) == ""
    assert chain.push(chain.pipeline.wake_at) == "a:0     | prompt> \n"
    assert chain.pipeline.wake_at == math.inf


def test_the_progress_bar_of_a_rank_that_was_killed_is_not_shown_after_the_next_attempt() -> None:
    chain = Chain()
    shown = chain.feed(10.0, "a", "1.0.err", "\rstep 1\rstep 2") + chain.push(11.0)
    shown += chain.feed(12.0, "a", "2.0.out", "resumed\n") + chain.push(13.0)
    assert [line.split()[-1] for line in shown.splitlines()] == ["2", "resumed"]
    assert chain.flush(14.0) == ""


@pytest.mark.parametrize("stream", ["1.run.out", "2.run.out"])
def test_a_progress_bar_is_shown_before_the_end_of_its_attempt(stream: str) -> None:
    chain = Chain()
    shown = chain.feed(10.0, "a", "1.0.err", "\rstep 1\rstep 2")
    shown += chain.feed(10.1, "a", stream, "ddp-orch: stopping all nodes\n") + chain.push(11.0)
    assert [line.split()[-1] for line in shown.splitlines()] == ["2", "nodes"]
    assert chain.flush(14.0) == ""


def test_an_unfinished_line_is_shown_when_only_later_pieces_of_other_streams_come() -> None:
    chain = Chain()
    chain.feed(10.0, "a", "1.0.out", "prompt> ")
    shown = "".join(chain.feed(10.0 + step / 10, "a", "1.1.out", "busy\n") for step in range(1, 8))
    assert shown.count("prompt> ") == 1


def test_how_torchrun_obeys_is_held_until_our_own_word_for_it_can_be_there() -> None:
    chain = Chain()
    chain.feed(10.0, "a", "1.agent.err", f"{DEATH}\n")
    assert chain.push(10.1) == ""
    chain.push(10.6)
    assert chain.pipeline.wake_at == near(10.1 + HOLD)
    assert chain.push(10.1 + HOLD - 0.001) == ""
    assert "death signal" in chain.push(chain.pipeline.wake_at)


def test_a_line_of_some_ranks_is_held_for_the_others_and_one_of_all_is_not() -> None:
    chain = Chain(fold=True)
    for host, rank in (("a", 0), ("a", 1), ("b", 2)):
        chain.feed(10.0, host, f"1.{rank}.out", "saved\n")
    assert chain.push(10.1) == ""
    assert chain.push(10.1 + WINDOW - 0.001) == ""
    assert chain.push(10.1 + WINDOW) == "[0-2]   | saved\n"
    for host, rank in (("a", 0), ("a", 1), ("b", 2), ("b", 3)):
        chain.feed(20.0, host, f"1.{rank}.out", "done\n")
    assert chain.push(20.1) == "[0-3]   | done\n"


def test_at_the_end_each_stage_gives_out_what_it_holds_in_the_order_of_the_chain() -> None:
    chain = Chain(fold=True)
    chain.feed(10.0, "a", "1.agent.err", f"{DEATH}\n")
    chain.feed(10.0, "a", "1.0.out", "saved\n")
    chain.push(10.1)
    chain.feed(10.15, "b", "1.2.out", "no newline")
    lines = chain.flush(10.2).splitlines()
    assert [line.partition("| ")[2][:8] for line in lines] == ["saved", "no newli", "W1122 17"]


# --- the whole chain


def scenario(seed: int) -> list[tuple[float, str, str, str]]:
    """When a host sends what of which stream."""
    rng = random.Random(seed)
    agent = [
        "Traceback (most recent call last):", '  File "api.py", line 1, in f', "    x()", "KeyError: 1", "", DEATH,
        "Exception raised from recv at x.cpp:1", "frame #0: y", "ddp-orch: stopping all nodes: asked by Ctrl-C",
    ]  # fmt: skip
    texts = ["step:1 loss:2.5\n", "step:2 loss:2.25\n", "bar 7%\r", "bar 8%\r", "prompt> ", "done\r\n", "\n", "é\n"]
    now, events = 100.0, []
    for _ in range(80):
        now += rng.choice([0.0, 0.01, 0.05, 0.13, 0.6, 1.2, 3.4]) * rng.random()
        host, first = rng.choice([("a", 0), ("b", 2)])
        if rng.random() < 0.2:
            events.append((now, host, "1.agent.err", "".join(f"{rng.choice(agent)}\n" for _ in range(3))))
        else:
            stream = f"1.{first + rng.randrange(2)}.{rng.choice(['out', 'out', 'err'])}"
            events.append((now, host, stream, "".join(rng.choice(texts) for _ in range(3))))
    return events


def played(
    events: Sequence[tuple[float, str, str, str]], *, fold: bool, looks: Iterator[float] | None = None
) -> list[tuple[float, str]]:
    """What is printed when. The chain is pushed when something comes, when it is to be woken, and at `looks`."""
    chain = Chain(fold=fold, ahead=2.0)
    shown: list[tuple[float, str]] = []
    left = list(events)
    end = events[-1][0] + HOLD + WINDOW + 1.0
    looks = looks or iter(())
    look = next(looks, math.inf)
    while True:
        wake_at = chain.pipeline.wake_at + 1e-6  # so little later that rounding does not make it too early
        now = min(left[0][0] if left else end, wake_at, look)
        if now == look:
            look = next(looks, math.inf)
        text = chain.push(now)
        assert now >= wake_at or not text, "it had something before it said so"
        while left and left[0][0] <= now:
            _, host, stream, written = left.pop(0)
            text += chain.feed(now, host, stream, written, at=now + (2.0 if host == "b" else 0.0))
        shown += [(now, line) for line in text.splitlines()]
        if now == end:
            return shown + [(end, line) for line in chain.flush(end).splitlines()]


@pytest.mark.parametrize("fold", [False, True])
def test_golden(fold: bool) -> None:
    text = "".join(f"{now:8.2f} {line}\n" for now, line in played(scenario(0), fold=fold))
    same_as(GOLDEN / f"{'folded' if fold else 'plain'}.shown", text)


@pytest.mark.parametrize("fold", [False, True])
@pytest.mark.parametrize("seed", range(20))
def test_the_chain_gives_out_nothing_more_when_it_is_asked_at_other_times_too(seed: int, fold: bool) -> None:
    events = scenario(seed)
    rng = random.Random(seed)
    looks = itertools.accumulate((rng.uniform(0.001, 0.1) for _ in itertools.count()), initial=events[0][0])
    expected = played(events, fold=fold)
    looked = played(events, fold=fold, looks=looks)
    assert len(expected) > 50
    assert [line for _, line in looked] == [line for _, line in expected]
    assert [now for now, _ in looked] == pytest.approx([now for now, _ in expected], abs=1e-4)


def test_a_stage_by_itself_passes_lines_on_and_a_sink_takes_them_all() -> None:
    taken: list[Sequence[Line]] = []
    pipeline = Pipeline((Stage(), Sink(taken.append)))
    line = Line(1.0, "a", 0, "stdout", 1, "x")
    assert pipeline.push([line], 1.0) == ()
    pipeline.push((), 2.0)
    assert pipeline.wake_at == math.inf and taken == [[line], ()]
