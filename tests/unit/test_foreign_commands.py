"""Commands of similar programs: each suggestion is a command of ddp-orch that can be given as it is."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest

from orchestrator.cli import cli
from orchestrator.commands import foreign_commands

SKY = "--set run.launcher=skypilot -- bash run2.sh"
CASES = [
    ("launch -- bash run2.sh", f"up {SKY}"),
    ("launch run2.sh", f"up {SKY}"),
    ("launch bash run2.sh", f"up {SKY}"),
    (f"launch -- bash -c {5000 * 'a'}", f"up --set run.launcher=node -- bash -c {5000 * 'a'}"),
    ("launch other.sh", "up --set run.launcher=node -- bash other.sh"),
    ("launch -- train.py --lr 0.1", "up -- train.py --lr 0.1"),
    ("launch train.py --lr 0.1", "up -- train.py --lr 0.1"),
    ("launch -- torchrun train.py", "up -- torchrun train.py"),
    ("jobs launch -n foo -- bash run2.sh", f"up --name foo {SKY}"),
    ("jobs launch --name=foo -- bash run2.sh", f"up --name foo {SKY}"),
    ("launch -c mycluster -- bash run2.sh", f"up {SKY}"),
    ("launch --env A=1 -- bash run2.sh", f"up -e A=1 {SKY}"),
    ("launch --env-file x.env -d -y -- bash run2.sh", f"up --env-file x.env -d {SKY}"),
    ("launch --secret T=1 --gpus A100:8 --infra aws -- bash run2.sh", f"up {SKY}"),
    ("launch --num-nodes 2 run2.sh", f"up --hosts 'any 2' {SKY}"),
    ("launch --dryrun -- train.py", "up --dry-run -- train.py"),
    ("launch --num-nodes two run2.sh", "up -- SCRIPT ARGS..."),
    ("launch --name 'a b' run2.sh", "up -- SCRIPT ARGS..."),
    ("launch --unknown 2 run2.sh", "up -- SCRIPT ARGS..."),
    ("launch run2.sh -c mycluster", "up -- SCRIPT ARGS..."),
    ("launch 'python train.py'", "up -- SCRIPT ARGS..."),
    ("launch", "up -- SCRIPT ARGS..."),
    ("launch other.yaml", "up other.yaml"),
    ("launch @slurm -- train.py", "up @slurm -- train.py"),
    ("apply -f other.yaml -y", "up other.yaml"),
    ("run train.py -n 3", "up -- train.py -n 3"),
    ("run -n 3 train.py", "up -- SCRIPT ARGS..."),
    ("sbatch run2.sh", f"up -d {SKY}"),
    ("sbatch -N 2 run2.sh", "up -d -- SCRIPT ARGS..."),
    ("cancel -a", "kill --all"),
    ("cancel --all", "kill --all"),
    ("jobs cancel --all -y", "kill --all"),
    ("cancel mycluster 3", "kill RUN"),
    ("cancel 3", "kill RUN"),
    ("cancel", "kill"),
    ("jobs cancel -n foo -y", "kill foo"),
    ("scancel -u me", "kill RUN"),
    ("down inventory.yaml", "kill -i inventory.yaml"),
    ("stop a/b", "kill RUN"),
    ("status job4", "describe job4"),
    ("status", "ps"),
    ("status -r a b", "ps"),
    ("queue mycluster", "ps"),
    ("queue -a mycluster", "ps --all"),
    ("ls inventory.yaml", "ps inventory.yaml"),
    ("jobs queue -a", "ps --all"),
    ("jobs pool apply", "ps"),
    ("jobs", "ps"),
    ("jobs logs 3 --follow", "logs -f RUN"),
    ("start job4", "restart job4"),
    ("start train.py", "up -- train.py"),
    ("start", "up -- SCRIPT ARGS..."),
    ("show-gpus --all", "gpus"),
    ("show-gpus A100", "gpus"),
    ("watch job4", "top job4"),
    ("download a b", "fetch RUN"),
    ("tail job4", "logs -f --tail 10 job4"),
    ("serve up service.yaml", "up -- COMMAND"),
    ("storage ls", "fetch RUN"),
]


@pytest.mark.parametrize(("line", "suggestion"), CASES)
def test_a_suggestion_is_a_whole_command(
    line: str, suggestion: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run2.sh").write_text("echo $SKYPILOT_NODE_RANK\n")
    message = str(foreign_commands.elsewhere(shlex.split(line)))
    shown = re.split(r"; | \(", message.partition("you may want: ")[2])[0]
    assert shown == f"ddp-orch {suggestion}"
    argv = shlex.split(shown)[1:]
    command = cli.commands[argv[0]]
    command.make_context(argv[0], argv[1:], parent=click.Context(cli))  # raises what a user would be told


@pytest.mark.parametrize(
    ("line", "suggestion"),
    [
        ("sky launch -n foo -- bash run2.sh", "up --name foo --set run.launcher=node -- bash run2.sh"),
        ("sky jobs cancel -a", "kill --all"),
        ("sky serve up", "up -- COMMAND"),
        ("dstack stop foo", "kill foo"),
    ],
)
def test_a_command_line_of_another_program_after_up_is_translated_too(line: str, suggestion: str) -> None:
    assert f"ddp-orch {suggestion}" in str(foreign_commands.of_other_program(shlex.split(line)))
