"""What this host's processors, memory, network interfaces and GPUs are doing. Reads files and NVML; starts no process.

Counters are since boot; two samples make a rate.
"""

import os
from typing import Any, Dict, List, Optional, Tuple

from . import nvml
from .small_files import text_of

NOT_REAL = ("lo", "docker", "veth", "br-", "virbr", "cni", "flannel", "tun", "tap", "wg", "dummy", "ifb")
SECTOR = 512  # bytes, in /proc/diskstats on all disks


def usage() -> Dict[str, Any]:
    """Memory and disk in bytes, `cpu` in ticks (busy, all) over all cores, `nics` in bytes and Mbit/s, and the GPUs."""
    return {
        "cores": os.cpu_count(),
        "cpu": _cpu(),
        "memory": _memory(),
        "nics": _nics(),
        "gpus": nvml.usage(),
        "disk": _disk(),
    }


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


def _disk() -> Optional[Tuple[int, int]]:
    """Read and written by all disks; None if none is visible, as in some containers.

    /proc/diskstats also lists partitions and what is built on disks (LVM, RAID); only whole disks have a `device`.
    """
    counts = []
    try:
        with open("/proc/diskstats") as file:
            rows = [line.split() for line in file]
    except OSError:
        return None
    for row in rows:
        if len(row) > 9 and os.path.exists(os.path.join("/sys/block", row[2], "device")):
            counts.append((int(row[5]) * SECTOR, int(row[9]) * SECTOR))
    return (sum(read for read, _ in counts), sum(written for _, written in counts)) if counts else None


def _net(name: str, what: str) -> str:
    """Empty where there is no such figure: a virtual interface has no speed."""
    return text_of(os.path.join("/sys/class/net", name, what))
