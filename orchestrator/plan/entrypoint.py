"""Find what `up` runs, which is a script, a module or the bundled trainer, and the code to send for it."""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from importlib import util
from pathlib import Path
from typing import Any

from ..errors import UsageError
from ..inventory import advice, document, launcher_variables, paths
from ..inventory.launcher_rows import COMMAND
from ..inventory.model import Host, Inventory
from ..inventory.sources import reference
from ..inventory.text_files import read_text
from ..output.console import fold
from . import errexit, function_call, import_roots, launchers, plan, python_files, sharding
from . import snapshot as ship
from .other_command import MEANT, OtherCommand
from .run_program import RUN_PROGRAM

INTERPRETERS = {".py": "python", ".sh": "bash", ".bash": "bash"}
TRAINER = Path(__file__).parents[2] / "trainer"


def find(
    inventory: Inventory, words: tuple[str, ...], package_depth: int = 0
) -> tuple[tuple[str, ...], ship.Snapshot | None]:
    """The arguments of python on the hosts, and the code to send for them.

    `words`: what follows `--` on the command line. A script or -m there replaces run.script and run.args. Flags alone,
    such as `--lr 0.1`, are added to run.args, or to the flags of the bundled trainer. (Python has no flags with `--`.)
    `package_depth`: of a script; see `snapshot.snapshot`.
    """
    if launchers.choose(inventory).scope == "host":
        return _find_command(inventory, words)
    flags = words if words and words[0].startswith("--") else ()
    words = () if flags else words
    inventory_folder = paths.folder(inventory)
    if not words and inventory.run.script is None:
        where = "the flags after --" if flags else f"{inventory.path}: run.args"
        all_flags = (*read_trainer_config(inventory), *expand_trainer_config(flags, Path.cwd(), where))
        trainer_args, notices = trainer_flags(all_flags, where, inventory.path)
        _refuse_own_modules(trainer_args, where, inventory.path)
        snapshot = ship.snapshot(TRAINER / "__main__.py", (str(TRAINER),), TRAINER.parent)
        if snapshot is not None:
            snapshot = replace(snapshot, warnings=(*snapshot.warnings, *notices))
        # a snapshot of its own, so that a user's trainer.py or workdir cannot replace the bundled trainer
        return ("-u", "-m", "trainer", *trainer_args), snapshot
    base = Path.cwd() if words else inventory_folder
    script, *args = words if words else (str(inventory.run.script), *inventory.run.args, *flags)
    module = script == "-m"
    if module and not args:
        raise UsageError("-m: the name of a module is missing")
    if not module:
        _check_suffix((script, *args), base, inventory.path)
    hosts = plan.order(inventory)
    in_place = [host for host in hosts if host.workdir]
    if len(in_place) == len(hosts):
        return ("-u", script, *args), None
    if not module and not script.startswith("-") and not Path(script).suffix and not (base / script).exists():
        text = f"{script}: no such file in {base}. To start a program of the hosts once on each of them: {MEANT}"
        raise OtherCommand(text, _launcher_of(words, base), words, inventory.path)
    if module and not _is_here(args[0], base):
        return ("-u", script, *args), _send_for_installed(inventory, args, base)
    path = _module_file(args[0], base) if module else Path(script)
    depth = len(path.parts) - 1 if module else package_depth
    private = _private_file(inventory)
    snapshot = ship.snapshot(path, inventory.run.sync, base, inventory_folder, package_depth=depth, private=private)
    if snapshot is None:
        others = fold(host.name for host in hosts if not host.workdir)
        raise UsageError(
            f"{inventory.path}: run.sync is none, but {others} has no workdir with {script} in it; "
            "set workdir, or run.sync: auto"
        )
    warnings = (
        *_check_mpi(inventory, snapshot, (script, *args)),
        *_warn_of_ranks_alone(hosts, snapshot, module=module),
        *_warn_of_own_launchers(hosts, snapshot, module=module),
        *_warn_of_variables(inventory, snapshot, module=module),
        *_warn_of_hidden_modules(snapshot, module=module),
        *_warn_of_unsent(args, snapshot, inventory_folder),
    )
    snapshot = replace(snapshot, warnings=(*snapshot.warnings, *warnings))
    if in_place and not module and Path(script).is_absolute():
        raise UsageError(f"{script}: some hosts have a workdir and some do not; pass the script's path relative to it")
    if module or in_place:
        return ("-u", script, *args), snapshot
    return ("-u", os.path.relpath(snapshot.script, snapshot.workdir), *args), snapshot


def _launcher_of(words: Sequence[str], base: Path) -> str:
    """The launcher for a program of the hosts, by the variables that its script reads."""
    file = _first_file(words, base)
    text = (base / file).read_bytes() if file is not None else b""
    return launcher_variables.launcher_of_script(text)


def find_program(
    inventory: Inventory, words: tuple[str, ...], base: Path | None = None
) -> tuple[tuple[str, ...], ship.Snapshot | None]:
    """As `find`, for a program of the hosts. Its first word that is a file here chooses the code.

    `base`: the folder that paths in `words` are relative to; None: the one that the user is in.
    """
    base = base or Path.cwd()
    command = ("-u", "-c", RUN_PROGRAM, *words)
    without = [host.name for host in plan.order(inventory) if not host.workdir]
    if not without:
        return command, None
    missing = next((word for word in words if word.endswith((".py", ".sh")) and not (base / word).exists()), None)
    if missing is not None and _first_file(words, base) is None and not Path(missing).is_absolute():
        raise UsageError(
            f"{shlex.join(words)}: {missing} does not exist in {base}, so there is no code to send to {fold(without)}; "
            "correct its path, or set `workdir` to a folder of the hosts"
        )
    snapshot = _send_for_words(inventory, words, base)
    file = _first_file(words, base)
    is_foreign = inventory.run.launcher in ("skypilot", "dstack")  # the lines of a task, such as pip install
    if snapshot and file and is_foreign and errexit.goes_on(words, file, (base / file).read_bytes()):
        warning = f"{file} goes on after a line that fails, and the run succeeds if its last line does; add: set -e"
        snapshot = replace(snapshot, warnings=(*snapshot.warnings, warning))
    return command, snapshot


def find_function(
    inventory: Inventory, words: tuple[str, ...], function: str
) -> tuple[tuple[str, ...], ship.Snapshot | None]:
    """As `find`, for `--call`. `words`: a script and its JSON; see `function_call.make`."""
    script = words[0] if words else ""
    command, snapshot = find(inventory, words, function_call.package_depth(script, function))
    return function_call.make(command, function), snapshot


def _find_command(inventory: Inventory, words: tuple[str, ...]) -> tuple[tuple[str, ...], ship.Snapshot | None]:
    """As `find`, for a command that is started once per host."""
    script = inventory.run.script
    if words:
        _check_program(inventory, words)
        return find_program(inventory, words)
    if script is None:
        message = f"run.launcher: {inventory.run.launcher} starts your own command; give it after --"
        raise UsageError(f"{inventory.path}: {message}")
    # accelerate starts Python itself
    before = ("--multi_gpu",) if inventory.run.launcher == "accelerate" else ("{python}", "-u")
    return find_program(inventory, (*before, str(script), *inventory.run.args), paths.folder(inventory))


def _check_program(inventory: Inventory, words: Sequence[str]) -> None:
    """Raises UsageError if the first word has to be a program, but is a file here that the hosts cannot start."""
    first, path = words[0], Path(words[0])
    can_start = "/" in first and os.access(path, os.X_OK)
    if launchers.choose(inventory).argv[0] != COMMAND or not path.suffix or not path.is_file() or can_start:
        return
    message = f"{first} is a file here; run.launcher {inventory.run.launcher} starts a program"
    if program := INTERPRETERS.get(path.suffix):
        launcher = str(inventory.run.launcher)
        raise OtherCommand(f"{message}: {MEANT}", launcher, (program, *words), inventory.path)
    raise UsageError(message)


def _first_file(words: Sequence[str], base: Path) -> str | None:
    return next((word for word in words if (base / word).is_file() and not Path(word).is_absolute()), None)


def _send_for_words(inventory: Inventory, words: Sequence[str], base: Path) -> ship.Snapshot:
    """The code of the first word that is a file here; without one, nothing."""
    file = _first_file(words, base)
    if file is None:
        note = f"no word of the command is a file in {base}, so no code is sent: it starts in an empty folder"
        return ship.nothing(base, note)
    snapshot = ship.snapshot(
        Path(file), inventory.run.sync, base, paths.folder(inventory), private=_private_file(inventory)
    )
    if snapshot is None:
        without = fold(host.name for host in plan.order(inventory) if not host.workdir)
        raise UsageError(f"{inventory.path}: run.sync is none, but {without} has no workdir; set workdir")
    return snapshot


def _send_for_installed(inventory: Inventory, words: Sequence[str], base: Path) -> ship.Snapshot:
    """For a module that is only on the hosts, and its arguments."""
    snapshot = _send_for_words(inventory, words[1:], base)
    above = import_roots.advise_parent(words, base, inventory.path)
    what = f"so it is not sent; {above}" if above else "so it must be installed on the hosts"
    note = f"-m {words[0]}: not in {base}, {what}"
    return replace(snapshot, module=words[0], notes=(note, *snapshot.notes))


def _check_suffix(words: Sequence[str], base: Path, inventory: str) -> None:
    """Raises UsageError for files that are not Python. A notebook would run: Python takes it for a dictionary."""
    script = words[0]
    match Path(script).suffix.lower():
        case ".ipynb":
            raise UsageError(
                f"{script} is a notebook, not a Python script. "
                f"Convert it: jupyter nbconvert --to script {shlex.quote(script)}"
            )
        case ".sh" | ".bash" | ".zsh":
            program = Path(script).suffix[1:].lower()
            program = "bash" if program == "sh" else program
            text = (
                f"{script} is a shell script, not Python. To start it once per host: `{MEANT}`. Or pass the Python "
                "script that it starts, and put its preparations into `setup` and `env` of the inventory"
            )
            raise OtherCommand(text, _launcher_of(words, base), (program, *words), inventory)
        case ".yaml" | ".yml" if (base / script).is_file():
            what = document.describe_other(read_text(str(base / script)), script)
            raise UsageError(f"{script}: {what or 'this is YAML, not a Python script'}")


def _private_file(inventory: Inventory) -> Path | None:
    """The file of the inventory, if it has an address with which anybody could send notifications."""
    file = reference.parse(inventory.path).file
    return Path(file).resolve() if file and (inventory.notify.webhook or inventory.notify.mail) else None


def _warn_of_unsent(args: Sequence[str], snapshot: ship.Snapshot, sync_base: Path) -> Iterator[str]:
    """A warning for each argument that names a file which exists on this machine but is not in the snapshot."""
    folder = snapshot.root / snapshot.workdir
    sent = {entry.path for entry in snapshot.files}
    sent |= {str(parent) for path in sent for parent in Path(path).parents}
    for word in args:
        path = word.partition("=")[2] if word.startswith("-") else word
        if os.path.relpath(folder / path, snapshot.root) not in sent and (
            why := ship.why_not_sent(folder, path, sync_base)
        ):
            yield why


def read_trainer_config(inventory: Inventory) -> tuple[str, ...]:
    """run.args without --config."""
    return expand_trainer_config(inventory.run.args, paths.folder(inventory), f"{inventory.path}: run.args")


def expand_trainer_config(args: Sequence[str], folder: Path, where: str) -> tuple[str, ...]:
    """Replace --config FILE by the flags in FILE, which is relative to `folder`. Hosts need neither file nor PyYAML."""
    config = _trainer_config()
    try:
        return tuple(config.expand_files(args, folder))
    except config.ConfigError as error:
        raise UsageError(f"{where}: {error}") from error


def needs_mpi(words: Sequence[str], folder: Path) -> bool:
    """Whether `words`, a script here and its arguments, import mpi4py, so that a real mpirun has to start the ranks."""
    script = python_files.file_of(words, folder)
    if script is None:
        return False  # sending the code reports it
    found = python_files.find_import("mpi4py", script, folder if words[0] == "-m" else script.parent)
    return found is not None and found.certain


def _check_mpi(inventory: Inventory, snapshot: ship.Snapshot, words: Sequence[str]) -> tuple[str, ...]:
    """A warning if the script may import mpi4py without mpirun: to MPI, each rank is the only one.

    Raises UsageError if it certainly does. `words`: the script or -m and a module, and the arguments.
    """
    launcher = inventory.run.launcher
    if launcher == "mpirun":
        return ()
    script, folder = _script_of(snapshot, module=words[0] == "-m")
    found = python_files.find_import("mpi4py", script, folder)
    if found is None:
        return ()
    correct = advice.command("up", "--", "mpirun", "python", *words, inventory=inventory.path)
    place = f"{os.path.relpath(found.path, folder)}:{found.line}"
    if not found.certain:
        return (
            f"{place} may import mpi4py, but {launcher} starts the ranks without MPI: each would be rank 0 "
            f"of 1 for MPI. If it is used, install Open MPI or MPICH there, and start it with: {correct}",
        )
    raise UsageError(
        f"{place} imports mpi4py, but the launcher {launcher} starts the ranks without MPI: each would be rank 0 of 1 "
        f"for MPI. Install Open MPI or MPICH on the hosts, and start it with: {correct}"
    )


def _warn_of_ranks_alone(hosts: Sequence[Host], snapshot: ship.Snapshot, *, module: bool) -> Iterator[str]:
    """A warning if the script was written for one GPU."""
    if (len(hosts) > 1 or hosts[0].nproc_per_node != 1) and python_files.trains_alone(
        *_script_of(snapshot, module=module)
    ):
        yield (
            f"{snapshot.script} does not use torch.distributed, so each rank trains a model of its own, on all of the "
            "data. What to change: docs/guides/two-boxes.md"
        )
    elif (len(hosts) > 1 or hosts[0].nproc_per_node != 1) and sharding.gives_all_data(
        *_script_of(snapshot, module=module)
    ):
        yield (
            f"{snapshot.script} seems to give each rank all of the data, as it uses DataLoader without a "
            "DistributedSampler. What to change: docs/guides/two-boxes.md"
        )


def _warn_of_own_launchers(hosts: Sequence[Host], snapshot: ship.Snapshot, *, module: bool) -> Iterator[str]:
    """Warnings if the script does itself what ddp-orch has done before it starts, as many tutorials do."""
    script, folder = _script_of(snapshot, module=module)
    for found in python_files.find_own_launchers(script, folder):
        place = f"{os.path.relpath(found.path, folder)}:{found.line}"
        known = {name for host in hosts for name in (host.name, host.address, host.cluster_address)}
        if found.what == "address" and len(hosts) > 1 and found.value not in known:
            names, remove = ("names", "Remove") if found.certain else ("may name", "If it does, remove")
            what = "`init_method` from the call" if found.in_call else "the line"
            where = ", which is on one host only" if python_files.LOOPBACK.fullmatch(found.value) else ""
            yield (
                f"{place} {names} {found.value} as the address of rank 0{where}. {remove} {what}: ddp-orch sets "
                "MASTER_ADDR and MASTER_PORT"
            )
        if found.what == "spawn" and any(host.nproc_per_node != 1 for host in hosts):
            yield (
                f"{place} starts processes with {found.value}, but ddp-orch starts one for each GPU already. Call its "
                'function directly, with int(os.environ["RANK"])'
            )


def _warn_of_variables(inventory: Inventory, snapshot: ship.Snapshot, *, module: bool) -> Iterator[str]:
    """A warning per launcher if the script needs variables that only this other launcher sets."""
    script, folder = _script_of(snapshot, module=module)
    for launcher, needed in python_files.find_needed_variables(script, folder).items():
        hosts = (name for host in inventory.hosts for name in host.env)
        set_here = {*inventory.run.env, *hosts, *launchers.choose(inventory).env}
        if inventory.run.launcher not in (launcher, f"{launcher}run") and needed.variable not in set_here:
            yield (
                f"{os.path.relpath(needed.path, folder)}:{needed.line} needs {needed.variable}, which the launcher "
                f"{inventory.run.launcher} does not set. {launcher} does: {launcher_variables.explain(launcher)}"
            )


def _warn_of_hidden_modules(snapshot: ship.Snapshot, *, module: bool) -> Iterator[str]:
    """Warnings for files that are imported in place of modules that torch imports as well."""
    _, folder = _script_of(snapshot, module=module)
    paths = (snapshot.root / entry.path for entry in snapshot.files)
    for name in sorted(path.relative_to(folder).as_posix() for path in paths if path.is_relative_to(folder)):
        if hidden := python_files.hidden_module(name):
            file = name.removesuffix("__init__.py")
            yield f"{file} hides {hidden} from all imports, also from those of torch; rename it"


def has_old_local_rank(snapshot: ship.Snapshot | None, *, module: bool) -> bool:
    """Whether the script knows only `--local_rank`, as it was before torch 2.0."""
    return (
        snapshot is not None
        and not snapshot.module
        and python_files.has_old_local_rank(*_script_of(snapshot, module=module))
    )


def _script_of(snapshot: ship.Snapshot, *, module: bool) -> tuple[Path, Path]:
    """The script, and the folder in which its own modules are."""
    script = snapshot.root / snapshot.script
    return script, snapshot.root / snapshot.workdir if module else script.parent


def trainer_flags(args: Sequence[str], where: str, inventory: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The flags for the bundled trainer with old names replaced, and a notice for each of those.

    Raises UsageError for flags that the trainer would reject on every host.
    """
    config = _trainer_config()
    try:
        flags, notices = config.replace_old(args)
        config.parse(flags)
    except config.ConfigError as error:
        text = str(error).replace("python -m trainer --help", advice.command("up", "--", "--help", inventory=inventory))
        script = next((word for word in args if word.endswith(".py")), None)
        first = f"; to run your own script, put it before its flags: -- {script} ..." if script else ""
        raise UsageError(f"{where}: the bundled trainer: {text}{first}") from error
    return tuple(flags), tuple(notices)


def _refuse_own_modules(flags: Sequence[str], where: str, inventory: str) -> None:
    """Raises UsageError for MODULE:FUNCTION of a module in the current folder, which is not sent with the trainer."""
    for flag in flags:
        match = re.search(r"(?:^|=)([A-Za-z_]\w*)(?:\.\w+)*:[A-Za-z_]\w*$", flag)
        if match and _is_here(match[1], Path.cwd()) and not _is_here(match[1], TRAINER.parent):
            start = advice.command("up", "--", "-m", "trainer", *flags, inventory=inventory)
            raise UsageError(
                f"{where}: {flag}: {match[1]} is in this folder, but without a script only the bundled trainer is "
                f"sent. Copy the trainer next to it, and start the copy: cp -r {shlex.quote(str(TRAINER))} . && {start}"
            )


def _trainer_config() -> Any:
    # loaded by its path: `import trainer` might import a module of the user
    name = "ddp_orch_trainer_config"
    spec = util.spec_from_file_location(name, TRAINER / "config.py")
    assert spec is not None and spec.loader is not None
    config = sys.modules[name] = util.module_from_spec(spec)
    spec.loader.exec_module(config)
    return config


def _is_here(module: str, base: Path) -> bool:
    """Whether the package or module is in the folder, so that a part of it that is missing is a mistake."""
    name = module.partition(".")[0]
    return (base / name).is_dir() or (base / f"{name}.py").is_file()


def _module_file(module: str, base: Path) -> Path:
    path = Path(*module.split("."))
    for candidate in (path.with_suffix(".py"), path / "__main__.py"):
        if (base / candidate).is_file():
            return candidate
    raise UsageError(f"-m {module}: neither {path.with_suffix('.py')} nor {path / '__main__.py'} exists in {base}")
