"""Who may import whom, and what runs where."""

from __future__ import annotations

import ast
import graphlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CONTROLLER = sorted(path for path in (ROOT / "orchestrator").rglob("*.py") if not {"node", "payload"} & {*path.parts})
NODE = sorted((ROOT / "orchestrator" / "node").rglob("*.py"))
TRAINER = sorted((ROOT / "trainer").glob("*.py"))
DEMO = {"demo.py", "two_hosts.py", "embedded_ssh.py"}
"""Here this machine plays the hosts too, behind an SSH server of its own."""


def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def imports(path: Path) -> Iterator[str]:
    """The modules that a file imports anywhere in it, relative ones made absolute."""
    package = path.relative_to(ROOT).parent.parts
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            module = ".".join(filter(None, (base, node.module)))
            yield module
            yield from (name for alias in node.names if is_module(name := f"{module}.{alias.name}"))


def is_module(name: str) -> bool:
    """Of ours; else it is a name in a module."""
    path = ROOT.joinpath(*name.split("."))
    return path.with_suffix(".py").is_file() or path.is_dir()


def importers(of: str, files: list[Path]) -> set[str]:
    return {path.name for path in files if any(f"{name}.".startswith(f"{of}.") for name in imports(path))}


def texts(path: Path) -> Iterator[str]:
    """The string constants of a file but its docstrings."""
    tree = parsed(path)
    prose = {
        id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in prose:
            yield node.value


def test_there_is_something_to_look_at() -> None:
    assert len(CONTROLLER) > 20
    assert len(NODE) > 15
    assert len(TRAINER) > 5


# --- the node program


@pytest.mark.parametrize("path", NODE, ids=lambda path: path.name)
def test_the_node_program_imports_the_standard_library_and_itself(path: Path) -> None:
    for name in imports(path):
        assert name.split(".")[0] in sys.stdlib_module_names or f"{name}.".startswith("orchestrator.node."), name


@pytest.mark.parametrize("path", NODE, ids=lambda path: path.name)
def test_the_node_program_is_written_in_python_3_8(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"), str(path), feature_version=(3, 8))
    for node in ast.walk(tree):
        # valid syntax, but 3.8 fails when it comes by: list[int] in an annotation, and these methods of str
        if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name):
            assert node.value.id not in ("list", "dict", "set", "frozenset", "tuple", "type"), f"line {node.lineno}"
        if isinstance(node, ast.Attribute):
            assert node.attr not in ("removeprefix", "removesuffix", "pidfd_open", "pidfd_send_signal"), node.attr


def test_the_node_program_says_its_paths_only_relative_to_its_own_package() -> None:
    """On a host it is the package `node`: there is no `orchestrator` there."""
    for path in NODE:
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.ImportFrom) and not node.level:
                assert not (node.module or "").startswith("orchestrator"), path.name


def test_the_controller_shares_little_with_the_node_program() -> None:
    """The two sides of frames and of archives, and how figures are read; the demo plays host."""
    shared = {
        name
        for path in CONTROLLER
        if path.name not in DEMO
        for name in imports(path)
        if "orchestrator.node." in f"{name}."
    }
    names = ("", ".serve", ".serve.figures", ".serve.unpack", ".serve.wire")
    assert shared <= {f"orchestrator.node{name}" for name in names}


# --- the trainer


def test_trainer_and_orchestrator_do_not_know_each_other() -> None:
    assert importers("orchestrator", TRAINER) == set()
    assert importers("trainer", CONTROLLER + NODE) == set()


def test_no_two_modules_of_the_trainer_import_each_other() -> None:
    """Directly or through others, at the top of a file or in a function."""
    graph = {
        f"trainer.{path.stem}": {name for name in imports(path) if name.startswith("trainer.") and is_module(name)}
        for path in TRAINER
    }
    assert graph["trainer.__main__"]
    graphlib.TopologicalSorter(graph).prepare()  # raises CycleError, which shows the circle


# --- the controller


def test_only_the_ssh_modules_import_fabric_and_paramiko() -> None:
    files = [path for path in CONTROLLER if path.parent.name not in ("ssh", "demo")]
    assert importers("fabric", files) | importers("paramiko", files) | importers("invoke", files) == set()
    assert importers("paramiko", CONTROLLER)


@pytest.mark.parametrize("heavy", ["torch", "torchvision", "numpy"])
def test_the_controller_never_imports_torch(heavy: str) -> None:
    assert importers(heavy, CONTROLLER + NODE) == set()


@pytest.mark.parametrize("path", [path for path in CONTROLLER if path.name not in DEMO], ids=lambda path: path.name)
def test_the_controller_runs_where_there_is_no_proc(path: Path) -> None:
    assert not [text for text in texts(path) if "/proc/" in text or text == "/proc"]
    assert importers("ctypes", [path]) == set()
    attributes = {node.attr for node in ast.walk(parsed(path)) if isinstance(node, ast.Attribute)}
    assert not attributes & {"prctl", "memfd_create", "pidfd_open", "splice", "sched_getaffinity", "epoll"}


def test_only_the_command_line_reads_argv_environment_clock_and_chance() -> None:
    """Decisions are values: what they need of the outside is given to them."""
    inventory = ["inventory/model", "inventory/schema", "inventory/values", "inventory/hostnames"]
    pure = [*inventory, "plan/plan", "plan/launchers", "checks/hosts", "output/lines"]
    for name in pure:
        found = set(imports(ROOT / "orchestrator" / f"{name}.py"))
        assert not found & {"os", "time", "random", "secrets", "socket", "subprocess"}, name


def test_help_needs_none_of_what_the_commands_need() -> None:
    code = "import sys; before = set(sys.modules); import orchestrator.cli; print(*sorted(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    loaded = {name.split(".")[0] for name in done.stdout.split()}
    assert "click" in loaded
    assert not loaded & {"torch", "fabric", "paramiko", "rich", "yaml", "ClusterShell", "invoke", "pathspec"}
