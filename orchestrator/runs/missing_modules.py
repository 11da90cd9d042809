"""Say how to install a module that the ranks of a run could not import. Looks at the packages here, imports none."""

from __future__ import annotations

import difflib
import importlib.util
import pkgutil
import re
from collections.abc import Mapping
from dataclasses import replace

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


def explain(diagnosis: Diagnosis, hosts: Mapping[str, Host]) -> Diagnosis:
    """The diagnosis of a run on `hosts`, with the command that installs what is missing."""
    findings = tuple(_explain(finding, hosts) for finding in diagnosis.findings)
    earlier = tuple((attempt, _explain(finding, hosts)) for attempt, finding in diagnosis.earlier)
    return replace(diagnosis, findings=findings, earlier=earlier)


def _explain(finding: Finding, hosts: Mapping[str, Host]) -> Finding:
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
    there = f"{where[:1].upper()}{where[1:]} {fold(finding.hosts)}, {module} is there, but has no {name}"
    close = _closest(name)
    meant = f" (did you mean {close}?)" if close else ""
    return replace(finding, fix=f"{there}{meant}. Correct the name, or install a version that has it. {own}")


def _closest(name: str) -> str | None:
    """The module here whose name is close to that of a module that is nowhere; `name` has a dot."""
    top, *others = name.split(".")
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError):
        return None
    if spec is None or not spec.submodule_search_locations or len(others) > 1:
        return None
    names = [module.name for module in pkgutil.iter_modules(spec.submodule_search_locations)]
    return next((f"{top}.{close}" for close in difflib.get_close_matches(others[0], names, 1)), None)
