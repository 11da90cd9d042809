"""`sample`: what this host is doing at the moment, for `top`. Reads files and NVML; starts no process.

Counters are given as they are, since boot; who asks twice makes rates of them.
"""

import ctypes
import os
import re
import time
from typing import Any, Dict, List, Optional, Tuple

from . import journal, runs, state
from .figures import figures

TAIL = 4096  # bytes of a rank's output that are looked at for its last line and its figures
LINE_MOST = 200  # characters of a last line
NOT_REAL = ("lo", "docker", "veth", "br-", "virbr", "cni", "flannel", "tun", "tap", "wg", "dummy", "ifb")


def sample(arguments: Dict[str, Any]) -> Dict[str, Any]:
    """`arguments`: run_id. Memory in bytes, `cpu` in ticks (busy, all) over all cores, `nics` in bytes and Mbit/s."""
    folder = state.run_folder(arguments["run_id"])
    run = runs.describe(arguments["run_id"], folder)
    ranks = _ranks(os.path.join(folder, "log"), run["attempt"]) if run else []
    return dict(machine(), clock=time.time(), run=run, ranks=ranks)


def machine() -> Dict[str, Any]:
    """What is the same for all runs."""
    return {"cores": os.cpu_count(), "cpu": _cpu(), "memory": _memory(), "nics": _nics(), "gpus": gpus()}


def _cpu() -> Tuple[int, int]:
    with open("/proc/stat") as file:
        ticks = [int(word) for word in file.readline().split()[1:9]]
    return sum(ticks) - ticks[3] - ticks[4], sum(ticks)  # idle, waiting for a disk


def _memory() -> Tuple[int, int]:
    """Used and there."""
    with open("/proc/meminfo") as file:
        kib = {line.split(":")[0]: int(line.split()[1]) for line in file}
    return (kib["MemTotal"] - kib.get("MemAvailable", kib["MemFree"])) * 1024, kib["MemTotal"] * 1024


def _nics() -> List[Dict[str, Any]]:
    found = []
    for name in sorted(os.listdir("/sys/class/net")):
        if name.startswith(NOT_REAL) or _net(name, "operstate") == "down":
            continue
        speed = _net(name, "speed")
        received, sent = _net(name, "statistics/rx_bytes"), _net(name, "statistics/tx_bytes")
        if received.isdigit() and sent.isdigit():
            mbit = int(speed) if speed.isdigit() and int(speed) > 0 else None
            found.append({"name": name, "received": int(received), "sent": int(sent), "mbit": mbit})
    return found


def _net(name: str, what: str) -> str:
    try:
        with open(os.path.join("/sys/class/net", name, what)) as file:
            return file.read().strip()
    except OSError:
        return ""  # a virtual one has no speed


def _ranks(log: str, attempt: int) -> List[Dict[str, Any]]:
    found: Dict[int, Dict[str, Any]] = {}
    for stream, parts in sorted(journal.segments(log).items()):
        if stream.attempt != attempt or not stream.source.isdigit():
            continue
        rank = found.setdefault(int(stream.source), {"rank": int(stream.source), "last": "", "at": 0.0, "figures": {}})
        lines, at = _last_lines(parts[-1])
        if lines and at >= rank["at"]:
            rank.update(last=lines[-1][:LINE_MOST], at=at)
        for line in reversed(lines):
            if "step" in rank["figures"] and "loss" in rank["figures"]:
                break
            for name, value in figures(line).items():
                rank["figures"].setdefault(name, value)
    return [found[rank] for rank in sorted(found)]


def _last_lines(segment: journal.Segment) -> Tuple[List[str], float]:
    try:
        with open(segment.path + ".seg", "rb") as file:
            written = os.fstat(file.fileno())
            data = os.pread(file.fileno(), TAIL, max(0, written.st_size - TAIL))
    except OSError:
        return [], 0.0
    if written.st_size > TAIL:
        data = data[data.find(b"\n") + 1 :]
    lines = [line.strip() for line in re.split("[\r\n]", data.decode("utf-8", "backslashreplace"))]
    return [line for line in lines if line], written.st_mtime


# --- GPUs, by NVML: nvidia-smi takes a second and a tenth of a core


class _Utilisation(ctypes.Structure):
    _fields_ = [("gpu", ctypes.c_uint), ("memory", ctypes.c_uint)]


class _Memory(ctypes.Structure):
    _fields_ = [("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong)]


_nvml: Optional[Any] = None  # False: there is none


def gpus() -> List[Dict[str, Any]]:
    """All GPUs: index, busy (%), used and total (bytes), watts, celsius; None for what a GPU does not tell."""
    global _nvml
    if _nvml is None:
        _nvml = _load()
    if not _nvml:
        return []
    count = ctypes.c_uint()
    if _nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)):
        return []
    return [_gpu(index) for index in range(count.value)]


def _load() -> Any:
    try:
        library = ctypes.CDLL("libnvidia-ml.so.1")
        return False if library.nvmlInit_v2() else library
    except (OSError, AttributeError):
        return False


def _gpu(index: int) -> Dict[str, Any]:
    assert _nvml
    handle = ctypes.c_void_p()
    utilisation, memory, milliwatts, celsius = _Utilisation(), _Memory(), ctypes.c_uint(), ctypes.c_uint()
    known = not _nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle))
    busy = known and not _nvml.nvmlDeviceGetUtilizationRates(handle, ctypes.byref(utilisation))
    sized = known and not _nvml.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory))
    powered = known and not _nvml.nvmlDeviceGetPowerUsage(handle, ctypes.byref(milliwatts))
    warm = known and not _nvml.nvmlDeviceGetTemperature(handle, 0, ctypes.byref(celsius))
    return {
        "index": index,
        "busy": utilisation.gpu if busy else None,
        "used": memory.used if sized else None,
        "total": memory.total if sized else None,
        "watts": milliwatts.value / 1000.0 if powered else None,
        "celsius": celsius.value if warm else None,
    }
