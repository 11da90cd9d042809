"""Recognise the command lines of other launchers after `--`, and translate their flags. Pure.

`torchrun --nproc-per-node 4 train.py --lr 1` becomes `train.py --lr 1` with 4 ranks per host. Flags that say where the
other hosts are have no place here: the inventory and ddp-orch know it.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from ..errors import UsageError
from ..inventory.model import Inventory
from . import launchers


@dataclass(frozen=True)
class Invocation:
    """What the words after `--` ask for."""

    words: tuple[str, ...]
    """A script or -m and its arguments; with a launcher of scope host, the user's words for it."""
    launcher: str | None = None
    """None: as the inventory says."""
    nproc_per_node: int | None = None
    total_ranks: int | None = None
    nnodes: tuple[int, int] | None = None
    max_restarts: int | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    mpi_env: Mapping[str, str] = field(default_factory=dict)
    """Variables that tell a real mpirun what its flags did."""
    ignored: tuple[str, ...] = ()
    """Flags that are not used, because ddp-orch decides what they are for."""


@dataclass(frozen=True)
class Flags:
    """The flags of a launcher; names without dashes in front, and with `-` for `_`."""

    name: str
    ours: Mapping[str, int]
    """Flags that ddp-orch decides, and how many words follow each."""
    nproc: tuple[str, ...] = ()
    total: tuple[str, ...] = ()
    nnodes: tuple[str, ...] = ()
    restarts: tuple[str, ...] = ()
    variables: tuple[str, ...] = ()
    refused: Mapping[str, str] = field(default_factory=dict)
    """Flags that cannot be left out, and what to use instead."""
    module: tuple[str, ...] = ("m", "module")

    def words_after(self, name: str) -> int | None:
        if name in (*self.nproc, *self.total, *self.nnodes, *self.restarts, *self.variables):
            return 1
        return 0 if name in self.module else self.ours.get(name)


_RECOGNISED_ONCE_PER_HOST = ("accelerate", "vllm", "sglang")


def _ours(with_value: str, alone: str = "") -> dict[str, int]:
    return {**dict.fromkeys(with_value.split(), 1), **dict.fromkeys(alone.split(), 0)}


TORCHRUN = Flags(
    "torchrun",
    _ours(
        "node-rank master-addr master-port rdzv-backend rdzv-endpoint rdzv-id rdzv-conf local-addr log-dir r redirects "
        "t tee role monitor-interval start-method logs-specs local-ranks-filter numa-binding signals-to-handle",
        "standalone use-env",
    ),
    nproc=("nproc-per-node",),
    nnodes=("nnodes",),
    restarts=("max-restarts",),
    refused={"no-python": "use run.launcher: node for a program that is not Python"},
)
DEEPSPEED = Flags(
    "deepspeed",
    _ours("H hostfile master-port master-addr launcher launcher-args node-rank ssh-port", "no-ssh force-multi"),
    nproc=("num-gpus",),
    nnodes=("num-nodes",),
    module=("module",),
    refused={
        "i": "set `gpus` of the hosts",
        "include": "set `gpus` of the hosts",
        "e": "set `gpus` of the hosts",
        "exclude": "set `gpus` of the hosts",
        "autotuning": "run the autotuner without ddp-orch",
        "no-python": "use run.launcher: node for a program that is not Python",
    },
)
MPIRUN = Flags(
    "mpirun",
    {
        **_ours(
            "H host hostfile machinefile f bind-to map-by rank-by prefix wdir output-filename iface",
            "allow-run-as-root oversubscribe tag-output report-bindings display-map bycore bynode byslot v verbose "
            "nolocal timestamp-output quiet q",
        ),
        "mca": 2,
        "genv": 2,
    },
    nproc=("N", "npernode", "ppn"),
    total=("np", "n", "c"),
    variables=("x",),
    module=(),
)
ACCELERATE = Flags(
    "accelerate launch",
    _ours(
        "machine-rank main-process-ip main-process-port rdzv-backend rdzv-conf max-restarts",
        "multi-gpu same-network",
    ),
    total=("num-processes",),
    nnodes=("num-machines",),
    module=(),
)
_PYTHON = re.compile(r"python[0-9.]*")
_MODULES = {
    "torch.distributed.run": "torchrun",
    "torch.distributed.launch": "torch.distributed.launch",
    "accelerate.commands.launch": "accelerate",
    "deepspeed": "deepspeed",
    "sglang.launch_server": "sglang",
}
_PROGRAMS = {
    "torchrun": "torchrun",
    "deepspeed": "deepspeed",
    "mpirun": "mpi",
    "mpiexec": "mpi",
    "mpirun.openmpi": "mpi",
    "mpirun.mpich": "mpi",
    "mpiexec.openmpi": "mpi",
    "mpiexec.mpich": "mpi",
    "mpiexec.hydra": "mpi",
    "orterun": "mpi",
}


def read(words: Sequence[str], inventory: Inventory, environ: Mapping[str, str]) -> Invocation:
    """As `recognise`. If the inventory starts a command once per host, the words are that command, whatever it is."""
    if launchers.choose(inventory).scope == "rank":
        invocation = recognise(words, environ)
        real = invocation.launcher == "mpi" and inventory.run.launcher == "mpirun"
        return with_real_mpi(invocation) if real else invocation
    if inventory.run.launcher in _RECOGNISED_ONCE_PER_HOST:
        invocation = recognise(words, environ)
        if invocation.launcher == inventory.run.launcher:
            return invocation
    return Invocation(tuple(words))


def recognise(words: Sequence[str], environ: Mapping[str, str]) -> Invocation:
    """`environ`: for `mpirun -x NAME`. Raises UsageError for flags that ddp-orch can neither honour nor leave out."""
    if not words:
        return Invocation(())
    program = words[0].rpartition("/")[2]
    if program == "accelerate" and tuple(words[1:2]) == ("launch",):
        return _accelerate(words[2:], environ)
    if program == "vllm" and tuple(words[1:2]) == ("serve",):
        return Invocation(tuple(words), "vllm")
    if _PYTHON.fullmatch(program):
        return _python(words, environ)
    if program == "srun":
        raise UsageError(
            "srun: ddp-orch starts the ranks itself; leave srun and its flags out, or use run.launcher: srun"
        )
    return _launched(_PROGRAMS.get(program, ""), words, environ)


def with_real_mpi(invocation: Invocation) -> Invocation:
    """The same command line of mpirun, started by an mpirun of the hosts."""
    used = ("-mca", "--mca", "-bind-to", "--bind-to", "-genv")
    ignored = tuple(flag for flag in invocation.ignored if flag not in used)
    env = {**invocation.env, **invocation.mpi_env}
    return replace(invocation, launcher="mpirun", env=env, ignored=ignored)


def _python(words: Sequence[str], environ: Mapping[str, str]) -> Invocation:
    rest = tuple(words[1:])
    if rest[:1] == ("-u",):
        rest = rest[1:]
    launcher = _MODULES.get(rest[1], "") if rest[:1] == ("-m",) and len(rest) > 1 else ""
    if launcher == "accelerate":
        return _accelerate(rest[2:], environ)
    if launcher == "sglang":
        return Invocation(("{python}", *rest), "sglang")
    if launcher:
        return _launched(launcher, rest[1:], environ)
    if not rest or (rest[0].startswith("-") and rest[0] != "-m"):
        raise UsageError(f"{shlex.join(words)}: give the script, or -m and a module; the hosts' `python` runs it")
    return Invocation(rest)


def _launched(launcher: str, words: Sequence[str], environ: Mapping[str, str]) -> Invocation:
    flags = {"torchrun": TORCHRUN, "torch.distributed.launch": TORCHRUN, "deepspeed": DEEPSPEED, "mpi": MPIRUN}
    if launcher not in flags:
        return Invocation(tuple(words))
    invocation, rest = _parse(flags[launcher], words[1:], environ)
    if launcher == "mpi":
        if words[0].rpartition("/")[2] not in ("mpirun", "mpiexec") or "/" in words[0]:
            invocation = replace(invocation, mpi_env={**invocation.mpi_env, "DDP_ORCH_MPIRUN": words[0]})
        program = rest[0].rpartition("/")[2] if rest else ""
        if not _PYTHON.fullmatch(program):
            raise UsageError(f"mpirun: expected `python SCRIPT`, got {shlex.join(rest[:3]) or 'nothing'}")
        rest = list(_python(rest, environ).words)
    if not rest:
        raise UsageError(f"{words[0]}: no script given")
    own = None if launcher == "torchrun" else launcher
    if launcher == "torch.distributed.launch" and {"--use-env", "--use_env"} & set(words[: len(words) - len(rest)]):
        own = None
    return replace(invocation, words=tuple(rest), launcher=own)


def _accelerate(words: Sequence[str], environ: Mapping[str, str]) -> Invocation:
    """Its own flags stay; those that ddp-orch decides are taken out before the script."""
    end = next((number for number, word in enumerate(words) if word.endswith(".py") or word == "-m"), len(words))
    kept: list[str] = []
    ours: list[str] = []
    rest = list(words[:end])
    while rest:
        name, equals, _ = rest[0].lstrip("-").replace("_", "-").partition("=")
        after = ACCELERATE.words_after(name) if rest[0].startswith("--") else None
        count = 1 if after is None or equals else 1 + after
        (kept if after is None else ours).extend(rest[:count])
        del rest[:count]
    invocation, _ = _parse(ACCELERATE, ours, environ)
    return replace(invocation, words=(*kept, *words[end:]), launcher="accelerate")


def _parse(flags: Flags, words: Sequence[str], environ: Mapping[str, str]) -> tuple[Invocation, list[str]]:
    """What the flags before the script ask for, and the script with its arguments."""
    found = Invocation(())
    rest = list(words)
    prefix: list[str] = []
    while rest and rest[0].startswith("-"):
        word = rest.pop(0)
        if word == "--":
            break
        name, equals, value = word.lstrip("-").partition("=")
        name = name.replace("_", "-")
        if name in flags.refused:
            raise UsageError(f"{flags.name} {word}: not supported; {flags.refused[name]}")
        after = flags.words_after(name)
        if after is None:
            raise UsageError(
                f"{flags.name} {word}: ddp-orch does not know this flag; leave {flags.name} and its flags out, and "
                "give the script after --"
            )
        values = [value] if equals else [rest.pop(0) for _ in range(min(after, len(rest)))]
        if len(values) < min(after, 1):
            raise UsageError(f"{flags.name} {word}: the value is missing")
        if name in flags.module:
            prefix = ["-m"]
        else:
            found = _apply(flags, found, name, word, values, environ)
    return found, prefix + rest


def _apply(
    flags: Flags, found: Invocation, name: str, word: str, values: list[str], environ: Mapping[str, str]
) -> Invocation:
    if name in flags.variables:
        variable, equals, value = values[0].partition("=")
        return replace(found, env={**found.env, variable: value if equals else environ.get(variable, "")})
    if name in flags.nnodes:
        match = re.fullmatch(r"([1-9][0-9]{0,4})(?::([1-9][0-9]{0,4}))?", values[0])
        if match is None:
            raise UsageError(f"{flags.name} {word}: {values[0]!r} is not a number of hosts")
        return replace(found, nnodes=(int(match[1]), int(match[2] or match[1])))
    if name in (*flags.nproc, *flags.total, *flags.restarts):
        if name in flags.nproc and values[0] in ("auto", "gpu", "cpu"):
            return found
        if not re.fullmatch(r"[0-9]{1,6}", values[0]):
            raise UsageError(f"{flags.name} {word}: {values[0]!r} is not a number")
        number = int(values[0])
        if name in flags.restarts:
            return replace(found, max_restarts=number)
        return replace(found, nproc_per_node=number) if name in flags.nproc else replace(found, total_ranks=number)
    mpi_env = dict(found.mpi_env)
    if name == "mca" and len(values) > 1:
        mpi_env[f"OMPI_MCA_{values[0]}"] = values[1]
    elif name == "genv" and len(values) > 1:
        mpi_env[values[0]] = values[1]
    elif name == "bind-to":
        mpi_env["OMPI_MCA_hwloc_base_binding_policy"] = values[0]
    return replace(found, mpi_env=mpi_env, ignored=(*found.ignored, word.partition("=")[0]))


def apply(inventory: Inventory, invocation: Invocation) -> Inventory:
    """The inventory with what the command line of the other launcher asks for. Raises UsageError."""
    run = inventory.run
    if invocation.launcher is not None:
        run = replace(run, launcher=invocation.launcher)
    if invocation.nnodes is not None:
        run = replace(run, nnodes=invocation.nnodes)
    if invocation.max_restarts is not None:
        run = replace(run, max_restarts=invocation.max_restarts)
    working = [host for host in inventory.hosts if host.in_team]
    count = len(working) if run.nnodes == "auto" else min(run.nnodes[1], len(working))
    if run.nnodes != "auto" and run.nnodes[0] > len(working):
        raise UsageError(
            f"{run.nnodes[0]} hosts are required, but the inventory has {len(working)} that are not spares"
        )
    nproc = invocation.nproc_per_node
    if invocation.total_ranks is not None:
        if invocation.total_ranks % count:
            raise UsageError(
                f"{invocation.total_ranks} ranks cannot be shared out evenly on {count} hosts; leave the number out, "
                "and set nproc_per_node of the hosts"
            )
        nproc = invocation.total_ranks // count
    hosts = inventory.hosts
    if nproc is not None:
        hosts = tuple(replace(host, nproc_per_node=nproc) for host in hosts)
    return replace(inventory, hosts=hosts, run=replace(run, env={**run.env, **invocation.env}))
