"""What this host's processors, memory, network interfaces and GPUs are doing. Reads files and NVML; starts no process.

Counters are since boot; two samples make a rate.
"""

import ctypes
import os
from typing import Any, Dict, List, Optional, Tuple

NOT_REAL = ("lo", "docker", "veth", "br-", "virbr", "cni", "flannel", "tun", "tap", "wg", "dummy", "ifb")


def usage() -> Dict[str, Any]:
    """Memory in bytes, `cpu` in ticks (busy, all) over all cores, `nics` in bytes and Mbit/s, and the GPUs."""
    return {"cores": os.cpu_count(), "cpu": _cpu(), "memory": _memory(), "nics": _nics(), "gpus": gpus()}


def _cpu() -> Tuple[int, int]:
    with open("/proc/stat") as file:
        ticks = [int(word) for word in file.readline().split()[1:9]]
    return sum(ticks) - ticks[3] - ticks[4], sum(ticks)  # idle, waiting for a disk


def _memory() -> Tuple[int, int]:
    """Used, and total."""
    with open("/proc/meminfo") as file:
        kib = {line.split(":")[0]: int(line.split()[1]) for line in file}
    return (kib["MemTotal"] - kib.get("MemAvailable", kib["MemFree"])) * 1024, kib["MemTotal"] * 1024


def _nics() -> List[Dict[str, Any]]:
    nics = []
    for name in sorted(os.listdir("/sys/class/net")):
        if name.startswith(NOT_REAL) or _net(name, "operstate") == "down":
            continue
        speed = _net(name, "speed")
        received, sent = _net(name, "statistics/rx_bytes"), _net(name, "statistics/tx_bytes")
        if received.isdigit() and sent.isdigit():
            mbit = int(speed) if speed.isdigit() and int(speed) > 0 else None
            nics.append({"name": name, "received": int(received), "sent": int(sent), "mbit": mbit})
    return nics


def _net(name: str, what: str) -> str:
    try:
        with open(os.path.join("/sys/class/net", name, what)) as file:
            return file.read().strip()
    except OSError:
        return ""  # a virtual one has no speed


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
