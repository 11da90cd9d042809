"""The board of `top`: what it shows of many hosts on a screen of any size."""

from __future__ import annotations

import io
import json
import re
import time
from dataclasses import dataclass, fields, replace
from typing import Any

import pytest
from fake_relay import A_RUN
from rich.cells import cell_len
from rich.console import Console

from orchestrator.answers.decode import decode
from orchestrator.answers.recorded import SAMPLE, Sample
from orchestrator.commands.board import SORTS, Look, Screen, order, render
from orchestrator.commands.board_rows import BoardRow, without_harmless, without_old_steps
from orchestrator.commands.curves import History, sparkline
from orchestrator.commands.top import pause
from orchestrator.commands.top_live import LiveBoard, next_key
from orchestrator.inventory.model import Host
from orchestrator.node.serve.figures import figures
from orchestrator.output.console import Console as Output
from orchestrator.output.lines import Mask
from orchestrator.runs.registry import Run

KEYS = "q quit"
FIRST = {"host": "gpu-03", "node": 3, "rank": 5, "at": 1.0, "what": "rank 5: exit code 1", "said": "KeyError: 7"}
FAILURE = {"state": "failed", "first_failure": FIRST}


def sample(number: int, at: float, **part: Any) -> dict[str, Any]:
    return {
        "clock": 1000.0 + at,
        "cores": 64,
        "cpu": [int(at * 640), int(at * 6400)],
        "memory": [10 << 30, 100 << 30],
        "nics": [{"name": "eth0", "received": int(at * 5e8), "sent": int(at * 2.5e9), "mbit": 100_000}],
        "gpus": [
            {"index": 0, "busy": 98, "used": 8 << 30, "total": 80 << 30, "watts": 300.0, "celsius": 61},
            {"index": 1, "busy": 12, "used": 40 << 30, "total": 80 << 30, "watts": 200.0, "celsius": 70},
        ],
        "run": {**A_RUN, "node": number, "state": "running", "attempt": 1, "name": "nightly", **part},
        "ranks": [
            {
                "rank": rank,
                "last": f"step:{number} correct-horse",
                "at": 1000.0 + rank / 1000,
                "figures": {"step": 100 + number},
            }
            for rank in (2 * number, 2 * number + 1)
        ],
    }


@dataclass(frozen=True)
class Told:
    """What a host says, as JSON."""

    host: str
    now: dict[str, Any] | None = None
    before: dict[str, Any] | None = None
    trouble: str = ""
    node: int | None = None

    def seen(self) -> BoardRow:
        now, before = (told and decode(Sample, told, "sample") for told in (self.now, self.before))
        return BoardRow(self.host, now, before, self.trouble, self.node)


def hosts(count: int) -> list[Told]:
    return [Told(f"gpu-{number:02}", sample(number, 2.0), sample(number, 0.0), node=number) for number in range(count)]


def shown(seen: list[Told], width: int = 200, height: int = 50, mask: Mask | None = None) -> list[str]:
    out = io.StringIO()
    console = Console(file=out, width=width, height=height, color_system=None)
    rows = [one.seen() for one in seen]
    console.print(render("20260131-120000-ab12", rows, Screen(width, height, KEYS, mask or Mask())))
    return out.getvalue().splitlines()


@pytest.mark.parametrize("count", [1, 2, 16, 64, 500])
@pytest.mark.parametrize(("width", "height"), [(80, 24), (200, 50), (40, 10)])
def test_it_fits_the_screen(count: int, width: int, height: int) -> None:
    lines = shown(hosts(count), width, height)
    assert len(lines) <= height
    assert all(len(line) <= width for line in lines)
    assert "running" in lines[0] and lines[-1].strip() == KEYS
    named = sum(line.startswith("gpu-") and "|" not in line for line in lines)
    more = sum(int(line.split()[0]) for line in lines if " more: " in line)
    assert named + more == count


def test_the_title_names_the_hosts_that_the_run_waits_for() -> None:
    waits = {"hosts": ["gpu-01"], "until": 1767268860.0}
    title = shown([Told("gpu-00", sample(0, 2.0, state="waiting", waits=waits), node=0)])[0]
    assert "waiting for gpu-01 until 12:01:00Z" in title


def test_rates_are_made_of_two_samples() -> None:
    row = next(line for line in shown(hosts(1)) if line.startswith("gpu-00"))
    assert row.split()[:12] == [
        "gpu-00", "0-1", "running", "100", "12-98", "40/80G", "500", "70", "6.4/64", "10%", "500M/2.5G", "20%"
    ]  # fmt: skip
    without = next(line for line in shown([Told("gpu-00", sample(0, 2.0), node=0)]) if line.startswith("gpu-00"))
    assert "6.4/64" not in without


def test_hosts_in_trouble_come_first_where_not_all_have_room() -> None:
    seen = hosts(64)
    seen[40] = Told("gpu-40", trouble="connect: no answer in time")
    seen[50] = Told("gpu-50", sample(50, 2.0, state="failed"), sample(50, 0.0))
    lines = shown(seen, 80, 24)
    rows = [line.split()[0] for line in lines[3:] if line.startswith("gpu-")]
    assert set(rows[:2]) == {"gpu-40", "gpu-50"} and rows[2] == "gpu-00"
    assert "1 no answer" in lines[0]


def test_the_first_to_fail_comes_before_those_that_stop_because_of_it() -> None:
    seen = [
        Told(
            one.host,
            sample(number, 2.0, state="stopping", **({"verdict": FAILURE} if number == 0 else {})),
            node=number,
        )
        for number, one in enumerate(hosts(64))
    ]
    seen[60] = Told("gpu-60", trouble="connect: no answer in time")
    rows = [line.split()[0] for line in shown(seen, 80, 24)[3:] if line.startswith("gpu-")]
    assert rows[:3] == ["gpu-03", "gpu-60", "gpu-00"]
    over = [
        replace(one, now=sample(number, 2.0, state="failed", verdict=FAILURE)) for number, one in enumerate(hosts(64))
    ]
    assert next(line for line in shown(over, 80, 24)[3:] if line.startswith("gpu-")).startswith("gpu-03")


def test_the_run_is_what_the_hosts_that_stay_say_also_without_its_head() -> None:
    left = {"verdict": {"state": "stopped", "first_failure": None, "stopped_by": "ann", "left": True}}
    seen = [
        Told("gpu-00", trouble="connect: no answer in time", node=0),
        Told("gpu-01", sample(1, 2.0, state="stopped", attempt=1, node_rank=None, **left), node=1),
        Told("gpu-02", sample(2, 2.0, state="waiting", attempt=3), node=2),
        Told("gpu-03", sample(3, 2.0, state="waiting", attempt=3, node_rank=None, first_rank=None), node=3),
    ]
    lines = shown(seen)
    words = lines[0].split()
    assert "waiting" in words and words[words.index("attempt") + 1] == "3" and "stopped" not in "".join(lines)
    states = {line.split()[0]: line.split() for line in lines if line.startswith("gpu-")}
    assert "left" in states["gpu-01"] and "waiting" in states["gpu-02"] and "spare" in states["gpu-03"]


def test_a_step_that_a_rank_printed_once_and_others_have_passed_is_not_its_step() -> None:
    first, second = sample(0, 100.0), sample(1, 100.0)
    first["ranks"] = [{"rank": 0, "last": "step 88 loss 1", "at": 1099.0, "figures": {"step": 88, "loss": 1}}]
    second["ranks"] = [{"rank": 1, "last": "resume at step 15", "at": 1060.0, "figures": {"step": 15}}]

    def steps() -> list[float | None]:
        told = [Told("gpu-00", first, node=0), Told("gpu-01", second, node=1)]
        return [row.figure("step") for row in without_old_steps([one.seen() for one in told])]

    assert steps() == [88, None]
    second["ranks"][0]["at"] = 1098.0  # it may be slow
    assert steps() == [88, 15]
    second["ranks"][0].update(at=1060.0, figures={"step": 86})  # it may hang
    assert steps() == [88, 86]


def test_the_first_failure_is_named() -> None:
    seen = hosts(4)
    seen[0] = Told("gpu-00", sample(0, 2.0, state="failed", verdict=FAILURE), node=0)
    assert "gpu-03: rank 5: exit code 1" in shown(seen, 80, 24)[-2]


def test_a_rank_that_is_slower_than_the_others_is_named() -> None:
    seen = hosts(2)
    for number, one in enumerate(seen):
        assert one.now is not None
        for rank in one.now["ranks"]:
            rank["figures"]["step_time"] = 0.5 + 0.1 * (rank["rank"] == 3)
        assert number == one.now["run"]["node"]
    assert "slowest rank 3 (gpu-01)" in shown(seen)[1]
    for one in seen:
        assert one.now is not None
        for rank in one.now["ranks"]:
            rank["figures"]["step_time"] = 0.5
    assert "slowest" not in shown(seen)[1]


def test_lines_are_masked_and_tamed() -> None:
    seen = hosts(1)
    assert seen[0].now is not None
    seen[0].now["ranks"][0].update(at=1001.0, last="\x1b[2Jtoken correct-horse")
    text = "\n".join(shown(seen, mask=Mask(["correct-horse"])))
    assert "token ***" in text and "\x1b" not in text and "correct" not in text


def test_no_host_makes_more_lines_than_its_own() -> None:
    seen = hosts(3)
    assert seen[0].now is not None
    seen[0].now["ranks"][0].update(at=1001.0, last="x\ngpu-09 running")
    seen[1] = replace(seen[1], trouble="no answer\ngpu-09 running")
    assert len(shown(seen)) == len(shown(hosts(3)))
    first = {**FIRST, "what": "x\ngpu-09 running"}
    seen[0] = replace(seen[0], now=sample(0, 2.0, state="failed", verdict={"state": "failed", "first_failure": first}))
    assert len(shown(seen)) == len(shown(hosts(3)))


def test_one_host_is_not_called_hosts() -> None:
    assert "1 host, 2 ranks" in shown(hosts(1))[0] and "2 hosts, 4 ranks" in shown(hosts(2))[0]


def test_a_host_that_knows_no_such_run_and_one_not_asked_yet_are_shown() -> None:
    gone = sample(0, 1.0)
    gone.update(run=None, ranks=[])
    text = "\n".join(shown([Told("a", gone), Told("b")]))
    assert "no such run" in text and "asking" in text


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (
            "epoch:3 step:120 loss:0.1234 acc:0.9 samples/s:12345 step_time:0.0123 lr:0.05",
            {"step": 120, "loss": 0.1234, "rate": 12345, "step_time": 0.0123},
        ),
        ("{'loss': 1.5e-1, 'learning_rate': 5e-05, 'epoch': 0.1}", {"loss": 0.15}),
        ("Iter = 7, train_loss=3", {"step": 7, "loss": 3}),
        ("test_loss:0.5 best.loss:0.4 my/step:3 step:1.2.3", {}),
        ("lossy step by step", {}),
        ("step 1 loss 2.31", {"step": 1, "loss": 2.31}),
        (
            "Epoch 2 | Step 20/400: train_loss 1.5e-1, tokens/s 99.",
            {"step": 20, "total": 400, "loss": 0.15, "rate": 99},
        ),
        (
            " 35%|###5   | 35/100 [00:12<00:20,  4.00it/s, loss=2.5]",
            {"step": 35, "total": 100, "loss": 2.5, "step_time": 0.25},
        ),
        ("train:  3%|  | 3/100 [01:12<00:20,  2.50s/it]", {"step": 3, "total": 100, "step_time": 2.5}),
        ("model.bin:  35%|###5   | 35M/100M [00:12<00:20, 4.00MB/s]", {}),
        ("0it [00:00, ?it/s]   0/10 [00:00<?, ?it/s]", {}),
        ("iter 20: loss 3.25, time 135.20ms, mfu 3.20%", {"step": 20, "loss": 3.25, "step_time": 0.1352}),
        (
            " iteration       13/  500000 | elapsed time per iteration (ms): 812.5 | lm loss: 1.5E+01 |",
            {"step": 13, "total": 500000, "loss": 15, "step_time": 0.8125},
        ),
        ("step 9 max_steps:0", {"step": 9}),
        ("make it 3 times, step 2nd, loss information, loss -, step", {}),
    ],
)
def test_the_figures_in_a_line_are_found(line: str, expected: dict[str, float]) -> None:
    assert figures(line) == expected


def test_a_loss_that_is_no_number_any_more_is_one_that_is_shown() -> None:
    assert str(figures("step:3 loss:nan")["loss"]) == "nan"
    seen = hosts(1)
    assert seen[0].now is not None
    seen[0].now["ranks"][0]["figures"]["loss"] = float("nan")
    assert "loss nan" in shown(seen)[1]


def test_how_long_a_rank_has_been_silent_is_told_where_it_is_long() -> None:
    seen = hosts(2)
    assert "QUIET" not in "".join(shown(seen))
    assert seen[1].now is not None
    seen[1].now["ranks"][0]["at"] -= 40
    assert "QUIET" not in "".join(shown(seen))  # the other one speaks
    seen[1].now["ranks"][1]["at"] -= 50
    lines = shown(seen)
    header = next(line for line in lines if line.startswith("HOST")).split()
    row = next(line for line in lines if line.startswith("gpu-01")).split()
    assert row[header.index("QUIET")] == "42s"
    seen[1].now["ranks"][0]["at"] -= 3600
    seen[1].now["ranks"][1]["at"] -= 3600
    assert any(" 61m " in line for line in shown(seen))


def styles(seen: list[Told], look: Look | None = None) -> dict[str, str]:
    """The style of each text of the board that has one."""
    rows = [one.seen() for one in seen]
    drawn = render("R", rows, Screen(200, 50, KEYS, Mask(), History(), look or Look()))
    return {drawn.plain[span.start : span.end].strip(): str(span.style) for span in drawn.spans}


@pytest.mark.parametrize("look", [Look(), Look(by_rank=True)])
def test_silence_is_marked_only_where_no_rank_prints(look: Look) -> None:
    seen = hosts(2)
    first, second = (one.now for one in seen)
    assert first is not None and second is not None
    for rank in second["ranks"]:
        rank["at"] -= 100
    assert styles(seen, look).get("102s") is None  # often only rank 0 prints
    for rank in first["ranks"]:
        rank["at"] -= 98
    assert styles(seen, look)["102s"] == styles(seen, look)["100s"] == "yellow"


def test_a_bar_is_yellow_only_where_a_rank_is_slow() -> None:
    seen = hosts(2)
    for one in seen:
        assert one.now is not None
        for rank in one.now["ranks"]:
            rank["figures"]["step_time"] = 0.5
    assert styles(seen, Look(by_rank=True))["████████"] == "green"
    assert seen[1].now is not None
    seen[1].now["ranks"][1]["figures"]["step_time"] = 0.6
    assert styles(seen, Look(by_rank=True))["████████"] == "yellow"


def test_warnings_that_mean_nothing_are_no_lines() -> None:
    warning = "[W1125 23:19:37.7 socket.cpp:207] [c10d] The hostname of the client socket cannot be retrieved. err=-3"
    seen = hosts(2)
    for one in seen:
        assert one.now is not None
        one.now["ranks"][0].update(last=warning, at=1001.0, figures={})
    rows = [replace(row, now=without_harmless(row.now)) for row in (one.seen() for one in seen) if row.now]
    history = History()
    history.add(rows)
    drawn = render("R", rows, Screen(200, 24, KEYS, Mask(), history)).plain
    assert "c10d" not in drawn and "1: step:0 correct-horse" in drawn and "gpu-01:3 │ step:1 correct-horse" in drawn
    assert "1: step:0 correct-horse" in render("R", rows, Screen(200, 24, "", Mask())).plain
    rows = [replace(row, now=replace(row.now, ranks=row.now.ranks[:1], gpus=())) for row in rows if row.now]
    assert "printed" in render("R", rows, Screen(120, 24, KEYS, Mask())).plain.splitlines()[1]


def test_a_host_that_does_not_answer_may_have_the_lines_that_the_others_lack() -> None:
    seen = hosts(2)
    for one in seen:
        assert one.now is not None
        one.now["ranks"] = []
        one.now["gpus"] = []
    rows = [one.seen() for one in seen]
    for silent, told in ((rows, False), ([replace(rows[0], trouble="connect: no answer in time"), rows[1]], True)):
        line = render("R", silent, Screen(120, 24, KEYS, Mask())).plain.splitlines()[1]
        assert "printed" in line and ("that answer" in line) is told


def test_the_rate_of_a_host_is_that_of_its_slowest_rank_and_all_have_a_total() -> None:
    seen = hosts(2)
    rates = iter((256.0, 196.9, 256.0, 256.0))
    for one in seen:
        assert one.now is not None
        for rank in one.now["ranks"]:
            rank["figures"]["rate"] = next(rates)
    assert "964.9/s in total (196.9..256/s)" in shown(seen)[1]
    header, *rows = [line for line in shown(seen) if line.startswith(("HOST", "gpu-"))]
    column = header.split().index("RATE/S")
    assert [row.split()[column] for row in rows[:2]] == ["196.9", "256"]
    for one in seen:
        assert one.now is not None
        for rank in one.now["ranks"]:
            rank["figures"]["rate"] = 256.0
    assert re.search(r"\b256/s .*\b4 ranks", shown(seen)[1])
    for one in seen:
        assert one.now is not None
        one.now["ranks"] = one.now["ranks"][: 1 if one.host == "gpu-00" else 0]
    assert "256/s" in shown(seen)[1].split()


def test_only_losses_of_one_step_are_compared() -> None:
    seen = hosts(2)
    for number, one in enumerate(seen):
        assert one.now is not None
        for rank in one.now["ranks"]:
            rank["figures"].update(step=40 + 16 * number, loss=1.885 - 0.1 * number + 0.001 * rank["rank"])
    assert "step 40..56  loss 1.787..1.788" in shown(seen)[1]


def test_only_the_host_that_failed_first_is_called_failed() -> None:
    verdict = {"state": "failed", "first_failure": {**FIRST, "host": "gpu-01", "node": 1}}
    seen = [replace(one, now=sample(n, 2.0, state="failed", verdict=verdict)) for n, one in enumerate(hosts(3))]
    lines = shown(seen)
    assert "failed" in lines[0]
    rows = [line for line in lines if line.startswith("gpu-")]
    assert [row.split()[2] for row in rows[:3]] == ["stopped", "failed", "stopped"]


def test_a_host_that_is_not_the_head_does_not_tell_the_state_of_the_run() -> None:
    seen = hosts(2)
    lie = {"node": 0, "state": "succeeded", "verdict": {"state": "succeeded"}, "name": "owned"}
    seen[1] = replace(seen[1], now=sample(1, 2.0, **lie))
    assert "running" in shown(seen)[0] and "nightly" in shown(seen)[0]
    seen[1] = replace(seen[1], node=None)
    assert "nightly" in shown(seen[::-1])[0]


def test_curves_fit_the_width_and_show_how_the_figures_change() -> None:
    history = History()
    seen = hosts(2)
    for step in range(60):
        for one in seen:
            assert one.now is not None
            for rank in one.now["ranks"]:
                rank["figures"].update(step=step, loss=2.0 - step / 30)
        history.add([one.seen() for one in seen])
        assert all(len(history.curves(width)) <= width for width in (20, 40, 80, 120, 200))
    curve = history.curves(80).split()[1]
    assert curve[0] == "█" and curve[-1] == "▁" and list(curve) == sorted(curve, reverse=True)
    assert history.curves(80).split()[-1] == "55"  # the mean load of the GPUs


def test_a_loss_that_is_not_finite_is_not_in_the_curve() -> None:
    history = History()
    one = hosts(1)[0]
    assert one.now is not None
    for loss in (1.0, float("nan"), float("inf"), 0.5):
        for rank in one.now["ranks"]:
            rank["figures"]["loss"] = loss
        history.add([one.seen()])
    assert history.curves(120).startswith("loss █▁ 0.5")


def test_the_newest_lines_are_those_of_the_newest_attempt() -> None:
    history = History()
    before = [replace(each, now=sample(number, 2.0, host="ab"[number])) for number, each in enumerate(hosts(2))]
    history.add([each.seen() for each in before])
    assert {host for host, _ in history.lines} == {"gpu-00", "gpu-01"}
    again = replace(before[0], now=sample(0, 4.0, host="a", attempt=2))
    history.add([again.seen(), before[1].seen()])
    assert not history.lines  # no rank has printed in it yet
    assert again.now is not None
    again.now["ranks"][0].update(at=1004.0, last="hello")
    late = sample(1, 4.0, host="b")
    late["ranks"][0].update(at=1005.0, last="of the first attempt")
    history.add([again.seen(), replace(before[1], now=late).seen()])
    assert [rank.last for _, rank in history.lines] == ["hello"]


def test_a_curve_has_no_point_for_a_sample_without_news() -> None:
    history = History()
    one = hosts(1)[0]
    assert one.now is not None
    for step in (1, 2, 2, 2):
        for rank in one.now["ranks"]:
            rank["figures"].update(step=step, loss=3.0 - step, step_time=0.5 + step)
        history.add([one.seen()])
    assert history.curves(120).startswith("loss █▁ 1 ")
    assert history.of_rank(0) == [1.5, 2.5] and len(history.of_gpu("gpu-00", 0)) == 4


def test_a_curve_that_does_not_change_is_flat() -> None:
    assert set(sparkline([3.0, 3.0, 3.0])) == {"▁"}
    assert sparkline([0.0, 50.0, 100.0], 100.0) == "▁▅█"


def host_named(name: str) -> Host:
    nothing = {field.name: None for field in fields(Host)}
    return Host(**{**nothing, "name": name})  # type: ignore[arg-type]


@dataclass
class Watched:
    """What LiveBoard draws from."""

    told: list[Told]
    hosts: list[Host]
    news: str = ""

    def rows(self) -> list[BoardRow]:
        return [one.seen() for one in self.told]


class Keys:
    """A live board without its terminal."""

    def __init__(self, told: list[Told]) -> None:
        rows = [one.seen() for one in told]
        parts = {row.host: row.part for row in rows if row.part}
        run = Run("R", "nightly", "running", 1, "2026-01-01T00:00:00Z", parts)
        machines = [host_named(one.host) for one in told]
        console = Output(io.StringIO(), colour=False)
        fleet: Any = None  # only `k` asks it
        self.board = LiveBoard(Watched(told, machines), run, fleet, "inventory.yaml", Mask(), console)

    def press(self, *keys: str) -> Look:
        for key in keys:
            self.board._look = self.board._after(key, 24)
        return self.board._look


def test_a_host_is_marked_and_opened_with_its_gpus_and_ranks() -> None:
    seen = hosts(64)
    keys = Keys(seen)
    assert keys.press("enter") == Look()
    assert keys.press("down", "down", "down", "up").marked == "gpu-01"
    assert keys.press("end").marked == "gpu-63" and keys.press("down", "pgup").marked == "gpu-51"
    look = keys.press("enter")
    assert look.host == "gpu-51"
    rows = [one.seen() for one in seen]
    lines = render("R", rows, Screen(100, 30, KEYS, Mask(), History(), look)).plain.splitlines()
    assert "1 host, 2 ranks" in lines[0] and lines[-1] == KEYS and len(lines) == 30
    assert [line.split()[:2] for line in lines[3:5]] == [["0", "98%"], ["1", "12%"]]
    assert [line.split()[0] for line in lines if "gpu-51 " in line] == ["102", "103"]
    assert keys.press("esc") == Look()


def test_a_rank_leads_to_its_host() -> None:
    assert Keys(hosts(2)).press("v", "end", "enter").host == "gpu-01"


def test_the_marked_row_is_on_the_screen() -> None:
    rows = [one.seen() for one in hosts(64)]
    for marked in ("gpu-00", "gpu-31", "gpu-63"):
        lines = render("R", rows, Screen(80, 24, KEYS, Mask(), look=Look(marked=marked))).plain.splitlines()
        assert len(lines) == 24 and sum(line.startswith(marked) for line in lines) == 1


def test_rows_are_sorted_by_what_is_slow_idle_or_silent() -> None:
    seen = hosts(3)
    for one, step_time, busy, at in zip(seen, (0.5, 0.9, 0.4), (90, 80, 5), (1001.5, 990.0, 1001.0), strict=True):
        assert one.now is not None
        one.now["gpus"][1]["busy"] = busy
        for rank in one.now["ranks"]:
            rank.update(at=at, figures={"step": 7, "step_time": step_time})
    rows = [one.seen() for one in seen]
    first = {sort: order(rows, Look(sort=sort), 20)[0] for sort in SORTS}
    assert first == {
        "auto": "gpu-00", "host": "gpu-00", "step": "gpu-01", "step time": "gpu-01", "GPU": "gpu-02", "quiet": "gpu-01"
    }  # fmt: skip


def test_the_newest_lines_fill_the_free_room_or_a_third_of_the_screen() -> None:
    history = History()
    for number in range(20):
        seen = hosts(64)
        assert seen[3].now is not None
        seen[3].now["ranks"][0].update(at=1000.0 + number, last=f"line {number} " + "\u8fdb" * 50)
        history.add([one.seen() for one in seen])
    rows = [one.seen() for one in seen]

    def lines(pane: bool | None, count: int) -> list[str]:
        screen = Screen(80, 24, KEYS, Mask(), history, Look(pane=pane))
        drawn = render("R", rows[:count], screen)
        assert all(cell_len(line) <= 80 for line in drawn.plain.splitlines())
        return [line for line in drawn.plain.splitlines() if " │ line " in line]

    assert len(lines(None, 4)) == 14 and lines(None, 4)[-1].startswith("gpu-03:6 │ line 19")
    assert not lines(False, 4) and not lines(None, 64)
    assert len(lines(True, 64)) == 7


def test_the_steps_that_are_left_give_an_estimate() -> None:
    seen = hosts(2)
    for one in seen:
        assert one.now is not None
        for rank in one.now["ranks"]:
            rank["figures"] = {"step": 400, "total": 1000, "step_time": 2.0}
    rows = [one.seen() for one in seen]
    line = render("R", rows, Screen(120, 24, KEYS, Mask(), History())).plain.splitlines()[1]
    assert line.startswith("step 400/1000 ▕████      ▏ 40%  ETA 20:00")


def test_steps_that_begin_again_in_each_epoch_give_no_estimate() -> None:
    history = History()
    one = hosts(1)[0]
    assert one.now is not None
    shown = []
    for step in (400, 900, 100):
        for rank in one.now["ranks"]:
            rank["figures"] = {"step": step, "total": 1000, "step_time": 2.0}
        history.add([one.seen()])
        shown.append(render("R", [one.seen()], Screen(120, 24, KEYS, Mask(), history)).plain.splitlines()[1])
    assert ["ETA" in line for line in shown] == [True, True, False]
    assert "10% of this epoch" in shown[2]
    one.now["ranks"][0].update(last="epoch 2:  40%|####      | 400/1000 [00:01<00:02, 2.00it/s]")
    assert "of this epoch" in render("R", [one.seen()], Screen(120, 24, KEYS, Mask())).plain


def test_why_a_host_does_not_answer_is_shown_where_there_is_no_room_for_last_lines() -> None:
    seen = hosts(3)
    seen[1] = Told("gpu-01", trouble="connect: refused")
    assert "gpu-01: connect: refused" in shown(seen, 60, 24)


@pytest.mark.parametrize(
    ("typed", "keys"),
    [
        ("q", ["q"]),
        ("\x1b[A\x1b[B", ["up", "down"]),
        ("\x1bOA\x1b", ["up", "esc"]),
        ("\x1b[6~v\n", ["pgdn", "v", "enter"]),
    ],
)
def test_keys_are_recognised(typed: str, keys: list[str]) -> None:
    found = []
    while typed:
        key, typed = next_key(typed)
        found.append(key)
    assert found == keys


def test_drawing_512_ranks_every_two_seconds_takes_little_of_a_core() -> None:
    told = []
    for number in range(64):
        host = sample(number, 2.0)
        host["gpus"] *= 4
        host["ranks"] = [{**host["ranks"][0], "rank": 8 * number + local} for local in range(8)]
        told.append(json.dumps(host))
    history, spent = History(), []
    for _ in range(3):
        began = time.thread_time()
        rows = [BoardRow(f"gpu-{n:02}", SAMPLE.decode(json.loads(text)), None, "", n) for n, text in enumerate(told)]
        history.add(rows)
        screen = Screen(200, 50, KEYS, Mask(), history)
        Console(file=io.StringIO(), width=200, height=50).print(render("R", rows, screen))
        spent.append(time.thread_time() - began)
    assert min(spent) < 0.05 * 2.0  # 5 % of a core, every 2 s


def shown_ranks(seen: list[Told], width: int, height: int) -> list[str]:
    out = io.StringIO()
    console = Console(file=out, width=width, height=height, color_system=None)
    rows = [one.seen() for one in seen]
    screen = Screen(width, height, KEYS, Mask(), look=Look(by_rank=True))
    console.print(render("20260131-120000-ab12", rows, screen))
    return out.getvalue().splitlines()


@pytest.mark.parametrize("count", [1, 2, 64, 250])
@pytest.mark.parametrize(("width", "height"), [(80, 24), (200, 50), (40, 10)])
def test_the_ranks_fit_the_screen_and_none_is_missing(count: int, width: int, height: int) -> None:
    lines = shown_ranks(hosts(count), width, height)
    assert len(lines) <= height and all(len(line) <= width for line in lines)
    named = sum(bool(re.match(r" *\d+ gpu-", line)) for line in lines)
    more = sum(int(line.split()[0]) for line in lines if " more: " in line)
    assert named + more == 2 * count


def test_the_ranks_that_are_behind_come_first_where_not_all_have_room() -> None:
    seen = hosts(64)
    assert seen[33].now is not None
    seen[33].now["ranks"][1]["figures"]["step"] = 3
    seen[40] = replace(seen[40], trouble="connect: no answer in time")
    first = [line.split()[0] for line in shown_ranks(seen, 120, 24) if "gpu-" in line][:3]
    assert first == ["80", "81", "67"]


def test_each_of_many_hosts_is_asked_less_often() -> None:
    assert [pause(hosts) for hosts in (1, 32, 64)] == [2.0, 2.0, 4.0]
