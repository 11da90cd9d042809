"""What docs/security.md promises and no other test shows, as far as no host is needed for it."""

from __future__ import annotations

import ast
import contextlib
import io
import os
import re
import secrets
import stat
import string
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.cli import cli, guarded
from orchestrator.hosts.node_program import NodeProgram, node_program
from orchestrator.hosts.session import Refused, Session
from orchestrator.node.host import state
from orchestrator.ssh.pipe import LocalConnection

ROOT = Path(__file__).parents[2]

# --- nothing of an inventory is a command or an option

WORDS = ["$(touch CANARY)", "`touch CANARY`", ";touch CANARY;", "|touch CANARY", "&touch CANARY&", "\ntouch CANARY\n"]
WORDS += ["-oProxyCommand=touch CANARY", "--", "-F/dev/null", "%h", "${IFS}", "'", '"', "\\", "@", ":", ",", "gpu[1-3]"]
NASTY = st.lists(st.sampled_from([*WORDS, "gpu1", "a", " "]), min_size=1, max_size=4).map("".join)
HOST_KEYS = (
    "name",
    "address",
    "user",
    "identity_file",
    "proxy_jump",
    "cluster_address",
    "interface",
    "python",
    "workdir",
)
HOSTS = st.fixed_dictionaries({"name": NASTY}, optional=dict.fromkeys(HOST_KEYS[1:], NASTY))


@settings(max_examples=150)
@given(st.lists(HOSTS, min_size=1, max_size=3), st.sampled_from(["config", "up", "ps"]))
def test_no_value_of_an_inventory_is_run_or_taken_for_an_option(hosts: list[dict[str, str]], command: str) -> None:
    here = Path(os.environ["DDP_ORCH_TEST_FOLDER"])
    canary = here / "canary"
    text = yaml.safe_dump({"hosts": hosts, "ssh": {"connect_timeout": 0.1}}).replace("CANARY", str(canary))
    (here / "inventory.yaml").write_text(text)
    argv = {"ps": ["ps", "-i", "inventory.yaml"], "up": ["up", "inventory.yaml", "--dry-run", "--", "train.py"]}
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()) as said:
        code = guarded(lambda: cli(argv.get(command, [command, "inventory.yaml"]), standalone_mode=False))
    assert code in (0, 2, 4), said.getvalue()
    assert not canary.exists()


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    (tmp_path / "train.py").touch()
    # a proxy of the user's own, which is where a shell gets to see names
    (tmp_path / "config").write_text("Host *\n  ProxyCommand true %h %p %r %n\n")
    monkeypatch.chdir(tmp_path)
    for name in ("DDP_ORCH_TEST_FOLDER", "HOME", "XDG_STATE_HOME"):
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.setenv("DDP_ORCH_SSH_CONFIG", str(tmp_path / "config"))
    yield tmp_path


# --- the private folder, where others may write beside it

ROUNDS = int(os.environ.get("DDP_ORCH_ROUNDS", "3000"))


@pytest.mark.skipif(os.geteuid() != 0, reason="needs a second user")
def test_a_racer_who_swaps_links_gets_nothing_written_where_he_points(tmp_path: Path) -> None:
    """As in /var/tmp: everybody may make names there, nobody may touch those of others."""
    os.chmod(tmp_path.parent.parent, 0o755)
    os.chmod(tmp_path.parent, 0o755)
    shared, victim = tmp_path / "shared", tmp_path / "victim"
    shared.mkdir()
    shared.chmod(0o1777)
    victim.mkdir(mode=0o700)
    tmp_path.chmod(0o755)
    base = shared / "ddp-orch-0"
    racer = os.fork()
    if racer == 0:
        os.setgid(65534)
        os.setuid(65534)
        while True:
            for make in (lambda: os.symlink(victim, base), lambda: os.mkdir(base, 0o777), lambda: base.touch()):
                with contextlib.suppress(OSError):
                    make()
                for remove in (os.unlink, os.rmdir):
                    with contextlib.suppress(OSError):
                        remove(base)
    won = refused = 0
    try:
        deadline = time.monotonic() + 120
        while won + refused < ROUNDS and time.monotonic() < deadline:
            try:
                state._private(str(base))
            except (OSError, state.StateError):
                refused += 1
                continue
            won += 1
            found = base.lstat()  # ours from now on: in such a folder nobody else can take it away
            assert stat.S_ISDIR(found.st_mode) and found.st_uid == 0 and not found.st_mode & 0o077
            base.rmdir()
    finally:
        os.kill(racer, 9)
        os.waitpid(racer, 0)
    assert won and refused
    assert list(victim.iterdir()) == []


# --- nothing that is unpickled may run code


def test_nothing_is_unpickled_but_by_readers_that_know_no_code() -> None:
    for path in [*ROOT.glob("orchestrator/**/*.py"), *ROOT.glob("trainer/**/*.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call):
                continue
            called, keywords = ast.unparse(node.func), {one.arg: ast.unparse(one.value) for one in node.keywords}
            assert called not in ("pickle.load", "pickle.loads", "marshal.loads", "eval", "exec"), path
            assert called != "yaml.load" or path.name == "causes.py", path  # our own file, by a safe loader
            if called == "torch.load":
                assert keywords.get("weights_only") == "True", path


class Evil:
    def __reduce__(self) -> tuple[object, ...]:
        return (os.system, ("touch canary",))


def test_a_snapshot_that_would_run_code_is_not_loaded(folder: Path) -> None:
    torch = pytest.importorskip("torch")
    import hashlib
    import pickle

    from trainer import checkpoint

    buffer = io.BytesIO()
    torch.save({"step": Evil()}, buffer)
    content = buffer.getvalue()
    (folder / f"step-00000001-{hashlib.sha256(content).hexdigest()[:16]}.pt").write_bytes(content)

    class Alone:
        local_rank = 0

        def gather(self, value: int) -> list[int]:
            return [value]

        def broadcast(self, content: bytes, source: int) -> bytes:
            return content

    with pytest.raises(pickle.UnpicklingError, match="Weights only"):
        checkpoint.load_newest(folder, Alone())  # type: ignore[arg-type]
    assert not (folder / "canary").exists()


# --- the node program


def test_a_node_program_damaged_on_its_way_is_never_run(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DDP_ORCH_STATE_DIR", str(folder / "state"))
    whole = node_program()
    for position in (0, len(whole.data) // 2, len(whole.data) - 1):
        data = bytearray(whole.data)
        data[position] ^= 1
        with pytest.raises(Refused, match=r"^me: .*\bdamaged\b"):
            Session("me", LocalConnection(), "python3", NodeProgram(whole.sha256, bytes(data)), secrets.token_hex(8))
    assert list((folder / "state").iterdir()) == []


def test_the_command_that_is_run_on_a_host_holds_nothing_but_hashes_and_the_python() -> None:
    """Whatever is asked of a host goes over stdin, so no shell there ever sees a word of it."""
    from orchestrator.hosts.bootstrap import bootstrap_command

    command = bootstrap_command("/opt/my venv/bin/python$(id)", node_program(), "abc123")
    head, code = command.split(" -c ")
    assert head == "exec '/opt/my venv/bin/python$(id)' -I -S"
    assert set(code) <= set(string.ascii_letters + string.digits + "+/='\"(); .")


# --- the document


def test_every_test_that_the_document_names_is_there() -> None:
    text = (ROOT / "docs" / "security.md").read_text()
    defined = {path.name: path.read_text() for path in (ROOT / "tests").glob("**/test_*.py")}
    for row in text.splitlines():
        file = ""
        for name, test in re.findall(r"`(?:chaos/)?(test_\w+\.py)?(?:::(test_\w+))?`", row):
            file = name or file
            if test:
                sources = [path.read_text() for path in (ROOT / "tests").glob(f"**/{file}")]
                assert any(f"def {test}(" in source for source in sources), test
            elif name:
                assert name in defined, name
    rows = text.partition("\n## Tests\n")[2].partition("\n## ")[0].splitlines()
    assert len(rows) > 20 and all("test_" in row for row in rows if row.startswith("| ") and "| tests |" not in row)
