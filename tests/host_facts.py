"""Facts of hosts with which everything is well, to be varied by tests."""

from __future__ import annotations

from typing import Any

from orchestrator.answers.decode import decode
from orchestrator.answers.facts import Facts

GB = 1 << 30
PYTHON: dict[str, Any] = {
    "executable": "/usr/bin/python3",
    "python": [3, 11, 0],
    "torch": "2.4.0",
    "cuda": None,
    "path": "/usr/lib/python3/torch",
    "packages": {},
    "limits": {"nofile": 65536, "nproc": None, "memlock": None},
    "script": None,
    "settings": {},
    "net_plugin": None,
    "libfabric": None,
}
ETH0: dict[str, Any] = {
    "name": "eth0",
    "address": "10.0.0.1",
    "speed": 10000,
    "bridge": False,
    "loopback": False,
    "up": True,
    "mtu": 1500,
}
GPU: dict[str, Any] = {
    "index": 0,
    "uuid": "GPU-0",
    "bus": "0:1",
    "name": "H100",
    "memory_mib": 80000,
    "used_mib": 4,
    "compute_mode": "Default",
    "persistence": "Enabled",
    "mig": "Disabled",
    "fabric": None,
    "uncorrected_ecc": 0,
    "repair": None,
    "slowed": [],
    "pcie_lanes": 16,
    "pcie_lanes_most": 16,
    "power_limit_w": 700.0,
    "power_default_w": 700.0,
    "clock_mhz": 345,
    "clock_most_mhz": 1980,
    "application_clock_mhz": 1980,
    "application_clock_default_mhz": 1980,
    "nvlinks": None,
    "paths": None,
    "lost": False,
    "processes": [],
}


def disk(path: str) -> dict[str, Any]:
    return {"path": path, "kind": "ext4", "shared": False, "total": 100 * GB, "free": 50 * GB, "free_files": 1_000_000}


def facts(**changed: Any) -> dict[str, Any]:
    """What `probe` says of a healthy host without a GPU; `python` and such are merged in, the rest replaces."""
    fine: dict[str, Any] = {
        "hostname": "h",
        "cgroup_pids": None,
        "hung": [],
        "disks": {
            "state": disk("/home/ann/.local"),
            "home": disk("/home/ann"),
            "tmp": disk("/tmp"),
            "shm": disk("/shm"),
        },
        "interfaces": [ETH0],
        "rdma": [],
        "firewalls": [],
        "port_range": [32768, 60999],
        "first_port": 1024,
        "listeners": {},
        "orphans": [],
        "stale_locks": [],
        "paths": {},
        "dns": [],
        "machine": "x86_64",
        "uid": 1000,
        "cores": 8,
        "workdir": None,
        "gpus": [],
        "nvidia": {"driver": None, "cuda": None, "error": None, "xids": []},
        "python": PYTHON,
        "names": {"h": {"found": ["10.0.0.1"], "error": None, "seconds": 0.001}},
        "clock": 1.0,
    }
    return {**fine, **changed}


def decoded(facts: dict[str, Any]) -> Facts:
    return decode(Facts, facts, "probe")


def with_gpus(count: int = 2, **changed: Any) -> dict[str, Any]:
    gpus = [{**GPU, "index": number, "uuid": f"GPU-{number}"} for number in range(count)]
    torch = {**PYTHON, "torch": "2.9.0+cu124", "cuda": "12.4"}
    nvidia = {"driver": "550.54.15", "cuda": "12.4", "error": None, "xids": []}
    return facts(**{"gpus": gpus, "python": torch, "nvidia": nvidia, **changed})
