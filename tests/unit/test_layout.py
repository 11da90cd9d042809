"""Which package may import which, and what runs where. Each rule is shown to fail on a planted violation."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

LAYERS = (
    {"cli", "api"},
    {"demo"},
    {"commands"},
    {"runs"},
    {"checks", "hosts"},
    {"plan", "ssh", "diagnosis", "ui"},
    {"answers"},
    {"inventory"},
    {"output"},
    {"errors"},
)
"""The controller's rooms. A room imports only rooms of lower layers, never one beside it."""

NODE_LAYERS = (
    {"serve"},
    {"roles", "resume"},
    {"recorder"},
    {"guard"},
    {"mpi"},
    {"ranks", "link"},
    {"gang", "host", "preload"},
)
"""The same for the node program. Its `__main__` and `daemon` put the processes together."""

LEVEL = {room: level for level, rooms in enumerate(LAYERS) for room in rooms}
NODE_LEVEL = {room: level for level, rooms in enumerate(NODE_LAYERS) for room in rooms}

SHARED = {"node", "node.ranks.host_variables", "node.serve.figures", "node.serve.unpack", "node.serve.wire"}
"""What the controller imports of the node program: its version, variables of a host, figures, archives, frames."""

PURE = ("inventory", "answers", "plan", "checks", "diagnosis", "output")
OUTSIDE = {"os", "time", "random", "secrets", "socket", "subprocess", "threading"}
READERS = {
    "inventory.advice": {"os"},  # the default inventory, to leave it out of advice
    "inventory.run_ids": {"secrets"},  # makes them
    "output.console": {"os"},  # os.environ as a type
    "output.streams": {"os"},  # opens the null device for closed streams
    "plan.entrypoint": {"os"},  # paths of the user's code
    "plan.import_roots": {"os"},
    "plan.code_files": {"os"},  # lists the user's code
    "plan.commit": {"os"},  # looks whether files are missing
    "plan.git": {"os", "subprocess"},  # asks git
    "plan.snapshot": {"os"},  # reads the user's code
}
"""Modules of pure rooms that reach outside, and for what."""

ONLY = {
    "fabric": {"ssh"},
    "paramiko": {"ssh", "demo"},
    "invoke": {"ssh"},
    "yaml": {"inventory", "diagnosis"},
    "rich": {"ui", "commands"},
    "click": {"cli", "commands"},
    "ClusterShell": {"inventory", "output"},
    "torch": {"runs.payload"},
    "torchvision": set(),
    "numpy": set(),
}
"""Third-party packages, and the rooms that import them."""

TWICE = {
    # one noun, seen by the controller and by the node program
    "add": {"answers.add", "commands.add"},
    "containers": {"checks.containers", "node.host.containers"},
    "drain": {"answers.drain", "commands.drain", "node.gang.drain", "node.serve.membership"},
    "evidence": {"answers.evidence", "node.serve.evidence"},
    "facts": {"answers.facts", "node.serve.facts"},
    "follow": {"node.serve.follow", "runs.follow"},
    "gpus": {"answers.gpus", "checks.gpus", "commands.gpus", "node.serve.gpus"},
    "images": {"answers.images", "node.serve.images", "runs.images"},
    "launch": {"node.ranks.launch", "runs.launch"},
    "ledger": {"answers.ledger", "node.host.ledger"},
    "mesh": {"node.serve.mesh", "runs.mesh"},
    "network": {"answers.network", "checks.network", "node.host.network"},
    "newcomer": {"plan.newcomer", "runs.newcomer"},
    "notify": {"commands.notify", "node.recorder.notify"},
    "prepare": {"answers.prepare", "node.serve.prepare"},
    "probe": {"node.serve.probe", "runs.probe"},
    "rejoin": {"answers.rejoin", "node.serve.rejoin"},
    "revive": {"commands.revive", "runs.revive"},
    "runs": {"answers.runs", "node.serve.runs"},
    "shell": {"answers.shell", "commands.shell", "node.serve.shell", "runs.shell"},
    "stacks": {"diagnosis.stacks", "node.ranks.stacks"},
    # what a host answers, and who asks it
    "attach": {"answers.attach", "runs.attach"},
    # a command, and what it does
    "diagnose": {"commands.diagnose", "runs.diagnose"},
    # what starts the deep check, and the script that it runs on the hosts
    "deep": {"runs.deep", "runs.payload.deep"},
}
"""Module names that stand in several packages and mean the same in each."""

Sources = Mapping[str, str]
"""Module name (without `orchestrator.`; `trainer.` in front for the trainer's) -> source text."""


def load() -> dict[str, str]:
    sources = {}
    for package in ("orchestrator", "trainer"):
        for path in sorted((ROOT / package).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            sources[name.removeprefix("orchestrator.")] = path.read_text(encoding="utf-8")
    return sources


SOURCES = load()


@cache
def parsed(text: str) -> ast.Module:
    return ast.parse(text)


@cache
def is_package(name: str) -> bool:
    return any(other.startswith(f"{name}.") for other in SOURCES) or name in ("orchestrator", "trainer")


def imports(name: str, sources: Sources) -> Iterator[str]:
    """Everything that a module imports, also below `if TYPE_CHECKING` and in functions; ours without `orchestrator.`.

    `from .node import wire` is `node.wire` where that is a module, and `node` otherwise.
    """
    whole = name if name.startswith("trainer") or name == "orchestrator" else f"orchestrator.{name}"
    package = whole.split(".") if is_package(name) else whole.split(".")[:-1]
    for node in ast.walk(parsed(sources[name])):
        if isinstance(node, ast.Import):
            yield from (alias.name.removeprefix("orchestrator.") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            module = ".".join(filter(None, (base, node.module))).removeprefix("orchestrator.")
            for alias in node.names:
                inner = f"{module}.{alias.name}" if module != "orchestrator" else alias.name
                yield inner if inner in sources else module


def edges(sources: Sources) -> Iterator[tuple[str, str]]:
    return ((name, imported) for name in sources for imported in set(imports(name, sources)) if imported != name)


def room(name: str) -> str:
    return name.split(".")[0]


def inner_room(name: str) -> str:
    """The package below `node`."""
    return name.split(".")[1] if name.startswith("node.") else ""


def is_controller(name: str) -> bool:
    return room(name) not in ("node", "trainer")


# --- the rules: each gives its violations


def arrows_point_down(sources: Sources) -> list[str]:
    return [
        f"{name} imports {imported}"
        for name, imported in edges(sources)
        if room(name) != room(imported)
        and room(name) in LEVEL
        and room(imported) in LEVEL
        and LEVEL[room(name)] >= LEVEL[room(imported)]
    ]


def every_module_is_in_a_room(sources: Sources) -> list[str]:
    rooms = {*LEVEL, "node", "trainer", "orchestrator"}
    return [name for name in sources if room(name) not in rooms]


def there_are_no_circles(sources: Sources) -> list[str]:
    """A package's `__init__` is left out: Python imports it with each of its modules."""
    below: dict[str, set[str]] = defaultdict(set)
    for name, imported in edges(sources):
        if imported in sources and not is_package(imported):
            below[name].add(imported)
    circles = []
    done: set[str] = set()

    def visit(name: str, path: tuple[str, ...]) -> None:
        if name in path:
            circles.append(" > ".join((*path[path.index(name) :], name)))
        elif name not in done:
            for imported in sorted(below[name]):
                visit(imported, (*path, name))
            done.add(name)

    for name in sorted(sources):
        visit(name, ())
    return circles


def commands_are_imported_by_the_command_line_only(sources: Sources) -> list[str]:
    return [
        f"{name} imports {imported}"
        for name, imported in edges(sources)
        if room(imported) == "commands" and room(name) not in ("cli", "demo", "commands")
    ]


def decisions_do_not_reach_outside(sources: Sources) -> list[str]:
    return [
        f"{name} imports {imported}"
        for name, imported in edges(sources)
        if room(name) in PURE and room(imported) in OUTSIDE - READERS.get(name, set())
    ]


def the_controller_shares_little_with_the_node_program(sources: Sources) -> list[str]:
    """The demo is left out: it plays host."""
    return [
        f"{name} imports {imported}"
        for name, imported in edges(sources)
        if is_controller(name) and room(name) != "demo" and room(imported) == "node" and imported not in SHARED
    ]


def arrows_of_the_node_program_point_down(sources: Sources) -> list[str]:
    """What lives with the run needs nothing of `serve`, which lives with an SSH session."""
    return [
        f"{name} imports {imported}"
        for name, imported in edges(sources)
        if (package := inner_room(name)) in NODE_LEVEL and (below := inner_room(imported)) in NODE_LEVEL
        if package != below and NODE_LEVEL[package] >= NODE_LEVEL[below]
    ]


def every_package_of_the_node_program_has_a_layer(sources: Sources) -> list[str]:
    free = {"node", "node.__main__", "node.daemon"}
    return [
        name for name in sources if room(name) == "node" and name not in free and inner_room(name) not in NODE_LEVEL
    ]


def the_gang_is_pure(sources: Sources) -> list[str]:
    return [
        f"{name} imports {imported}"
        for name, imported in edges(sources)
        if name.startswith("node.gang.") and room(imported) in OUTSIDE | {"node"}
        if not imported.startswith("node.gang")
    ]


def the_node_program_imports_the_standard_library_and_itself(sources: Sources) -> list[str]:
    return [
        f"{name} imports {imported}"
        for name, imported in edges(sources)
        if room(name) == "node" and room(imported) not in sys.stdlib_module_names and room(imported) != "node"
    ]


def the_node_program_imports_itself_relatively(sources: Sources) -> list[str]:
    """On a host it is the package `node`: there is no `orchestrator` there."""
    return [
        f"{name}, line {node.lineno}"
        for name in sources
        if room(name) == "node"
        for node in ast.walk(parsed(sources[name]))
        if (isinstance(node, ast.ImportFrom) and not node.level and (node.module or "").startswith("orchestrator"))
        or (isinstance(node, ast.Import) and any(alias.name.startswith("orchestrator") for alias in node.names))
    ]


def the_node_program_is_written_in_python_3_8(sources: Sources) -> list[str]:
    """Its syntax, and what 3.8 accepts and then fails on: `list[int]` in an annotation, and newer methods."""
    violations = []
    for name in sources:
        if room(name) != "node":
            continue
        try:
            tree = ast.parse(sources[name], name, feature_version=(3, 8))
        except SyntaxError as error:
            violations.append(f"{name}, line {error.lineno}")
            continue
        for node in ast.walk(tree):
            generic = isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name) and node.value.id
            newer = isinstance(node, ast.Attribute) and node.attr
            if generic in ("list", "dict", "set", "frozenset", "tuple", "type") or newer in (
                "removeprefix",
                "removesuffix",
                "pidfd_open",
                "pidfd_send_signal",
            ):
                violations.append(f"{name}, line {node.lineno}")  # type: ignore[attr-defined]
    return violations


def trainer_and_orchestrator_do_not_know_each_other(sources: Sources) -> list[str]:
    return [
        f"{name} imports {imported}"
        for name, imported in edges(sources)
        if (room(name) == "trainer") != (room(imported) == "trainer")
        and (room(imported) == "trainer" or imported in sources or room(imported) == "orchestrator")
    ]


def third_party_packages_have_their_rooms(sources: Sources) -> list[str]:
    return [
        f"{name} imports {imported}"
        for name, imported in edges(sources)
        if is_controller(name) or room(name) == "node"
        if room(imported) in ONLY and not any(f"{name}.".startswith(f"{allowed}.") for allowed in ONLY[room(imported)])
    ]


def no_name_means_two_things(sources: Sources) -> list[str]:
    homes: dict[str, list[str]] = defaultdict(list)
    for name in sources:
        if not is_package(name) and room(name) != "trainer" and not name.endswith("__main__"):
            homes[name.split(".")[-1]].append(name)
    return [
        f"{base}: {', '.join(sorted(names))}"
        for base, names in homes.items()
        if len(names) > 1 and not set(names) <= TWICE.get(base, set())
    ]


def the_controller_runs_where_there_is_no_proc(sources: Sources) -> list[str]:
    linux = {"prctl", "memfd_create", "pidfd_open", "splice", "sched_getaffinity", "epoll"}
    violations = []
    for name in sources:
        if not is_controller(name) or room(name) == "demo" or name.startswith("runs.payload"):
            continue
        tree = parsed(sources[name])
        prose = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        for node in ast.walk(tree):
            text = node.value if isinstance(node, ast.Constant) and id(node) not in prose else None
            if (isinstance(text, str) and ("/proc/" in text or text == "/proc")) or (
                isinstance(node, ast.Attribute) and node.attr in linux
            ):
                violations.append(f"{name}, line {node.lineno}")
        violations += [f"{name} imports ctypes" for imported in imports(name, sources) if room(imported) == "ctypes"]
    return violations


# --- every rule with a violation: the module to which it is added, and the line

RULES: list[tuple[Callable[[Sources], list[str]], str, str]] = [
    (arrows_point_down, "output.lines", "from ..runs import registry"),
    (arrows_point_down, "hosts.fleet", "if TYPE_CHECKING:\n    from ..checks.findings import Finding"),
    (every_module_is_in_a_room, "utils", ""),
    (there_are_no_circles, "ssh.tcp", "def f():\n    from .dialer import Dialer"),
    (commands_are_imported_by_the_command_line_only, "runs.launch", "from ..commands.prune import prune"),
    (decisions_do_not_reach_outside, "plan.plan", "import time"),
    (decisions_do_not_reach_outside, "diagnosis.engine", "from os import environ"),
    (the_controller_shares_little_with_the_node_program, "runs.launch", "from ..node.gang import gang"),
    (the_controller_shares_little_with_the_node_program, "commands.report", "from ..node.host.state import Record"),
    (arrows_of_the_node_program_point_down, "node.guard.guard", "from ..serve import probe"),
    (arrows_of_the_node_program_point_down, "node.guard.guard", "from ..roles import head"),
    (arrows_of_the_node_program_point_down, "node.link.link", "from ..recorder import journal"),
    (arrows_of_the_node_program_point_down, "node.host.state", "from ..recorder import journal"),
    (every_package_of_the_node_program_has_a_layer, "node.helpers.text", ""),
    (the_gang_is_pure, "node.gang.gang", "import time"),
    (the_gang_is_pure, "node.gang.team", "from ..recorder import notify"),
    (the_gang_is_pure, "node.gang.team", "from ..host import network"),
    (the_node_program_imports_the_standard_library_and_itself, "node.gang.gang", "import yaml"),
    (the_node_program_imports_the_standard_library_and_itself, "node.gang.gang", "from ...output import lines"),
    (the_node_program_imports_itself_relatively, "node.gang.gang", "from orchestrator.node.guard import guard"),
    (the_node_program_is_written_in_python_3_8, "node.gang.gang", "def f(x: list[int]) -> None: ..."),
    (the_node_program_is_written_in_python_3_8, "node.gang.gang", "match 1:\n    case 1: ..."),
    (trainer_and_orchestrator_do_not_know_each_other, "trainer.train", "from orchestrator.output import lines"),
    (trainer_and_orchestrator_do_not_know_each_other, "plan.plan", "import trainer.train"),
    (third_party_packages_have_their_rooms, "runs.launch", "import paramiko"),
    (third_party_packages_have_their_rooms, "runs.launch", "def f():\n    import torch"),
    (no_name_means_two_things, "checks.plan", ""),
    (the_controller_runs_where_there_is_no_proc, "hosts.fleet", "x = open('/proc/self/stat')"),
    (the_controller_runs_where_there_is_no_proc, "hosts.fleet", "import ctypes"),
]


@pytest.mark.parametrize("rule", dict.fromkeys(rule for rule, _, _ in RULES), ids=lambda rule: rule.__name__)
def test_rule(rule: Callable[[Sources], list[str]]) -> None:
    assert rule(SOURCES) == []


@pytest.mark.parametrize(("rule", "module", "line"), RULES, ids=lambda value: getattr(value, "__name__", None))
def test_rule_finds_a_violation(rule: Callable[[Sources], list[str]], module: str, line: str) -> None:
    planted = {**SOURCES, module: f"{SOURCES.get(module, '')}\n{line}\n"}
    assert len(rule(planted)) > len(rule(SOURCES))


def test_exceptions_are_needed() -> None:
    """A list of exceptions that only grows would allow too much."""
    assert {name for name in READERS if not set(map(room, imports(name, SOURCES))) & READERS[name]} == set()
    assert {name for name in SHARED if name not in {imported for _, imported in edges(SOURCES)}} == set()
    assert set().union(*TWICE.values()) - SOURCES.keys() == set()


def test_help_needs_none_of_what_the_commands_need() -> None:
    code = "import sys; before = set(sys.modules); import orchestrator.cli; print(*sorted(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    loaded = {name.split(".")[0] for name in done.stdout.split()}
    assert "click" in loaded
    assert not loaded & {"torch", "fabric", "paramiko", "rich", "yaml", "ClusterShell", "invoke", "pathspec"}
