"""Check the GPUs of each host: driver, health, who uses their memory, the same on all hosts? Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from ..answers.facts import Facts, Gpu, Python
from ..output.finding import Severity
from ..output.mask import hide_credentials
from ..plan.plan import Node, Plan
from .findings import Findings, shell_word

SMI = "nvidia-smi -q"
HELD_MIB = 1024  # MiB used by others from which on a finding is added
ECC_XIDS, FAULT_XIDS = {48, 63, 64, 94, 95}, {74, 119, 120, *range(144, 151)}
XID = re.compile(r"Xid \(PCI:([0-9a-fA-F:.]{1,20})\): (\d{1,4})\b")


def check_gpus(plan: Plan, nodes: list[Node], facts: Mapping[str, Facts], findings: Findings) -> None:
    some_have = any(facts[node.host.name].gpus for node in nodes)
    for node in nodes:
        name, fact = node.host.name, facts[node.host.name]
        if node.gpu_ids == ():
            continue
        if fact.nvidia.error:
            _driver(node, fact.nvidia.error, some_have, findings)
            continue
        _enough(node, fact, some_have, findings)
        _of_job(plan.inventory.job_gpus, node, fact, findings)
        for gpu in used(node, fact):
            _health(name, gpu, findings)
            _state(node, gpu, fact, findings)
        _links(name, used(node, fact), findings)
        _kernel_log(name, fact.nvidia.xids, findings)
        _torch(name, fact, findings)
    _same(plan, nodes, facts, findings)


def used(node: Node, fact: Facts) -> list[Gpu]:
    """The GPUs of a host that the run would use."""
    return [gpu for gpu in fact.gpus if node.gpu_ids == "auto" or gpu.index in node.gpu_ids]


def _driver(node: Node, error: str, some_have: bool, findings: Findings) -> None:
    code, fix = "gpu-lost", "run nvidia-smi there; a cold restart of the host often brings a lost GPU back"
    if "version mismatch" in error:
        code = "nvml-driver-library-mismatch"
        fix = "sudo reboot, or reload the nvidia modules: the driver was upgraded under the running kernel"
    elif "communicate with the NVIDIA driver" in error:
        code, fix = "no-gpu-visible", "sudo modprobe nvidia; dkms status shows whether the module fits the kernel"
    is_expected = some_have or node.gpu_ids != "auto" or code != "no-gpu-visible"
    message = f"nvidia-smi sees no GPU: {error}"
    findings.add("error" if is_expected else "warning", code, node.host.name, message, fix, f"nvidia-smi: {error}")


def _enough(node: Node, fact: Facts, some_have: bool, findings: Findings) -> None:
    name, count = node.host.name, len(fact.gpus)
    if isinstance(node.gpu_ids, tuple):
        missing = sorted(set(node.gpu_ids) - {gpu.index for gpu in fact.gpus})
        if missing:
            message = f"`gpus` lists {', '.join(map(str, missing))}, but the host has {count} GPUs"
            fix = "correct `gpus`, or run nvidia-smi there"
            findings.add("error", "no-gpu-visible", name, message, fix, f"nvidia-smi -L: {count} GPUs")
            return
    elif some_have and not count:
        message = "has no GPU, but other hosts have some"
        fix = "run nvidia-smi there; to train on CPUs, set `gpus: none` for all hosts"
        findings.add("error", "no-gpu-visible", name, message, fix, "nvidia-smi -L: no GPUs")
    available = len(used(node, fact))
    if count and node.nproc != "auto" and node.nproc > available:
        message = f"{node.nproc} ranks, but only {available} GPUs"
        fix = f"set nproc_per_node: {available}"
        findings.add("error", "nproc-exceeds-gpus", name, message, fix, f"nvidia-smi -L: {count} GPUs")


def _of_job(asked: int | None, node: Node, fact: Facts, findings: Findings) -> None:
    """A host that shows more GPUs than its job has: its SSH sessions are outside of the job."""
    count = len(fact.gpus)
    if asked is None or node.gpu_ids != "auto" or count <= asked:
        return
    message = f"shows {count} GPUs, but the job asked for {asked} per host; the others may be in use by other jobs"
    fix = "set `gpus` of the host to those of the job: scontrol show job --details lists them (IDX)"
    findings.add("warning", "gpus-of-other-jobs", node.host.name, message, fix, f"nvidia-smi -L: {count} GPUs")


def _health(name: str, gpu: Gpu, findings: Findings) -> None:
    what = f"GPU {gpu.index}"
    leave_out = f"exclude it with `gpus`, then run: sudo nvidia-smi -r -i {gpu.index}, or restart the host"
    if gpu.lost:
        message = f"{what} does not respond: it has fallen off the bus"
        fix = "do a cold restart of the host; if it happens again, check the board and its slot"
        findings.add("error", "gpu-lost", name, message, fix, f"{SMI} -i {gpu.index}")
        return
    if gpu.uncorrected_ecc:
        message = f"{what} had {gpu.uncorrected_ecc} uncorrectable memory errors"
        findings.add("error", "gpu-ecc-error", name, message, leave_out, f"{SMI} -d ECC: {gpu.uncorrected_ecc}")
    if gpu.repair:
        evidence = f"{SMI} -d ROW_REMAPPER: {gpu.repair}"
        findings.add("error", "gpu-ecc-error", name, f"{what}: {gpu.repair}", leave_out, evidence)
    if gpu.slowed:
        reasons = ", ".join(gpu.slowed)
        message = f"{what} is slowed down by its hardware: {reasons}"
        fix = "check cooling and power: nvidia-smi -q -d TEMPERATURE,POWER,PERFORMANCE"
        findings.add("warning", "straggler", name, message, fix, f"{SMI} -d PERFORMANCE: {reasons}")
    if gpu.pcie_lanes and gpu.pcie_lanes_most and gpu.pcie_lanes < gpu.pcie_lanes_most:
        lanes = f"{gpu.pcie_lanes} of {gpu.pcie_lanes_most} PCIe lanes"
        fix = "reseat the board or its riser; set the slot's lanes in the BIOS"
        findings.add("warning", "straggler", name, f"{what} uses {lanes}", fix, f"{SMI}: Link Width {lanes}")
    if gpu.power_limit_w and gpu.power_default_w and gpu.power_limit_w < gpu.power_default_w:
        limit = f"{gpu.power_limit_w:.0f} of {gpu.power_default_w:.0f} W"
        fix = f"sudo nvidia-smi -i {gpu.index} -pl {gpu.power_default_w:.0f}   # unless that is intended"
        findings.add(
            "note", "gpu-power-limited", name, f"{what} is limited to {limit}", fix, f"{SMI} -d POWER: {limit}"
        )
    clock, usual = gpu.application_clock_mhz, gpu.application_clock_default_mhz
    if clock and usual and clock < usual:
        clocks = f"{clock} of {usual} MHz"
        fix = f"sudo nvidia-smi -i {gpu.index} -rac   # unless that is intended"
        message = f"{what}'s application clock is set to {clocks}"
        findings.add("note", "gpu-clock-limited", name, message, fix, f"{SMI} -d CLOCK: {clocks}")
    if gpu.fabric not in (None, "Completed"):
        message = f"{what} is not part of its NVSwitch fabric: {gpu.fabric}"
        fix = "sudo systemctl restart nvidia-fabricmanager   # of exactly the driver's version"
        findings.add("error", "cuda-fabricmanager-down", name, message, fix, f"{SMI}: Fabric State {gpu.fabric}")


def _links(name: str, gpus: Sequence[Gpu], findings: Findings) -> None:
    """The right number of NVLinks depends on the board, so each GPU is compared with the best one of the host."""
    counts = [(gpu.index, *gpu.nvlinks) for gpu in gpus if gpu.nvlinks]
    best = max((active for _, active, _ in counts), default=0)
    for index, active, total in counts:
        if active < best:
            message = f"GPU {index} has {active} active NVLinks, others have {best}"
            fix = "run nvidia-smi nvlink -e there; reset the GPU or restart the host; if it persists, check the board"
            evidence = f"nvidia-smi nvlink -s: {active} of {total}"
            findings.add("warning", "nvlink-inactive", name, message, fix, evidence)


def _state(node: Node, gpu: Gpu, fact: Facts, findings: Findings) -> None:
    name, what = node.host.name, f"GPU {gpu.index}"
    if gpu.mig == "Enabled":
        several = node.nproc == "auto" or node.nproc > 1
        message = f"{what} is split (MIG): a process sees only one part, and NCCL does not work between parts"
        fix = f"sudo nvidia-smi -i {gpu.index} -mig 0"
        severity: Severity = "error" if several else "warning"
        findings.add(severity, "gpu-mig-unsupported", name, message, fix, f"{SMI}: MIG Mode Enabled")
    if gpu.compute_mode in ("Exclusive_Process", "Exclusive_Thread", "Prohibited"):
        in_use = gpu.processes or gpu.compute_mode == "Prohibited"
        message = f"{what} is in compute mode {gpu.compute_mode}" + ("; a process is using it" if in_use else "")
        fix = f"sudo nvidia-smi -i {gpu.index} -c DEFAULT"
        evidence = f"{SMI} -d COMPUTE: {gpu.compute_mode}"
        findings.add("error" if in_use else "note", "gpu-exclusive-mode", name, message, fix, evidence)
    if gpu.used_mib and gpu.used_mib > HELD_MIB:
        _held(name, gpu, gpu.used_mib, fact.uid, findings)
    if gpu.persistence == "Disabled":
        message = "persistence mode is off: the first use of a GPU takes seconds"
        fix = "sudo systemctl enable --now nvidia-persistenced"
        findings.add("note", "gpu-persistence-off", name, message, fix, f"{SMI}: Persistence Mode Disabled")


def _held(name: str, gpu: Gpu, used_mib: int, uid: int, findings: Findings) -> None:
    holders = [
        f"pid {process.pid} ({hide_credentials(process.command or '') or 'another user or container'})"
        for process in gpu.processes
    ] or ["a process that is not visible from here"]
    half = gpu.memory_mib and used_mib > gpu.memory_mib / 2
    message = f"GPU {gpu.index}: {used_mib} of {gpu.memory_mib} MiB are in use by {', '.join(holders)}"
    fix = "stop it, wait for it, or choose other GPUs with `gpus`"
    if any(process.uid == uid for process in gpu.processes):
        fix = f"ssh {name} kill {' '.join(str(process.pid) for process in gpu.processes if process.uid == uid)}"
    evidence = f"{SMI} -d MEMORY,PIDS: {used_mib} MiB used"
    findings.add("error" if half else "warning", "gpu-memory-held-by-others", name, message, fix, evidence)


def _kernel_log(name: str, lines: Sequence[str], findings: Findings) -> None:
    for line in lines:
        match = XID.search(line)
        number = int(match[2]) if match else 0
        code = "gpu-lost" if number == 79 else "gpu-ecc-error" if number in ECC_XIDS else "gpu-xid-fault"
        if match and (number == 79 or number in ECC_XIDS | FAULT_XIDS):
            message = f"the driver has logged Xid {number} for the GPU at {match[1]} since the host started"
            fix = "restart the host; if it happens again, check the board"
            findings.add("warning", code, name, message, fix, f"dmesg: {line}")


def _torch(name: str, fact: Facts, findings: Findings) -> None:
    """Whether torch can use the driver. A driver supports all CUDA versions with its major version."""
    if not fact.gpus or not isinstance(fact.python, Python) or not fact.python.torch:
        return
    torch, built_for, serves = fact.python.torch, fact.python.cuda, fact.nvidia.cuda
    if built_for is None:
        message = f"torch {torch} is built without CUDA, but the host has GPUs"
        fix = f"{shell_word(fact.python.executable)} -m pip install --force-reinstall torch --index-url https://download.pytorch.org/whl/cu126"
        findings.add(
            "error", "no-gpu-visible", name, message, fix, 'python -c "import torch; print(torch.version.cuda)"'
        )
    elif serves and int(built_for.split(".")[0]) > int(serves.split(".")[0]):
        message = f"driver {fact.nvidia.driver} supports CUDA up to {serves}, but torch is built for {built_for}"
        fix = f"install a newer driver, or a torch for CUDA {serves.split('.')[0]}"
        findings.add("error", "cuda-driver-too-old", name, message, fix, f"nvidia-smi: CUDA Version {serves}")


def _same(plan: Plan, nodes: list[Node], facts: Mapping[str, Facts], findings: Findings) -> None:
    head = plan.nodes[0].host.name
    having = [node.host.name for node in nodes if facts[node.host.name].gpus and node.gpu_ids != ()]
    kinds = {name: _kinds(facts[name].gpus) for name in having}
    fix = "the slowest GPU sets the pace: exclude these hosts, or give them less work"
    findings.differ("warning", "gpu-mismatch", "GPUs", kinds, head, fix, "nvidia-smi -L")
    if len(set(kinds.values())) == 1:
        joined = {
            node.host.name: _connections(used(node, facts[node.host.name]))
            for node in nodes
            if node.host.name in having
        }
        fix = "run nvidia-smi topo -m there; check bridges, the driver and the virtual machine's settings"
        topologies = {name: paths for name, paths in joined.items() if paths}
        findings.differ("warning", "gpu-topology-mismatch", "between GPUs", topologies, head, fix, "nvidia-smi topo -m")
    drivers = {name: str(facts[name].nvidia.driver) for name in having}
    majors = {driver.split(".")[0] for driver in drivers.values()}
    severity: Severity = "warning" if len(majors) > 1 else "note"
    findings.differ(
        severity, "gpu-driver-mismatch", "driver", drivers, head, "install the same driver on all hosts", "nvidia-smi"
    )


def _connections(gpus: Sequence[Gpu]) -> str:
    """The connections between the GPUs, such as `28 x NV18`; all connections without NVLink count as PCIe."""
    names = [f"GPU{gpu.index}" for gpu in gpus]
    paths = [gpu.paths.get(other, "") for number, gpu in enumerate(gpus) if gpu.paths for other in names[number + 1 :]]
    kinds = sorted(path if path.startswith("NV") else "PCIe" for path in paths if path)
    return ", ".join(f"{kinds.count(kind)} x {kind}" for kind in dict.fromkeys(kinds))


def _kinds(gpus: Sequence[Gpu]) -> str:
    """`8 x NVIDIA H100`"""
    names = [str(gpu.name) for gpu in gpus]
    return ", ".join(f"{names.count(name)} x {name}" for name in dict.fromkeys(names))
