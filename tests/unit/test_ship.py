from __future__ import annotations

import gzip
import hashlib
import io
import os
import random
import shutil
import socket
import stat
import subprocess
import tarfile
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from golden_files import assert_message

from orchestrator.errors import UsageError
from orchestrator.node.host import state
from orchestrator.node.serve import code, unpack, wire
from orchestrator.plan import frozen
from orchestrator.plan import snapshot as ship
from orchestrator.plan.code_files import make_results_folder
from orchestrator.plan.snapshot import Snapshot


def put(path: Path, text: str = "x\n", mode: int = 0o644) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(mode)
    return path


def git(folder: Path, *arguments: str) -> None:
    identity = ("-c", "user.name=Ann", "-c", "user.email=ann@example.org", "-c", "protocol.file.allow=always")
    subprocess.run(("git", *identity, *arguments), cwd=folder, check=True, capture_output=True)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder with a script, in no repository."""
    folder = tmp_path.resolve() / "project"
    put(folder / "train.py", "print('hi')\n")
    return folder


def take(script: Path, sync: ship.Sync = "auto", base: Path | None = None, sync_base: Path | None = None) -> Snapshot:
    found = ship.snapshot(script, sync, base or script.parent, sync_base)
    assert found is not None
    return found


def paths(snapshot: Snapshot) -> list[str]:
    return [entry.path for entry in snapshot.files]


def packed(snapshot: Snapshot) -> bytes:
    buffer = io.BytesIO()
    snapshot.write_tar(buffer)
    return buffer.getvalue()


def tree(root: Path | str) -> dict[bytes, tuple[str, int, bytes]]:
    """All that is below a folder: kind, mode and content by path."""
    found: dict[bytes, tuple[str, int, bytes]] = {}
    for path in Path(root).rglob("*"):
        name, mode = os.fsencode(path.relative_to(root)), path.lstat().st_mode
        if stat.S_ISLNK(mode):
            found[name] = ("link", 0, os.fsencode(path.readlink()))
        elif stat.S_ISREG(mode):
            found[name] = ("file", stat.S_IMODE(mode), path.read_bytes())
    return found


# --- which files


def test_in_a_repository_what_git_does_not_ignore_is_taken(project: Path) -> None:
    git(project, "init")
    put(project / ".gitignore", "*.log\n/data/\n")
    put(project / "pkg" / ".gitignore", "!kept.log\nsecret.txt\n")
    for name in (
        "tracked.py",
        "untracked.py",
        "pkg/mod.py",
        "pkg/kept.log",
        "pkg/secret.txt",
        "run.log",
        "data/big.bin",
    ):
        put(project / name)
    put(project / "forced.log")
    put(project / "deleted.py")
    git(project, "add", "tracked.py", "train.py", "deleted.py")
    git(project, "add", "-f", "forced.log")
    git(project, "commit", "-m", "x")
    (project / "deleted.py").unlink()
    assert paths(take(project / "train.py")) == [
        ".gitignore",
        "forced.log",
        "pkg/.gitignore",
        "pkg/kept.log",
        "pkg/mod.py",
        "tracked.py",
        "train.py",
        "untracked.py",
    ]


@pytest.mark.parametrize(
    ("name", "text", "names_torch"),
    [("model.py", "from torch import nn", True), ("model.py", "import torchlight", False), ("a.md", "torch", False)],
)
def test_python_files_that_name_torch_are_noticed(project: Path, name: str, text: str, names_torch: bool) -> None:
    (project / name).write_text(text)
    taken = ship.snapshot(Path("train.py"), "auto", project)
    assert taken is not None and taken.names_torch == names_torch


def test_the_root_is_the_top_of_the_repository(project: Path) -> None:
    git(project, "init")
    put(project / "src" / "deep" / "run.py")
    found = take(project / "src" / "deep" / "run.py", base=project / "src")
    assert (found.root, found.script, found.workdir) == (project, "src/deep/run.py", "src")
    assert paths(found) == ["src/deep/run.py", "train.py"]


def test_submodules_and_nested_repositories_are_taken_with_their_own_rules(project: Path, tmp_path: Path) -> None:
    library = tmp_path / "library"
    put(library / "lib.py")
    put(library / ".gitignore", "*.tmp\n")
    git(library, "init")
    git(library, "add", ".")
    git(library, "commit", "-m", "x")
    git(project, "init")
    git(project, "submodule", "add", str(library), "third_party/library")
    git(project, "commit", "-m", "x")
    put(project / "third_party" / "library" / "new.tmp")
    put(project / "nested" / "own.py")
    git(project / "nested", "init")
    assert paths(take(project / "train.py")) == [
        ".gitmodules",
        "nested/own.py",
        "third_party/library/.gitignore",
        "third_party/library/lib.py",
        "train.py",
    ]


def test_a_submodule_that_is_not_checked_out_is_said(project: Path, tmp_path: Path) -> None:
    library = tmp_path / "library"
    put(library / "lib.py")
    git(library, "init")
    git(library, "add", ".")
    git(library, "commit", "-m", "x")
    git(project, "init")
    git(project, "submodule", "add", str(library), "sub")
    git(project, "commit", "-m", "x")
    git(project, "submodule", "deinit", "--force", "sub")
    found = take(project / "train.py")
    assert "sub/lib.py" not in paths(found)
    assert "git submodule update" in found.warnings[0]


def test_a_script_that_git_ignores_is_taken_all_the_same(project: Path) -> None:
    git(project, "init")
    put(project / ".gitignore", "train.py\n")
    assert "train.py" in paths(take(project / "train.py"))


def test_without_a_repository_the_scripts_folder_is_taken_less_what_gitignore_files_exclude(project: Path) -> None:
    put(project / ".gitignore", "*.log\n/data/\n__pycache__\n")
    put(project / "pkg" / ".gitignore", "!kept.log\nsecret.txt\n/data\n")
    for name in ("pkg/mod.py", "pkg/kept.log", "pkg/secret.txt", "pkg/data/x", "pkg/sub/data/x", "run.log", "data/x"):
        put(project / name)
    put(project.parent / "beside.py")
    found = take(project / "train.py")
    assert found.root == project
    assert paths(found) == [".gitignore", "pkg/.gitignore", "pkg/kept.log", "pkg/mod.py", "pkg/sub/data/x", "train.py"]


def test_gitignore_means_the_same_in_and_outside_of_a_repository(project: Path) -> None:
    put(
        project / ".gitignore",
        "*.o\n!keep.o\nbuild/\n/only-top\nspa\\ ce\n**/deep/x\na/**/z\n#comment\n\\#hash\ndoc/*.txt\n",
    )
    put(project / "sub" / ".gitignore", "*\n!*/\n!*.py\n")
    for name in (
        "a.o", "keep.o", "build/x", "sub/build/x.py", "only-top", "sub/only-top", "spa ce", "p/deep/x", "a/b/c/z",
        "a/z", "#hash", "doc/a.txt", "doc/b/a.txt", "sub/m.py", "sub/n.txt", "sub/s/t.py", "buildx", "x/build/y",
    ):  # fmt: skip
        put(project / name)
    outside = take(project / "train.py")
    git(project, "init")
    assert paths(take(project / "train.py")) == paths(outside)
    assert "sub/m.py" in paths(outside) and "sub/n.txt" not in paths(outside)


def test_what_is_of_no_use_elsewhere_is_never_taken(project: Path) -> None:
    for name in ("__pycache__/train.cpython-311.pyc", "old.pyc", "venv/pyvenv.cfg", "venv/lib/x.py", ".git-not/x"):
        put(project / name)
    assert paths(take(project / "train.py")) == [".git-not/x", "train.py"]
    git(project, "init")
    assert "old.pyc" not in paths(take(project / "train.py"))


def test_a_broken_repository_is_said_and_not_guessed_at(project: Path) -> None:
    put(project / ".git", "gitdir: /nonexistent\n")
    with pytest.raises(UsageError, match=r"/project: git\b.*run\.sync"):
        take(project / "train.py")


def test_git_variables_of_an_outer_git_do_not_mislead(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    git(project, "init")
    monkeypatch.setenv("GIT_DIR", "/nonexistent")
    monkeypatch.setenv("GIT_INDEX_FILE", "/nonexistent")
    assert paths(take(project / "train.py")) == ["train.py"]


# What a hostile work tree may hold: no command of it is run, and nothing outside of it is sent.


def test_the_file_system_monitor_of_a_repository_is_not_run(project: Path, tmp_path: Path) -> None:
    program = put(tmp_path / "evil.sh", f"#!/bin/sh\ntouch {tmp_path}/ran\n", 0o755)
    put(project / "data" / "x.py")
    put(project / "x.bin")
    put(project / ".gitignore", "*.bin\n")
    for repository in (project, project / "data"):
        git(repository, "init")
        git(repository, "config", "core.fsmonitor", str(program))
    assert paths(take(project / "train.py")) == [".gitignore", "data/x.py", "train.py"]
    assert why(project, "x.bin")
    assert not (tmp_path / "ran").exists()


def test_nothing_is_fetched_by_a_command_that_a_partial_clone_names(project: Path, tmp_path: Path) -> None:
    """Its index may hold folders whose objects git fetches when it lists them."""
    program = put(tmp_path / "evil.sh", f"#!/bin/sh\ntouch {tmp_path}/ran\n", 0o755)
    put(project / "pkg" / "x.py")
    put(project / "data" / "deep" / "y.py")
    git(project, "init")
    git(project, "add", ".")
    git(project, "commit", "-m", "x")
    git(project, "sparse-checkout", "set", "--cone", "--sparse-index", "pkg")
    tree = subprocess.run(("git", "rev-parse", "HEAD:data"), cwd=project, check=True, capture_output=True, text=True)
    (project / ".git" / "objects" / tree.stdout[:2] / tree.stdout[2:].strip()).unlink()
    for name, value in {
        "core.repositoryFormatVersion": "1",
        "extensions.partialClone": "origin",
        "remote.origin.promisor": "true",
        "remote.origin.url": f"ext::{program}",
        "protocol.ext.allow": "always",
    }.items():
        git(project, "config", name, value)
    subprocess.run(("git", "ls-files"), cwd=project, capture_output=True)
    assert (tmp_path / "ran").exists()  # by git as it comes
    (tmp_path / "ran").unlink()
    take(project / "train.py")
    assert not (tmp_path / "ran").exists()


def test_nothing_is_sent_of_files_elsewhere_that_an_index_names(project: Path) -> None:
    put(project.parent / "out" / "a.txt")
    put(project / "inside" / "a.txt")
    git(project, "init")
    git(project, "add", "inside/a.txt", "train.py")
    shutil.move(project / "inside", project.parent / "moved")
    (project / "inside").symlink_to("../moved")
    assert paths(take(project / "train.py")) == ["train.py"]
    index = project / ".git" / "index"
    data = index.read_bytes()[:-20].replace(b"inside/a.txt", b"../out/a.txt")
    index.write_bytes(data + hashlib.sha1(data).digest())
    listed = subprocess.run(("git", "ls-files", "--cached"), cwd=project, capture_output=True, text=True).stdout
    assert "../out/a.txt" in listed
    assert paths(take(project / "train.py")) == ["train.py"]


CREDENTIALS = (
    ".aws/credentials", ".docker/config.json", ".env", ".env.local", ".envrc", ".git-credentials", ".kube/config",
    ".netrc", ".ssh/config", "certs/ca.PEM", "deploy.key", "id_ed25519", "id_rsa.old", "sub/.env",
)  # fmt: skip
HARMLESS = (".docker/x", ".env.example", ".env.local.sample", "id_map.json", "key.py", "kube/config", "monkey", "pem")


def test_credentials_are_left_out_and_named(project: Path) -> None:
    for name in (*CREDENTIALS, *HARMLESS):
        put(project / name)
    found = take(project / "train.py")
    assert paths(found) == sorted((*HARMLESS, "train.py"))
    assert found.credentials == CREDENTIALS
    git(project, "init")
    git(project, "add", ".")  # tracked or not
    assert take(project / "train.py") == found
    assert take(project / "train.py", (".",)).credentials == CREDENTIALS


def test_credentials_that_sync_names_are_sent(project: Path) -> None:
    for name in CREDENTIALS:
        put(project / name)
    found = take(project / "train.py", ("auto", ".env", ".ssh", "sub/.env"))
    assert [path for path in paths(found) if path != "train.py"] == [".env", ".ssh/config", "sub/.env"]
    assert set(found.credentials) == set(CREDENTIALS) - {".env", ".ssh/config", "sub/.env"}
    assert paths(take(project / "train.py", ("sub",))) == ["train.py"]


def test_a_private_file_is_left_out_unless_sync_names_it(project: Path) -> None:
    private = put(project / "inventory.yaml")
    for sync, is_sent in (("auto", False), ((".",), False), (("auto", "inventory.yaml"), True)):
        found = ship.snapshot(project / "train.py", sync, project, private=private)
        assert found is not None
        assert ("inventory.yaml" in paths(found)) is is_sent
        assert found.credentials == (() if is_sent else ("inventory.yaml",))


def test_a_folder_that_is_called_as_one_with_credentials_is_no_reason_to_send_nothing(tmp_path: Path) -> None:
    for name in (".env-lab/project/train.py", ".env-lab/project/key.pem", ".env-lab/common/lib.py"):
        put(tmp_path / name)
    script = tmp_path / ".env-lab/project/train.py"
    assert paths(take(script)) == ["train.py"]
    assert paths(take(script, ("auto", "../common"))) == ["common/lib.py", "project/train.py"]


@pytest.mark.parametrize("home", [".", "home/ann"])
def test_a_home_folder_without_a_repository_is_refused_unless_sync_names_it(
    project: Path, monkeypatch: pytest.MonkeyPatch, home: str
) -> None:
    """The script lies in the home folder, or above it."""
    monkeypatch.setenv("HOME", str(project / home))
    put(project / home / ".bash_history")
    with pytest.raises(UsageError, match=r"/project: .*\bhome\b.* run\.sync: \[paths\]"):
        take(project / "train.py")
    assert len(paths(take(project / "train.py", (".",)))) == 2
    git(project, "init")
    assert len(paths(take(project / "train.py"))) == 2


def test_a_folder_above_the_current_one_and_the_inventorys_is_refused_unless_sync_names_it(project: Path) -> None:
    put(project / "conf" / "inventory.yaml")
    put(project / "runs" / "x")
    refused = rf"{project}: .* {project}/runs\b.* run\.sync: \[paths\]"
    with pytest.raises(UsageError, match=refused):
        take(project / "train.py", base=project / "runs", sync_base=project / "conf")
    everything = ["conf/inventory.yaml", "runs/x", "train.py"]
    for base, sync_base in ((project, project / "conf"), (project / "runs", project)):
        assert paths(take(project / "train.py", base=base, sync_base=sync_base)) == everything
    found = take(project / "train.py", ("..",), base=project / "runs", sync_base=project / "conf")
    assert paths(found) == everything
    git(project, "init")
    assert paths(take(project / "train.py", base=project / "runs", sync_base=project / "conf")) == everything


def test_paths_in_sync_are_relative_to_the_inventory_wherever_the_call_comes_from(project: Path) -> None:
    put(project / "data" / "x.bin")
    put(project / "elsewhere" / "y")
    found = take(Path("../train.py"), ("data",), base=project / "elsewhere", sync_base=project)
    assert (paths(found), found.workdir) == (["data/x.bin", "train.py"], "elsewhere")
    with pytest.raises(UsageError, match=r"/elsewhere/data: .*run\.sync"):
        take(Path("../train.py"), ("data",), base=project / "elsewhere")


def test_auto_among_the_paths_adds_them_to_the_code(project: Path) -> None:
    for name in ("lib.py", "data/x.bin", "data/y.bin", "z.bin"):
        put(project / name)
    put(project / ".gitignore", "*.bin\n")
    put(project.parent / "shared" / "s.py")
    assert paths(take(project / "train.py", ("auto",))) == [".gitignore", "lib.py", "train.py"]
    assert paths(take(project / "train.py", ("auto", "data"))) == [
        ".gitignore", "data/x.bin", "data/y.bin", "lib.py", "train.py",
    ]  # fmt: skip
    found = take(project / "train.py", ("auto", "../shared"))
    assert (found.root, found.workdir, "shared/s.py" in paths(found)) == (project.parent, "project", True)


def test_without_git_a_folder_is_taken_whole_but_gitignore_is_not_passed_over(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(project / "pkg" / "mod.py")
    make_results_folder(project / "results")
    put(project / "results" / "x")
    monkeypatch.setenv("PATH", "/nonexistent")
    assert paths(take(project / "train.py")) == ["pkg/mod.py", "train.py"]
    put(project / "pkg" / ".gitignore", "*.bin\n")
    with pytest.raises(UsageError, match=r"pkg/\.gitignore: .*\bgit\b.* run\.sync"):
        take(project / "train.py")
    assert paths(take(project / "train.py", (".",))) == ["pkg/.gitignore", "pkg/mod.py", "train.py"]


def test_results_that_were_brought_here_are_not_sent_even_with_the_folder_around_them(project: Path) -> None:
    make_results_folder(project / "results")
    put(project / "results" / "host" / "model.pt")
    assert paths(take(project / "train.py", (".",))) == ["train.py"]


def test_the_largest_entries_are_known(project: Path) -> None:
    put(project / "data" / "a.bin", "x" * 3000)
    put(project / "data" / "b.bin", "x" * 3000)
    put(project / "weights", "x" * 4000)
    assert take(project / "train.py").largest(2) == (("data/", 6000), ("weights", 4000))


def test_named_paths_are_taken_whole_with_the_script_and_nothing_else(project: Path) -> None:
    put(project / ".gitignore", "data\n")
    for name in ("data/a.bin", "data/.hidden", "conf/x.yaml", "other.py"):
        put(project / name)
    found = take(project / "train.py", ("data", "conf/x.yaml", "conf"))
    assert (found.root, found.workdir) == (project, ".")
    assert paths(found) == ["conf/x.yaml", "data/.hidden", "data/a.bin", "train.py"]


def test_named_paths_outside_of_the_folder_keep_their_place_beside_it(project: Path) -> None:
    put(project.parent / "common" / "lib.py")
    found = take(project / "train.py", ("../common",))
    assert (found.root, found.script, found.workdir) == (project.parent, "project/train.py", "project")
    assert paths(found) == ["common/lib.py", "project/train.py"]


def test_a_named_path_that_is_missing_is_an_error(project: Path) -> None:
    with pytest.raises(UsageError, match=r"/nothing: .*run\.sync"):
        take(project / "train.py", ("nothing",))


def test_a_script_that_is_missing_is_an_error(project: Path) -> None:
    for wrong, name in (("missing.py", "script-missing"), ("", "script-is-a-folder")):
        with pytest.raises(UsageError) as refused:
            take(project / wrong)
        assert_message(name, refused.value, PROJECT=project)


def test_without_sync_nothing_is_sent(project: Path) -> None:
    assert ship.snapshot(project / "train.py", "none", project) is None


def test_a_script_is_looked_for_from_the_folder_of_the_call(project: Path) -> None:
    found = take(Path("project/train.py"), base=project.parent)
    assert (found.script, found.workdir) == ("train.py", ".")  # the folder of the call is not part of it


# --- the hash


def test_the_hash_is_of_names_contents_and_executable_bits_only(project: Path) -> None:
    put(project / "b.py", "b")
    before = take(project / "train.py").sha256
    os.utime(project / "b.py", (1, 1))
    (project / "b.py").chmod(0o600)
    assert take(project / "train.py").sha256 == before
    (project / "b.py").chmod(0o700)
    executable = take(project / "train.py").sha256
    put(project / "b.py", "c")
    changed = take(project / "train.py").sha256
    (project / "b.py").rename(project / "c.py")
    renamed = take(project / "train.py").sha256
    put(project / "empty" / ".." / "d.py", "c")
    (project / "c.py").unlink()
    (project / "c.py").symlink_to("d.py")
    linked = take(project / "train.py").sha256
    assert len({before, executable, changed, renamed, linked}) == 5


def test_the_hash_of_a_manifest_is_fixed() -> None:
    entries = [
        unpack.Entry(b"b/link", unpack.LINK, b"../a"),
        unpack.Entry(b"a", unpack.FILE, hashlib.sha256(b"").hexdigest().encode()),
    ]
    assert unpack.manifest_sha256(entries) == unpack.manifest_sha256(entries[::-1])
    assert unpack.manifest_sha256(entries) == MANIFEST_HASH


# A change of this number means that no snapshot on any host is found again.
MANIFEST_HASH = "619936224b1a014fd348f103dbcf678292846494a65ae54aa8a39a2dff74cab8"


# --- links and other things


def test_links_that_stay_inside_are_kept(project: Path) -> None:
    put(project / "pkg" / "mod.py")
    (project / "pkg" / "up").symlink_to("../train.py")
    (project / "folder").symlink_to("pkg")
    (project / "dangling").symlink_to("pkg/not-there")
    found = {entry.path: entry.target for entry in take(project / "train.py").files}
    assert found["pkg/up"] == "../train.py"
    assert found["folder"] == "pkg"
    assert found["dangling"] == "pkg/not-there"


def test_a_link_out_of_the_code_is_left_out_unless_sync_names_what_it_leads_to(project: Path) -> None:
    put(project.parent / "shared.py", "shared\n", 0o755)
    put(project.parent / "data" / "x")
    (project / "relative.py").symlink_to("../shared.py")
    (project / "absolute.py").symlink_to(project.parent / "shared.py")
    (project / "data").symlink_to(project.parent / "data")
    (project / "gone").symlink_to("/nonexistent")
    (project / "deep").mkdir()
    (project / "deep" / "back").symlink_to("..")
    (project / "zigzag.py").symlink_to(
        "deep/back/../shared.py"
    )  # `..` behind a link leads somewhere else than it looks
    found = take(project / "train.py")
    assert paths(found) == ["deep/back", "train.py"]
    out = {"absolute.py": project.parent / "shared.py", "data": project.parent / "data", "gone": "/nonexistent",
           "relative.py": "../shared.py", "zigzag.py": "deep/back/../shared.py"}  # fmt: skip
    assert len(found.warnings) == len(out)
    for warning, (name, target) in zip(sorted(found.warnings), out.items(), strict=True):
        assert warning.startswith(f"{project / name} ") and f" {target}" in warning and "run.sync" in warning
    found = take(project / "train.py", ("auto", "../shared.py"))
    entries = {entry.path: entry for entry in found.files}
    assert {"shared.py", "project/absolute.py", "project/relative.py", "project/zigzag.py"} <= set(entries)
    assert entries["project/relative.py"].target == "../shared.py"
    for name in ("absolute.py", "zigzag.py"):
        sent = entries[f"project/{name}"]
        assert (sent.target, sent.executable) == (None, True)
        assert sent.sha256 == hashlib.sha256(b"shared\n").hexdigest()


def test_an_absolute_link_within_the_code_is_sent_as_the_file_it_leads_to(project: Path) -> None:
    put(project / "pkg" / "mod.py", "mod\n")
    put(project / ".env", "TOKEN=x\n")
    (project / "absolute.py").symlink_to(project / "pkg" / "mod.py")
    (project / "settings").symlink_to(project / ".env")
    found = take(project / "train.py")
    entries = {entry.path: entry for entry in found.files}
    assert set(entries) == {"absolute.py", "pkg/mod.py", "train.py"}
    assert entries["absolute.py"].sha256 == hashlib.sha256(b"mod\n").hexdigest()
    assert found.warnings[0].startswith(f"{project / 'settings'} ")


def test_a_script_that_is_a_link_is_sent(project: Path) -> None:
    put(project.parent / "shared.py", "shared\n")
    (project / "link.py").symlink_to("../shared.py")
    (sent,) = [entry for entry in take(project / "link.py").files if entry.path == "link.py"]
    assert (sent.target, sent.sha256) == (None, hashlib.sha256(b"shared\n").hexdigest())


def test_sockets_and_pipes_are_left_out_with_a_word(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(project / "pipe")
    monkeypatch.chdir(project)  # the path of a socket may be no longer than 107 bytes
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("socket")
        assert paths(take(project / "train.py")) == ["train.py"]
        found = take(project / "train.py", (".",))
    assert paths(found) == ["train.py"]
    assert [warning.split()[0] for warning in sorted(found.warnings)] == [f"{project}/pipe", f"{project}/socket"]


@pytest.fixture
def without_rights(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A project in a folder that all can enter, looked at by somebody who is not root."""
    monkeypatch.setenv("HOME", "/nonexistent")  # git reads its configuration there
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        put(Path(folder) / "train.py")
        me = os.geteuid()
        if me == 0:
            os.seteuid(65534)
        try:
            yield Path(folder).resolve()
        finally:
            os.seteuid(me)


@contextmanager
def as_owner(folder: Path) -> Iterator[None]:
    me = os.geteuid()
    os.seteuid(folder.stat().st_uid)
    try:
        yield
    finally:
        os.seteuid(me)


def test_a_file_that_cannot_be_read_is_named(without_rights: Path) -> None:
    with as_owner(without_rights):
        put(without_rights / "locked.py", mode=0o000)
    with pytest.raises(UsageError, match=r"/locked\.py: ") as refused:
        take(without_rights / "train.py")
    assert isinstance(refused.value.__cause__, PermissionError)


def test_a_folder_that_cannot_be_listed_is_named(without_rights: Path) -> None:
    with as_owner(without_rights):
        (without_rights / "locked").mkdir(0o000)
    try:
        with pytest.raises(UsageError, match="/locked: ") as refused:
            take(without_rights / "train.py", (".",))
        assert isinstance(refused.value.__cause__, PermissionError)
        (warning,) = take(without_rights / "train.py").warnings
        assert "git: " in warning and "'locked/'" in warning
    finally:
        with as_owner(without_rights):
            (without_rights / "locked").chmod(0o700)


# --- limits


def test_more_than_200_mb_are_refused_with_the_five_largest_files(project: Path) -> None:
    for number in range(8):
        with (project / f"weights-{number}.bin").open("wb") as file:
            file.truncate((20 + number) * 1_000_000 + 100_000_000 * (number == 7))
    put(project / "small.bin")
    with pytest.raises(UsageError) as refused:
        take(project / "train.py")
    said = str(refused.value)
    assert "exceeds 200 MB" in said
    named = [f"weights-{number}.bin" for number in (7, 6, 5, 4, 3)]
    assert [said.index(name) for name in named] == sorted(said.index(name) for name in named)
    assert "weights-2" not in said and "small" not in said
    assert ".gitignore" in said and "run.sync" in said and "workdir" in said


def test_a_huge_folder_is_refused_before_all_of_it_was_looked_at(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ship, "MAX_FILES", 100)
    for folder in range(50):
        for number in range(10):
            put(project / f"{folder:02d}" / str(number))
    listed: list[object] = []
    scandir = os.scandir
    monkeypatch.setattr(os, "scandir", lambda path: listed.append(path) or scandir(path))
    with pytest.raises(UsageError, match="exceeds 100 files"):
        take(project / "train.py", (".",))
    assert len(listed) <= 12
    with pytest.raises(UsageError, match="exceeds 100 files"):
        take(project / "train.py")


# --- there and back


def odd_project(project: Path) -> Snapshot:
    put(project / "run.sh", "#!/bin/sh\n", 0o755)
    put(project / "pkg" / "größe 漢字.py", "ü\n")
    put(project / "pkg" / ("long-" * 40 + ".py"))
    put(project / "a b\n'\"\\$(x)")
    put(project / "empty.py", "")
    (project / os.fsdecode(b"latin-\xe9\xff")).write_bytes(b"\x00\xff")
    (project / "pkg" / "link").symlink_to("../run.sh")
    os.symlink(b"latin-\xe9\xff", os.fsencode(project) + b"/odd-link")
    put(project / "big.bin", "x" * 3_000_000)
    return take(project / "train.py")


def test_what_arrives_is_what_was_sent(project: Path, tmp_path: Path) -> None:
    snapshot = odd_project(project)
    hosts = tmp_path / "code"
    hosts.mkdir()
    arrived = unpack.unpack(io.BytesIO(packed(snapshot)), snapshot.sha256, str(hosts))
    assert arrived == str(hosts / snapshot.sha256)
    modes = {
        path: (kind, 0o700 if mode & 0o100 else 0o600 if mode else 0, content)
        for path, (kind, mode, content) in tree(project).items()
    }
    assert tree(arrived) == modes
    assert os.listdir(hosts) == [snapshot.sha256]
    assert stat.S_IMODE(Path(arrived).stat().st_mode) == 0o700
    assert take(Path(arrived) / "train.py").sha256 == snapshot.sha256


def test_a_host_passes_on_what_has_arrived(project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DDP_ORCH_STATE_DIR", str(tmp_path / "state"))
    snapshot = odd_project(project)
    first = unpack.unpack(io.BytesIO(packed(snapshot)), snapshot.sha256, state.folder("code"))
    parts: list[bytes] = []
    code.send({"sha256": snapshot.sha256}, lambda header, part: parts.append(part))
    assert max(map(len, parts)) <= wire.MAX_PAYLOAD
    other = tmp_path / "other"
    other.mkdir()
    assert tree(unpack.unpack(io.BytesIO(b"".join(parts)), snapshot.sha256, str(other))) == tree(first)
    for wrong in ("0" * 64, "../../etc"):
        with pytest.raises(wire.Refused):
            code.send({"sha256": wrong}, lambda header, part: None)


def test_the_same_snapshot_is_the_same_bytes(project: Path) -> None:
    put(project / "b.py")
    once = packed(take(project / "train.py"))
    os.utime(project / "b.py", (1, 1))
    assert packed(take(project / "train.py")) == once


def test_what_is_there_is_not_read_again(project: Path, tmp_path: Path) -> None:
    snapshot = take(project / "train.py")
    unpack.unpack(io.BytesIO(packed(snapshot)), snapshot.sha256, str(tmp_path))
    unread = io.BytesIO(b"not even an archive")
    assert unpack.unpack(unread, snapshot.sha256, str(tmp_path)) == str(tmp_path / snapshot.sha256)
    assert unread.tell() == 0


def test_an_empty_folder_of_that_name_is_not_taken_for_the_snapshot(project: Path, tmp_path: Path) -> None:
    snapshot = take(project / "train.py")
    (tmp_path / snapshot.sha256).mkdir()
    unpack.unpack(io.BytesIO(packed(snapshot)), snapshot.sha256, str(tmp_path))
    assert (tmp_path / snapshot.sha256 / "train.py").is_file()


def test_of_a_log_that_grows_while_it_is_sent_the_beginning_is_sent(project: Path, tmp_path: Path) -> None:
    log = put(project / "up.log", "one\n")
    snapshot = take(project / "train.py")
    with log.open("a") as file:
        file.write("two\n")
    unpack.unpack(io.BytesIO(packed(snapshot)), snapshot.sha256, str(tmp_path))
    assert (tmp_path / snapshot.sha256 / "up.log").read_text() == "one\n"


def test_the_output_of_slurm_jobs_is_not_sent(project: Path) -> None:
    for name in ("slurm-17.out", "slurm-17_3.out", "slurm-notes.out", "ddp-orch-doctor-20261125-234810.tar.gz"):
        put(project / name)
    assert paths(take(project / "train.py")) == ["slurm-notes.out", "train.py"]


@pytest.mark.parametrize(
    "change",
    [
        lambda path: path.write_text("longer than it was before\n"),
        lambda path: path.write_text(""),
        lambda path: path.write_text("print('ho')\n"),
        lambda path: path.unlink(),
    ],
    ids=["grown", "emptied", "same length", "removed"],
)
def test_a_file_that_changes_while_it_is_sent_is_named_and_what_was_sent_is_refused(
    project: Path, tmp_path: Path, change: Callable[[Path], object]
) -> None:
    snapshot = take(project / "train.py")
    change(project / "train.py")
    buffer = io.BytesIO()
    with pytest.raises(UsageError, match=r"/train\.py: .*\bchanged\b"):
        snapshot.write_tar(buffer)
    hosts = tmp_path / "code"
    hosts.mkdir()
    with pytest.raises(unpack.UnpackError):
        unpack.unpack(io.BytesIO(buffer.getvalue()), snapshot.sha256, str(hosts))
    assert os.listdir(hosts) == []


@pytest.mark.parametrize("zipped", [True, False])
def test_a_stream_cut_anywhere_leaves_nothing_behind(project: Path, tmp_path: Path, zipped: bool) -> None:
    put(project / "noise.bin", random.Random(1).randbytes(30_000).hex())
    snapshot = take(project / "train.py")
    data = packed(snapshot)
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        last = archive.getmembers()[-1]
    end = last.offset_data + last.size  # behind it is padding, which nothing misses
    if not zipped:
        data = gzip.decompress(data)
    hosts = tmp_path / "code"
    hosts.mkdir()
    rng = random.Random(2)
    for cut in [0, 1, 511, 512, 513, end - 1, *(rng.randrange(len(data)) for _ in range(100))]:
        if len(zlib.decompressobj(wbits=31).decompress(data[:cut])) >= end if zipped else cut >= end:
            continue
        with pytest.raises(unpack.UnpackError):
            unpack.unpack(io.BytesIO(data[:cut]), snapshot.sha256, str(hosts))
        assert os.listdir(hosts) == []


def test_a_stream_with_changed_bytes_is_the_snapshot_or_nothing(project: Path, tmp_path: Path) -> None:
    for number in range(5):
        put(project / f"{number}.py", f"{number}\n" * 100)
    (project / "link").symlink_to("1.py")
    snapshot = take(project / "train.py")
    data = gzip.decompress(packed(snapshot))
    wanted = {path: (kind, 0o600 if mode else 0, content) for path, (kind, mode, content) in tree(project).items()}
    rng = random.Random(3)
    for round_ in range(150):
        hostile = bytearray(data)
        for _ in range(rng.randrange(1, 4)):
            hostile[rng.randrange(len(hostile))] = rng.randrange(256)
        hosts = tmp_path / f"code{round_}"
        hosts.mkdir()
        try:
            arrived = unpack.unpack(io.BytesIO(hostile), snapshot.sha256, str(hosts))
        except unpack.UnpackError:
            assert os.listdir(hosts) == []
        else:  # a byte that does not matter: a time, an owner, padding
            assert tree(arrived) == wanted


# --- hostile archives


def entry(
    name: str, kind: bytes = tarfile.REGTYPE, target: str = "", mode: int = 0o600, data: bytes = b""
) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.mode, info.size = kind, target, mode, len(data)
    return info, data


HOSTILE = {
    "absolute": [entry("/tmp/escaped")],
    "up": [entry("../escaped")],
    "up inside": [entry("a/../../escaped")],
    "dot": [entry("./a")],
    "empty part": [entry("a//b")],
    "folder": [entry("a", tarfile.DIRTYPE)],
    "absolute link": [entry("a", tarfile.SYMTYPE, "/etc")],
    "link up": [entry("a", tarfile.SYMTYPE, "../..")],
    "link up from below": [entry("a/b", tarfile.SYMTYPE, "../../x")],
    "link up behind a name": [entry("a/b", tarfile.SYMTYPE, "..", ), entry("c", tarfile.SYMTYPE, "a/b/../x")],
    "empty link": [entry("a", tarfile.SYMTYPE, "")],
    "hard link": [entry("a", tarfile.LNKTYPE, "/etc/passwd")],
    "hard link inside": [entry("a"), entry("b", tarfile.LNKTYPE, "a")],
    "device": [entry("a", tarfile.CHRTYPE)],
    "block device": [entry("a", tarfile.BLKTYPE)],
    "fifo": [entry("a", tarfile.FIFOTYPE)],
    "setuid": [entry("a", mode=0o4755)],
    "setgid": [entry("a", mode=0o2755)],
    "twice": [entry("a", data=b"1"), entry("a", data=b"2")],
    "file and folder": [entry("a"), entry("a/b")],
    "folder and file": [entry("a/b"), entry("a")],
    "through a link": [entry("a", tarfile.SYMTYPE, "b"), entry("a/x", data=b"1")],
    "link over a file": [entry("a"), entry("a", tarfile.SYMTYPE, "b")],
    "link below a link": [entry("a", tarfile.SYMTYPE, "b"), entry("a/x", tarfile.SYMTYPE, "y")],
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_archive_is_refused_and_writes_nowhere(name: str, tmp_path: Path) -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for info, data in HOSTILE[name]:
            archive.addfile(info, io.BytesIO(data))
    # the manifest that the archive would have if it were believed: only the filter stands between
    believed = [
        unpack.Entry(info.name.encode(), unpack.LINK, info.linkname.encode())
        if info.issym()
        else unpack.Entry(
            info.name.encode(),
            unpack.EXECUTABLE if info.mode & 0o100 else unpack.FILE,
            hashlib.sha256(data).hexdigest().encode(),
        )
        for info, data in HOSTILE[name]
    ]
    inner = tmp_path / "state" / "code"
    inner.mkdir(parents=True)
    with pytest.raises(unpack.UnpackError):
        unpack.unpack(io.BytesIO(buffer.getvalue()), unpack.manifest_sha256(believed), str(inner))
    assert os.listdir(inner) == []
    assert os.listdir(inner.parent) == ["code"]
    assert os.listdir(tmp_path) == ["state"]


def test_a_bomb_is_refused_before_it_is_unpacked(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    with gzip.open(buffer, "wb") as zipped:
        info = tarfile.TarInfo("bomb")
        info.size = unpack.MAX_BYTES + 1
        zipped.write(info.tobuf())
        zipped.write(bytes(1_000_000))
    with pytest.raises(unpack.UnpackError, match="more than"):
        unpack.unpack(io.BytesIO(buffer.getvalue()), "0" * 64, str(tmp_path))
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    "kind",
    [tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK, tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE],
)
def test_a_header_that_would_fill_the_memory_is_refused_at_once(tmp_path: Path, kind: bytes) -> None:
    info = tarfile.TarInfo("././@LongLink")
    info.type, info.size = kind, 3 << 30
    stream = io.BytesIO(info.tobuf() + bytes(5_000_000))
    with pytest.raises(unpack.UnpackError, match=r"65536|@LongLink"):
        unpack.unpack(stream, "0" * 64, str(tmp_path))
    assert stream.tell() < 1_000_000
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("sha256", ["", "../x", "0" * 63, "0" * 64 + "\n", "G" * 64])
def test_a_name_that_is_no_hash_is_refused(sha256: str, tmp_path: Path) -> None:
    with pytest.raises(unpack.UnpackError, match="not a SHA-256"):
        unpack.unpack(io.BytesIO(), sha256, str(tmp_path))


def test_a_disk_that_cannot_be_written_is_said(project: Path) -> None:
    snapshot = take(project / "train.py")
    with pytest.raises(unpack.UnpackError, match=" /proc: ") as refused:
        unpack.unpack(io.BytesIO(packed(snapshot)), snapshot.sha256, "/proc")
    assert isinstance(refused.value.__cause__, OSError)


def test_only_our_own_old_leftovers_are_removed(project: Path, tmp_path: Path) -> None:
    snapshot = take(project / "train.py")
    sha = "0" * 64
    for name in (f"{sha}.tmp-1-old", f"{sha}.tmp-2-new", "notes.tmp-1", sha):
        put(tmp_path / "code" / name / "sub" / "x")
    for name in (f"{sha}.tmp-1-old", "notes.tmp-1", sha):
        long_ago = time.time() - unpack.LEFTOVER_AGE - 60
        os.utime(tmp_path / "code" / name, (long_ago, long_ago))
    unpack.unpack(io.BytesIO(packed(snapshot)), snapshot.sha256, str(tmp_path / "code"))
    assert sorted(os.listdir(tmp_path / "code")) == sorted([f"{sha}.tmp-2-new", "notes.tmp-1", sha, snapshot.sha256])


def test_stays_inside_allows_up_only_as_far_as_the_root() -> None:
    assert unpack.stays_inside(b"a", b"b/c")
    assert unpack.stays_inside(b"x/y/a", b"../../b")
    assert not unpack.stays_inside(b"x/y/a", b"../../../b")
    assert not unpack.stays_inside(b"x/a", b"b/../c")
    assert not unpack.stays_inside(b"a", b"/b")
    assert not unpack.stays_inside(b"a", b"")


def test_what_gitignore_excludes_is_known(project: Path) -> None:
    for name in (
        "data/d.txt", "old.pt", "src/a.py", "src/deep/x.pt", "venv/pyvenv.cfg", "bare/x.pyc", ".cache/x", ".env",
    ):  # fmt: skip
        put(project / name)
    make_results_folder(project / "results")
    put(project / "results" / "host" / "x.pt")
    (project / "empty").mkdir()
    put(project / ".gitignore", "data/\n*.pt\nvenv/\nbare/\nempty/\n.cache/\n.env\n")
    assert take(project / "train.py").excluded == ("data/", "old.pt", "src/deep/")
    assert take(project / "train.py", ("auto", "old.pt")).excluded == ("data/", "src/deep/")
    git(project, "init")
    assert take(project / "train.py").excluded == ("data/", "old.pt", "src/deep/")
    assert take(project / "src" / "a.py").excluded == ("deep/",)  # from where the run starts
    (project / ".gitignore").unlink()
    assert take(project / "train.py").excluded == ()


def why(folder: Path, path: str) -> str:
    return ship.why_not_sent(folder, path, folder) or ""


def test_why_a_file_that_exists_is_not_sent(project: Path) -> None:
    for name in ("data/set/train.bin", "data/set/prepare.py", "data/.env"):
        put(project / name)
    put(project / ".gitignore", "# large\n*.bin\n")
    put(project / "data" / ".gitignore", "set/train*\n")
    for top in (project, project / "data"):
        assert why(top, os.path.relpath(project / "data/set/prepare.py", top)) == ""
    said = why(project, "data/set/train.bin")
    assert_message("file-not-sent", said)
    assert "[auto, ../data/set/train.bin]" in (ship.why_not_sent(project, "data/set/train.bin", project / "conf") or "")
    git(project, "init")
    assert why(project, "data/set/train.bin") == said
    assert "line 1 of data/.gitignore" in why(project / "data" / "set", "train.bin")
    put(project / "x.bin")
    assert "line 2 of .gitignore (*.bin)" in why(project, "./x.bin")
    git(project, "add", "-f", "x.bin")
    assert why(project, "x.bin") == ""  # tracked: it is sent
    assert "credential" in why(project, "data/.env")
    for path in ("missing.bin", "../outside.bin", "/etc/passwd", ".", "..", ""):
        assert why(project, path) == ""
    put(project.parent / "outside.bin")
    assert str(project) in why(project, "../outside.bin")


def test_the_commit_is_known_and_how_many_files_differ_from_it(project: Path) -> None:
    assert take(project / "train.py").commit is None
    git(project, "init", "--quiet")
    assert take(project / "train.py").commit is None  # nothing is committed
    put(project / "gone.py")
    put(project / "run.sh", mode=0o755)
    (project / "link").symlink_to("train.py")
    git(project, "add", "--all")
    git(project, "commit", "--quiet", "-m", "first")
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=project, capture_output=True, text=True, check=True)
    clean = take(project / "train.py").commit
    assert clean is not None and (clean.id, clean.changed) == (head.stdout.strip(), 0)
    put(project / "train.py", "print('changed')\n")
    put(project / "new.py")
    (project / "gone.py").unlink()
    changed = take(project / "train.py").commit
    assert changed is not None and (changed.id, changed.changed) == (clean.id, 3)


def test_finding_the_commit_runs_no_program_of_the_repository(project: Path, tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    git(project, "init", "--quiet")
    put(project / ".gitattributes", "*.py filter=evil diff=evil\n")
    git(project, "add", "--all")
    git(project, "commit", "--quiet", "-m", "first")
    for key in (
        "filter.evil.clean",
        "filter.evil.process",
        "diff.evil.command",
        "diff.evil.textconv",
        "core.fsmonitor",
    ):
        git(project, "config", key, f"touch {canary}")
    put(project / "train.py", "print('changed')\n")
    found = take(project / "train.py").commit
    assert found is not None and found.changed == 1
    assert not canary.exists()


# --- the code of a run that waits


def test_the_copy_of_the_code_of_a_run_that_waits_stays_as_it_was(project: Path) -> None:
    put(project / "inner" / "model.py", mode=0o755)
    (project / "link.py").symlink_to("inner/model.py")
    snapshot = take(project / "train.py")
    before = packed(snapshot)
    with frozen.copied(snapshot) as copy:
        assert copy is not None
        put(project / "train.py", "print('ho')\n")
        (project / "inner" / "model.py").unlink()
        assert packed(copy) == before and copy.sha256 == snapshot.sha256
    assert not copy.root.exists()


def test_a_file_that_has_changed_before_it_was_copied_is_named(project: Path) -> None:
    snapshot = take(project / "train.py")
    put(project / "train.py", "print('ho')\n")
    with pytest.raises(UsageError, match=r"/project/train\.py: "), frozen.copied(snapshot):
        raise AssertionError("the code was copied")
