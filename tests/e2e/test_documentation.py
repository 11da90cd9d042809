"""Run the blocks of the documentation: shell commands on two or four hosts, as a reader types them, and Python code.

tests/unit/test_documentation.py sees to it that a block that is not run here says why.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from documentation import Block, blocks
from lab.lab import Lab

from .driver import code, ok, script
from .test_init import environment
from .test_shell import person

TRAIN = """
import os, pathlib, sys
print("step 1 loss 2.31", *sys.argv[1:], flush=True)
pathlib.Path(os.environ["DDP_ORCH_OUTPUT_DIR"], "model.pt").write_text("weights")
"""
PAIR = ("lovelace", "hopper")
RUN = "ddp-orch up --skip-check --name first -- train.py\n"


@dataclass(frozen=True)
class Stage:
    """What is there before the blocks of a page."""

    commands: str = ""
    hosts: tuple[str, ...] = PAIR
    launcher: str = "direct"


STAGES = {
    "docs/diagnose.md": Stage("echo 'RuntimeError: CUDA error: out of memory' > train.log\n" + RUN),
    "docs/guides/frameworks.md": Stage("touch sft.yaml data.jsonl"),
    "docs/guides/rented-boxes.md": Stage("rm inventory.yaml"),
    "docs/inventory.md": Stage("cp inventory.yaml big.yaml; echo TOKEN=abc > job.env"),
    "docs/json.md": Stage(RUN),
    "docs/launchers.md": Stage("cp train.py main.py; echo 'echo \"$@\"' > run.sh; echo '{}' > ds.json"),
    "docs/logs.md": Stage(RUN, tuple(f"gpu{number:02}" for number in range(1, 5))),
    "docs/troubleshooting.md": Stage("echo 1/0 > broken.py; ddp-orch up -- broken.py || [ $? = 1 ]"),
    "docs/upgrading.md": Stage("ddp-orch up --name digits -- train.py"),
}


def of_mark(mark: str | None) -> list[Block]:
    return [block for block in blocks() if block.is_shell and block.mark == mark]


def python_blocks(page: str) -> list[Block]:
    return [block for block in blocks() if block.language == "python" and block.page == page and not block.mark]


PAGES = sorted({block.page for block in of_mark(None)} - {"README.md"})


def set_up(lab: Lab, stage: Stage) -> None:
    """The reader's ssh_config, inventory and script."""
    config = lab.controller_home / ".ssh" / "config"
    with config.open("a") as file:
        for name, host in zip(stage.hosts, lab.hosts, strict=True):
            file.write(f"Host {name}\n    HostName {host.address}\n    User ann\n")
    folder = code(lab)
    shutil.rmtree(folder)
    folder.mkdir()
    inventory = lab.inventory(
        hosts=list(stage.hosts),
        defaults={"python": lab.python, "nproc_per_node": 2},
        run={"launcher": stage.launcher, "grace": 1},
    )
    inventory.rename(folder / "inventory.yaml")
    script(lab, TRAIN)
    bash(lab, stage.commands)


def bash(lab: Lab, commands: str) -> None:
    ok(lab.run(["bash", "-xeuo", "pipefail", "-c", commands], cwd=code(lab), timeout=120))


@pytest.mark.timeout(200)
@pytest.mark.parametrize("page", PAGES)
def test_the_commands_of_a_page_succeed_one_after_the_other(
    page: str, lab2: Lab, request: pytest.FixtureRequest
) -> None:
    stage = STAGES.get(page, Stage())
    lab = lab2 if len(stage.hosts) == 2 else request.getfixturevalue(f"lab{len(stage.hosts)}")
    set_up(lab, stage)
    for block in of_mark(None):
        if block.page == page:
            bash(lab, "\n".join(block.commands))


@pytest.mark.timeout(200)
def test_a_reader_of_the_readme_gets_to_a_run(lab2: Lab) -> None:
    set_up(lab2, Stage(launcher="torchrun"))
    (code(lab2) / "inventory.yaml").unlink()
    packages = next(path for path in sys.path if path.endswith("site-packages"))
    for number, host in enumerate(lab2.hosts):
        environment(lab2, number, "/home/ann/venv", None)
        host.sh(f"echo {packages} > $(echo /home/ann/venv/lib/*/site-packages)/torch.pth")
    completion, first_run = (block for block in of_mark(None) if block.page == "README.md")
    bash(lab2, "mkdir -p ~/.config/fish/completions\n" + "\n".join(completion.commands))
    with person(lab2, "-ec", "\n".join(first_run.commands) + "\necho all; echo done", program="bash") as reader:
        reader.sees(r"Connect to the hosts now.*\[Y/n\]: ")
        reader.type("\r")
        reader.sees(r"venv/bin/python has torch ")
        reader.sees(r"step 1 loss 2.31 --lr 0.1", 120)
        reader.sees(r"all\r\ndone")


@pytest.mark.parametrize("block", of_mark("dry run"), ids=str)
def test_commands_for_what_is_not_here_are_planned(block: Block, lab2: Lab) -> None:
    set_up(lab2, STAGES.get(block.page, Stage(launcher="torchrun")))
    bash(lab2, "\n".join(command.replace("ddp-orch up", "ddp-orch up --dry-run", 1) for command in block.commands))


def test_programs_that_start_runs_do_so(lab2: Lab) -> None:
    set_up(lab2, Stage())
    start, find = python_blocks("docs/python.md")
    for block in (start, find):
        ok(lab2.run(["python", script(lab2, block.text, "home.py")], cwd=code(lab2), timeout=120))


AROUND = {
    "docs/memory.md": (
        """
import os, tempfile, torch
os.environ.update(DDP_ORCH_MEMORY_DIR=tempfile.mkdtemp(dir="."), DDP_ORCH_OUTPUT_DIR=tempfile.mkdtemp(dir="."))
model = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
""",
        """
assert snapshot is None
for step in (9, 10, 11):
    save(memory, step)
assert sorted(path.name for path in memory.iterdir()) == ["step-000000010", "step-000000011"]
assert torch.load(newest(memory) / "model.pt")["step"] == 11
""",
    ),
    "docs/resume.md": (
        "import os\nos.environ['DDP_ORCH_OUTPUT_DIR'] = '.'\n",
        """
assert init_from == "scratch"
import torch, torch.distributed.checkpoint as dcp
assert not is_complete("half")
dcp.save({"weight": torch.ones(3)}, checkpoint_id="half")
assert is_complete("half")
os.remove(next(path.path for path in os.scandir("half") if path.name.endswith(".distcp")))
assert not is_complete("half")
""",
    ),
    "docs/trainer.md": (
        """
import os, signal, torch
import torch.distributed as dist
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
device, rank, batches, saved = "cpu", 0, range(3), []
save = saved.append
def train(batch):
    if batch == 1:
        os.kill(os.getpid(), signal.SIGUSR1)
""",
        """
assert saved == [1]
from types import SimpleNamespace
trained, tested = data(SimpleNamespace())
assert (len(trained), len(tested)) == (20000, 2000)
assert model(2)(tested[0][0]).shape == (2,) and tested[0][1] in (0, 1)
""",
    ),
}
"""What a reader's program has around the blocks of a page."""


def test_the_surroundings_are_of_pages_with_code() -> None:
    assert {*AROUND, "docs/python.md"} == {
        block.page for block in blocks() if block.language == "python" and not block.mark
    }


def test_the_code_of_the_pages_does_what_they_say(tmp_path: Path) -> None:
    parts = {
        page: "\n".join((before, *(block.text for block in python_blocks(page)), after))
        for page, (before, after) in AROUND.items()
    }
    program = f"for page, text in {parts!r}.items(): exec(compile(text, page, 'exec'), {{'__name__': page}})"
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
