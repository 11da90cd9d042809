"""Images are copied from host to host, here with a stand-in for podman that keeps one image per host in a file."""

from __future__ import annotations

import hashlib
import os
import secrets
import socket
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from lab.waiting import wait_until
from local_runs import Host, Runs

from orchestrator.errors import OrchError
from orchestrator.hosts import fleet
from orchestrator.hosts.session import Refused, SessionLost
from orchestrator.inventory import model
from orchestrator.node.link.link import Link
from orchestrator.node.resume.channel import Channel
from orchestrator.runs import images

PODMAN = """#!/bin/sh
store=$DDP_ORCH_STATE_DIR/store
case "$1 $2" in
  *GraphRoot*) dirname $store;;
  info*) echo 4.3;;
  *inspect) [ -e $store ] || exit 125; case $3 in *Size*) stat -c %s $store;; *) sha256sum < $store;; esac;;
  "save x:1") cat $store; if [ -e $store.bad ]; then echo 'layer is missing' >&2; exit 125; fi;;
  "load ") if [ -e $store.known ]; then head -c 1000 > /dev/null; mv $store.known $store; exit 0; fi
    cat > $store.part && mv $store.part $store;;
  *) exit 2;;
esac
"""
CONTENT = os.urandom(3_000_000)
PORTS = (20000, 29999)


@pytest.fixture(autouse=True)
def podman(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "bin" / "podman"
    program.parent.mkdir()
    program.write_text(PODMAN)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")


def store(host: Host) -> Path:
    return host.state / "store"


class LocalFleet(fleet.Fleet):
    """Sessions that are there already."""

    def __init__(self, hosts: list[Host]) -> None:
        self._hosts = {host.state.name: host for host in hosts}
        self.parallel, self.progress = 8, fleet.NO_PROGRESS

    def prepare(self, hosts: Iterable[model.Host]) -> None:
        pass

    def session(self, host: model.Host) -> Any:
        return self._hosts[host.name].session


def copy(hosts: list[Host], image: str = "x:1", engine: str = "podman", selected: int = 9) -> images.Images:
    entries = ", ".join(f"{{name: {host.state.name}, cluster_address: 127.0.0.1}}" for host in hosts)
    inventory = model.parse(f"hosts: [{entries}]\nrun: {{container: {{image: '{image}', engine: {engine}}}}}\n", "i")
    return images.copy_images(inventory.hosts[:selected], inventory.hosts[selected:], PORTS, LocalFleet(hosts))


def test_hosts_that_lack_the_image_get_it_from_hosts_that_have_it(runs: Runs) -> None:
    hosts = runs.hosts(5)
    store(hosts[1]).write_bytes(CONTENT)
    result = copy(hosts)
    assert (result.kept, {name: str(error) for name, error in result.failed.items()}) == ({"host-1": "x:1"}, {})
    assert sorted(result.copied) == ["host-0", "host-2", "host-3", "host-4"]
    assert all(store(host).read_bytes() == CONTENT for host in hosts)
    taken = [copied.taken for copied in result.copied.values()]
    assert {(one.bytes, one.sha256) for one in taken} == {(len(CONTENT), hashlib.sha256(CONTENT).hexdigest())}
    assert len({copied.source for copied in result.copied.values()}) > 1  # those that got it hand it on


@pytest.mark.parametrize(
    ("image", "has_it", "why"),
    [("x:1", False, "no host"), ("x@sha256:" + 64 * "0", True, "digest")],
)
def test_an_image_that_cannot_be_copied_is_an_error_with_a_way(runs: Runs, image: str, has_it: bool, why: str) -> None:
    hosts = runs.hosts(2)
    if has_it:
        store(hosts[0]).write_bytes(CONTENT)
    failed = copy(hosts, image).failed
    assert sorted(failed) == (["host-1"] if has_it else ["host-0", "host-1"])
    assert why in str(failed["host-1"]) and f"podman pull {image}" in str(failed["host-1"])


def test_an_engine_that_cannot_save_the_image_leaves_no_part_of_it(runs: Runs) -> None:
    hosts = runs.hosts(2)
    store(hosts[0]).write_bytes(CONTENT)
    store(hosts[0]).with_suffix(".bad").touch()
    failure = copy(hosts).failed["host-1"]
    assert isinstance(failure, OrchError) and "podman save" in str(failure) and "layer" in str(failure)
    assert not store(hosts[1]).exists()


def test_a_host_that_cannot_give_the_image_is_replaced_by_one_that_can(runs: Runs) -> None:
    hosts = runs.hosts(5)
    for host in hosts[:2]:
        store(host).write_bytes(CONTENT)
    store(hosts[0]).with_suffix(".bad").touch()
    result = copy(hosts)
    assert {name: str(error) for name, error in result.failed.items()} == {}
    assert all(store(host).read_bytes() == CONTENT for host in hosts)
    assert "host-0" not in {copied.source for copied in result.copied.values()}


@pytest.mark.parametrize("given", [1, 3])
def test_hosts_that_are_not_selected_give_the_image_and_get_nothing(runs: Runs, given: int) -> None:
    hosts = runs.hosts(4)
    store(hosts[given]).write_bytes(CONTENT)
    result = copy(hosts, selected=2)
    assert result.failed == {} and sorted(result.kept) == (["host-1"] if given == 1 else [])
    assert [store(host).exists() for host in hosts] == [True, True, False, given == 3]


def test_an_engine_that_has_the_image_already_need_not_read_all_of_it(runs: Runs) -> None:
    hosts = runs.hosts(2)
    store(hosts[0]).write_bytes(CONTENT)
    store(hosts[1]).with_suffix(".known").write_bytes(CONTENT)
    result = copy(hosts)
    assert result.failed == {}
    assert result.copied["host-1"].taken.sha256 == hashlib.sha256(CONTENT).hexdigest()


def test_a_host_with_only_enroot_cannot_load_the_image(
    runs: Runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    giver, *_ = runs.hosts(1)
    store(giver).write_bytes(CONTENT)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "enroot").write_text("#!/bin/sh\n[ $1 = version ] || [ $1 = list ]\n")
    (tmp_path / "other" / "enroot").chmod(0o755)
    for program in Path("/usr/bin").iterdir():
        if program.name not in ("podman", "docker", "enroot"):
            (tmp_path / "other" / program.name).symlink_to(program)
    monkeypatch.setenv("PATH", f"{tmp_path}/other")
    result = copy(runs.hosts(2), engine="auto")
    assert "enroot create" in str(result.failed["host-1"]) and "enroot import" in str(result.failed["host-1"])


Take = Callable[..., dict[str, Any]]


@pytest.fixture
def take(runs: Runs, tmp_path: Path) -> Take:
    """Copy the file a.sif of one host to b.sif of another."""
    giver, taker = runs.hosts(2)
    (tmp_path / "a.sif").write_bytes(CONTENT)
    key = secrets.token_hex(32)

    def ask(**other: Any) -> dict[str, Any]:
        common = {"engine": "apptainer", "key": key, "cluster_address": "127.0.0.1", "ports": PORTS}
        offered = giver.session.request("offer_image", {**common, "image": str(tmp_path / "a.sif"), "node": 0})
        question = {**common, "image": str(tmp_path / "new" / "b.sif"), "node": 1, "source": 0, "size": len(CONTENT)}
        question = {**question, **offered, **other}
        return dict(taker.session.request("take_image", {**question, "image": str(tmp_path / question["image"])}))

    return ask


def test_an_image_that_is_a_file_is_copied_as_a_whole(take: Take, tmp_path: Path) -> None:
    assert take()["sha256"] == hashlib.sha256(CONTENT).hexdigest()
    assert [path.read_bytes() == CONTENT for path in (tmp_path / "new").iterdir()] == [True]


@pytest.mark.parametrize(
    ("other", "code", "why"),
    [
        ({"size": 1 << 60}, "disk-full", "free some space"),
        ({"key": 64 * "0"}, "unknown", "did not arrive"),
        ({"image": "a.sif/b.sif"}, "unknown", "cannot write .*/a.sif/b.sif"),
    ],
    ids=["no room", "another key", "no folder"],
)
def test_a_copy_that_is_not_possible_says_why(take: Take, tmp_path: Path, other: Any, code: str, why: str) -> None:
    with pytest.raises(Refused, match=why) as caught:
        take(**other)
    assert caught.value.code == code
    assert not [*tmp_path.glob("new/*")]


def test_a_session_that_ends_leaves_no_part_of_the_image(runs: Runs, tmp_path: Path) -> None:
    _, taker = runs.hosts(2)
    (tmp_path / "new").mkdir()
    key = secrets.token_hex(32)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        question = {"engine": "apptainer", "key": key, "image": str(tmp_path / "new" / "b.sif"), "node": 1, "source": 0}
        question = {**question, "size": len(CONTENT), "addresses": ["127.0.0.1"], "port": port}
        asking = threading.Thread(target=_ask_in_vain, args=(taker, question))
        asking.start()
        connection, _ = listener.accept()
        channel = Channel(Link(connection, bytes.fromhex(key), 0))
        channel.send_piece(0, CONTENT[:1000])
        wait_until(lambda: [*tmp_path.glob("new/.b.sif.*")], 20, "a part has arrived")
        taker.session.close()
        wait_until(lambda: not [*tmp_path.glob("new/.*")], 20, "the part is removed")
        asking.join()
        channel.close()


def _ask_in_vain(taker: Host, question: dict[str, Any]) -> None:
    with pytest.raises(SessionLost):
        taker.session.request("take_image", question)


def test_parts_of_copies_that_were_killed_are_removed(take: Take, tmp_path: Path) -> None:
    (tmp_path / "new").mkdir()
    old, young = (tmp_path / "new" / f".b.sif.{name}" for name in ("01234567", "89abcdef"))
    for path in (old, young):
        path.touch()
    os.utime(old, (0, 0))
    take()
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == [young.name, "b.sif"]
