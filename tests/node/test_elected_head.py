"""Runs on real processes that survive the loss of their head: the others elect one of them."""

from __future__ import annotations

import json
import re
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from lab.waiting import wait_until
from local_runs import Run, Runs
from test_rejoin import lose, rejoin

from orchestrator.hosts.session import Refused
from orchestrator.node.host import processes

WORK = """
import os, sys, time
attempt = int(os.environ["DDP_ORCH_ATTEMPT"])
print("attempt", attempt, "rank", os.environ["RANK"], "of", os.environ["WORLD_SIZE"], flush=True)
print("at", os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"], flush=True)
while not os.path.exists(sys.argv[1]):
    time.sleep(0.05)
"""
LEASE = 2  # s


def electing(nnodes: str = "2:3", **more: Any) -> str:
    options = {"max_restarts": 3, "head_lost": "elect", "lease": LEASE, "nnodes": nnodes, **more}
    return ", ".join(f"{key}: {json.dumps(value)}" for key, value in options.items())


def test_a_run_succeeds_whose_head_is_never_lost(runs: Runs, tmp_path: Any) -> None:
    end = tmp_path / "end"
    run = runs.start(WORK, str(end), nproc=(1, 1, 1), options=electing())
    for node in range(3):
        run.wait_for(f"attempt 1 rank {node} of 3", f"1.{node}.out", node)
    end.touch()
    assert [record["verdict"]["state"] for record in run.wait_over()] == ["succeeded"] * 3


def test_the_others_continue_without_their_head(runs: Runs, tmp_path: Any) -> None:
    end = tmp_path / "end"
    run = runs.start(WORK, str(end), nproc=(1, 1, 1), options=electing())
    for node in range(3):
        run.wait_for(f"attempt 1 rank {node} of 3", f"1.{node}.out", node)
    lost_after = time.time()
    lose(run, 0)
    lost_before = time.time()
    run.wait_for("attempt 2 rank 0 of 2", "2.0.out", 1, timeout=40)
    run.wait_for("attempt 2 rank 1 of 2", "2.1.out", 2, timeout=40)
    assert said(run, 1).count("ran on host-0") == 1 and "runs on host-1" in said(run, 1)
    events = [json.loads(line) for line in (run.folder(2) / "gang.jsonl").read_text().splitlines()]
    assert [event["event"] for event in events].count("Noted") == 1
    heard_at = next(event["fields"]["heard_at"] for event in events if event["event"] == "Elected")
    assert lost_after - LEASE <= heard_at <= lost_before + LEASE / 4
    end.touch()
    for node in (1, 2):
        wait_until(lambda node=node: run.record("exit.json", node), 30, f"the run ends on {node}")
        assert run.record("exit.json", node)["verdict"]["state"] == "succeeded"  # type: ignore[index]


def everybody_works(run: Run, attempt: int, *nodes: int) -> None:
    """The nodes in the order of their ranks."""
    for rank, node in enumerate(nodes):
        text = f"attempt {attempt} rank {rank} of {len(nodes)}"
        run.wait_for(text, f"{attempt}.{rank}.out", node, timeout=60)


def said(run: Run, node: int) -> str:
    return "".join(data.decode() for stream, data in run.journal(node).items() if ".run." in stream)


def test_a_run_waits_for_its_old_head_where_it_needs_all_hosts(runs: Runs, tmp_path: Any) -> None:
    end = tmp_path / "end"
    run = runs.start(WORK, str(end), nproc=(1, 1, 1), options=electing("auto"))
    everybody_works(run, 1, 0, 1, 2)
    lose(run, 0)
    wait_until(lambda: "waiting for host-0" in said(run, 1), 30, "the new head waits")
    assert "host-1 leads now" in said(run, 1)
    rejoin(run, 0)
    everybody_works(run, 2, 1, 0, 2)
    end.touch()
    assert [record["verdict"]["state"] for record in run.wait_over()] == ["succeeded"] * 3


def test_a_killed_recorder_of_the_head_costs_nothing(runs: Runs, tmp_path: Any) -> None:
    end = tmp_path / "end"
    run = runs.start(WORK, str(end), nproc=(1, 1, 1), options=electing())
    everybody_works(run, 1, 0, 1, 2)
    before = run.recorder(0)
    assert before is not None
    processes.send(before, signal.SIGKILL)
    wait_until(lambda: run.recorder(0) not in (None, before), 10, "there is a new recorder")
    lines = said(run, 0)
    end.touch()
    assert [record["verdict"]["state"] for record in run.wait_over()] == ["succeeded"] * 3
    assert said(run, 0).startswith(lines) and said(run, 0).count("attempt 1 on") == 1
    assert all(record["verdict"]["attempt"] == 1 for record in run.wait_over())


FALLS_WITH_RANK_0 = """
import os, sys, time
print("here", flush=True)
pid = sys.argv[1]
if os.environ["RANK"] == "0":
    with open(pid + ".new", "w") as file:
        file.write(str(os.getpid()))
    os.rename(pid + ".new", pid)
    time.sleep(300)
while not os.path.exists(pid):
    time.sleep(0.01)
while os.path.exists("/proc/" + open(pid).read()):
    time.sleep(0.001)
sys.exit(1)
"""


def test_a_killed_guard_of_the_head_comes_before_what_fails_of_it(runs: Runs, tmp_path: Any) -> None:
    """The new recorder of the head may hear of the other hosts' ranks as soon as of its own guard."""
    run = runs.start(FALLS_WITH_RANK_0, str(tmp_path / "pid"), nproc=(1,) * 5, options=electing("auto"))
    for node in range(5):
        run.wait_for("here", f"1.{node}.out", node)
    wait_until((tmp_path / "pid").exists, 20, "rank 0 is known")
    processes.send(run.guard(0), signal.SIGKILL)
    wait_until(lambda: "first failure: " in said(run, 0), 40, "there is a first failure")
    assert re.findall(r"first failure: (\S+):", said(run, 0))[0] == "host-0"
    run.stop(1, grace=0.0)


def test_five_hosts_outlast_two_heads(runs: Runs, tmp_path: Any) -> None:
    end = tmp_path / "end"
    run = runs.start(WORK, str(end), nproc=(1,) * 5, options=electing("3:5"))
    everybody_works(run, 1, 0, 1, 2, 3, 4)
    lose(run, 0)
    everybody_works(run, 2, 1, 2, 3, 4)
    lose(run, 1)
    everybody_works(run, 3, 2, 3, 4)
    end.touch()
    for node in (2, 3, 4):
        wait_until(lambda node=node: run.record("exit.json", node), 30, f"the run ends on {node}")
        assert run.record("exit.json", node)["verdict"]["state"] == "succeeded"  # type: ignore[index]


def test_a_stop_ends_a_run_after_an_election(runs: Runs, tmp_path: Any) -> None:
    run = runs.start(WORK, str(tmp_path / "never"), nproc=(1, 1, 1), options=electing())
    everybody_works(run, 1, 0, 1, 2)
    lose(run, 0)
    everybody_works(run, 2, 1, 2)
    assert run.stop(2, grace=1.0)["remaining"] == []
    for node in (1, 2):
        wait_until(lambda node=node: run.record("exit.json", node), 30, f"the run ends on {node}")
        assert run.record("exit.json", node)["verdict"]["state"] == "killed"  # type: ignore[index]


@pytest.mark.parametrize(
    "lost",
    [pytest.param((0, 1), id="with the head"), pytest.param((2, 3), id="without it", marks=pytest.mark.full)],
)
def test_a_run_without_a_majority_stops_and_ends(runs: Runs, tmp_path: Any, lost: tuple[int, int]) -> None:
    heard = tmp_path / "heard"
    options, notify = electing("auto", rejoin_timeout=10), {"command": f"cat >> {heard}"}
    run = runs.start(WORK, str(tmp_path / "never"), nproc=(1,) * 4, options=options, notify=notify)
    everybody_works(run, 1, 0, 1, 2, 3)
    for node in lost:
        lose(run, node)
    left = [node for node in range(4) if node not in lost]
    names = [f"host-{node}" for node in lost]
    for node in left:
        wait_until(lambda node=node: (run.listed(node)["waits"] or {}).get("hosts") == names, 30, "it waits for them")
        assert 0 < run.listed(node)["waits"]["until"] - time.time() < 10
    ended = []
    for node in left:
        wait_until(lambda node=node: run.record("exit.json", node), 40, "the last hosts give up")
        assert set(re.findall(r"no majority .*\(silent: (.*)\)", said(run, node))) == {", ".join(names)}
        assert f"(host-{node})" not in said(run, node)  # it does not miss itself
        record = run.record("exit.json", node)
        assert record is not None
        verdict, failure = record["verdict"], record["verdict"]["first_failure"]
        assert verdict["state"] == "lost" and verdict["attempt"] == 1
        assert failure["host"] == names[0] and {names[1], "majority"} <= set(failure["what"].split())
        assert failure["at"] < record["at"] - 10  # and not when it gave up
        ended.append(record["at"])
    assert abs(ended[0] - ended[1]) < 3
    wait_until(lambda: "was lost" in heard.read_text(), 30, "the last message")
    assert re.findall(r"\"state\": \"(\w+)", heard.read_text()) == ["waiting", "lost"]
    assert heard.read_text().count(f"and {names[1]} as well") == 4  # twice in each message
    assert len(re.findall(r"until \d{4}-\d\d-\d\dT", heard.read_text())) == 1  # the wait has an end


def test_a_request_that_nobody_can_decide_is_refused_and_not_carried_out_later(runs: Runs, tmp_path: Any) -> None:
    run = runs.start(WORK, str(tmp_path / "never"), nproc=(1,) * 4, options=electing("2:4", rejoin_timeout=60))
    everybody_works(run, 1, 0, 1, 2, 3)
    for node in (2, 3):
        lose(run, node)
    wait_until(lambda: (run.listed(0)["waits"] or {}).get("no_majority"), 30, "it waits for a majority")
    with pytest.raises(Refused) as refused:
        run.hosts[0].session.request("drain", {"run_id": run.run_id, "node": 3, "by": "ann"})
    assert refused.value.code == "no-majority"
    rejoin(run, 2)
    ranks = [f"2.{rank}.out" for rank in range(3)]

    def work(node: int) -> bool:
        """Whoever leads now."""
        return any(b" of 3" in run.journal(node).get(rank, b"") for rank in ranks)

    for node in range(3):
        wait_until(lambda node=node: work(node), 60, f"a rank of attempt 2 on host {node}")
    assert run.listed(0)["drained"] == []
    run.stop()


def senders(folder: Path) -> list[str]:
    """The processes that send a message from hosts in this folder."""
    commands = [processes.command(pid) for pid in processes.pids()]
    return [command for command in commands if str(folder) in command and command.endswith(" notify")]


def test_the_loss_of_the_majority_is_told_once_though_the_last_hosts_give_up_one_after_the_other(
    runs: Runs, tmp_path: Any
) -> None:
    """The old head gives up first. It has had no majority for longer than the other host had a head."""
    heard = tmp_path / "heard"
    options, notify = electing("auto", lease=4, rejoin_timeout=14), {"command": f"cat >> {heard}"}
    run = runs.start(WORK, str(tmp_path / "never"), nproc=(1,) * 4, options=options, notify=notify)
    everybody_works(run, 1, 0, 1, 2, 3)
    for node in (2, 3):
        lose(run, node)
    for node in (0, 1):
        wait_until(lambda node=node: run.record("exit.json", node), 60, "the last hosts give up")
    wait_until(lambda: not senders(tmp_path), 20, "no message is on its way")
    assert re.findall(r"\"state\": \"(\w+)", heard.read_text()) == ["waiting", "lost"]


def add(runs: Runs, run: Run, head: int, others: Sequence[int]) -> None:
    """As `ddp-orch add` does it. `others`: the nodes that vote beside the head, which may be lost next."""
    host = runs.hosts(len(run.hosts) + 1)[-1]
    at_head, name = run.hosts[head].session, f"host-{len(run.hosts)}"
    blueprint = at_head.request("blueprint", {"run_id": run.run_id})
    asked = {"run_id": run.run_id, "host": name, "nproc": 1, "by": "the test"}
    number = at_head.request("add", asked)["node"]
    assert number == len(run.hosts)
    known = run.listed(head)["hosts"][:number]
    first = [node for node in blueprint["spec"]["nodes"] if not node.get("added")]
    nodes = [{**first[0], "host": other, "spare": True, "added": True} for other in (*known[len(first) :], name)]
    spec = {**blueprint["spec"], "node": number, "host": name, "head": head, "nodes": [*first, *nodes]}
    private = at_head.request("ticket", {"run_id": run.run_id})["private"]
    at = {"addresses": blueprint["start"]["link_addresses"], "link_port": spec["contact"]["port"], "rdzv_port": None}
    host.session.request("prepare", {"spec": spec, "private": private, "head": at})
    run.hosts = [*run.hosts, host]
    for node in (head, *others):
        wait_until(lambda node=node: number in voters(run, node), 30, f"{node} knows that {name} votes")


def voters(run: Run, node: int) -> list[int]:
    """The last that its log has; [] before the first change."""
    events = [json.loads(line) for line in (run.folder(node) / "gang.jsonl").read_text().splitlines()]
    return next((event["fields"]["nodes"] for event in reversed(events) if event["event"] == "Voters"), [])


def test_hosts_that_are_added_vote_and_lead(runs: Runs, tmp_path: Any) -> None:
    """At the end, two of the first three hosts are lost, which would be no majority."""
    end = tmp_path / "end"
    run = runs.start(WORK, str(end), nproc=(1, 1, 1), options=electing("1:5"))
    everybody_works(run, 1, 0, 1, 2)
    add(runs, run, head=0, others=(1, 2))
    lose(run, 0)
    everybody_works(run, 2, 1, 3, 2)  # it has the seat of the lost host
    add(runs, run, head=1, others=(2, 3))
    lose(run, 1)
    everybody_works(run, 3, 2, 4, 3)
    end.touch()
    for node in (2, 3, 4):
        wait_until(lambda node=node: run.record("exit.json", node), 30, f"the run ends on {node}")
        assert run.record("exit.json", node)["verdict"]["state"] == "succeeded"  # type: ignore[index]


def test_a_head_that_is_drained_hands_over(runs: Runs, tmp_path: Any) -> None:
    end = tmp_path / "end"
    run = runs.start(WORK, str(end), nproc=(1, 1, 1), options=electing(max_restarts=1))
    everybody_works(run, 1, 0, 1, 2)
    asked = {"run_id": run.run_id, "node": 0, "by": "the test"}
    assert run.hosts[0].session.request("drain", asked)["accepted"]
    everybody_works(run, 2, 1, 2)
    wait_until(lambda: run.record("exit.json", 0), 30, "the old head ends")
    assert run.record("exit.json", 0)["verdict"]["state"] == "stopped"  # type: ignore[index]
    assert "host-1 leads now" in said(run, 1)
    assert all("first failure" not in said(run, node) for node in range(3))
    wait_until(lambda: voters(run, 1) == [1, 2], 30, "two hosts vote")
    end.touch()
    for node in (1, 2):
        wait_until(lambda node=node: run.record("exit.json", node), 30, f"the run ends on {node}")
        assert run.record("exit.json", node)["verdict"]["state"] == "succeeded"  # type: ignore[index]


def test_a_host_that_was_drained_does_not_vote_any_more(runs: Runs, tmp_path: Any) -> None:
    run = runs.start(WORK, str(tmp_path / "never"), nproc=(1, 1, 1, 1), options=electing("1:4"))
    everybody_works(run, 1, 0, 1, 2, 3)
    asked = {"run_id": run.run_id, "node": 3, "by": "the test"}
    assert run.hosts[0].session.request("drain", asked)["accepted"]
    everybody_works(run, 2, 0, 1, 2)
    wait_until(lambda: voters(run, 1) == [0, 1, 2], 30, "three hosts vote")
    lose(run, 0)
    everybody_works(run, 3, 1, 2)
    run.stop(1, grace=0.0)


def test_a_host_is_drained_when_another_is_down_and_nobody_knows_it_yet(runs: Runs, tmp_path: Any) -> None:
    """It votes until the other one is back: without it, the head would have no majority."""
    end = tmp_path / "end"
    run = runs.start(WORK, str(end), nproc=(1, 1, 1), options=electing("1:3"))
    everybody_works(run, 1, 0, 1, 2)
    lose(run, 2)
    assert run.hosts[0].session.request("drain", {"run_id": run.run_id, "node": 1, "by": "ann"})["accepted"]
    everybody_works(run, 2, 0)
    calm_until = time.monotonic() + 3 * 2  # leases
    wait_until(lambda: time.monotonic() > calm_until or "no majority" in said(run, 0), 30, "nothing happens")
    assert "no majority" not in said(run, 0) and not run.record("exit.json", 1)
    end.touch()
    wait_until(lambda: run.record("exit.json"), 30, "the run ends")
    assert run.record("exit.json")["verdict"]["state"] == "succeeded"  # type: ignore[index]


@pytest.mark.parametrize("how", ["power", "stopped"])
def test_a_head_without_a_majority_is_not_to_blame(runs: Runs, tmp_path: Any, how: str) -> None:
    """After a power loss it resigns, and any host is elected. After a short silence it leads all the time."""
    end = tmp_path / "end"
    run = runs.start(WORK, str(end), nproc=(1,) * 4, options=electing("2:4"))
    everybody_works(run, 1, 0, 1, 2, 3)
    recorders = [run.recorder(node) for node in (2, 3)]
    for node, recorder in zip((2, 3), recorders, strict=True):
        assert recorder is not None
        lose(run, node) if how == "power" else processes.send(recorder, signal.SIGSTOP)
    if how == "power":
        wait_until(lambda: run.listed(0)["state"] == "waiting", 30, "the head has resigned")
    else:
        wait_until(lambda: "no majority" in said(run, 0), 30, "the head has no authority")
    for node, recorder in zip((2, 3), recorders, strict=True):
        assert recorder is not None
        rejoin(run, node) if how == "power" else processes.send(recorder, signal.SIGCONT)
    wait_until(lambda: any("attempt 2 on " in said(run, node) for node in range(4)), 60, "the run continues")
    end.touch()
    (first,) = run.wait_over()[0]["verdict"]["failures"]
    if how == "power" and first["host"] != "host-0":
        assert (first["host"] in ("host-2", "host-3")) and first["what"] == "host lost"  # they refused connections
    else:
        assert first.get("code") == "membership-changed" and first["what"].startswith("no majority")
    assert "host-0 was lost" not in "".join(said(run, node) for node in range(4))


def test_a_host_that_was_booted_does_not_take_the_head_that_resigned_for_lost(runs: Runs, tmp_path: Any) -> None:
    """It does not know who was silent, so it leaves it to the hosts that were up all the time to lead."""
    end = tmp_path / "end"
    run = runs.start(WORK, str(end), nproc=(1,) * 4, options=electing("2:4"))
    everybody_works(run, 1, 0, 1, 2, 3)
    recorders = [recorder for recorder in map(run.recorder, (1, 3)) if recorder is not None]
    for recorder in recorders:
        processes.send(recorder, signal.SIGSTOP)  # both at once, and they refuse no connection
    wait_until(lambda: "no majority" in said(run, 0), 30, "the head has no authority")
    for node in (1, 3):
        lose(run, node)
    wait_until(lambda: run.listed(0)["state"] == "waiting", 30, "the head has resigned")
    rejoin(run, 1)
    wait_until(lambda: any("attempt 2 on " in said(run, node) for node in range(3)), 60, "the run continues")
    end.touch()
    wait_until(lambda: run.record("exit.json", 2), 30, "the run ends")
    (first,) = run.record("exit.json", 2)["verdict"]["failures"]  # type: ignore[index]
    assert first.get("code") == "membership-changed"
    assert "host-0 was lost" not in "".join(said(run, node) for node in range(3))


def test_a_host_may_be_added_after_another_was_drained(runs: Runs, tmp_path: Any) -> None:
    """Of the two that are left only the head votes, so it has a majority for the request at once."""
    end = tmp_path / "end"
    run = runs.start(WORK, str(end), nproc=(1, 1, 1), options=electing("1:3"))
    everybody_works(run, 1, 0, 1, 2)
    at_head = run.hosts[0].session
    assert at_head.request("drain", {"run_id": run.run_id, "node": 1, "by": "ann"})["accepted"]
    everybody_works(run, 2, 0, 2)
    log = run.folder() / "gang.jsonl"
    wait_until(lambda: re.search(r'"nodes": ?\[0\]', log.read_text()), 30, "only the head votes")
    added = {"run_id": run.run_id, "host": "host-3", "nproc": 1, "by": "ann"}
    assert at_head.request("add", added)["node"] == 3
    assert at_head.request("drain", {"run_id": run.run_id, "node": 2, "by": "ann"})["accepted"]
    end.touch()
    wait_until(lambda: run.record("exit.json"), 30, "the run ends")


def test_a_run_that_began_on_two_of_three_hosts_elects_a_head_when_the_third_is_added(
    runs: Runs, tmp_path: Any
) -> None:
    end = tmp_path / "end"
    run = runs.start(WORK, str(end), nproc=(1, 1, 1), away=1, options=electing())
    everybody_works(run, 1, 0, 1)
    add(runs, run, head=0, others=(1, 2))
    wait_until(lambda: voters(run, 1) == [0, 1, 2], 30, "all hosts vote")
    lose(run, 0)
    everybody_works(run, 2, 1, 2)
    end.touch()
    for node in (1, 2):
        wait_until(lambda node=node: run.record("exit.json", node), 30, f"the run ends on {node}")
        assert run.record("exit.json", node)["verdict"]["state"] == "succeeded"  # type: ignore[index]


def test_until_a_third_host_is_added_the_head_outlasts_the_loss_of_the_other_host(runs: Runs, tmp_path: Any) -> None:
    end = tmp_path / "end"
    run = runs.start(WORK, str(end), nproc=(1, 1, 1), away=1, options=electing("1:3"))
    everybody_works(run, 1, 0, 1)
    lose(run, 1)
    everybody_works(run, 2, 0)
    end.touch()
    wait_until(lambda: run.record("exit.json"), 30, "the run ends")
    assert run.record("exit.json")["verdict"]["state"] == "succeeded"  # type: ignore[index]


def test_until_a_third_host_is_added_the_other_host_waits_for_the_head_and_tells_so(runs: Runs, tmp_path: Any) -> None:
    end, heard = tmp_path / "end", tmp_path / "heard"
    notify = {"command": f"cat >> {heard}"}
    run = runs.start(WORK, str(end), nproc=(1, 1, 1), away=1, options=electing(), notify=notify)
    everybody_works(run, 1, 0, 1)
    lose(run, 0)
    wait_until(lambda: (run.listed(1)["waits"] or {}).get("hosts") == ["host-0"], 30, "it waits")
    wait_until(lambda: heard.exists() and '"state": "waiting"' in heard.read_text(), 30, "it has told so")
    rejoin(run, 0)
    everybody_works(run, 2, 0, 1)
    end.touch()
    assert [record["verdict"]["state"] for record in run.wait_over()] == ["succeeded"] * 2


def test_a_head_that_lost_its_majority_still_knows_the_host_that_was_added(runs: Runs, tmp_path: Any) -> None:
    run = runs.start(WORK, str(tmp_path / "never"), nproc=(1, 1, 1), options=electing("1:3"))
    everybody_works(run, 1, 0, 1, 2)
    added = {"run_id": run.run_id, "host": "host-3", "nproc": 1, "by": "ann"}
    assert run.hosts[0].session.request("add", added)["node"] == 3
    lose(run, 1)
    lose(run, 2)
    wait_until(lambda: run.listed(0)["state"] == "waiting", 30, "the head has no majority")
    assert run.listed(0)["hosts"] == ["host-0", "host-1", "host-2", "host-3"]
    run.stop(0, grace=0.0)
