"""`up` trains: the bundled trainer and users' own scripts, on one host and on many."""

from __future__ import annotations

import json
import re
import subprocess

import pytest
from lab.lab import Lab

from .driver import assert_clean, lines_of, ok, orch, runs, script

WHO = """
import os
names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK")
print("who", *(os.environ[name] for name in names), flush=True)
"""


def who(output: str) -> list[tuple[str, tuple[int, ...]]]:
    """(host, what WHO printed) of every rank, in the order of ranks."""
    found = re.findall(r"^(\S+?):\d+ +\| who ([\d ]+)$", output, re.M)
    return sorted(((host, tuple(map(int, numbers.split()))) for host, numbers in found), key=lambda one: one[1])


@pytest.mark.full
def test_the_bundled_trainer_learns_the_digits_on_two_hosts(lab2: Lab) -> None:
    inventory = lab2.inventory()
    result = ok(orch(lab2, "up", inventory, timeout=200))
    accuracy = re.search(r"node-0:0 +\| done .*test_acc:(\S+)", result.stdout)
    assert accuracy and float(accuracy[1]) >= 0.95
    assert "node-1:1     | start rank:1 world_size:2" in result.stdout
    assert "succeeded" in result.stderr
    assert "ddp-orch fetch" in result.stderr
    (run,) = runs(lab2, inventory).values()
    assert run["state"] == "succeeded"
    assert [(node["host"], node["node_rank"], node["exit_code"]) for node in run["nodes"]] == [
        ("node-0", 0, 0),
        ("node-1", 1, 0),
    ]
    assert_clean(lab2)


@pytest.mark.parametrize("launcher", ["torchrun", "direct"])
def test_three_hosts_with_one_two_and_three_ranks_are_numbered_in_the_inventorys_order(
    lab3: Lab, launcher: str
) -> None:
    hosts = [
        {"name": host.name, "address": host.address, "nproc_per_node": number}
        for number, host in enumerate(lab3.hosts, 1)
    ]
    inventory = lab3.inventory(hosts=hosts, run={"launcher": launcher})
    result = ok(orch(lab3, "up", inventory, "--", script(lab3, WHO)))
    assert "fetch" not in result.stderr  # there is nothing to be fetched
    assert who(result.stdout) == [
        ("node-0", (0, 6, 0, 1, 0)),
        ("node-1", (1, 6, 0, 2, 1)),
        ("node-1", (2, 6, 1, 2, 1)),
        ("node-2", (3, 6, 0, 3, 2)),
        ("node-2", (4, 6, 1, 3, 2)),
        ("node-2", (5, 6, 2, 3, 2)),
    ]
    assert_clean(lab3)


def test_the_head_is_rank_0_wherever_it_stands_in_the_inventory(lab3: Lab) -> None:
    inventory = lab3.inventory(head="node-2", run={"launcher": "direct"})
    result = ok(orch(lab3, "up", inventory, "--", script(lab3, WHO)))
    assert [host for host, _ in who(result.stdout)] == ["node-2", "node-0", "node-1"]


def test_one_host_alone_needs_no_network(lab2: Lab) -> None:
    inventory = lab2.inventory()
    result = ok(orch(lab2, "up", inventory, "--hosts", "node-1", "--", script(lab2, WHO)))
    assert who(result.stdout) == [("node-1", (0, 1, 0, 1, 0))]


def test_localhost_is_reached_without_ssh(lab2: Lab) -> None:
    inventory = lab2.inventory(hosts=["localhost"], defaults={"python": lab2.python})
    result = ok(
        orch(
            lab2,
            "up",
            inventory,
            "--",
            script(lab2, WHO),
            env={"PATH": f"{lab2.python.rsplit('/', 1)[0]}:/usr/bin:/bin"},
        )
    )
    assert who(result.stdout) == [("localhost", (0, 1, 0, 1, 0))]
    assert not lab2.marked()


def test_the_controllers_own_machine_may_be_the_head_of_others(lab2: Lab) -> None:
    hosts = [
        {"name": "here", "address": "localhost"},
        *({"name": host.name, "address": host.address, "user": "ann"} for host in lab2.hosts),
    ]
    inventory = lab2.inventory(hosts=hosts, defaults={"python": lab2.python}, run={"launcher": "direct"})
    result = ok(orch(lab2, "up", inventory, "--", script(lab2, WHO)))
    assert [host for host, _ in who(result.stdout)] == ["here", "node-0", "node-1"]
    assert not lab2.marked()


def test_c10d_rendezvous_tags_lines_by_the_rank_that_torchrun_gave(lab2: Lab) -> None:
    inventory = lab2.inventory(run={"rdzv": {"backend": "c10d"}})
    run = ok(orch(lab2, "up", inventory, "--json", "--", script(lab2, WHO)))
    lines = [json.loads(line) for line in run.stdout.splitlines()]
    tagged = {line["rank"]: int(line["text"].split()[1]) for line in lines if line["text"].startswith("who")}
    assert tagged == {0: 0, 1: 1}


def test_a_users_repository_runs_unchanged(lab2: Lab) -> None:
    """Local imports, a configuration file beside the script, relative paths, and a file named trainer.py."""
    project = lab2.controller_home / "project"
    (project / "pkg").mkdir(parents=True)
    (project / "pkg" / "__init__.py").write_text("WORD = 'imported'\n")
    (project / "trainer.py").write_text("NAME = 'the user\\'s trainer'\n")
    (project / "config.txt").write_text("configured\n")
    (project / "secret.bin").write_text("ignored\n")
    (project / ".gitignore").write_text("*.bin\n")
    (project / "train.py").write_text(
        "import os, sys, trainer, pkg\n"
        "there = os.path.exists('secret.bin')\n"
        "print('got', pkg.WORD, trainer.NAME, open('config.txt').read().strip(), there, sys.argv[1:])\n"
    )
    for command in (["git", "init", "-q"], ["git", "add", "."]):
        subprocess.run(command, cwd=project, check=True)
    inventory = lab2.inventory(run={"launcher": "direct"})
    result = ok(orch(lab2, "up", inventory, "--", "train.py", "--lr", "0.1", cwd=project))
    expected = "got imported the user's trainer configured False ['--lr', '0.1']"
    assert result.stdout.count(expected) == 2
    again = ok(orch(lab2, "up", inventory, "--", "train.py", cwd=project))
    assert again.stdout.count("got imported") == 2


def test_a_folder_of_the_host_is_used_in_place(lab2: Lab) -> None:
    for host in lab2.hosts:
        host.sh("mkdir -p ~/work && echo 'import os; print(\"in\", os.getcwd())' > ~/work/here.py", check=True)
    inventory = lab2.inventory(
        run={"launcher": "direct"}, defaults={"user": "ann", "python": lab2.python, "workdir": "/home/ann/work"}
    )
    result = ok(orch(lab2, "up", inventory, "--", "here.py"))
    assert result.stdout.count("in /home/ann/work") == 2


def test_setup_lines_persist_into_the_ranks(lab2: Lab) -> None:
    setup = ["export FROM_SETUP='one two'", "ulimit -n 512", "alias python=false"]
    inventory = lab2.inventory(
        defaults={"user": "ann", "python": lab2.python, "setup": setup, "env": {"AFTER": "$FROM_SETUP"}}
    )
    text = (
        "import os, resource\n"
        "limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]\n"
        "print('setup', os.environ['FROM_SETUP'], os.environ['AFTER'], limit)\n"
    )
    result = ok(orch(lab2, "up", inventory, "--", script(lab2, text)))
    assert result.stdout.count("setup one two $FROM_SETUP 512") == 2


def test_a_setup_line_that_fails_is_found_before_the_start(lab2: Lab) -> None:
    inventory = lab2.inventory(
        defaults={"user": "ann", "python": lab2.python, "setup": ["true", "module load nonsense"]}
    )
    result = ok(orch(lab2, "up", inventory, "--", script(lab2, WHO)), 3)
    assert "node-[0-1]" in result.stderr and "setup line 2" in result.stderr
    assert_clean(lab2)


def test_a_script_that_fails_ends_with_1_and_names_the_first_failure(lab2: Lab) -> None:
    text = "import os, sys, time\nif os.environ['RANK'] == '1': sys.exit(3)\ntime.sleep(60)\n"
    inventory = lab2.inventory()
    result = ok(orch(lab2, "up", inventory, "--", script(lab2, text)), 1)
    assert "node-1: rank 1: exit code 3" in result.stderr
    assert_clean(lab2)


def test_a_command_that_cannot_be_executed_says_so(lab2: Lab) -> None:
    # no value alone is too long, and Linux takes a quarter of the stack's limit
    values = {"LARGEST": "x" * 110_000, "A": "x" * 100_000, "B": "x" * 100_000}
    small = {"user": "ann", "python": lab2.python, "env": values, "setup": ["ulimit -s 1024"]}
    inventory = lab2.inventory(run={"launcher": "direct"}, defaults=small)
    result = ok(orch(lab2, "up", inventory, "--", script(lab2, WHO)), 1)
    assert "LARGEST with 110000 bytes" in result.stdout


def test_direct_gives_the_ranks_the_environment_that_torchrun_gives(lab2: Lab) -> None:
    text = "import os, json; print('env', json.dumps(dict(os.environ)))"
    seen = {}
    for launcher in ("torchrun", "direct"):
        inventory = lab2.inventory(
            run={"launcher": launcher, "rdzv": {"port": 23456}},
            defaults={"user": "ann", "python": lab2.python, "nproc_per_node": 2},
        )
        run_id = ok(orch(lab2, "up", inventory, "-d", "--", script(lab2, text))).stdout.strip()
        ok(orch(lab2, "logs", "-f", run_id, "-i", inventory))
        lines = lines_of(lab2, inventory, run_id, "--stream", "stdout")
        environments = {line["rank"]: json.loads(line["text"][4:]) for line in lines}
        assert sorted(environments) == [0, 1, 2, 3]
        seen[launcher] = {
            rank: {name: value.replace(run_id, "RUN") for name, value in env.items()}
            for rank, env in environments.items()
        }
    # without an agent nobody serves its store, or handles signals for the ranks; each session has its own SSH_*
    differ = {
        "TORCHELASTIC_USE_AGENT_STORE",
        "TORCHELASTIC_ERROR_FILE",
        "TORCHELASTIC_SIGNALS_TO_HANDLE",
        "SSH_CLIENT",
        "SSH_CONNECTION",
    }
    for rank in range(4):
        by_torchrun, direct = (
            {name: value for name, value in seen[launcher][rank].items() if name not in differ}
            for launcher in ("torchrun", "direct")
        )
        assert direct == by_torchrun
