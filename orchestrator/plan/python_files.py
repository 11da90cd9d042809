"""What a script and the modules here that it imports contain: imports and flags. Reads files, runs nothing."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from ..inventory import launcher_variables

MAX_FILES = 500
MAX_BYTES = 1 << 20  # of one file
_IMPORT = re.compile(
    r"^[ \t]*(?:from[ \t]+([.\w]+)[ \t]+import[ \t]+(\([^)]*\)|[^\n#;]*)|import[ \t]+([^\n#;]*))", re.MULTILINE
)
"""An import, to follow it: 30 times faster than a syntax tree. One in a text only leads to more files."""
_OLD_FLAG, _NEW_FLAG = re.compile(r"--local_rank\b"), re.compile(r"--local-rank\b")


_PLAIN = {
    "torch",
    "torchvision",
    "torchaudio",
    "torchtext",
    "numpy",
    "pandas",
    "scipy",
    "sklearn",
    "skimage",
    "cv2",
    "PIL",
}
_PLAIN |= {"matplotlib", "seaborn", "tqdm", "tensorboard", "tensorboardX", "wandb", "yaml", "einops", "h5py"}
"""Packages that do not connect the ranks. Others might."""
_TOGETHER = re.compile(r"distributed|process_?group|dataparallel|fsdp|\bddp\b|rank\b|world_?size", re.IGNORECASE)
_RARE = {"test", "this", "antigravity", "idlelib", "turtle", "turtledemo", "lib2to3", "cgi", "chunk", "crypt", "imp"}
"""Modules of Python that hardly any package imports, and whose names files of users have."""
_OF_TORCH = {"torch", "torchgen", "functorch", "numpy", "typing_extensions", "sympy", "mpmath", "networkx", "jinja2"}
_OF_TORCH |= {"fsspec", "filelock", "yaml", "triton", "cuda", "nvidia", "opt_einsum", "packaging", "setuptools"}
_OF_TORCH |= {"psutil", "dill", "pynvml", "tqdm", "tabulate", "optree"}
"""Packages that torch imports, if only sometimes."""
_OWN_LAUNCHER = re.compile(r"MASTER_ADDR|init_method|spawn")
LOOPBACK = re.compile(r"localhost|127\.[\d.]+|::1")
_MAY_BE_LOCAL = re.compile(
    r"environ|getenv|\bnot\b|rank|world_?size|master|launch|elastic|slurm|mpi|spawn|local|single|alone|debug|test",
    re.IGNORECASE,
)
"""In the condition of a branch that a start by ddp-orch may not come to."""
_KNOWS_RANK = re.compile(r"""['"]RANK['"]""")
_OF_LAUNCHERS = re.compile(r"\b(SKYPILOT|DSTACK|SLURMD?|OMPI|PMI|MPI|MV2)_")
_SPAWN = re.compile(r"(?:mp|(?:torch\.)?multiprocessing)\.spawn")


@dataclass(frozen=True)
class Import:
    path: Path
    line: int
    certain: bool
    """Whether every start of the script comes to it, as far as the code shows."""


@dataclass(frozen=True)
class OwnLauncher:
    """A place where the script does what starts its ranks: it would undo that."""

    path: Path
    line: int
    what: Literal["address", "spawn"]
    """It names the address of rank 0; it starts processes."""
    value: str
    """That address; the function that starts them."""
    in_call: bool = False
    """The address is `init_method` of a call that the script needs."""
    certain: bool = True
    """Whether every start of the script comes to it, as far as the code shows."""


@dataclass(frozen=True)
class Needed:
    """A place where the script takes a variable of another launcher."""

    path: Path
    line: int
    variable: str


@dataclass(frozen=True)
class Distant:
    """A module of the user that the script imports and that is not beside it."""

    module: str
    folder: Path
    place: Import


@dataclass(frozen=True)
class _Source:
    path: Path
    text: str


def find_import(module: str, script: Path, folder: Path) -> Import | None:
    """Where a script imports a module that is installed; a certain one first. `folder`: where its own modules are."""
    imports = [found for source in _sources(script, folder) for found in _imports_of(module, source, script)]
    return next((found for found in imports if found.certain), imports[0] if imports else None)


def find_distant(script: Path, roots: Sequence[Path]) -> Iterator[Distant]:
    """Modules that every start of the script imports, and that are in another folder than it, one of `roots`.

    None if the script changes sys.path.
    """
    folder = script.parent
    sources = list(_sources(script, folder))
    if any("sys.path" in source.text for source in sources):
        return
    names = {
        parts[0] for source in sources for parent, parts in _modules_of(source, folder) if parent == folder and parts
    }
    for name in sorted(names - sys.stdlib_module_names - _PLAIN - _OF_TORCH):
        if (folder / name).is_dir() or (folder / f"{name}.py").is_file():
            continue
        root = next((root for root in roots if list(_files_of((name,), root))), None)
        found = find_import(name, script, folder) if root is not None else None
        if root is not None and found is not None and found.certain:
            yield Distant(name, root, found)


def file_of(words: Sequence[str], folder: Path) -> Path | None:
    """The file here of `SCRIPT ...` or `-m MODULE ...`."""
    if words[:1] == ("-m",) and len(words) > 1:
        path = folder.joinpath(*words[1].split("."))
        return next((file for file in (path.with_suffix(".py"), path / "__main__.py") if file.is_file()), None)
    return folder / words[0] if words and (folder / words[0]).is_file() else None


def has_old_local_rank(script: Path, folder: Path) -> bool:
    """Whether the script knows only `--local_rank`, as it was before torch 2.0, and not `--local-rank`."""
    texts = [source.text for source in _sources(script, folder)]
    return any(map(_OLD_FLAG.search, texts)) and not any(map(_NEW_FLAG.search, texts))


def trains_alone(script: Path, folder: Path) -> bool:
    """Whether the script uses torch, and nothing in it or in what it imports can connect its rank with the others."""
    texts = texts_with_plain_torch(script, folder)
    return texts is not None and not any(map(_TOGETHER.search, texts))


def texts_with_plain_torch(script: Path, folder: Path) -> list[str] | None:
    """The script and its own modules, if they use torch and no package that may connect the ranks; else None."""
    sources = list(_sources(script, folder))
    names = {
        parts[0]
        for source in sources
        for parent, parts in _modules_of(source, folder)
        if parent == folder and parts and not (folder / parts[0]).is_dir() and not list(_files_of(parts[:1], folder))
    }
    is_plain = "torch" in names and not names - _PLAIN - sys.stdlib_module_names
    return [source.text for source in sources] if is_plain else None


def find_own_launchers(script: Path, folder: Path) -> Iterator[OwnLauncher]:
    """Where a start of the script names the machine of rank 0, or starts ranks with mp.spawn.

    Of places that not every start comes to, only addresses, and only if the conditions do not look like those of a
    start on one machine.
    """
    for source in _sources(script, folder):
        if not _OWN_LAUNCHER.search(source.text):
            continue
        for node, certain in _nodes(source, script):
            if not certain:
                continue
            if isinstance(node, ast.If):
                inner = () if _is_main(node.test) else _reached_if(node)
                yield from (replace(found, certain=False) for one in inner if (found := _own_address(one, source.path)))
            elif found := _own_address(node, source.path):
                yield found
            match node:
                case ast.Call(func=ast.Attribute(attr="spawn") as function) if _SPAWN.fullmatch(ast.unparse(function)):
                    yield OwnLauncher(source.path, node.lineno, "spawn", ast.unparse(function))


def find_needed_variables(script: Path, folder: Path) -> dict[str, Needed]:
    """By launcher, a variable of it that every start of the script takes from os.environ, without a default.

    None if the script knows RANK as well: it may look for that first.
    """
    needed: dict[str, Needed] = {}
    sources = list(_sources(script, folder))
    if any(map(_KNOWS_RANK.search, (source.text for source in sources))):
        return needed
    for source in sources:
        if not _OF_LAUNCHERS.search(source.text):
            continue
        for node, certain in _nodes(source, script):
            match node:
                case ast.Subscript(value=mapping, slice=ast.Constant(value=str(name)), ctx=ast.Load()) if (
                    certain
                    and (launcher := launcher_variables.launcher_of(name)) is not None
                    and ast.unparse(mapping) in ("os.environ", "environ")
                ):
                    needed.setdefault(launcher, Needed(source.path, node.lineno, name))
    return needed


def _own_address(node: ast.AST, path: Path) -> OwnLauncher | None:
    """Where the node itself names the machine of rank 0."""
    match node:
        case ast.Assign(
            targets=[ast.Subscript(value=mapping, slice=ast.Constant(value="MASTER_ADDR"))],
            value=ast.Constant(value=str(address)),
        ) if ast.unparse(mapping).endswith("environ"):
            return OwnLauncher(path, node.lineno, "address", address)
        case ast.keyword(arg="init_method", value=ast.Constant(value=str(url))) if url.startswith("tcp://"):
            address = url.removeprefix("tcp://").rpartition(":")[0].strip("[]")
            return OwnLauncher(path, node.value.lineno, "address", address, in_call=True)
    return None


def _reached_if(node: ast.If) -> Iterator[ast.AST]:
    """What is done if a condition is true, without what depends on more than conditions."""
    if _MAY_BE_LOCAL.search(ast.unparse(node.test)):
        return
    pending: list[ast.AST] = list(node.body)
    while pending:
        one = pending.pop(0)
        yield one
        match one:
            case ast.If():
                yield from _reached_if(one)
            case ast.Try() | ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                pass
            case _:
                pending += ast.iter_child_nodes(one)


def hidden_module(path: str) -> str | None:
    """What is imported in its place from the folder of the script: a module of Python, or a package that torch imports.

    `path`: of a file, from that folder.
    """
    name = path.removesuffix("/__init__.py") if path.endswith("/__init__.py") else path.removesuffix(".py")
    if "/" in name or "." in name or name == path:
        return None
    if name in sys.stdlib_module_names - _RARE:
        return f"Python's module {name}"
    return f"the package {name}" if name in _OF_TORCH else None


def _imports_of(module: str, source: _Source, script: Path) -> Iterator[Import]:
    if module not in source.text:
        return
    for node, certain in _nodes(source, script):
        match node:
            case ast.Import(names=names) if any(_is_in(name.name, module) for name in names):
                yield Import(source.path, node.lineno, certain)
            case ast.ImportFrom(module=str(name), level=0) if _is_in(name, module):
                yield Import(source.path, node.lineno, certain)


def _nodes(source: _Source, script: Path) -> Iterator[tuple[ast.AST, bool]]:
    """The syntax tree, and of each node whether every start of the script comes to it."""
    try:
        tree = ast.parse(source.text)
    except (SyntaxError, ValueError, RecursionError):
        return  # starting the script reports it

    functions = (
        {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
        if source.path == script
        else {}
    )  # of another file: which of them are called is not looked for
    called: set[str] = set()

    def visit(node: ast.AST, certain: bool) -> Iterator[tuple[ast.AST, bool]]:
        yield node, certain
        match node:
            case ast.Name(id=name) if certain and name in functions and name not in called:
                called.add(name)
                for statement in functions[name].body:
                    yield from visit(statement, True)
            case ast.If(test=test) if _is_for_type_checkers(test):
                return
            case ast.If(test=test):
                certain = certain and _is_main(test) and source.path == script
            case ast.Try() | ast.IfExp() | ast.BoolOp():
                certain = False
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                certain = False  # it need not be called
        for child in ast.iter_child_nodes(node):
            yield from visit(child, certain)

    yield from visit(tree, True)


def _is_in(name: str, module: str) -> bool:
    return name == module or name.startswith(module + ".")


def _is_main(test: ast.expr) -> bool:
    return "__name__" in ast.unparse(test)


def _is_for_type_checkers(test: ast.expr) -> bool:
    return ast.unparse(test).endswith("TYPE_CHECKING")


def _sources(script: Path, folder: Path) -> Iterator[_Source]:
    """The script, and what it imports of `folder`, as far as it is in files there."""
    pending, seen = [script], {script}
    modules: set[tuple[Path, tuple[str, ...]]] = set()
    while pending:
        source = _read(pending.pop(0))
        if source is None:
            continue
        yield source
        found = set(_modules_of(source, folder)) - modules
        modules |= found
        for parent, parts in sorted(found):
            for path in _files_of(parts, parent):
                if path not in seen and len(seen) < MAX_FILES:
                    seen.add(path)
                    pending.append(path)


def _read(path: Path) -> _Source | None:
    try:
        if path.stat().st_size > MAX_BYTES:
            return None
        return _Source(path, path.read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return None  # sending the script reports it


def _modules_of(source: _Source, folder: Path) -> Iterator[tuple[Path, tuple[str, ...]]]:
    """(the folder that has it, its parts) of each module that the source may import."""
    for match in _IMPORT.finditer(source.text.replace("\\\n", " ")):
        module, names, modules = match.groups()
        if module is None:
            for name in _names_in(modules):
                yield folder, tuple(name.split("."))
            continue
        level = len(module) - len(module.lstrip("."))
        parents = source.path.parents
        parent = parents[min(level, len(parents)) - 1] if level else folder
        parts = tuple(part for part in module.split(".") if part)
        yield parent, parts
        for name in _names_in(names):
            yield parent, (*parts, name)


def _names_in(text: str) -> list[str]:
    """Of `a, b.c as d`, also with parentheses and comments."""
    names = (line.partition("#")[0] for line in text.strip("()").splitlines())
    return [
        word
        for name in " ".join(names).split(",")
        if (word := name.strip().partition(" ")[0]).replace(".", "").isidentifier()
    ]


def _files_of(parts: Sequence[str], folder: Path) -> Iterator[Path]:
    """The files that are run when `folder` has the module: those of its packages, and its own."""
    for count in range(1, len(parts) + 1):
        path = folder.joinpath(*parts[:count])
        for file in (path / "__init__.py", path.with_suffix(".py")):
            if file.is_file():
                yield file
