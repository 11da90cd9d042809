"""Check each host's python: does it exist, has it torch, are versions equal, does the script compile? Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping

from ..answers.facts import Facts, NoPython, Python
from ..output.finding import Severity
from ..plan.plan import Node, Plan
from .findings import Findings, shell_word

TORCH_LEAST = (2, 4)
ASK = "python -c 'import sys, importlib.metadata as m; print(sys.version, m.version(\"torch\"))'"


def check_pythons(plan: Plan, nodes: list[Node], facts: Mapping[str, Facts], findings: Findings) -> None:
    pythons: dict[str, Python] = {}
    for node in nodes:
        name, python = node.host.name, facts[node.host.name].python
        if isinstance(python, NoPython):
            line = "fix that line of `setup`, or " if python.error.startswith("setup line") else ""
            fix = f"{line}set `python` or `setup` for the host"
            findings.add("error", python.code, name, f"python: {python.error}", fix, f"{node.host.python} --version")
            continue
        pythons[name] = python
        _torch(node, python, findings)
        nccl = sorted(package for package in python.packages if package.startswith("nvidia_nccl"))
        if len(nccl) > 1:
            spelled = " and ".join(f"{one.replace('_', '-')} {python.packages[one]}" for one in nccl)
            # which of them torch asks for says its version
            either = " or ".join(shell_word(one.replace("_", "-")) for one in nccl)
            fix = f"{shell_word(python.executable)} -m pip uninstall {either}"
            findings.add(
                "warning", "nccl-library-conflict", name, f"has two NCCL libraries: {spelled}", fix, "pip list"
            )
    head = plan.nodes[0].host.name
    _versions(pythons, head, findings)
    homeless = {name for name, fact in facts.items() if fact.workdir is False}  # the folder has a finding already
    _scripts(plan, pythons, head, homeless, findings)
    machines = {name: str(facts[name].machine) for name in pythons}
    fix = "use an environment for each architecture: set `python` and `setup` of the host"
    findings.differ("warning", "cpu-arch-mismatch", "architecture", machines, head, fix, "uname -m")


def _torch(node: Node, python: Python, findings: Findings) -> None:
    name, executable = node.host.name, python.executable
    if python.torch is None:
        choose = "set `python` in the inventory to an interpreter with torch"
        install = f"{shell_word(executable)} -m pip install torch"
        fix = f"run `ddp-orch setup INVENTORY`, or {choose}, or run {install}"
        message = f"{executable} has no torch"
        findings.add(
            "error", "missing-module-on-host", name, message, fix, f'{shell_word(executable)} -c "import torch"'
        )
        return
    release = _release(python.torch)
    if release and release < TORCH_LEAST:
        message = f"torch {python.torch} is older than {'.'.join(map(str, TORCH_LEAST))}, the oldest that is tested"
        fix = f"{shell_word(executable)} -m pip install --upgrade torch"
        findings.add("warning", "torch-too-old", name, message, fix, f"{python.path}/version.py: {python.torch}")


def _release(version: str) -> tuple[int, ...]:
    """2.4.0+cu121 -> (2, 4)"""
    match = re.match(r"(\d+)\.(\d+)", version)
    return (int(match[1]), int(match[2])) if match else ()


def _versions(pythons: Mapping[str, Python], head: str, findings: Findings) -> None:
    """Another torch on one host shows as anything from a hang to a wrong collective, minutes later."""
    torches = {name: str(python.torch) for name, python in pythons.items() if python.torch}
    releases = {_release(version) for version in torches.values()}
    severity: Severity = "error" if len(releases) > 1 else "warning"
    usual = max(torches.values(), key=list(torches.values()).count, default="")
    release = shell_word(f"torch=={usual.partition('+')[0]}")
    fix = f"install the same torch on all hosts: pip install {release}"
    findings.differ(severity, "torch-version-mismatch", "torch", torches, head, fix, "pip show torch")
    if len(set(torches.values())) == 1:  # else all that follows differs too
        for key, what in (("nvidia_nccl", "NCCL"), ("nvidia_cudnn", "cuDNN")):
            versions = {
                name: next((one for package, one in python.packages.items() if package.startswith(key)), "")
                for name, python in pythons.items()
            }
            known = {name: version for name, version in versions.items() if version}
            fix = f"install the same {what} on all hosts: pip install --force-reinstall {release}"
            severity = "error" if what == "NCCL" else "warning"
            findings.differ(
                severity, "torch-version-mismatch", what, known, head, fix, f"pip list | grep {what.lower()}"
            )
    versions = {name: ".".join(map(str, python.python[:2])) for name, python in pythons.items()}
    fix = "use the same Python on all hosts: pickled objects and wheels differ between versions"
    findings.differ("warning", "python-version-mismatch", "Python", versions, head, fix, "python --version")


def _scripts(plan: Plan, pythons: Mapping[str, Python], head: str, homeless: set[str], findings: Findings) -> None:
    scripts = {name: python.script for name, python in pythons.items() if python.script and name not in homeless}
    for name, script in scripts.items():
        if script.absent:
            message = f"the script {script.path} is missing: {script.absent}"
            fix = "copy it there, or remove workdir to have the code sent"
            findings.add("error", "remote-workdir-missing", name, message, fix, f"ls {script.path}")
        if script.error:
            command = f"python -m py_compile {script.path}"
            message = f"the script does not compile: {script.error}"
            findings.add("error", "script-import-error", name, message, "fix that line", command)
    modules = {module for script in scripts.values() for module in script.missing}
    for module in sorted(modules):
        absent = [name for name, script in scripts.items() if module in script.missing]
        if module == "torch":
            continue  # has a finding already
        code = "script-import-error" if len(absent) == len(scripts) else "missing-module-on-host"
        message = f"the script imports {module}, which is not installed there"
        fix = f"pip install {shell_word(module)} into that environment, or select another with `python` or `setup`"
        findings.add("error", code, absent, message, fix, f'python -c "import {module}"')
