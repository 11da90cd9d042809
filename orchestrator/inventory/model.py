"""The inventory: which hosts, how to reach them, what to run there. Touches no host; only `load` reads a file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from ..errors import InventoryError, OrchError
from ..output.console import number_of
from . import container, document, launcher_rows, recovery, via
from . import settings as command_line
from .container import Container
from .hostnames import jump_hosts, nearest
from .launcher_rows import LauncherRow
from .schema import FILE, HOST, WITNESS
from .sources import reference, schedulers
from .sources.fill_in import fill_in
from .sources.read_source import read_source
from .text_files import STDIN, read_text
from .values import Reading, shown
from .yaml_source import Mark

DEFAULT = "inventory.yaml"
SIMILAR = 0.8  # of 1; a file name this similar is suggested
MAX_PROBLEMS = 100
MAX_VALUES = 200_000  # items of lists and mappings of all hosts together


@dataclass(frozen=True, kw_only=True)
class Host:
    """One host as the inventory defines it, `defaults` included; `auto` is resolved later, on the host."""

    name: str
    address: str
    user: str | None
    port: int | None
    identity_file: str | None  # `~` is expanded where the file is opened
    proxy_jump: str | None  # as in ssh_config: [user@]host[:port], several separated by commas
    via: str  # paramiko, openssh, or a command: see via.py
    cluster_address: str | None
    interface: str
    gpus: Literal["auto", "none"] | int | tuple[int, ...]
    nproc_per_node: Literal["auto"] | int
    python: str
    setup: tuple[str, ...]
    workdir: str | None
    state_dir: str | None
    env: Mapping[str, str]
    container: Container | Literal["none"]
    spare: bool
    witness: bool = False

    @property
    def in_team(self) -> bool:
        """Whether it gets ranks from the start."""
        return not (self.spare or self.witness)

    @property
    def local(self) -> bool:
        """This machine, without SSH. `127.0.0.1`, or `localhost` with a port, user or jump, goes through SSH."""
        bare = self.user is None and self.port is None and self.proxy_jump is None
        return self.address == "localhost" and bare and not via.is_command(self.via)


@dataclass(frozen=True, kw_only=True)
class SshOptions:
    via: str
    host_keys: Literal["strict", "accept-new"]
    connect_timeout: float  # seconds
    parallel: int
    jump_parallel: int


@dataclass(frozen=True, kw_only=True)
class RendezvousOptions:
    backend: Literal["static", "c10d"]
    port: Literal["auto"] | int


@dataclass(frozen=True, kw_only=True)
class Keep:
    """What hosts keep of finished runs."""

    runs: int
    days: int
    outputs: Literal["all"] | int  # days; of runs without a name
    log_size: int  # bytes

    def on_hosts(self) -> dict[str, Any]:
        """The values that are sent to hosts."""
        return {"runs": self.runs, "days": self.days, "outputs": None if self.outputs == "all" else self.outputs}


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    script: str | None  # as written: relative to the folder of the inventory; None: the bundled trainer
    args: tuple[str, ...]
    launcher: str  # of launcher_rows.NAMES, or a key of `launchers`
    preload: Literal["auto", "none"] | tuple[str, ...]  # names of modules
    warm: float | None  # seconds
    container: Container | Literal["none"]
    nnodes: Literal["auto"] | tuple[int, int]  # (least, most)
    env: Mapping[str, str]
    secrets: tuple[str, ...]  # names only
    output: str | None  # on a disk that all hosts share; None: a folder on each host
    rdzv: RendezvousOptions
    ports: tuple[int, int]  # both included
    sync: Literal["auto", "none"] | tuple[str, ...]
    grace: float  # seconds
    max_restarts: int
    lease: float  # seconds
    rejoin_timeout: float  # seconds
    resume: Literal["none", "head", "newest", "union"]
    resume_limit: int  # bytes
    resume_timeout: float  # seconds
    memory_limit: int | None  # bytes; None: no snapshots in memory
    head_lost: Literal["auto", "elect", "stop"]
    witness: Host | None
    autostart: Literal["none", "cron", "systemd"]
    walltime: Literal["auto"] | float | None  # seconds
    snapshot_signal: Literal["USR1", "USR2", "HUP"]
    stall_timeout: float | None  # seconds
    keep: Keep


@dataclass(frozen=True, kw_only=True)
class Notify:
    webhook: str | None
    mail: str | None
    command: str | None
    events: tuple[str, ...]  # start, restart, wait, stall, loss, walltime, end
    bell: bool
    desktop: bool


@dataclass(frozen=True, kw_only=True)
class Inventory:
    path: str  # as `sources.reference` parses it
    source: str | None = None  # such as `@slurm`, if the hosts come from there
    job_gpus: int | None = None  # that its job asked for on each host; None: unknown
    hosts: tuple[Host, ...]  # in the order of the file, ranges expanded
    any_of: int | None = None  # how many of the hosts a run uses, chosen when it starts; None: all
    head: str
    ssh: SshOptions
    run: RunOptions
    notify: Notify
    launchers: Mapping[str, LauncherRow]  # the user's own
    deprecated: tuple[str, ...] = ()  # old names of keys in the file, and what to use

    @property
    def machines(self) -> tuple[Host, ...]:
        """All that a run may use: the hosts, then the witness."""
        return (*self.hosts, *([self.run.witness] if self.run.witness else []))


def default_path(environ: Mapping[str, str], folder: Path = Path()) -> str | None:
    """The inventory of a command without INVENTORY that is called in `folder`; None if there is no default."""
    return environ.get("DDP_ORCH_INVENTORY") or (DEFAULT if (folder / DEFAULT).exists() else None)


def load(
    path: str | Path, settings: Sequence[str] = (), variables: Mapping[str, str] = MappingProxyType({})
) -> Inventory:
    """Read and parse a file, or what `reference.parse` accepts. Raises InventoryError with all problems, one per line.

    `settings`: KEY=VALUE of the command line, see `settings.apply`.
    `variables`: the environment, which describes the job of `@slurm` and the like.
    """
    if not str(path):
        raise InventoryError("the inventory path is empty")
    if str(path).endswith(".py"):
        raise InventoryError(f"{path}: expected an inventory, got a script")
    named = reference.parse(str(path))
    text = _read_file(named.file) if named.file else "{}"
    return parse(text, str(path), settings, variables)


def find_new_host(inventory: Inventory, name: str, variables: Mapping[str, str]) -> Host | None:
    """The host of that name, in the inventory or in its file as it is now. None: there is none, or it is unreadable."""
    found = next((host for host in inventory.machines if host.name == name), None)
    if found is not None or inventory.path == STDIN:
        return found
    try:
        return next((host for host in load(inventory.path, (), variables).machines if host.name == name), None)
    except OrchError:
        return None


def _read_file(path: str) -> str:
    try:
        return read_text(path)
    except FileNotFoundError as exc:
        siblings = [sibling.name for sibling in Path(path).parent.glob("*.y*ml")] if Path(path).parent.is_dir() else []
        if close := get_close_matches(Path(path).name, siblings, 1, SIMILAR):
            raise InventoryError(f"{path}: no such file; did you mean {Path(path).with_name(close[0])}?") from exc
        smallest = "the smallest inventory is `hosts: [lovelace, hopper]`"
        raise InventoryError(f"{path}: no such file; write one with `ddp-orch init` ({smallest})") from exc


def parse(
    text: str, path: str, settings: Sequence[str] = (), variables: Mapping[str, str] = MappingProxyType({})
) -> Inventory:
    """Parse the text of the inventory `path`, as `load` does."""
    named = reference.parse(path)
    place = named.file or path
    root = command_line.apply(document.read(text, place), settings)
    folder = Path() if named.source or place == STDIN else Path(place).parent
    filled = fill_in(root, place, named.source, lambda source: read_source(source, folder, variables))
    reading = Reading()
    values = FILE.read(filled.root, "", reading)
    if "hosts" not in reading.marks:
        reading.wrong(root.mark, "hosts", "missing; the smallest inventory is `hosts: [lovelace, hopper]`")
    hosts = _hosts(values, reading)
    witness = _witness(values, reading)
    inventory = Inventory(
        path=path,
        source=filled.source,
        job_gpus=schedulers.gpus_per_node(variables) if filled.source == "@slurm" else None,
        hosts=tuple(placed.host for placed in hosts),
        any_of=values["hosts"].any_of,
        head=values["head"] or (hosts[0].host.name if hosts else ""),
        ssh=SshOptions(**values["ssh"]),
        run=RunOptions(
            **values["run"]
            | {
                "rdzv": RendezvousOptions(**values["run"]["rdzv"]),
                "keep": Keep(**values["run"]["keep"]),
                "witness": witness[0].host if witness else None,
            }
        ),
        notify=Notify(**values["notify"]),
        launchers=values["launchers"],
        deprecated=tuple(
            f"{_place(place, settings, mark)}: {notice}" for mark, notice in sorted(reading.deprecated.items())
        ),
    )
    if not any(key.startswith("hosts") for _, key, _ in reading.problems):
        # with a host missing or invalid, these would only report consequences
        _check_fleet(inventory, hosts, reading)
        _check_jumps([*hosts, *witness], reading)
        via.check_hosts([*hosts, *witness], reading)
        recovery.check(inventory, reading)
        _check_any_of(inventory, reading)
    _check_env(inventory, hosts, reading)
    container.check(inventory.hosts, inventory.run.preload, inventory.run.secrets, reading)
    launcher_rows.check(inventory.launchers, inventory.run.launcher, reading)
    if reading.problems:
        raise InventoryError(_report(place, settings, reading))
    return inventory


def _place(path: str, settings: Sequence[str], mark: Mark, key: str = "") -> str:
    """Where a key is: `inventory.yaml:3: run.lease`, or `--set run.lease`."""
    if (setting := command_line.key_at(mark, settings)) is not None:
        return f"--set {shown(setting, 200)}" + (f": {shown(key, 200)}" if key not in ("", setting) else "")
    return f"{path}:{mark.line + 1}" + (f": {shown(key, 200)}" if key else "")


def _report(path: str, settings: Sequence[str], reading: Reading) -> str:
    lines = [f"{_place(path, settings, mark, key)}: {message}" for mark, key, message in sorted(reading.problems)]
    if len(lines) > MAX_PROBLEMS:
        lines[MAX_PROBLEMS:] = [f"{path}: and {len(lines) - MAX_PROBLEMS} more"]
    return "\n".join(lines)


@dataclass(frozen=True)
class _Placed:
    """A host, and where each of its values is in the file: `hosts[1].gpus` or `defaults.gpus`."""

    host: Host
    key: str
    keys: Mapping[str, str]


def _check_any_of(inventory: Inventory, reading: Reading) -> None:
    if inventory.any_of is None:
        return
    for key, is_set in (("run.nnodes", inventory.run.nnodes != "auto"), ("run.witness", inventory.run.witness)):
        if is_set:
            reading.wrong(reading.marks[key], key, "cannot be combined with `hosts: any N of`")
    if any(host.spare for host in inventory.hosts):
        reading.wrong(reading.marks["hosts"], "hosts", "`any N of` cannot be combined with spares")


def _hosts(file: Mapping[str, Any], reading: Reading) -> list[_Placed]:
    defaults = file["defaults"]
    placed: list[_Placed] = []
    first: dict[str, int] = {}
    size = 0
    for entry in file["hosts"].entries:
        values = dict(entry.values)
        keys = {}
        for name in values:
            keys[name] = f"{entry.key}.{name}"
            if keys[name] not in reading.marks and name in defaults and f"defaults.{name}" in reading.marks:
                keys[name], values[name] = f"defaults.{name}", defaults[name]
        values["env"] = {**defaults["env"], **entry.values["env"]}
        names = values.pop("name")
        size += len(names) * sum(len(value) for value in values.values() if isinstance(value, (Mapping, tuple)))
        if size > MAX_VALUES:  # checked before they are copied to each host: 40 KB of YAML could fill the memory
            message = f"the hosts have more than {MAX_VALUES:,} variables, setup lines and other items in total; "
            reading.wrong(entry.mark, entry.key, message + "set variables of all hosts in `run.env`")
            return placed
        for name in ("address", "cluster_address"):
            if len(names) > 1 and values[name] is not None:
                message = f"the {len(names)} hosts of a range cannot share one address"
                reading.wrong(reading.marks[keys[name]], keys[name], message)
        for name in names:
            if name in first:
                reading.wrong(entry.mark, entry.key, f"duplicate host {name} (first on line {first[name]})")
            first.setdefault(name, entry.mark.line + 1)
            inherited = {"via": values["via"] or file["ssh"]["via"]}
            inherited["container"] = values["container"] or file["run"]["container"]
            host = Host(**values | {"name": name, "address": values["address"] or name} | inherited)
            placed.append(_Placed(host, entry.key, keys))
    return placed


def _witness(file: Mapping[str, Any], reading: Reading) -> list[_Placed]:
    """The witness, if there is one. `defaults` apply to it too."""
    entry = file["run"]["witness"]
    if entry is None:
        return []
    values = HOST.defaults() | entry.values
    keys = {name: f"{entry.key}.{name}" for name in values}
    for name in (key.name for key in WITNESS.keys):
        if keys[name] not in reading.marks and f"defaults.{name}" in reading.marks:
            keys[name], values[name] = f"defaults.{name}", file["defaults"][name]
    (name,) = values["name"]
    values |= {"name": name, "address": values["address"] or name, "via": values["via"] or file["ssh"]["via"]}
    return [_Placed(Host(**values | {"gpus": "none", "container": "none", "witness": True}), entry.key, keys)]


def _check_fleet(inventory: Inventory, hosts: list[_Placed], reading: Reading) -> None:
    """Check what involves several hosts or keys: the head, the number of nodes, ranks and GPUs, jumps."""
    by_name = {placed.host.name: placed for placed in hosts}
    if inventory.head not in by_name:
        message = f"{inventory.head} is not among the hosts; {nearest(inventory.head, list(by_name))}"
        reading.wrong(reading.marks["head"], "head", message)
    elif by_name[inventory.head].host.spare:
        key = "head" if "head" in reading.marks else by_name[inventory.head].keys["spare"]
        message = f"the head, {inventory.head}, cannot be a spare; set `head` to another host"
        reading.wrong(reading.marks[key], key, message)
    working = sum(placed.host.in_team for placed in hosts)
    if inventory.run.nnodes != "auto" and inventory.run.nnodes[0] > working:
        message = f"{inventory.run.nnodes[0]} nodes are required, but {_hosts_but_spares(working)}"
        reading.wrong(reading.marks["run.nnodes"], "run.nnodes", message)
    for placed in hosts:
        host = placed.host
        gpus = len(host.gpus) if isinstance(host.gpus, tuple) else host.gpus
        if isinstance(gpus, int) and isinstance(host.nproc_per_node, int) and host.nproc_per_node > gpus:
            key = placed.keys["nproc_per_node"]
            ranks, on = number_of(host.nproc_per_node, "rank"), number_of(gpus, "GPU")
            message = f"{ranks} on {on} of {host.name}; NCCL allows only one rank per GPU"
            reading.wrong(reading.marks[key], key, message)


def _hosts_but_spares(count: int) -> str:
    return "only 1 host is not a spare" if count == 1 else f"only {count} hosts are not spares"


def _check_jumps(hosts: list[_Placed], reading: Reading) -> None:
    jumping = [placed for placed in hosts if placed.host.proxy_jump is not None]
    if not jumping:
        return
    from graphlib import CycleError, TopologicalSorter

    through = {placed.host.name: jump_hosts(placed.host.proxy_jump or "") for placed in jumping}
    try:
        TopologicalSorter(through).prepare()
    except CycleError as exc:
        circle = exc.args[1][::-1]  # graphlib's order is the reverse: dependencies come first
        key = next(placed.keys["proxy_jump"] for placed in jumping if placed.host.name == circle[0])
        message = f"circular jumps: {' -> '.join(circle)}; set `proxy_jump: null` for one of them"
        reading.wrong(reading.marks[key], key, message)


def _check_env(inventory: Inventory, hosts: list[_Placed], reading: Reading) -> None:
    run_keys = {name: f"run.env.{name}" for name in inventory.run.env}
    for name in inventory.run.secrets:
        if name in run_keys:
            reading.wrong(reading.marks[run_keys[name]], run_keys[name], "also in run.secrets; remove one of them")
    for placed in hosts:
        own = {name: f"{placed.key}.env.{name}" for name in placed.host.env}
        host_keys = {name: key if key in reading.marks else f"defaults.env.{name}" for name, key in own.items()}
        for name in inventory.run.secrets:
            if name in host_keys:
                key = host_keys[name]
                reading.wrong(reading.marks[key], key, "also in run.secrets; remove one of them")
        devices = (run_keys | host_keys).get("CUDA_VISIBLE_DEVICES")
        if devices is not None and isinstance(placed.host.gpus, tuple):
            message = f"{placed.keys['gpus']} is a list and sets this variable; remove one of them"
            reading.wrong(reading.marks[devices], devices, message)
