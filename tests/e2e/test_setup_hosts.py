"""`setup` brings the same torch to every host, from an index, without root, and does nothing twice."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from lab.host import Host
from lab.lab import Lab

from .driver import ok, orch

BARE = os.path.realpath(sys.executable)  # what the venv of the tests was made from, without its packages
VENV = "/home/ann/.local/share/ddp-orch/venv/bin/python"


def wheel(version: str, to: Path) -> Path:
    """A package that is called torch, as small as one can be."""
    path = to / f"torch-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("torch/__init__.py", "")
        archive.writestr("torch/version.py", f"__version__ = '{version}'\ncuda = None\n")
        info = f"torch-{version}.dist-info"
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: torch\nVersion: {version}\n")
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        names = [*archive.namelist(), f"{info}/RECORD"]
        archive.writestr(f"{info}/RECORD", "".join(f"{name},,\n" for name in names))
    return path


def index(host: Host, *versions: str) -> str:
    """A package index on the host's own disk; its URL."""
    folder = host.home / "index" / "torch"
    folder.mkdir(parents=True)
    wheels = [wheel(version, folder).name for version in versions]
    (folder / "index.html").write_text("".join(f'<a href="{name}">{name}</a>\n' for name in wheels))
    return "file:///home/ann/index"


def test_hosts_without_torch_get_the_same_one_and_a_second_time_nothing_is_done(lab2: Lab) -> None:
    url = index(lab2.hosts[0], "2.9.0")
    index(lab2.hosts[1], "2.9.0", "2.9.1")  # the head decides
    inventory = lab2.inventory(defaults={"user": "ann", "python": BARE})
    first = ok(orch(lab2, "setup", inventory, "--index-url", url, timeout=200))
    assert re.search(rf"\bpython: {VENV} .*\bnode-\[0-1\]", first.stdout)
    assert "node-[0-1]: torch 2.9.0 installed" in first.stderr
    again = ok(orch(lab2, "setup", inventory, "--index-url", url))
    assert "node-[0-1]: torch 2.9.0 kept" in again.stderr and "installing" not in again.stderr
    check = ok(orch(lab2, "check", lab2.inventory(defaults={"user": "ann", "python": VENV}), "--quick", "--json"))
    assert json.loads(check.stdout)["findings"] == []


@pytest.mark.skipif(not shutil.which("script"), reason="no script(1) to give it a terminal")
def test_where_only_a_password_works_it_is_asked_for_once_and_the_key_installed(
    make_lab: Callable[..., Lab],
) -> None:
    lab = make_lab(2, sshd_options={"PasswordAuthentication": "yes"})
    host = lab.hosts[1]
    keys = host.home / ".ssh/authorized_keys"
    keys.unlink()
    hidden = subprocess.run(
        ["openssl", "passwd", "-6", "-stdin"], input="open sesame\n", capture_output=True, text=True, check=True
    ).stdout.strip()
    shadow = host.directory / "etc/shadow"
    shadow.write_text(shadow.read_text().replace("ann:*:", f"ann:{hidden}:"))
    inventory = lab.inventory()

    without = ok(orch(lab, "setup", inventory), 4)  # nobody there to type it
    assert re.search(r"\bnode-1: login: .*\bann\b", without.stderr)

    terminal = lab.popen(
        ["script", "-qefc", f"ddp-orch setup {inventory}", "/dev/null"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    assert terminal.stdin and terminal.stdout
    said = ""
    while "password:" not in said:
        said += terminal.stdout.read(1) or pytest.fail(f"ended without a question: {said}")
    terminal.stdin.write("open sesame\n")
    terminal.stdin.flush()
    said += terminal.stdout.read()
    assert terminal.wait(60) == 0, said
    terminal.stdin.close()
    assert said.count("password:") == 1 and "node-[0-1]: torch" in said and "open sesame" not in said
    assert keys.read_text().split()[:2] == lab.authorized_keys.split()[:2]
    again = ok(orch(lab, "setup", inventory))
    assert "kept" in again.stderr


@pytest.mark.full
def test_hosts_without_internet_are_told_so_and_install_from_a_folder_of_wheels(lab2: Lab) -> None:
    inventory = lab2.inventory(defaults={"user": "ann", "python": BARE})
    result = ok(orch(lab2, "setup", inventory, timeout=200), 3)
    assert re.search(r"\bnode-0: .*\bindex: ", result.stderr)
    assert "--index-url URL" in result.stderr and "--wheels DIR" in result.stderr
    for host in lab2.hosts:
        folder = host.home / "wheels"
        folder.mkdir()
        wheel("2.9.0", folder)
    result = ok(orch(lab2, "setup", inventory, "--wheels", "/home/ann/wheels", timeout=200))
    assert "node-[0-1]: torch 2.9.0 installed" in result.stderr


def test_a_host_that_has_the_torch_is_left_alone(lab2: Lab) -> None:
    result = ok(orch(lab2, "setup", lab2.inventory()))
    assert "kept" in result.stderr and result.stdout == ""


def test_what_pip_says_is_told_and_the_host_named(lab2: Lab) -> None:
    inventory = lab2.inventory(defaults={"user": "ann", "python": BARE})
    result = ok(orch(lab2, "setup", inventory, "--torch", "9.9.9", "--index-url", index(lab2.hosts[0], "2.9.0")), 3)
    assert "node-0: could not install torch==9.9.9:" in result.stderr
    assert "ERROR" in result.stderr.rpartition("could not install torch==9.9.9:")[2]
