"""`init --probe`: what it finds on real hosts is in the inventory that it writes, and a run starts with it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from lab.lab import Lab

from orchestrator.inventory import model

from .driver import code, ok, orch, script
from .test_shell import person


def environment(lab: Lab, number: int, folder: str, torch: str | None) -> str:
    """A virtual environment on a host; its torch is only its metadata. Returns the path of its Python."""
    host = lab.hosts[number]
    made = host.sh(
        f"{lab.python} -m venv --without-pip {folder} && "
        f"{folder}/bin/python -c 'import site; print(site.getsitepackages()[0])'"
    )
    assert made.returncode == 0, made.stderr
    if torch is not None:
        info = f"{made.stdout.strip()}/torch-{torch}.dist-info"
        written = host.sh(
            f"mkdir {info} && printf 'Metadata-Version: 2.1\\nName: torch\\nVersion: {torch}\\n' > {info}/METADATA"
        )
        assert written.returncode == 0, written.stderr
    return f"{folder}/bin/python"


def write(lab: Lab, *argv: str, code_: int = 0) -> tuple[dict[str, str], str]:
    """The Python of each host in the inventory that `init` writes, and its messages."""
    (code(lab) / "inventory.yaml").unlink(missing_ok=True)
    result = ok(orch(lab, "init", "--probe", *argv), code_)
    inventory = model.load(code(lab) / "inventory.yaml")
    return {host.name: host.python for host in inventory.hosts}, result.stderr


def test_the_python_that_all_hosts_have_with_the_same_torch_is_chosen(lab2: Lab) -> None:
    common = [environment(lab2, number, "/home/ann/train", "2.9.0") for number in (0, 1)]
    environment(lab2, 0, "/home/ann/.venv", "2.10.1")
    environment(lab2, 1, "/home/ann/empty", None)
    pythons, said = write(lab2, "ann@node-[0-1]")
    assert pythons == {"node-0": common[0], "node-1": common[1]}
    assert "2.9.0" in said and "ddp-orch check" in said
    assert re.search(r"10\.77\.0\.0/16 \(.*\beth0\b", said) and "172.17." not in said
    text = (code(lab2) / "inventory.yaml").read_text()
    assert re.search(r"(?m)^# .*10\.78\.0\.0/16 .*\beth1 on node-0\b.*\bens9 on node-1\b", text)


def test_hosts_with_different_places_get_their_own_and_a_run_starts_with_them(lab2: Lab) -> None:
    places = [environment(lab2, number, f"/home/ann/env{number}", "2.9.0") for number in (0, 1)]
    pythons, _ = write(lab2, "node-[0-1]")
    assert pythons == {"node-0": places[0], "node-1": places[1]}
    script(lab2, "import sys\nprint(sys.executable)\n")
    done = ok(orch(lab2, "up", "--skip-check", "--set", "run.launcher=direct", "--", "train.py"))
    assert all(place in done.stdout for place in places)


def test_a_host_without_torch_is_named_with_the_command_that_installs_it(lab2: Lab) -> None:
    environment(lab2, 0, "/home/ann/train", "2.9.0")
    _, said = write(lab2, "node-[0-1]")
    assert "ddp-orch setup" in said and "node-1" in said


def test_an_unreachable_host_is_written_too_and_gives_its_exit_code(lab2: Lab, tmp_path: Path) -> None:
    python = environment(lab2, 0, "/home/ann/train", "2.9.0")
    pythons, said = write(lab2, "node-0", "10.77.0.99", code_=4)
    assert pythons == {"node-0": python, "10.77.0.99": python}
    assert "10.77.0.99" in said


@pytest.mark.timeout(200)
def test_a_new_user_gets_from_up_to_a_run_by_answering_questions(lab2: Lab) -> None:
    python = environment(lab2, 0, "/home/ann/train", "2.9.0")
    environment(lab2, 1, "/home/ann/train", "2.9.0")
    (code(lab2) / "inventory.yaml").unlink(missing_ok=True)
    script(lab2, "import sys\nprint('runs on', sys.executable)\n")
    words = ("up", "--skip-check", "--set", "run.launcher=direct", "--", "train.py")
    with person(lab2, *words) as user:
        user.sees(r"Write one now\? \[Y/n\]: ")
        user.type("\r")
        user.sees(r"Which hosts\?")
        user.type("node-0,\r")  # a slip
        user.sees(r"try again")
        user.type("ann@node-[0-1]\r")
        user.sees(r"More hosts\?.*: ")
        user.type("\r")
        user.sees(r"Connect to the hosts now.*: ")
        user.type("\r")
        user.sees(r"runs on " + python, 120)
        assert user.process.wait(60) == 0, user.seen
    text = (code(lab2) / "inventory.yaml").read_text()
    (comment,) = re.findall("# node-.*", text)
    assert python in comment and "2.9.0" in comment
