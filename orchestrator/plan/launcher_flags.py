"""The flags of other launchers: those that are translated, those that are refused, and those with no use here. Data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

HOSTS = "the inventory has the hosts"
STARTS = "ddp-orch itself starts the command on each host"
RENDEZVOUS = "ddp-orch chooses the rendezvous; see run.rdzv in the inventory"
OUTPUT = "`ddp-orch logs` has the output of every rank"
CORES = "ddp-orch binds no rank to cores"
PLACES = "ranks are numbered host by host"
ONLY_MPI = "no mpirun starts these ranks; run.launcher: mpirun does"
OWN_VALUE = "each host has its own; with a value, it is set"


@dataclass(frozen=True)
class Flags:
    """The flags of a launcher; names without dashes in front, and with `-` for `_`."""

    name: str
    ignored: Mapping[str, tuple[int, str]]
    """Flags that have no use here: how many words follow each, and why."""
    nproc: tuple[str, ...] = ()
    one_per_host: tuple[str, ...] = ()
    total: tuple[str, ...] = ()
    nnodes: tuple[str, ...] = ()
    restarts: tuple[str, ...] = ()
    backend: tuple[str, ...] = ()
    variables: tuple[str, ...] = ()
    """NAME=VALUE, or NAME for the value that it has here."""
    pairs: tuple[str, ...] = ()
    """NAME VALUE."""
    lists: tuple[str, ...] = ()
    """NAME,NAME with the values that they have here."""
    refused: Mapping[str, str] = field(default_factory=dict)
    """Flags that cannot be left out, and what to use instead."""
    module: tuple[str, ...] = ("m", "module")

    def words_after(self, name: str) -> int | None:
        if name in self.pairs:
            return 2
        if name in (*self.nproc, *self.total, *self.nnodes, *self.restarts, *self.backend, *self.variables):
            return 1
        if name in self.lists:
            return 1
        if name in (*self.module, *self.one_per_host):
            return 0
        return self.ignored[name][0] if name in self.ignored else None


def _ignored(*groups: tuple[str, int, str]) -> dict[str, tuple[int, str]]:
    """Of groups of (names, words that follow each, why)."""
    return {name: (count, reason) for names, count, reason in groups for name in names.split()}


TORCHRUN = Flags(
    "torchrun",
    _ignored(
        ("node-rank local-addr", 1, HOSTS),
        ("master-addr master-port rdzv-endpoint rdzv-id rdzv-conf", 1, RENDEZVOUS),
        ("standalone", 0, RENDEZVOUS),
        ("log-dir r redirects t tee logs-specs local-ranks-filter", 1, OUTPUT),
        ("numa-binding", 1, CORES),
        ("role monitor-interval start-method signals-to-handle", 1, STARTS),
        ("use-env", 0, "all ranks have the variables of torchrun"),
    ),
    nproc=("nproc-per-node",),
    nnodes=("nnodes",),
    restarts=("max-restarts",),
    backend=("rdzv-backend",),
    refused={"no-python": "use run.launcher: node for a program that is not Python"},
)
DEEPSPEED = Flags(
    "deepspeed",
    _ignored(
        ("H hostfile node-rank", 1, HOSTS),
        ("master-port master-addr", 1, RENDEZVOUS),
        ("launcher launcher-args ssh-port", 1, STARTS),
        ("no-ssh force-multi", 0, STARTS),
    ),
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
    _ignored(
        ("H host hosts hostfile machinefile f", 1, HOSTS),
        ("nolocal", 0, HOSTS),
        ("iface", 1, "set `interface` of the hosts"),
        ("prefix", 1, "each host finds its mpirun on its PATH"),
        ("wdir", 1, "ranks start in the folder of the code; see `workdir`"),
        ("allow-run-as-root oversubscribe", 0, STARTS),
        ("output-filename", 1, OUTPUT),
        ("tag-output timestamp-output report-bindings display-map v verbose quiet q", 0, OUTPUT),
        ("bind-to", 1, CORES),
        ("use-hwthread-cpus", 0, CORES),
        ("map-by rank-by", 1, PLACES),
        ("bycore bynode byslot", 0, PLACES),
        ("mca", 2, ONLY_MPI),
        ("genvall envall genvnone envnone", 0, "ranks have the variables of their hosts; name more with -e NAME=VALUE"),
    ),
    nproc=("N", "npernode", "ppn"),
    one_per_host=("pernode",),
    total=("np", "n", "c"),
    variables=("x",),
    pairs=("genv", "env"),
    lists=("genvlist", "envlist"),
    module=(),
)
ACCELERATE = Flags(
    "accelerate launch",
    _ignored(
        ("machine-rank", 1, HOSTS),
        ("main-process-ip main-process-port rdzv-backend rdzv-conf", 1, RENDEZVOUS),
        ("max-restarts", 1, "set run.max_restarts; ddp-orch restarts all hosts together"),
        ("multi-gpu same-network", 0, STARTS),
    ),
    total=("num-processes",),
    nnodes=("num-machines",),
    module=(),
)
VLLM = Flags(
    "vllm",
    _ignored(
        ("node-rank master-addr master-port", 1, HOSTS),
        ("headless", 0, "all hosts but the first have it"),
    ),
    nnodes=("nnodes",),
    module=(),
)
SGLANG = Flags(
    "sglang",
    _ignored(("node-rank dist-init-addr nccl-init-addr", 1, HOSTS)),
    nnodes=("nnodes",),
    module=(),
)
RAY = Flags("ray symmetric-run", _ignored(("address", 1, HOSTS)), nnodes=("min-nodes",), module=())
