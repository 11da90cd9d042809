"""`ps`: what its table says, and what it leaves out."""

from __future__ import annotations

import io
import re
from dataclasses import replace
from typing import Any

import pytest
from fake_relay import part_of

from orchestrator.answers.runs import OtherUsersRun, Size, WarmPython
from orchestrator.commands import ps
from orchestrator.inventory.advice import AboutRun
from orchestrator.output.console import Console
from orchestrator.runs import registry, waiting
from orchestrator.runs.registry import Listing, Run

STARTED = "2026-01-01T12:00:00.000000Z"
NOON = 1767268800.0


def run(number: int, state: str = "running", attempt: int = 1, name: str = "", **more: Any) -> Run:
    part = part_of(**{"state": state, "hosts": ["a"], "nprocs": [1], "team": 1, **more})
    run_id = f"20260101-120000-000{number}"
    return Run(run_id, name or run_id, state, attempt, STARTED, {"a": part})


def show(shown: list[Run], now: float, answered: str = "") -> None:
    ps._print(Listing(tuple(shown), {}, frozenset(answered.split())), shown, now)


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(0, "0m00s"), (59.9, "0m59s"), (61, "1m01s"), (3599, "59m59s"), (7500, "2h05m"), (93600, "1d02h"), (-5, "0m00s")],
)
def test_the_time_is_how_long_a_run_goes_on_or_went_on(
    capsys: pytest.CaptureFixture[str], seconds: float, shown: str
) -> None:
    show([run(1), run(2, "failed", ended_at=NOON + seconds), run(3, "lost")], NOON + seconds)
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert rows[0] == ["RUN", "STATE", "TIME", "BY", "SCRIPT", "HOSTS"]
    assert [row[2] for row in rows[1:]] == [shown, shown, "-"]
    assert rows[1][3:] == ["ann@laptop", "train.py", "a"]


def test_a_name_and_an_attempt_are_columns_once_a_run_has_one(capsys: pytest.CaptureFixture[str]) -> None:
    show([run(1), run(2, attempt=3, name="exp")], NOON)
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert rows[0] == ["RUN", "NAME", "STATE", "ATTEMPT", "TIME", "BY", "SCRIPT", "HOSTS"]
    assert rows[1][1] == "running" and rows[2][1:4] == ["exp", "running", "3"]


def test_the_disk_space_of_a_run_is_that_on_all_its_hosts(capsys: pytest.CaptureFixture[str]) -> None:
    whole = run(1, size={"record": 1_000_000, "outputs": 5_000_000_000})
    whole = replace(whole, parts={**whole.parts, "b": replace(whole.parts["a"], size=Size(500_000, None))})
    show([whole, run(2, size={"record": 1_000_000, "outputs": None}), run(3)], NOON)
    rows = [re.split(" {2,}", line.strip()) for line in capsys.readouterr().out.splitlines()]
    assert rows[0][-2:] == ["DISK", "OUTPUTS"]
    assert [row[6:] for row in rows[1:]] == [["1.5 MB", "5.0 GB"], ["1.0 MB", "-"], []]


def test_a_host_that_waits_as_a_spare_is_shown_and_how_it_takes_part(capsys: pytest.CaptureFixture[str]) -> None:
    of_run = {"hosts": ["a", "b", "c"], "nprocs": [1, 1, 1], "team": 3, "ranks": 3, "state": "running"}
    parts = {name: part_of(**of_run, node=node, host=name, node_rank=node) for node, name in enumerate("abc")}
    full = Run("20260101-120000-0001", "exp", "running", 2, STARTED, parts)
    back = replace(full, parts={**parts, "b": part_of(**of_run, node=1, host="b", node_rank=None, first_rank=None)})
    spare = replace(back, parts={host: replace(part, team=2) for host, part in back.parts.items()})
    show([full, back, spare], NOON)
    hosts = [re.split(" {2,}", line.strip())[-1] for line in capsys.readouterr().out.splitlines()[1:]]
    assert hosts == ["a,b,c", "a,c, spare b", "a,c, spare b"]
    out = io.StringIO()
    for one in (full, back, spare):
        ps._note_waiting_spares(one, Listing((one,), {}), "inventory.yaml", Console(out, False))
    assert out.getvalue().count("\n") == 1 and "ddp-orch restart exp" in out.getvalue()


def test_no_host_with_a_full_disk_is_promised_for_the_next_attempt() -> None:
    of_run = {"hosts": ["a", "b", "c"], "nprocs": [1, 1, 1], "team": 3, "ranks": 3, "unfit": {"b": ["disk-full"]}}
    ranks = {"a": 0, "b": None, "c": 1}
    parts = {
        host: part_of(**of_run, node=node, host=host, node_rank=ranks[host], first_rank=ranks[host])
        for node, host in enumerate("abc")
    }
    one = Run("20260101-120000-0001", "exp", "running", 2, STARTED, parts)
    out = io.StringIO()
    ps._note_waiting_spares(one, Listing((one,), {}), "inventory.yaml", Console(out, False))
    assert not out.getvalue()
    ps._note_unfit(one, Console(out, False))
    assert "b: not used: disk-full" in out.getvalue()


def test_a_run_that_waits_for_hosts_is_reported_with_them_and_the_time() -> None:
    out = io.StringIO()
    for one in (run(1), run(2, "waiting", waits={"hosts": ["b", "c"], "until": NOON + 60})):
        waiting.note(one, Console(out, False))
    (line,) = out.getvalue().splitlines()
    assert "20260101-120000-0002" in line and "b,c" in line and "2026-01-01T12:01:00Z" in line


def test_parts_that_wait_for_each_other_are_told_apart() -> None:
    awaited = {"a": ["c", "d"], "b": ["c", "d"], "c": ["a", "b"], "d": ["a", "b"]}
    known = {"hosts": list("abcd"), "nprocs": [1] * 4, "state": "waiting"}
    parts = {
        host: part_of(**known, host=host, node=node, waits={"hosts": hosts, "until": NOON})
        for node, (host, hosts) in enumerate(awaited.items())
    }
    for answering, is_cut in (("abcd", True), ("abc", False), ("ab", False)):
        out = io.StringIO()
        one = Run("20260101-120000-0001", "exp", "waiting", 1, "", {host: parts[host] for host in answering})
        waiting.note(one, Console(out, False))
        assert ("a,b for c,d and c,d for a,b" in out.getvalue()) == is_cut
        assert "waits" in out.getvalue()


@pytest.mark.parametrize(("unfit", "revives"), [({}, True), ({"b": ["disk-full"]}, False)])
def test_a_run_that_waits_for_a_disk_is_not_to_be_revived(unfit: dict[str, list[str]], revives: bool) -> None:
    of_run = {"hosts": ["a", "b"], "nprocs": [1, 1], "state": "waiting", "waits": {"hosts": ["b"], "until": NOON}}
    parts = {host: part_of(**of_run, unfit=unfit, node=node, host=host) for node, host in enumerate("ab")}
    text = waiting.advise(
        Run("20260101-120000-0001", "exp", "waiting", 2, STARTED, parts), AboutRun("exp", "inventory.yaml")
    )
    assert ("ddp-orch revive exp" in text) == revives
    assert ("disk-full" in text) == (not revives)


@pytest.mark.parametrize(
    ("columns", "left_out"), [(70, {"BY", "SCRIPT"}), (80, {"BY"}), (160, set())], ids=lambda value: str(value)
)
def test_a_narrow_terminal_shows_fewer_columns_and_cuts_none(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, columns: int, left_out: set[str]
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", str(columns))
    sizes = {"record": 1_500_000, "outputs": 12_300}
    show([run(1, name="ctl2", by="root@controller", size=sizes)], NOON)
    header, row = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out).splitlines()
    wanted = ["RUN", "NAME", "STATE", "TIME", "BY", "SCRIPT", "HOSTS", "DISK", "OUTPUTS"]
    assert header.split() == [column for column in wanted if column not in left_out]
    assert {"ctl2", "12.3"} <= set(row.split())


def test_what_a_host_says_of_a_run_moves_no_cursor_and_is_no_markup(capsys: pytest.CaptureFixture[str]) -> None:
    show([run(1, by="[red]x[/]\x1b[2J@b", script="a\x1b]0;title\x07.py\nb")], NOON)
    said = capsys.readouterr().out
    assert "\x1b" not in said and "\x07" not in said and "[red]x" in said and len(said.splitlines()) == 2


def test_a_start_that_is_no_day_of_the_calendar_ends_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    show([Run("20260101-120000-0001", "x", "running", 1, "2026-99-99T12:00:00Z", run(1).parts)], NOON)
    assert capsys.readouterr().out.splitlines()[1].split()[3] == "-"


def test_a_run_goes_on_though_one_host_has_ended(capsys: pytest.CaptureFixture[str]) -> None:
    show([run(1, ended_at=NOON + 60)], NOON + 7500)
    assert "2h05m" in capsys.readouterr().out


def test_a_host_that_has_answered_was_heard_though_it_has_the_record_no_more(
    capsys: pytest.CaptureFixture[str],
) -> None:
    of_three = run(1, hosts=["a", "b", "c"])
    show([of_three], NOON, answered="a b")
    assert re.search(r"  a \([^)]*\bc\)$", capsys.readouterr().out.rstrip())


def test_a_drained_host_is_not_listed_as_a_host_that_the_run_uses(capsys: pytest.CaptureFixture[str]) -> None:
    used = run(1, hosts=["a", "b"], nprocs=[1, 1])
    verdict = {"state": "stopped", "first_failure": None, "stopped_by": "ann@laptop", "left": True}
    idle = {"node": 1, "host": "b", "node_rank": None, "first_rank": None}
    drained = part_of(hosts=["a", "b"], nprocs=[1, 1], state="stopped", verdict=verdict, **idle)
    show([Run(used.run_id, "x", "running", 2, STARTED, {**used.parts, "b": drained})], NOON)
    assert capsys.readouterr().out.rstrip().endswith(" a, drained b")


def test_a_host_that_the_run_has_lost_is_named_as_long_as_it_can_come_back(capsys: pytest.CaptureFixture[str]) -> None:
    two = {"hosts": ["a", "b"], "nprocs": [1, 1]}
    parts = {"a": part_of(**two), "b": part_of(**two, node=1, host="b", state="lost")}
    show([Run("20260101-120000-0001", "x", "running", 2, STARTED, parts)], NOON)
    assert capsys.readouterr().out.rstrip().endswith(" a, lost b")
    assert Run("20260101-120000-0001", "x", "succeeded", 2, STARTED, parts).without_guard == ()


def test_of_runs_that_up_watch_has_replaced_the_newest_is_shown() -> None:
    watched = {"verdict": {"state": "stopped", "first_failure": None, "stopped_by": registry.WATCH}}
    by_user = {"verdict": {"state": "killed", "first_failure": None, "stopped_by": "ann@laptop"}}
    runs = [
        run(1, "stopped", name="x", **watched),
        run(2, "killed", name="x", **by_user),
        run(3, "stopped", name="x", **watched),
        run(4, "stopped", name="y", **watched),
        run(5, "stopped", name="x", **watched),
        run(6, "running", name="x"),
    ]
    assert ps._replaced(runs) == [runs[0], runs[2]]


def test_what_run_warm_keeps_is_listed_by_host(capsys: pytest.CaptureFixture[str]) -> None:
    kept = WarmPython(4711, "/opt/python", ("torch", "numpy"), age=61.0, left=839.0, memory=300 << 20)
    ps._print_warm({"b": [kept], "a": [kept]})
    rows = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert rows[1:] == [f"{host} 4711 /opt/python torch numpy 1m01s 13m59s 300 MiB" for host in "ab"]


def test_without_run_warm_nothing_is_listed(capsys: pytest.CaptureFixture[str]) -> None:
    ps._print_warm({})
    assert capsys.readouterr().out == ""


def test_a_run_of_another_user_is_one_row_for_all_its_hosts(capsys: pytest.CaptureFixture[str]) -> None:
    bobs = OtherUsersRun("20260101-110000-0007", "bob")
    ps._print_others({"gpu-2": [bobs, OtherUsersRun("20269999-110000-0008", "eve")], "gpu-1": [bobs]}, NOON)
    rows = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert rows[1:] == [
        "20260101-110000-0007 bob 1h00m gpu-[1-2]",
        "20269999-110000-0008 eve - gpu-2",
    ]


@pytest.mark.parametrize(("answering", "restarts"), [("ac", True), ("abcd", False)])
def test_without_a_majority_the_hosts_that_answer_can_start_again(answering: str, restarts: bool) -> None:
    of_run = {"hosts": list("abcd"), "nprocs": [1] * 4, "state": "waiting", "team": 4, "ranks": 4}
    silent = {"a": ["b", "d"], "b": ["a", "c"], "c": ["b", "d"], "d": ["a", "c"]}
    parts = {
        host: part_of(**of_run, host=host, node=node, waits={"hosts": silent[host], "until": NOON, "no_majority": True})
        for node, host in enumerate("abcd")
        if host in answering
    }
    text = waiting.describe_no_majority(Run("R", "exp", "waiting", 1, "", parts), AboutRun("exp", "inventory.yaml"))
    assert "no majority" in text and "a,c" in text
    assert ("restart --hosts a,c exp" in text) == ("1 host of b,d" in text) == restarts


CUT = {"hosts": ["a", "c"], "until": NOON, "no_majority": True}


def test_a_host_that_is_cut_off_alone_is_lost_and_no_spare(capsys: pytest.CaptureFixture[str]) -> None:
    """It knows nothing of the attempt that the others have begun without it."""
    of_run = {"hosts": list("abc"), "nprocs": [1] * 3, "team": 3, "ranks": 3}
    parts = {host: part_of(**of_run, host=host, node=node) for node, host in ((0, "a"), (2, "c"))}
    parts["b"] = part_of(**of_run, host="b", node=1, state="waiting", node_rank=None, waits=CUT)
    continues = Run("20260101-120000-0001", "x", "running", 2, STARTED, parts)
    show([continues], NOON)
    assert capsys.readouterr().out.rstrip().endswith(" a,c, lost b")
    assert continues.spares == () and "b" in waiting.describe_cut_off(continues)
    assert [node["state"] for node in continues.as_dict()["nodes"]] == ["running", "lost", "running"]
    waits = Run("20260101-120000-0001", "x", "waiting", 2, STARTED, parts)
    assert waits.cut_off == () and waits.spares == ("b",)


def test_hosts_that_answer_are_not_to_be_started_again_because_one_does_not_hear_them() -> None:
    of_run = {"hosts": list("abc"), "nprocs": [1] * 3, "team": 3, "ranks": 3, "state": "waiting"}
    parts = {host: part_of(**of_run, host=host, node=node) for node, host in ((0, "a"), (2, "c"))}
    parts["b"] = part_of(**of_run, host="b", node=1, waits=CUT)
    run = Run("R", "exp", "waiting", 1, "", parts)
    text = waiting.describe_no_majority(run, AboutRun("exp", "inventory.yaml"))
    assert "network" in text and "ddp-orch" not in text
    assert waiting.restart_without(run, AboutRun("exp", "inventory.yaml")) == ""
