"""A module that the hosts lack is code on this machine: no package of that name is to be installed."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from host_facts import PYTHON, decoded, facts

from orchestrator.answers.decode import decode
from orchestrator.answers.hello import Hello
from orchestrator.inventory import model
from orchestrator.output.finding import Finding
from orchestrator.plan import entrypoint, plan
from orchestrator.runs import probe

HELLO = {"codes": [], "boot_id": "b", "machine_id": "m", "state_inode": [1, 1], "host": "a"}


def found(folder: Path, module: str, *words: str, run: str = "{}") -> Finding:
    (folder / "inventory.yaml").write_text(f"hosts: [a]\nrun: {run}\n")
    inventory = model.load(str(folder / "inventory.yaml"))
    command, snapshot = entrypoint.find(inventory, words)
    assert snapshot is not None
    code = plan.Code(snapshot.sha256, snapshot.workdir, str(snapshot.root), 1, 1)
    made = plan.make(inventory, run_id="R", name="R", command=command, code=code, env={}, debug=False)
    script = probe.script_of(snapshot)
    assert script is not None and module not in script["local"]
    lacks = {**PYTHON, "script": {"path": script["path"], "absent": None, "error": None, "missing": [module]}}
    probed = probe.Probed(decoded(facts(python=lacks)), decode(Hello, HELLO, "hello"), (0.0, 0.1))
    (finding,) = probe.check_hosts(made, {"a": probed})
    assert finding.code == "script-import-error"
    return finding


def test_an_argument_that_is_a_path_of_this_machine_in_the_code_is_told_as_the_ranks_find_it(project: Path) -> None:
    (project / "inventory.yaml").write_text("hosts: [a]\n")
    (project / "scripts" / "labels").write_text("")
    inventory = model.load(str(project / "inventory.yaml"))
    data = str(project / "scripts")
    command, snapshot = entrypoint.find(inventory, ("train.py", "--data", data))
    assert snapshot is not None
    code = plan.Code(snapshot.sha256, snapshot.workdir, str(snapshot.root), 1, 1)
    made = plan.make(inventory, run_id="R", name="R", command=command, code=code, env={}, debug=False)
    answer = decoded(facts(paths={data: "No such file or directory"}))
    (finding,) = probe.check_hosts(made, {"a": probe.Probed(answer, decode(Hello, HELLO, "hello"), (0.0, 0.1))})
    assert finding.code == "dataset-missing" and "`scripts`" in finding.fix


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path.resolve() / "project"
    for name in ("train.py", "scripts/train.py", "src/deep.py"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("")
    subprocess.run(("git", "init", "--quiet"), cwd=folder, check=True)
    monkeypatch.chdir(folder)
    return folder


@pytest.mark.parametrize(
    ("ignored", "file", "script", "sync"),
    [
        ("data/", "data/loader.py", "train.py", "[auto, data]"),
        ("data/*", "data/loader.py", "train.py", "[auto, data/loader.py]"),
        ("utils.py", "utils.py", "train.py", "[auto, utils.py]"),
        ("utils.py", "scripts/utils.py", "scripts/train.py", "[auto, scripts/utils.py]"),
    ],
)
def test_a_module_that_git_ignores_is_named_with_the_rule(
    project: Path, ignored: str, file: str, script: str, sync: str
) -> None:
    (project / file).parent.mkdir(exist_ok=True)
    (project / file).write_text("")
    (project / ".gitignore").write_text(f"{ignored}\n")
    module = "data" if "data" in file else "utils"
    finding = found(project, module, script)
    assert f"({ignored})" in finding.fix and sync in finding.fix and "pip" not in finding.fix
    assert "not sent" in finding.message


def test_a_module_that_the_list_of_what_to_send_lacks_is_named(project: Path) -> None:
    (project / "utils.py").write_text("")
    assert "run.sync: [src, utils.py]" in found(project, "utils", "train.py", run="{sync: [src]}").fix


def test_a_module_above_the_repository_is_said_not_to_be_in_it(project: Path) -> None:
    (project.parent / "common.py").write_text("")
    fix = found(project, "common", "train.py").fix
    assert "../common.py" in fix and "Copy it" in fix and "pip" not in fix


@pytest.fixture
def without_git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path.resolve() / "stud"
    (folder / "exp").mkdir(parents=True)
    (folder / "common.py").write_text("")
    (folder / "exp" / "sub.py").write_text("import common\n")
    monkeypatch.chdir(folder)
    return folder


def test_without_git_a_script_is_started_as_a_module_of_the_folder_that_has_its_imports(
    without_git: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fix = found(without_git, "common", "exp/sub.py").fix
    assert "../common.py" in fix and "`-m exp.sub`" in fix and "git init" in fix and "Copy" not in fix
    (without_git / "inventory.yaml").write_text("hosts: [a]\n")
    _, snapshot = entrypoint.find(model.load("inventory.yaml"), ("-m", "exp.sub"))
    assert snapshot is not None and {"common.py", "exp/sub.py"} <= {entry.path for entry in snapshot.files}
    monkeypatch.chdir("exp")
    assert "in .." in found(without_git, "common", "sub.py").fix
    assert "`-m exp.sub`" not in found(without_git, "common", "sub.py", run="{sync: [exp/sub.py]}").fix


def test_a_module_of_a_package_whose_folder_the_user_is_in_is_started_from_its_parent(
    without_git: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir("exp")
    finding = found(without_git, "exp", "-m", "exp.sub", "--epochs", "1")
    start = "cd .. && ddp-orch up -- -m exp.sub --epochs 1"
    assert start in finding.fix and "Copy" not in finding.fix and "exp/" in finding.fix
    _, snapshot = entrypoint.find(model.load("../inventory.yaml"), ("-m", "exp.sub", "--epochs", "1"))
    assert snapshot is not None and start in snapshot.notes[0] and "must be installed" not in snapshot.notes[0]
    _, snapshot = entrypoint.find(model.load("../inventory.yaml"), ("-m", "elsewhere.sub"))
    assert snapshot is not None and "must be installed" in snapshot.notes[0]


def test_a_module_elsewhere_in_the_code_needs_a_path(project: Path) -> None:
    assert "PYTHONPATH=src" in found(project, "deep", "train.py").fix


def test_modules_in_a_folder_that_pythonpath_names_are_not_asked_for(project: Path) -> None:
    code = plan.Code("", ".", str(project), 1, 1)
    inventory = model.parse("hosts: [{name: a, env: {PYTHONPATH: 'src:/opt'}}]", "inventory.yaml")
    made = plan.make(inventory, run_id="R", name="R", command=("-u", "t.py"), code=code, env={}, debug=False)
    asked = probe.question(made, made.nodes[0], {"path": "t.py", "source": "import deep", "local": ["t"]})
    assert asked["script"] == {"path": "t.py", "source": "import deep", "local": ["deep", "t"]}


def test_a_mistyped_name_of_a_module_of_the_code_is_corrected(project: Path) -> None:
    (project / "utils.py").write_text("")
    (project / "ops.py").write_text("")
    fix = found(project, "utlis", "train.py").fix
    assert "mean utils," in fix and "pip" not in fix
    assert "pip install einops" in found(project, "einops", "train.py").fix
