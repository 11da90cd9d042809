"""The program as a process: exit codes, closed pipes, poor locales. No host is needed."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator import __version__
from orchestrator.cli import cli
from orchestrator.commands import foreign_commands
from orchestrator.errors import OutputError, UsageError

ROOT = Path(__file__).parents[2]
SMALL = "hosts: [lovelace]\nrun: {env: {CITY: Zürich}}\n"


def orch(folder: Path, *argv: str, **environment: str) -> subprocess.CompletedProcess[str]:
    (folder / "inventory.yaml").write_text(SMALL, encoding="utf-8")
    command = [sys.executable, "-m", "orchestrator.cli", *argv]
    env = {**os.environ, "PYTHONPATH": str(ROOT), **environment}
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    "argv",
    [
        ["nosuch"],
        ["up", "nosuch.yaml"],
        ["up", "inventory.yaml", "--name", "a/b", "--dry-run"],
        ["up", "inventory.yaml", "-e", "X", "--dry-run"],
        ["up", "inventory.yaml", "--hosts", "hopper", "--dry-run"],
        ["logs", "--rank", "x"],
        ["logs", "--grep", "("],
        ["logs", "--since", "yesterday"],
        ["logs", "--host", "hopper"],
        ["kill", "x", "--all"],
        ["kill", "--leftovers", "--all"],
        ["init"],
        ["init", "gpu1"],
        ["trust", "nosuch.yaml"],
        ["up", "-i", "inventory.yaml", "inventory.yaml"],
        ["exec", "-i", "inventory.yaml"],
    ],
    ids=" ".join,
)
def test_a_mistake_is_2_and_one_message(tmp_path: Path, argv: list[str]) -> None:
    result = orch(tmp_path, *argv)
    assert result.returncode == 2, result.stderr
    assert result.stdout == ""
    assert "Traceback" not in result.stderr and "rror: " in result.stderr


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_shells_complete_commands(tmp_path: Path, shell: str) -> None:
    source = orch(tmp_path, _DDP_ORCH_COMPLETE=f"{shell}_source")
    assert source.returncode == 0 and f"_DDP_ORCH_COMPLETE={shell}_complete" in source.stdout
    words = {"COMP_WORDS": "ddp-orch tr", "COMP_CWORD": "tr" if shell == "fish" else "1"}
    found = orch(tmp_path, _DDP_ORCH_COMPLETE=f"{shell}_complete", **words)
    assert "trust" in found.stdout and "kill" not in found.stdout


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_shells_complete_runs_by_id_and_name(tmp_path: Path, shell: str) -> None:
    state = tmp_path / "state/ddp-orch"
    state.mkdir(parents=True)
    runs = [["20261122-070000-abcd", "mnist", "/x"], ["20261121-070000-efgh", "20261121-070000-efgh", "/x"]]
    (state / "newest.json").write_text(json.dumps({"runs": runs}))
    for begun, expected in (("2026", ["20261122-070000-abcd", "20261121-070000-efgh"]), ("mn", ["mnist"]), ("x", [])):
        for command in ("logs", "kill", "fetch", "report", "diagnose", "top"):
            words = {"COMP_WORDS": f"ddp-orch {command} {begun}", "COMP_CWORD": begun if shell == "fish" else "2"}
            found = orch(
                tmp_path, _DDP_ORCH_COMPLETE=f"{shell}_complete", XDG_STATE_HOME=str(tmp_path / "state"), **words
            )
            assert [
                one
                for one in ("20261122-070000-abcd", "20261121-070000-efgh", "mnist")
                if one in completions(shell, found.stdout)
            ] == expected, found


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_shells_complete_hosts_of_the_inventory(tmp_path: Path, shell: str) -> None:
    (tmp_path / "other.yaml").write_text("hosts: ['gpu[01-03]', hopper]\n")
    for line, expected in (
        ("ddp-orch up other.yaml --hosts gpu01,ho", ["gpu01,hopper"]),
        ("ddp-orch ps -i other.yaml --hosts gpu", ["gpu01", "gpu02", "gpu03"]),
        ("ddp-orch ps --hosts lo", ["lovelace"]),
        ("ddp-orch up nosuch.yaml --hosts lo", []),
    ):
        words = line.split()
        begun = {"COMP_WORDS": line, "COMP_CWORD": words[-1] if shell == "fish" else str(len(words) - 1)}
        found = orch(tmp_path, _DDP_ORCH_COMPLETE=f"{shell}_complete", **begun)
        assert [word for word in completions(shell, found.stdout) if word] == expected, found


def test_the_shells_complete_a_script_by_its_file(tmp_path: Path) -> None:
    for line, begun in (("ddp-orch up inventory.yaml tr", "tr"), ("ddp-orch up inventory.yaml -- tr", "tr")):
        words = {"COMP_WORDS": line, "COMP_CWORD": str(len(line.split()) - 1)}
        assert orch(tmp_path, _DDP_ORCH_COMPLETE="bash_complete", **words).stdout == f"file,{begun}\n"


def test_flags_alone_are_for_the_script_of_the_inventory_or_the_bundled_trainer(tmp_path: Path) -> None:
    (tmp_path / "trainer.py").write_text("raise SystemExit('the trainer of somebody else')")
    up = ("up", "mine.yaml", "--dry-run", "--json", "--")

    def command(*flags: str) -> list[str]:
        done = orch(tmp_path, *up, *flags, PYTHONPATH=f"{tmp_path}:{ROOT}")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)["nodes"][0]["command"][1:]

    inventory = tmp_path / "mine.yaml"
    inventory.write_text("hosts: [gpu1]\nrun: {args: [--seed=1]}\n")
    assert command("--epochs", "3") == ["-u", "-m", "trainer", "--seed=1", "--epochs", "3"]
    inventory.write_text("hosts: [gpu1]\nrun: {script: trainer.py, args: [--seed=1]}\n")
    assert command("--epoch", "3") == ["-u", "trainer.py", "--seed=1", "--epoch", "3"]
    assert command("trainer.py", "--epoch", "3") == ["-u", "trainer.py", "--epoch", "3"]


def test_the_bundled_trainer_s_flags_are_told_here(tmp_path: Path) -> None:
    told = orch(tmp_path, "up", "inventory.yaml", "--", "--help")
    assert told.returncode == 0 and "--batch-size" in told.stdout and not told.stderr


def completions(shell: str, said: str) -> list[str]:
    """The words, without click's kinds and help."""
    if shell == "zsh":
        return said.splitlines()[1::3]
    return [line.partition(",")[2].partition("\t")[0] for line in said.splitlines()]


def test_a_command_that_takes_the_newest_run_s_inventory_says_so(tmp_path: Path) -> None:
    assert "newest run" in " ".join(orch(tmp_path, "ps", "--help").stdout.split())
    assert "newest run" not in " ".join(orch(tmp_path, "check", "--help").stdout.split())


def test_a_locale_without_the_character_ends_no_command(tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    result = orch(tmp_path, "up", "--dry-run", "inventory.yaml", "--", "train.py", PYTHONIOENCODING="ascii")
    assert (result.returncode, result.stderr) == (0, "")
    assert "Z\\xfcrich" in result.stdout


@pytest.mark.parametrize("argv", [["config"], ["config", "--json"], ["up", "--dry-run"]], ids=" ".join)
def test_a_reader_that_has_gone_is_no_error(tmp_path: Path, argv: list[str]) -> None:
    (tmp_path / "inventory.yaml").write_text(SMALL, encoding="utf-8")
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-u", "-m", "orchestrator.cli", argv[0], "inventory.yaml", *argv[1:]]
    result = subprocess.run(
        command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, stdout=writing, stderr=subprocess.PIPE
    )
    os.close(writing)
    assert (result.returncode, result.stderr) == (0, b"")


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_output_that_cannot_be_written_is_an_error(tmp_path: Path, unbuffered: str) -> None:
    argv = [sys.executable, "-m", "orchestrator.cli", "version"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": unbuffered}
    with open("/dev/full", "w") as full:
        result = subprocess.run(argv, cwd=tmp_path, env=environment, stdout=full, stderr=subprocess.PIPE, text=True)
        argv[-1] = "no-such-command"
        wrong = subprocess.run(argv, cwd=tmp_path, env=environment, stderr=full)
    assert result.returncode == OutputError.exit_code
    assert result.stderr.startswith("error: ") and result.stderr.count("\n") == 1
    assert wrong.returncode == UsageError.exit_code  # the message is lost, the exit code is not


@pytest.mark.parametrize("closed", [0, 1, 2])
def test_a_closed_stream_is_no_bug(tmp_path: Path, closed: int) -> None:
    (tmp_path / "inventory.yaml").write_text("hosts: [{name: here, address: localhost}]\n")
    argv = [sys.executable, "-m", "orchestrator.cli", "exec", "inventory.yaml", "--", "echo hi; echo hi >&2"]
    shell = ["bash", "-c", f'exec "$@" {closed}>&-', "bash", *argv]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    result = subprocess.run(shell, cwd=tmp_path, env=environment, capture_output=True, text=True)
    said = ["" if closed == number else "here: hi\n" for number in (1, 2)]
    assert (result.returncode, [result.stdout, result.stderr]) == (0, said)


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_pipe_that_does_not_block_gets_all_lines(tmp_path: Path, unbuffered: str) -> None:
    (tmp_path / "inventory.yaml").write_text("hosts: [{name: here, address: localhost}]\n")
    argv = [sys.executable, "-m", "orchestrator.cli", "exec", "inventory.yaml", "--", "seq 50000"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": unbuffered}
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    with open(reading) as pipe:
        process = subprocess.Popen(argv, cwd=tmp_path, env=environment, stdout=writing)
        os.close(writing)
        assert pipe.read().splitlines() == [f"here: {number}" for number in range(1, 50001)]
        assert process.wait(20) == 0


def test_a_bug_is_70() -> None:
    code = "from orchestrator.cli import guarded; raise SystemExit(guarded(lambda: 1 / 0))"
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 70
    assert "bug in ddp-orch" in result.stderr and "ZeroDivisionError" in result.stderr


def test_what_a_script_starts_in_the_background_can_be_interrupted_too(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "log")
    process = subprocess.Popen(
        [sys.executable, "-m", "orchestrator.cli", "diagnose", "--log", "log"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),  # as a shell without job control does
    )
    with (tmp_path / "log").open("w"):  # it is there, and reads
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=60)[1].strip() == "error: interrupted"
    assert process.returncode == 130


@pytest.mark.parametrize(
    ("argv", "hint"),
    [
        (["stop"], "ddp-orch kill"),
        (["inspect", "my run"], "ddp-orch describe RUN"),
        (["restart"], "Missing argument 'RUN'"),
        (["-i", "x.yaml", "kill", "nightly"], "ddp-orch kill -i x.yaml nightly"),
        (["kill", "nightly", "x.yaml"], "ddp-orch kill nightly -i x.yaml"),
        (["kill", "x.yaml", "nightly"], "ddp-orch kill -i x.yaml nightly"),
        (["drain", "x.yaml", "nightly", "lovelace"], "ddp-orch drain -i x.yaml nightly lovelace"),
        (["check", "x.yaml", "y.yaml"], "unexpected extra argument (y.yaml)\n"),
        (["logs", "inventory.yaml"], "ddp-orch logs -i inventory.yaml"),
        (["logs", "-f", "inventory.yaml"], "ddp-orch logs -f -i inventory.yaml"),
        (["kill", "--grace", "5", "inventory.yaml"], "ddp-orch kill --grace 5 -i inventory.yaml"),
        (["logs", "--no-follow"], "without -f"),
        (["logs", "-f", "t1", "1"], "ddp-orch ps --all"),
        (["logs", "-o", "inventory.yaml", "inventory.yaml"], "logs -o inventory.yaml -i inventory.yaml"),
        (["diagnose", "--hosts", "me", "inventory.yaml"], "ddp-orch diagnose --hosts me -i inventory.yaml"),
        (["--json", "ps"], "ddp-orch ps --json"),
        (["--inventory=x.yaml", "ps", "--all"], "ddp-orch ps --inventory=x.yaml --all"),
        (["-i", "x.yaml", "--hosts", "me", "top", "nightly"], "ddp-orch top -i x.yaml --hosts me nightly"),
        (["exec", "echo", "hi"], "ddp-orch exec -- echo hi"),
        (["exec", "exec", "--hosts", "me", "exec", "ls"], "ddp-orch exec --hosts me -- exec exec ls"),
        (["up", "--name", "train.py", "train.py"], "ddp-orch up --name train.py -- train.py"),
        (["up", "train.py", "--", "--lr", "1"], "ddp-orch up -- train.py --lr 1"),
        (["up", "x.yaml", "--lr", "1", "--", "train.py", "-v"], "ddp-orch up x.yaml -- train.py -v --lr 1"),
        (["up", "python", "hello.py"], "ddp-orch up -- hello.py"),
        (["up", "python3.11", "hello.py", "--lr", "1"], "ddp-orch up -- hello.py --lr 1"),
        (["up", "-d", "python", "-m", "pkg"], "ddp-orch up -d -- -m pkg"),
        (["up", "--name", "python", "hello.py", "--lr", "1"], "ddp-orch up --name python -- hello.py --lr 1"),
        (["up", "torchrun", "hello.py"], "ddp-orch up -- hello.py"),
        (["up", "-i", "x.yaml", "torchrun", "hello.py"], "ddp-orch up -i x.yaml -- hello.py"),
        (["exec", "hostname"], "ddp-orch exec -- hostname"),
        (["exec", "no-such-cluster", "ls"], "names a cluster"),
        (["exec", "--env", "A=1", "--", "ls"], "'NAME=VALUE CMD'"),
        (["launch", "-c", "mine", "none.yaml"], "none.yaml does not"),
        (["exec", "inventory.yaml"], "ddp-orch exec inventory.yaml -- CMD ARGS..."),
        (["exec", "inventory.yaml", "ls", "-l"], "ddp-orch exec inventory.yaml -- ls -l"),
        (["exec", "-i", "x.yaml", "ls"], "ddp-orch exec -i x.yaml -- ls"),
        (["up", "train.py", "0.1"], "ddp-orch up -- train.py 0.1"),
        (["up", "-d", "train.py"], "ddp-orch up -d -- train.py"),
        (["up", "-i", "x.yaml", "train.py"], "ddp-orch up -i x.yaml -- train.py"),
        (["up", "x.yaml", "train.py", "--lr", "1"], "ddp-orch up x.yaml -- train.py --lr 1"),
        (["up", "train.py", "-n", "2"], "ddp-orch up -- train.py -n 2"),
        (["up", "-m", "my.module"], "ddp-orch up -- -m my.module"),
        (["up", "x.yaml", "--lr", "1"], "ddp-orch up x.yaml -- --lr 1"),
        (["up", "--dryrun"], "'--dry-run'"),
        (["up", "--nnodes", "2"], "--set run.nnodes=N"),
        (["up", "--num-nodes", "2"], "--set run.nnodes=N"),
        (["up", "-c", "mine", "--env", "A=1", "--", "bash", "run.sh"], "--hosts PATTERN"),
        (["up", "--dry-run", "-e", "LR=1", "--", "x.sh"], "up -e LR=1 --set run.launcher=node -- bash x.sh"),
        (["up", "-N", "2", "--", "train.py"], "--set run.nnodes=N"),
        (["up", "--nodes", "2"], "--set run.nnodes=N"),
        (["up", "--launcher", "direct", "--", "train.py"], "--set run.launcher=NAME"),
        (["kill", "-9", "mine"], "--grace 0"),
        (["signal", "mine", "-9"], "ddp-orch signal RUN KILL"),
        (["logs", "--lines", "2"], "--tail N"),
        (["cordon", "gpu-01"], "ddp-orch drain RUN HOST"),
        (["prune", "20260101-120000-abcd"], "ddp-orch prune --run 20260101-120000-abcd"),
        (["ps", "-a"], "'--all'"),
        (["kill", "-a"], "'--all'"),
        (["logs", "-t"], "'--timestamps'"),
        (["queue"], "ddp-orch up --queue"),
        (["delete", "j1"], "ddp-orch kill RUN"),
        (["restart", "rs", "--steps", "3"], "ddp-orch up --name rs -- SCRIPT --steps 3"),
        (["restart", "-i", "x.yaml", "-d", "rs", "--lr=1"], "ddp-orch up --name rs -- SCRIPT --lr=1"),
        (["restart", "rs", "--", "train.py", "--lr", "1"], "ddp-orch up --name rs -- train.py --lr 1"),
        (["restart", "rs", "--nnodes", "2"], "--set run.nnodes=N"),
        (["restart", "rs", "--host", "me"], "'--hosts'"),
        (["exec", "--hosts", "any 1", "--", "ls"], "only for up and restart"),
        (["up", "--", "sky", "launch", "-c", "x", "echo hi"], "ddp-orch up -- SCRIPT"),
        (["up", "--", "sky", "exec", "x", "echo hi"], "ddp-orch exec"),
        (["up", "--", "sky", "jobs", "queue"], "ddp-orch ps"),
        (["up", "--", "sky", "status"], "ddp-orch ps"),
        (["up", "--dry-run", "-e", "LR=1", "--set", "run.env.LR=2"], "-e LR=2"),
        (["init", "ssh", "root@10.0.0.1", "-p", "40022"], "ddp-orch init 'ssh root@10.0.0.1 -p 40022'"),
        (["init", "ssh", "root@10.0.0.1", "-p40022"], "ddp-orch init 'ssh root@10.0.0.1 -p40022'"),
        (["up", "--nproc_per_node=2"], "ddp-orch up -- torchrun --nproc_per_node=N SCRIPT"),
        (["up", "--nproc", "2", "--", "train.py"], "set nproc_per_node of the hosts"),
        (["up", "--nproc=2", "--", "train.py"], "set nproc_per_node of the hosts"),
        (["up", "--num_processes", "4", "--", "train.py"], "set nproc_per_node of the hosts"),
        (["up", "-n", "2"], "run.nnodes"),
        (["up", "--max-restarts", "3"], "--set run.max_restarts=N"),
        (["up", "--set", "max_restarts=3"], "only keys of run"),
        (["check", "--set", "run.grace=1"], "--set"),
        (["check", "train.py"], "ddp-orch up -- train.py"),
        (["fetch", "*.pt"], "ddp-orch fetch RUN '*.pt'"),
        (["bench", "--", "--epochs", "x"], "argument --epochs"),
        (["notify"], "ddp-orch notify --test"),
        (["notify", "-i", "x.yaml"], "ddp-orch notify x.yaml --test"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_likely_slip_is_told_how_it_is_meant(tmp_path: Path, argv: list[str], hint: str) -> None:
    done = orch(tmp_path, *argv)
    assert done.returncode == 2 and hint in done.stderr.replace("`", ""), done.stderr


def test_an_option_of_other_launchers_gets_one_answer(tmp_path: Path) -> None:
    stderr = orch(tmp_path, "up", "--rdzv-backend", "c10d").stderr
    assert set(re.findall(r"--[a-z-]+", stderr)) == {"--rdzv-backend", "--set"}, stderr


def test_a_run_may_have_a_name_like_that_of_a_file(tmp_path: Path) -> None:
    """What is no file is looked for among the runs; here no host can be asked."""
    (tmp_path / "ssh").write_text("Host *\n  HostName 127.0.0.1\n  Port 1\n")
    done = orch(tmp_path, "logs", "-f", "nightly.yaml", DDP_ORCH_SSH_CONFIG=str(tmp_path / "ssh"))
    assert done.returncode == 4 and "'nightly.yaml'" in done.stderr, done.stderr


def test_the_help_is_shown_where_no_command_is_given(tmp_path: Path) -> None:
    done = orch(tmp_path)
    assert (done.returncode, done.stderr) == (2, orch(tmp_path, "--help").stdout)


def test_help_and_version_are_found_where_they_are_looked_for(tmp_path: Path) -> None:
    versions = {orch(tmp_path, *argv).stdout for argv in (["-V"], ["--version"], ["version"])}
    assert versions == {f"ddp-orch, version {__version__}\n"}
    assert orch(tmp_path, "help", "up").stdout == orch(tmp_path, "up", "--help").stdout
    assert orch(tmp_path, "help").stdout == orch(tmp_path, "--help").stdout
    assert "'up'" in orch(tmp_path, "help", "upp").stderr


def test_every_slip_of_a_command_leads_to_one_that_is_here(tmp_path: Path) -> None:
    for word in foreign_commands.ELSEWHERE:
        assert word not in cli.commands
        text = str(foreign_commands.elsewhere(word.split()))
        for name in re.findall(r"ddp-orch (\w+)", text):
            assert name in cli.commands, text


OF_SKYPILOT = (
    ["up", "--", "sky", "launch", "-c", "x", "task.yaml"],
    ["up", "-i", "inventory.yaml", "--", "sky", "jobs", "launch", "task.yaml"],
    ["up", "--", "sky", "exec", "x", "task.yaml"],
    ["up", "sky", "launch", "-c", "x", "task.yaml"],
    ["exec", "task.yaml"],
    ["exec", "mycluster", "task.yaml"],
    ["exec", "-c", "mycluster", "task.yaml"],
    ["up", "task.yaml", "-c", "mycluster"],
    ["queue", "task.yaml"],
)


def test_a_command_line_of_dstack_is_no_program_of_the_hosts(tmp_path: Path) -> None:
    (tmp_path / "x.yml").write_text("type: task\nnodes: 2\ncommands: [python train.py]\n")
    (tmp_path / "inventory.yaml").write_text("hosts: [a]\n")
    assert "run.launcher=dstack" in orch(tmp_path, "up", "--", "dstack", "apply", "-f", "x.yml").stderr
    (tmp_path / "sky").write_text("")  # a program of the user
    assert "SkyPilot" not in orch(tmp_path, "up", "--dry-run", "--", "sky", "launch").stderr


def test_launch_with_a_task_of_skypilot_says_at_once_what_becomes_of_it(tmp_path: Path) -> None:
    (tmp_path / "task.yaml").write_text("num_nodes: 3\nenvs: {LR: 1}\nsecrets: [TOK]\nrun: python train.py\n")
    for argv in (
        ["launch", "-c", "box", "task.yaml"],
        ["jobs", "launch", "task.yaml"],
        ["up", "task.yaml"],
        *OF_SKYPILOT,
    ):
        shown = orch(tmp_path, *argv).stderr
        for word in ("run.launcher=skypilot", "(LR)", "--env-file", "(TOK)", "run.secrets", "--hosts 'any 3'"):
            assert word in shown, (argv, shown)
        assert "file_mounts" not in shown and "comparison.md" in shown
    assert "ddp-orch up other.yaml" in orch(tmp_path, "launch", "other.yaml").stderr


def test_the_lines_of_a_task_that_do_not_fit_here_are_named(tmp_path: Path) -> None:
    task = tmp_path / "task.yaml"
    task.write_text(
        "secrets: {TOK: hunter2}\nfile_mounts: {/data: s3://b}\n"
        "run: |\n  cd ~/sky_workdir\n  torchrun --master_port=8008 train.py\n"
    )
    shown = str(foreign_commands.foreign_task([str(task)]))
    for word in ("cd ~/sky_workdir", "$MASTER_PORT", "/data/train.bin", "run.sync", "take their values"):
        assert word in shown, (word, shown)
    assert "hunter2" not in shown
    task.write_text("secrets: [TOK]\nrun: torchrun --master_port=$MASTER_PORT train.py\n")
    shown = str(foreign_commands.foreign_task([str(task)]))
    assert not any(word in shown for word in ("sky_workdir", "$MASTER_PORT", "take their"))


def test_a_command_of_two_words_is_recognised_as_a_whole() -> None:
    assert "ddp-orch up task.yaml" in str(foreign_commands.elsewhere(["jobs", "launch", "task.yaml"]))
    assert "ddp-orch kill RUN" in str(foreign_commands.elsewhere(["jobs", "cancel", "7"]))
    assert "ddp-orch ps" in str(foreign_commands.elsewhere(["jobs"]))
    assert "notify" in str(foreign_commands.elsewhere(["autostop", "-i", "5", "box"]))
