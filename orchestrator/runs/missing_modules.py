"""Say how to install a module that the ranks of a run could not import. Pure."""

from __future__ import annotations

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
_MISSING = re.compile(r"^ModuleNotFoundError: No module named '(?P<module>\w+)(?:\.[\w.]+)?'$")


def explain(diagnosis: Diagnosis, hosts: Mapping[str, Host]) -> Diagnosis:
    """The diagnosis of a run on `hosts`, with the command that installs what is missing."""
    findings = tuple(_explain(finding, hosts) for finding in diagnosis.findings)
    earlier = tuple((attempt, _explain(finding, hosts)) for attempt, finding in diagnosis.earlier)
    return replace(diagnosis, findings=findings, earlier=earlier)


def _explain(finding: Finding, hosts: Mapping[str, Host]) -> Finding:
    """An advice that says more than that of the code alone stays."""
    matches = (_MISSING.match(text) for text in finding.evidence)
    module = next((match["module"] for match in matches if match), None)
    is_general = finding.code in _CODES and finding.fix == load_knowledge().causes[finding.code].fix
    host = hosts.get(next(iter(finding.hosts), ""))
    if module is None or host is None or not is_general:
        return finding
    python = "python3" if has_image(host.container) else shell_word(host.python)
    where = "in the image of" if has_image(host.container) else "on"
    install = f"`{python} -m pip install {shell_word(PACKAGES.get(module, module))}`"
    own = f"If {module} is code of yours: `ddp-orch up -e PYTHONPATH=FOLDER`."
    return replace(finding, fix=f"Install it {where} {fold(finding.hosts)}: {install}. {own}")
