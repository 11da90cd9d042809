"""constraints.txt, so that a set-up today and one in a year are the same."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parents[2]


def test_every_direct_dependency_has_one_version() -> None:
    tomllib = pytest.importorskip("tomllib", reason="Python 3.10 cannot read pyproject.toml")
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())
    wanted = [*project["build-system"]["requires"], *project["project"]["dependencies"]]
    wanted += [each for extra in project["project"]["optional-dependencies"].values() for each in extra]
    pinned = {name.lower() for name in re.findall(r"(?m)^([\w-]+)==", (CHECKOUT / "constraints.txt").read_text())}
    assert {re.split(r"[^\w-]", each)[0].lower() for each in wanted} <= pinned


def test_an_installation_has_every_file(tmp_path: Path) -> None:
    """`pip install .`, where the packages of a checkout are not at hand."""
    listed = subprocess.run(["git", "ls-files"], cwd=CHECKOUT, capture_output=True, text=True, check=True).stdout
    files = [name for name in listed.splitlines() if name.startswith(("orchestrator/", "trainer/"))]
    completions = [name for name in listed.splitlines() if name.startswith("docs/completion/")]
    source = tmp_path / "source"
    for name in [*files, *completions, "pyproject.toml", "README.md", "docs/ddp-orch.1"]:
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(CHECKOUT / name, source / name)
    build = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", tmp_path, source]
    subprocess.run(build, capture_output=True, check=True)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as installed:
        names = set(installed.namelist())
    assert set(files) <= names
    installed = tmp_path / "installed"
    options = ("--no-deps", "--no-index", "--ignore-installed", "--no-compile", "--prefix", installed)
    subprocess.run([sys.executable, "-m", "pip", "install", *options, wheel], capture_output=True, check=True)
    assert (installed / "share/man/man1/ddp-orch.1").exists()
    bash = installed / "share/bash-completion/completions/ddp-orch"
    zsh = installed / "share/zsh/site-functions"
    fish = installed / "share/fish/vendor_completions.d/ddp-orch.fish"
    programs = {
        "bash": f"source {bash}; COMP_WORDS=(ddp-orch descr) COMP_CWORD=1; _ddp_orch_completion $COMP_WORDS; "
        "echo $COMPREPLY",
        "zsh": f"fpath=({zsh} $fpath); autoload -U compinit; compinit -u -D; echo $_comps[ddp-orch]",
        "fish": f"source {fish}; complete -C 'ddp-orch descr'",
    }
    path = f"{installed / 'bin'}:{os.environ['PATH']}"
    for shell, program in programs.items():
        if shutil.which(shell):
            env = {**os.environ, "PATH": path, "HOME": str(tmp_path)}
            done = subprocess.run([shell, "-c", program], env=env, capture_output=True, text=True, check=True)
            assert ("_ddp-orch" if shell == "zsh" else "describe") in done.stdout, (shell, done)
