"""The status line tells how far a run is, and never mixes with its lines."""

from __future__ import annotations

import io

import pytest

from orchestrator.output.bars import BarFilter
from orchestrator.output.console import Console
from orchestrator.output.lines import Line
from orchestrator.output.pipeline import Pipeline, Sink
from orchestrator.runs.status_line import REDRAW, SILENT, RunStatus, StatusLine, elapsed


def line(text: str, rank: int | None = 0, attempt: int = 1) -> Line:
    return Line(0.0, "gpu-1", rank, "agent" if rank is None else "stdout", attempt, text)


def agent(text: str, attempt: int = 1) -> Line:
    return line(f"ddp-orch: {text}", None, attempt)


@pytest.fixture
def status() -> RunStatus:
    return RunStatus(ranks=4, began=100.0)


def words(status: RunStatus, now: float) -> list[str]:
    return status.text(now).split("  ")


def test_before_the_first_lines_it_counts_the_ranks_that_have_printed(status: RunStatus) -> None:
    assert words(status, 107.0) == ["starting 0:07"]
    status.see([agent("attempt 1 on gpu-1, rendezvous at 10.0.0.1:29400")], 107.0)
    assert "0 of 4" in status.text(107.0)


def test_it_shows_the_newest_figures_of_any_rank(status: RunStatus) -> None:
    status.see([line("step:120 loss:3.25 samples/s:2000"), line("epoch 3", 1)], 110.0)
    status.see([line("step:130 loss:3.125")], 111.0)
    assert words(status, 292.0 - SILENT)[:4] == ["running 2:42", "step 130", "loss 3.125", "2000/s"]


def test_the_rate_is_that_of_all_ranks_as_in_top(status: RunStatus) -> None:
    status.see([line(f"step:1 samples/s:{rate}", rank) for rank, rate in enumerate([1500, 1500])], 110.0)
    assert "1500/s" in words(status, 110.0)  # it may be the rate of all ranks, which each rank prints
    for step, rates in ((2, (2000, 1000)), (3, (1500, 1500))):
        status.see([line(f"step:{step} samples/s:{rate}", rank) for rank, rate in enumerate(rates)], 111.0)
        assert "3000/s in total" in words(status, 111.0)
    status.see([agent("attempt 2 on gpu-1, rendezvous at 10.0.0.1:29400", 2), line("step:3", attempt=2)], 112.0)
    assert "/s" not in status.text(112.0)


def test_it_shows_how_busy_the_gpus_are_while_the_run_is_running(status: RunStatus) -> None:
    StatusLine(status, lambda _: None).show_gpu_use(87.4)
    assert "GPU" not in status.text(101.0)
    status.see([line("step:1")], 110.0)
    assert "GPU 87 %" in words(status, 110.0)


def test_it_tells_how_much_is_left_at_the_pace_of_this_attempt(status: RunStatus) -> None:
    status.see([line("step 100/500 loss 3")], 110.0)
    assert "ETA" not in status.text(110.0)
    status.see([line("step 200/500 loss 2")], 210.0)
    assert words(status, 220.0)[1:3] == ["step 200/500", "ETA 4:50"]
    status.see([agent("attempt 2 on gpu-1, rendezvous at 10.0.0.1:29400", 2)], 230.0)
    assert "ETA" not in status.text(230.0)


def test_it_tells_no_pace_while_the_run_waits(status: RunStatus) -> None:
    lines = [
        line(f"step {step}/500 loss 3 samples/s 200 step_time {1 + rank}", rank) for step in (1, 9) for rank in (0, 1)
    ]
    status.see(lines[:2], 110.0)
    status.see(lines[2:], 120.0)
    assert {"ETA", "slowest:"} <= set(status.text(121.0).split())
    status.see([agent("waiting for gpu-2 to come back (up to 60 s)")], 125.0)
    assert not {"ETA", "slowest:"} & set(status.text(126.0).split()) and "/s" not in status.text(126.0)
    assert "step 9/500" in words(status, 126.0)


def bars(*done: int, before: str = "") -> list[Line]:
    return [line(f"{before}{10 * step}%|###  | {step}/10 [00:01<00:02,  2.00it/s]") for step in done]


@pytest.mark.parametrize(
    ("lines", "of_epoch"),
    [
        (bars(3, 5), False),
        (bars(3, 10, 2, 4), True),
        (bars(3, 4, before="Epoch 2/9: "), True),
        (bars(3, 4, before="Epoch: "), False),  # it counts epochs
        ([line("step 3/10", 0), line("step 4/10", 1), line("step 4/10", 0)], False),
        ([line("step 3/10"), line("step 4/10"), *[line(f"1/4 [00:01<00:02, {pace}it/s]") for pace in "12"]], False),
    ],
)
def test_a_bar_of_an_epoch_does_not_tell_when_the_run_ends(
    status: RunStatus, lines: list[Line], of_epoch: bool
) -> None:
    for number, each in enumerate([*lines, lines[-1]]):
        status.see([each], 110.0 + number)
    assert ("of this epoch" in status.text(120.0)) is of_epoch
    if of_epoch:
        assert "ETA" not in status.text(120.0)
        status.see([agent("attempt 2 on gpu-1, rendezvous at 10.0.0.1:29400", 2)], 121.0)
        status.see([line("step 1/10", attempt=2)], 122.0)
        assert "of this epoch" in status.text(122.0)  # the script is the same


def test_a_new_attempt_is_no_new_epoch(status: RunStatus) -> None:
    status.see([line("step 9/10")], 110.0)
    status.see([agent("attempt 2 on gpu-1, rendezvous at 10.0.0.1:29400", 2), line("step 3/10", attempt=2)], 120.0)
    assert "epoch" not in status.text(121.0)


def test_the_hosts_may_wait_for_their_head(status: RunStatus) -> None:
    status.see([line("step 9/10")], 110.0)
    silent = agent("no message from the head (gpu-0) for 8 s: stopping; waiting up to 2 min for it to come back")
    status.see([silent], 120.0)
    assert {"waiting", "gpu-0", "min)"} <= set(status.text(120.0).split())
    status.see([agent("attempt 2 on gpu-1, rendezvous at 10.0.0.1:29400", 2), silent], 130.0)
    assert status.text(130.0).startswith("starting")
    silent = agent("no message from the head (gpu-0) for 8 s: stopping; the hosts that are left elect another head", 2)
    status.see([silent], 140.0)
    assert status.text(140.0).startswith("stopping")


def test_the_hosts_may_wait_for_a_majority(status: RunStatus) -> None:
    status.see([line("step 9/10"), agent("the head (gpu-0) reaches no majority of the hosts: stopping")], 110.0)
    assert status.text(110.0).startswith("stopping")
    status.see([agent("no majority of the hosts answers (silent: gpu-2, gpu-3): waiting up to 10 min for them")], 120.0)
    assert {"waiting", "gpu-2,", "gpu-3", "min)"} <= set(status.text(120.0).split())


def test_a_bar_without_figures_is_in_the_status_line_and_not_printed(status: RunStatus) -> None:
    shown: list[Line] = []
    stage = StatusLine(status, lambda _: None)
    stage.printer = Pipeline([BarFilter(), Sink(shown.extend)])
    stage.push([line("model.bin 35M/100M")._replace(redrawn="state")], 110.0)
    assert not shown and "0: model.bin 35M/100M" in status.text(110.0)
    stage.push([line("model.bin 100M/100M")._replace(redrawn="last")], 111.0)
    assert [each.text for each in shown] == ["model.bin 100M/100M"] and "model.bin" not in status.text(111.0)


def test_a_status_line_of_wide_characters_stays_on_its_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "10")
    terminal = Terminal()
    Console(terminal, colour=False).status("a" + "\u8fdb" * 10)
    assert terminal.getvalue().strip("\r\x1b[K") == "a" + "\u8fdb" * 4


def test_a_loss_that_is_not_a_number_is_shown(status: RunStatus) -> None:
    status.see([line("step:120 loss:nan")], 110.0)
    assert "loss nan" in words(status, 110.0)


def test_it_names_the_slowest_rank_if_several_print_their_times(status: RunStatus) -> None:
    status.see([line(f"step_time:{time}", rank) for rank, time in enumerate([1.0, 1.0, 1.5, 1.0])], 110.0)
    assert "rank 2 (1.5 x" in status.text(110.0)


def test_it_says_so_when_no_rank_prints(status: RunStatus) -> None:
    status.see([line("step:1")], 110.0)
    assert len(words(status, 109.0 + SILENT)) < len(words(status, 111.0 + SILENT))


def test_a_new_attempt_begins_without_the_figures_of_the_last_one(status: RunStatus) -> None:
    status.see(
        [line("step:120 loss:3.25"), agent("first failure: gpu-1: rank 3: exit code 1; stopping all nodes")], 110.0
    )
    assert status.text(110.0).startswith("stopping")
    status.see([agent("attempt 2 on gpu-1, rendezvous at 10.0.0.1:29400", 2), line("late step:130", attempt=1)], 120.0)
    assert words(status, 121.0)[:2] == ["starting 0:21", "attempt 2"]
    assert "step" not in status.text(121.0)


def test_a_rank_cannot_speak_for_ddp_orch(status: RunStatus) -> None:
    status.see([line("ddp-orch: the run has succeeded")], 110.0)
    assert status.text(110.0)


def test_nothing_is_shown_after_the_end(status: RunStatus) -> None:
    status.see([line("step:1"), agent("the run has succeeded")], 110.0)
    assert status.text(111.0) == ""


class Terminal(io.StringIO):
    """Records the status line and the lines in the order in which they are drawn."""

    def isatty(self) -> bool:
        return True


def test_the_status_line_is_removed_before_lines_are_printed(
    status: RunStatus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    terminal = Terminal()
    stage = StatusLine(status, Console(terminal, colour=False).status)

    def write(lines: list[Line]) -> None:
        if lines:
            stage.clear()
            terminal.write("".join(f"{each.text}\n" for each in lines))

    stage.printer = Sink(write)  # type: ignore[arg-type]
    stage.push([line("step:1")], 110.0)
    assert stage.wake_at == 110.0 + REDRAW
    stage.push([line("step:2")], 110.1)
    stage.flush(110.2)
    drawn = terminal.getvalue().split("\r\x1b[K")
    assert [part.strip("\r") for part in drawn] == [
        "step:1\n",
        "running 0:10  step 1",
        "step:2\n",
        "running 0:10  step 2",
        "",
    ]


@pytest.mark.parametrize(("seconds", "text"), [(7.9, "0:07"), (192.0, "3:12"), (3723.0, "1:02:03")])
def test_times_are_short(seconds: float, text: str) -> None:
    assert elapsed(seconds) == text
