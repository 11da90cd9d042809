"""Recognise the command lines of other launchers after `--`, and translate their flags. Pure.

`torchrun --nproc-per-node 4 train.py --lr 1` becomes `train.py --lr 1` with 4 ranks per host. Flags that say where the
other hosts are have no place here: the inventory and ddp-orch know it.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from ..errors import UsageError
from ..inventory import recovery
from ..inventory.model import Inventory
from . import launchers, leading, once_per_host
from .launcher_flags import ACCELERATE, DEEPSPEED, MPIRUN, OWN_VALUE, RAY, RENDEZVOUS, SGLANG, TORCHRUN, VLLM, Flags
from .other_command import MEANT, OtherCommand


@dataclass(frozen=True)
class Invocation:
    """What the words after `--` ask for."""

    words: tuple[str, ...]
    """A script or -m and its arguments; with a launcher of scope host, the user's words for it."""
    is_program: bool = False
    """Whether each rank is a program of the host, with its arguments, in place of a script."""
    launcher: str | None = None
    """None: as the inventory says."""
    nproc_per_node: int | None = None
    total_ranks: int | None = None
    nnodes: tuple[int, int] | None = None
    max_restarts: int | None = None
    rdzv_backend: Literal["static", "c10d"] | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    mpi_env: Mapping[str, str] = field(default_factory=dict)
    """Variables that tell a real mpirun what its flags did."""
    ignored: Mapping[str, str] = field(default_factory=dict)
    """Flags and variables that are not used, and why."""


_SERVERS = {"vllm": VLLM, "sglang": SGLANG}
_RECOGNISED_ONCE_PER_HOST = ("accelerate", "ray", *_SERVERS)
_PYTHON = re.compile(r"python[0-9.]*")
_OPTIONS: Mapping[str, Mapping[str, str]] = {
    "-u": {},  # ranks have it
    "-B": {"PYTHONDONTWRITEBYTECODE": "1"},
    "-O": {"PYTHONOPTIMIZE": "1"},
    "-OO": {"PYTHONOPTIMIZE": "2"},
    "-s": {"PYTHONNOUSERSITE": "1"},
}
"""Options of Python without a value, and the variables that do the same."""
_X_OPTIONS = {
    "dev": "PYTHONDEVMODE",
    "faulthandler": "PYTHONFAULTHANDLER",
    "utf8": "PYTHONUTF8",
    "importtime": "PYTHONPROFILEIMPORTTIME",
}
_MODULES = {
    "torch.distributed.run": "torchrun",
    "torch.distributed.launch": "torch.distributed.launch",
    "accelerate.commands.launch": "accelerate",
    "deepspeed": "deepspeed",
    "sglang.launch_server": "sglang",
    "vllm.entrypoints.openai.api_server": "vllm",
}
_REFUSED = {
    "srun": "leave srun and its flags out, or use run.launcher: srun",
    "jsrun": "leave jsrun and its flags out; with run.launcher: mpi, ranks have the variables of MPI",
    "aprun": "leave aprun and its flags out; with run.launcher: mpi, ranks have the variables of MPI",
    "horovodrun": (
        "leave horovodrun and its flags out. Horovod needs MPI: start it with `mpirun python SCRIPT` and "
        "run.launcher: mpirun"
    ),
    "colossalai": "leave `colossalai run` and its flags out; its scripts take the variables of torchrun",
}
"""Launchers whose ranks ddp-orch starts itself, and what to use."""
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
        if invocation.launcher not in _RECOGNISED_ONCE_PER_HOST:
            _refuse_number_of_host(invocation.words, inventory)
        real = invocation.launcher == "mpi" and inventory.run.launcher == "mpirun"
        return with_real_mpi(invocation) if real else invocation
    if inventory.run.launcher in _RECOGNISED_ONCE_PER_HOST:
        invocation = recognise(words, environ)
        if invocation.launcher == inventory.run.launcher:
            return invocation
    command = leading.take_variables(words)
    return _with_leading(Invocation(command.words), command)


def recognise(words: Sequence[str], environ: Mapping[str, str]) -> Invocation:
    """`environ`: for `mpirun -x NAME`. Raises UsageError for flags that ddp-orch can neither honour nor leave out."""
    command = leading.take(words)
    return _with_leading(_recognise(command.words, environ), command)


def _with_leading(invocation: Invocation, command: leading.Leading) -> Invocation:
    env = {**command.env, **invocation.env}
    return replace(invocation, env=env, ignored={**command.ignored, **invocation.ignored})


def _recognise(words: tuple[str, ...], environ: Mapping[str, str]) -> Invocation:
    if not words:
        return Invocation(())
    program = words[0].rpartition("/")[2]
    if program == "accelerate" and tuple(words[1:2]) == ("launch",):
        return _accelerate(words[2:], environ)
    if program == "accelerate-launch":
        return _accelerate(words[1:], environ)
    if program in _SERVERS and tuple(words[1:2]) == ("serve",):
        return _serve(program, words, environ)
    if program == "ray" and tuple(words[1:2]) == ("symmetric-run",):
        return _ray(words, environ)
    if _PYTHON.fullmatch(program):
        return _python(words, environ)
    if words[0] == "-m" and words[1:2] and words[1] in _MODULES:
        return _python(("python", *words), environ)
    if program in _REFUSED:
        raise UsageError(f"{program}: ddp-orch starts the ranks itself; {_REFUSED[program]}")
    return _launched(_PROGRAMS.get(program, ""), words, environ)


def _refuse_number_of_host(words: tuple[str, ...], inventory: Inventory) -> None:
    wrong = once_per_host.correct(words)
    if wrong is None:
        return
    number, corrected = wrong
    text = (
        f"{number}: each rank would get this number, and wait for the others forever, because the script starts the "
        f"ranks of its host itself. Start it once per host, with its number in place of {{node_rank}}: {MEANT}"
    )
    raise OtherCommand(text, "node", ("python", *corrected), inventory.path)


def with_real_mpi(invocation: Invocation) -> Invocation:
    """The same command line of mpirun, started by an mpirun of the hosts."""
    used = ("-mca", "--mca", "-bind-to", "--bind-to")
    ignored = {flag: reason for flag, reason in invocation.ignored.items() if flag not in used}
    env = {**invocation.env, **invocation.mpi_env}
    return replace(invocation, launcher="mpirun", env=env, ignored=ignored)


def _python(words: Sequence[str], environ: Mapping[str, str]) -> Invocation:
    env, rest = _take_options(words[1:])
    invocation = _python_program(words, rest, environ)
    return replace(invocation, env={**env, **invocation.env})


def _take_options(words: Sequence[str]) -> tuple[dict[str, str], tuple[str, ...]]:
    """Python's own options as the variables that do the same, and what follows them."""
    env: dict[str, str] = {}
    rest = list(words)
    while rest:
        option, attached = rest[0][:2], rest[0][2:]
        if rest[0] in _OPTIONS:
            env.update(_OPTIONS[rest.pop(0)])
        elif option in ("-W", "-X") and (attached or len(rest) > 1):
            del rest[0]
            value = attached or rest.pop(0)
            if option == "-W":  # the last one wins in both
                env["PYTHONWARNINGS"] = ",".join(filter(None, (env.get("PYTHONWARNINGS"), value)))
            elif value in _X_OPTIONS:
                env[_X_OPTIONS[value]] = "1"
            else:
                raise UsageError(f"python -X {value}: not supported; set the variable that does the same with -e")
        else:
            break
    return env, tuple(rest)


def _python_program(words: Sequence[str], rest: tuple[str, ...], environ: Mapping[str, str]) -> Invocation:
    launcher = _MODULES.get(rest[1], "") if rest[:1] == ("-m",) and len(rest) > 1 else ""
    if launcher == "accelerate":
        return _accelerate(rest[2:], environ)
    if launcher in _SERVERS:
        return _serve(launcher, ("{python}", *rest), environ)
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
        inner = leading.take(rest)
        invocation, rest = _with_leading(invocation, inner), list(inner.words)
        if rest and not _PYTHON.fullmatch(rest[0].rpartition("/")[2]):
            return with_real_mpi(replace(invocation, words=tuple(rest), is_program=True))
        inside = _python(rest, environ) if rest else Invocation(())
        invocation, rest = replace(invocation, env={**inside.env, **invocation.env}), list(inside.words)
    if not rest:
        raise UsageError(f"{words[0]}: no script given")
    own = None if launcher == "torchrun" else launcher
    if launcher == "torch.distributed.launch" and {"--use-env", "--use_env"} & set(words[: len(words) - len(rest)]):
        own = None
    return replace(invocation, words=tuple(rest), launcher=own)


def _accelerate(words: Sequence[str], environ: Mapping[str, str]) -> Invocation:
    """Its own flags stay; those that ddp-orch decides are taken out before the script."""
    end = next((number for number, word in enumerate(words) if word.endswith(".py") or word == "-m"), len(words))
    invocation = _take_ours(ACCELERATE, words[:end], environ)
    return replace(invocation, words=(*invocation.words, *words[end:]), launcher="accelerate")


def _serve(launcher: str, words: Sequence[str], environ: Mapping[str, str]) -> Invocation:
    return replace(_take_ours(_SERVERS[launcher], words, environ), launcher=launcher)


def _ray(words: Sequence[str], environ: Mapping[str, str]) -> Invocation:
    """`ray symmetric-run FLAGS -- COMMAND`"""
    if "--" not in words[2:]:
        raise UsageError("ray symmetric-run: give the command after another --")
    invocation, command = _parse(RAY, words[2:], environ)
    return replace(invocation, words=tuple(command), launcher="ray")


def _take_ours(flags: Flags, words: Sequence[str], environ: Mapping[str, str]) -> Invocation:
    """The words without the flags that ddp-orch decides, and what these ask for."""
    kept: list[str] = []
    ours: list[str] = []
    rest = list(words)
    while rest:
        name, equals, _ = rest[0].lstrip("-").replace("_", "-").partition("=")
        after = flags.words_after(name) if rest[0].startswith("--") else None
        count = 1 if after is None or equals else 1 + after
        (kept if after is None else ours).extend(rest[:count])
        del rest[:count]
    return replace(_parse(flags, ours, environ)[0], words=tuple(kept))


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
    word = word.partition("=")[0]
    if name in (*flags.variables, *flags.pairs, *flags.lists):
        return _set_variables(flags, found, name, word, values, environ)
    if name in flags.nnodes:
        match = re.fullmatch(r"([1-9][0-9]{0,4})(?::([1-9][0-9]{0,4}))?", values[0])
        if match is None:
            raise UsageError(f"{flags.name} {word}: {values[0]!r} is not a number of hosts")
        return replace(found, nnodes=(int(match[1]), int(match[2] or match[1])))
    if name in flags.one_per_host:
        return replace(found, nproc_per_node=1)
    if name in flags.backend:
        if values[0] in ("static", "c10d"):
            return replace(found, rdzv_backend="c10d" if values[0] == "c10d" else "static")
        return _ignore(found, f"{word} {values[0]}", RENDEZVOUS)
    if name in (*flags.nproc, *flags.total, *flags.restarts):
        return _set_number(flags, found, name, word, values[0])
    mpi_env = dict(found.mpi_env)
    if name == "mca" and len(values) > 1:
        mpi_env[f"OMPI_MCA_{values[0]}"] = values[1]
    elif name == "bind-to":
        mpi_env["OMPI_MCA_hwloc_base_binding_policy"] = values[0]
    return _ignore(replace(found, mpi_env=mpi_env), word, flags.ignored[name][1])


def _ignore(found: Invocation, word: str, reason: str) -> Invocation:
    return replace(found, ignored={**found.ignored, word: reason})


def _set_number(flags: Flags, found: Invocation, name: str, word: str, value: str) -> Invocation:
    if name in flags.nproc and value in ("auto", "gpu"):
        return found
    if name in flags.nproc and value == "cpu":
        return _ignore(found, f"{word} cpu", "set nproc_per_node of the hosts to start more ranks than GPUs")
    if not re.fullmatch(r"[0-9]{1,6}", value):
        raise UsageError(f"{flags.name} {word}: {value!r} is not a number")
    number = int(value)
    if name in flags.restarts:
        return replace(found, max_restarts=number)
    return replace(found, nproc_per_node=number) if name in flags.nproc else replace(found, total_ranks=number)


def _set_variables(
    flags: Flags, found: Invocation, name: str, word: str, values: list[str], environ: Mapping[str, str]
) -> Invocation:
    """Variables of mpirun: `-x NAME=VALUE`, `-x NAME`, `-genv NAME VALUE`, `-genvlist NAME,NAME`."""
    if name in flags.pairs and len(values) < 2:
        raise UsageError(f"{flags.name} {word}: the value is missing")
    env, ignored = dict(found.env), dict(found.ignored)
    if name in flags.pairs:
        leading.add_variable(values[0], values[1], env, ignored)
        return replace(found, env=env, ignored=ignored)
    for entry in values[0].split(",") if name in flags.lists else values:
        variable, equals, value = entry.partition("=")
        if equals:
            leading.add_variable(variable, value, env, ignored)
        elif variable in ("PATH", "LD_LIBRARY_PATH"):
            ignored[f"{word} {variable}"] = OWN_VALUE
        elif variable in environ:
            leading.add_variable(variable, environ[variable], env, ignored)
        else:
            ignored[f"{word} {variable}"] = "it is not set here"
    return replace(found, env=env, ignored=ignored)


def ignored_by_reason(invocation: Invocation) -> dict[str, list[str]]:
    """The flags and variables that are not used, for each reason."""
    flags: dict[str, list[str]] = {}
    for flag, reason in invocation.ignored.items():
        flags.setdefault(reason, []).append(flag)
    return flags


def apply(inventory: Inventory, invocation: Invocation) -> Inventory:
    """The inventory with what the command line of the other launcher asks for, but for `env`. Raises UsageError."""
    run = inventory.run
    if invocation.launcher is not None:
        run = replace(run, launcher=invocation.launcher)
    any_of = inventory.any_of
    if invocation.nnodes is not None and any_of is None:
        run = replace(run, nnodes=invocation.nnodes)
    elif invocation.nnodes not in (None, (any_of, any_of)):
        raise UsageError(
            f"the command asks for {':'.join(map(str, dict.fromkeys(invocation.nnodes or ())))} hosts, which cannot be "
            f"combined with `any {any_of}`; leave the number of hosts out of the command"
        )
    if invocation.max_restarts is not None:
        run = replace(run, max_restarts=invocation.max_restarts)
    if invocation.rdzv_backend is not None:
        run = replace(run, rdzv=replace(run.rdzv, backend=invocation.rdzv_backend))
        if wrong := recovery.refuse_resume(run):
            raise UsageError(f"--rdzv-backend {run.rdzv.backend}: run.resume: {wrong}")
    secret = next((name for name in invocation.env if name in run.secrets), None)
    if secret is not None:
        raise UsageError(f"{secret}: the name is in run.secrets, whose values come only from your environment")
    working = [host for host in inventory.hosts if host.in_team]
    count = any_of or (len(working) if run.nnodes == "auto" else min(run.nnodes[1], len(working)))
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
    return replace(inventory, hosts=hosts, run=run)
