"""Say how to install a module that the ranks of a run could not import. Looks at the packages here, imports none."""

from __future__ import annotations

import difflib
import importlib.util
import pkgutil
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from ..checks.findings import shell_word
from ..checks.python import PACKAGES
from ..diagnosis.causes import load_knowledge
from ..diagnosis.engine import Diagnosis
from ..inventory.container import has_image
from ..inventory.model import Host
from ..output.console import fold
from ..output.finding import Finding

_CODES = ("script-import-error", "missing-module-on-host")
_MISSING = re.compile(r"^ModuleNotFoundError: No module named '(?P<name>(?P<module>\w+)(?:\.[\w.]+)?)'$")


def explain(diagnosis: Diagnosis, hosts: Mapping[str, Host], code: str = "") -> Diagnosis:
    """The diagnosis of a run on `hosts`, with the command that installs what is missing.

    `code`: the folder here whose code the run got; "": none, or it is not known.
    """
    findings = tuple(_explain(finding, hosts, code) for finding in diagnosis.findings)
    earlier = tuple((attempt, _explain(finding, hosts, code)) for attempt, finding in diagnosis.earlier)
    return replace(diagnosis, findings=findings, earlier=earlier)


def _explain(finding: Finding, hosts: Mapping[str, Host], code: str) -> Finding:
    """An advice that says more than that of the code alone stays."""
    matches = (_MISSING.match(text) for text in finding.evidence)
    match = next((match for match in matches if match), None)
    is_general = finding.code in _CODES and finding.fix == load_knowledge().causes[finding.code].fix
    host = hosts.get(next(iter(finding.hosts), ""))
    if match is None or host is None or not is_general:
        return finding
    module, name = match["module"], match["name"]
    python = "python3" if has_image(host.container) else shell_word(host.python)
    where = "in the image of" if has_image(host.container) else "on"
    install = f"`{python} -m pip install {shell_word(PACKAGES.get(module, module))}`"
    own = f"If {module} is code of yours: `ddp-orch up -e PYTHONPATH=FOLDER`."
    if name == module:
        return replace(finding, fix=f"Install it {where} {fold(finding.hosts)}: {install}. {own}")
    # Python names the first part that it does not find
    place = Path(code, module) if code else None
    if place is not None and place.is_dir():
        if _has(place, name.split(".")[1:]):
            return replace(finding, fix=f"The code that was sent has no {name}. It is there now: start the run again.")
        return replace(
            finding, fix=f"Your folder {module} has no {name}{_guess(name, [str(place)])}. Correct the name."
        )
    there = f"{where[:1].upper()}{where[1:]} {fold(finding.hosts)}, {module} is there, but has no {name}"
    meant = _guess(name, _places(module))
    return replace(finding, fix=f"{there}{meant}. Correct the name, or install a version that has it. {own}")


def _has(folder: Path, names: Sequence[str]) -> bool:
    """Whether a package folder has this submodule, or a submodule of a submodule, and so on."""
    *above, last = names
    place = folder.joinpath(*above)
    return any(module.name == last for module in pkgutil.iter_modules([str(place)])) or place.joinpath(last).is_dir()


def _places(package: str) -> list[str]:
    """The folders of a package that is installed here."""
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        return []
    return list(spec.submodule_search_locations or ()) if spec is not None else []


def _guess(name: str, places: list[str]) -> str:
    """The module in these folders that may be meant; "": none, or the name has more parts than two."""
    top, *others = name.split(".")
    names = [module.name for module in pkgutil.iter_modules(places)]
    close = difflib.get_close_matches(others[0], names, 1) if len(others) == 1 else []
    return f" (did you mean {top}.{close[0]}?)" if close else ""
