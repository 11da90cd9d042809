"""Measure within a second what may have broken on this host during a run, and compare it with an earlier measurement.

No torch, no CUDA, no program of the driver: NVML, sysfs, statvfs and the kernel's log. It runs in a process of its own
(verb `health`), which can be abandoned: a call into a driver or a file system that hangs does not return.
"""

import json
import os
import re
import sys
import time
from functools import partial
from typing import Any, Callable, Dict, List, Optional, Tuple

from . import network, nvml, processes
from .run_command import answers_of

WINDOW = 3.0  # s for all questions; a healthy host answers in a fraction of a second
SPACE_LEAST = 64 * 1024 * 1024  # bytes that a disk of the run must have left
FILES_LEAST = 16  # that can still be made on it
CLOCK_MOST = 60.0  # s that the clock may be off: certificates and tokens are the first to mind
XID = re.compile(r"NVRM: Xid \(PCI:([0-9a-fA-F:.]{1,20})\): (\d{1,4})\b")
LOST_XID = 79
ECC_XIDS, FAULT_XIDS = {48, 63, 64, 94, 95}, {74, 119, 120, *range(144, 151)}  # as `check` has them
KERNEL_LOG = "/dev/kmsg"
RECORD_MOST = 8192  # bytes of a record of the kernel's log

Problem = Dict[str, str]
"""`code`: as of a finding of `check`; `text`."""


def measure(request: Dict[str, Any]) -> Dict[str, Any]:
    """`request`: gpu_ids, disks (paths by name), interfaces (names).

    `hung` names the questions that have no answer: "gpus", "xids" or "disk NAME".
    """
    questions: Dict[str, Callable[[], Any]] = {
        "disk %s" % name: partial(_space, path) for name, path in request["disks"].items()
    }
    if request["gpu_ids"]:
        questions["gpus"] = lambda: [list(gpu) for gpu in nvml.gpus()]
        questions["xids"] = lambda: xids(KERNEL_LOG)
    answers = answers_of(questions, WINDOW)
    return {
        "gpus": answers.get("gpus", []),
        "xids": answers.get("xids", []),
        "disks": {name: answers.get("disk %s" % name) for name in request["disks"]},
        "links": {name: list(network.link_state(name)) for name in request["interfaces"]},
        "rdma": {"%s/%s" % (port["device"], port["port"]): port["state"] for port in network.rdma_ports()},
        "clock": time.time(),
        "hung": sorted(set(questions) - set(answers)),
    }


def _space(path: str) -> List[Optional[int]]:
    """Free bytes, and how many more files can be made (None: no limit), of the disk of a path or its parent."""
    while not os.path.exists(path) and path != "/":
        path = os.path.dirname(path)
    filesystem = os.statvfs(path)
    return [filesystem.f_bavail * filesystem.f_frsize, filesystem.f_favail if filesystem.f_files else None]


def xids(path: str) -> List[List[Any]]:
    """[PCI address, number] of each fault that the driver has logged, where ordinary users may read the log."""
    faults = []
    try:
        log = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return []
    try:
        while True:
            try:
                record = os.read(log, RECORD_MOST)
            except BrokenPipeError:
                continue  # overwritten while it was read; the next read gives the oldest that is left
            if not record:
                break
            faults += [[match[1], int(match[2])] for match in XID.finditer(record.decode("utf-8", "replace"))]
    except OSError:
        pass  # EAGAIN: the end
    finally:
        os.close(log)
    return faults


# --- comparing


def problems(request: Dict[str, Any], before: Dict[str, Any], now: Dict[str, Any]) -> List[Problem]:
    """What is worse than it was before. `request`: as of both measurements; `head_clock`, if known, is the head's."""
    return [
        {"code": code, "text": text}
        for code, text in (
            _hung(request, now)
            + _gpus(request["gpu_ids"], before["gpus"], now)
            + _xids(before["xids"], now["xids"])
            + _links(before, now)
            + _disks(request["disks"], before["disks"], now["disks"])
            + _clock(request.get("head_clock"), now["clock"])
        )
    ]


def _hung(request: Dict[str, Any], now: Dict[str, Any]) -> List[Tuple[str, str]]:
    hung = []
    for name in now["hung"]:
        kind, _, disk = name.partition(" ")
        if kind == "disk":
            hung.append(("filesystem-hung", "%s has not responded for %d s" % (request["disks"][disk], WINDOW)))
        elif kind == "gpus":
            hung.append(("gpu-lost", "the NVIDIA driver has not responded for %d s" % WINDOW))
    return hung


def _gpus(used: List[int], before: List[List[Any]], now: Dict[str, Any]) -> List[Tuple[str, str]]:
    if "gpus" in now["hung"]:
        return []
    if before and not now["gpus"]:
        return [("gpu-lost", "the NVIDIA driver shows no GPU")]
    by_uuid = {gpu.uuid: gpu for gpu in (nvml.Gpu(*fields) for fields in now["gpus"])}
    worse = []
    for index, earlier in enumerate(nvml.Gpu(*fields) for fields in before):
        if index not in used or earlier.uuid is None:
            continue
        gpu = by_uuid.get(earlier.uuid)
        if gpu is None or gpu.lost:
            worse.append(("gpu-lost", "GPU %d (%s) does not respond" % (index, earlier.uuid)))
            continue
        errors = (gpu.uncorrected or 0) - (earlier.uncorrected or 0)
        if errors > 0:
            worse.append(("gpu-ecc-error", "GPU %d has %d new uncorrectable memory errors" % (index, errors)))
        if gpu.repair and gpu.repair != earlier.repair:
            worse.append(("gpu-ecc-error", "GPU %d: %s" % (index, gpu.repair)))
    return worse


def _xids(before: List[List[Any]], now: List[List[Any]]) -> List[Tuple[str, str]]:
    """The log is a ring: old lines may be gone, so new ones are told by their number per GPU and kind."""
    faults = []
    for address, number in sorted({(address, number) for address, number in now}):
        if now.count([address, number]) <= before.count([address, number]):
            continue
        code = "gpu-lost" if number == LOST_XID else "gpu-ecc-error" if number in ECC_XIDS else "gpu-xid-fault"
        if number == LOST_XID or number in ECC_XIDS | FAULT_XIDS:
            faults.append((code, "the driver has logged Xid %d for the GPU at %s" % (number, address)))
    return faults


def _links(before: Dict[str, Any], now: Dict[str, Any]) -> List[Tuple[str, str]]:
    down = []
    for name, (was_up, _) in sorted(before["links"].items()):
        if was_up and not now["links"].get(name, [False])[0]:
            down.append(("gloo-ifname-no-match", "interface %s is down" % name))
    for port, was in sorted(before["rdma"].items()):
        if was == "ACTIVE" and now["rdma"].get(port) != "ACTIVE":
            state = now["rdma"].get(port) or "gone"
            down.append(("nccl-ib-link-fault", "RDMA port %s is %s" % (port, state)))
    return down


def _disks(paths: Dict[str, str], before: Dict[str, Any], now: Dict[str, Any]) -> List[Tuple[str, str]]:
    full = []
    for name, space in sorted(now.items()):
        if space is None or not before.get(name) or before[name][0] < SPACE_LEAST:
            continue  # unknown, or the run began with as little
        free, files = space
        if free < SPACE_LEAST:
            full.append(("disk-full", "the disk of %s has only %d MiB left" % (paths[name], free >> 20)))
        elif files is not None and files < FILES_LEAST:
            full.append(("disk-full", "the disk of %s has room for only %d more files" % (paths[name], files)))
    return full


def _clock(head_clock: Optional[float], clock: float) -> List[Tuple[str, str]]:
    off = 0.0 if head_clock is None else clock - head_clock
    if abs(off) <= CLOCK_MOST:
        return []
    return [("clock-skew", "the clock is %d s %s that of the head" % (abs(off), "ahead of" if off > 0 else "behind"))]


def main() -> int:
    """Verb `health`: a request on stdin, the measurement as one line on stdout."""
    processes.die_with_parent(os.getppid())
    answer = measure(json.load(sys.stdin))
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()
    os._exit(0)  # without the threads that hang
