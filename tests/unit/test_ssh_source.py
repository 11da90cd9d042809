"""Rules that the source itself must keep."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import orchestrator

PACKAGE = Path(orchestrator.__file__).parent
SOURCES = sorted(path for path in PACKAGE.rglob("*.py") if "demo" not in path.parts)


def names(path: Path) -> set[str]:
    """Every name that the code (not a comment, not a string) uses."""
    tree = ast.parse(path.read_text())
    found = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    return found | {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}


def imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add((node.module or "").split(".")[0])
    return found


def test_no_policy_that_accepts_any_host_key_is_named_anywhere() -> None:
    for path in SOURCES:
        assert not names(path) & {"AutoAddPolicy", "WarningPolicy", "load_system_host_keys"}, path


def test_every_fabric_connection_gets_our_policy_and_forwards_nothing() -> None:
    """One class is made from fabric's, and nobody calls fabric's own."""
    path = PACKAGE / "ssh" / "login.py"
    nodes = list(ast.walk(ast.parse(path.read_text())))
    calls = [ast.unparse(node.func) for node in nodes if isinstance(node, ast.Call)]
    assert "fabric.Connection" not in calls and "fabric.Config" in calls
    classes = [node for node in nodes if isinstance(node, ast.ClassDef)]
    [made] = [ast.unparse(node) for node in classes if any("fabric" in ast.unparse(base) for base in node.bases)]
    assert "forward_agent=False" in made and "set_missing_host_key_policy(_Policy(" in made
    assert not names(path) & {"get_pty", "request_x11", "request_forward_agent", "AgentRequestHandler"}


def test_only_the_ssh_modules_make_connections() -> None:
    assert [path.name for path in SOURCES if "fabric" in imports(path)] == ["login.py"]
    assert not [path.name for path in SOURCES if "SSHClient" in names(path) and path.name != "login.py"]


def test_importing_ssh_imports_neither_fabric_nor_paramiko() -> None:
    script = (
        "import sys, orchestrator.ssh.dialer; print({'fabric', 'paramiko', 'cryptography', 'torch'} & set(sys.modules))"
    )
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, cwd=PACKAGE.parent, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
