"""Imports of the user's own files: those that hide a module, and those that Python refuses. Pure."""

from __future__ import annotations

import re
from dataclasses import replace

from ..scene import Scene
from ..suspects import Suspect, Suspects, map_code
from ..tracebacks import INSTALLED, LoggedException

LEVEL = 79
FRAME = re.compile(r'File "(?P<path>[^"]+)", line \d+, in (?P<name>.+)')
IMPORTS = re.compile(r"(?:from|import) (?P<module>\w+)")
FROM_FILE = re.compile(
    r"cannot import name '[^']*' from (?:partially initialized module )?'(?P<module>[\w.]+)'.* \((?P<path>/[^)]+)\)$"
    r"|consider renaming '(?P<renamed>/[^']+)'"
)
NO_PACKAGE = re.compile(r"No module named '(?P<module>\w+)\.[\w.]+'; '(?P=module)' is not a package")
TWICE = re.compile(r'generic_type: cannot initialize type "\w+": an object with that name is already defined')
"""What `import torch` fails with if a module that it imports imports torch, and torch ignores that error."""
OWN_IMPORTS = (
    (
        re.compile("attempted relative import"),
        "Start it as a module of its package (`ddp-orch up -- -m PACKAGE.MODULE`), or import by the full name.",
    ),
    (
        re.compile("partially initialized module"),
        "Two of your modules import each other: move one import into the function that needs it, or what both need "
        "into a third module.",
    ),
    (re.compile(r"^\W*(?:Syntax|Indentation|Tab)Error"), "Correct the line that is shown; compare `python --version`."),
)
RENAME = "Rename {}, and the imports of it: Python looks for modules in the folder of the script first."


def find_hidden_module(suspects: Suspects, scene: Scene) -> Suspects:
    """A package imports a file of the user in place of a module of that name, such as `cuda.py`.

    It changes suspects of an exception only. First, as it says more than any signature that matches the exception.
    """
    return tuple(_explain(suspect) for suspect in suspects)


def explain_import(suspects: Suspects, scene: Scene) -> Suspects:
    """A mistake in the user's own files: there is nothing to install. It changes only words."""

    def explain(suspect: Suspect) -> Suspect:
        own = suspect.exception is not None and not all(map(INSTALLED.search, suspect.exception.places[-1:]))
        fix = next((fix for pattern, fix in OWN_IMPORTS if own and pattern.search(suspect.line.text)), "")
        return suspect if suspect.meaning or not fix else replace(suspect, fix=fix)

    return map_code(suspects, "script-import-error", explain)


def _explain(suspect: Suspect) -> Suspect:
    exception = suspect.exception
    if exception is None:
        return suspect
    for source in (*exception.chain, exception):
        file = hiding_file(source)
        if file:
            meaning = f"{file}, a file of yours, hides the module of that name from the packages that import it."
            return _hidden(suspect, source, meaning, RENAME.format(file))
        if TWICE.search(source.text) and "torch/__init__.py" in (source.places or ("",))[-1]:
            meaning = "A file of yours hides a module that torch imports, and imports torch itself."
            fix = RENAME.format("the file that has the name of a package, such as cuda.py")
            return replace(_hidden(suspect, source, meaning, fix), confidence="medium")
    return suspect


def _hidden(suspect: Suspect, source: LoggedException, meaning: str, fix: str) -> Suspect:
    line = replace(suspect.line, text=source.lines[0])
    code, level = "script-import-error", suspect.level if suspect.hint else LEVEL
    return replace(suspect, code=code, level=level, line=line, confidence="high", why="", meaning=meaning, fix=fix)


def hiding_file(exception: LoggedException) -> str | None:
    """The name of the file that a package has imported in place of a module."""
    if not exception.places:
        return None
    raised_by_package = INSTALLED.search(exception.places[-1]) is not None
    if raised_by_package and (match := FROM_FILE.search(exception.text)):
        path = match["path"] or match["renamed"]
        if not INSTALLED.search(path):
            return _name(path)
    if raised_by_package and (match := NO_PACKAGE.search(exception.text)):
        return f"{match['module']}.py"
    return _imported_by_package(exception)


def _imported_by_package(exception: LoggedException) -> str | None:
    """A file whose frame follows a frame of a package that imports its name."""
    in_package, module = False, ""
    for frame in exception.frames:
        match = FRAME.match(frame)
        if match is None:
            imports = IMPORTS.match(frame)
            module = imports["module"] if imports and in_package else module
            continue
        file = _name(match["path"])
        in_package = INSTALLED.search(match["path"]) is not None
        if not in_package and match["name"] == "<module>" and file in (f"{module}.py", f"{module}/"):
            return file
        module = ""
    return None


def _name(path: str) -> str:
    """`cuda.py`, or `cuda/` for the first file of a package."""
    folder, _, file = path.rpartition("/")
    return folder.rpartition("/")[2] + "/" if file == "__init__.py" else file
