"""One question for hosts that ssh_config cannot tell apart: asked of the real ssh, which is counted."""

from __future__ import annotations

import shutil
import time
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.inventory.model import Host, parse
from orchestrator.ssh import config as ssh_config
from orchestrator.ssh.config import Resolver, resolve

pytestmark = pytest.mark.skipif(not shutil.which("ssh"), reason="no ssh here")

PLAIN = parse("hosts: [a]", "inventory.yaml").hosts[0]
NAMES = ("gpu1", "gpu2", "gpu4", "GPU3", "10.0.0.7", "cpu1", "::1")
HOSTS = [replace(PLAIN, name=name, address=name) for name in NAMES]

ALIKE = {
    "nothing": "",
    "for all": "Host *\n  User ann\n  Port 2222\n  IdentityFile ~/keys/%r@%h\n  ProxyCommand nc %h %p\n",
    "outside of any host": "User ann\n# Match host gpu1\nMatch all\n  Port 2222\n",
}
SOME_APART = {
    "a name": "Host gpu2\n  User ann\nHost *\n  User bob\n",
    "patterns": "Host g?u* !gpu2 # all but one\n  User ann\nHost=cpu1\n  Port 2222\nHost 10.*\n  ProxyJump gate\n",
    "capitals": "Host gpu3 GPU1\n  User ann\n",
    "another file": "Include included\nHost *\n  Port 2222\n",
    "another file in a block": "Host cpu1\n  Include included\n",
}
ALL_APART = {
    "a program decides": 'Match exec "test %h = gpu2"\n  User ann\n',
    "another match": "Match originalhost gpu1\n  User ann\n",
    "a name made of the name": "Host *\n  HostName %h.example.com\n",
    "one name for all": "Host *\n  HostName gate\n",
    "a command made of the name": "Host *\n  RemoteCommand echo %h\n",
    "other names": "CanonicalizeHostname yes\nCanonicalDomains example.com\n",
    "quotes": 'Host "gpu1"\n  User ann\n',
}


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file with a line for every time that ssh was run."""
    counter, ssh = tmp_path / "ssh", shutil.which("ssh")
    counter.write_text(f'#!/bin/sh\necho once >> {tmp_path}/asked\nexec {ssh} "$@"\n')
    counter.chmod(0o755)
    monkeypatch.setattr(ssh_config.shutil, "which", lambda _: str(counter))
    (tmp_path / "asked").touch()
    return tmp_path / "asked"


def questions(asked: Path, text: str, hosts: list[Host]) -> int:
    """How often ssh was asked for all hosts; what it says of each is as if asked for that one alone."""
    config = asked.parent / "config"
    config.write_text(text.replace("included", str(asked.parent / "included")))
    (asked.parent / "included").write_text("Host gpu1\n  User ann\n")
    resolver = Resolver(config, None)
    together = [resolver.resolve(host, time.monotonic() + 20) for host in hosts]
    count = len(asked.read_text().splitlines())
    assert together == [resolve(host, config) for host in hosts]
    return count


@pytest.mark.parametrize("text", ALIKE.values(), ids=ALIKE)
def test_of_hosts_that_are_alike_one_is_asked_for(asked: Path, text: str) -> None:
    assert questions(asked, text, HOSTS) == 1


@pytest.mark.parametrize("text", SOME_APART.values(), ids=SOME_APART)
def test_hosts_that_a_pattern_tells_apart_are_asked_for(asked: Path, text: str) -> None:
    assert 1 < questions(asked, text, HOSTS) < len(HOSTS)


@pytest.mark.parametrize("text", ALL_APART.values(), ids=ALL_APART)
def test_every_host_is_asked_for_where_its_name_may_count_in_another_way(asked: Path, text: str) -> None:
    assert questions(asked, text, HOSTS[:4]) >= 4


def test_what_the_inventory_says_of_a_host_is_part_of_the_question(asked: Path) -> None:
    hosts = [PLAIN, replace(PLAIN, address="b", port=2222), replace(PLAIN, address="c", user="ann")]
    assert questions(asked, "Host *\n  User bob\n", hosts) == 3
