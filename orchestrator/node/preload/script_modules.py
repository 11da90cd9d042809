"""Find the installed modules that a script imports, and the variables that it sets. Runs in the user's python.

The script's own files are read, not executed, and followed to the modules that they import.
"""

from __future__ import annotations

import os
import sys

from .later_runs import first_path

TYPE_CHECKING = False  # the type checker knows this name; importing it would load `typing`
if TYPE_CHECKING:
    import ast
    from typing import Any, Dict, Iterator, List, Set, Tuple

SCRIPT = 2  # index of the script, -m or -c in a command, as in ranks/launch.py
MOST_FILES = 500  # of the script's own


class Import:
    """`import MODULE`, or `from MODULE import NAMES`."""

    def __init__(self, module: str, names: Tuple[str, ...]) -> None:
        self.module = module
        self.names = names

    def is_done(self) -> bool:
        """Whether this process has done it. `getattr` could import: some packages import their modules when asked."""
        module = sys.modules.get(self.module)
        return module is not None and all(name in vars(module) for name in self.names)

    def run(self) -> None:
        """Raises what the modules raise."""
        from importlib import import_module

        module = import_module(self.module)
        for name in self.names:
            if not hasattr(module, name):
                import_module(self.module + "." + name)


def find(argv: List[str], cwd: str) -> Script:
    """Read what a command will execute. `argv`: python, a flag, then a script, `-m MODULE` or `-c CODE`."""
    kind = argv[SCRIPT]
    folder = os.path.join(cwd, (first_path(kind, cwd) or [""])[0])
    if kind == "-c":
        script = Script(folder, [])
        script.read(argv[SCRIPT + 1], cwd)
    elif kind == "-m":
        name = argv[SCRIPT + 1]
        script = Script(folder, files_of(name + ".__main__", folder))
    else:
        script = Script(folder, [os.path.join(cwd, kind)])
    script.read_files()
    return script


def files_of(name: str, folder: str) -> List[str]:
    """The files that an import of a dotted name executes, if the module is in the folder."""
    files = []
    path = folder
    for part in name.split("."):
        path = os.path.join(path, part)
        own = [file for file in (os.path.join(path, "__init__.py"), path + ".py") if os.path.isfile(file)]
        files += own[:1]
        if not os.path.isdir(path):
            break
    return files


class Script:
    """Follows the imports of a script's own files. `folder`: the one in which python looks for them first.

    `variables`: of the environment, that the files may set or delete, also those that are imported in an `if`, say.
    """

    def __init__(self, folder: str, files: List[str]) -> None:
        self.variables: Set[str] = set()
        self._folder = folder
        self._files = files  # that are executed in any case
        self._more_files: List[str] = []  # that may be executed
        self._seen: Dict[str, bool] = {}
        self._found: Dict[Tuple[str, Tuple[str, ...]], Import] = {}
        self._changes_path = False

    @property
    def imports(self) -> List[Import]:
        """What is imported in any case: not in a `try`, an `if` or a function. In the order of the script.

        Nothing is found if the script changes sys.path.
        """
        return [] if self._changes_path else list(self._found.values())

    def read_files(self) -> None:
        while (self._files or self._more_files) and len(self._seen) < MOST_FILES:
            is_certain = bool(self._files)
            path = os.path.realpath((self._files or self._more_files).pop(0))
            if path in self._seen:
                continue
            self._seen[path] = True
            try:
                with open(path, "rb") as file:
                    self.read(file.read(), os.path.dirname(path), is_certain)
            except OSError:
                pass  # the rank will tell

    def read(self, source: bytes | str, package: str, is_certain: bool = True) -> None:
        """`package`: the folder to which relative imports refer. `is_certain`: the source is executed in any case."""
        import ast

        text = source.decode("latin-1") if isinstance(source, bytes) else source
        self._changes_path |= "sys.path" in text
        try:
            tree = parsed(source)
        except (SyntaxError, ValueError):
            return  # the rank will tell, as it does of invalid escapes
        if "env" in text:
            self.variables.update(variables_of(tree))
        if is_certain:
            own: List[str] = []
            for node in tree.body:
                for module, names in imports_of(node):
                    own += self._own_files(module, names)
                    if not files_of(module, self._folder):
                        self._found.setdefault((module, names), Import(module, names))
                if isinstance(node, ast.ImportFrom) and node.level:
                    own += relative(node, package)
            self._files[:0] = own
        for part in ast.walk(tree):
            for module, names in imports_of(part):
                self._more_files += self._own_files(module, names)
            if isinstance(part, ast.ImportFrom) and part.level:
                self._more_files += relative(part, package)

    def _own_files(self, module: str, names: Tuple[str, ...]) -> List[str]:
        """The script's own files that an import executes."""
        own = files_of(module, self._folder)
        for name in names:
            own += files_of(module + "." + name, self._folder) if own else []
        return own


def imports_of(node: ast.AST) -> Iterator[Tuple[str, Tuple[str, ...]]]:
    """The modules that a statement imports, and the names that it takes of them; not those of relative imports."""
    import ast

    if isinstance(node, ast.Import):
        yield from ((alias.name, ()) for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and not node.level and node.module not in (None, "__future__"):
        yield str(node.module), tuple(alias.name for alias in node.names if alias.name != "*")
    elif isinstance(node, ast.Call) and "import_module" in (
        getattr(node.func, "attr", ""),
        getattr(node.func, "id", ""),
    ):
        yield from ((name, ()) for name in texts(node.args[:1]) if not name.startswith("."))


def parsed(source: bytes | str) -> ast.Module:
    """Parse without warnings. The rank shows them when it compiles the script.

    `warnings.catch_warnings` would count as a change of the filters. A module that has warned while it was preloaded
    would then warn again in every rank.
    """
    import ast
    import warnings

    ignore = ("ignore", None, Warning, None, 0)
    warnings.filters.insert(0, ignore)  # type: ignore[attr-defined]
    try:
        return ast.parse(source)
    finally:
        warnings.filters.remove(ignore)  # type: ignore[attr-defined]


def relative(node: ast.ImportFrom, package: str) -> Iterator[str]:
    """The files that a relative import executes."""
    for _ in range(node.level - 1):
        package = os.path.dirname(package)
    module = node.module + "." if node.module else ""
    for alias in node.names:
        yield from files_of(module + alias.name, package)


def variables_of(tree: ast.AST) -> Iterator[str]:
    """The names in `os.environ[NAME] = ...`, `os.environ.update(NAME=...)`, `os.putenv(NAME, ...)` and the like."""
    import ast

    for node in ast.walk(tree):
        if isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load) and is_environment(node.value):
            yield from texts([node.slice])
        elif isinstance(node, ast.AugAssign) and is_environment(node.target):
            yield from texts([node.value])
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if is_environment(node.func.value) and node.func.attr in ("pop", "setdefault", "update"):
                yield from texts(node.args)
                yield from (keyword.arg for keyword in node.keywords if keyword.arg)
            elif node.func.attr in ("putenv", "unsetenv"):
                yield from texts(node.args[:1])


def is_environment(node: ast.AST) -> bool:
    """Whether it reads `os.environ` or `environ`."""
    return "environ" in (getattr(node, "attr", None), getattr(node, "id", None))


def texts(nodes: List[Any]) -> Iterator[str]:
    """The texts in an expression. Some are values, not names: they do no harm."""
    import ast

    for node in nodes:
        for part in ast.walk(node):
            if isinstance(part, ast.Constant) and isinstance(part.value, str):
                yield part.value
