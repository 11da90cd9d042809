"""A diagnosis of a missing file, and what every host answers about that file -> which hosts lack it. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from ..output.console import fold
from ..output.finding import Finding
from . import causes, shell_errors

CODES = ("dataset-missing", "file-missing-on-host")
QUOTED = re.compile(r"['\"](/?[\w.-]+(?:/[\w. -]+)*/?)['\"]")
BARE = re.compile(r"(?<![\w./:~])(/[\w.-]+(?:/[\w.-]+)+)")
OF_TRAINER = re.compile(r"\bvalid checkpoint at (\S+)$")  # of transformers
IN_HOME = re.compile(r"['\"](~[\w.-]*/[^'\"]+)['\"]")
OUTPUTS = re.compile(r"/[0-9a-f]{12}/out/[^/]+/.")  # in an output folder of a run, which each host has for itself
SET_RESUME = (
    "Set run.resume, so that every host gets it before the ranks start: head if rank 0 saves, union if every rank "
    "saves a part (docs/resume.md). Or set run.output to a folder on a shared disk."
)
SAVE_AND_RESUME = (
    "Save snapshots to $DDP_ORCH_OUTPUT_DIR, where this run saved nothing, and set run.resume, so that every host gets "
    "them: head if rank 0 saves, union if every rank saves a part (docs/resume.md)."
)
RESUME_IS_SET = (
    "run.resume is {resume}, but it copies only $DDP_ORCH_OUTPUT_DIR. Save snapshots there, and load them from there "
    "(docs/resume.md)."
)
NOT_THERE = "No such file or directory"


def advises_resume(findings: Sequence[Finding]) -> bool:
    """Whether the fix of the first cause is to copy the snapshot to the other hosts."""
    return bool(findings) and findings[0].fix in (SET_RESUME, SAVE_AND_RESUME)


def advise_resume(resume: str, *, saves_elsewhere: bool) -> str:
    """The fix where hosts lack the snapshot of others. `resume`: run.resume; `saves_elsewhere`: not to the outputs."""
    if resume != "none":
        return RESUME_IS_SET.format(resume=resume)
    return SAVE_AND_RESUME if saves_elsewhere else SET_RESUME


def path_of(finding: Finding) -> str | None:
    """The file that the error names; None where the diagnosis is another, or names none."""
    if finding.code not in CODES:
        return None
    for text in finding.evidence:
        if text.startswith('File "'):
            continue  # a frame of the traceback
        if path := shell_errors.missing_path(text):
            return path
        for match in (QUOTED.search(text), BARE.search(text), OF_TRAINER.search(text)):
            if match and "://" not in text[: match.start() + 8]:
                return match[1]
    return None


def explain_tilde(finding: Finding) -> Finding:
    """Say so if the file could not be found because of a `~` that nobody has expanded."""
    paths = [match[1] for text in finding.evidence for match in [IN_HOME.search(text)] if match]
    if finding.code not in CODES or not paths:
        return finding
    message = f"{finding.message} (`~` in {paths[0]} was not expanded: only a shell does that, and only without quotes)"
    fix = "Write the whole path, such as /home/ann/data, or have the script call os.path.expanduser."
    return replace(finding, message=message, fix=fix)


def check_hosts(
    finding: Finding, path: str, answers: Mapping[str, str | None], hosts: Sequence[str], resume: str
) -> Finding:
    """`answers`: of each host that could be asked, why it cannot read the path; None: it can. `resume`: run.resume."""
    lacking = [host for host in hosts if answers.get(host) == NOT_THERE]
    having = [host for host in hosts if host in answers and answers[host] is None]
    if not lacking or len(lacking) + len(having) < len(hosts):
        return finding  # it exists now, or not every host has answered
    code = "file-missing-on-host" if having else "dataset-missing"
    cause = causes.load_knowledge().causes[code]
    why = f"{path} exists on {fold(having)}, not on {fold(lacking)}" if having else f"{path} exists on no host"
    fix = SET_RESUME if having and resume == "none" and OUTPUTS.search(path) else cause.fix
    first = [host for host in finding.hosts if host in lacking]
    return replace(
        finding,
        code=code,
        hosts=tuple(dict.fromkeys([*first, *lacking])) if having else finding.hosts,
        confidence="high",
        message=f"{cause.meaning} ({why})",
        fix=fix,
    )
