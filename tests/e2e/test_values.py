"""What the inventory and the command line say reaches the processes byte for byte; secrets reach nobody else."""

from __future__ import annotations

import base64
import json
import secrets
import threading

import pytest
from lab.lab import Lab

from .driver import ok, orch, script

NASTY = [
    "",
    " ",
    "a b",
    "'",
    '"',
    "$(touch /tmp/injected)",
    "`id`",
    "$HOME",
    "${local_rank}",
    "$$",
    "\\",
    "line\nbreak",
    "tab\there",
    "--",
    "-c",
    "*",
    "ünïcødé 漢字",
    "!history",
    "a=b;c|d&e>f",
    "{attempt}",
    "%s",
    "\x7f\x01",
]
ECHO = "import json, os, sys; print('got', json.dumps([sys.argv[1:], os.environ['NASTY'], os.getcwd()]))"


@pytest.mark.parametrize("launcher", ["torchrun", "direct"])
@pytest.mark.parametrize("setup", [[], ["true"]], ids=["plain", "setup"])
def test_arguments_and_environment_arrive_byte_for_byte(lab2: Lab, launcher: str, setup: list[str]) -> None:
    value = "".join(NASTY)
    inventory = lab2.inventory(
        run={"launcher": launcher, "env": {"NASTY": value}},
        defaults={"user": "ann", "python": lab2.python, "setup": setup},
    )
    result = ok(orch(lab2, "up", inventory, "--hosts", "node-0", "--json", "--", script(lab2, ECHO), *NASTY))
    (text,) = [line["text"] for line in map(json.loads, result.stdout.splitlines()) if line["text"].startswith("got")]
    arguments, environment, _ = json.loads(text[4:])
    assert arguments == NASTY
    assert environment == value
    assert not (lab2.hosts[0].root / "tmp/injected").exists()


def test_bytes_that_are_not_utf_8_arrive(lab2: Lab) -> None:
    inventory = lab2.inventory(run={"launcher": "direct"})
    text = "import os, sys; print('got', os.fsencode(sys.argv[1]).hex())"
    result = ok(orch(lab2, "up", inventory, "--hosts", "node-0", "--", script(lab2, text), "a\udcff\udc80b"))
    assert "got 61ff8062" in result.stdout


@pytest.mark.parametrize("launcher", [pytest.param("torchrun", marks=pytest.mark.full), "direct"])
def test_a_secret_is_in_the_ranks_environment_and_nowhere_else(lab2: Lab, launcher: str) -> None:
    canary = secrets.token_hex(12)  # made now, so that it is in no source either
    inventory = lab2.inventory(
        run={"launcher": launcher, "secrets": ["TOKEN"]},
        defaults={"user": "ann", "python": lab2.python, "setup": ["true"]},
    )
    text = "import os, time; print('token', os.environ['TOKEN'], flush=True); time.sleep(1)"
    seen: set[str] = set()
    done = threading.Event()

    def sample() -> None:
        while not done.is_set():
            for host in lab2.hosts:
                seen.update(word for process in host.processes() for word in process.argv)

    sampler = threading.Thread(target=sample)
    sampler.start()
    try:
        plan = ok(orch(lab2, "up", inventory, "--dry-run", env={"TOKEN": canary}))
        result = ok(orch(lab2, "up", inventory, "--name", "secretive", "--", script(lab2, text), env={"TOKEN": canary}))
    finally:
        done.set()
        sampler.join()
    assert "TOKEN=***" in plan.stdout and canary not in plan.stdout
    assert result.stdout.count("token ***") == 2 and canary not in result.stdout + result.stderr
    assert seen and not any(canary in word for word in seen)
    shown = orch(lab2, "logs", "secretive", "-i", inventory, env={"TOKEN": canary}).stdout
    assert shown.count("token ***") == 2 and canary not in shown
    for host in lab2.hosts:
        # the journal is raw, and private: it alone may hold what a rank chose to print
        places = "/home /tmp /var/tmp /run /dev/shm"
        assert host.sh(f"grep -rlf - --exclude-dir=log {places}", "root", input=canary).stdout == ""
        # nobody else comes in; inside, what python and torchrun write themselves follows the login's umask
        assert host.sh("stat -c %a ~/.local/state/ddp-orch").stdout == "700\n"
        theirs = "-path '*/code/*' -o -path '*/torchrun/*' -o -name __pycache__ -o -name '*.pyc'"
        open_to_others = f"find ~/.local/state/ddp-orch -perm /077 -not -type l -not \\( {theirs} \\)"
        assert host.sh(open_to_others).stdout == ""


def test_a_secret_in_a_traceback_is_in_no_argv_plan_file_report_or_diagnosis(lab2: Lab) -> None:
    """A run that fails with the secret in its exception, and everything that is said and kept of it."""
    canary = f"canary/{secrets.token_hex(12)}+"  # with characters that are escaped in URLs
    inventory = lab2.inventory(run={"launcher": "direct", "secrets": ["TOKEN"]})
    text = (
        "import base64, os, subprocess, time, urllib.parse\n"
        "token = os.environ['TOKEN']\n"
        "basic = base64.b64encode(b'user:' + token.encode()).decode()\n"
        "print('url', urllib.parse.quote(token), 'basic', basic, flush=True)\n"
        "time.sleep(1)\n"
        "raise RuntimeError(f'401 for {token!r} ' + token)\n"
    )
    seen: set[str] = set()
    done = threading.Event()

    def sample() -> None:
        while not done.is_set():
            for processes in (*(host.processes() for host in lab2.hosts), lab2._controller_processes()):
                seen.update(word for process in processes for word in process.argv)

    sampler = threading.Thread(target=sample)
    sampler.start()
    env = {"TOKEN": canary}
    try:
        said = [orch(lab2, "up", inventory, "--dry-run", "--json", "--", script(lab2, text), env=env)]
        said += [ok(orch(lab2, "up", inventory, "--name", "leaky", "--", "train.py", env=env), 1)]
        for argv in (
            ("logs", "leaky"),
            ("logs", "leaky", "--json"),
            ("logs", "leaky", "--grep", "401"),
            ("logs", "leaky", "-o", "lines"),
            ("diagnose", "leaky"),
            ("diagnose", "leaky", "--json"),
            ("report", "leaky", "-o", "report.html"),
            ("ps", "--all", "--json"),
            ("top", "leaky"),
            ("kill", "--json"),
        ):
            said.append(ok(orch(lab2, *argv, "-i", inventory, env=env)))
    finally:
        done.set()
        sampler.join()
    forms = (canary, canary[7:-1], base64.b64encode(f"user:{canary}".encode()).decode()[8:-4])
    for one in said:
        assert not any(form in one.stdout + one.stderr for form in forms), one.args
    assert "401 for" in said[1].stderr + said[1].stdout and "***" in said[1].stdout + said[1].stderr
    assert seen and not any(form in word for word in seen for form in forms)
    here = lab2.run(["grep", "-rlF", canary[7:-1], str(lab2.controller_home)])
    assert here.stdout == ""
    for host in lab2.hosts:
        places = "/home /tmp /var/tmp /run /dev/shm"
        kept = host.sh(f"grep -rlF -f - {places}", "root", input=canary[7:-1]).stdout.split()
        assert all("/log/" in path for path in kept), kept  # the journal, which is raw and private


def test_a_secret_that_is_not_set_is_a_clear_error(lab2: Lab) -> None:
    inventory = lab2.inventory(run={"secrets": ["NOT_SET_ANYWHERE"]})
    result = ok(orch(lab2, "up", inventory), 2)
    assert "NOT_SET_ANYWHERE" in result.stderr and result.stdout == ""
