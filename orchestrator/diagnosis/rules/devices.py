"""GPUs and memory: whose memory is full, and which process asked for which device. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from ..scene import Scene
from ..suspects import DECISIVE, Suspect, Suspects, map_code

GIB = {"GiB": 1.0, "MiB": 1 / 1024, "GB": 1.0, "MB": 1 / 1024, "KiB": 1 / 1048576, "bytes": 1 / 1073741824}
SIBLINGS = 16  # processes whose numbers are this close were started together
CONTEXT = 3.0  # GiB that CUDA, NCCL and the libraries take in addition to what torch allocates
UNEXPLAINED = 1.5  # GiB that a GPU may hold beyond what the message lists before others must be using it
FOREIGN_SHARE = 0.25  # of the process's own memory
CLEARLY_FOREIGN = 4.0  # GiB
MAX_HOST_MEMORY = 1 << 42  # bytes; no host has more
NOT_ALLOCATED = (
    "An allocation of main memory failed: the host had too little left, or a limit of the process is too low "
    "(`ulimit -v`)."
)
FIND_MEMORY = (
    "Compare `ulimit -v` and `free -g` on that host. Then raise the limit, or use less: fewer data-loader workers, "
    "shorter samples, load on one rank or with mmap."
)
MIG = re.compile(r"\bMIG\b|MIG-")
WITHOUT_NCCL = re.compile(r"(?i)distributed package doesn't have nccl|not compiled with nccl")
USE_GLOO = (
    'On hosts without GPUs, call init_process_group("gloo"), or leave out the backend: torch chooses. On hosts with '
    "GPUs, install a torch with CUDA; `ddp-orch check` shows the torch of each host."
)
RANK_AS_DEVICE = re.compile(
    r"(?:set_device|\.cuda|\.to)\((?:args\.|self\.)?(?:global_)?rank\)|cuda:\{?(?:args\.|self\.)?(?:global_)?rank\b"
)
PIDS = re.compile(r"(?:pid[:=] ?|Sending process )(\d+)")


def check_device_ordinals(suspects: Suspects, scene: Scene) -> Suspects:
    """`invalid device ordinal` means too many processes, MIG, or the global rank used as the device's number.

    The global rank is at fault where the code shows it, or where later hosts fail and the first does not.
    It changes codes only, and no other rule looks at these.
    """
    shown = [suspect for suspect in suspects if suspect.code == "nproc-exceeds-gpus"]
    if not shown:
        return suspects
    if MIG.search(scene.text):
        return map_code(suspects, "nproc-exceeds-gpus", lambda suspect: replace(suspect, code="gpu-mig-unsupported"))
    failing = {suspect.host or suspect.line.source for suspect in shown}
    head = next((host for rank, host in scene.ranks.items() if rank == 0 and host), None)
    head = head or (scene.hosts[0] if scene.hosts else None)
    head_is_well = head in scene.hosts and head not in failing
    if head_is_well or RANK_AS_DEVICE.search(scene.text):
        return map_code(suspects, "nproc-exceeds-gpus", lambda suspect: replace(suspect, code="global-rank-as-device"))
    return suspects


def explain_missing_nccl(suspects: Suspects, scene: Scene) -> Suspects:
    """A torch without CUDA has no NCCL: the backend or the torch is wrong. It changes words only."""

    def explain(suspect: Suspect) -> Suspect:
        return replace(suspect, fix=USE_GLOO) if WITHOUT_NCCL.search(suspect.line.text) else suspect

    return map_code(suspects, "no-gpu-visible", explain)


def check_gpu_memory(suspects: Suspects, scene: Scene) -> Suspects:
    """CUDA is out of memory: the numbers in the message may show that it is not this job that fills the GPU.

    It changes a code only, and no other rule looks at it.
    """
    started = {int(pid) for pid in PIDS.findall(scene.text)}

    def check(suspect: Suspect) -> Suspect:
        text = suspect.line.text if suspect.exception is None else " ".join(suspect.exception.lines)
        usage = _parse_usage(text)
        foreign = usage.foreign(started)
        if foreign <= UNEXPLAINED or (usage.own is not None and foreign <= FOREIGN_SHARE * usage.own):
            return suspect
        return replace(
            suspect,
            code="gpu-memory-held-by-others",
            why=f"about {foreign:.1f} GiB belong to other processes",
            confidence="medium" if usage.contained or foreign < CLEARLY_FOREIGN else "high",
        )

    return map_code(suspects, "cuda-oom", check)


@dataclass(frozen=True)
class _Usage:
    """What torch's message says of a GPU's memory, in GiB."""

    total: float | None
    free: float | None
    own: float | None
    processes: Mapping[int, float]
    contained: bool
    """The process runs in a container, and is listed by its number outside of it."""
    itself: int
    """That number, where it is contained; -1: unknown."""

    def foreign(self, started: set[int]) -> float:
        """What neither the process itself nor its siblings hold. `started`: the pids that the logs name."""
        own_pids = {self.itself} if self.contained else started
        kin = sum(
            memory
            for pid, memory in self.processes.items()
            if any(abs(pid - own_pid) < SIBLINGS for own_pid in own_pids)
        )
        foreign = sum(self.processes.values()) - kin
        if self.total is not None and self.free is not None and self.own is not None:
            explained = kin if self.contained else self.own + kin
            foreign = max(foreign, self.total - self.free - explained)
        return foreign


def _parse_usage(text: str) -> _Usage:
    total = _gib_after(text, r"total capacity of ") or _gib_after(text.replace("; ", " "), r"\(GPU \d+ ")
    free = _gib_after(text, r"of which ")
    own = _gib_after(text, r"this process has ")
    free = _gib_before(text, " free") if free is None else free
    own = _gib_before(text, " reserved in total") if own is None else own
    processes = {
        int(match[1]): float(match[2]) * GIB[match[3]]
        for match in re.finditer(r"Process (\d+) has ([\d.]+) ([GM]iB) memory in use", text)
    }
    contained = own is None and bool(processes)
    itself = _find_itself(text, processes) if contained else -1
    return _Usage(total, free, processes.get(itself) if contained else own, processes, contained, itself)


def _gib_after(text: str, words: str) -> float | None:
    match = re.search(words + r"([\d.]+) ?([KMG]i?B|bytes)", text)
    return float(match[1]) * GIB.get(match[2], 1 / 1048576) if match else None


def _gib_before(text: str, words: str) -> float | None:
    match = re.search(rf"([\d.]+) ([GM]iB){words}", text)
    return float(match[1]) * GIB[match[2]] if match else None


def _find_itself(text: str, processes: Mapping[int, float]) -> int:
    """The process that holds what the message says it has allocated, and the little more that CUDA takes; or -1."""
    allocated = _gib_after(text, r"Of the allocated memory ") or 0.0
    reserved = _gib_before(text, " is reserved by PyTorch") or 0.0
    fitting = [pid for pid, memory in processes.items() if allocated <= memory <= allocated + reserved + CONTEXT]
    return min(fitting, key=lambda pid: processes[pid], default=-1) if allocated else -1


def check_allocation_size(suspects: Suspects, scene: Scene) -> Suspects:
    """An allocation that no host could ever grant is a mistake in its size, not a lack of memory.

    Any other one that fails may lack the memory of the host, or have come to a limit of its process.
    After `add_rank_to_memory_kills`, which goes by the code that this rule changes.
    """

    def check(suspect: Suspect) -> Suspect:
        size = _asked_bytes(suspect.line.text)
        if size <= MAX_HOST_MEMORY:
            return suspect if suspect.level >= DECISIVE else replace(suspect, meaning=NOT_ALLOCATED, fix=FIND_MEMORY)
        why = f"it asked for {size >> 40} TiB of main memory, more than any host has: some size is wrong"
        fix = f"Correct the shape of what that line of the script makes: {size >> 40} TiB in one piece cannot be meant."
        return replace(suspect, code="script-exception", why=why, fix=fix)

    return map_code(suspects, "host-oom-killed", check)


def _asked_bytes(text: str) -> int:
    """What torch or numpy says that it could not allocate."""
    if match := re.search(r"tried to allocate (\d+) bytes", text):
        return int(match[1])
    match = re.search(r"Unable to allocate ([\d.]+) ([TPE])iB for an array", text)
    return int(float(match[1]) * 1024 ** (4 + "TPE".index(match[2]))) if match else 0
