"""A report of a run that failed: what is in it, and that it is one file that asks nobody for anything."""

from __future__ import annotations

import base64
import hashlib
import json
import random
import re
from dataclasses import asdict, replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from fake_relay import A_RUN
from golden_files import assert_message

from orchestrator.answers.decode import decode
from orchestrator.answers.recorded import Record
from orchestrator.commands import report, report_data
from orchestrator.errors import UsageError
from orchestrator.output.lines import Line, Mask
from orchestrator.output.span import Span
from orchestrator.runs import timeline
from orchestrator.runs.registry import Run
from orchestrator.ui import bands, html
from orchestrator.ui.svg import MAX_POINTS, chart

FIRST = {
    "host": "gpu-1",
    "node": 1,
    "rank": 3,
    "what": "rank 3: exit code 1",
    "said": "KeyError: correct-horse",
    "at": 1050.0,
}
FINDING = {
    "severity": "error", "code": "user-code-error", "hosts": ["gpu-1"], "rank": 3, "at": None, "confidence": "high",
    "message": "KeyError: <7>", "evidence": ["raise KeyError  # correct-horse"], "fix": "look at train.py",
}  # fmt: skip
DIAGNOSIS = {"findings": [FINDING], "consequences": [{**FINDING, "hosts": ["gpu-0"], "message": "connection closed"}]}
VERDICT = {"state": "failed", "first_failure": FIRST, "stopped_by": None, "attempt": 2, "at": 1060.0}


def sample(at: float, busy: int | None = 90) -> dict[str, Any]:
    gpu = {"index": 0, "busy": busy, "used": 40 << 30, "total": 80 << 30, "watts": 500.0, "celsius": 60}
    return {
        "at": at,
        "cores": 64,
        "cpu": [int(at * 10), int(at * 100)],
        "memory": [1 << 30, 64 << 30],
        "nics": [{"name": "eth0", "received": int(at * 1e6), "sent": int(at * 2e6), "mbit": None}],
        "gpus": [gpu] if busy is not None else [],
        "disk": [int(at * 3e6), int(at * 4e6)],
    }


def records() -> dict[str, dict[str, Any]]:
    spec = {
        "by": "ann@laptop",
        "nodes": [{"host": "gpu-0"}, {"host": "gpu-1"}],
        "command": ["train.py", "--token", "correct-horse"],
        "env": {"API_TOKEN": "visible?", "LR": "correct-horse"},
        "agent_argv": ["-m"],
        "versions": {"torch": "2.9.0+cu129", "driver": "<580> correct-horse"},
        "python": "/opt/<python>",
    }
    events = [
        {"event": "Joined", "fields": {"node": 0, "at": 999.0}},
        {"event": "StartRequested", "fields": {"master_addr": "a", "master_port": 1, "at": 1000.0}},
        {"event": "Started", "fields": {"node": 0, "attempt": 1, "at": 1001.0}},
        {"event": "Failed", "fields": {"node": 1, "attempt": 1, "failure": FIRST, "at": 1020.0}},
        {"event": "Restarted", "fields": {"node": 1, "at": 1025.0}},
        {"event": "PortFound", "fields": {"port": 2, "at": 1030.0}},
        {"event": "Drain", "fields": {"node": 1, "by": "ann", "grace": 30.0, "at": 1040.0}},
        {"event": "Added", "fields": {"host": "gpu-2", "nproc": 2, "by": "ann", "at": 1042.0}},
        {"event": "Lost", "fields": {"node": 2, "at": 1045.0}},
        {"event": "Failed", "fields": {"node": 1, "attempt": 2, "failure": FIRST, "at": 1050.0}},
        {"event": "Exited", "fields": {"node": 0, "attempt": 2, "ok": False, "at": 1052.0}},
    ]
    found = {}
    for node in (0, 1):
        run = {
            **A_RUN, "name": "nightly", "started_at": "1970-01-01T00:16:39Z", "node": node, "state": "failed",
            "attempt": 2, "exit_code": node, "signal": None, "nproc": 2, "ranks": 4, "verdict": VERDICT,
        }  # fmt: skip
        samples = [sample(1000.0 + 10 * number, None if node else 90) for number in range(4)]
        found[f"gpu-{node}"] = {
            "run": run, "spec": spec, "exit": {"at": 1060.0}, "events": events if node == 0 else [], "samples": samples
        }  # fmt: skip
    return found


def make(told: dict[str, dict[str, Any]], state: str, *arguments: Any) -> report_data.Report:
    """The report of what hosts say."""
    known = {host: decode(Record, one, "record") for host, one in told.items()}
    parts = {host: record.run for host, record in known.items() if record.run}
    attempt = max(part.attempt for part in parts.values())
    return report_data.make(Run("R", "nightly", state, attempt, "1970-01-01T00:16:39Z", parts), known, *arguments)


@pytest.fixture
def made() -> report_data.Report:
    figures = [
        Line(
            1000.0 + step,
            f"gpu-{rank // 2}",
            rank,
            "stdout",
            1,
            f"step:{step} loss:{9 - step} step_time:{1 + (rank == 3)}",
        )
        for step in range(5)
        for rank in (0, 1, 3)
    ]
    figures.append(Line(1006.0, "gpu-0", 0, "stdout", 2, "step:5 loss:nan"))
    said = [Line(1050.0, "gpu-1", 3, "stderr", 2, "\x1b[2J<script>alert(1)</script> correct-horse")]
    clocks = {"gpu-0": 0.0, "gpu-1": 0.0}
    log = [*figures, *said, Line(1051.0, "gpu-0", None, "agent", 2, "x" * 1000)]
    return make(records(), "failed", clocks, figures, said, DIAGNOSIS, Mask(["correct-horse"]), log)


def test_it_tells_what_happened_when(made: report_data.Report) -> None:
    assert_message("report-timeline", "\n".join(f"{one['seconds']:g} s: {one['what']}" for one in made.timeline))
    assert made.first_failure == {**FIRST, "said": "KeyError: ***"}
    assert made.ended_at == "1970-01-01T00:17:40.000000Z"


def event(name: str, at: float, **fields: Any) -> dict[str, Any]:
    return {"event": name, "fields": {"at": at, **fields}}


def test_a_lost_host_that_returns_has_failed_in_no_later_attempt() -> None:
    told = records()
    told["gpu-0"]["events"] = [
        event("StartRequested", 1000.0, master_addr="10.0.0.1", master_port=1),
        event("Lost", 1010.0, node=1),
        event("Exited", 1011.0, node=0, attempt=1, ok=False),
        event("PortFound", 1012.0, port=2),
        event("Exited", 1030.0, node=1, attempt=2, ok=False),  # of the attempt of the others
        event("Exited", 1040.0, node=0, attempt=2, ok=False),
        event("PortFound", 1041.0, port=3),
        event("Exited", 1050.0, node=1, attempt=3, ok=False),
    ]
    known = decode(Record, told["gpu-0"], "record")
    ends = [entry.what for entry in timeline.entries(known.events, ["gpu-0", "gpu-1"]) if "gpu-1" in entry.what]
    assert [what.partition(": ")[0] for what in ends[1:]] == ["gpu-1 is back", "gpu-1"]
    assert "attempt 3" in ends[2]


def test_an_old_head_that_returns_has_failed_in_no_attempt_of_the_new_one() -> None:
    told = records()
    told["gpu-0"]["events"] = [
        event("StartRequested", 1000.0),
        event("Elected", 1010.0, node=1),
        event("PortFound", 1012.0, port=2),
        event("Exited", 1020.0, node=0, attempt=1, ok=False),
        event("Exited", 1030.0, node=0, attempt=2, ok=False),
    ]
    known = decode(Record, told["gpu-0"], "record")
    kinds = [entry.kind for entry in timeline.entries(known.events, ["gpu-0", "gpu-1"])]
    assert kinds == ["attempt", "failure", "attempt", "change", "end"]


def test_an_attempt_names_the_hosts_on_which_it_started() -> None:
    told = records()
    told["gpu-0"]["events"] = [
        event("StartRequested", 1000.0),
        event("Started", 1001.0, node=0, attempt=1),
        event("Started", 1001.0, node=1, attempt=1),
        event("Lost", 1010.0, node=1),
        event("PortFound", 1012.0, port=2),
        event("Started", 1013.0, node=2, attempt=2),
        event("Started", 1013.0, node=0, attempt=2),
    ]
    known = decode(Record, told["gpu-0"], "record")
    entries = timeline.entries(known.events, ["gpu-0", "gpu-1", "gpu-2"])
    assert [one.what.rpartition(" ")[2] for one in entries if one.kind == "attempt"] == ["gpu-[0-1]", "gpu-[0,2]"]


def test_a_drained_host_is_not_said_to_be_lost() -> None:
    told = records()
    told["gpu-0"]["events"] = [
        event("StartRequested", 1000.0),
        event("Drain", 1010.0, node=0, by="ann"),
        event("Exited", 1011.0, node=0, attempt=1, ok=False),
        event("Elected", 1020.0, node=1),
        event("Lost", 1030.0, node=0),
        event("Added", 1040.0, host="gpu-2", by="ann"),
        event("Drain", 1041.0, node=2, by="ann"),  # a spare, which has no ranks to end
        event("Lost", 1050.0, node=2),
    ]
    known = {host: decode(Record, one, "record") for host, one in told.items()}
    entries = timeline.entries(known["gpu-0"].events, ["gpu-0", "gpu-1"])
    assert_message("timeline-of-drained-hosts", "\n".join(f"{entry.kind}: {entry.what}" for entry in entries))
    assert not any("lost" in entry.what for entry in entries)
    assert "failure" not in {entry.kind for entry in entries}


def test_curves_and_slow_ranks_come_from_the_ranks_lines(made: report_data.Report) -> None:
    assert made.training["loss"]["attempt 1, rank 0"] == ((0, 9), (1, 8), (2, 7), (3, 6), (4, 5))
    assert "attempt 2, rank 0" not in made.training["loss"]  # what is no number cannot be drawn, nor be in JSON
    slow = [(one["rank"], one["host"], one["times_the_median"]) for one in made.slow_ranks]
    assert slow == [("attempt 1, rank 3", "gpu-1", 2.0)]


def test_machines_are_measured_between_samples(made: report_data.Report) -> None:
    assert made.machines["gpu"] == {"gpu-0": ((0.0, 90.0), (10.0, 90.0), (20.0, 90.0), (30.0, 90.0))}
    assert made.machines["received"]["gpu-1"] == ((10.0, 1e6), (20.0, 1e6), (30.0, 1e6))
    assert made.machines["cpu"]["gpu-0"][0] == (10.0, 10.0)


def test_no_secret_is_in_it_and_nothing_a_host_said_is_markup(made: report_data.Report) -> None:
    text = html.render(asdict(made))
    both = text + json.dumps(asdict(made), allow_nan=False)
    assert "correct-horse" not in both and "visible?" not in both and "\x1b" not in both
    assert text.count("<script") == 1 and "&lt;script&gt;alert(1)" in text
    assert "/opt/&lt;python&gt;" in text
    assert "user-code-error, confidence high" in text and "raise KeyError  # ***" in text
    assert "connection closed" in text


def test_it_is_one_file_that_asks_nobody_for_anything(made: report_data.Report) -> None:
    text = html.render(asdict(made))
    assert not re.search(r"\b(src|href|url)\b\s*[=(](?!\"#[a-z]+\")", text)
    assert "default-src 'none'" in text

    class Balanced(HTMLParser):
        open_tags: tuple[str, ...] = ()

        def handle_starttag(self, tag: str, attrs: object) -> None:
            if tag not in ("meta", "br", "line", "input"):
                self.open_tags += (tag,)

        def handle_startendtag(self, tag: str, attrs: object) -> None:
            pass

        def handle_endtag(self, tag: str) -> None:
            assert self.open_tags[-1] == tag
            self.open_tags = self.open_tags[:-1]

    parser = Balanced()
    parser.feed(text)
    assert parser.open_tags == ()
    assert text.count("<polyline") >= 3 + 5
    (policy,) = re.findall(r"script-src '(sha256-[^']+)'", text)
    (code,) = re.findall(r"<script>(.*?)</script>", text, re.DOTALL)
    assert policy == "sha256-" + base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()


def test_the_newest_lines_of_all_ranks_are_in_it(made: report_data.Report) -> None:
    assert [line["at"] for line in made.log] == sorted(line["at"] for line in made.log)
    assert [line["rank"] for line in made.log[:3]] == [0, 1, 3]  # of the same time
    assert made.log[-1]["rank"] is None and len(made.log[-1]["text"]) < 500
    text = html.render(asdict(made))
    assert "00:17:30 gpu-1:3 </b>&lt;script&gt;alert(1)&lt;/script&gt; ***" in text


def test_of_a_long_log_the_newest_lines_are_kept() -> None:
    lines = [Line(float(number), "gpu-0", 0, "stdout", 1, "word " * 40) for number in range(10_000)]
    kept = make(records(), "failed", {}, [], [], DIAGNOSIS, Mask(), lines).log
    assert kept[-1]["at"].endswith("02:46:39.000000Z") and 1000 < len(kept) < 10_000


def test_versions_and_the_command_to_run_it_again_are_in_it(made: report_data.Report) -> None:
    assert made.hosts[0]["versions"] == {"torch": "2.9.0+cu129", "driver": "<580> ***"}
    data = replace(made, reproduce="cd /home/ann && ddp-orch up", version="1.2.3", written_at="2026")
    text = html.render(asdict(data))
    assert "gpu-[0-1]" in text and "2.9.0+cu129" in text and "&lt;580&gt;" in text
    assert "<pre>cd /home/ann &amp;&amp; ddp-orch up</pre>" in text and "by ddp-orch 1.2.3" in text


def test_disks_and_memory_have_curves(made: report_data.Report) -> None:
    assert [round(value) for _, value in made.machines["read"]["gpu-0"]] == [3_000_000] * 3
    assert [round(value) for _, value in made.machines["written"]["gpu-1"]] == [4_000_000] * 3
    assert {value for _, value in made.machines["memory"]["gpu-0"]} == {100 / 64}


@pytest.mark.parametrize(
    ("rates", "total"),
    [
        ({0: [100, 100], 1: [120, 130]}, [220, 230]),
        ({0: [100, 110], 1: [100, 110]}, [100, 110]),  # each rank prints the rate of all
        ({0: [100, 84, 100], 1: [120, 84, 100]}, [220, 168, 200]),  # equal by chance
        ({0: [100, 110], 1: [120]}, [220]),  # rank 1 has not printed its second one yet
    ],
)
def test_the_throughput_of_all_ranks_is_drawn(rates: dict[int, list[int]], total: list[int]) -> None:
    figures = [
        Line(1000.0 + step, "gpu-0", rank, "stdout", 1, f"step:{step} samples/s:{rate}")
        for rank, values in rates.items()
        for step, rate in enumerate(values)
    ]
    data = asdict(make(records(), "running", {}, figures, [], DIAGNOSIS, Mask()))
    shown = html._with_throughput(data["training"])
    assert [value for _, value in shown["throughput"]["attempt 1"]] == total


def test_a_run_of_which_little_is_known_has_a_report_too() -> None:
    known = {"gpu-0": {**records()["gpu-0"], "events": [], "samples": [], "exit": None}}
    made = make(known, "running", {}, [], [], {"findings": [], "consequences": []}, Mask())
    text = html.render(asdict(made))
    assert "ended (UTC)" not in text and "no data" in text


def tiles(made: report_data.Report) -> dict[str, str]:
    page = html.render(asdict(made))
    return {name: text for text, name in re.findall(r'<div class="tile"><b>(.*?)</b><span>(.*?)</span>', page)}


def of_lines(*texts: str) -> report_data.Report:
    """The report of a run of which rank 0 has printed these lines, one per second."""
    lines = [Line(1001.0 + number, "gpu-0", 0, "stdout", 1, text) for number, text in enumerate(texts)]
    return make(records(), "failed", {}, lines, [], DIAGNOSIS, Mask())


def test_the_last_step_is_that_of_any_line() -> None:
    made = of_lines("step 1 loss 3", "step 2 loss 2", "step 3 lr 0.1")
    shown = tiles(made)
    assert (shown["last step"], shown["last loss"]) == ("3", "2")
    assert "after" not in " ".join(shown)


@pytest.mark.parametrize(
    ("texts", "loss"),
    [
        (["1/2 x", "2/2 loss 3", "1/2 x", "2/2 loss 2", "1/2 loss 1"], [(2.0, 3.0), (4.0, 2.0), (5.0, 1.0)]),
        (["2/2 loss 3", "2/2 loss 2", "2/2 loss 1"], [(1.0, 3.0), (2.0, 2.0), (3.0, 1.0)]),  # by seconds
        (["500/900 loss 3", "1/9 x", "9/9 x", "501/900 loss 2"], [(500.0, 3.0), (501.0, 2.0)]),  # of an evaluation
    ],
)
def test_steps_that_begin_anew_in_each_epoch_are_counted_on(texts: list[str], loss: list[tuple[float, float]]) -> None:
    bars = [
        f"train: 50%|#####     | {text.split()[0]} [00:01<00:01, 1.00it/s] {text.partition(' ')[2]}" for text in texts
    ]
    assert list(of_lines(*bars).training["loss"]["attempt 1, rank 0"]) == loss


def test_without_steps_the_page_names_none_and_its_curves_are_by_time() -> None:
    made = of_lines("loss 3.5", "loss 2.25")
    shown = tiles(made)
    assert made.last_step is None and "last step" not in shown
    assert shown["last loss, after 2 s"] == "2.25"
    assert made.training["loss"]["attempt 1, rank 0"] == ((1.0, 3.5), (2.0, 2.25))
    training = html.render(asdict(made)).partition('id="training"')[2].partition('id="timeline"')[0]
    assert "seconds" in training and "by step" not in training


def test_a_line_without_a_step_belongs_to_the_step_before() -> None:
    made = of_lines("loss 9", "step 10", "loss 3", "step 20 loss 2")
    assert made.training["loss"]["attempt 1, rank 0"] == ((10, 3), (20, 2))


def test_figures_of_a_rank_without_steps_belong_to_the_newest_step_of_any_rank() -> None:
    texts = {0: ["step 10 loss 4", "step 20 loss 3"], 1: ["loss 4.5", "loss 3.5"]}
    lines = [
        Line(1000.0 + 10 * number + rank, f"gpu-{rank}", rank, "stdout", 1, texts[rank][number])
        for rank in (1, 0)  # as the hosts answer, one after the other
        for number in range(2)
    ]
    made = make(records(), "failed", {}, lines, [], DIAGNOSIS, Mask())
    assert made.training["loss"]["attempt 1, rank 1"] == ((10, 4.5), (20, 3.5))
    assert made.training["loss"]["attempt 1, rank 0"] == ((10, 4), (20, 3))


def test_a_loss_that_is_not_finite_is_the_last_one_and_the_page_begins_with_it() -> None:
    made = of_lines("step 8 loss 0.6586", "step 16 loss nan", "step 24 loss nan")
    assert (made.last_loss, tiles(made)["last loss"]) == ("nan", "nan")
    assert "gpu-0: step 16" in made.bad_loss
    assert made.bad_loss in html.render(asdict(made)).partition("<nav>")[0]
    assert made.training["loss"]["attempt 1, rank 0"] == ((8.0, 0.6586),)
    json.dumps(asdict(made), allow_nan=False)


def test_a_loss_that_is_finite_again_is_no_bad_one() -> None:
    made = of_lines("loss inf", "loss 2.5")
    assert (made.last_loss, made.bad_loss, tiles(made)["last loss, after 2 s"]) == (2.5, "", "2.5")


def test_where_ranks_print_no_figures_the_page_says_which_would_be_shown() -> None:
    page = html.render(asdict(of_lines("hello")))
    assert "<code>step 120 loss 2.31</code>" in page and "last step" not in page and "last loss" not in page


def test_a_report_of_a_part_of_the_time_says_which() -> None:
    made = make(records(), "failed", {}, [], [], DIAGNOSIS, Mask(), (), Span(since=1010.0, until=1020.0))
    assert [at for at, _ in made.machines["gpu"]["gpu-0"]] == [10.0, 20.0]
    assert made.machines["cpu"]["gpu-1"][0] == (10.0, 10.0)  # since the sample before that time
    assert (made.since, made.until) == ("1970-01-01T00:16:50.000000Z", "1970-01-01T00:17:00.000000Z")
    assert made.timeline  # of the whole run
    page = html.render(asdict(made))
    assert "from 1970-01-01 00:16:50 to 1970-01-01 00:17:00" in page
    assert "1970-01-01 00:16:50" not in html.render(asdict(replace(made, since=None, until=None)))


def test_of_a_long_line_the_peaks_are_kept() -> None:
    points = [(float(number), 1.0) for number in range(100_000)]
    points[54_321] = (54_321.0, 500.0)
    drawn = chart("loss", {"rank 0": points}, "step")
    (where,) = re.findall(r'polyline points="([^"]+)"', drawn)
    assert len(where.split()) <= MAX_POINTS + 2
    assert min(float(place.split(",")[1]) for place in where.split()) < 20


def test_numbers_that_are_none_and_lines_of_one_point_can_be_drawn() -> None:
    assert "<circle" in chart("loss", {"a": [(1.0, 2.0)]}, "step")
    assert "no data" in chart("loss", {"a": [(1.0, float("nan"))]}, "step")
    assert "<polyline" in chart("loss", {"a": [(0.0, 0.0), (1.0, 0.0)]}, "step")


def test_a_loss_that_hardly_falls_fills_its_chart() -> None:
    def span(from_zero: bool) -> float:
        drawn = chart("loss", {"a": [(0.0, 11.0), (1.0, 10.5)]}, "step", from_zero=from_zero)
        (where,) = re.findall(r'polyline points="([^"]+)"', drawn)
        first, last = (float(place.split(",")[1]) for place in where.split())
        return last - first

    assert span(from_zero=True) < 10 < 100 < span(from_zero=False)
    assert "<polyline" in chart("loss", {"a": [(0.0, 2.0), (1.0, 2.0)]}, "step", from_zero=False)


def test_of_a_lost_run_only_the_host_that_was_lost_is_called_so() -> None:
    known = records()
    lost = {**VERDICT, "state": "lost", "first_failure": {**FIRST, "what": "host lost", "rank": None}}
    for one in known.values():
        one["run"] = {**one["run"], "state": "lost", "verdict": lost}
    made = make(known, "lost", {}, [], [], DIAGNOSIS, Mask())
    assert [(one["host"], one["state"]) for one in made.hosts] == [("gpu-0", "stopped"), ("gpu-1", "lost")]


def test_only_a_report_is_replaced(made: report_data.Report, tmp_path: Path) -> None:
    page, data = html.render(asdict(made)), json.dumps(asdict(made))
    path, beside = tmp_path / "package.html", tmp_path / "package.json"
    for _ in range(2):  # the second time in place of the first
        report.write(path, page, data)
        assert (path.read_text(), beside.read_text()) == (page, data)
    for file, text in ((beside, '{"name": "package"}'), (beside, "[]"), (path, "<html>"), (path, "x" * 9)):
        report.write(path, page, data)
        file.write_text(text)
        with pytest.raises(UsageError, match=f"/{file.name} "):
            report.write(path, page, data)
        assert file.read_text() == text and {path.read_text(), beside.read_text()} & {page, data}
        file.unlink()


def test_of_many_ranks_the_highest_the_median_and_the_lowest_are_drawn() -> None:
    lines = {str(rank): [(float(step), float(rank + step)) for step in (0, 1)] for rank in range(9)}
    assert bands.summarise(lines) == {
        "highest": ((0.0, 8.0), (1.0, 9.0)),
        "median": ((0.0, 4.0), (1.0, 5.0)),
        "lowest": ((0.0, 0.0), (1.0, 1.0)),
    }


def test_a_slow_rank_stands_out_in_the_heat_map() -> None:
    ranks = {rank: [(float(step), 2.0 if (rank, step) == (5, 3) else 1.0) for step in range(4)] for rank in range(8)}
    drawn = bands.heat_map("step time", ranks, "step")
    (slow,) = re.findall(rf'<rect x="([0-9.]+)" y="(\d+)"[^>]*fill="{bands.COLD_TO_HOT[-1]}"', drawn)
    assert float(slow[0]) > bands.WIDTH / 2 and int(slow[1]) == 5 * bands.LABEL_HEIGHT
    assert bands.heat_map("step time", {0: ranks[0]}, "step") == ""


def test_a_host_whose_gpus_were_idle_stands_out() -> None:
    hosts = {
        f"gpu-{host}": [(float(at), 0.0 if (host, at) == (2, 3) else 99.0) for at in range(4)] for host in range(4)
    }
    drawn = bands.use_map("GPU", hosts, "seconds")
    (idle,) = re.findall(rf'<rect x="([0-9.]+)" y="(\d+)"[^>]*fill="{bands.IDLE_TO_BUSY[0]}"', drawn)
    assert float(idle[0]) > bands.WIDTH / 2 and int(idle[1]) == 2 * bands.LABEL_HEIGHT and ">gpu-2</text>" in drawn
    assert bands.use_map("GPU", {}, "seconds") == bands.use_map("GPU", {"gpu-0": hosts["gpu-0"]}, "seconds") == ""


def test_the_legend_is_sorted_and_names_an_attempt_once(made: report_data.Report) -> None:
    data = asdict(made)
    points = [(0.0, 1.0), (1.0, 2.0)]
    data["training"]["loss"] = {
        f"attempt {attempt}, rank {rank}": points for attempt, rank in ((1, 10), (1, 2), (2, 0), (1, 0), (2, 1))
    }
    legend = re.search(r"<figcaption>loss .*?</figcaption>", html.render(data))
    assert legend is not None
    shown = re.findall(r"<span[^>]*>(.*?)</span>", legend[0])
    assert shown == ["attempt 1, rank 0", "rank 2", "rank 10", "attempt 2, rank 0", "rank 1"]
    data["training"]["loss"] = {
        f"attempt {attempt}, rank {rank}": points for attempt in range(1, 5) for rank in (0, 1, 2)
    }
    page = html.render(data)
    legend = re.search(r"<figcaption>loss .*?</figcaption>", page)
    assert legend is not None and re.findall(r"<span[^>]*>(.*?)</span>", legend[0]) == ["rank 0", "rank 1", "rank 2"]
    lines = re.findall(r"stroke=\"(\S+)\"( opacity=\S+)?><title>attempt (\d), rank (\d)<", page)
    assert len(lines) == 12 and len({(colour, rank) for colour, _, _, rank in lines}) == 3
    assert {attempt for _, pale, attempt, _ in lines if not pale} == {"4"}
    data["training"]["loss"] = {f"attempt 1, rank {rank}": points for rank in (1, 0)}
    legend = re.search(r"<figcaption>loss .*?</figcaption>", html.render(data))
    assert legend is not None and re.findall(r"<span[^>]*>(.*?)</span>", legend[0]) == ["rank 0", "rank 1"]


def bars_of(*timeline: tuple[float, str, str], measured_until: float = 0.0) -> list[tuple[float, float]]:
    """The left and the right end of each attempt in the report of these events, and the marks, in percent."""
    events = [{"seconds": at, "kind": kind, "what": what} for at, kind, what in timeline]
    drawn = html._attempts({"timeline": events, "machines": {"memory": {"a": ((0.0, 1.0), (measured_until, 1.0))}}})
    bars = re.findall(r'class="attempt" style="left:([0-9.]+)%;width:([0-9.]+)%', drawn)
    marks = re.findall(r'class="event" style="left:min\(([0-9.]+)%', drawn)
    return [(float(x), float(x) + float(width)) for x, width in bars] + [(float(x), float(x)) for x in marks]


def test_the_bar_of_an_attempt_ends_with_it_and_not_with_the_wait_for_the_next_one() -> None:
    first, lost = (0.0, "attempt", "attempt 1 started"), (10.0, "failure", "a, the head, was lost; b was elected")
    ended = (20.0, "end", "b: attempt 1: all processes failed or were stopped")
    again, end = (80.0, "attempt", "attempt 2 started"), (100.0, "end", "the run succeeded")
    assert bars_of(first, lost, ended, again, end) == [(0, 20), (80, 100), (10, 10)]
    assert bars_of(first, lost, again, end) == [(0, 10), (80, 100), (10, 10)]
    assert bars_of(first, (50.0, "change", "c is back"), measured_until=100.0) == [(0, 100)]


def test_a_curve_is_interrupted_where_a_host_was_off() -> None:
    points = [(float(at), 1.0) for at in (0, 10, 20, 31, 100, 110, 200)]
    drawn = chart("CPU", {"a": points}, "seconds", gap=2.5)
    assert (drawn.count("<polyline"), drawn.count("<circle")) == (2, 1)
    assert chart("CPU", {"a": points}, "seconds").count("<polyline") == 1


def test_the_report_of_512_ranks_over_a_day_stays_small(made: report_data.Report) -> None:
    data = asdict(made)
    points = [(step, random.Random(step).random()) for step in range(0, 86_400, 60)]
    names = [f"attempt {attempt}, rank {rank}" for attempt in (1, 2) for rank in range(512)]
    data["training"] = {name: dict.fromkeys(names, points) for name in data["training"]}
    for rank in range(0, 512, 3):  # no two neighbours have the same colours
        data["training"]["step_time"][f"attempt 1, rank {rank}"] = [
            (x, random.Random(x + rank).random()) for x, _ in points
        ]
    data["machines"] = {name: {f"gpu-{number}": points for number in range(64)} for name in data["machines"]}
    lines = [
        Line(86_400.0 + number, f"gpu-{number % 64:02}", number % 512, "stdout", 2, f"step:{number} " + "word " * 60)
        for number in range(12 * 512)
    ]
    data["log"] = make(records(), "failed", {}, [], [], DIAGNOSIS, Mask(), lines).log
    size = len(html.render(data).encode())
    assert 500_000 < size < 2_000_000
