"""Collect findings: equal findings of several hosts become one, and values are compared with the majority. Pure."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from ..output.console import fold
from ..output.finding import SEVERITIES, Finding, Severity
from ..output.terminal import one_line

_PLAIN = re.compile(r"[A-Za-z0-9._/:@+-]+")


@dataclass
class Findings:
    """The findings so far. Equal ones of several hosts become one."""

    _places: dict[tuple[Severity, str, str], dict[str, tuple[str, str]]] = field(default_factory=dict)
    """{(severity, code, message): {host: (fix, evidence)}}"""

    def add(
        self, severity: Severity, code: str, hosts: str | Iterable[str], message: str, fix: str, evidence: str
    ) -> None:
        """`evidence`: a command or file and its output, `df /tmp: 3 MiB`; a command alone is shown as `try: COMMAND`.

        Users copy `fix` into a shell, so text from hosts must pass through `shell_word` there.
        """
        message, evidence = one_line(message), one_line(evidence)
        places = self._places.setdefault((severity, code, message), {})
        for host in [hosts] if isinstance(hosts, str) else hosts:
            places.setdefault(host, (fix, evidence))

    def differ(
        self, severity: Severity, code: str, what: str, values: Mapping[str, str], head: str, fix: str, evidence: str
    ) -> None:
        """Add a finding for each value that differs from that of most hosts, or of the head if two are as frequent."""
        for outliers, message in outliers_of(what, values, head):
            self.add(severity, code, outliers, message, fix, evidence)

    def all(self) -> tuple[Finding, ...]:
        """All findings, errors first."""
        findings = [
            Finding(severity, code, tuple(places), message, _fixes(places), _evidence(places))
            for (severity, code, message), places in self._places.items()
        ]
        return tuple(sorted(findings, key=lambda finding: SEVERITIES.index(finding.severity)))


def shell_word(text: str) -> str:
    """Quote text from a host as one word of a shell command."""
    return text if _PLAIN.fullmatch(text) else shlex.quote(one_line(text))


def outliers_of(what: str, values: Mapping[str, str], head: str) -> list[tuple[list[str], str]]:
    """[(hosts, "7 hosts have torch 2.4.0, gpu-03 has 2.5.0")], one item for each value but the most frequent."""
    holders = _holders(values)
    if len(holders) < 2:
        return []
    usual = usual_of(values, head)
    count = len(holders[usual])
    most = f"{count} hosts have" if count > 1 else f"{fold(holders[usual])} has"
    return [
        (hosts, f"{most} {what} {usual}, {fold(hosts)} {'has' if len(hosts) == 1 else 'have'} {value}")
        for value, hosts in holders.items()
        if value != usual
    ]


def usual_of(values: Mapping[str, str], head: str) -> str:
    """The value of most hosts; of the head, if two are as frequent. There must be one."""
    holders = _holders(values)
    return max(holders, key=lambda value: (len(holders[value]), head in holders[value]))


def _holders(values: Mapping[str, str]) -> dict[str, list[str]]:
    holders: dict[str, list[str]] = {}
    for host, value in values.items():
        holders.setdefault(value, []).append(host)
    return holders


def _fixes(places: Mapping[str, tuple[str, str]]) -> str:
    """The different fixes, one per line."""
    return "\n".join(dict.fromkeys(fix for fix, _ in places.values()))


def _evidence(places: Mapping[str, tuple[str, str]]) -> tuple[str, ...]:
    """The different evidence, each with the first host that has it."""
    first: dict[str, str] = {}
    for host, (_, evidence) in places.items():
        if evidence:
            first.setdefault(evidence, host)
    return tuple(_render(evidence, host) for evidence, host in first.items())


def _render(evidence: str, host: str) -> str:
    if evidence.startswith("try: "):
        return evidence
    return f"{host}: {evidence}" if ": " in evidence else f"try: ssh {host} {shlex.quote(evidence)}"


def render_line(finding: Finding) -> str:
    """A finding as one line, as `up` prints it."""
    fix = "; " + finding.fix.replace("\n", "; ") if finding.fix else ""
    return f"{fold(finding.hosts)}: {finding.message} [{finding.code}]{fix}"
