"""Facts of all hosts -> findings: what would break the run before it starts. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from .plan import Plan

Severity = Literal["error", "warning", "note"]
Find = Callable[[Severity, str, str, str, str], None]
"""Takes severity, code, host, message and fix."""


@dataclass(frozen=True)
class Finding:
    """A judged fact. `code` is stable (docs/findings.md); equal messages of several hosts are one finding."""

    severity: Severity
    code: str
    hosts: tuple[str, ...]
    message: str
    fix: str


def judge(
    plan: Plan, facts: Mapping[str, Mapping[str, Any]], hellos: Mapping[str, Mapping[str, Any]]
) -> tuple[Finding, ...]:
    """Errors first. `facts`: what each host's probe said; `hellos`: what its node program said of itself."""
    findings: dict[tuple[Severity, str, str, str], list[str]] = {}

    def find(severity: Severity, code: str, host: str, message: str, fix: str) -> None:
        findings.setdefault((severity, code, message, fix), []).append(host)

    for node in plan.nodes:
        name = node.host.name
        fact = facts[name]
        python = fact["python"]
        if "error" in python:
            find("error", python["code"], name, f"python: {python['error']}", "set `python` or `setup` for the host")
        elif python["torch"] is None:
            where = f"{python['executable']} has no torch"
            find("error", "missing-module-on-host", name, where, "install torch there, or set `python` or `setup`")
        if node.host.workdir and not fact["workdir"]:
            message = f"workdir {node.host.workdir} is not a folder there"
            find(
                "error", "remote-workdir-missing", name, message, "mount it, or leave workdir out to have the code sent"
            )
        if isinstance(node.gpu_ids, tuple) and node.gpu_ids:
            missing = sorted(set(node.gpu_ids) - {gpu["index"] for gpu in fact["gpus"]})
            if missing:
                message = f"gpus {', '.join(map(str, missing))} wanted, and the host has {len(fact['gpus'])}"
                find("error", "no-gpu-visible", name, message, "correct `gpus`, or see nvidia-smi there")
    _same_machine(plan, hellos, find)
    _versions(facts, find)
    ranked = sorted(findings.items(), key=lambda item: ("error", "warning", "note").index(item[0][0]))
    return tuple(
        Finding(severity, code, tuple(hosts), message, fix) for (severity, code, message, fix), hosts in ranked
    )


def _same_machine(plan: Plan, hellos: Mapping[str, Mapping[str, Any]], find: Find) -> None:
    """Two names for one machine would take its GPUs and ports twice."""
    seen: dict[tuple[Any, ...], str] = {}
    for node in plan.nodes:
        hello = hellos[node.host.name]
        identity = (hello["boot_id"], hello["machine_id"], *hello["state_inode"])
        if identity in seen:
            message = f"is the same machine as {seen[identity]}"
            find(
                "error",
                "duplicate-host",
                node.host.name,
                message,
                "leave one of the two out; more ranks on a host: nproc_per_node",
            )
        seen.setdefault(identity, node.host.name)


def _versions(facts: Mapping[str, Mapping[str, Any]], find: Find) -> None:
    """Another torch on one host shows as anything from a hang to a wrong collective, minutes later."""
    versions: dict[str, list[str]] = {}
    for name, fact in facts.items():
        if fact["python"].get("torch"):
            versions.setdefault(fact["python"]["torch"], []).append(name)
    if len(versions) > 1:
        common = max(versions, key=lambda version: len(versions[version]))
        for version, hosts in versions.items():
            for host in hosts if version != common else ():
                message = f"has torch {version}; most have {common}"
                find("warning", "torch-version-mismatch", host, message, "install the same torch on all hosts")
