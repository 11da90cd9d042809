"""Check the python of each host: whether it exists and has torch, versions agree, and the script compiles. Pure."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass

from ..answers.facts import Facts, NoPython, Python, Script
from ..inventory.container import has_image
from ..output.finding import Severity
from ..plan.plan import Node, Plan
from . import containers
from .findings import Findings, outliers_of, shell_word, usual_of

OF_SYSTEM = ("/usr/bin/", "/bin/")
"""Pythons into which pip may not install: PEP 668."""
OLDEST_TORCH = (2, 4)
BUILD = re.compile(r"cpu|cu\d+|rocm[\d.]+|xpu")
"""Builds of torch, as in 2.9.0+cpu, that have an index of their own at download.pytorch.org."""
PACKAGES = {
    "Bio": "biopython",
    "OpenSSL": "pyOpenSSL",
    "PIL": "pillow",
    "absl": "absl-py",
    "attr": "attrs",
    "bs4": "beautifulsoup4",
    "cv2": "opencv-python-headless",
    "dateutil": "python-dateutil",
    "dotenv": "python-dotenv",
    "faiss": "faiss-cpu",
    "git": "GitPython",
    "hydra": "hydra-core",
    "lightning_fabric": "lightning",
    "skimage": "scikit-image",
    "sklearn": "scikit-learn",
    "umap": "umap-learn",
    "yaml": "pyyaml",
}
"""Names on PyPI that differ from those in an import."""


@dataclass(frozen=True)
class Absence:
    """Why the hosts lack a module that is code of the user's."""

    what: str
    """What the module is, as in `not sent`."""
    fix: str


def check_pythons(
    plan: Plan, nodes: list[Node], facts: Mapping[str, Facts], absent: Mapping[str, Absence], findings: Findings
) -> None:
    """`absent`: what is known about modules that hosts lack, by name."""
    pythons: dict[str, Python] = {}
    for node in nodes:
        name, python = node.host.name, facts[node.host.name].python
        if isinstance(python, NoPython):
            line = "fix that line of `setup`, or " if python.error.startswith("setup line") else ""
            fix = f"{line}set `python` or `setup` for the host"
            if has_image(node.host.container):
                fix = containers.fix_of(python.code, node.host.container, name) or fix
            findings.add("error", python.code, name, f"python: {python.error}", fix, _start_python(node))
            continue
        pythons[name] = python
        _torch(node, python, findings)
        nccl = sorted(package for package in python.packages if package.startswith("nvidia_nccl"))
        if len(nccl) > 1:
            libraries = " and ".join(f"{package.replace('_', '-')} {python.packages[package]}" for package in nccl)
            names = " or ".join(shell_word(package.replace("_", "-")) for package in nccl)
            fix = (
                f"uninstall the one that torch does not need: {shell_word(python.executable)} -m pip uninstall {names}"
            )
            message = f"has several NCCL libraries: {libraries}"
            evidence = f"{shell_word(python.executable)} -m pip list"
            findings.add("warning", "nccl-library-conflict", name, message, fix, evidence)
    head = plan.nodes[0].host.name
    containers.check_containers(nodes, facts, head, findings)
    _versions(pythons, head, findings)
    without_workdir = {name for name, fact in facts.items() if fact.workdir is False}
    _scripts({name: python for name, python in pythons.items() if name not in without_workdir}, absent, findings)
    machines = {name: str(facts[name].machine) for name in pythons}
    fix = "use an environment for each architecture: set `python` and `setup` of the host"
    findings.differ("warning", "cpu-arch-mismatch", "architecture", machines, head, fix, "uname -m")


def _start_python(node: Node) -> str:
    """The evidence for a python that does not start: after `setup`, as the ranks do."""
    host = node.host
    start = f"{host.python} --version"
    if not host.setup or has_image(host.container):
        return start
    command = f"bash -lc {shlex.quote(' && '.join([*host.setup, start]))}"
    return f"try: ssh {host.name} {shlex.quote(command)}"


def _torch(node: Node, python: Python, findings: Findings) -> None:
    name, executable = node.host.name, python.executable
    if python.torch is None:
        fix = (
            "use an image that has torch, or set `python` to an interpreter in it that has"
            if has_image(node.host.container)
            else "run `ddp-orch setup INVENTORY`, or set `python` in the inventory to an interpreter with torch"
        )
        if not has_image(node.host.container) and not executable.startswith(OF_SYSTEM):
            fix += f", or run {shell_word(executable)} -m pip install torch"
        message = f"{executable} has no torch"
        findings.add(
            "error", "missing-module-on-host", name, message, fix, f'{shell_word(executable)} -c "import torch"'
        )
        return
    release = _release(python.torch)
    if release and release < OLDEST_TORCH:
        message = f"torch {python.torch} is older than {'.'.join(map(str, OLDEST_TORCH))}, the oldest tested version"
        fix = f"{shell_word(executable)} -m pip install --upgrade torch"
        findings.add("warning", "torch-too-old", name, message, fix, f"{python.path}/version.py: {python.torch}")


def _release(version: str) -> tuple[int, ...]:
    """2.4.0+cu121 -> (2, 4)"""
    match = re.match(r"(\d+)\.(\d+)", version)
    return (int(match[1]), int(match[2])) if match else ()


def _versions(pythons: Mapping[str, Python], head: str, findings: Findings) -> None:
    """Different versions of torch cause hangs or wrong results of collectives, often minutes after the start."""
    torches = {name: str(python.torch) for name, python in pythons.items() if python.torch}
    releases = {_release(version) for version in torches.values()}
    severity: Severity = "error" if len(releases) > 1 else "warning"
    usual = usual_of(torches, head) if torches else ""
    for hosts, message in outliers_of("torch", torches, head):
        for host in hosts:
            executable = shell_word(pythons[host].executable)
            # pip takes another build of the same version for the one that is wanted
            is_build = torches[host].partition("+")[0] == usual.partition("+")[0]
            fix = _install_torch(executable, usual, forced=is_build)
            evidence = f'{executable} -c "import torch; print(torch.__version__)"'
            findings.add(severity, "torch-version-mismatch", host, message, fix, evidence)
    if len(set(torches.values())) == 1:  # otherwise its libraries differ as well
        for key, what in (("nvidia_nccl", "NCCL"), ("nvidia_cudnn", "cuDNN")):
            versions = {
                name: next((version for package, version in python.packages.items() if package.startswith(key)), "")
                for name, python in pythons.items()
            }
            installed = {name: version for name, version in versions.items() if version}
            severity = "error" if what == "NCCL" else "warning"
            for hosts, message in outliers_of(what, installed, head):
                for host in hosts:
                    executable = shell_word(pythons[host].executable)
                    fix = f"use the same {what}: {_install_torch(executable, usual, forced=True)}"
                    evidence = f"{executable} -m pip list | grep {what.lower()}"
                    findings.add(severity, "torch-version-mismatch", host, message, fix, evidence)
    versions = {name: ".".join(map(str, python.python[:2])) for name, python in pythons.items()}
    fix = "use the same Python version on all hosts; pickled objects and wheels differ between versions"
    findings.differ("warning", "python-version-mismatch", "Python", versions, head, fix, "python --version")


def _install_torch(executable: str, version: str, forced: bool) -> str:
    """How to get that build of torch: PyPI has another one of the same version."""
    build = version.partition("+")[2]
    if build and not BUILD.fullmatch(build):
        return "use the same image or environment on all hosts: PyPI has no such build of torch"
    option = "--force-reinstall " if forced else ""
    index = f" --index-url https://download.pytorch.org/whl/{build}" if build else ""
    command = f"{executable} -m pip install {option}{shell_word(f'torch=={version}')}{index}"
    return f"install the same torch on all hosts: {command}"


def _scripts(pythons: Mapping[str, Python], absent: Mapping[str, Absence], findings: Findings) -> None:
    scripts = {name: python.script for name, python in pythons.items() if python.script}
    for name, script in scripts.items():
        if script.absent:
            message = f"the script {script.path} is missing: {script.absent}"
            fix = "copy it there, or remove workdir, so that ddp-orch sends the code"
            findings.add("error", "remote-workdir-missing", name, message, fix, f"ls {script.path}")
        if script.error:
            command = f"{shell_word(pythons[name].executable)} -m py_compile {shell_word(script.path)}"
            message = f"the script does not compile: {script.error}"
            findings.add("error", "script-import-error", name, message, "fix that line", command)
    _missing_modules(pythons, scripts, absent, findings)


def _missing_modules(
    pythons: Mapping[str, Python], scripts: Mapping[str, Script], absent: Mapping[str, Absence], findings: Findings
) -> None:
    missing: dict[tuple[tuple[str, ...], Absence | None], list[str]] = {}  # modules, by the hosts that lack them
    for module in sorted({module for script in scripts.values() for module in script.missing} - {"torch"}):
        hosts = tuple(name for name, script in scripts.items() if module in script.missing)
        missing.setdefault((hosts, absent.get(module)), []).append(module)  # torch has a finding of its own
    for (hosts, absence), modules in missing.items():
        code = "script-import-error" if len(hosts) == len(scripts) else "missing-module-on-host"
        program, executable = scripts[hosts[0]].path, pythons[hosts[0]].executable
        names, are = ", ".join(modules), "is" if len(modules) == 1 else "are"
        what = f"{program}: {names}" if program.startswith("-m ") else f"the script imports {names}, which"
        check = f'{shell_word(executable)} -c "import {", ".join(modules)}"'
        if absence is not None:
            findings.add("error", code, hosts, f"{what} {are} {absence.what}", absence.fix, check)
            continue
        packages = " ".join(shell_word(PACKAGES.get(module, module)) for module in modules)
        install = f"{shell_word(executable)} -m pip install {packages}"
        fix = f"run there: {install}, or set `python` or `setup` to another environment"
        findings.add("error", code, hosts, f"{what} {are} not installed there", fix, check)
