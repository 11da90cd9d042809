"""What the commands promise to scripts and to people whose hosts, pipes and patience fail them."""

from __future__ import annotations

import json
import re
import signal
import subprocess
from pathlib import Path

from lab.lab import Lab
from lab.waiting import wait_until

from .driver import COUNTER, assert_clean, attached, code, lines_of, ok, orch, runs, script, start, wait_for_state


def test_up_into_a_pipe_that_closes_is_quiet_and_the_run_goes_on(lab2: Lab) -> None:
    inventory = lab2.inventory(run={"launcher": "direct"})
    command = f'ddp-orch up {inventory} -- {script(lab2, COUNTER)} 1000 0.05 | head -3; echo "code ${{PIPESTATUS[0]}}"'
    result = lab2.run(["bash", "-c", command], cwd=code(lab2), timeout=60)
    *lines, last = result.stdout.splitlines()
    assert len(lines) == 3 and last == "code 0"
    assert "Error" not in result.stderr and "logs -f" in result.stderr
    (run,) = runs(lab2, inventory).values()
    assert run["state"] == "running"
    ok(orch(lab2, "kill", "-i", inventory, "--grace", "1"))
    assert_clean(lab2)


def test_a_third_ctrl_c_leaves_though_a_host_cannot_be_reached(lab2: Lab) -> None:
    inventory = lab2.inventory(cluster_addresses=True, run={"launcher": "direct", "grace": 60})
    text = (
        "import signal, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "print('ready', flush=True)\n"
        "time.sleep(1000)\n"
    )
    with attached(lab2, inventory, "--", script(lab2, text)) as up:
        assert up.stdout and up.stderr
        seen = 0
        while seen < 2:
            seen += "ready" in up.stdout.readline()
        for host in lab2.hosts:
            host.cut("ssh")
        said = ""
        for word in ("stopping", "killing", "ddp-orch logs -f"):
            up.send_signal(signal.SIGINT)
            while word not in said:
                said = up.stderr.readline()
                assert said, f"ended before it said {word}"
        assert up.wait(15) == 130
    for host in lab2.hosts:
        host.heal()
    ok(orch(lab2, "kill", "-i", inventory, "--grace", "0"))
    assert_clean(lab2)


def test_up_ends_when_a_host_has_crashed_and_the_others_have_given_up(lab2: Lab) -> None:
    inventory = lab2.inventory(run={"launcher": "direct"})
    with attached(lab2, inventory, "--", script(lab2, COUNTER), "10000", "0.1") as up:
        assert up.stdout and up.stderr
        while "node-1:1" not in up.stdout.readline():
            pass
        lab2.hosts[1].crash()
        assert up.wait(90) in (1, 4)  # a rank of node-0 may be the first to notice
        assert "node-1" in up.stderr.read()
    lab2.hosts[1].boot()
    assert_clean(lab2)


def test_a_missing_host_is_4_for_ps_logs_and_kill_which_do_what_they_can(lab2: Lab) -> None:
    inventory = lab2.inventory(run={"launcher": "direct"})
    run_id = start(lab2, inventory, "--", script(lab2, COUNTER), "1000", "0.1")
    wait_for_state(lab2, inventory, run_id, "running")
    lab2.hosts[1].sshd_stop()
    listed = ok(orch(lab2, "ps", "-i", inventory, "--json"), 4)
    assert [run["run_id"] for run in json.loads(listed.stdout)] == [run_id]
    assert "node-1" in listed.stderr and "--hosts '!node-1'" in listed.stderr
    assert re.search(r"\bnode-0 \([^)]*\bnode-1\)", ok(orch(lab2, "ps", "-i", inventory), 4).stdout)
    assert "node-0:0" in ok(orch(lab2, "logs", "-i", inventory), 4).stdout
    assert "error: " in ok(orch(lab2, "kill", "nosuch", "-i", inventory), 4).stderr
    killed = ok(orch(lab2, "kill", "-i", inventory, "--grace", "1", "--json"), 4)
    assert re.search(r"^warning: .*\bnode-1\b.*\bddp-orch kill\b", killed.stderr, re.MULTILINE)
    proof = json.loads(killed.stdout)
    assert proof["unreachable"] == ["node-1"] and proof["run_id"] == run_id
    lab2.hosts[1].sshd_start()
    ok(orch(lab2, "kill", "-i", inventory, "--grace", "1"))
    assert_clean(lab2)


def test_a_part_of_the_hosts_can_be_looked_at_though_a_run_needs_more(lab2: Lab) -> None:
    inventory = lab2.inventory(run={"launcher": "direct", "nnodes": 2})
    run_id = start(lab2, inventory, "--", script(lab2, COUNTER), "20", "0")
    ok(orch(lab2, "logs", "-f", "-i", inventory))
    assert {line["host"] for line in lines_of(lab2, inventory, run_id, "--host", "node-1")} == {"node-1"}
    part = ok(orch(lab2, "logs", "--host", "node-1", "-i", inventory))
    assert "node-1:1" in part.stdout and "node-0" not in part.stdout + part.stderr
    assert len(lines_of(lab2, inventory, run_id, "--grep", "count 1[0-4]$")) == 10
    assert lines_of(lab2, inventory, run_id, "--until", "1h") == []
    assert run_id in ok(orch(lab2, "logs", "--grep", "zzz", "-i", inventory)).stderr
    assert len(lines_of(lab2, inventory, run_id, "--since", "1h", "--stream", "stdout")) == 40
    assert run_id in ok(orch(lab2, "logs", "--rank", "7", "-i", inventory), 2).stderr


def test_exec_keeps_stdout_and_stderr_apart_and_names_hosts_that_failed(lab2: Lab) -> None:
    inventory = lab2.inventory()
    result = ok(orch(lab2, "exec", inventory, "--", "echo out; echo err >&2"))
    assert result.stdout == "node-[0-1]: out\n"
    assert result.stderr == "node-[0-1]: err\n"
    lab2.hosts[1].sshd_stop()
    wait_until(lambda: orch(lab2, "exec", inventory, "--", "true").returncode == 4, 10, "node-1 is not reached")
    first, second = json.loads(ok(orch(lab2, "exec", inventory, "--json", "--", "echo out"), 4).stdout)
    assert first == {"host": "node-0", "exit_code": 0, "stdout": "out\n", "stderr": "", "error": None}
    assert (second["host"], second["exit_code"]) == ("node-1", None) and second["error"]
    # in a pipe, who has failed is told when the others go on
    first_line, *rest = ok(orch(lab2, "exec", inventory, "--", "sleep 3"), 4).stderr.splitlines()
    assert re.match(r"- 0 .*\b2 ", first_line)
    assert "; running: node-0; failed: node-1: connect: " in first_line and rest[-1].startswith("error: node-1: ")
    lab2.hosts[1].sshd_start()


def test_ctrl_c_in_exec_ends_the_command_and_shows_what_the_hosts_have_said_that_have_answered(lab2: Lab) -> None:
    command = 'if [ "$(hostname)" = node-1 ]; then sleep 1000; else echo done; fi'
    argv = ["ddp-orch", "exec", lab2.inventory(), "--", command]
    with lab2.popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as running:
        assert running.stderr
        assert re.match(r"- 1 .*\b2 .*\b10 s\b.*: node-1$", running.stderr.readline())
        running.send_signal(signal.SIGINT)
        out, errors = running.communicate(timeout=20)
    assert out == "node-0: done\n" and running.returncode == 130
    assert errors.split("\n") == ["error: node-1: interrupted", "", "error: interrupted", ""]
    assert [one for one in lab2.hosts[1].processes() if one.argv == ("sleep", "1000")] == []


def test_the_commands_that_up_prints_work_where_it_was_called(lab2: Lab) -> None:
    folder = code(lab2)
    other = lab2.inventory(hosts=[{"name": "node-0", "address": lab2.hosts[0].address}], run={"launcher": "direct"})
    (folder / "inventory.yaml").write_text(other.read_text())
    inventory = lab2.inventory(hosts=[{"name": "node-1", "address": lab2.hosts[1].address}], run={"launcher": "direct"})
    inventory.rename(folder / "my big.yaml")
    up = ["up", "my big.yaml", "-d", "--name", "nightly", "--", script(lab2, COUNTER), "1000", "0.1"]
    try:
        follow = ok(orch(lab2, *up)).stderr.rstrip("\n").rpartition(": ")[2]
        assert follow == "ddp-orch logs -f nightly -i 'my big.yaml'"
        follows = lab2.popen(
            ["bash", "-c", f"exec {follow}"], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        assert follows.stdout and any("rank 0 count 0" in line for line in follows.stdout)
        follows.send_signal(signal.SIGINT)
        assert "ddp-orch kill nightly -i 'my big.yaml'" in follows.communicate(timeout=30)[1]
        listed = ok(orch(lab2, "ps", "--json"))  # of ./inventory.yaml
        assert json.loads(listed.stdout) == []
        ok(lab2.run(["bash", "-c", "ddp-orch kill nightly --grace 0"], cwd=folder, timeout=60))  # it is remembered
    finally:
        for name in ("inventory.yaml", "my big.yaml"):
            (folder / name).unlink()
    assert_clean(lab2)


def test_the_readme_shows_what_up_prints(lab2: Lab) -> None:
    text = (
        'import os\nif os.environ["LOCAL_RANK"] == "0": print("step 1 loss 2.31")\n'
        'open(os.path.join(os.environ["DDP_ORCH_OUTPUT_DIR"], "model.pt"), "w").close()\n'
    )
    hosts = [
        {"name": name, "address": host.address} for name, host in zip(("lovelace", "hopper"), lab2.hosts, strict=True)
    ]
    defaults = {"user": "ann", "python": lab2.python, "nproc_per_node": 8}
    inventory = lab2.inventory(hosts=hosts, defaults=defaults, run={"launcher": "direct"})
    inventory.rename(code(lab2) / "inventory.yaml")
    readme = (Path(__file__).parents[2] / "README.md").read_text()
    shown = readme.partition("$ ddp-orch up -- train.py --lr 0.1\n")[2].partition("```")[0]

    def plain(output: str) -> set[str]:
        """Lines without what is another time another one."""
        output = re.sub(r"[0-9]{8}-[0-9]{6}-[0-9a-f]{4}", "RUN", output)
        output = re.sub(r"(?m)^- code: .*", "- code: FILES", output)
        return {re.sub(r"[0-9.]+( s\b|:[0-9]+$| port [0-9]+)", "N", line) for line in output.splitlines()}

    done = ok(orch(lab2, "up", "--", script(lab2, text), "--lr", "0.1"))
    assert plain(shown) - {"..."} <= plain(done.stdout + done.stderr)
    assert_clean(lab2)
