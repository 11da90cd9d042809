"""The queue of `up --queue`: several controllers, several hosts, one order. Each host is a state folder here."""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator.node.host import state
from orchestrator.node.serve import run_queue


class Controller:
    """An `up --queue`, which asks one host at a time, as runs/queueing.py does.

    `absence`: how often a host that it needs, and that has no queue here, does not answer.
    """

    def __init__(self, number: int, hosts: dict[str, list[int]], folder: Path, absence: float = 0) -> None:
        self.run_id = f"20260101-000000-{number:04x}"
        self.hosts = hosts
        self.absence = absence
        self._folder = folder
        self._held: dict[str, dict[str, int]] = {host: {} for host in hosts}
        self.number: int | None = None

    def ask(
        self, host: str, number: int | None, *, join: bool = True, waits_for: tuple[str, ...] = ()
    ) -> dict[str, Any]:
        os.environ["DDP_ORCH_STATE_DIR"] = str(self._folder / host)
        mine = {"run_id": self.run_id, "name": self.run_id, "by": "ann@laptop", "gpu_ids": self.hosts[host]}
        mine |= {"script": "train.py", "queued_at": 1.0}
        return run_queue.queue({**mine, "number": number, "join": join, "waits_for": waits_for}, self._held[host])

    def steps(self, order: random.Random) -> Iterator[None]:
        """Ends when it is its turn on all hosts."""
        hosts = order.sample(sorted(self.hosts), len(self.hosts))
        proposals = []
        for host in hosts:
            proposals.append(self.ask(host, None)["number"])
            yield
        self.number = max(proposals)
        while True:
            turns = []
            waits_for = ("z",) if order.random() < self.absence else ()
            for host in hosts:
                turns.append(self.ask(host, self.number, waits_for=waits_for))
                yield
            if not waits_for and not any(turn["ahead"] or turn["running"] for turn in turns):
                return

    def leave(self) -> None:
        for host in self.hosts:
            os.environ["DDP_ORCH_STATE_DIR"] = str(self._folder / host)
            run_queue.leave({"run_id": self.run_id}, self._held[host])

    def die(self) -> None:
        """As when a relay ends: the kernel closes its files."""
        for held in self._held.values():
            for handle in held.values():
                os.close(handle)
            held.clear()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DDP_ORCH_STATE_DIR", str(tmp_path))  # restored afterwards
    return tmp_path


def finish(controller: Controller) -> None:
    for _ in controller.steps(random.Random(1)):
        pass


def test_a_run_that_is_taken_out_of_the_queue_is_in_nobodys_way(folder: Path) -> None:
    first, second = (Controller(number, {"a": [0]}, folder) for number in (1, 2))
    finish(first)
    assert second.ask("a", None)["ahead"]
    run_queue.cancel({"run_id": first.run_id, "by": "bob@desk"})
    assert first.ask("a", 1)["cancelled_by"] == "bob@desk"
    assert not second.ask("a", 2)["ahead"]
    assert [each["run_id"] for each in run_queue.waiting()] == [first.run_id, second.run_id]
    first.leave()
    assert [each["run_id"] for each in run_queue.waiting()] == [second.run_id]
    run_queue.cancel({"run_id": first.run_id, "by": "bob@desk"})  # it has left already
    assert len(run_queue.waiting()) == 1


@pytest.mark.parametrize("absence", [0, 0.3])
@pytest.mark.parametrize("seed", range(40))
def test_every_order_of_requests_lets_all_runs_start_one_after_the_other(
    folder: Path, seed: int, absence: float
) -> None:
    """Without one order, the first run waits on host b for the second one, which waits for the first one on host a."""
    chance = random.Random(seed)
    hosts = ["a", "b", "c"]
    controllers = [
        Controller(number, {host: [0] for host in chance.sample(hosts, chance.randint(1, 3))}, folder, absence)
        for number in range(5)
    ]
    active = {controller: controller.steps(chance) for controller in controllers}
    started: list[Controller] = []
    for _ in range(2_000):
        if not active:
            break
        controller = chance.choice(list(active))
        try:
            next(active[controller])
        except StopIteration:
            started.append(controller)
            controller.leave()  # the run is over at once
            del active[controller]
            continue
        if chance.random() < 0.02 and len(active) > 1:
            controller.die()
            del active[controller]
    assert not active, f"{len(active)} runs wait for ever"
    keys = {controller: (controller.number, controller.run_id) for controller in started}
    for first, second in itertools.combinations(started, 2):
        if not absence and set(first.hosts) & set(second.hosts):
            assert keys[first] < keys[second]


def test_a_run_that_was_queued_earlier_goes_first(folder: Path) -> None:
    first, second = Controller(9, {"a": [0], "b": [0]}, folder), Controller(1, {"b": [0], "a": [0]}, folder)
    finish(first)
    assert [run["run_id"] for run in second.ask("b", second.ask("b", None)["number"])["ahead"]] == [first.run_id]
    first.leave()
    finish(second)


def test_runs_with_other_gpus_do_not_wait_for_each_other(folder: Path) -> None:
    first, second, third = (Controller(n, {"a": ids}, folder) for n, ids in enumerate(([0, 1], [2], [1, 2])))
    finish(first)
    finish(second)
    assert len(third.ask("a", None)["ahead"]) == 2


def test_runs_without_gpus_take_turns(folder: Path) -> None:
    first, second = Controller(1, {"a": []}, folder), Controller(2, {"a": []}, folder)
    finish(first)
    assert second.ask("a", None)["ahead"]
    assert not Controller(3, {"a": [0]}, folder).ask("a", None)["ahead"]


def test_a_ticket_is_void_when_its_controller_is_gone(folder: Path) -> None:
    first, second = Controller(1, {"a": [0]}, folder), Controller(2, {"a": [0]}, folder)
    finish(first)
    first.die()
    finish(second)
    assert sorted(os.listdir(state.folder("queue"))) == [f"{second.run_id}.json", run_queue.LAST, run_queue.MUTEX]


def test_a_run_that_lost_its_ticket_keeps_its_place(folder: Path) -> None:
    """A laptop was asleep, and its sessions have ended."""
    first, second = Controller(1, {"a": [0]}, folder), Controller(2, {"a": [0]}, folder)
    finish(first)
    number = second.ask("a", None)["number"]
    first.die()
    assert not second.ask("a", number)["ahead"]
    first.ask("a", first.number)
    assert [run["run_id"] for run in second.ask("a", number)["ahead"]] == [first.run_id]


def test_a_look_takes_no_ticket(folder: Path) -> None:
    first, second = Controller(1, {"a": [0]}, folder), Controller(2, {"a": [0]}, folder)
    finish(first)
    assert second.ask("a", None, join=False)["number"] is None
    assert second.ask("a", None, join=False)["ahead"]
    assert sorted(os.listdir(state.folder("queue"))) == [f"{first.run_id}.json", run_queue.LAST, run_queue.MUTEX]


def test_a_damaged_ticket_blocks_nobody(folder: Path) -> None:
    first = Controller(1, {"a": [0]}, folder)
    first.ask("a", None)
    (Path(state.folder("queue")) / "20260101-000000-ffff.json").write_text("{")
    finish(first)


def test_a_run_that_waits_for_an_absent_host_lets_others_pass_and_keeps_its_place(folder: Path) -> None:
    first, second = Controller(1, {"a": [0]}, folder), Controller(2, {"a": [0]}, folder)
    finish(first)
    number = second.ask("a", None)["number"]
    first.ask("a", first.number, waits_for=("c",))
    assert not second.ask("a", number)["ahead"]
    assert [each["run_id"] for each in run_queue.waiting()] == [first.run_id, second.run_id]
    assert not first.ask("a", first.number)["ahead"]  # its host is back
    assert [run["run_id"] for run in second.ask("a", number)["ahead"]] == [first.run_id]
