"""`init`: what it writes can be read again, whatever the hosts are called."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest

from orchestrator.commands import host_questions, init
from orchestrator.errors import UsageError
from orchestrator.inventory import model
from orchestrator.inventory.sources import ssh_hosts
from orchestrator.runs import find_pythons


@pytest.mark.parametrize(
    ("given", "names"),
    [
        (["lovelace", "hopper"], ["lovelace", "hopper"]),
        (["gpu[01-03]"], ["gpu01", "gpu02", "gpu03"]),
        (["no", "10.0.0.1", "2001:db8::1", "1e3"], ["no", "10.0.0.1", "2001:db8::1", "1e3"]),
        (["ann@gpu1", "gpu2"], ["gpu1", "gpu2"]),
    ],
)
def test_what_it_writes_is_an_inventory_of_these_hosts(given: list[str], names: list[str]) -> None:
    read = model.parse(init.render(given, "inventory.yaml"), "inventory.yaml")
    assert [host.name for host in read.hosts] == names
    assert [host.user for host in read.hosts] == [
        "ann" if "@" in given[0] and name == "gpu1" else None for name in names
    ]


def test_what_is_suggested_in_its_comments_can_be_read_too() -> None:
    text = init.render(["gpu1"], "inventory.yaml")
    lines = [re.sub(r"^( *)# ", r"\1", line) for line in text.splitlines()]
    start = next(number for number, line in enumerate(lines) if line.startswith("defaults:"))
    end = next(number for number, line in enumerate(lines) if line.startswith("Next:"))
    read = model.parse("hosts: [gpu1]\n" + "\n".join(lines[start:end]), "inventory.yaml")
    assert read.run.max_restarts == 3


@pytest.mark.parametrize("host", ["gpu1:22", "-oProxyCommand=x", "a b", "gpu[1-", "ann@", "x\ny: 1", "gpu1'"])
def test_a_host_that_is_none_is_refused_and_nothing_is_written(tmp_path: Path, host: str) -> None:
    output = tmp_path / "inventory.yaml"
    with pytest.raises(UsageError):
        init.init([host], None, str(output))
    assert not output.exists()


def test_a_file_that_is_there_is_not_overwritten_without_a_question(tmp_path: Path) -> None:
    output = tmp_path / "inventory.yaml"
    output.write_text("mine")
    with pytest.raises(UsageError, match="already exists"):
        init.init(["gpu1"], None, str(output))
    assert output.read_text() == "mine"


def test_without_a_terminal_it_says_what_is_not_known_and_how_to_find_it(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert init.init(["gpu[1-2]"], None, "inventory.yaml") == 0
    said = capfd.readouterr().err
    assert "2 hosts" in said and "without connecting" in said
    commands = re.findall(r"^  (ddp-orch .*?) +#", said, re.MULTILINE)
    assert commands == ["ddp-orch trust", "ddp-orch init --probe 'gpu[1-2]'"]
    assert init.init(["gpu[1-2]"], None, "inventory.yaml") == 0, "the second one can be run: the file is its own"


def test_without_a_terminal_it_names_the_ways_to_name_hosts() -> None:
    with pytest.raises(UsageError, match="@hostfile:FILE"):
        init.init([], None, "inventory.yaml")


def test_hosts_are_found_in_ssh_config_and_what_it_includes(tmp_path: Path) -> None:
    (tmp_path / "more").write_text('host hopper "cray"\n')
    config = tmp_path / "config"
    config.write_text(
        f"Include {tmp_path}/mo*\n# Host not-me\nHost *.example.com !bad gpu1\n  HostName 10.0.0.1\nHOST=gpu2\nHost *\n"
    )
    assert ssh_hosts.configured_hosts(config) == ["gpu1", "gpu2", "hopper", "cray"]
    assert ssh_hosts.configured_hosts(tmp_path / "nosuch") == []
    forges = "Host github.com work\nHost forge\n  User git\nHost hub\n  HostName github.com\n"
    config.write_text(f"{forges}Host gpu1\n  User ann\n")
    assert ssh_hosts.configured_hosts(config) == ["work", "gpu1"], "servers of git train nothing"
    config.write_text(f"Include {config}\nHost a\n")
    assert ssh_hosts.configured_hosts(config) == ["a"]


def test_hosts_are_picked_by_number_range_and_name() -> None:
    known = ["gpu1", "gpu2", "gpu3", "hopper"]
    assert host_questions.parse_choice("all", known) == known
    assert host_questions.parse_choice("2-3, hopper 2", known) == ["gpu2", "gpu3", "hopper"]
    for wrong in ("0", "5", "3-1", "gpu9", ""):
        with pytest.raises(ValueError, match="neither"):
            host_questions.parse_choice(wrong, known)


def test_an_answer_may_name_hosts_that_ssh_config_does_not_have(tmp_path: Path) -> None:
    hostfile = tmp_path / "hosts"
    hostfile.write_text("gpu8 slots=4\nann@gpu9:2222\n")
    answers = {
        "2": ["gpu2"],
        "ann@gpu7, box.lab": ["gpu7", "box.lab"],
        "gpu[10,12]": ["gpu10", "gpu12"],
        "ssh root@1.2.3.4 -p 40022": ["1.2.3.4"],
        str(hostfile): ["gpu8", "gpu9"],
    }
    for answer, names in answers.items():
        hosts = host_questions.parse_answer(answer, ["gpu1", "gpu2"])
        assert [host.name for host in hosts] == names
    assert host_questions.parse_answer("lovelace hopper", [])[1].name == "hopper"
    for wrong in ("gpu3", "3", "0", "ann@", "-x.y"):
        with pytest.raises(ValueError, match=re.escape(repr(wrong))):
            host_questions.parse_answer(wrong, ["gpu1", "gpu2"])
    with pytest.raises(ValueError, match="range"):
        host_questions.parse_answer("gpu[3-", [])


@pytest.mark.parametrize(("answers", "names"), [(["a1", "y", "b1", ""], ["a1", "b1"]), (["a1", "No"], ["a1"])])
def test_yes_and_no_to_the_question_for_more_hosts_are_no_hosts(
    answers: list[str], names: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = iter(answers)
    monkeypatch.setenv("DDP_ORCH_SSH_CONFIG", str(tmp_path / "none"))
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("click.prompt", lambda *_, **__: next(given))
    assert [host.name for host in host_questions.choose_hosts()] == names
    assert next(given, None) is None


def test_ctrl_c_at_the_question_says_what_was_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(*_: object, **__: object) -> bool:
        raise click.Abort

    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    monkeypatch.setattr("click.confirm", interrupt)
    path = tmp_path / "i.yaml"
    with pytest.raises(click.Abort):
        init.init(["a1"], None, str(path))
    said = capsys.readouterr().err
    assert path.exists() and str(path) in said and "ddp-orch init --probe a1" in said


def test_networks_that_all_hosts_have_are_listed_with_the_fastest_first() -> None:
    hosts = {
        "a": "network eth0 10.0.0.1/24 1000\nnetwork ib0 10.1.0.1/16 100000\nnetwork docker0 172.17.0.1/16\nnetwork x",
        "b": "network eth3 10.0.0.2/24\nnetwork ib0 10.1.0.2/16 200000\nnetwork eth9 10.9.0.1/24 9",
    }
    shared = find_pythons.shared_networks({name: find_pythons.parse(output) for name, output in hosts.items()})
    assert [(network, [link.interface for link in links.values()]) for network, links in shared.items()] == [
        ("10.1.0.0/16", ["ib0", "ib0"]),
        ("10.0.0.0/24", ["eth0", "eth3"]),
    ]
    assert find_pythons.shared_networks({"a": find_pythons.parse(hosts["a"])}) == {}
