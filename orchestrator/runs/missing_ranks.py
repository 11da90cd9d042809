"""Explain why a script lacks the variables of a rank although `up` started it. Changes nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ..answers.recorded import RECORD, Record
from ..diagnosis.causes import load_knowledge
from ..diagnosis.engine import Diagnosis
from ..hosts.fleet import Fleet
from ..hosts.session import Session
from ..inventory.launcher_rows import NAMES
from ..inventory.model import Host
from ..output.finding import Finding

CODE = "missing-rdzv-env"
MEANING = (
    "run.launcher {name} starts a command once per host, and sets no variables of ranks (RANK, LOCAL_RANK): "
    "torchrun, which sets them, did not start the script."
)
FIX = (
    "Write `torchrun FILE.py` in place of `python FILE.py` in the command: ddp-orch sets its flags about hosts. "
    "Or start the Python file itself: ddp-orch up --set run.launcher={default} -- FILE.py"
)


def explain(diagnosis: Diagnosis, run_id: str, hosts: Sequence[Host], fleet: Fleet) -> Diagnosis:
    """With the launcher of the run in the findings about such variables, if it starts a command once per host."""
    findings = (*diagnosis.findings, *(finding for _, finding in diagnosis.earlier))
    usual = load_knowledge().causes[CODE].fix
    if not any(finding.code == CODE and finding.fix == usual for finding in findings):
        return diagnosis
    name = launcher_once_per_host(run_id, hosts, fleet)
    if name is None:
        return diagnosis

    def add(finding: Finding) -> Finding:
        if finding.code != CODE or finding.fix != usual:
            return finding
        return replace(finding, message=MEANING.format(name=name), fix=FIX.format(default=NAMES[0]))

    earlier = tuple((attempt, add(finding)) for attempt, finding in diagnosis.earlier)
    return replace(diagnosis, findings=tuple(map(add, diagnosis.findings)), earlier=earlier)


def launcher_once_per_host(run_id: str, hosts: Sequence[Host], fleet: Fleet) -> str | None:
    """The launcher of the run, as these hosts know it, if it starts a command once per host."""

    def ask(_: Host, session: Session) -> Record:
        return session.request(RECORD, {"run_id": run_id})

    answers = fleet.each(hosts, ask, "asking for the launcher").done
    launchers: list[Any] = [answer.spec.launcher for answer in answers.values() if answer.spec is not None]
    launcher = next((each for each in launchers if isinstance(each, dict)), {})
    return str(launcher.get("name")) if launcher.get("scope") == "host" else None
