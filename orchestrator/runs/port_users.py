"""Say which other runs of the host may use the port that a run could not open. Changes nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..answers.runs import LIST, RunList
from ..diagnosis.rules.own_calls import OWN_PORT
from ..hosts.fleet import Fleet
from ..hosts.session import Session
from ..inventory.model import Host
from ..output.console import fold
from ..output.finding import Finding
from ..output.terminal import one_line

TAKE_MASTER_PORT = "If the script or its command sets that port, take $MASTER_PORT instead, which ddp-orch chooses."
OTHER_PORT = "Use another port in the script."
OTHER_RUN = "Another run on {hosts} may use it: {runs}."
WAIT = "Or start with `ddp-orch up --queue`, which waits until the other run has finished."


def explain(findings: tuple[Finding, ...], run_id: str, hosts: Sequence[Host], fleet: Fleet) -> tuple[Finding, ...]:
    """With the runs that use the same hosts in the fix of the first cause, if that is a port in use."""
    if not findings or findings[0].code != "port-in-use":
        return findings
    first, *rest = findings
    own_port = first.message.startswith(OWN_PORT)

    def ask(_: Host, session: Session) -> RunList:
        return session.request(LIST, {"members": False, "others": True, "sizes": False})

    places = [host for host in hosts if host.name in first.hosts] or hosts
    answers = fleet.each(places, ask, "looking for other runs").done
    others = {host: names for host, answer in answers.items() if (names := _names_of_others(answer, run_id))}
    if not others:
        return findings if own_port else (replace(first, fix=f"{TAKE_MASTER_PORT} {first.fix}"), *rest)
    runs = ", ".join(dict.fromkeys(name for names in others.values() for name in names))
    why = OTHER_RUN.format(runs=runs, hosts=fold(others))
    fix = f"{why} {OTHER_PORT if own_port else TAKE_MASTER_PORT} {WAIT}"
    return (replace(first, fix=fix), *rest)


def _names_of_others(answer: RunList, run_id: str) -> list[str]:
    own = [one_line(part.name) for part in answer.runs if part.unfinished and part.run_id != run_id]
    return own + [f"{other.run_id} of user {one_line(other.user)}" for other in answer.others if other.run_id != run_id]
