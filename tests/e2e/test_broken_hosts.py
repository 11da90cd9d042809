"""What only hosts can tell: said in one message for all of them, with the exit code, and nothing is left anywhere.

Each case of broken_hosts.py has its golden text. With UPDATE_GOLDEN=1 in the environment they are written anew; the
diff is to be read.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator

import pytest
from lab.fixtures import assert_nothing_left
from lab.lab import Lab
from lab.waiting import wait_until

from .broken_hosts import CASES, Case
from .driver import guards, ok, orch, script
from .test_broken_inputs import GOLDEN, same_as, told

pytestmark = pytest.mark.lab
GUILTY = {"one": slice(2, 3), "head": slice(0, 1), "all": slice(0, 8)}
EVERYTHING = bool(os.environ.get("DDP_ORCH_ALL_BREAKAGES"))  # else one scope a case, and all hosts where that is one
CHOSEN = [
    pytest.param(case, scope, id=f"{case.name}.{scope}")
    for case in CASES
    for scope in (case.scopes if EVERYTHING else case.scopes[-1:])
]


@pytest.fixture(scope="module")
def lab8() -> Iterator[Lab]:
    """Eight hosts for all of the cases, each of which mends what it breaks."""
    with Lab(8) as lab:
        script(lab, "print(1)\n")
        yield lab


@pytest.mark.parametrize(("case", "scope"), CHOSEN)
def test_a_broken_host_is_said_in_one_message_and_nothing_is_left(lab8: Lab, case: Case, scope: str) -> None:
    guilty = lab8.hosts[GUILTY[scope]]
    with case.break_(lab8, guilty) as asked:
        hosts = []
        for host in lab8.hosts:
            more = {key: str(value).replace("NAME", host.name) if key == "address" else value
                    for key, value in asked.of_guilty.items()} if host in guilty else {}  # fmt: skip
            hosts.append({"name": host.name, "address": host.address, **more})
        top = dict(asked.top)
        top["defaults"] = {"user": "ann", "python": lab8.python, **top.get("defaults", {})}
        inventory = lab8.inventory(hosts=hosts, **top)
        result = orch(lab8, "up", inventory, *asked.argv, env=asked.env)
        left = leftovers(lab8)
    assert (result.returncode, result.stdout) == (case.code, ""), result.stderr
    assert "Traceback" not in result.stderr and "a bug" not in result.stderr
    assert re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", result.stderr) is None
    assert left == []
    assert_nothing_left(lab8)
    argv = ("up", "inventory.yaml", *asked.argv)
    same_as(f"hosts/{case.name}.{scope}", told(argv, case.code, plain(lab8, result.stderr)))


RUNS = {
    "run-held-by-its-name": (5, "up", "INVENTORY", "--name", "mine", "--", "train.py"),
    "run-unknown-to-logs": (2, "logs", "nosuch"),
    "run-unknown-to-kill": (2, "kill", "nosuch"),
    "run-unknown-to-fetch": (2, "fetch", "nosuch"),
    "run-unknown-to-diagnose": (2, "diagnose", "nosuch"),
    "run-unknown-to-report": (2, "report", "nosuch"),
    "run-with-an-ambiguous-prefix": (2, "kill", "2"),
    "run-that-is-an-empty-word": (2, "kill", ""),
    "run-without-that-rank": (2, "logs", "mine", "--rank", "7"),
    "run-without-that-output": (2, "fetch", "mine", "*.pt"),
}


def test_a_run_that_is_not_meant_is_not_touched(lab8: Lab) -> None:
    """Two runs go on meanwhile, on one host."""
    inventory = lab8.inventory(hosts=[{"name": "node-0", "address": lab8.hosts[0].address}], run={"launcher": "direct"})
    none = orch(lab8, "logs", "-i", inventory)
    same_as("hosts/run-where-there-is-none", told(("logs",), none.returncode, plain(lab8, none.stderr)))
    waiting = script(lab8, "import time; time.sleep(600)\n", "wait.py")
    for name in ("mine", "other"):
        ok(orch(lab8, "up", inventory, "-d", "--skip-check", "--name", name, "--", waiting))
    try:
        for name, (code, *argv) in RUNS.items():
            here = ["-i", str(inventory)] if argv[0] != "up" else []
            result = orch(lab8, *[str(inventory) if word == "INVENTORY" else word for word in argv], *here)
            assert (result.returncode, result.stdout) == (code, ""), result.stderr
            same_as(f"hosts/{name}", told(tuple(argv), code, plain(lab8, result.stderr)))
        listed = json.loads(ok(orch(lab8, "ps", "-i", inventory, "--json")).stdout)
        assert {one["name"]: one["state"] for one in listed} == {"mine": "running", "other": "running"}
    finally:
        ok(orch(lab8, "kill", "--all", "-i", inventory, "--grace", "0"))
        for name in ("mine", "other"):  # for another try
            ok(orch(lab8, "prune", "-i", inventory, "--run", name, "--force"))
    assert_nothing_left(lab8)


def leftovers(lab: Lab) -> list[str]:
    """Files of a run and processes of ours on any host; the node program and the code stay, by their hashes."""
    found = [f"guard: {name}" for name in guards(lab)]
    for host in lab.hosts:

        def ours(host: object = host) -> list[str]:
            return [" ".join(one.argv) for one in host.processes() if one.uid == 2001 and "ddp" in " ".join(one.argv)]  # type: ignore[attr-defined]

        wait_until(lambda: not ours(), 10, f"the relays on {host.name} have ended: {ours()}")
        command = "ls -d ~/.local/state/ddp-orch/*/runs/* ~/.local/state/ddp-orch/*.new"
        command += " ~/.local/state/ddp-orch/*/code/*.tmp* 2> /dev/null;"
        # of ann alone: below these may be the checkout that the lab's hosts run
        command += " find /dev/shm /tmp /var/tmp -mindepth 1 -maxdepth 1 -user ann"
        found += [f"{host.name}: {path}" for path in host.sh(command).stdout.split() if "ddp-orch-2001" not in path]
    return found


def plain(lab: Lab, text: str) -> str:
    """Without what is another time another one."""
    text = (
        text.replace(str(lab.controller_home), "HOME").replace(lab.python, "PYTHON").replace(str(lab.directory), "LAB")
    )
    for pattern, word in (
        (r"(?m)^- [0-9]+ of [0-9]+ hosts done after .*\n", ""),  # said where it takes long
        (r"SHA256:[A-Za-z0-9+/]{43}", "SHA256:FINGERPRINT"),
        (r"\bpid [0-9]+", "pid PID"),
        (r"known_hosts:[0-9]+", "known_hosts:LINE"),
        (r"PATH=\S+", "PATH=..."),
        (r"[0-9]+ MiB", "N MiB"),
        (r"[0-9]+ attempts?", "N attempts"),
        (r"[0-9]{8}-[0-9]{6}-[0-9a-f]{4}", "RUN"),
        (r"started [0-9-]+ [0-9:]+ [+-][0-9]+", "started TIME"),
        (r" \((connect|check|send) [0-9.]+ s.*?\)", " (TIMES)"),
        (r"\b2[0-9]{4}\b", "PORT"),
        (r"/[0-9a-f]{12}/", "/HOST/"),
        (r"[0-9a-f]{64}\.tmp-[0-9]+-\w+", "SHA256.tmp"),
        (r"ddp-orch/node-[0-9a-f]{16}(\.[0-9]+\.new)?", "ddp-orch/node-SHA256"),
    ):
        text = re.sub(pattern, word, text)
    return text


def test_there_are_no_golden_texts_without_a_case() -> None:
    names = {f"{case.name}.{scope}" for case in CASES for scope in case.scopes} | {*RUNS, "run-where-there-is-none"}
    assert {path.stem for path in (GOLDEN / "hosts").glob("*.txt")} == names
