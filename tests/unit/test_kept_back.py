"""A file that a run missed, and that is on this machine, kept back from the code."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from golden_files import assert_message

from orchestrator.diagnosis.engine import Diagnosis
from orchestrator.inventory import model
from orchestrator.output.finding import Finding
from orchestrator.plan import entrypoint
from orchestrator.runs import kept_back, recent

RUN = "20261122-070000-abcd"
MISSING = Finding(
    severity="error",
    code="dataset-missing",
    hosts=("a",),
    rank=0,
    at=None,
    confidence="medium",
    message="The data or model path does not exist.",
    evidence=("FileNotFoundError: [Errno 2] No such file or directory: 'data/set/train.bin'",),
    fix="Correct the path, mount it or download first.",
)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Its data is kept back by .gitignore; a run was started from it."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    folder = tmp_path.resolve() / "project"
    for name in ("data/set/train.bin", "data/set/prepare.py", "conf/inventory.yaml", "train.py"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("hosts: [a]\n")
    (folder / ".gitignore").write_text("# large\n*.bin\n")
    recent.remember(str(folder / "conf" / "inventory.yaml"), RUN, "mine", str(folder))
    return folder


def explained(finding: Finding, run_id: str = RUN) -> Finding:
    (found,) = kept_back.explain(Diagnosis((finding,), ()), run_id).findings
    return found


def test_the_diagnosis_names_the_rule_and_what_sends_the_file(project: Path) -> None:
    found = explained(MISSING)
    assert_message("fix-of-a-file-not-sent", found.fix)
    assert found.confidence == "high"


@pytest.mark.parametrize("folder", [".", "data"])
def test_a_path_into_the_runs_copy_of_the_code_is_understood(project: Path, folder: str) -> None:
    subprocess.run(("git", "init", "--quiet"), cwd=project, check=True)
    recent.remember(str(project / "conf" / "inventory.yaml"), "other", "mine", str(project / folder))
    path = "/home/ann/.local/state/ddp-orch/267b3fc0a54e/runs/other/code/data/set/train.bin"
    finding = replace(MISSING, evidence=(f"FileNotFoundError: [Errno 2] No such file or directory: '{path}'",))
    assert "line 2 of .gitignore (*.bin)" in explained(finding, "other").fix


def test_other_findings_stay_as_they_are(project: Path) -> None:
    sent = replace(MISSING, evidence=("No such file or directory: 'data/set/prepare.py'",))
    elsewhere = replace(MISSING, evidence=("No such file or directory: '/data/imagenet'", "it's no path: '\0'"))
    for finding in (sent, elsewhere, replace(MISSING, code="script-exception")):
        assert explained(finding) == finding
    assert explained(MISSING, "20261122-070000-0000") == MISSING  # not started here
    recent.remember("inventory.yaml", "without-code", "mine")
    assert explained(MISSING, "without-code") == MISSING


def test_a_mistyped_path_is_compared_with_what_was_sent(project: Path) -> None:
    typed = replace(MISSING, evidence=("No such file or directory: 'dat/set/prepare.py'",))
    assert explained(typed).fix.startswith("data/set/prepare.py was sent")
    kept = replace(MISSING, evidence=("No such file or directory: 'dat/set/train.bin'",))
    assert explained(kept) == kept


def test_a_path_of_this_machine_in_the_code_that_was_sent_is_told_as_the_ranks_find_it(project: Path) -> None:
    for path, fix in (
        (project / "data" / "set" / "prepare.py", "data/set/prepare.py"),
        (project / "data", "data"),
        (project / "data" / "absent", None),
        (project.parent, None),
    ):
        found = explained(replace(MISSING, evidence=(f"No such file or directory: '{path}'",)))
        assert f"`{fix}`" in found.fix if fix else found.fix == MISSING.fix


def test_a_folder_of_which_nothing_is_sent_is_not_told_of(project: Path) -> None:
    (project / "data" / "set" / "prepare.py").unlink()
    found = explained(replace(MISSING, evidence=(f"No such file or directory: '{project / 'data'}'",)))
    assert found.fix == MISSING.fix


IN_SCRIPTS = f'File "/home/ann/.local/state/ddp-orch/267b/runs/{RUN}/code/scripts/train.py", line 2, in <module>'


@pytest.mark.parametrize(
    ("code", "error", "frame", "fix"),
    [
        ("missing-module-on-host", "No module named 'mymodel'", IN_SCRIPTS, ["PYTHONPATH=.", "-m scripts.train"]),
        ("script-import-error", "No module named 'mymodel.net'", IN_SCRIPTS, ["PYTHONPATH=."]),
        ("script-import-error", "No module named 'deep'", IN_SCRIPTS, ["PYTHONPATH=src"]),
        (
            "script-import-error",
            "cannot import name 'Net' from 'mymodel' (/opt/venv/lib/python3.11/site-packages/mymodel/__init__.py)",
            IN_SCRIPTS,
            ["PYTHONPATH=."],
        ),
        ("script-import-error", "No module named 'mymodel.absent'", IN_SCRIPTS, []),
        ("script-import-error", "No module named 'einops'", IN_SCRIPTS, []),
        ("script-import-error", "No module named 'mymodel'", IN_SCRIPTS.replace("scripts/", ""), []),
    ],
)
def test_a_module_of_the_code_that_is_not_beside_the_script_is_named_with_its_folder(
    project: Path, code: str, error: str, frame: str, fix: list[str]
) -> None:
    for name in ("scripts/train.py", "mymodel/__init__.py", "mymodel/net.py", "src/deep/net.py"):
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_text("")
    recent.remember_command(RUN, {"script": ("scripts/train.py",)})
    finding = replace(MISSING, code=code, evidence=(frame, f"ModuleNotFoundError: {error}"))
    found = explained(finding)
    assert [part in found.fix for part in fix] == [True] * len(fix)
    if fix:
        assert (found.code, found.confidence) == ("script-import-error", "high")
        assert "scripts/" in found.message
    else:
        assert found == finding


def test_a_module_beside_the_folder_of_a_script_without_a_repository_is_not_sent(project: Path) -> None:
    for name in ("scripts/train.py", "mymodel/__init__.py"):
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_text("")
    recent.remember(str(project / "conf" / "inventory.yaml"), RUN, "mine", str(project / "scripts"))
    frame = IN_SCRIPTS.replace("scripts/", "")
    finding = replace(MISSING, code="script-import-error", evidence=(frame, "No module named 'mymodel'"))
    assert "`git init`" in explained(finding).fix


@pytest.mark.parametrize(("rule", "module"), [("data/", "data.loader"), ("loader.py", "data.loader"), ("mi*", "mine")])
def test_a_module_beside_the_file_that_imports_it_may_be_kept_back(project: Path, rule: str, module: str) -> None:
    for name in ("data/loader.py", "data/other.py", "data/__init__.py", "mine.py"):
        (project / name).write_text("")
    (project / ".gitignore").write_text(f"{rule}\n")
    subprocess.run(("git", "init", "--quiet"), cwd=project, check=True)
    frame = IN_SCRIPTS.replace("scripts/", "")
    error = f"ModuleNotFoundError: No module named '{module}'"
    found = explained(replace(MISSING, code="script-import-error", evidence=(frame, error)))
    assert f"({rule})" in found.fix


def test_arguments_that_name_files_which_are_kept_back_are_warned_of(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(project)
    path = project / "conf" / "inventory.yaml"

    def warnings(*args: str) -> tuple[str, ...]:
        _, snapshot = entrypoint.find(model.load(path), ("train.py", *args))
        assert snapshot is not None
        return snapshot.warnings

    (warning,) = warnings("--data", "data/set/train.bin", "--config", "data/set", "--out=new", "--lr", "0.1", "bin")
    assert "line 2 of .gitignore (*.bin)" in warning and "[auto, ../data/set/train.bin]" in warning
    assert warnings("--data=data/set/train.bin") == (warning,)
    path.write_text("hosts: [a]\nrun: {sync: [auto, ../data/set/train.bin]}\n")
    assert warnings("--data", "data/set/train.bin") == ()


@pytest.mark.parametrize(
    ("notify", "sent"),
    [
        ("{events: [end]}", ["inventory.yaml", "train.py"]),
        ("{webhook: 'https://example.org/T0K3N'}", ["train.py"]),
    ],
)
def test_an_inventory_with_a_webhook_is_not_sent(tmp_path: Path, notify: str, sent: list[str]) -> None:
    """Whoever knows its address can send messages."""
    (tmp_path / "train.py").write_text("")
    path = tmp_path / "inventory.yaml"
    path.write_text(f"hosts: [a]\nrun: {{script: train.py}}\nnotify: {notify}\n")
    _, snapshot = entrypoint.find(model.load(str(path)), ())
    assert snapshot is not None and [entry.path for entry in snapshot.files] == sent
